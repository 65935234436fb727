//! Wall time of the device's paths: building packets, receiving them, and a whole exchange.

#![allow(missing_docs, reason = "criterion's macros make public functions")]

#[path = "../bench_support/mod.rs"]
mod support;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_node::Node;
use longhaul_units::Instant;
use std::hint::black_box;
use support::{BATCH, Null, Pair, Ring};

fn paths(c: &mut Criterion) {
    let now = Instant::from_ns(1);
    for bytes in [64, 4096] {
        let mut group = c.benchmark_group(format!("{bytes} B"));
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function("build 64 packets", |b| {
            b.iter_batched(
                || {
                    let mut pair = Pair::new(0);
                    (0..BATCH).for_each(|_| pair.post(now, bytes));
                    pair
                },
                |mut pair| {
                    let mut null = Null { frames: 0, room: BATCH };
                    pair.a.poll_transmit(now, &mut null);
                    assert_eq!(null.frames, BATCH);
                    pair
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function("take 64 packets", |b| {
            b.iter_batched(
                || {
                    let mut pair = Pair::new(0);
                    let mut ring = Ring::new();
                    (0..BATCH).for_each(|_| pair.post(now, bytes));
                    pair.a.poll_transmit(now, &mut ring);
                    (pair, ring)
                },
                |(mut pair, ring)| {
                    ring.deliver(now, &mut pair.b);
                    (pair, ring)
                },
                BatchSize::PerIteration,
            );
        });
        for idle in [0, 10_000] {
            let mut pair = Pair::new(idle);
            let (mut there, mut back) = (Ring::new(), Ring::new());
            group.bench_function(format!("exchange of 64 WRITEs, {idle} idle QPs"), |b| {
                b.iter(|| {
                    (0..BATCH).for_each(|_| pair.post(now, bytes));
                    there.clear();
                    pair.a.poll_transmit(now, &mut there);
                    there.deliver(now, &mut pair.b);
                    back.clear();
                    pair.b.poll_transmit(now, &mut back);
                    back.deliver(now, &mut pair.a);
                    assert_eq!(black_box(pair.poll()), BATCH);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, paths);
criterion_main!(benches);
