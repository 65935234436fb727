//! Two software RNICs with both boxes of a pair between them, in a row: near and far for what the first one requests.
//!
//! The row is one node of nested chains. The far accelerator stands in it as it is: mirrored, as its own box has it, in
//! a box that is seen from the other side. Either may crash after any of its events, and comes back with empty memory;
//! cables may lose the frames that a test names.

#![allow(dead_code)]

use crate::host::{self, BASE, Depths, End, LOCAL, REMOTE, Terms};
use crate::script::{Sink, deliver};
use longhaul_accel::{Accelerator, Config, FlowState, LAN, Mode, Policy, Role};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Chain, Deadline, Frame, Gather, Mirrored, Node, Payload, Side, Transmit};
use longhaul_rnic::{Completion, Memory, Mtu, RecvWr, Rnic, SendOp, SendWr, Sge};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};

pub const MTU: usize = 1024;
/// Each message has its place in both hosts' memory.
pub const SLOT: usize = 4 << 10;
const TERMS: Terms = Terms { psns: [0xff_fff8, 5000], mtu: Mtu::B1024 };

/// Memory that knows what was written to it, in order.
pub struct Logged {
    pub bytes: Vec<u8>,
    /// Offset and length.
    pub writes: Vec<(usize, usize)>,
}

impl Gather for Logged {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = (address - BASE) as usize;
        out.copy_from_slice(&self.bytes[at..at + out.len()]);
    }
}

impl Memory for Logged {
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        let at = (address - BASE) as usize;
        payload.copy_to(&mut self.bytes[at..at + payload.len()]);
        self.writes.push((at, payload.len()));
    }

    fn fetch_add(&mut self, _address: u64, _add: u64) -> u64 {
        unimplemented!("no atomics here")
    }

    fn compare_swap(&mut self, _address: u64, _compare: u64, _swap: u64) -> u64 {
        unimplemented!("no atomics here")
    }
}

/// When a box crashes, and for how long it is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// Behind this event of the box: a frame in, a frame out, a timer.
    pub after: u64,
    pub away: Duration,
}

/// An accelerator that may crash, with the cables at it, which may lose frames.
pub struct Fallible {
    pub node: Accelerator,
    pub events: u64,
    pub crash: Option<Crash>,
    /// Frames that never come in: by which side, and which one of those that came by it.
    pub lost: Vec<(Side, u64)>,
    /// Frames that leave and never arrive, in the same way.
    pub lost_behind: Vec<(Side, u64)>,
    left: [u64; 2],
    came: [u64; 2],
    away_until: Instant,
}

impl Fallible {
    fn new(config: Config) -> Self {
        Fallible {
            node: Accelerator::new(config).expect("valid"),
            events: 0,
            crash: None,
            lost: Vec::new(),
            lost_behind: Vec::new(),
            left: [0; 2],
            came: [0; 2],
            away_until: Instant::ZERO,
        }
    }

    fn note(&mut self, now: Instant, events: u64) {
        let before = self.events;
        self.events += events;
        let Some(crash) = self.crash else { return };
        if (before + 1..=self.events).contains(&crash.after) {
            self.node = Accelerator::new(self.node.config().clone()).expect("valid");
            self.away_until = now + crash.away;
        }
    }

    fn is_away(&self, now: Instant) -> bool {
        self.away_until > now
    }
}

/// Counts what leaves, and lets nothing out after `left`.
struct Counted<'a> {
    out: &'a mut dyn Transmit,
    left: u64,
    sent: u64,
    lost: &'a [(Side, u64)],
    by_side: &'a mut [u64; 2],
}

impl Transmit for Counted<'_> {
    fn room(&mut self, side: Side) -> usize {
        if self.left == 0 { 0 } else { self.out.room(side) }
    }

    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        if self.left > 0 {
            self.left -= 1;
            self.sent += 1;
            self.by_side[side] += 1;
            if !self.lost.contains(&(side, self.by_side[side])) {
                self.out.transmit(side, frame);
            }
        }
    }
}

