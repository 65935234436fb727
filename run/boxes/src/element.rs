//! Elements: nodes between two ports, and the state that they report.

use crate::state::{LinkStatus, ReadAheadState, SealState, TransportState, named};
use crate::status::{AcceleratorState, AdviceStatus, FibreState, Tenant};
use longhaul_accel::{Accelerator, FlowStatus, PassReason, TenantStatus};
use longhaul_link::Link;
use longhaul_netdev::PreferredQps;
use longhaul_node::Node;
use longhaul_units::Instant;
use longhaul_wan_box::{Halves, WanBox};
use std::convert::Infallible;

/// Maximum number of flows that [`Element::flows`] returns at once; bounds the time for which
/// copying them delays frames.
pub const FLOWS_AT_ONCE: usize = 256;

/// Maximum number of tenants that a status lists per accelerator.
const TENANTS_LISTED: usize = 64;

/// A node with two sides that can be the core of a box.
pub trait Element: Node + Send + 'static {
    /// Names of its sides.
    const SIDES: [&'static str; 2];

    /// A change of configuration that a running element can apply.
    type Change: Clone + Send + 'static;

    /// Applies `change`.
    ///
    /// # Errors
    /// The reason for a refusal; nothing has changed then.
    fn apply(&mut self, change: Self::Change) -> Result<(), String>;

    /// Starts or stops draining: releases flows as soon as all their packets are delivered, and
    /// accepts no new ones. Returns `false` if it never has flows.
    fn set_draining(&mut self, _now: Instant, _draining: bool) -> bool {
        false
    }

    /// True if it has acknowledged what it has not delivered.
    fn owes(&self) -> bool {
        false
    }

    /// The state of an accelerator, without its flows.
    fn accelerator(&self) -> Option<AcceleratorState> {
        None
    }

    /// The state of a whole box's far half, without its flows.
    fn responders(&self) -> Option<AcceleratorState> {
        None
    }

    /// The state of its transport.
    fn transport(&self, _now: Instant) -> Option<TransportState> {
        None
    }

    /// The state of its read-ahead.
    fn read_ahead(&self) -> Option<ReadAheadState> {
        None
    }

    /// QPs of its established flows, by side: ports serve packets to them first. Returns `None` if
    /// they are the same as when `told` was last updated; updates it otherwise.
    fn preferred(&self, _told: &mut u64) -> Option<[PreferredQps; 2]> {
        None
    }

    /// Messages about flows that pass although their mode is another, and about wrong settings of
    /// hosts, since `told` was last updated; updates it.
    fn news_of_flows(&self, _told: &mut FlowsTold) -> Vec<String> {
        Vec::new()
    }

    /// Its flows in the slots from `first` on, with their slots: at most [`FLOWS_AT_ONCE`].
    fn flows(&self, _first: u32) -> Vec<(u32, FlowStatus)> {
        Vec::new()
    }

    /// The state of a fibre.
    fn fibre(&self) -> Option<FibreState> {
        None
    }
}

