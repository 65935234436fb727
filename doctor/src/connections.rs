//! Connections as the connection manager sets them up.

use longhaul_units::{Duration, Qpn};
use longhaul_wire::mad::{Mad, Message, Rej, Rep, Req, TransportService};
use serde::Serialize;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Requests for connections that wait for their answer.
const WAITING_MAX: usize = 1024;
/// Refusals that are kept with their reason.
const REJECTED_MAX: usize = 16;

/// What the connection manager's messages say about one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Agreed {
    /// Queue pair of the side that asked for the connection.
    pub active_qpn: u32,
    /// Queue pair of the side that was asked.
    pub passive_qpn: u32,
    /// Path MTU in bytes.
    pub path_mtu: Option<u32>,
    /// Local ACK timeout that the passive side should use, in nanoseconds; `None`: no timeout.
    pub ack_timeout_ns: Option<u64>,
    /// The code that stands for it, 0 to 31: 4.096 µs times two to that power.
    pub ack_timeout_code: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7 for ever.
    pub rnr_retry_count: u8,
    /// READs and atomics that the active side may have outstanding: the least of what both sides
    /// said.
    pub active_reads: u8,
    /// The same for the passive side.
    pub passive_reads: u8,
    /// The passive side has a shared receive queue, and gives no credits.
    pub shared_receive_queue: bool,
}

/// How often each kind of message was seen, and what was refused.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ConnectionManager {
    /// Requests for connections (REQ).
    pub requests: u64,
    /// Replies (REP).
    pub replies: u64,
    /// Disconnection requests (DREQ).
    pub disconnects: u64,
    /// Refusals (REJ).
    pub rejections: u64,
    /// Lookups of datagram services (SIDR_REQ).
    pub datagram_lookups: u64,
    /// All other messages.
    pub others: u64,
    /// The first 16 refusals.
    pub rejected: Vec<Rejected>,
}

/// A refused connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Rejected {
    /// Who refused.
    pub source: IpAddr,
    /// Who had asked.
    pub destination: IpAddr,
    /// The standard's code.
    pub reason: u16,
    /// The code in words.
    pub meaning: &'static str,
    /// Number of the frame, from 1.
    pub frame: u64,
}

/// A connection that REQ and REP agree on. Packets of the active side go to `passive_qpn`, and the
/// reverse.
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
        match message {
            Message::Req(req) => {
                self.seen.requests += 1;
                self.asked(source, destination, &req);
            }
            Message::Rep(rep) => {
                self.seen.replies += 1;
                return self.answered(source, destination, &rep);
            }
            Message::Rej(rej) => self.refused(source, destination, frame, &rej),
            Message::Dreq(_) => self.seen.disconnects += 1,
            Message::SidrReq(_) => self.seen.datagram_lookups += 1,
            _ => self.seen.others += 1,
        }
        None
    }

    fn asked(&mut self, active: IpAddr, passive: IpAddr, req: &Req<'_>) {
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
        });
    }

    /// The request stays: a reply may be repeated.
    fn answered(&mut self, passive: IpAddr, active: IpAddr, rep: &Rep<'_>) -> Option<Connected> {
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
