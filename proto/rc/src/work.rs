//! What callers post and what they get back: work requests, completions, and their parameters.

use longhaul_units::{LKey, Qpn, RKey};

/// Longest message in bytes: 1 GiB.
pub const MESSAGE_MAX: u64 = 1 << 30;
/// Most scatter/gather elements that one work request can have.
pub const SGE_MAX: usize = 16;

/// Path MTU: the most payload bytes that a packet carries. Source: IBTA, volume 1, section 9.7.4.1 and table 41.
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

    /// The code on the wire and in verbs: 1 for 256 up to 5 for 4096.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// `None` for codes outside 1 to 5.
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
}

/// One piece of local memory in a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First byte, in the address space of the region (its IOVA).
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the region; not looked at for inline data.
    pub lkey: LKey,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND into the next receive buffer of the peer.
    Send {
        /// Immediate data in network byte order.
        immediate: Option<[u8; 4]>,
        /// A key of the peer's to invalidate; excludes immediate data.
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
    /// Atomic compare and swap of 8 bytes. Refused as not supported.
    CmpSwap {
        /// 8-byte aligned address at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
        /// Value to compare with.
        compare: u64,
        /// Value to store when equal.
        swap: u64,
    },
    /// Atomic addition to 8 bytes. Refused as not supported.
    FetchAdd {
        /// 8-byte aligned address at the peer.
        remote_address: u64,
        /// The peer's key.
        rkey: RKey,
        /// Value to add.
        add: u64,
    },
}

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendWr<'a> {
    /// Given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory, gathered from (SEND, WRITE) or scattered to (READ).
    pub segments: &'a [Sge],
    /// Copy the data at once, so that the memory can be used again when the call returns; keys are not looked
    /// at. SEND and WRITE only.
    pub inline: bool,
    /// Complete visibly on success; errors always complete visibly.
    pub signaled: bool,
    /// Raise a solicited event at the peer.
    pub solicited: bool,
    /// Wait until all earlier READs have completed.
    pub fence: bool,
}

/// A receive work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr<'a> {
    /// Given back in the completion.
    pub wr_id: u64,
    /// Local memory to scatter to.
    pub segments: &'a [Sge],
}

/// How a work request ended. Numbers are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// The message does not fit the receive buffer, or a response had the wrong length.
    LocalLength = 1,
    /// The QP found an inconsistency of its own.
    LocalQpOperation = 2,
    /// A segment lies outside its region or the region forbids the access.
    LocalProtection = 4,
    /// The QP entered the error state before the request was done.
    WrFlush = 5,
    /// A response that no correct responder sends.
    BadResponse = 7,
    /// A protection error while the peer's data was placed.
    LocalAccess = 8,
    /// The responder found the request invalid.
    RemoteInvalidRequest = 9,
    /// The responder found rkey, range or permission wrong.
    RemoteAccess = 10,
    /// The responder failed.
    RemoteOperation = 11,
    /// Nothing was heard after all retries.
    RetryExceeded = 12,
    /// The responder had no receive request after all RNR retries.
    RnrRetryExceeded = 13,
}

/// What kind of work request completed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompletionOp {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// A receive filled by a SEND.
    Recv,
    /// A receive consumed by a WRITE with immediate data.
    RecvWriteImmediate,
}

/// The outcome of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// As posted.
    pub wr_id: u64,
    /// How it ended; with anything but success only `wr_id` and `qpn` mean something.
    pub status: Status,
    /// What it was.
    pub op: CompletionOp,
    /// Bytes received, written by the peer, or read; the message length for SEND and WRITE.
    pub byte_len: u32,
    /// Immediate data in network byte order.
    pub immediate: Option<[u8; 4]>,
    /// The local key that the peer's SEND with invalidate named.
    pub invalidated: Option<RKey>,
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub peer_qpn: Qpn,
    /// The peer asked for a solicited event.
    pub solicited: bool,
}
