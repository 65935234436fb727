//! Two software RNICs with both boxes of a pair between them: near and far for the first host's
//! requests.
//!
//! The row is one node of nested chains. The boxes are accelerators or [whole boxes](whole). The
//! far accelerator is not mirrored in the row: its own box, which mirrors it, is seen from the
//! other side. Either box may crash after any of its events, and restarts with empty memory; cables
//! may lose the frames that a test selects.

mod fallible;
pub mod whole;

pub use fallible::Boxed;
#[allow(unused_imports, reason = "each test binary uses a part")]
pub use fallible::{Crash, Fallible};

use crate::host::{self, BASE, Depths, End, LOCAL, REMOTE, Terms};
use crate::script::{Sink, deliver};
use longhaul_accel::{Accelerator, Config, FlowState, LAN, Mode, Pacing, Policy, Role};
use longhaul_link::{Link, LinkConfig};
use longhaul_node::{Chain, Frame, Gather, Mirrored, Node, Payload, Side, Transmit};
use longhaul_rnic::{Completion, Memory, Mtu, RecvWr, Rnic, SendOp, SendWr, Sge};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};

pub const MTU: usize = 1024;
/// Bytes per message in both hosts' memory.
pub const SLOT: usize = 4 << 10;
const TERMS: Terms = Terms { psns: [0xff_fff8, 5000], mtu: Mtu::B1024 };

/// Memory that logs its writes.
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

type Host = Rnic<Logged>;
type Site<B> = Chain<Fallible<B>, Chain<Link, Host>>;
type Beyond<B> = Chain<Link, Site<B>>;
type Nodes<B> = Chain<Mirrored<Host>, Chain<Link, Chain<Fallible<B>, Beyond<B>>>>;

#[derive(Clone, Debug)]
pub struct Setup {
    pub policy: Policy,
    /// The flow is learnt from the connection manager's messages.
    pub cm: bool,
    /// One-way delay of the long path.
    pub delay: Duration,
    /// Loss on the long path, and on the second host's LAN.
    pub loss: [f64; 2],
    /// Long enough that no flow is given up.
    pub give_up_after: Duration,
    pub report_credits: bool,
    /// Packets after which a box sends an unsolicited ACK.
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

fn rate() -> BitRate {
    BitRate::from_gbps(10).expect("not zero")
}

impl Setup {
    /// Configuration of the accelerator in `role`.
    pub fn config(&self, role: Role) -> Config {
        Config {
            policy: self.policy.clone(),
            role,
            wan_pacing: Pacing::Own(rate()),
            lan_pacing: Pacing::Own(rate()),
            give_up_after: self.give_up_after,
            ack_every: self.ack_every,
            ..Config::default()
        }
    }
}

/// Rejects frames that would leave the row.
struct Nowhere;

impl Transmit for Nowhere {
    fn room(&mut self, _side: Side) -> usize {
        0
    }

    fn transmit(&mut self, _side: Side, _frame: &Frame<'_>) {
        unreachable!("hosts have one side")
    }
}

/// Hosts with boxes of one type between them.
pub struct RowOf<B> {
    pub now: Instant,
    pub nodes: Nodes<B>,
    ends: Vec<End>,
}

/// An operation of a requester, and its bytes.
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

/// Hosts with accelerators between them.
pub type Row = RowOf<Accelerator>;

impl Row {
    pub fn new(setup: &Setup) -> Row {
        RowOf::with(setup, |role| Accelerator::new(setup.config(role)).expect("valid"))
    }
}

impl<B: Boxed> RowOf<B> {
    pub fn with(setup: &Setup, node: impl Fn(Role) -> B) -> Self {
        let rate = rate();
        let host = |host: usize| {
            let mut config = host::config(host, rate);
            config.report_credits = setup.report_credits;
            // Each place of each host has different contents.
            let mut noise = SplitMix64::new(host as u64);
            let bytes =
                (0..setup.slots * SLOT / 8).flat_map(|_| noise.next_u64().to_ne_bytes()).collect();
            Rnic::new(config, Logged { bytes, writes: Vec::new() })
        };
        let link = |delay, loss, seed| {
            let link = LinkConfig { delay, rate: Some(rate), loss, seed, ..LinkConfig::default() };
            Some(Link::new(link).expect("valid"))
        };
        let lan = Duration::from_us(2);
        let far = Chain::new(
            Some(Fallible::new(node(Role::Far))),
            Some(Chain::new(link(lan, setup.loss[1], setup.seed ^ 1), Some(host(REMOTE)))),
        );
        let beyond = Chain::new(link(setup.delay, setup.loss[0], setup.seed), Some(far));
        let near = Chain::new(Some(Fallible::new(node(Role::Near))), Some(beyond));
        let nodes = Chain::new(
            Some(Mirrored(host(LOCAL))),
            Some(Chain::new(link(lan, 0.0, setup.seed), Some(near))),
        );
        let mut row = RowOf { now: Instant::from_ns(1000), nodes, ends: Vec::new() };
        row.connect(setup);
        row
    }

    pub fn near(&mut self) -> &mut Fallible<B> {
        self.nodes.right_mut().unwrap().right_mut().unwrap().left_mut().unwrap()
    }

    fn beyond(&mut self) -> &mut Site<B> {
        let near = self.nodes.right_mut().unwrap().right_mut().unwrap();
        near.right_mut().unwrap().right_mut().unwrap()
    }

    pub fn far(&mut self) -> &mut Fallible<B> {
        self.beyond().left_mut().unwrap()
    }

    /// The near or the far box.
    pub fn node(&mut self, role: Role) -> &mut Fallible<B> {
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
        self.ends = [LOCAL, REMOTE]
            .map(|host| End::open(self.host(host), setup.slots * SLOT, depths))
            .into();
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

    /// Shows the boxes the connection manager's messages of a new connection.
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

    /// Posts a message with its memory at `slot`; for a SEND also the receive, if `received`.
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
        self.host(REMOTE)
            .post_recv(qp, &RecvWr { wr_id: slot as u64, segments: &segments })
            .unwrap();
    }

    fn segment(&self, host: usize, slot: usize, len: usize) -> Sge {
        self.ends[host].segment(slot * SLOT, len)
    }

    pub fn completions(&mut self, host: usize) -> Vec<Completion> {
        let cq = self.ends[host].cq;
        host::completions(self.host(host), cq)
    }

    /// Lets all nodes send, and advances to the next event before `end`. Returns `false` if there
    /// is none.
    pub fn step(&mut self, end: Instant) -> bool {
        self.nodes.poll_transmit(self.now, &mut Nowhere);
        let due = self.nodes.poll_timeout().filter(|due| due.at <= end);
        self.now = due.map_or(end, |due| due.at.max(self.now));
        if due.is_some() {
            self.nodes.handle_timeout(self.now);
        }
        due.is_some()
    }

    /// Runs until `end`.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
    }

    /// True while a box has undelivered packets.
    pub fn is_owed_anything(&mut self) -> bool {
        [Role::Near, Role::Far].into_iter().any(|role| {
            let mut flows = self.node(role).node.serving().flows();
            flows.any(|flow| flow.state != FlowState::Learning && flow.stored_frames > 0)
        })
    }

    /// The host's bytes in a slot of its memory.
    pub fn bytes(&mut self, host: usize, slot: usize, len: usize) -> Vec<u8> {
        self.host(host).memory().bytes[slot * SLOT..slot * SLOT + len].to_vec()
    }
}
