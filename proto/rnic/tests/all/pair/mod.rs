//! Two devices across a wire in virtual time that loses, duplicates, delays and damages frames, by
//! seed.
#![allow(dead_code, reason = "each test uses its part")]

mod wire;

pub use wire::{Device, Wire};

use longhaul_node::{Gather, Payload};
use longhaul_rnic::*;
use longhaul_sim::Nodes;
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::{MacAddr, Packet, Udp, icrc::Icrc};
use std::cell::{RefCell, RefMut};
use std::net::IpAddr;
use std::rc::Rc;
use wire::Tap;

/// Start address of a [`VecMemory`].
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

/// Devices with a wire between any two; two by default.
pub struct Pair {
    pub now: Instant,
    pub nodes: Nodes<Device>,
    tap: Rc<RefCell<Tap>>,
    seed: u64,
}

pub struct Ends {
    pub pd: [PdId; 2],
    pub cq: [CqId; 2],
    pub qp: [Qpn; 2],
    pub mr: [MrKeys; 2],
}

/// Parameters of a connection.
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

    pub fn with(seed: u64, memory: usize, change: impl FnMut(&mut Config)) -> Self {
        Pair::among(2, seed, memory, change)
    }

    pub fn among(
        count: usize,
        seed: u64,
        memory: usize,
        mut change: impl FnMut(&mut Config),
    ) -> Self {
        let node = |n| {
            let mut config = config(n);
            change(&mut config);
            Rnic::new(config, VecMemory(vec![0; memory]))
        };
        let tap = Rc::new(RefCell::new(Tap::new(seed)));
        let nodes = Device::join((0..count).map(node).collect(), seed, &tap);
        Pair { now: Instant::ZERO, nodes, tap, seed }
    }

    /// Replaces the wire, before time has passed.
    pub fn set_wire(&mut self, wire: Wire) {
        assert_eq!(self.now, Instant::ZERO);
        self.tap.borrow_mut().wire = wire;
        let none = Device::join(Vec::new(), 0, &self.tap);
        let devices = std::mem::replace(&mut self.nodes, none).into_nodes();
        let rnics = devices.into_iter().map(Device::into_rnic).collect();
        self.nodes = Device::join(rnics, self.seed, &self.tap);
    }

    /// The interceptor of frames on their way out.
    pub fn tap(&self) -> RefMut<'_, Tap> {
        self.tap.borrow_mut()
    }

    /// PD, CQ, one MR over all memory and one QP on each node, connected.
    pub fn connect(&mut self, link: &Link) -> Ends {
        self.connect_as(QpKind::Rc, link)
    }

    /// Like `connect` with another transport; datagram QPs get [`QKEY`].
    pub fn connect_as(&mut self, kind: QpKind, link: &Link) -> Ends {
        let len = self.nodes[0].memory().0.len() as u64;
        let mut made = Vec::new();
        for node in self.nodes.iter_mut() {
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
        let to = link.bring_up(ip(peer), peer_qp, link.psn[peer], link.psn[n]);
        self.nodes[n].bring_up_qp(self.now, qp, &to).unwrap();
    }

    /// Creates a further QP with the objects of `ends`, in state reset.
    pub fn another(&mut self, n: usize, ends: &Ends, kind: QpKind, srq: Option<SrqId>) -> Qpn {
        let init = QpInit { srq, ..qp_init(kind, ends.pd[n], ends.cq[n], 64) };
        self.nodes[n].create_qp(&init).unwrap()
    }

    /// Creates a further connection with the objects of `ends`; node 1 takes receives from `srq`.
    pub fn another_pair(
        &mut self,
        ends: &Ends,
        kind: QpKind,
        srq: Option<SrqId>,
        link: &Link,
    ) -> [Qpn; 2] {
        let qps = [self.another(0, ends, kind, None), self.another(1, ends, kind, srq)];
        (0..2).for_each(|n| self.bring_up(n, qps[n], 1 - n, qps[1 - n], link));
        qps
    }

    /// Changes only the state.
    pub fn set_state(&mut self, n: usize, qp: Qpn, state: QpState) {
        self.nodes[n].modify_qp(self.now, qp, &QpAttr::to(state)).unwrap();
    }

    pub fn state(&self, n: usize, qp: Qpn) -> QpState {
        self.nodes[n].query_qp(qp).unwrap().state
    }

    /// Address handle of node `n` for an address.
    pub fn ah(&mut self, n: usize, ends: &Ends, to: IpAddr) -> AhId {
        self.nodes[n].create_ah(self.now, ends.pd[n], &AddressVector::to(to)).unwrap()
    }

    pub fn events(&mut self, n: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.nodes[n].poll_event()).collect()
    }

    /// Advances one step of virtual time. Returns `false` if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let happens = self.nodes.step();
        self.now = self.nodes.now();
        happens
    }

    /// Runs until nothing is left to happen or `limit` of virtual time has passed. Returns `true`
    /// in the former case.
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

/// Recomputes the ICRC after a change.
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

/// Recomputes the IPv4 header checksum after a change that left the lengths as they are.
pub fn sum(bytes: &mut [u8]) {
    let udp = Udp::find(bytes).expect("IPv4");
    bytes[udp.ip + 10..][..2].fill(0);
    let len = bytes.len() - udp.payload();
    udp.finish_lengths(bytes, len);
}

/// QKey of datagram QPs.
pub const QKEY: u32 = 0x1234_5678;

pub fn qp_init(kind: QpKind, pd: PdId, cq: CqId, depth: u32) -> QpInit {
    QpInit {
        send_sge_max: 4,
        recv_sge_max: 4,
        inline_max: 256,
        signal_all: false,
        ..QpInit::new(kind, pd, cq, depth)
    }
}

impl Link {
    /// Attributes of a QP that sends from `sq_psn`, and whose peer sends from `rq_psn`.
    pub fn bring_up(&self, peer_ip: IpAddr, peer_qp: Qpn, rq_psn: u32, sq_psn: u32) -> BringUp {
        BringUp {
            qkey: QKEY,
            path_mtu: self.mtu,
            sq_psn: Psn::new(sq_psn),
            rq_psn: Psn::new(rq_psn),
            max_rd_atomic: self.reads,
            max_dest_rd_atomic: self.reads,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry,
            rnr_retry: self.rnr_retry,
            ..BringUp::to(peer_ip, peer_qp)
        }
    }
}

/// The transitions of a reliable connection.
pub fn transitions(
    peer_ip: IpAddr,
    peer_qp: Qpn,
    rq_psn: u32,
    sq_psn: u32,
    link: &Link,
) -> [QpAttr; 3] {
    link.bring_up(peer_ip, peer_qp, rq_psn, sq_psn).transitions(QpKind::Rc)
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
