//! A run with boxes has no error that the run without them lacks.

mod fleet;

use fleet::boxes::Boxes;
use fleet::plan::Mix;
use fleet::{Outcome, Setup, run};
use longhaul_link::LinkConfig;

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
