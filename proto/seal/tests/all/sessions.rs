//! Two seals find each other, agree on keys, replace them, and recover.

use crate::net;
use crate::net::{Net, PORT, config, datagram, drain, fibre, give, host_path, key};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::{Frame, Node, Payload, Trailer, Transmit};
use longhaul_seal::{
    Cipher, Cleartext, Config, DropReason, OVERHEAD, PeerConfig, PresharedKey, Seal, Seed,
};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::Head;
use std::collections::HashSet;

const fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}

#[test]
fn the_first_datagram_asks_and_waits_and_the_next_ones_are_sealed() {
    let mut net = Net::plain();
    net.send(0, 0, 1, 1000);
    net.run_for(Duration::from_us(4900));
    assert!(net.came[1].is_empty(), "nothing leaves before there are keys, after two round trips");
    net.run_for(ms(1));
    assert_eq!((net.numbers(1), net.boxes[0].counters().waited), (vec![1], 1));
    net.came = Default::default();
    for (from, number) in [(0, 2), (1, 3), (0, 4)] {
        net.send(from, 0, number, 1000);
        net.run_for(ms(5));
    }
    assert_eq!((net.numbers(1), net.numbers(0)), (vec![2, 4], vec![3]));
    for n in 0..2 {
        let counters = net.boxes[n].counters();
        assert_eq!((counters.handshakes_done, counters.rekeys), (1, 0));
        let peer = net.boxes[n].peers(net.now).next().unwrap();
        let keys = peer.keys.unwrap();
        assert_eq!((keys.is_initiator, keys.cipher), (n == 0, Cipher::Aes256Gcm));
        assert!(keys.bytes_sealed > 1000 && keys.bytes_opened > 1000);
        assert!(keys.age < net.now.since(Instant::ZERO));
    }
}

#[test]
fn what_comes_out_is_what_went_in_and_is_not_seen_on_the_way() {
    let mut net = Net::plain();
    net.meet();
    let v6 = |mut path: longhaul_wire::Path| {
        path.source_ip = "fd00::1".parse().unwrap();
        path.destination_ip = "fd00::2".parse().unwrap();
        path
    };
    let tagged = |path| longhaul_wire::Path { vlan: Some(0x2007), ..path };
    for path in [host_path(0), v6(host_path(0)), tagged(host_path(0)), tagged(v6(host_path(0)))] {
        for len in [0, 1, 7, 80, 110, 118, 119, 500, 4096, 9000] {
            let bytes = datagram(&path, PORT, 5, len);
            // Each address is asked for once.
            for _ in 0..3 {
                net.seen.clear();
                net.came[1].clear();
                net.send_bytes(0, 0, &bytes);
                net.run_for(ms(20));
            }
            assert_eq!(net.came[1], std::slice::from_ref(&bytes), "{path:?} {len}");
            let [sealed] = &net.seen[..] else { panic!("{} datagrams", net.seen.len()) };
            assert_eq!(sealed.bytes.len(), bytes.len() + OVERHEAD);
            let secret = &bytes[bytes.len() - 12..];
            assert!(!sealed.bytes.windows(12).any(|window| window == secret));
        }
    }
    assert_eq!(net.boxes[1].counters().drops.total(), 0);
}

#[test]
fn datagrams_that_wait_are_bounded_and_not_kept_for_long() {
    let mut net = Net::plain();
    net.is_cut = true;
    for number in 0..1000 {
        net.send(0, 0, number, 100);
    }
    let counters = net.boxes[0].counters();
    assert_eq!((counters.waited, counters.drops.get(DropReason::NoKeys)), (64, 936));
    net.run_for(ms(1300));
    assert_eq!(net.dropped(0, DropReason::NoKeys), 1000);
    assert_eq!(net.boxes[0].poll_timeout(), None, "nothing is kept");
}

