//! Cost of a frame in a link without delay, and with an RTT of 100 ms and as many frames in flight
//! as the delay holds.

#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use longhaul_cc::wire_bytes;
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant};
use std::hint::black_box;

struct Count(u64);

impl Transmit for Count {
    fn room(&mut self, _side: Side) -> usize {
        64
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        self.0 += black_box(frame).len() as u64;
    }
}

fn per_packet(c: &mut Criterion) {
    let mut group = c.benchmark_group("link_per_packet");
    group.throughput(Throughput::Elements(1));
    let bytes = vec![0_u8; 4096];
    let rate = BitRate::from_gbps(10).unwrap();
    for (kind, payload) in [
        ("synthetic_4096", Payload::Synthetic { len: 4096 }),
        ("copied_64", Payload::Bytes(&bytes[..64])),
        ("copied_4096", Payload::Bytes(&bytes)),
    ] {
        let frame = Frame { head: &[0; 70], payload, trailer: Trailer::Sealed { pad_len: 0 } };
        let gap = rate.time_for_bytes(wire_bytes(frame.len()));
        for rtt_ms in [0, 1, 100] {
            let delay = Duration::from_us(rtt_ms * 500);
            let config =
                LinkConfig { delay, memory_bytes_max: 4 << 30, ..LinkConfig::fibre_km(0, rate) };
            let mut link = Link::new(config).unwrap();
            let mut now = Instant::ZERO;
            let mut out = Count(0);
            let mut step = || {
                now += gap;
                link.handle_frame(now, 0, &frame);
                link.poll_transmit(now, &mut out);
                black_box(link.poll_timeout());
            };
            // Fill the fibre first.
            for _ in 0..delay.as_ps() / gap.as_ps() + 1000 {
                step();
            }
            group.bench_function(BenchmarkId::new(kind, format!("{rtt_ms}ms_rtt")), |b| {
                b.iter(&mut step)
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .measurement_time(std::time::Duration::from_secs(2))
        .without_plots();
    targets = per_packet
}
criterion_main!(benches);
