//! Transmission order of an accelerator: passed-through frames, pseudo-ACKs and stored packets.

use crate::Config;
use crate::accelerator::{Accelerator, LAN, WAN};
use crate::flow::Flow;
use crate::timers::SlotId;
use longhaul_cc::{Gate, wire_bytes};
use longhaul_node::{Deadline, Side, Transmit, Turns};
use longhaul_units::Instant;
use std::collections::VecDeque;

/// Round-robin quantum of a flow, in frames.
const QUANTUM: usize = 16;

/// Transmission queues of each side.
pub(crate) struct Output {
    /// Flows that owe their requester a packet.
    lan_ring: VecDeque<SlotId>,
    /// Flows that have a packet for their responder.
    wan_ring: VecDeque<SlotId>,
    lan_gate: Gate,
    wan_gate: Gate,
    /// Turns of passed-through frames and of stored packets on the WAN side.
    turns: Turns,
    /// Frames left in the quantum of the first flow of the WAN ring.
    flow_left: usize,
}

/// Class of passed-through frames in [`Output::turns`].
const PASSED: usize = 0;

fn lan_gate(config: &Config) -> Gate {
    Gate::new(&config.lan_pacing, config.burst_bytes)
}

fn wan_gate(config: &Config) -> Gate {
    Gate::new(&config.wan_pacing, config.burst_bytes)
}

impl Output {
    pub(crate) fn new(config: &Config) -> Self {
        Output {
            lan_ring: VecDeque::new(),
            wan_ring: VecDeque::new(),
            lan_gate: lan_gate(config),
            wan_gate: wan_gate(config),
            turns: Turns::default(),
            flow_left: QUANTUM,
        }
    }

    /// Replaces the gates whose rate differs in `config`; the others keep their state.
    pub(crate) fn reconfigure(&mut self, before: &Config, config: &Config) {
        let is_same_burst = before.burst_bytes == config.burst_bytes;
        if !is_same_burst || before.lan_pacing != config.lan_pacing {
            self.lan_gate = lan_gate(config);
        }
        if !is_same_burst || before.wan_pacing != config.wan_pacing {
            self.wan_gate = wan_gate(config);
        }
    }

    /// Adds `flow` to the ring of each side to which it has a packet to send.
    pub(crate) fn enqueue(&mut self, id: SlotId, flow: &mut Flow) {
        if !flow.bookkeeping.in_lan_ring && flow.owes_requester() {
            flow.bookkeeping.in_lan_ring = true;
            self.lan_ring.push_back(id);
        }
        if !flow.bookkeeping.in_wan_ring && flow.owes_responder() {
            flow.bookkeeping.in_wan_ring = true;
            self.wan_ring.push_back(id);
        }
    }

    /// When the next waiting frame may leave under its side's rate limit.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        let deadline = |gate: &Gate, reason| gate.waiting_until().map(|at| Deadline { at, reason });
        Deadline::earliest(
            deadline(&self.wan_gate, "WAN pacing"),
            deadline(&self.lan_gate, "LAN pacing"),
        )
    }
}

impl Accelerator {
    pub(crate) fn transmit_to_lan(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.output.lan_gate.stop_waiting();
        self.send_other(now, LAN, out);
        let mut room = out.room(LAN);
        while room > 0
            && !(self.output.lan_ring.is_empty() && self.shared.to_lan.is_empty())
            && self.output.lan_gate.is_open(now)
        {
            let sent = match self.answer_next(now, out) {
                Some(sent) => sent,
                None => match self.shared.to_lan.pop(now) {
                    Some(frame) => {
                        frame.transmit(LAN, out);
                        wire_bytes(frame.frame_len())
                    }
                    None => break,
                },
            };
            if sent > 0 {
                self.output.lan_gate.take(now, sent);
                self.shared.counters.lan_frames_out += 1;
                room -= 1;
            }
        }
    }

    /// Answers the first requester in the ring. `None` if there is none, or if a frame must leave
    /// first; `Some(0)` if the flow owes nothing any more.
    fn answer_next(&mut self, now: Instant, out: &mut dyn Transmit) -> Option<u64> {
        let &id = self.output.lan_ring.front()?;
        let Some(flow) = self.flows.current_mut(id) else {
            self.output.lan_ring.pop_front();
            return Some(0);
        };
        if !flow.may_answer(&self.shared) {
            return None;
        }
        self.output.lan_ring.pop_front();
        flow.bookkeeping.in_lan_ring = false;
        let mut bytes = 0;
        if flow.owes_requester() {
            flow.answer_requester(now, &mut self.shared, |frame| {
                out.transmit(LAN, frame);
                bytes = wire_bytes(frame.len());
            });
            if self.shared.draining {
                // The flow may owe nothing any more.
                self.settle(id.slot);
            }
        }
        Some(bytes)
    }

