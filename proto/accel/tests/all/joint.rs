//! Accelerators that feed one path share its rate.

use longhaul_accel::{Accelerator, Config, JointRate, LAN, Pacing, WAN};
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::{BitRate, Duration, Instant};

const FRAME_BYTES: usize = 1000;
/// Bytes on the wire.
const WIRE_BYTES: u64 = FRAME_BYTES as u64 + 24;

#[derive(Default)]
struct Count(u64);

impl Transmit for Count {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, _frame: &Frame<'_>) {
        assert_eq!(side, WAN);
        self.0 += 1;
    }
}

/// Runs accelerators at 1 Gbit/s with so many non-RDMA frames each. Returns the frames of each that
/// leave within 10 ms.
fn sent(joint: Option<&JointRate>, frames: [u64; 2]) -> [u64; 2] {
    let own: Pacing = BitRate::from_gbps(1).into();
    let wan_pacing = joint.cloned().map_or(own.clone(), Pacing::Shared);
    let config = Config { wan_pacing, ..Config::default() };
    let alone = Config { wan_pacing: own, ..config.clone() };
    // One gets the joint rate at creation, the other one later.
    let mut boxes = [config.clone(), alone].map(|config| Accelerator::new(config).unwrap());
    boxes[1].reconfigure(config).unwrap();
    let mut now = Instant::from_ns(1);
    let frame = [&[2; 12], &[0x88, 0xb5][..], &[7; FRAME_BYTES - 14]].concat();
    for (one, count) in boxes.iter_mut().zip(frames) {
        for _ in 0..count {
            one.handle_frame(now, LAN, &Frame::opaque(&frame));
        }
    }
    let end = now + Duration::from_ms(10);
    let mut counts = [Count::default(), Count::default()];
    loop {
        for (one, count) in boxes.iter_mut().zip(&mut counts) {
            one.handle_timeout(now);
            one.poll_transmit(now, count);
        }
        let next = boxes.iter().filter_map(|one| Some(one.poll_timeout()?.at)).min();
        match next.filter(|at| *at < end) {
            Some(at) => now = at.max(now + Duration::from_ps(1)),
            None => return counts.map(|count| count.0),
        }
    }
}

#[test]
fn each_takes_what_the_others_leave() {
    let joint = JointRate::new(BitRate::from_gbps(1).unwrap());
    let whole = BitRate::from_gbps(1).unwrap().bytes_in(Duration::from_ms(10)) / WIRE_BYTES;
    // Each may be ahead by two batches of 16 KiB.
    let slack = 2 * 2 * (16 << 10) / WIRE_BYTES + 4;
    let [one, other] = sent(Some(&joint), [5000, 0]);
    assert_eq!(other, 0);
    assert!(one.abs_diff(whole) <= slack, "{one} of {whole}");
    let joint = JointRate::new(BitRate::from_gbps(1).unwrap());
    let both = sent(Some(&joint), [5000, 5000]);
    assert!((both[0] + both[1]).abs_diff(whole) <= slack, "{both:?} of {whole}");
    assert!(both[0].abs_diff(both[1]) <= slack, "{both:?}");
    // Without a joint rate each has the whole rate, and the burst of a full bucket.
    let each = sent(None, [5000, 5000]);
    assert!(
        each.iter().all(|one| one.abs_diff(whole) <= slack + (64 << 10) / WIRE_BYTES),
        "{each:?}"
    );
}
