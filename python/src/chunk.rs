//! Closed windows.

use crate::errors::ReleasedError;
use longhaul_ingest::chunk;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A closed window, which holds its region until it is released or collected.
#[pyclass(frozen, module = "longhaul._native")]
pub struct Chunk {
    #[pyo3(get)]
    chunk_id: u64,
    #[pyo3(get)]
    stream_id: u32,
    /// Arrival of the first and the last message, in seconds since 1970.
    #[pyo3(get)]
    arrivals: Option<(f64, f64)>,
    /// `None` once released.
    held: Mutex<Option<chunk::Chunk>>,
}

impl Chunk {
    pub fn new(chunk: chunk::Chunk) -> Self {
        Chunk {
            chunk_id: chunk.chunk_id(),
            stream_id: chunk.stream_id(),
            arrivals: chunk.extra().map(|extra| extra.seconds()),
            held: Mutex::new(Some(chunk)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<chunk::Chunk>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Chunk {
    #[getter]
    fn is_released(&self) -> bool {
        self.lock().is_none()
    }

    /// The fates as they are now, a byte for each message.
    fn fates<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let mut held = self.lock();
        let chunk = held.as_mut().ok_or_else(|| released(self.chunk_id))?;
        chunk.refresh();
        let fates: Vec<u8> = chunk.fates().iter().map(|fate| *fate as u8).collect();
        Ok(PyBytes::new(py, &fates))
    }

    /// Returns the region; the result is the number of messages that were overwritten before.
    fn release(&self) -> PyResult<u64> {
        self.lock().take().map(chunk::Chunk::release).ok_or_else(|| released(self.chunk_id))
    }
}

fn released(chunk_id: u64) -> PyErr {
    ReleasedError::new_err(format!("chunk {chunk_id} has been released"))
}
