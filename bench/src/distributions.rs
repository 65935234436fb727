//! Pictures of what was repeated, and of figures over two parameters.

use crate::assess::{Assessment, Cell, Layout, Series};
use crate::experiment::Experiment;
use crate::plot::{
    BoxPlot, COLOURS, Columns, HeatMap, Line, Marker, Plot, PlotAxis, PlotBox, PlotError, Scale,
    Shades, Style,
};
use crate::quantity::Quantity;
use crate::record::Source;
use crate::samples::Samples;
use crate::table::Format;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Beginnings of values that have pictures where an experiment does not name its values: of the
/// others, the tables have the statistics.
const PICTURED: [&str; 4] = ["goodput", "latency_ns", "latency_mean_ns", "latency_median_ns"];
/// Pictures of one kind of a value and source; the first are kept.
const PICTURES_MAX: usize = 12;
/// Places along the x axis of a box plot.
const PLACES_MAX: usize = 24;
/// Steps of a distribution function.
const STEPS_MAX: usize = 400;
/// Values of either parameter of a heat map, at the least and at the most.
const MAP_SIDE: RangeInclusive<usize> = 3..=40;
/// Heat maps of a value.
const MAPS_MAX: usize = 4;

/// A picture of a report.
#[derive(Clone, Debug)]
pub(crate) enum Picture {
    Plot(Plot),
    Boxes(BoxPlot),
    Map(HeatMap),
}

impl Picture {
    pub fn title(&self) -> &str {
        match self {
            Picture::Plot(plot) => &plot.title,
            Picture::Boxes(boxes) => &boxes.plot.title,
            Picture::Map(map) => &map.title,
        }
    }

    /// With a line below it.
    #[must_use]
    pub fn with_note(mut self, note: String) -> Self {
        match &mut self {
            Picture::Plot(plot) => plot.note = note,
            Picture::Boxes(boxes) => boxes.plot.note = note,
            Picture::Map(map) => map.note = note,
        }
        self
    }

    pub fn svg(&self) -> Result<String, PlotError> {
        match self {
            Picture::Plot(plot) => plot.svg(),
            Picture::Boxes(boxes) => boxes.svg(),
            Picture::Map(map) => map.svg(),
        }
    }
}

/// The samples of one source at one point.
struct Drawn<'a> {
    cell: &'a Cell,
    series: Series,
    samples: &'a Samples,
}

/// Samples of `source` for `value`, in the order of the layout.
fn drawn<'a>(assessment: &'a Assessment, value: &str, source: Source) -> Vec<Drawn<'a>> {
    let of_value = assessment.cells().iter().filter(|cell| cell.value == value);
    let drawn = of_value.filter_map(|cell| {
        let samples = &cell.figures.get(&source)?.samples;
        Some(Drawn { cell, series: assessment.layout().series(&cell.point), samples })
    });
    drawn.collect()
}

/// Values that have pictures.
fn pictured(assessment: &Assessment) -> Vec<&str> {
    let mut values = assessment.values();
    let is_named = !assessment.experiment().values.is_empty();
    values.retain(|value| is_named || PICTURED.iter().any(|begin| value.starts_with(begin)));
    values
}

/// Box plots and distribution functions of each value and source with enough figures somewhere.
pub(crate) fn distributions(assessment: &Assessment) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for value in pictured(assessment) {
        let mut sources: Vec<(Source, Vec<Drawn<'_>>)> = assessment
            .sources()
            .iter()
            .map(|source| (*source, drawn(assessment, value, *source)))
            .collect();
        sources.retain(|(_, drawn)| drawn.iter().any(|one| !one.samples.is_few()));
        for (source, drawn) in sources {
            for draw in [boxes, functions] {
                let before = pictures.len();
                draw(assessment, value, source, &drawn, &mut pictures);
                pictures.truncate(before + PICTURES_MAX);
            }
        }
    }
    pictures
}

/// What tells apart the pictures of one value: title and source, and which of several it is.
fn title(assessment: &Assessment, value: &str, source: Source, what: &str) -> String {
    format!("{}, {}: {what}", assessment.layout().name(value), source.name())
}

