//! A small fixed list of file descriptors.

use std::ops::Deref;
use std::os::fd::RawFd;

/// At most [`Descriptors::CAPACITY`] descriptors to poll for readability.
///
/// The port owns them: they are valid until its next `service` or until it is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    fds: [RawFd; Self::CAPACITY],
    len: usize,
}

impl Descriptors {
    /// Maximum number of descriptors per port.
    pub const CAPACITY: usize = 8;

    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { fds: [-1; Self::CAPACITY], len: 0 }
    }

    /// Adds a descriptor.
    ///
    /// # Panics
    /// If the list is full, which is a bug in the port.
    pub fn push(&mut self, fd: RawFd) {
        assert!(self.len < Self::CAPACITY, "a port names more than {} descriptors", Self::CAPACITY);
        self.fds[self.len] = fd;
        self.len += 1;
    }
}

impl Deref for Descriptors {
    type Target = [RawFd];

    fn deref(&self) -> &[RawFd] {
        &self.fds[..self.len]
    }
}

impl<'a> IntoIterator for &'a Descriptors {
    type Item = &'a RawFd;
    type IntoIter = std::slice::Iter<'a, RawFd>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<RawFd> for Descriptors {
    fn from_iter<I: IntoIterator<Item = RawFd>>(fds: I) -> Self {
        let mut list = Self::new();
        for fd in fds {
            list.push(fd);
        }
        list
    }
}
