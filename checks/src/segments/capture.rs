//! Reads one capture file frame by frame, through a buffer of bounded size.

use super::{ProofError, Segment};
use longhaul_wire::pcap::{Decoder, LinkType, Step};
use std::io::Read;

/// Bytes read at a time; the buffer also holds the rest of the longest record.
const CHUNK: u64 = 256 << 10;

/// A frame copied from a capture.
#[derive(Default)]
pub(super) struct Recorded {
    /// From 1, as in other programs.
    pub(super) number: u64,
    pub(super) time_ns: u64,
    pub(super) bytes: Vec<u8>,
}

/// A capture being read; holds its next frame.
pub(super) struct Capture<'a> {
    pub(super) segment: Segment,
    source: Box<dyn Read + 'a>,
    decoder: Decoder,
    buffer: Vec<u8>,
    consumed: usize,
    ended: bool,
    /// The next frame, if any.
    pub(super) next: Option<Recorded>,
    frames: u64,
    time_ns: u64,
}

impl<'a> Capture<'a> {
    pub(super) fn new(segment: Segment, source: Box<dyn Read + 'a>) -> Result<Self, ProofError> {
        let mut capture = Capture {
            segment,
            source,
            decoder: Decoder::new(),
            buffer: Vec::new(),
            consumed: 0,
            ended: false,
            next: Some(Recorded::default()),
            frames: 0,
            time_ns: 0,
        };
        capture.advance()?;
        Ok(capture)
    }

    /// Advances [`Capture::next`] to the following frame.
    pub(super) fn advance(&mut self) -> Result<(), ProofError> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        loop {
            let rest = &self.buffer[self.consumed..];
            let step = self
                .decoder
                .step(rest)
                .map_err(|error| ProofError::Capture(self.segment, error))?;
            match step {
                Step::Skip { consumed } => self.consumed += consumed,
                Step::Packet { consumed, record } => {
                    self.frames += 1;
                    if record.link_type != LinkType::ETHERNET {
                        return Err(ProofError::LinkType(self.segment, record.link_type.0));
                    }
                    if record.original_len != record.data.len() {
                        return Err(ProofError::Cut(self.segment, self.frames));
                    }
                    let time = record
                        .timestamp_ns
                        .ok_or(ProofError::Timeless(self.segment, self.frames))?;
                    // A clock that is set back must not change the order of the files.
                    self.time_ns = self.time_ns.max(time);
                    next.number = self.frames;
                    next.time_ns = self.time_ns;
                    next.bytes.clear();
                    next.bytes.extend_from_slice(record.data);
                    self.consumed += consumed;
                    self.next = Some(next);
                    return Ok(());
                }
                Step::NeedMore { .. } if self.ended => {
                    self.decoder
                        .finish(rest)
                        .map_err(|error| ProofError::Capture(self.segment, error))?;
                    return Ok(());
                }
                Step::NeedMore { .. } => self.fill()?,
            }
        }
    }

    fn fill(&mut self) -> Result<(), ProofError> {
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        let had = self.buffer.len();
        let read = (&mut self.source).take(CHUNK).read_to_end(&mut self.buffer);
        read.map_err(|error| ProofError::Read(self.segment, error))?;
        self.ended = self.buffer.len() == had;
        Ok(())
    }

    /// Frames read, including the next one.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Time of the last frame read.
    pub(super) fn time_ns(&self) -> u64 {
        self.time_ns
    }
}
