//! Handles of verbs objects, and access to the program's memory.

use longhaul_node::{Gather, Payload};
use longhaul_units::{LKey, Qpn, RKey};

/// Registered memory. Addresses are those passed to [`crate::Rnic::reg_mr`], usually a process's
/// virtual addresses. The device checks every access against the bounds and permissions of a region
/// before it calls; only inline data is read from any address that the caller of `post_send`
/// passes.
pub trait Memory: Gather {
    /// Copies `payload` to `address`.
    fn scatter(&mut self, address: u64, payload: &Payload<'_>);

    /// Atomically adds `add` modulo 2^64 to the 8 bytes at `address`, a multiple of 8, in the
    /// host's byte order. Returns the original value.
    fn fetch_add(&mut self, address: u64, add: u64) -> u64;

    /// Atomically stores `swap` in the 8 bytes at `address`, a multiple of 8, if they equal
    /// `compare`. Returns the original value.
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64;
}

/// A protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(pub u32);

/// A shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub u32);

/// Permitted operations of a region or QP. The bits are those of `enum ibv_access_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(pub u32);

impl Access {
    /// Local reads only.
    pub const LOCAL_READ: Access = Access(0);
    /// Receives and READs may write.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The peer may WRITE; a region also needs `LOCAL_WRITE`.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The peer may READ.
    pub const REMOTE_READ: Access = Access(4);
    /// The peer may use atomics; a region also needs `LOCAL_WRITE`.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// All of the above.
    pub const ALL: Access = Access(15);

    /// `true` if every bit of `other` is set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// Union of both.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        self.and(other)
    }
}

/// The keys of a region. Keys carry a generation, so that those of a deregistered region fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrKeys {
    /// For local work requests, and for [`crate::Rnic::dereg_mr`].
    pub lkey: LKey,
    /// For the peer.
    pub rkey: RKey,
}

/// Transport service of a QP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpKind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// State of a QP. The numbers are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive.
    ReadyToReceive = 2,
    /// Ready to send.
    ReadyToSend = 3,
    /// The send queue drains: messages that were begun are finished, and no others begin.
    SendQueueDrained = 4,
    /// A send of an unreliable QP failed: the send queue, and later posts to it, are flushed.
    /// Receiving continues.
    SendQueueError = 5,
    /// Failed or stopped: everything posted is flushed.
    Error = 6,
}

/// An asynchronous event.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "events are rare, and taken one at a time")]
pub enum Event {
    /// A CQ that was armed has a completion; it is disarmed.
    CompletionReady(CqId),
    /// A CQ overran: completions were lost.
    CqError(CqId),
    /// A shared receive queue fell below its limit, which is now unset.
    SrqLimitReached(SrqId),
    /// An event of a QP.
    Qp {
        /// The QP.
        qpn: Qpn,
        /// The event.
        kind: QpEvent,
    },
    /// An event of the connection manager.
    Cm(longhaul_cm::Event),
}

/// Asynchronous events of a QP. The names follow `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEvent {
    /// The QP entered the error state for a reason that no completion reports.
    Fatal,
    /// The peer sent a request that was answered with "invalid request".
    RequestError,
    /// The peer sent a request that was answered with "remote access error".
    AccessError,
    /// The first packet arrived before the state was ready to send.
    CommunicationEstablished,
    /// The send queue is drained.
    SendQueueDrained,
    /// A QP with a shared receive queue entered the error state, and takes no further receives from
    /// it.
    LastWqeReached,
}
