//! The file that perftest writes with `--out_json`.

use super::command::Command;
use crate::record::Record;
use serde_json::{Map, Value, json};

/// Beginnings of a program's name, and of its test's.
const TESTS: [(&str, &str); 6] = [
    ("write_imm", "RDMA_Write_imm"),
    ("write", "RDMA_Write"),
    ("read", "RDMA_Read"),
    ("send_imm", "Send_imm"),
    ("send", "Send"),
    ("atomic", "Atomic"),
];
/// perftest's default queue depth, in messages.
const TX_DEPTH: u64 = 128;

/// The result of a bandwidth or latency test; `None` for records of other programs and of runs that
/// failed. Bandwidth is in Gb/s if the program was told so, and otherwise in MiB/s, as perftest has
/// it; latency in µs. Fields that the record and its command do not determine are left out.
pub fn perftest(record: &Record) -> Option<Value> {
    let command = Command::of(record)?;
    let program = command.program().strip_prefix("ib_")?;
    let (verb, kind) = program.rsplit_once('_')?;
    let (_, test) = TESTS.iter().find(|(name, _)| *name == verb)?;
    let (results, test) = match kind {
        "bw" => {
            (bandwidth(record, &command)?, format!("{test}_{}BW_Test", bidirectional(&command)))
        }
        "lat" => (latency(record, &command)?, format!("{test}_Latency_Test")),
        _ => return None,
    };
    let on = |is_on: bool| if is_on { "ON" } else { "OFF" };
    let by_cm = command.has(&["-R", "--rdma_cm"]);
    let mut info = Map::new();
    info.insert("test".to_owned(), test.into());
    if let Some(device) = command.value(&["-d", "--ib-dev"]) {
        info.insert("Device".to_owned(), device.into());
    }
    let qps = command.number(&["-q", "--qp"]).or_else(|| parameter(record, "qps"));
    info.insert("Number_of_qps".to_owned(), qps.unwrap_or(1).into());
    let connection = command.value(&["-c", "--connection"]).unwrap_or("RC");
    info.insert("Connection_type".to_owned(), connection.into());
    info.insert("Using_SRQ".to_owned(), on(command.has(&["--use-srq"])).into());
    if kind == "bw" {
        let depth = command.number(&["-t", "--tx-depth"]).unwrap_or(TX_DEPTH);
        info.insert("TX_depth".to_owned(), depth.into());
    }
    info.insert("rdma_cm_QPs".to_owned(), on(by_cm).into());
    let exchange =
        if by_cm || command.has(&["-z", "--comm_rdma_cm"]) { "rdma_cm" } else { "Ethernet" };
    info.insert("Data_ex_method".to_owned(), exchange.into());
    Some(json!({ "test_info": info, "results": results }))
}

