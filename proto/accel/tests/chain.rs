//! Software RNIC, accelerator, fibre, accelerator, software RNIC: the lab's chain in virtual time.

mod script;

use longhaul_accel::{Accelerator, Config, FlowState};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Frame, Gather, Node, Payload, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, CqId, Memory, MrKeys, Mtu, PdId, QpAttr, QpInit, QpKind, QpState, RecvWr, Rnic,
    SendOp, SendWr, Sge, Status,
};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::MacAddr;
use script::{deliver, frames};
use std::collections::VecDeque;
use std::net::IpAddr;

const BASE: u64 = 0x7000_0000_0000;
const LOCAL: usize = 0;
const REMOTE: usize = 1;

struct Bytes(Vec<u8>);

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
}

/// The nodes in a row; each end of a node's frames goes to the neighbour on that side.
struct Chain {
    now: Instant,
    hosts: [Rnic<Bytes>; 2],
    boxes: [Option<Accelerator>; 2],
    link: Link,
    ends: Vec<(PdId, CqId, Qpn, MrKeys)>,
}

#[derive(Clone, Copy)]
struct Setup {
    boxes: [bool; 2],
    cm: bool,
    loss: f64,
    seed: u64,
    km: u64,
    memory: usize,
    depth: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Setup { boxes: [true, true], cm: true, loss: 0.0, seed: 1, km: 1000, memory: 8 << 20, depth: 128 }
    }
}

const PSN: [u32; 2] = [0xff_ff00, 5000];

/// Frames that left a node in one drain.
#[derive(Default)]
struct Out(VecDeque<(Side, Vec<u8>)>);

impl Transmit for Out {
    fn room(&mut self, _side: Side) -> usize {
        256 - self.0.len().min(256)
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.0.push_back((side, bytes));
    }
}

fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 77, 0, host as u8 + 1])
}

impl Chain {
    fn new(setup: Setup) -> Chain {
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
    fn exchange(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for place in 0..5 {
                let mut out = Out::default();
                match place {
                    0 => self.hosts[LOCAL].poll_transmit(self.now, &mut out),
                    2 => self.link.poll_transmit(self.now, &mut out),
                    4 => self.hosts[REMOTE].poll_transmit(self.now, &mut out),
                    _ => match &mut self.boxes[place / 2] {
                        Some(node) => node.poll_transmit(self.now, &mut out),
                        None => continue,
                    },
                }
                moved |= !out.0.is_empty();
                for (side, bytes) in out.0 {
                    // A box's WAN is towards the link, the link's side 0 towards the first host.
                    let right = match place {
                        0 => true,
                        1 | 2 => side == 1,
                        3 => side == 0,
                        _ => false,
                    };
                    self.hand_over(place, right, &bytes);
                }
            }
        }
    }

    fn hand_over(&mut self, from: usize, right: bool, bytes: &[u8]) {
        let mut to = if right { from + 1 } else { from - 1 };
        if to % 2 == 1 && self.boxes[to / 2].is_none() {
            to = if right { to + 1 } else { to - 1 };
        }
        match to {
            0 => deliver(&mut self.hosts[LOCAL], self.now, 0, bytes),
            2 => deliver(&mut self.link, self.now, usize::from(!right), bytes),
            4 => deliver(&mut self.hosts[REMOTE], self.now, 0, bytes),
            _ => {
                let side = usize::from(right != (to == 1));
                let node = self.boxes[to / 2].as_mut().expect("skipped otherwise");
                deliver(node, self.now, side, bytes);
            }
        }
    }

    /// Goes to the next moment at which anything happens; false when there is none.
    fn advance(&mut self) -> bool {
        let boxes = self.boxes.iter().flatten().filter_map(Node::poll_timeout);
        let hosts = self.hosts.iter().filter_map(Node::poll_timeout);
        let Some(next) = boxes.chain(hosts).chain(self.link.poll_timeout()).map(|d| d.at).min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.hosts.iter_mut().for_each(|host| host.handle_timeout(self.now));
        self.boxes.iter_mut().flatten().for_each(|node| node.handle_timeout(self.now));
        self.link.handle_timeout(self.now);
        true
    }

    fn completions(&mut self, host: usize) -> Vec<longhaul_rnic::Completion> {
        let mut all = Vec::new();
        self.hosts[host].poll_cq(self.ends[host].1, usize::MAX, |completion| all.push(completion));
        all
    }

