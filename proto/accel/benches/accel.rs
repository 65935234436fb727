//! Time per request packet to check, store, forward, pseudo-ACK and release it.

#![allow(missing_docs, reason = "criterion's macros declare public functions")]

mod load;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use load::{CHUNK, Form, Load};
use std::time::{Duration, Instant};

fn run(criterion: &mut Criterion, name: &str, form: Form, payload_len: usize, flows: u32) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    group.bench_with_input(
        BenchmarkId::new(format!("{form:?}"), payload_len),
        &payload_len,
        |bencher, &len| {
            let mut load = Load::new(form, len, flows);
            bencher.iter_custom(|packets| {
                let chunks = packets.div_ceil(CHUNK as u64);
                let mut spent = Duration::ZERO;
                for _ in 0..chunks {
                    load.prepare();
                    let start = Instant::now();
                    load.run();
                    spent += start.elapsed();
                }
                spent.mul_f64(packets as f64 / (chunks * CHUNK as u64) as f64)
            });
        },
    );
    group.finish();
}

fn per_packet(criterion: &mut Criterion) {
    for form in [Form::Received, Form::Copied, Form::Shared, Form::Own] {
        run(criterion, "one flow", form, 4096, 1);
    }
    run(criterion, "one flow", Form::Received, 512, 1);
    for flows in [64, 10_000] {
        run(criterion, &format!("{flows} flows"), Form::Own, 4096, flows);
    }
}

criterion_group!(benches, per_packet);
criterion_main!(benches);
