//! The control verbs: objects, their dependencies, states and limits.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::{Duration, LKey, Psn, Qpn};

fn init(ends: &Ends) -> QpInit {
    QpInit {
        send_sge_max: 2,
        recv_sge_max: 2,
        inline_max: 16,
        signal_all: false,
        ..QpInit::new(QpKind::Rc, ends.pd[0], ends.cq[0], 4)
    }
}

mod dependencies {
    use super::*;

    #[test]
    fn what_is_in_use_is_busy_until_its_users_are_gone() {
        let mut pair = Pair::new(1, 4096);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[0];
        assert_eq!(node.dealloc_pd(ends.pd[0]), Err(VerbsError::Busy { what: "PD", users: 2 }));
        assert_eq!(node.destroy_cq(ends.cq[0]), Err(VerbsError::Busy { what: "CQ", users: 2 }));
        assert_eq!(node.destroy_cq(ends.cq[0]).unwrap_err().class(), ErrorClass::Busy);
        node.destroy_qp(ends.qp[0]).unwrap();
        node.destroy_cq(ends.cq[0]).unwrap();
        node.dereg_mr(ends.mr[0].lkey).unwrap();
        node.dealloc_pd(ends.pd[0]).unwrap();
        assert_eq!(node.destroy_qp(ends.qp[0]), Err(VerbsError::NoSuch("QP")));
        assert_eq!(node.dereg_mr(ends.mr[0].lkey), Err(VerbsError::NoSuch("MR")));
        assert_eq!(node.dealloc_pd(ends.pd[0]), Err(VerbsError::NoSuch("PD")));
        assert_eq!(node.destroy_cq(ends.cq[0]), Err(VerbsError::NoSuch("CQ")));
    }

    #[test]
    fn a_region_registered_anew_keeps_its_keys_and_frees_its_domain() {
        let mut pair = Pair::new(1, 4096);
        let node = &mut pair.nodes[0];
        let (one, other) = (node.alloc_pd().unwrap(), node.alloc_pd().unwrap());
        let keys = node.reg_mr(one, 0, 100, 0, Access::ALL).unwrap();
        let refused = node.rereg_mr(keys.lkey, other, 0, 100, 0, Access::REMOTE_WRITE).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Invalid);
        assert_eq!(node.dealloc_pd(one), Err(VerbsError::Busy { what: "PD", users: 1 }));
        node.rereg_mr(keys.lkey, other, 0, 50, 0, Access::REMOTE_READ).unwrap();
        node.dealloc_pd(one).unwrap();
        assert_eq!(node.dealloc_pd(other), Err(VerbsError::Busy { what: "PD", users: 1 }));
        node.dereg_mr(keys.lkey).unwrap();
        node.dealloc_pd(other).unwrap();
        let gone = node.rereg_mr(keys.lkey, other, 0, 50, 0, Access::ALL);
        assert_eq!(gone, Err(VerbsError::NoSuch("PD")));
    }

    #[test]
    fn a_qpn_is_used_again_only_when_all_others_have_been() {
        let mut pair = Pair::with(1, 4096, |c| c.qpn_count = 3);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[0];
        node.destroy_qp(ends.qp[0]).unwrap();
        let first = node.create_qp(&init(&ends)).unwrap();
        let second = node.create_qp(&init(&ends)).unwrap();
        let third = node.create_qp(&init(&ends)).unwrap();
        assert_eq!([first, second, third].map(Qpn::get), [0x12, 0x13, 0x11]);
        let full = node.create_qp(&init(&ends)).unwrap_err();
        assert_eq!(full.class(), ErrorClass::NoMemory);
    }
}

