//! throughput.svg: goodput against the path.

use super::cell::{CongestionControl, Fibre, Transport};
use super::results::Results;
use crate::problem::Problem;
use longhaul_bench::{Line, Marker, Plot, PlotAxis, Quantity, Scale, Style};
use longhaul_boxes::quantity::Size;
use std::path::Path;

/// perftest's default queue depth, in messages.
const TX_DEPTH: u32 = 128;

/// Line styles.
const PLAIN: (Style, Marker) = (Style::Dashed, Marker::Hollow);
const ACCELERATED: (Style, Marker) = (Style::Solid, Marker::Filled);
const ONE_CONNECTION: (Style, Marker) = (Style::Dotted, Marker::Hollow);
const SEVERAL: (Style, Marker) = (Style::Dotted, Marker::Filled);

pub fn write(results: &Results, path: &Path) -> Result<(), Problem> {
    let svg = draw(results).svg().map_err(|error| Problem::plain(error.to_string()))?;
    std::fs::write(path, svg).map_err(|error| Problem::io("write", path, &error))
}

/// Name of the series, and line style.
fn look(transport: Transport) -> (String, (Style, Marker)) {
    match transport {
        Transport::Rdma { message_bytes, accelerated } => {
            let style = if accelerated { ACCELERATED } else { PLAIN };
            (Size::from_bytes(message_bytes).to_string(), style)
        }
        Transport::Tcp { congestion_control, connections } => {
            let name = match congestion_control {
                CongestionControl::Cubic => "CUBIC",
                CongestionControl::Bbr => "BBR",
            };
            (name.to_owned(), if connections == 1 { ONE_CONNECTION } else { SEVERAL })
        }
    }
}

/// Name of a path on the axis.
fn tick(path: &Fibre) -> String {
    if path.loss > 0.0 { format!("{:e}", path.loss) } else { path.distance.km().to_string() }
}

fn draw(results: &Results) -> Plot {
    let paths = results.paths();
    let mut series: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    for transport in results.transports() {
        let (label, (style, marker)) = look(transport);
        let series = series.iter().position(|name| *name == label).unwrap_or_else(|| {
            series.push(label.clone());
            series.len() - 1
        });
        let measured = |(place, path): (usize, &Fibre)| {
            let gbps = results.goodput(*path, transport).filter(|gbps| *gbps > 0.0)?;
            Some((place as f64, gbps * 1e9))
        };
        let points = paths.iter().enumerate().filter_map(measured).collect();
        lines.push(Line { label, series, style, marker, points });
    }
    let points = || lines.iter().flat_map(|line| &line.points);
    let named = |(style, marker), name: &str| (style, marker, name.to_owned());
    let ticks: Vec<String> = paths.iter().map(tick).collect();
    Plot {
        title: "RDMA WRITE and TCP over distance and loss".to_owned(),
        x: PlotAxis::of_names("km; then loss over 1000 km", &ticks),
        y: PlotAxis::of("goodput_bps", "goodput", points().map(|point| point.1), Some(Scale::Log)),
        key: vec![
            named(PLAIN, "plain RC"),
            named(ACCELERATED, "accelerated RC"),
            named(ONE_CONNECTION, "TCP, 1 connection"),
            named(SEVERAL, "TCP, 8 connections"),
        ],
        lines,
        note: note(results),
    }
}

/// The tools, their settings, and the date.
fn note(results: &Results) -> String {
    let version = |program: &str| results.environment.get(&format!("version.{program}"));
    // "iperf 3.12 (cJSON 1.7.15)"
    let iperf3 = version("iperf3").and_then(|text| text.split(' ').nth(1));
    let unknown = "of unknown version";
    let rate = Quantity::of("rate_bps").humanised(results.rate.as_bps() as f64);
    format!(
        "perftest {}, tx-depth {TX_DEPTH}, iperf3 {}, memif, {rate} · longhaul demo, {}",
        version("ib_write_bw").map_or(unknown, String::as_str),
        iperf3.unwrap_or(unknown),
        results.started_at.split('T').next().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::super::cell;
    use super::super::results::{Measured, Run};
    use super::*;
    use longhaul_units::BitRate;
    use std::fs;

    const README: &str = include_str!("../../../../README.md");
    const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/throughput.svg");
    /// The day of the README's run.
    const DAY: &str = "2026-11-26";

    /// The run that the README's table has, which has the cells of [`cell::all`].
    fn published() -> Results {
        let versions =
            [("version.ib_write_bw", "4.5-0.17"), ("version.iperf3", "iperf 3.12 (cJSON 1.7.15)")];
        let versions = versions.map(|(name, version)| (name.to_owned(), version.to_owned()));
        let rate = BitRate::from_gbps(10).unwrap();
        let mut results = Results::new(rate, 1, versions.into());
        results.started_at = format!("{DAY}T00:00:00Z");
        let cells = cell::all();
        for row in README.lines() {
            let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let named = cells.iter().filter(|cell| cell.transport.to_string() == columns[0]);
            for (cell, column) in named.zip(&columns[1..]) {
                let goodput_gbps = column.split(' ').next().unwrap().parse().unwrap();
                let measured =
                    Measured { goodput_gbps, retransmissions: None, command: String::new() };
                results.runs.push(Run::new(cell, measured));
            }
        }
        assert_eq!(results.runs.len(), cells.len());
        results
    }

    #[test]
    fn the_readmes_picture_shows_its_table() {
        let results = published();
        assert!(README.contains(DAY));
        let svg = draw(&results).svg().unwrap();
        if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
            fs::write(PICTURE, &svg).unwrap();
        }
        let again = "draw it again: LONGHAUL_WRITE_DOCS=1 cargo test -p longhaul picture";
        let picture = fs::read_to_string(PICTURE).unwrap_or_default();
        assert!(picture == svg, "docs/throughput.svg is not as README.md has it; {again}");
    }

    #[test]
    fn paths_have_a_tick_each_and_series_a_name() {
        let svg = draw(&published()).svg().unwrap();
        let texts: Vec<&str> = svg.lines().filter(|line| !line.starts_with('<')).collect();
        let expected = [
            "0",
            "1000",
            "1e-4",
            "4 KiB",
            "64 KiB",
            "1 MiB",
            "CUBIC",
            "BBR",
            "goodput (Gbit/s)",
            "plain RC",
            "accelerated RC",
            "TCP, 8 connections",
        ];
        for text in expected {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
    }
}
