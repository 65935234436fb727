//! Two software RNICs, each with or without an accelerator, and a fibre between them, in virtual time. Any of them may
//! be held up for a while, as programs on a busy machine are.

use crate::script::{deliver, frames};
use longhaul_accel::{Accelerator, Config};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, CqId, Memory, MrKeys, Mtu, PdId, QpAttr, QpInit, QpKind, QpState, Rnic, Sge,
};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::MacAddr;
use std::collections::VecDeque;
use std::net::IpAddr;

pub const BASE: u64 = 0x7000_0000_0000;
pub const LOCAL: usize = 0;
pub const REMOTE: usize = 1;

pub struct Bytes(pub Vec<u8>);

impl Gather for Bytes {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = (address - BASE) as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

impl Memory for Bytes {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = (address - BASE) as usize;
        payload.copy_to(&mut self.0[at..at + payload.len()]);
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let found = self.word(address);
        self.set_word(address, found.wrapping_add(add));
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let found = self.word(address);
        if found == compare {
            self.set_word(address, swap);
        }
        found
    }
}

impl Bytes {
    /// The 8 bytes at `address`.
    pub fn word(&self, address: u64) -> u64 {
        let at = (address - BASE) as usize;
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn set_word(&mut self, address: u64, value: u64) {
        let at = (address - BASE) as usize;
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// The nodes in a row; each end of a node's frames goes to the neighbour on that side.
pub struct Chain {
    pub now: Instant,
    pub hosts: [Rnic<Bytes>; 2],
    pub boxes: [Option<Accelerator>; 2],
    pub link: Link,
    pub ends: Vec<(PdId, CqId, Qpn, MrKeys)>,
    /// Until when each place is not driven, and what came to it meanwhile.
    held_until: [Instant; PLACES],
    inbox: [VecDeque<(Side, Vec<u8>)>; PLACES],
    hold_ups: Option<(SplitMix64, Instant)>,
}

/// Host, box, link, box, host.
const PLACES: usize = 5;
/// Frames that wait for a place that is held up before those who send to it have to wait themselves.
const INBOX_MAX: usize = 1024;

#[derive(Clone, Copy)]
pub struct Setup {
    pub boxes: [bool; 2],
    pub cm: bool,
    pub loss: f64,
    pub seed: u64,
    pub km: u64,
    pub memory: usize,
    pub depth: u32,
    /// Programs and boxes do not run for 5 to 20 ms now and then.
    pub hold_ups: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            boxes: [true, true],
            cm: true,
            loss: 0.0,
            seed: 1,
            km: 1000,
            memory: 8 << 20,
            depth: 128,
            hold_ups: false,
        }
    }
}

const PSN: [u32; 2] = [0xff_ff00, 5000];

/// Frames that left a node in one drain, and how many more may.
struct Out {
    frames: VecDeque<(Side, Vec<u8>)>,
    room: [usize; 2],
}

impl Default for Out {
    fn default() -> Self {
        Out { frames: VecDeque::new(), room: [256; 2] }
    }
}

impl Transmit for Out {
    fn room(&mut self, side: Side) -> usize {
        self.room[side]
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.room[side] = self.room[side].saturating_sub(1);
        self.frames.push_back((side, bytes));
    }
}

fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

impl Chain {
    pub fn new(setup: Setup) -> Chain {
        let rate = BitRate::from_gbps(10).expect("not zero");
        let host = |host: usize| {
            let mac = MacAddr([2, 0, 10, 77, 0, host as u8 + 1]);
            let mut config = longhaul_rnic::Config::new(mac, ip(host));
            config.port_rate = Some(rate);
            Rnic::new(config, Bytes(vec![0; setup.memory]))
        };
        let config = Config { wan_rate: Some(rate), lan_rate: Some(rate), ..Config::default() };
        let mut link = LinkConfig::fibre_km(setup.km, rate);
        link.loss = setup.loss;
        link.seed = setup.seed;
        let mut chain = Chain {
            now: Instant::from_ns(1000),
            hosts: [host(0), host(1)],
            boxes: setup.boxes.map(|wanted| wanted.then(|| Accelerator::new(config.clone()).expect("valid"))),
            link: Link::new(link).expect("valid"),
            ends: Vec::new(),
            held_until: [Instant::ZERO; PLACES],
            inbox: Default::default(),
            hold_ups: setup.hold_ups.then(|| (SplitMix64::new(setup.seed ^ 0x401d), Instant::from_ns(1000))),
        };
        chain.connect(setup);
        chain
    }

