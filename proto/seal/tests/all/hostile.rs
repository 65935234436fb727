//! No datagram from the WAN makes a seal panic, deliver anything that its peer did not seal, lose
//! or change keys, or do unbounded work; and each datagram is counted.

use crate::net;
use crate::net::{Net, PORT, config, datagram, drain, give, host_path, key};
use longhaul_node::Node;
use longhaul_seal::{Config, DropReason, NoKeys, PeerConfig, PeerStatus, Seal, Seed, Trouble};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use longhaul_wire::Udp;
use proptest::prelude::*;

/// Offset of the seal's header in an untagged IPv4 frame.
const AT: usize = 42;

/// A session with traffic in both directions and several key changes, and all datagrams to box 1.
fn recorded() -> (Net, Vec<Vec<u8>>) {
    let mut net = Net::new(
        [config(0, 0), config(1, 0)].map(|c| Config { rekey_bytes: 64 << 10, ..c }),
        vec![net::fibre()],
    );
    net.send(0, 0, u64::MAX, 100);
    net.meet();
    for number in 0..300 {
        net.send(0, 0, number, 600);
        net.send(1, 0, number, 600);
        net.run_for(Duration::from_us(200));
    }
    net.run_for(Duration::from_ms(20));
    let frames: Vec<_> =
        net.seen.iter().filter(|seen| seen.to == 1).map(|seen| seen.bytes.clone()).collect();
    for kind in [0, 1, 2, 4] {
        assert!(frames.iter().any(|frame| frame[AT + 1] >> 4 == kind), "kind {kind} is among them");
    }
    (net, frames)
}

/// State that a stranger must not change.
fn state(node: &Seal, now: Instant) -> (Vec<PeerStatus>, [u64; 6]) {
    let c = node.counters();
    let counts =
        [c.opened, c.sealed, c.handshakes_begun, c.handshakes_done, c.rekeys, c.address_table_full];
    (node.peers(now).collect(), counts)
}

/// Every frame from the WAN was delivered, answered or dropped for a reason, and counted once.
fn is_all_counted(before: &longhaul_seal::Counters, after: &longhaul_seal::Counters) -> bool {
    let came = after.wan_frames_in - before.wan_frames_in;
    let counted = |c: &longhaul_seal::Counters| {
        c.passed + c.drops.total() + c.answers_sent + c.opened + c.unknown_received
    };
    came == counted(after) - counted(before)
}

fn is_for_the_port(bytes: &[u8]) -> bool {
    Udp::find(bytes).is_some_and(|udp| udp.destination_port(bytes) == PORT)
}

#[test]
fn a_whole_session_said_again_changes_nothing() {
    let (mut net, frames) = recorded();
    let now = net.now;
    let before = *net.boxes[1].counters();
    let (peers, counts) = state(&net.boxes[1], now);
    for _ in 0..2 {
        for frame in &frames {
            give(&mut net.boxes[1], now, Seal::wan(0), frame);
            for (side, bytes) in drain(&mut net.boxes[1], now) {
                assert_eq!(side, Seal::wan(0), "nothing comes out inside");
                assert!(bytes.len() <= frame.len(), "no answer is longer than its question");
            }
        }
    }
    assert_eq!(state(&net.boxes[1], now), (peers, counts));
    let after = net.boxes[1].counters();
    assert!(is_all_counted(&before, after), "{before:#?} {after:#?}");
    assert!(after.drops.get(DropReason::HandshakeReplayed) > 0);
    assert!(after.drops.get(DropReason::Replayed) > 0);
    net.send(0, 0, 1000, 100);
    net.send(1, 0, 1001, 100);
    net.run_for(Duration::from_ms(5));
    assert_eq!((net.numbers(1).pop(), net.numbers(0).pop()), (Some(1000), Some(1001)));
}

#[test]
fn a_session_of_a_former_life_makes_no_keys() {
    let (net, frames) = recorded();
    for life in [0, 1] {
        // With the same seed, the same cookies are valid again, but their epoch has passed.
        let mut node = Seal::new(config(1, life)).unwrap();
        let now = net.now + Duration::from_ms(30_000);
        let before = *node.counters();
        for frame in &frames {
            give(&mut node, now, Seal::wan(0), frame);
        }
        assert!(drain(&mut node, now).iter().all(|(side, _)| *side == Seal::wan(0)));
        assert!(node.peers(now).all(|peer| peer.keys.is_none() && !peer.is_shaking_hands));
        assert!(is_all_counted(&before, node.counters()));
        let drops = node.counters().drops;
        assert!(
            drops.get(DropReason::HandshakeCookie) > 0 && drops.get(DropReason::UnknownKeys) > 0
        );
    }
}

