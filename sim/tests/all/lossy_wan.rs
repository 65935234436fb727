//! Paths that lose, with accelerators without a transport: `labs/scenarios/lossy-wan.toml`, and
//! single packets of READs.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::{Outcome, Simulation};
use longhaul_units::Duration;

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

/// READs over 10 ms of round trip, of whose packets `rule` loses one; the time that they take.
fn reads(accelerators: &str, rule: &str) -> Duration {
    let text = format!(
        "[path]\ndelay = \"5ms\"\nrate = \"100G\"\nnic = \"connectx6\"\n\
         accelerators = \"{accelerators}\"\nrule = \"{rule}\"\n\
         [[flow]]\nop = \"read\"\nsize = \"128K\"\niterations = 128\nconnect = \"cm\"\n"
    );
    let loaded =
        ScenarioFile::parse("reads", &text).unwrap().load(&mut |_| Ok(NIC.to_owned())).unwrap();
    let outcome = Simulation::new(loaded.scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new(), "{accelerators}, {rule}");
    assert_eq!(outcome.flows[0].messages, 128, "{accelerators}, {rule}");
    Duration::from_ns(outcome.flows[0].elapsed_ns)
}

/// The READs behind a repeated one are repeated too, and a box must not take them for answered.
#[test]
fn a_read_that_is_lost_costs_no_more_with_boxes_than_without() {
    let rules = ["read-response from b: lose number 646", "read-request from a: lose number 21"];
    for rule in rules {
        let without = reads("none", rule);
        assert!(without > Duration::from_ms(90), "the loss costs a round trip: {without}");
        for accelerators in ["near", "both"] {
            let with = reads(accelerators, rule);
            assert!(with < without + Duration::from_ms(1), "{rule}: {with}, not {without}");
        }
    }
}
