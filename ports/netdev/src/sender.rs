//! Sends frames that the caller has built.

use std::io;
use std::os::fd::AsFd;

use longhaul_port::{DropReason, PortCounters, PortError};

use crate::batch::SendRing;
use crate::counters::NetdevCounters;
use crate::watch::is_down;

/// Number of frames that are passed to the kernel without waiting for a flush, while their bytes
/// are cached.
const PUBLISH_AT: usize = 64;

/// Send path between `transmit` and the kernel.
pub(crate) struct Sender {
    ring: SendRing,
    is_blocked: bool,
    is_reported: bool,
    /// An error that has not been reported yet.
    failure: Option<PortError>,
}

impl Sender {
    pub(crate) fn new(slots: usize, frame_bytes_max: usize) -> Self {
        let ring = SendRing::new(slots, frame_bytes_max);
        Self { ring, is_blocked: false, is_reported: false, failure: None }
    }

    pub(crate) fn slots(&self) -> usize {
        self.ring.slots()
    }

    pub(crate) fn room(&self) -> usize {
        self.ring.room()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ring.waiting()
    }

    /// The send buffer was full at the last call.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// True if enough frames wait for an efficient system call.
    pub(crate) fn is_worth_sending(&self) -> bool {
        !self.is_blocked && self.waiting() >= PUBLISH_AT
    }

    /// Builds a frame in a free slot, which must exist.
    pub(crate) fn build(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        self.ring.build(len, fill);
    }

    /// Reports the first frame that the kernel refused for an unknown reason; a counter counts the
    /// others.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn report(&mut self) -> Result<(), PortError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Passes the built frames to the kernel, as far as it accepts them. A refused frame is dropped
    /// and counted, and later ones are still sent. Returns `false` if the interface is down or
    /// gone.
    pub(crate) fn send(
        &mut self,
        socket: &impl AsFd,
        ports: &mut PortCounters,
        counters: &mut NetdevCounters,
    ) -> bool {
        self.is_blocked = false;
        while self.waiting() > 0 {
            counters.tx_calls += 1;
            match self.ring.send(socket.as_fd()) {
                Ok(frames) => {
                    for _ in 0..frames {
                        ports.count_tx(self.ring.pop());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.tx_blocked += 1;
                    self.is_blocked = true;
                    return true;
                }
                Err(error) if is_down(&error) => {
                    self.drop_all(ports);
                    return false;
                }
                Err(error) => self.refuse(error, ports, counters),
            }
        }
        true
    }

    /// Drops the waiting frames, because there is no link.
    pub(crate) fn drop_all(&mut self, ports: &mut PortCounters) {
        while self.waiting() > 0 {
            self.ring.pop();
            ports.tx_drops.count(DropReason::LinkDown);
        }
        self.is_blocked = false;
    }

    fn refuse(
        &mut self,
        error: io::Error,
        ports: &mut PortCounters,
        counters: &mut NetdevCounters,
    ) {
        self.ring.pop();
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => ports.tx_drops.count(DropReason::FrameTooLong),
            Some(libc::ENOBUFS | libc::ENOMEM) => counters.tx_queue_full += 1,
            _ => {
                counters.tx_refused += 1;
                if !std::mem::replace(&mut self.is_reported, true) {
                    self.failure = Some(PortError::io("sending a frame", error));
                }
            }
        }
    }
}
