//! Runs one operation N times, to count its instructions: `count_parse_build WHAT N`.
//!
//! Run it under `valgrind --tool=callgrind` with two values of N; the difference divided by the
//! difference of N is the count of one run. WHAT: nothing, split, parse, build_write, build_ack,
//! icrc_ack, icrc_LEN. Valgrind does not support AVX-512, so ICRC counts are those of a narrower
//! implementation.

use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, Bth, Head, Layout, MacAddr, Opcode, Packet, Path, PathTemplate, Reth, Syndrome, icrc,
    split,
};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

const PAYLOAD: [u8; 4096] = [0x5a; 4096];

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

fn write_only(template: &PathTemplate, len: usize) -> Head {
    let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(17), Psn::new(black_box(5)));
    let mut head = Head::begin(template, &bth);
    head.push_reth(&Reth { virtual_address: 0x7fff_0000, rkey: RKey(0x1234), len: len as u32 });
    head.finish(template, len);
    head
}

fn ack(template: &PathTemplate) -> Head {
    let mut head =
        Head::begin(template, &Bth::new(Opcode::RC_ACK, Qpn::new(17), Psn::new(black_box(5))));
    head.push_aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(7) });
    head.finish(template, 0);
    head
}

fn run(what: &str, times: u64) -> Option<()> {
    let template = template();
    let repeat = |mut once: Box<dyn FnMut() + '_>| (0..times).for_each(|_| once());
    let head = write_only(&template, PAYLOAD.len());
    let frame_len = head.bytes().len() + PAYLOAD.len() + 4;
    match what {
        "nothing" => repeat(Box::new(|| {
            black_box(&template);
        })),
        "split" => repeat(Box::new(|| {
            let _ = black_box(split(black_box(head.bytes()), black_box(frame_len)));
        })),
        "parse" => repeat(Box::new(|| {
            if let Ok(Some(packet)) = Packet::parse(black_box(head.bytes())) {
                black_box((packet.bth(), packet.reth()));
            }
        })),
        "build_write" => repeat(Box::new(|| {
            black_box(write_only(black_box(&template), PAYLOAD.len()));
        })),
        "build_ack" => repeat(Box::new(|| {
            black_box(ack(black_box(&template)));
        })),
        _ => {
            let (head, len) = match what.strip_prefix("icrc_")? {
                "ack" => (ack(&template), 0),
                len => {
                    let len: usize = len.parse().ok().filter(|&len| len <= PAYLOAD.len())?;
                    (write_only(&template, len), len)
                }
            };
            let layout = Layout::find(head.bytes()).ok()??;
            repeat(Box::new(|| {
                black_box(icrc::of(
                    black_box(head.bytes()),
                    &layout,
                    black_box(&PAYLOAD[..len]),
                    &[],
                ));
            }));
        }
    }
    Some(())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let done = args.next().and_then(|n| n.parse().ok()).and_then(|times| run(&what, times));
    if done.is_none() {
        eprintln!(
            "usage: count_parse_build nothing|split|parse|build_write|build_ack|icrc_ack|icrc_LEN \
             TIMES"
        );
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}