    fn segment(&self, host: usize, at: usize, len: usize) -> Sge {
        Sge { address: BASE + at as u64, len: len as u32, lkey: self.ends[host].3.lkey }
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

#[derive(Clone, Copy)]
enum Op {
    Write,
    Send,
    Read,
}

/// Posts `count` messages of all kinds and sizes, waits for everything, and compares all bytes.
fn mixture(setup: Setup, count: usize) -> Chain {
    const SLOT: usize = 64 << 10;
    let mut chain = Chain::new(Setup { memory: SLOT * count, ..setup });
    let mut rng = SplitMix64::new(setup.seed);
    for host in [LOCAL, REMOTE] {
        chain.hosts[host].memory_mut().0.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
    }
    let sizes = [1, 64, 4095, 4096, 4097, 20_000, SLOT];
    let ops: Vec<(Op, usize)> = (0..count)
        .map(|_| ([Op::Write, Op::Send, Op::Read][rng.below(3) as usize], sizes[rng.below(7) as usize]))
        .collect();
    for (i, &(op, len)) in ops.iter().enumerate() {
        if matches!(op, Op::Send) {
            let segments = [chain.segment(REMOTE, i * SLOT, len)];
            let wr = RecvWr { wr_id: i as u64, segments: &segments };
            chain.hosts[REMOTE].post_recv(chain.ends[REMOTE].2, &wr).unwrap();
        }
    }
    let (mut posted, mut completed, mut received) = (0, 0, Vec::new());
    let end = chain.now + Duration::from_ms(120_000);
    loop {
        while posted < count && posted - completed < setup.depth as usize {
            let (op, len) = ops[posted];
            let (remote_address, rkey) = (BASE + (posted * SLOT) as u64, chain.ends[REMOTE].3.rkey);
            let op = match op {
                Op::Write => SendOp::Write { remote_address, rkey, immediate: None },
                Op::Send => SendOp::Send { immediate: None, invalidate: None },
                Op::Read => SendOp::Read { remote_address, rkey },
            };
            let segments = [chain.segment(LOCAL, posted * SLOT, len)];
            let wr = SendWr {
                wr_id: posted as u64,
                op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            chain.hosts[LOCAL].post_send(chain.now, chain.ends[LOCAL].2, &wr).unwrap();
            posted += 1;
        }
        chain.exchange();
        for completion in chain.completions(LOCAL) {
            assert_eq!(completion.status, Status::Success);
            assert_eq!(completion.wr_id, completed as u64, "each once, in order");
            completed += 1;
        }
        received.extend(chain.completions(REMOTE).into_iter().map(|c| c.wr_id));
        let delivered = chain.boxes.iter().flatten().all(|b| b.flows().all(|f| f.stored_frames == 0));
        if completed == count && delivered {
            break;
        }
        assert!(chain.now < end, "not done: {completed} of {count}");
        let may_post = posted < count && posted - completed < setup.depth as usize;
        assert!(may_post || chain.advance(), "asleep at {completed} of {count}");
    }
    let sends: Vec<u64> = (0..count as u64).filter(|&i| matches!(ops[i as usize].0, Op::Send)).collect();
    assert_eq!(received, sends, "each SEND fills one receive, in order");
    for (i, &(_, len)) in ops.iter().enumerate() {
        let range = i * SLOT..i * SLOT + len;
        let [local, remote] =
            [&chain.hosts[LOCAL], &chain.hosts[REMOTE]].map(|h| &h.memory().0[range.clone()]);
        assert!(local == remote, "message {i} of {len} bytes");
    }
    chain
}

/// Messages per second of virtual time that `count` WRITEs of `len` bytes reach.
fn write_rate(setup: Setup, len: usize, count: usize) -> f64 {
    let mut chain = Chain::new(setup);
    let (mut posted, mut completed) = (0, 0);
    let start = chain.now;
    while completed < count {
        while posted < count && posted - completed < setup.depth as usize {
            let segments = [chain.segment(LOCAL, 0, len)];
            let op = SendOp::Write { remote_address: BASE, rkey: chain.ends[REMOTE].3.rkey, immediate: None };
            let wr = SendWr {
                wr_id: posted as u64,
                op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            chain.hosts[LOCAL].post_send(chain.now, chain.ends[LOCAL].2, &wr).unwrap();
            posted += 1;
        }
        chain.exchange();
        let new = chain.completions(LOCAL).len();
        completed += new;
        assert!(new > 0 || chain.advance(), "asleep");
    }
    count as f64 / chain.now.since(start).as_secs_f64()
}

mod bytes_and_completions {
    use super::*;

    #[test]
    fn are_right_without_any_box() {
        for loss in [0.0, 1e-3] {
            mixture(Setup { boxes: [false, false], loss, ..Setup::default() }, 60);
        }
    }

    #[test]
    fn are_right_with_a_box_at_each_side() {
        for (seed, loss) in [(1, 0.0), (2, 1e-3), (3, 1e-2)] {
            let chain = mixture(Setup { seed, loss, ..Setup::default() }, 100);
            let near = chain.boxes[LOCAL].as_ref().unwrap();
            assert!(near.counters().pseudo_acks > 0);
            assert_eq!(near.counters().flows_failed, 0);
        }
    }

    #[test]
    fn are_right_with_one_box_and_no_connection_manager() {
        for (seed, loss) in [(4, 0.0), (5, 1e-3), (6, 1e-2)] {
            let chain =
                mixture(Setup { seed, loss, cm: false, boxes: [true, false], ..Setup::default() }, 200);
            let near = chain.boxes[LOCAL].as_ref().unwrap();
            assert!(near.flows().all(|flow| flow.state == FlowState::Terminated), "seed {seed}");
        }
    }
}

mod distance {
    use super::*;

    #[test]
    fn gain_at_1000_km_and_512_bytes_is_more_than_35() {
        let plain = write_rate(Setup { boxes: [false, false], ..Setup::default() }, 512, 1_000);
        let accelerated = write_rate(Setup::default(), 512, 50_000);
        assert!((10_000.0..13_500.0).contains(&plain), "128 per 10 ms: {plain}");
        assert!(accelerated / plain > 35.0, "{accelerated} / {plain}");
    }

    #[test]
    fn does_not_matter_to_4_kib_writes_any_more() {
        let near = write_rate(Setup { km: 0, boxes: [false, false], ..Setup::default() }, 4096, 20_000);
        for km in [10, 100, 1000] {
            let far = write_rate(Setup { km, ..Setup::default() }, 4096, 20_000);
            assert!(far > 0.9 * near, "{km} km: {far} of {near}");
        }
    }
}
