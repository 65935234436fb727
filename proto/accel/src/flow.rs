//! One flow: the requests of one connection from a requester on the LAN to a responder beyond the
//! WAN.

use crate::allowance::Allowance;
use crate::answer::Answer;
use crate::hold::Hold;
use crate::learning::Learning;
use crate::lives::Lives;
use crate::one_way::Silence;
use crate::policy::Duty;
use crate::rtt::Rtt;
use crate::shared::Shared;
use crate::shares::TenantId;
use crate::store::{Kind, Store};
use crate::window::Window;
use crate::{
    Config, DropReason, Drops, FlowCounters, FlowKey, FlowState, FlowStatus, Learnt, Mode,
    PassReason,
};
use longhaul_cc::RateLimiter;
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant, Msn, Psn, Qpn};
use longhaul_wire::{NakCode, Packet};
use std::net::IpAddr;

/// Sequence numbers start this far up, so that PSNs before the first one have one too.
const SEQUENCE_BASE: u64 = 1 << 32;

/// How often a flow whose packets were refused looks for room, which other flows may have made.
const ROOM_CHECK_EVERY: Duration = Duration::from_ms(1);

/// Memory of what is acknowledged when nothing was for long, although the responder is too far
/// behind: a sign of life for the requester's timer and retry counter.
const TRICKLE_BYTES: u64 = 64 << 10;

/// The 64-bit sequence number that a flow beginning at `psn` starts with.
pub(crate) fn first_sequence(psn: Psn) -> u64 {
    SEQUENCE_BASE + u64::from(psn.get())
}

/// A gap in what the requester sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// The packet that revealed it.
    pub(crate) revealed_by: u64,
}

/// A question to a silent responder: the oldest packet, sent again with AckReq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probe {
    None,
    Due,
    Sent(Instant),
    /// More was delivered since, by an answer to the question or by packets of before it that came
    /// late: which of the two shows by this moment.
    Answered(Instant),
}

/// Why packets are being sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    Nak,
    Rnr,
    Timeout,
}

/// READs or atomics that the requester asked for again after they had been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replay {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) at: Instant,
}

/// Numbers that a flow starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    pub(crate) learnt: Learnt,
    pub(crate) requester_qpn: Option<Qpn>,
    pub(crate) psn: Psn,
    /// What the connection manager's messages say; its end points may use another one.
    pub(crate) path_mtu: Option<u32>,
    /// The requester's and the responder's address on an alternate path.
    pub(crate) alternate: Option<[IpAddr; 2]>,
    pub(crate) migreq: bool,
    /// DSCP of the packet that shows them.
    pub(crate) dscp: u8,
}

/// A stored READ whose range of PSNs is not known, because the path MTU is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnresolvedRead {
    pub(crate) len: u32,
    /// A request came behind it and did not tell.
    pub(crate) for_long: bool,
}

/// What the connection manager's messages say, and packets are to show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) path_mtu: Option<u32>,
    /// The connection has an alternate path.
    pub(crate) has_alternate: bool,
}

/// Which of the accelerator's queues a flow is in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queued {
    /// That of flows whose duties are processed and whose timers are set at the end of a batch.
    pub(crate) is_touched: bool,
    pub(crate) in_lan_ring: bool,
    pub(crate) in_wan_ring: bool,
}

impl Beginning {
    /// Of a flow that is learnt from its traffic, from `packet` on.
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

pub(crate) struct Flow {
    pub(crate) key: FlowKey,
    /// Whose memory its store takes.
    pub(crate) tenant: TenantId,
    pub(crate) requester_qpn: Option<Qpn>,
    pub(crate) state: FlowState,
    pub(crate) mode: Mode,
    pub(crate) duty: Duty,
    /// A request has shown the DSCP that the mode goes by.
    pub(crate) mode_is_final: bool,
    pub(crate) learnt: Learnt,
    /// As its packets have shown it.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) told: Told,
    pub(crate) answer: Answer,
    pub(crate) store: Store,
    /// MSN at which the store counts no messages.
    pub(crate) msn_base: Msn,
    /// The last stored READ, while its range of PSNs is not known.
    pub(crate) unresolved_read: Option<UnresolvedRead>,
    /// The first PSN: nothing before it is acknowledged.
    pub(crate) begins_at: u64,
    /// False until the first request was stored.
    pub(crate) started: bool,