fn bidirectional(command: &Command<'_>) -> &'static str {
    if command.has(&["-b", "--bidirectional"]) { "Bidirectional_" } else { "" }
}

fn parameter(record: &Record, key: &str) -> Option<u64> {
    record.point.get(key)?.as_number().map(|number| number as u64)
}

/// Size and number of messages, as far as they are known.
fn messages(record: &Record, command: &Command<'_>) -> Map<String, Value> {
    let size = command.number(&["-s", "--size"]).or_else(|| parameter(record, "message_bytes"));
    let known = [("MsgSize", size), ("n_iterations", command.number(&["-n", "--iters"]))];
    known.into_iter().filter_map(|(name, number)| Some((name.to_owned(), number?.into()))).collect()
}

fn bandwidth(record: &Record, command: &Command<'_>) -> Option<Map<String, Value>> {
    let is_gbits = command.has(&["--report_gbits"]);
    let unit = if is_gbits { 1e9 } else { 8.0 * 1_048_576.0 };
    let mut results = messages(record, command);
    let peak = record.values.get("peak_bps").unwrap_or(&0.0);
    results.insert("BW_peak".to_owned(), rounded(peak / unit, 1e6));
    results.insert("BW_average".to_owned(), rounded(record.values.get("goodput_bps")? / unit, 1e6));
    if let Some(rate) = record.values.get("messages_per_s") {
        results.insert("MsgRate".to_owned(), rounded(rate / 1e6, 1e6));
    }
    Some(results)
}

fn latency(record: &Record, command: &Command<'_>) -> Option<Map<String, Value>> {
    const NAMES: [(&str, &str); 7] = [
        ("latency_min_ns", "t_min"),
        ("latency_max_ns", "t_max"),
        ("latency_median_ns", "t_typical"),
        ("latency_mean_ns", "t_avg"),
        ("latency_stdev_ns", "t_stdev"),
        ("latency_p99_ns", "percentile_99"),
        ("latency_p999_ns", "percentile_99.9"),
    ];
    record.values.get("latency_mean_ns")?;
    let mut results = messages(record, command);
    for (value, name) in NAMES {
        if let Some(ns) = record.values.get(value) {
            results.insert(name.to_owned(), rounded(ns / 1e3, 1e3));
        }
    }
    Some(results)
}

/// `figure` to one part of `parts`.
fn rounded(figure: f64, parts: f64) -> Value {
    ((figure * parts).round() / parts).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Provenance, Source};

    fn record(command: &str) -> Record {
        let made = Provenance { command: command.to_owned(), ..Provenance::default() };
        let point = Point::new().with("message_bytes", 65_536).with("program", "write");
        Record::new("x", Source::Measured, point).from_run(made)
    }

    #[test]
    fn bandwidth_has_the_unit_of_the_programs_output() {
        let command =
            "ib_write_bw -d longhaul0 -F --report_gbits -q 4 -s 65536 -n 500 -p 1 10.0.0.1";
        let of = |command: &str| {
            perftest(
                &record(command).value("goodput_bps", 9.81e9).value("messages_per_s", 18_715.0),
            )
        };
        assert_eq!(
            of(command).unwrap(),
            json!({
                "test_info": {
                    "test": "RDMA_Write_BW_Test", "Device": "longhaul0", "Number_of_qps": 4,
                    "Connection_type": "RC", "Using_SRQ": "OFF", "TX_depth": 128,
                    "rdma_cm_QPs": "OFF", "Data_ex_method": "Ethernet",
                },
                "results": {
                    "MsgSize": 65536, "n_iterations": 500, "BW_peak": 0.0, "BW_average": 9.81,
                    "MsgRate": 0.018715,
                },
            })
        );
        let binary = of("ib_read_bw -d mlx5_0 -R -c UC -b").unwrap();
        assert_eq!(binary["results"]["BW_average"], 1169.44313);
        assert_eq!(binary["results"]["MsgSize"], 65536);
        assert_eq!(binary["test_info"]["test"], "RDMA_Read_Bidirectional_BW_Test");
        assert_eq!(binary["test_info"]["Data_ex_method"], "rdma_cm");
    }

    #[test]
    fn latency_is_in_microseconds() {
        let lat = record("ib_send_lat -s 2").value("latency_mean_ns", 5250.0);
        let lat = perftest(&lat.value("latency_p999_ns", 9999.4)).unwrap();
        assert_eq!(lat["results"], json!({"MsgSize": 2, "t_avg": 5.25, "percentile_99.9": 9.999}));
        assert_eq!(lat["test_info"]["test"], "Send_Latency_Test");
    }

    #[test]
    fn other_programs_and_failed_runs_have_none() {
        let good = |command: &str| record(command).value("goodput_bps", 1.0);
        assert_eq!(perftest(&good("iperf3 --client 10.0.0.1")), None);
        assert_eq!(perftest(&good("ib_write_lat")), None);
        assert_eq!(perftest(&record("ib_write_bw").failure("goodput_bps", "hung")), None);
        let simulated = Record::new("x", Source::Simulated, Point::new()).value("goodput_bps", 1.0);
        assert_eq!(perftest(&simulated), None);
    }
}
