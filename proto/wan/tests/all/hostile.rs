//! No datagram from the WAN makes a transport panic, change state that its sender must not change,
//! or exceed its memory.

use crate::net::{Net, Source, config, host_path};
use longhaul_link::LinkConfig;
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wan::{Config, Counters, DropReason, INNER, Seed, Transport};
use longhaul_wire::{Bth, Head, Opcode, Path, PathTemplate, Udp};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Records transmitted frames as bytes.
#[derive(Default)]
struct Tap(Vec<(Side, Vec<u8>)>);

impl Transmit for Tap {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.0.push((side, bytes));
    }
}

fn give(node: &mut Transport, now: Instant, side: Side, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    let frame = Frame::received(&head, bytes).unwrap_or_else(|_| Frame::opaque(bytes));
    node.handle_frame(now, side, &frame);
}

fn drain(node: &mut Transport, now: Instant) -> Vec<(Side, Vec<u8>)> {
    let mut tap = Tap::default();
    node.poll_transmit(now, &mut tap);
    tap.0
}

/// Records everything that box `to` received in an exchange of two boxes.
fn recorded(to: usize) -> (Net, Vec<Vec<u8>>) {
    let mut net = Net::of(LinkConfig {
        delay: Duration::from_ms(1),
        rate: BitRate::from_gbps(10),
        loss: 0.02,
        ..LinkConfig::default()
    });
    net.meet();
    net.sources[1 - to] = vec![Source::new(1 - to as u8, 10, 200, true, 100)];
    net.finish(Duration::from_ms(500));
    net.sources[1 - to].clear();
    let mut frames = Vec::new();
    let now = net.now;
    for qpn in 20..40 {
        net.sources[1 - to].push(Source::new(1 - to as u8, qpn, 100, true, 1));
    }
    net.run_for(Duration::from_us(1));
    frames.extend(
        drain(&mut net.boxes[1 - to], now + Duration::from_ms(300)).into_iter().map(|f| f.1),
    );
    net.boxes[1 - to].handle_timeout(now + Duration::from_ms(400));
    frames.extend(
        drain(&mut net.boxes[1 - to], now + Duration::from_ms(400)).into_iter().map(|f| f.1),
    );
    assert!(!frames.is_empty());
    (net, frames)
}

#[test]
fn foreign_frames_pass_byte_for_byte() {
    let mut node = Transport::new(config(1, 1, None)).unwrap();
    let arp = [[0xff; 6].as_slice(), &[2; 6], &[8, 6], &[7; 46]].concat();
    let mut udp = PathTemplate::new(&host_path(0)).bytes().to_vec();
    udp.extend([0x55; 40]);
    // To the transport's port, but not one of its datagrams.
    let at = udp.len() - 40 - 6;
    udp[at..at + 2].copy_from_slice(&4797_u16.to_be_bytes());
    for frame in [&arp, &udp, &vec![9; 14], &vec![1; 1]] {
        for (from, to) in [(INNER, 1), (1, INNER)] {
            give(&mut node, Instant::ZERO, from, frame);
            assert_eq!(drain(&mut node, Instant::ZERO), [(to, frame.clone())]);
        }
    }
    assert_eq!(node.counters().drops.total(), 0);
}

#[test]
fn a_flood_of_questions_costs_a_bounded_number_of_answers_none_longer_than_its_question() {
    let mut asker = Net::of(LinkConfig::default());
    asker.is_cut[0] = [true; 2];
    let mut questions = Vec::new();
    for qpn in 0..5 {
        asker.sources[0] = vec![Source::new(0, qpn, 100, true, 1)];
        let node = &mut asker.boxes[0];
        let mut source = Source::new(0, 10, 100, true, 10);
        source.send_broken(|frame| node.handle_frame(Instant::ZERO, INNER, frame));
        node.handle_timeout(Instant::from_ns(u64::from(qpn) * 1_000_000_000));
        questions.extend(
            drain(node, Instant::from_ns(u64::from(qpn) * 1_000_000_000)).into_iter().map(|f| f.1),
        );
    }
    questions.retain(|frame| frame.len() == 42 + 24 + 64);
    assert!(questions.len() >= 3, "{}", questions.len());
    let mut node = Transport::new(Config { answers_per_s: 100, ..config(2, 1, None) }).unwrap();
    let mut answers = 0;
    for round in 0..10_000_u64 {
        let now = Instant::from_ns(round * 100_000);
        give(&mut node, now, 1, &questions[round as usize % questions.len()]);
        for (side, answer) in drain(&mut node, now) {
            assert_eq!(side, 1);
            assert!(answer.len() <= questions[0].len(), "no amplification");
            answers += 1;
        }
    }
    assert!((100..=201).contains(&answers), "{answers} answers in one second");
    assert_eq!(node.sessions().count(), 0, "a question alone makes no session");
    assert!(node.counters().drops.get(DropReason::TooManyQuestions) > 9000);
}

