//! Frames in DPDK's buffers: those that came, and those that are to go.

use crate::device::Device;
use crate::lent::{LENT_BYTES_MIN, LentBuffers};
use crate::pool::BufferPool;
use crate::shim::{self, BURST_MAX, RawFrame};
use longhaul_lease::Lease;
use std::ffi::c_void;

/// Frames that were received and have not been given back.
pub(crate) struct Burst {
    frames: Box<[RawFrame; BURST_MAX]>,
    came: usize,
}

// SAFETY: the frames are this one's own, and DPDK's buffers may be freed by any thread.
unsafe impl Send for Burst {}

impl Burst {
    /// The most frames of one burst.
    pub(crate) const FRAMES_MAX: usize = BURST_MAX;

    pub(crate) fn new() -> Self {
        Self { frames: Box::new([RawFrame::NONE; BURST_MAX]), came: 0 }
    }

    /// Receives at most `max` frames and returns how many came.
    #[inline]
    pub(crate) fn receive(&mut self, device: &Device, queue: u16, max: usize) -> usize {
        self.give_back();
        let count = max.min(BURST_MAX) as u32;
        // SAFETY: the port is started and has this queue, only this thread uses it, and there is
        // room for `count` frames.
        let came = unsafe { shim::lh_receive(device.id(), queue, self.frames.as_mut_ptr(), count) };
        self.came = came as usize;
        self.came
    }

    /// One of those that came last.
    #[inline]
    pub(crate) fn frame(&self, at: usize) -> Received<'_> {
        Received(&self.frames[..self.came][at])
    }

    /// Whether [`Burst::lend`] may be called for it.
    #[inline]
    pub(crate) fn is_lendable(&self, at: usize) -> bool {
        let frame = &self.frames[..self.came][at];
        frame.segments == 1 && frame.len as usize >= LENT_BYTES_MIN
    }

    /// Shows one of them to `each`, which may keep it. False: too many are kept. It is not to be
    /// asked for again.
    #[inline]
    pub(crate) fn lend(
        &mut self,
        at: usize,
        to: &mut LentBuffers,
        each: &mut dyn FnMut(&Lease),
    ) -> bool {
        to.lend(&mut self.frames[..self.came][at], each)
    }

    /// Frees all of them that nobody keeps.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        if self.came > 0 {
            // SAFETY: these came with the last burst, and are freed once: `came` is 0 from here on.
            // In place of those that are kept there are others, or none.
            unsafe { shim::lh_free(self.frames.as_ptr(), self.came as u32) };
            self.came = 0;
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        // Something is left when a reader of frames panicked.
        self.give_back();
    }
}

/// A frame that came.
pub(crate) struct Received<'a>(&'a RawFrame);

impl<'a> Received<'a> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len as usize
    }

    #[inline]
    pub(crate) fn has_bad_sum(&self) -> bool {
        self.0.has_bad_sum != 0
    }

    /// Its bytes, unless they lie in several buffers.
    #[inline]
    pub(crate) fn in_one_piece(&self) -> Option<&'a [u8]> {
        if self.0.segments != 1 {
            return None;
        }
        // SAFETY: a buffer's data, of which the driver says that it has `len` bytes; nobody else
        // has the buffer until the burst, which this borrows, is given back.
        Some(unsafe { std::slice::from_raw_parts(self.0.bytes, self.len()) })
    }

    /// Copies all of it to `out`, which has its length.
    #[cold]
    pub(crate) fn gather(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "output length");
        // SAFETY: `out` has as many bytes as the frame; the copy ends there, whatever the buffers
        // say.
        unsafe { shim::lh_gather(self.0, out.as_mut_ptr()) };
    }
}

