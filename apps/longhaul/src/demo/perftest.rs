//! RDMA: Debian's ib_write_bw on both hosts.

use super::program::Pair;
use super::results::Measured;
use super::{CLIENT, SERVER};
use crate::problem::Problem;
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
    let pair = Pair { server: (SERVER, &server), client: (CLIENT, &client), port, expected };
    let output = pair.run(lab)?;
    let goodput_gbps = read_result(&output)
        .ok_or_else(|| Problem::plain(format!("ib_write_bw printed no result:\n{output}")))?;
    Ok(Measured { goodput_gbps, retransmissions: None, command: client })
}

/// The average bandwidth in Gbit/s of the last line of figures.
fn read_result(output: &str) -> Option<f64> {
    let mut average = None;
    for line in output.lines() {
        let figures: Vec<f64> =
            line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if figures.len() == 5 && line.split_whitespace().count() == 5 {
            average = Some(figures[3]);
        }
    }
    average
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_line_is_found() {
        let output = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   \
                      MsgRate[Mpps]\n 65536      10000            0.00               9.81    \
                      \t\t   0.018715\n---\n";
        assert_eq!(read_result(output), Some(9.81));
        assert_eq!(read_result("Couldn't listen to port 18515"), None);
    }
}
