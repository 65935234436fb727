//! One script per rule of datagram service resolution.
//!
//! The test plays the peer.

use super::pair::{A, DATAGRAMS, PORT, config, ip, sidr_request};
use crate::*;
use longhaul_units::{Duration, Instant, Qpn};
use longhaul_wire::mad::{Header, MAD_LEN, Message, SidrRep, SidrReq};

const TRANSACTION: u64 = 0xabcd;
const THEIRS: u32 = 0x77;
/// Response timeout of `pair::config`.
const WAIT: Duration = Duration::from_ns(4096 * ((1 << 15) + (2 << 13)));

struct Script {
    now: Instant,
    cm: ConnectionManager,
    id: SidrId,
}

impl Script {
    fn with(config: Config) -> Self {
        Script { now: Instant::from_ns(1), cm: ConnectionManager::new(config), id: SidrId(0) }
    }

    /// A script in which our SIDR_REQ has been sent.
    fn asking() -> Self {
        let mut s = Self::with(config(A));
        s.id = s.cm.sidr_request(s.now, &sidr_request(A)).unwrap();
        assert_eq!(s.sent(), [format!("SIDR_REQ {:#x} of {DATAGRAMS:#x}", s.id.comm_id())]);
        s
    }

    /// A script in which the program has seen the peer's SIDR_REQ.
    fn asked() -> Self {
        let mut s = Self::with(config(A));
        s.cm.listen(DATAGRAMS, 0).unwrap();
        assert_eq!(s.req(THEIRS, DATAGRAMS), None);
        s.id = s.take();
        s
    }

    fn answered() -> Self {
        let mut s = Self::asked();
        s.cm.sidr_accept(s.now, s.id, Qpn::new(0x55), 0x1111, b"welcome").unwrap();
        assert_eq!(s.sent(), ["SIDR_REP 0x77 Valid"]);
        s
    }

