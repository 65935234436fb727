//! DCQCN's reaction point: a QP's rate after CNPs.

use super::Dcqcn;
use super::config::ALPHA_BITS;
use longhaul_units::{BitRate, Instant};

const ALPHA_ONE: u64 = 1 << ALPHA_BITS;

/// Outcome of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnpOutcome {
    /// It reduces the QP's rate, now or at the end of the reduction period (`rp_cnp_handled`).
    Handled,
    /// The reaction point is disabled (`rp_cnp_ignored`).
    Ignored,
}

/// Congestion-controlled rate of one QP. Without notifications it has no state and no cost.
///
/// It may be evaluated at any times, however late: the rate at an instant depends on the earlier
/// notifications and bytes sent, not on the evaluations.
#[derive(Clone, Debug, Default)]
pub struct ReactionPoint {
    limited: Option<Limited>,
}

/// Counter that triggers an increase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Time,
    Bytes,
}

/// Rates in bit/s; `min <= current <= target <= ceiling`.
#[derive(Clone, Debug)]
struct Limited {
    current: u64,
    target: u64,
    /// Value at `alpha_at`, with [`ALPHA_BITS`] fraction bits; updated only when a notification
    /// needs it.
    alpha: u64,
    alpha_at: Instant,
    /// A notification arrived in the alpha period that began at `alpha_at`.
    alpha_cnp: bool,
    reduced_at: Instant,
    /// A notification takes effect at the end of the reduction period.
    is_reduction_due: bool,
    /// Time of the timer's last increase, or of its start.
    timed_at: Instant,
    time_stage: u32,
    byte_stage: u32,
    /// Bytes since the last increase by the byte counter.
    bytes: u64,
}

impl ReactionPoint {
    /// Creates a reaction point at line rate.
    pub const fn new() -> Self {
        ReactionPoint { limited: None }
    }

    /// Rate as of the last call, in bits per second on the wire; `None`: line rate.
    #[inline]
    pub fn rate(&self) -> Option<BitRate> {
        // Never zero: the minimum rate is 1 Mbit/s.
        self.limited.as_ref().and_then(|limited| BitRate::from_bps(limited.current))
    }

    /// Handles a CNP for this QP.
    pub fn on_cnp(&mut self, now: Instant, dcqcn: &Dcqcn) -> CnpOutcome {
        if !dcqcn.reacts {
            return CnpOutcome::Ignored;
        }
        self.handle_timeout(now, dcqcn);
        match &mut self.limited {
            None => self.limited = Some(Limited::new(now, dcqcn)),
            Some(limited) => limited.on_cnp(now, dcqcn),
        }
        CnpOutcome::Handled
    }

    /// Counts `bytes` on the wire sent for this QP at `now`.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, bytes: u64, dcqcn: &Dcqcn) {
        if self.limited.is_some() {
            self.count_sent(now, bytes, dcqcn);
        }
    }

    fn count_sent(&mut self, now: Instant, bytes: u64, dcqcn: &Dcqcn) {
        let Some(limited) = &mut self.limited else { return };
        limited.catch_up(now, dcqcn);
        limited.count_bytes(bytes, dcqcn);
        self.release(dcqcn);
    }

    /// Updates the rate to `now`. Calling it late or never does no harm.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, dcqcn: &Dcqcn) {
        if let Some(limited) = &mut self.limited {
            limited.catch_up(now, dcqcn);
            self.release(dcqcn);
        }
    }

    /// Time of the next rate change without further events, for a sender that waits for its rate.
    pub fn poll_timeout(&self, dcqcn: &Dcqcn) -> Option<Instant> {
        let limited = self.limited.as_ref()?;
        let timer = limited.timed_at + dcqcn.time_reset;
        if limited.is_reduction_due {
            return Some(timer.min(limited.reduced_at + dcqcn.reduce_period));
        }
        Some(timer)
    }

    fn release(&mut self, dcqcn: &Dcqcn) {
        let is_free =
            |limited: &Limited| limited.current >= dcqcn.free_bps && !limited.is_reduction_due;
        if self.limited.as_ref().is_some_and(is_free) {
            self.limited = None;
        }
    }
}

impl Limited {
    /// State after the first notification.
    fn new(now: Instant, dcqcn: &Dcqcn) -> Self {
        let start = dcqcn.first_bps.unwrap_or(dcqcn.ceiling_bps);
        let mut limited = Limited {
            current: start,
            target: start,
            alpha: dcqcn.alpha_initial,
            alpha_at: now,
            alpha_cnp: false,
            reduced_at: now,
            is_reduction_due: false,
            timed_at: now,
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
        };
        if dcqcn.first_bps.is_none() {
            limited.reduce(now, dcqcn);
        }
        limited
    }

    fn on_cnp(&mut self, now: Instant, dcqcn: &Dcqcn) {
        self.bring_alpha(now, dcqcn);
        self.alpha_cnp = true;
        if now.since(self.reduced_at) >= dcqcn.reduce_period {
            self.reduce(now, dcqcn);
        } else {
            self.is_reduction_due = true;
        }
    }

