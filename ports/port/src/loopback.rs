//! Two ports in one process, joined back to back by two bounded rings of preallocated slots.
//!
//! A receiver may keep a lent frame; its slot then gets another buffer. Frames that another port
//! lends pass by reference. Each direction is a single-producer single-consumer ring; the two ports
//! may live on different threads. When one port is dropped the other goes down, but frames that
//! were flushed can still be received.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use longhaul_lease::{Circulation, Lease};

use crate::port::{FRAME_BYTES_MIN, check_length};
use crate::{
    Descriptors, Doorbell, DropReason, LinkState, Port, PortCapabilities, PortCounters, PortError,
    Received,
};

/// Aligns an index to its own cache line, to avoid false sharing between the two sides.
#[repr(align(128))]
#[derive(Default)]
struct OwnLine<T>(T);

/// Maximum number of buffers that receivers may keep at once; further frames are passing ones.
const KEPT_MAX: usize = 65_536;

/// Number of frames that are prefetched ahead of the reader.
const FETCH_AHEAD: usize = 3;

/// A frame in flight.
struct Slot {
    /// Filled by the sender, lent by the receiver.
    own: Lease,
    /// A frame that was lent to the sender, sent instead of `own`.
    passed_on: Option<Lease>,
    /// The receiver may keep it.
    is_lent: bool,
}

impl Slot {
    /// Prefetches the frame's first bytes.
    #[inline]
    fn fetch(&self) {
        black_box(self.passed_on.as_ref().unwrap_or(&self.own).bytes().first());
    }
}

/// One direction. Slots `tail..head` belong to the receiver, the others to the sender.
struct Lane {
    slots: Box<[UnsafeCell<Slot>]>,
    head: OwnLine<AtomicUsize>,
    tail: OwnLine<AtomicUsize>,
    receiver_armed: OwnLine<AtomicBool>,
    bell: Doorbell,
    joined: AtomicBool,
}

// SAFETY: `slots` is the only field that is not Sync by itself. A slot is touched only by the side
// that owns it, and ownership moves by a Release store and an Acquire load of `head` or `tail`.
unsafe impl Sync for Lane {}

impl Lane {
    fn new(slots: usize, frame_bytes_max: usize) -> io::Result<Self> {
        let slot = |_| {
            UnsafeCell::new(Slot {
                own: Lease::with_capacity(frame_bytes_max),
                passed_on: None,
                is_lent: true,
            })
        };
        Ok(Self {
            slots: (0..slots).map(slot).collect(),
            head: OwnLine::default(),
            tail: OwnLine::default(),
            receiver_armed: OwnLine::default(),
            bell: Doorbell::new()?,
            joined: AtomicBool::new(true),
        })
    }

    /// The slot at a free-running index.
    fn slot(&self, index: usize) -> *mut Slot {
        self.slots[index & (self.slots.len() - 1)].get()
    }
}

/// One end of a loopback pair.
pub struct LoopbackPort {
    name: Arc<str>,
    frame_bytes_max: usize,
    out: Arc<Lane>,
    /// Next slot to build in, number of published slots, and the receiver's index as last read.
    out_head: usize,
    out_published: usize,
    out_tail: usize,
    /// Buffers that receivers keep; their slots got replacements.
    kept: Circulation<Lease>,
    inward: Arc<Lane>,
    /// Next slot to read, and the sender's index as last read.
    in_tail: usize,
    in_head: usize,
    /// Set by `arm`: the doorbell may have rung since it was last cleared.
    bell_used: bool,
    scratch: Box<[u8]>,
    counters: PortCounters,
}

/// Two ports joined back to back.
///
/// `slots` is the bound of each direction in frames, rounded up to a power of two;
/// `frame_bytes_max` is in bytes. The pair takes `2 * slots * frame_bytes_max` bytes of memory, and
/// `frame_bytes_max` for each frame that a receiver keeps, at most 65,536 per direction.
///
/// # Errors
/// If the process is out of descriptors.
pub fn pair(
    name: &str,
    slots: usize,
    frame_bytes_max: usize,
) -> io::Result<(LoopbackPort, LoopbackPort)> {
    let slots = slots.max(1).next_power_of_two();
    let frame_bytes_max = frame_bytes_max.max(FRAME_BYTES_MIN);
    let forward = Arc::new(Lane::new(slots, frame_bytes_max)?);
    let back = Arc::new(Lane::new(slots, frame_bytes_max)?);
    let end = |suffix: &str, out: &Arc<Lane>, inward: &Arc<Lane>| LoopbackPort {
        name: format!("{name}{suffix}").into(),
        frame_bytes_max,
        out: Arc::clone(out),
        out_head: 0,
        out_published: 0,
        out_tail: 0,
        kept: Circulation::default(),
        inward: Arc::clone(inward),
        in_tail: 0,
        in_head: 0,
        bell_used: false,
        scratch: vec![0; frame_bytes_max].into_boxed_slice(),
        counters: PortCounters { link_ups: 1, ..PortCounters::default() },
    };
    Ok((end(".a", &forward, &back), end(".b", &back, &forward)))
}

