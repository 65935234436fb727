//! Unreliable datagrams, unicast and multicast.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::{Duration, Qpn};
use std::net::IpAddr;

const SOON: Duration = Duration::from_ms(10);
const GRH: usize = 40;

fn ready() -> (Pair, Ends, AhId) {
    let mut pair = Pair::new(1, 1 << 18);
    let ends = pair.connect_as(QpKind::Ud, &Link::default());
    pair.fill(0, 0, 100_000, 7);
    let ah = pair.ah(0, &ends, ip(1));
    (pair, ends, ah)
}

fn to(ah: AhId, qpn: Qpn) -> SendOp {
    SendOp::Datagram { destination: Destination { ah, qpn, qkey: QKEY }, immediate: None }
}

mod addresses {
    use super::*;

    #[test]
    fn of_both_families_are_reached_and_answer_by_their_own() {
        let v6 = |n: usize| IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0xa4d, n as u16 + 1]);
        let mut pair = Pair::with(1, 1 << 18, |config| {
            let node = usize::from(config.mac.0[5] - 1);
            config.addresses = config.addresses.and(v6(node)).unwrap();
        });
        let ends = pair.connect_as(QpKind::Ud, &Link::default());
        for (to_ip, from_ip, grh) in [(ip(1), ip(0), Grh::V4), (v6(1), v6(0), Grh::V6)] {
            pair.recv(1, &ends, 5, 200_000, 2000);
            let ah = pair.ah(0, &ends, to_ip);
            let segments = [sge(&ends, 0, 0, 300)];
            pair.post(0, ends.qp[0], &wr(1, to(ah, ends.qp[1]), &segments));
            assert!(pair.settle(SOON));
            assert_eq!(pair.completions(1, ends.cq[1])[0].grh, Some(grh));
            let area = pair.bytes(1, 200_000, GRH).try_into().unwrap();
            let header = longhaul_ud::NetworkHeader::read(area).unwrap();
            assert_eq!((header.source, header.destination), (from_ip, to_ip));
        }
    }

    #[test]
    fn of_a_family_that_the_port_lacks_are_refused() {
        let (mut pair, ends, _) = ready();
        let address = AddressVector::to(IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 2]));
        let refused = pair.nodes[0].create_ah(pair.now, ends.pd[0], &address).unwrap_err();
        assert!(matches!(refused, VerbsError::Invalid(_)), "{refused}");
    }
}

mod delivery {
    use super::*;

    #[test]
    fn a_datagram_lies_behind_its_ip_header() {
        let (mut pair, ends, ah) = ready();
        pair.recv(1, &ends, 5, 200_000, 2000);
        let destination = Destination { ah, qpn: ends.qp[1], qkey: QKEY };
        let op = SendOp::Datagram { destination, immediate: Some([9, 8, 7, 6]) };
        let segments = [sge(&ends, 0, 0, 300), sge(&ends, 0, 1000, 701)];
        pair.post(0, ends.qp[0], &SendWr { solicited: true, ..wr(1, op, &segments) });
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, Status::Success);
        let got = pair.completions(1, ends.cq[1]);
        let c = got[0];
        assert_eq!(
            (c.wr_id, c.byte_len, c.immediate, c.grh),
            (5, 1001 + 40, Some([9, 8, 7, 6]), Some(Grh::V4))
        );
        assert_eq!((c.qpn, c.peer_qpn, c.solicited), (ends.qp[1], ends.qp[0], true));
        assert_eq!(pair.bytes(1, 200_000 + GRH, 300), pair.bytes(0, 0, 300));
        assert_eq!(pair.bytes(1, 200_000 + GRH + 300, 701), pair.bytes(0, 1000, 701));
        let grh = pair.bytes(1, 200_000, GRH);
        assert_eq!((&grh[..20], grh[20]), (&[0; 20][..], 0x45));
        assert_eq!((&grh[32..36], &grh[36..40]), (&[10, 77, 0, 1][..], &[10, 77, 0, 2][..]));
    }

    #[test]
    fn a_qkey_must_match_and_one_with_the_highest_bit_is_the_senders() {
        let (mut pair, ends, ah) = ready();
        for (id, qkey) in [(1, QKEY + 1), (2, 0x8000_0000)] {
            pair.recv(1, &ends, id, 200_000, 2000);
            let destination = Destination { ah, qpn: ends.qp[1], qkey };
            let op = SendOp::Datagram { destination, immediate: None };
            pair.post(0, ends.qp[0], &wr(id, op, &[sge(&ends, 0, 0, 10)]));
        }
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 2);
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
        assert_eq!(pair.nodes[1].counters().get(DropReason::QKey), 1);
    }

    #[test]
    fn many_senders_share_a_receiver() {
        let (mut pair, ends, ah) = ready();
        let others: Vec<_> = (0..10).map(|_| pair.another(0, &ends, QpKind::Ud, None)).collect();
        for (i, &qp) in others.iter().enumerate() {
            pair.bring_up(0, qp, 1, ends.qp[1], &Link::default());
            pair.recv(1, &ends, i as u64, 200_000 + 200 * i, 200);
            pair.post(0, qp, &wr(1, to(ah, ends.qp[1]), &[sge(&ends, 0, 64 * i, 64)]));
        }
        assert!(pair.settle(SOON));
        let got = pair.completions(1, ends.cq[1]);
        assert_eq!(got.iter().map(|c| c.peer_qpn).collect::<Vec<_>>(), others);
        for i in 0..10 {
            assert_eq!(pair.bytes(1, 200_000 + 200 * i + GRH, 64), pair.bytes(0, 64 * i, 64));
        }
    }
}