#[test]
fn other_traffic_passes_both_ways_with_or_without_a_far_box() {
    let mut node = Seal::new(Config { cleartext: Cleartext::Any, ..config(0, 0) }).unwrap();
    let arp = [[0xff; 6].as_slice(), &[2; 6], &[8, 6], &[7; 46]].concat();
    let roce = datagram(&host_path(0), 4791, 1, 1000);
    let mut fragment = datagram(&host_path(0), PORT, 1, 1000);
    fragment[20] |= 0x20;
    for frame in [&arp, &roce, &fragment, &vec![9; 14], &vec![1; 1]] {
        for (from, to) in [(Seal::inner(0), Seal::wan(0)), (Seal::wan(0), Seal::inner(0))] {
            give(&mut node, Instant::ZERO, from, frame);
            assert_eq!(drain(&mut node, Instant::ZERO), [(to, frame.clone())]);
        }
    }
    assert_eq!((node.counters().passed, node.counters().drops.total()), (10, 0));
    // Unsealed, and for the port.
    let clear = datagram(&host_path(1), PORT, 1, 1000);
    give(&mut node, Instant::ZERO, Seal::wan(0), &clear);
    assert_eq!(drain(&mut node, Instant::ZERO), []);
    assert_eq!(node.counters().drops.get(DropReason::ClearRefused), 1);
}

#[test]
fn both_at_once_come_to_one_set_of_keys() {
    for delay_us in [1, 700, 1000, 1300, 5000] {
        let mut net = Net::plain();
        net.send(0, 0, 1, 100);
        net.run_for(Duration::from_us(delay_us) - Duration::from_us(1));
        net.send(1, 0, 1, 100);
        net.run_for(ms(2000));
        let keys: Vec<_> =
            net.boxes.iter().map(|b| b.peers(net.now).next().unwrap().keys.unwrap()).collect();
        assert_ne!(keys[0].is_initiator, keys[1].is_initiator);
        for n in 0..2 {
            let done = net.boxes[n].counters().handshakes_done;
            assert_eq!(done, 1, "{delay_us} {:#?}", net.boxes.each_ref().map(Seal::counters));
        }
        net.send(0, 0, 2, 100);
        net.send(1, 0, 3, 100);
        net.run_for(ms(10));
        assert_eq!(
            (net.numbers(1), net.numbers(0)),
            (vec![1, 2], vec![1, 3]),
            "the first ones waited"
        );
    }
}

#[test]
fn lost_messages_of_a_handshake_are_repeated() {
    for seed in 0..30 {
        let boxes = [config(0, 0), config(1, 0)].map(|c| Config { ask_pause: ms(500), ..c });
        let mut net = Net::new(boxes, vec![LinkConfig { loss: 0.3, seed, ..fibre() }]);
        net.meet();
        let now = net.now;
        assert!(now < Instant::from_ns(5_000_000_000), "seed {seed}: {now:?}");
    }
}

#[test]
fn each_datagram_comes_once_at_most_and_intact_whatever_the_wire_does() {
    let impairments = Impairments { late: 0.2, late_by: ms(3), duplication: 0.1, corruption: 0.05 };
    let wire = LinkConfig { loss: 0.05, impairments, ..fibre() };
    let boxes = [config(0, 0), config(1, 0)].map(|c| {
        // Keys expire at four times that: a lost handshake message must be retransmitted before.
        Config { rekey_bytes: 256 << 10, ask_every: ms(5), ..c }
    });
    let mut net = Net::new(boxes, vec![wire]);
    net.meet();
    for number in 0..4000 {
        for from in 0..2 {
            net.send(from, 0, number, 500 + number as usize % 1000);
        }
        net.run_for(Duration::from_us(100));
    }
    net.run_for(ms(100));
    for n in 0..2 {
        // A wrong bit in the headers makes the datagram one for another port: it passes, still
        // sealed.
        net.came[n].retain(|bytes| bytes[42] != 0xe1);
        let numbers = net.numbers(n);
        let different: HashSet<u64> = numbers.iter().copied().collect();
        assert_eq!(different.len(), numbers.len(), "once at most");
        assert!((3500..=3900).contains(&numbers.len()), "{} of 4000", numbers.len());
        for bytes in &net.came[n] {
            let number = net::number_of(bytes);
            let sent =
                datagram(&host_path(1 - n as u8), PORT, number, 500 + number as usize % 1000);
            // Routers change the Ethernet header, the hop limit, ECN and the IP header checksum.
            assert_eq!(bytes[26..], sent[26..], "intact");
        }
        let counters = net.boxes[n].counters();
        assert!(counters.rekeys > 3, "{counters:#?}");
        assert!(counters.drops.get(DropReason::Replayed) > 200);
        assert!(counters.drops.get(DropReason::Unauthenticated) > 50);
    }
}

