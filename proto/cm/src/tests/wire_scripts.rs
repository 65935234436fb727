//! One script per protocol rule: calls, MADs in, MADs out.
//!
//! Our side is a manager; the test plays the peer, with id `PEER` and QP `PEER_QPN`.

use super::pair::{A, PORT, answer, config, ip, request};
use crate::*;
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::mad::{
    Attribute, Drep, Dreq, Ece, Header, MAD_LEN, Message, MessageRejected, Mra, Opaque, Rej, Rep,
    Req, ReqPath, Rtu, TransportService, gid_of_ip,
};

const PEER: u32 = 0x77;
const PEER_QPN: Qpn = Qpn::new(0x700);
const OUR_QPN: Qpn = Qpn::new(0x100);
const TRANSACTION: u64 = 0xabcd;
/// Response timeout of `pair::config`.
const WAIT: Duration = Duration::from_ns(4096 * ((1 << 15) + (2 << 13)));

struct Script {
    now: Instant,
    cm: ConnectionManager,
    /// The latest connection.
    id: ConnectionId,
}

fn rep(us: ConnectionId, peer: u32) -> Rep<'static> {
    Rep {
        local_comm_id: peer,
        remote_comm_id: us.comm_id(),
        qkey: 0,
        qpn: PEER_QPN,
        ee_context: 0,
        starting_psn: Psn::new(9),
        responder_resources: 1,
        initiator_depth: 2,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: 1,
        private_data: b"rep",
    }
}

fn req() -> Req<'static> {
    let path =
        ReqPath { local_gid: gid_of_ip(ip(1)), remote_gid: gid_of_ip(ip(0)), ..ReqPath::default() };
    Req {
        local_comm_id: PEER,
        service_id: PORT,
        ca_guid: 1,
        qkey: 0,
        qpn: PEER_QPN,
        responder_resources: 3,
        initiator_depth: 5,
        remote_response_timeout: 15,
        transport: TransportService::Rc,
        flow_control: true,
        starting_psn: Psn::new(9),
        local_response_timeout: 15,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 5,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 3,
        srq: false,
        primary: path,
        alternate: ReqPath::default(),
        sap_supported: false,
        private_data: &[],
    }
}

impl Script {
    fn new() -> Self {
        let cm = ConnectionManager::new(config(A));
        Script { now: Instant::from_ns(1), cm, id: ConnectionId(0) }
    }

    fn listening() -> Self {
        let mut s = Self::new();
        s.cm.listen(PORT, 0).unwrap();
        s
    }

    /// Active, REQ sent.
    fn asking() -> Self {
        let mut s = Self::new();
        s.id = s.cm.connect(s.now, &request(A, OUR_QPN.get())).unwrap();
        assert_eq!(s.sent(), ["REQ us"]);
        s
    }

    /// Active, REP received.
    fn answered() -> Self {
        let mut s = Self::asking();
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), None);
        assert!(matches!(s.cm.poll_event(), Some(Event::ConnectResponse { .. })));
        s
    }

    /// Active, established.
    fn active() -> Self {
        let mut s = Self::answered();
        s.cm.ready_to_use(s.now, s.id).unwrap();
        assert_eq!(s.sent(), ["RTU us->peer"]);
        s
    }

    /// Passive, REQ received and seen by the program.
    fn asked() -> Self {
        let mut s = Self::listening();
        assert_eq!(s.peer(Message::Req(req())), None);
        s.take_request();
        s
    }

    /// Passive, REP sent.
    fn accepted() -> Self {
        let mut s = Self::asked();
        s.cm.accept(s.now, s.id, &answer(OUR_QPN.get())).unwrap();
        assert_eq!(s.sent(), ["REP us->peer"]);
        s
    }

    /// Passive, established.
    fn passive() -> Self {
        let mut s = Self::accepted();
        assert_eq!(s.rtu(), None);
        assert_eq!(s.cm.poll_event(), Some(Event::Established { connection: s.id }));
        s
    }

    /// DREQ sent.
    fn leaving() -> Self {
        let mut s = Self::active();
        s.cm.disconnect(s.now, s.id).unwrap();
        assert_eq!(s.sent(), ["DREQ us->peer qp 0x000700"]);
        s
    }

    fn take_request(&mut self) -> Box<RequestInfo> {
        let Some(Event::ConnectRequest { connection, info, .. }) = self.cm.poll_event() else {
            panic!()
        };
        self.id = connection;
        info
    }

    fn peer(&mut self, message: Message<'_>) -> Option<DropReason> {
        self.from(1, TRANSACTION, message)
    }

    fn from(&mut self, side: usize, transaction: u64, message: Message<'_>) -> Option<DropReason> {
        let mut mad = [0; MAD_LEN];
        message.write(&Header::new(transaction), &mut mad);
        self.cm.handle_mad(self.now, ip(side), &mad)
    }

    fn rtu(&mut self) -> Option<DropReason> {
        let us = self.id.comm_id();
        self.peer(Message::Rtu(Rtu { local_comm_id: PEER, remote_comm_id: us, private_data: &[] }))
    }

    fn dreq(&mut self, qpn: Qpn) -> Option<DropReason> {
        let us = self.id.comm_id();
        self.peer(Message::Dreq(Dreq {
            local_comm_id: PEER,
            remote_comm_id: us,
            remote_qpn: qpn,
            private_data: &[],
        }))
    }

    fn drep(&mut self) -> Option<DropReason> {
        let us = self.id.comm_id();
        self.peer(Message::Drep(Drep {
            local_comm_id: PEER,
            remote_comm_id: us,
            private_data: &[],
        }))
    }

    fn rej(
        &mut self,
        ids: (u32, u32),
        rejected: MessageRejected,
        reason: RejectReason,
    ) -> Option<DropReason> {
        self.peer(Message::Rej(Rej {
            local_comm_id: ids.0,
            remote_comm_id: ids.1,
            rejected,
            reason,
            info_len: 0,
            info: &[],
            private_data: b"because",
        }))
    }

    fn mra(&mut self, received: MessageRejected, service_timeout: u8) -> Option<DropReason> {
        let us = self.id.comm_id();
        self.peer(Message::Mra(Mra {
            local_comm_id: PEER,
            remote_comm_id: us,
            received,
            service_timeout,
            private_data: &[],
        }))
    }

    /// Describes the sent MADs; ids are shown by their owner.
    fn sent(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        let us = self.id.comm_id();
        let who = |id: u32| match id {
            0 => "nobody".to_string(),
            PEER => "peer".to_string(),
            id if id == us || us == 0 => "us".to_string(),
            id => format!("{id:#x}"),
        };
        while self.cm.poll_mad(self.now, |to, mad| {
            assert_eq!(to, ip(1));
            let (_, m) = Message::read(mad).unwrap();
            let detail = match m {
                Message::Dreq(d) => format!(" qp {}", d.remote_qpn),
                Message::Rej(r) => format!(" {:?} {}", r.rejected, r.reason.0),
                Message::Mra(m) => format!(" {:?} {}", m.received, m.service_timeout),
                _ => String::new(),
            };
            let to = m.remote_comm_id().map_or(String::new(), |id| format!("->{}", who(id)));
            let from =
                if matches!(m, Message::Req(_)) { "us".into() } else { who(m.local_comm_id()) };
            out.push(format!("{} {from}{to}{detail}", m.attribute().name()));
        }) {}
        out
    }

    fn wait(&mut self, span: Duration) -> Vec<String> {
        self.now += span;
        self.cm.handle_timeout(self.now);
        self.sent()
    }

    fn state(&self) -> Option<ConnectionState> {
        self.cm.connection(self.id).map(|c| c.state)
    }

    fn event(&mut self) -> Option<Event> {
        self.cm.poll_event()
    }
}

