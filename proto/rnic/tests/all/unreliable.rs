//! Unreliable connections: a message is delivered whole or not at all, without a report to either
//! end.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::Duration;

const SOON: Duration = Duration::from_ms(10);
const LEN: usize = 5000;

fn connected() -> (Pair, Ends) {
    let mut pair = Pair::new(1, 1 << 20);
    let ends = pair.connect_as(QpKind::Uc, &Link::default());
    pair.fill(0, 0, 100_000, 7);
    (pair, ends)
}

mod delivery {
    use super::*;

    #[test]
    fn sends_and_writes_move_the_bytes_without_an_answer() {
        let (mut pair, ends) = connected();
        pair.tap().seen = Some(Vec::new());
        pair.recv(1, &ends, 50, 500_000, 8000);
        pair.recv(1, &ends, 51, 510_000, 8000);
        let immediate = Some([1, 2, 3, 4]);
        let send = SendOp::Send { immediate, invalidate: None };
        pair.post(0, ends.qp[0], &wr(1, send, &[sge(&ends, 0, 0, LEN as u32)]));
        let write =
            |at| SendOp::Write { remote_address: BASE + at, rkey: ends.mr[1].rkey, immediate };
        pair.post(0, ends.qp[0], &wr(2, write(600_000), &[sge(&ends, 0, 9000, LEN as u32)]));
        pair.post(
            0,
            ends.qp[0],
            &wr(3, write_to(&ends, 1, 700_000), &[sge(&ends, 0, 100, LEN as u32)]),
        );
        assert!(pair.settle(SOON));
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(
            done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(),
            [1, 2, 3].map(|id| (id, Status::Success))
        );
        let got = pair.completions(1, ends.cq[1]);
        assert_eq!(
            got.iter().map(|c| (c.wr_id, c.op, c.byte_len, c.immediate)).collect::<Vec<_>>(),
            [
                (50, CompletionOp::Recv, LEN as u32, immediate),
                (51, CompletionOp::RecvWriteImmediate, LEN as u32, immediate)
            ]
        );
        assert_eq!(pair.bytes(1, 500_000, LEN), pair.bytes(0, 0, LEN));
        assert_eq!(pair.bytes(1, 600_000, LEN), pair.bytes(0, 9000, LEN));
        assert_eq!(pair.bytes(1, 700_000, LEN), pair.bytes(0, 100, LEN));
        assert!(
            pair.tap().seen.take().unwrap().iter().all(|(sender, _)| *sender == 0),
            "the responder is silent"
        );
    }

    #[test]
    fn what_it_does_not_have_is_refused() {
        let (mut pair, ends) = connected();
        let now = pair.now;
        let segments = [sge(&ends, 0, 0, 8)];
        let (remote_address, rkey) = (BASE, ends.mr[1].rkey);
        for op in [
            read_from(&ends, 1, 0),
            SendOp::FetchAdd { remote_address, rkey, add: 1 },
            SendOp::Send { immediate: None, invalidate: Some(rkey) },
        ] {
            let refused =
                pair.nodes[0].post_send(now, ends.qp[0], &wr(1, op, &segments)).unwrap_err();
            assert_eq!(refused.class(), ErrorClass::NotSupported, "{op:?}");
        }
    }
}

mod loss {
    use super::*;

