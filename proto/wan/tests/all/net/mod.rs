//! Two transports and the fibres between them, in virtual time, with hosts that send streams and
//! check the frames that they receive.
#![allow(dead_code, reason = "each test binary uses a part")]

mod starved;

use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Deadline, Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, RKey};
use longhaul_wan::{Config, INNER, PathConfig, Seed, Transport};
use longhaul_wire::{
    Bth, Deth, Ecn, Head, MacAddr, Opcode, Packet, Path, PathTemplate, Reth, icrc,
};
pub use starved::Starved;
use std::collections::{HashMap, VecDeque};

/// Source of a stream's frames; the PSN is the position in the stream.
pub struct Source {
    pub qpn: u32,
    /// Opcodes of its packets, in rotation.
    opcodes: &'static [Opcode],
    template: PathTemplate,
    payload_len: usize,
    /// The payload has bytes, which depend on the position.
    has_bytes: bool,
    pub next: u64,
    pub until: u64,
    /// Interval between frames; zero: as fast as they are accepted.
    every: Duration,
    next_at: Instant,
}

pub fn host_path(from: u8) -> Path {
    let ip = |n: u8| format!("10.0.{n}.1").parse().unwrap();
    Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, from]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 1 - from]),
        vlan: None,
        source_ip: ip(from),
        destination_ip: ip(1 - from),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    }
}

impl Source {
    pub fn new(from: u8, qpn: u32, payload_len: usize, has_bytes: bool, until: u64) -> Self {
        let template = PathTemplate::new(&host_path(from));
        Source {
            qpn,
            opcodes: &[Opcode::RC_SEND_ONLY],
            template,
            payload_len,
            has_bytes,
            next: 0,
            until,
            every: Duration::ZERO,
            next_at: Instant::ZERO,
        }
    }

    /// The same source with one frame per `every`.
    pub fn every(self, every: Duration) -> Self {
        Source { every, ..self }
    }

    /// The same source with these opcodes, in rotation.
    pub fn of(self, opcodes: &'static [Opcode]) -> Self {
        Source { opcodes, ..self }
    }

    /// The same source between other hosts.
    pub fn along(self, path: &Path) -> Self {
        Source { template: PathTemplate::new(path), ..self }
    }

    fn head(&self) -> (Head, u8) {
        let opcode = self.opcodes[self.next as usize % self.opcodes.len()];
        let bth = Bth::new(opcode, Qpn::new(self.qpn), Psn::from_sequence(self.next));
        let mut head = Head::begin(&self.template, &bth);
        if opcode.transport() == longhaul_wire::Transport::Ud {
            head.push_deth(&Deth { qkey: 7, reserved_8: 0, source_qp: Qpn::new(9) });
        }
        if matches!(opcode, Opcode::UC_WRITE_FIRST | Opcode::UC_WRITE_ONLY) {
            head.push_reth(&Reth { virtual_address: 1, rkey: RKey(2), len: 3 });
        }
        let pad = head.finish(&self.template, self.payload_len);
        (head, pad)
    }

    pub fn send(&mut self, then: impl FnOnce(&Frame<'_>)) {
        let (head, pad_len) = self.head();
        let bytes;
        let payload = if self.has_bytes {
            bytes = payload_of(self.next, self.payload_len);
            Payload::Bytes(&bytes)
        } else {
            Payload::Synthetic { len: self.payload_len }
        };
        self.next += 1;
        then(&Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len } });
    }

    /// Sends a frame with a wrong ICRC.
    pub fn send_broken(&mut self, then: impl FnOnce(&Frame<'_>)) {
        let (head, pad_len) = self.head();
        let bytes = payload_of(self.next, self.payload_len);
        self.next += 1;
        let layout = Packet::parse(head.bytes()).unwrap().unwrap().layout();
        let mut icrc = icrc::of(head.bytes(), &layout, &bytes, &[0; 3][..usize::from(pad_len)]);
        icrc[0] ^= 1;
        let trailer = Trailer::Received { pad: [0; 3], pad_len, icrc };
        then(&Frame { head: head.bytes(), payload: Payload::Bytes(&bytes), trailer });
    }
}

