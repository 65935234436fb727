//! Carries frames from one transport to another, to count the cost of both: `count_tunnelled FORM
//! FRAMES [PAYLOAD [STREAMS]]`. Defaults: 4096 bytes and one stream. 64 frames are sent between two
//! drains, and streams alternate frame by frame.
//!
//! Forms: `own` forwards frames by reference; `copied` copies them at the near box and between the
//! boxes, as ports do; `build` only builds the frames, to be subtracted.

use longhaul_node::{Frame, FrameBuf, FramePool, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wan::{Config, INNER, Seed, Transport};
use longhaul_wire::icrc;
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Packet, Path, PathTemplate};

/// Frames between two drains.
const CHUNK: u64 = 64;
/// Side of the only path.
const WAN: Side = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Own,
    Copied,
    Build,
}

/// Destination of a box's frames: the other box, or the hosts.
struct Out<'a> {
    now: Instant,
    other: &'a mut Transport,
    form: Form,
    bytes: &'a mut [u8],
    /// Frames for the hosts.
    delivered: u64,
}

impl Transmit for Out<'_> {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if side == INNER {
            self.delivered += 1;
            std::hint::black_box(frame.len());
        } else if self.form == Form::Own {
            self.other.handle_frame(self.now, WAN, frame);
        } else {
            let bytes = &mut self.bytes[..frame.len()];
            frame.write_to(bytes);
            let head = Head::copy_of(bytes);
            let frame = Frame::received(&head, bytes).expect("a frame");
            self.other.handle_frame(self.now, WAN, &frame);
        }
    }
}

struct Pair {
    boxes: [Transport; 2],
    now: Instant,
    form: Form,
    bytes: Vec<u8>,
}

impl Pair {
    fn new(form: Form) -> Self {
        let transport = |id| {
            Transport::new(Config { box_id: id, seed: Seed::of_scenario(id), ..Config::default() })
                .expect("valid")
        };
        let boxes = [transport(1), transport(2)];
        Pair { boxes, now: Instant::from_ns(1000), form, bytes: vec![0; 16 << 10] }
    }

    /// Lets a box meet its deadlines and transmit. Returns the number of frames delivered to hosts.
    fn drain(&mut self, number: usize) -> u64 {
        self.now += Duration::from_us(5);
        let [one, other] = &mut self.boxes;
        let (one, other) = if number == 0 { (one, other) } else { (other, one) };
        if one.poll_timeout().is_some_and(|due| due.at <= self.now) {
            one.handle_timeout(self.now);
        }
        let mut out =
            Out { now: self.now, other, form: self.form, bytes: &mut self.bytes, delivered: 0 };
        one.poll_transmit(self.now, &mut out);
        out.delivered
    }
}

/// Frames of several streams, as produced by a host or an accelerator.
struct Frames {
    template: PathTemplate,
    payload: Vec<u8>,
    streams: u64,
    made: u64,
    pool: FramePool,
    held: Vec<FrameBuf>,
}

impl Frames {
    fn new(payload_len: usize, streams: u64) -> Self {
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source_ip: [10, 0, 0, 1].into(),
            destination_ip: [10, 0, 1, 1].into(),
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let payload = (0..payload_len).map(|n| n as u8).collect();
        Frames { template, payload, streams, made: 0, pool: FramePool::new(), held: Vec::new() }
    }

    fn make(&mut self) {
        self.held.clear();
        for number in self.made..self.made + CHUNK {
            let qpn = Qpn::new(0x1000 + (number % self.streams) as u32);
            let bth =
                Bth::new(Opcode::RC_SEND_ONLY, qpn, Psn::from_sequence(number / self.streams));
            let mut head = Head::begin(&self.template, &bth);
            let pad_len = head.finish(&self.template, self.payload.len());
            let packet = Packet::parse(head.bytes()).expect("well formed").expect("RoCEv2");
            let pad = [0; 3];
            let icrc = icrc::of(
                head.bytes(),
                &packet.layout(),
                &self.payload,
                &pad[..usize::from(pad_len)],
            );
            let trailer = Trailer::Received { pad, pad_len, icrc };
            let payload = Payload::Bytes(&self.payload);
            self.held.push(self.pool.hold(&Frame { head: head.bytes(), payload, trailer }));
        }
        self.made += CHUNK;
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let form = match arguments.next().as_deref() {
        Some("own") | None => Form::Own,
        Some("copied") => Form::Copied,
        Some("build") => Form::Build,
        Some(other) => panic!("no form {other}: own, copied or build"),
    };
    let mut numbers = arguments.map_while(|argument| argument.parse::<u64>().ok());
    let count = numbers.next().unwrap_or(100_000);
    let payload_len = numbers.next().unwrap_or(4096);
    let mut frames = Frames::new(payload_len as usize, numbers.next().unwrap_or(1));
    let mut pair = Pair::new(form);
    // The first frames pass, and the boxes find each other.
    for _ in 0..100 {
        frames.make();
        let first = frames.held[0].clone();
        pair.boxes[0].handle_frame(pair.now, INNER, &first.as_frame());
        pair.drain(0);
        pair.drain(1);
    }
    assert!(pair.boxes[0].sessions().any(|session| session.is_open), "no session");
    let mut delivered = 0;
    for _ in 0..count / CHUNK {
        frames.make();
        if form == Form::Build {
            continue;
        }
        for held in &frames.held {
            let mut frame = held.as_frame();
            if form == Form::Copied {
                frame.payload = Payload::Bytes(held.payload());
            }
            pair.boxes[0].handle_frame(pair.now, INNER, &frame);
        }
        pair.drain(0);
        delivered += pair.drain(1);
    }
    if form != Form::Build {
        assert_eq!(delivered, count / CHUNK * CHUNK, "frames came out");
        assert_eq!(pair.boxes[0].counters().repeated, 0, "and none went twice");
    }
}