mod refusal {
    use super::*;

    #[test]
    fn a_datagram_longer_than_the_mtu_completes_and_never_leaves() {
        let (mut pair, ends, ah) = ready();
        pair.recv(1, &ends, 5, 200_000, 10_000);
        pair.tap().seen = Some(Vec::new());
        for (id, len) in [(1, 4097), (2, 4096)] {
            pair.post(0, ends.qp[0], &wr(id, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, len)]));
        }
        assert!(pair.settle(SOON));
        assert_eq!(
            pair.completions(0, ends.cq[0]).iter().map(|c| c.wr_id).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(pair.tap().seen.take().unwrap().len(), 1);
        assert_eq!(pair.completions(1, ends.cq[1])[0].byte_len, 4096 + 40);
        assert_eq!(pair.nodes[0].counters().get(Counter::TxTooLong), 1);
    }

    #[test]
    fn one_longer_than_its_receive_is_dropped_and_the_receive_stays() {
        let (mut pair, ends, ah) = ready();
        pair.recv(1, &ends, 5, 200_000, 139);
        for len in [100, 99] {
            pair.post(0, ends.qp[0], &wr(1, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, len)]));
        }
        assert!(pair.settle(SOON));
        let got = pair.completions(1, ends.cq[1]);
        assert_eq!(got.iter().map(|c| (c.wr_id, c.byte_len)).collect::<Vec<_>>(), [(5, 139)]);
        assert_eq!(pair.nodes[1].counters().get(DropReason::TooLong), 1);
        pair.set_state(1, ends.qp[1], QpState::Error);
        assert!(pair.completions(1, ends.cq[1]).is_empty());
    }

    #[test]
    fn a_handle_of_another_domain_or_none_is_an_error() {
        for destroyed in [false, true] {
            let (mut pair, ends, _) = ready();
            let other = pair.nodes[0].alloc_pd().unwrap();
            let address = AddressVector {
                destination_ip: ip(1),
                hop_limit: 1,
                traffic_class: 0,
                flow_label: 0,
            };
            let ah = pair.nodes[0].create_ah(pair.now, other, &address).unwrap();
            assert_eq!(
                pair.nodes[0].dealloc_pd(other),
                Err(VerbsError::Busy { what: "PD", users: 1 })
            );
            if destroyed {
                pair.nodes[0].destroy_ah(ah).unwrap();
                pair.nodes[0].dealloc_pd(other).unwrap();
                assert_eq!(pair.nodes[0].destroy_ah(ah), Err(VerbsError::NoSuch("address handle")));
            }
            pair.recv(0, &ends, 3, 0, 100);
            for id in 1..3 {
                pair.post(0, ends.qp[0], &wr(id, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, 10)]));
            }
            assert!(pair.settle(SOON));
            let done: Vec<_> =
                pair.completions(0, ends.cq[0]).iter().map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(done, [(1, Status::LocalQpOperation), (2, Status::WrFlush)]);
            assert_eq!(pair.state(0, ends.qp[0]), QpState::SendQueueError);
            assert_eq!(pair.nodes[0].counters().get(Counter::TxFrames), 0);
        }
    }

    #[test]
    fn connected_operations_are_not_supported() {
        let (mut pair, ends, _) = ready();
        let now = pair.now;
        for op in [SEND, write_to(&ends, 1, 0), read_from(&ends, 1, 0)] {
            let refused = pair.nodes[0].post_send(now, ends.qp[0], &wr(1, op, &[])).unwrap_err();
            assert_eq!(refused.class(), ErrorClass::NotSupported);
        }
    }
}