fn payload_of(place: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (place.wrapping_mul(31) ^ n) as u8).collect()
}

/// Frames received by the hosts at one end.
#[derive(Default)]
pub struct Host {
    /// Next position of each stream, by QPN.
    pub next: HashMap<u32, u64>,
    pub frames: u64,
    pub payload_bytes: u64,
    /// Frames that were not the next of their stream.
    pub out_of_order: u64,
    pub is_strict: bool,
    /// Frames with a congestion mark.
    pub marked: u64,
    /// Frames that arrived behind a later one of their stream, or twice.
    pub went_back: u64,
    /// Frames that no stream's receiver accepts.
    pub others: u64,
    /// Frames that a slow host accepts in total.
    pub room: Option<u64>,
    /// If set, the delay of each frame from the near box's inner side to here, in order of arrival.
    pub delays: Option<Vec<Duration>>,
    entered: HashMap<u32, VecDeque<Instant>>,
    now: Instant,
}

impl Host {
    fn take(&mut self, frame: &Frame<'_>) {
        if let Some(room) = &mut self.room {
            *room -= 1;
        }
        // A frame that a fibre damaged beyond the box's recognition passes through, and no host
        // accepts it.
        let packet = match Packet::parse(frame.head) {
            Ok(Some(packet)) if frame.icrc_is_right() && packet.dest_qp() != KNOCK => packet,
            _ => return self.others += 1,
        };
        let next = self.next.entry(packet.dest_qp().get()).or_default();
        let place = packet.psn().unwrap_near(*next).expect("no place before the first");
        self.marked += u64::from(Ecn::of(frame.head) == Some(Ecn::Congested));
        self.went_back += u64::from(place < *next);
        if place != *next {
            self.out_of_order += 1;
            assert!(!self.is_strict, "stream {} at {next}: {place} came", packet.dest_qp());
        }
        if let Some(bytes) = frame.payload.as_bytes()
            && self.is_strict
        {
            assert_eq!(bytes, payload_of(place, bytes.len()));
        }
        *next = place + 1;
        if let Some(delays) = &mut self.delays
            && let Some(entered) =
                self.entered.get_mut(&packet.dest_qp().get()).and_then(VecDeque::pop_front)
        {
            delays.push(self.now.since(entered));
        }
        self.frames += 1;
        self.payload_bytes += frame.payload.len() as u64;
    }
}

/// QP of the frames that only make the boxes find each other.
const KNOCK: Qpn = Qpn::new(0xffff);

/// The box that the frame is for, and the frame.
pub type Loses = Box<dyn FnMut(usize, &Frame<'_>) -> bool>;

pub struct Net {
    pub now: Instant,
    pub boxes: [Transport; 2],
    pub hosts: [Host; 2],
    pub sources: [Vec<Source>; 2],
    pub fibres: Vec<Link>,
    /// Paths that lose everything, by direction (0: from box 0).
    pub is_cut: Vec<[bool; 2]>,
    /// Sees every frame that a fibre delivers to a box (0 or 1), and decides whether it is lost.
    pub loses: Option<Loses>,
    /// Boxes whose thread waits for a core at times.
    pub starved: [Option<Starved>; 2],
    /// Frames that a test injects, by box and side.
    pub strange: VecDeque<(usize, Side, Vec<u8>)>,
    turn: usize,
}

struct Out<'a> {
    now: Instant,
    from: usize,
    host: &'a mut Host,
    fibres: &'a mut [Link],
    is_cut: &'a [[bool; 2]],
    is_idle: bool,
}

impl Transmit for Out<'_> {
    fn room(&mut self, side: Side) -> usize {
        match (side, self.host.room) {
            (INNER, Some(room)) => room as usize,
            _ => usize::MAX,
        }
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.is_idle = false;
        if side == INNER {
            self.host.take(frame);
        } else if !self.is_cut[side - 1][self.from] {
            self.fibres[side - 1].handle_frame(self.now, self.from, frame);
        }
    }
}

