//! Same as `crash.rs`, for whole boxes: near half, far half and the WAN transport crash together.
//!
//! A box restarts with another seed, at once, later, or never.

use crate::oracle::{FOREVER, Ill, check, check_going_on, run};
use crate::row::{Crash, RowOf, Setup};
use longhaul_accel::{Mode, Role};
use longhaul_rnic::Status;
use longhaul_units::Duration;

/// Crashes each box after each of its events. With an additional loss, the requester's retries may
/// be exhausted. Returns the number of runs, and of those with an error.
fn crash_everywhere(setup: &Setup, mode: Mode, ill: Ill, away: Duration) -> [u64; 2] {
    let mut row = RowOf::of_whole_boxes(setup);
    let whole = run(&mut row, ill, None);
    let has_loss = setup.loss != [0.0; 2];
    check(mode, None, &whole);
    for role in [Role::Near, Role::Far] {
        let counters = row.node(role).node.transport().counters();
        assert!(counters.tunnelled > 0 && counters.delivered > 0, "{counters:?}");
    }
    let mut runs = [0; 2];
    for (role, events) in [(Role::Near, whole.events[0]), (Role::Far, whole.events[1])] {
        for after in 1..=events {
            let crash = Crash { after, away };
            let point = format!("{mode}, {ill:?}, cm {}, {} box, {crash:?}", setup.cm, role.name());
            let ending = std::panic::catch_unwind(|| {
                let crashes = Some((role, crash));
                let ending = run(&mut RowOf::of_whole_boxes(setup), ill, crashes);
                check(mode, crashes, &ending);
                if !has_loss {
                    check_going_on(mode, crashes, &ending);
                }
                ending
            });
            let Ok(ending) = ending else { panic!("at this point: {point}") };
            let has_failed = ending.statuses.iter().any(|status| *status != Status::Success);
            runs[0] += 1;
            runs[1] += u64::from(has_failed);
        }
    }
    runs
}

const ILLS: [Ill; 4] = [Ill::Path, Ill::PathBack, Ill::Lan, Ill::NotReady];

fn in_mode(mode: Mode) {
    for (ill, cm) in ILLS.into_iter().zip([true, false, true, false]) {
        for away in [Duration::ZERO, Duration::from_ms(40), FOREVER] {
            let setup = Setup { cm, ack_every: 1, ..Setup::new(mode) };
            let [runs, failed] = crash_everywhere(&setup, mode, ill, away);
            println!(
                "{mode}, {ill:?}, cm {cm}, away for {away:?}: {runs} runs, {failed} with an error"
            );
        }
    }
}

#[test]
fn early() {
    in_mode(Mode::Early);
}

#[test]
fn far() {
    in_mode(Mode::Far);
}

#[test]
fn tail() {
    in_mode(Mode::Tail);
}

#[test]
fn off() {
    in_mode(Mode::Off);
}

#[test]
#[ignore = "minutes: all of the above together, on a path that loses a tenth"]
fn on_a_path_that_loses() {
    for mode in Mode::ALL {
        for (seed, cm) in [(1, true), (2, false), (3, true), (4, false)] {
            let mut sum = [0; 2];
            for ill in ILLS {
                for away in [Duration::ZERO, Duration::from_ms(200), FOREVER] {
                    let setup =
                        Setup { cm, ack_every: 1, seed, loss: [0.1, 0.0], ..Setup::new(mode) };
                    let more = crash_everywhere(&setup, mode, ill, away);
                    sum = [sum[0] + more[0], sum[1] + more[1]];
                }
            }
            println!("{mode}, seed {seed}: {} runs, {} with an error", sum[0], sum[1]);
        }
    }
}
