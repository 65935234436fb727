//! What a byte costs in processor time: UDP over loopback against RDMA over this device, by message
//! size, in the manner of Table 5.1 of W. M. de Laat's thesis (TU Delft, 2022).
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! cpu_cost`
//!
//! The device is software: what a NIC would do is done by the program's own threads and counted
//! here. Only the comparison within one run says anything.

use clap::Parser;
use longhaul_checks::samples::Keep;
use longhaul_checks::{Turn, qperf};
use serde_json::json;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    keep: Keep,
}

/// Those of that table, and small ones. A datagram of UDP has less than 64 KiB.
const SIZES: [u32; 6] = [64, 1024, 9000, 32_768, 65_536, 1 << 20];
const LARGEST_UDP: u32 = 65_507;

/// Ways to move data: name, qperf's test, options.
const WAYS: [(&str, &str, &str); 4] = [
    ("UDP", "udp_bw", ""),
    ("RC SEND, events", "rc_bw", "-cm1"),
    ("RC SEND, polling", "rc_bw", "-cm1 -cp1"),
    ("RC WRITE, events", "rc_rdma_write_bw", "-cm1"),
];

fn main() {
    let args = Args::parse();
    let _turn = Turn::take();
    let mut rows = Vec::new();
    println!(
        "{:<18} {:>9} {:>10} {:>12} {:>12} {:>14}",
        "", "size", "Gbit/s", "sender", "receiver", "s per GB"
    );
    for (name, test, options) in WAYS {
        for size in SIZES.into_iter().filter(|&size| test != "udp_bw" || size <= LARGEST_UDP) {
            match qperf::run(test, &format!("{options} -m {size}")) {
                Ok(values) => {
                    let get = |name: &str| values.get(name).copied().unwrap_or_default();
                    // A datagram that got lost was sent, and has not arrived.
                    let rate = if test == "udp_bw" { get("recv_bw") } else { get("bw") };
                    // For a second.
                    let (sender, receiver) = (get("client_cpu"), get("server_cpu"));
                    let cost = (sender + receiver) / (rate / 1e9);
                    let gbits = rate * 8.0 / 1e9;
                    println!(
                        "{name:<18} {size:>9} {gbits:>10.2} {:>10.0} % {:>10.0} % {cost:>14.3}",
                        sender * 100.0,
                        receiver * 100.0
                    );
                    rows.push(
                        json!({ "way": name, "bytes": size, "gbits": gbits, "sender_cpus": sender,
                                      "receiver_cpus": receiver, "cpu_seconds_per_gb": cost }),
                    );
                }
                Err(text) => eprintln!("{name}, {size} B: {text}"),
            }
        }
    }
    args.keep.write("cpu_cost.json", &json!({ "rows": rows }));
}
