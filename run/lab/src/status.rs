//! State of a lab, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

use crate::fabric::SitePort;
use crate::network::Network;
use crate::node::HostCounters;
use crate::spec::{HostName, Spec};
use longhaul_boxes::figures::{bytes, count};
use longhaul_boxes::state::{
    Flow, LinkStatus, Named, ReadAheadState, TransportState, absorbed_and_drops, marked, named,
    nonzero, write_flow, write_link, write_read_ahead, write_transport,
};
use longhaul_switch::PortCounters;
use longhaul_wan_box::WanBox;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::IpAddr;

/// State of a lab at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabStatus {
    pub spec: Spec,
    pub pid: u32,
    pub uptime_s: f64,
    pub hosts: Vec<HostStatus>,
    /// Empty with two hosts.
    pub switches: Vec<SwitchStatus>,
    pub link: Vec<LinkStatus>,
    pub accelerators: Vec<AcceleratorStatus>,
    /// The network of the hosts.
    pub network: Network,
    /// The last lines of its log.
    #[serde(default)]
    pub log: Option<String>,
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

/// The switch of one site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchStatus {
    /// Named after its first host.
    pub site: HostName,
    pub ports: Vec<SwitchPort>,
}

/// A switch port: counters of its input and of its output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwitchPort {
    /// `host c`, or `fibre`.
    pub leads_to: String,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Received frames that were flooded to all other ports.
    pub flooded_frames: u64,
    pub unlearnt_frames: u64,
    /// Drops of received frames.
    pub drops: Named,
    /// Frames for the output.
    pub output_frames: u64,
    pub delivered_frames: u64,
    pub delivered_bytes: u64,
    pub queued_frames: u64,
    pub ecn_marked_frames: u64,
    pub queue_bytes_max: u64,
    /// Drops of frames for the output.
    pub output_drops: Named,
}

/// The accelerator of one site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcceleratorStatus {
    pub site: HostName,
    pub counters: Named,
    pub drops: Named,
    pub flows: Vec<Flow>,
    /// The transport to the other site.
    #[serde(default)]
    pub transport: Option<TransportState>,
    /// Read-ahead of commands.
    #[serde(default)]
    pub read_ahead: Option<ReadAheadState>,
}

impl SwitchStatus {
    /// Converts the counters of the switch at `site`.
    pub fn of(site: HostName, ports: impl Iterator<Item = (SitePort, PortCounters)>) -> Self {
        SwitchStatus {
            site,
            ports: ports.map(|(name, counters)| SwitchPort::of(name, &counters)).collect(),
        }
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
            output_drops: c
                .output
                .drops
                .iter()
                .map(|(reason, n)| (reason.name().to_string(), n))
                .collect(),
        }
    }
}

impl AcceleratorStatus {
    /// Converts the status of the box at `site`.
    pub fn of(site: HostName, whole: &WanBox) -> Self {
        let accelerator = whole.near();
        let counters = accelerator.counters();
        AcceleratorStatus {
            site,
            counters: counters.values().map(|(name, n)| (name.to_string(), n)).collect(),
            drops: counters
                .drops
                .iter()
                .map(|(reason, n)| (reason.name().to_string(), n))
                .collect(),
            flows: accelerator.flows().map(|flow| Flow::of(&flow)).collect(),
            transport: whole.transport().map(|transport| TransportState::of(transport, None)),
            read_ahead: whole.read_ahead().map(ReadAheadState::of),
        }
    }
}

impl LabStatus {
    /// Formats the state as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        write_text(self, &mut text).map_or_else(|_| String::new(), |()| text)
    }
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
    if let Some(log) = &status.log {
        writeln!(text, "log: {log}")?;
    }
    if let Some(why) = status.network.missing() {
        writeln!(text, "hosts without a network of their own: {why}")?;
    }
    for host in &status.hosts {
        write_host(host, spec.device_addresses(host.name), text)?;
    }
    for switch in &status.switches {
        for port in &switch.ports {
            write_switch_port(switch.site, port, text)?;
        }
    }
    for link in &status.link {
        write_link("fibre ", link, text)?;
    }
    for accelerator in &status.accelerators {
        writeln!(
            text,
            "accelerator at site {}: {}",
            accelerator.site,
            absorbed_and_drops(&accelerator.drops)
        )?;
        for flow in &accelerator.flows {
            write_flow(flow, text)?;
        }
        if let Some(transport) = &accelerator.transport {
            write_transport(transport, text)?;
        }
        if let Some(read_ahead) = &accelerator.read_ahead {
            write_read_ahead(read_ahead, text)?;
        }
    }
    Ok(())
}

fn write_host(host: &HostStatus, [ip, ..]: [IpAddr; 3], text: &mut String) -> std::fmt::Result {
    let c = &host.counters;
    let drops = [
        ("no such QP", c.drops_no_function),
        ("receive buffer", c.drops_receive_buffer),
        ("not RoCE", c.drops_not_roce),
    ];
    let kernel = match c.kernel_tx_frames + c.kernel_rx_frames {
        0 => String::new(),
        _ => format!(", kernel {} sent, {} received", c.kernel_tx_frames, c.kernel_rx_frames),
    };
    writeln!(
        text,
        "host {} {}: {}, {} sent, {} received{kernel}, {} waiting; drops: {}",
        host.name,
        ip,
        count(host.programs as u64, "program"),
        count(c.tx_frames, "frame"),
        c.rx_frames,
        host.waiting_frames,
        nonzero(&named(drops.into_iter()))
    )
}

fn write_switch_port(site: HostName, port: &SwitchPort, text: &mut String) -> std::fmt::Result {
    let flooded = match port.flooded_frames {
        0 => String::new(),
        frames => format!(" ({frames} flooded)"),
    };
    let mut drops = port.drops.clone();
    for (reason, count) in &port.output_drops {
        *drops.entry(reason.clone()).or_default() += count;
    }
    writeln!(
        text,
        "switch at site {site}, {}: {} in{flooded}, {} out, {} queued{}, longest queue {}; drops: \
         {}",
        port.leads_to,
        count(port.received_frames, "frame"),
        port.delivered_frames,
        port.queued_frames,
        marked(port.ecn_marked_frames),
        bytes(port.queue_bytes_max),
        nonzero(&drops)
    )
}
