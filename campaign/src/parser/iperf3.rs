//! The JSON of iperf3.

use super::{NoResult, Values, json};
use serde::Deserialize;

/// The part of iperf3's report that is used.
#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    intervals: Vec<Interval>,
    end: Option<End>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Interval {
    sum: Option<IntervalSum>,
}

#[derive(Deserialize)]
struct IntervalSum {
    bits_per_second: f64,
    /// True in the time that `--omit` leaves out.
    #[serde(default)]
    omitted: bool,
}

#[derive(Deserialize)]
struct End {
    sum_received: Option<Received>,
    sum_sent: Option<Sent>,
    /// UDP has one sum.
    sum: Option<Received>,
}

#[derive(Deserialize)]
struct Received {
    bits_per_second: f64,
    lost_percent: Option<f64>,
    jitter_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Sent {
    retransmits: Option<u64>,
}

/// Goodput at the receiver; retransmitted segments of TCP; lost datagrams and jitter of UDP.
///
/// # Errors
/// The error that iperf3 reports, or a lack of results.
pub fn read(output: &str) -> Result<Values, NoResult> {
    let report: Report = json(output, "iperf3")?;
    if let Some(error) = report.error {
        return Err(NoResult::new(format!("iperf3: {error}")));
    }
    let none = || NoResult::new("iperf3 printed no result");
    let End { sum_received, sum_sent, sum } = report.end.ok_or_else(none)?;
    let received = sum_received.or(sum).ok_or_else(none)?;
    let mut values = Values::from([("goodput_bps".to_owned(), received.bits_per_second)]);
    let retransmissions = sum_sent.and_then(|sent| sent.retransmits).map(|count| count as f64);
    for (name, value) in [
        ("retransmissions", retransmissions),
        ("lost_percent", received.lost_percent),
        ("jitter_ns", received.jitter_ms.map(|ms| ms * 1e6)),
    ] {
        values.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(values)
}

/// Rates of the intervals, a second each unless `--interval` says otherwise.
pub fn intervals(output: &str) -> Vec<f64> {
    let Ok(Report { intervals, .. }) = json(output, "iperf3") else { return Vec::new() };
    let sums = intervals.iter().filter_map(|interval| interval.sum.as_ref());
    sums.filter(|sum| !sum.omitted).map(|sum| sum.bits_per_second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_goodput_and_retransmissions() {
        let text = r#"{"start": {}, "end": {"streams": [],
            "sum_sent": {"bits_per_second": 5.1e9, "retransmits": 12, "sender": true},
            "sum_received": {"bits_per_second": 5.0e9, "sender": true}}}"#;
        let values = read(text).unwrap();
        assert_eq!((values["goodput_bps"], values["retransmissions"]), (5e9, 12.0));
        let with_intervals = text.replacen(
            '{',
            r#"{"intervals": [
            {"sum": {"bits_per_second": 1e9, "omitted": true}},
            {"sum": {"bits_per_second": 4e9, "omitted": false}},
            {"sum": {"bits_per_second": 6e9}}],"#,
            1,
        );
        assert_eq!(intervals(&with_intervals), [4e9, 6e9]);
        assert_eq!((intervals(text).len(), intervals("none").len()), (0, 0));
        let udp = r#"{"end": {"sum": {"bits_per_second": 1e6, "jitter_ms": 0.5,
            "lost_percent": 1.5}}}"#;
        let values = read(udp).unwrap();
        assert_eq!((values["lost_percent"], values["jitter_ns"]), (1.5, 5e5));
        let refused = read(r#"{"start": {}, "error": "unable to connect"}"#).unwrap_err();
        assert_eq!(refused.0, "iperf3: unable to connect");
        assert!(read("").is_err());
    }
}
