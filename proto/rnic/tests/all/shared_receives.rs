//! Shared receive queues: many QPs take receives from one, and each uses only its own.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::{Duration, Qpn};
use std::collections::BTreeSet;

const SOON: Duration = Duration::from_ms(200);

struct Shared {
    pair: Pair,
    ends: Ends,
    srq: SrqId,
    qps: Vec<[Qpn; 2]>,
}

fn shared(kind: QpKind, count: usize, depth: u32) -> Shared {
    let mut pair = Pair::new(1, 1 << 20);
    let ends = pair.connect(&Link::default());
    pair.fill(0, 0, 100_000, 7);
    let init = SrqInit { pd: ends.pd[1], depth, sge_max: 2, limit: 0 };
    let srq = pair.nodes[1].create_srq(&init).unwrap();
    let qps =
        (0..count).map(|_| pair.another_pair(&ends, kind, Some(srq), &Link::default())).collect();
    Shared { pair, ends, srq, qps }
}

impl Shared {
    fn receive(&mut self, wr_id: u64, len: u32) {
        let segments = [sge(&self.ends, 1, 500_000 + 2000 * wr_id as usize, len)];
        self.pair.nodes[1].post_srq_recv(self.srq, &RecvWr { wr_id, segments: &segments }).unwrap();
    }

    fn send(&mut self, qp: usize, wr_id: u64, len: u32) {
        let op = SendOp::Send { immediate: Some((wr_id as u32).to_be_bytes()), invalidate: None };
        let segments = [sge(&self.ends, 0, 16 * wr_id as usize, len)];
        self.pair.post(0, self.qps[qp][0], &wr(wr_id, op, &segments));
    }

    fn settle(&mut self) {
        assert!(self.pair.settle(SOON));
    }

    fn received(&mut self) -> Vec<Completion> {
        self.pair.completions(1, self.ends.cq[1])
    }
}

mod sharing {
    use super::*;

    fn all_get_theirs(kind: QpKind) {
        let mut s = shared(kind, 8, 64);
        (0..40).for_each(|id| s.receive(id, 2000));
        for id in 0..40 {
            s.send(id as usize % 8, id, 1500);
        }
        s.settle();
        let got = s.received();
        assert_eq!(got.len(), 40);
        let ids: BTreeSet<_> = got.iter().map(|c| c.wr_id).collect();
        assert_eq!(ids.len(), 40, "each receive once");
        for c in got {
            let message = u32::from_be_bytes(c.immediate.unwrap());
            assert_eq!(c.qpn, s.qps[message as usize % 8][1]);
            let (to, from) = (500_000 + 2000 * c.wr_id as usize, 16 * message as usize);
            assert_eq!(s.pair.bytes(1, to, 1500), s.pair.bytes(0, from, 1500));
        }
    }

    #[test]
    fn messages_of_many_qps_land_whole_in_receives_of_one_queue() {
        all_get_theirs(QpKind::Rc);
        all_get_theirs(QpKind::Uc);
    }

    #[test]
    fn two_thousand_qps_of_each_kind_fill_one_queue() {
        const EACH: usize = 2000;
        let mut s = shared(QpKind::Rc, EACH, 8192);
        let (ends, srq) = (&s.ends, Some(s.srq));
        let unreliable: Vec<_> = (0..EACH)
            .map(|_| s.pair.another_pair(ends, QpKind::Uc, srq, &Link::default()))
            .collect();
        s.qps.extend(unreliable);
        let segments = [sge(&s.ends, 1, 500_000, 20_000)];
        for wr_id in 0..2 * EACH as u64 {
            s.pair.nodes[1].post_srq_recv(s.srq, &RecvWr { wr_id, segments: &segments }).unwrap();
        }
        let segments = [sge(&s.ends, 0, 0, 16_384)];
        for qp in &s.qps {
            let now = s.pair.now;
            s.pair.nodes[0].post_send(now, qp[0], &wr(1, SEND, &segments)).unwrap();
        }
        s.settle();
        let got = s.received();
        assert!(got.iter().all(|c| c.status == Status::Success && c.byte_len == 16_384));
        let (ids, qps) = (got.iter().map(|c| c.wr_id), got.iter().map(|c| c.qpn.get()));
        assert_eq!(ids.collect::<BTreeSet<_>>().len(), 2 * EACH);
        assert_eq!(qps.collect::<BTreeSet<_>>().len(), 2 * EACH);
        assert_eq!(s.pair.nodes[0].counters().get(Counter::TxRetransmits), 0);
    }

    #[test]
    fn an_empty_queue_is_not_ready_and_the_sender_comes_again() {
        let mut s = shared(QpKind::Rc, 2, 4);
        s.send(0, 1, 100);
        (0..20).for_each(|_| assert!(s.pair.step()));
        assert!(s.pair.nodes[0].counters().get(Counter::RxRnrNak) > 0);
        s.receive(1, 100);
        s.settle();
        assert_eq!(s.received().len(), 1);
        assert_eq!(s.pair.completions(0, s.ends.cq[0])[0].status, Status::Success);
    }

    #[test]
    fn a_qp_has_no_receives_of_its_own_beside() {
        let mut s = shared(QpKind::Rc, 1, 4);
        let refused = s.pair.nodes[1].post_recv(s.qps[0][1], &RecvWr { wr_id: 1, segments: &[] });
        assert_eq!(refused, Err(PostError::HasSharedQueue));
        assert_eq!(s.pair.nodes[1].query_qp(s.qps[0][1]).unwrap().init.rq_depth, 0);
    }
}

mod events {
    use super::*;