#[test]
fn a_flood_of_questions_costs_a_bounded_number_of_answers() {
    let (_, frames) = recorded();
    let ask = frames.iter().find(|frame| frame[AT + 1] >> 4 == 2).unwrap();
    let mut node = Seal::new(Config { answers_per_s: 100, ..config(1, 1) }).unwrap();
    let mut answers = 0;
    for round in 0..10_000_u64 {
        let now = Instant::from_ns(round * 100_000);
        let mut ask = ask.clone();
        ask[AT + 8..AT + 16].copy_from_slice(&round.to_be_bytes());
        give(&mut node, now, Seal::wan(0), &ask);
        for (_, answer) in drain(&mut node, now) {
            assert!(answer.len() <= ask.len());
            answers += 1;
        }
    }
    assert!((100..=201).contains(&answers), "{answers} answers in one second");
    assert!(node.counters().drops.get(DropReason::TooManyQuestions) > 9000);
    assert_eq!(node.poll_timeout(), None, "nothing is kept");
}

#[test]
fn a_flood_of_first_messages_costs_a_bounded_number_of_calculations() {
    // A stranger that follows the protocol: it gets cookies, and has no key that the box knows.
    let mut far = Seal::new(Config { handshakes_per_s: 10, ..config(1, 0) }).unwrap();
    let mut strangers = 0;
    for n in 0..200_u8 {
        let now = Instant::from_ns(u64::from(n) * 1_000_000);
        let peer =
            PeerConfig { name: "far".into(), public_key: key(2).public(), preshared_key: None };
        let mut near =
            Seal::new(Config::new(key(50 + n % 100), vec![peer], Seed::new([n; 32]))).unwrap();
        give(&mut near, now, Seal::inner(0), &datagram(&host_path(0), PORT, 1, 50));
        for _ in 0..2 {
            for (_, bytes) in drain(&mut near, now) {
                give(&mut far, now, Seal::wan(0), &bytes);
            }
            for (_, bytes) in drain(&mut far, now) {
                strangers += u32::from(bytes[AT + 1] >> 4 == 5);
                give(&mut near, now, Seal::wan(0), &bytes);
            }
        }
        assert_eq!(near.counters().handshakes_begun, 1);
    }
    let drops = far.counters().drops;
    assert_eq!(strangers, 0, "no stranger gets a response");
    assert!((10..=13).contains(&drops.get(DropReason::HandshakeStranger)), "{drops:?}");
    assert!(drops.get(DropReason::TooManyHandshakes) >= 187);
    assert!(far.peers(Instant::ZERO).all(|peer| peer.keys.is_none()));
}

#[test]
fn without_a_cookie_nothing_is_calculated() {
    let (_, frames) = recorded();
    let init = frames.iter().find(|frame| frame[AT + 1] >> 4 == 4).unwrap();
    let mut node = Seal::new(config(1, 1)).unwrap();
    for round in 0..1000_u64 {
        let mut init = init.clone();
        init[AT + 8..AT + 16].copy_from_slice(&round.to_be_bytes());
        give(&mut node, Instant::ZERO, Seal::wan(0), &init);
    }
    let drops = node.counters().drops;
    assert_eq!((drops.get(DropReason::HandshakeCookie), drops.total()), (1000, 1000));
}

#[test]
fn what_routers_may_change_may_change_and_nothing_else() {
    let mut net = Net::plain();
    net.meet();
    let now = net.now;
    let mut sealed = |number| {
        give(&mut net.boxes[0], now, Seal::inner(0), &datagram(&host_path(0), PORT, number, 100));
        drain(&mut net.boxes[0], now).pop().unwrap().1
    };
    let frames: Vec<_> = (0..120).map(&mut sealed).collect();
    // Ethernet addresses, traffic class, hop limit and header checksum.
    let free = |at: usize| at < 12 || matches!(at, 15 | 22 | 24 | 25);
    let len = frames[0].len();
    for (at, frame) in frames.iter().enumerate().take(len.min(120)) {
        if matches!(at, 12 | 13 | 14 | 16 | 17 | 23 | 36 | 37 | 40 | 41) {
            // Fields that make it a datagram to the port, lengths, and the UDP checksum, which is
            // ignored.
            continue;
        }
        let mut frame = frame.clone();
        frame[at] ^= 1;
        let opened = net.boxes[1].counters().opened;
        give(&mut net.boxes[1], now, Seal::wan(0), &frame);
        let is_opened = net.boxes[1].counters().opened > opened;
        assert_eq!(is_opened, free(at), "byte {at}");
    }
}

