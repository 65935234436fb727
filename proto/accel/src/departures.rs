//! Flows whose requesters disconnect before everything that was acknowledged to them is delivered,
//! and the messages of the connection manager that wait for it.
//!
//! The DREQ waits, so that the responder does not end the connection. So does a REP to the
//! requester's host: what the host requests over a later connection must not overtake what it
//! requested over this one. A storage host repeats over its next connection the writes that it
//! gave up, and writes the same blocks anew.

use crate::accelerator::{Accelerator, WAN};
use crate::flow::Flow;
use crate::key::vlan;
use crate::timers::SlotId;
use crate::{DropReason, FlowKey};
use longhaul_node::{Deadline, Frame, FrameBuf, Side};
use longhaul_units::Instant;
use longhaul_wire::Packet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A requester, a responder and their VLAN.
type Hosts = (IpAddr, IpAddr, u16);

/// A flow whose requester disconnects.
struct Departure {
    hosts: Hosts,
    /// Until it is forwarded.
    dreq: Option<FrameBuf>,
    /// The PSN behind the last delivered packet at the start, or at the last extension, of the
    /// wait.
    delivered_to: u64,
    /// `None` if nothing waits.
    until: Option<Instant>,
}

/// All departures.
#[derive(Default)]
pub(crate) struct Departures {
    all: BTreeMap<SlotId, Departure>,
    /// REPs that wait for all departures between their hosts.
    reps: BTreeMap<Hosts, Vec<FrameBuf>>,
    /// When messages have waited long enough.
    deadlines: BTreeSet<(Instant, SlotId)>,
}

impl Departures {
    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.deadlines.first().map(|&(at, _)| Deadline { at, reason: "departure" })
    }

    /// Lets the messages of `flow` wait until `until`.
    fn wait(&mut self, flow: SlotId, delivered_to: u64, until: Option<Instant>) {
        let Some(departure) = self.all.get_mut(&flow) else { return };
        departure.delivered_to = delivered_to;
        if let Some(before) = std::mem::replace(&mut departure.until, until) {
            self.deadlines.remove(&(before, flow));
        }
        self.deadlines.extend(until.map(|until| (until, flow)));
    }

    fn remove(&mut self, flow: SlotId) -> Option<Departure> {
        let departure = self.all.remove(&flow)?;
        if let Some(until) = departure.until {
            self.deadlines.remove(&(until, flow));
        }
        Some(departure)
    }
}

/// True if something that was acknowledged to the requester is not delivered.
fn is_owed(flow: &Flow) -> bool {
    !flow.is_delivered() && flow.delivers()
}

impl Accelerator {
    /// Holds a DREQ of the LAN while its flow is owed. Returns `false` if it is not held.
    pub(crate) fn hold_dreq(&mut self, now: Instant, frame: &Frame<'_>, key: &FlowKey) -> bool {
        let Some(slot) = self.flows.by_responder(key.wire()) else { return false };
        let Some((id, flow)) = self.flows.identified(slot) else { return false };
        if !is_owed(flow) {
            return false;
        }
        if self.departures.all.get(&id).is_some_and(|departure| departure.dreq.is_some()) {
            self.shared.counters.drops.count(DropReason::DreqHeld);
            return true;
        }
        let Some(dreq) = self.shared.hold(frame) else { return true };
        flow.bookkeeping.is_departing = true;
        let delivered_to = flow.delivered_to();
        let departure = self.departures.all.entry(id).or_insert_with(|| Departure {
            hosts: (key.requester, key.responder, key.vlan),
            dreq: None,
            delivered_to,
            until: None,
        });
        departure.dreq = Some(dreq);
        let until = now + self.shared.config.dreq_hold_max;
        self.departures.wait(id, delivered_to, Some(until));
        self.shared.counters.dreqs_held += 1;
        true
    }

    /// Holds a REP to the LAN while departed flows between the same hosts are owed. Returns `false`
    /// if it is not held.
    ///
    /// It shows that the path and the responder's host are there, so everything is sent again.
    pub(crate) fn hold_rep(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(vlan) = vlan(packet) else { return false };
        let hosts = (packet.destination_ip(), packet.source_ip(), vlan);
        let owed: Vec<SlotId> = self.owed_between(hosts).collect();
        if owed.is_empty() {
            return false;
        }
        let Some(rep) = self.shared.hold(frame) else { return true };
        let reps = self.departures.reps.entry(hosts).or_default();
        reps.push(rep);
        // A REP is repeated while it waits, which must not prolong the wait.
        if reps.len() == 1 {
            let until = now + self.shared.config.dreq_hold_max;
            for id in owed {
                let Some(flow) = self.flows.current_mut(id) else { continue };
                flow.resend_all(now);
                let delivered_to = flow.delivered_to();
                self.departures.wait(id, delivered_to, Some(until));
                self.touch(id.slot);
            }
        }
        self.shared.counters.reps_held += 1;
        true
    }

    /// Departed flows between `hosts` that are owed.
    fn owed_between(&self, hosts: Hosts) -> impl Iterator<Item = SlotId> {
        let between = self.departures.all.iter().filter(move |(_, it)| it.hosts == hosts);
        let flows = &self.flows;
        between.map(|(id, _)| *id).filter(|id| flows.current(*id).is_some_and(is_owed))
    }

    /// Forwards what waits for `flow`, which is owed nothing any more.
    pub(crate) fn end_departure(&mut self, flow: SlotId) {
        let Some(Departure { hosts, dreq, .. }) = self.departures.remove(flow) else { return };
        if let Some(flow) = self.flows.current_mut(flow) {
            flow.bookkeeping.is_departing = false;
        }
        dreq.into_iter().for_each(|dreq| self.shared.queue_to_wan(dreq));
        if self.owed_between(hosts).next().is_none() {
            let reps = self.departures.reps.remove(&hosts).unwrap_or_default();
            reps.into_iter().for_each(|rep| self.shared.queue_to_lan(rep));
        }
    }

    /// Ends waits in which nothing was delivered for
    /// [`Config::dreq_hold_max`](crate::Config::dreq_hold_max). A DREQ is forwarded, and its flow
    /// is delivered as long as its responder accepts it. For a REP what is owed is given up.
    pub(crate) fn expire_departures(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.departures.deadlines.first().filter(|(at, _)| *at <= now) {
            let flow = self.flows.current(id).filter(|flow| is_owed(flow));
            let (Some(flow), Some(departure)) = (flow, self.departures.all.get_mut(&id)) else {
                self.end_departure(id);
                continue;
            };
            let delivered_to = flow.delivered_to();
            if delivered_to > departure.delivered_to {
                let until = now + self.shared.config.dreq_hold_max;
                self.departures.wait(id, delivered_to, Some(until));
            } else if self.departures.reps.contains_key(&departure.hosts) {
                self.remove_flow(id.slot);
            } else {
                departure.dreq.take().into_iter().for_each(|dreq| self.shared.queue_to_wan(dreq));
                self.departures.wait(id, delivered_to, None);
            }
        }
    }

    /// True if a message of the connection manager from `side` may have to wait for departures.
    pub(crate) fn has_departures(&self, side: Side) -> bool {
        side == WAN && !self.departures.all.is_empty()
    }
}
