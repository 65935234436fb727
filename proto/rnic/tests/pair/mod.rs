//! Two devices across a wire of virtual time that loses, repeats, delays and damages frames by a seed.
#![allow(dead_code, reason = "each test uses its part")]

use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::*;
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::{Head, MacAddr, Packet, icrc::Icrc};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

/// Where the memory of a [`VecMemory`] begins.
pub const BASE: u64 = 0x7000_0000_0000;

pub struct VecMemory(pub Vec<u8>);

impl VecMemory {
    fn range(address: u64, len: usize) -> std::ops::Range<usize> {
        let at = (address - BASE) as usize;
        at..at + len
    }

    /// The 8 bytes at `address`.
    pub fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[Self::range(address, 8)]);
        u64::from_ne_bytes(bytes)
    }
}

impl Gather for VecMemory {
    fn gather(&self, address: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0[Self::range(address, out.len())]);
    }
}

impl Memory for VecMemory {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        payload.copy_to(&mut self.0[Self::range(address, payload.len())]);
    }

    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        let found = self.word(address);
        self.0[Self::range(address, 8)].copy_from_slice(&found.wrapping_add(add).to_ne_bytes());
        found
    }

    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        let found = self.word(address);
        if found == compare {
            self.0[Self::range(address, 8)].copy_from_slice(&swap.to_ne_bytes());
        }
        found
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub delay: Duration,
    pub jitter: Duration,
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
}

impl Default for Wire {
    fn default() -> Self {
        Wire {
            delay: Duration::from_us(10),
            jitter: Duration::ZERO,
            loss: 0.0,
            duplication: 0.0,
            corruption: 0.0,
        }
    }
}

type Lose = Box<dyn FnMut(usize, &[u8]) -> bool>;
type InFlight = BinaryHeap<Reverse<(Instant, u64, usize, Vec<u8>)>>;

struct Sink<'a> {
    frames: &'a mut Vec<Vec<u8>>,
}

impl Transmit for Sink<'_> {
    fn room(&mut self, _side: Side) -> usize {
        64
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.frames.push(bytes);
    }
}

pub struct Pair {
    pub now: Instant,
    pub nodes: [Rnic<VecMemory>; 2],
    pub wire: Wire,
    /// Frames that left, by sender; drained by the test that looks at them.
    pub seen: Option<Vec<(usize, Vec<u8>)>>,
    /// Decides for each frame (sender, bytes) whether it gets lost, before chance does.
    pub lose: Lose,
    /// A switch marks every packet of senders that are capable.
    pub mark: bool,
    in_flight: InFlight,
    sequence: u64,
    rng: SplitMix64,
}

pub struct Ends {
    pub pd: [PdId; 2],
    pub cq: [CqId; 2],
    pub qp: [Qpn; 2],
    pub mr: [MrKeys; 2],
}

/// How to connect.
#[derive(Clone, Copy)]
pub struct Link {
    pub mtu: Mtu,
    pub psn: [u32; 2],
    pub timeout: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub reads: u8,
    pub depth: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            mtu: Mtu::B1024,
            psn: [100, 200],
            timeout: 8,
            retry: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            reads: 4,
            depth: 64,
        }
    }
}

pub fn ip(node: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, node as u8 + 1])
}

pub fn config(node: usize) -> Config {
    Config::new(MacAddr([2, 0, 10, 77, 0, node as u8 + 1]), ip(node))
}

impl Pair {
    pub fn new(seed: u64, memory: usize) -> Self {
        Self::with(seed, memory, |_| {})
    }

    pub fn with(seed: u64, memory: usize, mut change: impl FnMut(&mut Config)) -> Self {
        let mut node = |n| {
            let mut config = config(n);
            change(&mut config);
            Rnic::new(config, VecMemory(vec![0; memory]))
        };
        Pair {
            now: Instant::ZERO,
            nodes: [node(0), node(1)],
            wire: Wire::default(),
            seen: None,
            lose: Box::new(|_, _| false),
            mark: false,
            in_flight: BinaryHeap::new(),
            sequence: 0,
            rng: SplitMix64::new(seed),
        }
    }

    /// PD, CQ, one MR over all memory and one QP on each node, connected.
    pub fn connect(&mut self, link: &Link) -> Ends {
        self.connect_as(QpKind::Rc, link)
    }

