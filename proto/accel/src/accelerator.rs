use crate::config::{Config, ConfigError};
use crate::connections::{Action, Connections};
use crate::flow::{Beginning, Flow, Shared};
use crate::key::{WireKey, vlan};
use crate::learning::Looks;
use crate::question::is_question;
use crate::queue::Queue;
use crate::shares::Shares;
use crate::store::Spare;
use crate::table::FlowTable;
use crate::timers::{SlotId, Timers};
use crate::{Counters, DropReason, FlowKey, FlowState, FlowStatus, Policy, TenantStatus};
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_cc::{JointPacer, JointRate, Pacer, wire_bytes};
use longhaul_node::{Deadline, Frame, FrameBuf, FramePool, Node, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Instant, Qpn};
use longhaul_wire::{Packet, Pause, Transport, Verb};
use std::collections::VecDeque;

/// The side of the requesters that the accelerator answers.
pub const LAN: Side = 0;
/// The side of the long path.
pub const WAN: Side = 1;

/// Bytes of passed frames that wait for a side, above which a neighbour that can wait does so.
const QUEUE_MAX: u64 = 1 << 20;
/// Memory that a frame of a 4 KiB path MTU takes: what one more frame of [`Node::intake`] is
/// counted as.
const FRAME_COST: u64 = FramePool::footprint(4096) as u64;
/// Frames that one source may send before the next has its turn.
const TURN: usize = 16;

/// A transparent box between a LAN and a WAN; see the crate's documentation.
pub struct Accelerator {
    pub(crate) shared: Shared,
    pub(crate) flows: FlowTable,
    connections: Connections,
    timers: Timers,
    /// Flows to which something has happened since their duties were last seen to.
    touched: Vec<SlotId>,
    /// Flows that owe their requester an answer.
    lan_ring: VecDeque<SlotId>,
    /// Flows that have something to send to their responder.
    wan_ring: VecDeque<SlotId>,
    dreqs: VecDeque<HeldDreq>,
    lan_gate: Gate,
    wan_gate: Gate,
    pub(crate) flow_changes: u64,
    flows_turn: bool,
    /// Frames that whoever has the turn may still send.
    turn_left: usize,
}

struct HeldDreq {
    frame: FrameBuf,
    flow: SlotId,
    /// The PSN behind what was delivered when the wait began, or went on.
    delivered_to: u64,
    until: Instant,
}

/// Has the duties and the timer of `flow` seen to when a batch of frames is done changing them.
#[inline]
fn touch(touched: &mut Vec<SlotId>, id: SlotId, flow: &mut Flow) {
    if !flow.queued.is_touched {
        flow.queued.is_touched = true;
        touched.push(id);
    }
}

/// The rates of flows that are told to slow down.
fn dcqcn(config: &Config) -> Dcqcn {
    let rates = config.wan_rate.into_iter().chain(BitRate::from_gbps(100));
    match rates.flat_map(Dcqcn::nvidia).next() {
        Some(dcqcn) => dcqcn,
        None => unreachable!("100 Gbit/s are in its range"),
    }
}

/// A side's rate limit, and when it lets the next frame through if one is waiting.
struct Gate {
    pacing: Pacing,
    waiting_until: Option<Instant>,
}

enum Pacing {
    None,
    Alone(Pacer),
    Joint(JointPacer),
}

impl Gate {
    fn new(rate: Option<BitRate>, joint: Option<&JointRate>, burst_bytes: u64) -> Self {
        let pacing = match (rate, joint) {
            (None, _) => Pacing::None,
            (Some(rate), None) => Pacing::Alone(Pacer::new(rate, burst_bytes)),
            (Some(_), Some(joint)) => Pacing::Joint(JointPacer::new(joint.clone())),
        };
        Gate { pacing, waiting_until: None }
    }

    #[inline]
    fn is_open(&mut self, now: Instant) -> bool {
        let ready = match &self.pacing {
            Pacing::None => return true,
            Pacing::Alone(pacer) => pacer.ready_at(now),
            Pacing::Joint(pacer) => pacer.ready_at(now),
        };
        self.waiting_until = (ready > now).then_some(ready);
        ready <= now
    }

