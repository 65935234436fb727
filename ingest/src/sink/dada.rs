//! DADA files, which PSRDADA's `dada_diskdb` puts into a ring and pulsar software reads.

use super::header::real;
use super::stream_files::{MJD_1970, StreamFiles, file_name, start_of};
use super::{Header, Sink, SinkError, Value};
use crate::chunk::Chunk;
use crate::layout::Shape;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Bytes of a header.
const HEADER: usize = 4096;
/// Windows of a whole file.
const WINDOWS_PER_FILE: u64 = 128;

/// Keys that the sink sets.
const RESERVED: &[&str] = &[
    "HDR_VERSION",
    "HDR_SIZE",
    "FILE_SIZE",
    "FILE_NAME",
    "FILE_NUMBER",
    "OBS_OFFSET",
    "MJD_START",
];

/// `DIR/streamS.NNNN.dada` for each stream: a header, and the messages of 128 windows.
///
/// A DADA file has no flags, and OBS_OFFSET tells its place in the observation: messages that are
/// not present are zeros, and so are windows that were not delivered. `DIR/streamS.index.jsonl` has
/// the fates of each window.
pub struct Dada {
    dir: PathBuf,
    header: Header,
    shape: Shape,
    /// By stream.
    streams: Vec<Option<Stream>>,
}

struct Stream {
    files: StreamFiles,
    first_window: u64,
    /// The next window of the data.
    next: u64,
    start: f64,
}

impl Dada {
    /// Creates files in `dir`, which exists, for a receiver of this shape. `header` has the keys of
    /// the observation: NCHAN, NPOL, NDIM, NBIT, TSAMP, FREQ, BW and others.
    ///
    /// # Errors
    /// If the header is invalid.
    pub fn create(dir: &Path, header: Header, shape: Shape) -> Result<Self, SinkError> {
        header
            .check(Header::KEY_MAX, RESERVED)
            .map_err(|error| SinkError::invalid(dir, error.to_string()))?;
        let streams = (0..shape.streams).map(|_| None).collect();
        let sink = Dada { dir: dir.to_path_buf(), header, shape, streams };
        let longest = sink.head(&file_name(u32::MAX, u64::MAX, "dada"), u64::MAX, 0.0);
        if longest.len() > HEADER {
            return Err(SinkError::invalid(
                dir,
                "the header is longer than the 4096 bytes of DADA",
            ));
        }
        Ok(sink)
    }

    /// The header of file `number`, without its padding.
    fn head(&self, name: &str, number: u64, start: f64) -> String {
        let bytes = u128::from(self.shape.stream_bytes()) * u128::from(WINDOWS_PER_FILE);
        let mut head = format!(
            "HDR_VERSION 1.0\nHDR_SIZE {HEADER}\nFILE_SIZE {bytes}\nFILE_NAME {name}\n\
             FILE_NUMBER {number}\nOBS_OFFSET {}\nMJD_START {start:.12}\n",
            bytes * u128::from(number)
        );
        for (key, value) in &self.header.0 {
            let value = match value {
                Value::Integer(value) => value.to_string(),
                Value::Real(value) => real(*value),
                Value::Text(text) => text.clone(),
            };
            let _ = writeln!(head, "{key} {value}");
        }
        head
    }

    /// Appends the header of file `number`, which is open.
    fn begin(&self, stream: &mut Stream, number: u64) -> Result<(), SinkError> {
        let mut head = self.head(stream.files.name(), number, stream.start).into_bytes();
        head.resize(HEADER, 0);
        stream.files.data.append(&head)
    }

    /// The files of a stream, positioned at `window`.
    fn open(&mut self, number: u32, window: u64, chunk: &Chunk) -> Result<Stream, SinkError> {
        let Some(mut stream) = self.streams[number as usize].take() else {
            let start = f64::from(MJD_1970) + start_of(chunk) / 86400.0;
            let files = StreamFiles::create(&self.dir, number, "dada")?;
            let mut stream = Stream { files, first_window: window, next: window, start };
            self.begin(&mut stream, 0)?;
            return Ok(stream);
        };
        if window < stream.next {
            let why = format!(
                "window {window} comes after window {}: DADA files need delivery = \"in_order\"",
                stream.next - 1
            );
            return Err(SinkError::invalid(&self.dir, why));
        }
        let file = |window: u64| (window - stream.first_window) / WINDOWS_PER_FILE;
        let (was, is) = (file(stream.next - 1), file(window));
        if was != is {
            // A file that another one follows has its whole size.
            let end = stream.first_window + (was + 1) * WINDOWS_PER_FILE;
            stream.pad(end - stream.next, &self.shape)?;
            stream.files.begin(&self.dir, is)?;
            self.begin(&mut stream, is)?;
            stream.next = stream.first_window + is * WINDOWS_PER_FILE;
        }
        stream.pad(window - stream.next, &self.shape)?;
        stream.next = window;
        Ok(stream)
    }
}

impl Stream {
    /// Appends windows of zeros.
    fn pad(&mut self, windows: u64, shape: &Shape) -> Result<(), SinkError> {
        self.files.data.append_zeros(windows * shape.stream_bytes())
    }
}

impl Sink for Dada {
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let slots = self.shape.slots as usize;
        for (number, fates) in (chunk.stream_id()..).zip(chunk.fates().chunks(slots)) {
            let mut stream = self.open(number, chunk.chunk_id(), chunk)?;
            let first = (number - chunk.stream_id()) as usize * slots;
            stream.files.append(chunk, fates, first..first + slots)?;
            stream.next += 1;
            self.streams[number as usize] = Some(stream);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.streams.iter_mut().flatten().try_for_each(|stream| stream.files.flush())
    }
}
