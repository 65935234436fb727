//! Goodput under loss against the same path without, and the memory that both ends held, in virtual time:
//! `cargo run --release -p longhaul-wan --example goodput [GBIT/S [RTT_MS]]`.

#[path = "../tests/net/mod.rs"]
mod net;

use longhaul_link::{Impairments, LinkConfig};
use longhaul_units::{BitRate, Duration};
use net::{Net, Source, config};

struct Run {
    goodput_bps: f64,
    near_bdp: f64,
    far_bdp: f64,
    line: String,
}

fn measure(rate: BitRate, rtt_ms: u64, loss: f64, impairments: Impairments, streams: u32) -> Run {
    let bdp = rate.bytes_in(Duration::from_ms(rtt_ms));
    let fibre = LinkConfig {
        delay: Duration::from_us(rtt_ms * 500),
        rate: Some(rate),
        loss,
        impairments,
        seed: 7,
        memory_bytes_max: 64 << 30,
        ..LinkConfig::default()
    };
    let boxes = [1, 2].map(|id| longhaul_wan::Config {
        send_bytes_max: 2 * bdp,
        receive_bytes_max: bdp * 5 / 2,
        ..config(id, 1, Some(rate))
    });
    let mut net = Net::new(boxes, vec![fibre]);
    net.meet();
    net.sources[0] = (0..streams).map(|n| Source::new(0, 100 + n, 4096, false, u64::MAX)).collect();
    net.run_for(Duration::from_ms(rtt_ms * 10));
    let (before, span) = (net.arrived_bytes(4096), Duration::from_ms(rtt_ms * 30));
    let started = std::time::Instant::now();
    net.run_for(span);
    let wall = started.elapsed();
    let bytes = net.arrived_bytes(4096) - before;
    let frames = bytes / 4096;
    let near = net.boxes[0].sessions().next().unwrap();
    let far = net.boxes[1].sessions().next().unwrap();
    let path = &near.paths[0];
    let counters = net.boxes[0].counters();
    Run {
        goodput_bps: bytes as f64 * 8.0 / span.as_secs_f64(),
        near_bdp: near.send_bytes_peak as f64 / bdp as f64,
        far_bdp: far.receive_bytes_peak as f64 / bdp as f64,
        line: format!(
            "copies {} repeated {:.3} % spurious {} reordering {} dropped far {} | {:.0} ns/frame",
            path.copies,
            100.0 * counters.repeated as f64 / counters.sent as f64,
            path.spurious,
            path.reordering_window,
            net.boxes[1].counters().drops.get(longhaul_wan::DropReason::NoRoom),
            wall.as_nanos() as f64 / frames.max(1) as f64,
        ),
    }
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let rate = BitRate::from_gbps(args.next().unwrap_or(100)).expect("a rate above 0");
    let rtt_ms = args.next().unwrap_or(10);
    let only: Option<u64> = args.next();
    println!("{rate}, RTT {rtt_ms} ms, 4 KiB frames, loss both ways");
    println!("streams loss      Gbit/s  of ceiling  near (BDP)  far (BDP)");
    for streams in [1, 64] {
        let ceiling = measure(rate, rtt_ms, 0.0, Impairments::default(), streams).goodput_bps;
        let print = |name: &str, run: Run| {
            println!(
                "{streams:>7} {name:<9} {:>6.2} {:>9.2} % {:>10.2} {:>10.2}  {}",
                run.goodput_bps / 1e9,
                100.0 * run.goodput_bps / ceiling,
                run.near_bdp,
                run.far_bdp,
                run.line
            );
        };
        for loss in [0.0, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2] {
            print(&format!("{loss:e}"), measure(rate, rtt_ms, loss, Impairments::default(), streams));
        }
        let late = Impairments { late: 0.01, late_by: Duration::from_ms(1), ..Impairments::default() };
        print("jitter", measure(rate, rtt_ms, 0.0, late, streams));
        if only.is_some() {
            return;
        }
    }
}