mod req_sent {
    use super::*;

    #[test]
    fn repeats_the_same_req_when_nothing_comes() {
        let mut s = Script::asking();
        assert_eq!(s.cm.poll_timeout().unwrap().at, s.now + WAIT);
        assert_eq!(s.cm.poll_timeout().unwrap().reason, "CM: answer to REQ");
        assert_eq!(s.wait(WAIT - Duration::from_ns(1)), [""; 0]);
        assert_eq!(s.wait(Duration::from_ns(1)), ["REQ us"]);
        assert_eq!(s.wait(WAIT), ["REQ us"]);
        assert_eq!(s.cm.counters().retransmitted, 2);
    }

    #[test]
    fn the_wait_begins_when_the_message_leaves() {
        let mut s = Script::new();
        s.id = s.cm.connect(s.now, &request(A, OUR_QPN.get())).unwrap();
        // The port has no room for a while: that is not a silent peer.
        s.now += WAIT + WAIT;
        s.cm.handle_timeout(s.now);
        assert_eq!(s.cm.connection(s.id).unwrap().retries, 0);
        s.now += WAIT.divided_by(2);
        assert_eq!(s.sent(), ["REQ us"]);
        assert_eq!(s.cm.poll_timeout().unwrap().at, s.now + WAIT);
    }