#[test]
fn keys_are_replaced_by_volume_and_by_age_without_loss() {
    let by_volume = |c| Config { rekey_bytes: 200 << 10, ..c };
    let by_age = |c| Config { rekey_after: ms(1000), ..c };
    let changes: [(&dyn Fn(Config) -> Config, u64); 2] = [(&by_volume, 50), (&by_age, 1000)];
    for (change, step_us) in changes {
        // The last case reorders far beyond a round trip.
        for late in [0.0, 0.1] {
            let impairments = Impairments { late, late_by: ms(7), ..Impairments::default() };
            let wire = LinkConfig { impairments, ..fibre() };
            let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![wire]);
            net.keeps = false;
            net.meet();
            for number in 0..8000 {
                net.send(0, 0, number, 500);
                if number % 10 == 0 {
                    net.send(1, 0, number, 500);
                }
                net.run_for(Duration::from_us(step_us));
            }
            net.run_for(ms(100));
            assert_eq!((net.came[1].len(), net.came[0].len()), (8000, 800));
            for node in &net.boxes {
                let counters = node.counters();
                assert!(counters.rekeys >= 5, "{counters:#?}");
                assert_eq!(counters.handshakes_done, counters.rekeys + 1);
            }
            // Drops that a handshake may cause: a RESPONSE that arrived twice.
            let of_handshakes =
                [DropReason::Unasked, DropReason::HandshakeCrossed, DropReason::NoKeys];
            for node in &net.boxes {
                let others = node
                    .counters()
                    .drops
                    .iter()
                    .find(|(reason, count)| *count > 0 && !of_handshakes.contains(reason));
                assert_eq!(others, None);
            }
        }
    }
}

#[test]
fn keys_that_nobody_replaces_end() {
    let mut net = Net::new(
        [config(0, 0), config(1, 0)].map(|c| Config { rekey_after: ms(1000), ..c }),
        vec![fibre()],
    );
    net.meet();
    net.run_for(ms(4100));
    assert!(net.boxes[0].peers(net.now).next().unwrap().keys.is_none());
    net.meet();
    net.send(1, 0, 9, 100);
    net.run_for(ms(10));
    assert_eq!(net.numbers(0), [9]);
}

#[test]
fn replaced_keys_are_taken_for_a_while_and_then_refused() {
    let change = |c| Config { rekey_after: ms(1000), old_keys_for: ms(500), ..c };
    let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![fibre()]);
    net.meet();
    net.run_for(ms(900));
    // Captured on the wire, to be delivered late.
    give(&mut net.boxes[0], net.now, 0, &datagram(&host_path(0), PORT, 70, 100));
    give(&mut net.boxes[0], net.now, 0, &datagram(&host_path(0), PORT, 71, 100));
    let late = drain(&mut net.boxes[0], net.now);
    net.run_for(ms(200));
    net.send(0, 0, 72, 100);
    net.run_for(ms(100));
    net.send(0, 0, 73, 100);
    net.run_for(ms(100));
    assert_eq!(net.boxes[1].counters().rekeys, 1);
    give(&mut net.boxes[1], net.now, 1, &late[0].1);
    net.run_for(ms(500));
    give(&mut net.boxes[1], net.now, 1, &late[1].1);
    net.run_for(ms(1));
    assert_eq!(net.numbers(1), [72, 73, 70]);
    assert_eq!(net.dropped(1, DropReason::UnknownKeys), 1);
}

#[test]
fn the_restart_of_either_end_is_noticed_by_either_end() {
    for (restarted, speaks) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut net = Net::plain();
        net.meet();
        net.run_for(ms(500));
        net.boxes[restarted] = Seal::new(config(restarted as u8, 1)).unwrap();
        let began = net.now;
        for number in 0..100 {
            net.send(speaks, 0, number, 100);
            net.run_for(ms(10));
        }
        let numbers = net.numbers(1 - speaks);
        assert!(numbers.len() > 90, "{restarted} {speaks} since {began:?}: {numbers:?}");
        assert_eq!(net.boxes[1 - restarted].counters().handshakes_done, 2);
    }
}

#[test]
fn an_outage_ends_and_traffic_goes_on_with_the_same_keys() {
    let mut net = Net::plain();
    net.meet();
    net.is_cut = true;
    for number in 0..100 {
        net.send(0, 0, number, 100);
        net.run_for(ms(100));
    }
    net.is_cut = false;
    net.send(0, 0, 100, 100);
    net.run_for(ms(10));
    assert_eq!(net.numbers(1), [100]);
    assert_eq!(net.boxes[0].counters().handshakes_begun, 1);
}

