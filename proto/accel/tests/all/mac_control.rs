//! MAC control frames are valid on one link only: the accelerator, an end of that link, does not
//! forward them.

use longhaul_accel::{Accelerator, Config, DropReason};
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::Instant;
use longhaul_wire::{MacAddr, Pause};

struct Count(usize);

impl Transmit for Count {
    fn room(&mut self, _: Side) -> usize {
        64
    }
    fn transmit(&mut self, _: Side, _: &Frame<'_>) {
        self.0 += 1;
    }
}

#[test]
fn pauses_stay_on_their_side_and_other_link_frames_pass() {
    let mut accelerator = Accelerator::new(Config::default()).unwrap();
    let mut out = Count(0);
    let mut frame = Pause::of(3, 7).write(MacAddr([2, 0, 0, 0, 0, 1]));
    for side in [0, 1] {
        accelerator.handle_frame(Instant::ZERO, side, &Frame::opaque(&frame));
        accelerator.poll_transmit(Instant::ZERO, &mut out);
    }
    assert_eq!(out.0, 0);
    assert_eq!(accelerator.counters().drops.get(DropReason::MacControl), 2);
    // Bridges do not forward LLDP, but a box in the middle of a cable does.
    frame[5] = 0x0e;
    frame[12..14].copy_from_slice(&[0x88, 0xcc]);
    accelerator.handle_frame(Instant::ZERO, 0, &Frame::opaque(&frame));
    accelerator.poll_transmit(Instant::ZERO, &mut out);
    assert_eq!(out.0, 1);
}
