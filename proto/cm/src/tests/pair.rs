//! Two managers in virtual time, with a network between them that loses, duplicates, delays and
//! reorders.

use crate::*;
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

pub const PORT: u64 = ServiceId::tcp(18515);
/// Sides of a pair.
pub const A: usize = 0;
pub const B: usize = 1;

pub fn ip(side: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1 + side as u8))
}

/// Short timers: a timeout of 201 ms, enough for a round trip of 100 ms.
pub fn config(side: usize) -> Config {
    Config {
        response_timeout_code: 15,
        packet_lifetime_code: 13,
        timewait: Duration::from_ms(300),
        decision_timeout: Duration::from_ms(20_000),
        // Exceeds all retransmissions of a peer.
        sidr_memory: Duration::from_ms(5000),
        seed: 1 + side as u64,
        ..Config::default()
    }
}

pub fn request(side: usize, qpn: u32) -> ConnectRequest<'static> {
    ConnectRequest {
        destination_ip: ip(1 - side),
        source_ip: ip(side),
        service_id: PORT,
        transport: Transport::Rc,
        local_qpn: Qpn::new(qpn),
        starting_psn: Psn::new(0x111111),
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        path_mtu_code: 5,
        local_ack_timeout: 19,
        srq: false,
        traffic_class: 0x68,
        hop_limit: 64,
        flow_label: 0x12345,
        private_data: b"hello",
    }
}

/// The datagram service, and the private data of its request.
pub const DATAGRAMS: u64 = ServiceId::udp(7174);

pub fn sidr_request(side: usize) -> SidrRequest<'static> {
    SidrRequest {
        destination_ip: ip(1 - side),
        source_ip: ip(side),
        service_id: DATAGRAMS,
        private_data: b"who",
    }
}

pub fn answer(qpn: u32) -> Accept<'static> {
    Accept {
        local_qpn: Qpn::new(qpn),
        starting_psn: Psn::new(0x222222),
        responder_resources: 2,
        initiator_depth: 4,
        flow_control: true,
        rnr_retry_count: 5,
        srq: true,
        private_data: b"welcome",
    }
}

/// Properties of the network.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub delay: Duration,
    /// Random additional delay, so that MADs overtake each other.
    pub jitter: Duration,
    pub loss: f64,
    pub duplication: f64,
}

impl Network {
    pub fn perfect(delay_ms: u64) -> Self {
        Network {
            delay: Duration::from_ms(delay_ms),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplication: 0.0,
        }
    }
}

/// What a program has seen of a connection; checks that events come in the documented order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Asked,
    Requested,
    Replied,
    Established,
    Disconnected,
}

pub struct Pair {
    pub now: Instant,
    pub cm: [ConnectionManager; 2],
    pub network: Network,
    pub rng: SplitMix64,
    /// Connections known to the programs, by side.
    pub seen: [BTreeMap<ConnectionId, Seen>; 2],
    /// Requests on which the programs decide later.
    pub undecided: [BTreeSet<ConnectionId>; 2],
    /// Programs answer at once.
    pub prompt: bool,
    pub log: Vec<(usize, Event)>,
    /// Our unanswered requests for datagram services.
    pub asked: [BTreeSet<SidrId>; 2],
    wire: BTreeMap<(Instant, u64), (usize, Mad)>,
    carried: u64,
    qpn: u32,
}

impl Pair {
    pub fn new(seed: u64, network: Network) -> Self {
        Self::with(seed, network, config)
    }

    pub fn with(seed: u64, network: Network, config: impl Fn(usize) -> Config) -> Self {
        Pair {
            now: Instant::from_ns(1),
            cm: [ConnectionManager::new(config(A)), ConnectionManager::new(config(B))],
            network,
            rng: SplitMix64::new(seed),
            seen: Default::default(),
            undecided: Default::default(),
            prompt: true,
            log: Vec::new(),
            asked: Default::default(),
            wire: BTreeMap::new(),
            carried: 0,
            qpn: 0x10,
        }
    }

    pub fn fresh_qpn(&mut self) -> u32 {
        self.qpn += 1;
        self.qpn
    }

    pub fn connect(&mut self, side: usize) -> ConnectionId {
        let qpn = self.fresh_qpn();
        let id = self.cm[side].connect(self.now, &request(side, qpn)).unwrap();
        self.seen[side].insert(id, Seen::Asked);
        id
    }

    pub fn ask(&mut self, side: usize) -> SidrId {
        let id = self.cm[side].sidr_request(self.now, &sidr_request(side)).unwrap();
        self.asked[side].insert(id);
        id
    }

