//! Random verbs calls on devices and on a reference in step. See `driver.rs` for the calls and
//! `reference.rs` for the rules.

mod driver;
mod generator;
mod net;
mod objects;
mod reference;

use driver::{EPISODE, Outcome, episode};
use longhaul_rnic::{Counter, Counters};
use std::panic::catch_unwind;

/// Episodes of an ordinary run; `LONGHAUL_MODEL_EPISODES` overrides the number.
const EPISODES: u64 = 2000;

fn run(seed: u64) -> Outcome {
    catch_unwind(|| episode(seed, EPISODE)).unwrap_or_else(|panic| {
        eprintln!("reproduce: LONGHAUL_SEED={seed} cargo test -p longhaul-rnic --test all model::");
        std::panic::resume_unwind(panic)
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Counters that must be non-zero, or the calls were too tame to prove anything.
const MET: [Counter; 18] = [
    Counter::Icrc,
    Counter::OutOfSequence,
    Counter::DuplicateRequest,
    Counter::PacketSeqErr,
    Counter::ImpliedNakSeqErr,
    Counter::LocalAckTimeoutErr,
    Counter::RetryExceededErr,
    Counter::RxRnrNak,
    Counter::RespRemoteAccess,
    Counter::RespRemoteOperation,
    Counter::RespInvalidRequest,
    Counter::NoReceive,
    Counter::QKey,
    Counter::MessageBrokenOff,
    Counter::WriteRefused,
    Counter::CqOverrun,
    Counter::CnpHandled,
    Counter::TxTooLong,
];

#[test]
fn devices_do_what_the_reference_says() {
    if let Some(seed) = number("LONGHAUL_SEED") {
        println!("{:?}", run(seed));
        return;
    }
    let mut met = Counters::default();
    let (mut completions, mut successes, mut received_in_sqe) = (0, 0, [0; 2]);
    let episodes = number("LONGHAUL_MODEL_EPISODES").unwrap_or(EPISODES);
    for seed in 0..episodes {
        let outcome = run(seed);
        completions += outcome.completions;
        successes += outcome.successes;
        (0..2).for_each(|kind| received_in_sqe[kind] += outcome.received_in_sqe[kind]);
        outcome.counters.iter().for_each(|(counter, n)| met.add(counter, n));
    }
    println!("{} steps, {completions} completions, {successes} successful", episodes * EPISODE);
    assert!(
        episodes < EPISODES || successes * 2 > completions,
        "{successes} of {completions} succeeded"
    );
    assert!(
        episodes < EPISODES || !received_in_sqe.contains(&0),
        "a failed sender receives: {received_in_sqe:?}"
    );
    for counter in MET {
        assert!(episodes < EPISODES || met.get(counter) > 0, "{} was never met", counter.name());
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let (first, again, other) = (run(1), run(1), run(2));
    assert_eq!(first, again);
    assert_ne!(first.trace, other.trace);
}
