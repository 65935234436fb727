//! Where chunks go: nowhere, or to files of several formats.

mod dada;
mod guppi;
mod hdf5;
mod header;
mod index;
mod raw;
mod stream_files;

pub use dada::Dada;
pub use guppi::Guppi;
pub use hdf5::Hdf5;
pub use header::{Header, HeaderError, Value};
pub use raw::Raw;

use crate::chunk::Chunk;
use crate::ring::Fate;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes copied from a chunk at a time.
const BLOCK: usize = 1 << 20;

/// Takes chunks.
pub trait Sink: Send {
    /// Takes a chunk's data and fates.
    ///
    /// # Errors
    /// If they cannot be stored. The sink is not used again.
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError>;

    /// Completes what was stored.
    ///
    /// # Errors
    /// If it cannot be completed.
    fn finish(&mut self) -> Result<(), SinkError>;
}

/// A sink failed.
#[derive(Debug, Error)]
#[error("cannot write {}: {source}", .path.display())]
pub struct SinkError {
    path: PathBuf,
    source: io::Error,
}

impl SinkError {
    /// What `path` is to hold makes no sense, for a reason.
    pub fn invalid(path: &Path, why: impl Into<String>) -> Self {
        let source = io::Error::new(io::ErrorKind::InvalidInput, why.into());
        SinkError { path: path.to_path_buf(), source }
    }

    /// `path` failed.
    pub fn at(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| SinkError { path, source }
    }
}

/// Takes chunks and keeps nothing.
#[derive(Debug, Default)]
pub struct Discard;

impl Sink for Discard {
    fn take(&mut self, _chunk: &Chunk) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// A file that chunks are appended to.
pub struct DataFile {
    path: PathBuf,
    out: BufWriter<File>,
    block: Vec<u8>,
    /// Bytes written.
    pub length: u64,
}

impl DataFile {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: PathBuf) -> Result<Self, SinkError> {
        let file = File::create(&path).map_err(SinkError::at(&path))?;
        Ok(DataFile { path, out: BufWriter::new(file), block: vec![0; BLOCK], length: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.out.write_all(bytes).map_err(SinkError::at(&self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Appends bytes of a chunk, as they are in memory.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append_chunk(&mut self, chunk: &Chunk, from: u64, len: u64) -> Result<(), SinkError> {
        let mut at = from;
        while at < from + len {
            let piece = ((from + len - at) as usize).min(BLOCK);
            chunk.data().read(at as usize, &mut self.block[..piece]);
            self.out.write_all(&self.block[..piece]).map_err(SinkError::at(&self.path))?;
            at += piece as u64;
        }
        self.length += len;
        Ok(())
    }

    /// Appends zeros.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append_zeros(&mut self, bytes: u64) -> Result<(), SinkError> {
        io::copy(&mut io::repeat(0).take(bytes), &mut self.out)
            .map_err(SinkError::at(&self.path))?;
        self.length += bytes;
        Ok(())
    }

    /// Appends the messages of a chunk with these indices; zeros in place of those that are not
    /// present.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn append_messages(
        &mut self,
        chunk: &Chunk,
        indices: impl Iterator<Item = usize>,
    ) -> Result<(), SinkError> {
        let bytes = u64::from(chunk.shape().message_bytes);
        for index in indices {
            if chunk.fates()[index] == Fate::Present {
                self.append_chunk(chunk, index as u64 * bytes, bytes)?;
            } else {
                self.append_zeros(bytes)?;
            }
        }
        Ok(())
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> Result<(), SinkError> {
        self.out.flush().map_err(SinkError::at(&self.path))
    }
}
