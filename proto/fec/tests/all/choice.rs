//! The residual loss against simulation, and the choices based on it.

use crate::path::{Datagram, Receiver, encode};
use longhaul_fec::{
    Adaptation, Choice, DecoderConfig, Encoder, LatencyGoal, Layout, Measured, PathLoss, Report,
    choose, residual_loss,
};
use longhaul_units::{Duration, Rng, SplitMix64};

/// Gilbert's chain, one step for each datagram.
struct Path {
    rng: SplitMix64,
    is_bad: bool,
    enters: f64,
    leaves: f64,
}

impl Path {
    fn new(path: PathLoss, seed: u64) -> Self {
        let burst = path.burst.max(1.0 / (1.0 - path.loss));
        let enters = path.loss / (burst * (1.0 - path.loss));
        let mut rng = SplitMix64::new(seed);
        let is_bad = rng.chance(path.loss);
        Path { rng, is_bad, enters, leaves: 1.0 / burst }
    }

    fn loses(&mut self) -> bool {
        let lost = self.is_bad;
        let changes = self.rng.chance(if lost { self.leaves } else { self.enters });
        self.is_bad ^= changes;
        lost
    }
}

/// Share of DATA left lost by counting in blocks, and the standard error of its mean.
fn simulate(layout: Layout, path: PathLoss, blocks: usize, seed: u64) -> (f64, f64) {
    let mut path = Path::new(path, seed);
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..blocks {
        let mut lost = vec![(0, 0); layout.stride()];
        for at in 0..layout.block() + layout.stride() * layout.rows() {
            let (data, all) = &mut lost[at % layout.stride()];
            let is_lost = usize::from(path.loses());
            *all += is_lost;
            *data += if at < layout.block() { is_lost } else { 0 };
        }
        let left: usize =
            lost.iter().filter(|(_, all)| *all > layout.rows()).map(|(data, _)| data).sum();
        let share = left as f64 / layout.block() as f64;
        sum += share;
        squares += share * share;
    }
    let (n, mean) = (blocks as f64, sum / blocks as f64);
    (mean, ((squares / n - mean * mean) / n).sqrt())
}

#[test]
fn residual_of_independent_losses_is_binomial() {
    let p: f64 = 0.02;
    let residual = |symbols, rows| {
        residual_loss(Layout::new(symbols, rows, 1).unwrap(), PathLoss::independent(p))
    };
    // A DATA stays lost when it is lost and at least `rows` of the others are.
    let more = |others: i32, rows: i32| {
        let chance = |lost: i32| {
            (0..lost).map(|i| f64::from(others - i) / f64::from(i + 1)).product::<f64>()
                * p.powi(lost)
                * (1.0 - p).powi(others - lost)
        };
        p * (1.0 - (0..rows).map(chance).sum::<f64>())
    };
    for (symbols, rows) in [(1, 1), (1, 8), (20, 1), (64, 4), (128, 8)] {
        let expected = more(symbols + rows - 1, rows);
        let got = residual(symbols as usize, rows as usize);
        assert!(
            (got - expected).abs() < 1e-9 * expected + 1e-15,
            "{symbols}+{rows}: {got} for {expected}"
        );
    }
}

#[test]
fn residual_agrees_with_simulation() {
    for (seed, (layout, loss, burst)) in (1..).zip([
        ((20, 1, 1), 1e-2, 1.0),
        ((64, 4, 1), 3e-2, 1.0),
        ((20, 2, 1), 1e-2, 3.0),
        ((20, 2, 8), 1e-2, 5.0),
        ((40, 3, 16), 2e-2, 12.0),
        ((10, 4, 4), 5e-2, 6.0),
        ((44, 8, 1), 5e-2, 2.0),
    ]) {
        let layout = Layout::new(layout.0, layout.1, layout.2).unwrap();
        let path = PathLoss { loss, burst };
        let expected = residual_loss(layout, path);
        let (mean, error) = simulate(layout, path, 3_000_000 / layout.block(), seed);
        assert!(error < 0.1 * mean, "{layout}: too few events to tell");
        // Consecutive blocks hardly depend on each other; the seeds are fixed.
        assert!(
            (mean - expected).abs() < 4.0 * error,
            "{layout} {path:?}: {mean} ± {error} for {expected}"
        );
    }
}

