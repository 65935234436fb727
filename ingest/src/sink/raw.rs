//! Raw files with an index.

use super::index::Entry;
use super::{DataFile, Sink, SinkError};
use crate::chunk::Chunk;
use std::path::Path;

/// `DIR/data.raw` with the chunks one after the other, and `DIR/index.jsonl` with a line for each:
/// window, stream, offset and length in the data, fates, arrival times.
///
/// The bytes of messages that are not present are undefined: zeroing them would touch the data.
pub struct Raw {
    data: DataFile,
    index: DataFile,
}

impl Raw {
    /// Creates the files in `dir`, which exists.
    ///
    /// # Errors
    /// If they cannot be created.
    pub fn create(dir: &Path) -> Result<Self, SinkError> {
        let create = |name: &str| DataFile::create(dir.join(name));
        Ok(Raw { data: create("data.raw")?, index: create("index.jsonl")? })
    }
}

impl Sink for Raw {
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let offset = self.data.length;
        let entry = Entry::of(chunk, chunk.stream_id(), chunk.fates(), None, offset);
        self.data.append_chunk(chunk, 0, entry.bytes)?;
        entry.append(&mut self.index)
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.data.flush()?;
        self.index.flush()
    }
}
