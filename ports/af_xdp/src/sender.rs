//! Sends frames that the caller has built.

use std::time::{Duration, Instant};

use longhaul_port::{DropReason, PortCounters};

use crate::counters::XdpCounters;
use crate::memory::Buffers;
use crate::ring::{Consuming, Descriptor, Producing, Violation};
use crate::socket::XdpSocket;

/// Number of frames that are passed to the kernel without waiting for a flush, while their bytes
/// are cached. A kernel that copies sends no more per call.
const PUBLISH_AT: usize = 32;
/// A queue that accepts nothing for this time has stalled.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// The result of a call to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// It accepted all, or will without another call.
    All,
    /// It accepts no more at the moment.
    Blocked,
    /// The interface is down or gone.
    Down,
}

/// The sending half of a socket.
pub(crate) struct Sender {
    transmit: Producing,
    completion: Consuming,
    /// Free buffers.
    free: Vec<u32>,
    /// For each buffer, whether the kernel owns it.
    lent: Box<[bool]>,
    /// Number of parts that are written but not published.
    unpublished: usize,
    /// The kernel accepted nothing at the last call.
    is_blocked: bool,
    /// Number of parts that waited when the kernel last accepted any, the time since when it has
    /// not, and whether that was counted.
    stuck: Option<(u32, Instant, bool)>,
}

impl Sender {
    /// Sends from the first `count` buffers.
    pub(crate) fn new(transmit: Producing, completion: Consuming, count: u32) -> Self {
        Self {
            transmit,
            completion,
            free: (0..count).rev().collect(),
            lent: vec![false; count as usize].into(),
            unpublished: 0,
            is_blocked: false,
            stuck: None,
        }
    }

    /// Continues to send from the first `count` buffers, of which the kernel has those in `lent`.
    pub(crate) fn resume(
        transmit: Producing,
        completion: Consuming,
        count: u32,
        lent: impl Iterator<Item = u64>,
    ) -> Result<Self, Violation> {
        let mut this = Self::new(transmit, completion, count);
        for number in lent {
            let place = usize::try_from(number).ok().and_then(|number| this.lent.get_mut(number));
            match place {
                Some(place) if !*place => *place = true,
                _ => return Err(Violation(format!("buffer {number} cannot be under way"))),
            }
        }
        this.free.retain(|number| !this.lent[*number as usize]);
        Ok(this)
    }

    /// Numbers of the buffers that the kernel has.
    pub(crate) fn lent(&self) -> impl Iterator<Item = u64> {
        (0..).zip(&self.lent).filter(|(_, is_lent)| **is_lent).map(|(number, _)| number)
    }

    /// True if the kernel has all frames that were built.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.unpublished == 0 && !self.is_blocked
    }

    /// Number of frames of this length that can be built now.
    #[inline]
    pub(crate) fn room(&mut self, frame_bytes: usize) -> Result<usize, Violation> {
        let parts = frame_bytes.div_ceil(Buffers::EACH);
        if self.free.len() < parts {
            self.reclaim()?;
        }
        Ok(self.free.len().min(self.transmit.room()? as usize) / parts)
    }

    /// Reclaims the buffers of sent frames.
    #[inline]
    fn reclaim(&mut self) -> Result<(), Violation> {
        let available = self.completion.available()?;
        for ahead in 0..available {
            let address = self.completion.address(ahead);
            let number = (address / Buffers::EACH as u64) as usize;
            match self.lent.get_mut(number) {
                Some(lent) if *lent => *lent = false,
                _ => {
                    return Err(Violation(format!(
                        "the buffer at {address} was not sent, and came back"
                    )));
                }
            }
            self.free.push(number as u32);
        }
        if available > 0 {
            self.completion.release(available);
        }
        Ok(())
    }

    /// Builds a frame that fits one buffer; there must be a free one.
    #[inline]
    pub(crate) fn build(
        &mut self,
        buffers: &mut Buffers,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) {
        let Some(number) = self.free.pop() else { return };
        let address = u64::from(number) * Buffers::EACH as u64;
        fill(buffers.at(address, len));
        self.lend(number, Descriptor { address, len: len as u32, goes_on: false });
    }

    /// Spreads a frame over several buffers; there must be enough free ones.
    pub(crate) fn spread(&mut self, buffers: &mut Buffers, frame: &[u8]) {
        let mut parts = frame.chunks(Buffers::EACH).peekable();
        while let Some(part) = parts.next() {
            let Some(number) = self.free.pop() else { return };
            let address = u64::from(number) * Buffers::EACH as u64;
            buffers.at(address, part.len()).copy_from_slice(part);
            let goes_on = parts.peek().is_some();
            self.lend(number, Descriptor { address, len: part.len() as u32, goes_on });
        }
    }

    #[inline]
    fn lend(&mut self, number: u32, descriptor: Descriptor) {
        self.lent[number as usize] = true;
        self.transmit.push(descriptor);
        self.unpublished += 1;
    }

    /// True if enough frames wait for an efficient system call.
    #[inline]
    pub(crate) fn is_worth_sending(&self) -> bool {
        !self.is_blocked && self.unpublished >= PUBLISH_AT
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Number of parts that the kernel has not accepted.
    pub(crate) fn waiting(&self) -> Result<u32, Violation> {
        self.transmit.pending()
    }

    /// Passes the built frames to the kernel, and calls it while it accepts any.
    pub(crate) fn send(
        &mut self,
        socket: &XdpSocket,
        counters: &mut XdpCounters,
    ) -> Result<Sent, Violation> {
        if self.unpublished > 0 {
            self.unpublished = 0;
            self.transmit.publish();
        }
        self.is_blocked = false;
        let mut waiting = self.transmit.pending()?;
        while waiting > 0 && self.transmit.wants_call() {
            counters.tx_calls += 1;
            let failure = socket.call_to_send().err().and_then(|error| error.raw_os_error());
            self.reclaim()?;
            let before = std::mem::replace(&mut waiting, self.transmit.pending()?);
            match failure {
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADF) => {
                    return Ok(Sent::Down);
                }
                // The frame that the error is about is lost.
                Some(libc::EBUSY) => counters.tx_queue_full += 1,
                _ => {}
            }
            if waiting == before && failure != Some(libc::EBUSY) {
                // Without an error, frames in flight need no further call.
                self.is_blocked = failure.is_some();
                counters.tx_blocked += u64::from(self.is_blocked);
                break;
            }
        }
        Ok(if self.is_blocked { Sent::Blocked } else { Sent::All })
    }

    /// Detects a device that accepts nothing.
    pub(crate) fn watch(
        &mut self,
        now: Instant,
        counters: &mut XdpCounters,
    ) -> Result<(), Violation> {
        let waiting = self.transmit.pending()?;
        match &mut self.stuck {
            _ if waiting == 0 => self.stuck = None,
            Some((before, since, is_counted)) if *before == waiting => {
                if !*is_counted && now.duration_since(*since) > STALLED_AFTER {
                    *is_counted = true;
                    counters.tx_stalls += 1;
                }
            }
            _ => self.stuck = Some((waiting, now, false)),
        }
        Ok(())
    }
}

/// Counts a frame that was dropped because there is no link.
pub(crate) fn drop_for_link(ports: &mut PortCounters) {
    ports.tx_drops.count(DropReason::LinkDown);
}
