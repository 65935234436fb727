//! States of the elements of a network, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

mod read_ahead;
mod transport;

pub use read_ahead::{ReadAheadState, write_read_ahead};
pub use transport::{PathState, SealState, SessionState, TransportState, write_transport};

use crate::figures::{bytes, count, microseconds};
use longhaul_accel::{DropReason, FlowState, FlowStatus, Learnt, PassReason};
use longhaul_link::{Link, LinkCounters};
use longhaul_node::Side;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters by name. Texts omit zeros; JSON contains them.
pub type Named = BTreeMap<String, u64>;

/// Collects counters by name.
pub fn named(values: impl Iterator<Item = (&'static str, u64)>) -> Named {
    values.map(|(name, n)| (name.to_string(), n)).collect()
}

/// One direction of a fibre.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    pub direction: String,
    pub entered_frames: u64,
    pub delivered_frames: u64,
    pub delivered_bytes: u64,
    pub in_flight_frames: u64,
    pub ecn_marked_frames: u64,
    pub late_frames: u64,
    pub duplicated_frames: u64,
    pub corrupted_frames: u64,
    pub queue_bytes_max: u64,
    pub drops: Named,
    /// Rules of this direction.
    #[serde(default)]
    pub rules: Vec<RuleStatus>,
}

/// Counters of a fibre's rule in one direction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RuleStatus {
    /// Number of the rule within the fibre, from 1.
    pub number: usize,
    pub rule: String,
    pub selected_frames: u64,
    pub struck_frames: u64,
}

/// An accelerated flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flow {
    pub requester: String,
    pub requester_qpn: Option<u32>,
    pub responder: String,
    pub responder_qpn: u32,
    /// 0: none.
    pub vlan: u16,
    pub state: String,
    /// Reason, if it passes.
    #[serde(default)]
    pub pass_reason: Option<String>,
    /// Mode: `early`, `far`, `tail` or `off`.
    pub mode: String,
    /// Role of this box for the flow: `near` or `far`.
    pub role: String,
    pub learnt: String,
    pub rtt_us: Option<f64>,
    /// Smoothed delay of pseudo-ACKs after their requests.
    #[serde(default)]
    pub ack_delay_us: Option<f64>,
    pub stored_bytes: u64,
    pub stored_frames: usize,
    pub outstanding_reads: usize,
    pub back_pressure: bool,
    pub stored_packets: u64,
    pub stored_payload_bytes: u64,
    pub passed_packets: u64,
    pub delivered_packets: u64,
    pub pseudo_acks: u64,
    pub acks_absorbed: u64,
    pub retransmits_nak: u64,
    pub retransmits_rnr: u64,
    pub retransmits_timeout: u64,
    pub drops: Named,
}

impl LinkStatus {
    /// Both directions of `link`, first the one from side 0, called a.
    pub fn of(link: &Link) -> Vec<Self> {
        ["a to b", "b to a"]
            .into_iter()
            .zip(0..)
            .map(|(name, side)| Self::one(name, &link.counters(side), rules(link, side)))
            .collect()
    }

    fn one(direction: &str, c: &LinkCounters, rules: Vec<RuleStatus>) -> Self {
        LinkStatus {
            direction: direction.to_string(),
            entered_frames: c.entered_frames,
            delivered_frames: c.delivered_frames,
            delivered_bytes: c.delivered_bytes,
            in_flight_frames: c.in_flight_frames,
            ecn_marked_frames: c.ecn_marked_frames,
            late_frames: c.late_frames,
            duplicated_frames: c.duplicated_frames,
            corrupted_frames: c.corrupted_frames,
            queue_bytes_max: c.queue_bytes_max,
            drops: named(c.drops.iter().map(|(reason, n)| (reason.name(), n))),
            rules,
        }
    }
}

/// Counters of the rules of `link` for frames that entered on `side`.
fn rules(link: &Link, side: Side) -> Vec<RuleStatus> {
    let rules = (1..).zip(link.config().rules.iter().zip(link.rule_counters(side)));
    rules
        .filter(|(_, (rule, _))| rule.is_for(side))
        .map(|(number, (rule, counters))| RuleStatus {
            number,
            rule: rule.to_string(),
            selected_frames: counters.selected_frames,
            struck_frames: counters.struck_frames,
        })
        .collect()
}

impl Flow {
    /// The reason why it passes, unless that is its mode.
    pub fn notable_reason(&self) -> Option<&str> {
        self.pass_reason.as_deref().filter(|reason| *reason != PassReason::Mode.name())
    }

    /// The state in texts for people; `terminated` is `accelerated`.
    pub fn state_in_words(&self) -> &str {
        let is_accelerated = self.state == FlowState::Terminated.name();
        if is_accelerated { "accelerated" } else { &self.state }
    }

    /// State, reason, and the source of its connection data.
    fn treatment(&self) -> String {
        let source = if self.learnt == Learnt::ConnectionManager.name() { "CM" } else { "traffic" };
        if self.state == FlowState::Learning.name() {
            return self.state.clone();
        }
        let state = self.state_in_words();
        let reason = self.notable_reason().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("{state}{reason} (learnt from {source})")
    }

