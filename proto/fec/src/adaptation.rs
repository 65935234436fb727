//! Choice of the layout for a path.

use crate::{Layout, PathLoss, ROWS_MAX, STRIDE_MAX, SYMBOLS_MAX, residual_loss};
use longhaul_units::Duration;

/// At this loss or less, retransmission alone is cheaper.
const LOSS_MIN: f64 = 1e-5;

/// Maximum parity per DATA as a function of the loss: linear interpolation over the logarithm of
/// the loss.
///
/// A choice holds while the measured loss stays within a factor of [`BAND`], so the curve is
/// shifted by that much to keep the documented bounds (1.5 % at 1e-4, 5 % below 1e-3, 8 % at 1e-2,
/// 18 % at 5e-2).
const BUDGET: [(f64, f64); 6] =
    [(LOSS_MIN, 0.008), (1.5e-4, 0.015), (1.5e-3, 0.05), (1.5e-2, 0.085), (5e-2, 0.18), (0.2, 0.4)];

/// Maximum parity per DATA where it is free.
const FREE_BUDGET_MAX: f64 = 0.5;

/// Parity that a latency goal may use on any path.
const GOAL_BUDGET: f64 = 0.015;

/// Round trips until a retransmitted datagram completes a message: goals from here on need no
/// parity.
const REPEATED_RTTS: f64 = 2.5;

/// Losses per round trip that are left to retransmission. Each delays the datagrams of its stream
/// in that round trip.
const LEFT_PER_RTT: f64 = 5e-4;

/// Transmission time of a block, in round trips.
const BLOCK_RTTS: f64 = 0.125;

/// Minimum target of the residual loss.
const TARGET_MIN: f64 = 1e-7;

/// Factor of change in loss within which a choice holds.
const BAND: f64 = 1.5;

/// Consecutive reports of less loss before protection is reduced.
const PATIENCE: u32 = 16;

/// Losses needed for short-term figures to be significant.
const SIGNIFICANT: f64 = 32.0;

/// A flow's latency goal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatencyGoal {
    /// 99.9 % of messages must complete within this number of round trips; without loss a message
    /// takes 1.
    pub rtts: f64,
    /// Packets per message, at least 1.
    pub message_packets: u32,
}

/// Measurements of a path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Loss before repair.
    pub path: PathLoss,
    /// Round trip.
    pub rtt: Duration,
    /// DATA sent per second.
    pub packets_per_s: f64,
    /// PARITY per second that is free, because it uses spare capacity of the path.
    pub free_per_s: f64,
    /// Strictest goal of its flows.
    pub goal: Option<LatencyGoal>,
}

/// The choice for a path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// Layout of groups; `None`: no parity.
    pub layout: Option<Layout>,
    /// Residual loss, by [`residual_loss`].
    pub residual: f64,
}

/// The receiver's counts since the last report, before repair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Datagrams sent.
    pub packets: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Runs of consecutive lost datagrams.
    pub bursts: u64,
}

/// Returns the cheapest layout that meets the target of residual loss, within the parity budget.
///
/// Without a goal, the target is one residual loss per 2000 round trips; with a goal, 0.1 % of
/// messages may have one. If the budget is too small for the target, the layout with the lowest
/// residual loss is chosen if it halves the loss. A block takes an eighth of a round trip to send
/// (with a goal, the time that the goal leaves), or up to half a round trip if the budget requires
/// longer blocks; with longer ones retransmission would be faster.
///
/// Cost: up to a few hundred evaluations of [`residual_loss`], about 0.1 ms; call it when the path
/// has changed.
pub fn choose(measured: &Measured) -> Choice {
    let loss = measured.path.loss.clamp(0.0, 0.9);
    let path = PathLoss { loss, ..measured.path };
    let per_rtt = (measured.packets_per_s * measured.rtt.as_secs_f64()).max(1.0);
    let goal = measured.goal.filter(|goal| goal.rtts < REPEATED_RTTS);
    let nothing = Choice { layout: None, residual: loss };
    let (target, budget, block_max) = match goal {
        None if loss <= LOSS_MIN => return nothing,
        None => {
            let free = (measured.free_per_s / measured.packets_per_s.max(1.0)).min(FREE_BUDGET_MAX);
            let budget = budget(loss).max(free);
            let block_max = (BLOCK_RTTS * per_rtt).max((1.0 / budget).ceil().min(per_rtt / 2.0));
            ((LEFT_PER_RTT / per_rtt).max(TARGET_MIN), budget, block_max)
        }
        Some(goal) => {
            let target = (1e-3 / f64::from(goal.message_packets.max(1))).max(TARGET_MIN);
            let budget = budget(loss).max(GOAL_BUDGET);
            // On a slow path a flush ends blocks early, so the shortest block within the budget is
            // always allowed.
            (target, budget, ((goal.rtts - 1.0) * per_rtt).max((1.0 / budget).ceil()))
        }
    };
    if loss <= target {
        return nothing;
    }
    let search = Search { path, target, budget, block_max: block_max as usize };
    search.cheapest().or_else(|| search.strongest()).unwrap_or(nothing)
}

