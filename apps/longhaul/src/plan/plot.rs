//! Expected goodput over message size, with the limit in the curve's colour.

use crate::problem::Problem;
use longhaul_bench::{Line, Marker, Plot, PlotAxis, Quantity, Scale, Style};
use longhaul_planner::{Limit, Plan, Prediction, Workload};
use std::path::Path;

/// Points per doubling of the size: goodput has a step at each additional packet.
const POINTS_PER_OCTAVE: u32 = 16;
/// Factor by which curves extend below and above a single size.
const AROUND: f64 = 16.0;
/// Colours below these two are those of limits.
const ACCELERATED: usize = 4;
const TRANSPORT: usize = 5;
const CEILING: usize = 6;

/// A point of a curve.
struct Point {
    size: f64,
    goodput_bps: f64,
    limit: Limit,
}

/// Draws the plan into `file`.
pub fn write(plan: &Plan, file: &Path) -> Result<(), Problem> {
    let svg = draw(plan).svg().map_err(|error| Problem::plain(error.to_string()))?;
    std::fs::write(file, svg).map_err(|error| Problem::io("write", file, &error))
}

/// Ends of the curves: the first and the last size of the plan. A single size gets some on both
/// sides of it.
fn ends(first: u64, last: u64) -> (f64, f64) {
    let (first, last) = (first as f64, last as f64);
    if first == last { ((first / AROUND).max(1.0), first * AROUND) } else { (first, last) }
}

