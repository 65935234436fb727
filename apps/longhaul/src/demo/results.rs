//! Results of the demo: results.json and the table.

use crate::problem::Problem;
use longhaul_boxes::quantity::{Distance, Size};
use longhaul_units::BitRate;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Contents of results.json.
#[derive(Serialize)]
pub struct Results {
    pub provenance: Provenance,
    pub runs: Vec<Run>,
}

/// One run of ib_write_bw.
#[derive(Serialize)]
pub struct Run {
    pub distance_km: f64,
    pub message_bytes: u64,
    pub accelerated: bool,
    pub goodput_gbps: f64,
    pub messages_per_second: f64,
    pub command: String,
}

/// Provenance of the figures.
#[derive(Serialize)]
pub struct Provenance {
    pub longhaul: &'static str,
    pub perftest: Option<String>,
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    pub cores: usize,
    pub rate_bps: u64,
    pub seed: u64,
    pub command_line: Vec<String>,
    pub unix_time_s: u64,
}

impl Provenance {
    pub fn gather(rate: BitRate, seed: u64) -> Self {
        let first_line = |text: String| text.lines().next().map(str::to_owned);
        let kernel =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().and_then(first_line);
        let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let perftest = Command::new("ib_write_bw").arg("--version").output().ok();
        let perftest =
            perftest.and_then(|o| first_line(String::from_utf8_lossy(&o.stdout).into_owned()));
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Provenance {
            longhaul: env!("CARGO_PKG_VERSION"),
            perftest,
            kernel,
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            rate_bps: rate.as_bps(),
            seed,
            command_line: std::env::args().collect(),
            unix_time_s: since_epoch.map_or(0, |d| d.as_secs()),
        }
    }
}

impl Results {
    pub fn new(provenance: Provenance) -> Self {
        Results { provenance, runs: Vec::new() }
    }

    pub fn write(&self, path: &Path) -> Result<(), Problem> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Problem::plain(format!("cannot write results: {e}")))?;
        std::fs::write(path, text + "\n").map_err(|e| Problem::io("write", path, &e))
    }

    /// Goodput of the run with these parameters, in Gbit/s.
    pub fn goodput(&self, distance_km: f64, message_bytes: u64, accelerated: bool) -> Option<f64> {
        let same = |r: &&Run| {
            r.distance_km == distance_km
                && r.message_bytes == message_bytes
                && r.accelerated == accelerated
        };
        self.runs.iter().find(same).map(|r| r.goodput_gbps)
    }

    /// Measured distances, ascending.
    pub fn distances_km(&self) -> Vec<f64> {
        let mut distances: Vec<f64> = self.runs.iter().map(|r| r.distance_km).collect();
        distances.sort_by(f64::total_cmp);
        distances.dedup();
        distances
    }

    /// Measured message sizes, ascending.
    pub fn message_sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.runs.iter().map(|r| r.message_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The text table: goodput in Gbit/s, and the gain.
    pub fn table(&self) -> String {
        let mut table = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "ib_write_bw over {} Gbit/s, goodput in Gbit/s\n\n{:>10} {:>10} {:>12} {:>12} {:>8}",
            self.provenance.rate_bps as f64 / 1e9,
            "distance",
            "message",
            "plain RDMA",
            "accelerated",
            "gain"
        );
        for km in self.distances_km() {
            for bytes in self.message_sizes() {
                let plain = self.goodput(km, bytes, false);
                let accelerated = self.goodput(km, bytes, true);
                let gain = plain.zip(accelerated).filter(|(p, _)| *p > 0.0).map(|(p, a)| a / p);
                let figure = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.3}"));
                let gain = gain.map_or("-".to_string(), |x| format!("{x:.2}x"));
                let _ = writeln!(
                    table,
                    "{:>10} {:>10} {:>12} {:>12} {:>8}",
                    Distance::from_km(km as u64).to_string(),
                    Size::from_bytes(bytes).to_string(),
                    figure(plain),
                    figure(accelerated),
                    gain
                );
            }
        }
        table
    }
}
