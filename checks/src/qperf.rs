//! Runs qperf, whose server accepts one connection over TCP and by RDMA-CM at the same address.

use crate::back_to_back::BackToBack;
use crate::pair::{Ready, free_tcp_port};
use crate::process::cpu_time;
use crate::program::{Program, require};
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Output of one test: name and value, such as `bw`, `latency`, `loc_cpus_used`; times in seconds,
/// rates in bytes or messages per second, shares as fractions of one processor.
pub type Values = BTreeMap<String, f64>;

/// Runs one of qperf's tests for a second, with its options, split at spaces. Adds `client_cpu` and
/// `server_cpu` to its values, the seconds of processor time of each end; qperf's own are those of
/// the whole machine.
///
/// # Errors
/// The output of both ends, if it fails.
///
/// # Panics
/// If qperf is missing, or this machine has only loopback addresses.
pub fn run(test: &str, options: &str) -> Result<Values, String> {
    require("qperf", "qperf");
    // RDMA-CM uses the address at which the server was found by TCP. LIDs are those of one network.
    let by_cm = options.contains("-cm1");
    let ip = if by_cm { own_address() } else { IpAddr::from([127, 0, 0, 1]) };
    let place = if by_cm { BackToBack::with_server_ip(ip) } else { BackToBack::new() };
    let port = free_tcp_port();
    let server = place.start(&mut place.server(&format!("qperf -lp {port}")), Ready::Tcp(port))?;
    let line = format!("qperf -lp {port} {ip} -t 1 {options} -uu -vvc -vvs -vvt {test}");
    let children_before = cpu_of_ended_children();
    let client = Program::start(&mut place.client(&line)).finish(LIMIT);
    let client_cpu = cpu_of_ended_children() - children_before;
    let server_cpu = cpu_of_process(server.id());
    // The server waits for its next client.
    let server =
        server.end_within(Duration::ZERO).map_or_else(|hung| hung, |ended| ended.to_string());
    if !client.status.success() || client.stderr.contains("failed") {
        return Err(format!("=== the client\n{client}\n=== the server\n{server}"));
    }
    let mut values = values(&client.stdout);
    values.insert("client_cpu".to_owned(), client_cpu);
    values.insert("server_cpu".to_owned(), server_cpu);
    Ok(values)
}

/// Seconds of processor time of children that were waited for.
fn cpu_of_ended_children() -> f64 {
    // SAFETY: all-zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Seconds of processor time of a running process and its ended children.
fn cpu_of_process(id: u32) -> f64 {
    let used = cpu_time(id).unwrap_or_default();
    (used.own + used.children).as_secs_f64()
}

/// A non-loopback address of this machine, found without sending anything.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let found = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    found
        .unwrap_or_else(|e| {
            panic!("qperf needs an address of this machine besides loopback's: {e}")
        })
        .ip()
}

/// Parses every `name = value unit` line.
fn values(text: &str) -> Values {
    let parse = |line: &str| {
        let (name, rest) = line.split_once('=')?;
        let mut words = rest.split_whitespace();
        let value: f64 = words.next()?.replace(',', "").parse().ok()?;
        Some((name.trim().to_owned(), value * scale(words.next().unwrap_or_default())))
    };
    text.lines().filter_map(parse).collect()
}

fn scale(unit: &str) -> f64 {
    let prefix = unit.strip_suffix("/sec").unwrap_or(unit);
    match prefix {
        "GB" | "G" => 1e9,
        "MB" | "M" => 1e6,
        "KB" | "K" => 1e3,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        "%" => 1e-2,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_scaled_by_their_unit() {
        let text = "rc_bw:\n    bw             =  3.93 GB/sec\n    loc_cpus_used  =  95.2 % \
                    cpus\n    latency  =  1,024 us\n";
        let values = values(text);
        assert_eq!(values["bw"], 3.93e9);
        assert!((values["loc_cpus_used"] - 0.952).abs() < 1e-9);
        assert!((values["latency"] - 1.024e-3).abs() < 1e-9);
    }
}
