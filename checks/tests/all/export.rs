//! Exported results, read by independent readers in Debian's Python; Parquet by that of PyPI's.

use longhaul_bench::{Point, Provenance, Record, ResultWriter, Source};
use longhaul_checks::{Finished, Program, longhaul, python};
use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const PYTHON: &str = "/usr/bin/python3";
/// Exit code of the reader if a module is missing.
const MISSING: i32 = 77;

/// A file of results in a directory that is removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str, records: &[Record]) -> Self {
        let name = format!("longhaul-export-{}-{name}", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&place.0).expect("a directory");
        let mut writer = ResultWriter::create(&place.0.join("results.jsonl")).expect("a file");
        records.iter().for_each(|record| writer.record(record).expect("a line"));
        place
    }

    fn export(&self, arguments: &str) -> Finished {
        let mut command = Command::new(longhaul());
        command.args(["export", "results.jsonl"]).args(arguments.split(' ')).current_dir(&self.0);
        Program::start(&mut command).finish(LIMIT)
    }

    fn exported(&self, arguments: &str) -> String {
        let finished = self.export(arguments);
        assert!(finished.status.success(), "{finished}");
        finished.stdout
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What an independent reader finds in `text`; `None` if it is not installed, which is reported.
fn read(format: &str, text: &str) -> Option<Value> {
    if !Path::new(PYTHON).is_file() {
        longhaul_namespace::skip("python3 is not installed: apt-get install python3");
        return None;
    }
    read_by(Path::new(PYTHON), "apt-get install", format, text.as_bytes())
}

/// What the script finds by an interpreter whose modules `install` installs.
fn read_by(python: &Path, install: &str, format: &str, bytes: &[u8]) -> Option<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/read_export.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(format)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3");
    child.stdin.take().expect("piped").write_all(bytes).expect("the reader reads");
    let done = child.wait_with_output().expect("the reader ends");
    let printed = String::from_utf8_lossy(&done.stdout);
    if done.status.code() == Some(MISSING) {
        let package = printed.trim();
        longhaul_namespace::skip(format!("{package} is not installed: {install} {package}"));
        return None;
    }
    let errors = String::from_utf8_lossy(&done.stderr);
    let text = String::from_utf8_lossy(bytes);
    assert!(done.status.success(), "{format}: {errors}\n{text}");
    Some(serde_json::from_str(&printed).expect("JSON"))
}

