//! The JSON of fio.

use super::{NoResult, Values, json};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Direction,
    write: Direction,
    verify: Option<Verify>,
}

#[derive(Deserialize)]
struct Direction {
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    min: f64,
    max: f64,
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Verify {
    mismatches: u64,
}

/// Percentiles of results, with fio's names.
const PERCENTILES: [(&str, &str); 3] =
    [("median", "50.000000"), ("p99", "99.000000"), ("p999", "99.900000")];

/// Rates of all jobs together; latencies of the first, which has all jobs with fio's
/// `group_reporting`.
pub fn read(output: &str) -> Result<Values, NoResult> {
    let report: Report = json(output, "fio")?;
    let mut values = Values::new();
    let mut add = |name: String, value: f64| *values.entry(name).or_insert(0.0) += value;
    for (number, job) in report.jobs.iter().enumerate() {
        if let Some(Verify { mismatches: 1.. }) = job.verify {
            return Err(NoResult::new("verification found other data than were written"));
        }
        for (name, direction) in [("read", &job.read), ("write", &job.write)] {
            if direction.total_ios == 0 {
                continue;
            }
            add("goodput_bps".to_owned(), direction.bw_bytes * 8.0);
            add("total_iops".to_owned(), direction.iops);
            add(format!("{name}_bps"), direction.bw_bytes * 8.0);
            add(format!("{name}_iops"), direction.iops);
            if number > 0 {
                continue;
            }
            let latency = &direction.clat_ns;
            for (part, ns) in [("min", latency.min), ("mean", latency.mean), ("max", latency.max)] {
                add(format!("{name}_latency_{part}_ns"), ns);
            }
            for (part, percentile) in PERCENTILES {
                if let Some(ns) = latency.percentile.get(percentile) {
                    add(format!("{name}_latency_{part}_ns"), *ns);
                }
            }
        }
    }
    if values.is_empty() {
        return Err(NoResult::new("no operation was completed"));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_summed_and_latencies_kept_apart() {
        let side = |ios: u64| {
            format!(
                r#"{{"bw_bytes": 4096000, "iops": 1000.5, "total_ios": {ios}, "clat_ns":
                    {{"min": 1, "max": 9, "mean": 4.5, "percentile": {{"99.000000": 8}}}}}}"#
            )
        };
        let job =
            |reads, writes| format!("{{\"read\":{},\"write\":{}}}", side(reads), side(writes));
        let values = read(&format!("{{\"jobs\":[{}]}}", job(5, 0))).unwrap();
        assert_eq!((values["goodput_bps"], values["total_iops"]), (32_768_000.0, 1000.5));
        assert_eq!((values["read_latency_p99_ns"], values["read_latency_mean_ns"]), (8.0, 4.5));
        assert!(!values.contains_key("write_iops"));
        let both = read(&format!("{{\"jobs\":[{},{}]}}", job(1, 1), job(1, 0))).unwrap();
        assert_eq!((both["total_iops"], both["read_iops"]), (3001.5, 2001.0));
        assert_eq!(both["write_latency_max_ns"], 9.0);
        assert!(read(&format!("{{\"jobs\":[{}]}}", job(0, 0))).is_err());
        let damaged = format!(
            "{{\"jobs\":[{{\"read\":{},\"write\":{},\"verify\":{{\"mismatches\":1}}}}]}}",
            side(1),
            side(0)
        );
        assert!(read(&damaged).unwrap_err().0.contains("other data"));
        assert!(read("fio: failed").unwrap_err().0.starts_with("fio printed no result"));
    }
}
