//! Every order of events of two boxes between two hosts, within bounds; and the detection of
//! mistakes.

use crate::explored;
use longhaul_model::pair::{Away, Mode, Pair, Role, Scenario, Slip, Victim, Wan};

const BOXES: [Victim; 2] = [Victim::Box(Role::Near), Victim::Box(Role::Far)];

fn holds(what: &str, scenario: Scenario) {
    let what = format!("{:?}, {:?}, {what}", scenario.mode, scenario.wan);
    explored::holds(&what, Pair { scenario });
}

/// A READ between two WRITEs.
fn fenced(scenario: &Scenario) -> Scenario {
    Scenario { batches: vec![vec![1, 0, 1], vec![1], vec![1]], ..scenario.clone() }
}

fn crash(mode: Mode, wan: Wan) -> Scenario {
    Scenario { crashes: 1, victims: BOXES.to_vec(), ..Scenario::new(mode, wan) }
}

#[test]
fn a_path_loses_repeats_and_reorders() {
    for mode in Mode::ALL {
        let base = Scenario::new(mode, Wan::Path);
        holds("a loss", Scenario { losses: 1, ..base.clone() });
        holds("an early timer", Scenario { early_timers: 1, ..base.clone() });
        holds("a duplicate and a loss", Scenario { losses: 1, duplicates: 1, ..base.clone() });
        holds("one overtakes another", Scenario { overtakings: 1, ..base.clone() });
        holds("a store of one packet, a loss", Scenario { losses: 1, store: 1, ..base.clone() });
        let base = fenced(&base);
        holds(
            "a READ, a loss and a duplicate",
            Scenario { losses: 1, duplicates: 1, ..base.clone() },
        );
        holds("a READ, an early timer", Scenario { early_timers: 1, ..base });
    }
}

#[test]
fn a_box_crashes() {
    for mode in Mode::ALL {
        for wan in [Wan::Path, Wan::Transport] {
            for away in [Away::AtOnce, Away::AWhile, Away::Forever] {
                let base = Scenario { away, ..crash(mode, wan) };
                holds(&format!("a box crashes, away {away:?}"), base.clone());
                holds(&format!("a box crashes, away {away:?}, a READ"), fenced(&base));
            }
        }
    }
}

#[test]
fn a_box_crashes_and_frames_are_lost() {
    for mode in Mode::ALL {
        for wan in [Wan::Path, Wan::Transport] {
            let base = Scenario { losses: 1, ..crash(mode, wan) };
            holds("a crash and a loss", base.clone());
            holds("a crash and a loss, a READ", fenced(&base));
        }
        holds("a crash and a duplicate", Scenario { duplicates: 1, ..crash(mode, Wan::Path) });
    }
}

/// A false silence: a box passes at its first timeout, and one frame is lost.
#[test]
fn a_box_gives_up_too_soon() {
    for mode in Mode::ALL {
        for wan in [Wan::Path, Wan::Transport] {
            let base = Scenario { give_up: 0, losses: 1, ..Scenario::new(mode, wan) };
            holds("passes at once, a loss", base.clone());
            holds("passes at once, a loss, a READ", fenced(&base));
        }
    }
}

#[test]
fn a_host_dies_or_refuses() {
    for mode in Mode::ALL {
        let base = Scenario {
            losses: 1,
            crashes: 1,
            victims: vec![Victim::Requester, Victim::Responder, Victim::Refusal],
            // Each box detects the loss with one message.
            batches: vec![vec![2, 1], vec![1], vec![1], vec![1]],
            ..Scenario::new(mode, Wan::Path)
        };
        holds("a host dies or refuses, a loss", base);
    }
}

#[test]
#[ignore = "half an hour: wider bounds"]
fn wider_bounds() {
    for mode in Mode::ALL {
        for wan in [Wan::Path, Wan::Transport] {
            // One packet has fewer faults than a box requires as proof that its requester has
            // released the packet.
            let base = Scenario { times_gone_back: 4, ..crash(mode, wan) };
            holds("two crashes", Scenario { crashes: 2, ..base.clone() });
            let two = Scenario { crashes: 2, losses: 1, ..base.clone() };
            holds("two crashes, a loss", two.clone());
            holds("two crashes, a loss, away a while", Scenario { away: Away::AWhile, ..two });
            let losses = Scenario { losses: 2, ..base.clone() };
            holds("a crash, two losses", losses.clone());
            holds("a crash, two losses, a READ", fenced(&losses));
            for scenario in [fenced(&base), base] {
                let scenario = Scenario { losses: 1, ..scenario };
                holds(
                    "a crash, a loss, an early timer",
                    Scenario { early_timers: 1, ..scenario.clone() },
                );
                holds(
                    "a crash, a loss, a duplicate",
                    Scenario { duplicates: 1, ..scenario.clone() },
                );
                holds(
                    "a crash, a loss, one overtakes another",
                    Scenario { overtakings: 1, ..scenario },
                );
            }
        }
    }
}

#[test]
fn mistakes_are_found() {
    let lossy = |mode| Scenario { losses: 1, ..Scenario::new(mode, Wan::Path) };
    let responder = |mode| {
        let victims = vec![Victim::Responder];
        Scenario { crashes: 1, victims, ..lossy(mode) }
    };
    let refusal = |mode| Scenario { victims: vec![Victim::Refusal], ..responder(mode) };
    for (slip, scenario) in [
        (Slip::AcknowledgesUnstored, lossy(Mode::Early)),
        (Slip::AcknowledgesLast, responder(Mode::Tail)),
        (Slip::AcknowledgesInFar, crash(Mode::Far, Wan::Path)),
        (Slip::NaksAtEnd, Scenario { batches: vec![vec![1, 1, 1]], ..lossy(Mode::Tail) }),
        (Slip::TakesNakForAck, lossy(Mode::Early)),
        (Slip::ForgetsSent, lossy(Mode::Early)),
        (Slip::FailsAtEnd, refusal(Mode::Tail)),
        (
            Slip::TrustsTraffic,
            Scenario { away: Away::AWhile, losses: 1, ..crash(Mode::Tail, Wan::Path) },
        ),
        (Slip::NeverGivesUp, responder(Mode::Early)),
        (Slip::ForgetsRemains, Scenario { give_up: 0, ..lossy(Mode::Early) }),
    ] {
        let scenario = Scenario { slip: Some(slip), ..scenario };
        explored::finds(&format!("{slip:?}"), Pair { scenario });
    }
}