    #[inline]
    fn take(&mut self, now: Instant, bytes: u64) {
        match &mut self.pacing {
            Pacing::None => {}
            Pacing::Alone(pacer) => pacer.take(now, bytes),
            Pacing::Joint(pacer) => pacer.take(now, bytes),
        }
    }
}

impl Accelerator {
    /// An accelerator that knows no flow.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Accelerator {
            flows: FlowTable::new(config.flows_max, config.seed),
            connections: Connections::new(config.connections_max, config.seed),
            timers: Timers::default(),
            touched: Vec::new(),
            lan_ring: VecDeque::new(),
            wan_ring: VecDeque::new(),
            dreqs: VecDeque::new(),
            lan_gate: Gate::new(config.lan_rate, None, config.burst_bytes),
            wan_gate: Gate::new(config.wan_rate, config.wan_joint.as_ref(), config.burst_bytes),
            flow_changes: 0,
            flows_turn: false,
            turn_left: TURN,
            shared: Shared {
                pool: FramePool::new(),
                counters: Counters::default(),
                shares: Shares::new(config.seed),
                spare: Spare::default(),
                draining: false,
                dcqcn: dcqcn(&config),
                to_lan: Queue::new(config.passthrough_bytes_max),
                to_wan: Queue::new(config.passthrough_bytes_max),
                looks: Looks::default(),
                config,
            },
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Goes by `policy` from here on. Flows that are known keep their mode: what was acknowledged
    /// in one cannot be unsaid.
    pub fn set_policy(&mut self, policy: Policy) {
        self.shared.config.policy = policy;
    }

    /// Goes by `config` from here on, or changes nothing. Policy as with
    /// [`Accelerator::set_policy`].
    ///
    /// What is stored stays, whatever the limits: where there is more than they allow, nothing
    /// further is acknowledged or taken in until it is delivered. A timer that is running ends when
    /// it would have.
    ///
    /// # Errors
    /// As [`Config::check_change`].
    pub fn reconfigure(&mut self, config: Config) -> Result<(), ConfigError> {
        let before = &self.shared.config;
        before.check_change(&config)?;
        // A gate whose rate stays keeps account of what has passed.
        let is_same = |one, other| one == other && before.burst_bytes == config.burst_bytes;
        if !is_same(before.lan_rate, config.lan_rate) {
            self.lan_gate = Gate::new(config.lan_rate, None, config.burst_bytes);
        }
        if !is_same(before.wan_rate, config.wan_rate) || before.wan_joint != config.wan_joint {
            self.wan_gate =
                Gate::new(config.wan_rate, config.wan_joint.as_ref(), config.burst_bytes);
        }
        self.shared.dcqcn = dcqcn(&config);
        self.shared.config = config;
        Ok(())
    }

