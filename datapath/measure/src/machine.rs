//! The measured machine.

use longhaul_datapath::{HardwareCounters, Ticks};
use serde::Serialize;
use std::fmt;

/// The relevant properties of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    processor: String,
    cores: usize,
    kernel: String,
    ticks_per_s: f64,
    /// Why the processor's event counters are unavailable; `None` if they are available.
    no_counters: Option<String>,
}

impl Machine {
    /// Examines this machine.
    pub fn look() -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let info = file("/proc/cpuinfo");
        let model = info.lines().find(|line| line.starts_with("model name"));
        let processor =
            model.and_then(|line| line.split_once(':')).map_or("unknown", |(_, name)| name.trim());
        Machine {
            processor: processor.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: file("/proc/sys/kernel/osrelease").trim().to_owned(),
            ticks_per_s: Ticks::new().per_second(),
            no_counters: HardwareCounters::open().err().map(|error| error.to_string()),
        }
    }

    /// Rate of the time-stamp counter.
    pub fn ticks_per_s(&self) -> f64 {
        self.ticks_per_s
    }

    /// Why the processor's event counters are unavailable; `None` if they are available.
    pub fn no_counters(&self) -> Option<&str> {
        self.no_counters.as_deref()
    }

    /// A machine with this tick rate.
    #[cfg(test)]
    pub(crate) fn with_ticks_per_s(ticks_per_s: f64) -> Self {
        Machine {
            processor: "one".into(),
            cores: 1,
            kernel: "x".into(),
            ticks_per_s,
            no_counters: None,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, kernel, ticks_per_s, .. } = self;
        write!(
            f,
            "{processor}, {cores} cores, {:.2} GHz of ticks, Linux {kernel}",
            ticks_per_s / 1e9
        )
    }
}
