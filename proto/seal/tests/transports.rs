//! Two transports with seals before their paths: what one takes comes out of the other, in order, and nothing of it is readable on
//! the way.

mod net;

use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Chain, Deadline, Frame, Node, Payload, Side, Trailer};
use longhaul_seal::{Config, Seal, Sealed};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wan::{INNER, PathConfig, Transport};
use longhaul_wire::{Bth, Head, Opcode, PathTemplate};
use net::{bytes_of, config, drain, give, host_path};

const RATE: Option<BitRate> = BitRate::from_gbps(1);

fn transport(n: u8, paths: usize) -> Transport {
    Transport::new(longhaul_wan::Config {
        box_id: u64::from(n) + 1,
        seed: u64::from(n) + 70,
        paths: vec![PathConfig { rate: RATE.into(), ..PathConfig::default() }; paths],
        ..longhaul_wan::Config::default()
    })
    .unwrap()
}

fn seal(n: u8, life: u8, paths: u8) -> Seal {
    // Keys end at four times that: a lost handshake message must be repeated before.
    let ask_every = Duration::from_ms(5);
    Seal::new(Config { paths, rekey_bytes: 1 << 20, ask_every, ..config(n, life) }).unwrap()
}

/// A request packet with its place in the payload, with a right ICRC.
fn packet(place: u64) -> Vec<u8> {
    let template = PathTemplate::new(&host_path(0));
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(9), Psn::from_sequence(place));
    let mut head = Head::begin(&template, &bth);
    let payload = [place.to_be_bytes().as_slice(), &[place as u8; 1016]].concat();
    let pad_len = head.finish(&template, payload.len());
    bytes_of(&Frame {
        head: head.bytes(),
        payload: Payload::Bytes(&payload),
        trailer: Trailer::Sealed { pad_len },
    })
}

struct Line<A, B> {
    now: Instant,
    left: A,
    right: B,
    fibres: Vec<Link>,
    /// Paths that lose everything, both ways.
    is_cut: Vec<bool>,
    came: Vec<Vec<u8>>,
    crossed: Vec<Vec<u8>>,
}

impl<A: Node, B: Node> Line<A, B> {
    fn new(left: A, right: B, paths: usize) -> Self {
        let is_cut = vec![false; paths];
        let (came, crossed) = (Vec::new(), Vec::new());
        Line { now: Instant::ZERO, left, right, fibres: fibres(paths), is_cut, came, crossed }
    }

