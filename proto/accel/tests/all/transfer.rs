//! Whole transfers in virtual time between two reference peers, over lossy links, through one or
//! two accelerators.
//!
//! The peers check every ACK (sent before, MSN exact, completions in order) and every byte; the
//! simulation's oracle checks that no box acknowledges packets that it has not received.

use crate::peer::{MTU, Peer, Work, pattern};
use crate::script::frames::{REQUESTER_IP, REQUESTER_QPN, RESPONDER_IP, RESPONDER_QPN, Wire};
use crate::script::{Sink, deliver};
use longhaul_accel::{Accelerator, Config, Counters, FlowState, LAN, WAN};
use longhaul_link::{Impairments, LinkConfig};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_sim::{Cable, Connection, Nodes, Watched};
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wan_box::WanBox;
use proptest::prelude::*;

/// Faults of a link, each with its probability.
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

impl Ills {
    /// A cable with the remaining faults. The sending node duplicates frames, so that each copy has
    /// its own fate.
    fn cable(&self, ends: [(usize, Side); 2], delay: Duration) -> Cable {
        let Ills { loss, reordering: late, corruption, .. } = *self;
        let impairments =
            Impairments { late, late_by: delay.divided_by(4), corruption, duplication: 0.0 };
        let wire = LinkConfig { delay, loss, impairments, ..LinkConfig::default() };
        Cable { ends, wire, loss_toward_second_only: false }
    }
}

enum Place {
    Peer(Box<Peer>),
    Box(Box<Watched>),
}

/// A node of the row and, by side, the probability that it sends a frame twice.
struct Stage {
    place: Place,
    twice: [f64; 2],
    rng: SplitMix64,
}

struct Twice<'a> {
    out: &'a mut dyn Transmit,
    chances: [f64; 2],
    rng: &'a mut SplitMix64,
}

impl Transmit for Twice<'_> {
    fn room(&mut self, side: Side) -> usize {
        self.out.room(side)
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        for _ in 0..1 + usize::from(self.rng.chance(self.chances[side])) {
            self.out.transmit(side, frame);
        }
    }
}

impl Stage {
    fn node(&mut self) -> &mut dyn Node {
        match &mut self.place {
            Place::Peer(peer) => peer,
            Place::Box(watched) => watched,
        }
    }
}

impl Node for Stage {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.node().handle_frame(now, side, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.node().handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        let mut rng = self.rng.clone();
        let chances = self.twice;
        self.node().poll_transmit(now, &mut Twice { out, chances, rng: &mut rng });
        self.rng = rng;
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        match &self.place {
            Place::Peer(peer) => peer.poll_timeout(),
            Place::Box(watched) => watched.poll_timeout(),
        }
    }
}

/// The two peers, then the boxes.
struct World {
    nodes: Nodes<Stage>,
}

impl World {
    fn new(setup: Setup) -> World {
        let wire = Wire::default();
        let (a, b) = (setup.first_psn, 0xff_fff0);
        let peers = [
            Peer::new(wire.requester, Qpn::new(RESPONDER_QPN), a, b, setup.seed),
            Peer::new(wire.requester.reversed(), Qpn::new(REQUESTER_QPN), b, a, setup.seed + 1),
        ];
        let mut rng = SplitMix64::new(setup.seed ^ 0x55);
        let mut stage = |place, twice| Stage { place, twice, rng: SplitMix64::new(rng.next_u64()) };
        let mut stages = Vec::new();
        for (mut peer, has_box) in peers.into_iter().zip(setup.boxes) {
            peer.rnr_chance = setup.rnr;
            let ills = if has_box { setup.lan } else { setup.wan };
            stages.push(stage(Place::Peer(Box::new(peer)), [ills.duplication; 2]));
        }
        let (mut cables, mut across) = (Vec::new(), [(0, 0), (1, 0)]);
        for peer in (0..2).filter(|&peer| setup.boxes[peer]) {
            across[peer] = (stages.len(), WAN);
            cables.push(setup.lan.cable([(peer, 0), (stages.len(), LAN)], Duration::from_us(2)));
            let mut node = new_box(setup.seed);
            if setup.cm {
                connect(&mut node, peer, &wire, [a, b]);
            }
            let mut watched = Watched::new(node, vec![None, None]);
            let ends =
                [(REQUESTER_IP, Qpn::new(REQUESTER_QPN)), (RESPONDER_IP, Qpn::new(RESPONDER_QPN))];
            for (requester, psn) in [(0, a), (1, b)] {
                watched.expect(&Connection {
                    requester: ends[requester],
                    responder: ends[1 - requester],
                    first_psn: Psn::new(psn),
                    mtu_bytes: MTU as u32,
                });
            }
            stages.push(stage(
                Place::Box(Box::new(watched)),
                [setup.lan.duplication, setup.wan.duplication],
            ));
        }
        cables.push(setup.wan.cable(across, setup.wan_delay));
        World { nodes: Nodes::new(stages, &cables, setup.seed).expect("valid") }
    }

