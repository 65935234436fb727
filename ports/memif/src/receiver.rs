//! The consumer of one ring.
//!
//! As master it consumes the ring from slave to master: the slave publishes filled descriptors by
//! advancing head, and this side returns them by advancing tail. As slave it consumes the ring from
//! master to slave: it posts empty buffers by advancing head, the master fills them in order and
//! advances tail, and this side posts a buffer again once it has read it.
//!
//! Positions, and as slave the buffers of the descriptors, are private state. Only the peer's index
//! and a copy of each descriptor are read from shared memory, and both are checked. A frame is
//! copied to private memory before a reader sees any of its bytes.

use std::sync::Arc;

use longhaul_port::{DropReason, FRAME_BYTES_MIN, PortCounters};

use crate::region::Region;
use crate::ring::{Descriptor, FLAG_NEXT, Ring};
use crate::stretch::Stretch;
use crate::violation::{Violation, violation};

/// The slave's own buffers for one ring, one per slot.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    pub(crate) region: Arc<Region>,
    /// Offset of the buffer of slot 0 in the region, in bytes.
    pub(crate) first: u32,
    /// Distance between two buffers, in bytes.
    pub(crate) stride: u32,
    /// Usable bytes of a buffer, at most `stride`.
    pub(crate) bytes: u32,
}

impl Buffers {
    /// Offset of a slot's buffer in the region, in bytes.
    #[inline]
    pub(crate) fn offset(&self, slot: usize) -> u32 {
        self.first + slot as u32 * self.stride
    }

    /// A slot's buffer.
    #[inline]
    pub(crate) fn at(&self, slot: usize) -> Stretch<'_> {
        self.region
            .at(self.offset(slot), self.bytes as usize)
            .expect("the layout of our own region has every buffer inside it")
    }
}

/// Location of the bytes behind a descriptor.
#[derive(Debug)]
enum Source {
    /// As master: within the regions that the slave announced.
    Announced(Vec<Arc<Region>>),
    /// As slave: in the slot's buffer.
    Own(Buffers),
}

/// One checked part of a frame.
struct Segment<'a> {
    bytes: Stretch<'a>,
    more: bool,
}

/// The result of gathering a frame that spans descriptors.
enum Gathered {
    /// Its end has not been published yet.
    Incomplete,
    /// `bytes` in total over `descriptors`; the frame is in `private` unless that is too small.
    Complete { descriptors: u16, bytes: usize },
}

/// The consumer of one ring.
#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Ring,
    source: Source,
    /// Next descriptor to read.
    next: u16,
    /// Value of `next` when descriptors were last returned to the peer.
    returned: u16,
    /// The producer's index as last read.
    published: u16,
    /// A descriptor that was read since then was chained to the next one.
    chained: bool,
    /// The peer has disconnected: published frames stay readable, and no descriptor is returned.
    ended: bool,
    /// The current frame. Its length is the maximum frame length.
    private: Box<[u8]>,
}

impl Receiver {
    /// As master, over the regions that the slave announced.
    pub(crate) fn master(ring: Ring, regions: Vec<Arc<Region>>, frame_bytes_max: usize) -> Self {
        let receiver = Self::new(ring, Source::Announced(regions), frame_bytes_max);
        receiver.ring.publish_tail(0);
        receiver
    }

    /// As slave, over its own buffers, all of which it posts.
    pub(crate) fn slave(ring: Ring, buffers: Buffers, frame_bytes_max: usize) -> Self {
        let receiver = Self::new(ring, Source::Own(buffers), frame_bytes_max);
        receiver.ring.publish_head(receiver.ring.size());
        receiver
    }

    fn new(ring: Ring, source: Source, frame_bytes_max: usize) -> Self {
        ring.request_interrupts(false);
        let private = vec![0; frame_bytes_max].into_boxed_slice();
        Self {
            ring,
            source,
            next: 0,
            returned: 0,
            published: 0,
            chained: false,
            ended: false,
            private,
        }
    }

    /// Starts at an index other than 0.
    #[cfg(all(test, loom))]
    pub(crate) fn begin_at(&mut self, index: u16) {
        match self.source {
            Source::Announced(_) => self.ring.publish_tail(index),
            Source::Own(_) => self.ring.publish_head(index.wrapping_add(self.ring.size())),
        }
        (self.next, self.returned, self.published) = (index, index, index);
    }

    /// Requests or masks interrupts by the producer.
    pub(crate) fn request_interrupts(&self, wanted: bool) {
        self.ring.request_interrupts(wanted);
    }

    /// Whether unread descriptors are published; reads shared memory.
    pub(crate) fn waiting(&mut self) -> Result<bool, Violation> {
        self.look()?;
        Ok(self.published != self.next)
    }

    /// Notes that the peer has disconnected. Frames that it had published can still be received.
    pub(crate) fn end(&mut self) {
        if self.look().is_err() {
            self.published = self.next;
        }
        self.ended = true;
    }

    /// True if all frames that the departed peer had published have been received.
    pub(crate) fn drained(&self) -> bool {
        self.published == self.next
    }

    /// Reads the producer's index, which may only have advanced, and not beyond the ring.
    fn look(&mut self) -> Result<(), Violation> {
        if self.ended {
            return Ok(());
        }
        let (index, name) = match self.source {
            Source::Announced(_) => (self.ring.head(), "head"),
            Source::Own(_) => (self.ring.tail(), "tail"),
        };
        let (before, now) = (self.published.wrapping_sub(self.next), index.wrapping_sub(self.next));
        if now > self.ring.size() || now < before {
            let (size, next, seen) = (self.ring.size(), self.next, self.published);
            return Err(violation!(
                "receive ring {name} {index} is impossible: ring of {size}, read up to {next}, \
                 last seen {seen}"
            ));
        }
        self.published = index;
        Ok(())
    }