fn budget(loss: f64) -> f64 {
    let above = BUDGET.iter().position(|&(at, _)| loss < at);
    match above {
        Some(0) => BUDGET[0].1,
        Some(i) => {
            let ((loss_0, budget_0), (loss_1, budget_1)) = (BUDGET[i - 1], BUDGET[i]);
            budget_0 + (budget_1 - budget_0) * (loss / loss_0).ln() / (loss_1 / loss_0).ln()
        }
        None => BUDGET[BUDGET.len() - 1].1,
    }
}

struct Search {
    path: PathLoss,
    target: f64,
    budget: f64,
    block_max: usize,
}

impl Search {
    /// Every number of parities and stride, with the minimum and maximum symbols.
    fn frames(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let strides = (0..).map(|shift| 1 << shift).take_while(|&stride| stride <= STRIDE_MAX);
        strides.flat_map(move |stride| {
            (1..=ROWS_MAX).filter_map(move |rows| {
                let fewest = (rows as f64 / self.budget).ceil() as usize;
                let most = SYMBOLS_MAX.min(self.block_max / stride);
                (fewest.max(1) <= most).then_some((rows, stride, fewest.max(1), most))
            })
        })
    }

    fn evaluate(&self, symbols: usize, rows: usize, stride: usize) -> Option<Choice> {
        let layout = Layout::new(symbols, rows, stride).ok()?;
        Some(Choice { layout: Some(layout), residual: residual_loss(layout, self.path) })
    }

    /// Returns the choice that meets the target with least parity. Strides and rows add a small
    /// weight for memory, computation and repair time.
    fn cheapest(&self) -> Option<Choice> {
        let mut best: Option<(f64, Choice)> = None;
        for (rows, stride, fewest, most) in self.frames() {
            let weight = 1.0 + 0.02 * rows as f64 + 0.05 * f64::from(stride.trailing_zeros());
            let cost = |symbols: usize| weight * rows as f64 / symbols as f64;
            let bound = best.as_ref().map_or(f64::INFINITY, |(cost, _)| *cost);
            let meets = |symbols| {
                let choice = self.evaluate(symbols, rows, stride)?;
                (choice.residual <= self.target).then_some(choice)
            };
            if cost(most) >= bound {
                continue;
            }
            // Minimum symbols for an improvement. More symbols increase the residual loss, so
            // search for the maximum that meets the target.
            let cheaper = (weight * rows as f64 / bound) as usize + 1;
            let (mut low, mut high) = (fewest.max(cheaper), most + 1);
            let Some(mut found) = (low < high).then(|| meets(low)).flatten() else { continue };
            while high - low > 1 {
                let middle = low.midpoint(high);
                match meets(middle) {
                    Some(choice) => (low, found) = (middle, choice),
                    None => high = middle,
                }
            }
            best = Some((cost(low), found));
        }
        best.map(|(_, choice)| choice)
    }

    /// Returns the choice with the lowest residual loss, if it is worth its parity.
    fn strongest(&self) -> Option<Choice> {
        let all = self
            .frames()
            .filter_map(|(rows, stride, fewest, _)| self.evaluate(fewest, rows, stride));
        all.min_by(|a, b| a.residual.total_cmp(&b.residual))
            .filter(|best| best.residual <= self.path.loss / 2.0)
    }
}

