//! Each box of a pair crashes at every point of a small scenario, in every mode.
//!
//! An oracle checks each run against docs/semantics.md.
//!
//! A first run counts the events of each box: a frame received, a frame sent, a timer. Further runs
//! crash the box after each of these events; it restarts with empty memory, at once or later.

use crate::oracle::{Ill, check, check_going_on, run};
use crate::row::{Crash, Row, Setup};
use longhaul_accel::{Mode, Role};
use longhaul_rnic::Status;
use longhaul_units::Duration;
use std::collections::BTreeMap;

/// Crashes each box after each of its events. Returns the ends of the requester by box, with their
/// number.
fn crash_everywhere(
    setup: &Setup,
    mode: Mode,
    ill: Ill,
    away: Duration,
) -> BTreeMap<&'static str, u64> {
    let whole = run(&mut Row::new(setup), ill, None);
    check(mode, None, &whole);
    check_going_on(mode, None, &whole);
    let mut endings = BTreeMap::new();
    for (role, events) in [(Role::Near, whole.events[0]), (Role::Far, whole.events[1])] {
        for after in 1..=events {
            let crash = Crash { after, away };
            let point = format!("{mode}, {ill:?}, cm {}, {} box, {crash:?}", setup.cm, role.name());
            let ending = std::panic::catch_unwind(|| {
                let crashes = Some((role, crash));
                let ending = run(&mut Row::new(setup), ill, crashes);
                check(mode, crashes, &ending);
                check_going_on(mode, crashes, &ending);
                ending
            });
            let Ok(ending) = ending else { panic!("at this point: {point}") };
            let failed = ending.statuses.iter().any(|status| *status != Status::Success);
            *endings.entry(if failed { "failed" } else { "completed" }).or_insert(0) += 1;
        }
    }
    endings
}

fn in_mode(mode: Mode) {
    for ill in [Ill::Path, Ill::PathBack, Ill::Lan, Ill::NotReady] {
        for (cm, away_ms) in [(true, 0), (false, 40)] {
            let setup = Setup { cm, ack_every: 1, ..Setup::new(mode) };
            let endings = crash_everywhere(&setup, mode, ill, Duration::from_ms(away_ms));
            println!("{mode}, {ill:?}, cm {cm}, away for {away_ms} ms: {endings:?}");
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
