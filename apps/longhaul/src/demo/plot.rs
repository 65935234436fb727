//! throughput.svg: goodput against message size, with the curves that bound it.

use super::results::Results;
use crate::problem::Problem;
use longhaul_units::BitRate;
use plotters::prelude::*;
use std::path::Path;

/// perftest's default queue depth, in messages.
const TX_DEPTH: f64 = 128.0;
/// Ethernet to FCS, preamble and gap around a packet of a WRITE: 14 + 20 + 8 + 12 + 4 and 24 on the wire; the
/// first packet of a message carries 16 bytes of RETH.
const PACKET_OVERHEAD: f64 = 82.0;
const MTU: f64 = 4096.0;

pub fn write(results: &Results, rate: BitRate, path: &Path) -> Result<(), Problem> {
    draw(results, rate, path).map_err(|e| Problem::plain(format!("cannot draw {}: {e}", path.display())))
}

/// The goodput that headers leave of the line rate, in Gbit/s.
fn line_rate_goodput(rate: BitRate, bytes: f64) -> f64 {
    let packets = (bytes / MTU).ceil().max(1.0);
    rate.as_gbps() * bytes / (bytes + packets * PACKET_OVERHEAD + 16.0)
}

/// What one window of [`TX_DEPTH`] messages per round trip gives, in Gbit/s.
fn window_goodput(rate: BitRate, bytes: f64, distance_km: f64) -> f64 {
    let rtt_s = distance_km * 1e-5;
    (TX_DEPTH * bytes * 8.0 / rtt_s / 1e9).min(line_rate_goodput(rate, bytes))
}

fn draw(results: &Results, rate: BitRate, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let sizes = results.message_sizes();
    let (Some(&smallest), Some(&largest)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    let (x_min, x_max) = (smallest as f64 / 2.0, largest as f64 * 2.0);
    let root = SVGBackend::new(path, (960, 640)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("RDMA WRITE over distance (ib_write_bw)", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d((x_min..x_max).log_scale(), (0.01..rate.as_gbps() * 2.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("message size (bytes)")
        .y_desc("goodput (Gbit/s)")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y}"))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;

    let curve = |f: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
        let steps = 64;
        (0..=steps)
            .map(|i| x_min * (x_max / x_min).powf(f64::from(i) / f64::from(steps)))
            .map(|x| (x, f(x)))
            .collect()
    };
    chart
        .draw_series(LineSeries::new(curve(&|x| line_rate_goodput(rate, x)), BLACK.stroke_width(1)))?
        .label("line rate less headers")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK));

    for (index, km) in results.distances_km().into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        if km > 0.0 {
            let window = curve(&|x| window_goodput(rate, x, km));
            chart
                .draw_series(DashedLineSeries::new(window, 3, 5, color.mix(0.6).stroke_width(1)))?
                .label(format!("{km} km: {TX_DEPTH} messages per RTT"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 8, y)], color.mix(0.6)));
        }
        for accelerated in [false, true] {
            let points: Vec<(f64, f64)> = sizes
                .iter()
                .filter_map(|&s| Some((s as f64, results.goodput(km, s, accelerated).filter(|g| *g > 0.0)?)))
                .collect();
            let width = if accelerated { 3 } else { 1 };
            let how = if accelerated { "accelerated" } else { "plain" };
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(width)))?
                .label(format!("{km} km, {how}"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(width)));
            chart.draw_series(points.into_iter().map(|p| Circle::new(p, width + 2, color.filled())))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}