    // Towards the requester.
    pub(crate) acked_to: u64,
    pub(crate) acked_messages: u64,
    pub(crate) wanted_to: u64,
    /// The wish for an ACK whose delay is being measured, and since when.
    pub(crate) wish: Option<(u64, Instant)>,
    pub(crate) ack_delay: Option<Duration>,
    pub(crate) since_ack: u32,
    pub(crate) ack_again: bool,
    pub(crate) gap: Option<Gap>,
    pub(crate) nak_owed: bool,
    pub(crate) fatal_owed: bool,
    /// With what a failed flow's requester is told so.
    pub(crate) fatal_code: NakCode,
    pub(crate) store_was_full: bool,
    pub(crate) hold: Hold,
    /// When a packet was last refused for lack of room, or room was last looked for.
    pub(crate) refused_at: Option<Instant>,
    /// While pseudo-ACKs are withheld: when a little is acknowledged nevertheless.
    pub(crate) withheld_until: Option<Instant>,
    pub(crate) allowance: Allowance,
    pub(crate) replay: Option<Replay>,
    /// Behind the last packet that came.
    pub(crate) lan_next: u64,
    /// Behind the packet with the highest number that came, but for what is stored.
    pub(crate) lan_latest: u64,
    pub(crate) lan_mark: u64,
    /// What is known of a flow whose requester's QPN is not; kept until it is terminated.
    pub(crate) learning: Option<Box<Learning>>,
    pub(crate) lives: Lives,
    /// Its requester may be another one: the table is to forget the QPN.
    pub(crate) is_unpaired: bool,
    /// Why it passes, if it does.
    pub(crate) pass_reason: PassReason,

    // Towards the responder.
    pub(crate) rtt: Rtt,
    pub(crate) timer_base: Instant,
    pub(crate) alive_at: Instant,
    pub(crate) backoff: u32,
    pub(crate) probe: Probe,
    /// When anything was last sent again: an ACK may be an answer to that.
    pub(crate) resent_at: Instant,
    /// Questions in a row that were answered sooner than the path seemed to allow.
    pub(crate) early_answers: u8,
    pub(crate) rnr_until: Option<Instant>,
    pub(crate) window: Window,
    /// What CNPs leave of the rate.
    pub(crate) limiter: RateLimiter,
    /// When the next packet may leave by it, while one waits.
    pub(crate) slowed_until: Option<Instant>,
    pub(crate) gone_back: Option<(u64, Instant)>,
    /// The first packet of the last going back, while its delivery tells the round trip.
    pub(crate) timed: Option<u64>,
    pub(crate) cause: Cause,
    pub(crate) responder_messages: u64,
    /// Message count up to which the responder's credits reach; `None`: no limit.
    pub(crate) credit_limit: Option<u64>,
    pub(crate) failed_at: Instant,
    pub(crate) closing: bool,
    /// It passes because the accelerator drains, or drained: from which PSN on nothing was ever
    /// acknowledged here.
    pub(crate) aside_from: Option<u64>,
    pub(crate) wan_mark: u64,

    // Towards the accelerator's tables.
    pub(crate) used: bool,
    pub(crate) armed: Option<Instant>,
    pub(crate) queued: Queued,
    pub(crate) dreq_held: bool,

