//! What receiving costs the responder's process: an event for each message against an event for
//! each group of them (solicited), and receives of each queue pair's own against shared ones. Two
//! processes back to back over shared memory; the requester sends at a fixed rate, so that the
//! responder sleeps in between.
//!
//! `cargo bench -p longhaul-checks --bench responder_cpu`
//!
//! CPU time of the responder's process from getrusage, in ns per message; ways in turn, round by
//! round.

use clap::Parser;
use longhaul_checks::samples::Keep;
use longhaul_checks::two_processes::{
    OtherEnd, connect_other_end, device_of_other_end, wait_for_stop,
};
use longhaul_rdma::{
    Access, CompletionQueue, MemoryRegion, PathSettings, QueuePair, QueuePairSettings, SendOp,
    SharedReceiveQueue, Status,
};
use longhaul_units::Qpn;
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const MESSAGE: usize = 1024;
const QUEUE_PAIRS: usize = 64;
/// Receives that a queue pair has of its own, or the shared queue for all of them.
const RECEIVES: usize = 64;
/// Every so many messages one is solicited.
const GROUP: usize = 16;

#[derive(Parser)]
struct Args {
    /// Messages per measurement
    #[arg(long, default_value_t = 50_000)]
    messages: usize,
    /// Time from one message to the next, in µs
    #[arg(long, default_value_t = 20)]
    interval_us: u64,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The way that the process at the other end receives
    #[arg(long, hide = true)]
    serve: Option<String>,
    #[command(flatten)]
    keep: Keep,
}

const WAYS: [&str; 4] = ["each", "solicited", "each shared", "solicited shared"];

fn main() {
    let args = Args::parse();
    if let Some(way) = &args.serve {
        serve(&args, way.contains("solicited"), way.contains("shared"));
        return;
    }
    let mut samples = vec![Vec::new(); WAYS.len()];
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for (way, samples) in WAYS.iter().zip(&mut samples) {
            samples.push(measure(&args, way));
        }
    }
    println!(
        "1 KiB SENDs over {QUEUE_PAIRS} queue pairs, one each {} µs: the responder's CPU",
        args.interval_us
    );
    let mut result = Vec::new();
    for (way, samples) in WAYS.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        let (least, most) = (samples[0], samples[samples.len() - 1]);
        println!("  events: {way:<18} {median:>8.0} ns per message  ({least:.0} to {most:.0})");
        result.push(json!({ "way": way, "median_ns": median, "samples_ns": samples }));
    }
    args.keep
        .write("responder_cpu.json", &json!({ "interval_us": args.interval_us, "ways": result }));
}

/// CPU time that the responder spends on a message, in ns.
fn measure(args: &Args, way: &str) -> f64 {
    let mut server = OtherEnd::start(&["--serve", way, "--messages", &args.messages.to_string()]);
    let device = server.device();
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(4096).expect("a completion queue");
    let memory = pd.register(MESSAGE, Access::LOCAL_WRITE).expect("memory");
    let made: Vec<QueuePair> = (0..QUEUE_PAIRS)
        .map(|_| initialized(device.create_qp(&pd, &cq, &cq, &QueuePairSettings::default())))
        .collect();
    server.connect(&made);
    send(args, &made, &cq, &memory);
    let cpu_ns: f64 = server.line().trim().parse().expect("the responder's CPU time");
    cpu_ns / args.messages as f64
}

fn send(args: &Args, qps: &[QueuePair], cq: &CompletionQueue, memory: &MemoryRegion) {
    let piece = [memory.piece(0, MESSAGE as u32)];
    let interval = Duration::from_micros(args.interval_us);
    let begun = Instant::now();
    let mut done = 0;
    for posted in 0..args.messages {
        while begun.elapsed() < interval * posted as u32 {
            done += poll(cq);
        }
        let qp = &qps[posted % qps.len()];
        let is_last_of_group = (posted + 1) % GROUP == 0 || posted + 1 == args.messages;
        if is_last_of_group {
            qp.post_solicited(posted as u64, &piece).expect("posted");
        } else {
            let op = SendOp::Send { immediate: None, invalidate: None };
            qp.post_send(posted as u64, op, &piece).expect("posted");
        }
    }
    while done < args.messages {
        done += poll(cq);
    }
}

fn poll(cq: &CompletionQueue) -> usize {
    cq.poll(64, |completion| assert_eq!(completion.status, Status::Success, "{completion:?}"))
        .expect("polled")
}

fn initialized(qp: Result<QueuePair, longhaul_rdma::RdmaError>) -> QueuePair {
    let qp = qp.expect("a queue pair");
    qp.initialize(&PathSettings::default()).expect("initialized");
    qp
}

fn serve(args: &Args, solicited: bool, shared: bool) {
    let device = device_of_other_end();
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(2 * (QUEUE_PAIRS * RECEIVES) as u32).expect("a completion queue");
    let memory = pd.register(MESSAGE, Access::LOCAL_WRITE).expect("memory");
    let srq = device.create_srq(&pd, 1024, 1, 0).expect("a shared receive queue");
    let settings =
        QueuePairSettings { recv_depth: RECEIVES as u32, ..QueuePairSettings::default() };
    let made: Vec<QueuePair> = (0..QUEUE_PAIRS)
        .map(|_| {
            initialized(if shared {
                device.create_qp_sharing(&pd, &cq, &cq, &settings, &srq)
            } else {
                device.create_qp(&pd, &cq, &cq, &settings)
            })
        })
        .collect();
    let receives = Receives {
        own: made.iter().map(|qp| (qp.qpn(), qp)).collect(),
        shared: &srq,
        memory: &memory,
    };
    if shared {
        (0..1024).for_each(|_| receives.post(None));
    } else {
        made.iter().for_each(|qp| (0..RECEIVES).for_each(|_| receives.post(Some(qp.qpn()))));
    }
    connect_other_end(&made);
    let before = cpu_ns();
    let mut received = 0;
    while received < args.messages {
        cq.arm(solicited).expect("armed");
        // What came before it was armed raises no event.
        let found = take(&cq, shared, &receives);
        received += found;
        if found == 0 {
            let _ = cq.wait_for_event(Duration::from_millis(100));
        }
    }
    println!("{}", cpu_ns() - before);
    wait_for_stop();
}

/// Takes what has come and posts as many receives.
fn take(cq: &CompletionQueue, shared: bool, receives: &Receives<'_>) -> usize {
    let mut from = Vec::with_capacity(64);
    cq.poll(64, |completion| {
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        from.push(completion.qpn);
    })
    .expect("polled");
    for qpn in &from {
        receives.post((!shared).then_some(*qpn));
    }
    from.len()
}

struct Receives<'a> {
    own: HashMap<Qpn, &'a QueuePair>,
    shared: &'a SharedReceiveQueue,
    memory: &'a MemoryRegion,
}

impl Receives<'_> {
    /// Posts one to a queue pair's own queue, or to the shared one.
    fn post(&self, qpn: Option<Qpn>) {
        let piece = [self.memory.piece(0, MESSAGE as u32)];
        let posted = match qpn {
            Some(qpn) => self.own[&qpn].post_recv(0, &piece),
            None => self.shared.post(0, &piece),
        };
        posted.expect("a receive is posted");
    }
}

/// CPU time of this process so far.
fn cpu_ns() -> u64 {
    // SAFETY: all zeros is a valid rusage, and it is this function's own.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
