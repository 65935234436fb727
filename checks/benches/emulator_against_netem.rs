//! Our fibre and the kernel's tc netem, set to the same delay, rate and loss: what ib_write_bw
//! reaches over each, and how much later than the delay says a frame comes out.
//!
//! `cargo bench -p longhaul-checks --bench emulator_against_netem`
//!
//! The curve is between two emulated kernels with rxe. For netem it is set on both guests' own
//! interfaces, and our fibre between them has no length; for ours the guests have none. Both rates
//! count 24 bytes for each frame beyond what it has.
//!
//! The delay error is the time from just before a frame is sent to its arrival in the receiver's
//! kernel, less the delay that was set: what sender, ports and threads add is in it. It is measured
//! on this machine for our fibre alone, between veth pairs, and in one emulated kernel for bare
//! veth, netem and our fibre in turn, where everything is slower and only ratios count.

use clap::Parser;
use longhaul_checks::guest::{Guest, GuestConfig, skip_loudly};
use longhaul_checks::interop::{Between, RxeHosts};
use longhaul_checks::network::{Network, Raw};
use longhaul_checks::perftest::{BANDWIDTH, complaint, figures};
use longhaul_checks::samples::{Keep, Rounds};
use longhaul_checks::{Turn, longhaul, samples};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SIZES: [u32; 3] = [512, 4096, 65536];
const MBITS: u32 = 200;
/// Length of the fibre, and its loss.
const FIBRES: [(u32, f64); 4] = [(20, 0.0), (200, 0.0), (1000, 0.0), (200, 1e-3)];
const DELAYS_US: [u64; 3] = [100, 1000, 5000];
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    /// Frames for one delay
    #[arg(long, default_value_t = 2000)]
    frames: u32,
    /// Leave out the curve
    #[arg(long)]
    delay_only: bool,
    /// Send frames from one interface to another and print their times as JSON
    #[arg(long, hide = true, num_args = 2)]
    probe: Option<Vec<String>>,
    #[command(flatten)]
    keep: Keep,
}

fn main() {
    let args = Args::parse();
    if let Some([from, to]) = args.probe.as_deref() {
        println!("{}", json!(probe(&Raw::here(from), &Raw::here(to), args.frames)));
        return;
    }
    let delays =
        json!({ "here": errors_here(args.frames), "guest": errors_in_a_guest(args.frames) });
    let curve = if args.delay_only { Value::Null } else { curve(&args) };
    args.keep.write("emulator_against_netem.json", &json!({ "delay": delays, "curve": curve }));
}

/// Nanoseconds from just before a frame is sent to its arrival, for `frames` frames a millisecond
/// apart; frames that do not arrive are left out.
fn probe(from: &Raw, to: &Raw, frames: u32) -> Vec<u64> {
    let now =
        || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..frames {
                let mut frame = [0; 60];
                frame[..6].fill(0xff);
                frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
                frame[14..18].copy_from_slice(&number.to_be_bytes());
                frame[18..26].copy_from_slice(&now().to_be_bytes());
                from.send(&frame);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut times = Vec::new();
        let mut silent = 0;
        while times.len() < frames as usize && silent < 20 {
            let Some((frame, came_at)) = to.try_receive_stamped() else {
                silent += 1;
                continue;
            };
            if frame.get(6..14) == Some(&[2, 0, 0, 0, 0, 9, 0x88, 0xb5]) {
                let sent_at = u64::from_be_bytes(frame[18..26].try_into().expect("8 bytes"));
                times.push(came_at.saturating_sub(sent_at));
                silent = 0;
            }
        }
        times
    })
}

/// Says what one measurement found; its errors in nanoseconds.
fn report(what: &str, delay_us: u64, times: &[u64]) -> Value {
    let mut errors: Vec<i64> =
        times.iter().map(|&time| time as i64 - delay_us as i64 * 1000).collect();
    errors.sort_unstable();
    let Some(last) = errors.len().checked_sub(1) else {
        println!("{what:<34}{delay_us:>8} µs: no frame came");
        return Value::Null;
    };
    let at = |part: f64| errors[(last as f64 * part) as usize] as f64 / 1e3;
    println!(
        "{what:<34}{delay_us:>8} µs{:>10.1}{:>10.1}{:>10.1}{:>10.1}   of {} frames",
        at(0.0),
        at(0.5),
        at(0.99),
        at(1.0),
        errors.len()
    );
    json!({ "what": what, "delay_us": delay_us, "errors_ns": errors })
}

fn heading(where_: &str) {
    println!(
        "{where_:<34}{:>11}{:>10}{:>10}{:>10}{:>10}   µs",
        "delay", "least", "median", "p99", "most"
    );
}

fn errors_here(frames: u32) -> Value {
    let Some(network) = Network::new("delay errors on this machine", 1500) else {
        return Value::Null;
    };
    heading("delay error, this machine");
    let mut all = Vec::new();
    let [w1, w2] = ["w1", "w2"].map(|interface| Raw::open(&network.middle, interface));
    all.push(report("a veth pair alone", 0, &probe(&w1, &w2, frames)));
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    for delay in DELAYS_US {
        for option in ["", " --precise"] {
            let command =
                format!("emulate --a west --b east --delay {delay}us --rate 100G{option}");
            let fibre = network.start(&command);
            let what = format!("longhaul emulate{option}");
            all.push(report(&what, delay, &probe(&left, &right, frames)));
            fibre.end();
        }
    }
    json!(all)
}

