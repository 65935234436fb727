//! Receives frames from the kernel, and restores the frames that a cable would carry.

use longhaul_netdev::repair::{Found, Repair};
use longhaul_port::{DropReason, FRAME_BYTES_MIN, PortCounters};

use crate::counters::XdpCounters;
use crate::memory::Buffers;
use crate::queue::Queue;
use crate::ring::Violation;

/// Longest frame that the kernel builds with its usual limits: an IP packet, an Ethernet header,
/// two tags.
const LONGEST: usize = 65535 + 14 + 8;

/// Receive path between the queues and `receive`.
pub(crate) struct Receiver {
    /// Queue that the next call starts with.
    turn: usize,
    /// For frames that span several buffers, and for frames that are split.
    scratch: Box<[u8]>,
    /// Length of the frame in `scratch` that is being split.
    split: usize,
    repair: Repair,
}

/// Destination of frames, and the limits that they must meet.
pub(crate) struct Taker<'a> {
    pub(crate) each: &'a mut dyn FnMut(&[u8]),
    /// MTU of the interface, in bytes.
    pub(crate) mtu: usize,
    pub(crate) frame_bytes_max: usize,
    pub(crate) ports: &'a mut PortCounters,
    pub(crate) counters: &'a mut XdpCounters,
}

impl Taker<'_> {
    /// Hands out a frame of valid length. Returns the number of frames handed out, 0 or 1.
    #[inline]
    fn take(&mut self, frame: &[u8]) -> usize {
        if frame.len() > self.frame_bytes_max {
            self.ports.rx_drops.count(DropReason::FrameTooLong);
            return 0;
        }
        if frame.len() < FRAME_BYTES_MIN {
            self.ports.rx_drops.count(DropReason::FrameTooShort);
            return 0;
        }
        self.ports.count_rx(frame.len());
        (self.each)(frame);
        1
    }
}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self { turn: 0, scratch: vec![0; LONGEST].into(), split: 0, repair: Repair::new() }
    }

    /// True if parts of a frame wait.
    pub(crate) fn holds_frames(&self) -> bool {
        !self.repair.is_done()
    }

    /// Hands out up to `max` frames.
    pub(crate) fn receive(
        &mut self,
        queues: &mut [Queue],
        buffers: &mut Buffers,
        max: usize,
        taker: &mut Taker<'_>,
    ) -> Result<usize, Violation> {
        let mut handed = self.hand_out_parts(max, taker);
        let count = queues.len();
        for _ in 0..count {
            if handed == max {
                break;
            }
            // The next call starts with the next queue, so that a full one delays no other.
            let queue = &mut queues[self.turn % count];
            self.turn = (self.turn + 1) % count;
            let mut has_taken = false;
            // Bounds the frames per queue, even if none of them is handed out.
            for _ in 0..max {
                if handed == max {
                    break;
                }
                let Some(parts) = queue.next_frame()? else { break };
                has_taken = true;
                handed += self.open(queue, parts, buffers, taker);
                queue.give_back(parts);
                handed += self.hand_out_parts(max - handed, taker);
            }
            if has_taken {
                queue.publish();
            }
        }
        Ok(handed)
    }

    /// Processes the first frame of the queue: hands it out, or begins to split it. Returns the
    /// number of frames handed out.
    #[inline]
    fn open(
        &mut self,
        queue: &Queue,
        parts: usize,
        buffers: &mut Buffers,
        taker: &mut Taker<'_>,
    ) -> usize {
        if parts > 1 {
            return self.gather(queue, parts, buffers, taker);
        }
        let part = queue.part(0);
        let frame = buffers.at(part.address, part.len as usize);
        match self.repair.look(frame, taker.mtu) {
            Found::Whole => taker.take(frame),
            Found::Completed => {
                taker.counters.rx_checksums_filled += 1;
                taker.take(frame)
            }
            found => {
                self.scratch[..frame.len()].copy_from_slice(frame);
                let len = frame.len();
                self.begin_split(found, len, taker)
            }
        }
    }

    fn gather(
        &mut self,
        queue: &Queue,
        parts: usize,
        buffers: &mut Buffers,
        taker: &mut Taker<'_>,
    ) -> usize {
        taker.counters.rx_gathered += 1;
        let mut len = 0;
        for part in (0..parts).map(|at| queue.part(at)) {
            let bytes = buffers.at(part.address, part.len as usize);
            let Some(to) = self.scratch.get_mut(len..len + bytes.len()) else {
                taker.ports.rx_drops.count(DropReason::FrameTooLong);
                return 0;
            };
            to.copy_from_slice(bytes);
            len += bytes.len();
        }
        match self.repair.look(&mut self.scratch[..len], taker.mtu) {
            Found::Whole => taker.take(&self.scratch[..len]),
            Found::Completed => {
                taker.counters.rx_checksums_filled += 1;
                taker.take(&self.scratch[..len])
            }
            found => self.begin_split(found, len, taker),
        }
    }

    /// Marks the frame in `scratch` for splitting; hands out none.
    fn begin_split(&mut self, found: Found, len: usize, taker: &mut Taker<'_>) -> usize {
        if found == Found::ToSplit {
            taker.counters.rx_split += 1;
            self.split = len;
        } else {
            taker.counters.rx_not_splittable += 1;
        }
        0
    }

    #[inline]
    fn hand_out_parts(&mut self, max: usize, taker: &mut Taker<'_>) -> usize {
        let mut handed = 0;
        while handed < max && !self.repair.is_done() {
            handed += taker.take(self.repair.next_part(&mut self.scratch[..self.split]));
        }
        handed
    }
}
