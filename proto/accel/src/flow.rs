//! One flow: the requests of one connection from a requester on the LAN to a responder beyond the
//! WAN.

mod acks;
mod allowance;
mod credits;
mod deadlines;
mod drain;
mod hold;
mod learning;
mod life;
mod missing;
mod mode;
mod one_way;
mod pace;
mod reads;
mod repetitions;
mod replay;
mod requester;
mod requester_side;
mod responder;
mod responder_side;
mod retransmission;
mod rtt;
mod state;
mod window;

use crate::answer::Answer;
use crate::bookkeeping::Bookkeeping;
use crate::policy::Duty;
use crate::shared::AccelShared;
use crate::shares::TenantId;
use crate::store::{RequestKind, Store};
use crate::{
    Config, DropReason, Drops, FlowCounters, FlowKey, FlowState, FlowStatus, Learnt, PassReason,
};
use credits::Credits;
use learning::Learning;
use life::Lives;
use longhaul_node::Frame;
use longhaul_units::{Instant, Msn, Psn, Qpn};
use longhaul_wire::{NakCode, Packet};
use mode::FlowMode;
use reads::Reads;
pub(crate) use repetitions::Repetitions;
use requester::{Requester, Sent};
use responder::Responder;
use state::{Failed, Passing, State};
use std::net::IpAddr;
use window::Window;

/// Offset of all sequence numbers, so that PSNs before a flow's first one are not negative.
const SEQUENCE_BASE: u64 = 1 << 32;

/// The 64-bit sequence number of a flow's first PSN.
pub(crate) fn first_sequence(psn: Psn) -> u64 {
    SEQUENCE_BASE + u64::from(psn.get())
}

/// Initial values of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    pub(crate) learnt: Learnt,
    pub(crate) requester_qpn: Option<Qpn>,
    pub(crate) psn: Psn,
    /// According to the connection manager's messages; the end points may use another one.
    pub(crate) path_mtu: Option<u32>,
    /// The requester's and the responder's address on an alternate path.
    pub(crate) alternate: Option<[IpAddr; 2]>,
    pub(crate) migreq: bool,
    /// DSCP of the packet that carries these values.
    pub(crate) dscp: u8,
}

impl Beginning {
    /// For a flow learnt from its traffic, starting with `packet`.
    pub(crate) fn of_traffic(packet: &Packet<'_>) -> Self {
        Beginning {
            learnt: Learnt::Traffic,
            requester_qpn: None,
            psn: packet.psn(),
            path_mtu: None,
            alternate: None,
            migreq: false,
            dscp: dscp(packet),
        }
    }
}

/// Queued frames that must leave before the flow's own, so that neither stored packets nor
/// pseudo-ACKs overtake frames forwarded earlier.
#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    lan: u64,
    wan: u64,
}

/// One flow: its state, its store and its two sides.
pub(crate) struct Flow {
    key: FlowKey,
    /// The tenant that its store's memory counts for.
    tenant: TenantId,
    requester_qpn: Option<Qpn>,
    state: State,
    mode: FlowMode,
    learnt: Learnt,
    /// Why it passes for good, if it does.
    for_good: Option<PassReason>,
    reads: Reads,
    answer: Answer,
    store: Store,
    /// MSN that corresponds to zero messages in the store.
    msn_base: Msn,
    /// The store has held a request of this life.
    started: bool,

    requester: Requester,
    responder: Responder,
    marks: Marks,
    lives: Lives,
    pub(crate) bookkeeping: Bookkeeping,
    counters: FlowCounters,
    drops: Drops,
}

impl Flow {
    /// Creates a flow in the mode that the policy announces; its first request settles the mode.
    pub(crate) fn new(now: Instant, config: &Config, key: FlowKey, beginning: Beginning) -> Self {
        let start = first_sequence(beginning.psn);
        let for_good = beginning.alternate.map(|_| PassReason::AlternatePath);
        let mode = FlowMode::announced(config, &key, beginning.dscp);
        let learning =
            beginning.requester_qpn.is_none().then(|| Box::new(Learning::new(now, start)));
        Flow {
            key,
            tenant: TenantId::default(),
            requester_qpn: beginning.requester_qpn,
            state: State::new(&mode, for_good, learning),
            mode,
            learnt: beginning.learnt,
            for_good,
            reads: Reads::new(beginning.path_mtu),
            answer: Answer::new(beginning.migreq),
            store: Store::new(start),
            msn_base: Msn::new(0),
            started: false,
            requester: Requester::new(start),
            responder: Responder::new(now, Window::of(config.role)),
            marks: Marks::default(),
            lives: Lives::default(),
            bookkeeping: Bookkeeping { is_used: true, ..Bookkeeping::default() },
            counters: FlowCounters::default(),
            drops: Drops::default(),
        }
    }

    pub(crate) fn key(&self) -> &FlowKey {
        &self.key
    }

