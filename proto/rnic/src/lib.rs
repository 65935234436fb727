//! The software RNIC: a pure device with PDs, MRs, CQs, SRQs, address handles and QPs of the
//! transports RC, UC and UD, and one side (0) for frames.
//!
//! An [`Rnic`] is a [`Node`]: its owner passes it frames and the time, and takes frames from it.
//! Methods follow the verbs (`reg_mr`, `create_qp`, `post_send`, `poll_cq` …). After any of them,
//! drain [`Node::poll_transmit`] and [`Rnic::poll_event`], then read [`Node::poll_timeout`].
//!
//! - Frames are checked in this order: form, BTH version, destination address, QP, QP state, source
//!   address, PKey, ICRC. A frame that fails a check is counted under a [`DropReason`] and dropped.
//! - QPs with packets to send take turns, one packet each; idle QPs cost nothing.
//! - With [`Config::port_rate`] the port is paced, so that a burst never exceeds the link's queue.
//!   A QP can be paced too, by the program and, with [`Config::dcqcn`], by congestion control.
//! - With [`Config::link_rate`] the device obeys pause frames of priority-based flow control: a QP
//!   whose priority, from the DSCP of its address vector, is paused keeps its turn until it may
//!   continue. Datagram QPs have priority 0.
//! - Frames to the port's own address are sent like any other, and return if the port or switch
//!   returns them. There is no loopback inside the device: two of its QPs can communicate if the
//!   wire loops.
//! - On an Ethernet segment ([`Config::segment`]) the device resolves Ethernet addresses and
//!   answers for its own. A QP holds its peer's address from the change of state on, so that no
//!   packet needs a lookup.
//! - QP1 carries the connection manager ([`Rnic::cm`]); data that arrives before the RTU counts as
//!   the RTU.
//!
//! Memory windows, XRC and on-demand paging are not supported, and are refused.
#![forbid(unsafe_code)]

mod addresses;
mod attributes;
mod bring_up;
mod config;
mod congestion;
mod cq;
mod env;
mod error;
mod gsi;
mod hop;
mod mr;
mod multicast;
mod objects;
mod path;
mod pause;
mod qp;
mod receive;
mod schedule;
mod srq;
mod table;
mod transition;
mod transmit;
mod transport;
mod types;

pub use addresses::PortAddresses;
pub use attributes::{AddressVector, QpAttr, QpInfo, QpInit, SrqInit};
pub use bring_up::BringUp;
pub use config::Config;
pub use error::{ErrorClass, PostError, VerbsError};
pub use longhaul_cc::RateLimit;
pub use longhaul_neighbour::{
    Address as SegmentAddress, Asks as SegmentAsks, Config as Segment, Failure, Neighbours,
    Resolution,
};
pub use longhaul_work::{
    AhId, Completion, CompletionOp, Counter, Counters, Destination, DropReason, Grh, MESSAGE_MAX,
    Mtu, RecvWr, SGE_MAX, SendOp, SendWr, Sge, Status,
};
pub use qp::QpSnapshot;
pub use types::{Access, CqId, Event, Memory, MrKeys, PdId, QpEvent, QpKind, QpState, SrqId};

use env::Env;
use longhaul_cc::Pacer;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_cm::ConnectionManager;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use mr::MrTable;
use multicast::Groups;
use qp::Qp;
use schedule::{RoundRobin, Timers};
use srq::{Srq, shared_queue};
use std::collections::VecDeque;
use table::Table;

/// A paced port that has run dry waits for this fraction of its burst: software sends in batches,
/// where a hardware port sends frame by frame.
const PORT_BATCHES: u64 = 32;

/// Frames after which timers run although the port may hold more: the size of a port's ring.
const BACKLOG_MAX: usize = 2048;

/// Reason to give a QP another turn.
#[derive(Clone, Copy)]
enum Listed {
    Both,
    Responses,
    No,
}

