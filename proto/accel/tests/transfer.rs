//! Whole transfers in virtual time between two reference peers, over lossy links, through one or two accelerators.
//!
//! The peers check every ACK that they get (sent before, MSN exact, completions in order) and every byte; the world
//! checks that no pseudo-ACK names a packet that the accelerator had not been given.

mod peer;
mod script;

use longhaul_accel::{Accelerator, Config, FlowState, LAN, WAN};
use longhaul_node::{Frame, Node};
use longhaul_units::{Duration, Instant, Qpn, Rng, SplitMix64};
use longhaul_wire::{Head, Packet, Syndrome, Verb};
use peer::{MTU, Peer, Work, pattern};
use proptest::prelude::*;
use script::frames::{REQUESTER_QPN, RESPONDER_QPN, Wire};
use script::{Sink, deliver};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// What a link does to frames, each with this probability.
#[derive(Clone, Copy, Debug, Default)]
struct Ills {
    loss: f64,
    duplication: f64,
    reordering: f64,
    corruption: f64,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    lan: Ills,
    wan: Ills,
    wan_delay: Duration,
    /// Accelerator at peer 0, at peer 1.
    boxes: [bool; 2],
    cm: bool,
    rnr: f64,
    messages: usize,
    both_ways: bool,
    first_psn: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            lan: Ills::default(),
            wan: Ills::default(),
            wan_delay: Duration::from_ms(5),
            boxes: [true, false],
            cm: true,
            rnr: 0.0,
            messages: 200,
            both_ways: false,
            first_psn: 100,
        }
    }
}

/// Where a frame arrives: peer 0, box 0, box 1, peer 1 in a row.
type Place = usize;
/// When, in which order, from where, where to, what.
type Event = (Instant, u64, Place, Place, Vec<u8>);

struct World {
    setup: Setup,
    now: Instant,
    rng: SplitMix64,
    peers: [Peer; 2],
    boxes: [Option<Accelerator>; 2],
    events: BinaryHeap<Reverse<Event>>,
    count: u64,
    /// PSNs of requests that entered each box from its LAN.
    entered: [BTreeSet<u32>; 2],
}

impl World {
    fn new(setup: Setup) -> World {
        let wire = Wire::default();
        let (a, b) = (setup.first_psn, 0xff_fff0);
        let mut peers = [
            Peer::new(wire.requester, Qpn::new(RESPONDER_QPN), a, b, setup.seed),
            Peer::new(wire.requester.reversed(), Qpn::new(REQUESTER_QPN), b, a, setup.seed + 1),
        ];
        peers.iter_mut().for_each(|peer| peer.rnr_chance = setup.rnr);
        let config = Config { seed: setup.seed, rto_initial: Duration::from_ms(50), ..Config::default() };
        let new_box = |wanted: bool| wanted.then(|| Accelerator::new(config.clone()).expect("valid"));
        let mut world = World {
            now: Instant::from_ns(1000),
            rng: SplitMix64::new(setup.seed ^ 0x55),
            peers,
            boxes: setup.boxes.map(new_box),
            events: BinaryHeap::new(),
            count: 0,
            entered: Default::default(),
            setup,
        };
        if setup.cm {
            world.connect(&wire, a, b);
        }
        world
    }

    fn connect(&mut self, wire: &Wire, a: u32, b: u32) {
        let line = format!("psn={a} rpsn={b} mtu={MTU}");
        let frames = [
            (0, wire.requester_frame(&format!("req {line}"))),
            (1, wire.responder_frame(&format!("rep {line}"))),
            (0, wire.requester_frame("rtu")),
        ];
        for (from, bytes) in frames {
            for (place, node) in self.boxes.iter_mut().enumerate() {
                let Some(node) = node else { continue };
                deliver(node, self.now, if place == from { LAN } else { WAN }, &bytes);
                node.poll_transmit(self.now, &mut Sink::default());
            }
        }
    }

