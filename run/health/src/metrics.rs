//! Prometheus' text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Metrics by name, each with all of its samples, as the format requires.
#[derive(Default)]
pub struct Metrics(BTreeMap<String, Metric>);

struct Metric {
    help: String,
    kind: &'static str,
    samples: String,
}

/// Labels for a sample, from pairs of name and value.
#[must_use]
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    parts.join(",")
}

impl Metrics {
    fn sample(&mut self, name: &str, kind: &'static str, help: &str, line: &str) {
        let metric = self.0.entry(name.to_string()).or_insert_with(|| Metric {
            help: help.to_string(),
            kind,
            samples: String::new(),
        });
        metric.samples += line;
    }

    /// Adds a sample of a value that may fall.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &str, value: f64) {
        self.sample(name, "gauge", help, &line(name, labels, &value));
    }

    /// Adds a sample of a count; the metric is called `{name}_total`.
    pub fn count(&mut self, name: &str, help: &str, labels: &str, value: u64) {
        let name = format!("{name}_total");
        self.sample(&name, "counter", help, &line(&name, labels, &value));
    }

    /// Adds a histogram: `buckets` are pairs of inclusive upper bound and the number of values that
    /// no earlier bucket has; the last bound is `f64::INFINITY`.
    pub fn histogram(&mut self, name: &str, help: &str, buckets: &[(f64, u64)], sum: f64) {
        let mut lines = String::new();
        let mut count = 0;
        for (bound, more) in buckets {
            count += more;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_string() };
            let _ = writeln!(lines, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(lines, "{name}_sum {sum}\n{name}_count {count}");
        self.sample(name, "histogram", help, &lines);
    }

    /// Names, kinds and helps of the metrics, by name.
    pub fn described(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.0.iter().map(|(name, metric)| (&**name, metric.kind, &*metric.help))
    }

    /// The samples of a metric, a line each; empty if it has none.
    #[must_use]
    pub fn samples(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |metric| &metric.samples)
    }

    /// The text for a scraper.
    #[must_use]
    pub fn exposition(&self) -> String {
        let mut text = String::new();
        for (name, Metric { help, kind, samples }) in &self.0 {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        }
        text
    }
}

fn line(name: &str, labels: &str, value: &dyn std::fmt::Display) -> String {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    format!("{name}{labels} {value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_together_and_labels_are_escaped() {
        let mut metrics = Metrics::default();
        metrics.gauge("b", "Second.", &labels(&[("x", "a\"\\\n")]), 1.5);
        metrics.count("a", "First.", "", 7);
        metrics.gauge("b", "Second.", "", 2.0);
        assert_eq!(
            metrics.exposition(),
            "# HELP a_total First.\n# TYPE a_total counter\na_total 7\n# HELP b Second.\n# TYPE b \
             gauge\nb{x=\"a\\\"\\\\\\n\"} 1.5\nb 2\n"
        );
        assert_eq!((metrics.samples("a_total"), metrics.samples("c")), ("a_total 7\n", ""));
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut metrics = Metrics::default();
        metrics.histogram("h", "Late.", &[(0.0, 3), (2.0, 0), (f64::INFINITY, 4)], 50.0);
        assert_eq!(
            metrics.samples("h"),
            "h_bucket{le=\"0\"} 3\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"+Inf\"} 7\nh_sum 50\n\
             h_count 7\n"
        );
    }
}
