//! Cost of a packet in the device: `per_packet [bytes] [messages] [idle QPs]`.
//!
//! Two devices on one core exchange WRITEs. Prints nanoseconds per packet of each stage; "transmit"
//! and "receive" include a port's work, copy and ICRC. For instruction counts run it under `perf
//! stat` or `valgrind --tool=callgrind` with two message counts and divide the difference. With 0
//! bytes no payload is copied, which leaves the device's own work.

#[path = "../bench_support/mod.rs"]
mod support;

use longhaul_node::Node;
use longhaul_units::Instant;
use std::time::{Duration, Instant as Clock};
use support::{BATCH, Pair, Ring};

fn main() {
    let mut args = std::env::args().skip(1);
    let bytes: u32 = args.next().and_then(|a| a.parse().ok()).unwrap_or(64);
    let messages: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(2_000_000);
    let idle: usize = args.next().and_then(|a| a.parse().ok()).unwrap_or(0);
    let mut pair = Pair::new(idle);
    let mut there = Ring::new();
    let mut back = Ring::new();
    let mut spent = [Duration::ZERO; 6];
    let mut time = |slot: usize, since: Clock| {
        spent[slot] += since.elapsed();
        Clock::now()
    };
    let packets_each = (bytes as usize).div_ceil(4096).max(1);
    let batch = BATCH / packets_each;
    let mut acks = 0;
    for i in 0..messages / batch {
        let now = Instant::from_ns(i as u64 * 1000);
        let mut t = Clock::now();
        for _ in 0..batch {
            pair.post(now, bytes);
        }
        t = time(0, t);
        there.clear();
        pair.a.poll_transmit(now, &mut there);
        t = time(1, t);
        there.deliver(now, &mut pair.b);
        t = time(2, t);
        back.clear();
        pair.b.poll_transmit(now, &mut back);
        t = time(3, t);
        acks += back.len();
        back.deliver(now, &mut pair.a);
        t = time(4, t);
        assert_eq!(pair.poll(), batch, "every message completes");
        time(5, t);
    }
    let packets = (messages / batch * batch * packets_each) as f64;
    println!("{bytes} bytes, {packets} packets, {acks} ACKs, {idle} idle QPs");
    for (name, spent) in
        ["post", "transmit", "receive", "send ACK", "take ACK", "poll CQ"].iter().zip(spent)
    {
        println!("{name:>9}: {:7.1} ns per packet", spent.as_secs_f64() * 1e9 / packets);
    }
    let total: Duration = spent.iter().sum();
    let rate = packets / total.as_secs_f64();
    println!(
        "    both sides on one core: {:.2} Mpps, {:.1} Gbit/s",
        rate / 1e6,
        rate * f64::from(bytes) / packets_each as f64 * 8e-9
    );
}