/// A box for each point: by row parameter and series, as many as a plot has colours and places for.
fn boxes(
    assessment: &Assessment,
    value: &str,
    source: Source,
    drawn: &[Drawn<'_>],
    pictures: &mut Vec<Picture>,
) {
    let layout = assessment.layout();
    let mut all: Vec<Series> = Vec::new();
    for one in drawn {
        if !all.contains(&one.series) {
            all.push(one.series.clone());
        }
    }
    // Without a row parameter every point is a place of its own.
    let place_of = |one: &Drawn<'_>| match layout.x.as_deref() {
        Some(x) => {
            let text = one.cell.point.get(x).map(|value| layout.text(x, value));
            (layout.x_place(&one.cell.point).unwrap_or(usize::MAX), text.unwrap_or("–".to_owned()))
        }
        None => {
            let place = drawn.iter().position(|other| std::ptr::eq(other.cell, one.cell));
            (place.unwrap_or(usize::MAX), layout.place_name(&one.cell.point))
        }
    };
    let group = if layout.x.is_some() { COLOURS.len() } else { all.len().max(1) };
    for group in all.chunks(group) {
        let members: Vec<&Drawn<'_>> =
            drawn.iter().filter(|one| group.contains(&one.series)).collect();
        let places: BTreeSet<(usize, String)> = members.iter().map(|one| place_of(one)).collect();
        let places: Vec<(usize, String)> = places.into_iter().collect();
        for places in places.chunks(PLACES_MAX) {
            let boxes = members.iter().filter_map(|one| {
                let place = places.iter().position(|place| *place == place_of(one))?;
                let series = match layout.x {
                    Some(_) => group.iter().position(|series| *series == one.series)?,
                    None => 0,
                };
                Some(PlotBox { place, series, samples: one.samples.clone() })
            });
            let boxes: Vec<PlotBox> = boxes.collect();
            let figures = || boxes.iter().flat_map(|one| one.samples.figures());
            let name = layout.x.as_deref().map_or("point".to_owned(), |x| layout.name(x));
            let names: Vec<String> = places.iter().map(|(_, name)| name.clone()).collect();
            let shown: &[Series] = if layout.x.is_some() { group } else { &[] };
            let plot = Plot {
                title: title(assessment, value, source, "spread"),
                x: PlotAxis::of_names(&name, &names),
                y: PlotAxis::of(value, &layout.name(value), figures().copied(), None),
                lines: names_of(assessment, shown, &boxes),
                key: Vec::new(),
                note: String::new(),
            };
            let series = shown.len().max(1);
            pictures.push(Picture::Boxes(BoxPlot { plot, series, boxes }));
        }
    }
}

/// Lines that draw nothing and have the name of each series at its last box.
fn names_of(assessment: &Assessment, group: &[Series], boxes: &[PlotBox]) -> Vec<Line> {
    let name = |(number, series): (usize, &Series)| {
        let last = boxes.iter().rfind(|one| one.series == number)?;
        Some(Line {
            label: assessment.layout().series_name(series, |_| true),
            series: number,
            style: Style::Points,
            marker: Marker::None,
            points: vec![(last.place as f64, last.samples.median())],
        })
    };
    if group.len() < 2 { Vec::new() } else { group.iter().enumerate().filter_map(name).collect() }
}

