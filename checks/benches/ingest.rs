//! One receiver of telescope data over shared memory: its rate beside `ib_write_bw` and spead2 in
//! the same run, the processor time of a message, the memory of a queue pair, and the sender's
//! pace.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! ingest`
//!
//! spead2 is measured by its own program, which searches for the highest rate over loopback UDP
//! without a loss, and takes up to four minutes for each size. `./longhaul test` installs it for
//! the Python package.

use clap::Parser;
use longhaul_checks::perftest::{BANDWIDTH, figures};
use longhaul_checks::process::{cpu_time, resident_kib};
use longhaul_checks::samples::{Keep, Rounds, median};
use longhaul_checks::{
    BackToBack, Program, Ready, Turn, free_tcp_port, longhaul, python, require, wait_for_listener,
};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    rounds: Rounds,
    /// Leave spead2 out
    #[arg(long)]
    no_spead2: bool,
    #[command(flatten)]
    keep: Keep,
}

const SIZES: [u32; 2] = [8192, 1024];
const LIMIT: Duration = Duration::from_secs(120);
/// A window of every transfer: 16 queue pairs with 16 messages each.
const SLOTS: u32 = 256;

fn main() {
    let args = Args::parse();
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let rates = rates(&args.rounds);
    let spead2 = match args.no_spead2 {
        true => Vec::new(),
        false => spead2_rates(),
    };
    let queue_pairs = queue_pairs(&args.rounds);
    let processor_time = processor_time(args.rounds.seconds);
    let (memory, pace) = (memory(), pace(args.rounds.seconds));
    let result = json!({
        "rates": rates, "spead2": spead2, "queue_pairs": queue_pairs,
        "processor_time": processor_time, "memory": memory, "pace": pace,
    });
    args.keep.write("ingest.json", &result);
}

/// A receiver and a sender, as they end.
struct Transfer {
    received: Value,
    sent: Value,
    /// Of the receiver, while the sender ran.
    cpu_s: f64,
    memory_kib: f64,
}

impl Transfer {
    fn run(receive: &str, send: &str) -> Self {
        let (program, port) = (longhaul().display().to_string(), free_tcp_port());
        let line = format!("{program} ingest receive --listen 127.0.0.1:{port} --json {receive}");
        let pair = BackToBack::new();
        let receiver = pair
            .start(&mut pair.server(&line), Ready::Tcp(port))
            .unwrap_or_else(|text| panic!("{text}"));
        let line = format!("{program} ingest send 127.0.0.1:{port} --json {send}");
        let mut sender = Program::start(&mut pair.client(&line));
        let (mut cpu_s, mut memory_kib, begun) = (0.0, 0.0, Instant::now());
        while sender.is_running() && begun.elapsed() < LIMIT {
            let used = cpu_time(receiver.id()).unwrap_or_default().own;
            cpu_s = f64::max(cpu_s, used.as_secs_f64());
            memory_kib = f64::max(memory_kib, resident_kib(receiver.id()).unwrap_or(0) as f64);
            std::thread::sleep(Duration::from_millis(10));
        }
        let (sent, received) = (sender.succeed(LIMIT), receiver.succeed(LIMIT));
        let parse = |text: &str| serde_json::from_str(text).expect("one JSON object");
        Transfer { received: parse(&received.stdout), sent: parse(&sent.stdout), cpu_s, memory_kib }
    }

    fn present(&self) -> f64 {
        self.received["messages"]["present"].as_f64().expect("a count")
    }

    fn messages(&self) -> f64 {
        self.sent["messages"].as_f64().expect("a count")
    }

    /// Of present messages, per second of the sender's time.
    fn rate(&self) -> f64 {
        self.present() / self.sent["elapsed_s"].as_f64().expect("seconds")
    }
}