impl Node for Fallible {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.came[side] += 1;
        if self.is_away(now) || self.lost.contains(&(side, self.came[side])) {
            return;
        }
        self.node.handle_frame(now, side, frame);
        self.note(now, 1);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.is_away(now) {
            return;
        }
        let is_due = self.node.poll_timeout().is_some_and(|due| due.at <= now);
        self.node.handle_timeout(now);
        self.note(now, u64::from(is_due));
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if self.is_away(now) {
            return;
        }
        let ahead = self.crash.filter(|crash| crash.after > self.events);
        let left = ahead.map_or(u64::MAX, |crash| crash.after - self.events);
        let mut counted = Counted { out, left, sent: 0, lost: &self.lost_behind, by_side: &mut self.left };
        self.node.poll_transmit(now, &mut counted);
        let sent = counted.sent;
        self.note(now, sent);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let back = Deadline { at: self.away_until, reason: "away" };
        let due = self.node.poll_timeout();
        due.map(|due| Deadline { at: due.at.max(back.at), ..due })
    }
}

type Host = Rnic<Logged>;
type Beyond = Chain<Link, Chain<Fallible, Chain<Link, Host>>>;
type Nodes = Chain<Mirrored<Host>, Chain<Link, Chain<Fallible, Beyond>>>;

#[derive(Clone, Debug)]
pub struct Setup {
    pub policy: Policy,
    /// The flow is learnt from the connection manager's messages.
    pub cm: bool,
    /// One way, of the long path.
    pub delay: Duration,
    /// Of the long path, and of the second host's LAN.
    pub loss: [f64; 2],
    /// Long enough that nothing is given up.
    pub give_up_after: Duration,
    pub report_credits: bool,
    /// Packets after which a box acknowledges unasked.
    pub ack_every: u32,
    pub depth: u32,
    pub slots: usize,
    pub seed: u64,
}

impl Setup {
    pub fn new(mode: Mode) -> Self {
        Setup {
            policy: Policy::all(mode),
            cm: true,
            delay: Duration::from_ms(5),
            loss: [0.0; 2],
            give_up_after: Duration::from_ms(2000),
            report_credits: false,
            ack_every: Config::default().ack_every,
            depth: 128,
            slots: 13,
            seed: 1,
        }
    }
}

/// Nothing leaves the row.
struct Nowhere;

impl Transmit for Nowhere {
    fn room(&mut self, _side: Side) -> usize {
        0
    }

    fn transmit(&mut self, _side: Side, _frame: &Frame<'_>) {
        unreachable!("hosts have one side")
    }
}

pub struct Row {
    pub now: Instant,
    pub nodes: Nodes,
    ends: Vec<End>,
}

/// What a requester does, with how many bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Write(usize),
    Send(usize),
    Read(usize),
}

impl Op {
    pub fn len(self) -> usize {
        let (Op::Write(len) | Op::Send(len) | Op::Read(len)) = self;
        len
    }

    pub fn is_read(self) -> bool {
        matches!(self, Op::Read(_))
    }
}

impl Row {
    pub fn new(setup: &Setup) -> Row {
        let rate = BitRate::from_gbps(10).expect("not zero");
        let host = |host: usize| {
            let mut config = host::config(host, rate);
            config.report_credits = setup.report_credits;
            // Each place of each host holds something else.
            let mut noise = SplitMix64::new(host as u64);
            let bytes = (0..setup.slots * SLOT / 8).flat_map(|_| noise.next_u64().to_ne_bytes()).collect();
            Rnic::new(config, Logged { bytes, writes: Vec::new() })
        };
        let accelerator = |role| {
            Fallible::new(Config {
                policy: setup.policy.clone(),
                role,
                wan_rate: Some(rate),
                lan_rate: Some(rate),
                give_up_after: setup.give_up_after,
                ack_every: setup.ack_every,
                ..Config::default()
            })
        };
        let link = |delay, loss, seed| {
            let link = LinkConfig { delay, rate: Some(rate), loss, seed, ..LinkConfig::default() };
            Some(Link::new(link).expect("valid"))
        };
        let lan = Duration::from_us(2);
        let far = Chain::new(
            Some(accelerator(Role::Far)),
            Some(Chain::new(link(lan, setup.loss[1], setup.seed ^ 1), Some(host(REMOTE)))),
        );
        let beyond = Chain::new(link(setup.delay, setup.loss[0], setup.seed), Some(far));
        let near = Chain::new(Some(accelerator(Role::Near)), Some(beyond));
        let nodes =
            Chain::new(Some(Mirrored(host(LOCAL))), Some(Chain::new(link(lan, 0.0, setup.seed), Some(near))));
        let mut row = Row { now: Instant::from_ns(1000), nodes, ends: Vec::new() };
        row.connect(setup);
        row
    }

    pub fn near(&mut self) -> &mut Fallible {
        self.nodes.right_mut().unwrap().right_mut().unwrap().left_mut().unwrap()
    }

