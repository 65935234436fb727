//! The producer of one ring.
//!
//! As slave it produces the ring from slave to master: it fills its own buffers and publishes them
//! by advancing head; the master returns them by advancing tail. As master it produces the ring
//! from master to slave: the slave posts empty buffers by advancing head, and this side fills them
//! in order and publishes them by advancing tail. A frame longer than the slave's buffers spans a
//! chain of them.

use std::io;
use std::sync::Arc;

use longhaul_port::{Doorbell, join};

use crate::receiver::{Buffers, locate};
use crate::region::Region;
use crate::ring::{Descriptor, FLAG_NEXT, Ring};
use crate::stretch::Stretch;
use crate::violation::{Violation, violation};

#[derive(Debug)]
enum Target {
    /// As slave: the slot's buffer.
    Own(Buffers),
    /// As master: the buffer that the slave posted.
    Posted(Vec<Arc<Region>>),
}

/// The result of building a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Built {
    /// The frame waits for `publish`.
    Yes,
    /// No slot is free; the frame was not built.
    Full,
    /// The peer's whole ring is too small for the frame, which was built and dropped.
    NeverFits,
}

/// The producer of one ring.
#[derive(Debug)]
pub(crate) struct Sender {
    ring: Ring,
    target: Target,
    /// Next descriptor to fill.
    next: u16,
    /// Value of `next` at the last publication.
    published: u16,
    /// The consumer's index as last read.
    seen: u16,
    bell: Doorbell,
    /// The current frame. Its length is the maximum frame length.
    private: Box<[u8]>,
}

impl Sender {
    /// As slave, over its own buffers.
    pub(crate) fn slave(
        ring: Ring,
        buffers: Buffers,
        bell: Doorbell,
        frame_bytes_max: usize,
    ) -> Self {
        ring.publish_head(0);
        Self::new(ring, Target::Own(buffers), bell, frame_bytes_max)
    }

    /// As master, over the regions that the slave announced.
    pub(crate) fn master(
        ring: Ring,
        regions: Vec<Arc<Region>>,
        bell: Doorbell,
        frame_bytes_max: usize,
    ) -> Self {
        ring.publish_tail(0);
        Self::new(ring, Target::Posted(regions), bell, frame_bytes_max)
    }

    fn new(ring: Ring, target: Target, bell: Doorbell, frame_bytes_max: usize) -> Self {
        let private = vec![0; frame_bytes_max].into_boxed_slice();
        Self { ring, target, next: 0, published: 0, seen: 0, bell, private }
    }

    /// Starts at an index other than 0.
    #[cfg(all(test, loom))]
    pub(crate) fn begin_at(&mut self, index: u16) {
        match self.target {
            Target::Own(_) => self.ring.publish_head(index),
            Target::Posted(_) => self.ring.publish_tail(index),
        }
        (self.next, self.published, self.seen) = (index, index, index);
    }

    /// Descriptors that are free by the index last read.
    #[inline]
    fn free(&self) -> u16 {
        match self.target {
            Target::Own(_) => self.ring.size() - self.next.wrapping_sub(self.seen),
            Target::Posted(_) => self.seen.wrapping_sub(self.next),
        }
    }

    /// Reads the consumer's index, which may only have advanced, and not beyond the published
    /// descriptors.
    fn look(&mut self) -> Result<(), Violation> {
        let (index, name, possible) = match self.target {
            Target::Own(_) => {
                let tail = self.ring.tail();
                let outstanding = self.published.wrapping_sub(tail);
                let before = self.published.wrapping_sub(self.seen);
                (tail, "tail", outstanding <= before)
            }
            Target::Posted(_) => {
                let head = self.ring.head();
                let (before, now) = (self.free(), head.wrapping_sub(self.next));
                let unread = head.wrapping_sub(self.published);
                (head, "head", unread <= self.ring.size() && now >= before && now <= unread)
            }
        };
        if !possible {
            let (size, next, seen) = (self.ring.size(), self.next, self.seen);
            return Err(violation!(
                "transmit ring {name} {index} is impossible: ring of {size}, written up to {next}, \
                 last seen {seen}"
            ));
        }
        self.seen = index;
        Ok(())
    }

