//! Pictures of the middle of single runs: rates of devices, fill of their send queues and processor
//! time, over time.

use crate::distributions::Picture;
use crate::plot::{Line, Marker, Plot, PlotAxis, Scale, Style};
use crate::point::Point;
use crate::quantity::Quantity;
use crate::record::Record;

/// Runs with pictures: the first of each point.
const RUNS_MAX: usize = 12;
/// Endings of the samples that are series over time, and what a picture of them shows.
const SERIES: [(&str, &str); 3] = [
    ("_bps", "rate"),
    (".send_queue_fill", "send requests in the queues"),
    (".cpu_percent", "processor time"),
];

/// The series of one run.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    point: Point,
    interval_s: f64,
    series: Vec<(String, Vec<f64>)>,
}

impl Timeline {
    /// Those of the first run of each point that has any.
    pub fn of(records: &[Record]) -> Vec<Self> {
        let mut all: Vec<Timeline> = Vec::new();
        for record in records {
            let Some(interval_s) = record.sample_s else { continue };
            if all.len() == RUNS_MAX || all.iter().any(|known| known.point == record.point) {
                continue;
            }
            let is_series = |name: &str| SERIES.iter().any(|(end, _)| is_of(name, end));
            let series = record.samples.iter().filter(|(name, _)| is_series(name));
            let series: Vec<_> =
                series.map(|(name, figures)| (name.clone(), figures.clone())).collect();
            if !series.is_empty() {
                all.push(Timeline { point: record.point.clone(), interval_s, series });
            }
        }
        all
    }

    /// A picture of each kind of series; `place` names the run's point.
    pub fn pictures(&self, place: impl Fn(&Point) -> String) -> Vec<Picture> {
        let of_kind = |(end, what): &(&str, &str)| {
            let lines: Vec<Line> = self
                .series
                .iter()
                .filter(|(name, _)| is_of(name, end))
                .enumerate()
                .map(|(number, (name, figures))| self.line(number, name, figures))
                .collect();
            let key = format!("x{end}").replace("x.", "x_");
            let times = lines.iter().flat_map(|line| &line.points).map(|(time, _)| *time);
            let figures = lines.iter().flat_map(|line| &line.points).map(|(_, figure)| *figure);
            let figures = figures.chain([0.0]);
            let is_empty = lines.iter().all(|line| line.points.is_empty());
            let plot = Plot {
                title: format!("{what} over the middle of a run, {}", place(&self.point)),
                x: PlotAxis::of("time_s", "time", times, Some(Scale::Linear)),
                y: PlotAxis::of(&key, what, figures, Some(Scale::Linear)),
                lines: lines.clone(),
                key: Vec::new(),
                note: format!("every {}", Quantity::of("interval_s").humanised(self.interval_s)),
            };
            (!is_empty).then_some(Picture::Plot(plot))
        };
        SERIES.iter().filter_map(of_kind).collect()
    }

    fn line(&self, series: usize, name: &str, figures: &[f64]) -> Line {
        let label = SERIES.iter().find_map(|(end, _)| name.strip_suffix(end)).unwrap_or(name);
        let points = figures.iter().enumerate();
        Line {
            label: label.replace('.', " "),
            series,
            style: Style::Solid,
            marker: Marker::None,
            points: points.map(|(at, figure)| (at as f64 * self.interval_s, *figure)).collect(),
        }
    }
}

/// Whether a sample is a series of this kind: rates are those of devices.
fn is_of(name: &str, end: &str) -> bool {
    name.ends_with(end) && name.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    fn record(qps: u32, sample_s: Option<f64>) -> Record {
        let point = Point::new().with("qps", qps);
        let record = Record::new("x", Source::Measured, point)
            .with_samples("a.sent_bps", vec![1e9, 2e9])
            .with_samples("ib_write_bw-1.cpu_percent", vec![90.0, 80.0])
            .with_samples("a.send_queue_fill", vec![128.0, 120.0])
            .with_samples("latency_ns", vec![1.0]);
        Record { sample_s, ..record }
    }

    #[test]
    fn the_first_run_of_a_point_has_a_picture_of_each_kind() {
        let records = [record(1, Some(0.01)), record(1, Some(0.01)), record(2, None)];
        let all = Timeline::of(&records);
        assert_eq!(all.len(), 1);
        let pictures = all[0].pictures(|point| point.to_string());
        assert_eq!(pictures.len(), 3);
        let Picture::Plot(fill) = &pictures[1] else { panic!("no plot") };
        assert_eq!((fill.lines[0].label.as_str(), fill.lines[0].points[0].1), ("a", 128.0));
        let Picture::Plot(plot) = &pictures[0] else { panic!("no plot") };
        assert_eq!(plot.lines[0].points.len(), 2);
        assert_eq!((plot.lines[0].label.as_str(), plot.lines[0].points[1].0), ("a sent", 0.01));
        assert!(plot.svg().unwrap().contains("every 10 ms"));
    }
}