    /// Loses packet `lost` of the second of several five-packet messages.
    fn lose_one(lost: usize) {
        let (mut pair, ends) = connected();
        for id in 0..3 {
            pair.recv(1, &ends, 50 + id, 500_000 + 10_000 * id as usize, 8000);
        }
        let mut count = 0;
        pair.tap().lose = Box::new(move |_, _| {
            count += 1;
            count == 5 + lost + 1
        });
        for id in 0..3 {
            pair.post(
                0,
                ends.qp[0],
                &wr(id, SEND, &[sge(&ends, 0, 10_000 * id as usize, LEN as u32)]),
            );
        }
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 3, "the sender never knows");
        let got = pair.completions(1, ends.cq[1]);
        assert_eq!(got.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [50, 51], "packet {lost}");
        assert_eq!(pair.bytes(1, 500_000, LEN), pair.bytes(0, 0, LEN));
        assert_eq!(
            pair.bytes(1, 510_000, LEN),
            pair.bytes(0, 20_000, LEN),
            "the receive serves the next message"
        );
        assert_eq!(pair.state(1, ends.qp[1]), QpState::ReadyToSend);
    }

    #[test]
    fn a_message_that_lost_any_packet_is_lost_whole() {
        (0..5).for_each(lose_one);
    }

    #[test]
    fn over_a_bad_wire_each_completion_is_a_whole_message() {
        let (mut pair, ends) = connected();
        pair.set_wire(Wire { loss: 0.05, ..Wire::default() });
        let (mut got, mut sent) = (0, 0);
        for round in 0..200u32 {
            pair.recv(1, &ends, round.into(), 500_000, 8000);
            let at = (round as usize * 97) % 90_000;
            let op = SendOp::Send { immediate: Some((at as u32).to_be_bytes()), invalidate: None };
            pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, at, LEN as u32)]));
            assert!(pair.settle(SOON));
            sent += pair.completions(0, ends.cq[0]).len();
            for c in pair.completions(1, ends.cq[1]) {
                let from = u32::from_be_bytes(c.immediate.unwrap()) as usize;
                assert_eq!((c.status, c.byte_len as usize), (Status::Success, LEN));
                assert_eq!(pair.bytes(1, 500_000, LEN), pair.bytes(0, from, LEN));
                got += 1;
            }
            if pair.nodes[1].qp_snapshots().next().unwrap().receives > 30 {
                break;
            }
        }
        assert!(got > 30 && got < sent, "{got} of {sent}");
    }

    #[test]
    fn without_a_receive_a_message_is_dropped_and_counted() {
        let (mut pair, ends) = connected();
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, LEN as u32)]));
        assert!(pair.settle(SOON));
        assert_eq!(pair.nodes[1].counters().get(DropReason::NoReceive), 1);
        pair.recv(1, &ends, 5, 500_000, 8000);
        pair.post(0, ends.qp[0], &wr(2, SEND, &[sge(&ends, 0, 0, LEN as u32)]));
        assert!(pair.settle(SOON));
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
    }
}

mod faults {
    use super::*;

