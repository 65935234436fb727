//! Received buffers that readers keep beyond the call.

use crate::shim::{self, Mbuf, RawFrame};
use longhaul_lease::{Circulation, Lease, Returned};
use std::ptr::null_mut;

/// Minimum length of a lent frame, in bytes: copying a shorter one costs less than keeping a whole
/// buffer.
pub(crate) const LENT_BYTES_MIN: usize = 256;

/// Buffers whose frames are lent. Each returns to its pool once nobody has its frame, at the latest
/// when another frame takes its place.
pub(crate) struct LentBuffers {
    kept: Circulation<LentBuffer>,
    /// A place whose frame nobody kept.
    spare: Option<LentBuffer>,
    /// Maximum number of kept buffers.
    most: usize,
}

/// A lease and its buffer, initially null. Neither clones nor dropping free the buffer.
#[derive(Clone)]
struct LentBuffer {
    lease: Lease,
    mbuf: *mut Mbuf,
}

// SAFETY: the buffer is this one's, others only read it, and DPDK's buffers may be freed by any
// thread.
unsafe impl Send for LentBuffer {}

impl Returned for LentBuffer {
    #[inline]
    fn is_returned(&self) -> bool {
        self.lease.is_returned()
    }
}

impl LentBuffers {
    pub(crate) fn new(most: usize) -> Self {
        LentBuffers { kept: Circulation::default(), spare: None, most }
    }

    /// True if frames may be lent at all.
    pub(crate) fn are_possible(&self) -> bool {
        self.most > 0
    }

    /// Lends a frame of one buffer to `each`. The buffer is kept here until nobody has the frame;
    /// `frame` gets another buffer, or none, to be freed instead. `false`, without a call of
    /// `each`: too many are kept.
    #[inline]
    pub(crate) fn lend(&mut self, frame: &mut RawFrame, each: &mut dyn FnMut(&Lease)) -> bool {
        debug_assert_eq!(frame.segments, 1, "one buffer");
        let Some(mut place) = self.place() else { return false };
        // SAFETY: a buffer's data, which has `len` bytes according to the driver. Nobody writes
        // there before the buffer is freed, and from here on it is freed only once this lease, the
        // only owner of the slice, is returned.
        place.lease.put(unsafe { std::slice::from_raw_parts(frame.bytes, frame.len as usize) });
        std::mem::swap(&mut place.mbuf, &mut frame.mbuf);
        // If this panics, the buffer is leaked.
        each(&place.lease);
        if place.is_returned() {
            self.spare = Some(place);
        } else {
            self.kept.give(place);
        }
        true
    }

    /// A place whose frame nobody has any more.
    #[inline]
    fn place(&mut self) -> Option<LentBuffer> {
        let place = self.spare.take().or_else(|| self.kept.take());
        place.or_else(|| {
            let is_room = self.kept.len() < self.most;
            is_room.then(|| LentBuffer { lease: Lease::empty(), mbuf: null_mut() })
        })
    }

    /// Frees the buffers whose frames nobody has, and returns the others.
    fn sweep(&mut self) -> Circulation<LentBuffer> {
        let mut rest = Circulation::default();
        for place in std::mem::take(&mut self.kept).into_items().chain(self.spare.take()) {
            if place.is_returned() {
                let frame = RawFrame { mbuf: place.mbuf, ..RawFrame::NONE };
                // SAFETY: nobody else has the buffer, nor its bytes, and it is freed once: `place`
                // is not used again.
                unsafe { shim::lh_free(&raw const frame, 1) };
            } else {
                rest.give(place);
            }
        }
        rest
    }

    /// Frees the buffers whose frames nobody has.
    #[cfg(test)]
    pub(crate) fn tidy(&mut self) {
        self.kept = self.sweep();
    }
}

impl Drop for LentBuffers {
    fn drop(&mut self) {
        // Buffers whose frames are still kept are leaked, and so is their pool.
        self.sweep();
    }
}