mod limits {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let mut pair = Pair::new(1, 4096);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[0];
        let class = |r: Result<Qpn, VerbsError>| r.unwrap_err().class();
        assert_eq!(
            class(node.create_qp(&QpInit { srq: Some(SrqId(0)), ..init(&ends) })),
            ErrorClass::Invalid
        );
        assert_eq!(
            class(node.create_qp(&QpInit { send_sge_max: 17, ..init(&ends) })),
            ErrorClass::Invalid
        );
        assert_eq!(
            class(node.create_qp(&QpInit { sq_depth: 1 << 20, ..init(&ends) })),
            ErrorClass::Invalid
        );
        assert_eq!(
            class(node.create_qp(&QpInit { send_cq: CqId(99), ..init(&ends) })),
            ErrorClass::Invalid
        );
        assert!(node.create_cq(0).is_err());
        assert!(node.reg_mr(ends.pd[0], u64::MAX, 2, 0, Access::ALL).is_err());
        assert!(node.reg_mr(ends.pd[0], 0, 2, u64::MAX, Access::ALL).is_err());
        assert!(node.reg_mr(ends.pd[0], 0, 2, 0, Access::REMOTE_WRITE).is_err());
        assert!(node.reg_mr(PdId(9), 0, 2, 0, Access::ALL).is_err());
    }

    #[test]
    fn posting_keeps_to_what_the_qp_was_made_for() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { depth: 4, ..Link::default() });
        let now = pair.now;
        let s = sge(&ends, 0, 0, 300);
        let node = &mut pair.nodes[0];
        let mut post = |wr: &SendWr<'_>| node.post_send(now, ends.qp[0], wr);
        let five = [s; 5];
        let write = write_to(&ends, 1, 0);
        assert_eq!(
            post(&wr(1, write, &five)),
            Err(PostError::TooManySegments { given: 5, max: 4 })
        );
        let inline = SendWr { inline: true, ..wr(1, write, &five[..1]) };
        assert_eq!(post(&inline), Err(PostError::InlineTooLong { given: 300, max: 256 }));
        let read = SendWr { inline: true, ..wr(1, read_from(&ends, 1, 0), &five[..1]) };
        assert_eq!(post(&read).unwrap_err().class(), ErrorClass::Invalid);
        let long = [Sge { len: 1 << 31, ..s }, Sge { len: 1, ..s }];
        let too_long = PostError::MessageTooLong { given: (1 << 31) + 1, max: MESSAGE_MAX };
        assert_eq!(post(&wr(1, write, &long)), Err(too_long));
        let atomic = SendOp::FetchAdd { remote_address: BASE + 1, rkey: ends.mr[1].rkey, add: 1 };
        assert_eq!(
            post(&wr(1, atomic, &five[..1])).unwrap_err().class(),
            ErrorClass::Invalid,
            "unaligned"
        );
        let datagram = SendOp::Datagram { destination: Destination::default(), immediate: None };
        assert_eq!(
            post(&wr(1, datagram, &five[..1])).unwrap_err().class(),
            ErrorClass::NotSupported
        );
        for id in 0..4 {
            post(&wr(id, write, &five[..1])).unwrap();
        }
        assert_eq!(post(&wr(4, write, &five[..1])), Err(PostError::QueueFull { depth: 4 }));
        let recv = RecvWr { wr_id: 0, segments: &[] };
        (0..4).for_each(|_| node.post_recv(ends.qp[0], &recv).unwrap());
        assert_eq!(node.post_recv(ends.qp[0], &recv), Err(PostError::QueueFull { depth: 4 }));
        assert_eq!(node.post_send(now, Qpn::new(5), &wr(1, write, &[])), Err(PostError::NoSuchQp));
    }
}

mod states {
    use super::*;

    fn fresh() -> (Pair, Ends, Qpn) {
        let mut pair = Pair::new(1, 4096);
        let ends = pair.connect(&Link::default());
        let qp = pair.nodes[0].create_qp(&init(&ends)).unwrap();
        (pair, ends, qp)
    }

