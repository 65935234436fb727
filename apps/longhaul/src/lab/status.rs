//! What a lab says about itself, for people and as JSON.

use super::fabric::SitePort;
use super::node::HostCounters;
use super::spec::{HostName, Spec};
use crate::problem::Problem;
use longhaul_accel::{Accelerator, FlowStatus};
use longhaul_link::{Link, LinkCounters};
use longhaul_switch::PortCounters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counters by name; zeros are left out of texts, not of JSON.
type Named = BTreeMap<String, u64>;

/// A lab at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabStatus {
    pub spec: Spec,
    pub pid: u32,
    pub uptime_s: f64,
    pub hosts: Vec<HostStatus>,
    /// Empty when there are two hosts.
    pub switches: Vec<SwitchStatus>,
    pub link: Vec<LinkStatus>,
    pub accelerators: Vec<AcceleratorStatus>,
}

/// A host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    pub name: HostName,
    /// Programs that are attached.
    pub programs: usize,
    /// Frames that wait for its programs.
    pub waiting_frames: usize,
    pub counters: HostCounters,
}

/// One direction of the fibre.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    pub direction: String,
    pub entered_frames: u64,
    pub delivered_frames: u64,
    pub delivered_bytes: u64,
    pub in_flight_frames: u64,
    pub ecn_marked_frames: u64,
    pub queue_bytes_max: u64,
    pub drops: Named,
}

/// The switch of one site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Named after its first host.
    pub site: HostName,
    pub ports: Vec<SwitchPort>,
}

/// A port of a switch: what came in by it, and what its output did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchPort {
    /// `host c`, or `fibre`.
    pub leads_to: String,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Of those received, frames that went to all other ports.
    pub flooded_frames: u64,
    pub unlearnt_frames: u64,
    /// Of frames received.
    pub drops: Named,
    /// Frames that came to the output.
    pub output_frames: u64,
    pub delivered_frames: u64,
    pub delivered_bytes: u64,
    pub queued_frames: u64,
    pub ecn_marked_frames: u64,
    pub queue_bytes_max: u64,
    /// Of frames that came to the output.
    pub output_drops: Named,
}

/// The accelerator of one site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcceleratorStatus {
    pub site: HostName,
    pub counters: Named,
    pub drops: Named,
    pub flows: Vec<Flow>,
}

/// One accelerated flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flow {
    pub requester: String,
    pub requester_qpn: Option<u32>,
    pub responder: String,
    pub responder_qpn: u32,
    pub state: String,
    pub learnt: String,
    pub rtt_us: Option<f64>,
    pub stored_bytes: u64,
    pub stored_frames: usize,
    pub outstanding_reads: usize,
    pub back_pressure: bool,
    pub stored_packets: u64,
    pub stored_payload_bytes: u64,
    pub delivered_packets: u64,
    pub pseudo_acks: u64,
    pub acks_absorbed: u64,
    pub retransmits_nak: u64,
    pub retransmits_rnr: u64,
    pub retransmits_timeout: u64,
    pub drops: Named,
}

impl LinkStatus {
    /// Both directions of `link`, from site a's first.
    pub fn of(link: &Link) -> Vec<Self> {
        ["a to b", "b to a"]
            .into_iter()
            .zip(0..)
            .map(|(name, side)| Self::one(name, &link.counters(side)))
            .collect()
    }

    fn one(direction: &str, c: &LinkCounters) -> Self {
        LinkStatus {
            direction: direction.to_string(),
            entered_frames: c.entered_frames,
            delivered_frames: c.delivered_frames,
            delivered_bytes: c.delivered_bytes,
            in_flight_frames: c.in_flight_frames,
            ecn_marked_frames: c.ecn_marked_frames,
            queue_bytes_max: c.queue_bytes_max,
            drops: c.drops.iter().map(|(reason, n)| (reason.name().to_string(), n)).collect(),
        }
    }
}

impl SwitchStatus {
    /// Of the switch at `site` with these ports.
    pub fn of(site: HostName, ports: impl Iterator<Item = (SitePort, PortCounters)>) -> Self {
        SwitchStatus { site, ports: ports.map(|(name, counters)| SwitchPort::of(name, &counters)).collect() }
    }
}

impl SwitchPort {
    fn of(name: SitePort, c: &PortCounters) -> Self {
        SwitchPort {
            leads_to: match name {
                SitePort::Host(host) => format!("host {host}"),
                SitePort::Wire => "fibre".to_string(),
            },
            received_frames: c.received_frames,
            received_bytes: c.received_bytes,
            flooded_frames: c.flooded_frames,
            unlearnt_frames: c.unlearnt_frames,
            drops: c.drops.iter().map(|(reason, n)| (reason.name().to_string(), n)).collect(),
            output_frames: c.output.entered_frames,
            delivered_frames: c.output.delivered_frames,
            delivered_bytes: c.output.delivered_bytes,
            queued_frames: c.output.in_flight_frames,
            ecn_marked_frames: c.output.ecn_marked_frames,
            queue_bytes_max: c.output.queue_bytes_max,
            output_drops: c.output.drops.iter().map(|(reason, n)| (reason.name().to_string(), n)).collect(),
        }
    }
}

impl AcceleratorStatus {
    /// Of the accelerator at `site`.
    pub fn of(site: HostName, accelerator: &Accelerator) -> Self {
        let counters = accelerator.counters();
        AcceleratorStatus {
            site,
            counters: counters.values().map(|(name, n)| (name.to_string(), n)).collect(),
            drops: counters.drops.iter().map(|(reason, n)| (reason.name().to_string(), n)).collect(),
            flows: accelerator.flows().map(|flow| Flow::of(&flow)).collect(),
        }
    }
}

