//! Receives frames from the kernel, and restores the frames that a cable would carry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use longhaul_port::{DropReason, PortCounters};

use crate::batch::{NoFrame, ReceiveBatch, Received};
use crate::config::PacketConfig;
use crate::counters::NetdevCounters;
use crate::segment::{Splitter, complete};
use crate::watch::is_down;

/// Maximum errors in one call of `receive`; each concerns one frame.
const REFUSALS_MAX: usize = 16;

/// Receive path between the kernel and `receive`.
pub(crate) struct Receiver {
    batch: ReceiveBatch,
    frame_bytes_max: usize,
    /// Number of messages of the last call.
    messages: usize,
    /// Next message to process.
    next: usize,
    splitter: Splitter,
    /// The message that is being split, whether its VLAN tag was restored, and its age.
    split: (usize, bool, Option<Duration>),
}

/// The result of a `receive`.
pub(crate) struct Handed {
    pub(crate) frames: usize,
    /// The interface is down or gone.
    pub(crate) is_down: bool,
}

impl Receiver {
    pub(crate) fn new(config: &PacketConfig) -> Self {
        Self {
            batch: ReceiveBatch::new(config.promiscuous, config.stamps),
            frame_bytes_max: config.frame_bytes_max,
            messages: 0,
            next: 0,
            splitter: Splitter::IDLE,
            split: (0, false, None),
        }
    }

    /// True if frames that were read from the kernel wait.
    pub(crate) fn holds_frames(&self) -> bool {
        !self.splitter.is_done() || self.next < self.messages
    }

    /// Hands out up to `max` frames, each with its age if frames are stamped.
    ///
    /// # Errors
    /// An unexpected error of the kernel.
    pub(crate) fn receive(
        &mut self,
        socket: &impl AsFd,
        max: usize,
        each: &mut dyn FnMut(&[u8], Option<Duration>),
        ports: &mut PortCounters,
        counters: &mut NetdevCounters,
    ) -> io::Result<Handed> {
        let mut handed = Handed { frames: 0, is_down: false };
        let (mut is_drained, mut refusals) = (false, 0);
        while handed.frames < max {
            if !self.splitter.is_done() {
                handed.frames += self.hand_out_parts(max - handed.frames, each, ports);
            } else if self.next < self.messages {
                handed.frames += self.open(each, ports, counters);
            } else if is_drained {
                break;
            } else {
                let wanted = (max - handed.frames).min(ReceiveBatch::FRAMES);
                match self.fetch(socket.as_fd(), wanted, counters) {
                    Ok(()) => is_drained = self.messages < wanted,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if is_down(&error) => {
                        handed.is_down = true;
                        break;
                    }
                    // A frame that the kernel cannot describe; it has dropped the frame.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                        refusals += 1;
                        counters.rx_not_splittable += 1;
                        is_drained = refusals == REFUSALS_MAX;
                    }
                    Err(error) if handed.frames == 0 => return Err(error),
                    // The next call will return it again.
                    Err(_) => break,
                }
            }
        }
        Ok(handed)
    }

    fn fetch(
        &mut self,
        socket: BorrowedFd<'_>,
        wanted: usize,
        counters: &mut NetdevCounters,
    ) -> io::Result<()> {
        (self.messages, self.next) = (0, 0);
        counters.rx_calls += 1;
        self.messages = self.batch.receive(socket, wanted)?;
        Ok(())
    }

    /// Processes the next message: hands out its frame, or begins to split it. Returns the number
    /// of frames handed out.
    fn open(
        &mut self,
        each: &mut dyn FnMut(&[u8], Option<Duration>),
        ports: &mut PortCounters,
        counters: &mut NetdevCounters,
    ) -> usize {
        let at = self.next;
        self.next += 1;
        let Received { frame, offload, is_tagged, age } = match self.batch.open(at) {
            Ok(received) => received,
            Err(NoFrame::TooLong) => {
                ports.rx_drops.count(DropReason::FrameTooLong);
                return 0;
            }
            Err(NoFrame::TooShort) => {
                ports.rx_drops.count(DropReason::FrameTooShort);
                return 0;
            }
            Err(NoFrame::NotForUs) => return 0,
        };
        counters.rx_tags_restored += u64::from(is_tagged);
        if !offload.is_nothing() {
            let understood = if offload.is_split() {
                counters.rx_split += 1;
                self.splitter.begin(frame, &offload)
            } else {
                counters.rx_checksums_filled += 1;
                complete(frame, &offload)
            };
            if understood.is_err() {
                counters.rx_not_splittable += 1;
                return 0;
            }
            if offload.is_split() {
                self.split = (at, is_tagged, age);
                return 0;
            }
        }
        hand_out(frame, age, self.frame_bytes_max, each, ports)
    }

    fn hand_out_parts(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], Option<Duration>),
        ports: &mut PortCounters,
    ) -> usize {
        let (at, is_tagged, age) = self.split;
        let frame = self.batch.frame(at, is_tagged);
        let mut handed = 0;
        while handed < max && !self.splitter.is_done() {
            handed += hand_out(self.splitter.next(frame), age, self.frame_bytes_max, each, ports);
        }
        handed
    }
}

/// Hands out a frame unless it is too long. Returns the number of frames handed out, 0 or 1.
fn hand_out(
    frame: &[u8],
    age: Option<Duration>,
    frame_bytes_max: usize,
    each: &mut dyn FnMut(&[u8], Option<Duration>),
    ports: &mut PortCounters,
) -> usize {
    if frame.len() > frame_bytes_max {
        ports.rx_drops.count(DropReason::FrameTooLong);
        return 0;
    }
    ports.count_rx(frame.len());
    each(frame, age);
    1
}