    pub(crate) counters: FlowCounters,
    pub(crate) drops: Drops,
}

impl Flow {
    /// A flow as `config` wants it. Its mode is looked up again when its first request comes.
    pub(crate) fn new(now: Instant, config: &Config, key: FlowKey, beginning: Beginning) -> Self {
        let start = first_sequence(beginning.psn);
        let mut flow = Flow::blank(now, key, beginning, start);
        flow.window = Window::of(config.role);
        flow.take_mode(config, beginning.dscp);
        flow
    }

    fn blank(now: Instant, key: FlowKey, beginning: Beginning, start: u64) -> Self {
        Flow {
            key,
            tenant: TenantId::default(),
            requester_qpn: beginning.requester_qpn,
            state: FlowState::Learning,
            mode: Mode::Early,
            duty: Duty::Acknowledge,
            mode_is_final: false,
            learnt: beginning.learnt,
            path_mtu: None,
            told: Told {
                path_mtu: beginning.path_mtu,
                has_alternate: beginning.alternate.is_some(),
            },
            answer: Answer::new(beginning.migreq),
            store: Store::new(start),
            msn_base: Msn::new(0),
            unresolved_read: None,
            begins_at: start,
            started: false,
            acked_to: start,
            acked_messages: 0,
            wanted_to: start,
            wish: None,
            ack_delay: None,
            since_ack: 0,
            ack_again: false,
            gap: None,
            nak_owed: false,
            fatal_owed: false,
            fatal_code: NakCode::RemoteOperational,
            store_was_full: false,
            hold: Hold::default(),
            refused_at: None,
            withheld_until: None,
            allowance: Allowance::new(),
            replay: None,
            lan_next: start,
            lan_latest: start,
            lan_mark: 0,
            learning: beginning
                .requester_qpn
                .is_none()
                .then(|| Box::new(Learning::new(now, start))),
            is_unpaired: false,
            pass_reason: PassReason::Mode,
            lives: Lives::default(),
            rtt: Rtt::default(),
            timer_base: now,
            alive_at: now,
            backoff: 0,
            probe: Probe::None,
            resent_at: Instant::ZERO,
            early_answers: 0,
            rnr_until: None,
            window: Window::default(),
            limiter: RateLimiter::new(),
            slowed_until: None,
            gone_back: None,
            timed: None,
            cause: Cause::Nak,
            responder_messages: 0,
            credit_limit: None,
            failed_at: now,
            closing: false,
            aside_from: None,
            wan_mark: 0,
            used: true,
            armed: None,
            queued: Queued::default(),
            dreq_held: false,
            counters: FlowCounters::default(),
            drops: Drops::default(),
        }
    }

    pub(crate) fn drop_frame(&mut self, shared: &mut Shared, reason: DropReason) {
        self.drops.count(reason);
        shared.counters.drops.count(reason);
    }

    /// MSN after `messages` of this flow.
    pub(crate) fn msn_after(&self, messages: u64) -> Msn {
        self.msn_base.plus(messages as u32)
    }

    /// Looks the mode up, for requests with this DSCP, and goes by it. Nothing is stored yet.
    fn take_mode(&mut self, config: &Config, dscp: u8) {
        self.mode = config.policy.mode_of(&self.key, dscp);
        self.duty = self.mode.duty(config.role);
        let has_path_only = self.told.has_alternate && self.duty != Duty::Pass;
        self.pass_reason = if has_path_only { PassReason::AlternatePath } else { PassReason::Mode };
        self.state = match (self.duty, self.learnt) {
            (Duty::Pass, _) => FlowState::Passing,
            _ if self.told.has_alternate => FlowState::Passing,
            (_, Learnt::ConnectionManager) => FlowState::Terminated,
            (_, Learnt::Traffic) => FlowState::Learning,
        };
    }

    /// The flow's first request: its DSCP decides, whatever the connection manager's messages had.
    pub(crate) fn settle_mode(&mut self, config: &Config, packet: &Packet<'_>) {
        self.mode_is_final = true;
        self.take_mode(config, dscp(packet));
    }

