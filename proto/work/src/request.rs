//! Work requests and their parameters.

use longhaul_units::{LKey, Qpn, RKey};
use longhaul_wire::Position;
use thiserror::Error;

/// Maximum message of a connected queue pair in bytes: 2 GiB. Source: IBTA, volume 1, chapter 9.
pub const MESSAGE_MAX: u64 = 1 << 31;
/// Maximum scatter/gather elements of a work request.
pub const SGE_MAX: usize = 16;

/// Path MTU: the maximum payload of a packet. Source: IBTA, volume 1, section 9.7.4.1 and table 41.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// Code on the wire and in verbs: 1 for 256 up to 5 for 4096.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The MTU of a code; `None` for codes outside 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    /// Packets that a message of `len` bytes takes: at least one.
    pub const fn packets(self, len: u64) -> u64 {
        let packets = (len + self.bytes() as u64 - 1) >> (8 + self as u32);
        if packets == 0 { 1 } else { packets }
    }

    /// True if a packet of a SEND or WRITE may have `len` bytes of payload: only the last packet of
    /// a message may be shorter than the MTU. Source: IBTA, volume 1, section 9.7.4.1.
    #[inline]
    pub const fn admits(self, position: Position, len: u32) -> bool {
        let mtu = self.bytes();
        match position {
            Position::First | Position::Middle => len == mtu,
            Position::Last => 1 <= len && len <= mtu,
            Position::Only => len <= mtu,
        }
    }
}

/// One piece of local memory in a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First byte, in the address space of the region (its IOVA).
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region; ignored for inline data.
    pub lkey: LKey,
}

/// Operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND into the next receive buffer of the peer.
    Send {
        /// Immediate data in network byte order.
        immediate: Option<[u8; 4]>,
        /// Key of the peer to invalidate; excludes immediate data.
        invalidate: Option<RKey>,
    },
    /// RDMA WRITE.
    Write {
        /// First byte at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
        /// Immediate data in network byte order; consumes a receive request of the peer.
        immediate: Option<[u8; 4]>,
    },
    /// RDMA READ into the segments.
    Read {
        /// First byte at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Atomic compare and swap of 8 bytes: the old value goes into the segments, in the host's byte
    /// order.
    CmpSwap {
        /// 8-byte aligned address at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
        /// Value to compare with.
        compare: u64,
        /// Value to store if equal.
        swap: u64,
    },
    /// Atomic addition to 8 bytes, modulo 2^64: the old value goes into the segments, in the host's
    /// byte order.
    FetchAdd {
        /// 8-byte aligned address at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
        /// Value to add.
        add: u64,
    },
    /// SEND of one datagram, by an unreliable datagram QP.
    Datagram {
        /// Destination.
        destination: Destination,
        /// Immediate data in network byte order.
        immediate: Option<[u8; 4]>,
    },
}

/// An address handle of the device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AhId(pub u32);

/// Destination of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    /// Path to the peer's port, or to a multicast group.
    pub ah: AhId,
    /// The peer's QP; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// QKey that the receiver must have; if its highest bit is set, the sending QP's is used
    /// instead.
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Local memory, gathered from (SEND, WRITE) or scattered to (READ, atomics).
    pub segments: &'a [Sge],
    /// Whether the data is copied at once, so that the memory can be reused when the call returns;
    /// keys are ignored. SEND and WRITE only.
    pub inline: bool,
    /// Whether success is reported by a completion; errors always are.
    pub signaled: bool,
    /// Whether a solicited event is raised at the peer.
    pub solicited: bool,
    /// Whether to wait until all earlier READs and atomics have completed.
    pub fence: bool,
}

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Local memory to scatter to.
    pub segments: &'a [Sge],
}

/// Reason to refuse a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SendRefused {
    /// All entries are in use.
    #[error("send queue of {0} is full")]
    Full(u32),
    /// More segments than the queue was created for.
    #[error("{given} segments, at most {max}")]
    TooManySegments {
        /// Segments posted.
        given: usize,
        /// Maximum of the queue.
        max: u32,
    },
    /// More inline data than the queue was created for.
    #[error("{given} bytes inline, at most {max}")]
    InlineTooLong {
        /// Bytes posted.
        given: u64,
        /// Maximum of the queue.
        max: u32,
    },
    /// Longer than the maximum message.
    #[error("message of {given} bytes, at most {MESSAGE_MAX}")]
    MessageTooLong {
        /// Bytes posted.
        given: u64,
    },
    /// An invalid combination.
    #[error("{0}")]
    Invalid(&'static str),
    /// An operation that this transport does not support.
    #[error("{0} is not supported")]
    NotSupported(&'static str),
}
