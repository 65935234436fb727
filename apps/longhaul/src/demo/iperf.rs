//! TCP: Debian's iperf3 between the hosts' kernels.

use super::SERVER;
use super::cell::CongestionControl;
use super::program::{goodput_gbps, run};
use super::results::Measured;
use crate::problem::Problem;
use longhaul_campaign::parser;
use longhaul_lab::Lab;
use std::time::Duration;

/// Time before the measurement, in which connections leave slow start, in seconds.
const OMITTED_S: u32 = 1;

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
    let output = run(lab, &server, &client, port, expected)?;
    let values = parser::iperf3::read(&output.stdout)
        .map_err(|error| Problem::plain(format!("{error}:\n{output}")))?;
    Ok(Measured {
        goodput_gbps: goodput_gbps(&values)?,
        retransmissions: values.get("retransmissions").map(|count| *count as u64),
        command: client,
    })
}
