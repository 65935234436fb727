//! The files of one stream, of which the last is open, and the index of them all.

use super::index::Entry;
use super::{DataFile, SinkError};
use crate::chunk::Chunk;
use crate::ring::Fate;
use std::path::Path;

/// Modified Julian day of 1970-01-01.
pub(super) const MJD_1970: u32 = 40_587;

/// See the module's documentation. The files are `DIR/streamS.NNNN.EXTENSION` and
/// `DIR/streamS.index.jsonl`.
pub(super) struct StreamFiles {
    number: u32,
    extension: &'static str,
    /// Of the open file.
    name: String,
    pub data: DataFile,
    index: DataFile,
}

/// Name of file `file` of a stream.
pub(super) fn file_name(number: u32, file: u64, extension: &str) -> String {
    format!("stream{number}.{file:04}.{extension}")
}

/// First arrival in a chunk, in seconds since 1970; 0 if nothing arrived.
pub(super) fn start_of(chunk: &Chunk) -> f64 {
    chunk.extra().map_or(0.0, |extra| extra.seconds().0)
}

impl StreamFiles {
    /// Creates the first file of stream `number` and its index in `dir`.
    pub fn create(dir: &Path, number: u32, extension: &'static str) -> Result<Self, SinkError> {
        let name = file_name(number, 0, extension);
        let data = DataFile::create(dir.join(&name))?;
        let index = DataFile::create(dir.join(format!("stream{number}.index.jsonl")))?;
        Ok(StreamFiles { number, extension, name, data, index })
    }

    /// Name of the open file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Completes the open file, and creates file `file`.
    pub fn begin(&mut self, dir: &Path, file: u64) -> Result<(), SinkError> {
        self.data.flush()?;
        self.name = file_name(self.number, file, self.extension);
        self.data = DataFile::create(dir.join(&self.name))?;
        Ok(())
    }

    /// Appends the stream's messages of a chunk, whose fates are `fates`: those with `indices`, and
    /// an entry of the index.
    pub fn append(
        &mut self,
        chunk: &Chunk,
        fates: &[Fate],
        indices: impl Iterator<Item = usize>,
    ) -> Result<(), SinkError> {
        let offset = self.data.length;
        self.data.append_messages(chunk, indices)?;
        let entry = Entry::of(chunk, self.number, fates, Some(&self.name), offset);
        entry.append(&mut self.index)
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> Result<(), SinkError> {
        self.data.flush()?;
        self.index.flush()
    }
}