    fn catch_up(&mut self, now: Instant, dcqcn: &Dcqcn) {
        if self.is_reduction_due {
            let due = self.reduced_at + dcqcn.reduce_period;
            if now < due {
                return self.run_timer(now, dcqcn);
            }
            self.run_timer(due, dcqcn);
            self.reduce(due, dcqcn);
        }
        self.run_timer(now, dcqcn);
    }

    #[inline]
    fn run_timer(&mut self, now: Instant, dcqcn: &Dcqcn) {
        let elapsed = now.since(self.timed_at);
        if elapsed < dcqcn.time_reset {
            return;
        }
        let times = elapsed.as_ps() / dcqcn.time_reset.as_ps();
        self.timed_at += dcqcn.time_reset.times(times);
        self.increase(Counted::Time, times, dcqcn);
    }

    fn count_bytes(&mut self, bytes: u64, dcqcn: &Dcqcn) {
        if dcqcn.byte_reset == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= dcqcn.byte_reset {
            let times = self.bytes / dcqcn.byte_reset;
            self.bytes %= dcqcn.byte_reset;
            self.increase(Counted::Bytes, times, dcqcn);
        }
    }

    /// Reduces the rate by alpha's share, and restarts recovery.
    fn reduce(&mut self, now: Instant, dcqcn: &Dcqcn) {
        self.bring_alpha(now, dcqcn);
        if dcqcn.clamp || self.byte_stage > 0 || (dcqcn.clamp_after_time && self.time_stage > 0) {
            self.target = self.current;
        }
        let current = u128::from(self.current);
        let taken = (current * u128::from(self.alpha)) >> (ALPHA_BITS + dcqcn.gd_shift);
        let least = current * u128::from(dcqcn.least_percent) / 100;
        // Does not overflow: both are at most the current rate, and alpha is at most one.
        self.current = ((current - taken).max(least) as u64).max(dcqcn.min_bps);
        self.reduced_at = now;
        self.is_reduction_due = false;
        self.timed_at = now;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
    }

    /// Updates alpha to `now`. Increases do not depend on alpha, so only notifications need it.
    fn bring_alpha(&mut self, now: Instant, dcqcn: &Dcqcn) {
        let periods = now.since(self.alpha_at).as_ps() / dcqcn.alpha_period.as_ps();
        if periods == 0 {
            return;
        }
        let kept = scale(self.alpha, dcqcn.keep);
        let gained = if self.alpha_cnp { ALPHA_ONE - dcqcn.keep } else { 0 };
        self.alpha = scale(kept + gained, power(dcqcn.keep, periods - 1));
        self.alpha_at += dcqcn.alpha_period.times(periods);
        self.alpha_cnp = false;
    }

    /// Applies `times` increases by one counter, in a bounded number of steps: after about 64 the
    /// distance to the target is constant, and the rest is linear.
    fn increase(&mut self, counted: Counted, mut times: u64, dcqcn: &Dcqcn) {
        while times > 0 {
            self.advance_stage(counted, 1);
            times -= 1;
            let step = step(self.time_stage, self.byte_stage, dcqcn);
            let gap = self.target - self.current;
            self.target += step.min(dcqcn.ceiling_bps - self.target);
            self.current = self.target - (self.target - self.current) / 2;
            if self.target - self.current != gap || step != self.last_step(counted, dcqcn) {
                continue;
            }
            if self.current == dcqcn.ceiling_bps {
                return self.advance_stage(counted, times);
            }
            let jump = times.min((dcqcn.ceiling_bps - self.target) / step);
            self.target += jump * step;
            self.current += jump * step;
            self.advance_stage(counted, jump);
            times -= jump;
        }
    }

    /// Final step size of increases by this counter.
    fn last_step(&self, counted: Counted, dcqcn: &Dcqcn) -> u64 {
        match counted {
            Counted::Time => step(u32::MAX, self.byte_stage, dcqcn),
            Counted::Bytes => step(self.time_stage, u32::MAX, dcqcn),
        }
    }

    fn advance_stage(&mut self, counted: Counted, times: u64) {
        let stage = match counted {
            Counted::Time => &mut self.time_stage,
            Counted::Bytes => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
    }
}

/// Addition to the target, in bit/s, of the increase that reached these stages; zero in fast
/// recovery.
fn step(time_stage: u32, byte_stage: u32, dcqcn: &Dcqcn) -> u64 {
    if time_stage.max(byte_stage) <= dcqcn.threshold {
        0
    } else if time_stage.min(byte_stage) > dcqcn.threshold {
        dcqcn.hyper_bps
    } else {
        dcqcn.additive_bps
    }
}

/// Product of two numbers of at most one, with [`ALPHA_BITS`] fraction bits.
fn scale(a: u64, b: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> ALPHA_BITS) as u64
}

/// `base` to the power of `exponent`, with [`ALPHA_BITS`] fraction bits.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = ALPHA_ONE;
    while exponent > 0 && result > 0 {
        if exponent & 1 == 1 {
            result = scale(result, base);
        }
        base = scale(base, base);
        exponent >>= 1;
    }
    result
}