mod destroyed_handles {
    use super::*;

    #[test]
    fn what_is_queued_goes_where_the_handle_led() {
        let (mut pair, ends, ah) = ready();
        pair.recv(1, &ends, 5, 200_000, 200);
        pair.post(0, ends.qp[0], &wr(1, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, 77)]));
        pair.nodes[0].destroy_ah(ah).unwrap();
        let other = pair.ah(0, &ends, ip(7));
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, Status::Success);
        assert_eq!(pair.completions(1, ends.cq[1])[0].byte_len, 77 + GRH as u32);
        assert_eq!(pair.bytes(1, 200_000 + GRH, 77), pair.bytes(0, 0, 77));
        pair.post(0, ends.qp[0], &wr(2, to(other, ends.qp[1]), &[sge(&ends, 0, 0, 77)]));
        assert!(pair.settle(SOON));
        assert_eq!(
            pair.nodes[1].counters().get(DropReason::DestinationIp),
            1,
            "the new one leads elsewhere"
        );
    }

    #[test]
    fn their_number_is_bounded() {
        let mut pair = Pair::with(1, 4096, |c| c.ah_count_max = 1100);
        let ends = pair.connect_as(QpKind::Ud, &Link::default());
        for _ in 0..5000 {
            let ah = pair.ah(0, &ends, ip(1));
            pair.nodes[0].destroy_ah(ah).unwrap();
        }
    }
}

mod send_queue_error {
    use super::*;

