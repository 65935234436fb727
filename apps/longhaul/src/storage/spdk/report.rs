//! What `bdevperf` prints at its end: a table with a row for all its jobs together, and with `-l`
//! percentiles of latency. Its columns are the same from SPDK 22.01 to 26.05.

use std::collections::BTreeMap;
use thiserror::Error;

/// Figures of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Operations per second that were completed.
    pub iops: f64,
    /// Operations per second that failed or timed out.
    pub failures: f64,
    /// Latencies in µs, least, mean and greatest.
    pub latency_us: [f64; 3],
    /// Percentiles of latency in ns by fio's names; of the last job only.
    pub percentiles_ns: BTreeMap<String, u64>,
}

/// There is no such table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("bdevperf printed no table of results")]
pub struct UnknownReport;

impl Report {
    /// Reads what was printed.
    ///
    /// # Errors
    /// If the table is not there.
    pub fn read(text: &str) -> Result<Self, UnknownReport> {
        let total = text.lines().find_map(|line| {
            let (name, figures) = line.split_once(':')?;
            (name.trim() == "Total").then_some(figures)
        });
        let figures = total.ok_or(UnknownReport)?.split_whitespace().map(str::parse);
        let figures: Vec<f64> = figures.collect::<Result<_, _>>().map_err(|_| UnknownReport)?;
        // IOPS, MiB/s, failures and time-outs per second, mean, least and greatest latency.
        let &[iops, _, failed, timed_out, mean, least, greatest] = &figures[..] else {
            return Err(UnknownReport);
        };
        Ok(Report {
            iops,
            failures: failed + timed_out,
            latency_us: [least, mean, greatest],
            percentiles_ns: text.lines().filter_map(percentile).collect(),
        })
    }
}

/// A line `99.00000% :   152.064us`.
fn percentile(line: &str) -> Option<(String, u64)> {
    let (percentage, latency) = line.split_once("% :")?;
    let percentage: f64 = percentage.trim().parse().ok()?;
    let us: f64 = latency.trim().strip_suffix("us")?.parse().ok()?;
    Some((format!("{percentage:.6}"), (us * 1e3).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_all_jobs_and_the_percentiles_are_read() {
        let text = [
            "Running I/O for 8 seconds...",
            "\r Device Information : runtime(s) IOPS MiB/s Fail/s TO/s Average min max",
            " Job: n1 (Core Mask 0x1)",
            "\t n1 : 8.00 522583.73 2041.34 0.00 0.00 122.42 44.31 12300.60",
            "\r Total : 522583.73 2041.34 0.50 0.25 122.42 44.31 12300.60",
            " Latency summary",
            "  1.00000% :    80.128us",
            " 99.99000% : 300.5us",
        ]
        .join("\n");
        let report = Report::read(&text).unwrap();
        assert_eq!((report.iops, report.failures), (522_583.73, 0.75));
        assert_eq!(report.latency_us, [44.31, 122.42, 12300.6]);
        let named =
            BTreeMap::from([("1.000000".to_owned(), 80128), ("99.990000".to_owned(), 300_500)]);
        assert_eq!(report.percentiles_ns, named);
    }

    #[test]
    fn anything_else_is_no_report() {
        for text in ["", "Total: 1 2 3", "Total : a b c d e f g", "total : 1 2 3 4 5 6 7"] {
            assert_eq!(Report::read(text), Err(UnknownReport), "{text}");
        }
    }
}
