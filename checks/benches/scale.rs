//! Thousands of queue pairs in one process: what an idle one costs, and what messages over many of
//! them cost beside messages over one. Two processes back to back over shared memory; RC and UC
//! queue pairs in equal parts take their receives from one shared queue.
//!
//! `cargo bench -p longhaul-checks --bench scale`
//!
//! Wall time on whatever else the machine does; the ratio between many and one, taken in turns in
//! one run, is what can be compared.

use clap::Parser;
use longhaul_checks::samples::{Keep, median};
use longhaul_checks::two_processes::{
    OtherEnd, connect_other_end, device_of_other_end, wait_for_stop,
};
use longhaul_rdma::{
    Access, CompletionQueue, MemoryRegion, PathSettings, Piece, QpKind, QueuePair,
    QueuePairSettings, SendOp, SharedReceiveQueue, Status,
};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// Bytes of a message.
const MESSAGE: usize = 16 << 10;
/// Messages on their way at once: an unreliable one that finds no receive is lost.
const WINDOW: usize = 64;
/// Receives that the server keeps posted.
const RECEIVES: usize = 1024;

#[derive(Parser)]
struct Args {
    /// RC queue pairs, and as many UC ones
    #[arg(long, default_value_t = 2000)]
    each: usize,
    /// Messages per measurement
    #[arg(long, default_value_t = 60_000)]
    messages: usize,
    /// Rounds; the median of the ratios counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Given to the process at the other end
    #[arg(long, hide = true)]
    serve: bool,
    #[command(flatten)]
    keep: Keep,
}

fn main() {
    let args = Args::parse();
    if args.serve {
        serve(&args);
        return;
    }
    let mut server = OtherEnd::start(&["--serve", "--each", &args.each.to_string()]);
    let device = server.device();
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(4 * WINDOW as u32).expect("a completion queue");
    let memory = pd.register(MESSAGE, Access::LOCAL_WRITE).expect("memory");

    let resident_before = resident_bytes();
    let made = queue_pairs(args.each, |settings| device.create_qp(&pd, &cq, &cq, settings));
    let idle_bytes = (resident_bytes() - resident_before) as f64 / made.len() as f64;
    server.connect(&made);

    let one = &made[..1];
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let of_one = rate(one, &cq, &memory, args.messages);
        let of_many = rate(&made, &cq, &memory, args.messages);
        ratios.push(of_many / of_one);
        rates.push((of_one, of_many));
    }
    drop(server);
    ratios.sort_by(f64::total_cmp);
    let gbps = |rate: f64| rate * MESSAGE as f64 * 8.0 / 1e9;
    println!(
        "SENDs of 16 KiB into one shared receive queue, {} RC and {} UC queue pairs",
        args.each, args.each
    );
    for (one, many) in &rates {
        println!(
            "  one queue pair {:>7.2} Gbit/s   all of them {:>7.2} Gbit/s",
            gbps(*one),
            gbps(*many)
        );
    }
    let median = median(&ratios);
    println!("  ratio, median {median:.2}  (goal: at least 0.80)");
    println!("  memory per idle queue pair {idle_bytes:.0} bytes  (goal: at most 4096)");
    let result = json!({
        "each": args.each, "message_bytes": MESSAGE, "messages": args.messages,
        "ratio_median": median, "ratios": ratios, "messages_per_second": rates,
        "idle_qp_bytes": idle_bytes,
    });
    args.keep.write("scale.json", &result);
}

/// As many RC as UC queue pairs, in turn, in state initialized.
fn queue_pairs(
    each: usize,
    create: impl Fn(&QueuePairSettings) -> Result<QueuePair, longhaul_rdma::RdmaError>,
) -> Vec<QueuePair> {
    (0..2 * each)
        .map(|i| {
            let kind = if i % 2 == 0 { QpKind::Rc } else { QpKind::Uc };
            let qp = create(&QueuePairSettings { kind, ..QueuePairSettings::default() })
                .expect("a queue pair");
            qp.initialize(&PathSettings::default()).expect("initialized");
            qp
        })
        .collect()
}

/// Messages per second over `qps` in turn.
fn rate(qps: &[QueuePair], cq: &CompletionQueue, memory: &MemoryRegion, messages: usize) -> f64 {
    let piece = [memory.piece(0, MESSAGE as u32)];
    let (mut posted, mut done) = (0, 0);
    let begun = Instant::now();
    while done < messages {
        while posted < messages && posted - done < WINDOW {
            let op = SendOp::Send { immediate: None, invalidate: None };
            qps[posted % qps.len()].post_send(posted as u64, op, &piece).expect("posted");
            posted += 1;
        }
        cq.poll(WINDOW, |completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            done += 1;
        })
        .expect("polled");
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{done} of {messages} messages after two minutes"
        );
    }
    messages as f64 / begun.elapsed().as_secs_f64()
}

fn serve(args: &Args) {
    let device = device_of_other_end();
    let pd = device.alloc_pd().expect("a protection domain");
    let cq = device.create_cq(4 * RECEIVES as u32).expect("a completion queue");
    let srq = device.create_srq(&pd, RECEIVES as u32, 1, 0).expect("a shared receive queue");
    let memory = pd.register(RECEIVES * MESSAGE, Access::LOCAL_WRITE).expect("memory");
    for slot in 0..RECEIVES {
        repost(&srq, &memory, slot as u64);
    }
    let made = queue_pairs(args.each, |s| device.create_qp_sharing(&pd, &cq, &cq, s, &srq));
    connect_other_end(&made);

    let client_has_gone = std::thread::spawn(wait_for_stop);
    let mut slots = Vec::with_capacity(WINDOW);
    while !client_has_gone.is_finished() {
        cq.poll(WINDOW, |completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            slots.push(completion.wr_id);
        })
        .expect("polled");
        for slot in slots.drain(..) {
            repost(&srq, &memory, slot);
        }
    }
}

fn repost(srq: &SharedReceiveQueue, memory: &MemoryRegion, slot: u64) {
    let pieces: [Piece; 1] = [memory.piece(slot as usize * MESSAGE, MESSAGE as u32)];
    srq.post(slot, &pieces).expect("a receive is posted");
}

/// Memory of this process that is in use.
fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("resident pages");
    pages * 4096
}