/// Delivers frames from a fibre to the boxes.
struct Landing<'a> {
    now: Instant,
    path: usize,
    boxes: &'a mut [Transport; 2],
    is_cut: [bool; 2],
    loses: &'a mut Option<Loses>,
    starved: &'a mut [Option<Starved>; 2],
    is_idle: bool,
}

impl Transmit for Landing<'_> {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.is_idle = false;
        let is_lost = self.loses.as_mut().is_some_and(|loses| loses(side, frame));
        if self.is_cut[1 - side] || is_lost {
            return;
        }
        match &mut self.starved[side] {
            Some(starved) => starved.keep(self.path + 1, frame),
            None => self.boxes[side].handle_frame(self.now, self.path + 1, frame),
        }
    }
}

pub fn config(box_id: u64, paths: usize, rate: Option<BitRate>) -> Config {
    Config {
        box_id,
        seed: Seed::of_scenario(1000 + box_id),
        paths: vec![PathConfig { rate: rate.into(), ..PathConfig::default() }; paths],
        ..Config::default()
    }
}

impl Net {
    pub fn new(boxes: [Config; 2], fibres: Vec<LinkConfig>) -> Self {
        let is_cut = vec![[false; 2]; fibres.len()];
        Net {
            now: Instant::ZERO,
            boxes: boxes.map(|config| Transport::new(config).unwrap()),
            hosts: std::array::from_fn(|_| Host { is_strict: true, ..Host::default() }),
            sources: [Vec::new(), Vec::new()],
            fibres: fibres.into_iter().map(|fibre| Link::new(fibre).unwrap()).collect(),
            is_cut,
            loses: None,
            starved: [None, None],
            strange: VecDeque::new(),
            turn: 0,
        }
    }

    /// One fibre, and boxes configured with its rate.
    pub fn of(fibre: LinkConfig) -> Self {
        Net::new([config(1, 1, fibre.rate), config(2, 1, fibre.rate)], vec![fibre])
    }

    /// Sends one frame of a separate stream so that the boxes find each other, and waits until they
    /// have. If all HELLOs of a search are lost, that includes the pause of 10 s.
    pub fn meet(&mut self) {
        for _ in 0..1000 {
            let mut knock = Source::new(0, KNOCK.get(), 8, true, 1);
            let (now, host) = (self.now, &mut self.boxes[0]);
            knock.send(|frame| host.handle_frame(now, INNER, frame));
            self.run_for(Duration::from_ms(20));
            if self.boxes.iter().all(|b| b.sessions().any(|s| s.paths.iter().all(|p| p.is_up))) {
                return;
            }
        }
        let sessions: Vec<_> =
            self.boxes.iter().map(|b| b.sessions().collect::<Vec<_>>()).collect();
        panic!(
            "the boxes do not find each other: {sessions:#?} {:?}",
            self.boxes.each_ref().map(Transport::counters)
        );
    }

    fn feed(&mut self) -> bool {
        let mut is_idle = true;
        for end in (0..2).filter(|end| self.starved[*end].as_ref().is_none_or(Starved::is_running))
        {
            let count = self.sources[end].len();
            let (now, node) = (self.now, &mut self.boxes[end]);
            while count > 0 && node.intake(INNER) > 0 {
                let sources = &mut self.sources[end];
                let Some(step) = (0..count).find(|n| {
                    let source = &sources[(self.turn + n) % count];
                    source.next < source.until && source.next_at <= now
                }) else {
                    break;
                };
                let place = (self.turn + step) % count;
                self.turn = (place + 1) % count;
                let source = &mut sources[place];
                source.next_at = source.next_at.max(now) + source.every;
                let host = &mut self.hosts[1 - end];
                if host.delays.is_some() {
                    host.entered.entry(source.qpn).or_default().push_back(now);
                }
                source.send(|frame| node.handle_frame(now, INNER, frame));
                is_idle = false;
            }
        }
        is_idle
    }

