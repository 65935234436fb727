//! Plots of an assessment.

use crate::assess::{Assessment, Cell, Layout, Series};
use crate::expectation::Tolerance;
use crate::plot::{COLOURS, Line, Marker, Plot, PlotAxis, Scale, Style};
use crate::record::Source;
use std::collections::{BTreeMap, BTreeSet};

/// Series in one plot; beyond that it is split.
const SERIES_MAX: usize = COLOURS.len();
/// Series in one plot; as many are split where they lie on each other.
const CROWD: usize = 6;
/// Width of a marker, as a share of the y axis.
const MARKER_SHARE: f64 = 0.02;

/// How each source is drawn.
fn look(source: Source) -> (Style, Marker) {
    match source {
        Source::Published | Source::Theory => (Style::Points, Marker::Hollow),
        Source::Predicted => (Style::Dashed, Marker::None),
        Source::Simulated => (Style::Solid, Marker::Filled),
        Source::Measured => (Style::Dotted, Marker::Filled),
    }
}

/// Plots of each value: over the row parameter, a line for each series and source, one plot for
/// each panel. Of scattered points, deviations over the reference.
pub fn figures(assessment: &Assessment) -> Vec<Plot> {
    let mut plots = Vec::new();
    for value in assessment.values() {
        let cells: Vec<&Cell> =
            assessment.cells().iter().filter(|cell| cell.value == value).collect();
        if assessment.layout().x.is_some() {
            over_rows(assessment, value, &cells, &mut plots);
        } else {
            plots.extend(deviations(assessment, value, &cells));
        }
    }
    plots
}

/// Whether some of many series lie on each other: at most of the places that two of them share,
/// they are closer than the width of a marker.
fn is_crowded(layout: &Layout, cells: &[&Cell], series: &BTreeSet<Series>) -> bool {
    if series.len() < CROWD {
        return false;
    }
    let mut curves: BTreeMap<Series, BTreeMap<Option<usize>, f64>> = BTreeMap::new();
    for cell in cells {
        let Some(figure) = cell.figures.values().next() else { continue };
        let curve = curves.entry(layout.series(&cell.point)).or_default();
        curve.insert(layout.x_place(&cell.point), figure.mean);
    }
    let curves: Vec<_> = curves.into_values().collect();
    let figures = || curves.iter().flat_map(BTreeMap::values).copied();
    let span = figures().fold(0.0, f64::max) - figures().fold(f64::INFINITY, f64::min);
    let overlap = |a: &BTreeMap<_, f64>, b: &BTreeMap<_, f64>| {
        let shared = || a.iter().filter_map(|(place, figure)| Some((figure, b.get(place)?)));
        let close = shared().filter(|(a, b)| (*a - *b).abs() <= MARKER_SHARE * span).count();
        close > 0 && close * 2 > shared().count()
    };
    curves.iter().enumerate().any(|(i, a)| curves[i + 1..].iter().any(|b| overlap(a, b)))
}

/// What tells plots of one value apart: the panel parameter, or when there are too many series, the
/// first parameter.
fn splitting<'a>(
    layout: &'a Layout,
    series: &BTreeSet<Series>,
    is_crowded: bool,
) -> Option<&'a str> {
    let first = || layout.varying.first().map(String::as_str);
    let too_many = (series.len() > SERIES_MAX || is_crowded) && layout.varying.len() > 1;
    layout.panel.as_deref().or_else(|| if too_many { first() } else { None })
}

