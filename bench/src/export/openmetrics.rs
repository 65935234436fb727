//! OpenMetrics text: a gauge for each value, in base units, at the time of its run.

use crate::quantity::Quantity;
use crate::record::{Record, unix_s};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Labels of every sample.
const LABELS: [&str; 3] = ["experiment", "source", "run"];

/// A gauge.
#[derive(Default)]
struct Family {
    unit: &'static str,
    samples: String,
}

/// `records` as OpenMetrics 1.0. Labels are the parameters, and `run`, the number of the record
/// among those of its source and point. Single observations are left out.
pub fn openmetrics(records: &[Record]) -> String {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut runs = BTreeMap::new();
    for record in records {
        let place = (&record.experiment, record.source, &record.point);
        let run = runs.entry(place).or_insert(0);
        *run += 1;
        let labels = labels(record, *run);
        let at = record.provenance.as_ref().and_then(|made| unix_s(&made.started_at));
        let at = at.map_or(String::new(), |at| format!(" {at}"));
        for (value, figure) in &record.values {
            let quantity = Quantity::of(value);
            let (unit, base) = quantity.base();
            let name = name(value, unit);
            let family = families.entry(name.clone()).or_default();
            family.unit = unit;
            // Writing to a String cannot fail.
            let _ = writeln!(family.samples, "{name}{{{labels}}} {}{at}", figure * base);
        }
    }
    let mut text = String::new();
    for (name, Family { unit, samples }) in families {
        let _ = writeln!(text, "# TYPE {name} gauge");
        if !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        text += &samples;
    }
    text + "# EOF\n"
}

/// Name of a family, which ends in its unit.
fn name(value: &str, unit: &str) -> String {
    let stem = Quantity::stem(value);
    let separator = if unit.is_empty() { "" } else { "_" };
    format!("longhaul_{}{separator}{unit}", word(stem))
}

/// `text` with underscores for what a name cannot have.
fn word(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn labels(record: &Record, run: usize) -> String {
    let mut labels: Vec<(String, String)> = vec![
        (LABELS[0].to_owned(), record.experiment.clone()),
        (LABELS[1].to_owned(), record.source.name().to_owned()),
        (LABELS[2].to_owned(), run.to_string()),
    ];
    let mut taken: BTreeSet<String> = LABELS.map(str::to_owned).into();
    for (key, value) in record.point.iter() {
        let mut label = word(key);
        // Names begin with a letter, and those with two underscores are reserved.
        if !label.starts_with(|c: char| c.is_ascii_alphabetic()) || taken.contains(&label) {
            label = format!("parameter_{label}");
        }
        while !taken.insert(label.clone()) {
            label.push('_');
        }
        labels.push((label, value.to_string()));
    }
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Provenance, Source};

    #[test]
    fn families_have_base_units_and_samples_stand_together() {
        let point = Point::new().with("path.loss", 1e-3).with("run", "a\"b").with("path_loss", 2);
        let made =
            Provenance { started_at: "2026-01-02T03:04:05Z".to_owned(), ..Provenance::default() };
        let record = Record::new("x", Source::Measured, point)
            .value("latency_us", 250.0)
            .value("lost_frames", 3.0);
        let records = [record.clone(), record.from_run(made)];
        let labels = |run: u32| {
            format!(
                "{{experiment=\"x\",source=\"measured\",run=\"{run}\",path_loss=\"0.001\",\
                 parameter_path_loss=\"2\",parameter_run=\"a\\\"b\"}}"
            )
        };
        let (one, two) = (labels(1), labels(2));
        assert_eq!(
            openmetrics(&records),
            format!(
                "# TYPE longhaul_latency_seconds gauge\n# UNIT longhaul_latency_seconds seconds\n\
                 longhaul_latency_seconds{one} 0.00025\n\
                 longhaul_latency_seconds{two} 0.00025 1767323045\n\
                 # TYPE longhaul_lost_frames gauge\n\
                 longhaul_lost_frames{one} 3\nlonghaul_lost_frames{two} 3 1767323045\n# EOF\n"
            )
        );
        assert_eq!(openmetrics(&[]), "# EOF\n");
    }
}
