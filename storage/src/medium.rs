//! Where the bytes of a namespace lie.

pub(crate) mod file;

pub use file::{File, FileError};

use longhaul_nvme::target::IoError;
use std::ops::Range;

/// The medium of a namespace.
pub enum Medium {
    /// Memory of this process.
    Memory(Vec<u8>),
    /// Nowhere: writes are discarded, and reads return bytes that the connection transferred
    /// before, or zeros.
    Null,
    /// A file or a block device, accessed by other threads.
    File(File),
}

impl Medium {
    /// Zeroed memory, which the kernel provides as it is written.
    #[must_use]
    pub fn memory(bytes: usize) -> Self {
        Medium::Memory(vec![0; bytes])
    }
}

/// The bytes of `memory` in `range`.
pub(crate) fn part(memory: &mut [u8], range: Range<u64>) -> Result<&mut [u8], IoError> {
    let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
    let (Ok(start), Ok(end)) = (start, end) else { return Err(IoError::Gone) };
    memory.get_mut(start..end).ok_or(IoError::Gone)
}