    #[test]
    fn rep_is_an_offer_to_the_program() {
        let mut s = Script::asking();
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), None);
        let Some(Event::ConnectResponse { connection, info }) = s.event() else { panic!() };
        assert_eq!(connection, s.id);
        assert_eq!((info.peer_qpn, info.peer_psn), (PEER_QPN, Psn::new(9)));
        // The READs that the peer may send us are those that it wants to initiate.
        assert_eq!((info.responder_resources, info.initiator_depth), (2, 1));
        assert_eq!(&info.private_data.as_slice()[..4], b"rep\0");
        assert_eq!(info.private_data.as_slice().len(), 196);
        assert_eq!((s.state(), s.sent()), (Some(ConnectionState::RepReceived), vec![]));
        assert_eq!(s.cm.poll_timeout(), None);
    }

    #[test]
    fn rep_from_another_host_is_dropped() {
        let mut s = Script::asking();
        let rep = Message::Rep(rep(s.id, PEER));
        assert_eq!(s.from(2, TRANSACTION, rep), Some(DropReason::WrongPeer));
        assert_eq!(s.state(), Some(ConnectionState::ReqSent));
    }

    #[test]
    fn rej_ends_it_with_reason_and_private_data() {
        let mut s = Script::asking();
        let us = s.id.comm_id();
        assert_eq!(s.rej((0, us), MessageRejected::Req, RejectReason::CONSUMER), None);
        let Some(Event::Rejected { connection, reason, rejected, info, private_data }) = s.event()
        else {
            panic!()
        };
        assert_eq!(
            (connection, reason, rejected),
            (s.id, RejectReason::CONSUMER, MessageRejected::Req)
        );
        assert_eq!(&*info, b"");
        assert_eq!(&private_data.as_slice()[..8], b"because\0");
        assert_eq!(s.state(), None);
        assert_eq!(s.cm.disconnect(s.now, s.id), Err(CallError::Unknown));
    }

    #[test]
    fn rej_brings_every_reason_and_its_information_to_the_program() {
        for reason in
            RejectReason::ALL.iter().copied().chain([RejectReason(0), RejectReason(0xffff)])
        {
            let mut s = Script::asking();
            let rej = Rej {
                local_comm_id: 0,
                remote_comm_id: s.id.comm_id(),
                rejected: MessageRejected::Req,
                reason,
                info_len: 4,
                info: b"what else",
                private_data: &[7; 148],
            };
            assert_eq!(s.peer(Message::Rej(rej)), None);
            let Some(Event::Rejected { reason: told, info, private_data, .. }) = s.event() else {
                panic!()
            };
            assert_eq!(
                (told, &*info, private_data.as_slice()),
                (reason, &b"what"[..], &[7; 148][..])
            );
        }
    }

    #[test]
    fn a_length_of_information_that_lies_is_cut() {
        let mut s = Script::asking();
        let mut mad = [0; MAD_LEN];
        let rej = Rej {
            local_comm_id: 0,
            remote_comm_id: s.id.comm_id(),
            rejected: MessageRejected::Req,
            reason: RejectReason::INVALID_GID,
            info_len: 127,
            info: &[1; 72],
            private_data: &[],
        };
        Message::Rej(rej).write(&Header::new(TRANSACTION), &mut mad);
        assert_eq!(s.cm.handle_mad(s.now, ip(1), &mad), None);
        let Some(Event::Rejected { info, .. }) = s.event() else { panic!() };
        assert_eq!(*info, [1; 72]);
    }

    #[test]
    fn a_uc_connection_is_asked_for_in_the_transport_field() {
        let mut s = Script::new();
        let request = ConnectRequest { transport: Transport::Uc, ..request(A, OUR_QPN.get()) };
        s.id = s.cm.connect(s.now, &request).unwrap();
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (_, Message::Req(req)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!(req.transport, TransportService::Uc);
    }

    #[test]
    fn mra_extends_the_wait_once() {
        let mut s = Script::asking();
        assert_eq!(s.mra(MessageRejected::Req, 18), None);
        assert_eq!(s.state(), Some(ConnectionState::ReqAcknowledged));
        let extended = Duration::from_ns(4096 * ((1 << 18) + (2 << 13)));
        assert_eq!(s.cm.poll_timeout().unwrap().at, s.now + extended);
        s.now += Duration::from_ms(10);
        assert_eq!(s.mra(MessageRejected::Req, 18), Some(DropReason::Duplicate));
        assert_eq!(s.wait(extended), ["REQ us"]);
        assert_eq!(s.state(), Some(ConnectionState::ReqSent));
    }

    #[test]
    fn a_hostile_mra_does_not_extend_it_beyond_the_configured_bound() {
        let mut s = Script::asking();
        assert_eq!(s.mra(MessageRejected::Req, 31), None);
        let bound = Duration::from_ns(4096 * ((1 << 22) + (2 << 13)));
        assert_eq!(s.cm.poll_timeout().unwrap().at, s.now + bound);
    }

    #[test]
    fn gives_up_with_a_rej_that_names_our_adapter() {
        let mut s = Script::asking();
        for _ in 0..15 {
            assert_eq!(s.wait(WAIT), ["REQ us"]);
        }
        s.now += WAIT;
        s.cm.handle_timeout(s.now);
        let mut last = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| last = *mad));
        let (_, Message::Rej(rej)) = Message::read(&last).unwrap() else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (s.id.comm_id(), 0));
        assert_eq!((rej.rejected, rej.reason), (MessageRejected::Other, RejectReason::TIMEOUT));
        assert_eq!((rej.info_len, &rej.info[..8]), (8, &config(A).ca_guid.to_be_bytes()[..]));
        assert_eq!(
            s.event(),
            Some(Event::Unreachable { connection: s.id, waited: Waited::ForReply })
        );
        assert_eq!(s.state(), None);
    }

    #[test]
    fn a_dreq_takes_an_acceptance_back_that_never_came() {
        let mut s = Script::asking();
        assert_eq!(s.dreq(OUR_QPN), None);
        assert_eq!(s.sent(), ["DREP us->peer"]);
        assert!(matches!(s.event(), Some(Event::Rejected { reason: RejectReason::CONSUMER, .. })));
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::UnknownConnection));
        assert_eq!(s.sent(), ["REJ us->peer Rep 6"]);
    }
}

mod rep_received {
    use super::*;

    #[test]
    fn ready_to_use_sends_the_rtu_in_the_reqs_transaction() {
        let mut s = Script::new();
        s.id = s.cm.connect(s.now, &request(A, OUR_QPN.get())).unwrap();
        let mut transactions = Vec::new();
        let mut note =
            |_, mad: &Mad| transactions.push(Header::read(mad).unwrap().0.transaction_id);
        assert!(s.cm.poll_mad(s.now, &mut note));
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), None);
        s.cm.ready_to_use(s.now, s.id).unwrap();
        let mut note =
            |_, mad: &Mad| transactions.push(Header::read(mad).unwrap().0.transaction_id);
        assert!(s.cm.poll_mad(s.now, &mut note));
        assert_eq!(transactions[0], transactions[1]);
        assert_eq!(transactions[0] as u32, s.id.comm_id());
        assert_eq!(s.state(), Some(ConnectionState::Established));
        assert_eq!(
            s.cm.ready_to_use(s.now, s.id),
            Err(CallError::State(ConnectionState::Established))
        );
    }

    #[test]
    fn a_repeated_rep_is_told_to_wait_for_the_program() {
        let mut s = Script::answered();
        // Duplicated by the network.
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), [""; 0]);
        s.now += WAIT;
        for _ in 0..2 {
            assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::Duplicate));
            assert_eq!((s.sent(), s.event()), (vec!["MRA us->peer Rep 24".to_string()], None));
        }
    }

    #[test]
    fn a_slow_program_asks_for_patience_again_on_each_repetition() {
        let mut s = Script::answered();
        s.cm.mra(s.id, 24).unwrap();
        assert_eq!(s.sent(), ["MRA us->peer Rep 24"]);
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["MRA us->peer Rep 24"]);
    }

    #[test]
    fn the_program_may_refuse_the_offer() {
        let mut s = Script::answered();
        s.cm.reject(s.now, s.id, RejectReason::CONSUMER, b"no").unwrap();
        assert_eq!(s.sent(), ["REJ us->peer Rep 28"]);
        // The REJ was lost: the peer retransmits its REP.
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["REJ us->peer Rep 28"]);
        assert_eq!(s.state(), None);
    }

    #[test]
    fn rej_by_the_peer_ends_it() {
        let mut s = Script::answered();
        let us = s.id.comm_id();
        assert_eq!(s.rej((PEER, us), MessageRejected::Other, RejectReason::TIMEOUT), None);
        assert!(matches!(s.event(), Some(Event::Rejected { reason: RejectReason::TIMEOUT, .. })));
    }
}

