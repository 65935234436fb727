//! Progress of a measurement.

use std::fmt;
use std::time::Duration;

/// One of the measurements that make up a cell's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The cell itself.
    Cell,
    /// The load without a box.
    LoadAlone,
    /// DPDK's testpmd instead of the box.
    Testpmd,
    /// Paired boxes without parity and keys.
    Plain,
    /// The cell, instrumented.
    Instrumented,
    /// Trials of the throughput search.
    Throughput,
    /// The trial of the delay at the throughput.
    Latency,
    /// Trials of the frame loss rate.
    FrameLossRate,
    /// Bursts of back-to-back frames.
    BackToBack,
    /// Overload, and the time after it.
    Recovery,
    /// The box restarted under load.
    Reset,
}

impl Pass {
    /// Its name; `None` for the cell itself.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Pass::Cell => None,
            Pass::LoadAlone => Some("load alone"),
            Pass::Testpmd => Some("testpmd"),
            Pass::Plain => Some("plain"),
            Pass::Instrumented => Some("instrumented"),
            Pass::Throughput => Some("throughput"),
            Pass::Latency => Some("latency"),
            Pass::FrameLossRate => Some("frame loss rate"),
            Pass::BackToBack => Some("back-to-back frames"),
            Pass::Recovery => Some("system recovery"),
            Pass::Reset => Some("reset"),
        }
    }
}

/// Work done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Packets that arrived.
    Packets(u64),
    /// Messages that completed.
    Messages(u64),
    /// Trials that ended.
    Trials(u64),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Packets(packets) => write!(f, "{:.1} M packets", *packets as f64 / 1e6),
            Work::Trials(trials) => write!(f, "{trials} trials"),
            Work::Messages(messages) => {
                write!(f, "{:.0} thousand messages", *messages as f64 / 1e3)
            }
        }
    }
}

/// State of a running measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is being measured.
    pub pass: Pass,
    /// Time since its start, warm-up included.
    pub elapsed: Duration,
    /// Time that it takes, warm-up included.
    pub whole: Duration,
    /// Work done since its start.
    pub work: Work,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
}

/// Receives progress several times per second; returns whether to continue.
pub type Tell<'a> = dyn FnMut(&Progress) -> bool + 'a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_in_large_units() {
        assert_eq!(Work::Packets(12_340_000).to_string(), "12.3 M packets");
        assert_eq!(Work::Trials(7).to_string(), "7 trials");
        assert_eq!(Work::Messages(56_700).to_string(), "57 thousand messages");
    }
}