    #[test]
    fn each_transition_needs_its_attributes() {
        let (mut pair, ends, qp) = fresh();
        let steps = transitions(ip(1), ends.qp[1], 1, 2, &Link::default());
        let now = pair.now;
        let node = &mut pair.nodes[0];
        let skip = node.modify_qp(now, qp, &steps[1]).unwrap_err();
        assert_eq!(
            skip,
            VerbsError::BadTransition { from: QpState::Reset, to: QpState::ReadyToReceive }
        );
        let missing = node.modify_qp(now, qp, &QpAttr { port: None, ..steps[0] }).unwrap_err();
        assert!(
            matches!(missing, VerbsError::MissingAttribute { attribute: "port", .. }),
            "{missing}"
        );
        node.modify_qp(now, qp, &steps[0]).unwrap();
        let missing = node.modify_qp(now, qp, &QpAttr { rq_psn: None, ..steps[1] }).unwrap_err();
        assert!(
            matches!(missing, VerbsError::MissingAttribute { attribute: "rq_psn", .. }),
            "{missing}"
        );
        let extra =
            node.modify_qp(now, qp, &QpAttr { sq_psn: Some(Psn::new(1)), ..steps[1] }).unwrap_err();
        assert!(
            matches!(extra, VerbsError::SurplusAttribute { attribute: "sq_psn", .. }),
            "{extra}"
        );
        node.modify_qp(now, qp, &steps[1]).unwrap();
        let high = QpAttr { timeout: Some(32), ..steps[2] };
        assert!(matches!(
            node.modify_qp(now, qp, &high),
            Err(VerbsError::OutOfBounds { what: "timeout", .. })
        ));
        assert_eq!(
            node.query_qp(qp).unwrap().state,
            QpState::ReadyToReceive,
            "a refusal changes nothing"
        );
        node.modify_qp(now, qp, &steps[2]).unwrap();
        let info = node.query_qp(qp).unwrap();
        assert_eq!(info.state, QpState::ReadyToSend);
        assert_eq!((info.attr.rq_psn, info.attr.sq_psn), (Some(Psn::new(1)), Some(Psn::new(2))));
    }

    #[test]
    fn an_address_of_another_family_is_refused_and_a_mapped_one_taken() {
        let (mut pair, ends, qp) = fresh();
        let steps = transitions("fe80::1".parse().unwrap(), ends.qp[1], 1, 2, &Link::default());
        pair.nodes[0].modify_qp(pair.now, qp, &steps[0]).unwrap();
        assert!(pair.nodes[0].modify_qp(pair.now, qp, &steps[1]).is_err());
        let steps =
            transitions("::ffff:10.77.0.2".parse().unwrap(), ends.qp[1], 1, 2, &Link::default());
        pair.nodes[0].modify_qp(pair.now, qp, &steps[1]).unwrap();
    }

    #[test]
    fn work_is_taken_only_in_the_right_states() {
        let (mut pair, ends, qp) = fresh();
        let steps = transitions(ip(1), ends.qp[1], 1, 2, &Link::default());
        let now = pair.now;
        let node = &mut pair.nodes[0];
        let recv = RecvWr { wr_id: 1, segments: &[] };
        let send = wr(1, SEND, &[]);
        assert_eq!(node.post_recv(qp, &recv), Err(PostError::BadState(QpState::Reset)));
        node.modify_qp(now, qp, &steps[0]).unwrap();
        node.post_recv(qp, &recv).unwrap();
        assert_eq!(node.post_send(now, qp, &send), Err(PostError::BadState(QpState::Init)));
        node.modify_qp(now, qp, &steps[1]).unwrap();
        assert_eq!(
            node.post_send(now, qp, &send),
            Err(PostError::BadState(QpState::ReadyToReceive))
        );
        node.modify_qp(now, qp, &steps[2]).unwrap();
        node.post_send(now, qp, &send).unwrap();
    }