impl LoopbackPort {
    /// Free slots for building. Reads the receiver's index only if fewer than `wanted` are known to
    /// be free.
    fn room(&mut self, wanted: usize) -> usize {
        let slots = self.out.slots.len();
        let known = slots - self.out_head.wrapping_sub(self.out_tail);
        if known >= wanted {
            return known;
        }
        self.out_tail = self.out.tail.0.load(Ordering::Acquire);
        slots - self.out_head.wrapping_sub(self.out_tail)
    }

    /// Takes the next slot to build in; if there is none, counts that and returns `None`.
    fn next_slot(&mut self) -> Option<*mut Slot> {
        if self.room(1) == 0 {
            self.counters.tx_full = self.counters.tx_full.wrapping_add(1);
            return None;
        }
        let slot = self.out.slot(self.out_head);
        self.out_head = self.out_head.wrapping_add(1);
        Some(slot)
    }
}

impl Port for LoopbackPort {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        self.receive_lent(max, &mut |received| each(received.bytes()))
    }

    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        if self.in_head == self.in_tail {
            self.in_head = self.inward.head.0.load(Ordering::Acquire);
        }
        let count = self.in_head.wrapping_sub(self.in_tail).min(max);
        let first = self.in_tail;
        for ahead in FETCH_AHEAD..count + FETCH_AHEAD {
            // SAFETY: `in_tail` is before `in_head`, so the sender published this slot and will not
            // touch it until `tail` has passed it.
            let slot = unsafe { &mut *self.inward.slot(self.in_tail) };
            if ahead < count {
                // SAFETY: as above; `ahead` is counted from the same index.
                unsafe { &*self.inward.slot(first.wrapping_add(ahead)) }.fetch();
            }
            let passed_on = slot.passed_on.take();
            let lease = passed_on.as_ref().unwrap_or(&slot.own);
            each(if slot.is_lent {
                Received::Lent(lease)
            } else {
                Received::Passing(lease.bytes())
            });
            self.counters.count_rx(lease.bytes().len());
            self.in_tail = self.in_tail.wrapping_add(1);
        }
        if count > 0 {
            self.inward.tail.0.store(self.in_tail, Ordering::Release);
        }
        Ok(count)
    }

    fn transmit_room(&mut self) -> usize {
        self.room(usize::MAX)
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.frame_bytes_max)?;
        if self.link_state() == LinkState::Down {
            fill(&mut self.scratch[..len]);
            self.counters.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        }
        let Some(slot) = self.next_slot() else { return Ok(false) };
        // SAFETY: `next_slot` gives a slot that is free, so the receiver does not touch it before
        // `head` passes it.
        let slot = unsafe { &mut *slot };
        if !slot.own.is_returned() {
            let other =
                self.kept.take().unwrap_or_else(|| Lease::with_capacity(self.frame_bytes_max));
            self.kept.give(std::mem::replace(&mut slot.own, other));
        }
        slot.is_lent = self.kept.len() < KEPT_MAX;
        slot.own.fill(len, fill);
        self.counters.count_tx(len);
        Ok(true)
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        let len = lease.bytes().len();
        check_length(len, self.frame_bytes_max)?;
        if self.link_state() == LinkState::Down {
            self.counters.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        }
        let Some(slot) = self.next_slot() else { return Ok(false) };
        // SAFETY: as in `transmit`.
        let slot = unsafe { &mut *slot };
        slot.passed_on = Some(lease.clone());
        slot.is_lent = true;
        self.counters.count_tx(len);
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.out_published == self.out_head {
            return Ok(());
        }
        self.out.head.0.store(self.out_head, Ordering::Release);
        self.out_published = self.out_head;
        // Pairs with the fence in `arm`: either the receiver sees the new head, or this side sees
        // the armed flag.
        fence(Ordering::SeqCst);
        if self.out.receiver_armed.0.load(Ordering::Relaxed) {
            self.out.bell.ring().map_err(|error| PortError::io("waking the peer", error))?;
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        self.bell_used = true;
        self.inward.receiver_armed.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.in_head = self.inward.head.0.load(Ordering::Acquire);
        let waiting = self.in_head != self.in_tail;
        if waiting {
            self.disarm();
        }
        Ok(waiting)
    }

    fn disarm(&mut self) {
        self.inward.receiver_armed.0.store(false, Ordering::Relaxed);
    }

    fn descriptors(&self) -> Descriptors {
        Descriptors::from_iter([self.inward.bell.as_raw_fd()])
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        if self.bell_used {
            self.inward.bell.clear().map_err(|error| PortError::io("clearing a wake-up", error))?;
            self.bell_used = self.inward.receiver_armed.0.load(Ordering::Relaxed);
        }
        Ok(self.link_state())
    }

    fn link_state(&self) -> LinkState {
        if self.inward.joined.load(Ordering::Acquire) { LinkState::Up } else { LinkState::Down }
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "loopback",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.frame_bytes_max,
            transmit_slots: self.out.slots.len(),
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for LoopbackPort {
    fn drop(&mut self) {
        self.out.joined.store(false, Ordering::Release);
        self.inward.joined.store(false, Ordering::Release);
        // The peer may be asleep and must learn that the link is down. A failure cannot be handled
        // here.
        let _ = self.out.bell.ring();
    }
}

#[cfg(all(test, loom))]
mod under_loom;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn pattern(frame: &mut [u8], number: u64) {
        for (at, byte) in frame.iter_mut().enumerate() {
            *byte = (number as usize).wrapping_mul(31).wrapping_add(at) as u8;
        }
        frame[..8].copy_from_slice(&number.to_le_bytes());
    }

    fn readable_within(port: &LoopbackPort, milliseconds: i64) -> bool {
        let mut fds = [PollFd::new(&port.inward.bell, PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
        poll(&mut fds, Some(&limit)).unwrap() > 0
    }

    #[test]
    fn carries_frames_both_ways_past_the_wrap() {
        let (mut a, mut b) = pair("lo", 8, 200).unwrap();
        let mut expected = [0u8; 200];
        for number in 0..100u64 {
            let len = 14 + (number as usize * 7) % 187;
            assert!(a.transmit(len, &mut |frame| pattern(frame, number)).unwrap());
            a.flush().unwrap();
            let mut seen = 0;
            b.receive(8, &mut |frame| {
                pattern(&mut expected[..len], number);
                assert_eq!(frame, &expected[..len]);
                seen += 1;
            })
            .unwrap();
            assert_eq!(seen, 1);
            assert!(b.transmit(14, &mut |frame| frame.fill(7)).unwrap());
            b.flush().unwrap();
            assert_eq!(a.receive(8, &mut |frame| assert_eq!(frame, [7; 14])).unwrap(), 1);
        }
        assert_eq!(a.counters().tx_frames, 100);
        assert_eq!(b.counters().rx_bytes, a.counters().tx_bytes);
    }

    #[test]
    fn a_frame_is_invisible_until_flushed() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        assert!(a.transmit(20, &mut |frame| frame.fill(1)).unwrap());
        assert_eq!(b.receive(4, &mut |_| ()).unwrap(), 0);
        a.flush().unwrap();
        assert_eq!(b.receive(4, &mut |_| ()).unwrap(), 1);
    }

    /// Keeps and returns the waiting frames.
    fn keep(port: &mut LoopbackPort) -> Vec<Lease> {
        let mut kept = Vec::new();
        port.receive_lent(64, &mut |received| match received {
            Received::Lent(lease) => kept.push(lease.clone()),
            _ => panic!("not lent"),
        })
        .unwrap();
        kept
    }

    #[test]
    fn what_a_receiver_keeps_stays_as_it_was() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        let mut kept = Vec::new();
        for number in 0..50 {
            assert!(a.transmit(14 + number, &mut |frame| frame.fill(number as u8)).unwrap());
            a.flush().unwrap();
            kept.extend(keep(&mut b));
        }
        for (number, lease) in kept.iter().enumerate() {
            assert_eq!(lease.bytes(), vec![number as u8; 14 + number]);
        }
        drop(kept);
        for number in 0..400 {
            assert!(a.transmit(20, &mut |frame| frame.fill(number as u8)).unwrap());
            a.flush().unwrap();
            assert_eq!(keep(&mut b)[0].bytes(), [number as u8; 20]);
        }
        assert!(a.kept.len() <= 50, "buffers that came back are used again");
    }

    #[test]
    fn what_is_lent_is_passed_on_by_reference() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        let (mut c, mut d) = pair("next", 4, 64).unwrap();
        assert!(a.transmit(20, &mut |frame| frame.fill(5)).unwrap());
        a.flush().unwrap();
        let lease = keep(&mut b).remove(0);
        for _ in 0..4 {
            assert!(c.transmit_lent(&lease).unwrap());
        }
        assert!(!c.transmit_lent(&lease).unwrap(), "no slot is free");
        c.flush().unwrap();
        let passed = keep(&mut d);
        assert_eq!(passed.len(), 4);
        assert!(passed.iter().all(|other| other.is_same(&lease)));
        drop(passed);
        // An own frame goes through the same slots afterwards.
        assert!(c.transmit(14, &mut |frame| frame.fill(6)).unwrap());
        c.flush().unwrap();
        assert_eq!(keep(&mut d)[0].bytes(), [6; 14]);
        assert!(c.transmit_lent(&Lease::with_capacity(0)).is_err(), "too short for a frame");
        drop((c, d));
        let (mut alone, _) = pair("alone", 4, 64).unwrap();
        assert!(alone.transmit_lent(&lease).unwrap());
        assert_eq!(alone.counters().tx_drops.get(DropReason::LinkDown), 1);
        assert!(!lease.is_returned(), "the slot of its own port has it");
        drop((a, b));
        assert_eq!(lease.bytes(), [5; 20]);
        assert!(lease.is_returned());
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        for _ in 0..4 {
            assert!(a.transmit(20, &mut |frame| frame.fill(1)).unwrap());
        }
        assert_eq!(a.transmit_room(), 0);
        assert!(!a.transmit(20, &mut |_| panic!("no slot to fill")).unwrap());
        assert_eq!(a.counters().tx_full, 1);
        a.flush().unwrap();
        assert_eq!(b.receive(3, &mut |_| ()).unwrap(), 3);
        assert_eq!(a.transmit_room(), 3);
    }

    #[test]
    fn a_lone_end_is_down_and_drops() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        a.transmit(20, &mut |frame| frame.fill(1)).unwrap();
        a.flush().unwrap();
        drop(a);
        assert!(readable_within(&b, 0));
        assert_eq!(b.service().unwrap(), LinkState::Down);
        assert_eq!(b.receive(4, &mut |_| ()).unwrap(), 1);
        assert!(b.transmit(20, &mut |frame| frame.fill(1)).unwrap());
        assert_eq!(b.counters().tx_drops.get(DropReason::LinkDown), 1);
    }

    #[test]
    fn sleeps_after_disarming_first() {
        let (mut a, mut b) = pair("lo", 4, 64).unwrap();
        for _ in 0..3 {
            assert!(!b.arm().unwrap());
            assert!(!readable_within(&b, 0));
            a.transmit(20, &mut |frame| frame.fill(1)).unwrap();
            a.flush().unwrap();
            assert!(readable_within(&b, 999));
            b.disarm();
            b.service().unwrap();
            assert_eq!(b.receive(4, &mut |_| ()).unwrap(), 1);
        }
    }

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        const FRAMES: u64 = 20_000;
        let (mut a, mut b) = pair("lo", 16, 64).unwrap();
        let sender = std::thread::spawn(move || {
            for number in 0..FRAMES {
                while !a.transmit(20, &mut |frame| pattern(frame, number)).unwrap() {
                    std::thread::yield_now();
                }
                a.flush().unwrap();
            }
            a
        });
        let mut next = 0u64;
        while next < FRAMES {
            let received = b
                .receive(64, &mut |frame| {
                    assert_eq!(frame[..8], next.to_le_bytes());
                    next += 1;
                })
                .unwrap();
            if received == 0 && next < FRAMES && !b.arm().unwrap() {
                assert!(readable_within(&b, 999), "lost wake-up after frame {next}");
                b.service().unwrap();
                b.disarm();
            }
        }
        sender.join().unwrap();
    }
}
