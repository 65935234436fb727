//! Frames per second between two memif ports, both driven by one thread.
//!
//! Each iteration builds a burst, flushes it, and receives it, so a frame's figure is the cost of
//! both sides on one core. `copy` fills the frame from private memory and copies it out again, as a
//! port's user does; `touch` writes and reads one cache line, which leaves the cost of the port
//! itself. `memcpy` makes the same two copies without a port, as a baseline of the machine.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::{LinkState, Port, loopback};

const BURST: usize = 32;

fn pair(ring_size_log2: u8) -> (MemifPort, MemifPort) {
    let path = std::env::temp_dir().join(format!("longhaul-memif-bench-{}", std::process::id()));
    let config = MemifConfig { ring_size_log2, ..MemifConfig::new("bench") };
    let mut master = MemifPort::master(&path, 0, config.clone()).expect("a master");
    let mut slave = MemifPort::slave(&path, 0, config).expect("a slave");
    let mut up = false;
    while !up {
        up = [&mut master, &mut slave]
            .map(|port| port.service().expect("a sound peer"))
            .iter()
            .all(|state| *state == LinkState::Up);
    }
    (master, slave)
}

/// Moves one burst, touching `touched` bytes of each frame on both sides.
fn burst(from: &mut dyn Port, to: &mut dyn Port, len: usize, touched: usize, memory: &mut [u8]) {
    for _ in 0..BURST {
        let taken = from.transmit(len, &mut |frame| {
            frame[..touched].copy_from_slice(&memory[..touched]);
        });
        assert!(taken.expect("a sound peer"));
    }
    from.flush().expect("a sound peer");
    let received = to.receive(BURST, &mut |frame| {
        memory[..touched].copy_from_slice(&frame[..touched]);
    });
    assert_eq!(received.expect("a sound peer"), BURST);
}

fn bench(criterion: &mut Criterion) {
    for len in [64usize, 4096] {
        let mut group = criterion.benchmark_group(format!("{len}_byte_frames"));
        group.throughput(Throughput::Elements(BURST as u64));
        let mut memory = vec![1u8; len];
        for ring_size_log2 in [8, 11] {
            for (direction, reverse) in [("slave_to_master", false), ("master_to_slave", true)] {
                let (mut master, mut slave) = pair(ring_size_log2);
                let (from, to): (&mut dyn Port, &mut dyn Port) =
                    if reverse { (&mut master, &mut slave) } else { (&mut slave, &mut master) };
                for (what, touched) in [("touch", 64), ("copy", len)] {
                    let id = BenchmarkId::new(format!("{direction}/{what}"), 1 << ring_size_log2);
                    group.bench_function(id, |bencher| {
                        bencher.iter(|| burst(from, to, len, touched, &mut memory));
                    });
                }
            }
        }
        let (mut a, mut b) = loopback::pair("bench", 2048, 4352).expect("two descriptors");
        group.bench_function("loopback/copy/2048", |bencher| {
            bencher.iter(|| burst(&mut a, &mut b, len, len, &mut memory));
        });
        let mut between = vec![0u8; len];
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| {
                for _ in 0..BURST {
                    between.copy_from_slice(black_box(&memory));
                    memory.copy_from_slice(black_box(&between));
                }
            });
        });
        group.finish();
    }
}

criterion_group!(frames, bench);
criterion_main!(frames);