    #[test]
    fn reset_forgets_and_allows_a_new_connection() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, 100)]));
        let reset = QpAttr::to(QpState::Reset);
        for n in 0..2 {
            pair.nodes[n].modify_qp(pair.now, ends.qp[n], &reset).unwrap();
        }
        assert!(pair.settle(Duration::from_ms(100)));
        assert!(pair.completions(0, ends.cq[0]).is_empty());
        let link = Link { psn: [7, 8], ..Link::default() };
        for n in 0..2 {
            pair.bring_up(n, ends.qp[n], 1 - n, ends.qp[1 - n], &link);
        }
        pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        pair.settle(Duration::from_ms(100));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 1);
    }

    #[test]
    fn draining_tells_when_it_is_done() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        pair.step();
        let state = Some(QpState::SendQueueDrained);
        let drain = QpAttr { state, drain_event: Some(true), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &drain).unwrap();
        pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 1);
        let event = Event::Qp { qpn: ends.qp[0], kind: QpEvent::SendQueueDrained };
        assert_eq!(pair.nodes[0].poll_event(), Some(event));
        let go = QpAttr::to(QpState::ReadyToSend);
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &go).unwrap();
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 1);
    }

    #[test]
    fn a_message_that_has_begun_is_sent_to_its_end_before_the_queue_counts_as_drained() {
        let mut pair = Pair::with(1, 1 << 16, |c| c.ack_request_every = 1);
        let ends = pair.connect(&Link { timeout: 16, ..Link::default() });
        let rate_limit = Some(RateLimit::from_verbs(10_000, 1, 0));
        let slow = QpAttr { rate_limit, ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &slow).unwrap();
        for id in 0..2 {
            pair.post(0, ends.qp[0], &wr(id, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        }
        (0..3).for_each(|_| assert!(pair.step()));
        let state = Some(QpState::SendQueueDrained);
        let drain = QpAttr { state, drain_event: Some(true), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &drain).unwrap();
        let event = Event::Qp { qpn: ends.qp[0], kind: QpEvent::SendQueueDrained };
        // Between packets, everything sent is acknowledged for most of a millisecond.
        while pair.completions(0, ends.cq[0]).is_empty() {
            assert_eq!(pair.events(0), []);
            assert!(pair.nodes[0].query_qp(ends.qp[0]).unwrap().draining);
            assert!(pair.step());
        }
        assert_eq!(pair.events(0), [event]);
        assert!(pair.settle(Duration::from_ms(1000)));
        assert!(pair.completions(0, ends.cq[0]).is_empty(), "the second message has not begun");
    }

    #[test]
    fn what_linux_refuses_is_refused() {
        let (mut pair, ends, qp) = fresh();
        let now = pair.now;
        let node = &mut pair.nodes[0];
        let to = |state| QpAttr::to(state);
        let bad = VerbsError::BadTransition { from: QpState::Reset, to: QpState::Error };
        assert_eq!(node.modify_qp(now, qp, &to(QpState::Error)), Err(bad));
        let current_state = Some(QpState::ReadyToSend);
        let extra = QpAttr { current_state, ..to(QpState::Reset) };
        let refused = node.modify_qp(now, ends.qp[0], &extra).unwrap_err();
        assert!(matches!(refused, VerbsError::SurplusAttribute { attribute: "current_state", .. }));
        node.modify_qp(now, ends.qp[0], &QpAttr { current_state, ..to(QpState::ReadyToSend) })
            .unwrap();
    }

    #[test]
    fn data_before_ready_to_send_is_an_event() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[1];
        let reset = QpAttr::to(QpState::Reset);
        node.modify_qp(pair.now, ends.qp[1], &reset).unwrap();
        for step in &transitions(ip(0), ends.qp[0], 100, 200, &Link::default())[..2] {
            node.modify_qp(pair.now, ends.qp[1], step).unwrap();
        }
        for id in 0..2 {
            pair.post(0, ends.qp[0], &wr(id, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        }
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 2);
        let event = Event::Qp { qpn: ends.qp[1], kind: QpEvent::CommunicationEstablished };
        assert_eq!(pair.nodes[1].poll_event(), Some(event));
        assert_eq!(pair.nodes[1].poll_event(), None);
    }
}

mod completion_queues {
    use super::*;

    fn send(pair: &mut Pair, ends: &Ends, solicited: bool) {
        pair.recv(1, ends, 1, 0, 100);
        let segments = [sge(ends, 0, 0, 10)];
        let request = SendWr { solicited, ..wr(1, SEND, &segments) };
        pair.post(0, ends.qp[0], &request);
        assert!(pair.settle(Duration::from_ms(100)));
    }

    #[test]
    fn an_armed_queue_notifies_once() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].arm_cq(ends.cq[1], false).unwrap();
        send(&mut pair, &ends, false);
        send(&mut pair, &ends, false);
        assert_eq!(pair.nodes[1].poll_event(), Some(Event::CompletionReady(ends.cq[1])));
        assert_eq!(pair.nodes[1].poll_event(), None);
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 2);
    }

    #[test]
    fn armed_for_solicited_ones_it_waits_for_them() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].arm_cq(ends.cq[1], true).unwrap();
        send(&mut pair, &ends, false);
        assert_eq!(pair.nodes[1].poll_event(), None);
        send(&mut pair, &ends, true);
        assert_eq!(pair.nodes[1].poll_event(), Some(Event::CompletionReady(ends.cq[1])));
    }

    #[test]
    fn an_error_counts_as_solicited() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].arm_cq(ends.cq[1], true).unwrap();
        pair.recv(1, &ends, 1, 0, 100);
        let error = QpAttr::to(QpState::Error);
        pair.nodes[1].modify_qp(pair.now, ends.qp[1], &error).unwrap();
        assert_eq!(pair.nodes[1].poll_event(), Some(Event::CompletionReady(ends.cq[1])));
    }

    #[test]
    fn an_overrun_is_told_once_and_counted_each_time() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[0];
        let small = node.create_cq(2).unwrap();
        let qp = node.create_qp(&QpInit { recv_cq: small, send_cq: small, ..init(&ends) }).unwrap();
        node.modify_qp(pair.now, qp, &transitions(ip(1), ends.qp[1], 0, 0, &Link::default())[0])
            .unwrap();
        for wr_id in 0..4 {
            node.post_recv(qp, &RecvWr { wr_id, segments: &[] }).unwrap();
        }
        let error = QpAttr::to(QpState::Error);
        node.modify_qp(pair.now, qp, &error).unwrap();
        assert_eq!(node.poll_event(), Some(Event::CqError(small)));
        assert_eq!(node.poll_event(), None);
        assert_eq!(node.counters().get(Counter::CqOverrun), 2);
        assert_eq!(node.cq_len(small), 2);
    }
}

