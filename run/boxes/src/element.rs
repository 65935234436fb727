//! What can be between two ports, and what it says about itself.

use crate::state::{LinkStatus, ReadAheadState, SealState, TransportState, named};
use crate::status::{AcceleratorState, FibreState, Tenant};
use longhaul_accel::{Accelerator, FlowStatus, PassReason, TenantStatus};
use longhaul_link::Link;
use longhaul_netdev::PreferredQps;
use longhaul_node::Node;
use longhaul_units::Instant;
use longhaul_wan_box::{Halves, WanBox};
use std::convert::Infallible;

/// Flows that [`Element::flows`] gives at once: no frame waits for more than these to be copied,
/// however many there are.
pub const FLOWS_AT_ONCE: usize = 256;

/// Tenants that a status lists of each accelerator.
const TENANTS_LISTED: usize = 64;

/// A node with two sides that a box is made of.
pub trait Element: Node + Send + 'static {
    /// What its sides are called.
    const SIDES: [&'static str; 2];

    /// What it is told when its configuration changes while it runs.
    type Change: Clone + Send + 'static;

    /// Goes by `change` from here on.
    ///
    /// # Errors
    /// Why it does not; nothing has changed then.
    fn apply(&mut self, change: Self::Change) -> Result<(), String>;

    /// Lets its flows go as soon as it owes them nothing, and takes in no others; or takes them in
    /// again. False: it never has any.
    fn set_draining(&mut self, _now: Instant, _draining: bool) -> bool {
        false
    }

    /// As an accelerator, without its flows.
    fn accelerator(&self) -> Option<AcceleratorState> {
        None
    }

    /// Of a whole box, the half for the responders of this site, without its flows.
    fn responders(&self) -> Option<AcceleratorState> {
        None
    }

    /// What is between it and other boxes.
    fn transport(&self, _now: Instant) -> Option<TransportState> {
        None
    }

    /// What it reads ahead.
    fn read_ahead(&self) -> Option<ReadAheadState> {
        None
    }

    /// QPs of its established flows, by side: packets to them are served first. `None`: as when
    /// `told` was last set, which is brought up to date.
    fn preferred(&self, _told: &mut u64) -> Option<[PreferredQps; 2]> {
        None
    }

    /// What there is to say of flows that pass although their mode is another, since `told` was
    /// last set, which is brought up to date.
    fn news_of_flows(&self, _told: &mut FlowsTold) -> Vec<String> {
        Vec::new()
    }

    /// Its flows in the slots from `first` on, with their slots, [`FLOWS_AT_ONCE`] at most.
    fn flows(&self, _first: u32) -> Vec<(u32, FlowStatus)> {
        Vec::new()
    }

    /// As a fibre.
    fn fibre(&self) -> Option<FibreState> {
        None
    }
}

/// How many flows the journal has been told of, by the reason why they pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowsTold {
    one_way: u64,
    alternate_path: u64,
}

/// Added to the slots of a box's half for responders, which come behind those of the other one.
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
        // The sides that requests and responses come in by; those of the transport are preferred as
        // they are.
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
        let [mut one_way, mut alternate_path] = [0, 0];
        for half in halves() {
            one_way += half.counters().flows_one_way;
            alternate_path += half.counters().alternate_paths;
        }
        let before = std::mem::replace(told, FlowsTold { one_way, alternate_path });
        [
            (one_way.saturating_sub(before.one_way), PassReason::OneWay),
            (alternate_path.saturating_sub(before.alternate_path), PassReason::AlternatePath),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, reason)| {
            let mut flows = halves().flat_map(Accelerator::flows);
            passing(count, reason, flows.find(|flow| flow.pass_reason == Some(reason)))
        })
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

/// That so many more flows pass, of which `first` is one.
fn passing(count: u64, reason: PassReason, first: Option<FlowStatus>) -> String {
    let why = match reason {
        PassReason::AlternatePath => "their connections have an alternate path (APM)",
        _ => "no answers of their responders come by: these take another way, or there are none",
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
