//! A queue of the interface: its socket, and the ownership of its buffers.

use std::collections::VecDeque;

use crate::memory::{Buffers, RingMemory};
use crate::ring::{Consuming, Descriptor, Producing, Violation};
use crate::socket::XdpSocket;

/// Maximum number of parts of a frame: the kernel's own limit is 17, and the head.
const PARTS_MAX: usize = 32;

/// The receiving half of a socket. Its buffers are lent to the kernel, return with frames, and are
/// lent again.
pub(crate) struct Queue {
    pub(crate) socket: XdpSocket,
    receive: Consuming,
    fill: Producing,
    /// Address of its first buffer.
    first: u64,
    /// For each of its buffers, whether the kernel owns it.
    lent: Box<[bool]>,
    /// Received parts that are not returned yet; the capacity fits all buffers.
    came: VecDeque<Descriptor>,
}

impl Queue {
    /// Owns the `count` buffers from number `first` on, and lends all of them.
    pub(crate) fn new(
        socket: XdpSocket,
        receive: Consuming,
        mut fill: Producing,
        first: u32,
        count: u32,
    ) -> Result<Self, Violation> {
        let first = u64::from(first) * Buffers::EACH as u64;
        if fill.room()? < count {
            return Err(Violation(format!("a ring for {count} buffers has no room for them")));
        }
        for number in 0..u64::from(count) {
            fill.push_address(first + number * Buffers::EACH as u64);
        }
        fill.publish();
        let lent = vec![true; count as usize].into();
        Ok(Self {
            socket,
            receive,
            fill,
            first,
            lent,
            came: VecDeque::with_capacity(count as usize),
        })
    }

    /// Continues a queue of another process over the `count` buffers from number `first` on, of
    /// which `came` are with received parts.
    pub(crate) fn resume(
        socket: XdpSocket,
        [receive, fill]: [RingMemory; 2],
        [first, count]: [u32; 2],
        came: impl Iterator<Item = Descriptor>,
    ) -> Result<Self, Violation> {
        let mut this = Self {
            socket,
            receive: Consuming::resume(receive),
            fill: Producing::resume(fill),
            first: u64::from(first) * Buffers::EACH as u64,
            lent: vec![true; count as usize].into(),
            came: VecDeque::with_capacity(count as usize),
        };
        for descriptor in came {
            this.check(descriptor)?;
            this.came.push_back(descriptor);
        }
        Ok(this)
    }

    /// Parts that were received and are not returned yet.
    pub(crate) fn came(&self) -> impl ExactSizeIterator<Item = Descriptor> {
        self.came.iter().copied()
    }

    /// True if frames wait, or may wait.
    #[inline]
    pub(crate) fn has_frames(&self) -> Result<bool, Violation> {
        Ok(!self.came.is_empty() && self.parts().is_some() || self.receive.available()? > 0)
    }

    /// Reads the receive ring, and returns the number of parts of the first frame; `None`: there is
    /// no whole frame.
    #[inline]
    pub(crate) fn next_frame(&mut self) -> Result<Option<usize>, Violation> {
        if let Some(parts) = self.parts() {
            return Ok(Some(parts));
        }
        let available = self.receive.available()?;
        for ahead in 0..available {
            let descriptor = self.receive.descriptor(ahead);
            self.check(descriptor)?;
            self.came.push_back(descriptor);
        }
        if available > 0 {
            self.receive.release(available);
        }
        match self.parts() {
            None if self.came.len() > PARTS_MAX => {
                Err(Violation(format!("a frame goes on behind {PARTS_MAX} parts")))
            }
            parts => Ok(parts),
        }
    }

    /// Number of parts of the first frame, if it is whole.
    #[inline]
    fn parts(&self) -> Option<usize> {
        self.came.iter().position(|part| !part.goes_on).map(|last| last + 1)
    }

    /// A part of the first frame; `at` must be below its number of parts.
    #[inline]
    pub(crate) fn part(&self, at: usize) -> Descriptor {
        self.came[at]
    }

    /// Lends the buffers of the first frame, which has `parts` parts, again. [`Queue::publish`]
    /// tells the kernel.
    #[inline]
    pub(crate) fn give_back(&mut self, parts: usize) {
        for _ in 0..parts {
            let Some(part) = self.came.pop_front() else { return };
            let number = self.number(part.address);
            self.lent[number] = true;
            // Cannot overflow: the ring holds all of the queue's buffers.
            self.fill.push_address(self.first + (number * Buffers::EACH) as u64);
        }
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        self.fill.publish();
        if self.fill.wants_call() {
            self.socket.call_to_fill();
        }
    }

    /// Number of a buffer within the queue. The address must have been checked.
    #[inline]
    fn number(&self, address: u64) -> usize {
        ((address - self.first) / Buffers::EACH as u64) as usize
    }