    pub(crate) fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Counts its memory for `tenant` from here on. The store must be empty.
    pub(crate) fn join(&mut self, tenant: TenantId) {
        self.tenant = tenant;
    }

    pub(crate) fn requester_qpn(&self) -> Option<Qpn> {
        self.requester_qpn
    }

    pub(crate) fn set_requester(&mut self, qpn: Qpn) {
        self.requester_qpn = Some(qpn);
    }

    pub(crate) fn take_requester(&mut self) -> Option<Qpn> {
        self.requester_qpn.take()
    }

    /// True if nothing is stored.
    #[inline]
    pub(crate) fn is_delivered(&self) -> bool {
        self.store.is_empty()
    }

    /// The PSN behind the last packet known to be delivered.
    pub(crate) fn delivered_to(&self) -> u64 {
        self.store.responder_next
    }

    /// Stored packets must not overtake requests already forwarded.
    pub(crate) fn follow_passed_requests(&mut self, shared: &AccelShared) {
        self.marks.wan = shared.to_wan.mark();
    }

    /// Pseudo-ACKs must not overtake responses already forwarded.
    fn follow_passed_responses(&mut self, shared: &AccelShared) {
        self.marks.lan = shared.to_lan.mark();
    }

    /// True if an answer to the requester would overtake nothing.
    #[inline]
    pub(crate) fn may_answer(&self, shared: &AccelShared) -> bool {
        shared.to_lan.has_passed(self.marks.lan)
    }

    /// True if a stored packet would overtake nothing.
    #[inline]
    pub(crate) fn may_deliver(&self, shared: &AccelShared) -> bool {
        shared.to_wan.has_passed(self.marks.wan)
    }

    /// Learns the format of the responder's frames from a request of its QP.
    pub(crate) fn learn_answer(&mut self, frame: &Frame<'_>, packet: &Packet<'_>) {
        if self.answer.is_deduced() && frame.is_intact_at(&packet.layout()) {
            self.answer.learn_from_responder(packet);
        }
    }

    /// Has the last ACK sent once more.
    pub(crate) fn repeat_ack(&mut self) {
        self.requester.acks.repeat();
    }

    fn drop_frame(&mut self, shared: &mut AccelShared, reason: DropReason) {
        self.drops.count(reason);
        shared.counters.drops.count(reason);
    }

    /// MSN after `messages` of this flow.
    pub(crate) fn msn_after(&self, messages: u64) -> Msn {
        self.msn_base.plus(messages as u32)
    }

    /// Sets the mode by the DSCP of the first request, which overrides that of the CM's messages.
    pub(crate) fn settle_mode(&mut self, config: &Config, packet: &Packet<'_>) {
        self.mode = FlowMode::requested(config, &self.key, dscp(packet));
        self.state.settle(&self.mode, self.for_good);
    }

    /// Discards the store and learns the flow again, from `packet` on.
    pub(crate) fn restart_learning(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        packet: &Packet<'_>,
    ) {
        self.discard_store(shared, first_sequence(packet.psn()));
        let begins_at = self.requester.acks.begins_at();
        self.requester.sent = Sent::from(begins_at);
        let place = self.state.learning_mut().and_then(|learning| learning.place.take());
        self.state = State::Learning(Box::new(Learning::anew(now, begins_at, place)));
        self.learnt = Learnt::Traffic;
        self.settle_mode(&shared.config, packet);
        self.started = false;
        self.begin_sides_afresh();
        self.responder.credits = Credits::default();
    }

    /// Clears all debts and timers of both sides at the end of a state.
    fn begin_sides_afresh(&mut self) {
        self.reads = self.reads.afresh();
        self.lives = self.lives.afresh();
        self.requester = self.requester.afresh();
        self.responder = self.responder.afresh();
    }

    /// Discards the store, which restarts at `start`, and counts acknowledged packets as lost.
    pub(crate) fn discard_store(&mut self, shared: &mut AccelShared, start: u64) {
        match self.state {
            State::Terminated => {
                let acked = self.store.index_of(self.requester.acks.to());
                let delivered = self.store.index_of(self.store.responder_next);
                shared.counters.stored_lost += acked.saturating_sub(delivered) as u64;
            }
            State::Passing(_) => shared.counters.stored_unconfirmed += self.store.len() as u64,
            State::Learning(_) | State::Failed(_) => {}
        }
        self.requester.sent.note_discarded(self.store.end());
        shared.shares.sub(self.tenant, self.store.restart(start));
        self.requester.acks = self.requester.acks.restarted(start);
    }

    /// Discards the store before the flow is removed.
    pub(crate) fn close(&mut self, shared: &mut AccelShared) {
        let end = self.store.end();
        self.discard_store(shared, end);
    }

