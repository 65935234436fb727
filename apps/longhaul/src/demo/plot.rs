//! throughput.svg: goodput against message size, with its bounds.

use super::results::Results;
use crate::problem::Problem;
use longhaul_bench::{Line, Marker, Plot, PlotAxis, Scale, Style};
use longhaul_units::BitRate;
use std::path::Path;

/// perftest's default queue depth, in messages.
const TX_DEPTH: f64 = 128.0;
/// Ethernet to FCS, preamble and gap around a packet of a WRITE: 14 + 20 + 8 + 12 + 4 and 24 on the
/// wire; the first packet of a message carries 16 bytes of RETH.
const PACKET_OVERHEAD: f64 = 82.0;
const MTU: f64 = 4096.0;
/// Segments of a curve.
const CURVE_STEPS: u32 = 64;
/// The colour of the ceiling, which is independent of distance.
const CEILING: usize = 6;

/// Line styles.
const PLAIN: (Style, Marker) = (Style::Dashed, Marker::Hollow);
const ACCELERATED: (Style, Marker) = (Style::Solid, Marker::Filled);
const WINDOW: (Style, Marker) = (Style::Dotted, Marker::None);

pub fn write(results: &Results, rate: BitRate, path: &Path) -> Result<(), Problem> {
    let svg = draw(results, rate).svg().map_err(|error| Problem::plain(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| Problem::io("write", path, &error))
}

/// The line rate less headers, in bit/s.
fn line_rate_goodput(rate: BitRate, bytes: f64) -> f64 {
    let packets = (bytes / MTU).ceil().max(1.0);
    rate.as_bps() as f64 * bytes / (bytes + packets * PACKET_OVERHEAD + 16.0)
}

/// Goodput of one window of [`TX_DEPTH`] messages per round trip, in bit/s.
fn window_goodput(rate: BitRate, bytes: f64, distance_km: f64) -> f64 {
    let rtt_s = distance_km * 1e-5;
    (TX_DEPTH * bytes * 8.0 / rtt_s).min(line_rate_goodput(rate, bytes))
}

fn draw(results: &Results, rate: BitRate) -> Plot {
    let sizes: Vec<f64> = results.message_sizes().into_iter().map(|bytes| bytes as f64).collect();
    let (smallest, largest) =
        (sizes.first().copied().unwrap_or(1.0), sizes.last().copied().unwrap_or(1.0));
    let curve = |f: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
        (0..=CURVE_STEPS)
            .map(|i| smallest * (largest / smallest).powf(f64::from(i) / f64::from(CURVE_STEPS)))
            .map(|x| (x, f(x)))
            .collect()
    };
    let line = |label: &str, series, (style, marker), points| Line {
        label: label.to_owned(),
        series,
        style,
        marker,
        points,
    };
    let mut lines = vec![line(
        "line rate less headers",
        CEILING,
        WINDOW,
        curve(&|x| line_rate_goodput(rate, x)),
    )];
    for (series, km) in results.distances_km().into_iter().enumerate() {
        let label = format!("{km} km");
        if km > 0.0 {
            lines.push(line(&label, series, WINDOW, curve(&|x| window_goodput(rate, x, km))));
        }
        for (accelerated, look) in [(false, PLAIN), (true, ACCELERATED)] {
            let measured = |&size: &f64| {
                let gbps =
                    results.goodput(km, size as u64, accelerated).filter(|gbps| *gbps > 0.0)?;
                Some((size, gbps * 1e9))
            };
            lines.push(line(&label, series, look, sizes.iter().filter_map(measured).collect()));
        }
    }
    let points = || lines.iter().flat_map(|line| &line.points);
    let named = |(style, marker), name: &str| (style, marker, name.to_owned());
    Plot {
        title: "RDMA WRITE over distance (ib_write_bw)".to_owned(),
        x: PlotAxis::of(
            "message_bytes",
            "message size",
            points().map(|point| point.0),
            Some(Scale::Log),
        ),
        y: PlotAxis::of("goodput_bps", "goodput", points().map(|point| point.1), Some(Scale::Log)),
        key: vec![
            named(PLAIN, "plain"),
            named(ACCELERATED, "accelerated"),
            named(WINDOW, &format!("bound: {TX_DEPTH} messages per round trip")),
        ],
        lines,
    }
}