fn over_rows(assessment: &Assessment, value: &str, cells: &[&Cell], plots: &mut Vec<Plot>) {
    let layout = assessment.layout();
    let all: BTreeSet<Series> = cells.iter().map(|cell| layout.series(&cell.point)).collect();
    let split = splitting(layout, &all, is_crowded(layout, cells, &all));
    let mut panels: Vec<(String, Vec<Series>)> = Vec::new();
    for cell in cells {
        let series = layout.series(&cell.point);
        let name = layout.series_name(&series, |key| Some(key) == split);
        match panels.last_mut() {
            Some((last, panel)) if *last == name && panel.contains(&series) => {}
            Some((last, panel)) if *last == name && panel.len() < SERIES_MAX => panel.push(series),
            _ => panels.push((name, vec![series])),
        }
    }
    let panels: Vec<(String, Vec<Line>)> = panels
        .into_iter()
        .map(|(name, panel)| (name, lines(assessment, cells, &panel, split)))
        .collect();
    // Panels have the same axes, so that they can be compared.
    let places =
        || panels.iter().flat_map(|(_, lines)| lines).flat_map(|line| line.points.iter().copied());
    let x = layout.x.as_deref().unwrap_or_default();
    let x = match layout.x_names() {
        Some(names) => PlotAxis::of_names(&layout.name(x), &names),
        None => PlotAxis::of(x, &layout.name(x), places().map(|place| place.0), None),
    };
    let y = PlotAxis::of(value, &layout.name(value), places().map(|place| place.1), None);
    for (name, lines) in panels {
        // One point is no curve: the table says it.
        if lines.iter().all(|line| line.points.len() < 2) {
            continue;
        }
        let title = if name.is_empty() {
            layout.name(value)
        } else {
            format!("{}, {name}", layout.name(value))
        };
        let (x, y, note) = (x.clone(), y.clone(), String::new());
        plots.push(Plot { title, x, y, key: key(assessment, cells), lines, note });
    }
}

fn lines(
    assessment: &Assessment,
    cells: &[&Cell],
    panel: &[Series],
    split: Option<&str>,
) -> Vec<Line> {
    let layout = assessment.layout();
    let x = layout.x.as_deref().unwrap_or_default();
    let has_names = layout.x_names().is_some();
    let mut lines = Vec::new();
    for (number, series) in panel.iter().enumerate() {
        let label = if panel.len() > 1 {
            layout.series_name(series, |key| Some(key) != split)
        } else {
            String::new()
        };
        for &source in assessment.sources() {
            let (style, marker) = look(source);
            let of_series = cells.iter().filter(|cell| layout.series(&cell.point) == *series);
            let points = of_series.filter_map(|cell| {
                let place = match has_names {
                    true => layout.x_place(&cell.point)? as f64,
                    false => cell.point.get(x)?.as_number()?,
                };
                Some((place, cell.figures.get(&source)?.mean))
            });
            let points = points.collect();
            lines.push(Line { label: label.clone(), series: number, style, marker, points });
        }
    }
    lines.retain(|line| !line.points.is_empty());
    lines
}

fn key(assessment: &Assessment, cells: &[&Cell]) -> Vec<(Style, Marker, String)> {
    let is_there = |source: &&Source| cells.iter().any(|cell| cell.figures.contains_key(source));
    let entry = |source: &Source| {
        let (style, marker) = look(*source);
        (style, marker, source.name().to_owned())
    };
    assessment.sources().iter().filter(is_there).map(entry).collect()
}

/// How far each point lies off, in percent, over its reference.
fn deviations(assessment: &Assessment, value: &str, cells: &[&Cell]) -> Option<Plot> {
    let reference = assessment.reference()?;
    let layout = assessment.layout();
    let mut lines = Vec::new();
    let others = assessment.sources().iter().filter(|source| **source != reference);
    for (series, source) in others.enumerate() {
        let point = |cell: &&Cell| {
            let deviation = cell.judgements.get(source)?.deviation?;
            Some((cell.figures.get(&reference)?.mean, deviation * 100.0))
        };
        let points = cells.iter().filter_map(point).collect();
        let label = source.name().to_owned();
        lines.push(Line { label, series, style: Style::Points, marker: Marker::Filled, points });
    }
    lines.retain(|line| !line.points.is_empty());
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (least, most) = all().fold((f64::INFINITY, 0.0_f64), |(a, b), (x, _)| (a.min(x), b.max(x)));
    if least >= most {
        return None;
    }
    let percents = assessment.experiment().expectations.iter().filter_map(|expectation| {
        match expectation.tolerance {
            Tolerance::Percent(percent) if expectation.value == value => Some(percent),
            _ => None,
        }
    });
    let percent = percents.reduce(f64::max);
    let x_label = format!("{}, {}", layout.name(value), reference.name());
    let x = PlotAxis::of(value, &x_label, all().map(|point| point.0), None);
    let bounds = percent.into_iter().flat_map(|percent| [percent, -percent]);
    let ys = all().map(|point| point.1).chain(bounds.clone());
    let y = PlotAxis::of("deviation_percent", "deviation", ys, Some(Scale::Linear));
    let bound = |percent: f64| Line {
        label: "tolerance".to_owned(),
        series: COLOURS.len() - 1,
        style: Style::Dashed,
        marker: Marker::None,
        points: vec![(least, percent), (most, percent)],
    };
    lines.extend(bounds.map(bound));
    let title = format!("{}: distance from {}", layout.name(value), reference.name());
    Some(Plot { title, x, y, lines, key: Vec::new(), note: String::new() })
}

