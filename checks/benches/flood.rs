//! What a flood of packets that belong to nobody costs a flow that an accelerator knows, per
//! packet.
//!
//! `cargo bench -p longhaul-checks --bench flood`
//!
//! Accelerators in this process, without ports, take turns, a chunk of packets each: one that has
//! seen nothing but the known flow, one whose tables a flood has filled, and one that takes in as
//! many packets of the flood as of the flow, which are not timed. Packets come as from a real port:
//! copied, with an ICRC that is checked. What counts is the ratio within a round.

use clap::Parser;
use longhaul_accel::{Accelerator, Config, FlowState, LAN, WAN};
use longhaul_checks::samples;
use longhaul_checks::samples::Keep;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::{Duration as Span, Instant as Moment, Msn, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::{Aeth, Bth, Head, MacAddr, Opcode, Path, PathTemplate, Syndrome};
use serde_json::json;
use std::net::Ipv4Addr;
use std::time::Instant;

const CHUNK: u64 = 64;
const FLOOD: usize = 200_000;
const WAYS: [&str; 3] = ["no flood", "tables filled by a flood", "in the midst of a flood"];

#[derive(Parser)]
struct Args {
    /// Rounds, of a chunk for each accelerator
    #[arg(long, default_value_t = 20_000)]
    rounds: usize,
    #[command(flatten)]
    keep: Keep,
}

/// Takes what leaves, as a port does.
struct Port(Vec<u8>);

impl Transmit for Port {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        frame.write_to(&mut self.0[..frame.len()]);
    }
}

fn path(source: Ipv4Addr, destination: Ipv4Addr) -> Path {
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: source.into(),
        destination_ip: destination.into(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    }
}

/// A frame as a port gives it.
fn build(path: &Path, bth: &Bth, aeth: Option<Aeth>, payload: &[u8]) -> Vec<u8> {
    let template = PathTemplate::new(path);
    let mut head = Head::begin(&template, bth);
    if let Some(aeth) = aeth {
        head.push_aeth(&aeth);
    }
    let pad_len = head.finish(&template, payload.len());
    let frame = Frame {
        head: head.bytes(),
        payload: longhaul_node::Payload::Bytes(payload),
        trailer: longhaul_node::Trailer::Sealed { pad_len },
    };
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    bytes
}

const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];

/// An accelerator with one flow that it knows.
struct Box {
    accelerator: Accelerator,
    port: Port,
    now: Moment,
}

impl Box {
    fn new() -> Self {
        let accelerator = Accelerator::new(Config { seed: 7, ..Config::default() }).expect("valid");
        let mut one =
            Box { accelerator, port: Port(vec![0; 16 << 10]), now: Moment::from_ns(1000) };
        for psn in 0..2 {
            one.take(LAN, &request(psn, &[]));
            one.take(WAN, &answer(psn));
            one.send();
        }
        let known =
            one.accelerator.flows().filter(|flow| flow.state == FlowState::Terminated).count();
        assert_eq!(known, 1, "the flow is not learnt");
        one
    }

    fn take(&mut self, side: Side, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let frame = Frame::received(&head, bytes).expect("well formed");
        self.accelerator.handle_frame(self.now, side, &frame);
    }

    fn send(&mut self) {
        self.now += Span::from_us(5);
        self.accelerator.poll_transmit(self.now, &mut self.port);
    }
}

fn request(psn: u64, payload: &[u8]) -> Vec<u8> {
    let bth = Bth {
        ack_request: psn % 8 == 7 || payload.is_empty(),
        ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x1000), Psn::from_sequence(psn))
    };
    build(&path(HOSTS[0], HOSTS[1]), &bth, None, payload)
}

fn answer(psn: u64) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_ACK, Qpn::new(0x80_0000), Psn::from_sequence(psn));
    let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(psn as u32 + 1) };
    build(&path(HOSTS[1], HOSTS[0]), &bth, Some(aeth), &[])
}

/// Half of it between the flow's hosts, half between hosts that nobody knows.
fn flood(count: usize) -> Vec<Vec<u8>> {
    let mut rng = SplitMix64::new(3);
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        let random = [0, 1].map(|_| Ipv4Addr::from_bits(rng.next_u64() as u32));
        let [source, destination] = if rng.chance(0.5) { HOSTS } else { random };
        let bth = Bth::new(
            Opcode::RC_SEND_ONLY,
            Qpn::new(0x10_0000 | rng.next_u64() as u32 & 0x7f_ffff),
            Psn::from_sequence(rng.next_u64() >> 40),
        );
        frames.push(build(&path(source, destination), &bth, None, &[0; 64]));
    }
    frames
}

fn measure(bytes: usize, rounds: usize, flood: &[Vec<u8>]) -> [Vec<f64>; 3] {
    let mut boxes = WAYS.map(|_| Box::new());
    let payload = vec![0x5a; bytes];
    let mut samples = WAYS.map(|_| Vec::with_capacity(rounds));
    let (mut psn, mut next) = (2, 0);
    // A flow that says nothing meanwhile would have to make room, and be learnt again.
    for frames in flood.chunks(CHUNK as usize) {
        for frame in frames {
            boxes[1].take(LAN, frame);
        }
        for one in &mut boxes {
            one.take(LAN, &request(psn, &[]));
            one.send();
            one.take(WAN, &answer(psn));
        }
        psn += 1;
    }
    for round in 0..rounds {
        let packets: Vec<Vec<u8>> = (psn..psn + CHUNK).map(|psn| request(psn, &payload)).collect();
        psn += CHUNK;
        // The responder is a chunk behind.
        let confirmed = answer((psn - 1).saturating_sub(CHUNK));
        // None is always the first to find the packets outside the cache.
        for turn in 0..WAYS.len() {
            let way = (round + turn) % WAYS.len();
            let one = &mut boxes[way];
            for _ in 0..if way == 2 { CHUNK } else { 0 } {
                one.take(LAN, &flood[next]);
                next = (next + 1) % flood.len();
            }
            one.send();
            let start = Instant::now();
            for packet in &packets {
                one.take(LAN, packet);
            }
            one.send();
            one.take(WAN, &confirmed);
            samples[way].push(start.elapsed().as_nanos() as f64 / CHUNK as f64);
        }
    }
    for (one, way) in boxes.iter().zip(WAYS) {
        let stored = one.accelerator.counters().stored_packets;
        assert!(
            stored >= rounds as u64 * CHUNK,
            "{way}: the flow is not known any more: {stored} stored"
        );
    }
    samples
}

fn main() {
    let args = Args::parse();
    let flood = flood(FLOOD);
    println!(
        "{:<28}{:>12}{:>12}   ns per packet, median; part of no flood",
        "known flow", "512 B", "4 KiB"
    );
    let measured = [512, 4096].map(|bytes| measure(bytes, args.rounds, &flood));
    for (way, name) in WAYS.iter().enumerate() {
        let medians = measured.each_ref().map(|samples| samples::median(&samples[way]));
        let parts: Vec<String> = medians
            .iter()
            .zip(&measured)
            .map(|(median_here, samples)| {
                format!("{:.3}", median_here / samples::median(&samples[0]))
            })
            .collect();
        println!("{name:<28}{:>12.1}{:>12.1}   {}", medians[0], medians[1], parts.join(" "));
    }
    args.keep.write("flood.json", &json!({ "ways": WAYS, "bytes": [512, 4096], "ns": measured }));
}
