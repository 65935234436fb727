//! Sends frames over an emulated fibre, one after another, to count the cost of each: `count_frames
//! short|short_with_rule|copied_4096|synthetic_4096 ROUNDS`.
//!
//! The fibre has 100 µs of delay and is full.

use longhaul_cc::wire_bytes;
use longhaul_link::{Link, LinkConfig, Rule};
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate};
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

fn headers(payload_len: usize) -> Head {
    let template = PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: [10, 0, 0, 1].into(),
        destination_ip: [10, 0, 0, 2].into(),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    });
    let mut head =
        Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(9)));
    head.finish(&template, payload_len);
    head
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().expect("what to carry");
    let rounds: u64 =
        arguments.next().and_then(|text| text.parse().ok()).expect("a number of rounds");
    let bytes = vec![0_u8; 4096];
    let (payload, rules) = match &*what {
        // 62 B, the second shortest RoCEv2 packet.
        "short" => (Payload::Bytes(&bytes[..4]), vec![]),
        "short_with_rule" => {
            let rule = "write qpn 0x17: lose 1%".parse::<Rule>().expect("a rule");
            (Payload::Bytes(&bytes[..4]), vec![rule])
        }
        "copied_4096" => (Payload::Bytes(&bytes), vec![]),
        "synthetic_4096" => (Payload::Synthetic { len: 4096 }, vec![]),
        other => panic!("'{other}' is nothing that is counted"),
    };
    let head = headers(payload.len());
    let frame = Frame {
        head: head.bytes(),
        payload,
        trailer: Trailer::Received { pad: [0; 3], pad_len: 0, icrc: [0; 4] },
    };
    let rate = BitRate::from_gbps(10).expect("a rate");
    let gap = rate.time_for_bytes(wire_bytes(frame.len()));
    let delay = Duration::from_us(100);
    let config = LinkConfig { delay, rules, ..LinkConfig::fibre_km(0, rate) };
    let mut link = Link::new(config).expect("a link");
    let (mut now, mut out) = (Instant::ZERO, Count(0));
    for _ in 0..rounds {
        now += gap;
        link.handle_frame(now, 0, &frame);
        link.poll_transmit(now, &mut out);
        black_box(link.poll_timeout());
    }
    println!("{} bytes", out.0);
}
