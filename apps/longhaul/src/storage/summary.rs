//! What a load measured, for people and programs.

use super::spdk::Report;
use hdrhistogram::Histogram;
use longhaul_boxes::quantity::Size;
use longhaul_storage::load::{Direction, Load, Mismatch, Mix, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Percentiles of the JSON form: fio's default list.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];
/// Percentiles of the text form.
const SHOWN: [f64; 4] = [50.0, 99.0, 99.9, 99.99];

/// One JSON object in fio's form; `verify` is in addition.
#[derive(Debug, Serialize)]
pub struct Summary {
    #[serde(rename = "longhaul version")]
    version: &'static str,
    #[serde(rename = "global options")]
    options: BTreeMap<&'static str, String>,
    jobs: [Job; 1],
}

/// All jobs together, as with fio's group reporting.
#[derive(Debug, Serialize)]
struct Job {
    jobname: &'static str,
    read: Side,
    write: Side,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verify>,
}

#[derive(Debug, Serialize)]
struct Side {
    io_bytes: u64,
    /// Bytes per second.
    bw_bytes: u64,
    iops: f64,
    /// Milliseconds.
    runtime: u64,
    total_ios: u64,
    clat_ns: Latency,
}

#[derive(Debug, Serialize)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stddev: Option<f64>,
    #[serde(rename = "N")]
    samples: u64,
    percentile: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct Verify {
    verified: u64,
    mismatches: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_mismatch: Option<Place>,
}

#[derive(Debug, Serialize)]
struct Place {
    block: u64,
    offset: u32,
    version: u32,
}

/// What a check of a record found, for programs.
#[derive(Debug, Serialize)]
pub struct Checked {
    checked: u64,
    lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_lost: Option<Place>,
}

impl Checked {
    /// Of a check's outcome.
    pub fn of(outcome: &Outcome) -> Self {
        Checked {
            checked: outcome.verified,
            lost: outcome.mismatches,
            first_lost: outcome.first_mismatch.map(Place::of),
        }
    }

    /// The text form.
    pub fn text(&self) -> String {
        let mut text = format!("{} written places read: {} lost\n", self.checked, self.lost);
        if let Some(Place { block, offset, version }) = &self.first_lost {
            text += &format!(
                "  first: byte {offset} of the operation at block {block}, whose write {version} \
                 was acknowledged\n"
            );
        }
        text
    }
}

impl Place {
    fn of(Mismatch { block, at, version }: Mismatch) -> Self {
        Place { block, offset: at, version }
    }
}

impl Summary {
    /// Of a load and its outcome.
    pub fn of(load: &Load, outcome: &Outcome) -> Self {
        let verify = load.verify.then(|| Verify {
            verified: outcome.verified,
            mismatches: outcome.mismatches,
            first_mismatch: outcome.first_mismatch.map(Place::of),
        });
        let side = |direction| Side::of(direction, outcome.runtime);
        let (read, write) = (side(&outcome.reads), side(&outcome.writes));
        Summary::with(load, Job { jobname: "longhaul", read, write, verify })
    }

    /// Of a load that SPDK generated for `runtime`. It counts reads and writes together, so that a
    /// mix is divided as it was requested, and both have the same latency.
    pub fn of_spdk(load: &Load, report: &Report, runtime: Duration) -> Self {
        let reads = match load.pattern.mix {
            Mix::Read => 1.0,
            Mix::Write => 0.0,
            Mix::Both => f64::from(load.read_percent) / 100.0,
        };
        let side = |share: f64| Side::of_spdk(report, share, load.block_bytes, runtime);
        let job =
            Job { jobname: "spdk", read: side(reads), write: side(1.0 - reads), verify: None };
        Summary::with(load, job)
    }

    fn with(load: &Load, job: Job) -> Self {
        let options = BTreeMap::from([
            ("rw", load.pattern.to_string()),
            ("bs", load.block_bytes.to_string()),
            ("iodepth", load.depth.to_string()),
            ("numjobs", load.jobs.to_string()),
            ("rwmixread", load.read_percent.to_string()),
            ("ramp_time", load.ramp.as_secs().to_string()),
        ]);
        Summary { version: env!("CARGO_PKG_VERSION"), options, jobs: [job] }
    }

    /// The text form.
    pub fn text(&self, load: &Load) -> String {
        let [job] = &self.jobs;
        let sides = [("read", &job.read), ("write", &job.write)];
        let sides = || sides.iter().filter(|(_, side)| side.total_ios > 0);
        let runtime = sides().map(|(_, side)| side.runtime).max().unwrap_or(0);
        let jobs = if load.jobs == 1 { "job" } else { "jobs" };
        let mut text = format!(
            "{}, {}, depth {}, {} {jobs}, {:.1} s\n",
            load.pattern,
            Size::from_bytes(load.block_bytes.into()),
            load.depth,
            load.jobs,
            runtime as f64 / 1e3
        );
        for (name, side) in sides() {
            text += &side.text(name);
        }
        if let Some(Verify { verified, mismatches, first_mismatch }) = &job.verify {
            text += &format!("  verified {verified} operations' data: {mismatches} differ\n");
            if let Some(Place { block, offset, version }) = first_mismatch {
                text += &format!(
                    "  first: byte {offset} of the operation at block {block}, after {version} \
                     writes there\n"
                );
            }
        }
        text
    }
}

fn per_second(count: u64, runtime: Duration) -> f64 {
    if runtime.is_zero() { 0.0 } else { count as f64 / runtime.as_secs_f64() }
}

impl Side {
    fn of(direction: &Direction, runtime: Duration) -> Self {
        Side {
            io_bytes: direction.bytes,
            bw_bytes: per_second(direction.bytes, runtime) as u64,
            iops: per_second(direction.operations, runtime),
            runtime: runtime.as_millis() as u64,
            total_ios: direction.operations,
            clat_ns: Latency::of(&direction.latency),
        }
    }

    fn of_spdk(report: &Report, share: f64, block_bytes: u32, runtime: Duration) -> Self {
        let iops = report.iops * share;
        let operations = (iops * runtime.as_secs_f64()).round() as u64;
        Side {
            io_bytes: operations * u64::from(block_bytes),
            bw_bytes: (iops * f64::from(block_bytes)) as u64,
            iops,
            runtime: runtime.as_millis() as u64,
            total_ios: operations,
            clat_ns: Latency::of_spdk(report, operations),
        }
    }

    fn text(&self, name: &str) -> String {
        let us = |ns: u64| ns as f64 / 1e3;
        let Latency { min, max, mean, percentile, .. } = &self.clat_ns;
        let shown = SHOWN.iter().filter_map(|shown| {
            let ns = percentile.get(&format!("{shown:.6}"))?;
            Some(format!(" {shown} % {:.1},", us(*ns)))
        });
        format!(
            "  {name}: {:.0} IOPS, {:.3} Gbit/s\n    latency in µs: min {:.1}, mean {:.1},{} max \
             {:.1}\n",
            self.iops,
            self.bw_bytes as f64 * 8e-9,
            us(*min),
            mean / 1e3,
            shown.collect::<String>(),
            us(*max)
        )
    }
}

impl Latency {
    fn of(latency: &Histogram<u64>) -> Self {
        let at = |percentile| (format!("{percentile:.6}"), latency.value_at_percentile(percentile));
        Latency {
            min: if latency.is_empty() { 0 } else { latency.min() },
            max: latency.max(),
            mean: latency.mean(),
            stddev: Some(latency.stdev()),
            samples: latency.len(),
            percentile: PERCENTILES.into_iter().map(at).collect(),
        }
    }

    fn of_spdk(report: &Report, samples: u64) -> Self {
        let Report { latency_us: [least, mean, greatest], percentiles_ns, .. } = report;
        let ns = |us: &f64| (us * 1e3).round() as u64;
        Latency {
            min: ns(least),
            max: ns(greatest),
            mean: mean * 1e3,
            stddev: None,
            samples,
            percentile: percentiles_ns.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_storage::load::Until;

    fn load(pattern: &str, verify: bool) -> Load {
        Load {
            pattern: pattern.parse().unwrap(),
            block_bytes: 4096,
            depth: 8,
            jobs: 2,
            read_percent: 75,
            until: Until::Time(Duration::from_secs(2)),
            ramp: Duration::ZERO,
            bytes: None,
            namespace: None,
            verify,
            seed: 1,
        }
    }

    #[test]
    fn a_mix_of_spdk_is_divided_as_requested() {
        let percentiles_ns = BTreeMap::from([("99.000000".to_owned(), 9000)]);
        let report =
            Report { iops: 1000.0, failures: 0.0, latency_us: [2.5, 4.0, 90.0], percentiles_ns };
        let load = load("randrw", false);
        let summary = Summary::of_spdk(&load, &report, Duration::from_secs(3));
        let json = serde_json::to_value(&summary).unwrap();
        let job = &json["jobs"][0];
        assert_eq!((&job["jobname"], &job["read"]["iops"]), (&"spdk".into(), &750.0.into()));
        assert_eq!(
            (&job["write"]["total_ios"], &job["write"]["io_bytes"]),
            (&750.into(), &3_072_000.into())
        );
        assert_eq!(job["read"]["clat_ns"]["percentile"]["99.000000"], 9000);
        assert!(job["read"]["clat_ns"].get("stddev").is_none());
        let text = summary.text(&load);
        assert!(text.contains("min 2.5, mean 4.0, 99 % 9.0, max 90.0"), "{text}");
    }

    #[test]
    fn figures_are_those_of_the_outcome() {
        let load = load("randread", true);
        let mut outcome = Outcome { runtime: Duration::from_secs(2), ..Outcome::default() };
        outcome.reads.operations = 1000;
        outcome.reads.bytes = 4_096_000;
        outcome.reads.latency.record_n(5000, 1000).unwrap();
        outcome.mismatches = 1;
        outcome.first_mismatch = Some(Mismatch { block: 8, at: 3, version: 2 });
        let json = serde_json::to_value(Summary::of(&load, &outcome)).unwrap();
        let read = &json["jobs"][0]["read"];
        assert_eq!((&read["iops"], &read["bw_bytes"]), (&500.0.into(), &2_048_000.into()));
        assert_eq!(read["clat_ns"]["percentile"]["99.990000"], 5003);
        assert_eq!(json["jobs"][0]["write"]["total_ios"], 0);
        assert_eq!(json["jobs"][0]["verify"]["first_mismatch"]["block"], 8);
        let text = Summary::of(&load, &outcome).text(&load);
        assert!(text.starts_with("randread, 4 KiB, depth 8, 2 jobs, 2.0 s\n"), "{text}");
        assert!(text.contains("read: 500 IOPS, 0.016 Gbit/s"), "{text}");
        assert!(text.contains("after 2 writes there") && !text.contains("write:"), "{text}");
    }
}