/// Frames on their way to the device, and empty ones to build them in.
pub(crate) struct Outgoing {
    /// Built, not yet taken by the device; the first `sent` were.
    built: Vec<RawFrame>,
    sent: usize,
    /// Of one buffer each.
    empty: Vec<RawFrame>,
    /// Without memory, to refer with.
    references: Vec<RawFrame>,
    /// What the longest frame takes.
    buffers_max: usize,
    /// The device's queue that they go by.
    queue: u16,
    no_buffer: u64,
}

// SAFETY: as for `Burst`.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// The most frames between two flushes.
    pub(crate) const FRAMES_MAX: usize = 256;

    pub(crate) fn new(pool: &BufferPool, queue: u16, frame_bytes_max: usize) -> Self {
        let buffers_max = frame_bytes_max.div_ceil(pool.buffer_bytes);
        let empty =
            Vec::with_capacity((Self::FRAMES_MAX * buffers_max).next_multiple_of(BURST_MAX));
        let (built, references) =
            (Vec::with_capacity(Self::FRAMES_MAX), Vec::with_capacity(BURST_MAX));
        Self { built, sent: 0, empty, references, buffers_max, queue, no_buffer: 0 }
    }

    /// Frames that can be built now, each of the greatest length.
    pub(crate) fn room(&mut self, pool: &BufferPool) -> usize {
        self.stock_up(pool);
        (Self::FRAMES_MAX - self.built.len()).min(self.empty.len() / self.buffers_max)
    }

    /// Gets empty buffers, as many as there is room for, or as the pool has.
    fn stock_up(&mut self, pool: &BufferPool) {
        while self.empty.capacity() - self.empty.len() >= BURST_MAX {
            let had = self.empty.len();
            self.empty.resize(had + BURST_MAX, RawFrame::NONE);
            let more = &mut self.empty[had..];
            // SAFETY: the pool is there, and there is room for so many frames.
            let done =
                unsafe { shim::lh_allocate(pool.as_ptr(), more.as_mut_ptr(), BURST_MAX as u32) };
            if done < 0 {
                self.empty.truncate(had);
                self.no_buffer = self.no_buffer.wrapping_add(1);
                break;
            }
        }
    }

    /// Builds a frame of `len` bytes. False: there is no room, and `fill` was not called. A frame
    /// of several buffers is built in `scratch`.
    #[inline]
    pub(crate) fn build(
        &mut self,
        pool: &BufferPool,
        len: usize,
        scratch: &mut [u8],
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let buffer_bytes = pool.buffer_bytes;
        let needed = len.div_ceil(buffer_bytes);
        if self.built.len() == Self::FRAMES_MAX {
            return false;
        }
        if self.empty.len() < needed {
            self.stock_up(pool);
            if self.empty.len() < needed {
                return false;
            }
        }
        let first = self.empty.len() - needed;
        let frames = &mut self.empty[first..];
        if needed == 1 {
            // SAFETY: an empty buffer has room for `buffer_bytes`, and nobody else has it.
            fill(unsafe { std::slice::from_raw_parts_mut(frames[0].bytes, len) });
            frames[0].len = len as u32;
        } else {
            let bytes = &mut scratch[..len];
            fill(bytes);
            // SAFETY: `needed` empty frames, each of one buffer of `buffer_bytes`, have room for
            // `len` bytes.
            unsafe {
                shim::lh_spread(frames.as_mut_ptr(), needed as u32, bytes.as_ptr(), len as u32)
            };
        }
        self.built.push(frames[0]);
        self.empty.truncate(first);
        true
    }

    /// Adds a frame that somebody lends. False: there is no room, no buffer in `references`, or the
    /// frame lies in memory that is not DPDK's.
    #[inline]
    pub(crate) fn refer(&mut self, references: &BufferPool, lease: &Lease) -> bool {
        if self.built.len() == Self::FRAMES_MAX || !self.stock_up_references(references) {
            return false;
        }
        let Some(frame) = self.references.last_mut() else { return false };
        let (bytes, opaque) = (lease.bytes(), into_opaque(lease.clone()));
        // SAFETY: the frame is an empty one of a pool of references; the bytes stay as they are as
        // long as there is a clone of the lease, and the one that goes along is let go of by
        // `let_go` alone.
        let done =
            unsafe { shim::lh_refer(frame, bytes.as_ptr(), bytes.len() as u32, let_go, opaque) };
        if done < 0 {
            // SAFETY: the lease from above, which did not go along.
            drop(unsafe { from_opaque(opaque) });
            return false;
        }
        self.built.extend(self.references.pop());
        true
    }

    /// True when there is a buffer to refer with.
    #[inline]
    fn stock_up_references(&mut self, pool: &BufferPool) -> bool {
        if !self.references.is_empty() {
            return true;
        }
        self.references.resize(BURST_MAX, RawFrame::NONE);
        // SAFETY: the pool is there, and there is room for so many frames.
        let done = unsafe {
            shim::lh_allocate(pool.as_ptr(), self.references.as_mut_ptr(), BURST_MAX as u32)
        };
        if done < 0 {
            self.references.clear();
        }
        done == 0
    }

    /// Hands the device what it takes. True when it took all, or something.
    #[inline]
    pub(crate) fn send(&mut self, device: &Device) -> bool {
        let before = self.sent;
        while device.is_started() && self.sent < self.built.len() {
            let rest = &self.built[self.sent..];
            let count = rest.len().min(BURST_MAX);
            // SAFETY: the port is started and has this queue, only this thread uses it; what it
            // takes is no longer ours.
            let taken =
                unsafe { shim::lh_transmit(device.id(), self.queue, rest.as_ptr(), count as u32) }
                    as usize;
            self.sent += taken;
            if taken < count {
                break;
            }
        }
        let has_moved = self.sent > before || self.built.is_empty();
        if self.sent == self.built.len() {
            self.built.clear();
            self.sent = 0;
        } else if self.sent > 0 && self.built.len() == Self::FRAMES_MAX {
            // Few are left, or the device takes few at a time.
            self.built.drain(..self.sent);
            self.sent = 0;
        }
        has_moved
    }

    /// Frames that the device has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.built.len() - self.sent
    }

    /// Drops what waits and returns how many that were.
    pub(crate) fn forget(&mut self) -> usize {
        let rest = &self.built[self.sent..];
        let count = rest.len();
        // SAFETY: the device has not taken these, and they are freed once.
        unsafe { shim::lh_free(rest.as_ptr(), count as u32) };
        self.built.clear();
        self.sent = 0;
        count
    }

    #[cfg(test)]
    pub(crate) fn empty_buffers(&self) -> usize {
        self.empty.len()
    }

    /// Times that the pool was empty.
    pub(crate) fn no_buffer(&self) -> u64 {
        self.no_buffer
    }
}

/// A lease as what DPDK carries along: it is a pointer.
fn into_opaque(lease: Lease) -> *mut c_void {
    // SAFETY: as long as it is carried it is not looked at.
    unsafe { std::mem::transmute::<Lease, *mut c_void>(lease) }
}

/// # Safety
/// `opaque` is of [`into_opaque`], and is taken back once.
unsafe fn from_opaque(opaque: *mut c_void) -> Lease {
    // SAFETY: it was one.
    unsafe { std::mem::transmute::<*mut c_void, Lease>(opaque) }
}

/// What DPDK calls when a frame that was sent by reference is gone.
///
/// # Safety
/// `lease` is of [`into_opaque`], and this is called once for it.
unsafe extern "C" fn let_go(_bytes: *mut c_void, lease: *mut c_void) {
    // SAFETY: as the caller says. A lease may be dropped by any thread.
    drop(unsafe { from_opaque(lease) });
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.forget();
        for rest in [&self.empty, &self.references] {
            // SAFETY: these are empty and nobody else's.
            unsafe { shim::lh_free(rest.as_ptr(), rest.len() as u32) };
        }
    }
}
