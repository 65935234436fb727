//! Captures of a segment.

use crate::packed::without_memory;
use longhaul_node::Frame;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::MAD_LEN;
use longhaul_wire::pcap::{LinkType, RecordHeader, file_header};
use longhaul_wire::{HEAD_MAX, Packet};
use std::io::{self, Write};

/// Virtual time 0 in a capture: 2000-01-01T00:00:00Z, in nanoseconds since 1970.
pub const EPOCH_NS: u64 = 946_684_800_000_000_000;

/// Maximum length of a frame with a management datagram (MAD), in bytes.
const MAD_FRAME_LEN_MAX: usize = HEAD_MAX + MAD_LEN + 4;

/// Writes the frames of a cable's direction to a capture, with the virtual time at which they enter
/// or leave it.
///
/// A payload without bytes is written as zeros, up to the snap length, with the ICRC of the zeros.
/// MADs are written whole.
pub struct Recorder {
    out: Box<dyn Write + Send>,
    is_at_arrival: bool,
    snap_len: usize,
    bytes: Vec<u8>,
    error: Option<io::Error>,
}

impl Recorder {
    /// Records at most `snap_len` bytes of each frame to `out`; MADs completely.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(mut out: Box<dyn Write + Send>, snap_len: u32) -> io::Result<Self> {
        let longest = snap_len.max(MAD_FRAME_LEN_MAX as u32);
        out.write_all(&file_header(LinkType::ETHERNET, longest))?;
        let snap_len = snap_len as usize;
        Ok(Recorder { out, is_at_arrival: false, snap_len, bytes: Vec::new(), error: None })
    }

    /// Records arrivals at the far end instead.
    #[must_use]
    pub fn at_arrival(self) -> Self {
        Recorder { is_at_arrival: true, ..self }
    }

    /// Records a frame that enters at `now` and arrives at `due`, or is lost.
    pub(crate) fn record(&mut self, now: Instant, due: Option<Instant>, frame: &Frame<'_>) {
        let at = if self.is_at_arrival { due } else { Some(now) };
        if self.error.is_none()
            && let Some(at) = at
            && let Err(error) = self.write(at, frame)
        {
            self.error = Some(error);
        }
    }

    fn write(&mut self, now: Instant, frame: &Frame<'_>) -> io::Result<()> {
        self.bytes.clear();
        let len = frame.len();
        let snap_len =
            if is_mad(frame) { self.snap_len.max(MAD_FRAME_LEN_MAX) } else { self.snap_len };
        if snap_len <= frame.head.len() {
            self.bytes.extend_from_slice(&frame.head[..snap_len]);
        } else {
            self.bytes.resize(len, 0);
            without_memory(frame).write_to(&mut self.bytes);
            self.bytes.truncate(snap_len);
        }
        let header = RecordHeader {
            timestamp_ns: EPOCH_NS + now.as_ns(),
            captured_len: self.bytes.len() as u32,
            original_len: len as u32,
        };
        self.out.write_all(&header.write())?;
        self.out.write_all(&self.bytes)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// The first write error.
    pub fn finish(mut self) -> io::Result<()> {
        match self.error {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

/// Returns whether a frame is for the general service interface, QP 1.
fn is_mad(frame: &Frame<'_>) -> bool {
    matches!(Packet::parse(frame.head), Ok(Some(packet)) if packet.bth().dest_qp == Qpn::GSI)
}