#[test]
fn what_was_said_before_changes_nothing_when_it_is_said_again() {
    let (mut net, frames) = recorded(1);
    let now = net.now + Duration::from_ms(500);
    let delivered = |net: &Net| net.boxes[1].counters().delivered;
    for frame in &frames {
        give(&mut net.boxes[1], now, 1, frame);
    }
    drain(&mut net.boxes[1], now);
    let before = delivered(&net);
    for _ in 0..3 {
        for frame in &frames {
            give(&mut net.boxes[1], now, 1, frame);
        }
    }
    drain(&mut net.boxes[1], now);
    assert_eq!(delivered(&net), before);
    assert_eq!(net.boxes[1].sessions().count(), 1);
}

/// Offsets of the IPv4 header bytes that no ICRC covers: ToS, hop limit, checksum.
const OUTSIDE_ICRC: [usize; 4] = [14 + 1, 14 + 8, 14 + 10, 14 + 11];

#[test]
fn a_datagram_with_a_damaged_ip_header_is_not_acknowledged() {
    let mut net = Net::of(LinkConfig::default());
    net.meet();
    let now = net.now;
    let mut source = Source::new(0, 10, 100, true, 20);
    (0..20).for_each(|_| source.send(|frame| net.boxes[0].handle_frame(now, INNER, frame)));
    let frames: Vec<_> =
        drain(&mut net.boxes[0], now).into_iter().map(|(_, frame)| frame).collect();
    let node = &mut net.boxes[1];
    let before = *node.counters();
    for frame in &frames {
        for (at, bit) in OUTSIDE_ICRC.into_iter().flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = frame.clone();
            damaged[at] ^= 1 << bit;
            give(node, now, 1, &damaged);
        }
    }
    drain(node, now);
    let damaged = *node.counters();
    assert_eq!(damaged.delivered, before.delivered);
    let dropped = |of: &Counters| of.drops.get(DropReason::Corrupted);
    assert_eq!(dropped(&damaged) - dropped(&before), 32 * frames.len() as u64);
    frames.iter().for_each(|frame| give(node, now, 1, frame));
    drain(node, now);
    assert_eq!(node.counters().delivered - before.delivered, 20);
}

#[test]
fn a_frame_that_enters_with_a_damaged_ip_header_passes() {
    let mut net = Net::of(LinkConfig::default());
    net.meet();
    let (now, node) = (net.now, &mut net.boxes[0]);
    let mut frame = Vec::new();
    Source::new(0, 10, 100, true, 1).send(|sent| {
        frame.resize(sent.len(), 0);
        sent.write_to(&mut frame);
    });
    for at in OUTSIDE_ICRC {
        let mut damaged = frame.clone();
        damaged[at] ^= 4;
        give(node, now, INNER, &damaged);
        assert_eq!(drain(node, now), [(1, damaged)]);
    }
    let before = node.counters().tunnelled;
    give(node, now, INNER, &frame);
    assert_eq!(node.counters().tunnelled, before + 1);
}

#[test]
fn a_request_of_a_former_life_to_open_a_session_ends_none() {
    let mut net = Net::of(LinkConfig { delay: Duration::from_ms(1), ..LinkConfig::default() });
    let heard = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let keeps = heard.clone();
    net.loses = Some(Box::new(move |to, frame| {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        if to == 1 {
            keeps.borrow_mut().push(bytes);
        }
        false
    }));
    net.meet();
    let former = std::mem::take(&mut *heard.borrow_mut());
    net.boxes[0] =
        Transport::new(Config { seed: Seed::of_scenario(77), ..config(1, 1, None) }).unwrap();
    net.meet();
    let closed = net.boxes[1].counters().sessions_closed;
    assert_eq!(closed, 1, "of its former life");
    let latter = heard.borrow().clone();
    for said in [former, latter] {
        net.strange.extend(said.into_iter().map(|frame| (1, 1, frame)));
        net.run_for(Duration::from_ms(1));
        assert_eq!(net.boxes[1].counters().sessions_closed, closed);
    }
}

