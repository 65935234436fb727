//! The cost of a frame from port to port: written into one loopback port, carried by turns through
//! a link without delay, and read from the other port.
#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_host::{Clock, TurnConfig, turn};
use longhaul_link::{Link, LinkConfig};
use longhaul_port::{Port, loopback};
use longhaul_units::Instant;
use std::hint::black_box;

fn over_loopback(c: &mut Criterion) {
    let mut group = c.benchmark_group("turn_over_loopback");
    for (batch, len) in [(1, 64), (64, 64), (64, 4166)] {
        let (mut a, inner_a) = loopback::pair("a", 256, 8192).unwrap();
        let (mut b, inner_b) = loopback::pair("b", 256, 8192).unwrap();
        let mut ports = [inner_a, inner_b];
        let mut link = Link::new(LinkConfig::default()).unwrap();
        let mut now = Instant::ZERO;
        let config = TurnConfig::default();
        group.throughput(Throughput::Elements(batch));
        group.bench_function(
            BenchmarkId::new(format!("{len}B"), format!("batch_{batch}")),
            |bencher| {
                bencher.iter(|| {
                    for _ in 0..batch {
                        a.transmit(len, &mut |slot| slot[..14].fill(0)).unwrap();
                    }
                    a.flush().unwrap();
                    now += longhaul_units::Duration::from_ns(1);
                    let done = turn(&mut link, &mut ports, &|| now, &config, &mut |_, error| {
                        panic!("{error}")
                    });
                    assert_eq!(done.transmitted as u64, batch);
                    b.receive(64, &mut |frame| assert!(black_box(frame).len() == len)).unwrap();
                });
            },
        );
    }
    group.throughput(Throughput::Elements(1));
    let clock = Clock::start();
    group.bench_function("clock", |bencher| bencher.iter(|| clock.now()));
    let (_a, inner) = loopback::pair("idle", 4, 100).unwrap();
    let mut ports = [inner];
    let mut link = Link::new(LinkConfig::default()).unwrap();
    group.bench_function("idle", |bencher| {
        bencher.iter(|| {
            turn(&mut link, &mut ports, &|| Instant::ZERO, &TurnConfig::default(), &mut |_, e| {
                panic!("{e}")
            })
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(std::time::Duration::from_secs(2))
        .without_plots();
    targets = over_loopback
}
criterion_main!(benches);