    fn beyond(&mut self) -> &mut Chain<Fallible, Chain<Link, Host>> {
        let near = self.nodes.right_mut().unwrap().right_mut().unwrap();
        near.right_mut().unwrap().right_mut().unwrap()
    }

    pub fn far(&mut self) -> &mut Fallible {
        self.beyond().left_mut().unwrap()
    }

    /// The near box, and the far one.
    pub fn node(&mut self, role: Role) -> &mut Fallible {
        match role {
            Role::Near => self.near(),
            Role::Far => self.far(),
        }
    }

    pub fn host(&mut self, host: usize) -> &mut Host {
        match host {
            LOCAL => &mut self.nodes.left_mut().unwrap().0,
            _ => self.beyond().right_mut().unwrap().right_mut().unwrap(),
        }
    }

    fn connect(&mut self, setup: &Setup) {
        let depths = Depths { cq: 512, sq: setup.depth, rq: 256 };
        self.ends = [LOCAL, REMOTE].map(|host| End::open(self.host(host), setup.slots * SLOT, depths)).into();
        let ends = std::mem::take(&mut self.ends);
        let now = self.now;
        for host in [LOCAL, REMOTE] {
            host::connect(self.host(host), now, &ends, host, TERMS);
        }
        self.ends = ends;
        if setup.cm {
            self.show_connection();
        }
    }

    /// Shows the boxes a connection manager's messages, as they pass when a connection is made.
    fn show_connection(&mut self) {
        let now = self.now;
        for (from, bytes) in host::connection_messages(&self.ends, TERMS) {
            let side = if from == LOCAL { LAN } else { 1 - LAN };
            for role in [Role::Near, Role::Far] {
                let node = &mut self.node(role).node;
                deliver(node, now, side, &bytes);
                node.poll_transmit(now, &mut Sink::default());
            }
        }
    }

    /// Posts a message whose place in memory is `slot`; for a SEND the receive as well, if `received`.
    pub fn post(&mut self, slot: usize, op: Op, received: bool) {
        let (remote_address, rkey) = (BASE + (slot * SLOT) as u64, self.ends[REMOTE].keys.rkey);
        let op_of = match op {
            Op::Write(_) => SendOp::Write { remote_address, rkey, immediate: None },
            Op::Send(_) => SendOp::Send { immediate: None, invalidate: None },
            Op::Read(_) => SendOp::Read { remote_address, rkey },
        };
        if received && matches!(op, Op::Send(_)) {
            self.post_receive(slot);
        }
        let segments = [self.segment(LOCAL, slot, op.len())];
        let wr = SendWr {
            wr_id: slot as u64,
            op: op_of,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let (now, qp) = (self.now, self.ends[LOCAL].qpn);
        self.host(LOCAL).post_send(now, qp, &wr).unwrap();
    }

    pub fn post_receive(&mut self, slot: usize) {
        let segments = [self.segment(REMOTE, slot, SLOT)];
        let qp = self.ends[REMOTE].qpn;
        self.host(REMOTE).post_recv(qp, &RecvWr { wr_id: slot as u64, segments: &segments }).unwrap();
    }

    fn segment(&self, host: usize, slot: usize, len: usize) -> Sge {
        self.ends[host].segment(slot * SLOT, len)
    }

    pub fn completions(&mut self, host: usize) -> Vec<Completion> {
        let cq = self.ends[host].cq;
        host::completions(self.host(host), cq)
    }

    /// Lets everything send, goes to the next moment at which anything happens, but no further than to `end`, and lets
    /// it happen. False: nothing happens until then.
    pub fn step(&mut self, end: Instant) -> bool {
        self.nodes.poll_transmit(self.now, &mut Nowhere);
        let due = self.nodes.poll_timeout().filter(|due| due.at <= end);
        self.now = due.map_or(end, |due| due.at.max(self.now));
        if due.is_some() {
            self.nodes.handle_timeout(self.now);
        }
        due.is_some()
    }

    /// Lets time pass until then.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
    }

    /// True while a box owes the delivery of anything.
    pub fn is_owed_anything(&mut self) -> bool {
        [Role::Near, Role::Far].into_iter().any(|role| {
            let mut flows = self.node(role).node.flows();
            flows.any(|flow| flow.state == FlowState::Terminated && flow.stored_frames > 0)
        })
    }

    /// The host's bytes in a place of its memory.
    pub fn bytes(&mut self, host: usize, slot: usize, len: usize) -> Vec<u8> {
        self.host(host).memory().bytes[slot * SLOT..slot * SLOT + len].to_vec()
    }
}
