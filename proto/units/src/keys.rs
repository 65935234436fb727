//! QP numbers and memory keys.

use std::fmt;

/// A queue-pair number: 24 bits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP1, the general services interface that carries the connection manager's messages.
    pub const GSI: Qpn = Qpn(1);
    /// Destination QPN of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(Self::MAX);
    /// Largest value.
    pub const MAX: u32 = 0x00ff_ffff;

    /// Keeps the low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Qpn(raw & Self::MAX)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Local key of a memory region, used in work requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LKey(pub u32);

/// Remote key of a memory region, used by remote requesters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RKey(pub u32);