    /// Lets everything stored go and expects `packet` next, as a flow of which nothing is known.
    pub(crate) fn restart_learning(
        &mut self,
        now: Instant,
        shared: &mut Shared,
        packet: &Packet<'_>,
    ) {
        self.discard_store(shared, first_sequence(packet.psn()));
        self.lan_next = self.begins_at;
        self.lan_latest = self.begins_at;
        let mut learning = Box::new(Learning::new(now, self.begins_at));
        learning.place = self.learning.take().and_then(|before| before.place);
        self.learning = Some(learning);
        self.is_unpaired = true;
        self.learnt = Learnt::Traffic;
        self.settle_mode(&shared.config, packet);
        self.unresolved_read = None;
        self.started = false;
        self.forget_duties();
        self.aside_from = None;
        self.credit_limit = None;
        self.responder_messages = 0;
    }

    pub(crate) fn forget_duties(&mut self) {
        self.lives.repeated = None;
        self.lives.acked_elsewhere = None;
        self.lives.silence = Silence::default();
        self.wish = None;
        self.ack_again = false;
        self.gap = None;
        self.nak_owed = false;
        self.fatal_owed = false;
        self.store_was_full = false;
        self.hold = Hold::default();
        self.withheld_until = None;
        self.allowance = Allowance::new();
        self.replay = None;
        self.since_ack = 0;
        self.backoff = 0;
        self.probe = Probe::None;
        self.rnr_until = None;
        self.window = self.window.afresh();
        self.limiter = RateLimiter::new();
        self.slowed_until = None;
        self.gone_back = None;
        self.timed = None;
    }

    /// Discards what is stored; counts what had been acknowledged and is lost.
    pub(crate) fn discard_store(&mut self, shared: &mut Shared, start: u64) {
        match self.state {
            FlowState::Terminated => {
                let acked = self.store.index_of(self.acked_to);
                let delivered = self.store.index_of(self.store.responder_next);
                shared.counters.stored_lost += acked.saturating_sub(delivered) as u64;
            }
            FlowState::Passing => shared.counters.stored_unconfirmed += self.store.len() as u64,
            FlowState::Learning | FlowState::Failed => {}
        }
        self.lan_latest = self.lan_latest.max(self.store.end());
        shared.shares.sub(self.tenant, self.store.restart(start));
        self.begins_at = start;
        self.acked_to = start;
        self.acked_messages = 0;
        self.wanted_to = start;
    }

    /// Lets everything go before the flow is removed.
    pub(crate) fn close(&mut self, shared: &mut Shared) {
        let end = self.store.end();
        self.discard_store(shared, end);
    }

    /// Gives up: the requester learns by a fatal NAK, of this `code`, on the first packet that it
    /// was not acknowledged. `told`: it has been given the responder's own NAK.
    pub(crate) fn fail(&mut self, now: Instant, shared: &mut Shared, code: NakCode, told: bool) {
        let (at, messages) = (self.acked_to, self.acked_messages);
        let unacknowledged = self.store.end() > at;
        self.msn_base = self.msn_after(messages);
        self.discard_store(shared, at);
        self.state = FlowState::Failed;
        self.failed_at = now;
        self.unresolved_read = None;
        self.forget_duties();
        self.fatal_owed = unacknowledged && !told;
        self.fatal_code = code;
        shared.counters.flows_failed += 1;
    }

    /// True when an acknowledge packet is to be sent to the requester.
    pub(crate) fn owes_requester(&self) -> bool {
        if self.lives.is_orphan {
            return false;
        }
        match self.state {
            FlowState::Learning | FlowState::Passing => false,
            FlowState::Failed => self.fatal_owed,
            FlowState::Terminated => {
                let frontier = self.store.frontier().0;
                self.replay.is_none()
                    && ((self.ack_again && frontier > self.begins_at)
                        || self.wanted_to.min(frontier) > self.acked_to
                        || self.nak_is_due()
                        || self.owes_wait())
            }
        }
    }

