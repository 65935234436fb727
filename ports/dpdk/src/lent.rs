//! Received buffers that others keep beyond the call.

use crate::shim::{self, Mbuf, RawFrame};
use longhaul_lease::{Circulation, Lease, Returned};
use std::ptr::null_mut;

/// A frame that is shorter, in bytes, is not lent: a copy of it costs less than a whole buffer that is kept for it.
pub(crate) const LENT_BYTES_MIN: usize = 256;

/// Buffers whose frames were lent. Each goes back to its pool once nobody has its frame any more: when another is lent
/// in its place.
pub(crate) struct LentBuffers {
    kept: Circulation<LentBuffer>,
    /// A lease that nobody kept.
    spare: Option<Lease>,
    /// The most that are kept at once.
    most: usize,
}

/// A lease and the buffer behind it. Only who takes it out of circulation frees the buffer: clones do not.
#[derive(Clone)]
struct LentBuffer {
    lease: Lease,
    mbuf: *mut Mbuf,
}

// SAFETY: the buffer is this one's, others only read it, and DPDK's buffers may be freed by any thread.
unsafe impl Send for LentBuffer {}

impl LentBuffer {
    /// Gives the buffer back and returns the lease, which is returned already.
    #[inline]
    fn free(self) -> Lease {
        assert!(self.lease.is_returned(), "somebody has its frame");
        let frame = RawFrame { mbuf: self.mbuf, ..RawFrame::NONE };
        // SAFETY: nobody else has the buffer, nor its bytes, and this is gone: it is freed once.
        unsafe { shim::lh_free(&raw const frame, 1) };
        self.lease
    }
}

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

    /// True when any may be lent at all.
    pub(crate) fn are_possible(&self) -> bool {
        self.most > 0
    }

    /// Shows a frame of one buffer to `each`. When that keeps it, the buffer is taken out of `frame`. False, without a call:
    /// too many are kept.
    #[inline]
    pub(crate) fn lend(&mut self, frame: &mut RawFrame, each: &mut dyn FnMut(&Lease)) -> bool {
        debug_assert_eq!(frame.segments, 1, "one buffer");
        let Some(mut lease) = self.lease() else { return false };
        // SAFETY: a buffer's data, of which the driver says that it has `len` bytes. Nobody writes there before the buffer is
        // freed, and it is freed, here or by the frame's owner, only once this lease, which alone has the slice, is returned.
        lease.put(unsafe { std::slice::from_raw_parts(frame.bytes, frame.len as usize) });
        let mbuf = std::mem::replace(&mut frame.mbuf, null_mut());
        // If this panics, the buffer is nobody's, and stays.
        each(&lease);
        if lease.is_returned() {
            frame.mbuf = mbuf;
            self.spare = Some(lease);
        } else {
            self.kept.give(LentBuffer { lease, mbuf });
        }
        true
    }

    /// A lease that nobody else has.
    #[inline]
    fn lease(&mut self) -> Option<Lease> {
        self.spare.take().or_else(|| match self.kept.take() {
            Some(kept) => Some(kept.free()),
            None => (self.kept.len() < self.most).then(Lease::empty),
        })
    }

    /// Gives back all that nobody has any more.
    #[cfg(test)]
    pub(crate) fn sweep(&mut self) {
        for kept in std::mem::take(&mut self.kept).into_items() {
            if kept.is_returned() {
                kept.free();
            } else {
                self.kept.give(kept);
            }
        }
    }
}

impl Drop for LentBuffers {
    fn drop(&mut self) {
        // Buffers whose frames somebody still has stay where they are for good, and with them their pool.
        for kept in std::mem::take(&mut self.kept).into_items().filter(Returned::is_returned) {
            kept.free();
        }
    }
}