    fn connect(&mut self, setup: Setup) {
        for host in &mut self.hosts {
            let pd = host.alloc_pd().unwrap();
            let cq = host.create_cq(1 << 14).unwrap();
            let mr = host.reg_mr(pd, BASE, setup.memory as u64, BASE, Access::ALL).unwrap();
            let init = QpInit {
                pd,
                kind: QpKind::Rc,
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                sq_depth: setup.depth,
                rq_depth: 4096,
                send_sge_max: 1,
                recv_sge_max: 1,
                inline_max: 0,
                signal_all: true,
            };
            let qp = host.create_qp(&init).unwrap();
            self.ends.push((pd, cq, qp, mr));
        }
        for host in [LOCAL, REMOTE] {
            let peer = 1 - host;
            for attr in transitions(peer, self.ends[peer].2, PSN[peer], PSN[host]) {
                self.hosts[host].modify_qp(self.now, self.ends[host].2, &attr).unwrap();
            }
        }
        if setup.cm {
            let [requester_qpn, responder_qpn] = [LOCAL, REMOTE].map(|host| self.ends[host].2.get());
            let wire = frames::Wire { requester_qpn, responder_qpn, ..frames::Wire::default() };
            let line = format!("psn={} rpsn={} mtu=4096", PSN[LOCAL], PSN[REMOTE]);
            let messages = [
                (LOCAL, wire.requester_frame(&format!("req {line}"))),
                (REMOTE, wire.responder_frame(&format!("rep {line}"))),
                (LOCAL, wire.requester_frame("rtu")),
            ];
            for (from, bytes) in messages {
                for (place, node) in self.boxes.iter_mut().enumerate() {
                    let Some(node) = node else { continue };
                    deliver(node, self.now, usize::from(place != from), &bytes);
                    node.poll_transmit(self.now, &mut Out::default());
                }
            }
            self.now += Duration::from_us(10);
        }
    }

    /// Lets every node send what it can at this moment, until nothing moves.
    pub fn exchange(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for place in 0..PLACES {
                if self.is_held(place) || !self.exists(place) {
                    continue;
                }
                let room = |right: bool| match self.neighbour(place, right) {
                    Some(to) if self.is_held(to) => INBOX_MAX.saturating_sub(self.inbox[to].len()).min(256),
                    _ => 256,
                };
                let room = [0, 1].map(|side| room(goes_right(place, side)));
                let mut out = Out { room, ..Out::default() };
                let now = self.now;
                self.node(place).poll_transmit(now, &mut out);
                moved |= !out.frames.is_empty();
                for (side, bytes) in out.frames {
                    self.hand_over(place, goes_right(place, side), bytes);
                }
            }
        }
    }

    fn hand_over(&mut self, from: usize, right: bool, bytes: Vec<u8>) {
        let to = self.neighbour(from, right).expect("a host has one neighbour");
        // What goes right comes by the side that looks left.
        let by = if to == 0 || to == PLACES - 1 { 0 } else { usize::from(goes_right(to, 0) == right) };
        if self.is_held(to) {
            self.inbox[to].push_back((by, bytes));
        } else {
            self.arrive(to, by, &bytes);
        }
    }

    fn arrive(&mut self, to: usize, by: Side, bytes: &[u8]) {
        let now = self.now;
        deliver(self.node(to), now, by, bytes);
    }