#[test]
fn streams_without_end_take_no_more_than_their_bounds() {
    let mut net = Net::of(LinkConfig { delay: Duration::from_ms(1), ..LinkConfig::default() });
    net.meet();
    let mut node =
        Transport::new(Config { streams_max: 8, addresses_max: 4, ..config(3, 1, None) }).unwrap();
    // A host that sends each frame to a new address.
    for n in 0..2000_u32 {
        let mut path = host_path(0);
        path.destination_ip = std::net::Ipv4Addr::from(0x0a01_0000 + n).into();
        let mut frame = PathTemplate::new(&path).bytes().to_vec();
        let behind_udp = [0x04, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
        frame.extend(behind_udp);
        let udp = Udp::find(&frame).unwrap();
        udp.finish_lengths(&mut frame, behind_udp.len());
        give(&mut node, Instant::ZERO, INNER, &frame);
        assert!(
            drain(&mut node, Instant::ZERO).iter().any(|(side, out)| (*side, out) == (1, &frame))
        );
    }
    assert!(node.counters().address_table_full > 1900);
    let _ = net;
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Damaged, truncated and reordered datagrams, and jumps in time: no panic, bounded memory, and
    /// the session survives or is opened again.
    #[test]
    fn any_order_of_damaged_datagrams(seed in any::<u64>()) {
        let mut rng = SplitMix64::new(seed);
        let (mut net, frames) = recorded(1);
        let mut now = net.now;
        for _ in 0..300 {
            let mut frame = frames[rng.below(frames.len() as u64) as usize].clone();
            if rng.chance(0.8) {
                let at = 12 + rng.below(frame.len() as u64 - 12) as usize;
                frame[at] ^= 1 << rng.below(8);
            }
            if rng.chance(0.1) {
                frame.truncate(rng.below(frame.len() as u64 + 1) as usize);
            }
            let side = rng.below(3) as usize;
            give(&mut net.boxes[1], now, side, &frame);
            if rng.chance(0.1) {
                now += Duration::from_us(rng.below(20_000));
                net.boxes[1].handle_timeout(now);
            }
            drain(&mut net.boxes[1], now);
            prop_assert!(net.boxes[1].sessions().count() <= 1);
        }
        if let Some(session) = net.boxes[1].sessions().next() {
            prop_assert!(session.receive_bytes < 1 << 20);
        }
    }
}

/// A box at another address, and the datagrams sent to it.
struct Stranger {
    node: Transport,
    path: Path,
    heard: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Stranger {
    /// Uses the number of box 1, with its own seed or another, at 10.0.7.1 behind the fibre of
    /// `net`.
    fn new(net: &mut Net, seed: u64) -> Self {
        let node =
            Transport::new(Config { seed: Seed::of_scenario(seed), ..config(1, 1, None) }).unwrap();
        let path = Path { source_ip: "10.0.7.1".parse().unwrap(), ..host_path(0) };
        let heard = Rc::new(RefCell::new(Vec::new()));
        let keeps = heard.clone();
        net.loses = Some(Box::new(move |_, frame| {
            let mut bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
            let is_for_it = bytes[30..34] == [10, 0, 7, 1];
            if is_for_it {
                keeps.borrow_mut().push(bytes);
            }
            is_for_it
        }));
        Stranger { node, path, heard }
    }

    /// Tries to open a session with box 2, as a box does on behalf of a host behind it.
    fn open(&mut self, net: &mut Net) {
        // To another destination first, so that equal seeds have only the instance in common.
        for destination in ["10.0.9.9", "10.0.1.1"] {
            let path = Path { destination_ip: destination.parse().unwrap(), ..self.path };
            let template = PathTemplate::new(&path);
            let mut head = Head::begin(
                &template,
                &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0xffff), Psn::new(0)),
            );
            let pad_len = head.finish(&template, 0);
            let trailer = Trailer::Sealed { pad_len };
            let frame = Frame { head: head.bytes(), payload: Payload::Bytes(&[]), trailer };
            self.node.handle_frame(net.now, INNER, &frame);
        }
        for _ in 0..400 {
            self.node.handle_timeout(net.now);
            for bytes in self.heard.borrow_mut().drain(..) {
                give(&mut self.node, net.now, 1, &bytes);
            }
            let said = drain(&mut self.node, net.now).into_iter().map(|(_, bytes)| (1, 1, bytes));
            net.strange.extend(said);
            net.run_for(Duration::from_ms(5));
        }
    }
}