mod established {
    use super::*;

    #[test]
    fn a_repeated_rep_is_answered_with_the_rtu_again() {
        let mut s = Script::active();
        for _ in 0..3 {
            assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::Duplicate));
            assert_eq!(s.sent(), ["RTU us->peer"]);
        }
        assert_eq!(s.event(), None);
    }

    #[test]
    fn a_second_rep_of_another_connection_is_rejected() {
        let mut s = Script::active();
        assert_eq!(s.peer(Message::Rep(rep(s.id, 0x99))), Some(DropReason::Stale));
        assert_eq!(s.sent(), ["REJ us->0x99 Rep 10"]);
        assert_eq!(s.state(), Some(ConnectionState::Established));
    }

    #[test]
    fn a_repeated_rtu_changes_nothing() {
        let mut s = Script::passive();
        assert_eq!(s.rtu(), Some(DropReason::Duplicate));
        assert_eq!((s.sent(), s.event()), (vec![], None));
    }

    #[test]
    fn a_repeated_req_changes_nothing() {
        let mut s = Script::passive();
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!((s.sent(), s.event()), (vec![], None));
    }

    #[test]
    fn rej_disconnects() {
        let mut s = Script::passive();
        let us = s.id.comm_id();
        assert_eq!(s.rej((PEER, us), MessageRejected::Other, RejectReason::STALE_CONNECTION), None);
        let cause = DisconnectCause::Rejected(RejectReason::STALE_CONNECTION);
        assert_eq!(s.event(), Some(Event::Disconnected { connection: s.id, cause }));
    }

    #[test]
    fn dreq_is_answered_in_its_transaction_and_ends_it() {
        let mut s = Script::passive();
        assert_eq!(s.dreq(OUR_QPN), None);
        assert_eq!(s.sent(), ["DREP us->peer"]);
        let cause = DisconnectCause::ByPeer;
        assert_eq!(s.event(), Some(Event::Disconnected { connection: s.id, cause }));
        // Programs usually call rdma_disconnect after the event.
        assert_eq!(s.cm.disconnect(s.now, s.id), Ok(()));
        assert_eq!(s.sent(), [""; 0]);
        assert_eq!(s.state(), Some(ConnectionState::Timewait));
    }

    #[test]
    fn dreq_for_another_qp_or_by_another_peer_ends_nothing() {
        let mut s = Script::passive();
        assert_eq!(s.dreq(Qpn::new(0x101)), Some(DropReason::WrongQpn));
        assert_eq!(s.sent(), [""; 0]);
        let us = s.id.comm_id();
        let foreign = Dreq {
            local_comm_id: 0x78,
            remote_comm_id: us,
            remote_qpn: OUR_QPN,
            private_data: &[],
        };
        assert_eq!(s.peer(Message::Dreq(foreign)), Some(DropReason::WrongPeer));
        assert_eq!(s.sent(), ["DREP us->0x78"]);
        assert_eq!(s.state(), Some(ConnectionState::Established));
    }
}

mod req_received {
    use super::*;

    #[test]
    fn shows_the_program_the_peers_side() {
        let mut s = Script::listening();
        assert_eq!(s.peer(Message::Req(req())), None);
        let info = s.take_request();
        assert_eq!((info.peer_ip, info.local_ip), (ip(1), ip(0)));
        assert_eq!((info.peer_qpn, info.peer_psn, info.path_mtu_code), (PEER_QPN, Psn::new(9), 5));
        assert_eq!((info.responder_resources, info.initiator_depth), (5, 3));
        assert_eq!(info.private_data.as_slice().len(), 92);
        assert_eq!(s.sent(), [""; 0]);
    }

