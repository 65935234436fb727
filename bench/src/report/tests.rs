use crate::*;
use std::path::Path;

fn point(bytes: u32) -> Point {
    Point::new().with("message_bytes", bytes)
}

fn experiment(name: &str) -> Experiment {
    Experiment {
        published: vec![
            PublishedCell::new(point(4096), "goodput_bps", 2e9),
            PublishedCell::new(point(8192), "goodput_bps", 4e9),
        ],
        expectations: vec![Expectation::percent("goodput_bps", 1.0)],
        ..Experiment::new(name, "Goodput <b>at</b> a distance")
    }
}

fn simulated(name: &str, bytes: u32, goodput: f64) -> Record {
    Record::new(name, Source::Simulated, point(bytes)).value("goodput_bps", goodput)
}

fn report() -> Report {
    let good = [simulated("a", 4096, 2e9), simulated("a", 8192, 4e9)];
    let bad = [simulated("b", 4096, 2e9).fitted(), simulated("b", 8192, 5e9)];
    Report::new("A report").experiment(&experiment("a"), &good).experiment(&experiment("b"), &bad)
}

#[test]
fn the_summary_counts_over_all_experiments() {
    let summary = report().summary();
    assert_eq!((summary.experiments, summary.experiments_off), (2, 1));
    let tally = Tally { within: 2, fitted: 1, beyond: 1, ..Tally::default() };
    assert_eq!((summary.tally, summary.is_met()), (tally, false));
    assert!(report().text().ends_with(
        "2 experiments: 3 of 4 figures as expected, 1 where a constant was fitted, 1 beyond tolerance\n"
    ));
}

#[test]
fn the_page_asks_nothing_from_outside_and_escapes_what_it_is_given() {
    let html = report().html().unwrap();
    for foreign in ["<script", "src=", "@import", "url(", "<iframe", "<b>at</b>"] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    // The names of the markup languages are no addresses to load from.
    let links = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http:") && !links.contains("https:"));
    assert!(html.contains("Goodput &lt;b&gt;at&lt;/b&gt; a distance"));
    assert_eq!(html.matches("<svg ").count(), 2);
    assert_eq!(html, report().html().unwrap());
}

#[test]
fn a_report_from_files_is_the_report_from_memory() {
    let dir = std::env::temp_dir().join(format!("longhaul-bench-report-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("results.jsonl");
    let records = [simulated("a", 4096, 2e9 / 3.0), simulated("a", 8192, 0.1 + 0.2)];
    let mut writer = ResultWriter::create(&path).unwrap();
    writer.describe(&experiment("a")).unwrap();
    records.iter().for_each(|record| writer.record(record).unwrap());
    let file = ResultFile::read(&path).unwrap();
    let rebuilt = Report::of_files("A report", &[(path, file)]);
    let direct = Report::new("A report").experiment(&experiment("a"), &records);
    assert_eq!(rebuilt.html().unwrap(), direct.html().unwrap());
    assert_eq!(rebuilt.json().unwrap(), direct.json().unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn results_without_a_description_are_shown_by_what_they_say() {
    let file = ResultFile {
        records: vec![simulated("sweep", 1, 1e9), simulated("sweep", 2, 2e9)],
        ..ResultFile::default()
    };
    let report = Report::of_files("Sweep", &[("sweep.jsonl".into(), file)]);
    let html = report.html().unwrap();
    assert!(html.contains("<h2>sweep ") && html.contains("nothing expected"));
    assert!(report.summary().is_met());
}

#[test]
fn csv_and_svg_are_a_file_each() {
    let dir = std::env::temp_dir().join(format!("longhaul-bench-csv-{}", std::process::id()));
    let names = |files: Vec<std::path::PathBuf>| -> Vec<String> {
        files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(report().write_csv(&dir.join("csv")).unwrap()), ["a.csv", "b.csv"]);
    assert_eq!(names(report().write_svg(&dir.join("svg")).unwrap()), ["a-1.svg", "b-1.svg"]);
    std::fs::remove_dir_all(&dir).unwrap();
    let nowhere = report().write_csv(Path::new("/dev/null/x")).unwrap_err().to_string();
    assert!(nowhere.starts_with("cannot write /dev/null/x: "), "{nowhere}");
}
