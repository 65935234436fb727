//! Sessions of the WAN transport in virtual time, over a path controlled by the input.

use longhaul_node::{Chain, Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_seal::{PeerConfig, PrivateKey, Seal, Seed};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wan::format::{DatagramKind, HEADER_LEN, Header};
use longhaul_wan::{Counters, INNER, PathConfig, Transport};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Packet, Path, PathTemplate, Udp};
use std::collections::{HashMap, VecDeque};

const RATE: Option<BitRate> = BitRate::from_gbps(10);
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;
/// Steps of one run.
const STEPS_MAX: usize = 256;
/// Maximum number of datagrams in flight.
const WAY_MAX: usize = 4096;

/// A box without its accelerators.
trait Box: Node {
    fn counters(&self) -> Counters;
}

impl Box for Transport {
    fn counters(&self) -> Counters {
        *Transport::counters(self)
    }
}

impl Box for Chain<Transport, Seal> {
    fn counters(&self) -> Counters {
        self.left().map(|transport| *Transport::counters(transport)).unwrap_or_default()
    }
}

fn transport(n: u8) -> Transport {
    let paths = vec![PathConfig { rate: RATE.into(), ..PathConfig::default() }];
    let config = longhaul_wan::Config {
        box_id: n.into(),
        seed: Seed::of_scenario(70 + u64::from(n)),
        paths,
        ..Default::default()
    };
    Transport::new(config).expect("a configuration that is right")
}

fn sealed(n: u8) -> Chain<Transport, Seal> {
    let key = |n: u8| PrivateKey::generate(&Seed::new([n; 32]));
    let peer =
        PeerConfig { name: "far".into(), public_key: key(1 - n).public(), preshared_key: None };
    let config = longhaul_seal::Config::new(key(n), vec![peer], Seed::new([9 + n; 32]));
    Chain::new(Some(transport(n)), Some(Seal::new(config).expect("a configuration that is right")))
}

/// A packet from the host behind box `from`, with its position in its stream.
fn packet(from: usize, stream: u8, place: u64) -> Vec<u8> {
    let ip = |n: usize| format!("10.0.{n}.1").parse().expect("an address");
    let path = Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, from as u8]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 1 - from as u8]),
        vlan: None,
        source_ip: ip(from),
        destination_ip: ip(1 - from),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    };
    let template = PathTemplate::new(&path);
    let bth =
        Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(9 + u32::from(stream)), Psn::from_sequence(place));
    let mut head = Head::begin(&template, &bth);
    // The second stream's frames are too long for some paths.
    let len = if stream == 0 { 120 } else { 2000 };
    let payload = [&place.to_be_bytes()[..], &vec![place as u8; len]].concat();
    let pad_len = head.finish(&template, payload.len());
    bytes_of(&Frame {
        head: head.bytes(),
        payload: Payload::Bytes(&payload),
        trailer: Trailer::Sealed { pad_len },
    })
}

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    bytes
}

/// Clears the fields that routers change and no ICRC covers: Ethernet addresses, traffic class, hop
/// limit, checksums, congestion marks.
fn covered(mut bytes: Vec<u8>) -> Vec<u8> {
    for place in [0..12, 15..16, 22..23, 24..26, 40..42, 46..47] {
        bytes[place].fill(0);
    }
    bytes
}

#[derive(Default)]
struct Tap(Vec<(Side, Vec<u8>)>);

impl Transmit for Tap {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.0.push((side, bytes_of(frame)));
    }
}

struct Line<N> {
    now: Instant,
    boxes: [N; 2],
    /// Datagrams in flight to each box.
    ways: [VecDeque<Vec<u8>>; 2],
    /// Next position to send, by sending box and stream.
    sent: HashMap<(usize, u8), u64>,
    /// Next position that may arrive, by receiving box and stream.
    come: HashMap<(usize, u8), u64>,
    /// Latest datagram to each box.
    latest: [Vec<u8>; 2],
    /// Longest frame that the path carries.
    path_bytes: usize,
    /// Whether delivered frames are compared with those sent.
    is_strict: bool,
}

impl<N: Box> Line<N> {
    /// Two boxes with a session and a stream in each direction, over a path that carries frames of
    /// `path_bytes`.
    fn new(boxes: [N; 2], path_bytes: usize) -> Self {
        let mut line = Line {
            now: Instant::from_ns(1),
            boxes,
            ways: Default::default(),
            sent: HashMap::new(),
            come: HashMap::new(),
            latest: Default::default(),
            path_bytes,
            is_strict: false,
        };
        for _ in 0..100 {
            [0, 1].into_iter().for_each(|from| line.send(from, 0));
            line.deliver_all(Duration::from_ms(40));
            if line
                .boxes
                .iter()
                .all(|node| node.counters().tunnelled > 0 && node.counters().delivered > 0)
            {
                break;
            }
        }
        let counters = line.boxes.each_ref().map(Box::counters);
        assert!(counters.iter().all(|of| of.delivered > 0), "no session: {counters:?}");
        line.deliver_all(Duration::from_ms(40));
        line.is_strict = true;
        line.come =
            line.sent.iter().map(|(&(from, stream), &next)| ((1 - from, stream), next)).collect();
        line
    }

