//! The two halves of a QP of any transport.

use crate::env::QpContext;
use crate::{Config, Memory, QpAttr, QpInit, QpKind};
use longhaul_node::{Deadline, Gather};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::{PKEY_DEFAULT, PathTemplate};
use longhaul_work::{Emit, Mtu, RecvQueue, SendRefused, SendWr};

/// Reason why a responder failed.
pub(crate) enum Fault {
    InvalidRequest,
    RemoteAccess,
    /// A completion reports it.
    Local,
}

/// Requester and responder.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all QPs are of the large one")]
pub(crate) enum Transport {
    Rc { requester: longhaul_rc::Requester, responder: longhaul_rc::Responder },
    Uc { requester: longhaul_uc::Requester, responder: longhaul_uc::Responder },
    Ud { requester: longhaul_ud::Requester, responder: longhaul_ud::Responder },
}

/// Calls a method common to all requesters.
macro_rules! requester {
    ($transport:expr, $half:ident => $call:expr) => {
        match $transport {
            Transport::Rc { requester: $half, .. } => $call,
            Transport::Uc { requester: $half, .. } => $call,
            Transport::Ud { requester: $half, .. } => $call,
        }
    };
}

/// Calls a method common to all responders.
macro_rules! responder {
    ($transport:expr, $half:ident => $call:expr) => {
        match $transport {
            Transport::Rc { responder: $half, .. } => $call,
            Transport::Uc { responder: $half, .. } => $call,
            Transport::Ud { responder: $half, .. } => $call,
        }
    };
}

fn rc_responder(qpn: Qpn, init: &QpInit, attr: &QpAttr, config: &Config) -> longhaul_rc::Responder {
    longhaul_rc::Responder::new(longhaul_rc::ResponderConfig {
        qpn,
        dest_qpn: attr.dest_qpn.unwrap_or_default(),
        rq_psn: attr.rq_psn.unwrap_or_default(),
        mtu: attr.path_mtu.unwrap_or(Mtu::B256),
        max_dest_rd_atomic: u32::from(attr.max_dest_rd_atomic.unwrap_or(0)),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        ack_every: config.ack_every.max(1),
        report_credits: config.report_credits && init.srq.is_none(),
        migreq: config.migreq,
        pkey: PKEY_DEFAULT,
    })
}

fn uc_responder(qpn: Qpn, attr: &QpAttr) -> longhaul_uc::Responder {
    longhaul_uc::Responder::new(longhaul_uc::ResponderConfig {
        qpn,
        dest_qpn: attr.dest_qpn.unwrap_or_default(),
        rq_psn: attr.rq_psn.unwrap_or_default(),
        mtu: attr.path_mtu.unwrap_or(Mtu::B256),
    })
}

fn ud_responder(qpn: Qpn, attr: &QpAttr, config: &Config) -> longhaul_ud::Responder {
    let qkey = attr.qkey.unwrap_or(0);
    longhaul_ud::Responder::new(longhaul_ud::ResponderConfig {
        qpn,
        qkey,
        mtu: config.path_mtu_max,
    })
}

impl Transport {
    pub fn new(qpn: Qpn, init: &QpInit, config: &Config) -> Self {
        let (depth, sge_max, inline_max) = (init.sq_depth, init.send_sge_max, init.inline_max);
        let attr = &QpAttr::default();
        match init.kind {
            QpKind::Rc => Transport::Rc {
                requester: longhaul_rc::Requester::new(depth, sge_max, inline_max),
                responder: rc_responder(qpn, init, attr, config),
            },
            QpKind::Uc => Transport::Uc {
                requester: longhaul_uc::Requester::new(depth, sge_max, inline_max),
                responder: uc_responder(qpn, attr),
            },
            QpKind::Ud => Transport::Ud {
                requester: longhaul_ud::Requester::new(depth, sge_max, inline_max),
                responder: ud_responder(qpn, attr, config),
            },
        }
    }

    /// Starts to receive, without any previous state.
    pub fn start_responder(&mut self, qpn: Qpn, init: &QpInit, attr: &QpAttr, config: &Config) {
        match self {
            Transport::Rc { responder, .. } => *responder = rc_responder(qpn, init, attr, config),
            Transport::Uc { responder, .. } => *responder = uc_responder(qpn, attr),
            Transport::Ud { responder, .. } => *responder = ud_responder(qpn, attr, config),
        }
    }