#[test]
fn keys_that_came_due_in_an_outage_are_replaced_after_it() {
    let change = |c| Config { rekey_after: ms(2000), ..c };
    let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![fibre()]);
    net.meet();
    net.is_cut = true;
    for number in 0..400 {
        net.send(0, 0, number, 100);
        net.run_for(ms(100));
    }
    net.is_cut = false;
    for number in 400..600 {
        net.send(0, 0, number, 100);
        net.run_for(ms(100));
    }
    let numbers = net.numbers(1);
    assert!(numbers.len() > 80, "back within the pause of 10 s: {}", numbers.len());
    assert_eq!(*numbers.last().unwrap(), 599);
}

#[test]
fn paths_of_different_length_share_keys_and_no_window() {
    let change = |c| Config { paths: 2, window: 1 << 16, ..c };
    let far = LinkConfig { delay: ms(80), ..fibre() };
    let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![fibre(), far]);
    net.keeps = false;
    net.meet();
    net.send(0, 1, 1_000_000, 100);
    for number in 0..200_000 {
        net.send(0, 0, number, 8);
        if number % 100 == 0 {
            net.run_for(Duration::from_us(10));
        }
    }
    net.send(0, 1, 1_000_001, 100);
    net.run_for(ms(200));
    assert_eq!(net.came[1].len(), 200_002);
    assert_eq!(net.boxes[1].counters().drops.total(), 0);
    assert_eq!(net.boxes[0].counters().handshakes_done, 1);
}

#[test]
fn a_dead_path_does_not_keep_a_handshake_from_the_other() {
    let change = |c| Config { paths: 2, ..c };
    let dead = LinkConfig { loss: 1.0, ..fibre() };
    let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![dead, fibre()]);
    for _ in 0..10 {
        net.send(0, 0, 1, 100);
        net.run_for(ms(200));
    }
    net.send(0, 1, 2, 100);
    net.run_for(ms(10));
    assert_eq!(net.numbers(1), [2]);
}

#[test]
fn ciphers_are_those_that_both_take() {
    use Cipher::{Aes256Gcm as A, ChaCha20Poly1305 as C};
    for (ours, theirs, expected) in [
        (vec![A, C], vec![C, A], Some(C)),
        (vec![C], vec![A, C], Some(C)),
        (vec![A], vec![C, A], Some(A)),
        (vec![A], vec![C], None),
    ] {
        let near = Config { ciphers: ours, ..config(0, 0) };
        let far = Config { ciphers: theirs, ..config(1, 0) };
        let mut net = Net::new([near, far], vec![fibre()]);
        for number in 0..20 {
            net.send(0, 0, number, 300);
            net.run_for(ms(20));
        }
        for node in &net.boxes {
            assert_eq!(node.peers(net.now).next().unwrap().keys.map(|keys| keys.cipher), expected);
        }
        assert_eq!(net.came[1].is_empty(), expected.is_none());
        assert_eq!(net.dropped(1, DropReason::HandshakeCipher) > 0, expected.is_none());
    }
}

#[test]
fn strangers_and_wrong_secrets_come_to_no_keys() {
    let other = |mut c: Config, n| {
        c.peers[0].public_key = key(n).public();
        c
    };
    let shared = |mut c: Config, n| {
        c.peers[0].preshared_key = Some(PresharedKey::generate(&Seed::new([n; 32])));
        c
    };
    let cases = [
        // Box 0 expects another key than box 1's; box 1 expects another than box 0's; one or both
        // have a pre-shared key.
        (other(config(0, 0), 50), config(1, 0), 0, DropReason::NoPeer),
        (config(0, 0), other(config(1, 0), 50), 1, DropReason::HandshakeStranger),
        (shared(config(0, 0), 60), config(1, 0), 0, DropReason::HandshakeForged),
        (shared(config(0, 0), 60), shared(config(1, 0), 61), 0, DropReason::HandshakeForged),
    ];
    for (near, far, counts, reason) in cases {
        let mut net = Net::new([near, far], vec![fibre()]);
        for number in 0..100 {
            net.send(0, 0, number, 300);
            net.run_for(ms(20));
        }
        assert!(net.came[1].is_empty());
        assert!(net.dropped(counts, reason) > 0, "{reason:?}");
        assert!(
            net.boxes.iter().all(|b| b.peers(net.now).all(|peer| peer.keys.is_none())),
            "{reason:?}"
        );
    }
    let mut net = Net::new([shared(config(0, 0), 60), shared(config(1, 0), 60)], vec![fibre()]);
    net.meet();
}