    /// The program of a datagram service, which sends its QPN twice: as QPN, and with inverted bits
    /// as queue key.
    fn datagram_program(&mut self, side: usize, event: &Event) {
        match *event {
            Event::SidrRequest { id, ref info, .. } => {
                assert_eq!((info.peer_ip, info.service_id), (ip(1 - side), DATAGRAMS));
                let qpn = self.fresh_qpn();
                self.cm[side].sidr_accept(self.now, id, Qpn::new(qpn), !qpn, b"me").unwrap();
            }
            Event::SidrResponse { id, status, qpn, qkey, .. } => {
                assert!(self.asked[side].remove(&id), "{event:?} twice");
                assert_eq!((status, qkey), (SidrStatus::Valid, !qpn.get()));
            }
            Event::SidrUnreachable { id, waited } => {
                assert_eq!(waited, Waited::ForReply);
                assert!(self.asked[side].remove(&id), "{event:?} twice");
            }
            _ => panic!("{event:?} is about a connection"),
        }
    }

    pub fn accept(&mut self, side: usize, id: ConnectionId) {
        let qpn = self.fresh_qpn();
        self.cm[side].accept(self.now, id, &answer(qpn)).unwrap();
    }

    pub fn destroy(&mut self, side: usize, id: ConnectionId) {
        self.cm[side].destroy(self.now, id).unwrap();
        self.seen[side].remove(&id);
        self.undecided[side].remove(&id);
    }

    /// Moves the managers' output: MADs onto the wire, events to the programs.
    pub fn drain(&mut self) {
        for side in [A, B] {
            while let Some(event) = self.cm[side].poll_event() {
                self.program(side, &event);
                self.log.push((side, event));
            }
            let mut out = Vec::new();
            while self.cm[side].poll_mad(self.now, |to, mad| out.push((to, *mad))) {}
            for (to, mad) in out {
                assert_eq!(to, ip(1 - side));
                self.carry(1 - side, mad);
            }
        }
    }

    fn carry(&mut self, to: usize, mad: Mad) {
        let copies = if self.rng.chance(self.network.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            if self.rng.chance(self.network.loss) {
                continue;
            }
            let jitter = Duration::from_ps(self.rng.below(self.network.jitter.as_ps() + 1));
            self.carried += 1;
            self.wire.insert((self.now + self.network.delay + jitter, self.carried), (to, mad));
        }
    }

    /// The program: checks the order of events, and answers.
    fn program(&mut self, side: usize, event: &Event) {
        let id = event.connection();
        let before = self.seen[side].get(&id).copied();
        let after = match event {
            Event::ConnectRequest { .. } => {
                assert_eq!(before, None, "{event:?}");
                if self.prompt {
                    self.accept(side, id);
                } else {
                    self.undecided[side].insert(id);
                }
                Some(Seen::Requested)
            }
            Event::ConnectResponse { .. } => {
                assert_eq!(before, Some(Seen::Asked), "{event:?}");
                if self.prompt {
                    match self.cm[side].ready_to_use(self.now, id) {
                        Ok(()) => Some(Seen::Established),
                        // The peer's DREQ has arrived meanwhile: its event follows.
                        Err(CallError::State(ConnectionState::Timewait)) => Some(Seen::Replied),
                        Err(error) => panic!("{error}"),
                    }
                } else {
                    self.undecided[side].insert(id);
                    Some(Seen::Replied)
                }
            }
            Event::Established { .. } => {
                assert_eq!(before, Some(Seen::Requested), "{event:?}");
                Some(Seen::Established)
            }
            Event::Disconnected { .. } => {
                let fits =
                    matches!(before, Some(Seen::Requested | Seen::Replied | Seen::Established));
                assert!(fits, "{event:?} after {before:?}");
                Some(Seen::Disconnected)
            }
            Event::Rejected { .. } | Event::Unreachable { .. } => {
                let fits = matches!(before, Some(Seen::Asked | Seen::Requested | Seen::Replied));
                assert!(fits, "{event:?} after {before:?}");
                None
            }
            Event::TimewaitExit { .. } => {
                assert_eq!(before, Some(Seen::Disconnected), "{event:?}");
                None
            }
            Event::SidrRequest { .. }
            | Event::SidrResponse { .. }
            | Event::SidrUnreachable { .. } => {
                assert_eq!(before, None, "{event:?} has the number of a connection");
                return self.datagram_program(side, event);
            }
        };
        match after {
            Some(seen) => self.seen[side].insert(id, seen),
            None => self.seen[side].remove(&id),
        };
        if matches!(after, None | Some(Seen::Disconnected)) {
            self.undecided[side].remove(&id);
        }
    }

