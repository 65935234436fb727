//! State of a box, as text and as JSON.
#![allow(missing_docs, reason = "fields are the keys of the JSON, which has them by these names")]

use crate::carrier::{CarrierState, write_carrier};
use crate::figures::{bytes, count, gigabits, microseconds};
use crate::state::{
    Flow, LinkStatus, Named, ReadAheadState, TransportState, absorbed_and_drops, nonzero,
    write_flow, write_link, write_read_ahead, write_transport,
};
use longhaul_accel::{Advised, TenantStatus};
use longhaul_host::{DriverCounters, HandedOver};
use longhaul_port::PortCounters;
use longhaul_units::{BitRate, Duration as Span};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Result, Write};

/// State of a box at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BoxStatus {
    pub name: String,
    /// `accelerate` or `emulate`.
    pub command: String,
    pub pid: u32,
    pub user: String,
    pub uptime_s: f64,
    /// Reasons why it is not ready; empty if it is.
    #[serde(default)]
    pub not_ready: Vec<String>,
    /// Warnings about its configuration.
    #[serde(default)]
    pub notes: Vec<String>,
    pub pairs: Vec<PairStatus>,
}

/// A pair: its ports and the element between them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PairStatus {
    pub name: String,
    pub ports: Vec<PortStatus>,
    pub frame_loop: LoopStatus,
    /// With the flows of both halves.
    pub accelerator: Option<AcceleratorState>,
    /// The far half of a whole box.
    #[serde(default)]
    pub responders: Option<AcceleratorState>,
    #[serde(default)]
    pub transport: Option<TransportState>,
    /// If read-ahead is on.
    #[serde(default)]
    pub read_ahead: Option<ReadAheadState>,
    pub fibre: Option<FibreState>,
    /// If ports follow the carrier of the opposite ones.
    #[serde(default)]
    pub carrier: Option<CarrierState>,
    /// Counters of each core, if several share the ports.
    #[serde(default)]
    pub cores: Vec<CoreStatus>,
}

/// One of several cores that share a pair's ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreStatus {
    pub core: usize,
    /// Processors that it may run on, as `4` or `0-3`; none: any.
    pub processors: Option<String>,
    /// Frames from its own queues of the ports, including those that belong to other cores.
    pub received_frames: u64,
    /// Frames handed over to the cores to which they belong, and frames taken over from others.
    pub handed_over: u64,
    pub taken_over: u64,
    /// Frames dropped because the ring to their core was full.
    pub ring_full: u64,
    pub turns: u64,
    pub sleeps: u64,
}

impl CoreStatus {
    /// Adds the counters of one of the core's ports.
    pub fn add(&mut self, handed_over: HandedOver) {
        self.handed_over += handed_over.given;
        self.taken_over += handed_over.taken;
        self.ring_full += handed_over.ring_full;
    }
}

/// A port. Bytes are frame bytes without FCS.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortStatus {
    /// `lan`, `wan`, `a` or `b`.
    pub side: String,
    pub port: String,
    /// How it is attached, if there are several ways: `native, zero copy, 2 queues`.
    #[serde(default)]
    pub manner: Option<String>,
    pub link_is_up: bool,
    pub link_ups: u64,
    pub rx_frames: u64,
    pub rx_bytes: u64,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    pub rates: Rates,
    pub rx_drops: Named,
    pub tx_drops: Named,
    pub peer_violations: u64,
    /// Counters of this kind of port.
    pub other: Named,
}

/// Averages over the last full second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub rx_frames_per_s: f64,
    pub rx_bits_per_s: f64,
    pub tx_frames_per_s: f64,
    pub tx_bits_per_s: f64,
}

impl Rates {
    /// Rates between two snapshots `elapsed` apart.
    pub fn between(then: &PortCounters, now: &PortCounters, elapsed: Span) -> Self {
        let seconds = elapsed.as_secs_f64();
        let per_s = |then: u64, now: u64| now.wrapping_sub(then) as f64 / seconds;
        Rates {
            rx_frames_per_s: per_s(then.rx_frames, now.rx_frames),
            rx_bits_per_s: per_s(then.rx_bytes, now.rx_bytes) * 8.0,
            tx_frames_per_s: per_s(then.tx_frames, now.tx_frames),
            tx_bits_per_s: per_s(then.tx_bytes, now.tx_bytes) * 8.0,
        }
    }
}

/// The driver loop of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopStatus {
    pub turns: u64,
    pub sleeps: u64,
    /// Frames that claim to be RoCEv2 but are malformed; they are passed through.
    pub malformed_frames: u64,
    /// Frames that ports refused, including those that were too long.
    pub refused_frames: u64,
    pub port_errors: u64,
    /// Maximum delay of a frame or timer after its deadline.
    pub lateness_us_max: f64,
}

impl LoopStatus {
    /// Converts the loop's counters.
    pub fn of(counters: &DriverCounters) -> Self {
        LoopStatus {
            turns: counters.turns,
            sleeps: counters.sleeps,
            malformed_frames: counters.malformed_frames,
            refused_frames: counters.refused_frames,
            port_errors: counters.port_errors,
            lateness_us_max: counters.lateness_max.as_secs_f64() * 1e6,
        }
    }
}