    fn send(&mut self, from: usize, stream: u8) {
        let place = self.sent.entry((from, stream)).or_default();
        let bytes = packet(from, stream, *place);
        *place += 1;
        self.give(from, INNER, &bytes);
    }

    fn give(&mut self, to: usize, side: Side, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let frame = Frame::received(&head, bytes).unwrap_or_else(|_| Frame::opaque(bytes));
        self.boxes[to].handle_frame(self.now, side, &frame);
        self.pump();
    }

    fn pump(&mut self) {
        for from in [0, 1] {
            let mut tap = Tap::default();
            self.boxes[from].poll_transmit(self.now, &mut tap);
            for (side, bytes) in tap.0 {
                if side == INNER {
                    self.arrived(from, &bytes);
                } else if self.ways[1 - from].len() < WAY_MAX && bytes.len() <= self.path_bytes {
                    self.latest[1 - from].clone_from(&bytes);
                    self.ways[1 - from].push_back(bytes);
                }
            }
        }
    }

    /// Handles a frame that a box delivers to its host.
    fn arrived(&mut self, at: usize, bytes: &[u8]) {
        let head = Head::copy_of(bytes);
        let Ok(frame) = Frame::received(&head, bytes) else { return };
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return };
        if !self.is_strict || !frame.icrc_is_right() {
            return;
        }
        let stream = packet.bth().dest_qp.get().wrapping_sub(9) as u8;
        let place = u64::from_be_bytes(bytes[HEADERS + 12..][..8].try_into().expect("eight bytes"));
        let sent = self::packet(1 - at, stream, place);
        assert_eq!(covered(bytes.to_vec()), covered(sent), "as it was sent");
        let next = self.come.entry((at, stream)).or_default();
        assert_eq!(place, *next, "once, and in order");
        *next += 1;
    }

    /// Advances time to `by`, handling each deadline of a box.
    fn pass(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let due = self
                .boxes
                .iter()
                .filter_map(|node| node.poll_timeout())
                .map(|deadline| deadline.at)
                .min();
            let Some(at) = due.filter(|&at| at <= end) else { break };
            self.now = self.now.max(at) + Duration::from_ns(1);
            let now = self.now;
            self.boxes.iter_mut().for_each(|node| node.handle_timeout(now));
            self.pump();
        }
        self.now = self.now.max(end);
    }

    /// Delivers everything in flight, and all consequences, while time passes.
    fn deliver_all(&mut self, by: Duration) {
        for _ in 0..8 {
            for to in [0, 1] {
                for _ in 0..self.ways[to].len() {
                    let Some(bytes) = self.ways[to].pop_front() else { break };
                    self.give(to, 1, &bytes);
                }
            }
            self.pass(by.divided_by(8));
        }
    }

    /// `true` if a session has ended: frames in flight may then be lost.
    fn is_over(&self) -> bool {
        self.boxes.iter().any(|node| node.counters().sessions_closed > 0)
    }
}

/// Reads the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Frames are sent, and datagrams lost, duplicated, reordered, damaged and forged according to
/// `data`; its first byte selects whether the boxes have keys, and the path's MTU. While the
/// session lasts, every frame is delivered at most once, unchanged and in the order of its stream;
/// once the path is good again, all are delivered.
pub fn session(data: &[u8]) {
    let Some((&keys, steps)) = data.split_first() else { return };
    let path_bytes = [usize::MAX, 1514, 1314, 700][usize::from(keys >> 1 & 3)];
    if keys & 1 == 1 {
        play(Line::new([sealed(0), sealed(1)], path_bytes), Script(steps));
    } else {
        play(Line::new([transport(0), transport(1)], path_bytes), Script(steps));
    }
}

