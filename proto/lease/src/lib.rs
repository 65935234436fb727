//! Reference-counted bytes of a frame, which stay in place until the last holder drops them.
//!
//! The receiver of a frame [lends](Lease) its bytes: a node can keep them beyond the call, and a
//! port can send them, without a copy. A [`Circulation`] finds the leases that no other holder has.
#![forbid(unsafe_code)]

mod circulation;

pub use circulation::{Circulation, Returned};

use triomphe::Arc;

/// A frame's bytes, shared by all clones, and immutable while there is more than one.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Loan>);

#[derive(Debug)]
struct Loan {
    memory: Memory,
    /// Length of the frame in `memory`.
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Own(Box<[u8]>),
    Lenders(&'static [u8]),
}

impl Lease {
    /// Creates an empty lease with its own memory of `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Lease(Arc::new(Loan { memory: Memory::Own(vec![0; capacity].into()), len: 0 }))
    }

    /// Creates an empty lease without memory, for a lender that [provides](Lease::put) its own.
    pub fn empty() -> Self {
        Lease(Arc::new(Loan { memory: Memory::Lenders(&[]), len: 0 }))
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.0.memory {
            Memory::Own(memory) => &memory[..self.0.len],
            Memory::Lenders(memory) => memory,
        }
    }

    /// Returns whether there is no other clone.
    #[inline]
    pub fn is_returned(&self) -> bool {
        Arc::is_unique(&self.0)
    }

    /// Returns whether both share the same memory, not only equal bytes.
    pub fn is_same(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Calls `write` to fill `len` bytes of the lease's own memory, which may hold bytes of an
    /// earlier frame.
    ///
    /// # Panics
    /// If there is another clone, no own memory, or less than `len`.
    #[inline]
    pub fn fill(&mut self, len: usize, write: &mut dyn FnMut(&mut [u8])) {
        match Arc::get_mut(&mut self.0) {
            Some(Loan { memory: Memory::Own(memory), len: written }) => {
                write(&mut memory[..len]);
                *written = len;
            }
            Some(_) => panic!("memory is the lender's"),
            None => panic!("bytes are lent"),
        }
    }

    /// Replaces the bytes by a lender's.
    ///
    /// A lender whose `'static` slice is of memory with a shorter life must leave the memory
    /// unchanged, and keep this lease, until [`Lease::is_returned`]; [`Lease::bytes`] does not
    /// outlive the lease.
    ///
    /// # Panics
    /// If there is another clone.
    #[inline]
    pub fn put(&mut self, bytes: &'static [u8]) {
        match Arc::get_mut(&mut self.0) {
            Some(loan) => *loan = Loan { memory: Memory::Lenders(bytes), len: bytes.len() },
            None => panic!("bytes are lent"),
        }
    }
}

impl Returned for Lease {
    #[inline]
    fn is_returned(&self) -> bool {
        Lease::is_returned(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_while_a_clone_is_there() {
        let mut lease = Lease::with_capacity(8);
        assert_eq!(lease.bytes(), []);
        lease.fill(3, &mut |out| out.copy_from_slice(&[1, 2, 3]));
        let kept = lease.clone();
        assert!(!lease.is_returned() && kept.is_same(&lease));
        assert_eq!(kept.bytes(), [1, 2, 3]);
        drop(kept);
        assert!(lease.is_returned());
        lease.fill(8, &mut |out| out.fill(9));
        assert_eq!(lease.bytes(), [9; 8]);
    }

    #[test]
    #[should_panic(expected = "bytes are lent")]
    fn what_somebody_keeps_is_not_written_over() {
        let mut lease = Lease::with_capacity(8);
        let _kept = lease.clone();
        lease.fill(1, &mut |_| ());
    }

    #[test]
    fn a_lender_puts_its_own_bytes_in() {
        static MEMORY: [u8; 4] = [1, 2, 3, 4];
        let mut lease = Lease::empty();
        lease.put(&MEMORY[..2]);
        assert_eq!(lease.bytes(), [1, 2]);
        lease.put(&MEMORY[2..]);
        assert_eq!(lease.bytes(), [3, 4]);
        assert!(!lease.is_same(&Lease::empty()));
    }
}