/// An accelerator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcceleratorState {
    pub stored_bytes: u64,
    pub stored_bytes_max: u64,
    /// It accepts no new flows and releases its flows.
    #[serde(default)]
    pub is_draining: bool,
    pub counters: Named,
    pub drops: Named,
    /// The tenants that store most.
    #[serde(default)]
    pub tenants: Vec<Tenant>,
    /// Settings of hosts that flows have shown to be wrong.
    #[serde(default)]
    pub advice: Vec<AdviceStatus>,
    pub flows: Vec<Flow>,
}

/// Advice about the settings of two hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdviceStatus {
    /// Its kind, as `early-retries`.
    pub advice: String,
    pub requester: String,
    pub responder: String,
    /// What was seen, and what to set.
    pub text: String,
}

impl AdviceStatus {
    /// Converts one piece of advice.
    pub fn of(advised: &Advised) -> Self {
        AdviceStatus {
            advice: advised.advice.name().to_string(),
            requester: advised.requester.to_string(),
            responder: advised.responder.to_string(),
            text: advised.advice.text().to_string(),
        }
    }
}

impl fmt::Display for AdviceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> Result {
        let AdviceStatus { advice, requester, responder, text } = self;
        write!(f, "advice ({advice}), requests of {requester} to {responder}: {text}; docs/nics.md")
    }
}

/// The requesters under one source prefix, and their share of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tenant {
    pub prefix: String,
    pub flows: u32,
    pub stored_bytes: u64,
    /// Stored bytes above which its requests are acknowledged only once delivered.
    pub share_bytes: u64,
    /// Request packets refused for lack of memory.
    pub refused_packets: u64,
}

impl Tenant {
    /// Converts a tenant's status.
    pub fn of(tenant: &TenantStatus) -> Self {
        Tenant {
            prefix: tenant.prefix.to_string(),
            flows: tenant.flows,
            stored_bytes: tenant.stored_bytes,
            share_bytes: tenant.share_bytes,
            refused_packets: tenant.refused_packets,
        }
    }
}

/// A description.
impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tenant { prefix, flows, stored_bytes, share_bytes, refused_packets } = self;
        write!(
            f,
            "tenant {prefix}: {}, {} stored of a share of {}",
            count(u64::from(*flows), "flow"),
            bytes(*stored_bytes),
            bytes(*share_bytes)
        )?;
        match *refused_packets {
            0 => Ok(()),
            packets => write!(f, ", {} refused", count(packets, "packet")),
        }
    }
}

/// An emulated fibre.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FibreState {
    /// One-way delay.
    pub delay_us: f64,
    pub rate_bits_per_s: u64,
    /// Memory of the frames in flight.
    pub memory_bytes: u64,
    pub memory_bytes_max: u64,
    pub directions: Vec<LinkStatus>,
}

impl PairStatus {
    /// Bytes of memory that the accelerators' stored requests occupy.
    pub fn stored_bytes(&self) -> u64 {
        self.accelerator.iter().chain(&self.responders).map(|one| one.stored_bytes).sum()
    }

    /// True if the box took the port down because an opposite one has no carrier.
    fn is_taken_down(&self, port: &PortStatus) -> bool {
        let mut carriers = self.carrier.iter().flat_map(|carrier| &carrier.ports);
        carriers.any(|of| of.side == port.side && of.taken_down.is_some())
    }

    /// Reasons why the pair is not ready.
    pub fn not_ready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        let (near, behind) = self.ports.split_at(self.ports.len().min(1));
        // One of several paths is enough.
        let behind = if behind.iter().any(|port| port.link_is_up) { &[] } else { behind };
        let down: Vec<&PortStatus> =
            near.iter().chain(behind).filter(|port| !port.link_is_up).collect();
        // A port that the box took down is no cause, unless the cause is over already.
        let causes: Vec<&PortStatus> =
            down.iter().copied().filter(|port| !self.is_taken_down(port)).collect();
        let down = if causes.is_empty() { down } else { causes };
        reasons.extend(down.iter().map(|port| format!("{} port {} is down", port.side, port.port)));
        if self.accelerator.as_ref().is_some_and(|accelerator| accelerator.is_draining) {
            reasons.push(format!("draining, {} stored", bytes(self.stored_bytes())));
        }
        if let Some(transport) = &self.transport {
            reasons.extend(transport.not_ready());
        }
        reasons.iter().map(|reason| format!("pair {}: {reason}", self.name)).collect()
    }
}

