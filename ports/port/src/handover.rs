//! Handing a port over to another process.

use std::os::fd::OwnedFd;

/// A port's objects in the kernel, with the numbers that the kernel does not tell. Only the kind of
/// port that made it can interpret it, in the same version.
///
/// Whoever takes it treats it as hostile: another process sent it.
#[derive(Debug, Default)]
pub struct Handover {
    /// Duplicates of the port's descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// Numbers.
    pub numbers: Vec<u64>,
}