/// Follows a path's reports and adapts the choice: at once to more protection, after 16 consecutive
/// reports to less, never for a change of loss within a factor of 1.5, nor of packets per round
/// trip within a factor of 2.
#[derive(Clone, Debug)]
pub struct Adaptation {
    /// Average over the last few reports.
    fast: Sums,
    /// Average over the last hundred or so.
    slow: Sums,
    /// The measurements for which the choice was made.
    anchor: Option<Measured>,
    choice: Choice,
    calm: u32,
}

/// Exponentially decayed counts.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    packets: f64,
    lost: f64,
    bursts: f64,
}

impl Sums {
    fn add(&mut self, report: &Report, decay: f64) {
        self.packets = self.packets * decay + report.packets as f64;
        self.lost = self.lost * decay + report.lost as f64;
        self.bursts = self.bursts * decay + report.bursts as f64;
    }

    fn path(&self) -> PathLoss {
        let loss = if self.packets > 0.0 { (self.lost / self.packets).min(1.0) } else { 0.0 };
        // A few bursts are not enough to estimate their mean length.
        let burst = if self.bursts >= 4.0 { (self.lost / self.bursts).max(1.0) } else { 1.0 };
        PathLoss { loss, burst }
    }
}

impl Adaptation {
    /// Starts without parity.
    pub fn new() -> Self {
        let choice = Choice { layout: None, residual: 0.0 };
        Adaptation { fast: Sums::default(), slow: Sums::default(), anchor: None, choice, calm: 0 }
    }

    /// The choice in force.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Smoothed loss of the path: over the last few reports if they have 32 losses, else over the
    /// last hundred or so.
    pub fn path(&self) -> PathLoss {
        if self.fast.lost >= SIGNIFICANT { self.fast.path() } else { self.slow.path() }
    }

    /// Updates with a report and the path's other figures, DATA and free PARITY per second as in
    /// [`Measured`], and returns the choice. Call it about once per round trip.
    pub fn report(
        &mut self,
        report: &Report,
        rtt: Duration,
        [packets_per_s, free_per_s]: [f64; 2],
        goal: Option<LatencyGoal>,
    ) -> Choice {
        // Half-lives of 4 and of 64 reports.
        self.fast.add(report, 0.84);
        self.slow.add(report, 0.989);
        let measured = Measured { path: self.path(), rtt, packets_per_s, free_per_s, goal };
        match self.change(&measured) {
            Change::Worse => self.choose(measured),
            Change::Better => {
                self.calm += 1;
                if self.calm >= PATIENCE {
                    self.choose(measured);
                }
            }
            Change::None => self.calm = 0,
        }
        self.choice
    }

    fn choose(&mut self, measured: Measured) {
        self.choice = choose(&measured);
        self.anchor = Some(measured);
        self.calm = 0;
    }

    fn change(&self, measured: &Measured) -> Change {
        let Some(anchor) = &self.anchor else { return Change::Worse };
        let per_rtt = |m: &Measured| (m.packets_per_s * m.rtt.as_secs_f64()).max(1.0);
        let loss = ratio(measured.path.loss, anchor.path.loss, TARGET_MIN);
        let burst = ratio(measured.path.burst, anchor.path.burst, 1.0);
        let size = ratio(per_rtt(measured), per_rtt(anchor), 1.0);
        let is_needless = self.choice.layout.is_some()
            && measured.goal.is_none()
            && measured.path.loss <= LOSS_MIN;
        // With more in flight the same loss leaves more to retransmission. The layout of an almost
        // idle path may be no parity at all.
        if measured.goal != anchor.goal || loss > BAND || burst > 2.0 || size > 2.0 {
            Change::Worse
        } else if is_needless || loss < 1.0 / BAND || burst < 0.5 || size < 0.5 {
            Change::Better
        } else {
            Change::None
        }
    }
}

impl Default for Adaptation {
    fn default() -> Self {
        Self::new()
    }
}

/// Comparison of a report with the measurements of the choice.
enum Change {
    Worse,
    Better,
    None,
}

fn ratio(a: f64, b: f64, least: f64) -> f64 {
    a.max(least) / b.max(least)
}