    /// Time of the next event on the wire or of a timer.
    pub fn next(&self) -> Option<Instant> {
        let timers = self.cm.iter().filter_map(|cm| cm.poll_timeout()).map(|d| d.at);
        timers.chain(self.wire.keys().next().map(|k| k.0)).min()
    }

    /// Processes the next event, unless it is later than `until`. Returns `false` if there was
    /// none.
    pub fn step(&mut self, until: Instant) -> bool {
        self.drain();
        let Some(at) = self.next().filter(|at| *at <= until) else { return false };
        self.now = self.now.max(at);
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
            let (to, mad) = entry.remove();
            self.cm[to].handle_mad(self.now, ip(1 - to), &mad);
        }
        for cm in &mut self.cm {
            cm.handle_timeout(self.now);
        }
        self.drain();
        true
    }

    pub fn run_for(&mut self, span: Duration) {
        let until = self.now + span;
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until no timer is armed and the wire is empty.
    pub fn run_out(&mut self) {
        let mut steps = 0;
        while self.step(Instant::from_ps(u64::MAX)) {
            steps += 1;
            assert!(steps < 200_000, "never comes to rest");
        }
    }

    pub fn state(&self, side: usize, id: ConnectionId) -> Option<ConnectionState> {
        self.cm[side].connection(id).map(|c| c.state)
    }

    /// The peer's end of the connection.
    pub fn peer(&self, side: usize, id: ConnectionId) -> Option<ConnectionInfo> {
        let c = self.cm[side].connection(id)?;
        self.cm[1 - side].connections().find(|p| {
            p.peer_comm_id == id.comm_id()
                && (c.peer_comm_id == 0 || c.peer_comm_id == p.connection.comm_id())
        })
    }

    pub fn events(&self, side: usize) -> Vec<&Event> {
        self.log.iter().filter(|(s, _)| *s == side).map(|(_, e)| e).collect()
    }

    pub fn assert_empty(&self) {
        for cm in &self.cm {
            assert_eq!(cm.connections().count(), 0, "{:?}", cm.connections().collect::<Vec<_>>());
            assert_eq!(cm.tables.index_sizes(), [0; 4]);
            assert_eq!(cm.tables.half_open(), 0);
            assert_eq!((cm.sidr_count(), cm.resolutions.index_sizes()), (0, [0; 4]));
            assert!(cm.listeners.values().all(|l| l.undecided == 0));
            assert_eq!(cm.poll_timeout(), None);
            assert!(!cm.has_mad());
        }
    }
}

fn listening(network: Network) -> Pair {
    let mut pair = Pair::new(7, network);
    pair.cm[B].listen(PORT, 0).unwrap();
    pair
}

mod life {
    use super::*;