fn rates(rounds: &Rounds) -> Vec<Value> {
    println!("one receiver beside ib_write_bw -c UC, medians of {} rounds", rounds.rounds);
    println!(
        "{:>8} {:<8} {:>8} {:>8} {:>10} {:>12} {:>8}",
        "message", "wait", "Gbit/s", "M msg/s", "present %", "ib_write_bw", "ratio"
    );
    let mut all = Vec::new();
    for bytes in SIZES {
        for wait in ["poll", "events"] {
            let windows = (u64::from(rounds.seconds) << 34) / u64::from(8 * bytes * SLOTS);
            let mut samples: [Vec<f64>; 4] = Default::default();
            for _ in 0..rounds.rounds {
                let transfer = Transfer::run(
                    &format!("--wait {wait} --message {bytes} --slots {SLOTS} --until-idle"),
                    &format!(
                        "--message {bytes} --blocks 16 --list 16 --untouched --windows {windows}"
                    ),
                );
                let gbits = transfer.rate() * f64::from(bytes) * 8.0 / 1e9;
                let peer = ib_write_bw(bytes, rounds.seconds);
                let present = transfer.present() / transfer.messages();
                for (samples, value) in samples.iter_mut().zip([gbits, present, peer, gbits / peer])
                {
                    samples.push(value);
                }
            }
            let [gbits, present, peer, ratio] = samples.each_ref().map(|samples| median(samples));
            println!(
                "{bytes:>8} {wait:<8} {gbits:>8.1} {:>8.2} {:>10.2} {peer:>12.1} {ratio:>8.2}",
                gbits * 1e3 / 8.0 / f64::from(bytes),
                present * 100.0
            );
            all.push(json!({
                "bytes": bytes, "wait": wait, "gbits": samples[0], "present": samples[1],
                "ib_write_bw_gbits": samples[2], "ratio": samples[3],
            }));
        }
    }
    all
}

fn ib_write_bw(bytes: u32, seconds: u32) -> f64 {
    let port = free_tcp_port();
    let line = format!("ib_write_bw -d longhaul0 -F --report_gbits -c UC -s {bytes} -p {port}");
    let server = format!("{line} -D {} -f 1", seconds + 2);
    let client = format!("{server} 127.0.0.1");
    let (_, client) = BackToBack::new().pair(&server, &client, Ready::Tcp(port), LIMIT);
    figures(&client.stdout)[BANDWIDTH]
}

/// What spead2's own program finds sustainable over loopback, with packets of each size.
fn spead2_rates() -> Vec<Value> {
    let python = python();
    let bench = python.with_file_name("spead2_bench.py");
    if !bench.exists() {
        println!("spead2: skipped, it is not beside {}", python.display());
        return Vec::new();
    }
    let program = |line: &str| {
        let mut command = Command::new(&python);
        command.arg(&bench).args(line.split_whitespace());
        command
    };
    let mut all = Vec::new();
    for bytes in SIZES {
        let port = free_tcp_port();
        let agent = Program::start(&mut program(&format!("agent {port}")));
        let _agent = wait_for_listener(agent, port);
        // A heap is a window; 72 bytes of headers precede the payload.
        let (heap, packet) = (SLOTS * bytes, bytes + 72);
        let line = format!("master 127.0.0.1:{port} --quiet --heap-size {heap} --packet {packet}");
        let found = Program::start(&mut program(&line)).end_within(2 * LIMIT);
        let rate: Option<f64> =
            found.ok().and_then(|found| found.stdout.split_whitespace().last()?.parse().ok());
        match rate {
            Some(gbits) => println!("spead2, loopback UDP, {bytes} B: {gbits:.2} Gbit/s"),
            None => println!("spead2, loopback UDP, {bytes} B: no rate found"),
        }
        all.push(json!({ "bytes": bytes, "gbits": rate }));
    }
    all
}

