//! What came of a simulation.

mod stations;

pub(crate) use stations::StationOutcomes;

use longhaul_switch::PortCounters;
use serde::Serialize;

/// All results of one run. Times are virtual.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Where virtual time ended, in nanoseconds.
    pub ended_at_ns: u64,
    /// Events of the event loop.
    pub events: u64,
    /// Why the run ended before every program had: nothing was left to happen, or its time was
    /// over.
    pub unfinished: Option<String>,
    /// By flow.
    pub flows: Vec<FlowOutcome>,
    /// By cable and direction.
    pub wires: Vec<WireOutcome>,
    /// By host.
    pub hosts: Vec<HostOutcome>,
    /// By accelerator.
    pub accelerators: Vec<AcceleratorOutcome>,
    /// By switch.
    pub switches: Vec<SwitchOutcome>,
    /// What the scenario says and hardly means: [`Scenario::warnings`](crate::Scenario::warnings).
    pub warnings: Vec<String>,
    /// What must never happen and did. Empty, or the simulation has found a defect of the protocol
    /// code.
    pub violations: Vec<String>,
}

/// What a flow reached.
#[derive(Clone, Debug, Serialize)]
pub struct FlowOutcome {
    /// Its name.
    pub name: String,
    /// Messages completed successfully.
    pub messages: u64,
    /// Payload of these, in bytes.
    pub bytes: u64,
    /// From the first post to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
    /// Bits of payload completed per second.
    pub goodput_bps: f64,
    /// Messages completed per second.
    pub messages_per_second: f64,
    /// From posting to seeing the completion, of signaled messages; latency tests: what perftest
    /// reports.
    pub latency: Option<Latency>,
    /// What the connection manager took, if it connected all QPs.
    pub setup: Option<Setup>,
    /// How it failed, if it did.
    pub failure: Option<String>,
}

/// How long QPs took to be connected: each from the program's REQ to its QP being ready to send, in
/// nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setup {
    /// The mean of the QPs.
    pub mean_ns: f64,
    /// The slowest.
    pub max_ns: f64,
}

/// Percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// The least.
    pub min_ns: f64,
    /// The mean.
    pub mean_ns: f64,
    /// Half of them took at most this.
    pub median_ns: f64,
    /// 99 % of them.
    pub p99_ns: f64,
    /// 99.9 % of them.
    pub p999_ns: f64,
    /// The most.
    pub max_ns: f64,
}

impl Latency {
    /// Of durations in picoseconds, in any order; `None` of none.
    pub(crate) fn of(mut picoseconds: Vec<u64>) -> Option<Self> {
        picoseconds.sort_unstable();
        let last = picoseconds.len().checked_sub(1)?;
        let ns = |ps: u64| ps as f64 / 1e3;
        // The smallest value that at least this fraction does not exceed.
        let at = |fraction: f64| {
            let rank = (fraction * picoseconds.len() as f64).ceil() as usize;
            ns(picoseconds[rank.saturating_sub(1).min(last)])
        };
        let sum: f64 = picoseconds.iter().map(|&ps| ns(ps)).sum();
        Some(Latency {
            count: picoseconds.len() as u64,
            min_ns: ns(picoseconds[0]),
            mean_ns: sum / picoseconds.len() as f64,
            median_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: ns(picoseconds[last]),
        })
    }
}

/// What one direction of a cable carried.
#[derive(Clone, Debug, Serialize)]
pub struct WireOutcome {
    /// The sending station.
    pub from: String,
    /// The receiving station.
    pub to: String,
    /// Frames that entered.
    pub entered_frames: u64,
    /// Their bytes, without FCS.
    pub entered_bytes: u64,
    /// Frames that arrived.
    pub delivered_frames: u64,
    /// Frames lost on the way, at random, by a cut or by a rule, as configured.
    pub lost_frames: u64,
    /// Frames for which the queue had no room.
    pub queue_full_frames: u64,
    /// Frames marked by the queue.
    pub ecn_marked_frames: u64,
    /// Frames that others could overtake.
    pub late_frames: u64,
    /// Frames that arrive twice.
    pub duplicated_frames: u64,
    /// Frames of which a bit was turned over.
    pub corrupted_frames: u64,
    /// The longest the queue was, in bytes on the wire.
    pub queue_bytes_max: u64,
}

/// A host's counters that are not zero.
#[derive(Clone, Debug, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub name: String,
    /// By the names that RDMA tools use.
    pub counters: Vec<(String, u64)>,
}

/// An accelerator's counters that are not zero.
#[derive(Clone, Debug, Serialize)]
pub struct AcceleratorOutcome {
    /// Its name.
    pub name: String,
    /// By name.
    pub counters: Vec<(String, u64)>,
}

/// What a switch did.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchOutcome {
    /// Its name.
    pub name: String,
    /// By port.
    pub ports: Vec<PortOutcome>,
}

/// What one port of a switch did.
#[derive(Clone, Debug, Serialize)]
pub struct PortOutcome {
    /// The station at the other end of its link.
    pub leads_to: String,
    /// Frames that came in by it, pause frames included.
    pub received_frames: u64,
    /// Their bytes, without FCS.
    pub received_bytes: u64,
    /// Frames that its output sent on; pause frames are counted by themselves.
    pub forwarded_frames: u64,
    /// Their bytes, without FCS.
    pub forwarded_bytes: u64,
    /// The longest the output's queue was, in bytes on the wire.
    pub queue_bytes_max: u64,
    /// Frames that the output's queue marked.
    pub ecn_marked_frames: u64,
    /// Frames dropped, by reason, where there were any: those that came in by this port and went to
    /// no output, and those that its output dropped (`queue_full`, `memory`).
    pub drops: Vec<(String, u64)>,
    /// Frames sent that ask for a pause, repeated ones included.
    pub pauses_sent: u64,
    /// Frames sent that end one.
    pub resumes_sent: u64,
    /// Frames received that ask for a pause of the lossless priority.
    pub pauses_received: u64,
    /// Frames received that end one.
    pub resumes_received: u64,
    /// How long the output was not to send its lossless priority, in nanoseconds.
    pub paused_ns: u64,
    /// The most of the lossless priority that had come by this port and was in the switch, in bytes
    /// on the wire.
    pub held_bytes_max: u64,
}

impl PortOutcome {
    /// Of a port's counters.
    pub(crate) fn of(leads_to: String, counters: &PortCounters) -> Self {
        let PortCounters { output, pause, .. } = counters;
        let came = counters.drops.iter().map(|(reason, count)| (reason.name(), count));
        let left = output.drops.iter().map(|(reason, count)| (reason.name(), count));
        let drops = came.chain(left).filter(|(_, count)| *count > 0);
        PortOutcome {
            leads_to,
            received_frames: counters.received_frames,
            received_bytes: counters.received_bytes,
            forwarded_frames: output.delivered_frames,
            forwarded_bytes: output.delivered_bytes,
            queue_bytes_max: output.queue_bytes_max,
            ecn_marked_frames: output.ecn_marked_frames,
            drops: drops.map(|(reason, count)| (reason.to_owned(), count)).collect(),
            pauses_sent: pause.pauses_sent,
            resumes_sent: pause.resumes_sent,
            pauses_received: pause.pauses_received,
            resumes_received: pause.resumes_received,
            paused_ns: pause.paused.as_ns(),
            held_bytes_max: pause.held_bytes_max,
        }
    }

    /// Frames dropped for any reason.
    pub fn dropped_frames(&self) -> u64 {
        self.drops.iter().map(|(_, count)| count).sum()
    }
}