    fn pump(&mut self) {
        loop {
            let mut is_idle = self.feed();
            while let Some((to, side, bytes)) = self.strange.pop_front() {
                let head = Head::copy_of(&bytes);
                let frame =
                    Frame::received(&head, &bytes).unwrap_or_else(|_| Frame::opaque(&bytes));
                self.boxes[to].handle_frame(self.now, side, &frame);
                is_idle = false;
            }
            for (node, starved) in self.boxes.iter_mut().zip(&mut self.starved) {
                is_idle &= starved.as_mut().is_none_or(|starved| !starved.turn(self.now, node));
            }
            for from in 0..2 {
                if self.starved[from].as_ref().is_some_and(|starved| !starved.is_running()) {
                    continue;
                }
                self.hosts[from].now = self.now;
                let mut out = Out {
                    now: self.now,
                    from,
                    host: &mut self.hosts[from],
                    fibres: &mut self.fibres,
                    is_cut: &self.is_cut,
                    is_idle: true,
                };
                self.boxes[from].poll_transmit(self.now, &mut out);
                is_idle &= out.is_idle;
            }
            for (path, fibre) in self.fibres.iter_mut().enumerate() {
                let is_cut = self.is_cut[path];
                let mut landing = Landing {
                    now: self.now,
                    path,
                    boxes: &mut self.boxes,
                    is_cut,
                    loses: &mut self.loses,
                    starved: &mut self.starved,
                    is_idle: true,
                };
                fibre.poll_transmit(self.now, &mut landing);
                is_idle &= landing.is_idle;
            }
            if is_idle {
                return;
            }
        }
    }

    pub fn run_until(&mut self, until: Instant) {
        self.pump();
        let (mut at_once, mut last) = (0, None);
        loop {
            let boxes = self.boxes.iter().zip(&self.starved).map(|(node, starved)| match starved {
                Some(starved) => starved.deadline(node),
                None => node.poll_timeout(),
            });
            let paced =
                self.sources.iter().flatten().filter(|s| s.next < s.until && s.next_at > self.now);
            let paced =
                paced.map(|source| Some(Deadline { at: source.next_at, reason: "the next frame" }));
            let fibres = self.fibres.iter().map(Node::poll_timeout);
            let next = boxes.chain(fibres).chain(paced).fold(None, Deadline::earliest);
            let Some(next) = next.filter(|next| next.at <= until) else { break };
            at_once = if next.at <= self.now { at_once + 1 } else { 0 };
            assert!(at_once < 1000, "time stands still for {:?} and {:?}", next.reason, last);
            last = Some(next.reason);
            self.now = self.now.max(next.at);
            for (node, starved) in self.boxes.iter_mut().zip(&mut self.starved) {
                match starved {
                    Some(starved) => starved.pass_time(self.now),
                    None => node.handle_timeout(self.now),
                }
            }
            self.fibres.iter_mut().for_each(|fibre| fibre.handle_timeout(self.now));
            self.pump();
        }
        self.now = until;
    }

    /// Payload that has arrived at end 1, in bytes: frames delivered, and frames that wait for an
    /// earlier one. Deliveries alone advance in steps of a round trip, whenever a gap is filled.
    pub fn arrived_bytes(&self, payload_len: u64) -> u64 {
        let waiting: u64 = self.boxes[1].sessions().map(|session| session.frames_waiting).sum();
        self.hosts[1].payload_bytes + waiting * payload_len
    }

    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Runs until everything that the sources send is delivered.
    pub fn finish(&mut self, within: Duration) {
        let end = self.now + within;
        while self.now < end {
            self.run_for(Duration::from_ms(1));
            let is_done = |end: usize| {
                let host = &self.hosts[1 - end];
                self.sources[end]
                    .iter()
                    .all(|s| host.next.get(&s.qpn).copied().unwrap_or(0) >= s.until)
            };
            if is_done(0) && is_done(1) {
                return;
            }
        }
        let missing: Vec<_> =
            self.sources.iter().flatten().map(|s| (s.qpn, s.next, s.until)).collect();
        panic!(
            "not all came out: {missing:?} {:?}\n{:#?}\n{:#?}",
            self.hosts.iter().map(|h| &h.next).collect::<Vec<_>>(),
            self.boxes[0].sessions().collect::<Vec<_>>(),
            self.boxes[1].counters()
        );
    }
}