mod regions {
    use super::*;

    #[test]
    fn an_iova_is_what_requests_and_peers_use() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        let far = pair.nodes[1].reg_mr(ends.pd[1], BASE + 1000, 100, 0, Access::ALL).unwrap();
        let near = pair.nodes[0].reg_mr(ends.pd[0], BASE + 2000, 100, 5, Access::ALL).unwrap();
        pair.fill(0, 2000, 100, 3);
        let op = SendOp::Write { remote_address: 10, rkey: far.rkey, immediate: None };
        pair.post(0, ends.qp[0], &wr(1, op, &[Sge { address: 5, len: 90, lkey: near.lkey }]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, Status::Success);
        assert_eq!(pair.bytes(1, 1010, 90), pair.bytes(0, 2000, 90));
    }

    #[test]
    fn optional_access_flags_are_ignored_and_others_refused() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        let relaxed = Access(1 << 20 | Access::LOCAL_WRITE.0);
        assert!(pair.nodes[0].reg_mr(ends.pd[0], BASE, 1, BASE, relaxed).is_ok());
        let on_demand =
            pair.nodes[0].reg_mr(ends.pd[0], BASE, 1, BASE, Access(1 << 6)).unwrap_err();
        assert_eq!(on_demand.class(), ErrorClass::NotSupported);
    }

    #[test]
    fn keys_are_never_zero_and_differ() {
        let mut pair = Pair::new(1, 1 << 12);
        let ends = pair.connect(&Link::default());
        let other = pair.nodes[0].reg_mr(ends.pd[0], BASE, 1, BASE, Access::default()).unwrap();
        assert_ne!(other.lkey, ends.mr[0].lkey);
        assert_ne!(other.lkey, LKey(0));
    }
}
