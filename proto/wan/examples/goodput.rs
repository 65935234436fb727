//! Prints goodput under loss relative to the same path without loss, the memory that both ends
//! held, and the delay of frames, in virtual time: `cargo run --release -p longhaul-wan --example
//! goodput [GBIT/S [RTT_MS]] [off|adaptive|always|all] [brief]`.

#[path = "../tests/all/net/mod.rs"]
mod net;

use longhaul_link::{Impairments, LinkConfig};
use longhaul_units::{BitRate, Duration};
use longhaul_wan::Parity;
use net::{Net, Source, config};

const PAYLOAD: u64 = 4096;

#[derive(Clone, Copy)]
struct Setup {
    rate: BitRate,
    rtt_ms: u64,
    parity: Parity,
    streams: u32,
}

struct Run {
    goodput_bps: f64,
    near_bdp: f64,
    far_bdp: f64,
    line: String,
}

impl Setup {
    fn bdp(&self) -> u64 {
        self.rate.bytes_in(Duration::from_ms(self.rtt_ms))
    }

    fn net(&self, loss: f64, impairments: Impairments) -> Net {
        let fibre = LinkConfig {
            delay: Duration::from_us(self.rtt_ms * 500),
            rate: Some(self.rate),
            loss,
            impairments,
            seed: 7,
            memory_bytes_max: 64 << 30,
            ..LinkConfig::default()
        };
        let boxes = [1, 2].map(|id| longhaul_wan::Config {
            send_bytes_max: 2 * self.bdp(),
            receive_bytes_max: self.bdp() * 5 / 2,
            parity: self.parity,
            ..config(id, 1, Some(self.rate))
        });
        let mut net = Net::new(boxes, vec![fibre]);
        net.meet();
        net
    }

    fn measure(&self, loss: f64, impairments: Impairments) -> Run {
        let mut net = self.net(loss, impairments);
        let source = |n| Source::new(0, 100 + n, PAYLOAD as usize, false, u64::MAX);
        net.sources[0] = (0..self.streams).map(source).collect();
        net.run_for(Duration::from_ms(self.rtt_ms * 10));
        let (before, span) = (net.arrived_bytes(PAYLOAD), Duration::from_ms(self.rtt_ms * 30));
        let started = std::time::Instant::now();
        net.run_for(span);
        let wall = started.elapsed();
        let bytes = net.arrived_bytes(PAYLOAD) - before;
        let frames = bytes / PAYLOAD;
        let near = net.boxes[0].sessions().next().unwrap();
        let far = net.boxes[1].sessions().next().unwrap();
        let path = &near.paths[0];
        let counters = net.boxes[0].counters();
        let of_sent = |count: u64| 100.0 * count as f64 / counters.sent as f64;
        Run {
            goodput_bps: bytes as f64 * 8.0 / span.as_secs_f64(),
            near_bdp: near.send_bytes_peak as f64 / self.bdp() as f64,
            far_bdp: far.receive_bytes_peak as f64 / self.bdp() as f64,
            line: format!(
                "parity {} {:.2} % residual {:.1e} copies {} repeated {:.3} % spurious {} window \
                 {} dropped far {} | {:.0} ns/frame",
                path.parity,
                of_sent(counters.parity_sent),
                path.residual,
                path.copies,
                of_sent(counters.repeated),
                path.spurious,
                path.reordering_window,
                net.boxes[1].counters().drops.get(longhaul_wan::DropReason::NoRoom),
                wall.as_nanos() as f64 / frames.max(1) as f64,
            ),
        }
    }

    /// Delay of frames of one stream at a share of the rate, in round trips: median, 99.9th
    /// percentile and maximum.
    fn delay(&self, loss: f64, load: f64) -> ([f64; 3], String) {
        let mut net = self.net(loss, Impairments::default());
        let wire_bits = 8 * (PAYLOAD + 24 + 42 + 24 + 12 + 4);
        let bps = self.rate.as_bps() as f64 * load;
        let every = Duration::from_ps((wire_bits as f64 / bps * 1e12) as u64);
        net.sources[0] = vec![Source::new(0, 100, PAYLOAD as usize, false, u64::MAX).every(every)];
        // Long enough to measure the path's loss.
        net.run_for(Duration::from_ms(self.rtt_ms * 40));
        net.sources[0].clear();
        net.run_for(Duration::from_ms(self.rtt_ms * 3));
        net.hosts[1].delays = Some(Vec::new());
        net.sources[0] = vec![Source::new(0, 101, PAYLOAD as usize, false, u64::MAX).every(every)];
        net.run_for(Duration::from_ms(self.rtt_ms * 60));
        let mut delays = net.hosts[1].delays.take().unwrap_or_default();
        delays.sort_unstable();
        let rtt_s = self.rtt_ms as f64 * 1e-3;
        let quantile = |q: f64| delays[(delays.len() as f64 * q) as usize].as_secs_f64() / rtt_s;
        let path = &net.boxes[0].sessions().next().unwrap().paths[0];
        let counters = net.boxes[0].counters();
        let share = 100.0 * counters.parity_sent as f64 / counters.sent as f64;
        let line = format!("parity {} {share:.2} % residual {:.1e}", path.parity, path.residual);
        ([quantile(0.5), quantile(0.999), quantile(1.0 - 1e-9)], line)
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let rate = BitRate::from_gbps(numbers.next().unwrap_or(100)).expect("a rate above 0");
    let rtt_ms = numbers.next().unwrap_or(10);
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let settings =
        [("off", Parity::Off), ("adaptive", Parity::Adaptive), ("always", Parity::Always)];
    let is_asked =
        |name: &str| has(name) || has("all") || name == "adaptive" && !has("off") && !has("always");
    let settings = settings.into_iter().filter(|(name, _)| is_asked(name)).collect::<Vec<_>>();
    println!("{rate}, RTT {rtt_ms} ms, 4 KiB frames, loss both ways");
    println!("streams parity   loss      Gbit/s  of ceiling  near (BDP)  far (BDP)");
    for streams in if has("brief") { vec![1] } else { vec![1, 64] } {
        let setup = |parity| Setup { rate, rtt_ms, parity, streams };
        let ceiling = setup(Parity::Off).measure(0.0, Impairments::default()).goodput_bps;
        for &(name, parity) in &settings {
            let print = |what: &str, run: Run| {
                println!(
                    "{streams:>7} {name:<8} {what:<9} {:>6.2} {:>9.2} % {:>10.2} {:>10.2}  {}",
                    run.goodput_bps / 1e9,
                    100.0 * run.goodput_bps / ceiling,
                    run.near_bdp,
                    run.far_bdp,
                    run.line
                );
            };
            for loss in [0.0, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2] {
                print(&format!("{loss:e}"), setup(parity).measure(loss, Impairments::default()));
            }
            let late =
                Impairments { late: 0.01, late_by: Duration::from_ms(1), ..Impairments::default() };
            print("jitter", setup(parity).measure(0.0, late));
        }
    }
    println!("parity   loss   load  RTTs until delivery: half, 99.9 %, all");
    for loss in [1e-4, 1e-3, 1e-2] {
        for load in [0.5, 0.9] {
            for &(name, parity) in &settings {
                let ([half, most, all], line) =
                    Setup { rate, rtt_ms, parity, streams: 1 }.delay(loss, load);
                println!(
                    "{name:<8} {loss:<6e} {:>3.0} % {half:>6.3} {most:>6.3} {all:>6.3}  {line}",
                    load * 100.0
                );
            }
        }
    }
}