    /// What was done so far.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Memory that the stores of all flows take, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.shared.shares.stored()
    }

    /// A snapshot of each tenant that has flows, in no particular order.
    pub fn tenants(&self) -> impl Iterator<Item = TenantStatus> + '_ {
        self.shared.shares.status(&self.shared.config)
    }

    /// A snapshot of each flow, in no particular order.
    pub fn flows(&self) -> impl Iterator<Item = FlowStatus> + '_ {
        self.flows_from(0).map(|(_, flow)| flow)
    }

    /// A snapshot of each flow in the slots from `first` on, with its slot. A flow keeps its slot
    /// as long as it lives.
    pub fn flows_from(&self, first: u32) -> impl Iterator<Item = (u32, FlowStatus)> + '_ {
        self.flows.from(first).map(|(slot, flow)| (slot, flow.status(&self.shared.config)))
    }

    /// QPNs of each established flow: its responder's, and its requester's once known.
    pub fn established(&self) -> impl Iterator<Item = (Qpn, Option<Qpn>)> + '_ {
        let flows = self
            .flows
            .from(0)
            .map(|(_, flow)| flow)
            .filter(|flow| flow.state != FlowState::Learning);
        flows.map(|flow| (flow.key.responder_qpn, flow.requester_qpn))
    }

    /// How often a flow was established or forgotten: [`Accelerator::established`] differs only
    /// when this does.
    pub fn flow_changes(&self) -> u64 {
        self.flow_changes
    }

    /// A snapshot of one flow.
    pub fn flow(&self, key: &FlowKey) -> Option<FlowStatus> {
        self.flows().find(|flow| flow.key == *key)
    }

    fn handle_roce(&mut self, now: Instant, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) {
        let opcode = packet.opcode();
        match opcode.transport() {
            Transport::Ud if packet.dest_qp() == Qpn::GSI => {
                self.handle_management(now, side, frame, packet)
            }
            Transport::Rc if side == LAN && opcode.is_request() => {
                self.handle_lan_request(now, frame, packet)
            }
            Transport::Rc if side == WAN && opcode.is_response() => {
                self.handle_wan_response(now, frame, packet)
            }
            Transport::Rc if side == WAN && opcode.is_request() => {
                // Of another direction, but from the QP that answers: it shows how its frames look.
                let slot = self.flows.by_requester(WireKey::of_wan_packet(packet));
                if let Some(flow) = slot.and_then(|slot| self.flows.get_mut(slot))
                    && flow.answer.is_deduced()
                    && frame.icrc_is_right_at(&packet.layout())
                {
                    flow.answer.learn_from_responder(packet);
                }
                self.pass(side, frame);
            }
            Transport::Cnp if side == WAN => self.handle_cnp(now, frame, packet),
            _ => self.pass(side, frame),
        }
    }

    /// The network before a responder is congested: both its flow and the requester slow down.
    fn handle_cnp(&mut self, now: Instant, frame: &Frame<'_>, packet: &Packet<'_>) {
        if !self.is_sound(WAN, frame, packet) {
            return;
        }
        let slot = self.flows.by_requester(WireKey::of_wan_packet(packet));
        if let Some(flow) = slot.and_then(|slot| self.flows.get_mut(slot)) {
            flow.handle_cnp(now, &mut self.shared);
        }
        self.pass(WAN, frame);
    }

    pub(crate) fn pass(&mut self, side: Side, frame: &Frame<'_>) {
        self.shared.counters.passed += 1;
        if side == LAN {
            self.shared.pass_to_wan(frame);
        } else {
            self.shared.pass_to_lan(frame);
        }
    }

    /// False when the ICRC is wrong: the frame was passed on for the receiver to judge.
    fn is_sound(&mut self, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) -> bool {
        let sound = frame.icrc_is_right_at(&packet.layout());
        if !sound {
            self.shared.counters.rx_icrc_encapsulated += 1;
            self.pass(side, frame);
        }
        sound
    }

    fn handle_lan_request(&mut self, now: Instant, frame: &Frame<'_>, packet: &Packet<'_>) {
        if !self.is_sound(LAN, frame, packet) {
            return;
        }
        let key = WireKey::of_lan_packet(packet);
        let known = self.flows.by_responder(key);
        if let Some(slot) = known
            && let Some(flow) = self.flows.get_mut(slot)
            && flow.expects(packet)
            && flow.only_stores()
        {
            flow.store_next(now, &mut self.shared, frame, packet);
            return self.touch(slot);
        }
        self.handle_other_request(now, known, frame, packet);
    }

    /// A request that is not the next of a flow in which nothing else is to be done. `known`: by
    /// its addresses and QPN.
    #[inline(never)]
    fn handle_other_request(
        &mut self,
        now: Instant,
        known: Option<u32>,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if is_question(frame, packet) {
            return self.handle_question(known, frame);
        }
        let slot = match known {
            Some(slot) => self.life_of(now, slot, frame, packet),
            None if self.shared.draining => {
                self.shared.counters.passed_draining += 1;
                return self.pass(LAN, frame);
            }
            None => self.watch_new_flow(now, packet),
        };
        let Some(slot) = slot else {
            self.shared.counters.flow_table_full += 1;
            return self.pass(LAN, frame);
        };
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.handle_request(now, &mut self.shared, frame, packet);
        if flow.learning.is_some() {
            self.follow(now, slot);
        }
        self.touch(slot);
    }

    /// Keeps in step what unpaired ACKs are held against, after a request of a flow that is learnt,
    /// and what its responder says.
    pub(crate) fn follow(&mut self, now: Instant, slot: u32) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if let Some(requester) = flow.fail_if_lost(now, &mut self.shared) {
            self.flow_changes += 1;
            return self.flows.pair(slot, requester);
        }
        if std::mem::take(&mut flow.is_unpaired) {
            self.flow_changes += 1;
            self.flows.unpair(slot);
        }
        self.flows.nominate(slot);
    }

    fn watch_new_flow(&mut self, now: Instant, packet: &Packet<'_>) -> Option<u32> {
        let key = FlowKey {
            requester: packet.source_ip(),
            responder: packet.destination_ip(),
            responder_qpn: packet.dest_qp(),
            vlan: vlan(packet).unwrap_or_default(),
        };
        let beginning = Beginning::of_traffic(packet);
        let flow = Flow::new(now, &self.shared.config, key, beginning);
        let slot = self.add_flow(now, flow);
        if slot.is_none() {
            self.note_unfollowed(now, key.pair());
        }
        slot
    }

    pub(crate) fn add_flow(&mut self, now: Instant, flow: Flow) -> Option<u32> {
        let flow = self.admit(now, flow)?;
        self.flows.insert(flow)
    }

    /// Makes room for `flow` if there is none and another one can go, and makes it one of its
    /// tenant's.
    pub(crate) fn admit(&mut self, now: Instant, mut flow: Flow) -> Option<Flow> {
        self.evict(now);
        if !self.flows.has_room() {
            return None;
        }
        self.flow_changes += u64::from(flow.state != FlowState::Learning);
        flow.tenant = self.shared.shares.join(&self.shared.config, flow.key.requester);
        Some(flow)
    }

    fn evict(&mut self, now: Instant) {
        let Some(slot) = self.flows.victim() else { return };
        self.shared.counters.flows_evicted += 1;
        let followed =
            self.flows.get(slot).filter(|flow| flow.learning.is_some() && !flow.is_stray());
        if let Some(pair) = followed.map(|flow| flow.key.pair()) {
            self.note_unfollowed(now, pair);
        }
        self.remove_flow(slot);
    }

    pub(crate) fn remove_flow(&mut self, slot: u32) {
        let Some(mut flow) = self.flows.remove(slot) else { return };
        self.flow_changes += u64::from(flow.state != FlowState::Learning);
        flow.close(&mut self.shared);
        self.shared.shares.leave(flow.tenant);
        if let Some(successor) = flow.lives.successor.filter(|&id| self.flows.is_current(id)) {
            self.flows.take_requests(successor.slot);
        }
    }

    fn handle_wan_response(&mut self, now: Instant, frame: &Frame<'_>, packet: &Packet<'_>) {
        if !self.is_sound(WAN, frame, packet) {
            return;
        }
        let key = WireKey::of_wan_packet(packet);
        let orphan =
            if self.flows.has_orphans() { self.flows.orphan(key, packet.psn()) } else { None };
        if let Some(slot) = orphan.or_else(|| self.flows.by_requester(key)) {
            let Some(mut flow) = self.flows.get_mut(slot) else { return };
            if !flow.is_answered_by(packet) {
                if self.is_for_others(now, slot, frame, packet) {
                    return;
                }
                let Some(again) = self.flows.get_mut(slot) else { return };
                flow = again;
            }
            flow.handle_response(now, &mut self.shared, frame, packet);
            return self.touch(slot);
        }
        self.pass(WAN, frame);
        if packet.opcode().verb() == Some(Verb::Acknowledge) && !self.try_to_pair(now, packet) {
            self.note_asked(now, packet);
        }
    }

    fn handle_management(
        &mut self,
        now: Instant,
        side: Side,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !self.is_sound(side, frame, packet) {
            return;
        }
        let Some(payload) = frame.payload.as_bytes() else { return self.pass(side, frame) };
        match self.connections.handle(side, packet, payload) {
            Action::Pass => {}
            Action::Begin(key, beginning) => {
                self.begin_flow(now, key, beginning);
                self.leave_alternate_path(now, key, beginning);
            }
            Action::Alternate(key, beginning) => {
                self.pass_for_alternate_path(now, key);
                self.leave_alternate_path(now, key, beginning);
            }
            Action::Hold(key) => {
                if self.hold_dreq(now, frame, &key) {
                    return;
                }
            }
            Action::End(key, beginning) => {
                let other = beginning.alternate.map(|addresses| key.on_path(addresses));
                for key in [key].into_iter().chain(other) {
                    self.close_flow(key);
                }
            }
        }
        self.pass(side, frame);
    }

    fn close_flow(&mut self, key: FlowKey) {
        let Some(slot) = self.flows.by_responder(key.wire()) else { return };
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.closing = true;
        }
        self.touch(slot);
    }

    fn begin_flow(&mut self, now: Instant, key: FlowKey, beginning: Beginning) {
        if let Some(slot) = self.flows.by_responder(key.wire()) {
            self.shared.counters.flows_reset += 1;
            self.remove_flow(slot);
        }
        let requester = beginning.requester_qpn.unwrap_or_default();
        if let Some(slot) = self.flows.by_requester(key.to_requester(requester)) {
            self.orphan(slot);
        }
        if self.shared.draining {
            return;
        }
        let mut flow = Flow::new(now, &self.shared.config, key, beginning);
        flow.wan_mark = self.shared.to_wan.mark();
        match self.add_flow(now, flow) {
            Some(_) => self.shared.counters.flows_from_cm += 1,
            None => self.shared.counters.flow_table_full += 1,
        }
    }

    /// True when the DREQ is kept until the flow's store is delivered.
    fn hold_dreq(&mut self, now: Instant, frame: &Frame<'_>, key: &FlowKey) -> bool {
        let Some(slot) = self.flows.by_responder(key.wire()) else { return false };
        let id = self.flows.id(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return false };
        if flow.store.is_empty() || !flow.delivers() {
            return false;
        }
        if flow.dreq_held {
            self.shared.counters.drops.count(DropReason::DreqHeld);
            return true;
        }
        let Some(held) = self.shared.hold(frame) else { return true };
        flow.dreq_held = true;
        let until = now + self.shared.config.dreq_hold_max;
        let delivered_to = flow.store.responder_next;
        self.dreqs.push_back(HeldDreq { frame: held, flow: id, delivered_to, until });
        self.shared.counters.dreqs_held += 1;
        true
    }

    /// Forwards the DREQs whose flow is delivered, or has delivered nothing within
    /// [`Config::dreq_hold_max`].
    fn release_dreqs(&mut self, now: Option<Instant>) {
        let mut extended = VecDeque::new();
        for _ in 0..self.dreqs.len() {
            let Some(mut held) = self.dreqs.pop_front() else { break };
            let flow = self
                .flows
                .is_current(held.flow)
                .then(|| self.flows.get_mut(held.flow.slot))
                .flatten();
            let Some(flow) = flow else {
                self.shared.queue_to_wan(held.frame);
                continue;
            };
            let is_owed = !flow.store.is_empty() && flow.delivers();
            match now.filter(|&now| held.until <= now) {
                None if is_owed => self.dreqs.push_back(held),
                Some(now) if is_owed && flow.store.responder_next > held.delivered_to => {
                    held.delivered_to = flow.store.responder_next;
                    held.until = now + self.shared.config.dreq_hold_max;
                    extended.push_back(held);
                }
                _ => {
                    flow.dreq_held = false;
                    self.shared.queue_to_wan(held.frame);
                }
            }
        }
        self.dreqs.append(&mut extended);
    }

    /// After anything happened to the flow: its duties are seen to later.
    #[inline]
    pub(crate) fn touch(&mut self, slot: u32) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if !flow.queued.is_touched {
            flow.queued.is_touched = true;
            self.touched.push(self.flows.id(slot));
        }
    }

    /// Sees to the duties of all flows to which something has happened.
    pub(crate) fn settle_touched(&mut self) {
        for at in 0..self.touched.len() {
            let id = self.touched[at];
            if self.flows.is_current(id) {
                self.settle(id.slot);
            }
        }
    }

    /// Puts the flow where its duties are seen to.
    fn settle(&mut self, slot: u32) {
        let id = self.flows.id(slot);
        let Some(flow) = self.flows.get_mut(slot) else { return };
        flow.step_aside_if_draining(&mut self.shared);
        if !flow.queued.in_lan_ring && flow.owes_requester() {
            flow.queued.in_lan_ring = true;
            self.lan_ring.push_back(id);
        }
        if !flow.queued.in_wan_ring && flow.owes_responder() {
            flow.queued.in_wan_ring = true;
            self.wan_ring.push_back(id);
        }
        touch(&mut self.touched, id, flow);
        let (delivered, closing) = (flow.store.is_empty(), flow.closing);
        let has_successor = flow.lives.successor.is_some();
        if flow.dreq_held && (delivered || !flow.delivers()) {
            self.release_dreqs(None);
        }
        if delivered && (closing || has_successor) {
            self.remove_flow(slot);
        }
    }

    fn transmit_to_lan(&mut self, now: Instant, out: &mut dyn Transmit) {
        let mut room = out.room(LAN);
        self.lan_gate.waiting_until = None;
        while room > 0
            && !(self.lan_ring.is_empty() && self.shared.to_lan.is_empty())
            && self.lan_gate.is_open(now)
        {
            let sent = match self.answer_next(now, out) {
                Some(sent) => sent,
                None => match self.shared.to_lan.pop() {
                    Some(frame) => {
                        out.transmit_held(LAN, &frame);
                        wire_bytes(frame.len())
                    }
                    None => break,
                },
            };
            if sent > 0 {
                self.lan_gate.take(now, sent);
                self.shared.counters.lan_frames_out += 1;
                room -= 1;
            }
        }
    }

    /// Answers the first requester that is owed an answer. `None` when there is none, or when a
    /// frame that must not be overtaken has to leave before; `Some(0)` when the debt was void.
    fn answer_next(&mut self, now: Instant, out: &mut dyn Transmit) -> Option<u64> {
        let &id = self.lan_ring.front()?;
        let current = self.flows.is_current(id);
        let flow = current.then(|| self.flows.get_mut(id.slot)).flatten();
        let Some(flow) = flow else {
            self.lan_ring.pop_front();
            return Some(0);
        };
        if !self.shared.to_lan.has_passed(flow.lan_mark) {
            return None;
        }
        self.lan_ring.pop_front();
        flow.queued.in_lan_ring = false;
        let mut bytes = 0;
        if flow.owes_requester() {
            flow.answer_requester(now, &mut self.shared, |frame| {
                out.transmit(LAN, frame);
                bytes = wire_bytes(frame.len());
            });
            if self.shared.draining {
                // Its last debt may be paid.
                self.settle(id.slot);
            }
        }
        Some(bytes)
    }

    fn transmit_to_wan(&mut self, now: Instant, out: &mut dyn Transmit) {
        let mut room = out.room(WAN);
        self.wan_gate.waiting_until = None;
        while !(self.wan_ring.is_empty() && self.shared.to_wan.is_empty()) {
            let most = room.min(self.turn_left);
            let sent = if self.flows_turn {
                self.send_stored(now, out, most)
            } else {
                self.send_passed(now, out, most)
            };
            self.shared.counters.wan_frames_out += sent as u64;
            room -= sent;
            self.turn_left -= sent;
            if self.turn_left > 0 && (room == 0 || !self.wan_gate.is_open(now)) {
                return;
            }
            if self.flows_turn {
                self.next_flow();
            }
            self.flows_turn = !self.flows_turn;
            self.turn_left = TURN;
        }
    }

    /// Sends frames that are passed on, so many at most. Returns how many.
    fn send_passed(&mut self, now: Instant, out: &mut dyn Transmit, most: usize) -> usize {
        let mut sent = 0;
        while sent < most && self.wan_gate.is_open(now) {
            let Some(frame) = self.shared.to_wan.pop() else { break };
            out.transmit_held(WAN, &frame);
            self.wan_gate.take(now, wire_bytes(frame.len()));
            sent += 1;
        }
        sent
    }

    /// Sends stored packets of the flow whose turn it is, so many at most. Returns how many.
    fn send_stored(&mut self, now: Instant, out: &mut dyn Transmit, most: usize) -> usize {
        let Some(&id) = self.wan_ring.front() else { return 0 };
        let flow = self.flows.is_current(id).then(|| self.flows.get_mut(id.slot)).flatten();
        let Some(flow) = flow.filter(|flow| self.shared.to_wan.has_passed(flow.wan_mark)) else {
            return 0;
        };
        let mut sent = 0;
        while sent < most
            && self.wan_gate.is_open(now)
            && flow.owes_responder()
            && !flow.is_held_back(now, &self.shared)
        {
            let bytes = flow.send_next(now, &mut self.shared, out);
            let Some(bytes) = bytes else { break };
            self.wan_gate.take(now, bytes);
            sent += 1;
        }
        touch(&mut self.touched, id, flow);
        sent
    }

    /// Sets timers: once for all that a batch of frames did to a flow.
    fn arm(&mut self) {
        for id in self.touched.drain(..) {
            let flow = self.flows.is_current(id).then(|| self.flows.get_mut(id.slot)).flatten();
            if let Some(flow) = flow {
                flow.queued.is_touched = false;
                let at = flow.deadline(&self.shared.config).map(|deadline| deadline.at);
                flow.armed = self.timers.arm(id, flow.armed, at);
            }
        }
    }

    /// Ends the turn of the first flow; it stays in the ring if it has more to send.
    fn next_flow(&mut self) {
        let Some(id) = self.wan_ring.pop_front() else { return };
        if !self.flows.is_current(id) {
            return;
        }
        let Some(flow) = self.flows.get_mut(id.slot) else { return };
        if flow.owes_responder() {
            self.wan_ring.push_back(id);
        } else {
            flow.queued.in_wan_ring = false;
        }
    }
}

