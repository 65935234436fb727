//! Wall time of the per-packet work: finding, reading and building headers, and the ICRC.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_main};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, Bth, Head, Layout, MacAddr, Opcode, Packet, Path, PathTemplate, Reth, Syndrome, icrc,
    split,
};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

fn template() -> PathTemplate {
    PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 10, 77, 0, 1]),
        destination_mac: MacAddr([2, 0, 10, 77, 0, 2]),
        vlan: None,
        source_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
        destination_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    })
}

fn write_only(template: &PathTemplate, psn: u32, payload_len: usize) -> Head {
    let bth =
        Bth { ack_request: true, ..Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(17), Psn::new(psn)) };
    let mut head = Head::begin(template, &bth);
    head.push_reth(&Reth {
        virtual_address: 0x7fff_0000,
        rkey: RKey(0x1234),
        len: payload_len as u32,
    });
    head.finish(template, payload_len);
    head
}

fn ack(template: &PathTemplate, psn: u32) -> Head {
    let mut head = Head::begin(template, &Bth::new(Opcode::RC_ACK, Qpn::new(17), Psn::new(psn)));
    head.push_aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(7) });
    head.finish(template, 0);
    head
}

fn headers(c: &mut Criterion) {
    let template = template();
    let head = write_only(&template, 5, 4096);
    let frame_len = head.bytes().len() + 4096 + 4;
    c.bench_function("split_write_only", |b| {
        b.iter(|| split(black_box(head.bytes()), black_box(frame_len)))
    });
    c.bench_function("parse_write_only", |b| {
        b.iter(|| {
            let Ok(Some(packet)) = Packet::parse(black_box(head.bytes())) else { unreachable!() };
            (packet.bth(), packet.reth())
        })
    });
    c.bench_function("build_write_only", |b| {
        b.iter(|| write_only(black_box(&template), black_box(5), 4096))
    });
    c.bench_function("build_ack", |b| b.iter(|| ack(black_box(&template), black_box(5))));
}

fn icrcs(c: &mut Criterion) {
    let template = template();
    let acknowledge = ack(&template, 5);
    let Ok(Some(layout)) = Layout::find(acknowledge.bytes()) else { unreachable!() };
    c.bench_function("icrc_ack", |b| {
        b.iter(|| icrc::of(black_box(acknowledge.bytes()), &layout, &[], &[]))
    });
    let mut group = c.benchmark_group("icrc_write_only");
    let payload = vec![0x5a; 4096];
    for len in [0, 64, 512, 1024, 4096] {
        let head = write_only(&template, 5, len);
        let Ok(Some(layout)) = Layout::find(head.bytes()) else { unreachable!() };
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |b, &len| {
            b.iter(|| icrc::of(black_box(head.bytes()), &layout, black_box(&payload[..len]), &[]))
        });
    }
    group.finish();
}

mod group {
    #![allow(missing_docs)]
    use super::{headers, icrcs};
    criterion::criterion_group!(benches, headers, icrcs);
}
use group::benches;

criterion_main!(benches);