    #[test]
    fn connects_over_a_round_trip_of_100_ms_without_repeating_itself() {
        let mut pair = listening(Network::perfect(50));
        let start = pair.now;
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(160));
        assert_eq!(pair.state(A, id), Some(ConnectionState::Established));
        assert_eq!(pair.peer(A, id).unwrap().state, ConnectionState::Established);
        assert_eq!((pair.cm[A].counters().sent, pair.cm[B].counters().sent), (2, 1));
        assert!(pair.now.since(start) < Duration::from_ms(200));
        let kinds: Vec<bool> =
            pair.events(B).iter().map(|e| matches!(e, Event::Established { .. })).collect();
        assert_eq!(kinds, [false, true]);
    }

    #[test]
    fn disconnects_and_forgets_after_the_time_wait() {
        let mut pair = listening(Network::perfect(5));
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(100));
        pair.cm[A].disconnect(pair.now, id).unwrap();
        pair.run_for(Duration::from_ms(50));
        assert_eq!(pair.state(A, id), Some(ConnectionState::Timewait));
        assert_eq!(
            pair.cm[A].connections().map(|c| c.local_qpn).collect::<Vec<_>>(),
            [Qpn::new(0x11)]
        );
        pair.run_out();
        pair.assert_empty();
        let ends = |side| -> Vec<DisconnectCause> {
            pair.events(side)
                .iter()
                .filter_map(|e| {
                    if let Event::Disconnected { cause, .. } = e { Some(*cause) } else { None }
                })
                .collect()
        };
        assert_eq!(
            (ends(A), ends(B)),
            (vec![DisconnectCause::ByUs], vec![DisconnectCause::ByPeer])
        );
    }

    #[test]
    fn both_may_disconnect_at_once() {
        let mut pair = listening(Network::perfect(50));
        let a = pair.connect(A);
        pair.run_for(Duration::from_ms(200));
        let b = pair.peer(A, a).unwrap().connection;
        pair.cm[A].disconnect(pair.now, a).unwrap();
        pair.cm[B].disconnect(pair.now, b).unwrap();
        pair.run_out();
        pair.assert_empty();
        let ends = pair.log.iter().filter(|(_, e)| matches!(e, Event::Disconnected { .. })).count();
        assert_eq!(ends, 2);
        assert_eq!(pair.cm[A].counters().retransmitted + pair.cm[B].counters().retransmitted, 0);
    }

    #[test]
    fn both_may_connect_at_once() {
        let mut pair = listening(Network::perfect(20));
        pair.cm[A].listen(PORT, 0).unwrap();
        let (a, b) = (pair.connect(A), pair.connect(B));
        pair.run_for(Duration::from_ms(150));
        assert_eq!(pair.state(A, a), Some(ConnectionState::Established));
        assert_eq!(pair.state(B, b), Some(ConnectionState::Established));
        assert_eq!(pair.cm[A].connections().count(), 2);
    }

    #[test]
    fn a_silent_peer_is_unreachable_after_all_repetitions() {
        let mut pair = Pair::new(7, Network { loss: 1.0, ..Network::perfect(1) });
        let start = pair.now;
        let id = pair.connect(A);
        pair.run_out();
        let expected = Event::Unreachable { connection: id, waited: Waited::ForReply };
        assert_eq!(pair.events(A), [&expected]);
        // 16 waits of 4.096 µs x 2^15 + 2 x 4.096 µs x 2^13.
        assert_eq!(pair.now.since(start), Duration::from_ns(4096 * ((1 << 15) + (2 << 13)) * 16));
        assert_eq!(pair.cm[A].counters().sent_by.get(longhaul_wire::mad::Attribute::Req), 16);
        pair.assert_empty();
    }

    #[test]
    fn the_defaults_wait_as_long_as_linux() {
        let network = Network { loss: 1.0, ..Network::perfect(1) };
        let mut pair = Pair::with(7, network, |_| Config::default());
        pair.connect(A);
        pair.run_out();
        // 16 times 4.3 s + 2 x 1.07 s.
        assert!(
            (103.0..104.0).contains(&pair.now.since(Instant::ZERO).as_secs_f64()),
            "{:?}",
            pair.now
        );
    }

    #[test]
    fn half_of_all_lost_still_connects() {
        for seed in 0..50 {
            let network = Network { loss: 0.5, duplication: 0.2, ..Network::perfect(10) };
            let mut pair = Pair::new(seed, network);
            pair.cm[B].listen(PORT, 0).unwrap();
            let id = pair.connect(A);
            pair.run_for(Duration::from_ms(5000));
            assert_eq!(pair.state(A, id), Some(ConnectionState::Established), "seed {seed}");
            assert_eq!(
                pair.peer(A, id).unwrap().state,
                ConnectionState::Established,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn a_port_may_be_bound_again_while_its_connection_lives() {
        let mut pair = Pair::new(1, Network::perfect(1));
        let listen = pair.cm[B].listen(PORT, 0).unwrap();
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(50));
        assert!(pair.cm[B].unlisten(pair.now, listen));
        let again = pair.cm[B].listen(PORT, 0).unwrap();
        assert_ne!(again, listen);
        assert_eq!(pair.peer(A, id).unwrap().state, ConnectionState::Established);
        let second = pair.connect(A);
        pair.run_for(Duration::from_ms(50));
        assert_eq!(pair.state(A, second), Some(ConnectionState::Established));
    }
}

mod datagrams {
    use super::*;

    fn serving(network: Network) -> Pair {
        let mut pair = Pair::new(7, network);
        pair.cm[B].listen(DATAGRAMS, 0).unwrap();
        pair
    }

    #[test]
    fn a_service_is_resolved_in_a_round_trip() {
        let mut pair = serving(Network::perfect(50));
        let id = pair.ask(A);
        pair.run_for(Duration::from_ms(99));
        assert!(pair.asked[A].contains(&id));
        pair.run_for(Duration::from_ms(2));
        assert!(pair.asked[A].is_empty());
        assert_eq!((pair.cm[A].counters().sent, pair.cm[B].counters().sent), (1, 1));
        pair.run_out();
        pair.assert_empty();
    }

    #[test]
    fn a_silent_peer_is_unreachable_after_all_repetitions() {
        let mut pair = Pair::new(7, Network { loss: 1.0, ..Network::perfect(1) });
        let id = pair.ask(A);
        pair.run_out();
        assert_eq!(pair.events(A), [&Event::SidrUnreachable { id, waited: Waited::ForReply }]);
        assert_eq!(pair.cm[A].counters().sent_by.get(longhaul_wire::mad::Attribute::SidrReq), 16);
        pair.assert_empty();
    }

    #[test]
    fn a_lost_answer_is_repeated_from_memory_without_asking_the_program_again() {
        let mut repeated = 0;
        for seed in 0..200 {
            let network = Network {
                loss: 0.3,
                duplication: 0.3,
                jitter: Duration::from_ms(30),
                ..Network::perfect(10)
            };
            let mut pair = Pair::new(seed, network);
            pair.cm[B].listen(DATAGRAMS, 0).unwrap();
            for _ in 0..5 {
                pair.ask(A);
            }
            pair.run_out();
            let answered =
                pair.events(A).iter().filter(|e| matches!(e, Event::SidrResponse { .. })).count();
            assert_eq!(answered, 5, "seed {seed}");
            let asked = pair.events(B).len();
            repeated += pair.cm[A].counters().retransmitted;
            assert_eq!(asked, 5, "seed {seed}");
            pair.assert_empty();
        }
        assert!(repeated > 200, "{repeated}");
    }

    #[test]
    fn connections_and_datagrams_do_not_mind_each_other() {
        let mut pair = serving(Network { loss: 0.2, ..Network::perfect(10) });
        pair.cm[B].listen(PORT, 0).unwrap();
        let mut connections = Vec::new();
        for _ in 0..50 {
            connections.push(pair.connect(A));
            pair.ask(A);
            pair.run_for(Duration::from_ms(5));
        }
        pair.run_for(Duration::from_ms(4000));
        assert!(pair.asked[A].is_empty());
        for id in connections {
            assert_eq!(pair.state(A, id), Some(ConnectionState::Established));
            pair.cm[A].disconnect(pair.now, id).unwrap();
        }
        pair.run_out();
        pair.assert_empty();
    }
}

mod destroy {
    use super::*;

    #[test]
    fn of_a_request_takes_it_back_from_the_peer() {
        let mut pair = listening(Network::perfect(10));
        pair.prompt = false;
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(15));
        assert_eq!(pair.undecided[B].len(), 1);
        pair.destroy(A, id);
        pair.run_for(Duration::from_ms(15));
        assert_eq!(pair.undecided[B].len(), 0);
        let rejected = matches!(
            pair.events(B).last().unwrap(),
            Event::Rejected { reason: RejectReason::TIMEOUT, .. }
        );
        assert!(rejected, "{:?}", pair.log);
        pair.run_out();
        pair.assert_empty();
    }

    #[test]
    fn of_an_undecided_request_rejects_it() {
        let mut pair = listening(Network::perfect(10));
        pair.prompt = false;
        pair.connect(A);
        pair.run_for(Duration::from_ms(15));
        let asked = *pair.undecided[B].first().unwrap();
        pair.destroy(B, asked);
        pair.run_out();
        let last = pair.events(A).pop().unwrap();
        assert!(matches!(last, Event::Rejected { reason: RejectReason::CONSUMER, .. }), "{last:?}");
        pair.assert_empty();
    }

    #[test]
    fn of_an_established_connection_disconnects_the_peer() {
        let mut pair = listening(Network::perfect(10));
        let id = pair.connect(A);
        pair.run_for(Duration::from_ms(100));
        pair.destroy(A, id);
        assert_eq!(pair.state(A, id), None);
        pair.run_out();
        let ended = pair.events(B).iter().any(|e| matches!(e, Event::Disconnected { .. }));
        assert!(ended);
        assert!(pair.events(A).iter().all(|e| matches!(e, Event::ConnectResponse { .. })));
        pair.assert_empty();
    }

    #[test]
    fn before_the_rtu_reaches_a_peer_that_thinks_it_established() {
        let mut pair = listening(Network::perfect(10));
        let a = pair.connect(A);
        pair.run_for(Duration::from_ms(25));
        // A has sent its RTU, which is still in flight.
        assert_eq!(pair.state(A, a), Some(ConnectionState::Established));
        let b = pair.peer(A, a).unwrap().connection;
        assert_eq!(pair.state(B, b), Some(ConnectionState::RepSent));
        pair.destroy(B, b);
        pair.run_out();
        assert!(matches!(pair.events(A).last().unwrap(), Event::TimewaitExit { .. }));
        pair.assert_empty();
    }
}