impl Node for Accelerator {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        let len = frame.len() as u64;
        let counters = &mut self.shared.counters;
        if side == LAN {
            counters.lan_frames_in += 1;
            counters.lan_bytes_in += len;
        } else {
            counters.wan_frames_in += 1;
            counters.wan_bytes_in += len;
        }
        match Packet::parse(frame.head) {
            Ok(Some(packet)) if frame.trailer != Trailer::None => match vlan(&packet) {
                Some(_) => self.handle_roce(now, side, frame, &packet),
                None => self.pass(side, frame),
            },
            Ok(None) if Pause::is_mac_control(frame.head) => {
                self.shared.counters.drops.count(DropReason::MacControl);
            }
            Ok(None) => self.pass(side, frame),
            // A frame taken as opaque although it looks like RoCEv2 is one whose lengths are wrong.
            Ok(Some(_)) | Err(_) => {
                self.shared.counters.malformed += 1;
                self.pass(side, frame);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.settle_touched();
        self.arm();
        while let Some((at, id)) = self.timers.pop_due(now) {
            if !self.flows.is_current(id) {
                continue;
            }
            let Some(flow) = self.flows.get_mut(id.slot) else { continue };
            if flow.armed != Some(at) {
                continue;
            }
            flow.armed = None;
            flow.handle_timeout(now, &mut self.shared);
            self.touch(id.slot);
        }
        let flows = &self.flows;
        self.timers.tidy(flows.len(), |id, at| {
            flows.is_current(id) && flows.get(id.slot).is_some_and(|flow| flow.armed == Some(at))
        });
        if self.dreqs.front().is_some_and(|held| held.until <= now) {
            self.release_dreqs(Some(now));
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.settle_touched();
        self.transmit_to_lan(now, out);
        self.transmit_to_wan(now, out);
        self.arm();
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let deadline = |id: SlotId| {
            let flow = self.flows.is_current(id).then(|| self.flows.get(id.slot)).flatten();
            flow.and_then(|flow| flow.deadline(&self.shared.config))
        };
        let armed = self.timers.next().map(|(at, id)| Deadline {
            at,
            reason: deadline(id).map_or("stale timer", |due| due.reason),
        });
        let flow =
            self.touched.iter().fold(armed, |first, id| Deadline::earliest(first, deadline(*id)));
        let gate = |gate: &Gate, reason| gate.waiting_until.map(|at| Deadline { at, reason });
        let pacing = Deadline::earliest(
            gate(&self.wan_gate, "WAN pacing"),
            gate(&self.lan_gate, "LAN pacing"),
        );
        let dreq = self.dreqs.front().map(|held| Deadline { at: held.until, reason: "held DREQ" });
        Deadline::earliest(Deadline::earliest(flow, pacing), dreq)
    }

    fn intake(&self, side: Side) -> usize {
        let queue = if side == LAN { &self.shared.to_wan } else { &self.shared.to_lan };
        let free =
            QUEUE_MAX.min(self.shared.config.passthrough_bytes_max).saturating_sub(queue.bytes());
        usize::try_from(free / FRAME_COST).unwrap_or(usize::MAX)
    }
}