    /// Starts to send, without any previous state.
    pub fn start_requester(&mut self, qpn: Qpn, attr: &QpAttr, config: &Config) {
        let dest_qpn = attr.dest_qpn.unwrap_or_default();
        let sq_psn = attr.sq_psn.unwrap_or_default();
        let mtu = attr.path_mtu.unwrap_or(Mtu::B256);
        let (migreq, pkey) = (config.migreq, PKEY_DEFAULT);
        match self {
            Transport::Rc { requester, .. } => requester.start(longhaul_rc::RequesterConfig {
                qpn,
                dest_qpn,
                sq_psn,
                mtu,
                max_rd_atomic: u32::from(attr.max_rd_atomic.unwrap_or(0)),
                timeout: attr.timeout.and_then(Duration::of_ack_timeout),
                adaptive_timeout: config.adaptive_timeout,
                retry_cnt: attr.retry_cnt.unwrap_or(0),
                rnr_retry: attr.rnr_retry.unwrap_or(0),
                window_packets: config.window_packets.clamp(1, longhaul_rc::WINDOW_MAX),
                window_messages: config.window_messages.max(1),
                ack_request_every: config.ack_request_every.max(1),
                ack_request_at_window_end: config.ack_request_at_window_end,
                probe_above: config.probe_above,
                ack_request_phase: if config.ack_request_spread { phase(qpn, config) } else { 0 },
                timeout_stretch_max: config.timeout_stretch_max.max(1),
                obey_credits: config.obey_credits,
                migreq,
                pkey,
            }),
            Transport::Uc { requester, .. } => {
                requester.start(longhaul_uc::RequesterConfig {
                    qpn,
                    dest_qpn,
                    sq_psn,
                    mtu,
                    migreq,
                    pkey,
                });
            }
            Transport::Ud { requester, .. } => requester.start(longhaul_ud::RequesterConfig {
                qpn,
                qkey: attr.qkey.unwrap_or(0),
                sq_psn,
                mtu: config.path_mtu_max,
                migreq,
                pkey,
            }),
        }
    }

    /// Applies attributes that may change while ready.
    pub fn adopt(&mut self, attr: &QpAttr) {
        match self {
            Transport::Rc { requester, responder } => {
                if let Some(code) = attr.min_rnr_timer {
                    responder.set_min_rnr_timer(code);
                }
                if let Some(reads) = attr.max_dest_rd_atomic {
                    responder.set_max_dest_rd_atomic(reads.into());
                }
                requester.adjust(|config| {
                    if let Some(code) = attr.timeout {
                        config.timeout = Duration::of_ack_timeout(code);
                    }
                    config.retry_cnt = attr.retry_cnt.unwrap_or(config.retry_cnt);
                    config.rnr_retry = attr.rnr_retry.unwrap_or(config.rnr_retry);
                    config.max_rd_atomic =
                        attr.max_rd_atomic.map_or(config.max_rd_atomic, u32::from);
                });
            }
            Transport::Uc { .. } => {}
            Transport::Ud { requester, responder } => {
                if let Some(qkey) = attr.qkey {
                    requester.set_qkey(qkey);
                    responder.set_qkey(qkey);
                }
            }
        }
    }

    pub fn sq_depth(&self) -> u32 {
        requester!(self, half => half.depth())
    }

    /// Send work requests that are queued and not completed.
    pub fn sends_queued(&self) -> u64 {
        requester!(self, half => half.queued())
    }

    /// Number of send work requests that can be queued.
    #[inline]
    pub fn send_room(&self) -> u32 {
        requester!(self, half => half.depth() - half.queued() as u32)
    }

    pub fn post(
        &mut self,
        wr: &SendWr<'_>,
        signal_all: bool,
        memory: &dyn Gather,
    ) -> Result<(), SendRefused> {
        requester!(self, half => half.post(wr, signal_all, memory))
    }

    pub fn pause(&mut self, paused: bool) {
        requester!(self, half => half.pause(paused));
    }

    /// Resumes after a failure, with the next PSN. A reliable connection cannot.
    pub fn recover(&mut self) {
        match self {
            Transport::Rc { .. } => {}
            Transport::Uc { requester, .. } => requester.recover(),
            Transport::Ud { requester, .. } => requester.recover(),
        }
    }

    pub fn is_drained(&self) -> bool {
        requester!(self, half => half.is_drained())
    }