#[test]
fn a_forged_notice_makes_the_box_ask_and_no_more() {
    let mut net = Net::plain();
    net.meet();
    net.send(0, 0, 1, 100);
    net.run_for(Duration::from_ms(5));
    let mut notice = net.seen.iter().rev().find(|seen| seen.to == 1).unwrap().bytes.clone();
    // Returned to its sender as a notice: addresses swapped, 16 bytes behind UDP.
    let udp = Udp::find(&notice).unwrap();
    let len = notice.len();
    udp.lengthen(&mut notice, (AT + 16) as i32 - len as i32);
    notice.truncate(AT + 16);
    let (source, destination) = (notice[26..30].to_vec(), notice[30..34].to_vec());
    notice[26..30].copy_from_slice(&destination);
    notice[30..34].copy_from_slice(&source);
    notice[AT + 1] = 6 << 4;
    let before = net.boxes[0].peers(net.now).next().unwrap().keys.unwrap();
    for _ in 0..1000 {
        let now = net.now;
        give(&mut net.boxes[0], now, Seal::wan(0), &notice);
    }
    assert_eq!(net.boxes[0].counters().unknown_received, 1);
    assert_eq!(drain(&mut net.boxes[0], net.now).len(), 1, "one question");
    let after = net.boxes[0].peers(net.now).next().unwrap().keys.unwrap();
    assert_eq!(
        (before.bytes_sealed, before.bytes_opened),
        (after.bytes_sealed, after.bytes_opened)
    );
    // It continues to seal with its keys.
    net.send(0, 0, 2, 100);
    net.run_for(Duration::from_ms(5));
    assert_eq!(net.numbers(1), [1, 2]);
}

/// A handshake that starts at 0: ASK, ANSWER, INIT and RESPONSE each cross in 1 ms.
fn handshake_until(time: Duration) -> Net {
    let mut net = Net::plain();
    net.send(0, 0, 1, 100);
    net.run_for(time);
    net
}

/// The initiator cannot distinguish a forged RESPONSE from that of a box with another pre-shared
/// key. It names a reason only once no authentic one has arrived.
#[test]
fn a_forged_response_changes_nothing_but_a_counter() {
    let whole = handshake_until(Duration::from_us(4500));
    let is_response = |seen: &&net::Seen| seen.to == 0 && seen.bytes[AT + 1] >> 4 == 5;
    let mut forged = whole.seen.iter().find(is_response).unwrap().bytes.clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut forge = |net: &mut Net| {
        let now = net.now;
        let before = state(&net.boxes[0], now);
        give(&mut net.boxes[0], now, Seal::wan(0), &forged);
        assert!(drain(&mut net.boxes[0], now).is_empty());
        assert_eq!(state(&net.boxes[0], now), before);
        assert_eq!(net.boxes[0].troubles(now), []);
        assert_eq!(net.dropped(0, DropReason::HandshakeForged), 1);
        forged[AT + 20] ^= 1;
    };
    let mut net = handshake_until(Duration::from_us(3500));
    forge(&mut net);
    net.run_for(Duration::from_ms(5));
    assert!(net.boxes[0].peers(net.now).all(|peer| peer.keys.is_some()));
    assert_eq!(net.boxes[0].troubles(net.now), []);

    let mut net = handshake_until(Duration::from_us(2500));
    net.is_cut = true;
    forge(&mut net);
    net.run_for(Duration::from_ms(3000));
    let why = NoKeys::PresharedKey;
    assert_eq!(net.boxes[0].troubles(net.now), [Trouble::Peer { name: "box 1".into(), why }]);
}

