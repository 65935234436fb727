//! Errors as a program sees them, at both ends.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::{Duration, Instant, RKey};

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

fn qp_events(pair: &mut Pair, n: usize) -> Vec<QpEvent> {
    let mut all = Vec::new();
    while let Some(event) = pair.nodes[n].poll_event() {
        if let Event::Qp { kind, .. } = event {
            all.push(kind);
        }
    }
    all
}

const FEW: Duration = Duration::from_ms(10_000);

mod remote_access {
    use super::*;

    fn refused(op: impl Fn(&Ends) -> SendOp) {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.recv(1, &ends, 77, 0, 100);
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.post(0, ends.qp[0], &wr(2, op(&ends), &[sge(&ends, 0, 0, 5000)]));
        pair.post(0, ends.qp[0], &wr(3, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 10)]));
        pair.settle(FEW);
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(
            statuses(&done),
            [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::WrFlush)]
        );
        let flushed = pair.completions(1, ends.cq[1]);
        assert_eq!(statuses(&flushed), [(77, Status::WrFlush)]);
        assert_eq!(qp_events(&mut pair, 1), [QpEvent::AccessError]);
        for n in 0..2 {
            assert_eq!(pair.nodes[n].query_qp(ends.qp[n]).unwrap().state, QpState::Error);
        }
        assert_eq!(pair.nodes[1].counters().get(Counter::RespRemoteAccess), 1);
    }

    #[test]
    fn a_wrong_rkey_fails_on_both_sides() {
        refused(|_| SendOp::Write { remote_address: BASE, rkey: RKey(0xdead), immediate: None });
        refused(|_| SendOp::Read { remote_address: BASE, rkey: RKey(0xdead) });
    }

    #[test]
    fn a_range_outside_the_region_fails_on_both_sides() {
        refused(|ends| write_to(ends, 1, (1 << 16) - 4999));
        refused(|ends| read_from(ends, 1, (1 << 16) - 4999));
    }

    #[test]
    fn a_deregistered_region_fails() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].dereg_mr(ends.mr[1].lkey).unwrap();
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.settle(FEW);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::RemoteAccess)]);
    }

    #[test]
    fn a_region_of_another_pd_fails() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let pd = pair.nodes[1].alloc_pd().unwrap();
        let other = pair.nodes[1].reg_mr(pd, BASE, 100, BASE, Access::ALL).unwrap();
        let op = SendOp::Write { remote_address: BASE, rkey: other.rkey, immediate: None };
        pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, 0, 50)]));
        pair.settle(FEW);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::RemoteAccess)]);
    }

    #[test]
    fn a_region_without_the_permission_fails() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let only_read =
            pair.nodes[1].reg_mr(ends.pd[1], BASE, 100, BASE, Access::REMOTE_READ).unwrap();
        let op = SendOp::Write { remote_address: BASE, rkey: only_read.rkey, immediate: None };
        pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, 0, 50)]));
        pair.settle(FEW);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::RemoteAccess)]);
    }

    #[test]
    fn an_invalidated_key_fails() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.recv(1, &ends, 5, 100, 100);
        let send = SendOp::Send { immediate: None, invalidate: Some(ends.mr[1].rkey) };
        pair.post(0, ends.qp[0], &wr(1, send, &[sge(&ends, 0, 0, 50)]));
        pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 50)]));
        pair.settle(FEW);
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(statuses(&done), [(1, Status::Success), (2, Status::RemoteAccess)]);
        assert_eq!(pair.completions(1, ends.cq[1])[0].invalidated, Some(ends.mr[1].rkey));
    }
}

mod local_protection {
    use super::*;

    #[test]
    fn a_stale_lkey_fails_the_request_after_those_before_it() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let stale = pair.nodes[0].reg_mr(ends.pd[0], BASE, 100, BASE, Access::ALL).unwrap();
        pair.nodes[0].dereg_mr(stale.lkey).unwrap();
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 50)]));
        let bad = [Sge { address: BASE, len: 50, lkey: stale.lkey }];
        pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &bad));
        pair.settle(FEW);
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(statuses(&done), [(1, Status::Success), (2, Status::LocalProtection)]);
    }

    /// Two packets of a long message have arrived, without an AckReq.
    fn deregistered_half_way(op: impl Fn(&Ends) -> SendOp) {
        let mut pair = Pair::with(1, 1 << 20, |c| {
            (c.window_packets, c.ack_request_every) = (1 << 20, 1 << 20)
        });
        let ends = pair.connect(&Link { timeout: 0, ..Link::default() });
        let gone = pair.nodes[0].reg_mr(ends.pd[0], BASE, 1 << 20, BASE, Access::ALL).unwrap();
        let slow =
            QpAttr { rate_limit: Some(RateLimit::from_verbs(10_000, 1, 0)), ..QpAttr::default() };
        (0..2).for_each(|n| pair.nodes[n].modify_qp(pair.now, ends.qp[n], &slow).unwrap());
        let segments = [Sge { address: BASE, len: 500_000, lkey: gone.lkey }];
        pair.post(0, ends.qp[0], &wr(1, op(&ends), &segments));
        pair.post(0, ends.qp[0], &wr(2, op(&ends), &segments));
        (0..4).for_each(|_| assert!(pair.step()));
        pair.nodes[0].dereg_mr(gone.lkey).unwrap();
        pair.settle(FEW);
        let done = statuses(&pair.completions(0, ends.cq[0]));
        assert_eq!(done, [(1, Status::LocalProtection), (2, Status::WrFlush)]);
        assert_eq!(pair.state(0, ends.qp[0]), QpState::Error, "as all reliable connections");
    }

    #[test]
    fn a_region_that_goes_away_half_way_fails_at_once_though_nobody_waits_for_an_ack() {
        deregistered_half_way(|ends| write_to(ends, 1, 0));
        deregistered_half_way(|ends| read_from(ends, 1, 0));
    }
}