    /// A QP whose first send had an invalid key, with one receive posted before.
    fn failed() -> (Pair, Ends, AhId) {
        let (mut pair, ends, ah) = ready();
        pair.recv(0, &ends, 70, 120_000, 500);
        let bad = [Sge { lkey: longhaul_units::LKey(0xbad), ..sge(&ends, 0, 0, 10) }];
        pair.post(0, ends.qp[0], &wr(1, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, 10)]));
        pair.post(0, ends.qp[0], &wr(2, to(ah, ends.qp[1]), &bad));
        let request = wr(3, to(ah, ends.qp[1]), &[]);
        pair.post(0, ends.qp[0], &SendWr { signaled: false, ..request });
        assert!(pair.settle(SOON));
        assert_eq!(
            statuses(&mut pair, &ends),
            [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlush)]
        );
        assert_eq!(pair.state(0, ends.qp[0]), QpState::SendQueueError);
        assert!(pair.events(0).is_empty(), "a completion tells");
        (pair, ends, ah)
    }

    fn statuses(pair: &mut Pair, ends: &Ends) -> Vec<(u64, Status)> {
        pair.completions(0, ends.cq[0]).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn next_psn(pair: &Pair, ends: &Ends) -> u32 {
        pair.nodes[0].query_qp(ends.qp[0]).unwrap().attr.sq_psn.unwrap().get()
    }

    #[test]
    fn datagrams_still_arrive() {
        let (mut pair, ends, _) = failed();
        let back = pair.ah(1, &ends, ip(0));
        pair.recv(0, &ends, 71, 130_000, 500);
        pair.fill(1, 0, 300, 3);
        for id in 0..2 {
            pair.post(1, ends.qp[1], &wr(id, to(back, ends.qp[0]), &[sge(&ends, 1, 0, 300)]));
        }
        assert!(pair.settle(SOON));
        assert_eq!(statuses(&mut pair, &ends), [(70, Status::Success), (71, Status::Success)]);
        assert_eq!(pair.bytes(0, 130_000 + GRH, 300), pair.bytes(1, 0, 300));
        assert_eq!(pair.state(0, ends.qp[0]), QpState::SendQueueError);
    }

    #[test]
    fn what_is_posted_to_send_is_flushed_and_no_receive_with_it() {
        let (mut pair, ends, ah) = failed();
        for id in 10..100 {
            let request = wr(id, to(ah, ends.qp[1]), &[]);
            pair.post(0, ends.qp[0], &SendWr { signaled: false, ..request });
        }
        let flushed: Vec<_> = (10..100).map(|id| (id, Status::WrFlush)).collect();
        assert_eq!(statuses(&mut pair, &ends), flushed);
        assert!(!pair.step(), "nothing leaves");
    }

    #[test]
    fn ready_again_it_sends_with_the_next_psn_and_the_new_qkey() {
        let (mut pair, ends, ah) = failed();
        let psn = next_psn(&pair, &ends);
        let (state, current_state) = (Some(QpState::ReadyToSend), Some(QpState::SendQueueError));
        let wrong = QpAttr { state, current_state: state, ..QpAttr::default() };
        assert!(pair.nodes[0].modify_qp(pair.now, ends.qp[0], &wrong).is_err());
        let go = QpAttr { state, current_state, qkey: Some(QKEY + 1), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &go).unwrap();
        pair.recv(1, &ends, 5, 200_000, 500);
        pair.recv(1, &ends, 6, 200_000, 500);
        pair.tap().seen = Some(Vec::new());
        let own = Destination { ah, qpn: ends.qp[1], qkey: 1 << 31 };
        pair.post(
            0,
            ends.qp[0],
            &wr(4, SendOp::Datagram { destination: own, immediate: None }, &[]),
        );
        pair.post(0, ends.qp[0], &wr(5, to(ah, ends.qp[1]), &[sge(&ends, 0, 0, 10)]));
        assert!(pair.settle(SOON));
        assert_eq!(statuses(&mut pair, &ends), [(4, Status::Success), (5, Status::Success)]);
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
        assert_eq!(
            pair.nodes[1].counters().get(DropReason::QKey),
            1,
            "the first had the QP's new one"
        );
        assert_eq!(next_psn(&pair, &ends), psn + 2);
        assert_eq!(pair.state(0, ends.qp[0]), QpState::ReadyToSend);
    }

    #[test]
    fn only_ready_error_and_reset_come_after_it() {
        use QpState::*;
        for to in
            [Init, ReadyToReceive, SendQueueDrained, SendQueueError, ReadyToSend, Error, Reset]
        {
            let (mut pair, ends, _) = failed();
            let attr = QpAttr::to(to);
            let done = pair.nodes[0].modify_qp(pair.now, ends.qp[0], &attr);
            let exists = matches!(to, ReadyToSend | Error | Reset);
            assert_eq!(done.is_ok(), exists, "{to:?}: {done:?}");
            assert_eq!(pair.state(0, ends.qp[0]), if exists { to } else { SendQueueError });
        }
        let (mut pair, ends, _) = ready();
        let attr = QpAttr::to(SendQueueError);
        assert!(
            pair.nodes[0].modify_qp(pair.now, ends.qp[0], &attr).is_err(),
            "nobody can ask for it"
        );
    }

    #[test]
    fn the_error_state_after_it_flushes_the_receives_too() {
        let (mut pair, ends, _) = failed();
        pair.set_state(0, ends.qp[0], QpState::Error);
        assert_eq!(statuses(&mut pair, &ends), [(70, Status::WrFlush)]);
    }
}

mod groups {
    use super::*;

    const GROUP: [u8; 4] = [239, 1, 2, 3];

    #[test]
    fn each_member_gets_a_copy_and_nobody_else() {
        let (mut pair, ends, _) = ready();
        let group = IpAddr::from(GROUP);
        let ah = pair.ah(0, &ends, group);
        let others = [(); 3].map(|()| pair.another(1, &ends, QpKind::Ud, None));
        for &qp in &others {
            pair.bring_up(1, qp, 0, ends.qp[0], &Link::default());
        }
        let all = [ends.qp[1], others[0], others[1], others[2]];
        for (i, &qp) in all.iter().enumerate() {
            let segments = [sge(&ends, 1, 200_000 + 200 * i, 200)];
            pair.nodes[1].post_recv(qp, &RecvWr { wr_id: i as u64, segments: &segments }).unwrap();
        }
        let members = &all[..3];
        for &qp in members {
            pair.nodes[1].attach_multicast(qp, group).unwrap();
        }
        pair.post(0, ends.qp[0], &wr(1, to(ah, Qpn::MULTICAST), &[sge(&ends, 0, 0, 77)]));
        assert!(pair.settle(SOON));
        let got = pair.completions(1, ends.cq[1]);
        assert_eq!(
            got.iter().map(|c| (c.qpn, c.byte_len)).collect::<Vec<_>>(),
            members.iter().map(|&q| (q, 117)).collect::<Vec<_>>()
        );
        for i in 0..3 {
            assert_eq!(pair.bytes(1, 200_000 + 200 * i + GRH, 77), pair.bytes(0, 0, 77));
        }
        assert_eq!(pair.bytes(1, 200_600, 200), [0; 200]);
    }

