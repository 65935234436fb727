//! RDMA: Debian's ib_write_bw on both hosts.

use super::SERVER;
use super::program::{goodput_gbps, run};
use super::results::Measured;
use crate::problem::Problem;
use longhaul_campaign::parser;
use longhaul_lab::Lab;
use std::time::Duration;

/// Measures RC WRITEs of `message_bytes` for `seconds`. One more second at either end is not
/// counted, so that the store is in steady state.
pub fn measure(
    lab: &Lab,
    message_bytes: u64,
    seconds: u32,
    port: u16,
) -> Result<Measured, Problem> {
    let server = format!(
        "ib_write_bw -d longhaul0 -F --report_gbits -s {message_bytes} -D {} -f 1 -p {port}",
        seconds + 2
    );
    // Of its TCP exchanges before and after the transfer.
    let client = format!("{server} {}", lab.dir().address_for_tcp(SERVER)?);
    let expected = Duration::from_secs(u64::from(seconds) + 2);
    let output = run(lab, &server, &client, port, expected)?;
    let values = parser::perftest::read(&output.stdout)
        .map_err(|error| Problem::plain(format!("{error}:\n{output}")))?;
    let goodput_gbps = goodput_gbps(&values)?;
    Ok(Measured { goodput_gbps, retransmissions: None, command: client })
}
