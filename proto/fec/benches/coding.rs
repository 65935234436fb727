//! Cost of coding: bytes per second of an encoder and of a repair, compared with a copy of the same
//! bytes and the fastest general library.

#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use longhaul_fec::{
    Body, Decoder, DecoderConfig, Encoder, HEAD_MAX, Layout, Measured, Parity, PathLoss, Symbol,
    choose,
};
use longhaul_units::Duration;
use std::hint::black_box;

const BODY: usize = 4096;
const HEAD: [u8; 66] = [7; 66];

#[derive(Clone, Copy)]
struct Held<'a>(&'a [u8]);

impl Symbol for Held<'_> {
    fn head(&self, out: &mut [u8; HEAD_MAX]) -> usize {
        out[..HEAD.len()].copy_from_slice(&HEAD);
        HEAD.len()
    }

    fn body(&self) -> Body<'_> {
        Body::bytes(self.0)
    }
}

fn data(symbols: usize) -> Vec<Vec<u8>> {
    (0..symbols).map(|i| (0..BODY).map(|at| (at * 31 + i * 17) as u8).collect()).collect()
}

fn encode(c: &mut Criterion) {
    for symbols in [20, 64] {
        let data = data(symbols);
        let mut group = c.benchmark_group(format!("encode_k{symbols}_4KiB"));
        group.throughput(Throughput::Bytes((symbols * BODY) as u64));
        let mut copy = vec![0_u8; BODY];
        group.bench_function("memcpy", |b| {
            b.iter(|| {
                for body in &data {
                    copy.copy_from_slice(black_box(body));
                    black_box(&mut copy);
                }
            });
        });
        for rows in [1, 2, 4] {
            let mut encoder = Encoder::new(Some(Layout::new(symbols, rows, 1).unwrap()));
            let mut number = 0;
            group.bench_function(format!("m{rows}"), |b| {
                b.iter(|| {
                    for body in &data {
                        encoder.add(number, &HEAD, &Body::bytes(body)).unwrap();
                        number += 1;
                    }
                    while let Some(parity) = encoder.next_parity() {
                        black_box(parity);
                    }
                });
            });
            let mut library =
                reed_solomon_simd::ReedSolomonEncoder::new(symbols, rows, BODY).unwrap();
            group.bench_function(format!("reed_solomon_simd_m{rows}"), |b| {
                b.iter(|| {
                    for body in &data {
                        library.add_original_shard(body).unwrap();
                    }
                    black_box(library.encode().unwrap().recovery(0));
                });
            });
        }
        group.finish();
    }
}

fn repair(c: &mut Criterion) {
    for symbols in [20, 64] {
        let data = data(symbols);
        let mut group = c.benchmark_group(format!("repair_k{symbols}_4KiB"));
        group.throughput(Throughput::Bytes((symbols * BODY) as u64));
        for lost in [1, 2, 4] {
            let mut encoder = Encoder::new(Some(Layout::new(symbols, lost, 1).unwrap()));
            for (number, body) in (0..).zip(&data) {
                encoder.add(number, &HEAD, &Body::bytes(body)).unwrap();
            }
            let mut parities = Vec::new();
            while let Some(Parity { id, head, body: Body::Bytes([body, ..]) }) =
                encoder.next_parity()
            {
                parities.push((id, head.to_vec(), body.to_vec()));
            }
            let mut decoder =
                Decoder::new(DecoderConfig { reach: 1024, ..DecoderConfig::default() });
            // The code depends on numbers modulo 241.
            let mut base = 0;
            group.bench_function(format!("lost{lost}"), |b| {
                b.iter(|| {
                    let mut back = 0;
                    for (number, body) in (base..).zip(&data).skip(lost) {
                        decoder.on_data(number, Held(body), |_| ());
                    }
                    for (id, head, body) in &parities {
                        let id = longhaul_fec::ParityId { base: id.base + base, ..*id };
                        let parity = Parity { id, head, body: Body::bytes(body) };
                        decoder
                            .on_parity(&parity, |recovered| back += recovered.body.len())
                            .unwrap();
                    }
                    assert_eq!(back, lost * BODY);
                    base += 241;
                });
            });
            let mut coder =
                reed_solomon_simd::ReedSolomonEncoder::new(symbols, lost, BODY).unwrap();
            data.iter().for_each(|body| coder.add_original_shard(body).unwrap());
            let parities: Vec<_> =
                coder.encode().unwrap().recovery_iter().map(<[u8]>::to_vec).collect();
            let mut library =
                reed_solomon_simd::ReedSolomonDecoder::new(symbols, lost, BODY).unwrap();
            group.bench_function(format!("reed_solomon_simd_lost{lost}"), |b| {
                b.iter(|| {
                    for (i, body) in data.iter().enumerate().skip(lost) {
                        library.add_original_shard(i, body).unwrap();
                    }
                    for (i, parity) in parities.iter().enumerate() {
                        library.add_recovery_shard(i, parity).unwrap();
                    }
                    black_box(library.decode().unwrap().restored_original(0));
                });
            });
        }
        group.finish();
    }
}

fn without_loss(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive_without_loss");
    group.throughput(Throughput::Elements(1));
    let data = data(1);
    let mut decoder = Decoder::new(DecoderConfig::default());
    let mut number = 0;
    group.bench_function("on_data", |b| {
        b.iter(|| {
            decoder.on_data(black_box(number), Held(&data[0]), |_| ());
            number += 1;
        });
    });
    group.finish();
}

fn choice(c: &mut Criterion) {
    for loss in [1e-4, 1e-2, 5e-2] {
        let path = PathLoss { loss, burst: 4.0 };
        let measured = Measured {
            path,
            rtt: Duration::from_ms(100),
            packets_per_s: 3e6,
            free_per_s: 0.0,
            goal: None,
        };
        c.bench_function(&format!("choose_at_{loss}"), |b| b.iter(|| choose(black_box(&measured))));
    }
}

criterion_group!(benches, encode, repair, without_loss, choice);
criterion_main!(benches);