#[test]
fn encoder_and_decoder_leave_what_the_arithmetic_says() {
    let (layout, loss) = (Layout::new(16, 2, 4).unwrap(), PathLoss { loss: 0.04, burst: 3.0 });
    let mut rng = SplitMix64::new(11);
    let mut path = Path::new(loss, 12);
    let blocks = 1500;
    let data: Vec<_> =
        (0..layout.block() * blocks).map(|_| Datagram::synthetic(&mut rng)).collect();
    let sent = encode(&mut Encoder::new(Some(layout)), 0, &data);
    let mut receiver = Receiver::new(DecoderConfig { reach: 1024, ..DecoderConfig::default() });
    receiver.expect(0, &data);
    sent.iter().for_each(|sent| {
        if !path.loses() {
            receiver.take(sent);
        }
    });
    let left = receiver.missing().len() as f64 / data.len() as f64;
    let (_, error) = simulate(layout, loss, blocks, 12);
    let expected = residual_loss(layout, loss);
    assert!((left - expected).abs() < 4.0 * error, "{left} for {expected} ± {error}");
    assert!(receiver.recovered.len() as f64 > 0.7 * loss.loss * data.len() as f64);
}

fn at(loss: f64, burst: f64, goal: Option<LatencyGoal>) -> Choice {
    let path = PathLoss { loss, burst };
    choose(&Measured {
        path,
        rtt: Duration::from_ms(100),
        packets_per_s: 3e6,
        free_per_s: 0.0,
        goal,
    })
}

fn overhead(choice: Choice) -> f64 {
    choice.layout.map_or(0.0, Layout::overhead)
}

#[test]
fn parity_stays_in_its_budget() {
    for burst in [1.0, 2.0, 5.0, 20.0, 100.0] {
        for (loss, most) in [
            (0.0, 0.0),
            (1e-6, 0.0),
            (1e-5, 0.0),
            (1e-4, 0.015),
            (9.9e-4, 0.05),
            (1e-2, 0.08),
            (5e-2, 0.181),
        ] {
            let choice = at(loss, burst, None);
            assert!(overhead(choice) <= most, "{choice:?} at {loss}, bursts of {burst}");
            assert!(choice.residual <= loss);
        }
    }
}

#[test]
fn parity_leaves_hardly_any_repetition_on_a_long_path() {
    for (loss, burst, most) in [
        (1e-4, 1.0, 2e-6),
        (1e-4, 5.0, 2e-6),
        (1e-3, 1.0, 4e-7),
        (1e-3, 5.0, 4e-7),
        (1e-2, 1.0, 4e-7),
        (1e-2, 5.0, 1e-6),
        (5e-2, 1.0, 1e-3),
        (5e-2, 5.0, 1e-3),
    ] {
        let choice = at(loss, burst, None);
        assert!(choice.residual <= most, "{choice:?} at {loss}, bursts of {burst}");
    }
}

#[test]
fn a_latency_goal_asks_for_parity_where_throughput_does_not() {
    let goal = |rtts, message_packets| Some(LatencyGoal { rtts, message_packets });
    let choice = at(1e-5, 1.0, goal(1.2, 1000));
    assert!(
        choice.layout.is_some() && overhead(choice) <= 0.015 && choice.residual <= 1e-6,
        "{choice:?}"
    );
    // Short messages are lost too rarely to matter, and two round trips leave time to retransmit.
    assert_eq!(at(1e-5, 1.0, goal(1.2, 10)).layout, None);
    assert_eq!(at(1e-5, 1.0, goal(3.0, 1000)).layout, None);
}