    fn peer(&self, peer: usize) -> &Peer {
        let Place::Peer(peer) = &self.nodes[peer].place else { panic!("{peer} is a box") };
        peer
    }

    fn peer_mut(&mut self, peer: usize) -> &mut Peer {
        let Place::Peer(peer) = &mut self.nodes[peer].place else { panic!("{peer} is a box") };
        peer
    }

    fn peers(&self) -> [&Peer; 2] {
        [0, 1].map(|peer| self.peer(peer))
    }

    fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.nodes.iter().filter_map(|stage| match &stage.place {
            Place::Peer(_) => None,
            Place::Box(watched) => Some(&**watched),
        })
    }

    fn boxes(&self) -> impl Iterator<Item = &Accelerator> {
        self.watched().map(|watched| watched.node().near())
    }

    /// Counters of the first box.
    fn counters(&self) -> &Counters {
        self.boxes().next().expect("a box").counters()
    }

    fn begin(&mut self) {
        (0..2).for_each(|peer| self.peer_mut(peer).send(Instant::ZERO));
    }

    fn is_done(&self) -> bool {
        let delivered = self
            .boxes()
            .all(|b| b.flows().all(|f| f.state != FlowState::Terminated || f.stored_frames == 0));
        self.peers().iter().all(|p| p.completed == p.posted()) && delivered
    }

    fn run(&mut self) {
        self.begin();
        let end = Instant::ZERO + Duration::from_ms(60_000);
        while !self.is_done() {
            assert!(self.nodes.step(), "asleep: {:#?}", self.states());
            assert!(self.nodes.now() < end, "not done after a minute: {:#?}", self.states());
            let stuck = self.peers().iter().any(|peer| peer.silent_timeouts >= 30);
            assert!(!stuck, "stuck: {:#?}", self.states());
        }
        self.watched().for_each(|watched| assert_eq!(watched.violation(), None));
        self.check_bytes();
    }

    fn states(&self) -> Vec<String> {
        let peers = self.peers().map(|p| format!("{} of {} completed", p.completed, p.posted()));
        let flows = self.boxes().flat_map(Accelerator::flows).map(|flow| format!("{flow:#?}"));
        peers.into_iter().chain(flows).collect()
    }

    /// Checks that every message arrived once, in order, byte for byte.
    fn check_bytes(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = self.peer(from).messages_of(|work| !matches!(work, Work::Read(_)));
            let received = &self.peer(to).received;
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

fn new_box(seed: u64) -> WanBox {
    let config = Config { seed, rto_initial: Duration::from_ms(50), ..Config::default() };
    WanBox::new(longhaul_wan_box::Config::alone(config)).expect("valid")
}

/// Shows the box at `peer` the connection set-up.
fn connect(node: &mut WanBox, peer: usize, wire: &Wire, [a, b]: [u32; 2]) {
    let line = format!("psn={a} rpsn={b} mtu={MTU}");
    let frames = [
        (0, wire.requester_frame(&format!("req {line}"))),
        (1, wire.responder_frame(&format!("rep {line}"))),
        (0, wire.requester_frame("rtu")),
    ];
    for (from, bytes) in frames {
        deliver(node, Instant::ZERO, if peer == from { LAN } else { WAN }, &bytes);
        node.poll_transmit(Instant::ZERO, &mut Sink::default());
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
    post_mixture(world.peer_mut(0), &mut rng, setup.messages, true);
    if setup.both_ways {
        post_mixture(world.peer_mut(1), &mut rng, setup.messages, true);
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
        let counters = world.counters();
        assert_eq!(
            counters.retransmits_nak + counters.retransmits_timeout + counters.retransmits_read,
            0
        );
        assert_eq!(counters.fatal_naks + counters.flows_failed + counters.stored_lost, 0);
        assert!(counters.pseudo_acks > 0);
    }

    #[test]
    fn loss_on_the_wan_is_repaired_from_the_store() {
        for (seed, loss) in [(1, 1e-3), (2, 1e-2), (3, 5e-2)] {
            let world = run_mixture(Setup { seed, wan: lossy(loss), ..Setup::default() });
            assert_eq!(world.counters().flows_failed, 0);
        }
    }

    #[test]
    fn completions_of_writes_do_not_wait_for_the_distance() {
        let mut world = World::new(Setup::default());
        (0..2000).for_each(|_| world.peer_mut(0).post(Work::Write(MTU)));
        world.begin();
        while world.peer(0).completed < 2000 {
            assert!(world.nodes.step(), "stalled");
        }
        // Without an early ACK: 2000 packets, 64 per 10 ms, take 310 ms.
        let took = world.nodes.now().since(Instant::ZERO);
        assert!(took < Duration::from_ms(5), "{took}");
    }

    #[test]
    fn rnr_is_waited_out() {
        let world = run_mixture(Setup { rnr: 0.05, wan: lossy(1e-3), ..Setup::default() });
        assert!(world.counters().rnr_nak_absorbed > 0);
    }

    #[test]
    fn a_flow_learnt_from_traffic_is_as_right() {
        for seed in 0..8 {
            let setup =
                Setup { seed, cm: false, wan: lossy(1e-2), messages: 400, ..Setup::default() };
            let world = run_mixture(setup);
            assert!(world.counters().flows_from_traffic > 0, "seed {seed}");
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
            let setup = Setup {
                seed,
                boxes: [true, true],
                both_ways: true,
                wan: lossy(loss),
                ..Setup::default()
            };
            let world = run_mixture(setup);
            for node in world.boxes() {
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
        run_mixture(Setup {
            boxes: [false, false],
            wan: lossy(1e-2),
            both_ways: true,
            ..Setup::default()
        });
    }
}

fn ills() -> impl Strategy<Value = Ills> {
    let chance = prop_oneof![3 => Just(0.0), 1 => 0.0..0.05_f64];
    (chance.clone(), chance.clone(), chance.clone(), chance).prop_map(
        |(loss, duplication, reordering, corruption)| Ills {
            loss,
            duplication,
            reordering,
            corruption,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the faults of the links, bytes and completions are right, exactly once, in order.
    #[test]
    fn any_mixture_of_ills_is_survived(
        seed in any::<u64>(),
        lan in ills(),
        wan in ills(),
        cm in any::<bool>(),
        second in any::<bool>(),
        both_ways in any::<bool>(),
        rnr in prop_oneof![Just(0.0), Just(0.02)],
    ) {
        let wan_delay = Duration::from_us(seed % 6000 + 10);
        let boxes = [true, second];
        run_mixture(Setup {
            seed: seed >> 8,
            lan,
            wan,
            wan_delay,
            boxes,
            cm,
            rnr,
            messages: 60,
            both_ways,
            ..Setup::default()
        });
    }
}
