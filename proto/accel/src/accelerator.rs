//! The accelerator: finds the flow of a frame, and decides when flows are processed.

use crate::config::{Config, ConfigError};
use crate::connections::Connections;
use crate::departures::Departures;
use crate::flow::{Beginning, Flow};
use crate::key::{WireKey, vlan};
use crate::output::Output;
use crate::question::is_question;
use crate::shared::AccelShared;
use crate::table::FlowTable;
use crate::timers::{SlotId, Timers, Touched};
use crate::{Advised, Counters, DropReason, FlowKey, FlowStatus, Policy, TenantStatus};
use longhaul_node::{Deadline, Frame, Node, Side, Trailer, Transmit};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::{Packet, Pause, Transport, Verb};

/// The side of the requesters that the accelerator serves.
pub const LAN: Side = 0;
/// The side of the long path.
pub const WAN: Side = 1;

/// Bytes queued for a side above which the accelerator exerts back-pressure.
const QUEUE_MAX: u64 = 1 << 20;
/// Payload bytes of the frames that [`Node::intake`] counts.
const INTAKE_PAYLOAD: usize = 4096;

/// A transparent box between a LAN and a WAN; see the crate's documentation.
pub struct Accelerator {
    pub(crate) shared: AccelShared,
    pub(crate) flows: FlowTable,
    pub(crate) connections: Connections,
    pub(crate) output: Output,
    pub(crate) touched: Touched,
    timers: Timers,
    pub(crate) departures: Departures,
    pub(crate) flow_changes: u64,
}

