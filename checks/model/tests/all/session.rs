//! Every order of events of the WAN transport between two boxes, within bounds; and the detection
//! of mistakes.

use crate::explored::{finds, holds};
use longhaul_model::session::{Scenario, Slip, Tunnel};

fn tunnel(scenario: Scenario) -> Tunnel {
    Tunnel { scenario }
}

#[test]
fn a_path_loses_repeats_and_reorders() {
    let base = Scenario::new();
    holds("nothing goes wrong", tunnel(base.clone()));
    holds("two losses", tunnel(Scenario { losses: 2, ..base.clone() }));
    holds("a duplicate and a loss", tunnel(Scenario { duplicates: 1, losses: 1, ..base.clone() }));
    holds(
        "an early repetition and a loss",
        tunnel(Scenario { early_repeats: 1, losses: 1, ..base }),
    );
}

#[test]
fn both_ask_at_once() {
    let base = Scenario { askers: vec![0, 1], frames: 1, ..Scenario::new() };
    holds("both ask, two losses", tunnel(Scenario { losses: 2, ..base.clone() }));
    holds(
        "both ask, a duplicate and a loss",
        tunnel(Scenario { duplicates: 1, losses: 1, ..base }),
    );
}

#[test]
fn a_box_restarts() {
    let base = Scenario { crashes: 1, frames: 2, ..Scenario::new() };
    holds("a crash", tunnel(base.clone()));
    holds("a crash and a loss", tunnel(Scenario { losses: 1, ..base.clone() }));
    holds("a crash and a duplicate", tunnel(Scenario { duplicates: 1, ..base.clone() }));
    holds("a crash, both ask", tunnel(Scenario { askers: vec![0, 1], frames: 1, ..base }));
}

#[test]
fn a_stranger_in_the_name_of_a_box_ends_no_session_of_it() {
    let base = Scenario { strangers: 2, frames: 2, ..Scenario::new() };
    holds("two strangers", tunnel(base.clone()));
    holds("a stranger and a loss", tunnel(Scenario { strangers: 1, losses: 1, ..base.clone() }));
    holds("a stranger and a crash", tunnel(Scenario { strangers: 1, crashes: 1, ..base }));
}

#[test]
#[ignore = "a minute and more: wider bounds"]
fn wider_bounds() {
    let base = Scenario { crashes: 1, frames: 2, ..Scenario::new() };
    holds("two crashes", tunnel(Scenario { crashes: 2, ..base.clone() }));
    holds(
        "two crashes, a duplicate",
        tunnel(Scenario { crashes: 2, duplicates: 1, ..base.clone() }),
    );
    holds(
        "a crash, a duplicate and a loss",
        tunnel(Scenario { duplicates: 1, losses: 1, ..base.clone() }),
    );
    holds("a crash, two duplicates", tunnel(Scenario { duplicates: 2, ..base.clone() }));
    holds("a crash and an early repetition", tunnel(Scenario { early_repeats: 1, ..base.clone() }));
    let both = Scenario { askers: vec![0, 1], frames: 1, ..base };
    holds("a crash, both ask, a loss", tunnel(Scenario { losses: 1, ..both.clone() }));
    holds("a crash, both ask, a duplicate", tunnel(Scenario { duplicates: 1, ..both }));
}

#[test]
fn mistakes_are_found() {
    let base = Scenario { duplicates: 1, losses: 1, early_repeats: 1, ..Scenario::new() };
    let crash = Scenario { crashes: 1, duplicates: 1, frames: 2, ..Scenario::new() };
    let strange = Scenario { strangers: 1, frames: 2, ..Scenario::new() };
    for (slip, scenario) in [
        (Slip::TakesAnySession, &crash),
        (Slip::SameSeed, &crash),
        (Slip::HandsOutAtOnce, &base),
        (Slip::ForgetsSequence, &base),
        (Slip::AcknowledgesAhead, &base),
        (Slip::KeepsSequence, &crash),
        (Slip::KeepsSilent, &crash),
        (Slip::TakesOver, &strange),
    ] {
        finds(&format!("{slip:?}"), tunnel(Scenario { slip: Some(slip), ..scenario.clone() }));
    }
}