    fn is_held(&self, place: usize) -> bool {
        self.held_until[place] > self.now
    }

    fn exists(&self, place: usize) -> bool {
        place.is_multiple_of(2) || self.boxes[place / 2].is_some()
    }

    fn neighbour(&self, place: usize, right: bool) -> Option<usize> {
        let step = |place: usize| {
            if right { (place + 1 < PLACES).then_some(place + 1) } else { place.checked_sub(1) }
        };
        let next = step(place)?;
        if self.exists(next) { Some(next) } else { step(next) }
    }

    fn node(&mut self, place: usize) -> &mut dyn Node {
        match place {
            0 => &mut self.hosts[LOCAL],
            2 => &mut self.link,
            4 => &mut self.hosts[REMOTE],
            _ => self.boxes[place / 2].as_mut().expect("skipped otherwise"),
        }
    }

    fn deadline(&self, place: usize) -> Option<Instant> {
        let deadline = match place {
            0 => self.hosts[LOCAL].poll_timeout(),
            2 => self.link.poll_timeout(),
            4 => self.hosts[REMOTE].poll_timeout(),
            _ => self.boxes[place / 2].as_ref().and_then(Node::poll_timeout),
        };
        if self.inbox[place].is_empty() {
            deadline.map(|d| d.at.max(self.held_until[place]))
        } else {
            Some(self.held_until[place])
        }
    }

    /// Goes to the next moment at which anything happens; false when there is none.
    pub fn advance(&mut self) -> bool {
        let Some(next) = (0..PLACES).filter_map(|place| self.deadline(place)).min() else { return false };
        self.now = self.now.max(next);
        self.hold_somebody_up();
        for place in 0..PLACES {
            if self.is_held(place) || !self.exists(place) {
                continue;
            }
            while let Some((by, bytes)) = self.inbox[place].pop_front() {
                self.arrive(place, by, &bytes);
            }
            let now = self.now;
            self.node(place).handle_timeout(now);
        }
        true
    }

    /// One of the programs, or the one that is boxes and link, gets no turn for a while.
    fn hold_somebody_up(&mut self) {
        let Some((rng, at)) = &mut self.hold_ups else { return };
        if *at > self.now {
            return;
        }
        let until = self.now + Duration::from_us(5000 + rng.below(15_000));
        *at = self.now + Duration::from_us(rng.below(60_000));
        match rng.below(3) {
            0 => self.held_until[0] = until,
            1 => self.held_until[4] = until,
            _ => self.held_until[1..4].fill(until),
        }
    }

    pub fn completions(&mut self, host: usize) -> Vec<longhaul_rnic::Completion> {
        let mut all = Vec::new();
        self.hosts[host].poll_cq(self.ends[host].1, usize::MAX, |completion| all.push(completion));
        all
    }

    pub fn segment(&self, host: usize, at: usize, len: usize) -> Sge {
        Sge { address: BASE + at as u64, len: len as u32, lkey: self.ends[host].3.lkey }
    }
}

/// A box's WAN is towards the link, the link's side 0 towards the first host.
fn goes_right(place: usize, side: Side) -> bool {
    match place {
        0 => true,
        1 | 2 => side == 1,
        3 => side == 0,
        _ => false,
    }
}

fn transitions(peer: usize, peer_qp: Qpn, rq_psn: u32, sq_psn: u32) -> [QpAttr; 3] {
    let address = AddressVector { destination_ip: ip(peer), hop_limit: 64, traffic_class: 0, flow_label: 0 };
    [
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::ALL),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::ReadyToReceive),
            path_mtu: Some(Mtu::B4096),
            address: Some(address),
            dest_qpn: Some(peer_qp),
            rq_psn: Some(Psn::new(rq_psn)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(Psn::new(sq_psn)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..QpAttr::default()
        },
    ]
}
