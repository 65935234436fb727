//! Arrays of the interpreter as memory of a receiver.

use crate::errors::SettingsError;
use longhaul_ingest::memory::Memory;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::ptr::NonNull;
use std::sync::Arc;

/// The bytes of a `memoryview`, which stay in place while the view lives: it holds the array, and
/// the result holds it. Dropping the result without the interpreter's lock only queues the view.
pub fn lent(view: &Bound<'_, PyAny>) -> PyResult<Arc<Memory>> {
    let buffer = PyBuffer::<u8>::get(view)?;
    if buffer.readonly() || !buffer.is_c_contiguous() {
        let text = "memory of a receiver must be writable and contiguous";
        return Err(SettingsError::new_err(text));
    }
    let at = NonNull::new(buffer.buf_ptr().cast::<u8>())
        .ok_or_else(|| SettingsError::new_err("memory of a receiver must not be empty"))?;
    let keeper = Arc::new(view.clone().unbind());
    // SAFETY: `keeper` holds the memoryview, whose export of the array keeps the memory mapped and
    // in place; it is writable. Only Python code refers to the bytes otherwise.
    Ok(Arc::new(unsafe { Memory::lent(at, buffer.len_bytes(), keeper) }))
}
