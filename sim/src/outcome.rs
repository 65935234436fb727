//! Results of a simulation.

mod flows;
mod stations;

pub(crate) use stations::StationOutcomes;

use longhaul_switch::PortCounters;
use serde::Serialize;

/// All results of one run. Times are virtual.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Virtual time at the end, in nanoseconds.
    pub ended_at_ns: u64,
    /// Events of the event loop.
    pub events: u64,
    /// Reason why the run ended before all programs: no more events, or the time limit.
    pub unfinished: Option<String>,
    /// Results of each flow.
    pub flows: Vec<FlowOutcome>,
    /// Counters of each cable and direction.
    pub wires: Vec<WireOutcome>,
    /// Counters of each host.
    pub hosts: Vec<HostOutcome>,
    /// Counters of each accelerator.
    pub accelerators: Vec<AcceleratorOutcome>,
    /// Counters of each switch.
    pub switches: Vec<SwitchOutcome>,
    /// Likely mistakes in the scenario: [`Scenario::warnings`](crate::Scenario::warnings).
    pub warnings: Vec<String>,
    /// Violations that the oracles found. If there are any, the protocol code has a defect.
    pub violations: Vec<String>,
}

/// Results of a flow.
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
    /// Latency of signaled messages from post to polled completion; for latency tests perftest's
    /// figure.
    pub latency: Option<Latency>,
    /// Set-up times, if the connection manager connected all QPs.
    pub setup: Option<Setup>,
    /// What arrived, with transport UC. The goodput is then that of the messages that a receive
    /// took; of WRITEs without immediate data, that of the requester.
    pub arrivals: Option<Arrivals>,
    /// Phases of a live migration.
    pub migration: Option<Migrated>,
    /// Reason for a failure.
    pub failure: Option<String>,
}

/// Phases of a live migration. Those that had not begun when it was cancelled have no time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Migrated {
    /// The destination has everything. Otherwise the migration was cancelled at its timeout.
    pub finished: bool,
    /// From the start until the destination has everything, or until the timeout.
    pub total_ns: u64,
    /// Until the first byte.
    pub setup_ns: Option<u64>,
    /// Copy of the disk.
    pub disk_ns: Option<u64>,
    /// Passes over the memory while the guest runs.
    pub pre_copy_ns: Option<u64>,
    /// From the guest's stop until the destination has everything.
    pub downtime_ns: Option<u64>,
    /// Times that the source took the log of the guest's writes, and the first pass.
    pub passes: u64,
    /// Bytes of the disk sent.
    pub disk_bytes: u64,
    /// Bytes of memory and devices sent.
    pub memory_bytes: u64,
    /// Bytes of memory that were still to be sent.
    pub left_bytes: u64,
}

/// Messages of a flow with transport UC, as its responder finds them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Arrivals {
    /// Messages received completely.
    pub messages: u64,
    /// Messages of which some bytes were placed before another began: at least one packet was lost.
    pub incomplete: u64,
    /// Messages sent that the program did not receive; unknown if the flow ends at a time.
    pub lost: Option<u64>,
    /// Messages that the program flags as missing, because immediate data of later ones shows the
    /// gap.
    pub flagged: u64,
    /// Messages received twice, or more than 128 messages late.
    pub duplicates: u64,
}

/// Work of a host's programs that wait for events, in the time that counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Processor time of all threads, in percent of one core.
    pub cpu_percent: f64,
    /// Threads.
    pub threads: u64,
    /// Completion events.
    pub events: u64,
    /// Events that woke a sleeping thread.
    pub wakeups: u64,
}

/// Set-up times of QPs, each from the program's REQ until its QP can send, in nanoseconds.
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
    /// Number of samples.
    pub count: u64,
    /// The least.
    pub min_ns: f64,
    /// The mean.
    pub mean_ns: f64,
    /// Median.
    pub median_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
    /// 99.9th percentile.
    pub p999_ns: f64,
    /// The most.
    pub max_ns: f64,
}

impl Latency {
    /// Percentiles of durations in picoseconds, in any order; `None` if there are none.
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

/// Counters of one direction of a cable.
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
    /// Frames lost at random, by a cut or by a rule.
    pub lost_frames: u64,
    /// Frames dropped by the full queue.
    pub queue_full_frames: u64,
    /// Frames marked by the queue.
    pub ecn_marked_frames: u64,
    /// Frames that others could overtake.
    pub late_frames: u64,
    /// Frames that arrive twice.
    pub duplicated_frames: u64,
    /// Frames with a flipped bit.
    pub corrupted_frames: u64,
    /// Maximum queue length, in bytes on the wire.
    pub queue_bytes_max: u64,
}

/// A host's counters that are not zero.
#[derive(Clone, Debug, Serialize)]
pub struct HostOutcome {
    /// Its name.
    pub name: String,
    /// Counters, by the names of RDMA tools.
    pub counters: Vec<(String, u64)>,
    /// Work of its programs, if they wait for events.
    pub load: Option<Load>,
}

/// An accelerator's counters that are not zero.
#[derive(Clone, Debug, Serialize)]
pub struct AcceleratorOutcome {
    /// Its name.
    pub name: String,
    /// Counters by name.
    pub counters: Vec<(String, u64)>,
}

/// Counters of a switch.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchOutcome {
    /// Its name.
    pub name: String,
    /// Counters of each port.
    pub ports: Vec<PortOutcome>,
}

/// Counters of a switch port.
#[derive(Clone, Debug, Serialize)]
pub struct PortOutcome {
    /// The station at the other end of its link.
    pub leads_to: String,
    /// Frames received, including pause frames.
    pub received_frames: u64,
    /// Their bytes, without FCS.
    pub received_bytes: u64,
    /// Frames that its output forwarded; pause frames are counted separately.
    pub forwarded_frames: u64,
    /// Their bytes, without FCS.
    pub forwarded_bytes: u64,
    /// Maximum length of the output queue, in bytes on the wire.
    pub queue_bytes_max: u64,
    /// Frames that the output's queue marked.
    pub ecn_marked_frames: u64,
    /// Frames dropped, by reason (non-zero only): frames received at this port without an output,
    /// and frames that its output dropped (`queue_full`, `memory`).
    pub drops: Vec<(String, u64)>,
    /// Pause frames sent, including renewals.
    pub pauses_sent: u64,
    /// Frames sent that end a pause.
    pub resumes_sent: u64,
    /// Frames received that pause the lossless priority.
    pub pauses_received: u64,
    /// Frames received that end a pause.
    pub resumes_received: u64,
    /// Time for which the output's lossless priority was paused, in nanoseconds.
    pub paused_ns: u64,
    /// Maximum bytes on the wire of the lossless priority from this port that the switch held.
    pub held_bytes_max: u64,
}

impl PortOutcome {
    /// Converts a port's counters.
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
