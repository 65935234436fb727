//! Entries of an index: a JSON line for each piece of data.

use super::{DataFile, SinkError};
use crate::chunk::Chunk;
use crate::ring::Fate;
use serde::Serialize;

/// An entry of an index.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    /// The file's name; absent if the index is of one file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<&'a str>,
    pub window: u64,
    /// Number of the first stream.
    pub stream: u32,
    /// Of the data in the file.
    pub offset: u64,
    pub bytes: u64,
    /// Fate numbers in rows of equal ones: number, count.
    pub fates: Vec<(u8, u32)>,
    /// Seconds since 1970.
    pub first_arrival: Option<f64>,
    pub last_arrival: Option<f64>,
}

impl<'a> Entry<'a> {
    /// The entry of a chunk's messages with `fates`, which are of `stream` and those after it, and
    /// whose data is at `offset` of the file.
    pub fn of(
        chunk: &Chunk,
        stream: u32,
        fates: &[Fate],
        file: Option<&'a str>,
        offset: u64,
    ) -> Self {
        let (first_arrival, last_arrival) = chunk.extra().map(|extra| extra.seconds()).unzip();
        Entry {
            file,
            window: chunk.chunk_id(),
            stream,
            offset,
            bytes: fates.len() as u64 * u64::from(chunk.shape().message_bytes),
            fates: rows(fates),
            first_arrival,
            last_arrival,
        }
    }

    /// Appends the entry.
    pub fn append(&self, index: &mut DataFile) -> Result<(), SinkError> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        index.append(&line)
    }
}

/// Equal fates in a row.
fn rows(fates: &[Fate]) -> Vec<(u8, u32)> {
    let equal = fates.chunk_by(|a, b| a == b);
    equal.map(|row| (row[0] as u8, row.len() as u32)).collect()
}