#[test]
fn addresses_without_end_take_no_more_than_their_bounds() {
    let mut node = Seal::new(Config { addresses_max: 8, ..config(0, 0) }).unwrap();
    for n in 0..5000_u32 {
        let mut path = host_path(0);
        path.destination_ip = std::net::Ipv4Addr::from(0x0a01_0000 + n).into();
        let now = Instant::from_ns(u64::from(n) * 1_000_000);
        give(&mut node, now, Seal::inner(0), &datagram(&path, PORT, 1, 10));
        node.handle_timeout(now);
        let asked = drain(&mut node, now);
        assert!(asked.len() <= 64, "{} questions at once", asked.len());
    }
    // 64 at once, five times each, at intervals of 250 ms.
    let asked = node.counters().asks_sent;
    assert!((300..=2000).contains(&asked), "{asked}");
    let counters = node.counters();
    assert!(counters.waited >= 64, "{counters:#?}");
    // All but those that are still waiting.
    assert!((5000 - 64..=5000).contains(&counters.drops.get(DropReason::NoKeys)), "{counters:#?}");
}

/// Applies one to four mutations: bits, bytes, truncation, the end of another datagram.
fn mutate(rng: &mut SplitMix64, entry: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = entry.to_vec();
    for _ in 0..1 + rng.below(4) {
        // Mostly behind the headers, where the seal must detect it.
        let from = if rng.chance(0.8) { AT.min(bytes.len()) } else { 0 };
        let Some(room) = (bytes.len() - from).checked_sub(1).filter(|room| *room > 0) else {
            break;
        };
        let at = from + rng.below(room as u64) as usize;
        match rng.below(6) {
            0 | 1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes[at] = rng.next_u64() as u8,
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            4 => bytes.truncate(at),
            _ => {
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at.min(other.len())..]);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Mutated and replayed datagrams in any order, and jumps in time.
    #[test]
    fn any_order_of_damaged_and_replayed_datagrams(seed in any::<u64>()) {
        let mut rng = SplitMix64::new(seed);
        let (mut net, frames) = recorded();
        let node = &mut net.boxes[1];
        let mut now = net.now;
        for _ in 0..1000 {
            let any = |rng: &mut SplitMix64| &frames[rng.below(frames.len() as u64) as usize];
            let (entry, other) = (any(&mut rng).clone(), any(&mut rng).clone());
            let frame = if rng.chance(0.9) { mutate(&mut rng, &entry, &other) } else { entry };
            let before = *node.counters();
            let was = state(node, now);
            let side = if rng.chance(0.99) { Seal::wan(0) } else { 2 + rng.below(3) as usize };
            give(node, now, side, &frame);
            for (to, bytes) in drain(node, now) {
                if to == Seal::inner(0) {
                    prop_assert!(!is_for_the_port(&bytes), "in the clear, for the port");
                } else {
                    prop_assert!(bytes.len() <= frame.len());
                }
            }
            prop_assert!(
                is_all_counted(&before, node.counters()),
                "{before:#?} {:#?}",
                node.counters()
            );
            prop_assert_eq!(state(node, now), was);
            if rng.chance(0.05) {
                now += Duration::from_us(rng.below(20_000));
                node.handle_timeout(now);
                drain(node, now);
            }
        }
        net.now = now;
        net.send(0, 0, 7777, 100);
        net.run_for(Duration::from_ms(5));
        prop_assert_eq!(net.numbers(1).pop(), Some(7777));
    }

    /// Arbitrary bytes to the port.
    #[test]
    fn any_bytes_are_dropped_or_passed(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        is_marked in any::<bool>(),
        kind in 0..8_u8,
    ) {
        let mut node = Seal::new(config(1, 0)).unwrap();
        let mut frame = datagram(&host_path(0), PORT, 0, 400);
        let end = (AT + bytes.len()).min(frame.len());
        frame[AT..end].copy_from_slice(&bytes[..end - AT]);
        if is_marked && frame.len() > AT + 2 {
            frame[AT] = 0xe1;
            frame[AT + 1] = kind << 4;
        }
        let before = *node.counters();
        give(&mut node, Instant::ZERO, Seal::wan(0), &frame);
        prop_assert!(is_all_counted(&before, node.counters()));
        prop_assert!(drain(&mut node, Instant::ZERO).iter().all(|(side, _)| *side == Seal::wan(0)));
        give(&mut node, Instant::ZERO, Seal::wan(0), &bytes);
        give(&mut node, Instant::ZERO, Seal::inner(0), &bytes);
        drain(&mut node, Instant::ZERO);
    }
}