    #[test]
    fn a_repeated_req_is_told_to_wait_for_the_program() {
        let mut s = Script::asked();
        // Duplicated by the network.
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), [""; 0]);
        s.now += WAIT;
        for _ in 0..2 {
            assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
            assert_eq!((s.sent(), s.event()), (vec!["MRA us->peer Req 24".to_string()], None));
        }
    }

    #[test]
    fn a_repeated_req_waits_in_silence_where_patience_is_not_configured() {
        let mut s = Script::new();
        s.cm = ConnectionManager::new(Config { mra_timeout_code: None, ..config(A) });
        s.cm.listen(PORT, 0).unwrap();
        assert_eq!(s.peer(Message::Req(req())), None);
        s.take_request();
        s.now += WAIT;
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!((s.sent(), s.event()), (vec![], None));
    }

    #[test]
    fn a_rejection_is_remembered_as_long_as_the_peer_was_told_to_wait() {
        let mut s = Script::asked();
        s.now += WAIT;
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        s.cm.reject(s.now, s.id, RejectReason::CONSUMER, b"no").unwrap();
        assert_eq!(s.sent(), ["MRA us->peer Req 24", "REJ nobody->peer Req 28"]);
        // The REJ was lost; the peer waits for the requested time before it retransmits.
        s.now += Duration::from_ns(4096 << 24);
        s.cm.handle_timeout(s.now);
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!((s.sent(), s.event()), (vec!["REJ nobody->peer Req 28".to_string()], None));
    }

    #[test]
    fn shows_the_transport_asked_for() {
        for (transport, shown) in
            [(TransportService::Rc, Transport::Rc), (TransportService::Uc, Transport::Uc)]
        {
            let mut s = Script::listening();
            assert_eq!(s.peer(Message::Req(Req { transport, ..req() })), None);
            assert_eq!(s.take_request().transport, shown);
        }
    }

    #[test]
    fn reject_carries_any_reason_with_information() {
        let mut s = Script::asked();
        let reason = RejectReason::INVALID_PATH_MTU;
        let long = s.cm.reject_with_info(s.now, s.id, reason, &[0; 73], b"");
        assert_eq!(long, Err(CallError::Information { len: 73, max: 72 }));
        s.cm.reject_with_info(s.now, s.id, reason, &[3], &[9; 148]).unwrap();
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (_, Message::Rej(rej)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!((rej.reason, rej.info_len, rej.info[0]), (reason, 1, 3));
        assert_eq!(rej.private_data, [9; 148]);
    }

    #[test]
    fn a_slow_program_asks_for_patience() {
        let mut s = Script::asked();
        s.cm.mra(s.id, 24).unwrap();
        assert_eq!(s.sent(), ["MRA us->peer Req 24"]);
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["MRA us->peer Req 24"]);
    }

    #[test]
    fn accept_sends_the_rep() {
        let mut s = Script::asked();
        s.cm.accept(s.now, s.id, &answer(OUR_QPN.get())).unwrap();
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (header, Message::Rep(rep)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!(header, Header::new(TRANSACTION));
        assert_eq!((rep.local_comm_id, rep.remote_comm_id), (s.id.comm_id(), PEER));
        assert_eq!((rep.qpn, rep.starting_psn), (OUR_QPN, Psn::new(0x222222)));
        assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 4));
        assert_eq!((rep.rnr_retry_count, rep.srq, rep.flow_control), (5, true, true));
        assert_eq!((rep.target_ack_delay, rep.ca_guid), (15, config(A).ca_guid));
        assert_eq!(&rep.private_data[..8], b"welcome\0");
        let again = s.cm.accept(s.now, s.id, &answer(OUR_QPN.get()));
        assert_eq!(again, Err(CallError::State(ConnectionState::RepSent)));
    }

    /// As a device without ECE must: the peer then uses none either.
    #[test]
    fn a_req_that_offers_vendor_features_is_answered_without_any() {
        let offer = Ece { vendor_id: 0x15b3, options: 0x2000_0001 };
        let mut s = Script::listening();
        let mut mad = [0; MAD_LEN];
        Message::Req(req()).write(&Header::new(TRANSACTION), &mut mad);
        offer.write(&mut mad, Attribute::Req);
        assert_eq!(s.cm.handle_mad(s.now, ip(1), &mad), None);
        s.take_request();
        s.cm.accept(s.now, s.id, &answer(OUR_QPN.get())).unwrap();
        let mut rep = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| rep = *mad));
        assert_eq!(Ece::read(&rep, Attribute::Rep), Some(Ece::NONE));
    }

    #[test]
    fn reject_carries_private_data_and_is_repeated_on_demand() {
        let mut s = Script::asked();
        s.cm.reject(s.now, s.id, RejectReason::CONSUMER, b"full").unwrap();
        assert_eq!(s.sent(), ["REJ nobody->peer Req 28"]);
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (_, Message::Rej(rej)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!((rej.reason, &rej.private_data[..5]), (RejectReason::CONSUMER, &b"full\0"[..]));
        s.wait(Duration::from_ms(5000));
        assert_eq!((s.cm.connections().count(), s.event()), (0, None));
    }

    #[test]
    fn a_peer_that_gives_up_takes_an_unseen_request_back() {
        let mut s = Script::listening();
        assert_eq!(s.peer(Message::Req(req())), None);
        assert_eq!(s.rej((PEER, 0), MessageRejected::Other, RejectReason::TIMEOUT), None);
        assert_eq!((s.event(), s.cm.connections().count()), (None, 0));
    }

    #[test]
    fn a_peer_that_gives_up_ends_a_seen_request() {
        let mut s = Script::asked();
        assert_eq!(s.rej((PEER, 0), MessageRejected::Other, RejectReason::TIMEOUT), None);
        assert!(matches!(s.event(), Some(Event::Rejected { reason: RejectReason::TIMEOUT, .. })));
        let accept = s.cm.accept(s.now, s.id, &answer(OUR_QPN.get()));
        assert_eq!(accept, Err(CallError::Unknown));
    }

    #[test]
    fn a_program_that_never_decides_loses_the_request() {
        let mut s = Script::asked();
        assert_eq!(s.wait(config(A).decision_timeout), ["REJ nobody->peer Req 4"]);
        assert_eq!(
            s.event(),
            Some(Event::Unreachable { connection: s.id, waited: Waited::ForDecision })
        );
    }

    #[test]
    fn closing_the_listener_rejects_what_the_program_has_not_seen() {
        let mut s = Script::new();
        let listen = s.cm.listen(PORT, 0).unwrap();
        assert_eq!(s.peer(Message::Req(req())), None);
        assert!(s.cm.unlisten(s.now, listen));
        assert_eq!((s.event(), s.sent()), (None, vec!["REJ nobody->peer Req 28".to_string()]));
        assert!(!s.cm.unlisten(s.now, listen));
    }
}

mod rep_sent {
    use super::*;

