//! The result of a throughput test of perfSONAR's pscheduler.

use super::command::Command;
use crate::record::Record;
use serde_json::{Map, Value, json};

/// Options of a program that give its measured seconds.
const DURATION: [&str; 4] = ["-D", "--duration", "--time", "-t"];

/// The result of a run with goodput or without, because it failed; `None` for records without
/// goodput. pscheduler's schema is closed: what else is known of the run is text in `diags`.
pub fn pscheduler(record: &Record) -> Option<Value> {
    let failed = record.failed.get("goodput_bps");
    let goodput = record.values.get("goodput_bps");
    if goodput.is_none() && failed.is_none() {
        return None;
    }
    let mut result = Map::new();
    result.insert("succeeded".to_owned(), goodput.is_some().into());
    if let Some(reason) = failed {
        result.insert("error".to_owned(), reason.as_str().into());
    }
    result.insert("diags".to_owned(), diags(record).into());
    result.insert("intervals".to_owned(), json!([]));
    let summary = goodput.map_or(json!({}), |bps| summary(record, *bps));
    let streams = if goodput.is_some() { vec![summary.clone()] } else { Vec::new() };
    result.insert("summary".to_owned(), json!({ "streams": streams, "summary": summary }));
    if let Some(mtu) = record.point.get("mtu_bytes").and_then(|mtu| mtu.as_number()) {
        result.insert("mtu".to_owned(), (mtu as u64).into());
    }
    Some(result.into())
}

fn summary(record: &Record, bps: f64) -> Value {
    let mut summary = Map::new();
    summary.insert("stream-id".to_owned(), 1.into());
    summary.insert("start".to_owned(), 0.into());
    if let Some(seconds) = seconds(record) {
        summary.insert("end".to_owned(), seconds.into());
    }
    summary.insert("throughput-bits".to_owned(), bps.into());
    summary.insert("throughput-bytes".to_owned(), (bps / 8.0).into());
    if let Some(count) = record.values.get("retransmissions") {
        summary.insert("retransmits".to_owned(), (*count as u64).into());
    }
    summary.into()
}

/// Seconds that were measured: those of the run where nothing says more.
fn seconds(record: &Record) -> Option<f64> {
    let elapsed = record.values.get("elapsed_ns").map(|ns| ns / 1e9);
    let is_iperf = |command: &Command<'_>| command.program().starts_with("iperf");
    let told = Command::of(record).and_then(|command| {
        // perftest's -t is a depth.
        let options = if is_iperf(&command) { &DURATION[2..] } else { &DURATION[..2] };
        command.value(options)?.parse().ok()
    });
    elapsed.or(told).or_else(|| record.provenance.as_ref().map(|made| made.wall_s))
}

/// What the schema has no field for.
fn diags(record: &Record) -> String {
    let mut lines =
        vec![format!("{}, {}: {}", record.experiment, record.source.name(), record.point)];
    if let Some(made) = &record.provenance {
        let by = ["longhaul", made.longhaul.as_str(), made.host.as_str(), made.started_at.as_str()];
        lines.push(by.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "));
        lines.push(made.command.clone());
    }
    lines.extend(record.note.clone());
    lines.extend(record.values.iter().map(|(value, figure)| format!("{value} {figure}")));
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Point, Provenance, Source};

    fn record(command: &str) -> Record {
        let command = command.to_owned();
        let made = Provenance { command, wall_s: 9.5, ..Provenance::default() };
        let point = Point::new().with("distance_km", 100).with("mtu_bytes", 4096);
        Record::new("x", Source::Measured, point).from_run(made)
    }

    #[test]
    fn a_run_is_one_stream() {
        let result = pscheduler(&record("ib_write_bw -D 5").value("goodput_bps", 8e9)).unwrap();
        let stream = json!({
            "stream-id": 1, "start": 0, "end": 5.0, "throughput-bits": 8e9, "throughput-bytes": 1e9,
        });
        let summary = json!({ "streams": [stream.clone()], "summary": stream });
        assert_eq!((&result["summary"], &result["succeeded"]), (&summary, &true.into()));
        assert_eq!((&result["mtu"], &result["intervals"]), (&4096.into(), &json!([])));
        let diags = result["diags"].as_str().unwrap();
        assert!(diags.contains("distance 100 km") && diags.contains("ib_write_bw -D 5"), "{diags}");
        let tcp = record("iperf3 --time 3 --json").value("goodput_bps", 1.0);
        let tcp = pscheduler(&tcp.value("retransmissions", 7.0)).unwrap();
        assert_eq!(tcp["summary"]["summary"]["end"], 3.0);
        assert_eq!(tcp["summary"]["summary"]["retransmits"], 7);
        let other = pscheduler(&record("own").value("goodput_bps", 1.0)).unwrap();
        assert_eq!(other["summary"]["summary"]["end"], 9.5);
    }

    #[test]
    fn a_failed_run_has_its_error_and_no_stream() {
        let result = pscheduler(&record("x").failure("goodput_bps", "it hung")).unwrap();
        assert_eq!((&result["succeeded"], &result["error"]), (&false.into(), &"it hung".into()));
        assert_eq!(result["summary"], json!({ "streams": [], "summary": {} }));
        assert_eq!(pscheduler(&record("x").value("latency_ns", 1.0)), None);
    }
}