    /// The same with another transport; datagram QPs get [`QKEY`].
    pub fn connect_as(&mut self, kind: QpKind, link: &Link) -> Ends {
        let len = self.nodes[0].memory().0.len() as u64;
        let mut made = Vec::new();
        for node in &mut self.nodes {
            let pd = node.alloc_pd().unwrap();
            let cq = node.create_cq(1 << 14).unwrap();
            let mr = node.reg_mr(pd, BASE, len, BASE, Access::ALL).unwrap();
            let init = qp_init(kind, pd, cq, link.depth);
            let qp = node.create_qp(&init).unwrap();
            made.push((pd, cq, qp, mr));
        }
        let [a, b] = [made[0], made[1]];
        let ends = Ends { pd: [a.0, b.0], cq: [a.1, b.1], qp: [a.2, b.2], mr: [a.3, b.3] };
        for n in 0..2 {
            self.bring_up(n, ends.qp[n], 1 - n, ends.qp[1 - n], link);
        }
        ends
    }

    /// Takes a QP from reset to ready to send.
    pub fn bring_up(&mut self, n: usize, qp: Qpn, peer: usize, peer_qp: Qpn, link: &Link) {
        let kind = self.nodes[n].query_qp(qp).unwrap().init.kind;
        for attr in transitions(ip(peer), peer_qp, link.psn[peer], link.psn[n], link) {
            self.nodes[n].modify_qp(self.now, qp, &for_kind(kind, attr)).unwrap();
        }
    }

    /// A further QP beside those of `ends`, in state reset.
    pub fn another(&mut self, n: usize, ends: &Ends, kind: QpKind, srq: Option<SrqId>) -> Qpn {
        let init = QpInit { srq, ..qp_init(kind, ends.pd[n], ends.cq[n], 64) };
        self.nodes[n].create_qp(&init).unwrap()
    }

    /// A further connection beside that of `ends`; receives of node 1 come from `srq`.
    pub fn another_pair(&mut self, ends: &Ends, kind: QpKind, srq: Option<SrqId>, link: &Link) -> [Qpn; 2] {
        let qps = [self.another(0, ends, kind, None), self.another(1, ends, kind, srq)];
        (0..2).for_each(|n| self.bring_up(n, qps[n], 1 - n, qps[1 - n], link));
        qps
    }

    /// A change of state and nothing else.
    pub fn set_state(&mut self, n: usize, qp: Qpn, state: QpState) {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        self.nodes[n].modify_qp(self.now, qp, &attr).unwrap();
    }

    pub fn state(&self, n: usize, qp: Qpn) -> QpState {
        self.nodes[n].query_qp(qp).unwrap().state
    }

    /// The way from node `n` to an address.
    pub fn ah(&mut self, n: usize, ends: &Ends, to: IpAddr) -> AhId {
        let address = AddressVector { destination_ip: to, hop_limit: 64, traffic_class: 0, flow_label: 0 };
        self.nodes[n].create_ah(ends.pd[n], &address).unwrap()
    }

    pub fn events(&mut self, n: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.nodes[n].poll_event()).collect()
    }

    fn send_from(&mut self, sender: usize) {
        let mut frames = Vec::new();
        loop {
            let before = frames.len();
            self.nodes[sender].poll_transmit(self.now, &mut Sink { frames: &mut frames });
            if frames.len() == before {
                break;
            }
        }
        for mut bytes in frames {
            if let Some(seen) = &mut self.seen {
                seen.push((sender, bytes.clone()));
            }
            if (self.lose)(sender, &bytes) || self.rng.chance(self.wire.loss) {
                continue;
            }
            if self.mark && bytes[15] & 3 == 2 {
                bytes[15] |= 3;
            }
            if self.rng.chance(self.wire.corruption) {
                let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let copies = 1 + u32::from(self.rng.chance(self.wire.duplication));
            for _ in 0..copies {
                let jitter = match self.wire.jitter.as_ps() {
                    0 => 0,
                    ps => self.rng.below(ps),
                };
                let due = self.now + self.wire.delay + Duration::from_ps(jitter);
                self.sequence += 1;
                self.in_flight.push(Reverse((due, self.sequence, 1 - sender, bytes.clone())));
            }
        }
    }

    /// One step of virtual time. False when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        self.send_from(0);
        self.send_from(1);
        let mut next = self.in_flight.peek().map(|Reverse((at, ..))| *at);
        for node in &self.nodes {
            if let Some(deadline) = node.poll_timeout() {
                next = Some(next.map_or(deadline.at, |at| at.min(deadline.at)));
            }
        }
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        while self.in_flight.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, receiver, bytes))) = self.in_flight.pop() else { break };
            let head = Head::copy_of(&bytes);
            if let Ok(frame) = Frame::received(&head, &bytes) {
                self.nodes[receiver].handle_frame(self.now, 0, &frame);
            }
        }
        for node in &mut self.nodes {
            node.handle_timeout(self.now);
        }
        true
    }

    /// Runs until nothing is left to happen or `limit` of virtual time has passed. True when it went quiet.
    pub fn settle(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        while self.now <= end {
            if !self.step() {
                return true;
            }
        }
        false
    }

    pub fn completions(&mut self, n: usize, cq: CqId) -> Vec<Completion> {
        let mut all = Vec::new();
        self.nodes[n].poll_cq(cq, usize::MAX, |c| all.push(c));
        all
    }

    pub fn fill(&mut self, n: usize, at: usize, len: usize, seed: u64) {
        let mut rng = SplitMix64::new(seed);
        for byte in &mut self.nodes[n].memory_mut().0[at..at + len] {
            *byte = rng.next_u64() as u8;
        }
    }

    pub fn bytes(&self, n: usize, at: usize, len: usize) -> &[u8] {
        &self.nodes[n].memory().0[at..at + len]
    }

    pub fn post(&mut self, n: usize, qp: Qpn, wr: &SendWr<'_>) {
        self.nodes[n].post_send(self.now, qp, wr).unwrap();
    }

    pub fn recv(&mut self, n: usize, ends: &Ends, wr_id: u64, at: usize, len: u32) {
        let segments = [sge(ends, n, at, len)];
        self.nodes[n].post_recv(ends.qp[n], &RecvWr { wr_id, segments: &segments }).unwrap();
    }
}

