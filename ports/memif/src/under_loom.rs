//! Loom tests of the two processes at a ring under all interleavings: a buffer has one owner at a
//! time; frames arrive once and in order, also when the indices wrap; neither side mistakes the
//! other's actions for violations; and a sleeping consumer is woken.

use std::sync::Arc;

use longhaul_port::{Doorbell, PortCounters};
use loom::cell::UnsafeCell;
use loom::thread;

use crate::receiver::{Buffers, Receiver};
use crate::region::Region;
use crate::ring::Ring;
use crate::sender::{Built, Sender};

/// A frame that fits one buffer, and one that needs two.
const SHORT: usize = 20;
const LONG: usize = 40;
const BUFFER_BYTES: u32 = 32;
const STRIDE: u32 = 64;
const FIRST_BUFFER: u32 = 1024;
/// Just before the indices wrap.
const BEGIN: u16 = u16::MAX;

/// Models the bytes of each buffer.
struct Cells(Vec<UnsafeCell<u8>>);

// SAFETY: loom checks that no two threads use a cell at the same time.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    /// Accesses the cells of the descriptors of frame `number`, if all frames take the same number.
    fn each(&self, number: u8, descriptors: usize, mut touch: impl FnMut(&UnsafeCell<u8>)) {
        for at in 0..descriptors {
            let index = usize::from(BEGIN) + usize::from(number) * descriptors + at;
            touch(&self.0[index % self.0.len()]);
        }
    }
}

/// Which side produces the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Slave,
    Master,
}

fn ends(region: &Arc<Region>, from: From, size_log2: u8) -> (Sender, Receiver, Doorbell) {
    let ring = Ring::new(region, 0, size_log2).unwrap();
    ring.format(FIRST_BUFFER, STRIDE, BUFFER_BYTES);
    let (peers, bell) = (ring.of_peer(), Doorbell::new().unwrap());
    let buffers = Buffers {
        region: Arc::clone(region),
        first: FIRST_BUFFER,
        stride: STRIDE,
        bytes: BUFFER_BYTES,
    };
    let (regions, frames_max, rung) = (vec![Arc::clone(region)], LONG, bell.of_peer().unwrap());
    let (mut sender, mut receiver) = match from {
        From::Slave => (
            Sender::slave(ring, buffers, bell, SHORT),
            Receiver::master(peers, regions, frames_max),
        ),
        From::Master => (
            Sender::master(peers, regions, bell, frames_max),
            Receiver::slave(ring, buffers, frames_max),
        ),
    };
    receiver.begin_at(BEGIN);
    sender.begin_at(BEGIN);
    (sender, receiver, rung)
}

/// Sends `frames` of `len` bytes to a consumer that sleeps whenever no frame waits.
fn run(from: From, size_log2: u8, len: usize, frames: u8) {
    // Loom does not track the bytes, so all runs of the model share one mapping.
    let region = Arc::new(Region::create(4096).unwrap());
    loom::model(move || {
        let (mut sender, mut receiver, bell) = ends(&region, from, size_log2);
        let cells =
            Arc::new(Cells((0..1 << size_log2).map(|_| UnsafeCell::new(u8::MAX)).collect()));
        let descriptors = len.div_ceil(BUFFER_BYTES as usize);
        let producer = {
            let cells = Arc::clone(&cells);
            thread::spawn(move || {
                for number in 0..frames {
                    // SAFETY: loom reports concurrent use of the cell.
                    let mark =
                        |cell: &UnsafeCell<u8>| cell.with_mut(|cell| unsafe { *cell = number });
                    let mut fill = |frame: &mut [u8]| {
                        cells.each(number, descriptors, mark);
                        frame.fill(number);
                    };
                    while sender.build(len, &mut fill).unwrap() == Built::Full {
                        thread::yield_now();
                    }
                    sender.publish().unwrap();
                }
            })
        };
        let (mut next, mut counters) = (0, PortCounters::default());
        while next < frames {
            let received = receiver.receive(64, &mut counters, &mut |frame| {
                // SAFETY: as above.
                cells.each(next, descriptors, |cell| {
                    cell.with(|cell| assert_eq!(unsafe { *cell }, next))
                });
                assert_eq!(frame.len(), len);
                assert!(frame.iter().all(|byte| *byte == next));
                next += 1;
            });
            if received.unwrap() > 0 {
                continue;
            }
            receiver.request_interrupts(true);
            if !receiver.waiting().unwrap() {
                bell.wait();
            }
            bell.clear().unwrap();
            receiver.request_interrupts(false);
        }
        producer.join().unwrap();
        assert_eq!(counters.rx_frames, u64::from(frames));
    });
}

#[test]
fn a_slave_produces_a_ring_of_one() {
    run(From::Slave, 0, SHORT, 3);
}

#[test]
fn a_slave_produces_a_ring_of_two() {
    run(From::Slave, 1, SHORT, 3);
}

#[test]
fn a_master_produces_a_ring_of_one() {
    run(From::Master, 0, SHORT, 3);
}

#[test]
fn a_master_produces_a_ring_of_two() {
    run(From::Master, 1, SHORT, 3);
}

#[test]
fn a_master_produces_chains() {
    run(From::Master, 1, LONG, 2);
}
