//! Records in the formats of other programs.

mod command;
mod openmetrics;
mod perftest;
mod pscheduler;

pub use openmetrics::openmetrics;
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

/// One line for each value and each single observation of each record, in full and in the units of
/// the names: what analyses of repeated runs begin with.
pub fn csv(records: &[Record]) -> String {
    let parameters: BTreeSet<&str> =
        records.iter().flat_map(|record| record.point.iter().map(|(key, _)| key)).collect();
    // A parameter of the name of another column would be taken for it.
    let named = |key: &&str| {
        let is_taken = BEFORE.iter().chain(&BEHIND).any(|column| column == key);
        if is_taken { format!("parameter_{key}") } else { (*key).to_owned() }
    };
    let mut lines = vec![
        BEFORE
            .map(str::to_owned)
            .into_iter()
            .chain(parameters.iter().map(named))
            .chain(BEHIND.map(str::to_owned))
            .collect::<Vec<String>>(),
    ];
    for record in records {
        let of_point = parameters
            .iter()
            .map(|key| record.point.get(key).map_or(String::new(), ToString::to_string));
        let first = [record.experiment.clone(), record.source.name().to_owned()];
        let mut begin: Vec<String> = first.into_iter().chain(of_point).collect();
        let made = record.provenance.clone().unwrap_or_default();
        let optional = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
        begin.extend([
            optional(made.repeat.map(u64::from)),
            optional(made.seed),
            made.started_at,
            made.host,
            made.command,
            record.note.clone().unwrap_or_default(),
        ]);
        let mut line = |value: &str, sample: String, figure: String, failed: &str| {
            let end = [value.to_owned(), sample, figure, failed.to_owned()];
            lines.push(begin.iter().cloned().chain(end).collect());
        };
        for (value, figure) in &record.values {
            line(value, String::new(), figure.to_string(), "");
        }
        for (value, samples) in &record.samples {
            for (number, sample) in (1..).zip(samples) {
                line(value, i32::to_string(&number), sample.to_string(), "");
            }
        }
        for (value, why) in &record.failed {
            line(value, String::new(), String::new(), why);
        }
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