#[test]
fn who_uses_the_number_of_a_box_that_answers_ends_no_session_of_it() {
    // The seed of box 1, which yields the same instance, and another.
    for seed in [1001, 77] {
        let mut net = Net::of(LinkConfig { delay: Duration::from_ms(5), ..LinkConfig::default() });
        net.meet();
        let before: Vec<u64> =
            net.boxes.iter().map(|node| node.counters().sessions_opened).collect();
        net.sources[0] = vec![Source::new(0, 5, 100, true, 2000).every(Duration::from_us(100))];
        let mut stranger = Stranger::new(&mut net, seed);
        stranger.open(&mut net);
        net.finish(Duration::from_ms(100));
        for (node, before) in net.boxes.iter().zip(before) {
            let counters = node.counters();
            assert_eq!(
                (counters.sessions_closed, counters.sessions_opened),
                (0, before),
                "seed {seed}"
            );
            assert_eq!((node.sessions().count(), counters.lost_with_session), (1, 0));
        }
        assert!(net.boxes[1].counters().drops.get(DropReason::SessionStands) > 0);
        assert_eq!(stranger.node.counters().sessions_opened, 0);
    }
}

#[test]
fn a_box_that_has_restarted_is_back_after_the_round_trips_of_its_handshake() {
    let mut net = Net::of(LinkConfig { delay: Duration::from_ms(5), ..LinkConfig::default() });
    net.meet();
    net.run_for(Duration::from_ms(20));
    net.boxes[0] =
        Transport::new(Config { seed: Seed::of_scenario(77), ..config(1, 1, None) }).unwrap();
    net.sources[0] = vec![Source::new(0, 5, 100, true, 1)];
    // HELLO, answer, OPEN and ACCEPT, as if there had been no former life.
    net.run_for(Duration::from_ms(21));
    assert!(net.boxes.iter().all(|node| node.sessions().count() == 1));
    assert!(net.boxes.iter().all(|node| node.sessions().all(|session| session.is_open)));
    assert_eq!(net.boxes[1].counters().sessions_closed, 1);
}

/// The values in the first HELLO of a box with this number and seed.
fn said_by(box_id: u64, seed: u64) -> [u64; 2] {
    let mut node =
        Transport::new(Config { seed: Seed::of_scenario(seed), ..config(box_id, 1, None) })
            .unwrap();
    Source::new(0, 5, 100, true, 1).send(|frame| node.handle_frame(Instant::ZERO, INNER, frame));
    node.handle_timeout(Instant::ZERO);
    let said = drain(&mut node, Instant::ZERO).into_iter().map(|(_, bytes)| bytes);
    let hello = said.into_iter().find(|bytes| bytes.len() == 42 + 24 + 64).expect("a question");
    // According to docs/spec/wan-transport.md: step to session 8 bytes, box 8, instance 8, policy
    // 8, nonce 8.
    let word = |at: usize| u64::from_be_bytes(hello[42 + 24 + at..][..8].try_into().unwrap());
    assert_eq!(word(8), box_id);
    [word(16), word(32)]
}

#[test]
fn nothing_that_is_sent_follows_from_the_number_of_a_box() {
    let all = [said_by(1, 5), said_by(1, 6), said_by(2, 6)].map(|values| values.to_vec());
    // Boxes of one number with different seeds share no value; equal seeds draw equal values.
    assert!(all[0].iter().all(|value| !all[1].contains(value)));
    assert_eq!(all[1], all[2]);
    // No value equals the output of a simulation generator seeded with the box number or another
    // value that is sent.
    for seed in [1, all[0][0], all[0][1]] {
        let mut rng = SplitMix64::new(seed);
        assert!((0..1000).all(|_| !all[0].contains(&rng.next_u64())));
    }
}
