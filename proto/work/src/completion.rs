//! Completions.

use longhaul_units::{Instant, Qpn, RKey};
use std::fmt;

/// Outcome of a work request. The numbers are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// The message does not fit the receive buffer, or a response had the wrong length.
    LocalLength = 1,
    /// The QP found an internal inconsistency.
    LocalQpOperation = 2,
    /// A segment lies outside its region or the region forbids the access.
    LocalProtection = 4,
    /// The QP entered the error state before the request was done.
    WrFlush = 5,
    /// A response that no conforming responder sends.
    BadResponse = 7,
    /// A protection error while the peer's data was placed.
    LocalAccess = 8,
    /// The responder found the request invalid.
    RemoteInvalidRequest = 9,
    /// The responder found rkey, range or permission wrong.
    RemoteAccess = 10,
    /// The responder refused rkey, range or permission.
    RemoteOperation = 11,
    /// No answer after all retries.
    RetryExceeded = 12,
    /// The responder had no receive after all RNR retries.
    RnrRetryExceeded = 13,
}

/// The texts of the C library's `ibv_wc_status_str`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Success => "success",
            Status::LocalLength => "local length error",
            Status::LocalQpOperation => "local QP operation error",
            Status::LocalProtection => "local protection error",
            Status::WrFlush => "work request flushed",
            Status::BadResponse => "bad response error",
            Status::LocalAccess => "local access error",
            Status::RemoteInvalidRequest => "remote invalid request error",
            Status::RemoteAccess => "remote access error",
            Status::RemoteOperation => "remote operation error",
            Status::RetryExceeded => "transport retry counter exceeded",
            Status::RnrRetryExceeded => "RNR retry counter exceeded",
        })
    }
}

/// Kind of the completed work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompletionOp {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic compare and swap.
    CmpSwap,
    /// Atomic addition.
    FetchAdd,
    /// A receive filled by a SEND.
    Recv,
    /// A receive consumed by a WRITE with immediate data.
    RecvWriteImmediate,
}

/// The IP header before a received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grh {
    /// 20 undefined bytes and an IPv4 header without options.
    V4,
    /// An IPv6 header.
    V6,
}

/// The outcome of one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The `wr_id` as posted.
    pub wr_id: u64,
    /// Outcome. After an error only `wr_id` and `qpn` are valid.
    pub status: Status,
    /// Kind of the work request.
    pub op: CompletionOp,
    /// Bytes received, written by the peer, or read; the message length for SEND and WRITE. For a
    /// received datagram it includes the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Immediate data in network byte order.
    pub immediate: Option<[u8; 4]>,
    /// The local key that the peer's SEND with invalidate has invalidated.
    pub invalidated: Option<RKey>,
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub peer_qpn: Qpn,
    /// Whether the peer requested a solicited event.
    pub solicited: bool,
    /// Which IP header the first 40 bytes of the receive buffer hold, if any.
    pub grh: Option<Grh>,
    /// Time at which the device queued it.
    pub timestamp: Instant,
}

impl Completion {
    /// A completion with all other fields empty.
    pub fn of(wr_id: u64, status: Status, op: CompletionOp, qpn: Qpn, peer_qpn: Qpn) -> Self {
        Completion {
            wr_id,
            status,
            op,
            byte_len: 0,
            immediate: None,
            invalidated: None,
            qpn,
            peer_qpn,
            solicited: false,
            grh: None,
            timestamp: Instant::ZERO,
        }
    }
}
