//! TCP: Debian's iperf3 between the hosts' kernels.

use super::cell::CongestionControl;
use super::program::Pair;
use super::results::Measured;
use super::{CLIENT, SERVER};
use crate::problem::Problem;
use longhaul_lab::Lab;
use serde::Deserialize;
use std::time::Duration;

/// Time before the measurement, in which connections leave slow start, in seconds.
const OMITTED_S: u32 = 1;

/// The part of iperf3's report that the demo uses.
#[derive(Deserialize)]
struct Report {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Received,
    sum_sent: Sent,
}

#[derive(Deserialize)]
struct Received {
    bits_per_second: f64,
}

#[derive(Deserialize)]
struct Sent {
    retransmits: Option<u64>,
}

/// Measures `connections` with `congestion_control` for `seconds`.
pub fn measure(
    lab: &Lab,
    congestion_control: CongestionControl,
    connections: u32,
    seconds: u32,
    port: u16,
) -> Result<Measured, Problem> {
    let server = format!("iperf3 --server --one-off --port {port}");
    let client = format!(
        "iperf3 --client {} --port {port} --congestion {} --parallel {connections} --time \
         {seconds} --omit {OMITTED_S} --json",
        lab.dir().address_for_tcp(SERVER)?,
        congestion_control.name()
    );
    let expected = Duration::from_secs(u64::from(seconds + OMITTED_S));
    let pair = Pair { server: (SERVER, &server), client: (CLIENT, &client), port, expected };
    let output = pair.run(lab)?;
    let Report { end } = serde_json::from_str(&output).map_err(|error| {
        Problem::plain(format!("iperf3 printed no result ({error}):\n{output}"))
    })?;
    Ok(Measured {
        goodput_gbps: end.sum_received.bits_per_second / 1e9,
        retransmissions: end.sum_sent.retransmits,
        command: client,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_goodput_and_retransmissions() {
        let text = r#"{"start": {}, "end": {"streams": [],
            "sum_sent": {"bits_per_second": 5.1e9, "retransmits": 12, "sender": true},
            "sum_received": {"bits_per_second": 5.0e9, "sender": true}}}"#;
        let Report { end } = serde_json::from_str(text).unwrap();
        assert_eq!(end.sum_received.bits_per_second, 5e9);
        assert_eq!(end.sum_sent.retransmits, Some(12));
        assert!(serde_json::from_str::<Report>(r#"{"error": "unable to connect"}"#).is_err());
    }
}
