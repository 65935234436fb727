//! Capture files: pcap and pcapng read from borrowed bytes, pcap headers for writing.
//!
//! [`Decoder`] is a pure parser: the caller owns the file, passes the bytes read so far and drops
//! the consumed ones, so that a capture of any size needs only a small buffer. [`records`] does the
//! same over a complete capture. Layouts: the IETF drafts on pcap and pcapng (opsawg).
//!
//! Supported: pcap with microseconds and nanoseconds in both byte orders; pcapng section header,
//! interface description (with `if_tsresol` and `if_tsoffset`), enhanced and simple packet blocks
//! in both byte orders. Other blocks are skipped. Not supported: compressed files, and the obsolete
//! packet block.

use thiserror::Error;

mod pcapng;

use pcapng::Section;

/// Longest packet accepted in one record, in bytes: libpcap's own bound.
pub const RECORD_BYTES_MAX: usize = 262_144;
/// Longest pcapng block accepted, in bytes.
pub const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Interfaces that one pcapng section may describe.
pub const INTERFACES_MAX: usize = 64;

const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

/// Link type of an interface: the number assigned by the tcpdump project.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet, from the destination MAC on.
    pub const ETHERNET: LinkType = LinkType(1);
}

/// One packet of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Nanoseconds since 1970, UTC, in the file's resolution; `None` without a timestamp.
    pub timestamp_ns: Option<u64>,
    /// Link type of `data`.
    pub link_type: LinkType,
    /// Length of the packet before truncation, in bytes; at least `data.len()` in a valid file.
    pub original_len: usize,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// Why bytes are not a capture, or the rest of a capture cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CaptureError {
    /// The first four bytes are not the magic number of a capture.
    #[error(
        "neither pcap nor pcapng: its first bytes are {:02x} {:02x} {:02x} {:02x}",
        .0[0], .0[1], .0[2], .0[3]
    )]
    NoCapture([u8; 4]),
    /// The input has no bytes.
    #[error("the file is empty")]
    Empty,
    /// The input ends inside the file header.
    #[error("ends inside its file header, after {0} bytes")]
    NoHeader(usize),
    /// An undefined version of the format.
    #[error("format version {0}.{1} is not known")]
    Version(u16, u16),
    /// The input ends inside a record or block, after this many of its bytes.
    #[error("ends inside a record, of which {0} bytes are there")]
    Truncated(usize),
    /// A record claims more bytes than [`RECORD_BYTES_MAX`], or than the block that holds it.
    #[error("a record claims {0} captured bytes")]
    RecordLength(u32),
    /// A block's length is below its minimum, above [`BLOCK_BYTES_MAX`], or not a multiple of four.
    #[error("a block claims a length of {0} bytes")]
    BlockLength(u32),
    /// The lengths at a block's two ends differ.
    #[error("a block's lengths disagree: {0} and {1} bytes")]
    BlockTrailer(u32, u32),
    /// A section header without its byte-order magic.
    #[error("a section header with byte-order magic {0:#010x}")]
    ByteOrder(u32),
    /// A packet of an interface that no previous block describes.
    #[error("a packet of interface {0}, which is not described")]
    Interface(u32),
    /// More interfaces in one section than [`INTERFACES_MAX`].
    #[error("more than {INTERFACES_MAX} interfaces in one section")]
    TooManyInterfaces,
}

/// Result of [`Decoder::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// The next step needs at least `bytes` bytes of input, including the unconsumed ones; at the
    /// end of the file call [`Decoder::finish`]. `bytes` is at most [`BLOCK_BYTES_MAX`].
    NeedMore {
        /// Bytes from the first unconsumed one on.
        bytes: usize,
    },
    /// No packet: drop `consumed` bytes and continue.
    Skip {
        /// Bytes to drop.
        consumed: usize,
    },
    /// A packet: use it, then drop `consumed` bytes and continue.
    Packet {
        /// Bytes to drop.
        consumed: usize,
        /// The packet, borrowed from the input.
        record: Record<'a>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, b: &[u8], at: usize) -> u16 {
        let b = [b[at], b[at + 1]];
        if self == Order::Little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) }
    }

    fn u32(self, b: &[u8], at: usize) -> u32 {
        let b = [b[at], b[at + 1], b[at + 2], b[at + 3]];
        if self == Order::Little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) }
    }
}

/// State of a [`Decoder`].
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per open file, and boxing would allocate")]
enum DecoderState {
    /// Nothing read.
    Start,
    /// In a pcap file.
    Classic { order: Order, ns_per_unit: u64, link_type: LinkType },
    /// In a pcapng section.
    Section(Section),
}

