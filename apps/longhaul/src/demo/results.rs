//! Results of the demo: results.jsonl and the table.

use super::cell::{Cell, CongestionControl, Fibre, Transport};
use crate::problem::Problem;
use longhaul_bench::{Experiment, Point, Record, ResultWriter, Source, Started};
use longhaul_boxes::quantity::Distance;
use longhaul_units::BitRate;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Name of its experiment.
const NAME: &str = "demo";

/// The runs so far, and what they have in common.
pub struct Results {
    pub rate: BitRate,
    pub seed: u64,
    /// The machine and the versions of the programs.
    pub environment: BTreeMap<String, String>,
    /// When the demo began; RFC 3339, UTC.
    pub started_at: String,
    pub runs: Vec<Run>,
}

/// One run.
pub struct Run {
    pub distance_km: f64,
    /// Probability of a frame.
    pub loss: f64,
    pub transport: Transport,
    pub measured: Measured,
}

/// What a run gave.
pub struct Measured {
    pub goodput_gbps: f64,
    /// TCP segments that were retransmitted.
    pub retransmissions: Option<u64>,
    /// Of the client.
    pub command: String,
}

impl Results {
    /// Without runs, as of now.
    pub fn new(rate: BitRate, seed: u64, environment: BTreeMap<String, String>) -> Self {
        let started_at = Started::now().provenance(None, 1).started_at;
        Results { rate, seed, environment, started_at, runs: Vec::new() }
    }

    /// The file of results, with the description of the demo.
    pub fn create(path: &Path) -> Result<ResultWriter, Problem> {
        let failed = |error: &dyn std::fmt::Display| Problem::plain(error.to_string());
        let mut writer = ResultWriter::create(path).map_err(|error| failed(&error))?;
        let series =
            ["loss", "transport", "message_bytes", "connections"].map(str::to_owned).to_vec();
        let experiment = Experiment {
            about:
                "ib_write_bw, plain and through two accelerators, and iperf3 between the hosts' \
                    kernels, over one emulated fibre."
                    .to_owned(),
            x: Some("distance_km".to_owned()),
            series,
            ..Experiment::new(NAME, "RDMA WRITE and TCP over distance and loss")
        };
        writer.describe(&experiment).map_err(|error| failed(&error))?;
        Ok(writer)
    }

    /// Adds a run that began at `started`, here and to the file.
    pub fn add(
        &mut self,
        run: Run,
        started: Started,
        writer: &mut ResultWriter,
    ) -> Result<(), Problem> {
        let record = self.record(&run, started);
        writer.record(&record).map_err(|error| Problem::plain(error.to_string()))?;
        self.runs.push(run);
        Ok(())
    }

    fn record(&self, run: &Run, started: Started) -> Record {
        let point = Point::new()
            .with("rate_bps", self.rate.as_bps())
            .with("distance_km", run.distance_km)
            .with("loss", run.loss);
        let point = match run.transport {
            Transport::Rdma { message_bytes, accelerated } => point
                .with("transport", if accelerated { "RDMA, accelerated" } else { "RDMA, plain" })
                .with("message_bytes", message_bytes),
            Transport::Tcp { congestion_control, connections } => {
                let name = match congestion_control {
                    CongestionControl::Cubic => "TCP CUBIC",
                    CongestionControl::Bbr => "TCP BBR",
                };
                point.with("transport", name).with("connections", connections)
            }
        };
        let mut provenance = started.provenance(Some(self.seed), 1);
        provenance.command.clone_from(&run.measured.command);
        provenance.environment.clone_from(&self.environment);
        let record = Record::new(NAME, Source::Measured, point)
            .value("goodput_bps", run.measured.goodput_gbps * 1e9)
            .from_run(provenance);
        match run.measured.retransmissions {
            Some(count) => record.value("retransmissions", count as f64),
            None => record,
        }
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
        let rate = self.rate.as_bps() as f64 / 1e9;
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
    use longhaul_bench::{Report, ResultFile};

    /// Results of all but the first cell of `--quick`.
    fn results() -> Results {
        let rate = BitRate::from_gbps(10).unwrap();
        let mut results = Results::new(rate, 1, [("kernel".into(), "6.1".into())].into());
        for (i, cell) in cell::quick().iter().enumerate().skip(1) {
            let goodput_gbps = i as f64 / 2.0;
            let command = "ib_write_bw -p 1".to_owned();
            let measured = Measured { goodput_gbps, retransmissions: None, command };
            results.runs.push(Run::new(cell, measured));
        }
        results
    }

    #[test]
    fn the_table_has_a_row_per_transport_and_a_column_per_path() {
        assert_eq!(
            results().table(),
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

    #[test]
    fn the_file_has_a_record_per_run_and_makes_a_report() {
        let path = std::env::temp_dir().join(format!("longhaul-demo-{}", std::process::id()));
        let mut writer = Results::create(&path).unwrap();
        let all = results();
        let mut written = Results { runs: Vec::new(), ..results() };
        for run in all.runs {
            written.add(run, Started::now(), &mut writer).unwrap();
        }
        let file = ResultFile::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((file.records.len(), written.runs.len(), &file.damage), (11, 11, &None));
        let first = &file.records[0];
        assert_eq!(first.values["goodput_bps"], 0.5e9);
        let provenance = first.provenance.as_ref().unwrap();
        assert_eq!((provenance.seed, &*provenance.environment["kernel"]), (Some(1), "6.1"));
        let text = Report::of_files("", &[(path, file)]).text();
        assert!(text.contains("TCP BBR") && text.contains("RDMA, accelerated"), "{text}");
    }
}
