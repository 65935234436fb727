//! Frames in DPDK's buffers: received ones, and those to be sent.

use crate::device::Device;
use crate::lent::{LENT_BYTES_MIN, LentBuffers};
use crate::pool::BufferPool;
use crate::shim::{self, BURST_MAX, RawFrame};
use longhaul_lease::Lease;
use std::ffi::c_void;

/// Received frames that have not been freed.
pub(crate) struct Burst {
    frames: Box<[RawFrame; BURST_MAX]>,
    came: usize,
}

// SAFETY: the frames are this one's own, and DPDK's buffers may be freed by any thread.
unsafe impl Send for Burst {}

impl Burst {
    /// Maximum frames per burst.
    pub(crate) const FRAMES_MAX: usize = BURST_MAX;

    pub(crate) fn new() -> Self {
        Self { frames: Box::new([RawFrame::NONE; BURST_MAX]), came: 0 }
    }

    /// Receives at most `max` frames and returns their number.
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

    /// A frame of the last burst.
    #[inline]
    pub(crate) fn frame(&self, at: usize) -> Received<'_> {
        Received(&self.frames[..self.came][at])
    }

    /// True if [`Burst::lend`] may be called for the frame.
    #[inline]
    pub(crate) fn is_lendable(&self, at: usize) -> bool {
        let frame = &self.frames[..self.came][at];
        frame.segments == 1 && frame.len as usize >= LENT_BYTES_MIN
    }

    /// Lends one of them to `each`, which may keep it. `false`: too many are kept. The frame must
    /// not be used again.
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
        // Frames are left if a reader panicked.
        self.give_back();
    }
}

/// A received frame.
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

    /// Its bytes, unless it spans several buffers.
    #[inline]
    pub(crate) fn in_one_piece(&self) -> Option<&'a [u8]> {
        if self.0.segments != 1 {
            return None;
        }
        // SAFETY: a buffer's data, which has `len` bytes according to the driver; nobody else has
        // the buffer until the burst, which this borrows, is freed.
        Some(unsafe { std::slice::from_raw_parts(self.0.bytes, self.len()) })
    }

    /// Copies the frame to `out`, which must have its length.
    #[cold]
    pub(crate) fn gather(&self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "output length");
        // SAFETY: `out` has as many bytes as the frame; the copy ends there, whatever the buffers
        // say.
        unsafe { shim::lh_gather(self.0, out.as_mut_ptr()) };
    }
}

/// Frames to be sent, and empty ones to build them in.
pub(crate) struct Outgoing {
    /// Built frames; the device has accepted the first `sent`.
    built: Vec<RawFrame>,
    sent: usize,
    /// Single buffers.
    empty: Vec<RawFrame>,
    /// Buffers without memory, for references.
    references: Vec<RawFrame>,
    /// Buffers of the longest frame.
    buffers_max: usize,
    /// The device's transmit queue.
    queue: u16,
    no_buffer: u64,
}

// SAFETY: as for `Burst`.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Maximum frames between two flushes.
    pub(crate) const FRAMES_MAX: usize = 256;

    pub(crate) fn new(pool: &BufferPool, queue: u16, frame_bytes_max: usize) -> Self {
        let buffers_max = frame_bytes_max.div_ceil(pool.buffer_bytes);
        let empty =
            Vec::with_capacity((Self::FRAMES_MAX * buffers_max).next_multiple_of(BURST_MAX));
        let (built, references) =
            (Vec::with_capacity(Self::FRAMES_MAX), Vec::with_capacity(BURST_MAX));
        Self { built, sent: 0, empty, references, buffers_max, queue, no_buffer: 0 }
    }

    /// Number of frames of the maximum length that can be built now.
    pub(crate) fn room(&mut self, pool: &BufferPool) -> usize {
        self.stock_up(pool);
        (Self::FRAMES_MAX - self.built.len()).min(self.empty.len() / self.buffers_max)
    }

    /// Gets empty buffers, up to the capacity or as many as the pool has.
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

    /// Builds a frame of `len` bytes. `false`: there is no space, and `fill` was not called. A
    /// frame of several buffers is built in `scratch`.
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
            // SAFETY: an empty buffer has space for `buffer_bytes`, and nobody else uses it.
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

    /// Adds a lent frame by reference. `false`: there is no space, no buffer in `references`, or
    /// the frame is not in DPDK's memory.
    #[inline]
    pub(crate) fn refer(&mut self, references: &BufferPool, lease: &Lease) -> bool {
        if self.built.len() == Self::FRAMES_MAX || !self.stock_up_references(references) {
            return false;
        }
        let Some(frame) = self.references.last_mut() else { return false };
        let (bytes, opaque) = (lease.bytes(), into_opaque(lease.clone()));
        // SAFETY: the frame is an empty one of a pool of references; the bytes stay as they are as
        // long as there is a clone of the lease, and only `let_go` drops the one that goes along.
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

    /// True if there is a buffer for a reference.
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

    /// Passes frames to the device. Returns `true` if it accepted all, or at least one.
    #[inline]
    pub(crate) fn send(&mut self, device: &Device) -> bool {
        let before = self.sent;
        while device.is_started() && self.sent < self.built.len() {
            let rest = &self.built[self.sent..];
            let count = rest.len().min(BURST_MAX);
            // SAFETY: the port is started and has this queue, only this thread uses it; frames that
            // it accepts belong to the device.
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
            // Only when few are left, or the device accepts few at a time.
            self.built.drain(..self.sent);
            self.sent = 0;
        }
        has_moved
    }

    /// Number of frames that the device has not accepted.
    pub(crate) fn waiting(&self) -> usize {
        self.built.len() - self.sent
    }

    /// Drops the waiting frames and returns their number.
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

    /// Number of times that the pool was empty.
    pub(crate) fn no_buffer(&self) -> u64 {
        self.no_buffer
    }
}

/// A lease in the form that DPDK carries: a pointer.
fn into_opaque(lease: Lease) -> *mut c_void {
    // SAFETY: as long as it is carried it is not looked at.
    unsafe { std::mem::transmute::<Lease, *mut c_void>(lease) }
}

/// # Safety
/// `opaque` must come from [`into_opaque`], and may be converted only once.
unsafe fn from_opaque(opaque: *mut c_void) -> Lease {
    // SAFETY: it was one.
    unsafe { std::mem::transmute::<*mut c_void, Lease>(opaque) }
}

/// DPDK calls this when it has released a frame that was sent by reference.
///
/// # Safety
/// `lease` must come from [`into_opaque`], and this must be called once for it.
unsafe extern "C" fn let_go(_bytes: *mut c_void, lease: *mut c_void) {
    // SAFETY: as the caller says. A lease may be dropped by any thread.
    drop(unsafe { from_opaque(lease) });
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.forget();
        for rest in [&self.empty, &self.references] {
            // SAFETY: these are empty and in no other use.
            unsafe { shim::lh_free(rest.as_ptr(), rest.len() as u32) };
        }
    }
}