    #[test]
    fn rtu_establishes() {
        let mut s = Script::accepted();
        assert_eq!(s.rtu(), None);
        assert_eq!(s.event(), Some(Event::Established { connection: s.id }));
        assert_eq!(s.cm.poll_timeout(), None);
    }

    #[test]
    fn data_establishes_when_the_rtu_is_lost() {
        let mut s = Script::accepted();
        assert!(!s.cm.established_by_traffic(Qpn::new(0x101)));
        assert!(s.cm.established_by_traffic(OUR_QPN));
        assert_eq!(s.event(), Some(Event::Established { connection: s.id }));
        assert!(!s.cm.established_by_traffic(OUR_QPN));
        assert_eq!(s.rtu(), Some(DropReason::Duplicate));
        assert_eq!((s.event(), s.wait(WAIT)), (None, vec![]));
    }

    #[test]
    fn repeats_the_rep_as_long_as_the_req_allowed() {
        let mut s = Script::accepted();
        for _ in 0..3 {
            assert_eq!(s.wait(WAIT), ["REP us->peer"]);
        }
        assert_eq!(s.wait(WAIT), ["REJ us->peer Other 4"]);
        assert_eq!(
            s.event(),
            Some(Event::Unreachable { connection: s.id, waited: Waited::ForReadyToUse })
        );
        // A late RTU must get an answer.
        assert_eq!(s.rtu(), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["REJ us->peer Other 4"]);
        s.wait(Duration::from_ms(5000));
        assert_eq!(s.rtu(), Some(DropReason::UnknownConnection));
        assert_eq!(s.sent(), ["REJ us->peer Other 6"]);
    }

    #[test]
    fn a_repeated_req_brings_the_rep_at_once_without_a_new_wait() {
        let mut s = Script::accepted();
        let deadline = s.cm.poll_timeout();
        s.now += Duration::from_ms(50);
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["REP us->peer"]);
        assert_eq!(s.cm.poll_timeout(), deadline);
    }

    #[test]
    fn repetitions_do_not_pile_up_in_the_queue() {
        let mut s = Script::accepted();
        for _ in 0..100 {
            assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        }
        assert_eq!(s.sent(), ["REP us->peer"]);
    }

    #[test]
    fn an_answer_takes_a_waiting_repetition_out_of_the_queue() {
        let mut s = Script::accepted();
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!(s.rtu(), None);
        assert_eq!(s.sent(), [""; 0]);
    }

    #[test]
    fn mra_extends_the_wait() {
        let mut s = Script::accepted();
        assert_eq!(s.mra(MessageRejected::Rep, 18), None);
        assert_eq!(s.state(), Some(ConnectionState::RepAcknowledged));
        assert_eq!(s.wait(WAIT), [""; 0]);
        assert_eq!(s.rtu(), None);
        assert_eq!(s.state(), Some(ConnectionState::Established));
    }

    #[test]
    fn rej_ends_it() {
        let mut s = Script::accepted();
        let us = s.id.comm_id();
        assert_eq!(s.rej((PEER, us), MessageRejected::Rep, RejectReason::CONSUMER), None);
        assert!(matches!(s.event(), Some(Event::Rejected { rejected: MessageRejected::Rep, .. })));
    }

    #[test]
    fn a_dreq_ends_it_though_the_rtu_was_lost() {
        let mut s = Script::accepted();
        assert_eq!(s.dreq(OUR_QPN), None);
        assert_eq!(s.sent(), ["DREP us->peer"]);
        let cause = DisconnectCause::ByPeer;
        assert_eq!(s.event(), Some(Event::Disconnected { connection: s.id, cause }));
    }
}

mod dreq_sent {
    use super::*;

    #[test]
    fn drep_ends_it() {
        let mut s = Script::leaving();
        assert_eq!(s.drep(), None);
        let cause = DisconnectCause::ByUs;
        assert_eq!(s.event(), Some(Event::Disconnected { connection: s.id, cause }));
        assert_eq!(s.drep(), Some(DropReason::Duplicate));
    }

    #[test]
    fn a_dreq_that_crosses_ends_it_once() {
        let mut s = Script::leaving();
        assert_eq!(s.dreq(OUR_QPN), None);
        assert_eq!(s.sent(), ["DREP us->peer"]);
        assert!(matches!(
            s.event(),
            Some(Event::Disconnected { cause: DisconnectCause::ByPeer, .. })
        ));
        assert_eq!(s.drep(), Some(DropReason::Duplicate));
        assert_eq!(s.event(), None);
    }

    #[test]
    fn is_repeated_and_then_taken_as_done() {
        let mut s = Script::leaving();
        for _ in 0..15 {
            assert_eq!(s.wait(WAIT), ["DREQ us->peer qp 0x000700"]);
        }
        assert_eq!(s.wait(WAIT), [""; 0]);
        assert!(matches!(
            s.event(),
            Some(Event::Disconnected { cause: DisconnectCause::NoAnswer, .. })
        ));
    }

    #[test]
    fn destroy_lets_it_finish_in_silence() {
        let mut s = Script::leaving();
        s.cm.destroy(s.now, s.id).unwrap();
        assert_eq!(s.wait(WAIT), ["DREQ us->peer qp 0x000700"]);
        assert_eq!(s.drep(), None);
        s.wait(Duration::from_ms(300));
        assert_eq!((s.event(), s.cm.connections().count()), (None, 0));
        assert_eq!(s.cm.destroy(s.now, s.id), Err(CallError::Unknown));
    }
}

mod timewait {
    use super::*;

    fn over() -> Script {
        let mut s = Script::passive();
        assert_eq!(s.dreq(OUR_QPN), None);
        s.sent();
        s.event();
        s
    }

    #[test]
    fn answers_a_repeated_dreq() {
        let mut s = over();
        assert_eq!(s.dreq(OUR_QPN), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["DREP us->peer"]);
    }

