//! A run with boxes has no error that the run without them lacks.

mod fleet;

use fleet::boxes::Boxes;
use fleet::plan::Mix;
use fleet::{Failure, Outcome, Setup, run};
use longhaul_link::{Cut, LinkConfig};
use longhaul_units::{Duration, Instant};

fn show(outcome: &Outcome) -> String {
    let Outcome { ended, failures, violations, unfinished, flows, .. } = outcome;
    let first: Vec<_> = failures.iter().take(8).collect();
    format!(
        "after {ended}: {} failures, the first: {first:#?}\nviolations: {violations:#?}\nunfinished: {unfinished:#?}\n{}",
        failures.len(),
        flows.join("\n")
    )
}

#[test]
fn plain() {
    for seed in 1..5 {
        let outcome = run(&Setup { qps: 8, ..Setup::new(seed, Boxes::None) });
        assert!(outcome.is_clean(), "{}", show(&outcome));
    }
}

/// How NCCL, MPI and perftest connect.
mod without_the_connection_manager {
    use super::*;

    fn many(seed: u64, boxes: Boxes, qps: usize, km: u64) -> Setup {
        let setup = Setup::new(seed, boxes);
        let fibre = LinkConfig::fibre_km(km, setup.rate);
        let mix = Mix::WritesAndReads;
        Setup { qps, mix, messages: 64, size_max: 256 << 10, fibre, ..setup }
    }

    fn many_are_served(setup: &Setup) {
        let outcome = run(setup);
        assert!(outcome.is_clean(), "{}", show(&outcome));
    }

    #[test]
    fn a_hundred_without_boxes() {
        many_are_served(&many(1, Boxes::None, 100, 1));
        many_are_served(&many(1, Boxes::None, 100, 1000));
    }

    #[test]
    #[ignore = "issue point 1"]
    fn three_hundred_over_one_km() {
        many_are_served(&many(1, Boxes::Both, 300, 1));
    }

    #[test]
    #[ignore = "issue point 1"]
    fn a_hundred_over_a_thousand_km() {
        many_are_served(&many(1, Boxes::Both, 100, 1000));
    }

    #[test]
    #[ignore = "issue point 1"]
    fn a_hundred_with_the_transport() {
        many_are_served(&many(1, Boxes::Whole, 100, 1));
    }
}

/// QPs are reset with data in flight, and connected anew with other PSNs and another UDP source port.
mod reused {
    use super::*;

    fn reused(seed: u64, boxes: Boxes, gap: Duration) -> Setup {
        let setup = Setup::new(seed, boxes);
        Setup {
            qps: 4,
            mix: Mix::SendsAndWrites,
            messages: 400,
            lives: 3,
            lifetime: Duration::from_ms(25) + gap,
            gap,
            ..setup
        }
    }

    fn go_on(boxes: Boxes) {
        for (seed, gap_ms) in [(1, 0), (2, 0), (3, 20), (4, 90)] {
            let outcome = run(&reused(seed, boxes, Duration::from_ms(gap_ms)));
            assert!(outcome.is_clean(), "gap {gap_ms} ms, seed {seed}: {}", show(&outcome));
        }
    }

    #[test]
    fn without_boxes() {
        go_on(Boxes::None);
    }

    #[test]
    #[ignore = "issue point 2"]
    fn through_accelerators() {
        go_on(Boxes::Both);
    }

    #[test]
    #[ignore = "issue point 2"]
    fn through_whole_boxes() {
        go_on(Boxes::Whole);
    }

    /// The path is cut for longer than boxes wait, so that the first life fails. The second has nothing to do with it.
    fn after_a_failure(boxes: Boxes) {
        let mut setup = reused(1, boxes, Duration::from_ms(10_000));
        setup.lives = 2;
        setup.lifetime = Duration::from_ms(30_000);
        let (at, lasts) = (Instant::ZERO + Duration::from_ms(20), Duration::from_ms(29_000));
        setup.fibre.cut = Some(Cut { at, lasts, every: None });
        let outcome = run(&setup);
        let is_first = |failure: &Failure| failure.life == 0;
        assert!(outcome.failures.iter().all(is_first), "{}", show(&outcome));
        assert!(!outcome.failures.is_empty(), "the path was not cut");
        assert!(outcome.violations.is_empty() && outcome.unfinished.is_empty(), "{}", show(&outcome));
    }

    #[test]
    fn after_a_failure_without_boxes() {
        after_a_failure(Boxes::None);
    }

    #[test]
    #[ignore = "issue point 2"]
    fn after_a_failure_through_accelerators() {
        after_a_failure(Boxes::Both);
    }

    #[test]
    #[ignore = "issue point 2"]
    fn after_a_failure_through_whole_boxes() {
        after_a_failure(Boxes::Whole);
    }
}

mod explore {
    use super::*;
    use fleet::boxes::Kill;
    use longhaul_accel::Mode;

    #[test]
    #[ignore = "explore"]
    fn kills() {
        for mode in [Mode::Tail, Mode::Off, Mode::Far, Mode::Early] {
            for boxes in [Boxes::Both, Boxes::Paired, Boxes::Whole] {
                let mut failed = Vec::new();
                let mut statuses = Vec::new();
                for seed in 1..13 {
                    let setup = Setup::new(seed, boxes);
                    let mut setup = Setup {
                        qps: 4, mix: Mix::SendsAndWrites, messages: 400, depth: 32, receives: 32, mode,
                        both_ways: false, mtu: longhaul_rnic::Mtu::B1024,
                        kills: vec![Kill { number: 0, at: Instant::ZERO + Duration::from_ms(15 + 2 * seed), away: Duration::from_ms(700) }],
                        ..setup
                    };
                    setup.nic.timeout = 17;
                    setup.fibre.loss = 1e-3;
                    let outcome = run(&setup);
                    if !outcome.is_clean() { failed.push((seed, outcome.failures.len())); }
                    statuses.extend(outcome.failures.iter().map(|f| (f.status, f.message)));
                    if !outcome.violations.is_empty() || !outcome.unfinished.is_empty() { println!("{}", show(&outcome)); }
                    for (qp, [(completed, placed), _]) in outcome.counts.iter().enumerate() {
                        if completed > placed { println!("seed {seed} QP {qp}: {completed} completed, {placed} placed"); }
                    }
                }
                println!("{mode} {boxes:?}: {failed:?} {statuses:?}");
            }
        }
    }
}