    fn take(&mut self) -> SidrId {
        match self.cm.poll_event() {
            Some(Event::SidrRequest { id, .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    fn from(&mut self, side: usize, transaction: u64, message: Message<'_>) -> Option<DropReason> {
        let mut mad = [0; MAD_LEN];
        message.write(&Header::new(transaction), &mut mad);
        self.cm.handle_mad(self.now, ip(side), &mad)
    }

    fn req(&mut self, request_id: u32, service_id: u64) -> Option<DropReason> {
        let req = SidrReq { request_id, pkey: 0xffff, service_id, private_data: b"who" };
        self.from(1, TRANSACTION, Message::SidrReq(req))
    }

    fn rep(&mut self, side: usize, request_id: u32, status: SidrStatus) -> Option<DropReason> {
        let rep = SidrRep {
            request_id,
            status,
            info_len: 0,
            qpn: Qpn::new(0x15),
            service_id: DATAGRAMS,
            qkey: 7,
            info: &[],
            private_data: b"data",
        };
        self.from(side, TRANSACTION, Message::SidrRep(rep))
    }

    fn sent(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        while self.cm.poll_mad(self.now, |to, mad| {
            assert_eq!(to, ip(1));
            out.push(match Message::read(mad).unwrap().1 {
                Message::SidrReq(m) => {
                    format!("SIDR_REQ {:#x} of {:#x}", m.request_id, m.service_id)
                }
                Message::SidrRep(m) => format!("SIDR_REP {:#x} {:?}", m.request_id, m.status),
                Message::Rej(m) => format!("REJ {:#x} {}", m.remote_comm_id, m.reason.0),
                other => format!("{other:?}"),
            });
        }) {}
        out
    }

    fn wait(&mut self, span: Duration) -> Vec<String> {
        self.now += span;
        self.cm.handle_timeout(self.now);
        self.sent()
    }
}

mod asking {
    use super::*;

    #[test]
    fn sends_the_request_in_a_transaction_of_its_own() {
        let mut cm = ConnectionManager::new(config(A));
        let id = cm.sidr_request(Instant::ZERO, &sidr_request(A)).unwrap();
        let mut out = [0; MAD_LEN];
        assert!(cm.poll_mad(Instant::ZERO, |_, mad| out = *mad));
        let (header, Message::SidrReq(req)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!(header.transaction_id as u32, id.comm_id());
        assert_eq!((req.request_id, req.pkey, req.service_id), (id.comm_id(), 0xffff, DATAGRAMS));
        assert_eq!(&req.private_data[..4], b"who\0");
    }

    #[test]
    fn repeats_itself_and_gives_up() {
        let mut s = Script::asking();
        assert_eq!(s.cm.poll_timeout().unwrap().reason, "CM: answer to SIDR_REQ");
        let request = format!("SIDR_REQ {:#x} of {DATAGRAMS:#x}", s.id.comm_id());
        assert_eq!(s.wait(WAIT - Duration::from_ns(1)), [""; 0]);
        assert_eq!(s.wait(Duration::from_ns(1)), std::slice::from_ref(&request));
        for _ in 1..15 {
            assert_eq!(s.wait(WAIT), std::slice::from_ref(&request));
        }
        assert_eq!((s.wait(WAIT), s.cm.counters().retransmitted), (vec![], 15));
        let expected = Event::SidrUnreachable { id: s.id, waited: Waited::ForReply };
        assert_eq!((s.cm.poll_event(), s.cm.poll_event()), (Some(expected), None));
        assert_eq!((s.cm.sidr_count(), s.cm.counters().unreachable), (0, 1));
    }

    #[test]
    fn the_wait_begins_when_the_request_leaves() {
        let mut s = Script::with(config(A));
        s.id = s.cm.sidr_request(s.now, &sidr_request(A)).unwrap();
        s.now += WAIT + WAIT;
        s.cm.handle_timeout(s.now);
        assert_eq!(s.cm.counters().retransmitted, 0);
        s.now += WAIT.divided_by(2);
        assert_eq!(s.sent().len(), 1);
        assert_eq!(s.cm.poll_timeout().unwrap().at, s.now + WAIT);
    }

    #[test]
    fn the_answer_names_qp_and_queue_key() {
        let mut s = Script::asking();
        assert_eq!(s.rep(1, s.id.comm_id(), SidrStatus::Valid), None);
        let Some(Event::SidrResponse { id, status, qpn, qkey, private_data }) = s.cm.poll_event()
        else {
            panic!()
        };
        assert_eq!((id, status, qpn, qkey), (s.id, SidrStatus::Valid, Qpn::new(0x15), 7));
        assert_eq!(
            (&private_data.as_slice()[..5], private_data.as_slice().len()),
            (&b"data\0"[..], 136)
        );
        assert_eq!((s.cm.counters().resolved, s.cm.poll_timeout()), (1, None));
        // A repetition of the answer, or a late one.
        assert_eq!(
            s.rep(1, s.id.comm_id(), SidrStatus::Valid),
            Some(DropReason::UnknownConnection)
        );
        assert_eq!((s.cm.poll_event(), s.sent()), (None, vec![]));
    }

    #[test]
    fn every_refusal_reaches_the_program() {
        for status in [
            SidrStatus::Unsupported,
            SidrStatus::Rejected,
            SidrStatus::NoQp,
            SidrStatus::Redirect,
            SidrStatus::UnsupportedVersion,
            SidrStatus::Reserved(200),
        ] {
            let mut s = Script::asking();
            assert_eq!(s.rep(1, s.id.comm_id(), status), None);
            let Some(Event::SidrResponse { status: told, .. }) = s.cm.poll_event() else {
                panic!()
            };
            assert_eq!((told, s.cm.counters().rejected, s.cm.counters().resolved), (status, 1, 0));
        }
    }

    #[test]
    fn an_answer_from_another_host_is_dropped() {
        let mut s = Script::asking();
        assert_eq!(s.rep(2, s.id.comm_id(), SidrStatus::Valid), Some(DropReason::WrongPeer));
        assert_eq!((s.cm.poll_event(), s.cm.sidr_count()), (None, 1));
    }

    #[test]
    fn an_answer_takes_a_waiting_repetition_out_of_the_queue() {
        let mut s = Script::asking();
        s.now += WAIT;
        s.cm.handle_timeout(s.now);
        assert!(s.cm.has_mad());
        assert_eq!(s.rep(1, s.id.comm_id(), SidrStatus::Valid), None);
        assert_eq!((s.cm.has_mad(), s.sent()), (false, vec![]));
    }

    #[test]
    fn destroy_forgets_it_in_silence() {
        let mut s = Script::asking();
        s.cm.sidr_destroy(s.now, s.id).unwrap();
        assert_eq!((s.sent(), s.cm.sidr_count(), s.cm.poll_timeout()), (vec![], 0, None));
        assert_eq!(s.cm.sidr_destroy(s.now, s.id), Err(CallError::Unknown));
    }

    #[test]
    fn ids_carry_the_prefix_and_answers_with_another_are_left_to_their_owner() {
        let mut s =
            Script::with(Config { comm_id_prefix: 0x2a, comm_id_prefix_bits: 6, ..config(A) });
        let first = s.cm.sidr_request(s.now, &sidr_request(A)).unwrap();
        let second = s.cm.connect(s.now, &super::super::pair::request(A, 5)).unwrap();
        assert_eq!((first.comm_id() >> 26, second.comm_id() >> 26), (0x2a, 0x2a));
        assert_ne!(ConnectionId::from(first), second);
        assert_eq!(s.rep(1, 0x2b << 26 | 1, SidrStatus::Valid), Some(DropReason::NotOurs));
        assert_eq!(s.rep(1, first.comm_id(), SidrStatus::Valid), None);
    }

    #[test]
    fn bad_arguments_are_refused() {
        let mut s = Script::with(config(A));
        let long = [0; 217];
        let err = s.cm.sidr_request(s.now, &SidrRequest { private_data: &long, ..sidr_request(A) });
        assert_eq!(err, Err(ConnectError::PrivateData { len: 217, max: 216 }));
        let v6 = "::1".parse().unwrap();
        let err = s.cm.sidr_request(s.now, &SidrRequest { source_ip: v6, ..sidr_request(A) });
        assert_eq!(err, Err(ConnectError::Families(v6, ip(1))));
    }
}

mod asked {
    use super::*;

    #[test]
    fn accept_answers_in_the_requests_transaction_and_ends_it_for_the_program() {
        let mut s = Script::asked();
        s.cm.sidr_accept(s.now, s.id, Qpn::new(0x55), 0x1111, &[3; 136]).unwrap();
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (header, Message::SidrRep(rep)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!(header, Header::new(TRANSACTION));
        assert_eq!(
            (rep.request_id, rep.status, rep.service_id),
            (THEIRS, SidrStatus::Valid, DATAGRAMS)
        );
        assert_eq!((rep.qpn, rep.qkey, rep.private_data), (Qpn::new(0x55), 0x1111, &[3; 136][..]));
        let again = s.cm.sidr_accept(s.now, s.id, Qpn::new(0x55), 0x1111, &[]);
        assert_eq!(again, Err(CallError::Unknown));
        assert_eq!(s.cm.sidr_destroy(s.now, s.id), Err(CallError::Unknown));
        assert_eq!(s.cm.poll_event(), None);
    }

    #[test]
    fn reject_says_why() {
        let mut s = Script::asked();
        s.cm.sidr_reject(s.now, s.id, SidrStatus::Rejected, b"no").unwrap();
        let mut out = [0; MAD_LEN];
        assert!(s.cm.poll_mad(s.now, |_, mad| out = *mad));
        let (_, Message::SidrRep(rep)) = Message::read(&out).unwrap() else { panic!() };
        assert_eq!((rep.status, rep.qpn, rep.qkey), (SidrStatus::Rejected, Qpn::new(0), 0));
        assert_eq!(&rep.private_data[..3], b"no\0");
    }

    #[test]
    fn destroy_rejects() {
        let mut s = Script::asked();
        s.cm.sidr_destroy(s.now, s.id).unwrap();
        assert_eq!(s.sent(), ["SIDR_REP 0x77 Rejected"]);
    }

    #[test]
    fn a_repetition_waits_for_the_program_in_silence() {
        let mut s = Script::asked();
        assert_eq!(s.req(THEIRS, DATAGRAMS), Some(DropReason::Duplicate));
        assert_eq!((s.sent(), s.cm.poll_event()), (vec![], None));
    }

    #[test]
    fn a_repetition_after_the_answer_brings_that_again_without_the_program() {
        let mut s = Script::answered();
        for _ in 0..3 {
            assert_eq!(s.req(THEIRS, DATAGRAMS), Some(DropReason::Duplicate));
            assert_eq!((s.sent(), s.cm.poll_event()), (vec!["SIDR_REP 0x77 Valid".into()], None));
        }
        assert_eq!(s.cm.poll_timeout().unwrap().reason, "CM: end of memory of SIDR_REP");
        assert_eq!(s.wait(config(A).sidr_memory), [""; 0]);
        assert_eq!((s.cm.sidr_count(), s.cm.poll_event()), (0, None));
        assert_eq!(s.req(THEIRS, DATAGRAMS), None);
        s.take();
    }

    #[test]
    fn repetitions_do_not_pile_up_in_the_queue() {
        let mut s = Script::answered();
        for _ in 0..100 {
            assert_eq!(s.req(THEIRS, DATAGRAMS), Some(DropReason::Duplicate));
        }
        assert_eq!(s.sent(), ["SIDR_REP 0x77 Valid"]);
    }

    #[test]
    fn an_old_number_in_another_transaction_is_another_request() {
        let mut s = Script::answered();
        let req =
            SidrReq { request_id: THEIRS, pkey: 0xffff, service_id: DATAGRAMS, private_data: &[] };
        assert_eq!(s.from(1, TRANSACTION + 1, Message::SidrReq(req)), None);
        assert_ne!(s.take(), s.id);
        assert_eq!(s.cm.sidr_count(), 1);
    }

    #[test]
    fn the_same_number_of_another_host_is_another_request() {
        let mut s = Script::asked();
        let req =
            SidrReq { request_id: THEIRS, pkey: 0xffff, service_id: DATAGRAMS, private_data: &[] };
        assert_eq!(s.from(2, TRANSACTION, Message::SidrReq(req)), None);
        assert_ne!(s.take(), s.id);
    }

    #[test]
    fn an_answer_to_what_we_were_asked_is_none() {
        let mut s = Script::asked();
        assert_eq!(
            s.rep(1, s.id.comm_id(), SidrStatus::Valid),
            Some(DropReason::UnexpectedInState)
        );
        assert_eq!(s.cm.sidr_count(), 1);
    }

    #[test]
    fn a_program_that_never_decides_loses_the_request() {
        let mut s = Script::asked();
        assert_eq!(s.wait(config(A).decision_timeout), [""; 0]);
        let expected = Event::SidrUnreachable { id: s.id, waited: Waited::ForDecision };
        assert_eq!((s.cm.poll_event(), s.cm.sidr_count()), (Some(expected), 0));
        let late = s.cm.sidr_accept(s.now, s.id, Qpn::new(1), 1, &[]);
        assert_eq!(late, Err(CallError::Unknown));
    }

    #[test]
    fn closing_the_listener_rejects_what_the_program_has_not_seen() {
        let mut s = Script::with(config(A));
        let listen = s.cm.listen(DATAGRAMS, 0).unwrap();
        assert_eq!(s.req(1, DATAGRAMS), None);
        let seen = s.take();
        assert_eq!(s.req(2, DATAGRAMS), None);
        assert!(s.cm.unlisten(s.now, listen));
        assert_eq!(
            (s.cm.poll_event(), s.sent()),
            (None, vec!["SIDR_REP 0x2 Rejected".to_string()])
        );
        s.cm.sidr_accept(s.now, seen, Qpn::new(1), 1, &[]).unwrap();
        assert_eq!(s.sent(), ["SIDR_REP 0x1 Valid"]);
    }

    #[test]
    fn private_data_must_fit_and_only_a_peers_request_is_answered() {
        let mut s = Script::asked();
        let err = s.cm.sidr_accept(s.now, s.id, Qpn::new(1), 1, &[0; 137]);
        assert_eq!(err, Err(CallError::PrivateData { len: 137, max: 136 }));
        let ours = s.cm.sidr_request(s.now, &sidr_request(A)).unwrap();
        let err = s.cm.sidr_accept(s.now, ours, Qpn::new(1), 1, &[]);
        assert_eq!(err, Err(CallError::NotAsked));
    }
}

mod port_spaces {
    use super::super::pair::request;
    use super::*;

    /// A REQ of another manager for `service_id`.
    fn req(service_id: u64) -> Mad {
        let mut cm = ConnectionManager::new(config(1));
        cm.connect(Instant::ZERO, &ConnectRequest { service_id, ..request(1, 9) }).unwrap();
        let mut mad = [0; MAD_LEN];
        cm.poll_mad(Instant::ZERO, |_, m| mad = *m);
        mad
    }

    #[test]
    fn a_service_that_nobody_listens_to_is_not_supported() {
        let mut s = Script::with(config(A));
        assert_eq!(s.req(THEIRS, DATAGRAMS), Some(DropReason::NoListener));
        assert_eq!(
            (s.sent(), s.cm.sidr_count()),
            (vec!["SIDR_REP 0x77 Unsupported".to_string()], 0)
        );
    }

    #[test]
    fn it_is_left_to_another_process_where_several_share_the_address() {
        let mut s = Script::with(Config { reject_unknown_services: false, ..config(A) });
        assert_eq!(s.req(THEIRS, DATAGRAMS), Some(DropReason::NoListener));
        assert_eq!(s.sent(), [""; 0]);
    }

    #[test]
    fn datagrams_of_a_connected_service_are_rejected() {
        let mut s = Script::with(config(A));
        s.cm.listen(PORT, 0).unwrap();
        assert_eq!(s.req(THEIRS, PORT), Some(DropReason::Unacceptable));
        assert_eq!(
            (s.sent(), s.cm.poll_event()),
            (vec!["SIDR_REP 0x77 Rejected".to_string()], None)
        );
    }

    #[test]
    fn connections_to_a_datagram_service_are_rejected() {
        for service in [DATAGRAMS, ServiceId::ipoib(3)] {
            let mut s = Script::with(config(A));
            s.cm.listen(service, 0).unwrap();
            assert_eq!(
                s.cm.handle_mad(s.now, ip(1), &req(service)),
                Some(DropReason::Unacceptable)
            );
            let sent = s.sent();
            assert!(
                sent.len() == 1 && sent[0].starts_with("REJ") && sent[0].ends_with(" 28"),
                "{sent:?}"
            );
        }
    }

    #[test]
    fn other_services_take_both() {
        for service in [ServiceId::ib(3), 0x1000_0000_0000_0001] {
            let mut s = Script::with(config(A));
            let listen = s.cm.listen(service, 0).unwrap();
            assert_eq!(s.req(THEIRS, service), None);
            s.take();
            assert_eq!(s.cm.handle_mad(s.now, ip(1), &req(service)), None);
            let Some(Event::ConnectRequest { listen: asked, info, .. }) = s.cm.poll_event() else {
                panic!()
            };
            assert_eq!((asked, info.service_id), (listen, service));
        }
    }
}