/// Reads a capture step by step.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: DecoderState,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// At the start of a file.
    pub const fn new() -> Self {
        Decoder { state: DecoderState::Start }
    }

    /// Decodes the next step of `input`, the unconsumed bytes read so far.
    ///
    /// # Errors
    /// The file is not a capture, or is damaged from this point on.
    pub fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        match &mut self.state {
            DecoderState::Start => self.start(input),
            DecoderState::Classic { order, ns_per_unit, link_type } => {
                classic_record(*order, *ns_per_unit, *link_type, input)
            }
            DecoderState::Section(section) => section.step(input),
        }
    }

    /// Ends the file; `rest` are the bytes that [`Decoder::step`] has not consumed.
    ///
    /// # Errors
    /// The file ends inside a header, record or block.
    pub fn finish(&self, rest: &[u8]) -> Result<(), CaptureError> {
        match self.state {
            DecoderState::Start if rest.is_empty() => Err(CaptureError::Empty),
            DecoderState::Start => Err(CaptureError::NoHeader(rest.len())),
            _ if rest.is_empty() => Ok(()),
            _ => Err(CaptureError::Truncated(rest.len())),
        }
    }

    fn start<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        let Some(&magic) = input.first_chunk::<4>() else { return Ok(Step::NeedMore { bytes: 4 }) };
        if magic == pcapng::SECTION_HEADER_MAGIC {
            self.state = DecoderState::Section(Section::NEW);
            return Ok(Step::Skip { consumed: 0 });
        }
        let (order, ns_per_unit) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MAGIC_MICROSECONDS, _) => (Order::Little, 1000),
            (MAGIC_NANOSECONDS, _) => (Order::Little, 1),
            (_, MAGIC_MICROSECONDS) => (Order::Big, 1000),
            (_, MAGIC_NANOSECONDS) => (Order::Big, 1),
            _ => return Err(CaptureError::NoCapture(magic)),
        };
        if input.len() < FILE_HEADER_LEN {
            return Ok(Step::NeedMore { bytes: FILE_HEADER_LEN });
        }
        let version = (order.u16(input, 4), order.u16(input, 6));
        if version.0 != 2 {
            return Err(CaptureError::Version(version.0, version.1));
        }
        // The upper half of the word says whether frames end with an FCS, which the lengths in IP
        // show anyway.
        let link_type = LinkType(order.u32(input, 20) as u16);
        self.state = DecoderState::Classic { order, ns_per_unit, link_type };
        Ok(Step::Skip { consumed: FILE_HEADER_LEN })
    }
}

fn classic_record(
    order: Order,
    ns_per_unit: u64,
    link_type: LinkType,
    input: &[u8],
) -> Result<Step<'_>, CaptureError> {
    if input.len() < RECORD_HEADER_LEN {
        return Ok(Step::NeedMore { bytes: RECORD_HEADER_LEN });
    }
    let captured = order.u32(input, 8);
    if captured as usize > RECORD_BYTES_MAX {
        return Err(CaptureError::RecordLength(captured));
    }
    let end = RECORD_HEADER_LEN + captured as usize;
    let Some(data) = input.get(RECORD_HEADER_LEN..end) else {
        return Ok(Step::NeedMore { bytes: end });
    };
    let seconds = u64::from(order.u32(input, 0));
    let fraction = u64::from(order.u32(input, 4));
    let record = Record {
        timestamp_ns: Some(seconds * 1_000_000_000 + fraction * ns_per_unit),
        link_type,
        original_len: order.u32(input, 12) as usize,
        data,
    };
    Ok(Step::Packet { consumed: end, record })
}

/// Iterates over the packets of a complete capture. The iterator ends after an error.
pub fn records(capture: &[u8]) -> Records<'_> {
    Records { decoder: Decoder::new(), rest: capture, ended: false }
}

/// See [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    decoder: Decoder,
    rest: &'a [u8],
    ended: bool,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.decoder.step(self.rest) {
                Ok(Step::Skip { consumed }) => self.rest = &self.rest[consumed..],
                Ok(Step::Packet { consumed, record }) => {
                    self.rest = &self.rest[consumed..];
                    return Some(Ok(record));
                }
                Ok(Step::NeedMore { .. }) => {
                    self.ended = true;
                    return self.decoder.finish(self.rest).err().map(Err);
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

/// The header of a pcap file with nanosecond timestamps, little-endian.
pub fn file_header(link_type: LinkType, snap_len: u32) -> [u8; FILE_HEADER_LEN] {
    let mut b = [0; FILE_HEADER_LEN];
    b[..4].copy_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
    b[4..6].copy_from_slice(&2_u16.to_le_bytes());
    b[6..8].copy_from_slice(&4_u16.to_le_bytes());
    b[16..20].copy_from_slice(&snap_len.to_le_bytes());
    b[20..24].copy_from_slice(&u32::from(link_type.0).to_le_bytes());
    b
}

/// The header in front of each packet of a file that [`file_header`] begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Nanoseconds since 1970; the format's 32-bit seconds last until 2106.
    pub timestamp_ns: u64,
    /// Bytes that follow, at most [`RECORD_BYTES_MAX`].
    pub captured_len: u32,
    /// Original length of the packet in bytes.
    pub original_len: u32,
}

impl RecordHeader {
    /// The 16 bytes.
    pub fn write(&self) -> [u8; RECORD_HEADER_LEN] {
        let mut b = [0; RECORD_HEADER_LEN];
        b[..4].copy_from_slice(&((self.timestamp_ns / 1_000_000_000) as u32).to_le_bytes());
        b[4..8].copy_from_slice(&((self.timestamp_ns % 1_000_000_000) as u32).to_le_bytes());
        b[8..12].copy_from_slice(&self.captured_len.to_le_bytes());
        b[12..].copy_from_slice(&self.original_len.to_le_bytes());
        b
    }
}

#[cfg(test)]
mod tests;