    #[test]
    fn after_the_last_member_left_frames_are_not_for_this_port() {
        let (mut pair, ends, _) = ready();
        let group = IpAddr::from(GROUP);
        let ah = pair.ah(0, &ends, group);
        let node = &mut pair.nodes[1];
        node.attach_multicast(ends.qp[1], group).unwrap();
        node.attach_multicast(ends.qp[1], group).unwrap();
        assert_eq!(node.destroy_qp(ends.qp[1]), Err(VerbsError::Busy { what: "QP", users: 1 }));
        node.detach_multicast(ends.qp[1], group).unwrap();
        assert_eq!(
            node.detach_multicast(ends.qp[1], group).unwrap_err().class(),
            ErrorClass::Invalid
        );
        pair.recv(1, &ends, 1, 200_000, 200);
        pair.post(0, ends.qp[0], &wr(1, to(ah, Qpn::MULTICAST), &[sge(&ends, 0, 0, 77)]));
        assert!(pair.settle(SOON));
        assert!(pair.completions(1, ends.cq[1]).is_empty());
        assert_eq!(pair.nodes[1].counters().get(DropReason::DestinationIp), 1);
        pair.nodes[1].destroy_qp(ends.qp[1]).unwrap();
    }

    #[test]
    fn only_datagram_qps_join_and_only_groups_are_joined() {
        let (mut pair, ends, _) = ready();
        let rc = pair.another(1, &ends, QpKind::Rc, None);
        let node = &mut pair.nodes[1];
        assert_eq!(
            node.attach_multicast(rc, IpAddr::from(GROUP)).unwrap_err().class(),
            ErrorClass::Invalid
        );
        assert_eq!(
            node.attach_multicast(ends.qp[1], ip(0)).unwrap_err().class(),
            ErrorClass::Invalid
        );
    }

    #[test]
    fn a_member_without_a_receive_or_not_ready_does_not_keep_it_from_others() {
        let (mut pair, ends, _) = ready();
        let group = IpAddr::from(GROUP);
        let ah = pair.ah(0, &ends, group);
        let idle = pair.another(1, &ends, QpKind::Ud, None);
        let empty = pair.another(1, &ends, QpKind::Ud, None);
        pair.bring_up(1, empty, 0, ends.qp[0], &Link::default());
        for qp in [idle, empty, ends.qp[1]] {
            pair.nodes[1].attach_multicast(qp, group).unwrap();
        }
        pair.recv(1, &ends, 1, 200_000, 200);
        pair.post(0, ends.qp[0], &wr(1, to(ah, Qpn::MULTICAST), &[sge(&ends, 0, 0, 77)]));
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
        let counters = pair.nodes[1].counters();
        assert_eq!(
            (counters.get(DropReason::QpState), counters.get(DropReason::NoReceive)),
            (1, 1)
        );
    }

    #[test]
    fn groups_and_members_are_bounded() {
        let mut pair = Pair::with(1, 4096, |c| {
            c.multicast_group_max = 2;
            c.multicast_qp_max = 2;
        });
        let ends = pair.connect_as(QpKind::Ud, &Link::default());
        let more = [(); 2].map(|()| pair.another(1, &ends, QpKind::Ud, None));
        let node = &mut pair.nodes[1];
        let group = |n| IpAddr::from([239, 0, 0, n]);
        node.attach_multicast(ends.qp[1], group(1)).unwrap();
        node.attach_multicast(ends.qp[1], group(2)).unwrap();
        assert_eq!(
            node.attach_multicast(ends.qp[1], group(3)).unwrap_err().class(),
            ErrorClass::NoMemory
        );
        node.attach_multicast(more[0], group(1)).unwrap();
        assert_eq!(
            node.attach_multicast(more[1], group(1)).unwrap_err().class(),
            ErrorClass::NoMemory
        );
    }
}
