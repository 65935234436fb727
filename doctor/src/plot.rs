//! Time-sequence plot of one flow: PSNs over time, as SVG.
//!
//! A second pass over the capture collects the points, because the first determines the flow's
//! extent. Points are thinned to the screen's resolution, so memory does not grow with the capture.

use crate::quantity::{Percent, Rate};
use crate::report::Flow;
use plotters::prelude::*;
use std::path::Path;
use thiserror::Error;

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 720;
/// Cell size in pixels; points of one kind in one cell are drawn once.
const CELL: u32 = 2;
const COLUMNS: usize = (WIDTH / CELL) as usize;
const ROWS: usize = (HEIGHT / CELL) as usize;

/// Kind of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mark {
    Ack,
    ReadResponse,
    Request,
    ReadRequest,
    Again,
    Nak,
    Cnp,
}

/// Style of each kind, in drawing order.
const MARKS: [(Mark, &str, RGBColor, i32); 7] = [
    (Mark::Ack, "acknowledgement", RGBColor(0x2c, 0xa0, 0x2c), 2),
    (Mark::ReadResponse, "READ response", RGBColor(0x17, 0x9c, 0xb0), 1),
    (Mark::Request, "request", RGBColor(0x1f, 0x4e, 0xa8), 2),
    (Mark::ReadRequest, "READ request", RGBColor(0x7b, 0x3f, 0xb0), 2),
    (Mark::Again, "sent again", RGBColor(0xd6, 0x27, 0x28), 2),
    (Mark::Nak, "NAK, RNR NAK", RGBColor(0x00, 0x00, 0x00), 4),
    (Mark::Cnp, "congestion notification", RGBColor(0xff, 0x8c, 0x00), 3),
];

/// Points of one flow.
#[derive(Clone, Debug)]
pub struct Trace {
    flow_id: usize,
    start_ns: u64,
    duration_ns: u64,
    first: u64,
    psns: u64,
    points: Vec<(f64, f64, Mark)>,
    taken: Vec<bool>,
}

impl Trace {
    /// Creates a trace of `flow`, from a report on the same capture.
    pub fn of(flow: &Flow) -> Self {
        Trace {
            flow_id: flow.id,
            start_ns: flow.start_ns,
            duration_ns: flow.duration_ns.max(1),
            first: (1 << 24) + u64::from(flow.first_psn.unwrap_or(0)),
            psns: flow.psns.max(1),
            points: Vec::new(),
            taken: vec![false; COLUMNS * ROWS * MARKS.len()],
        }
    }

    pub(crate) fn flow_id(&self) -> usize {
        self.flow_id
    }

    /// Points that will be drawn.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    pub(crate) fn add(&mut self, now_ns: u64, sequence: u64, mark: Mark) {
        let x = now_ns.saturating_sub(self.start_ns) as f64 / self.duration_ns as f64;
        let Some(above) = sequence.checked_sub(self.first) else { return };
        let y = above as f64 / self.psns as f64;
        if x > 1.0 || y > 1.0 {
            return; // Of an earlier life of the queue pair: the axes show the last.
        }
        let column = ((x * COLUMNS as f64) as usize).min(COLUMNS - 1);
        let row = ((y * ROWS as f64) as usize).min(ROWS - 1);
        let taken = &mut self.taken[(row * COLUMNS + column) * MARKS.len() + mark as usize];
        if !std::mem::replace(taken, true) {
            self.points.push((x * self.duration_ns as f64, y * self.psns as f64, mark));
        }
    }
}

/// The plot could not be drawn or written.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct PlotError(String);

/// Draws `trace`, which belongs to `flow`, into the file `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_svg(trace: &Trace, flow: &Flow, path: &Path) -> Result<(), PlotError> {
    let mut svg = String::new();
    draw(trace, flow, &mut svg).map_err(|e| PlotError(e.to_string()))?;
    std::fs::write(path, svg).map_err(|e| PlotError(e.to_string()))
}

/// A unit for the time axis, and nanoseconds in it.
fn unit(duration_ns: u64) -> (&'static str, f64) {
    match duration_ns {
        0..10_000 => ("ns", 1.0),
        10_000..10_000_000 => ("µs", 1e3),
        10_000_000..10_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    }
}

fn title(flow: &Flow) -> String {
    let qpn = |qpn: Option<u32>| qpn.map_or("?".to_owned(), |qpn| format!("{qpn:#x}"));
    format!(
        "Flow {}: {} QP {} → {} QP {}, {} goodput",
        flow.number,
        flow.requester.ip,
        qpn(flow.requester.qpn),
        flow.responder.ip,
        qpn(flow.responder.qpn),
        Rate(flow.goodput_bps)
    )
}

/// The first finding, truncated to a line of the plot.
fn subtitle(flow: &Flow) -> String {
    const LONGEST: usize = 150;
    let Some(finding) = flow.findings.first() else { return String::new() };
    let share =
        finding.share_of_time.map(|s| format!(" ({} of the time)", Percent(s))).unwrap_or_default();
    let text = format!("{}{share}", finding.what);
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn draw(trace: &Trace, flow: &Flow, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let (unit, scale) = unit(trace.duration_ns);
    let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let root = root.titled(&title(flow), ("sans-serif", 20))?;
    let root =
        root.titled(&subtitle(flow), ("sans-serif", 14).into_font().color(&BLACK.mix(0.7)))?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..trace.duration_ns as f64 / scale, 0.0..trace.psns as f64)?;
    chart
        .configure_mesh()
        .x_desc(format!("time since the flow's first packet ({unit})"))
        .y_desc(format!("PSN − {} (packets)", flow.first_psn.unwrap_or(0)))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .light_line_style(BLACK.mix(0.04))
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for (mark, name, color, size) in MARKS {
        let mut points =
            trace.points.iter().filter(|p| p.2 == mark).map(|&(x, y, _)| (x / scale, y)).peekable();
        if points.peek().is_none() {
            continue;
        }
        let series = match mark {
            Mark::Nak => chart.draw_series(
                points.map(|p| Cross::new(p, size, color.stroke_width(2)).into_dyn()),
            )?,
            Mark::Cnp => chart.draw_series(
                points.map(|p| TriangleMarker::new(p, size + 1, color.filled()).into_dyn()),
            )?,
            _ => chart
                .draw_series(points.map(|p| Circle::new(p, size, color.filled()).into_dyn()))?,
        };
        series.label(name).legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.9))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
