//! Queue pairs.

use std::net::IpAddr;
use std::sync::Arc;

use longhaul_rnic::{
    Access, BringUp, Mtu, QpAttr, QpInfo, QpInit, QpKind, RecvWr, SGE_MAX, SendOp, SendWr, Sge,
    VerbsError,
};
use longhaul_units::{LKey, Psn, Qpn};

use super::{CompletionQueue, Device, Piece, ProtectionDomain, SharedReceiveQueue};
use crate::device_state::AsyncSink;
use crate::engine::Engine;
use crate::error::RdmaError;

/// Settings of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSettings {
    /// Transport service: RC or UC.
    pub kind: QpKind,
    /// Capacity for send work requests.
    pub send_depth: u32,
    /// Capacity for receive work requests.
    pub recv_depth: u32,
    /// Maximum segments per work request, 1 to 16.
    pub segments_max: u32,
    /// Maximum inline bytes per send work request.
    pub inline_max: u32,
}

impl Default for QueuePairSettings {
    fn default() -> Self {
        QueuePairSettings {
            kind: QpKind::Rc,
            send_depth: 128,
            recv_depth: 512,
            segments_max: 4,
            inline_max: 220,
        }
    }
}

/// Settings of a queue pair's path. The defaults are perftest's.
#[derive(Clone, Copy, Debug)]
pub struct PathSettings {
    /// Path MTU.
    pub mtu: Mtu,
    /// ACK timeout exponent: 4.096 µs times 2^code; 14 is 67 ms.
    pub timeout: u8,
    /// Retries without progress, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7; 7: unlimited.
    pub rnr_retry: u8,
    /// RNR timer code that the peer must observe; 12 is 0.64 ms.
    pub min_rnr_timer: u8,
    /// Outstanding READs, in each direction.
    pub reads_max: u8,
    /// Permissions of the peer.
    pub access: Access,
}

impl Default for PathSettings {
    fn default() -> Self {
        PathSettings {
            mtu: Mtu::B4096,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            reads_max: 16,
            access: Access::REMOTE_WRITE.and(Access::REMOTE_READ),
        }
    }
}

/// A send work request of a list.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Returned in its completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The data.
    pub piece: Piece,
    /// Whether it yields a completion also if it succeeds.
    pub signaled: bool,
    /// Whether it raises a solicited event at the peer.
    pub solicited: bool,
}

/// Description of one side's queue pair for the other, sent by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The port.
    pub ip: IpAddr,
    /// The queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
}

/// A connected queue pair. Dropping it destroys it; its completion queues, its protection domain
/// and its shared receive queue live at least as long.
pub struct QueuePair {
    engine: Arc<Engine>,
    qpn: Qpn,
    kind: QpKind,
    _receives: Option<SharedReceiveQueue>,
    _pd: ProtectionDomain,
    _send_cq: CompletionQueue,
    _recv_cq: CompletionQueue,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Fails only after a fork.
        let _ = self.engine.destroy_qp(self.qpn);
    }
}

impl Device {
    /// Creates a queue pair in state reset.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], and those of attaching the port.
    pub fn create_qp(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        settings: &QueuePairSettings,
    ) -> Result<QueuePair, RdmaError> {
        self.make_qp(pd, send_cq, recv_cq, settings, None)
    }

    /// Creates a queue pair in state reset that takes its receives from a shared queue.
    ///
    /// # Errors
    /// As [`Device::create_qp`].
    pub fn create_qp_sharing(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        settings: &QueuePairSettings,
        receives: &SharedReceiveQueue,
    ) -> Result<QueuePair, RdmaError> {
        self.make_qp(pd, send_cq, recv_cq, settings, Some(receives))
    }

