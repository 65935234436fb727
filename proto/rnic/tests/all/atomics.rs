//! Atomics: each is executed once and in order, whatever the wire does.

use crate::pair::*;
use longhaul_rnic::*;
use longhaul_units::Duration;

const WORD: usize = 4096;

fn fetch_add(ends: &Ends, at: usize, add: u64) -> SendOp {
    SendOp::FetchAdd { remote_address: BASE + at as u64, rkey: ends.mr[1].rkey, add }
}

fn compare_swap(ends: &Ends, at: usize, compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { remote_address: BASE + at as u64, rkey: ends.mr[1].rkey, compare, swap }
}

#[test]
fn each_tells_what_it_found() {
    let mut pair = Pair::new(1, 1 << 16);
    let ends = pair.connect(&Link::default());
    let ops = [
        (fetch_add(&ends, WORD, 5), 0),
        (fetch_add(&ends, WORD, u64::MAX), 5),
        (compare_swap(&ends, WORD, 4, 100), 4),
        (compare_swap(&ends, WORD, 4, 200), 100),
        (fetch_add(&ends, WORD, 1), 100),
    ];
    for (i, (op, _)) in ops.iter().enumerate() {
        pair.post(0, ends.qp[0], &wr(i as u64, *op, &[sge(&ends, 0, 8 * i, 8)]));
    }
    assert!(pair.settle(Duration::from_ms(100)));
    let done = pair.completions(0, ends.cq[0]);
    assert_eq!(done.len(), ops.len());
    assert!(done.iter().all(|c| c.status == Status::Success && c.byte_len == 8));
    assert_eq!(done[0].op, CompletionOp::FetchAdd);
    assert_eq!(done[2].op, CompletionOp::CmpSwap);
    for (i, (_, found)) in ops.iter().enumerate() {
        assert_eq!(pair.nodes[0].memory().word(BASE + 8 * i as u64), *found, "operation {i}");
    }
    assert_eq!(pair.nodes[1].memory().word(BASE + WORD as u64), 101);
}

#[test]
fn over_a_bad_wire_none_is_executed_twice_or_forgotten() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed, 1 << 16);
        let ends = pair.connect(&Link {
            reads: 1 + seed as u8 % 4,
            psn: [0xff_fff0, 3],
            ..Link::default()
        });
        let jitter = Duration::from_us(15);
        pair.set_wire(Wire { loss: 0.1, duplication: 0.1, jitter, ..Wire::default() });
        let mut sum = 0u64;
        for id in 0..60u64 {
            sum += id + 1;
            let result = sge(&ends, 0, 8 * id as usize, 8);
            pair.post(0, ends.qp[0], &wr(id, fetch_add(&ends, WORD, id + 1), &[result]));
        }
        assert!(pair.settle(Duration::from_ms(20_000)));
        let done = pair.completions(0, ends.cq[0]);
        if done.iter().any(|c| c.status == Status::RetryExceeded) {
            continue;
        }
        assert_eq!(done.len(), 60, "seed {seed}");
        assert_eq!(pair.nodes[1].memory().word(BASE + WORD as u64), sum, "seed {seed}");
        let mut found = 0;
        for id in 0..60u64 {
            assert_eq!(
                pair.nodes[0].memory().word(BASE + 8 * id),
                found,
                "seed {seed}, operation {id}"
            );
            found += id + 1;
        }
        assert_eq!(pair.nodes[1].counters().get(Counter::RxAtomicRequests), 60);
    }
}

mod refusal {
    use super::*;

    fn fails_with(status: Status, event: QpEvent, change: impl FnOnce(&mut Pair, &Ends) -> SendOp) {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let op = change(&mut pair, &ends);
        let before = pair.nodes[1].memory().0.clone();
        pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, 0, 8)]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, status);
        assert!(pair.nodes[1].memory().0 == before);
        assert_eq!(pair.events(1), [Event::Qp { qpn: ends.qp[1], kind: event }]);
    }

    #[test]
    fn key_range_and_permission_are_checked() {
        fails_with(Status::RemoteAccess, QpEvent::AccessError, |_, ends| {
            fetch_add(ends, 1 << 16, 1)
        });
        fails_with(Status::RemoteAccess, QpEvent::AccessError, |pair, ends| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let mr = pair.nodes[1].reg_mr(ends.pd[1], BASE, 4096, BASE, access).unwrap();
            SendOp::FetchAdd { remote_address: BASE, rkey: mr.rkey, add: 1 }
        });
        fails_with(Status::RemoteAccess, QpEvent::AccessError, |pair, ends| {
            // Aligned in the peer's address space, but not in memory.
            let mr = pair.nodes[1].reg_mr(ends.pd[1], BASE + 4, 4096, 0, Access::ALL).unwrap();
            SendOp::FetchAdd { remote_address: 8, rkey: mr.rkey, add: 1 }
        });
        fails_with(Status::RemoteInvalidRequest, QpEvent::RequestError, |pair, ends| {
            let access = Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
            let attr = QpAttr { access, ..QpAttr::default() };
            pair.nodes[1].modify_qp(pair.now, ends.qp[1], &attr).unwrap();
            fetch_add(ends, WORD, 1)
        });
    }

    #[test]
    fn more_than_the_responder_takes_is_invalid() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link { reads: 0, ..Link::default() });
        let now = pair.now;
        let refused = pair.nodes[0].post_send(
            now,
            ends.qp[0],
            &wr(1, fetch_add(&ends, WORD, 1), &[sge(&ends, 0, 0, 8)]),
        );
        assert_eq!(refused.unwrap_err().class(), ErrorClass::Invalid);
    }
}