impl Accelerator {
    /// Creates an accelerator without flows.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Accelerator {
            flows: FlowTable::new(config.flows_max, config.seed),
            connections: Connections::new(config.connections_max, config.seed),
            output: Output::new(&config),
            touched: Touched::default(),
            timers: Timers::default(),
            departures: Departures::default(),
            flow_changes: 0,
            shared: AccelShared::new(config),
        })
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Applies `policy` to flows learnt from here on. Known flows keep their mode, because a
    /// completion cannot be withdrawn.
    pub fn set_policy(&mut self, policy: Policy) {
        self.shared.config.policy = policy;
    }

    /// Applies `config`, or changes nothing on an error. Its policy applies as in
    /// [`Accelerator::set_policy`].
    ///
    /// Lowering a limit never evicts stored packets; the box stops acknowledging and storing new
    /// ones until usage falls below it. A running timer keeps its deadline.
    ///
    /// # Errors
    /// As [`Config::check_change`].
    pub fn reconfigure(&mut self, config: Config) -> Result<(), ConfigError> {
        self.shared.config.check_change(&config)?;
        self.output.reconfigure(&self.shared.config, &config);
        self.shared.reconfigure(config);
        Ok(())
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What flows have revealed about the settings of their hosts, in the order of its discovery;
    /// only grows.
    pub fn advice(&self) -> &[Advised] {
        self.shared.advices.all()
    }

    /// Bytes of memory in use by the stores of all flows.
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
    /// until it is removed.
    pub fn flows_from(&self, first: u32) -> impl Iterator<Item = (u32, FlowStatus)> + '_ {
        self.flows.from(first).map(|(slot, flow)| (slot, flow.status(&self.shared.config)))
    }

    /// QPNs of each established flow: the responder's, and the requester's if known.
    pub fn established(&self) -> impl Iterator<Item = (Qpn, Option<Qpn>)> + '_ {
        let flows = self.flows.from(0).map(|(_, flow)| flow).filter(|flow| !flow.is_learning());
        flows.map(|flow| (flow.key().responder_qpn, flow.requester_qpn()))
    }

    /// Number of times that a flow was established or removed. [`Accelerator::established`] changes
    /// only when this number does.
    pub fn flow_changes(&self) -> u64 {
        self.flow_changes
    }

    /// A snapshot of one flow.
    pub fn flow(&self, key: &FlowKey) -> Option<FlowStatus> {
        self.flows().find(|flow| flow.key == *key)
    }

    fn handle_roce(&mut self, now: Instant, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) {
        let opcode = packet.opcode();
        if packet.version() != 0 {
            return self.handle_unknown_version(now, side, frame, packet);
        }
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
                // A request of the opposite direction, from the responder's QP: shows the format of
                // its frames.
                let slot = self.flows.by_requester(WireKey::of_wan_packet(packet));
                if let Some(flow) = slot.and_then(|slot| self.flows.get_mut(slot)) {
                    flow.learn_answer(frame, packet);
                }
                self.pass(side, frame);
            }
            Transport::Cnp if side == WAN => self.handle_cnp(now, frame, packet),
            Transport::Rc if side == LAN && opcode.verb().is_none() => {
                self.handle_unknown_request(now, frame, packet)
            }
            _ => self.pass(side, frame),
        }
    }

    /// Handles an RC packet from the LAN whose opcode or version is unknown. It takes PSNs, so that
    /// the flow that it belongs to cannot be terminated any more: it passes, with this packet.
    #[cold]
    fn handle_unknown_request(&mut self, now: Instant, frame: &Frame<'_>, packet: &Packet<'_>) {
        let known = self.flows.by_responder(WireKey::of_lan_packet(packet));
        let Some(slot) = known else { return self.pass(LAN, frame) };
        if !self.is_sound(LAN, frame, packet) {
            return;
        }
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.pass_for_unknown_opcode(now, &mut self.shared);
            flow.handle_request(now, &mut self.shared, frame, packet);
        }
        self.touch(slot);
    }

    /// Handles a packet with a version of the BTH that the box does not know, which its receiver
    /// drops. A request takes PSNs, as one with an unknown opcode does.
    #[cold]
    fn handle_unknown_version(
        &mut self,
        now: Instant,
        side: Side,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.shared.counters.versions_unknown += 1;
        let opcode = packet.opcode();
        match opcode.transport() {
            Transport::Rc if side == LAN && !opcode.is_response() => {
                self.handle_unknown_request(now, frame, packet)
            }
            _ => self.pass(side, frame),
        }
    }

    /// Handles a CNP: the flow and its requester both slow down.
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

    /// As [`Accelerator::pass`], for a frame that is not RoCEv2.
    fn pass_other(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.shared.counters.passed += 1;
        self.shared.pass_other(now, side, frame);
    }

    /// Returns `false` if the ICRC or a checksum is wrong; the frame is still forwarded, so that
    /// the receiver drops it.
    #[inline(always)]
    pub(crate) fn is_sound(&mut self, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) -> bool {
        let is_sound = frame.is_intact_at(&packet.layout());
        if !is_sound {
            self.pass_unsound(side, frame, packet);
        }
        is_sound
    }

    #[cold]
    fn pass_unsound(&mut self, side: Side, frame: &Frame<'_>, packet: &Packet<'_>) {
        let counters = &mut self.shared.counters;
        if frame.icrc_is_right_at(&packet.layout()) {
            counters.rx_checksum_wrong += 1;
        } else {
            counters.rx_icrc_encapsulated += 1;
        }
        self.pass(side, frame);
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

    /// Handles a request that needs more than storing. `known`: the flow with its addresses and
    /// QPN.
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
        if flow.learning().is_some() {
            self.follow(now, slot);
        }
        self.touch(slot);
    }

    /// Updates the candidate entry of a flow that is being learnt, after a request of the flow or
    /// an answer of its responder.
    pub(crate) fn follow(&mut self, now: Instant, slot: u32) {
        let Some(flow) = self.flows.get_mut(slot) else { return };
        if let Some(requester) = flow.fail_if_lost(now, &mut self.shared) {
            self.flow_changes += 1;
            return self.flows.pair(slot, requester);
        }
        if flow.takes_unpairing() {
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

    /// Evicts a flow if the table is full, and adds `flow` to its tenant. Returns `None` if no flow
    /// can be evicted.
    pub(crate) fn admit(&mut self, now: Instant, mut flow: Flow) -> Option<Flow> {
        self.evict(now);
        if !self.flows.has_room() {
            return None;
        }
        self.flow_changes += u64::from(!flow.is_learning());
        flow.join(self.shared.shares.join(&self.shared.config, flow.key().requester));
        Some(flow)
    }

    fn evict(&mut self, now: Instant) {
        let Some(slot) = self.flows.victim() else { return };
        self.shared.counters.flows_evicted += 1;
        let followed =
            self.flows.get(slot).filter(|flow| flow.learning().is_some() && !flow.is_stray());
        if let Some(pair) = followed.map(|flow| flow.key().pair()) {
            self.note_unfollowed(now, pair);
        }
        self.remove_flow(slot);
    }

    pub(crate) fn remove_flow(&mut self, slot: u32) {
        let id = self.flows.id(slot);
        let Some(mut flow) = self.flows.remove(slot) else { return };
        if flow.bookkeeping.is_departing {
            self.end_departure(id);
        }
        self.flow_changes += u64::from(!flow.is_learning());
        flow.close(&mut self.shared);
        self.shared.shares.leave(flow.tenant());
        if let Some(successor) = flow.successor().filter(|&id| self.flows.is_current(id)) {
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

    /// Queues the flow in `slot` for processing (duties, timers) at the end of the batch.
    #[inline]
    pub(crate) fn touch(&mut self, slot: u32) {
        if let Some((id, flow)) = self.flows.identified(slot) {
            self.touched.add(id, flow);
        }
    }

    /// Processes the duties of all touched flows.
    pub(crate) fn settle_touched(&mut self) {
        let mut next = 0;
        while let Some(id) = self.touched.get(next) {
            if self.flows.is_current(id) {
                self.settle(id.slot);
            }
            next += 1;
        }
    }

    /// Queues the packets that the flow in `slot` owes, and removes the flow if it has ended.
    pub(crate) fn settle(&mut self, slot: u32) {
        let Some((id, flow)) = self.flows.identified(slot) else { return };
        flow.step_aside_if_draining(&mut self.shared);
        self.output.enqueue(id, flow);
        self.touched.add(id, flow);
        let (delivered, closing) = (flow.is_delivered(), flow.bookkeeping.is_closing);
        let has_successor = flow.successor().is_some();
        if flow.bookkeeping.is_departing && (delivered || !flow.delivers()) {
            self.end_departure(id);
        }
        if delivered && (closing || has_successor) {
            self.remove_flow(slot);
        }
    }

    /// Arms the timers of touched flows, once per batch of frames.
    fn arm(&mut self) {
        for id in self.touched.drain() {
            if let Some(flow) = self.flows.current_mut(id) {
                flow.bookkeeping.is_touched = false;
                let at = flow.deadline(&self.shared.config).map(|deadline| deadline.at);
                flow.bookkeeping.armed = self.timers.arm(id, flow.bookkeeping.armed, at);
            }
        }
    }
}

impl std::fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accelerator").field("counters", self.counters()).finish_non_exhaustive()
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
            Ok(None) => self.pass_other(now, side, frame),
            // RoCEv2 with wrong lengths is opaque to the frame layer.
            Ok(Some(_)) | Err(_) => {
                self.shared.counters.malformed += 1;
                self.pass_other(now, side, frame);
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.settle_touched();
        self.arm();
        while let Some((at, id)) = self.timers.pop_due(now) {
            let Some(flow) = self.flows.current_mut(id) else { continue };
            if flow.bookkeeping.armed != Some(at) {
                continue;
            }
            flow.bookkeeping.armed = None;
            flow.handle_timeout(now, &mut self.shared);
            self.touch(id.slot);
        }
        let flows = &self.flows;
        self.timers.tidy(flows.len(), |id, at| {
            flows.current(id).is_some_and(|flow| flow.bookkeeping.armed == Some(at))
        });
        self.expire_departures(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.settle_touched();
        self.transmit_to_lan(now, out);
        self.transmit_to_wan(now, out);
        self.shared.count_late();
        self.arm();
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let deadline = |id: SlotId| self.flows.current(id)?.deadline(&self.shared.config);
        let armed = self.timers.next().map(|(at, id)| Deadline {
            at,
            reason: deadline(id).map_or("stale timer", |due| due.reason),
        });
        let flow =
            self.touched.iter().fold(armed, |first, id| Deadline::earliest(first, deadline(id)));
        let first = Deadline::earliest(flow, self.output.deadline());
        Deadline::earliest(first, self.departures.deadline())
    }

    fn intake(&self, side: Side) -> usize {
        let queue = if side == LAN { &self.shared.to_wan } else { &self.shared.to_lan };
        queue.room(INTAKE_PAYLOAD, QUEUE_MAX)
    }

    fn other_intake(&self, _side: Side) -> usize {
        usize::MAX
    }
}