    #[test]
    fn a_late_repetition_of_the_req_opens_nothing() {
        let mut s = over();
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::Duplicate));
        assert_eq!(s.sent(), ["REJ nobody->peer Req 10"]);
        assert_eq!(s.event(), None);
    }

    #[test]
    fn the_peers_qp_may_connect_anew() {
        let mut s = over();
        assert_eq!(s.peer(Message::Req(Req { local_comm_id: 0x88, ..req() })), None);
        assert!(matches!(s.event(), Some(Event::ConnectRequest { .. })));
    }

    #[test]
    fn the_peers_id_may_be_used_for_something_else() {
        let mut s = over();
        assert_eq!(s.peer(Message::Req(Req { starting_psn: Psn::new(10), ..req() })), None);
        assert!(matches!(s.event(), Some(Event::ConnectRequest { .. })));
    }

    #[test]
    fn is_remembered_until_it_exits() {
        let mut s = over();
        assert_eq!(s.cm.connections().map(|c| c.local_qpn).collect::<Vec<_>>(), [OUR_QPN]);
        assert_eq!(s.cm.poll_timeout().unwrap().reason, "CM: end of time-wait");
        s.wait(Duration::from_ms(300));
        assert_eq!(s.event(), Some(Event::TimewaitExit { connection: s.id }));
        assert_eq!(s.cm.connections().count(), 0);
        assert_eq!(s.dreq(OUR_QPN), Some(DropReason::UnknownConnection));
        assert_eq!(s.sent(), ["DREP us->peer"]);
    }
}

mod stale {
    use super::*;

    #[test]
    fn a_req_from_a_connected_qp_is_rejected_and_ends_the_old_connection() {
        let mut s = Script::passive();
        assert_eq!(
            s.peer(Message::Req(Req { local_comm_id: 0x88, ..req() })),
            Some(DropReason::Stale)
        );
        assert_eq!(s.sent(), ["DREQ us->peer qp 0x000700", "REJ nobody->0x88 Req 10"]);
        assert_eq!(s.drep(), None);
        assert!(matches!(s.event(), Some(Event::Disconnected { .. })));
        assert_eq!(s.peer(Message::Req(Req { local_comm_id: 0x88, ..req() })), None);
        assert!(matches!(s.event(), Some(Event::ConnectRequest { .. })));
    }

    #[test]
    fn a_rep_from_a_connected_qp_is_rejected() {
        let mut s = Script::active();
        let old = s.id;
        s.id = s.cm.connect(s.now, &request(A, 0x101)).unwrap();
        assert_eq!(s.sent(), ["REQ us"]);
        assert_eq!(s.peer(Message::Rep(rep(s.id, 0x88))), Some(DropReason::Stale));
        let old_id = format!("DREQ {:#x}->peer qp 0x000700", old.comm_id());
        assert_eq!(s.sent(), [old_id, "REJ us->0x88 Rep 10".to_string()]);
        assert_eq!(s.state(), Some(ConnectionState::ReqSent));
    }

    #[test]
    fn an_id_in_use_for_another_qp_is_a_duplicate() {
        let mut s = Script::asked();
        assert_eq!(
            s.peer(Message::Req(Req { qpn: Qpn::new(0x701), ..req() })),
            Some(DropReason::Stale)
        );
        assert_eq!(s.sent(), ["REJ nobody->peer Req 30"]);
        assert_eq!(s.state(), Some(ConnectionState::ReqReceived));
    }

    #[test]
    fn the_same_qpn_at_another_host_is_another_qp() {
        let mut s = Script::passive();
        let path = ReqPath {
            local_gid: gid_of_ip(ip(2)),
            remote_gid: gid_of_ip(ip(0)),
            ..ReqPath::default()
        };
        let req = Req { primary: path, ..req() };
        assert_eq!(s.from(2, TRANSACTION, Message::Req(req)), None);
    }
}

mod strangers {
    use super::*;

