//! Packets per second between two UDP ports on this machine, both driven by one thread.
//!
//! Each iteration builds a burst, flushes it, and receives it, so a packet's figure is the cost of
//! both sides and of the kernel between them on one core. `sockets` is the baseline: the same
//! number of datagrams of the same length by `sendto` and `recv`, one call each, like iperf3.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::net::{IpAddr, UdpSocket};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use longhaul_port::Port;
use longhaul_udp::{UdpConfig, UdpPort};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate, Split, icrc, split};

const BURST: usize = 32;

fn port(address: IpAddr, offload: bool) -> UdpPort {
    let config = UdpConfig { offload, ..UdpConfig::new("bench", address) };
    UdpPort::bind(&config).expect("a free port 4791")
}

/// A frame from one address to another with `payload_bytes` of payload.
fn frame(from: IpAddr, to: IpAddr, payload_bytes: usize) -> Vec<u8> {
    let template = PathTemplate::new(&Path {
        source_mac: MacAddr::default(),
        destination_mac: MacAddr::default(),
        vlan: None,
        source_ip: from,
        destination_ip: to,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 4791,
    });
    let mut head =
        Head::begin(&template, &Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(17), Psn::new(1)));
    head.finish(&template, payload_bytes);
    let mut frame = head.bytes().to_vec();
    frame.resize(frame.len() + payload_bytes, 0x5a);
    frame.extend([0; 4]);
    let Ok(Split::Roce { layout, .. }) = split(&frame, frame.len()) else {
        panic!("a sound frame")
    };
    let end = frame.len();
    let icrc = icrc::of_frame(&frame, &layout, end);
    frame[end - 4..].copy_from_slice(&icrc);
    frame
}

fn burst(from: &mut UdpPort, to: &mut UdpPort, frame: &[u8], memory: &mut [u8]) {
    for _ in 0..BURST {
        assert!(
            from.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame))
                .expect("a working socket")
        );
    }
    from.flush().expect("a working socket");
    let mut received = 0;
    while received < BURST {
        received += to
            .receive(BURST - received, &mut |frame| memory[..frame.len()].copy_from_slice(frame))
            .expect("a working socket");
    }
}

fn bench(criterion: &mut Criterion) {
    let addresses: [IpAddr; 2] = [[127, 0, 0, 1].into(), [127, 0, 0, 2].into()];
    for payload_bytes in [0_usize, 1024, 4096] {
        let mut group = criterion.benchmark_group(format!("{payload_bytes}_byte_payloads"));
        group.throughput(Throughput::Elements(BURST as u64));
        let frame = frame(addresses[0], addresses[1], payload_bytes);
        let mut memory = vec![0; frame.len()];
        for (name, offload) in [("runs", true), ("singles", false)] {
            let [mut a, mut b] = addresses.map(|address| port(address, offload));
            group.bench_function(name, |bencher| {
                bencher.iter(|| burst(&mut a, &mut b, &frame, &mut memory));
            });
        }
        let [a, b] =
            addresses.map(|address| UdpSocket::bind((address, 4792)).expect("a free port"));
        group.bench_function("sockets", |bencher| {
            bencher.iter(|| {
                // Small bursts, which a receive buffer of the usual size can hold.
                for _ in 0..BURST / 8 {
                    for _ in 0..8 {
                        a.send_to(&frame[42..], (addresses[1], 4792)).expect("room");
                    }
                    for _ in 0..8 {
                        b.recv(&mut memory).expect("a datagram");
                    }
                }
            });
        });
        group.finish();
    }
}

criterion_group!(datagrams, bench);
criterion_main!(datagrams);