/// What the journal has reported about flows: passing ones, by reason, and advice.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowsTold {
    passing: PassingFlows,
    /// Pieces of the near half's advice, and of the far half's.
    advice: [usize; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct PassingFlows {
    one_way: u64,
    alternate_path: u64,
    unknown_opcode: u64,
}

/// Offset of the far half's slots, which follow those of the near half.
const RESPONDERS: u32 = 1 << 31;

impl Element for WanBox {
    const SIDES: [&'static str; 2] = ["lan", "wan"];
    type Change = Halves;

    fn apply(&mut self, change: Halves) -> Result<(), String> {
        self.reconfigure(&change).map_err(|e| e.to_string())
    }

    fn set_draining(&mut self, now: Instant, draining: bool) -> bool {
        WanBox::set_draining(self, now, draining);
        true
    }

    fn owes(&self) -> bool {
        std::iter::once(self.near()).chain(self.far()).any(|half| half.stored_bytes() > 0)
    }

    fn accelerator(&self) -> Option<AcceleratorState> {
        Some(accelerator(self.near()))
    }

    fn responders(&self) -> Option<AcceleratorState> {
        self.far().map(accelerator)
    }

    fn transport(&self, now: Instant) -> Option<TransportState> {
        let seal = self.seal().map(|seal| SealState::of(seal, now));
        WanBox::transport(self).map(|transport| TransportState::of(transport, seal))
    }

    fn read_ahead(&self) -> Option<ReadAheadState> {
        WanBox::read_ahead(self).map(ReadAheadState::of)
    }

    fn preferred(&self, told: &mut u64) -> Option<[PreferredQps; 2]> {
        let (near, far) = (Some(self.near()), self.far());
        let changes = near.into_iter().chain(far).map(Accelerator::flow_changes).sum();
        if std::mem::replace(told, changes) == changes {
            return None;
        }
        let mut sides = [PreferredQps::default(), PreferredQps::default()];
        // Sides on which requests and responses arrive. QPs of the transport are added unchanged.
        for (accelerator, [requests, responses]) in [(near, [0, 1]), (far, [1, 0])] {
            for (responder, requester) in accelerator.into_iter().flat_map(Accelerator::established)
            {
                sides[requests].insert(responder.get());
                requester.into_iter().for_each(|qpn| sides[responses].insert(qpn.get()));
            }
        }
        Some(sides)
    }

    fn news_of_flows(&self, told: &mut FlowsTold) -> Vec<String> {
        let halves = || std::iter::once(self.near()).chain(self.far());
        let mut counts = PassingFlows::default();
        for half in halves() {
            counts.one_way += half.counters().flows_one_way;
            counts.alternate_path += half.counters().alternate_paths;
            counts.unknown_opcode += half.counters().flows_unknown_opcode;
        }
        let advice =
            [Some(self.near()), self.far()].map(|half| half.map_or(&[][..], |it| it.advice()));
        let now = FlowsTold { passing: counts, advice: advice.map(<[_]>::len) };
        let before = std::mem::replace(told, now);
        let advice = advice
            .into_iter()
            .zip(before.advice)
            .flat_map(|(given, told)| given.iter().skip(told))
            .map(|advised| AdviceStatus::of(advised).to_string());
        let told = before.passing;
        [
            (counts.one_way.saturating_sub(told.one_way), PassReason::OneWay),
            (counts.alternate_path.saturating_sub(told.alternate_path), PassReason::AlternatePath),
            (counts.unknown_opcode.saturating_sub(told.unknown_opcode), PassReason::UnknownOpcode),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| {
            let mut flows = halves().flat_map(Accelerator::flows);
            passing(count, reason, flows.find(|flow| flow.pass_reason == Some(reason)))
        })
        .chain(advice)
        .collect()
    }

    fn flows(&self, first: u32) -> Vec<(u32, FlowStatus)> {
        let near = self.near().flows_from(first);
        let of_far = |far: &'_ Accelerator| -> Vec<_> {
            far.flows_from(first.saturating_sub(RESPONDERS)).take(FLOWS_AT_ONCE).collect()
        };
        let far = self.far().map(of_far).unwrap_or_default();
        let far = far.into_iter().map(|(slot, flow)| (slot + RESPONDERS, flow));
        near.chain(far).take(FLOWS_AT_ONCE).collect()
    }
}

/// Message that `count` more flows pass, with `first` as an example.
fn passing(count: u64, reason: PassReason, first: Option<FlowStatus>) -> String {
    let why = match reason {
        PassReason::AlternatePath => "their connections have an alternate path (APM)",
        PassReason::UnknownOpcode => {
            "they use an operation that the box does not know, such as FLUSH or ATOMIC WRITE"
        }
        _ => "no responses pass this box: they take another path, or there are none",
    };
    let name = |flow: FlowStatus| {
        let key = flow.key;
        format!(
            ", {} to {} QP {:#x} for one",
            key.requester,
            key.responder,
            key.responder_qpn.get()
        )
    };
    let first = first.map(name).unwrap_or_default();
    format!("flows that pass unaccelerated: {count} more ({}): {why}{first}", reason.name())
}

fn accelerator(node: &Accelerator) -> AcceleratorState {
    let counters = node.counters();
    AcceleratorState {
        stored_bytes: node.stored_bytes(),
        stored_bytes_max: node.config().total_bytes_max,
        is_draining: node.is_draining(),
        counters: named(counters.values()),
        drops: named(counters.drops.iter().map(|(reason, n)| (reason.name(), n))),
        tenants: tenants(node),
        advice: node.advice().iter().map(AdviceStatus::of).collect(),
        flows: Vec::new(),
    }
}

/// The tenants that store most.
fn tenants(node: &Accelerator) -> Vec<Tenant> {
    let mut tenants: Vec<TenantStatus> = node.tenants().collect();
    tenants.sort_by_key(|tenant| std::cmp::Reverse((tenant.stored_bytes, tenant.refused_packets)));
    tenants.iter().take(TENANTS_LISTED).map(Tenant::of).collect()
}

impl Element for Link {
    const SIDES: [&'static str; 2] = ["a", "b"];
    type Change = Infallible;

    fn apply(&mut self, change: Infallible) -> Result<(), String> {
        match change {}
    }

    fn fibre(&self) -> Option<FibreState> {
        let config = self.config();
        Some(FibreState {
            delay_us: config.delay.as_secs_f64() * 1e6,
            rate_bits_per_s: config.rate.map_or(0, |rate| rate.as_bps()),
            memory_bytes: (0..2).map(|side| self.counters(side).memory_bytes).sum(),
            memory_bytes_max: config.memory_bytes_max,
            directions: LinkStatus::of(self),
        })
    }
}
