//! Packet and message sequence numbers.

use std::fmt;

const MASK: u32 = 0x00ff_ffff;

/// Packet sequence number: 24 bits, compared by modular distance only, hence no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Keeps the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Psn(raw & MASK)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// The PSN `n` packets earlier.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// Signed modular distance `self - other`, in -2^23 to 2^23 - 1; positive when `self` is later.
    pub const fn since(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// True when `self` is later than `other`.
    pub const fn is_after(self, other: Psn) -> bool {
        self.since(other) > 0
    }

    /// True when `self` is earlier than `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }

    /// The 64-bit sequence number nearest to `reference` whose low 24 bits are this PSN.
    ///
    /// Inside the protocol crates sequence arithmetic is 64-bit; the 24-bit PSN exists at the wire.
    /// `None` when it would lie below zero.
    pub const fn unwrap_near(self, reference: u64) -> Option<u64> {
        let distance = self.since(Psn::new(reference as u32)) as i64;
        reference.checked_add_signed(distance)
    }

    /// The low 24 bits of a 64-bit sequence number.
    pub const fn from_sequence(sequence: u64) -> Self {
        Psn::new(sequence as u32)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Message sequence number: 24 bits, the count of messages a responder has completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    /// Keeps the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Msn(raw & MASK)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The MSN `n` messages later.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Msn(self.0.wrapping_add(n) & MASK)
    }

    /// Signed modular distance `self - other`, in -2^23 to 2^23 - 1.
    pub const fn since(self, other: Msn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_crosses_the_wrap() {
        assert_eq!(Psn::new(1).since(Psn::new(0xff_ffff)), 2);
        assert_eq!(Psn::new(0xff_ffff).since(Psn::new(1)), -2);
        assert!(Psn::new(0).is_after(Psn::new(0xff_fff0)));
        assert_eq!(Psn::new(0).minus(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
    }

    #[test]
    fn unwraps_to_the_nearest_sequence() {
        assert_eq!(Psn::new(2).unwrap_near(0x1ff_fffe), Some(0x200_0002));
        assert_eq!(Psn::new(0xff_fffe).unwrap_near(0x200_0001), Some(0x1ff_fffe));
        assert_eq!(Psn::new(0xff_ffff).unwrap_near(0), None);
    }
}
