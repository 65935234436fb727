//! Completion queues: resizing, overrun, timestamps.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::{Duration, Instant, Qpn};

const SOON: Duration = Duration::from_ms(100);

/// A connection whose completions on node 0 go to a CQ of `capacity`, and node 0's QP.
fn on_small_cq(capacity: u32) -> (Pair, Ends, CqId, Qpn) {
    let mut pair = Pair::new(1, 1 << 16);
    let ends = pair.connect(&Link::default());
    let cq = pair.nodes[0].create_cq(capacity).unwrap();
    let init = qp_init(QpKind::Rc, ends.pd[0], cq, 64);
    let qp = pair.nodes[0].create_qp(&init).unwrap();
    let peer = pair.another(1, &ends, QpKind::Rc, None);
    pair.bring_up(0, qp, 1, peer, &Link::default());
    pair.bring_up(1, peer, 0, qp, &Link::default());
    (pair, ends, cq, qp)
}

fn write(pair: &mut Pair, ends: &Ends, qp: Qpn, count: u64) {
    for id in 0..count {
        pair.post(0, qp, &wr(id, write_to(ends, 1, 0), &[sge(ends, 0, 0, 10)]));
    }
}

mod capacity {
    use super::*;

    #[test]
    fn a_queue_grows_and_shrinks_around_what_waits() {
        let (mut pair, ends, cq, qp) = on_small_cq(4);
        write(&mut pair, &ends, qp, 4);
        assert!(pair.settle(SOON));
        assert!(pair.nodes[0].resize_cq(cq, 3).is_err());
        assert!(pair.nodes[0].resize_cq(cq, 0).is_err());
        pair.nodes[0].resize_cq(cq, 6).unwrap();
        write(&mut pair, &ends, qp, 2);
        assert!(pair.settle(SOON));
        assert_eq!(pair.events(0), []);
        let ids: Vec<_> = pair.completions(0, cq).iter().map(|c| c.wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 0, 1], "none lost, in order");
        pair.nodes[0].resize_cq(cq, 1).unwrap();
        write(&mut pair, &ends, qp, 2);
        assert!(pair.settle(SOON));
        assert_eq!(pair.events(0)[0], Event::CqError(cq));
    }

    #[test]
    fn an_overrun_breaks_the_qps_of_that_queue_alone() {
        let (mut pair, ends, cq, qp) = on_small_cq(4);
        let bystander = pair.nodes[0].create_qp(&qp_init(QpKind::Rc, ends.pd[0], cq, 4)).unwrap();
        write(&mut pair, &ends, qp, 6);
        assert!(pair.settle(SOON));
        let fatal = Event::Qp { qpn: qp, kind: QpEvent::Fatal };
        assert_eq!(pair.events(0), [Event::CqError(cq), fatal]);
        assert_eq!(pair.state(0, qp), QpState::Error);
        assert_eq!(pair.state(0, bystander), QpState::Reset, "nothing to fail");
        assert_eq!(pair.state(0, ends.qp[0]), QpState::ReadyToSend);
        assert_eq!(pair.completions(0, cq).len(), 4);
        assert_eq!(pair.nodes[0].counters().get(Counter::CqOverrun), 2);
    }

    #[test]
    fn flushing_into_a_full_queue_breaks_its_other_qps_at_once() {
        let (mut pair, ends, cq, qp) = on_small_cq(2);
        let failed = pair.nodes[0].create_qp(&qp_init(QpKind::Rc, ends.pd[0], cq, 8)).unwrap();
        let init = transitions(ip(1), ends.qp[1], 0, 0, &Link::default())[0];
        pair.nodes[0].modify_qp(pair.now, failed, &init).unwrap();
        pair.set_state(0, failed, QpState::Error);
        for wr_id in 0..3 {
            pair.nodes[0].post_recv(failed, &RecvWr { wr_id, segments: &[] }).unwrap();
        }
        assert_eq!(pair.state(0, qp), QpState::Error);
    }

    #[test]
    fn events_of_what_is_gone_are_not_told() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.nodes[0].arm_cq(ends.cq[0], false).unwrap();
        pair.recv(0, &ends, 1, 0, 10);
        pair.set_state(0, ends.qp[0], QpState::Error);
        pair.nodes[0].destroy_qp(ends.qp[0]).unwrap();
        pair.nodes[0].destroy_cq(ends.cq[0]).unwrap();
        assert_eq!(pair.nodes[0].create_cq(4).unwrap(), ends.cq[0], "the number is used again");
        assert_eq!(pair.events(0), []);
    }
}

#[test]
fn those_of_a_qp_that_is_reset_or_gone_are_gone_too() {
    for destroys in [true, false] {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let (pd, cq) = (ends.pd[0], ends.cq[0]);
        let other = pair.nodes[0].create_qp(&qp_init(QpKind::Rc, pd, cq, 8)).unwrap();
        let init = transitions(ip(1), ends.qp[1], 0, 0, &Link::default())[0];
        pair.nodes[0].modify_qp(pair.now, other, &init).unwrap();
        pair.set_state(0, other, QpState::Error);
        pair.nodes[0].post_recv(other, &RecvWr { wr_id: 7, segments: &[] }).unwrap();
        pair.recv(0, &ends, 1, 0, 10);
        pair.set_state(0, ends.qp[0], QpState::Error);
        assert_eq!(pair.nodes[0].cq_len(cq), 2);
        if destroys {
            pair.nodes[0].destroy_qp(ends.qp[0]).unwrap();
        } else {
            pair.set_state(0, ends.qp[0], QpState::Reset);
        }
        let left: Vec<_> = pair.completions(0, cq).iter().map(|c| (c.wr_id, c.qpn)).collect();
        assert_eq!(left, [(7, other)]);
    }
}

#[test]
fn timestamps_never_step_back_and_say_when() {
    let mut pair = Pair::new(3, 1 << 16);
    let ends = pair.connect(&Link::default());
    pair.set_wire(Wire { loss: 0.02, ..Wire::default() });
    let mut last = Instant::ZERO;
    let mut count = 0;
    for _ in 0..20 {
        write(&mut pair, &ends, ends.qp[0], 50);
        while pair.step() {
            let now = pair.now;
            for c in pair.completions(0, ends.cq[0]) {
                assert!(
                    c.timestamp >= last && c.timestamp == now,
                    "{:?} after {last:?} at {now:?}",
                    c.timestamp
                );
                last = c.timestamp;
                count += 1;
            }
        }
    }
    assert_eq!(count, 1000);
}