/// Repairs the ICRC after a change.
pub fn seal(bytes: &mut [u8]) {
    let Ok(Some(packet)) = Packet::parse(bytes) else { panic!("still a packet") };
    let layout = packet.layout();
    let end = bytes.len() - 4;
    if layout.payload > end {
        return;
    }
    let mut icrc = Icrc::over_head(&bytes[..layout.payload], &layout);
    icrc.update(&bytes[layout.payload..end]);
    let icrc = icrc.finish();
    bytes[end..].copy_from_slice(&icrc);
}

/// QKey of datagram QPs.
pub const QKEY: u32 = 0x1234_5678;

pub fn qp_init(kind: QpKind, pd: PdId, cq: CqId, depth: u32) -> QpInit {
    QpInit {
        pd,
        kind,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        sq_depth: depth,
        rq_depth: depth,
        send_sge_max: 4,
        recv_sge_max: 4,
        inline_max: 256,
        signal_all: false,
    }
}

/// What a transition of a reliable connection is for another transport.
pub fn for_kind(kind: QpKind, attr: QpAttr) -> QpAttr {
    let QpAttr { state, pkey_index, port, sq_psn, .. } = attr;
    let connected = QpAttr {
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_cnt: None,
        rnr_retry: None,
        max_rd_atomic: None,
        ..attr
    };
    let qkey = (state == Some(QpState::Init)).then_some(QKEY);
    match kind {
        QpKind::Rc => attr,
        QpKind::Uc => connected,
        QpKind::Ud => QpAttr { state, pkey_index, port, sq_psn, qkey, ..QpAttr::default() },
    }
}

/// The modifications from reset to ready to send, of a reliable connection.
pub fn transitions(peer_ip: IpAddr, peer_qp: Qpn, rq_psn: u32, sq_psn: u32, link: &Link) -> [QpAttr; 3] {
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
            path_mtu: Some(link.mtu),
            address: Some(AddressVector {
                destination_ip: peer_ip,
                hop_limit: 64,
                traffic_class: 0,
                flow_label: 0,
            }),
            dest_qpn: Some(peer_qp),
            rq_psn: Some(Psn::new(rq_psn)),
            max_dest_rd_atomic: Some(link.reads),
            min_rnr_timer: Some(link.min_rnr_timer),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::ReadyToSend),
            sq_psn: Some(Psn::new(sq_psn)),
            timeout: Some(link.timeout),
            retry_cnt: Some(link.retry),
            rnr_retry: Some(link.rnr_retry),
            max_rd_atomic: Some(link.reads),
            ..QpAttr::default()
        },
    ]
}

pub fn sge(ends: &Ends, n: usize, at: usize, len: u32) -> Sge {
    Sge { address: BASE + at as u64, len, lkey: ends.mr[n].lkey }
}

pub fn wr<'a>(wr_id: u64, op: SendOp, segments: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id, op, segments, inline: false, signaled: true, solicited: false, fence: false }
}

pub const SEND: SendOp = SendOp::Send { immediate: None, invalidate: None };

pub fn write_to(ends: &Ends, peer: usize, at: usize) -> SendOp {
    SendOp::Write { remote_address: BASE + at as u64, rkey: ends.mr[peer].rkey, immediate: None }
}

pub fn read_from(ends: &Ends, peer: usize, at: usize) -> SendOp {
    SendOp::Read { remote_address: BASE + at as u64, rkey: ends.mr[peer].rkey }
}