    /// True when a sequence NAK is owed, and can be sent: it acknowledges all before the PSN that
    /// it names.
    ///
    /// In mode tail that PSN is the first whose message the responder has not taken. The requester
    /// sends again more than is missing, but need not wait for a round trip.
    pub(crate) fn nak_is_due(&self) -> bool {
        let is_end_to_end = || self.store.frontier_waits_for(Kind::EndToEnd);
        self.nak_owed
            && (self.store.frontier().0 == self.store.end()
                || (self.duty == Duty::AcknowledgeButLast && is_end_to_end()))
    }

    /// True when a stored packet may be sent to the responder.
    #[inline]
    pub(crate) fn owes_responder(&mut self) -> bool {
        self.delivers()
            && self.rnr_until.is_none()
            && self.slowed_until.is_none()
            && (self.probe == Probe::Due || self.may_send_next())
    }

    #[inline]
    fn may_send_next(&mut self) -> bool {
        self.store.next_to_send().is_some() && self.window.is_open(|| self.outstanding())
    }

    /// PSNs that are sent and not to be sent again, and of which the responder is not known to have
    /// any.
    pub(crate) fn outstanding(&self) -> u64 {
        self.store.sent_before().saturating_sub(self.store.responder_next)
    }

    /// The next moment at which this flow wants [`Flow::handle_timeout`].
    #[inline]
    pub(crate) fn deadline(&self, config: &Config) -> Option<Deadline> {
        if !self.delivers() {
            return None;
        }
        let is_outstanding =
            self.rnr_until.is_none() && self.store.is_outstanding() && self.probe != Probe::Due;
        let retransmission = is_outstanding.then(|| Deadline {
            at: self.retransmission_due(config),
            reason: "retransmission timer",
        });
        // Of most flows nothing else is awaited.
        let is_steady = self.rnr_until.is_none()
            && self.slowed_until.is_none()
            && self.store.awaited.is_empty()
            && !matches!(self.probe, Probe::Answered(_))
            && self.withheld_until.is_none()
            && self.replay.is_none()
            && !self.store_was_full;
        if is_steady {
            retransmission
        } else {
            Deadline::earliest(retransmission, self.rarer_deadline(config))
        }
    }

    /// The next moment but for the retransmission timer.
    #[cold]
    fn rarer_deadline(&self, config: &Config) -> Option<Deadline> {
        let answered = match self.probe {
            Probe::Answered(at) => Some(at),
            _ => None,
        };
        let due = [
            (self.rnr_until, "RNR wait"),
            (self.slowed_until, "rate that congestion leaves"),
            (
                self.store.awaited.front().and_then(|awaited| awaited.recover_at),
                "gap in READ responses",
            ),
            (answered, "what a probe's answer means"),
            (self.withheld_until, "withheld pseudo-ACK"),
            (
                self.replay.map(|replay| replay.at + self.replay_patience(config)),
                "responses of a repeated READ",
            ),
            (
                self.refused_at.filter(|_| self.store_was_full).map(|at| at + ROOM_CHECK_EVERY),
                "room in the store",
            ),
        ];
        due.into_iter()
            .filter_map(|(at, reason)| Some(Deadline { at: at?, reason }))
            .reduce(|first, next| if next.at < first.at { next } else { first })
    }

    /// Counts from the last progress, or from when the oldest packet was sent if that was later.
    fn retransmission_due(&self, config: &Config) -> Instant {
        let oldest_sent_at = self.store.entry(0).map_or(Instant::ZERO, |entry| entry.sent_at);
        self.timer_base.max(oldest_sent_at) + self.rtt.timeout(config, self.backoff)
    }

    pub(crate) fn replay_patience(&self, config: &Config) -> Duration {
        self.rtt.patience(config).times(2)
    }

