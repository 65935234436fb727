//! GUPPI RAW: FITS-like cards before each block, as pulsar and SETI software reads it.

use super::header::real;
use super::stream_files::{MJD_1970, StreamFiles, start_of};
use super::{Header, Sink, SinkError, Value};
use crate::chunk::Chunk;
use crate::layout::Shape;
use crate::ring::{Fate, Fates};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Bytes of a card.
const CARD: usize = 80;
/// Alignment of a block after its header, with DIRECTIO.
const ALIGNMENT: usize = 512;
/// Blocks of a file; those beyond are in the next one.
const BLOCKS_PER_FILE: u64 = 128;

/// Keys that the sink sets.
const RESERVED: &[&str] = &[
    "BLOCSIZE", "DIRECTIO", "PKTIDX", "PKTSIZE", "NPKT", "NDROP", "DROPBLK", "DROPTOT", "STT_IMJD",
    "STT_SMJD", "STT_OFFS",
];

/// `DIR/streamS.NNNN.raw` for each stream: a block per window.
///
/// A GUPPI block has its samples channel after channel. With OBSNCHAN channels, message m of a
/// window is taken as part m / OBSNCHAN of channel m modulo OBSNCHAN, as stations interleave their
/// subbands, and the messages are written in that order.
///
/// GUPPI RAW has no flags: messages that are not present are zeros, NDROP counts them, and
/// `DIR/streamS.index.jsonl` has the fates of each block. PKTIDX jumps over windows that are not in
/// the file.
pub struct Guppi {
    dir: PathBuf,
    header: Header,
    shape: Shape,
    channels: u32,
    /// By stream.
    streams: Vec<Option<Stream>>,
}

struct Stream {
    files: StreamFiles,
    blocks: u64,
    fates: Fates,
    /// Cards of the first arrival.
    start: String,
}

fn card(cards: &mut String, key: &str, value: &Value) {
    let value = match value {
        Value::Integer(value) => format!("{value:>20}"),
        Value::Real(value) => format!("{:>20}", real(*value)),
        Value::Text(text) => format!("'{text:<8}'"),
    };
    let _ = write!(cards, "{:<CARD$}", format!("{key:<8}= {value}"));
}

impl Guppi {
    /// Creates files in `dir`, which exists, for a receiver of this shape. `header` has the cards
    /// of the observation: OBSNCHAN, NPOL, NBITS (1, 4 and 8 if absent), OBSFREQ, OBSBW, TBIN and
    /// others.
    ///
    /// # Errors
    /// If the header is invalid, or the shape has no GUPPI blocks.
    pub fn create(dir: &Path, header: Header, shape: Shape) -> Result<Self, SinkError> {
        let invalid = |why: String| SinkError::invalid(dir, why);
        header.check(Header::CARD_KEY_MAX, RESERVED).map_err(|error| invalid(error.to_string()))?;
        let count =
            |key, or, max| header.count(key, or, max).map_err(|error| invalid(error.to_string()));
        let channels = count("OBSNCHAN", 1, u32::MAX)?;
        let bits = u64::from(count("NPOL", 4, 4)?) * u64::from(count("NBITS", 8, 16)?);
        if !shape.slots.is_multiple_of(channels) {
            let slots = shape.slots;
            return Err(invalid(format!(
                "{slots} messages of a window cannot be divided into OBSNCHAN = {channels} channels"
            )));
        }
        if !(u64::from(shape.message_bytes) * 8).is_multiple_of(bits) {
            let bytes = shape.message_bytes;
            return Err(invalid(format!(
                "a message of {bytes} bytes does not hold whole samples of NPOL x NBITS = {bits} \
                 bits"
            )));
        }
        let streams = (0..shape.streams).map(|_| None).collect();
        Ok(Guppi { dir: dir.to_path_buf(), header, shape, channels, streams })
    }

