//! The software RNIC: a pure device with PDs, MRs, CQs and RC QPs, and one side (0) that frames go in and out of.
//!
//! An [`Rnic`] is a [`Node`]: its owner hands it frames and the time, and takes frames from it. Programs' calls
//! come in as methods that follow the verbs (`reg_mr`, `create_qp`, `post_send`, `poll_cq` …). After any of
//! them, drain [`Node::poll_transmit`] and [`Rnic::poll_event`], then ask [`Node::poll_timeout`].
//!
//! - Frames are checked in this order: form, BTH version, destination address, QP, QP state, source address,
//!   PKey, ICRC. What fails is counted under a [`DropReason`] and dropped.
//! - QPs that have something to send take turns, one packet each; idle QPs cost nothing.
//! - With [`Config::port_rate`] the port is paced, so that a burst never exceeds what a link's queue is told.
//! - Frames to the port's own address leave like any other; they come back when the port or switch returns
//!   them. The device has no short cut of its own, so two QPs of one device can talk wherever the wire can
//!   loop.
//! - QP1 carries the connection manager ([`Rnic::cm`]); data that arrives before its RTU counts as the RTU.
//!
//! Not here: UC, UD, SRQ, atomics, memory windows, congestion control; they are refused as not supported.
#![forbid(unsafe_code)]

mod cq;
mod env;
mod error;
mod gsi;
mod mr;
mod objects;
mod qp;
mod receive;
mod schedule;
mod transmit;
mod types;

pub use error::{ErrorClass, PostError, VerbsError};
pub use longhaul_rc::{
    Completion, CompletionOp, Counter, Counters, DropReason, MESSAGE_MAX, Mtu, RecvWr, RequesterSnapshot,
    ResponderSnapshot, SGE_MAX, SendOp, SendWr, Sge, Status,
};
pub use qp::QpSnapshot;
pub use types::{
    Access, AddressVector, Config, CqId, Event, Memory, MrKeys, PdId, QpAttr, QpEvent, QpInfo, QpInit,
    QpKind, QpState,
};

use env::Env;
use longhaul_cc::Pacer;
use longhaul_cm::ConnectionManager;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{Instant, Psn, Qpn};
use mr::MrTable;
use qp::Qp;
use schedule::{Timers, Turns};
use std::collections::VecDeque;

/// A paced port that has run dry waits for this fraction of its burst: what a hardware port does frame by frame,
/// software does in batches.
const PORT_BATCHES: u64 = 32;

/// The device.
pub struct Rnic<M: Memory> {
    config: Config,
    env: Env<M>,
    cm: ConnectionManager,
    /// QPs that each PD has, MRs included; `None` for a free id.
    pds: Vec<Option<u32>>,
    /// By QPN less [`Config::qpn_first`].
    qps: Vec<Option<Box<Qp>>>,
    /// Numbers given back, oldest first: used again only when all others have been.
    free_qpns: VecDeque<u32>,
    turns: Turns,
    timers: Timers,
    pacer: Option<Pacer>,
    paced_until: Option<Instant>,
    mad_psn: Psn,
}

impl<M: Memory> Rnic<M> {
    /// A device with no objects. Limits of `config` beyond what the protocol allows are lowered to it.
    pub fn new(config: Config, memory: M) -> Self {
        let mut config = config;
        config.qpn_first = config.qpn_first.clamp(2, Qpn::MAX);
        config.qpn_count = config.qpn_count.clamp(1, Qpn::MAX - config.qpn_first + 1);
        config.ip = config.ip.to_canonical();
        if config.cm.seed == 0 {
            config.cm.seed = config.seed;
        }
        Rnic {
            env: Env {
                memory,
                regions: MrTable::new(config.mr_count_max),
                cqs: Vec::new(),
                events: VecDeque::new(),
                counters: Counters::default(),
            },
            cm: ConnectionManager::new(config.cm.clone()),
            pds: Vec::new(),
            qps: Vec::new(),
            free_qpns: VecDeque::new(),
            turns: Turns::default(),
            timers: Timers::default(),
            pacer: config.port_rate.map(|rate| {
                Pacer::in_batches(rate, config.port_burst_bytes, config.port_burst_bytes / PORT_BATCHES)
            }),
            paced_until: None,
            mad_psn: Psn::new(0),
            config,
        }
    }

    /// The effective configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.env.memory
    }

    /// The memory, to write to.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.env.memory
    }

    /// The connection manager. What it wants to send leaves with the next [`Node::poll_transmit`]; its events
    /// come out of [`Rnic::poll_event`].
    pub fn cm(&mut self) -> &mut ConnectionManager {
        &mut self.cm
    }

    /// Free-running counters of the port.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// The state of every QP, in the order of their numbers.
    pub fn qp_snapshots(&self) -> impl Iterator<Item = QpSnapshot> + '_ {
        self.qps.iter().flatten().map(|qp| qp.snapshot())
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.env.events.pop_front().or_else(|| self.cm.poll_event().map(Event::Cm))
    }

    fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get().checked_sub(self.config.qpn_first)?;
        matches!(self.qps.get(slot as usize), Some(Some(_))).then_some(slot)
    }

    /// After anything happened to a QP: events, its turn, its deadline.
    #[inline]
    fn settle(&mut self, now: Instant, slot: u32) {
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        qp.settle(&mut self.env);
        if !qp.is_listed && (qp.responder_can_transmit() || qp.requester_can_transmit(now)) {
            qp.is_listed = true;
            self.turns.push(slot);
        }
        if let Some(deadline) = qp.requester.deadline() {
            self.timers.want(slot, deadline.at, &mut qp.timer_entry);
        }
    }
}

impl<M: Memory> Node for Rnic<M> {
    #[inline]
    fn handle_frame(&mut self, now: Instant, _side: Side, frame: &Frame<'_>) {
        self.receive(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.cm.handle_timeout(now);
        while let Some((at, slot)) = self.timers.pop(now) {
            let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { continue };
            if qp.timer_entry != Some(at) {
                continue;
            }
            qp.timer_entry = None;
            let (mut ctx, requester, ..) = qp.context(&mut self.env);
            requester.handle_timeout(now, &mut ctx);
            self.settle(now, slot);
        }
        let qps = &self.qps;
        self.timers.tidy(qps.len(), |at, slot| {
            qps.get(slot as usize).and_then(Option::as_ref).is_some_and(|qp| qp.timer_entry == Some(at))
        });
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.send_pending(now, out);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let timer = self.timers.next().map(|at| Deadline { at, reason: "retransmission timer" });
        let paced = self.paced_until.map(|at| Deadline { at, reason: "port rate" });
        Deadline::earliest(Deadline::earliest(timer, paced), self.cm.poll_timeout())
    }
}