impl Flow {
    fn of(f: &FlowStatus) -> Self {
        Flow {
            requester: f.key.requester.to_string(),
            requester_qpn: f.requester_qpn.map(|q| q.get()),
            responder: f.key.responder.to_string(),
            responder_qpn: f.key.responder_qpn.get(),
            state: f.state.name().to_string(),
            learnt: f.learnt.name().to_string(),
            rtt_us: f.rtt.map(|d| d.as_secs_f64() * 1e6),
            stored_bytes: f.stored_bytes,
            stored_frames: f.stored_frames,
            outstanding_reads: f.outstanding_reads,
            back_pressure: f.back_pressure,
            stored_packets: f.counters.stored_packets,
            stored_payload_bytes: f.counters.stored_payload_bytes,
            delivered_packets: f.counters.delivered_packets,
            pseudo_acks: f.counters.pseudo_acks,
            acks_absorbed: f.counters.acks_absorbed,
            retransmits_nak: f.counters.retransmits_nak,
            retransmits_rnr: f.counters.retransmits_rnr,
            retransmits_timeout: f.counters.retransmits_timeout,
            drops: f.drops.iter().map(|(reason, n)| (reason.name().to_string(), n)).collect(),
        }
    }
}

/// As JSON, indented.
pub fn to_json(value: &impl Serialize) -> Result<String, Problem> {
    serde_json::to_string_pretty(value).map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))
}

/// The counters that are not zero, as `name 5, other 7`.
fn nonzero(named: &Named) -> String {
    let parts: Vec<String> =
        named.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if parts.is_empty() { "none".to_string() } else { parts.join(", ") }
}

/// For people.
pub fn to_text(status: &LabStatus) -> String {
    let mut text = String::new();
    write_text(status, &mut text).map_or_else(|_| String::new(), |()| text)
}

fn write_text(status: &LabStatus, text: &mut String) -> std::fmt::Result {
    let spec = &status.spec;
    writeln!(
        text,
        "lab '{}', up {:.0} s (pid {}): {}",
        spec.name,
        status.uptime_s,
        status.pid,
        spec.summary()
    )?;
    for host in &status.hosts {
        write_host(host, text)?;
    }
    for switch in &status.switches {
        for port in &switch.ports {
            write_switch_port(switch.site, port, text)?;
        }
    }
    for link in &status.link {
        writeln!(
            text,
            "fibre {}: {} frames delivered, {} on the way{}, longest queue {} bytes; drops: {}",
            link.direction,
            link.delivered_frames,
            link.in_flight_frames,
            marked(link.ecn_marked_frames),
            link.queue_bytes_max,
            nonzero(&link.drops)
        )?;
    }
    for accelerator in &status.accelerators {
        writeln!(text, "accelerator at site {}: drops: {}", accelerator.site, nonzero(&accelerator.drops))?;
        for flow in &accelerator.flows {
            write_flow(flow, text)?;
        }
    }
    Ok(())
}

/// How many frames a queue has marked, unless none.
fn marked(frames: u64) -> String {
    if frames == 0 { String::new() } else { format!(", {frames} marked") }
}

fn write_host(host: &HostStatus, text: &mut String) -> std::fmt::Result {
    let c = &host.counters;
    writeln!(
        text,
        "host {} {}: {} programs, sent {} frames, received {}, {} waiting; drops: no such QP {}, receive buffer {}, not RoCE {}",
        host.name,
        host.name.ip(),
        host.programs,
        c.tx_frames,
        c.rx_frames,
        host.waiting_frames,
        c.drops_no_function,
        c.drops_receive_buffer,
        c.drops_not_roce
    )
}

fn write_switch_port(site: HostName, port: &SwitchPort, text: &mut String) -> std::fmt::Result {
    let flooded = match port.flooded_frames {
        0 => String::new(),
        frames => format!(" ({frames} to all)"),
    };
    let mut drops = port.drops.clone();
    for (reason, count) in &port.output_drops {
        *drops.entry(reason.clone()).or_default() += count;
    }
    writeln!(
        text,
        "switch at site {site}, {}: {} frames in{flooded}, {} out, {} queued{}, longest queue {} bytes; drops: {}",
        port.leads_to,
        port.received_frames,
        port.delivered_frames,
        port.queued_frames,
        marked(port.ecn_marked_frames),
        port.queue_bytes_max,
        nonzero(&drops)
    )
}

fn write_flow(flow: &Flow, text: &mut String) -> std::fmt::Result {
    let qpn = flow.requester_qpn.map_or("?".to_string(), |q| format!("{q:#x}"));
    let rtt = flow.rtt_us.map_or("unknown".to_string(), |us| format!("{us:.0} µs"));
    writeln!(
        text,
        "  {} QP {qpn} to {} QP {:#x}: {} (by {}), RTT {rtt}, stored {} bytes in {} frames{}",
        flow.requester,
        flow.responder,
        flow.responder_qpn,
        flow.state,
        flow.learnt,
        flow.stored_bytes,
        flow.stored_frames,
        if flow.back_pressure { ", holding ACKs back" } else { "" }
    )?;
    writeln!(
        text,
        "    {} packets stored, {} delivered, {} pseudo-ACKs, {} ACKs absorbed; retransmits: NAK {}, RNR {}, timeout {}; drops: {}",
        flow.stored_packets,
        flow.delivered_packets,
        flow.pseudo_acks,
        flow.acks_absorbed,
        flow.retransmits_nak,
        flow.retransmits_rnr,
        flow.retransmits_timeout,
        nonzero(&flow.drops)
    )
}