    #[test]
    fn the_limit_is_told_once_until_it_is_set_again() {
        let mut s = shared(QpKind::Rc, 2, 16);
        let limit = |s: &mut Shared| s.pair.nodes[1].modify_srq(s.srq, None, Some(3)).unwrap();
        limit(&mut s);
        (0..6).for_each(|id| s.receive(id, 100));
        let told = Event::SrqLimitReached(s.srq);
        for (id, expected) in [(0, false), (1, false), (2, false), (3, true), (4, false)] {
            s.send(id as usize % 2, id, 50);
            s.settle();
            assert_eq!(s.pair.events(1).contains(&told), expected, "message {id}");
        }
        assert_eq!(s.pair.nodes[1].query_srq(s.srq).unwrap().limit, 0);
        limit(&mut s);
        s.send(0, 5, 50);
        s.settle();
        assert_eq!(s.pair.events(1), [told]);
    }

    #[test]
    fn a_failed_qp_says_that_it_takes_no_more_and_leaves_the_rest() {
        let mut s = shared(QpKind::Rc, 2, 8);
        (0..3).for_each(|id| s.receive(id, 2000));
        // Half of a message, so that one receive is taken.
        let mut passed = 0;
        s.pair.tap().lose = Box::new(move |sender, _| {
            passed += usize::from(sender == 0);
            sender == 0 && passed > 1
        });
        s.send(0, 7, 1500);
        (0..4).for_each(|_| assert!(s.pair.step()));
        s.pair.set_state(1, s.qps[0][1], QpState::Error);
        let qpn = s.qps[0][1];
        assert_eq!(s.pair.events(1), [Event::Qp { qpn, kind: QpEvent::LastWqeReached }]);
        let flushed = s.received();
        assert_eq!(
            flushed.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(),
            [(0, Status::WrFlush)]
        );
        s.pair.tap().lose = Box::new(|_, _| false);
        (8..10).for_each(|id| s.send(1, id, 100));
        s.pair.settle(SOON);
        assert_eq!(s.received().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
    }
}

mod accounting {
    use super::*;

    /// Number of further receives that fit.
    fn space(s: &mut Shared) -> u32 {
        let recv = RecvWr { wr_id: 99, segments: &[] };
        std::iter::from_fn(|| s.pair.nodes[1].post_srq_recv(s.srq, &recv).ok()).count() as u32
    }

    fn with_a_taken_receive() -> Shared {
        let mut s = shared(QpKind::Rc, 1, 4);
        s.receive(0, 2000);
        let mut passed = 0;
        s.pair.tap().lose = Box::new(move |sender, _| {
            passed += usize::from(sender == 0);
            sender == 0 && passed > 1
        });
        s.send(0, 7, 1500);
        (0..4).for_each(|_| assert!(s.pair.step()));
        s
    }

    #[test]
    fn what_a_qp_was_filling_counts_until_it_goes() {
        let mut s = with_a_taken_receive();
        assert_eq!(space(&mut s), 3);
    }

    #[test]
    fn reset_and_destruction_give_it_back() {
        let mut s = with_a_taken_receive();
        s.pair.set_state(1, s.qps[0][1], QpState::Reset);
        assert_eq!(space(&mut s), 4);
        let mut s = with_a_taken_receive();
        s.pair.nodes[1].destroy_qp(s.qps[0][1]).unwrap();
        assert_eq!(space(&mut s), 4);
        assert!(s.received().is_empty());
    }

    #[test]
    fn it_is_busy_while_qps_use_it_and_of_one_domain() {
        let mut s = shared(QpKind::Uc, 2, 4);
        let (srq, pd, cq) = (s.srq, s.ends.pd[1], s.ends.cq[1]);
        let qps = s.qps.clone();
        let node = &mut s.pair.nodes[1];
        assert_eq!(node.destroy_srq(srq), Err(VerbsError::Busy { what: "SRQ", users: 2 }));
        let other = node.alloc_pd().unwrap();
        let init = QpInit { srq: Some(srq), ..qp_init(QpKind::Rc, other, cq, 4) };
        assert_eq!(node.create_qp(&init).unwrap_err().class(), ErrorClass::Invalid);
        qps.iter().for_each(|qp| node.destroy_qp(qp[1]).unwrap());
        node.destroy_srq(srq).unwrap();
        assert_eq!(node.destroy_srq(srq), Err(VerbsError::NoSuch("SRQ")));
        assert_eq!(
            node.post_srq_recv(srq, &RecvWr { wr_id: 0, segments: &[] }),
            Err(PostError::NoSuchQp)
        );
        let init = QpInit { srq: Some(srq), ..qp_init(QpKind::Rc, pd, cq, 4) };
        assert_eq!(node.create_qp(&init), Err(VerbsError::NoSuch("SRQ")));
    }

    #[test]
    fn depth_and_limit_change_together_or_not_at_all() {
        let mut s = shared(QpKind::Rc, 1, 16);
        (0..5).for_each(|id| s.receive(id, 10));
        let node = &mut s.pair.nodes[1];
        assert!(node.modify_srq(s.srq, Some(4), Some(1)).is_err(), "five are posted");
        assert!(
            node.modify_srq(s.srq, Some(8), Some(9)).is_err(),
            "the limit is beyond the new depth"
        );
        let unchanged = node.query_srq(s.srq).unwrap();
        assert_eq!((unchanged.depth, unchanged.limit), (16, 0));
        node.modify_srq(s.srq, Some(8), Some(8)).unwrap();
        let changed = node.query_srq(s.srq).unwrap();
        assert_eq!((changed.depth, changed.limit), (8, 8));
    }
}