    /// Converts an accelerator's status.
    pub fn of(f: &FlowStatus) -> Self {
        Flow {
            requester: f.key.requester.to_string(),
            requester_qpn: f.requester_qpn.map(|q| q.get()),
            responder: f.key.responder.to_string(),
            responder_qpn: f.key.responder_qpn.get(),
            vlan: f.key.vlan,
            state: f.state.name().to_string(),
            pass_reason: f.pass_reason.map(|reason| reason.name().to_string()),
            mode: f.mode.name().to_string(),
            role: f.role.name().to_string(),
            learnt: f.learnt.name().to_string(),
            rtt_us: f.rtt.map(|d| d.as_secs_f64() * 1e6),
            ack_delay_us: f.ack_delay.map(|d| d.as_secs_f64() * 1e6),
            stored_bytes: f.stored_bytes,
            stored_frames: f.stored_frames,
            outstanding_reads: f.outstanding_reads,
            back_pressure: f.back_pressure,
            stored_packets: f.counters.stored_packets,
            stored_payload_bytes: f.counters.stored_payload_bytes,
            passed_packets: f.counters.passed_packets,
            delivered_packets: f.counters.delivered_packets,
            pseudo_acks: f.counters.pseudo_acks,
            acks_absorbed: f.counters.acks_absorbed,
            retransmits_nak: f.counters.retransmits_nak,
            retransmits_rnr: f.counters.retransmits_rnr,
            retransmits_timeout: f.counters.retransmits_timeout,
            // Only nonzero counters: there may be thousands of flows.
            drops: named(
                f.drops.iter().filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.name(), n)),
            ),
        }
    }
}

/// The nonzero counters, as `name 5, other 7`.
pub fn nonzero(named: &Named) -> String {
    let parts: Vec<String> =
        named.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if parts.is_empty() { "none".to_string() } else { parts.join(", ") }
}

/// The drops of an accelerator; the ACKs that it absorbs are not losses, so they come apart.
pub fn absorbed_and_drops(drops: &Named) -> String {
    let mut drops = drops.clone();
    let absorbed = drops.remove(DropReason::AckAbsorbed.name()).unwrap_or(0);
    format!("{} absorbed; drops: {}", count(absorbed, "ACK"), nonzero(&drops))
}

/// Number of frames that a queue has marked; empty if none.
pub fn marked(frames: u64) -> String {
    such(frames, "marked")
}

fn such(frames: u64, what: &str) -> String {
    if frames == 0 { String::new() } else { format!(", {frames} {what}") }
}

/// Writes a text line about `link`.
pub fn write_link(before: &str, link: &LinkStatus, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "{before}{}: {} delivered, {} in flight{}{}{}{}, longest queue {}; drops: {}",
        link.direction,
        count(link.delivered_frames, "frame"),
        link.in_flight_frames,
        marked(link.ecn_marked_frames),
        such(link.late_frames, "late"),
        such(link.duplicated_frames, "duplicated"),
        such(link.corrupted_frames, "corrupted"),
        bytes(link.queue_bytes_max),
        nonzero(&link.drops)
    )?;
    let indent = &before[..before.len() - before.trim_start().len()];
    for RuleStatus { rule, selected_frames, struck_frames, .. } in &link.rules {
        let selected = count(*selected_frames, "selected frame");
        writeln!(text, "{indent}  rule '{rule}': applied to {struck_frames} of {selected}")?;
    }
    Ok(())
}

/// Writes two text lines about `flow`.
pub fn write_flow(flow: &Flow, text: &mut String) -> std::fmt::Result {
    let qpn = flow.requester_qpn.map_or("?".to_string(), |q| format!("{q:#x}"));
    let rtt = flow.rtt_us.map_or("unknown".to_string(), microseconds);
    let delay = flow
        .ack_delay_us
        .map_or(String::new(), |us| format!(", pseudo-ACKs after {}", microseconds(us)));
    let vlan = if flow.vlan == 0 { String::new() } else { format!(" in VLAN {}", flow.vlan) };
    writeln!(
        text,
        "  {} QP {qpn} to {} QP {:#x}{vlan}: mode {}, {}, RTT {rtt}{delay}, {} stored in {}{}",
        flow.requester,
        flow.responder,
        flow.responder_qpn,
        flow.mode,
        flow.treatment(),
        bytes(flow.stored_bytes),
        count(flow.stored_frames as u64, "frame"),
        if flow.back_pressure { ", withholding pseudo-ACKs" } else { "" }
    )?;
    if flow.passed_packets > 0 {
        writeln!(text, "    {} passed through", count(flow.passed_packets, "packet"))?;
    }
    writeln!(
        text,
        "    {} stored, {} delivered, {}; retransmits: NAK {}, RNR {}, timeout {}; {}",
        count(flow.stored_packets, "packet"),
        flow.delivered_packets,
        count(flow.pseudo_acks, "pseudo-ACK"),
        flow.retransmits_nak,
        flow.retransmits_rnr,
        flow.retransmits_timeout,
        absorbed_and_drops(&flow.drops)
    )
}