/// The device.
pub struct Rnic<M: Memory> {
    config: Config,
    env: Env<M>,
    cm: ConnectionManager,
    /// Number of objects of each PD.
    pds: Table<u32>,
    srqs: Table<Srq>,
    /// Oldest first.
    retired_ahs: VecDeque<AhId>,
    groups: Groups,
    /// Indexed by QPN minus [`Config::qpn_first`].
    qps: Vec<Option<Box<Qp>>>,
    /// Numbers of destroyed QPs, oldest first; reused only after all others.
    free_qpns: VecDeque<u32>,
    ready_qps: RoundRobin,
    /// RNR and local ACK timers.
    timers: Timers,
    /// QPs that wait for a rate limit.
    paced: Timers,
    /// Frames received since the port was last empty.
    backlog: usize,
    pacer: Option<Pacer>,
    paced_until: Option<Instant>,
    mad_psn: Psn,
    dcqcn: Dcqcn,
    cnps: congestion::Pending,
    hops: hop::Hops,
    pauses: pause::Pauses,
    /// On a segment, the VLAN of accepted packets; 0 for untagged ones.
    vlan: Option<u16>,
}

impl<M: Memory> Rnic<M> {
    /// Creates a device without objects. Limits in `config` beyond the protocol's are lowered to
    /// those.
    pub fn new(config: Config, memory: M) -> Self {
        let config = config.clamped();
        Rnic {
            env: Env {
                memory,
                regions: MrTable::new(config.mr_count_max),
                cqs: Table::new("CQs", config.cq_count_max),
                ahs: Table::new("address handles", config.ah_count_max),
                events: VecDeque::new(),
                counters: Counters::default(),
                now: Instant::ZERO,
                answer_delay: Duration::ZERO,
                overrun: Vec::new(),
            },
            cm: ConnectionManager::new(config.cm.clone()),
            pds: Table::new("PDs", config.pd_count_max),
            srqs: Table::new("SRQs", config.srq_count_max),
            retired_ahs: VecDeque::new(),
            groups: Groups::default(),
            qps: Vec::new(),
            free_qpns: VecDeque::new(),
            ready_qps: RoundRobin::default(),
            timers: Timers::default(),
            paced: Timers::default(),
            backlog: 0,
            pacer: config.port_rate.map(|rate| {
                Pacer::in_batches(
                    rate,
                    config.port_burst_bytes,
                    config.port_burst_bytes / PORT_BATCHES,
                )
            }),
            dcqcn: config.dcqcn.clone().unwrap_or_else(congestion::switched_off),
            cnps: congestion::Pending::default(),
            paced_until: None,
            mad_psn: Psn::new(0),
            hops: hop::Hops::new(&config),
            pauses: pause::Pauses::default(),
            vlan: config.segment.as_ref().map(path::tag),
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

    /// The memory, mutably.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.env.memory
    }

    /// The connection manager. Its messages are sent by the next [`Node::poll_transmit`]; its
    /// events are returned by [`Rnic::poll_event`].
    pub fn cm(&mut self) -> &mut ConnectionManager {
        &mut self.cm
    }

    /// Free-running counters of the port.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// Send work requests of all QPs that are posted and not completed.
    pub fn sends_queued(&self) -> u64 {
        self.qps.iter().flatten().map(|qp| qp.transport.sends_queued()).sum()
    }

    /// Snapshots of all QPs, by number.
    pub fn qp_snapshots(&self) -> impl Iterator<Item = QpSnapshot> + '_ {
        self.qps.iter().flatten().map(|qp| qp.snapshot())
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.env.events.pop_front().or_else(|| self.cm.poll_event().map(Event::Cm))
    }

    /// Notes that the driver has taken `frames` from the port, and whether the port may hold more.
    /// While it may, no local ACK timer expires, because an ACK may be among them; `BACKLOG_MAX`
    /// bounds that.
    pub fn note_received(&mut self, frames: usize, more_may_wait: bool) {
        self.backlog = if more_may_wait { self.backlog + frames } else { 0 };
    }

    fn is_behind(&self) -> bool {
        (1..BACKLOG_MAX).contains(&self.backlog)
    }

    fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get().checked_sub(self.config.qpn_first)?;
        matches!(self.qps.get(slot as usize), Some(Some(_))).then_some(slot)
    }

    /// Called after any event of a QP: updates its events, its turn and its deadline.
    #[inline]
    fn settle(&mut self, now: Instant, slot: u32) {
        self.settle_listed(now, slot, Listed::Both);
    }

    #[inline]
    fn settle_listed(&mut self, now: Instant, slot: u32, listed: Listed) {
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        qp.settle(&mut self.env, shared_queue(&mut self.srqs, &qp.init));
        let may_send = match listed {
            Listed::Both => qp.responder_can_transmit() || qp.requester_can_transmit(now),
            Listed::Responses => qp.responder_can_transmit(),
            Listed::No => false,
        };
        if may_send && !qp.is_listed {
            qp.is_listed = true;
            self.ready_qps.push(slot);
        }
        if let Some(deadline) = qp.transport.deadline() {
            self.timers.schedule(slot, deadline.at, &mut qp.timer_entry);
        }
        self.spread_overruns();
    }

    fn expire_timers(&mut self, now: Instant) {
        while let Some((at, slot)) = self.timers.pop(now) {
            let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { continue };
            if qp.timer_entry != Some(at) {
                continue;
            }
            qp.timer_entry = None;
            qp.transport.handle_timeout(now, &mut Qp::context(&qp.init, qp.access, &mut self.env));
            self.settle(now, slot);
        }
    }

    /// Called after completions: fails the QPs of CQs that lost one.
    #[inline]
    fn spread_overruns(&mut self) {
        if !self.env.overrun.is_empty() {
            self.fail_users_of_overrun_cqs();
        }
    }

    /// Fails every QP of a CQ that has lost a completion. Source: IBTA, volume 1, section 10.2.3.3
    /// (affiliated asynchronous errors).
    #[cold]
    fn fail_users_of_overrun_cqs(&mut self) {
        while let Some(cq) = self.env.overrun.pop() {
            for qp in self.qps.iter_mut().flatten() {
                let uses = qp.init.send_cq == cq || qp.init.recv_cq == cq;
                if uses && !matches!(qp.state, QpState::Reset | QpState::Error) {
                    self.env.events.push_back(Event::Qp { qpn: qp.qpn, kind: QpEvent::Fatal });
                    qp.fail(&mut self.env, shared_queue(&mut self.srqs, &qp.init));
                }
            }
        }
    }
}

impl<M: Memory> Node for Rnic<M> {
    #[inline]
    fn handle_frame(&mut self, now: Instant, _side: Side, frame: &Frame<'_>) {
        self.env.now = now;
        self.receive(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.env.now = now;
        self.cm.handle_timeout(now);
        if let Some(neighbours) = self.hops.neighbours_mut() {
            neighbours.handle_timeout(now);
        }
        while let Some((at, slot)) = self.paced.pop(now) {
            let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { continue };
            if qp.paced_entry == Some(at) {
                qp.paced_entry = None;
                self.settle(now, slot);
            }
        }
        if !self.is_behind() {
            self.expire_timers(now);
        }
        let qps = &self.qps;
        let entries = |slot: u32| qps.get(slot as usize).and_then(Option::as_deref);
        self.timers.compact(qps.len(), |at, slot| {
            entries(slot).is_some_and(|qp| qp.timer_entry == Some(at))
        });
        self.paced.compact(qps.len(), |at, slot| {
            entries(slot).is_some_and(|qp| qp.paced_entry == Some(at))
        });
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.send_pending(now, out);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let timer = self.timers.next().map(|at| Deadline { at, reason: "retransmission timer" });
        let limited = self.paced.next().map(|at| Deadline { at, reason: "rate limit" });
        let timer = Deadline::earliest(timer, limited);
        let paced = self.paced_until.map(|at| Deadline { at, reason: "port rate" });
        let own = Deadline::earliest(Deadline::earliest(timer, paced), self.cm.poll_timeout());
        let own = Deadline::earliest(own, self.pauses.deadline());
        match self.hops.neighbours() {
            None => own,
            Some(neighbours) => Deadline::earliest(own, neighbours.poll_timeout()),
        }
    }
}