/// A simulated frame, whose payload is a length.
#[test]
fn payloads_without_bytes_keep_their_form() {
    struct Pipe<'a>(&'a mut Seal, Vec<(usize, Head, Trailer)>);
    impl Transmit for Pipe<'_> {
        fn room(&mut self, _side: usize) -> usize {
            usize::MAX
        }
        fn transmit(&mut self, side: usize, frame: &Frame<'_>) {
            assert_eq!(side, Seal::wan(0));
            let Payload::Synthetic { len } = frame.payload else { panic!("{:?}", frame.payload) };
            self.1.push((len, Head::copy_of(frame.head), frame.trailer));
            // Delivered twice: the second is a replay.
            self.0.handle_frame(Instant::from_ns(1 << 40), Seal::wan(0), frame);
            self.0.handle_frame(Instant::from_ns(1 << 40), Seal::wan(0), frame);
        }
    }
    struct Last(Option<(Vec<u8>, usize, Trailer)>);
    impl Transmit for Last {
        fn room(&mut self, _side: usize) -> usize {
            usize::MAX
        }
        fn transmit(&mut self, _side: usize, frame: &Frame<'_>) {
            assert!(self.0.is_none());
            let Payload::Synthetic { len } = frame.payload else { panic!("{:?}", frame.payload) };
            self.0 = Some((frame.head.to_vec(), len, frame.trailer));
        }
    }
    let long = |c| Config { rekey_after: ms(3_600_000), ..c };
    let mut net = Net::new([config(0, 0), config(1, 0)].map(long), vec![fibre()]);
    net.meet();
    let bytes = datagram(&host_path(0), PORT, 3, 4096 - 8);
    let head = &bytes[..54];
    let trailer = Trailer::Sealed { pad_len: 0 };
    let frame = Frame { head, payload: Payload::Synthetic { len: 4096 }, trailer };
    let now = Instant::from_ns(1 << 40);
    net.boxes[0].handle_frame(now, Seal::inner(0), &frame);
    let [near, far] = &mut net.boxes;
    let mut pipe = Pipe(far, Vec::new());
    near.poll_transmit(now, &mut pipe);
    let sealed = pipe.1.pop().unwrap();
    assert_eq!((sealed.0, sealed.1.bytes().len(), sealed.2), (4096 + 16, 54 + 16, trailer));
    let mut last = Last(None);
    far.poll_transmit(now, &mut last);
    assert_eq!(last.0, Some((head.to_vec(), 4096, trailer)));
    assert_eq!(far.counters().drops.get(DropReason::Replayed), 1);
}

#[test]
fn a_full_queue_is_told_and_counted() {
    let mut net = Net::new(
        [config(0, 0), config(1, 0)].map(|c| Config { queue_bytes_max: 64 << 10, ..c }),
        vec![fibre()],
    );
    net.meet();
    let full = net.boxes[0].intake(Seal::inner(0));
    assert!((4..20).contains(&full), "{full}");
    let bytes = datagram(&host_path(0), PORT, 3, 4096);
    let mut given = 0;
    while net.boxes[0].intake(Seal::inner(0)) > 0 {
        give(&mut net.boxes[0], net.now, Seal::inner(0), &bytes);
        given += 1;
    }
    assert!(given >= full);
    assert_eq!(net.dropped(0, DropReason::QueueFull), 0, "who asks loses nothing");
    for _ in 0..100 {
        give(&mut net.boxes[0], net.now, Seal::inner(0), &bytes);
    }
    assert!(net.dropped(0, DropReason::QueueFull) > 90);
    let too_long = datagram(&host_path(0), PORT, 3, 16_380);
    give(&mut net.boxes[0], net.now, Seal::inner(0), &too_long);
    assert_eq!(net.dropped(0, DropReason::Oversized), 1);
}

