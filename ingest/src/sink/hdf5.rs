//! One HDF5 file, by a library without C.

use super::{Header, Sink, SinkError, Value};
use crate::chunk::Chunk;
use crate::layout::Shape;
use crate::ring::Fate;
use rust_hdf5::types::VarLenUnicode;
use rust_hdf5::{H5Dataset, H5File, Hdf5Error};
use std::path::{Path, PathBuf};

/// Values of a small dataset in one of its chunks.
const ROWS: usize = 1024;
/// Chunks of HDF5 are shorter than this, in bytes.
const CHUNK_END: u64 = 1 << 32;

/// An HDF5 file whose datasets grow by a row for each chunk of the receiver:
///
/// | dataset | shape | type |
/// |---|---|---|
/// | `data` | rows, streams, slots, bytes of a message | `u8` |
/// | `fates` | rows, streams, slots | `u8`: numbers of [`Fate`], whose names are its attribute `names` |
/// | `window`, `stream` | rows | `u64`: window, number of the first stream |
/// | `first_arrival`, `last_arrival` | rows | `f64`: seconds since 1970, NaN if nothing arrived |
///
/// Messages that are not present are zeros. The file is complete when the sink has finished.
pub struct Hdf5 {
    path: PathBuf,
    file: Option<H5File>,
    data: H5Dataset,
    fates: H5Dataset,
    window: H5Dataset,
    stream: H5Dataset,
    first_arrival: H5Dataset,
    last_arrival: H5Dataset,
    row: Vec<u8>,
}

fn failed(path: &Path) -> impl Fn(Hdf5Error) -> SinkError + '_ {
    |error| match error {
        Hdf5Error::Io(source) => SinkError::at(path)(source),
        other => SinkError::invalid(path, other.to_string()),
    }
}

impl Hdf5 {
    /// Creates the file at `path`, or replaces it, for a receiver of this shape. The file's
    /// attributes are those of `header`.
    ///
    /// # Errors
    /// If the header is invalid, or the file cannot be created.
    pub fn create(path: &Path, header: &Header, shape: Shape) -> Result<Self, SinkError> {
        header
            .check(Header::KEY_MAX, &[])
            .map_err(|error| SinkError::invalid(path, error.to_string()))?;
        if shape.stream_bytes() >= CHUNK_END {
            let text = "a window of a stream has 4 GiB or more, and a chunk of HDF5 less: use \
                        fewer or shorter messages in a window";
            return Err(SinkError::invalid(path, text));
        }
        Self::build(path, header, shape).map_err(failed(path))
    }

    fn build(path: &Path, header: &Header, shape: Shape) -> Result<Self, Hdf5Error> {
        let file = H5File::create(path)?;
        for (key, value) in &header.0 {
            match value {
                Value::Integer(value) => file.set_attr_numeric(key, value)?,
                Value::Real(value) => file.set_attr_numeric(key, value)?,
                Value::Text(text) => file.set_attr_string(key, text)?,
            }
        }
        let (streams, slots) = (shape.streams_per_ring as usize, shape.slots as usize);
        let bytes = shape.message_bytes as usize;
        let data = file
            .new_dataset::<u8>()
            .shape([0, streams, slots, bytes])
            .chunk(&[1, 1, slots, bytes])
            .max_shape(&[None, Some(streams), Some(slots), Some(bytes)])
            .create("data")?;
        let fates = file
            .new_dataset::<u8>()
            .shape([0, streams, slots])
            .chunk(&[1, streams, slots])
            .max_shape(&[None, Some(streams), Some(slots)])
            .create("fates")?;
        let names = Fate::ALL.map(Fate::name).join(" ");
        let attribute = fates.new_attr::<VarLenUnicode>().shape(()).create("names")?;
        attribute.write_string(&names)?;
        let numbers = |name: &str| {
            file.new_dataset::<u64>().shape([0]).chunk(&[ROWS]).max_shape(&[None]).create(name)
        };
        let times = |name: &str| {
            file.new_dataset::<f64>().shape([0]).chunk(&[ROWS]).max_shape(&[None]).create(name)
        };
        Ok(Hdf5 {
            path: path.to_path_buf(),
            data,
            fates,
            window: numbers("window")?,
            stream: numbers("stream")?,
            first_arrival: times("first_arrival")?,
            last_arrival: times("last_arrival")?,
            row: vec![0; shape.region_bytes() as usize],
            file: Some(file),
        })
    }

    fn append(&mut self, chunk: &Chunk) -> Result<(), Hdf5Error> {
        let bytes = chunk.shape().message_bytes as usize;
        for (index, message) in self.row.chunks_mut(bytes).enumerate() {
            match chunk.fates()[index] {
                Fate::Present => chunk.read(index, message),
                _ => message.fill(0),
            }
        }
        self.data.append(&self.row)?;
        let fates: Vec<u8> = chunk.fates().iter().map(|fate| *fate as u8).collect();
        self.fates.append(&fates)?;
        self.window.append(&[chunk.chunk_id()])?;
        self.stream.append(&[u64::from(chunk.stream_id())])?;
        let (first, last) = chunk.extra().map_or((f64::NAN, f64::NAN), |extra| extra.seconds());
        self.first_arrival.append(&[first])?;
        self.last_arrival.append(&[last])
    }
}

impl Sink for Hdf5 {
    fn take(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        self.append(chunk).map_err(failed(&self.path))
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.file.take().map_or(Ok(()), H5File::close).map_err(failed(&self.path))
    }
}