#[cfg(test)]
mod tests {
    use crate::*;

    fn records(distances: &[u32], depths: &[u32]) -> Vec<Record> {
        let mut records = Vec::new();
        for &km in distances {
            for &depth in depths {
                for bytes in [512, 4096, 65_536] {
                    let point = Point::new()
                        .with("distance_km", km)
                        .with("tx_depth", depth)
                        .with("message_bytes", bytes);
                    records.push(
                        Record::new("x", Source::Simulated, point)
                            .value("goodput_bps", f64::from(bytes) * 1e5),
                    );
                }
            }
        }
        records
    }

    #[test]
    fn a_plot_has_a_line_for_each_series() {
        let plots =
            figures(&Assessment::new(&Experiment::new("x", ""), &records(&[10, 100], &[128])));
        assert_eq!(plots.len(), 1);
        let labels: Vec<_> = plots[0].lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["10 km", "100 km"]);
        assert_eq!((plots[0].x.scale, plots[0].y.scale), (Scale::Log, Scale::Log));
        assert_eq!(plots[0].lines[0].points[0], (512.0, 512e5));
    }

    #[test]
    fn more_series_than_colours_are_split_by_their_first_parameter() {
        let experiment = Experiment {
            x: Some("message_bytes".to_owned()),
            series: vec!["distance_km".to_owned()],
            ..Experiment::new("x", "")
        };
        let plots =
            figures(&Assessment::new(&experiment, &records(&[10, 100, 1000], &[1, 16, 128])));
        let titles: Vec<_> = plots.iter().map(|plot| plot.title.as_str()).collect();
        assert_eq!(titles, ["goodput, 10 km", "goodput, 100 km", "goodput, 1000 km"]);
        assert_eq!(plots[2].lines[2].label, "tx depth 128");
        // No plot has more series than there are colours, whatever varies.
        let many: Vec<u32> = (1..=20).collect();
        let plots = figures(&Assessment::new(&experiment, &records(&[10], &many)));
        assert!(plots.iter().all(|plot| plot.lines.len() <= 7), "{plots:?}");
        assert_eq!(plots.iter().map(|plot| plot.lines.len()).collect::<Vec<_>>(), [7, 7, 6]);
    }

    #[test]
    fn six_series_that_lie_on_each_other_are_split_by_their_first_parameter() {
        let experiment = Experiment {
            x: Some("message_bytes".to_owned()),
            series: vec!["distance_km".to_owned()],
            ..Experiment::new("x", "")
        };
        // The depth makes no difference.
        let overlapping = records(&[10, 100, 1000], &[1, 16]);
        let plots = figures(&Assessment::new(&experiment, &overlapping));
        let titles: Vec<_> = plots.iter().map(|plot| plot.title.as_str()).collect();
        assert_eq!(titles, ["goodput, 10 km", "goodput, 100 km", "goodput, 1000 km"]);
        let mut apart = overlapping;
        for (step, record) in apart.chunks_mut(3).enumerate() {
            record
                .iter_mut()
                .flat_map(|record| record.values.values_mut())
                .for_each(|value| *value += step as f64 * 1e9);
        }
        assert_eq!(figures(&Assessment::new(&experiment, &apart)).len(), 1);
    }

    #[test]
    fn scattered_points_show_how_far_they_lie_off() {
        let mut all = records(&[10, 100], &[1, 16]);
        let predicted = all.clone().into_iter().map(|mut record| {
            record.source = Source::Predicted;
            record.values.values_mut().for_each(|value| *value *= 1.01);
            record
        });
        let predicted: Vec<_> = predicted.collect();
        all.extend(predicted);
        let experiment = Experiment {
            scattered: true,
            expectations: vec![Expectation::percent("goodput_bps", 2.0)],
            ..Experiment::new("x", "")
        };
        let plots = figures(&Assessment::new(&experiment, &all));
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].lines[0].points.len(), 12);
        assert!(plots[0].lines[0].points.iter().all(|(_, percent)| (percent - 1.0).abs() < 1e-9));
        assert_eq!(plots[0].lines[1].label, "tolerance");
    }
}