/// The goodput of one receiver of 2000 queue pairs and of one, in turn.
fn queue_pairs(rounds: &Rounds) -> Vec<Value> {
    const MANY: u32 = 2000;
    println!("\n{MANY} queue pairs beside one, medians of {} rounds", rounds.rounds);
    println!(
        "{:>8} {:>12} {:>12} {:>8} {:>10}",
        "message", "one, Gbit/s", "2000", "ratio", "present %"
    );
    let mut all = Vec::new();
    for bytes in [8192, 16384] {
        let windows = (u64::from(rounds.seconds) << 34) / u64::from(8 * bytes * MANY);
        let mut samples: [Vec<f64>; 3] = Default::default();
        let mut present = [0.0; 2];
        for _ in 0..rounds.rounds {
            let gbits = [1, MANY].map(|pairs| {
                let transfer = Transfer::run(
                    &format!(
                        "--wait poll --message {bytes} --slots {MANY} --regions 8 --until-idle"
                    ),
                    &format!(
                        "--message {bytes} --subbands {pairs} --blocks {} --untouched \
                         --windows {windows}",
                        MANY / pairs
                    ),
                );
                present[usize::from(pairs > 1)] = transfer.present() / transfer.messages();
                transfer.rate() * f64::from(bytes) * 8.0 / 1e9
            });
            for (samples, value) in
                samples.iter_mut().zip([gbits[0], gbits[1], gbits[1] / gbits[0]])
            {
                samples.push(value);
            }
        }
        let [one, many, ratio] = samples.each_ref().map(|samples| median(samples));
        let percent = present[1] * 100.0;
        println!("{bytes:>8} {one:>12.1} {many:>12.1} {ratio:>8.2} {percent:>10.2}");
        all.push(json!({
            "bytes": bytes, "one_gbits": samples[0], "many_gbits": samples[1], "ratio": samples[2],
            "present": present,
        }));
    }
    all
}

fn processor_time(seconds: u32) -> Vec<Value> {
    println!("\nprocessor time of the receiver, 1 KiB messages");
    println!("{:>10} {:<12} {:>10} {:>10}", "messages/s", "wait", "us each", "present %");
    let mut all = Vec::new();
    for rate in [1_000, 10_000, 100_000] {
        for wait in ["events", "solicited", "poll"] {
            let windows = (rate * u64::from(seconds) / u64::from(SLOTS)).max(4);
            let solicit = if wait == "solicited" { 16 } else { 0 };
            let transfer = Transfer::run(
                &format!("--wait {wait} --message 1K --slots {SLOTS} --until-idle"),
                &format!(
                    "--message 1K --blocks 16 --untouched --windows {windows} --solicit {solicit} \
                     --packet-rate {}",
                    rate / 16
                ),
            );
            let each = transfer.cpu_s * 1e6 / transfer.messages();
            let present = transfer.present() / transfer.messages();
            println!("{rate:>10} {wait:<12} {each:>10.2} {:>10.2}", present * 100.0);
            all.push(json!({
                "messages_per_s": rate, "wait": wait, "us_each": each, "present": present,
            }));
        }
    }
    all
}

/// What a queue pair of the receiver takes: the memory with 2016 less that with 16.
fn memory() -> Value {
    let [few, many] = [16_u32, 2016].map(|pairs| {
        let transfer = Transfer::run(
            "--message 1K --slots 2016 --regions 8 --until-idle",
            &format!(
                "--message 1K --subbands {pairs} --blocks {} --untouched --windows 20 --rate 50M",
                2016 / pairs
            ),
        );
        transfer.memory_kib
    });
    let each = (many - few) / 2000.0;
    println!("\nmemory: {few:.0} KiB with 16 queue pairs, {many:.0} with 2016: {each:.2} KiB each");
    json!({ "kib_of_16": few, "kib_of_2016": many, "kib_of_one": each })
}

/// What the sender was asked for and what it did.
fn pace(seconds: u32) -> Vec<Value> {
    println!("\npace of the sender, 8 KiB messages");
    println!("{:>10} {:>10} {:>8} {:>12}", "asked", "Gbit/s", "error %", "behind, ms");
    let mut all = Vec::new();
    for gbits in [0.1, 1.0, 4.0] {
        let windows = (gbits * 1e9 * f64::from(seconds) / f64::from(8 * 8192 * SLOTS)).ceil();
        let transfer = Transfer::run(
            &format!("--wait poll --message 8K --slots {SLOTS} --until-idle"),
            &format!("--message 8K --blocks 16 --untouched --windows {windows} --rate {gbits}G"),
        );
        let sent = transfer.sent["rate_bps"].as_f64().expect("a rate") / 1e9;
        let behind_ms = transfer.sent["behind_s"].as_f64().expect("seconds") * 1e3;
        let error = (sent / gbits - 1.0) * 100.0;
        println!("{gbits:>10.1} {sent:>10.4} {error:>8.3} {behind_ms:>12.3}");
        all.push(json!({ "asked_gbits": gbits, "gbits": sent, "behind_ms": behind_ms }));
    }
    all
}