    #[test]
    fn a_req_that_nobody_listens_to_is_rejected_with_8() {
        let mut s = Script::new();
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::NoListener));
        assert_eq!(s.sent(), ["REJ nobody->peer Req 8"]);
    }

    #[test]
    fn it_is_left_to_another_process_where_several_share_the_address() {
        let mut s = Script::new();
        s.cm = ConnectionManager::new(Config { reject_unknown_services: false, ..config(A) });
        assert_eq!(s.peer(Message::Req(req())), Some(DropReason::NoListener));
        assert_eq!(s.sent(), [""; 0]);
    }

    #[test]
    fn requests_that_we_cannot_serve_are_rejected_with_the_reason() {
        let elsewhere = ReqPath {
            local_gid: gid_of_ip(ip(7)),
            remote_gid: gid_of_ip(ip(0)),
            ..ReqPath::default()
        };
        for (req, reason) in [
            (Req { transport: TransportService::Rd, ..req() }, 9),
            (Req { transport: TransportService::Extended(1), ..req() }, 9),
            (Req { primary: elsewhere, ..req() }, 12),
            (Req { path_mtu: 0, ..req() }, 26),
            (Req { path_mtu: 6, ..req() }, 26),
        ] {
            let mut s = Script::listening();
            assert_eq!(s.peer(Message::Req(req)), Some(DropReason::Unacceptable));
            assert_eq!(s.sent(), [format!("REJ nobody->peer Req {reason}")]);
            assert_eq!(s.cm.connections().count(), 0);
        }
    }

    #[test]
    fn a_rep_to_nobody_is_rejected_and_a_dreq_to_nobody_answered() {
        let mut s = Script::new();
        s.id = ConnectionId(0x55);
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), Some(DropReason::UnknownConnection));
        assert_eq!(s.sent(), ["REJ us->peer Rep 6"]);
        assert_eq!(s.dreq(OUR_QPN), Some(DropReason::UnknownConnection));
        assert_eq!(s.sent(), ["DREP us->peer"]);
        assert_eq!(s.drep(), Some(DropReason::UnknownConnection));
        assert_eq!(s.mra(MessageRejected::Req, 3), Some(DropReason::UnknownConnection));
        let rej = s.rej((PEER, 0x55), MessageRejected::Req, RejectReason::CONSUMER);
        assert_eq!(rej, Some(DropReason::UnknownConnection));
        assert_eq!(
            s.rej((PEER, 0), MessageRejected::Req, RejectReason(1)),
            Some(DropReason::UnknownConnection)
        );
        // A REJ is never answered, or two unknown peers could reject each other forever.
        assert_eq!(s.sent(), [""; 0]);
    }

    #[test]
    fn ids_with_another_prefix_are_left_to_their_owner() {
        let mut s = Script::new();
        s.cm = ConnectionManager::new(Config {
            comm_id_prefix: 0x42,
            comm_id_prefix_bits: 8,
            ..config(A)
        });
        s.id = s.cm.connect(s.now, &request(A, OUR_QPN.get())).unwrap();
        assert_eq!(s.id.comm_id() >> 24, 0x42);
        s.sent();
        let theirs = ConnectionId(0x4300_0001);
        assert_eq!(s.peer(Message::Rep(rep(theirs, PEER))), Some(DropReason::NotOurs));
        assert_eq!(s.sent(), [""; 0]);
        assert_eq!(s.peer(Message::Rep(rep(s.id, PEER))), None);
    }

    #[test]
    fn alternate_paths_do_not_exist_here() {
        let mut s = Script::active();
        let lap = Opaque { local_comm_id: PEER, remote_comm_id: s.id.comm_id(), rest: &[] };
        assert_eq!(s.peer(Message::Lap(lap)), Some(DropReason::Unsupported));
        assert_eq!(s.peer(Message::Apr(lap)), Some(DropReason::Unsupported));
        assert_eq!(s.state(), Some(ConnectionState::Established));
    }

    #[test]
    fn other_mads_are_counted_and_dropped() {
        let mut s = Script::new();
        assert_eq!(s.cm.handle_mad(s.now, ip(1), &[0; MAD_LEN]), Some(DropReason::NotCm));
        assert_eq!(
            (s.cm.counters().received, s.cm.counters().drops.get(DropReason::NotCm)),
            (1, 1)
        );
    }
}

mod calls {
    use super::*;

    #[test]
    fn destroy_takes_only_its_own_events_out_of_the_queue() {
        let mut s = Script::listening();
        let mut ids = Vec::new();
        for n in 0..3 {
            let qpn = Qpn::new(0x700 + n);
            assert_eq!(s.peer(Message::Req(Req { local_comm_id: PEER + n, qpn, ..req() })), None);
            ids.push(
                s.cm.connections().map(|c| c.connection).find(|id| !ids.contains(id)).unwrap(),
            );
        }
        s.cm.destroy(s.now, ids[1]).unwrap();
        let told: Vec<_> = std::iter::from_fn(|| s.event()).map(|e| e.connection()).collect();
        assert_eq!(told, [ids[0], ids[2]]);
    }

    #[test]
    fn a_service_has_one_listener() {
        let mut s = Script::listening();
        assert_eq!(s.cm.listen(PORT, 0), Err(ListenError::InUse(PORT)));
        assert!(s.cm.listen(PORT + 1, 0).is_ok());
    }

    #[test]
    fn private_data_must_fit() {
        let mut s = Script::asked();
        let long = [0; 300];
        let err =
            s.cm.connect(s.now, &ConnectRequest { private_data: &long[..93], ..request(A, 1) });
        assert_eq!(err, Err(ConnectError::PrivateData { len: 93, max: 92 }));
        let err = s.cm.accept(s.now, s.id, &Accept { private_data: &long[..197], ..answer(1) });
        assert_eq!(err, Err(CallError::PrivateData { len: 197, max: 196 }));
        let err = s.cm.reject(s.now, s.id, RejectReason::CONSUMER, &long[..149]);
        assert_eq!(err, Err(CallError::PrivateData { len: 149, max: 148 }));
        assert_eq!((s.state(), s.sent()), (Some(ConnectionState::ReqReceived), vec![]));
    }

    #[test]
    fn addresses_must_be_of_one_family() {
        let mut s = Script::new();
        let v6 = "::1".parse().unwrap();
        let err = s.cm.connect(s.now, &ConnectRequest { source_ip: v6, ..request(A, 1) });
        assert_eq!(err, Err(ConnectError::Families(v6, ip(1))));
    }

    #[test]
    fn wrong_states_are_named() {
        let mut s = Script::asking();
        let state = Err(CallError::State(ConnectionState::ReqSent));
        assert_eq!(s.cm.disconnect(s.now, s.id), state);
        assert_eq!(s.cm.accept(s.now, s.id, &answer(1)), state);
        assert_eq!(s.cm.reject(s.now, s.id, RejectReason::CONSUMER, &[]), state);
        assert_eq!(s.cm.ready_to_use(s.now, s.id), state);
        assert_eq!(s.cm.mra(s.id, 1), state);
    }

    #[test]
    fn ids_begin_unpredictably_and_depend_on_the_seed() {
        let id = |seed| {
            let mut cm = ConnectionManager::new(Config { seed, ..Config::default() });
            cm.connect(Instant::ZERO, &request(A, 1)).unwrap().comm_id()
        };
        assert_eq!(id(1), id(1));
        assert!(id(1).abs_diff(id(2)) > 1000 && id(2).abs_diff(id(3)) > 1000);
    }
}
