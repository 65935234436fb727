//! Software RNIC, accelerator, fibre, accelerator, software RNIC: the lab's chain in virtual time.

use crate::host::{BASE, LOCAL, REMOTE};
use crate::line::{Line, Setup};
use longhaul_accel::FlowState;
use longhaul_rnic::{RecvWr, SendOp, SendWr, Status};
use longhaul_units::{Duration, Rng, SplitMix64};

#[derive(Clone, Copy)]
enum Op {
    Write,
    Send,
    Read,
    /// Adds one to the first word of its slot at the peer.
    Add,
}

/// Posts `count` messages of all kinds and sizes, waits for their completion, and compares all
/// bytes.
fn mixture(setup: Setup, count: usize) -> Line {
    const SLOT: usize = 64 << 10;
    let mut line = Line::new(Setup { memory: SLOT * count, ..setup });
    let mut rng = SplitMix64::new(setup.seed);
    for host in [LOCAL, REMOTE] {
        line.host_mut(host).memory_mut().0.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
    }
    let sizes = [1, 64, 4095, 4096, 4097, 20_000, SLOT];
    let ops: Vec<(Op, usize)> = (0..count)
        .map(|_| match [Op::Write, Op::Send, Op::Read, Op::Add][rng.below(4) as usize] {
            Op::Add => (Op::Add, 8),
            op => (op, sizes[rng.below(7) as usize]),
        })
        .collect();
    let words: Vec<u64> =
        (0..count).map(|i| line.host(REMOTE).memory().word(BASE + (i * SLOT) as u64)).collect();
    for (i, &(op, len)) in ops.iter().enumerate() {
        if matches!(op, Op::Send) {
            let segments = [line.ends[REMOTE].segment(i * SLOT, len)];
            let wr = RecvWr { wr_id: i as u64, segments: &segments };
            let qp = line.ends[REMOTE].qpn;
            line.host_mut(REMOTE).post_recv(qp, &wr).unwrap();
        }
    }
    let (mut posted, mut completed, mut received) = (0, 0, Vec::new());
    let end = line.now + Duration::from_ms(120_000);
    loop {
        while posted < count && posted - completed < setup.depth as usize {
            let (op, len) = ops[posted];
            let (remote_address, rkey) =
                (BASE + (posted * SLOT) as u64, line.ends[REMOTE].keys.rkey);
            let op = match op {
                Op::Write => SendOp::Write { remote_address, rkey, immediate: None },
                Op::Send => SendOp::Send { immediate: None, invalidate: None },
                Op::Read => SendOp::Read { remote_address, rkey },
                Op::Add => SendOp::FetchAdd { remote_address, rkey, add: 1 },
            };
            let segments = [line.ends[LOCAL].segment(posted * SLOT, len)];
            let wr = SendWr {
                wr_id: posted as u64,
                op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            let (now, qp) = (line.now, line.ends[LOCAL].qpn);
            line.host_mut(LOCAL).post_send(now, qp, &wr).unwrap();
            posted += 1;
        }
        for completion in line.completions(LOCAL) {
            assert_eq!(completion.status, Status::Success);
            assert_eq!(completion.wr_id, completed as u64, "each once, in order");
            completed += 1;
        }
        received.extend(line.completions(REMOTE).into_iter().map(|c| c.wr_id));
        let delivered = line.boxes().all(|b| b.flows().all(|f| f.stored_frames == 0));
        if completed == count && delivered {
            break;
        }
        assert!(line.now < end, "not done: {completed} of {count}");
        let may_post = posted < count && posted - completed < setup.depth as usize;
        assert!(may_post || line.step(), "asleep at {completed} of {count}");
    }
    let sends: Vec<u64> =
        (0..count as u64).filter(|&i| matches!(ops[i as usize].0, Op::Send)).collect();
    assert_eq!(received, sends, "each SEND fills one receive, in order");
    for (i, &(op, len)) in ops.iter().enumerate() {
        if matches!(op, Op::Add) {
            let [local, remote] =
                [LOCAL, REMOTE].map(|host| line.host(host).memory().word(BASE + (i * SLOT) as u64));
            assert_eq!(
                (local, remote),
                (words[i], words[i].wrapping_add(1)),
                "addition {i}, exactly once"
            );
            continue;
        }
        let range = i * SLOT..i * SLOT + len;
        let [local, remote] =
            [LOCAL, REMOTE].map(|host| &line.host(host).memory().0[range.clone()]);
        assert!(local == remote, "message {i} of {len} bytes");
    }
    line
}

/// Messages per second of virtual time for `count` WRITEs of `len` bytes.
fn write_rate(setup: Setup, len: usize, count: usize) -> f64 {
    let mut line = Line::new(setup);
    let (mut posted, mut completed) = (0, 0);
    let start = line.now;
    while completed < count {
        while posted < count && posted - completed < setup.depth as usize {
            let segments = [line.ends[LOCAL].segment(0, len)];
            let op = SendOp::Write {
                remote_address: BASE,
                rkey: line.ends[REMOTE].keys.rkey,
                immediate: None,
            };
            let wr = SendWr {
                wr_id: posted as u64,
                op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            let (now, qp) = (line.now, line.ends[LOCAL].qpn);
            line.host_mut(LOCAL).post_send(now, qp, &wr).unwrap();
            posted += 1;
        }
        let new = line.completions(LOCAL).len();
        completed += new;
        assert!(new > 0 || line.step(), "asleep");
    }
    count as f64 / line.now.since(start).as_secs_f64()
}

mod bytes_and_completions {
    use super::*;

    #[test]
    fn are_right_without_any_box() {
        for loss in [0.0, 1e-3] {
            mixture(Setup { boxes: [false, false], loss, ..Setup::default() }, 60);
        }
    }

    #[test]
    fn are_right_with_a_box_at_each_side() {
        for (seed, loss) in [(1, 0.0), (2, 1e-3), (3, 1e-2)] {
            let line = mixture(Setup { seed, loss, ..Setup::default() }, 100);
            let near = line.boxes().next().unwrap();
            assert!(near.counters().pseudo_acks > 0);
            assert_eq!(near.counters().flows_failed, 0);
        }
    }

    #[test]
    fn are_right_with_one_box_and_no_connection_manager() {
        for (seed, loss) in [(4, 0.0), (5, 1e-3), (6, 1e-2)] {
            let line = mixture(
                Setup { seed, loss, cm: false, boxes: [true, false], ..Setup::default() },
                200,
            );
            let near = line.boxes().next().unwrap();
            assert!(near.flows().all(|flow| flow.state == FlowState::Terminated), "seed {seed}");
        }
    }
}

mod distance {
    use super::*;

    #[test]
    fn gain_at_1000_km_and_512_bytes_is_more_than_35() {
        let plain = write_rate(Setup { boxes: [false, false], ..Setup::default() }, 512, 1_000);
        let accelerated = write_rate(Setup::default(), 512, 50_000);
        assert!((10_000.0..13_500.0).contains(&plain), "128 per 10 ms: {plain}");
        assert!(accelerated / plain > 35.0, "{accelerated} / {plain}");
    }

    #[test]
    fn does_not_matter_to_4_kib_writes_any_more() {
        let near =
            write_rate(Setup { km: 0, boxes: [false, false], ..Setup::default() }, 4096, 20_000);
        for km in [10, 100, 1000] {
            let far = write_rate(Setup { km, ..Setup::default() }, 4096, 20_000);
            assert!(far > 0.9 * near, "{km} km: {far} of {near}");
        }
    }
}