    /// Fails the flow. If `nak_is_owed`, its requester gets a fatal NAK with `code` for the first
    /// packet that was not acknowledged.
    pub(crate) fn fail(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        code: NakCode,
        nak_is_owed: bool,
    ) {
        let acks = self.requester.acks;
        self.msn_base = self.msn_after(acks.messages());
        self.discard_store(shared, acks.to());
        self.state.fail(now, code, nak_is_owed);
        self.begin_sides_afresh();
        shared.counters.flows_failed += 1;
    }

    #[inline]
    pub(crate) fn is_terminated(&self) -> bool {
        matches!(self.state, State::Terminated)
    }

    pub(crate) fn is_learning(&self) -> bool {
        matches!(self.state, State::Learning(_))
    }

    pub(crate) fn state(&self) -> FlowState {
        self.state.name()
    }

    /// Learning state, while the requester is not certain.
    pub(crate) fn learning(&self) -> Option<&Learning> {
        self.state.learning()
    }

    pub(crate) fn learning_mut(&mut self) -> Option<&mut Learning> {
        self.state.learning_mut()
    }

    /// True if an acknowledge packet must be sent to the requester.
    pub(crate) fn owes_requester(&self) -> bool {
        if self.lives.is_orphan() {
            return false;
        }
        match self.state {
            State::Learning(_) | State::Passing(_) => false,
            State::Failed(Failed { nak_is_owed, .. }) => nak_is_owed,
            State::Terminated => {
                let frontier = self.store.frontier().0;
                self.requester.replay.is_none()
                    && (self.requester.acks.is_due(frontier)
                        || self.nak_is_due()
                        || self.owes_wait())
            }
        }
    }

    /// True if an RNR NAK must be sent.
    #[inline]
    fn owes_wait(&self) -> bool {
        self.requester.hold.is_due(&self.store, &self.requester.missing)
    }

    /// True if a sequence NAK is owed and can be sent: a NAK acknowledges all PSNs before its own.
    ///
    /// In mode tail its PSN is the first whose message the responder has not taken. The requester
    /// then retransmits more than is missing, but need not wait for a round trip.
    pub(crate) fn nak_is_due(&self) -> bool {
        let is_end_to_end = || self.store.frontier_waits_for(RequestKind::EndToEnd);
        self.requester.missing.owes_nak()
            && (self.store.frontier().0 == self.store.end()
                || (self.mode.duty() == Duty::AcknowledgeButLast && is_end_to_end()))
    }

    /// True if a stored packet may be sent to the responder.
    #[inline]
    pub(crate) fn owes_responder(&mut self) -> bool {
        self.delivers()
            && self.responder.retransmission.may_send()
            && self.responder.pace.waiting_until().is_none()
            && (self.responder.retransmission.is_probe_due() || self.may_send_next())
    }

    #[inline]
    fn may_send_next(&mut self) -> bool {
        self.store.next_to_send().is_some()
            && self.responder.retransmission.is_open(|| self.store.outstanding())
    }

    pub(crate) fn status(&self, config: &Config) -> FlowStatus {
        let pass_reason = match self.state {
            State::Passing(Passing { reason, .. }) => Some(reason),
            _ => None,
        };
        let Requester { sent, acks, allowance, .. } = &self.requester;
        let Responder { retransmission, credits, .. } = &self.responder;
        // For a passing flow only the requester's progress is known.
        let psn = |seq| Psn::from_sequence(if pass_reason.is_some() { sent.next() } else { seq });
        FlowStatus {
            key: self.key,
            requester_qpn: self.requester_qpn,
            state: self.state.name(),
            pass_reason,
            mode: self.mode.mode(),
            role: config.role,
            learnt: self.learnt,
            path_mtu: self.reads.path_mtu(),
            rtt: retransmission.rtt().smoothed(),
            rtt_min: retransmission.rtt().shortest(),
            ack_delay: acks.delay(),
            rto: retransmission.timeout(config),
            stored_bytes: self.store.bytes(),
            stored_frames: self.store.len(),
            unsent_frames: self.store.unsent(),
            outstanding_reads: self.store.awaited.len(),
            expected_psn: psn(self.store.end()),
            unacknowledged_psn: psn(acks.to()),
            undelivered_psn: psn(self.store.responder_next),
            msn: self.msn_after(acks.messages()),
            responder_msn: self.msn_after(credits.messages()),
            credits: credits.left(acks.messages()),
            back_pressure: allowance.withheld_until().is_some(),
            counters: self.counters,
            drops: self.drops,
        }
    }

    /// Unwraps the PSN of `packet` near the end of the store.
    pub(crate) fn sequence_of(&self, packet: &Packet<'_>) -> u64 {
        packet.psn().unwrap_near(self.store.end()).unwrap_or(0)
    }
}

pub(crate) fn dscp(packet: &Packet<'_>) -> u8 {
    packet.traffic_class() >> 2
}
