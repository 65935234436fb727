//! Cost per packet of a QP's limiter: without a limit, under a program's limit, and while
//! congested.

#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_cc::{RateLimit, RateLimiter};
use longhaul_units::{BitRate, Duration, Instant};
use std::hint::black_box;

fn per_packet(c: &mut Criterion) {
    let mut group = c.benchmark_group("limiter_per_packet");
    group.throughput(Throughput::Elements(1));
    let line = BitRate::from_gbps(100).unwrap();
    let dcqcn = Dcqcn::nvidia(line).unwrap();
    let mut program = RateLimiter::new();
    program.set_limit(Instant::ZERO, RateLimit::from_verbs(10_000_000, 0, 0));
    for (name, limiter, cnp_every) in [
        ("unlimited", RateLimiter::new(), u64::MAX),
        ("program_limit", program, u64::MAX),
        ("congested", RateLimiter::new(), 50),
    ] {
        let mut limiter = black_box(limiter);
        let mut now = Instant::ZERO;
        let mut packets = 0_u64;
        group.bench_function(name, |b| {
            b.iter(|| {
                packets += 1;
                now += Duration::from_ns(334);
                if packets.is_multiple_of(cnp_every) {
                    limiter.on_cnp(now, &dcqcn);
                }
                now = now.max(black_box(limiter.ready_at(now, &dcqcn)));
                limiter.take(now, black_box(4178), &dcqcn);
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(std::time::Duration::from_secs(1))
        .without_plots();
    targets = per_packet
}
criterion_main!(benches);