/// Sizes to draw, between the ends of the plan.
fn sizes(plan: &Plan) -> Vec<u64> {
    let (first, last) = ends(plan.rows[0].size, plan.rows[plan.rows.len() - 1].size);
    let steps = ((last / first).log2() * f64::from(POINTS_PER_OCTAVE)).ceil().max(1.0);
    let mut sizes: Vec<u64> = (0..=steps as u32)
        .map(|step| (first * (last / first).powf(f64::from(step) / steps)).round() as u64)
        .chain(plan.rows.iter().map(|row| row.size))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn curve(plan: &Plan, predict: impl Fn(&Workload) -> Option<Prediction>) -> Vec<Point> {
    let points = sizes(plan).into_iter().filter_map(|size| {
        let Prediction { goodput_bps, limit, .. } = predict(&plan.request.workload(size))?;
        (goodput_bps > 0.0).then_some(Point { size: size as f64, goodput_bps, limit })
    });
    points.collect()
}

fn line(label: &str, series: usize, style: Style, points: &[Point]) -> Line {
    Line {
        label: label.to_owned(),
        series,
        style,
        marker: if style == Style::Points { Marker::Filled } else { Marker::None },
        points: points.iter().map(|point| (point.size, point.goodput_bps)).collect(),
    }
}

/// Returns all lines, the expected goodput on top.
fn lines(plan: &Plan) -> Vec<Line> {
    let (path, nic, request) = (&plan.path, &plan.nic, &plan.request);
    let ceiling = curve(plan, |work| {
        let prediction = Prediction::new(path, nic, work).ok()?;
        Some(Prediction { goodput_bps: prediction.ceiling_bps, ..prediction })
    });
    let mut lines = vec![line("line rate less headers", CEILING, Style::Dotted, &ceiling)];
    let boxes = &request.accelerator;
    let alone = curve(plan, |work| boxes.predict(path, nic, work).ok());
    lines.push(line("with accelerators alone", ACCELERATED, Style::Dashed, &alone));
    let transport = curve(plan, |work| boxes.predict_transport(path, nic, work).ok());
    lines.push(line("with a transport as well", TRANSPORT, Style::Dashed, &transport));
    let mut known = Vec::new();
    let mut coloured = |limit: Limit, style, points: &[Point]| {
        let series = known.iter().position(|one| *one == limit).unwrap_or_else(|| {
            known.push(limit);
            known.len() - 1
        });
        line(&format!("limit: {}", limit.text()), series % ACCELERATED, style, points)
    };
    for (limit, part) in parts(&curve(plan, |work| Prediction::new(path, nic, work).ok())) {
        lines.push(coloured(limit, Style::Solid, part));
    }
    for row in plan.rows.iter().filter(|row| row.prediction.goodput_bps > 0.0) {
        let Prediction { goodput_bps, limit, .. } = row.prediction;
        lines.push(coloured(
            limit,
            Style::Points,
            &[Point { size: row.size as f64, goodput_bps, limit }],
        ));
    }
    lines
}

fn draw(plan: &Plan) -> Plot {
    let lines = lines(plan);
    let points = || lines.iter().flat_map(|line| &line.points);
    let op = plan.request.op.to_string().to_uppercase();
    let rtt = Quantity::of("rtt_ns").humanised(plan.rtt_ns);
    let rate = Quantity::of("rate_bps").humanised(plan.path.rate_bps);
    let (qps, tx_depth) = (plan.request.qps, plan.request.tx_depth);
    Plot {
        title: format!("{op} over an RTT of {rtt}, {rate}, {}", plan.nic.name),
        x: PlotAxis::of(
            "size_bytes",
            "message size",
            points().map(|point| point.0),
            Some(Scale::Log),
        ),
        y: PlotAxis::of("goodput_bps", "goodput", points().map(|point| point.1), Some(Scale::Log)),
        key: Vec::new(),
        lines,
        note: format!(
            "predicted by longhaul {} · QPs: {qps} · tx-depth: {tx_depth}",
            env!("CARGO_PKG_VERSION")
        ),
    }
}

/// Splits the points into segments of one limit, each starting at the end of the previous one.
fn parts(points: &[Point]) -> Vec<(Limit, &[Point])> {
    let mut parts = Vec::new();
    let mut from = 0_usize;
    for index in 1..=points.len() {
        if index == points.len() || points[index].limit != points[from].limit {
            parts.push((points[from].limit, &points[from.saturating_sub(1)..index]));
            from = index;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::{Args, path, profile, request};
    use super::*;

    #[test]
    fn a_single_size_has_curves_on_both_sides() {
        assert_eq!(ends(65_536, 65_536), (4096.0, 1_048_576.0));
        assert_eq!(ends(4, 4), (1.0, 64.0));
        assert_eq!(ends(4096, 8192), (4096.0, 8192.0));
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn planned(args: &str) -> Plan {
        let words = std::iter::once("plan").chain(args.split(' '));
        let Command { args } = <Command as clap::Parser>::try_parse_from(words).unwrap();
        let nic = profile(&args.nic).ok().unwrap();
        let path = path(&args, &nic, None).ok().unwrap();
        Plan::new(&path, &nic, &request(&args).ok().unwrap()).unwrap()
    }

    #[test]
    fn a_plan_of_a_single_size_has_visible_lines_and_a_mark_at_its_size() {
        let plot = draw(&planned("--distance 1000km --rate 10G --nic rxe --sizes 64K"));
        let curves = || plot.lines.iter().filter(|line| line.style != Style::Points);
        assert!(curves().count() >= 4, "{plot:?}");
        for name in ["line rate less headers", "with accelerators alone", "limit: packet window"] {
            let points = curves().filter(|line| line.label == name).map(|line| line.points.len());
            assert!(points.sum::<usize>() > 10, "{name}");
        }
        let marked = plot.lines.iter().filter(|line| line.style == Style::Points);
        let marked: Vec<_> = marked.map(|line| (line.marker, line.points[0].0)).collect();
        assert_eq!(marked, [(Marker::Filled, 65_536.0)]);
        let svg = plot.svg().unwrap();
        for text in ["4 KiB", "64 KiB", "1 MiB", "message size", "goodput (Gbit/s)"] {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text}");
        }
    }

    #[test]
    fn a_part_begins_where_the_one_before_ends_and_has_its_own_limit() {
        let limits = [Limit::QueueDepth, Limit::QueueDepth, Limit::Loss, Limit::LineRate];
        let points: Vec<_> = limits
            .into_iter()
            .zip(1..)
            .map(|(limit, x)| Point { size: f64::from(x), goodput_bps: 1.0, limit })
            .collect();
        let drawn: Vec<(Limit, Vec<f64>)> = parts(&points)
            .into_iter()
            .map(|(limit, part)| (limit, part.iter().map(|p| p.size).collect()))
            .collect();
        let expected = [
            (Limit::QueueDepth, vec![1.0, 2.0]),
            (Limit::Loss, vec![2.0, 3.0]),
            (Limit::LineRate, vec![3.0, 4.0]),
        ];
        assert_eq!(drawn, expected);
        assert!(parts(&[]).is_empty());
    }
}