    fn make_qp(
        &self,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        settings: &QueuePairSettings,
        receives: Option<&SharedReceiveQueue>,
    ) -> Result<QueuePair, RdmaError> {
        let init = QpInit {
            pd: pd.0.id,
            kind: settings.kind,
            send_cq: send_cq.0.id,
            srq: receives.map(SharedReceiveQueue::id),
            recv_cq: recv_cq.0.id,
            sq_depth: settings.send_depth,
            rq_depth: settings.recv_depth,
            send_sge_max: settings.segments_max,
            recv_sge_max: settings.segments_max,
            inline_max: settings.inline_max,
            signal_all: false,
        };
        let sink = |cookie| AsyncSink { asynchronous: Arc::clone(&self.asynchronous), cookie };
        let qpn = self.engine.create_qp(&init, sink(0))?;
        self.engine.set_qp_sink(qpn, sink(qpn.get().into()))?;
        Ok(QueuePair {
            engine: Arc::clone(&self.engine),
            qpn,
            kind: settings.kind,
            _receives: receives.cloned(),
            _pd: pd.clone(),
            _send_cq: send_cq.clone(),
            _recv_cq: recv_cq.clone(),
        })
    }
}

impl QueuePair {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Description for the peer, if this side will send from `psn` on.
    #[must_use]
    pub fn endpoint(&self, psn: Psn) -> Endpoint {
        Endpoint { ip: self.engine.attach().ip_addr(), qpn: self.qpn, psn }
    }