    #[test]
    fn a_write_to_nowhere_changes_nothing_and_stops_nobody() {
        let (mut pair, ends) = connected();
        let op = SendOp::Write {
            remote_address: BASE + (1 << 20) - 100,
            rkey: ends.mr[1].rkey,
            immediate: None,
        };
        let before = pair.nodes[1].memory().0.clone();
        pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, 0, LEN as u32)]));
        assert!(pair.settle(SOON));
        assert!(pair.nodes[1].memory().0 == before);
        assert!(pair.nodes[1].counters().get(DropReason::WriteRefused) > 0);
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, Status::Success);
        assert_eq!(pair.state(1, ends.qp[1]), QpState::ReadyToSend);
    }

    #[test]
    fn a_receive_that_is_too_short_ends_the_receiver() {
        let (mut pair, ends) = connected();
        pair.recv(1, &ends, 5, 500_000, 4999);
        pair.recv(1, &ends, 6, 500_000, 4999);
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, LEN as u32)]));
        assert!(pair.settle(SOON));
        let got = pair.completions(1, ends.cq[1]);
        let statuses: Vec<_> = got.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(statuses, [(5, Status::LocalLength), (6, Status::WrFlush)]);
        assert_eq!(pair.state(1, ends.qp[1]), QpState::Error);
        assert_eq!(pair.state(0, ends.qp[0]), QpState::ReadyToSend);
    }

    #[test]
    fn a_send_that_fails_ends_the_sender_only() {
        let (mut pair, ends) = connected();
        let gone = pair.nodes[0].reg_mr(ends.pd[0], BASE, 8000, BASE, Access::ALL).unwrap();
        let segments = [Sge { address: BASE, len: LEN as u32, lkey: gone.lkey }];
        pair.recv(0, &ends, 70, 300_000, 8000);
        (0..3).for_each(|id| pair.recv(1, &ends, 50 + id, 500_000, 8000));
        let slow =
            QpAttr { rate_limit: Some(RateLimit::from_verbs(10_000, 1, 0)), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &slow).unwrap();
        (1..3).for_each(|id| pair.post(0, ends.qp[0], &wr(id, SEND, &segments)));
        (0..3).for_each(|_| assert!(pair.step()));
        let drain = QpAttr {
            state: Some(QpState::SendQueueDrained),
            drain_event: Some(true),
            ..QpAttr::default()
        };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &drain).unwrap();
        assert!(pair.nodes[0].query_qp(ends.qp[0]).unwrap().draining, "half-way through a message");
        pair.nodes[0].dereg_mr(gone.lkey).unwrap();
        assert!(pair.settle(Duration::from_ms(100)));
        pair.post(0, ends.qp[0], &wr(3, SEND, &[]));
        let statuses = |pair: &mut Pair| -> Vec<_> {
            pair.completions(0, ends.cq[0]).iter().map(|c| (c.wr_id, c.status)).collect()
        };
        let failed = [(1, Status::LocalProtection), (2, Status::WrFlush), (3, Status::WrFlush)];
        assert_eq!(statuses(&mut pair), failed);
        assert_eq!(pair.state(0, ends.qp[0]), QpState::SendQueueError);
        assert!(pair.events(0).is_empty(), "it never drained");

        pair.post(1, ends.qp[1], &wr(9, SEND, &[sge(&ends, 1, 0, 100)]));
        pair.post(
            1,
            ends.qp[1],
            &wr(9, write_to(&ends, 0, 400_000), &[sge(&ends, 1, 0, LEN as u32)]),
        );
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(statuses(&mut pair), [(70, Status::Success)]);
        assert_eq!(pair.bytes(0, 400_000, LEN), pair.bytes(1, 0, LEN));
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 2);

        let state = Some(QpState::ReadyToSend);
        let go = QpAttr { state, access: Some(Access::LOCAL_WRITE), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &go).unwrap();
        pair.post(0, ends.qp[0], &wr(4, SEND, &[sge(&ends, 0, 0, LEN as u32)]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(statuses(&mut pair), [(4, Status::Success)]);
        let got: Vec<_> =
            pair.completions(1, ends.cq[1]).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(
            got,
            [(50, Status::Success)],
            "the message after the broken one, into its receive"
        );
        assert_eq!(pair.bytes(1, 500_000, LEN), pair.bytes(0, 0, LEN));
        let counters = pair.nodes[1].counters();
        assert_eq!(
            (counters.get(Counter::SequenceGap), counters.get(Counter::MessageBrokenOff)),
            (0, 1)
        );
        pair.post(1, ends.qp[1], &wr(9, write_to(&ends, 0, 0), &[sge(&ends, 1, 0, 100)]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(
            pair.nodes[0].counters().get(DropReason::WriteRefused),
            1,
            "as it was told on the way"
        );
    }

    #[test]
    fn draining_ends_the_message_that_has_begun() {
        let (mut pair, ends) = connected();
        let slow =
            QpAttr { rate_limit: Some(RateLimit::from_verbs(10_000, 1, 0)), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &slow).unwrap();
        for id in 0..2 {
            pair.recv(1, &ends, id, 500_000, 8000);
            pair.post(0, ends.qp[0], &wr(id, SEND, &[sge(&ends, 0, 0, LEN as u32)]));
        }
        (0..3).for_each(|_| assert!(pair.step()));
        let state = Some(QpState::SendQueueDrained);
        let drain = QpAttr { state, drain_event: Some(true), ..QpAttr::default() };
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &drain).unwrap();
        assert!(pair.nodes[0].query_qp(ends.qp[0]).unwrap().draining);
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(
            pair.events(0),
            [Event::Qp { qpn: ends.qp[0], kind: QpEvent::SendQueueDrained }]
        );
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
        pair.set_state(0, ends.qp[0], QpState::ReadyToSend);
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
    }
}
