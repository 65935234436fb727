//! Cost of a frame in a switch: to one port, to all others, and with marks.

#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use longhaul_cc::{RedConfig, wire_bytes};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_switch::{Switch, SwitchConfig};
use longhaul_units::{BitRate, Instant};
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

fn head(destination: u8) -> [u8; 70] {
    let mut head = [0; 70];
    head[..14].copy_from_slice(&[destination, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00]);
    // IPv4, ECT(0).
    head[14..16].copy_from_slice(&[0x45, 0x02]);
    head
}

fn per_packet(c: &mut Criterion) {
    let mut group = c.benchmark_group("switch_per_packet");
    group.throughput(Throughput::Elements(1));
    let bytes = vec![0_u8; 4096];
    let rate = BitRate::from_gbps(10).unwrap();
    let every = RedConfig { kmin_bytes: 0, kmax_bytes: 0, pmax: 1.0 };
    for (name, destination, ecn) in
        [("to_one_of_14", 2, None), ("to_13_of_14", 1, None), ("to_one_marked", 2, Some(every))]
    {
        for (kind, payload) in
            [("synthetic", Payload::Synthetic { len: 4096 }), ("copied", Payload::Bytes(&bytes))]
        {
            let head = head(destination);
            let frame = Frame { head: &head, payload, trailer: Trailer::Sealed { pad_len: 0 } };
            let gap = rate.time_for_bytes(wire_bytes(frame.len()));
            let mut switch =
                Switch::new(SwitchConfig { ecn, ..SwitchConfig::new(14, rate) }).unwrap();
            switch.add_static(longhaul_wire::MacAddr([2, 0, 0, 0, 0, 2]), 1).unwrap();
            let (mut now, mut out) = (Instant::ZERO, Count(0));
            // A short queue, for the marks.
            for _ in 0..100 {
                switch.handle_frame(now, 0, &frame);
            }
            group.bench_function(format!("{name}_{kind}"), |b| {
                b.iter(|| {
                    now += gap;
                    switch.handle_frame(now, 0, &frame);
                    switch.poll_transmit(now, &mut out);
                    black_box(switch.poll_timeout());
                });
            });
        }
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