    fn pump(&mut self) {
        loop {
            let mut is_idle = true;
            let left = drain(&mut self.left, self.now).into_iter().map(|(side, bytes)| (0, side, bytes));
            let right = drain(&mut self.right, self.now).into_iter().map(|(side, bytes)| (1, side, bytes));
            for (from, side, bytes) in left.chain(right).collect::<Vec<_>>() {
                is_idle = false;
                match side.checked_sub(1) {
                    Some(path) => {
                        self.crossed.push(bytes.clone());
                        if self.is_cut[path] {
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

    fn run_for(&mut self, time: Duration) {
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

    /// Has hosts talk until the boxes have found each other.
    fn meet(&mut self, is_met: impl Fn(&Self) -> bool) {
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

    /// All of `packets` come out, in their order.
    fn send(&mut self, packets: &[Vec<u8>]) {
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

    /// Nothing of the transport crossed in the clear, on any path.
    fn assert_sealed(&self) {
        for bytes in &self.crossed {
            assert_eq!((&bytes[36..38], bytes[42] >> 4), (&4797_u16.to_be_bytes()[..], 0xe), "sealed");
        }
    }

    fn carry(&mut self, is_met: impl Fn(&Self) -> bool) {
        self.meet(is_met);
        self.send(&packets());
        assert!(self.crossed.len() > 5000);
        self.assert_sealed();
    }
}

fn packets() -> Vec<Vec<u8>> {
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

type Both = Line<Sealed<Transport>, Sealed<Transport>>;

/// Which paths answer the left box.
fn paths_up(line: &Both) -> Vec<bool> {
    let mut sessions = line.left.node().sessions();
    sessions.next().map(|session| session.paths.iter().map(|path| path.is_up).collect()).unwrap_or_default()
}

#[test]
fn what_a_cut_path_carried_comes_by_the_other_while_keys_are_replaced() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    for cut in 0..2 {
        let mut line = Line::new(end(0), end(1), 2);
        line.meet(|line| paths_up(line) == [true, true]);
        let rekeys = |line: &Both| line.left.seal().unwrap().counters().rekeys;
        // Cut with frames under way on it.
        for packet in &packets()[..200] {
            give(&mut line.left, line.now, INNER, packet);
        }
        line.run_for(Duration::from_us(500));
        line.is_cut[cut] = true;
        let before = rekeys(&line);
        line.run_for(Duration::from_ms(300));
        assert!(line.came == packets()[..200], "path {cut} is cut");
        assert_eq!(paths_up(&line), [cut == 1, cut == 0]);
        line.came.clear();
        line.send(&packets());
        assert!(rekeys(&line) > before + 1, "keys are replaced over the other path");
        // It needs no handshake to come back.
        line.is_cut[cut] = false;
        line.run_for(Duration::from_ms(300));
        assert_eq!(paths_up(&line), [true, true]);
        line.send(&packets());
        line.assert_sealed();
        let drops = line.right.seal().unwrap().counters().drops;
        assert_eq!(drops.get(longhaul_seal::DropReason::Unauthenticated), 0);
        assert_eq!(drops.get(longhaul_seal::DropReason::ClearRefused), 0);
    }
}

#[test]
fn boxes_find_each_other_by_whichever_path_works() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    let mut line = Line::new(end(0), end(1), 2);
    line.is_cut[0] = true;
    line.meet(|line| paths_up(line) == [false, true]);
    line.send(&packets());
    line.is_cut[0] = false;
    line.run_for(Duration::from_ms(500));
    assert_eq!(paths_up(&line), [true, true]);
    line.send(&packets());
    line.assert_sealed();
}

#[test]
fn several_paths_are_sealed_by_one() {
    let end = |n: u8| Sealed::new(transport(n, 2), seal(n, 0, 2));
    let mut line = Line::new(end(0), end(1), 2);
    let is_met = |line: &Both| {
        [&line.left, &line.right]
            .iter()
            .all(|end| end.node().sessions().any(|s| s.paths.iter().all(|p| p.is_up)))
    };
    line.carry(is_met);
    assert!(line.left.seal().unwrap().counters().rekeys >= 2, "{:#?}", line.left.seal().unwrap().counters());
    // The far box restarts: both layers find its new life.
    line.right = Sealed::new(transport(1, 2), seal(1, 1, 2));
    line.run_for(Duration::from_ms(1000));
    line.carry(is_met);
    assert_eq!(line.left.seal().unwrap().counters().drops.get(longhaul_seal::DropReason::Unauthenticated), 0);
}

#[test]
fn with_one_path_a_chain_does_the_same() {
    let end = |n: u8| Chain::new(Some(transport(n, 1)), Some(seal(n, 0, 1)));
    let mut line = Line::new(end(0), end(1), 1);
    type Row = Chain<Transport, Seal>;
    let is_met = |line: &Line<Row, Row>| {
        [&line.left, &line.right].iter().all(|end| end.left().unwrap().sessions().any(|s| s.is_open))
    };
    line.carry(is_met);
}

/// Without a far box hosts talk as if there were none here either.
#[test]
fn without_a_far_box_everything_passes() {
    let mut near = Sealed::new(transport(0, 1), seal(0, 0, 1));
    let side: Side = 1;
    for n in 0..100_u64 {
        let now = Instant::from_ns(n * 100_000_000);
        near.handle_timeout(now);
        give(&mut near, now, INNER, &packet(n));
        let out = drain(&mut near, now);
        assert!(out.contains(&(side, packet(n))), "{n}");
        let others = out.iter().filter(|(_, bytes)| *bytes != packet(n));
        assert!(
            others.clone().all(|(side, bytes)| (*side, bytes[42], bytes[43] >> 4) == (1, 0xe1, 2)),
            "questions"
        );
        give(&mut near, now, 1, &packet(n));
        assert_eq!(drain(&mut near, now), [(INNER, packet(n))]);
    }
}
