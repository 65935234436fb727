//! Random calls on both sides of a bad network: in the end both sides agree, and nothing is left.

use super::pair::{A, B, Network, PORT, Pair, Seen};
use crate::*;
use longhaul_units::{Duration, Rng};

fn network(pair: &mut Pair) -> Network {
    let pick = |pair: &mut Pair, max: u64| pair.rng.below(max + 1);
    Network {
        delay: Duration::from_ms(pick(pair, 50)),
        jitter: Duration::from_ms(pick(pair, 60)),
        loss: pick(pair, 20) as f64 / 100.0,
        duplication: pick(pair, 30) as f64 / 100.0,
    }
}

fn pick(pair: &mut Pair, side: usize) -> Option<(ConnectionId, Seen)> {
    let count = pair.seen[side].len() as u64;
    if count == 0 {
        return None;
    }
    let at = pair.rng.below(count) as usize;
    pair.seen[side].iter().nth(at).map(|(id, seen)| (*id, *seen))
}

/// Makes one random call on one side.
fn act(pair: &mut Pair, side: usize) {
    match pair.rng.below(10) {
        0..3 => {
            pair.connect(side);
        }
        3..7 => decide(pair, side),
        7 => {
            if let Some((id, Seen::Established | Seen::Requested)) = pick(pair, side) {
                // Refused before the program has accepted, which is a valid outcome.
                let _ = pair.cm[side].disconnect(pair.now, id);
            }
        }
        8 => {
            if let Some((id, _)) = pick(pair, side) {
                pair.destroy(side, id);
            }
        }
        _ => {
            if let Some((id, Seen::Requested)) = pick(pair, side) {
                let peer_is_ready =
                    pair.peer(side, id).is_some_and(|p| p.state == ConnectionState::Established);
                if peer_is_ready {
                    let qpn = pair.cm[side].connection(id).unwrap().local_qpn;
                    pair.cm[side].established_by_traffic(qpn);
                }
            }
        }
    }
}

fn decide(pair: &mut Pair, side: usize) {
    let Some(id) = pair.undecided[side].pop_first() else { return };
    let no = pair.rng.chance(0.2);
    let now = pair.now;
    match (pair.seen[side][&id], no) {
        (_, true) => {
            pair.cm[side].reject(now, id, RejectReason::CONSUMER, b"no").unwrap();
            pair.seen[side].remove(&id);
        }
        (Seen::Requested, false) => {
            if pair.rng.chance(0.2) {
                pair.cm[side].mra(id, 12).unwrap();
            }
            pair.accept(side, id);
        }
        (Seen::Replied, false) => {
            pair.cm[side].ready_to_use(now, id).unwrap();
            pair.seen[side].insert(id, Seen::Established);
        }
        (seen, _) => panic!("undecided though {seen:?}"),
    }
}

fn scenario(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, Network::perfect(0));
    pair.network = network(&mut pair);
    pair.prompt = false;
    for side in [A, B] {
        pair.cm[side].listen(PORT, 0).unwrap();
    }
    for _ in 0..60 {
        let side = pair.rng.below(2) as usize;
        act(&mut pair, side);
        let pause = pair.rng.below(80);
        pair.run_for(Duration::from_ms(pause));
    }
    // Programs decide promptly from here on, and the network gets time.
    pair.prompt = true;
    while !(pair.undecided[A].is_empty() && pair.undecided[B].is_empty()) {
        decide(&mut pair, A);
        decide(&mut pair, B);
    }
    pair.run_out();
    pair
}

/// Prints how to run a failing seed alone.
struct Reproduce(u64);

impl std::ops::Drop for Reproduce {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "reproduce: LONGHAUL_CM_SEED={} cargo test -p longhaul-cm interleavings",
                self.0
            );
        }
    }
}

/// The seeds to run: the one in `LONGHAUL_CM_SEED`, or 2000.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("LONGHAUL_CM_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..2000,
    }
}

#[test]
fn end_with_both_established_or_both_closed() {
    let mut established = 0;
    for seed in seeds() {
        let _reproduce = Reproduce(seed);
        let mut pair = scenario(seed);
        for side in [A, B] {
            for c in pair.cm[side].connections().collect::<Vec<_>>() {
                assert_eq!(
                    c.state,
                    ConnectionState::Established,
                    "seed {seed}: side {side}: {c:?}"
                );
                let peer = pair
                    .peer(side, c.connection)
                    .unwrap_or_else(|| panic!("seed {seed}: alone: {c:?}"));
                assert_eq!(
                    peer.state,
                    ConnectionState::Established,
                    "seed {seed}: {c:?} with {peer:?}"
                );
                assert_eq!(
                    (c.peer_qpn, c.local_qpn),
                    (peer.local_qpn, peer.peer_qpn),
                    "seed {seed}"
                );
                assert_eq!(
                    pair.seen[side].get(&c.connection),
                    Some(&Seen::Established),
                    "seed {seed}"
                );
                established += 1;
            }
        }
        for id in pair.seen[A].keys().copied().collect::<Vec<_>>() {
            pair.cm[A].disconnect(pair.now, id).unwrap();
        }
        pair.run_out();
        pair.assert_empty();
        assert!(pair.seen[A].is_empty() && pair.seen[B].is_empty(), "seed {seed}: {:?}", pair.seen);
    }
    // The scenarios must not be so hostile that nothing is established.
    assert!(seeds().count() == 1 || established > 2000, "{established}");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let [one, two] = [scenario(3), scenario(3)];
    assert_eq!(one.log, two.log);
    assert_eq!(one.now, two.now);
    assert_eq!(one.cm[A].counters(), two.cm[A].counters());
}
