//! Tests of the report: its summary, and that text, JSON and page agree.

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
        expectations: vec![Expectation::percent("goodput_bps", 1.0).by(Basis::Published)],
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
    let counts = Counts { within: 2, fitted: 1, beyond: 1, missing: 0 };
    let tally = Tally { all: counts, published: counts, ..Tally::default() };
    assert_eq!((summary.tally, summary.is_met()), (tally, false));
    let outcome = "2 experiments: 2 of 3 published figures reproduced, 1 more where a constant was \
                   fitted, 1 beyond tolerance";
    assert_eq!(report().outcome(), outcome);
    let folded = outcome.replace(", 1 beyond tolerance", ", 1 beyond\n  tolerance\n");
    assert!(report().text().ends_with(&folded), "{}", report().text());
}

#[test]
fn text_json_and_page_tell_apart_who_expects_what_and_say_what_failed() {
    let mut experiment = experiment("a");
    experiment.expectations = Basis::ALL
        .into_iter()
        .zip(["goodput_bps", "gain", "latency_ns"])
        .map(|(basis, value)| Expectation::new(value, Tolerance::AtLeast(1.0)).by(basis))
        .collect();
    experiment.exemptions.push(Exemption {
        values: vec!["goodput_min_bps".to_owned()],
        conditions: Conditions::default(),
        reason: "the document has no such runs".to_owned(),
    });
    let good = simulated("a", 4096, 2e9).value("gain", 3.0).value("latency_ns", 0.5);
    let failed = Record { values: Default::default(), ..simulated("a", 8192, 0.0) };
    let records = [good, failed.failure("goodput_bps", "RetryExceeded")];
    let report = Report::new("A report").experiment(&experiment, &records);
    let text = report.text().replace("\n  ", " ");
    let outcome = "1 of 2 published figures reproduced, 1 missing; 1 of 1 figures as theory has \
                   them; 0 of 1 own goals met, 1 beyond tolerance; 1 without a figure because a \
                   run ended in an error";
    for part in [
        "2  2  0.00 %  ✓",
        "failed  missing",
        "failed at 8 KiB, simulated: RetryExceeded",
        "✓ᵗ",
        "✗ᵒ",
        "Not judged: goodput min: the document has no such runs",
        outcome,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let tally = &json["experiments"][0]["tally"];
    assert_eq!(
        [&tally["published"]["within"], &tally["theory"]["within"], &tally["own"]["beyond"]],
        [1; 3]
    );
    assert_eq!((&tally["failed"], &tally["missing"]), (&1.into(), &1.into()));
    assert!(json.to_string().contains("\"simulated\":\"RetryExceeded\""), "{json:#}");
    let html = report.html().unwrap();
    for part in [
        "1 of 2</span> published figures are reproduced",
        "<b>theory:</b>",
        "<b>own:</b>",
        "RetryExceeded",
    ] {
        assert!(html.contains(part), "{part}");
    }
    let csv = report.assessments()[0].csv();
    assert!(csv.contains("missing") && csv.contains("simulated failed: RetryExceeded"), "{csv}");
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

fn swept() -> Report {
    let record = |depth: u32, goodput: f64| {
        let point = Point::new().with("tx_depth", depth).with("qps", 4);
        let record = Record::new("sweep", Source::Simulated, point).value("goodput_bps", goodput);
        record
            .value("events", goodput / 2.0)
            .value("latency_ns", goodput / 4.0)
            .value("lost_frames", 0.0)
    };
    let records = vec![record(1, 1e9), record(2, 2e9), record(4, 3e9)];
    Report::of_files(
        "Sweep",
        &[("sweep.jsonl".into(), ResultFile { records, ..Default::default() })],
    )
}

#[test]
fn a_sweep_leads_with_goodput_and_latency_and_names_constants_once() {
    let report = swept();
    for text in [report.text(), report.markdown()] {
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        let constants = at("Everywhere: QPs 4, lost frames 0\n");
        assert!(constants < at("goodput (Gbit/s)"), "{text}");
        assert!(at("goodput (Gbit/s)") < at("latency"), "{text}");
        assert!(at("latency") < at("events"), "{text}");
        assert_eq!(text.matches("lost frames").count(), 1, "{text}");
    }
    let html = report.html().unwrap();
    assert!(!html.contains("<caption>lost frames") && html.contains("<caption>events"));
    // Files with full precision keep everything.
    assert!(report.assessments()[0].csv().contains("lost_frames"));
    assert!(report.json().unwrap().contains("lost_frames"));
}

#[test]
fn provenance_marks_words_so_that_they_stay_whole() {
    let provenance = Provenance {
        command: "longhaul sweep --out <a>".to_owned(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        ..Provenance::default()
    };
    let record = Record { provenance: Some(provenance), ..simulated("a", 4096, 2e9) };
    let html = Report::new("").experiment(&experiment("a"), &[record]).html().unwrap();
    for word in ["--out", "&lt;a&gt;", "2026-01-02T03:04:05Z"] {
        assert!(html.contains(&format!("<span class=\"word\">{word}</span>")), "{word}");
    }
}

#[test]
fn a_constant_goodput_is_shown() {
    let record = |depth: u32| {
        let point = Point::new().with("tx_depth", depth);
        Record::new("sweep", Source::Simulated, point).value("goodput_bps", 1e9)
    };
    let file = ResultFile { records: vec![record(1), record(2)], ..Default::default() };
    let text = Report::of_files("Sweep", &[("sweep.jsonl".into(), file)]).text();
    assert!(text.contains("goodput (Gbit/s)") && !text.contains("Everywhere"), "{text}");
}

#[test]
fn plots_are_files_named_after_their_content_with_their_origin() {
    let dir = std::env::temp_dir().join(format!("longhaul-bench-svg-{}", std::process::id()));
    let files = swept().write_svg(&dir).unwrap();
    let names: Vec<_> =
        files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["sweep-goodput.svg", "sweep-latency.svg", "sweep-events.svg"]);
    assert!(std::fs::read_to_string(&files[0]).unwrap().contains("sweep · simulated"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn csv_and_svg_are_a_file_each() {
    let dir = std::env::temp_dir().join(format!("longhaul-bench-csv-{}", std::process::id()));
    let names = |files: Vec<std::path::PathBuf>| -> Vec<String> {
        files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(report().write_csv(&dir.join("csv")).unwrap()), ["a.csv", "b.csv"]);
    assert_eq!(
        names(report().write_svg(&dir.join("svg")).unwrap()),
        ["a-goodput.svg", "b-goodput.svg"]
    );
    std::fs::remove_dir_all(&dir).unwrap();
    let nowhere = report().write_csv(Path::new("/dev/null/x")).unwrap_err().to_string();
    assert!(nowhere.starts_with("cannot write /dev/null/x: "), "{nowhere}");
}