/// Distribution functions of the points with enough figures, as many to a plot as there are
/// colours; those of a series are together.
fn functions(
    assessment: &Assessment,
    value: &str,
    source: Source,
    drawn: &[Drawn<'_>],
    pictures: &mut Vec<Picture>,
) {
    let layout = assessment.layout();
    let enough: Vec<&Drawn<'_>> = drawn.iter().filter(|one| !one.samples.is_few()).collect();
    for of_series in enough.chunk_by(|a, b| layout.x.is_none() || a.series == b.series) {
        let name = match layout.x {
            Some(_) => layout.series_name(&of_series[0].series, |_| true),
            None => String::new(),
        };
        let separator = if name.is_empty() { "" } else { ", " };
        for points in of_series.chunks(COLOURS.len()) {
            let line = |(series, one): (usize, &&Drawn<'_>)| {
                let x = layout.x.as_deref().and_then(|x| Some((x, one.cell.point.get(x)?)));
                let place = x.map(|(x, value)| layout.named(x, value));
                Line {
                    label: place.unwrap_or_else(|| layout.place_name(&one.cell.point)),
                    series,
                    style: Style::Solid,
                    marker: Marker::None,
                    points: steps(one.samples),
                }
            };
            let lines: Vec<Line> = points.iter().enumerate().map(line).collect();
            let figures = lines.iter().flat_map(|line| &line.points).map(|(figure, _)| *figure);
            pictures.push(Picture::Plot(Plot {
                title: title(assessment, value, source, &format!("distribution{separator}{name}")),
                x: PlotAxis::of(value, &layout.name(value), figures, None),
                y: PlotAxis::of("share_percent", "at or below", SHARES, Some(Scale::Linear)),
                lines,
                key: Vec::new(),
                note: String::new(),
            }));
        }
    }
}

/// Range of a distribution function, in percent.
const SHARES: [f64; 2] = [0.0, 100.0];

/// The empirical distribution function: the share in percent of figures at or below each. Of many
/// figures, evenly chosen quantiles.
fn steps(samples: &Samples) -> Vec<(f64, f64)> {
    let figures = samples.figures();
    let count = figures.len().min(STEPS_MAX);
    let mut points = Vec::with_capacity(2 * count);
    let mut before = SHARES[0];
    for step in 1..=count {
        let rank = (step * figures.len()).div_ceil(count);
        let share = rank as f64 / figures.len() as f64 * SHARES[1];
        points.extend([(figures[rank - 1], before), (figures[rank - 1], share)]);
        before = share;
    }
    points
}

/// Heat maps of each value over the row parameter and the first other parameter with enough values:
/// of what was measured, or else simulated. An experiment that is described with its series, or
/// held against a document or a formula, has lines that say more.
pub(crate) fn maps(assessment: &Assessment) -> Vec<Picture> {
    let layout = assessment.layout();
    let Experiment { series, panel, .. } = assessment.experiment();
    let is_given = assessment.sources().iter().any(|source| source.is_given());
    let has_lines = is_given || !series.is_empty() || panel.is_some();
    let Some(x) = layout.x.as_deref().filter(|_| !has_lines) else { return Vec::new() };
    let preferred = [Source::Measured, Source::Simulated, Source::Predicted];
    let mut maps = Vec::new();
    for value in pictured(assessment) {
        let all = preferred.map(|source| (source, drawn(assessment, value, source)));
        let best = all.into_iter().find(|(_, drawn)| !drawn.is_empty());
        let Some((source, drawn)) = best else { continue };
        let is_side = |key: &str| MAP_SIDE.contains(&side(layout, key, &drawn).len());
        let row = layout.varying.iter().find(|key| is_side(key.as_str()));
        let Some(row) = row.filter(|_| is_side(x)) else { continue };
        let of_value = maps_over(assessment, value, source, (x, row.as_str()), &drawn);
        maps.extend(of_value.into_iter().take(MAPS_MAX));
    }
    maps
}

/// Values of a parameter, in the order of the layout, as people read them.
fn side(layout: &Layout, key: &str, drawn: &[Drawn<'_>]) -> BTreeMap<usize, String> {
    let value = |one: &Drawn<'_>| {
        let point = &one.cell.point;
        Some((layout.place(key, point), layout.text(key, point.get(key)?)))
    };
    drawn.iter().filter_map(value).collect()
}

/// A map for each combination of the other parameters that fills at least half of it.
fn maps_over(
    assessment: &Assessment,
    value: &str,
    source: Source,
    (x, y): (&str, &str),
    drawn: &[Drawn<'_>],
) -> Vec<Picture> {
    let layout = assessment.layout();
    let [columns, rows] = [x, y].map(|key| side(layout, key, drawn));
    let place = |places: &BTreeMap<usize, String>, key: &str, one: &Drawn<'_>| {
        let place = layout.place(key, &one.cell.point);
        places.keys().position(|known| *known == place)
    };
    let mut groups: Vec<(String, Vec<Vec<Option<f64>>>)> = Vec::new();
    for one in drawn {
        let others = layout.series_name(&one.series, |key| key != y);
        let Some((row, column)) = place(&rows, y, one).zip(place(&columns, x, one)) else {
            continue;
        };
        let group = match groups.iter().position(|(name, _)| *name == others) {
            Some(group) => group,
            None => {
                groups.push((others, vec![vec![None; columns.len()]; rows.len()]));
                groups.len() - 1
            }
        };
        groups[group].1[row][column] = Some(one.samples.median());
    }
    groups.retain(|(_, cells)| {
        2 * cells.iter().flatten().flatten().count() >= columns.len() * rows.len()
    });
    let map = |(name, cells): (String, Vec<Vec<Option<f64>>>)| {
        let unit = Format::of(&Quantity::of(value), cells.iter().flatten().copied().flatten()).unit;
        let mut title = format!("{}, {}", layout.name(value), source.name());
        for (open, part, close) in [(", ", name.as_str(), ""), (" (", unit.name, ")")] {
            if !part.is_empty() {
                title += &format!("{open}{part}{close}");
            }
        }
        Picture::Map(HeatMap {
            title,
            y: layout.name(y),
            x: layout.name(x),
            names: rows.values().cloned().collect(),
            columns: Columns::Named(columns.values().cloned().collect()),
            shades: Shades::Figures(value.to_owned()),
            cells,
            note: String::new(),
        })
    };
    groups.into_iter().map(map).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Record};

    /// Runs over three distances and sizes, and of each accelerator.
    fn records(runs: u32, accelerators: &[&str]) -> Vec<Record> {
        let mut records = Vec::new();
        for accelerate in accelerators {
            for km in [0, 100, 1000] {
                for bytes in [4096, 65_536, 1 << 20, 1 << 22] {
                    for run in 0..runs {
                        let point = Point::new()
                            .with("accelerate", *accelerate)
                            .with("distance_km", km)
                            .with("message_bytes", bytes);
                        let goodput = 1e9 * f64::from(bytes).log2() + f64::from(run) * 1e7;
                        let record = Record::new("x", Source::Measured, point);
                        records.push(record.value("goodput_bps", goodput));
                    }
                }
            }
        }
        records
    }

    fn assessed(records: &[Record]) -> Assessment {
        Assessment::new(&Experiment::new("x", ""), records)
    }

    #[test]
    fn each_point_with_enough_runs_has_a_box_and_a_distribution() {
        let pictures = distributions(&assessed(&records(5, &["none"])));
        let titles: Vec<&str> = pictures.iter().map(Picture::title).collect();
        assert_eq!(
            titles,
            [
                "goodput, measured: spread",
                "goodput, measured: distribution, 0 km",
                "goodput, measured: distribution, 100 km",
                "goodput, measured: distribution, 1000 km",
            ]
        );
        let Picture::Boxes(boxes) = &pictures[0] else { panic!("{pictures:?}") };
        assert_eq!((boxes.boxes.len(), boxes.series), (12, 3));
        let Picture::Plot(plot) = &pictures[1] else { panic!("{pictures:?}") };
        assert_eq!(plot.lines.len(), 4);
        assert_eq!(plot.lines[0].points[..3], [(12e9, 0.0), (12e9, 20.0), (12.01e9, 20.0)]);
        assert_eq!(plot.lines[0].points.last(), Some(&(12.04e9, 100.0)));
        for picture in &pictures {
            assert!(picture.svg().unwrap().contains("<svg"), "{}", picture.title());
        }
        assert_eq!(distributions(&assessed(&records(4, &["none"]))).len(), 0);
    }

    #[test]
    fn points_with_few_runs_are_dots_beside_the_boxes() {
        let mut all = records(5, &["none"]);
        all.drain(..2);
        let pictures = distributions(&assessed(&all));
        let Picture::Boxes(boxes) = &pictures[0] else { panic!("{pictures:?}") };
        assert_eq!(boxes.boxes.iter().filter(|one| one.samples.is_few()).count(), 1);
        let with_few = pictures[0].svg().unwrap().matches("<polygon").count();
        let without = distributions(&assessed(&records(5, &["none"])))[0].svg().unwrap();
        // Three figures, and names of the series in both.
        assert_eq!(with_few, without.matches("<polygon").count() + 3);
    }

    #[test]
    fn many_series_and_places_are_split() {
        let accelerators = ["none", "near", "far", "both"];
        let pictures = distributions(&assessed(&records(5, &accelerators)));
        let series = |picture: &Picture| match picture {
            Picture::Boxes(boxes) => Some(boxes.series),
            _ => None,
        };
        assert_eq!(pictures.iter().filter_map(series).collect::<Vec<_>>(), [7, 5]);
        let scattered = Experiment { scattered: true, ..Experiment::new("x", "") };
        let all = Assessment::new(&scattered, &records(5, &accelerators));
        let places = distributions(&all);
        assert_eq!(places.iter().filter(|p| matches!(p, Picture::Boxes(_))).count(), 2);
    }

    #[test]
    fn distributions_of_many_figures_are_thinned_and_end_at_all() {
        let samples = Samples::new((0..10_000).map(f64::from)).unwrap();
        let points = steps(&samples);
        assert_eq!(points.len(), 2 * STEPS_MAX);
        assert_eq!(points.last(), Some(&(9999.0, 100.0)));
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn two_parameters_with_enough_values_have_a_map_for_each_of_the_others() {
        let maps = maps(&assessed(&records(1, &["none", "both"])));
        let titles: Vec<&str> = maps.iter().map(Picture::title).collect();
        assert_eq!(
            titles,
            ["goodput, measured, none (Gbit/s)", "goodput, measured, both (Gbit/s)"]
        );
        let Picture::Map(map) = &maps[0] else { panic!("{maps:?}") };
        assert_eq!(map.names, ["0 km", "100 km", "1000 km"]);
        assert_eq!(map.cells[0][1], Some(16e9));
        let one_size: Vec<Record> = records(1, &["none"])
            .into_iter()
            .filter(|r| r.point.get("message_bytes") == Some(&4096.into()))
            .collect();
        assert_eq!(super::maps(&assessed(&one_size)).len(), 0);
    }
}
