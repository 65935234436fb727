//! The C library's functions that this library defines too.

use crate::lookup;
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function of the next library that defines it, which is looked up at its first use.
pub(super) struct Real {
    name: &'static CStr,
    /// Version of a function that only programs linked against an older C library call.
    version: Option<&'static CStr>,
    known: AtomicUsize,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Self {
        Real { name, version: None, known: AtomicUsize::new(0) }
    }

    pub const fn old(name: &'static CStr, version: &'static CStr) -> Self {
        Real { name, version: Some(version), known: AtomicUsize::new(0) }
    }

    /// The function's address; `None` if no library defines it, in which case no program can have
    /// been linked to it either.
    #[inline]
    pub fn address(&self) -> Option<*const c_void> {
        match self.known.load(Ordering::Relaxed) {
            0 => self.look_up(),
            found => Some(found as *const c_void),
        }
    }

    #[cold]
    fn look_up(&self) -> Option<*const c_void> {
        let mut found = lookup::next(self.name);
        if found.is_null()
            && let Some(version) = self.version
        {
            found = lookup::next_versioned(self.name, version);
        }
        self.known.store(found as usize, Ordering::Relaxed);
        (!found.is_null()).then_some(found.cast_const())
    }
}