    /// Cards and padding before a block.
    fn head(&self, stream: &Stream, window: u64, fates: &[Fate]) -> String {
        let (slots, bytes) = (u64::from(self.shape.slots), self.shape.stream_bytes());
        let present = fates.iter().filter(|fate| **fate == Fate::Present).count();
        let missing = fates.len() - present;
        let dropped = stream.fates.total() - stream.fates.of(Fate::Present);
        let is_aligned = bytes.is_multiple_of(ALIGNMENT as u64);
        let mut cards = String::new();
        for (key, value) in [
            ("BACKEND", Value::Text("GUPPI".into())),
            ("OBSNCHAN", Value::Integer(1)),
            ("NPOL", Value::Integer(4)),
            ("NBITS", Value::Integer(8)),
        ] {
            if !self.header.0.contains_key(key) {
                card(&mut cards, key, &value);
            }
        }
        for (key, value) in &self.header.0 {
            card(&mut cards, key, value);
        }
        cards += &stream.start;
        let integer = |value: u64| Value::Integer(value.try_into().unwrap_or(i64::MAX));
        for (key, value) in [
            ("BLOCSIZE", integer(bytes)),
            ("DIRECTIO", integer(is_aligned.into())),
            ("PKTSIZE", integer(self.shape.message_bytes.into())),
            ("PKTIDX", integer(window.saturating_mul(slots))),
            ("NPKT", integer(present as u64)),
            ("NDROP", integer(missing as u64)),
            ("DROPBLK", Value::Real(missing as f64 / fates.len() as f64)),
            ("DROPTOT", Value::Real(dropped as f64 / stream.fates.total() as f64)),
        ] {
            card(&mut cards, key, &value);
        }
        let _ = write!(cards, "{:<CARD$}", "END");
        if is_aligned {
            let padded = cards.len().next_multiple_of(ALIGNMENT);
            cards.extend(std::iter::repeat_n('\0', padded - cards.len()));
        }
        cards
    }

    /// The open files of a stream, with room for a block.
    fn open(&mut self, number: u32, chunk: &Chunk) -> Result<Stream, SinkError> {
        match self.streams[number as usize].take() {
            Some(mut stream) if stream.blocks.is_multiple_of(BLOCKS_PER_FILE) => {
                stream.files.begin(&self.dir, stream.blocks / BLOCKS_PER_FILE)?;
                Ok(stream)
            }
            Some(stream) => Ok(stream),
            None => {
                let since = start_of(chunk);
                let (days, of_day) = ((since / 86400.0) as u64, since % 86400.0);
                let mut start = String::new();
                let day = Value::Integer((u64::from(MJD_1970) + days) as i64);
                card(&mut start, "STT_IMJD", &day);
                card(&mut start, "STT_SMJD", &Value::Integer(of_day as i64));
                card(&mut start, "STT_OFFS", &Value::Real(of_day.fract()));
                Ok(Stream {
                    files: StreamFiles::create(&self.dir, number, "raw")?,
                    blocks: 0,
                    fates: Fates::default(),
                    start,
                })
            }
        }
    }
}

impl Sink for Guppi {
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let slots = self.shape.slots as usize;
        let channels = self.channels as usize;
        for (number, fates) in (chunk.stream_id()..).zip(chunk.fates().chunks(slots)) {
            let mut stream = self.open(number, chunk)?;
            fates.iter().for_each(|fate| stream.fates.add(*fate));
            let head = self.head(&stream, chunk.chunk_id(), fates);
            stream.files.data.append(head.as_bytes())?;
            let first = (number - chunk.stream_id()) as usize * slots;
            let in_order = (0..channels).flat_map(|channel| (channel..slots).step_by(channels));
            stream.files.append(chunk, fates, in_order.map(|slot| first + slot))?;
            stream.blocks += 1;
            self.streams[number as usize] = Some(stream);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.streams.iter_mut().flatten().try_for_each(|stream| stream.files.flush())
    }
}