    /// Looks at every timer of the flow.
    pub(crate) fn handle_timeout(&mut self, now: Instant, shared: &mut Shared) {
        if !self.delivers() {
            return;
        }
        if self.replay.is_some_and(|replay| replay.at + self.replay_patience(&shared.config) <= now)
        {
            self.replay = None;
        }
        if self.withheld_until.is_some_and(|at| at <= now) {
            if !self.hold.is_for_responder() {
                self.store.advance_frontier_by(TRICKLE_BYTES);
            }
            self.withheld_until = Some(now + self.ack_hold(shared));
            self.advance_frontier(now, shared);
        }
        if self.store_was_full && self.refused_at.is_some_and(|at| at + ROOM_CHECK_EVERY <= now) {
            self.refused_at = Some(now);
            self.ask_again_if_roomy(shared);
            self.check_refused(now);
        }
        if self
            .store
            .awaited
            .front()
            .and_then(|awaited| awaited.recover_at)
            .is_some_and(|at| at <= now)
        {
            self.resend_front_request(now, shared);
        }
        if self.slowed_until.is_some_and(|at| at <= now) {
            self.slowed_until = None;
        }
        self.judge_answer(now);
        match self.rnr_until {
            Some(at) if at <= now => {
                self.rnr_until = None;
                self.timer_base = now;
            }
            Some(_) => {}
            None => self.check_retransmission_timer(now, shared),
        }
    }

    fn check_retransmission_timer(&mut self, now: Instant, shared: &mut Shared) {
        let due = self.retransmission_due(&shared.config);
        if !self.store.is_outstanding() || self.probe == Probe::Due || due > now {
            return;
        }
        shared.counters.local_ack_timeout_err += 1;
        self.counters.timeouts += 1;
        if self.delivers_remains() {
            return self.insist_on_remains(now, shared);
        }
        if now.since(self.alive_at) >= shared.config.give_up_after {
            return self.pass_one_way(now, shared);
        }
        self.backoff += 1;
        self.timer_base = now;
        self.probe = Probe::Due;
    }

    pub(crate) fn status(&self, config: &Config) -> FlowStatus {
        let passing = self.state == FlowState::Passing;
        // Of a flow that passes only what its requester sent is known.
        let psn = |seq| Psn::from_sequence(if passing { self.lan_next } else { seq });
        FlowStatus {
            key: self.key,
            requester_qpn: self.requester_qpn,
            state: self.state,
            pass_reason: passing.then_some(self.pass_reason),
            mode: self.mode,
            role: config.role,
            learnt: self.learnt,
            path_mtu: self.path_mtu,
            rtt: self.rtt.smoothed(),
            rtt_min: self.rtt.shortest(),
            ack_delay: self.ack_delay,
            rto: self.rtt.timeout(config, self.backoff),
            stored_bytes: self.store.bytes(),
            stored_frames: self.store.len(),
            unsent_frames: self.store.unsent(),
            outstanding_reads: self.store.awaited.len(),
            expected_psn: psn(self.store.end()),
            unacknowledged_psn: psn(self.acked_to),
            undelivered_psn: psn(self.store.responder_next),
            msn: self.msn_after(self.acked_messages),
            responder_msn: self.msn_after(self.responder_messages),
            credits: self.credit_limit.map(|limit| credits_left(limit, self.acked_messages)),
            back_pressure: self.withheld_until.is_some(),
            counters: self.counters,
            drops: self.drops,
        }
    }

    /// Unwraps a PSN near what the requester sends now.
    pub(crate) fn sequence_of(&self, packet: &Packet<'_>) -> u64 {
        packet.psn().unwrap_near(self.store.end()).unwrap_or(0)
    }
}

/// The DSCP of `packet`.
pub(crate) fn dscp(packet: &Packet<'_>) -> u8 {
    packet.traffic_class() >> 2
}

/// Messages that may follow the `messages`th before the responder's credits are used up.
pub(crate) fn credits_left(limit: u64, messages: u64) -> u32 {
    u32::try_from(limit.saturating_sub(messages)).unwrap_or(u32::MAX)
}
