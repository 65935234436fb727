//! Ten thousand connections between two managers with the default configuration.

use super::pair::{A, B, Network, PORT, Pair, Seen};
use crate::*;
use longhaul_units::{Duration, Instant};

const CONNECTIONS: usize = 10_000;

fn pair(network: Network) -> Pair {
    let config = |side| Config { seed: 1 + side as u64, ..Config::default() };
    let mut pair = Pair::with(11, network, config);
    pair.cm[B].listen(PORT, 0).unwrap();
    pair
}

fn established(pair: &Pair, side: usize) -> usize {
    pair.seen[side].values().filter(|seen| **seen == Seen::Established).count()
}

/// Ends all connections, and lets the time-waits pass.
fn close(pair: &mut Pair) {
    let ids: Vec<ConnectionId> = pair.seen[A].keys().copied().collect();
    for id in ids {
        pair.cm[A].disconnect(pair.now, id).unwrap();
    }
    pair.run_out();
    pair.assert_empty();
    assert_eq!(pair.cm[A].counters().disconnected, CONNECTIONS as u64);
    assert_eq!(pair.cm[B].counters().disconnected, CONNECTIONS as u64);
}

/// Asserts that no MAD was retransmitted or dropped.
fn assert_smooth(pair: &Pair) {
    for cm in &pair.cm {
        let c = cm.counters();
        assert_eq!((c.retransmitted, c.replies_dropped), (0, 0));
        for reason in DropReason::ALL {
            assert_eq!(c.drops.get(*reason), 0, "{reason:?}");
        }
    }
    let sent = pair.cm[A].counters().sent + pair.cm[B].counters().sent;
    assert_eq!(sent, 5 * CONNECTIONS as u64, "REQ, REP, RTU, DREQ, DREP");
}

#[test]
fn a_thousand_a_second_over_100_ms_are_established_a_round_trip_after_they_are_asked_for() {
    let mut pair = pair(Network::perfect(50));
    let start = pair.now;
    for _ in 0..CONNECTIONS {
        pair.connect(A);
        pair.run_for(Duration::from_ms(1));
    }
    pair.run_for(Duration::from_ms(150));
    assert_eq!((established(&pair, A), established(&pair, B)), (CONNECTIONS, CONNECTIONS));
    assert!(pair.now.since(start) <= Duration::from_ms(10_150));
    close(&mut pair);
    assert_smooth(&pair);
}

#[test]
fn all_at_once_are_established_when_the_program_answers_as_they_come() {
    let mut pair = pair(Network::perfect(50));
    for _ in 0..CONNECTIONS {
        pair.connect(A);
    }
    // A receiver processes the wire in batches, and its program answers between them.
    let turn = 512;
    let mut requests = Vec::new();
    while pair.cm[A].poll_mad(pair.now, |_, mad| requests.push(*mad)) {}
    for batch in requests.chunks(turn) {
        for mad in batch {
            assert_eq!(pair.cm[B].handle_mad(pair.now, super::pair::ip(A), mad), None);
        }
        pair.drain();
    }
    pair.run_for(Duration::from_ms(1000));
    assert_eq!((established(&pair, A), established(&pair, B)), (CONNECTIONS, CONNECTIONS));
    close_in_batches(&mut pair);
    assert_smooth(&pair);
}

/// Same as [`close`], with all DREQs arriving in batches.
fn close_in_batches(pair: &mut Pair) {
    let ids: Vec<ConnectionId> = pair.seen[A].keys().copied().collect();
    for batch in ids.chunks(512) {
        for id in batch {
            pair.cm[A].disconnect(pair.now, *id).unwrap();
        }
        pair.run_for(Duration::from_ms(1));
    }
    pair.run_out();
    pair.assert_empty();
}

#[test]
fn a_slow_program_and_a_small_backlog_get_there_by_the_peers_repetitions() {
    let config =
        |side| Config { half_open_max: 256, backlog_default: 64, ..super::pair::config(side) };
    let mut pair = Pair::with(12, Network::perfect(20), config);
    pair.cm[B].listen(PORT, 0).unwrap();
    for _ in 0..2000 {
        pair.connect(A);
    }
    let mut requests = Vec::new();
    while pair.cm[A].poll_mad(pair.now, |_, mad| requests.push(*mad)) {}
    for mad in requests {
        pair.cm[B].handle_mad(pair.now, super::pair::ip(A), &mad);
    }
    assert!(pair.cm[B].counters().drops.get(DropReason::BacklogFull) > 1900);
    // From here on 50 requests at a time reach a program that answers them.
    pair.network.jitter = Duration::from_ms(100);
    pair.run_for(Duration::from_ms(3500));
    assert_eq!((established(&pair, A), established(&pair, B)), (2000, 2000));
}

#[test]
fn destroying_half_of_what_waits_to_be_sent_leaves_the_other_half() {
    let mut pair = pair(Network::perfect(1));
    let ids: Vec<ConnectionId> = (0..CONNECTIONS).map(|_| pair.connect(A)).collect();
    // Destroyed from the far end of the queue.
    for id in ids.iter().rev().step_by(2) {
        pair.destroy(A, *id);
    }
    let mut sent = 0;
    while pair.cm[A].poll_mad(Instant::ZERO, |_, _| sent += 1) {}
    // Half of them, and as many rejections as may wait: a REJ withdraws a request that was never
    // sent.
    assert_eq!(sent, CONNECTIONS / 2 + pair.cm[A].config().replies_max);
}