/// A guest with two veth pairs, this program, and longhaul.
fn guest() -> Result<Guest, String> {
    let mut config = GuestConfig::new("delays").rxe().modules(&["veth", "sch_netem"]);
    config.moved.push(("/opt/longhaul".to_owned(), longhaul()));
    config
        .moved
        .push(("/opt/probe".to_owned(), std::env::current_exe().map_err(|e| e.to_string())?));
    let guest = Guest::boot(&config).map_err(|reason| reason.to_string())?;
    let setup = "set -e
        ip link add p0 type veth peer name p1
        ip link add q0 type veth peer name q1
        for device in p0 p1 q0 q1; do ip link set $device addrgenmode none up; done";
    guest.succeed(setup, LIMIT);
    Ok(guest)
}

fn errors_in_a_guest(frames: u32) -> Value {
    let _turn = Turn::take();
    let guest = match guest() {
        Ok(guest) => guest,
        Err(reason) => {
            skip_loudly("delay errors beside netem's", &reason);
            return Value::Null;
        }
    };
    let times = |from: &str, to: &str| -> Vec<u64> {
        let done =
            guest.succeed(&format!("/opt/probe --frames {frames} --probe {from} {to}"), LIMIT);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    };
    heading("delay error, one emulated kernel");
    let mut all = vec![report("a veth pair alone", 0, &times("p0", "p1"))];
    for delay in DELAYS_US {
        guest.succeed(
            &format!("tc qdisc replace dev p0 root netem delay {delay}us limit 100000"),
            LIMIT,
        );
        all.push(report("tc netem", delay, &times("p0", "p1")));
        guest.succeed("tc qdisc del dev p0 root", LIMIT);
        let line = format!(
            "/opt/longhaul emulate --a p1 --b q0 --delay {delay}us --rate 100G --keep-privileges"
        );
        let fibre = guest.spawn(&format!("XDG_RUNTIME_DIR=/tmp {line}"), LIMIT);
        let is_up =
            "until XDG_RUNTIME_DIR=/tmp /opt/longhaul box status >/dev/null; do sleep 0.1; done";
        guest.succeed(is_up, LIMIT);
        all.push(report("longhaul emulate", delay, &times("p0", "q1")));
        fibre.signal("TERM");
        fibre.finish();
    }
    json!(all)
}

/// What ib_write_bw reaches, in Mbit/s.
fn mbits(hosts: &RxeHosts, bytes: u32, seconds: u32) -> f64 {
    // The first and last second do not count.
    let line = format!("ib_write_bw -s {bytes} -D {} -f 1 -m 4096 --report_gbits", seconds + 2);
    let client = hosts.perftest(&line, LIMIT).unwrap_or_else(|text| panic!("{text}"));
    assert_eq!(complaint(&client.stdout), None, "{client}");
    figures(&client.stdout)[BANDWIDTH] * 1e3
}

fn curve(args: &Args) -> Value {
    let _turn = Turn::take();
    let hosts = match RxeHosts::boot("ntm", |config| config.modules(&["sch_netem"])) {
        Ok(hosts) => hosts,
        Err(reason) => {
            skip_loudly("ib_write_bw over netem and our fibre", &reason);
            return Value::Null;
        }
    };
    println!(
        "ib_write_bw, {MBITS} Mbit/s, median of {} rounds: netem / longhaul emulate = ratio",
        args.rounds.rounds
    );
    println!("{:<24}{:>32}{:>32}{:>32}", "one way, loss", "512 B", "4 KiB", "64 KiB");
    let mut all = Vec::new();
    for (km, loss) in FIBRES {
        let mut rows = [SIZES.map(|_| Vec::new()), SIZES.map(|_| Vec::new())];
        for _ in 0..args.rounds.rounds {
            let boxes = hosts.join(Between { mbits: 10_000, ..Between::plain(0) }, None);
            for guest in hosts.guests() {
                let netem = format!(
                    "tc qdisc replace dev eth0 root netem delay {}us rate {MBITS}mbit 24 loss {}% \
                     limit 100000",
                    km * 5,
                    loss * 100.0
                );
                guest.succeed(&netem, LIMIT);
            }
            for (bytes, samples) in SIZES.into_iter().zip(&mut rows[0]) {
                samples.push(mbits(&hosts, bytes, args.rounds.seconds));
            }
            for guest in hosts.guests() {
                guest.succeed("tc qdisc del dev eth0 root", LIMIT);
            }
            boxes.stop();
            let boxes = hosts.join(Between { mbits: MBITS, loss, ..Between::plain(km) }, None);
            for (bytes, samples) in SIZES.into_iter().zip(&mut rows[1]) {
                samples.push(mbits(&hosts, bytes, args.rounds.seconds));
            }
            boxes.stop();
        }
        print!("{:<24}", format!("{} µs, {loss}", km * 5));
        for (netem, ours) in rows[0].iter().zip(&rows[1]) {
            let (netem, ours) = (samples::median(netem), samples::median(ours));
            print!("{:>32}", format!("{netem:.1} / {ours:.1} = {:.3}", ours / netem));
        }
        println!();
        all.push(json!({
            "delay_us": km * 5, "loss": loss, "netem_mbits": rows[0], "longhaul_mbits": rows[1],
        }));
    }
    json!({ "mbits": MBITS, "message_bytes": SIZES, "fibres": all })
}