    pub(crate) fn transmit_to_wan(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.output.wan_gate.stop_waiting();
        self.send_other(now, WAN, out);
        let mut room = out.room(WAN);
        loop {
            let ready = [!self.shared.to_wan.is_empty(), !self.output.wan_ring.is_empty()];
            let Some(class) = self.output.turns.choose(ready) else { return };
            let sent = if class == PASSED {
                self.send_passed(now, out, room)
            } else {
                let most = room.min(self.output.flow_left);
                let sent = self.send_stored(now, out, most);
                self.output.flow_left -= sent;
                // A flow whose packets follow passed-through frames waits for these.
                if sent == 0 { self.send_passed(now, out, room.min(1)) } else { sent }
            };
            self.shared.counters.wan_frames_out += sent as u64;
            room -= sent;
            let is_blocked = room == 0 || !self.output.wan_gate.is_open(now);
            if class != PASSED && (self.output.flow_left == 0 || !is_blocked) {
                self.next_flow();
            }
            if is_blocked {
                return;
            }
        }
    }

    /// Sends the frames to `side` that are not RoCEv2 if only RoCEv2 is held back there.
    fn send_other(&mut self, now: Instant, side: Side, out: &mut dyn Transmit) {
        let (queue, gate, sent) = if side == WAN {
            let sent = &mut self.shared.counters.wan_frames_out;
            (&mut self.shared.to_wan, &mut self.output.wan_gate, sent)
        } else {
            let sent = &mut self.shared.counters.lan_frames_out;
            (&mut self.shared.to_lan, &mut self.output.lan_gate, sent)
        };
        if !queue.has_other() {
            return;
        }
        let mut room = out.other_room(side);
        if room <= out.room(side) {
            return;
        }
        while room > 0
            && gate.is_open(now)
            && let Some(frame) = queue.pop_other(now)
        {
            frame.transmit(side, out);
            gate.take(now, wire_bytes(frame.frame_len()));
            *sent += 1;
            room -= 1;
        }
    }

    /// Sends up to `most` passed-through frames of one turn. Returns their number.
    fn send_passed(&mut self, now: Instant, out: &mut dyn Transmit, most: usize) -> usize {
        let mut sent = 0;
        while sent < most && self.output.wan_gate.is_open(now) {
            let Some(frame) = self.shared.to_wan.pop(now) else { break };
            frame.transmit(WAN, out);
            let bytes = wire_bytes(frame.frame_len());
            self.output.wan_gate.take(now, bytes);
            self.output.turns.take(bytes);
            sent += 1;
            if self.output.turns.left() == 0 {
                break;
            }
        }
        sent
    }

    /// Sends up to `most` stored packets of the first flow. Returns their number.
    fn send_stored(&mut self, now: Instant, out: &mut dyn Transmit, most: usize) -> usize {
        let Some(&id) = self.output.wan_ring.front() else { return 0 };
        let Some(flow) = self.flows.current_mut(id) else { return 0 };
        if !flow.may_deliver(&self.shared) {
            return 0;
        }
        let mut sent = 0;
        while sent < most
            && self.output.wan_gate.is_open(now)
            && flow.owes_responder()
            && !flow.is_held_back(now, &self.shared)
        {
            let bytes = flow.send_next(now, &mut self.shared, out);
            let Some(bytes) = bytes else { break };
            self.output.wan_gate.take(now, bytes);
            self.output.turns.take(bytes);
            sent += 1;
        }
        self.touched.add(id, flow);
        sent
    }

    /// Ends the turn of the first flow, which stays in the ring if it has more to send.
    fn next_flow(&mut self) {
        self.output.flow_left = QUANTUM;
        let Some(id) = self.output.wan_ring.pop_front() else { return };
        let Some(flow) = self.flows.current_mut(id) else { return };
        if flow.owes_responder() {
            self.output.wan_ring.push_back(id);
        } else {
            flow.bookkeeping.in_wan_ring = false;
        }
    }
}