mod receives {
    use super::*;

    #[test]
    fn a_receive_too_small_spoils_both_sides() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.recv(1, &ends, 9, 0, 1999);
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, 2000)]));
        pair.settle(FEW);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(statuses(&pair.completions(1, ends.cq[1])), [(9, Status::LocalLength)]);
        assert_eq!(qp_events(&mut pair, 1), [QpEvent::RequestError]);
    }

    #[test]
    fn a_late_receive_costs_an_rnr_nak_and_nothing_else() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { min_rnr_timer: 20, ..Link::default() });
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, 2000)]));
        for _ in 0..3 {
            pair.step();
        }
        assert_eq!(pair.nodes[0].counters().get(Counter::RxRnrNak), 1);
        pair.recv(1, &ends, 9, 0, 2000);
        let start = pair.now;
        pair.settle(FEW);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::Success)]);
        assert_eq!(statuses(&pair.completions(1, ends.cq[1])), [(9, Status::Success)]);
        assert!(
            pair.now.since(start) >= Duration::from_us(10_000),
            "waits the 10.24 ms of code 20"
        );
    }

    #[test]
    fn without_any_receive_rnr_retries_run_out() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { rnr_retry: 3, ..Link::default() });
        pair.post(0, ends.qp[0], &wr(1, SEND, &[sge(&ends, 0, 0, 2000)]));
        pair.post(0, ends.qp[0], &wr(2, SEND, &[sge(&ends, 0, 0, 2000)]));
        pair.settle(FEW);
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(statuses(&done), [(1, Status::RnrRetryExceeded), (2, Status::WrFlush)]);
        assert_eq!(pair.nodes[1].counters().get(Counter::TxRnrNak), 4);
    }
}

mod dead_peer {
    use super::*;

    #[test]
    fn retries_run_out_within_their_budget_then_everything_is_flushed() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { timeout: 10, retry: 7, ..Link::default() });
        pair.tap().lose = Box::new(|_, _| true);
        pair.recv(0, &ends, 100, 0, 10);
        for id in 1..=3 {
            let segments = [sge(&ends, 0, 0, 10)];
            let request = SendWr { signaled: id == 1, ..wr(id, write_to(&ends, 1, 0), &segments) };
            pair.post(0, ends.qp[0], &request);
        }
        pair.settle(FEW);
        assert_eq!(
            statuses(&pair.completions(0, ends.cq[0])),
            [
                (1, Status::RetryExceeded),
                (2, Status::WrFlush),
                (3, Status::WrFlush),
                (100, Status::WrFlush)
            ]
        );
        // 4.194 ms, for the first transmission and seven retries.
        let budget = Duration::of_ack_timeout(10).unwrap().times(8);
        assert_eq!(pair.now.since(Instant::ZERO), budget);
        assert_eq!(pair.nodes[0].counters().get(Counter::LocalAckTimeoutErr), 8);
    }

    #[test]
    fn what_is_posted_afterwards_is_flushed_at_once() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let error = QpAttr::to(QpState::Error);
        pair.nodes[0].modify_qp(pair.now, ends.qp[0], &error).unwrap();
        let segments = [sge(&ends, 0, 0, 10)];
        let request = SendWr { signaled: false, ..wr(4, write_to(&ends, 1, 0), &segments) };
        pair.post(0, ends.qp[0], &request);
        pair.recv(0, &ends, 5, 0, 10);
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(statuses(&done), [(4, Status::WrFlush), (5, Status::WrFlush)]);
    }
}

mod late_frames {
    use super::*;

    #[test]
    fn frames_for_a_destroyed_qp_are_counted_and_dropped() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { retry: 0, ..Link::default() });
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.nodes[1].destroy_qp(ends.qp[1]).unwrap();
        pair.settle(FEW);
        assert_eq!(pair.nodes[1].counters().get(DropReason::NoQp), 5);
        assert_eq!(statuses(&pair.completions(0, ends.cq[0])), [(1, Status::RetryExceeded)]);
    }

    #[test]
    fn destroying_with_packets_and_timers_pending_leaves_nothing_behind() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.step();
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.nodes[0].destroy_qp(ends.qp[0]).unwrap();
        assert!(pair.settle(FEW));
        assert!(pair.completions(0, ends.cq[0]).is_empty());
        assert_eq!(pair.nodes[0].counters().get(DropReason::NoQp), 1, "the ACK finds nobody");
    }
}
