//! `labs/scenarios/lossy-wan.toml` with accelerators without a transport.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::{Outcome, Simulation};

const SCENARIO: &str = include_str!("../../../labs/scenarios/lossy-wan.toml");
const NIC: &str = include_str!("../../../labs/nics/connectx6.toml");

fn run(seed: u64) -> Outcome {
    let mut file = ScenarioFile::parse("lossy-wan.toml", SCENARIO).unwrap();
    for (key, value) in [("path.accelerator.transport", "false"), ("path.loss", "0.01")] {
        file.set(key, value).unwrap();
    }
    file.set("seed", &seed.to_string()).unwrap();
    let loaded = file.load(&mut |_| Ok(NIC.to_owned())).unwrap();
    Simulation::new(loaded.scenario, |_, _| None).unwrap().run(1, |_| true)
}

/// One QP, 100 Gbit/s, 5 ms, 1 frame in 100 lost: the box keeps the requester alive while the far
/// side makes progress.
fn goes_on(seed: u64) {
    let outcome = run(seed);
    assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
    assert_eq!(outcome.flows[0].failure, None, "seed {seed}");
}

#[test]
fn a_requester_outlasts_one_loss_in_a_hundred() {
    [1, 16, 24].into_iter().for_each(goes_on);
}

#[test]
#[ignore = "nightly: the other seeds"]
fn a_requester_outlasts_one_loss_in_a_hundred_with_any_seed() {
    (1..200).for_each(goes_on);
}