impl BoxStatus {
    /// Formats the state as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).map_or_else(|_| String::new(), |()| text)
    }

    fn write(&self, text: &mut String) -> Result {
        let BoxStatus { name, command, pid, user, uptime_s, not_ready, notes, pairs } = self;
        writeln!(text, "{command} '{name}', up {uptime_s:.0} s (pid {pid}, user {user})")?;
        if !not_ready.is_empty() {
            writeln!(text, "not ready: {}", not_ready.join("; "))?;
        }
        for note in notes {
            writeln!(text, "note: {note}")?;
        }
        for pair in pairs {
            writeln!(text, "pair {}", pair.name)?;
            for port in &pair.ports {
                write_port(port, text)?;
            }
            if let Some(carrier) = &pair.carrier {
                write_carrier(carrier, text)?;
            }
            for core in &pair.cores {
                write_core(core, text)?;
            }
            if let Some(accelerator) = &pair.accelerator {
                write_accelerator(accelerator, text)?;
            }
            if let Some(transport) = &pair.transport {
                write_transport(transport, text)?;
            }
            if let Some(read_ahead) = &pair.read_ahead {
                write_read_ahead(read_ahead, text)?;
            }
            if let Some(fibre) = &pair.fibre {
                write_fibre(fibre, pair.frame_loop.lateness_us_max, text)?;
            }
            if pair.frame_loop.malformed_frames > 0 {
                let frames = count(pair.frame_loop.malformed_frames, "malformed RoCEv2 frame");
                writeln!(text, "  {frames} passed through")?;
            }
        }
        Ok(())
    }
}

fn write_port(port: &PortStatus, text: &mut String) -> Result {
    let link = if port.link_is_up { "up" } else { "down" };
    let manner = port.manner.as_ref().map_or_else(String::new, |manner| format!(" ({manner})"));
    let way = |frames: u64, octets: u64, bits_per_s: f64, frames_per_s: f64| {
        let (frames, rate) = (count(frames, "frame"), gigabits(bits_per_s));
        let per_s = count(frames_per_s.round() as u64, "frame");
        format!("{frames}, {} ({rate}, {per_s}/s)", bytes(octets))
    };
    let r = &port.rates;
    writeln!(
        text,
        "  {} {}{manner}, {link}: in {}; out {}; drops in: {}; out: {}",
        port.side,
        port.port,
        way(port.rx_frames, port.rx_bytes, r.rx_bits_per_s, r.rx_frames_per_s),
        way(port.tx_frames, port.tx_bytes, r.tx_bits_per_s, r.tx_frames_per_s),
        nonzero(&port.rx_drops),
        nonzero(&port.tx_drops),
    )
}

fn write_core(core: &CoreStatus, text: &mut String) -> Result {
    let CoreStatus {
        core,
        processors,
        received_frames,
        handed_over,
        taken_over,
        ring_full,
        sleeps,
        ..
    } = core;
    let place = processors.as_ref().map_or_else(String::new, |of| {
        let one = of.parse::<u32>().is_ok();
        format!(" on processor{} {of}", if one { "" } else { "s" })
    });
    writeln!(
        text,
        "  core {core}{place}: {} in, {handed_over} handed over, {taken_over} taken over, \
         {ring_full} dropped at full rings; {}",
        count(*received_frames, "frame"),
        count(*sleeps, "sleep")
    )
}

fn write_accelerator(accelerator: &AcceleratorState, text: &mut String) -> Result {
    let counted = |name: &str| accelerator.counters.get(name).copied().unwrap_or(0);
    let retransmits: u64 = accelerator
        .counters
        .iter()
        .filter(|(name, _)| name.starts_with("retransmits_"))
        .map(|(_, n)| n)
        .sum();
    writeln!(
        text,
        "  store: {} of {} in {} ({} learnt from CM, {} from traffic, {} failed); {} stored, {}, \
         {}, {} passed through; {}",
        bytes(accelerator.stored_bytes),
        bytes(accelerator.stored_bytes_max),
        count(accelerator.flows.len() as u64, "flow"),
        counted("flows_from_cm"),
        counted("flows_from_traffic"),
        counted("flows_failed"),
        count(counted("stored_packets"), "packet"),
        count(counted("pseudo_acks"), "pseudo-ACK"),
        count(retransmits, "retransmit"),
        count(counted("passed"), "frame"),
        absorbed_and_drops(&accelerator.drops),
    )?;
    for tenant in &accelerator.tenants {
        writeln!(text, "  {tenant}")?;
    }
    for advice in &accelerator.advice {
        writeln!(text, "  {advice}")?;
    }
    for flow in &accelerator.flows {
        write_flow(flow, text)?;
    }
    Ok(())
}

fn write_fibre(fibre: &FibreState, lateness_us_max: f64, text: &mut String) -> Result {
    writeln!(
        text,
        "  fibre: {} one way at {}; {} of {} in flight; at most {} late",
        microseconds(fibre.delay_us),
        BitRate::from_bps(fibre.rate_bits_per_s)
            .map_or_else(|| "0 Gbit/s".to_string(), |rate| rate.to_string()),
        bytes(fibre.memory_bytes),
        bytes(fibre.memory_bytes_max),
        microseconds(lateness_us_max),
    )?;
    for direction in &fibre.directions {
        write_link("  fibre ", direction, text)?;
    }
    Ok(())
}
