//! Records in the formats of other programs.

mod command;
mod openmetrics;
mod parquet;
mod perftest;
mod pscheduler;

pub use openmetrics::openmetrics;
pub use parquet::{ParquetError, parquet};
pub use perftest::perftest;
pub use pscheduler::pscheduler;

use crate::csv::written;
use crate::record::Record;
use std::collections::BTreeSet;

/// Columns before the parameters, and behind them.
const BEFORE: [&str; 2] = ["experiment", "source"];
const BEHIND: [&str; 10] = [
    "repeat",
    "seed",
    "started_at",
    "host",
    "command",
    "note",
    "value",
    "sample",
    "figure",
    "failed",
];

/// A value, an observation or a failure of a record.
struct Line<'a> {
    record: &'a Record,
    value: &'a str,
    /// Number of the observation, from 1; `None` for a value.
    sample: Option<u64>,
    figure: Option<f64>,
    failed: Option<&'a str>,
}

/// The lines of all records, in their order.
fn lines_of(records: &[Record]) -> impl Iterator<Item = Line<'_>> {
    records.iter().flat_map(|record| {
        let line =
            move |value, sample, figure, failed| Line { record, value, sample, figure, failed };
        let values = record
            .values
            .iter()
            .map(move |(value, figure)| line(value.as_str(), None, Some(*figure), None));
        let samples = record.samples.iter().flat_map(move |(value, samples)| {
            let numbered = (1..).zip(samples);
            numbered.map(move |(number, sample)| line(value, Some(number), Some(*sample), None))
        });
        let failed = record
            .failed
            .iter()
            .map(move |(value, why)| line(value.as_str(), None, None, Some(why.as_str())));
        values.chain(samples).chain(failed)
    })
}

/// Names of all parameters.
fn parameters(records: &[Record]) -> BTreeSet<&str> {
    records.iter().flat_map(|record| record.point.iter().map(|(key, _)| key)).collect()
}

/// The column of a parameter. One of the name of another column would be taken for it.
fn column(parameter: &str) -> String {
    let is_taken = BEFORE.iter().chain(&BEHIND).any(|column| *column == parameter);
    if is_taken { format!("parameter_{parameter}") } else { parameter.to_owned() }
}

/// One line for each value and each single observation of each record, in full and in the units of
/// the names: what analyses of repeated runs begin with.
pub fn csv(records: &[Record]) -> String {
    let parameters = parameters(records);
    let mut lines = vec![
        BEFORE
            .map(str::to_owned)
            .into_iter()
            .chain(parameters.iter().map(|key| column(key)))
            .chain(BEHIND.map(str::to_owned))
            .collect::<Vec<String>>(),
    ];
    for line in lines_of(records) {
        let Line { record, value, sample, figure, failed } = line;
        let of_point = parameters
            .iter()
            .map(|key| record.point.get(key).map_or(String::new(), ToString::to_string));
        let first = [record.experiment.clone(), record.source.name().to_owned()];
        let made = record.provenance.clone().unwrap_or_default();
        let optional = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
        let behind = [
            optional(made.repeat.map(u64::from)),
            optional(made.seed),
            made.started_at,
            made.host,
            made.command,
            record.note.clone().unwrap_or_default(),
            value.to_owned(),
            optional(sample),
            figure.map_or(String::new(), |figure| figure.to_string()),
            failed.unwrap_or_default().to_owned(),
        ];
        lines.push(first.into_iter().chain(of_point).chain(behind).collect());
    }
    written(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Provenance, Source};

    #[test]
    fn a_line_has_one_figure() {
        let point = Point::new().with("op", "a, \"b\"").with("value", 7).with("qps", 0.5);
        let made = Provenance { repeat: Some(2), host: "h".to_owned(), ..Provenance::default() };
        let record = Record::new("x", Source::Measured, point)
            .value("goodput_bps", 0.1 + 0.2)
            .with_samples("latency_ns", vec![1.0, 2.5])
            .failure("gain", "hung")
            .from_run(made);
        assert_eq!(
            csv(&[record]),
            "experiment,source,op,qps,parameter_value,repeat,seed,started_at,host,command,note,\
             value,sample,figure,failed\n\
             x,measured,\"a, \"\"b\"\"\",0.5,7,2,,,h,,,goodput_bps,,0.30000000000000004,\n\
             x,measured,\"a, \"\"b\"\"\",0.5,7,2,,,h,,,latency_ns,1,1,\n\
             x,measured,\"a, \"\"b\"\"\",0.5,7,2,,,h,,,latency_ns,2,2.5,\n\
             x,measured,\"a, \"\"b\"\"\",0.5,7,2,,,h,,,gain,,,hung\n"
        );
    }
}