    /// Sends `bytes` from a place towards another; what lies between without a box is skipped.
    fn put(&mut self, from: Place, to: Place, bytes: Vec<u8>) {
        let step = |place: Place| if to > from { place + 1 } else { place - 1 };
        let mut place = step(from);
        let mut crosses_wan = from.min(place) == 1;
        while (place == 1 || place == 2) && self.boxes[place - 1].is_none() {
            let next = step(place);
            crosses_wan |= place.min(next) == 1;
            place = next;
        }
        let (ills, delay) = if crosses_wan {
            (self.setup.wan, self.setup.wan_delay)
        } else {
            (self.setup.lan, Duration::from_us(2))
        };
        if self.rng.chance(ills.loss) {
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(ills.duplication));
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if self.rng.chance(ills.corruption) {
                let at = self.rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.below(8);
            }
            let late = if self.rng.chance(ills.reordering) { delay.divided_by(4) } else { Duration::ZERO };
            self.count += 1;
            self.events.push(Reverse((self.now + delay + late, self.count, from, place, bytes)));
        }
    }

    /// Everything that may be sent now is sent.
    fn drain(&mut self) {
        for (peer, place, towards) in [(0, 0, 3), (1, 3, 0)] {
            while let Some(bytes) = self.peers[peer].out.pop_front() {
                self.put(place, towards, bytes);
            }
        }
        for index in 0..2 {
            let mut sink = Sink::default();
            let Some(node) = &mut self.boxes[index] else { continue };
            node.poll_transmit(self.now, &mut sink);
            for (side, bytes) in sink.out {
                let to_first = (side == LAN) == (index == 0);
                if side == LAN {
                    self.check_answer(index, &bytes);
                }
                self.put(index + 1, if to_first { 0 } else { 3 }, bytes);
            }
        }
    }

    /// No ACK names a PSN whose request has not come in. (READ ranges are entered whole.)
    fn check_answer(&self, index: usize, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let Ok(frame) = Frame::received(&head, bytes) else { return };
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        if !frame.icrc_is_right() || packet.opcode().verb() != Some(Verb::Acknowledge) {
            return;
        }
        if matches!(packet.aeth().map(|a| a.syndrome), Some(Syndrome::Ack { .. })) {
            let psn = packet.psn().get();
            assert!(self.entered[index].contains(&psn), "ACK for PSN {psn}, which had not come in");
        }
    }

    fn note_entered(&mut self, index: usize, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let Ok(frame) = Frame::received(&head, bytes) else { return };
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        if frame.icrc_is_right() && packet.opcode().is_request() {
            let span = packet.reth().filter(|_| packet.opcode().verb() == Some(Verb::ReadRequest));
            let span = span.map_or(1, |reth| (reth.len as usize).div_ceil(MTU).max(1));
            self.entered[index].extend((0..span as u32).map(|i| packet.psn().plus(i).get()));
        }
    }

    fn arrive(&mut self, from: Place, to: Place, bytes: &[u8]) {
        match to {
            0 => self.peers[0].receive(self.now, bytes),
            3 => self.peers[1].receive(self.now, bytes),
            _ => {
                let index = to - 1;
                let from_lan = (from < to) == (index == 0);
                if from_lan {
                    self.note_entered(index, bytes);
                }
                if let Some(node) = &mut self.boxes[index] {
                    deliver(node, self.now, if from_lan { LAN } else { WAN }, bytes);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let peers = self.peers.iter().filter_map(Peer::deadline);
        let boxes = self.boxes.iter().flatten().filter_map(|b| Some(b.poll_timeout()?.at));
        peers.chain(boxes).min()
    }

    fn is_done(&self) -> bool {
        let delivered = self
            .boxes
            .iter()
            .flatten()
            .all(|b| b.flows().all(|f| f.state != FlowState::Terminated || f.stored_frames == 0));
        self.peers.iter().all(|p| p.completed == p.posted()) && delivered
    }

    fn run(&mut self) {
        for peer in &mut self.peers {
            peer.send(self.now);
        }
        let end = self.now + Duration::from_ms(60_000);
        let (mut before, mut turns) = (self.now, 0);
        while !self.is_done() {
            turns = if self.now > before { 0 } else { turns + 1 };
            before = self.now;
            assert!(turns < 1000, "time stands still at {before:?}: {:?}", self.states());
            self.drain();
            let event = self.events.peek().map(|Reverse(event)| event.0);
            let next = event.into_iter().chain(self.next_deadline()).min().expect("something goes on");
            self.now = self.now.max(next);
            assert!(self.now < end, "not done after a minute: {:?}", self.states());
            while self.events.peek().is_some_and(|Reverse(event)| event.0 <= self.now) {
                let Some(Reverse((_, _, from, to, bytes))) = self.events.pop() else { break };
                self.arrive(from, to, &bytes);
            }
            let stuck = self.peers.iter().any(|peer| peer.silent_timeouts >= 30);
            assert!(!stuck, "stuck: {:#?}", self.states());
            self.peers.iter_mut().for_each(|peer| peer.tick(self.now));
            self.boxes.iter_mut().flatten().for_each(|node| node.handle_timeout(self.now));
        }
        self.check_bytes();
    }

    fn states(&self) -> Vec<String> {
        let peers = self.peers.iter().map(|p| format!("{} of {} completed", p.completed, p.posted()));
        let boxes = self
            .boxes
            .iter()
            .flatten()
            .flat_map(|b| b.flows().map(|f| format!("{f:#?}")).collect::<Vec<_>>());
        peers.chain(boxes).collect()
    }

    /// Every message arrived once, in order, byte for byte.
    fn check_bytes(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = self.peers[from].messages_of(|work| !matches!(work, Work::Read(_)));
            let received = &self.peers[to].received;
            assert_eq!(received.len(), sent.len());
            for ((message, len), bytes) in sent.into_iter().zip(received) {
                assert_eq!(bytes.len(), len);
                assert!(
                    bytes.iter().enumerate().all(|(i, &b)| b == pattern(message, i)),
                    "message {message}"
                );
            }
        }
    }
}

fn post_mixture(peer: &mut Peer, rng: &mut SplitMix64, messages: usize, reads: bool) {
    for _ in 0..messages {
        let len = [0, 1, 100, MTU, MTU + 1, 2000, 9000][rng.below(7) as usize];
        peer.post(match rng.below(if reads { 4 } else { 3 }) {
            0 => Work::Send(len),
            3 => Work::Read(len),
            _ => Work::Write(len),
        });
    }
}

fn run_mixture(setup: Setup) -> World {
    let mut world = World::new(setup);
    let mut rng = SplitMix64::new(setup.seed ^ 0x77);
    post_mixture(&mut world.peers[0], &mut rng, setup.messages, true);
    if setup.both_ways {
        post_mixture(&mut world.peers[1], &mut rng, setup.messages, true);
    }
    world.run();
    world
}

fn lossy(loss: f64) -> Ills {
    Ills { loss, ..Ills::default() }
}

mod one_box {
    use super::*;

    #[test]
    fn without_loss_nothing_is_sent_twice() {
        let world = run_mixture(Setup::default());
        let counters = world.boxes[0].as_ref().unwrap().counters();
        assert_eq!(counters.retransmits_nak + counters.retransmits_timeout + counters.retransmits_read, 0);
        assert_eq!(counters.fatal_naks + counters.flows_failed + counters.stored_lost, 0);
        assert!(counters.pseudo_acks > 0);
    }

    #[test]
    fn loss_on_the_wan_is_repaired_from_the_store() {
        for (seed, loss) in [(1, 1e-3), (2, 1e-2), (3, 5e-2)] {
            let world = run_mixture(Setup { seed, wan: lossy(loss), ..Setup::default() });
            assert_eq!(world.boxes[0].as_ref().unwrap().counters().flows_failed, 0);
        }
    }

    #[test]
    fn completions_of_writes_do_not_wait_for_the_distance() {
        let mut world = World::new(Setup::default());
        (0..2000).for_each(|_| world.peers[0].post(Work::Write(MTU)));
        let start = world.now;
        world.peers[0].send(world.now);
        while world.peers[0].completed < 2000 {
            world.drain();
            let Some(Reverse((at, _, from, to, bytes))) = world.events.pop() else { panic!("stalled") };
            world.now = at;
            world.arrive(from, to, &bytes);
        }
        // Without: 2000 packets, 64 per 10 ms, take 310 ms.
        assert!(world.now.since(start) < Duration::from_ms(5), "{}", world.now.since(start));
    }

    #[test]
    fn rnr_is_waited_out() {
        let world = run_mixture(Setup { rnr: 0.05, wan: lossy(1e-3), ..Setup::default() });
        assert!(world.boxes[0].as_ref().unwrap().counters().rnr_nak_absorbed > 0);
    }

    #[test]
    fn a_flow_learnt_from_traffic_is_as_right() {
        for seed in 0..8 {
            let setup = Setup { seed, cm: false, wan: lossy(1e-2), messages: 400, ..Setup::default() };
            let world = run_mixture(setup);
            assert!(world.boxes[0].as_ref().unwrap().counters().flows_from_traffic > 0, "seed {seed}");
        }
    }

    #[test]
    fn the_psn_wraps_under_loss() {
        run_mixture(Setup { first_psn: 0xff_ff80, wan: lossy(1e-2), ..Setup::default() });
    }
}

mod two_boxes {
    use super::*;

    #[test]
    fn serve_both_directions_at_once() {
        for (seed, loss) in [(1, 0.0), (2, 1e-3), (3, 1e-2)] {
            let setup =
                Setup { seed, boxes: [true, true], both_ways: true, wan: lossy(loss), ..Setup::default() };
            let world = run_mixture(setup);
            for node in world.boxes.iter().flatten() {
                assert!(node.counters().pseudo_acks > 0);
                assert_eq!(node.counters().flows_failed, 0);
            }
        }
    }
}

mod reference {
    use super::*;

    #[test]
    fn the_peers_themselves_survive_loss_without_a_box() {
        run_mixture(Setup { boxes: [false, false], wan: lossy(1e-2), both_ways: true, ..Setup::default() });
    }
}

fn ills() -> impl Strategy<Value = Ills> {
    let chance = prop_oneof![3 => Just(0.0), 1 => 0.0..0.05_f64];
    (chance.clone(), chance.clone(), chance.clone(), chance).prop_map(
        |(loss, duplication, reordering, corruption)| Ills { loss, duplication, reordering, corruption },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the links do on either side, bytes and completions are right, exactly once, in order.
    #[test]
    fn any_mixture_of_ills_is_survived(
        seed in any::<u64>(), lan in ills(), wan in ills(), cm in any::<bool>(),
        second in any::<bool>(), both_ways in any::<bool>(), rnr in prop_oneof![Just(0.0), Just(0.02)],
    ) {
        let wan_delay = Duration::from_us(seed % 6000 + 10);
        let boxes = [true, second];
        run_mixture(Setup { seed: seed >> 8, lan, wan, wan_delay, boxes, cm, rnr, messages: 60, both_ways, ..Setup::default() });
    }
}
