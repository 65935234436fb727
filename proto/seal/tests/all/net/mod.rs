//! Two seals and the fibres between them, in virtual time, with transports that send numbered
//! datagrams and keep those that they receive.

use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_seal::{Config, DropReason, PeerConfig, PrivateKey, Seal, Seed};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate, Udp};

pub const PORT: u16 = 4797;

pub fn key(n: u8) -> PrivateKey {
    PrivateKey::generate(&Seed::new([n; 32]))
}

/// Box `n`, 0 or 1, in life `life`, with the other as its peer.
pub fn config(n: u8, life: u8) -> Config {
    let peer = PeerConfig {
        name: format!("box {}", 1 - n),
        public_key: key(2 - n).public(),
        preshared_key: None,
    };
    Config::new(key(1 + n), vec![peer], Seed::new([100 + 2 * life + n; 32]))
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

/// A datagram to `port` along `path`, with at least `len` bytes behind the headers, derived from
/// `number`.
pub fn datagram(path: &Path, port: u16, number: u64, len: usize) -> Vec<u8> {
    let template = PathTemplate::new(path);
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::from_sequence(number));
    let mut head = Head::begin(&template, &bth);
    let pad = head.finish(&template, len + 8);
    let mut bytes = head.bytes().to_vec();
    Udp::find(&bytes).unwrap().set_destination_port(&mut bytes, port);
    bytes.extend(number.to_be_bytes());
    bytes.extend((0..len).map(|at| (number.wrapping_mul(31) as usize ^ at) as u8));
    bytes.extend(vec![0x77; usize::from(pad) + 4]);
    bytes
}

/// Number of an untagged datagram over IPv4.
pub fn number_of(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[54..62].try_into().unwrap())
}

pub fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    bytes
}

/// Hands bytes to a node as a port does.
pub fn give(node: &mut impl Node, now: Instant, side: Side, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    let frame = Frame::received(&head, bytes).unwrap_or_else(|_| Frame::opaque(bytes));
    node.handle_frame(now, side, &frame);
}

/// Records transmitted frames as bytes.
#[derive(Default)]
pub struct Tap(pub Vec<(Side, Vec<u8>)>);

impl Transmit for Tap {
    fn room(&mut self, _side: Side) -> usize {
        usize::MAX
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.0.push((side, bytes_of(frame)));
    }
}

pub fn drain(node: &mut impl Node, now: Instant) -> Vec<(Side, Vec<u8>)> {
    let mut tap = Tap::default();
    node.poll_transmit(now, &mut tap);
    tap.0
}

/// A datagram on the WAN: time, destination box, path.
pub struct Seen {
    pub to: usize,
    pub bytes: Vec<u8>,
}

pub struct Net {
    pub now: Instant,
    pub boxes: [Seal; 2],
    pub fibres: Vec<Link>,
    /// Datagrams delivered inside at each end.
    pub came: [Vec<Vec<u8>>; 2],
    /// All datagrams that crossed the WAN.
    pub seen: Vec<Seen>,
    pub keeps: bool,
    /// The fibres lose everything.
    pub is_cut: bool,
}

impl Net {
    pub fn new(boxes: [Config; 2], fibres: Vec<LinkConfig>) -> Self {
        Net {
            now: Instant::ZERO,
            boxes: boxes.map(|config| Seal::new(config).unwrap()),
            fibres: fibres.into_iter().map(|fibre| Link::new(fibre).unwrap()).collect(),
            came: Default::default(),
            seen: Vec::new(),
            keeps: true,
            is_cut: false,
        }
    }

    /// One fibre of 1 ms.
    pub fn plain() -> Self {
        Net::new([config(0, 0), config(1, 0)], vec![fibre()])
    }

    pub fn send_bytes(&mut self, from: usize, path: usize, bytes: &[u8]) {
        give(&mut self.boxes[from], self.now, Seal::inner(path), bytes);
        self.pump();
    }

    pub fn send(&mut self, from: usize, path: usize, number: u64, len: usize) {
        self.send_bytes(from, path, &datagram(&host_path(from as u8), PORT, number, len));
    }

    /// Sends until both ends have keys, and forgets the deliveries.
    pub fn meet(&mut self) {
        for _ in 0..100 {
            self.send(0, 0, u64::MAX, 100);
            self.run_for(Duration::from_ms(50));
            if (0..2).all(|n| self.boxes[n].peers(self.now).all(|peer| peer.keys.is_some())) {
                self.came = Default::default();
                return;
            }
        }
        panic!("no keys: {:#?}", self.boxes.each_ref().map(Seal::counters));
    }

    fn pump(&mut self) {
        loop {
            let mut is_idle = true;
            for from in 0..2 {
                for (side, bytes) in drain(&mut self.boxes[from], self.now) {
                    is_idle = false;
                    if side == Seal::inner(side / 2) {
                        self.came[from].push(bytes);
                    } else if !self.is_cut {
                        give(&mut self.fibres[side / 2], self.now, from, &bytes);
                    }
                }
            }
            for path in 0..self.fibres.len() {
                for (to, bytes) in drain(&mut self.fibres[path], self.now) {
                    is_idle = false;
                    give(&mut self.boxes[to], self.now, Seal::wan(path), &bytes);
                    if self.keeps {
                        self.seen.push(Seen { to, bytes });
                    }
                }
            }
            if is_idle {
                return;
            }
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.pump();
        let mut at_once = 0;
        loop {
            let boxes = self.boxes.iter().map(Node::poll_timeout);
            let next = boxes
                .chain(self.fibres.iter().map(Node::poll_timeout))
                .fold(None, Deadline::earliest);
            let Some(next) = next.filter(|next| next.at <= until) else { break };
            at_once = if next.at <= self.now { at_once + 1 } else { 0 };
            assert!(at_once < 1000, "time stands still for {:?}", next.reason);
            self.now = self.now.max(next.at);
            self.boxes.iter_mut().for_each(|node| node.handle_timeout(self.now));
            self.fibres.iter_mut().for_each(|fibre| fibre.handle_timeout(self.now));
            self.pump();
        }
        self.now = until;
    }

    pub fn dropped(&self, n: usize, reason: DropReason) -> u64 {
        self.boxes[n].counters().drops.get(reason)
    }

    /// Numbers delivered inside at `n`, in order.
    pub fn numbers(&self, n: usize) -> Vec<u64> {
        self.came[n].iter().map(|bytes| number_of(bytes)).collect()
    }
}

pub fn fibre() -> LinkConfig {
    LinkConfig { delay: Duration::from_ms(1), ..LinkConfig::default() }
}
