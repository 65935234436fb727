//! docs/lossy-wan.svg, drawn from the table of docs/measurements.md.

use super::declared;
use longhaul_bench::{Assessment, Plot, Point, Record, Source, figures};
use std::fs;

const PAGE: &str = include_str!("../../../../docs/measurements.md");
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lossy-wan.svg");
/// Rows of the table, and their names in the experiment.
const ROWS: [(&str, &str); 4] = [
    ("plain RC", "plain RC"),
    ("accelerators at both sites", "accelerators"),
    ("whole boxes (`transport = true`)", "whole boxes"),
    ("whole boxes, losses in bursts of 8 (Gilbert–Elliott)", "whole boxes, bursts of 8"),
];

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

fn plot() -> Plot {
    let (_, table) = PAGE.split_once("| 64 KiB WRITEs, loss |").unwrap();
    let mut lines = table.lines();
    let losses: Vec<f64> =
        cells(lines.next().unwrap()).iter().map(|loss| loss.parse().unwrap()).collect();
    let mut records = Vec::new();
    for row in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells = cells(row);
        let (_, boxes) = ROWS.into_iter().find(|(name, _)| *name == cells[0]).unwrap();
        for (loss, cell) in losses.iter().zip(&cells[1..]).filter(|(_, cell)| !cell.is_empty()) {
            let point = Point::new().with("boxes", boxes).with("path.loss", *loss);
            let goodput_bps = cell.parse::<f64>().unwrap() * 1e9;
            let record = Record::new("lossy-wan", Source::Simulated, point);
            records.push(record.value("goodput_bps", goodput_bps));
        }
    }
    let declared = declared::named("lossy-wan").unwrap();
    let (_, experiment) = declared.plan(declared::Extent::Whole).unwrap();
    let mut plots = figures(&Assessment::new(&experiment, &records));
    assert_eq!(plots.len(), 1);
    Plot {
        title: "64 KiB WRITEs over 1000 km at 100 Gbit/s".to_owned(),
        note:
            "simulated, RTT 10 ms, one QP, tx-depth 128 · longhaul reproduce lossy-wan, 2026-11-23"
                .to_owned(),
        ..plots.remove(0)
    }
}

#[test]
fn the_picture_of_losses_shows_the_table() {
    let svg = plot().svg().unwrap();
    if std::env::var_os("LONGHAUL_WRITE_DOCS").is_some() {
        fs::write(PICTURE, &svg).unwrap();
    }
    let again = "draw it again: LONGHAUL_WRITE_DOCS=1 cargo test -p longhaul picture";
    let picture = fs::read_to_string(PICTURE).unwrap_or_default();
    assert!(picture == svg, "docs/lossy-wan.svg is not as docs/measurements.md has it; {again}");
}

#[test]
fn the_picture_of_losses_has_every_series_and_every_loss() {
    let plot = plot();
    let names: Vec<&str> = plot.lines.iter().map(|line| line.label.as_str()).collect();
    assert_eq!(names, ROWS.map(|(_, name)| name));
    let at_5e_2 = |line: &&longhaul_bench::Line| line.points.iter().any(|(x, _)| *x == 5e-2);
    assert_eq!(plot.lines.iter().filter(at_5e_2).count(), 2);
    let svg = plot.svg().unwrap();
    for tick in ["0", "1e-5", "1e-4", "1e-3", "1e-2", "5e-2"] {
        assert!(svg.contains(&format!(">\n{tick}\n<")), "{tick}");
    }
}