    /// Checks that the part lies in one buffer, of this queue, that the kernel owned.
    #[inline]
    fn check(&mut self, descriptor: Descriptor) -> Result<(), Violation> {
        let Descriptor { address, len, .. } = descriptor;
        let each = Buffers::EACH as u64;
        let is_inside = address >= self.first
            && (address - self.first) / each < self.lent.len() as u64
            && address % each + u64::from(len) <= each;
        if !is_inside {
            return Err(Violation(format!(
                "{len} bytes at {address} are in no buffer of the queue"
            )));
        }
        let number = self.number(address);
        if !std::mem::replace(&mut self.lent[number], false) {
            return Err(Violation(format!("the buffer at {address} came back twice")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::memory;
    use proptest::prelude::*;
    use std::sync::atomic::Ordering;

    const EACH: u64 = Buffers::EACH as u64;

    fn queue() -> Option<Queue> {
        let socket = XdpSocket::new().ok()?;
        let (receive, fill) = (Consuming::new(memory(64, 2)), Producing::new(memory(64, 1)));
        Some(Queue::new(socket, receive, fill, 10, 64).unwrap())
    }

    /// Simulates reception by the kernel.
    fn bring(queue: &Queue, descriptors: &[Descriptor]) {
        let memory = queue.receive.memory();
        let mut end = memory.producer().load(Ordering::Relaxed);
        for descriptor in descriptors {
            let options = u64::from(descriptor.goes_on) * u64::from(libc::XDP_PKT_CONTD);
            memory.word(end, 0).store(descriptor.address, Ordering::Relaxed);
            let mut word = [0; 8];
            word[..4].copy_from_slice(&descriptor.len.to_ne_bytes());
            word[4..].copy_from_slice(&(options as u32).to_ne_bytes());
            memory.word(end, 1).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            end = end.wrapping_add(1);
        }
        memory.producer().store(end, Ordering::Relaxed);
    }

    fn part(number: u64, goes_on: bool) -> Descriptor {
        Descriptor { address: number * EACH + 256, len: 100, goes_on }
    }

    #[test]
    fn a_frame_is_there_when_its_last_part_is() {
        let Some(mut queue) = queue() else {
            return longhaul_namespace::skip("no AF_XDP sockets here");
        };
        assert!(!queue.has_frames().unwrap());
        bring(&queue, &[part(10, true), part(11, true)]);
        assert_eq!(queue.next_frame(), Ok(None));
        assert!(!queue.has_frames().unwrap());
        bring(&queue, &[part(12, false), part(13, false)]);
        assert_eq!(queue.next_frame(), Ok(Some(3)));
        assert_eq!(queue.part(2), part(12, false));
        queue.give_back(3);
        assert_eq!(queue.next_frame(), Ok(Some(1)));
        queue.give_back(1);
        // 64 lent initially, and these four again.
        let returned: Vec<u64> =
            (64..68).map(|at| queue.fill.memory().word(at, 0).load(Ordering::Relaxed)).collect();
        assert_eq!(returned, [10 * EACH, 11 * EACH, 12 * EACH, 13 * EACH]);
    }

    #[test]
    fn what_the_kernel_must_not_do_is_told() {
        for (wrong, says) in [
            (vec![part(9, false)], "in no buffer"),
            (vec![part(74, false)], "in no buffer"),
            (vec![Descriptor { address: u64::MAX, len: u32::MAX, goes_on: false }], "in no buffer"),
            (
                vec![Descriptor { address: 10 * EACH + 4000, len: 97, goes_on: false }],
                "in no buffer",
            ),
            (vec![part(10, false), part(10, false)], "came back twice"),
            ((10..44).map(|number| part(number, true)).collect(), "goes on behind"),
        ] {
            let Some(mut queue) = queue() else {
                return longhaul_namespace::skip("no AF_XDP sockets here");
            };
            bring(&queue, &wrong);
            let violation = queue.next_frame().unwrap_err();
            assert!(violation.0.contains(says), "{violation}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_descriptors_are_taken_or_refused(
            descriptors in proptest::collection::vec(
                (
                    prop_oneof![any::<u64>(), 0..100 * EACH],
                    prop_oneof![any::<u32>(), 0..5000_u32],
                    any::<bool>(),
                ),
                0..64,
            ),
        ) {
            let Some(mut queue) = queue() else { return Ok(()) };
            let descriptors: Vec<_> = descriptors
                .into_iter()
                .map(|(address, len, goes_on)| Descriptor { address, len, goes_on })
                .collect();
            bring(&queue, &descriptors);
            while let Ok(Some(parts)) = queue.next_frame() {
                for at in 0..parts {
                    let Descriptor { address, len, .. } = queue.part(at);
                    prop_assert!(address >= 10 * EACH && address + u64::from(len) <= 74 * EACH);
                }
                queue.give_back(parts);
            }
        }
    }
}
