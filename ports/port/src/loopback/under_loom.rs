//! Loom tests of a lane under all interleavings: each slot has one owner at a time, frames arrive
//! once and in order, and a sleeping receiver is woken.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use super::{LoopbackPort, pair};
use crate::{LinkState, Port};

/// Bytes of a frame, the minimum.
const LEN: usize = 14;

/// Models the bytes of each slot, which loom does not track.
struct Slots(Vec<UnsafeCell<u8>>);

// SAFETY: loom checks that no two threads use a cell at the same time.
unsafe impl Sync for Slots {}
// SAFETY: as above.
unsafe impl Send for Slots {}

impl Slots {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Slots((0..count).map(|_| UnsafeCell::new(u8::MAX)).collect()))
    }

    fn fill(&self, frame: &mut [u8], number: u8) {
        // SAFETY: loom reports concurrent use of the cell.
        self.0[usize::from(number) % self.0.len()].with_mut(|cell| unsafe { *cell = number });
        frame.fill(number);
    }

    fn check(&self, frame: &[u8], number: u8) {
        // SAFETY: as above.
        self.0[usize::from(number) % self.0.len()]
            .with(|cell| assert_eq!(unsafe { *cell }, number));
        assert_eq!(frame, [number; LEN]);
    }
}

fn send(port: &mut LoopbackPort, slots: &Slots, number: u8) {
    while !port.transmit(LEN, &mut |frame| slots.fill(frame, number)).unwrap() {
        thread::yield_now();
    }
    port.flush().unwrap();
}

/// Sends `frames` from one thread to another that sleeps whenever no frame waits.
fn run(slots: usize, frames: u8) {
    loom::model(move || {
        let (mut a, mut b) = pair("loom", slots, LEN).unwrap();
        let cells = Slots::new(slots);
        let sender = {
            let cells = Arc::clone(&cells);
            thread::spawn(move || {
                for number in 0..frames {
                    send(&mut a, &cells, number);
                }
                // Returned, because dropping the port would ring the bell.
                a
            })
        };
        let mut next = 0;
        while next < frames {
            b.service().unwrap();
            let received = b.receive(64, &mut |frame| {
                cells.check(frame, next);
                next += 1;
            });
            if received.unwrap() == 0 && !b.arm().unwrap() {
                b.inward.bell.wait();
                b.disarm();
            }
        }
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_lane_of_one_slot_loses_no_frame_and_no_wake_up() {
    run(1, 3);
}

#[test]
fn a_lane_of_two_slots_loses_no_frame_and_no_wake_up() {
    run(2, 3);
}

#[test]
fn a_sleeper_learns_that_its_peer_is_gone() {
    loom::model(|| {
        let (a, mut b) = pair("loom", 1, LEN).unwrap();
        let leaver = thread::spawn(move || drop(a));
        while b.service().unwrap() == LinkState::Up {
            if !b.arm().unwrap() {
                b.inward.bell.wait();
                b.disarm();
            }
        }
        leaver.join().unwrap();
    });
}