    #[inline]
    pub fn is_failed(&self) -> bool {
        requester!(self, half => half.is_failed())
    }

    #[inline]
    pub fn requester_can_transmit(&self, now: Instant) -> bool {
        match self {
            Transport::Rc { requester, .. } => requester.can_transmit(now),
            Transport::Uc { requester, .. } => requester.can_transmit(),
            Transport::Ud { requester, .. } => requester.can_transmit(),
        }
    }

    #[inline]
    pub fn responder_can_transmit(&self) -> bool {
        match self {
            Transport::Rc { responder, .. } => responder.can_transmit(),
            Transport::Uc { .. } | Transport::Ud { .. } => false,
        }
    }

    /// `true` if the responder's next packet carries data.
    #[inline]
    pub fn responder_sends_data(&self) -> bool {
        match self {
            Transport::Rc { responder, .. } => responder.is_answering(),
            Transport::Uc { .. } | Transport::Ud { .. } => false,
        }
    }

    #[inline]
    pub fn transmit_request<M: Memory>(
        &mut self,
        now: Instant,
        ctx: &mut QpContext<'_, M>,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        match self {
            Transport::Rc { requester, .. } => requester.transmit(now, ctx, template, emit),
            Transport::Uc { requester, .. } => requester.transmit(ctx, template, emit),
            Transport::Ud { requester, .. } => requester.transmit(ctx, emit),
        }
    }

    #[inline]
    pub fn transmit_response<M: Memory>(
        &mut self,
        queue: &RecvQueue,
        ctx: &mut QpContext<'_, M>,
        template: &PathTemplate,
        emit: &mut impl Emit,
    ) -> bool {
        match self {
            Transport::Rc { responder, .. } => responder.transmit(queue, ctx, template, emit),
            Transport::Uc { .. } | Transport::Ud { .. } => false,
        }
    }

    #[inline]
    pub fn deadline(&self) -> Option<Deadline> {
        match self {
            Transport::Rc { requester, .. } => requester.deadline(),
            Transport::Uc { .. } | Transport::Ud { .. } => None,
        }
    }

    pub fn handle_timeout<M: Memory>(&mut self, now: Instant, ctx: &mut QpContext<'_, M>) {
        if let Transport::Rc { requester, .. } = self {
            requester.handle_timeout(now, ctx);
        }
    }

    /// Reason why the responder failed, if it did.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Transport::Rc { responder, .. } => responder.fault().map(|fault| match fault {
                longhaul_rc::Fault::InvalidRequest => Fault::InvalidRequest,
                longhaul_rc::Fault::RemoteAccess => Fault::RemoteAccess,
                longhaul_rc::Fault::RemoteOperational => Fault::Local,
            }),
            Transport::Uc { responder, .. } => responder.fault().map(|_| Fault::Local),
            Transport::Ud { responder, .. } => responder.fault().map(|_| Fault::Local),
        }
    }

    /// Completes the queued sends with a flush error.
    pub fn flush_sends<M: Memory>(&mut self, ctx: &mut QpContext<'_, M>) {
        requester!(self, half => half.flush(ctx));
    }

    /// Completes everything queued, and the receive in use, with a flush error.
    pub fn flush<M: Memory>(&mut self, queue: &mut RecvQueue, ctx: &mut QpContext<'_, M>) {
        self.flush_sends(ctx);
        responder!(self, half => half.flush(queue, ctx));
    }

    /// Returns the receive in use to `queue`.
    pub fn release(&mut self, queue: &mut RecvQueue) {
        responder!(self, half => half.release(queue));
    }

    /// Next PSN to send.
    pub fn next_psn(&self) -> Psn {
        requester!(self, half => half.snapshot().next)
    }

    /// Next PSN expected; 0 for datagram QPs.
    pub fn expected_psn(&self) -> Psn {
        match self {
            Transport::Rc { responder, .. } => responder.snapshot().expected,
            Transport::Uc { responder, .. } => responder.snapshot().expected,
            Transport::Ud { .. } => Psn::new(0),
        }
    }
}

/// Packet at which a QP begins to count towards its AckReq; consecutive QPNs get distant ones.
fn phase(qpn: Qpn, config: &Config) -> u32 {
    let spread = u64::from(qpn.get().wrapping_mul(0x9e37_79b1));
    ((spread * u64::from(config.ack_request_every)) >> 32) as u32
}