fn records() -> Vec<Record> {
    let made = |repeat, command: &str| Provenance {
        repeat: Some(repeat),
        command: command.to_owned(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        host: "a \"host\", quoted".to_owned(),
        wall_s: 3.5,
        ..Provenance::default()
    };
    let of = |program: &str| Point::new().with("program", program).with("distance_km", 0.5);
    let write = |repeat| {
        let command = "ib_write_bw -d longhaul0 -F --report_gbits -s 65536 -D 2 -p 9 10.0.0.1";
        Record::new("x", Source::Measured, of("write"))
            .value("goodput_bps", 9.81e9 + f64::from(repeat) * 1e7)
            .value("messages_per_s", 18_715.0)
            .from_run(made(repeat, command))
    };
    let latency = Record::new("x", Source::Measured, of("latency, \\ and\nmore"))
        .value("latency_mean_ns", 5250.0)
        .with_samples("latency_ns", vec![5000.0, 5500.0])
        .from_run(made(1, "ib_send_lat -s 2 -n 1000"));
    let failed = Record::new("x", Source::Measured, of("write"))
        .failure("goodput_bps", "the client did not end within 60 s")
        .from_run(made(3, "ib_write_bw -D 2"));
    let published = Record::new("x", Source::Published, of("write"))
        .value("goodput_bps", 9.8e9)
        .note("Table 1");
    vec![write(1), write(2), latency, failed, published]
}

#[test]
fn csv_has_every_figure() {
    let place = Place::new("csv", &records());
    let Some(rows) = read("csv", &place.exported("--format csv")) else { return };
    let rows = rows.as_array().expect("rows");
    // Two values of two runs, a value and two observations, a failure, a published figure.
    assert_eq!(rows.len(), 4 + 3 + 1 + 1);
    assert_eq!(rows[0]["figure"], "9820000000");
    assert_eq!((&rows[0]["repeat"], &rows[0]["distance_km"]), (&"1".into(), &"0.5".into()));
    assert_eq!(rows[0]["host"], "a \"host\", quoted");
    let samples: Vec<&Value> = rows.iter().filter(|row| row["sample"] != "").collect();
    assert_eq!(samples.len(), 2);
    assert_eq!(samples[1]["figure"], "5500");
    assert_eq!(rows[7]["failed"], "the client did not end within 60 s");
    assert_eq!((&rows[8]["source"], &rows[8]["note"]), (&"published".into(), &"Table 1".into()));
}

#[test]
fn parquet_has_the_lines_of_the_csv_in_typed_columns() {
    let mut records = records();
    records[0].point = records[0].point.clone().with("is_paced", true);
    let place = Place::new("parquet", &records);
    assert_eq!(place.exported("--format parquet --out x.parquet"), "");
    let file = std::fs::read(place.0.join("x.parquet")).expect("a file");
    let Some(table) = read_by(&python(), "pip install", "parquet", &file) else { return };
    let types = &table["types"];
    for (column, kind) in [
        ("experiment", "string"),
        ("program", "string"),
        ("distance_km", "double"),
        ("is_paced", "bool"),
        ("repeat", "int64"),
        ("sample", "int64"),
        ("figure", "double"),
        ("failed", "string"),
    ] {
        assert_eq!(types[column], kind, "{types}");
    }
    let rows = table["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4 + 3 + 1 + 1);
    let Some(lines) = read("csv", &place.exported("--format csv")) else { return };
    for (row, line) in rows.iter().zip(lines.as_array().expect("lines")) {
        for (column, cell) in line.as_object().expect("columns") {
            let same = match &row[column] {
                Value::Null => cell == "",
                Value::Number(number) => {
                    cell.as_str().and_then(|cell| cell.parse().ok()) == number.as_f64()
                }
                Value::Bool(flag) => cell == if *flag { "yes" } else { "no" },
                text => cell == text,
            };
            assert!(same, "{column}: {cell} and {}", row[column]);
        }
    }
}

#[test]
fn openmetrics_has_gauges_in_base_units_at_the_time_of_the_run() {
    let place = Place::new("openmetrics", &records());
    let text = place.exported("--format openmetrics");
    let Some(families) = read("openmetrics", &text) else { return };
    let families = families.as_array().expect("families");
    let names: Vec<&str> = families.iter().filter_map(|family| family["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "longhaul_goodput_bits_per_second",
            "longhaul_latency_mean_seconds",
            "longhaul_messages_per_second"
        ]
    );
    assert!(families.iter().all(|family| family["type"] == "gauge"), "{families:?}");
    assert_eq!(families[1]["unit"], "seconds");
    let goodput = families[0]["samples"].as_array().expect("samples");
    assert_eq!(goodput.len(), 3);
    assert_eq!(goodput[1][0]["run"], "2");
    let number = |value: &Value| value.as_f64().expect("a number");
    assert_eq!((number(&goodput[1][1]), number(&goodput[1][2])), (9.83e9, 1_767_323_045.0));
    assert_eq!((&goodput[2][0]["source"], &goodput[2][2]), (&"published".into(), &Value::Null));
    let latency = &families[1]["samples"][0];
    assert_eq!(latency[0]["program"], "latency, \\ and\nmore");
    assert!((number(&latency[1]) - 5.25e-6).abs() < 1e-15, "{latency}");
}

#[test]
fn perftest_and_pscheduler_have_a_file_for_each_run() {
    let place = Place::new("json", &records());
    for (format, count) in [("perftest-json", 3), ("pscheduler", 4)] {
        let told = place.exported(&format!("--format {format} --out {format}"));
        assert_eq!(told, format!("{count} runs in {format}\n"));
        for number in 1..=count {
            let path = place.0.join(format).join(format!("x-{number}.json"));
            let text = std::fs::read_to_string(path).expect("a file");
            let Some(document) = read(format, &text) else { return };
            if number == 1 && format == "perftest-json" {
                assert_eq!(document["results"]["BW_average"], 9.82);
                assert_eq!(document["test_info"]["test"], "RDMA_Write_BW_Test");
            } else if number == 1 {
                let stream = &document["summary"]["summary"];
                assert_eq!(
                    (&stream["throughput-bits"], &stream["end"]),
                    (&9.82e9.into(), &2.0.into())
                );
            }
        }
    }
    let failed = std::fs::read_to_string(place.0.join("pscheduler/x-3.json")).expect("a file");
    assert!(failed.contains("\"succeeded\": false") && failed.contains("within 60 s"), "{failed}");
}

#[test]
fn what_cannot_be_exported_is_said_in_a_line() {
    let place = Place::new("refusals", &records());
    let refused = |arguments: &str, code: i32| {
        let finished = place.export(arguments);
        assert_eq!((finished.status.code(), &*finished.stdout), (Some(code), ""), "{finished}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
        finished.stderr
    };
    let several = refused("--format pscheduler", 1);
    assert!(several.contains("there are 4; name a directory with --out"), "{several}");
    let full = refused("--format csv --out /dev/full", 1);
    assert!(full.contains("cannot write /dev/full"), "{full}");
    let unknown = refused("--format csv --only y", 2);
    assert!(unknown.contains("no experiment is called y; there is x"), "{unknown}");
    let format = refused("--format xml", 2);
    assert!(format.contains("openmetrics"), "{format}");
    let one = Place::new("one", &records()[2..3]);
    assert!(one.exported("--format perftest-json").contains("Send_Latency_Test"));
    let none = one.export("--format pscheduler");
    assert!(none.stderr.contains("the files have no runs with goodput"), "{none}");
}
