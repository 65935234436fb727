//! The cost of a frame that arrives at the wrong core's queue, compared with one that arrives at
//! its own, on one processor. It excludes the transfer of cache lines between processors.
#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_host::{Spread, join};
use longhaul_port::{Port, loopback};
use std::hint::black_box;

const BATCH: u64 = 32;

/// A frame between two hosts that belongs to `core`, of two.
fn frame_of(core: usize, len: usize) -> Vec<u8> {
    let frame = |host: u8| {
        let start =
            [&[2; 12], &[0x08, 0x00][..], &[0x45; 12], &[10, 0, 0, host, 10, 1, 0, 1]].concat();
        let rest = vec![0; len - start.len()];
        [start, rest].concat()
    };
    (1..=255)
        .map(frame)
        .find(|frame| Spread::ByPair.core(0, frame, 2) == Some(core))
        .expect("one of 255")
}

fn over_two_cores(c: &mut Criterion) {
    let mut group = c.benchmark_group("mesh");
    group.throughput(Throughput::Elements(BATCH));
    for len in [64, 4166] {
        for (core, name) in [(0, "own"), (1, "handed_over")] {
            let frame = frame_of(core, len);
            let (mut far, near) = loopback::pair("first", 64, 8192).unwrap();
            let (_far, other) = loopback::pair("second", 64, 8192).unwrap();
            let mut ports = join(vec![vec![near], vec![other]], Spread::ByPair, 512 << 10).unwrap();
            group.bench_function(BenchmarkId::new(format!("{len}B"), name), |bencher| {
                bencher.iter(|| {
                    for _ in 0..BATCH {
                        far.transmit(len, &mut |slot| slot[..64].copy_from_slice(&frame[..64]))
                            .unwrap();
                    }
                    far.flush().unwrap();
                    let mut received = 0;
                    for ports in &mut ports {
                        ports[0]
                            .receive(64, &mut |frame| {
                                received += u64::from(black_box(frame)[0] == 2)
                            })
                            .unwrap();
                    }
                    assert_eq!(received, BATCH);
                });
            });
        }
    }
    for (len, name) in [(64, "hash_64B"), (4166, "hash_4166B")] {
        let frame = frame_of(0, len);
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter(|| Spread::ByPair.core(0, black_box(&frame), 2))
        });
    }
    group.finish();
}

criterion_group!(benches, over_two_cores);
criterion_main!(benches);
