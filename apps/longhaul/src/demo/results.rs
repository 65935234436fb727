//! Results of the demo: results.json and the table.

use super::cell::{Cell, Fibre, Transport};
use crate::problem::Problem;
use longhaul_boxes::quantity::Distance;
use longhaul_units::BitRate;
use serde::Serialize;
use std::cmp::Ordering;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Contents of results.json.
#[derive(Serialize)]
pub struct Results {
    pub provenance: Provenance,
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Serialize)]
pub struct Run {
    pub distance_km: f64,
    /// Probability of a frame.
    pub loss: f64,
    pub transport: Transport,
    #[serde(flatten)]
    pub measured: Measured,
}

/// What a run gave.
#[derive(Serialize)]
pub struct Measured {
    pub goodput_gbps: f64,
    /// TCP segments that were retransmitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<u64>,
    /// Of the client.
    pub command: String,
}

/// Provenance of the figures.
#[derive(Serialize)]
pub struct Provenance {
    pub longhaul: &'static str,
    pub perftest: Option<String>,
    pub iperf3: Option<String>,
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
        let version = |program: &str| {
            let output = Command::new(program).arg("--version").output().ok()?;
            first_line(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Provenance {
            longhaul: env!("CARGO_PKG_VERSION"),
            perftest: version("ib_write_bw"),
            iperf3: version("iperf3"),
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

    /// Goodput of `transport` over `path`, in Gbit/s.
    pub fn goodput(&self, path: Fibre, transport: Transport) -> Option<f64> {
        let same = |run: &&Run| run.path() == path && run.transport == transport;
        self.runs.iter().find(same).map(|run| run.measured.goodput_gbps)
    }

    /// Whether there is an accelerated run over this distance.
    pub fn has_accelerated(&self, distance: Distance) -> bool {
        let is_one = |run: &Run| run.transport.is_accelerated() && run.path().distance == distance;
        self.runs.iter().any(is_one)
    }

    /// Measured fibres: by loss, then by distance.
    pub fn paths(&self) -> Vec<Fibre> {
        let mut paths: Vec<Fibre> = self.runs.iter().map(Run::path).collect();
        let order = |path: &Fibre| (path.loss, path.distance.km());
        paths.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(Ordering::Equal));
        paths.dedup();
        paths
    }

    /// Measured transports, in the order of the table.
    pub fn transports(&self) -> Vec<Transport> {
        let mut transports: Vec<Transport> = self.runs.iter().map(|run| run.transport).collect();
        transports.sort();
        transports.dedup();
        transports
    }

    /// The text table: goodput in Gbit/s, a row per transport and a column per path.
    pub fn table(&self) -> String {
        let paths = self.paths();
        let rate = self.provenance.rate_bps as f64 / 1e9;
        let mut table = format!("goodput in Gbit/s, over {rate} Gbit/s\n\n");
        // Writing to a String cannot fail.
        let mut row = |name: &str, cells: &mut dyn Iterator<Item = String>| {
            let _ = write!(table, "{name:<25}");
            cells.for_each(|cell| {
                let _ = write!(table, "{cell:>10}");
            });
            table.truncate(table.trim_end_matches(' ').len());
            table.push('\n');
        };
        row("", &mut paths.iter().map(|path| path.distance.to_string()));
        if paths.iter().any(|path| path.loss > 0.0) {
            let loss = |path: &Fibre| match path.loss {
                0.0 => String::new(),
                loss => format!("loss {loss:e}"),
            };
            row("", &mut paths.iter().map(loss));
        }
        for transport in self.transports() {
            let figure = |path: &Fibre| {
                self.goodput(*path, transport).map_or("-".to_owned(), |gbps| format!("{gbps:.3}"))
            };
            row(&transport.to_string(), &mut paths.iter().map(figure));
        }
        table
    }
}

impl Run {
    pub fn new(cell: &Cell, measured: Measured) -> Self {
        let Cell { path, transport } = *cell;
        Run { distance_km: path.distance.km(), loss: path.loss, transport, measured }
    }

    fn path(&self) -> Fibre {
        Fibre { distance: Distance::from_km(self.distance_km as u64), loss: self.loss }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell;
    use super::*;

    #[test]
    fn the_table_has_a_row_per_transport_and_a_column_per_path() {
        let mut results = Results::new(Provenance::gather(BitRate::from_gbps(10).unwrap(), 1));
        for (i, cell) in cell::quick().iter().enumerate().skip(1) {
            let goodput_gbps = i as f64 / 2.0;
            let measured = Measured { goodput_gbps, retransmissions: None, command: String::new() };
            results.runs.push(Run::new(cell, measured));
        }
        assert_eq!(
            results.table(),
            "goodput in Gbit/s, over 10 Gbit/s

                            1000 km   1000 km
                                    loss 1e-3
RDMA plain, 64 KiB                -     3.000
RDMA accelerated, 64 KiB      2.500     5.500
TCP CUBIC, 1 connection       0.500     3.500
TCP CUBIC, 8 connections      1.000     4.000
TCP BBR, 1 connection         1.500     4.500
TCP BBR, 8 connections        2.000     5.000
"
        );
    }
}