fn play<N: Box>(mut line: Line<N>, mut script: Script<'_>) {
    for _ in 0..STEPS_MAX {
        let Some(what) = script.byte() else { break };
        let to = usize::from(what >> 7);
        match what & 7 {
            0 => (0..=what >> 3 & 7).for_each(|_| line.send(to, what >> 6 & 1)),
            1 => (0..=what >> 3 & 15).for_each(|_| deliver(&mut line, to, 0)),
            2 => drop(line.ways[to].pop_front()),
            3 => line.ways[to]
                .front()
                .cloned()
                .into_iter()
                .for_each(|again| line.ways[to].push_back(again)),
            4 => {
                let place = usize::from(script.byte().unwrap_or(0));
                deliver(&mut line, to, place);
            }
            5 => {
                let (at, by) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
                if let Some(mut bytes) = line.ways[to].pop_front() {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] ^= by;
                    line.give(to, 1, &bytes);
                }
            }
            6 => line.pass(Duration::from_us(100 * u64::from(script.byte().unwrap_or(0)))),
            _ => {
                let len = usize::from(script.byte().unwrap_or(0));
                let mut bytes = line.latest[to].clone();
                bytes.truncate(HEADERS);
                bytes.extend_from_slice(script.take(len));
                line.give(to, 1, &lengthened(bytes));
            }
        }
        if line.is_over() {
            return;
        }
    }
    for _ in 0..40 {
        line.deliver_all(Duration::from_ms(50));
    }
    if !line.is_over() {
        for (&(from, stream), &sent) in &line.sent {
            assert_eq!(
                line.come.get(&(1 - from, stream)).copied().unwrap_or(0),
                sent,
                "all of stream {stream}"
            );
        }
    }
}

/// Delivers the datagram at `place` in the queue.
fn deliver<N: Box>(line: &mut Line<N>, to: usize, place: usize) {
    let place = place.min(line.ways[to].len().saturating_sub(1));
    if let Some(bytes) = line.ways[to].remove(place) {
        line.give(to, 1, &bytes);
    }
}

/// Updates the lengths in the headers.
fn lengthened(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(udp) = Udp::find(&bytes[..HEADERS.min(bytes.len())]) {
        let said = u16::from_be_bytes([bytes[38], bytes[39]]);
        let more = bytes.len() as i32 - 34 - i32::from(said);
        let _ = udp.lengthen(&mut bytes, more);
    }
    bytes
}

/// Fields of IPv4 and UDP that no router changes, which the check of a PART covers besides header
/// and body.
fn constant(datagram: &[u8]) -> Vec<u8> {
    [&datagram[18..21], &datagram[26..34], &datagram[34..36]].concat()
}

const KINDS: [DatagramKind; 8] = [
    DatagramKind::Data,
    DatagramKind::Parity,
    DatagramKind::End,
    DatagramKind::Void,
    DatagramKind::Ack,
    DatagramKind::Ping,
    DatagramKind::Hello,
    DatagramKind::Close,
];

/// An attacker that reads the path of two boxes without keys forges datagrams with valid checks. It
/// can control the session; the boxes' memory stays bounded.
///
/// A step: type and direction, changes of path, session, number, stream and sequence, a length and
/// as many bytes of body. Without any, the body is that of the latest datagram.
pub fn tunnelled(data: &[u8]) {
    let mut line = Line::new([transport(0), transport(1)], 1314);
    line.is_strict = false;
    let mut script = Script(data);
    for _ in 0..STEPS_MAX {
        let Some(what) = script.byte() else { break };
        let to = usize::from(what >> 7);
        line.send(1 - to, what >> 6 & 1);
        let model = line.latest[to].clone();
        let Some(header) = model.get(HEADERS..).and_then(Header::read) else { continue };
        let mut change = [0; 8];
        let given = script.take(8);
        change[..given.len()].copy_from_slice(given);
        let signed = |at: usize| i32::from(i16::from_be_bytes([change[at], change[at + 1]])) as u32;
        let kind = match KINDS[usize::from(what & 7)] {
            DatagramKind::Data if header.kind == DatagramKind::Part => DatagramKind::Part,
            kind => kind,
        };
        let forged = Header {
            kind,
            version: header.version ^ (change[0] >> 4),
            path: header.path ^ (change[0] & 15),
            session: header.session ^ u32::from(change[1]),
            number: header.number.wrapping_add(signed(2)),
            stream: header.stream ^ u32::from(change[4]) << 8 ^ u32::from(change[5]),
            sequence: header.sequence.wrapping_add(signed(6)),
            ..header
        };
        let len = usize::from(script.byte().unwrap_or(0));
        let body = script.take(len);
        let latest = &model[(HEADERS + HEADER_LEN).min(model.len())..];
        let (checked, body) = match kind {
            DatagramKind::Part => {
                let body = if body.is_empty() { latest } else { body };
                ([&constant(&model), body].concat(), body)
            }
            _ if body.is_empty() => (Vec::new(), latest),
            _ => (body.to_vec(), body),
        };
        let bytes = [&model[..HEADERS], &forged.write(&checked), body].concat();
        line.give(to, 1, &lengthened(bytes));
        line.pass(Duration::from_us(10 * u64::from(what >> 3 & 7)));
    }
    line.deliver_all(Duration::from_ms(100));
    for node in &line.boxes {
        let config = node.config();
        assert!(node.sessions().count() <= config.sessions_max as usize);
        for session in node.sessions() {
            assert!(session.send_bytes_peak <= config.send_bytes_max);
            assert!(session.receive_bytes_peak <= config.receive_bytes_max / 16 * 17);
        }
    }
}
