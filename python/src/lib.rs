//! The native part of the Python package `longhaul`: devices, receivers, chunks and senders.
//!
//! **Purpose.** Everything that waits does so here, without the interpreter's lock. What makes
//! these types pleasant to use is Python, in `package/longhaul`.

mod chunk;
mod device;
mod errors;
mod memory;
mod receiver;
mod sender;

/// The module `longhaul._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::chunk::Chunk;
    #[pymodule_export]
    use crate::device::Device;
    #[pymodule_export]
    use crate::receiver::{Receiver, complete_settings};
    #[pymodule_export]
    use crate::sender::Sender;
}