    /// Hands up to `max` frames to `each`. A violation after the first frame is reported by the
    /// next call, so that all frames are counted.
    pub(crate) fn receive<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        max: usize,
        counters: &mut PortCounters,
        each: &mut F,
    ) -> Result<usize, Violation> {
        if self.published == self.next {
            self.look()?;
        }
        let mut handed = 0;
        let mut outcome = Ok(());
        while handed < max && self.published != self.next {
            match self.receive_one(counters, each) {
                Ok(Some(true)) => handed += 1,
                Ok(Some(false)) => {}
                Ok(None) => break,
                Err(violation) => {
                    outcome = Err(violation);
                    break;
                }
            }
        }
        self.give_back();
        if handed == 0 { outcome.map(|()| 0) } else { Ok(handed) }
    }

    /// Reads one frame: handed to `each` (`true`), dropped (`false`), or still incomplete (`None`).
    #[inline]
    fn receive_one<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        counters: &mut PortCounters,
        each: &mut F,
    ) -> Result<Option<bool>, Violation> {
        let Segment { bytes, more } = segment(&self.ring, &self.source, self.next)?;
        let (descriptors, len) = if more {
            match self.gather()? {
                Gathered::Complete { descriptors, bytes } => {
                    self.chained = true;
                    (descriptors, bytes)
                }
                Gathered::Incomplete => return Ok(None),
            }
        } else {
            if let Some(private) = self.private.get_mut(..bytes.len()) {
                bytes.copy_to(private);
            }
            (1, bytes.len())
        };
        let fits = if len > self.private.len() {
            counters.rx_drops.count(DropReason::FrameTooLong);
            false
        } else if len < FRAME_BYTES_MIN {
            counters.rx_drops.count(DropReason::FrameTooShort);
            false
        } else {
            counters.count_rx(len);
            each(&self.private[..len]);
            true
        };
        self.next = self.next.wrapping_add(descriptors);
        Ok(Some(fits))
    }

    /// Copies a chained frame into private memory. Bytes beyond its size are counted and skipped.
    #[cold]
    fn gather(&mut self) -> Result<Gathered, Violation> {
        self.look()?;
        let mut index = self.next;
        let mut bytes = 0usize;
        while index != self.published {
            let segment = segment(&self.ring, &self.source, index)?;
            let end = bytes.saturating_add(segment.bytes.len());
            if let Some(room) = self.private.get_mut(bytes..end) {
                segment.bytes.copy_to(room);
            }
            bytes = end;
            index = index.wrapping_add(1);
            if !segment.more {
                let descriptors = index.wrapping_sub(self.next);
                return Ok(Gathered::Complete { descriptors, bytes });
            }
        }
        let size = self.ring.size();
        if self.published.wrapping_sub(self.next) == size {
            return Err(violation!("a chain fills the ring of {size} and does not end"));
        }
        if self.ended {
            // The rest will never arrive.
            self.published = self.next;
        }
        Ok(Gathered::Incomplete)
    }

    /// As master, clears the chaining flag of the descriptors that were read. DPDK's net_memif sets
    /// it and never clears it, so a slot that was once part of a chain would join each later frame
    /// to the next one.
    #[cold]
    fn unchain(&self) {
        let mut index = self.returned;
        while index != self.next {
            let Descriptor { region, length, .. } = self.ring.descriptor(index);
            self.ring.write_length(index, 0, region, length);
            index = index.wrapping_add(1);
        }
    }

    /// Returns the read descriptors to the peer.
    #[inline]
    fn give_back(&mut self) {
        if self.returned == self.next {
            return;
        }
        match &self.source {
            Source::Announced(_) => {
                if std::mem::take(&mut self.chained) {
                    self.unchain();
                }
                self.ring.publish_tail(self.next);
            }
            Source::Own(buffers) => {
                let mut index = self.returned;
                while index != self.next {
                    self.ring.write_length(index, 0, 0, buffers.bytes);
                    index = index.wrapping_add(1);
                }
                self.ring.publish_head(self.next.wrapping_add(self.ring.size()));
            }
        }
        self.returned = self.next;
    }
}

/// Checks one descriptor.
#[inline]
fn segment<'a>(ring: &Ring, source: &'a Source, index: u16) -> Result<Segment<'a>, Violation> {
    let descriptor = ring.descriptor(index);
    let bytes = match source {
        Source::Announced(regions) => locate(regions, descriptor)?,
        Source::Own(buffers) => {
            if descriptor.length > buffers.bytes {
                let (length, bytes) = (descriptor.length, buffers.bytes);
                return Err(violation!("frame of {length} bytes in a buffer of {bytes} bytes"));
            }
            buffers.at(ring.slot(index)).first(descriptor.length as usize)
        }
    };
    Ok(Segment { bytes, more: descriptor.flags & FLAG_NEXT != 0 })
}

/// Locates a descriptor's bytes in the regions that the slave announced.
#[inline]
pub(crate) fn locate(
    regions: &[Arc<Region>],
    descriptor: Descriptor,
) -> Result<Stretch<'_>, Violation> {
    let Descriptor { region: index, length, offset, .. } = descriptor;
    let Some(region) = regions.get(usize::from(index)) else {
        let known = regions.len();
        return Err(violation!("descriptor names region {index} of {known}"));
    };
    region.at(offset, length as usize).ok_or_else(|| {
        let bytes = region.bytes();
        violation!(
            "descriptor of {length} bytes at offset {offset} leaves its region of {bytes} bytes"
        )
    })
}