/// Three boxes on one segment, each with the others as peers: a datagram goes to the box that
/// serves its destination.
#[test]
fn each_address_is_served_by_its_own_peer_and_may_move_to_another() {
    let boxes = [0, 1, 2].map(|n: u8| {
        let peers = [0, 1, 2].into_iter().filter(|other| *other != n);
        let peers = peers.map(|other| PeerConfig {
            name: format!("box {other}"),
            public_key: key(1 + other).public(),
            preshared_key: None,
        });
        Seal::new(Config::new(key(1 + n), peers.collect(), Seed::new([200 + n; 32]))).unwrap()
    });
    let mut boxes = boxes;
    // Index of the box that serves 10.0.N.1.
    let mut serves = [0, 1, 2];
    let mut came: Vec<(usize, u64)> = Vec::new();
    let way = |from: u8, to: u8| longhaul_wire::Path {
        source_ip: std::net::Ipv4Addr::new(10, 0, from, 1).into(),
        destination_ip: std::net::Ipv4Addr::new(10, 0, to, 1).into(),
        ..host_path(0)
    };
    let mut step = |at_ms: u64,
                    serves: [usize; 3],
                    sends: &[(u8, u8, u64)],
                    came: &mut Vec<(usize, u64)>| {
        let now = Instant::from_ns(at_ms * 1_000_000);
        boxes.iter_mut().for_each(|node| node.handle_timeout(now));
        for &(from, to, number) in sends {
            let bytes = datagram(&way(from, to), PORT, number, 64);
            give(&mut boxes[serves[usize::from(from)]], now, Seal::inner(0), &bytes);
        }
        for _ in 0..10 {
            for n in 0..3 {
                for (side, bytes) in drain(&mut boxes[n], now) {
                    if side == Seal::inner(0) {
                        came.push((n, net::number_of(&bytes)));
                    } else {
                        give(&mut boxes[serves[usize::from(bytes[32])]], now, Seal::wan(0), &bytes);
                    }
                }
            }
        }
        let handshakes: Vec<u64> =
            boxes.iter().map(|node| node.counters().handshakes_done).collect();
        handshakes
    };
    step(1, serves, &[(0, 1, 1), (0, 2, 2), (1, 2, 3)], &mut came);
    came.sort_unstable();
    assert_eq!(came, [(1, 1), (2, 2), (2, 3)], "asked, agreed on keys, and sealed what waited");
    came.clear();
    let handshakes = step(2, serves, &[(0, 1, 1), (0, 2, 2), (1, 2, 3), (2, 1, 4)], &mut came);
    came.sort_unstable();
    assert_eq!(came, [(1, 1), (1, 4), (2, 2), (2, 3)]);
    assert_eq!(handshakes, [2, 2, 2]);
    // The host at 10.0.2.1 moves behind box 1, for which there are keys.
    came.clear();
    serves[2] = 1;
    step(2000, serves, &[(0, 2, 5)], &mut came);
    step(2001, serves, &[(0, 2, 6)], &mut came);
    assert_eq!(came, [(1, 6)], "the first one was sealed for another box");
    // The host sends from behind box 2 again, which suffices.
    came.clear();
    serves[2] = 2;
    step(4000, serves, &[(2, 0, 7)], &mut came);
    step(4001, serves, &[(0, 2, 8)], &mut came);
    assert_eq!(came, [(0, 7), (2, 8)]);
}

/// After any restarts, cuts and losses both ends communicate again soon.
#[test]
fn after_any_troubles_both_ends_talk_again() {
    for seed in 0..40 {
        let mut rng = SplitMix64::new(seed);
        let change = |c| Config { rekey_after: ms(1000), ask_pause: ms(1000), ..c };
        let wire = LinkConfig { loss: 0.1, delay: ms(10), seed, ..fibre() };
        let mut net = Net::new([config(0, 0), config(1, 0)].map(change), vec![wire]);
        net.keeps = false;
        for round in 0..12_u8 {
            match rng.below(4) {
                0 => net.boxes[0] = Seal::new(change(config(0, round + 1))).unwrap(),
                1 => net.boxes[1] = Seal::new(change(config(1, round + 1))).unwrap(),
                2 => net.is_cut = true,
                _ => {}
            }
            for number in 0..rng.below(200) {
                let from = rng.below(2) as usize;
                net.send(from, 0, number, 100);
                net.run_for(ms(10));
            }
            net.is_cut = false;
        }
        for number in 0..500 {
            net.send(0, 0, 10_000 + number, 100);
            net.send(1, 0, 10_000 + number, 100);
            net.run_for(ms(10));
        }
        for n in 0..2 {
            let last = net.numbers(n).into_iter().filter(|number| *number >= 10_300).count();
            assert!(
                last > 150,
                "seed {seed}, box {n}: {last} of 200 {:#?}",
                net.boxes[n].counters()
            );
        }
    }
}