    /// Number of frames of the maximum length that fit now.
    pub(crate) fn room(&mut self) -> Result<usize, Violation> {
        self.look()?;
        let free = usize::from(self.free());
        if matches!(self.target, Target::Own(_)) {
            return Ok(free);
        }
        if free == 0 {
            return Ok(0);
        }
        let posted = posted(&self.ring, self.next)?;
        Ok(free / self.private.len().div_ceil(posted.length as usize))
    }

    /// Builds one frame of `len` bytes, at most the length given to the constructor.
    ///
    /// Builds it in private memory, since the peer may write to its destination.
    #[inline]
    pub(crate) fn build(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Built, Violation> {
        self.put(len, fill, |fill, to, private| {
            fill(private);
            to.copy_from(private);
        })
    }

    /// As [`Sender::build`], for `len` bytes that lie in `pieces`, which are copied once, directly
    /// to their destination.
    #[inline]
    pub(crate) fn send(&mut self, len: usize, pieces: &[&[u8]; 3]) -> Result<Built, Violation> {
        self.put(len, &mut |out| join(pieces, out), |_, to, _| {
            let mut rest = to;
            for piece in pieces {
                rest = rest.copy_first_from(piece);
            }
        })
    }

    /// Makes `write` put a frame of `len` bytes, which `fill` builds, into the next buffer, if it
    /// fits there.
    #[inline]
    fn put<F: FnMut(&mut [u8]) + ?Sized>(
        &mut self,
        len: usize,
        fill: &mut F,
        write: impl FnOnce(&mut F, Stretch<'_>, &mut [u8]),
    ) -> Result<Built, Violation> {
        if self.free() == 0 {
            self.look()?;
            if self.free() == 0 {
                return Ok(Built::Full);
            }
        }
        let (to, region) = match &self.target {
            Target::Own(buffers) => (buffers.at(self.ring.slot(self.next)), 0),
            Target::Posted(regions) => {
                let posted = posted(&self.ring, self.next)?;
                if (posted.length as usize) < len {
                    return self.build_chain(len, |private| fill(private));
                }
                (locate(regions, posted)?, posted.region)
            }
        };
        write(fill, to.first(len), &mut self.private[..len]);
        self.ring.write_length(self.next, 0, region, len as u32);
        self.next = self.next.wrapping_add(1);
        Ok(Built::Yes)
    }

    /// Builds a frame in private memory and spreads it over several posted buffers.
    #[cold]
    fn build_chain(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Built, Violation> {
        self.look()?;
        let Target::Posted(regions) = &self.target else {
            unreachable!("a buffer of our own holds the longest frame")
        };
        let free = self.free();
        let mut room = 0;
        for ahead in 0..free {
            room += posted(&self.ring, self.next.wrapping_add(ahead))?.length as usize;
            if room >= len {
                break;
            }
        }
        if room < len && free < self.ring.size() {
            return Ok(Built::Full);
        }
        fill(&mut self.private[..len]);
        if room < len {
            return Ok(Built::NeverFits);
        }
        let mut rest = &self.private[..len];
        let mut index = self.next;
        while !rest.is_empty() {
            if index == self.seen {
                return Err(violation!("the slave shortened a posted buffer"));
            }
            let buffer = posted(&self.ring, index)?;
            let (part, later) = rest.split_at(rest.len().min(buffer.length as usize));
            locate(regions, buffer)?.first(part.len()).copy_from(part);
            let flags = if later.is_empty() { 0 } else { FLAG_NEXT };
            self.ring.write_length(index, flags, buffer.region, part.len() as u32);
            index = index.wrapping_add(1);
            rest = later;
        }
        self.next = index;
        Ok(Built::Yes)
    }

    /// Publishes the built frames, and wakes the consumer if it requests that.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        if self.published == self.next {
            return Ok(());
        }
        match self.target {
            Target::Own(_) => self.ring.publish_head(self.next),
            Target::Posted(_) => self.ring.publish_tail(self.next),
        }
        self.published = self.next;
        if self.ring.interrupts_requested() { self.bell.ring() } else { Ok(()) }
    }
}

/// The buffer that the slave posted at `index`. Only its length is checked here.
#[inline]
fn posted(ring: &Ring, index: u16) -> Result<Descriptor, Violation> {
    let descriptor = ring.descriptor(index);
    if descriptor.length == 0 {
        return Err(violation!("the slave posted an empty buffer"));
    }
    Ok(descriptor)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const RING: u8 = 2;
    const BUFFERS: u32 = 1024;
    const BUFFER_BYTES: u32 = 128;
    const LEN: usize = 100;

    /// A sender as slave and one as master, each with the region that it sends by.
    fn senders() -> [(Sender, Arc<Region>); 2] {
        [false, true].map(|is_master| {
            let region = Arc::new(Region::create(4096).unwrap());
            let ring = Ring::new(&region, 0, RING).unwrap();
            ring.format(BUFFERS, BUFFER_BYTES, BUFFER_BYTES);
            let bell = Doorbell::new().unwrap();
            let sender = if is_master {
                ring.publish_head(1 << RING);
                Sender::master(ring, vec![Arc::clone(&region)], bell, 300)
            } else {
                let (stride, bytes) = (BUFFER_BYTES, BUFFER_BYTES);
                let buffers =
                    Buffers { region: Arc::clone(&region), first: BUFFERS, stride, bytes };
                Sender::slave(ring, buffers, bell, BUFFER_BYTES as usize)
            };
            (sender, region)
        })
    }

    fn first_buffers(region: &Region) -> [u8; 2 * BUFFER_BYTES as usize] {
        let mut out = [0; 2 * BUFFER_BYTES as usize];
        region.at(BUFFERS, out.len()).unwrap().copy_to(&mut out);
        out
    }

    #[test]
    fn what_a_peer_writes_while_a_frame_is_built_is_not_in_it() {
        for (mut sender, region) in senders() {
            let built = sender.build(LEN, &mut |frame| {
                frame.fill(1);
                region.at(BUFFERS, LEN).unwrap().copy_from(&[2; LEN]);
                assert!(frame.iter().all(|byte| *byte == 1), "the peer writes to what is built");
            });
            assert_eq!(built.unwrap(), Built::Yes);
            assert_eq!(first_buffers(&region)[..LEN], [1; LEN]);
        }
    }

    #[test]
    fn pieces_are_joined_and_nothing_beside_them_is_written() {
        for (mut sender, region) in senders() {
            region.at(BUFFERS, 256).unwrap().copy_from(&[0xee; 256]);
            assert_eq!(sender.send(LEN, &[&[1; 54], &[2; 39], &[3; 7]]).unwrap(), Built::Yes);
            let expected = [vec![1; 54], vec![2; 39], vec![3; 7], vec![0xee; 156]].concat();
            assert_eq!(first_buffers(&region)[..], expected);
        }
    }

    #[test]
    fn pieces_that_are_longer_than_a_buffer_are_spread_over_several() {
        let [_, (mut sender, region)] = senders();
        assert_eq!(sender.send(200, &[&[1; 54], &[2; 142], &[3; 4]]).unwrap(), Built::Yes);
        let expected = [vec![1; 54], vec![2; 142], vec![3; 4], vec![0; 56]].concat();
        assert_eq!(first_buffers(&region)[..], expected);
        assert_eq!(sender.ring.descriptor(0).flags & FLAG_NEXT, FLAG_NEXT);
        assert_eq!([0, 1].map(|index| sender.ring.descriptor(index).length), [128, 72]);
    }
}
