//! Connections set up by the connection manager.

use longhaul_units::{Duration, Qpn};
use longhaul_wire::mad::{Ece, Mad, Message, Rej, Rep, Req, TransportService};
use serde::Serialize;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Maximum outstanding connection requests.
const WAITING_MAX: usize = 1024;
/// Maximum rejections stored with their reason.
const REJECTED_MAX: usize = 16;

/// Parameters of a connection from the connection manager's messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Agreed {
    /// Queue pair of the active side, which requested the connection.
    pub active_qpn: u32,
    /// Queue pair of the passive side.
    pub passive_qpn: u32,
    /// Path MTU in bytes.
    pub path_mtu: Option<u32>,
    /// Local ACK timeout for the passive side, in nanoseconds; `None`: no timeout.
    pub ack_timeout_ns: Option<u64>,
    /// Its code, 0 to 31: 4.096 µs x 2^code.
    pub ack_timeout_code: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7: unlimited.
    pub rnr_retry_count: u8,
    /// READs and atomics that the active side may have outstanding: the minimum of both sides'
    /// values.
    pub active_reads: u8,
    /// The same for the passive side.
    pub passive_reads: u8,
    /// The passive side has a shared receive queue, and so grants no credits.
    pub shared_receive_queue: bool,
    /// Vendor features that the active side offers by ECE; `None`: none.
    pub ece_offered: Option<Features>,
    /// Those that the passive side agrees to; `None`: none.
    pub ece_agreed: Option<Features>,
}

/// The fields of enhanced connection establishment (ECE) in a REQ or REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Features {
    /// PCI vendor of the NIC.
    pub vendor_id: u32,
    /// Options, whose meaning the vendor defines.
    pub options: u32,
}

impl Features {
    /// `None` without a vendor or without options: receivers ignore one without the other.
    fn of(mad: &Mad, message: &Message<'_>) -> Option<Self> {
        let Ece { vendor_id, options } = Ece::read(mad, message.attribute())?;
        (vendor_id != 0 && options != 0).then_some(Features { vendor_id, options })
    }
}

/// Counts of each kind of message, and the rejections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ConnectionManager {
    /// Requests for connections (REQ).
    pub requests: u64,
    /// Replies (REP).
    pub replies: u64,
    /// Disconnection requests (DREQ).
    pub disconnects: u64,
    /// Rejections (REJ).
    pub rejections: u64,
    /// Lookups of datagram services (SIDR_REQ).
    pub datagram_lookups: u64,
    /// All other messages.
    pub others: u64,
    /// The first 16 rejections.
    pub rejected: Vec<Rejected>,
}

/// A rejected connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rejected {
    /// Sender of the rejection.
    pub source: IpAddr,
    /// The requesting side.
    pub destination: IpAddr,
    /// The standard's code.
    pub reason: u16,
    /// Meaning of the code.
    pub meaning: &'static str,
    /// Number of the frame, from 1.
    pub frame: u64,
}

/// A connection from REQ and REP. Packets of the active side go to `passive_qpn`, and the reverse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    pub active: IpAddr,
    pub passive: IpAddr,
    pub agreed: Agreed,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    active: IpAddr,
    passive: IpAddr,
    comm_id: u32,
    qpn: Qpn,
    path_mtu: u8,
    ack_timeout: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    responder_resources: u8,
    initiator_depth: u8,
    ece: Option<Features>,
}

/// Follows the connection manager's messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    waiting: VecDeque<Waiting>,
    pub seen: ConnectionManager,
}

impl Connections {
    pub fn message(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        frame: u64,
        mad: &Mad,
    ) -> Option<Connected> {
        let Ok((_, message)) = Message::read(mad) else { return None };
        let ece = Features::of(mad, &message);
        match message {
            Message::Req(req) => {
                self.seen.requests += 1;
                self.asked(source, destination, &req, ece);
            }
            Message::Rep(rep) => {
                self.seen.replies += 1;
                return self.answered(source, destination, &rep, ece);
            }
            Message::Rej(rej) => self.refused(source, destination, frame, &rej),
            Message::Dreq(_) => self.seen.disconnects += 1,
            Message::SidrReq(_) => self.seen.datagram_lookups += 1,
            _ => self.seen.others += 1,
        }
        None
    }

    fn asked(&mut self, active: IpAddr, passive: IpAddr, req: &Req<'_>, ece: Option<Features>) {
        if !matches!(req.transport, TransportService::Rc | TransportService::Uc) {
            return;
        }
        self.waiting.retain(|w| (w.active, w.comm_id) != (active, req.local_comm_id));
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting {
            active,
            passive,
            comm_id: req.local_comm_id,
            qpn: req.qpn,
            path_mtu: req.path_mtu,
            ack_timeout: req.primary.ack_timeout,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            ece,
        });
    }

    /// Keep the request, because a reply may be retransmitted.
    fn answered(
        &mut self,
        passive: IpAddr,
        active: IpAddr,
        rep: &Rep<'_>,
        ece: Option<Features>,
    ) -> Option<Connected> {
        let asked = |w: &&Waiting| {
            (w.active, w.passive, w.comm_id) == (active, passive, rep.remote_comm_id)
        };
        let req = self.waiting.iter().find(asked)?;
        let agreed = Agreed {
            active_qpn: req.qpn.get(),
            passive_qpn: rep.qpn.get(),
            path_mtu: (1..=5).contains(&req.path_mtu).then(|| 128 << req.path_mtu),
            ack_timeout_ns: Duration::of_ack_timeout(req.ack_timeout).map(Duration::as_ns),
            ack_timeout_code: req.ack_timeout,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            active_reads: req.initiator_depth.min(rep.responder_resources),
            passive_reads: rep.initiator_depth.min(req.responder_resources),
            shared_receive_queue: rep.srq,
            ece_offered: req.ece,
            ece_agreed: ece,
        };
        Some(Connected { active, passive, agreed })
    }

    fn refused(&mut self, source: IpAddr, destination: IpAddr, frame: u64, rej: &Rej<'_>) {
        self.seen.rejections += 1;
        if self.seen.rejected.len() < REJECTED_MAX {
            let (reason, meaning) = (rej.reason.0, rej.reason.text());
            self.seen.rejected.push(Rejected { source, destination, reason, meaning, frame });
        }
    }
}
