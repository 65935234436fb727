//! Bytes of a frame that stay where they are while anybody needs them.
//!
//! Who receives a frame [lends](Lease) its bytes: a node keeps them beyond the call that brought
//! them, a port sends them on, and neither copies. A [`Circulation`] finds out which of those lent
//! nobody holds any more.
#![forbid(unsafe_code)]

mod circulation;

pub use circulation::{Circulation, Returned};

use triomphe::Arc;

/// A frame's bytes, shared by all clones. They cannot change while there is more than one.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Loan>);

#[derive(Debug)]
struct Loan {
    memory: Memory,
    /// Bytes from the start of `memory` that are the frame.
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Own(Box<[u8]>),
    Lenders(&'static [u8]),
}

impl Lease {
    /// No bytes yet, and memory of its own for `capacity` of them.
    pub fn with_capacity(capacity: usize) -> Self {
        Lease(Arc::new(Loan { memory: Memory::Own(vec![0; capacity].into()), len: 0 }))
    }

    /// No bytes, and no memory: for a lender who puts its own [in](Lease::put).
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

    /// True when there is no other clone.
    #[inline]
    pub fn is_returned(&self) -> bool {
        Arc::is_unique(&self.0)
    }

    /// True when both share the same bytes, and not only bytes that are equal.
    pub fn is_same(&self, other: &Lease) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Has `write` write `len` bytes in its own memory, over whatever is left there from another
    /// frame.
    ///
    /// # Panics
    /// When there is another clone, no memory of its own, or less than `len`.
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

    /// Puts a lender's bytes in the place of those before.
    ///
    /// Whoever has made a `'static` slice of memory that is not for ever keeps the promise behind
    /// it by leaving the memory alone, and its lease in place, until [`Lease::is_returned`];
    /// [`Lease::bytes`] lives no longer than the lease.
    ///
    /// # Panics
    /// When there is another clone.
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