    /// Changes attributes one by one, as `ibv_modify_qp`.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn modify(&self, attr: &QpAttr) -> Result<(), RdmaError> {
        self.engine.modify_qp(self.qpn, attr)
    }

    /// Its attributes.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn query(&self) -> Result<QpInfo, RdmaError> {
        Ok(self.engine.with_quietly(|rnic| rnic.query_qp(self.qpn))??)
    }

    /// Moves it to state initialized; receives can be posted from here on.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn initialize(&self, path: &PathSettings) -> Result<(), RdmaError> {
        self.modify(&QpAttr::initialize(path.access))
    }

    /// Moves it from initialized to ready to send, to the peer's queue pair; `psn` must be that of
    /// [`QueuePair::endpoint`].
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn connect(&self, psn: Psn, peer: &Endpoint, path: &PathSettings) -> Result<(), RdmaError> {
        self.connect_reading(psn, peer, path, path.reads_max)
    }

    /// As [`QueuePair::connect`], with other limits for the two directions: `reads` of this side
    /// may be outstanding, and `path.reads_max` of the peer.
    pub(super) fn connect_reading(
        &self,
        psn: Psn,
        peer: &Endpoint,
        path: &PathSettings,
        reads: u8,
    ) -> Result<(), RdmaError> {
        let to = BringUp {
            access: path.access,
            path_mtu: path.mtu,
            sq_psn: psn,
            rq_psn: peer.psn,
            max_rd_atomic: reads,
            max_dest_rd_atomic: path.reads_max,
            min_rnr_timer: path.min_rnr_timer,
            timeout: path.timeout,
            retry_cnt: path.retry_count,
            rnr_retry: path.rnr_retry,
            ..BringUp::to(peer.ip, peer.qpn)
        };
        to.make_ready(self.kind).iter().try_for_each(|attr| self.modify(attr))
    }

    /// Posts a signaled send work request.
    ///
    /// # Errors
    /// [`RdmaError::Post`].
    pub fn post_send(&self, wr_id: u64, op: SendOp, pieces: &[Piece]) -> Result<(), RdmaError> {
        self.post(wr_id, op, pieces, true)
    }

    /// Posts a send work request; an unsignaled one yields a completion only if it fails.
    ///
    /// # Errors
    /// [`RdmaError::Post`].
    pub fn post(
        &self,
        wr_id: u64,
        op: SendOp,
        pieces: &[Piece],
        signaled: bool,
    ) -> Result<(), RdmaError> {
        let mut list = [Sge::default(); SGE_MAX];
        let segments = segments(pieces, &mut list)?;
        let wr =
            SendWr { wr_id, op, segments, inline: false, signaled, solicited: false, fence: false };
        self.engine.with(|rnic, now| rnic.post_send(now, self.qpn, &wr))??;
        Ok(())
    }

    /// Posts a list of send work requests in one call.
    ///
    /// # Errors
    /// The number of requests that were posted, and why the next one was not.
    pub fn post_list(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<(), (usize, RdmaError)> {
        let post_all = self.engine.with(|rnic, now| {
            for (posted, request) in requests.into_iter().enumerate() {
                let wr = SendWr {
                    wr_id: request.wr_id,
                    op: request.op,
                    segments: &[request.piece.0],
                    inline: false,
                    signaled: request.signaled,
                    solicited: request.solicited,
                    fence: false,
                };
                rnic.post_send(now, self.qpn, &wr).map_err(|error| (posted, error.into()))?;
            }
            Ok(())
        });
        post_all.map_err(|error| (0, error))?
    }

    /// Posts a signaled SEND that raises a solicited event at the peer.
    ///
    /// # Errors
    /// [`RdmaError::Post`].
    pub fn post_solicited(&self, wr_id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        let mut list = [Sge::default(); SGE_MAX];
        let segments = segments(pieces, &mut list)?;
        let op = SendOp::Send { immediate: None, invalidate: None };
        let wr = SendWr {
            wr_id,
            op,
            segments,
            inline: false,
            signaled: true,
            solicited: true,
            fence: false,
        };
        self.engine.with(|rnic, now| rnic.post_send(now, self.qpn, &wr))??;
        Ok(())
    }

    /// Posts a signaled send work request whose data is copied during the call.
    ///
    /// # Errors
    /// [`RdmaError::Post`], for example if the data is too long.
    pub fn post_inline(&self, wr_id: u64, op: SendOp, data: &[u8]) -> Result<(), RdmaError> {
        let len =
            u32::try_from(data.len()).map_err(|_| VerbsError::Invalid("length of inline data"))?;
        let segments = [Sge { address: data.as_ptr() as u64, len, lkey: LKey(0) }];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: true,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.engine.with(|rnic, now| rnic.post_send(now, self.qpn, &wr))??;
        Ok(())
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`RdmaError::Post`].
    pub fn post_recv(&self, wr_id: u64, pieces: &[Piece]) -> Result<(), RdmaError> {
        let mut list = [Sge::default(); SGE_MAX];
        let wr = RecvWr { wr_id, segments: segments(pieces, &mut list)? };
        self.engine.with_quietly(|rnic| rnic.post_recv(self.qpn, &wr))??;
        Ok(())
    }

    /// Posts receive work requests, each with its `wr_id` and one segment, in one call.
    ///
    /// # Errors
    /// [`RdmaError::Post`]; some may have been posted.
    pub fn post_recv_list(
        &self,
        receives: impl IntoIterator<Item = (u64, Piece)>,
    ) -> Result<(), RdmaError> {
        self.engine.with_quietly(|rnic| {
            receives.into_iter().try_for_each(|(wr_id, piece)| {
                rnic.post_recv(self.qpn, &RecvWr { wr_id, segments: &[piece.0] })
            })
        })??;
        Ok(())
    }

    /// Posts `count` receive work requests without memory, for WRITEs with immediate data.
    ///
    /// # Errors
    /// [`RdmaError::Post`]; some may have been posted.
    pub fn post_empty_recvs(&self, wr_id: u64, count: u32) -> Result<(), RdmaError> {
        let wr = RecvWr { wr_id, segments: &[] };
        self.engine
            .with_quietly(|rnic| (0..count).try_for_each(|_| rnic.post_recv(self.qpn, &wr)))??;
        Ok(())
    }
}

pub(super) fn segments<'a>(
    pieces: &[Piece],
    list: &'a mut [Sge; SGE_MAX],
) -> Result<&'a [Sge], RdmaError> {
    let out = list.get_mut(..pieces.len()).ok_or(VerbsError::Invalid("number of segments"))?;
    for (to, from) in out.iter_mut().zip(pieces) {
        *to = from.0;
    }
    Ok(out)
}
