//! Two nodes with fibres between them, in virtual time: complete stacks of transport and seal, with
//! hosts that send packets.

use super::net::{bytes_of, config, drain, give, host_path};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Deadline, Frame, Node, Payload, Trailer};
use longhaul_seal::{Config, Seal, Seed};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wan::{INNER, PathConfig, Transport};
use longhaul_wire::{Bth, Head, Opcode, Path, PathTemplate, Udp};

pub const RATE: Option<BitRate> = BitRate::from_gbps(1);

pub fn transport(n: u8, paths: usize) -> Transport {
    Transport::new(longhaul_wan::Config {
        box_id: u64::from(n) + 1,
        seed: Seed::of_scenario(u64::from(n) + 70),
        paths: vec![PathConfig { rate: RATE.into(), ..PathConfig::default() }; paths],
        waiting_bytes_max: 8 << 20,
        ..longhaul_wan::Config::default()
    })
    .unwrap()
}

pub fn seal(n: u8, life: u8, paths: u8) -> Seal {
    // Keys expire at four times that: a lost handshake message must be retransmitted before.
    let ask_every = Duration::from_ms(5);
    Seal::new(Config { paths, rekey_bytes: 1 << 20, ask_every, ..config(n, life) }).unwrap()
}

/// `true` for an untagged IPv4 datagram to this UDP port.
pub fn is_to(bytes: &[u8], port: u16) -> bool {
    Udp::find(bytes).is_some_and(|udp| udp.destination_port(bytes) == port)
}

/// A request packet with its position in the payload and a valid ICRC.
pub fn packet(place: u64) -> Vec<u8> {
    packet_along(&host_path(0), Opcode::RC_SEND_ONLY, 9, place)
}

/// The same packet along `path`, to a QP.
pub fn packet_along(path: &Path, opcode: Opcode, qpn: u32, place: u64) -> Vec<u8> {
    let template = PathTemplate::new(path);
    let bth = Bth::new(opcode, Qpn::new(qpn), Psn::from_sequence(place));
    let mut head = Head::begin(&template, &bth);
    let payload = [place.to_be_bytes().as_slice(), &[place as u8; 1016]].concat();
    let pad_len = head.finish(&template, payload.len());
    bytes_of(&Frame {
        head: head.bytes(),
        payload: Payload::Bytes(&payload),
        trailer: Trailer::Sealed { pad_len },
    })
}

pub struct Line<A, B> {
    pub now: Instant,
    pub left: A,
    pub right: B,
    pub fibres: Vec<Link>,
    /// Paths that lose everything, in both directions.
    pub is_cut: Vec<bool>,
    pub came: Vec<Vec<u8>>,
    pub crossed: Vec<Vec<u8>>,
    /// An attacker on the path drops all datagrams to this UDP port.
    pub drops_port: Option<u16>,
}

impl<A: Node, B: Node> Line<A, B> {
    pub fn new(left: A, right: B, paths: usize) -> Self {
        let is_cut = vec![false; paths];
        let (came, crossed) = (Vec::new(), Vec::new());
        Line {
            now: Instant::ZERO,
            left,
            right,
            fibres: fibres(paths),
            is_cut,
            came,
            crossed,
            drops_port: None,
        }
    }

    fn pump(&mut self) {
        loop {
            let mut is_idle = true;
            let left =
                drain(&mut self.left, self.now).into_iter().map(|(side, bytes)| (0, side, bytes));
            let right =
                drain(&mut self.right, self.now).into_iter().map(|(side, bytes)| (1, side, bytes));
            for (from, side, bytes) in left.chain(right).collect::<Vec<_>>() {
                is_idle = false;
                match side.checked_sub(1) {
                    Some(path) => {
                        self.crossed.push(bytes.clone());
                        let is_dropped = self.drops_port.is_some_and(|port| is_to(&bytes, port));
                        if self.is_cut[path] || is_dropped {
                            continue;
                        }
                        give(&mut self.fibres[path], self.now, from, &bytes);
                    }
                    None if from == 1 => self.came.push(bytes),
                    None => {}
                }
            }
            for path in 0..self.fibres.len() {
                for (to, bytes) in drain(&mut self.fibres[path], self.now) {
                    is_idle = false;
                    if to == 0 {
                        give(&mut self.left, self.now, path + 1, &bytes);
                    } else {
                        give(&mut self.right, self.now, path + 1, &bytes);
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
        loop {
            let ends = Deadline::earliest(self.left.poll_timeout(), self.right.poll_timeout());
            let next = self.fibres.iter().map(Node::poll_timeout).fold(ends, Deadline::earliest);
            let Some(next) = next.filter(|next| next.at <= until) else { break };
            self.now = self.now.max(next.at);
            self.left.handle_timeout(self.now);
            self.right.handle_timeout(self.now);
            self.fibres.iter_mut().for_each(|fibre| fibre.handle_timeout(self.now));
            self.pump();
        }
        self.now = until;
    }

    /// Sends packets until the boxes have found each other.
    pub fn meet(&mut self, is_met: impl Fn(&Self) -> bool) {
        for _ in 0..50 {
            give(&mut self.left, self.now, INNER, &packet(u64::MAX));
            self.run_for(Duration::from_ms(100));
            if is_met(self) {
                break;
            }
        }
        assert!(is_met(self), "the transports do not find each other");
        self.run_for(Duration::from_ms(200));
        self.came.clear();
        self.crossed.clear();
    }

    /// Sends `packets` and checks that all are delivered in order.
    pub fn send(&mut self, packets: &[Vec<u8>]) {
        for packet in packets {
            while self.left.intake(INNER) == 0 {
                self.run_for(Duration::from_us(100));
            }
            give(&mut self.left, self.now, INNER, packet);
            self.run_for(Duration::from_us(5));
        }
        self.run_for(Duration::from_ms(500));
        assert_eq!(self.came.len(), packets.len());
        assert!(self.came == packets, "each once, in order, byte for byte");
        self.came.clear();
    }

    /// Checks that no transport datagram crossed unsealed, on any path.
    pub fn assert_sealed(&self) {
        for bytes in &self.crossed {
            assert_eq!(
                (&bytes[36..38], bytes[42] >> 4),
                (&4797_u16.to_be_bytes()[..], 0xe),
                "sealed"
            );
        }
    }

    pub fn carry(&mut self, is_met: impl Fn(&Self) -> bool) {
        self.meet(is_met);
        self.send(&packets());
        assert!(self.crossed.len() > 5000);
        self.assert_sealed();
    }
}

pub fn packets() -> Vec<Vec<u8>> {
    (0..5000).map(packet).collect()
}

fn fibres(paths: usize) -> Vec<Link> {
    let fibre = |n: u64| LinkConfig {
        delay: Duration::from_ms(2 + n),
        loss: 0.01,
        seed: n,
        queue_bytes: 16 << 20,
        ..LinkConfig::default()
    };
    (0..paths as u64).map(|n| Link::new(fibre(n)).unwrap()).collect()
}
