//! A capture file of any size, through a small buffer.

use crate::doctor::{Doctor, End};
use longhaul_wire::pcap::{CaptureError, Decoder, Step};
use std::io::{self, Read};
use thiserror::Error;

/// Bytes read at once.
const BUFFER_LEN: usize = 1 << 20;

/// Why a capture cannot be examined.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is not a capture, or is damaged before its first packet.
    #[error("is no capture: {0}{hint}", hint = hint(.0))]
    NoCapture(CaptureError),
}

fn hint(error: &CaptureError) -> &'static str {
    match error {
        CaptureError::NoCapture([0x1f, 0x8b, ..]) => "; it is compressed: unpack it with gunzip",
        CaptureError::NoCapture([0x28, 0xb5, 0x2f, 0xfd]) => {
            "; it is compressed: unpack it with unzstd"
        }
        CaptureError::NoCapture([0x04, 0x22, 0x4d, 0x18]) => {
            "; it is compressed: unpack it with unlz4"
        }
        CaptureError::NoCapture([0xfd, b'7', b'z', b'X']) => {
            "; it is compressed: unpack it with unxz"
        }
        _ => "",
    }
}

/// Feeds all packets of a capture to `doctor`, and records where the capture ended. Calls
/// `progress` with the bytes read so far, about once per MiB.
///
/// A capture that is truncated or damaged after its first packet is not an error: the report covers
/// the packets read and says where it ended.
///
/// # Errors
/// The input cannot be read, or is not a capture.
pub fn examine(
    mut input: impl Read,
    doctor: &mut Doctor,
    mut progress: impl FnMut(u64),
) -> Result<(), ReadError> {
    let mut decoder = Decoder::new();
    let mut buffer = Buffer::new();
    let mut begun = false;
    loop {
        let step = match decoder.step(buffer.bytes()) {
            Ok(step) => step,
            Err(error) if begun => {
                doctor.ended(End::Damaged { at_byte: buffer.passed, why: error.to_string() });
                return Ok(());
            }
            Err(error) => return Err(ReadError::NoCapture(error)),
        };
        match step {
            Step::NeedMore { bytes } => {
                let more = buffer.fill(&mut input, bytes)?;
                progress(buffer.passed + buffer.bytes().len() as u64);
                if more {
                    continue;
                }
                return match decoder.finish(buffer.bytes()) {
                    Ok(()) => Ok(()),
                    Err(_) if begun => {
                        let missing = (bytes - buffer.bytes().len()) as u64;
                        doctor.ended(End::Truncated {
                            at_byte: buffer.passed,
                            missing_bytes: missing,
                        });
                        Ok(())
                    }
                    Err(error) => Err(ReadError::NoCapture(error)),
                };
            }
            Step::Skip { consumed } => {
                begun |= consumed > 0;
                buffer.consume(consumed);
            }
            Step::Packet { consumed, record } => {
                doctor.feed(&record);
                buffer.consume(consumed);
            }
        }
    }
}

/// Input that has been read but not consumed.
struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    /// Bytes consumed since the beginning.
    passed: u64,
}

impl Buffer {
    fn new() -> Self {
        Buffer { bytes: vec![0; BUFFER_LEN], from: 0, to: 0, passed: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    fn consume(&mut self, bytes: usize) {
        self.from += bytes;
        self.passed += bytes as u64;
    }

    /// Reads until at least `wanted` bytes are available. Returns `false` at the end of the input.
    fn fill(&mut self, input: &mut impl Read, wanted: usize) -> io::Result<bool> {
        self.bytes.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        while self.to < wanted {
            match input.read(&mut self.bytes[self.to..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.to += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
