//! throughput.svg: goodput against message size, with its bounds.

use super::results::{Provenance, Results};
use crate::problem::Problem;
use longhaul_bench::{Line, Marker, Plot, PlotAxis, Quantity, Scale, Style, rfc3339};
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
        x: PlotAxis::of("message_bytes", "message size", sizes.iter().copied(), Some(Scale::Log)),
        y: PlotAxis::of("goodput_bps", "goodput", points().map(|point| point.1), Some(Scale::Log)),
        key: vec![
            named(PLAIN, "plain RC"),
            named(ACCELERATED, "accelerated"),
            named(WINDOW, &format!("bound: {TX_DEPTH} messages per RTT")),
        ],
        lines,
        note: note(&results.provenance, rate),
    }
}

/// The tool, its settings, and the date.
fn note(provenance: &Provenance, rate: BitRate) -> String {
    let version = provenance.perftest.as_deref().map(|text| text.trim_start_matches("Version: "));
    let rate = Quantity::of("rate_bps").humanised(rate.as_bps() as f64);
    let at = rfc3339(provenance.unix_time_s);
    format!(
        "perftest {}, tx-depth {TX_DEPTH}, memif, {rate} · longhaul demo, {}",
        version.unwrap_or("of unknown version"),
        at.split('T').next().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::super::results::Run;
    use super::*;
    use std::fs;

    const README: &str = include_str!("../../../../README.md");
    const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/throughput.svg");
    /// 2026-11-20, the day of the README's run.
    const DAY_S: u64 = 1_795_132_800;

    /// The run that the README's table has.
    fn published() -> Results {
        let provenance = Provenance {
            longhaul: "",
            perftest: Some("4.5-0.17".to_owned()),
            kernel: None,
            cpu: None,
            cores: 2,
            rate_bps: 10_000_000_000,
            seed: 1,
            command_line: Vec::new(),
            unix_time_s: DAY_S,
        };
        let mut results = Results::new(provenance);
        let (_, table) = README.split_once("| message | accelerated |").unwrap();
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let (number, unit) = cells[0].split_once(' ').unwrap();
            let unit =
                [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)].into_iter().find(|u| u.0 == unit);
            let message_bytes = number.parse::<u64>().unwrap() * unit.unwrap().1;
            for (distance_km, cell) in [0.0, 10.0, 100.0, 1000.0].into_iter().zip(&cells[2..]) {
                results.runs.push(Run {
                    distance_km,
                    message_bytes,
                    accelerated: cells[1] == "yes",
                    goodput_gbps: cell.split(' ').next().unwrap().parse().unwrap(),
                    messages_per_second: 0.0,
                    command: String::new(),
                });
            }
        }
        results
    }

    #[test]
    fn the_readmes_picture_shows_its_table() {
        let results = published();
        assert_eq!(results.runs.len(), 32);
        assert_eq!(results.goodput(1000.0, 4096, true), Some(9.73));
        assert_eq!(results.goodput(1000.0, 4096, false), Some(0.32));
        assert!(README.contains(&rfc3339(DAY_S)[..10]));
        let svg = draw(&results, BitRate::from_gbps(10).unwrap()).svg().unwrap();
        if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
            fs::write(PICTURE, &svg).unwrap();
        }
        let again = "draw it again: LONGHAUL_WRITE_DOCS=1 cargo test -p longhaul picture";
        let picture = fs::read_to_string(PICTURE).unwrap_or_default();
        assert!(picture == svg, "docs/throughput.svg is not as README.md has it; {again}");
    }

    #[test]
    fn sizes_have_a_tick_each_and_series_a_name() {
        let svg = draw(&published(), BitRate::from_gbps(10).unwrap()).svg().unwrap();
        let texts: Vec<&str> = svg.lines().filter(|line| !line.starts_with('<')).collect();
        let expected = [
            "512 B",
            "4 KiB",
            "64 KiB",
            "1 MiB",
            "message size",
            "goodput (Gbit/s)",
            "plain RC",
            "accelerated",
            "0 km",
            "1000 km",
        ];
        for text in expected {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
    }
}