#[test]
fn a_block_takes_less_time_than_the_goal_leaves() {
    let path = PathLoss { loss: 1e-2, burst: 8.0 };
    for (packets_per_s, rtts) in [(1e5, 1.1), (1e6, 1.05), (3e4, 1.5)] {
        let goal = Some(LatencyGoal { rtts, message_packets: 16 });
        let rtt = Duration::from_ms(20);
        let layout =
            choose(&Measured { path, rtt, packets_per_s, free_per_s: 0.0, goal }).layout.unwrap();
        let block_s = layout.block() as f64 / packets_per_s;
        assert!(block_s <= (rtts - 1.0) * 0.02, "{layout} takes {block_s} s");
    }
}

#[test]
fn a_path_with_few_packets_under_way_repeats() {
    let path = PathLoss::independent(1e-3);
    let measured = Measured {
        path,
        rtt: Duration::from_us(100),
        packets_per_s: 1e5,
        free_per_s: 0.0,
        goal: None,
    };
    assert_eq!(choose(&measured).layout, None);
}

#[test]
fn where_parity_costs_nothing_groups_are_short() {
    // Acknowledgements: 32 in a round trip of 10 ms.
    let path = PathLoss::independent(1e-3);
    let measured = Measured {
        path,
        rtt: Duration::from_ms(10),
        packets_per_s: 3200.0,
        free_per_s: 4000.0,
        goal: None,
    };
    let choice = choose(&measured);
    assert!(choice.layout.unwrap().block() <= 16, "{choice:?}");
    assert!(choice.residual * 32.0 < 1e-3, "{choice:?}");
}

/// Feeds reports of round trips of 300,000 datagrams with independent losses; returns the number of
/// changes of the choice.
fn feed(adaptation: &mut Adaptation, rng: &mut SplitMix64, loss: f64, reports: usize) -> usize {
    let mut changes = 0;
    for _ in 0..reports {
        let packets = 300_000;
        // Approximate the binomial by a normal distribution from twelve uniform draws.
        let normal = (0..12).map(|_| rng.below(1 << 32) as f64 / 4294967296.0).sum::<f64>() - 6.0;
        let mean = packets as f64 * loss;
        let lost = (mean + normal * mean.sqrt()).round().max(0.0) as u64;
        let before = adaptation.choice();
        let report = Report { packets, lost, bursts: lost };
        adaptation.report(&report, Duration::from_ms(100), [3e6, 0.0], None);
        changes += usize::from(before.layout != adaptation.choice().layout);
    }
    changes
}

#[test]
fn a_steady_path_keeps_its_layout() {
    for loss in [0.0, 3e-6, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2] {
        let (mut adaptation, mut rng) = (Adaptation::new(), SplitMix64::new(5));
        feed(&mut adaptation, &mut rng, loss, 300);
        let changes = feed(&mut adaptation, &mut rng, loss, 3000);
        assert!(changes <= 2, "{changes} changes at {loss}");
    }
}

#[test]
fn more_loss_is_answered_within_two_reports_and_less_after_a_while() {
    let (mut adaptation, mut rng) = (Adaptation::new(), SplitMix64::new(6));
    feed(&mut adaptation, &mut rng, 1e-6, 200);
    assert_eq!(adaptation.choice().layout, None);
    feed(&mut adaptation, &mut rng, 1e-2, 2);
    assert!(overhead(adaptation.choice()) > 0.03, "{:?}", adaptation.choice());
    feed(&mut adaptation, &mut rng, 1e-4, 100);
    assert!(overhead(adaptation.choice()) <= 0.015, "{:?}", adaptation.choice());
    feed(&mut adaptation, &mut rng, 0.0, 800);
    assert_eq!(adaptation.choice().layout, None);
}

#[test]
fn a_path_that_was_almost_idle_is_protected_by_its_first_busy_report() {
    let mut adaptation = Adaptation::new();
    let rtt = Duration::from_ms(100);
    adaptation.report(&Report { packets: 100, lost: 3, bursts: 3 }, rtt, [1.0, 0.0], None);
    assert_eq!(adaptation.choice().layout, None, "nothing to protect at 0.1 packets per RTT");
    let busy = Report { packets: 300_000, lost: 9_000, bursts: 9_000 };
    adaptation.report(&busy, rtt, [3e6, 0.0], None);
    assert!(overhead(adaptation.choice()) > 0.03, "{:?}", adaptation.choice());
}
