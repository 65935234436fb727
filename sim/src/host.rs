//! A host: an RNIC, the programs that use it, and what lies between them.

mod bandwidth;
mod connections;
mod intake;
mod latency;
mod memory;
mod receiver;

pub(crate) use bandwidth::{Bandwidth, Goal, Plan};
pub(crate) use connections::{Caller, Service, Waiting};
pub(crate) use latency::{Latency, Role};
pub(crate) use receiver::Receiver;

use crate::oracle::Connection;
use crate::profile::NicProfile;
use connections::{Connections, Offer, SetupTimes};
use intake::Intake;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, BringUp, Completion, Config, CqId, MrKeys, Mtu, PdId, QpAttr, QpInit,
    QpKind, Rnic, SendOp, SendWr, Sge, VerbsError,
};
use longhaul_switch::{PauseCounters, Pauser, PfcConfig};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, RKey};
use longhaul_wire::MacAddr;
use memory::Spans;
use std::net::{IpAddr, Ipv4Addr};

/// Completions taken at a time.
const POLLED: usize = 64;
/// READs and atomics at once that a QP serves.
const READS_SERVED: u8 = 128;
/// RNR retries: without end.
const RNR_RETRIES: u8 = 7;
/// DSCP of RoCE data and ACKs, as RoCE networks usually have it: priority 3.
const ROCE_DSCP: u8 = 26;

/// What a program may do with the NIC.
pub(crate) struct Nic {
    rnic: Rnic<Spans>,
    profile: NicProfile,
    pd: PdId,
    cq: CqId,
    keys: MrKeys,
    /// By slot: the QP, its peer's memory, and whose it is.
    qps: Vec<QpUse>,
    /// The port begins no message before.
    message_at: Instant,
}

#[derive(Clone, Copy)]
struct QpUse {
    qpn: Qpn,
    program: usize,
    peer_address: u64,
    peer_rkey: RKey,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    ip: IpAddr,
    qpn: Qpn,
    /// Where its memory begins, and the key to it.
    address: u64,
    rkey: RKey,
}

/// What a connection is like, as one end sees it.
#[derive(Clone, Copy, Debug)]
struct Terms {
    mtu: Mtu,
    /// PSN that this end begins with, and its peer.
    first_psn: Psn,
    peer_psn: Psn,
    timeout: u8,
    retry_count: u8,
    /// READs and atomics that this end may have outstanding.
    reads: u8,
}

/// A completion, and when its program can see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub at: Instant,
    pub slot: usize,
    pub completion: Completion,
}

/// Which operation a flow does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data, which tells the responder.
    #[serde(rename = "write_imm")]
    WriteImmediate,
    /// SEND.
    Send,
    /// RDMA READ.
    Read,
    /// Atomic addition.
    Atomic,
}

impl Op {
    /// Each message takes a receive of the responder.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Op::Send | Op::WriteImmediate)
    }

    /// The name used in scenarios and results.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::WriteImmediate => "write_imm",
            Op::Send => "send",
            Op::Read => "read",
            Op::Atomic => "atomic",
        }
    }
}

/// What a program must tell its host.
pub(crate) enum Program {
    Bandwidth(Bandwidth),
    Latency(Latency),
    Receiver(Receiver),
}

macro_rules! each {
    ($program:expr, $it:ident => $call:expr) => {
        match $program {
            Program::Bandwidth($it) => $call,
            Program::Latency($it) => $call,
            Program::Receiver($it) => $call,
        }
    };
}

impl Program {
    /// Over, by success or failure, or there is nothing that it would be done with.
    pub fn is_done(&self) -> bool {
        match self {
            Program::Bandwidth(program) => program.is_done(),
            Program::Latency(program) => program.is_done(),
            Program::Receiver(_) => true,
        }
    }

    fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        each!(self, it => it.start(at, slots, nic));
    }
}

/// A host with one port, side 0.
pub(crate) struct Host {
    nic: Nic,
    /// `None`: its NIC takes in what a link can carry.
    intake: Option<Box<Intake>>,
    programs: Vec<Program>,
    /// Those that the connection manager makes; `None`: no program uses it.
    connections: Option<Box<Connections>>,
}

/// The link at a host's port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// What pauses measure time by; `None`: they are not obeyed.
    pub rate: Option<BitRate>,
    /// Bytes on the wire that come in after a pause was asked for.
    pub headroom_bytes: u64,
    pub dcqcn: Option<Dcqcn>,
}

impl Nic {
    /// Time that a program needs for posting one work request, and for polling one completion.
    pub fn costs(&self) -> (Duration, Duration) {
        (Duration::from_ns(self.profile.post_ns), Duration::from_ns(self.profile.poll_ns))
    }

    /// When the NIC knows of what is posted at `at`.
    pub fn doorbell(&self, at: Instant) -> Instant {
        at + Duration::from_ns(self.profile.doorbell_ns)
    }

    /// When a program sees what the NIC has done at `at`.
    pub fn seen(&self, at: Instant) -> Instant {
        at + Duration::from_ns(self.profile.completion_ns)
    }

    /// Begins a message.
    ///
    /// # Errors
    /// When the port can begin one, if not now.
    pub fn begin_message(&mut self, now: Instant) -> Result<(), Instant> {
        if self.message_at > now {
            return Err(self.message_at);
        }
        self.message_at = now + Duration::from_ns(self.profile.message_ns);
        Ok(())
    }

    /// Messages that have come to a slot's memory as a whole.
    pub fn messages(&self, slot: usize) -> u64 {
        self.rnic.memory().messages(slot)
    }

    /// Writes to a slot's memory that were not in their place.
    pub fn misplaced(&self, slot: usize) -> u64 {
        self.rnic.memory().misplaced(slot)
    }

    /// Hands a work request to the device, of which it knows now. True when it took it.
    pub fn post(
        &mut self,
        now: Instant,
        slot: usize,
        op: Op,
        size: u32,
        wr_id: u64,
        signaled: bool,
    ) -> bool {
        let QpUse { qpn, peer_address: remote_address, peer_rkey: rkey, .. } = self.qps[slot];
        let op = match op {
            Op::Write => SendOp::Write { remote_address, rkey, immediate: None },
            Op::WriteImmediate => SendOp::Write { remote_address, rkey, immediate: Some([0; 4]) },
            Op::Send => SendOp::Send { immediate: None, invalidate: None },
            Op::Read => SendOp::Read { remote_address, rkey },
            Op::Atomic => SendOp::FetchAdd { remote_address, rkey, add: 1 },
        };
        let segments = [Sge { address: Spans::address(slot), len: size, lkey: self.keys.lkey }];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: false,
            signaled,
            solicited: false,
            fence: false,
        };
        self.rnic.post_send(now, qpn, &wr).is_ok()
    }

    /// Posts a receive for a message of at most `size` bytes. True when there was room for it.
    pub fn post_receive(&mut self, slot: usize, size: u32) -> bool {
        let segments = [Sge { address: Spans::address(slot), len: size, lkey: self.keys.lkey }];
        let wr = longhaul_rnic::RecvWr { wr_id: 0, segments: &segments };
        self.rnic.post_recv(self.qps[slot].qpn, &wr).is_ok()
    }
}

/// What a QP is to be like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpPlan {
    pub sq_depth: u32,
    pub rq_depth: u32,
    /// Of each message, in bytes.
    pub size: u32,
}

impl Host {
    /// The `number`-th host of a network, 0 to 65,533.
    pub fn new(
        number: usize,
        profile: &NicProfile,
        port: Port,
        qps: usize,
        seed: u64,
    ) -> Result<Self, VerbsError> {
        let [high, low] = (number as u16 + 1).to_be_bytes();
        let ip = Ipv4Addr::new(10, 77, high, low);
        let mut config = Config::new(Host::address(number), IpAddr::V4(ip));
        let intake = intake(profile, &port, config.mac);
        config.seed = seed;
        config.link_rate = port.rate.filter(|_| profile.pfc);
        config.dcqcn = port.dcqcn;
        config.window_messages = profile.outstanding_wqes;
        config.window_packets = profile.outstanding_psns;
        config.ack_request_every = profile.ack_request_every;
        // A profile says all that there is about when a NIC asks.
        config.ack_request_at_window_end = false;
        config.ack_request_spread = false;
        config.probe_above = u32::MAX;
        config.timeout_stretch_max = 1;
        config.ack_every = profile.ack_every;
        config.adaptive_timeout =
            profile.adaptive_retransmission.then(|| Duration::from_ns(profile.adaptive_first_ns));
        config.qpn_count = config.qpn_count.max(qps as u32);
        let cm = &mut config.cm;
        cm.ca_guid = u64::from_be_bytes([0, 0, 10, 0xff, 0xfe, 77, high, low]);
        cm.connections_max = cm.connections_max.max(qps);
        cm.half_open_max = cm.half_open_max.max(qps);
        cm.listeners_max = cm.listeners_max.max(qps);
        let mut rnic = Rnic::new(config, Spans::default());
        let pd = rnic.alloc_pd()?;
        let cq = rnic.create_cq(rnic.config().cq_depth_max)?;
        let (address, len) = Spans::extent(qps.max(1));
        let keys = rnic.reg_mr(pd, address, len, address, Access::ALL)?;
        let nic = Nic {
            rnic,
            profile: profile.clone(),
            pd,
            cq,
            keys,
            qps: Vec::new(),
            message_at: Instant::ZERO,
        };
        Ok(Host { nic, intake: intake.map(Box::new), programs: Vec::new(), connections: None })
    }

    /// The Ethernet address of the `number`-th host.
    pub fn address(number: usize) -> MacAddr {
        let [high, low] = (number as u16 + 1).to_be_bytes();
        MacAddr([2, 0, 10, 77, high, low])
    }

    /// Packets for which the NIC's receive buffer had no room, and what flow control did with it.
    /// `None`: it takes in what a link can carry.
    pub fn intake(&self) -> Option<(u64, PauseCounters)> {
        self.intake.as_ref().map(|intake| (intake.discarded, intake.counters()))
    }

    /// Takes a program in; its number.
    pub fn add(&mut self, program: Program) -> usize {
        self.programs.push(program);
        self.programs.len() - 1
    }

    /// Makes a QP for a program; its slot. It is not connected.
    pub fn create_qp(&mut self, program: usize, plan: &QpPlan) -> Result<usize, VerbsError> {
        let nic = &mut self.nic;
        let init = QpInit {
            rq_depth: plan.rq_depth,
            signal_all: false,
            ..QpInit::new(QpKind::Rc, nic.pd, nic.cq, plan.sq_depth)
        };
        let qpn = nic.rnic.create_qp(&init)?;
        nic.rnic.memory_mut().add(u64::from(plan.size));
        nic.qps.push(QpUse { qpn, program, peer_address: 0, peer_rkey: RKey(0) });
        Ok(nic.qps.len() - 1)
    }

    /// Connects a QP of `a` with one of `b`, as programs do that have told each other everything.
    pub fn connect(
        (a, slot_a): (&mut Host, usize),
        (b, slot_b): (&mut Host, usize),
        mtu: Mtu,
        [psn_a, psn_b]: [Psn; 2],
    ) -> Result<(), VerbsError> {
        let ends = [a.nic.end(slot_a), b.nic.end(slot_b)];
        for (host, slot, peer, psns) in
            [(a, slot_a, ends[1], [psn_a, psn_b]), (b, slot_b, ends[0], [psn_b, psn_a])]
        {
            let terms = host.nic.terms(mtu, psns);
            host.nic.initialize(slot)?;
            host.nic.make_ready(Instant::ZERO, slot, &peer, &terms)?;
        }
        Ok(())
    }

    /// Both directions of requests between a QP of `a` and one of `b`, whose PSNs begin so.
    pub fn directions(
        (a, slot_a): (&Host, usize),
        (b, slot_b): (&Host, usize),
        mtu: Mtu,
        [psn_a, psn_b]: [Psn; 2],
    ) -> [Connection; 2] {
        let [a, b] = [a.nic.end(slot_a), b.nic.end(slot_b)].map(|end| (end.ip, end.qpn));
        let from = |requester, responder, first_psn| Connection {
            requester,
            responder,
            first_psn,
            mtu_bytes: mtu.bytes(),
        };
        [from(a, b, psn_a), from(b, a, psn_b)]
    }

    /// The port's address.
    pub fn ip(&self) -> IpAddr {
        self.nic.rnic.config().ip
    }

    /// Lets the connection manager connect a program's QPs when it begins; the program starts with
    /// them.
    pub fn call(&mut self, caller: Caller) -> Result<(), VerbsError> {
        caller.qps.iter().try_for_each(|qp| self.nic.initialize(qp.slot))?;
        self.connections.get_or_insert_default().call(caller);
        Ok(())
    }

    /// Prepares QPs that the connection manager connects when they are asked for, and listens
    /// unless told otherwise.
    pub fn serve(&mut self, service: Service, listens: bool) -> Result<(), VerbsError> {
        service.qps.iter().try_for_each(|qp| self.nic.initialize(qp.slot))?;
        let connections = self.connections.get_or_insert_default();
        if listens { connections.listen(service, &mut self.nic) } else { Ok(()) }
    }

    /// Whether a program is done, and its connections have ended where the connection manager made
    /// them.
    pub fn is_done(&self, program: usize) -> bool {
        let by_manager =
            self.connections.as_ref().and_then(|connections| connections.is_over(program));
        by_manager.unwrap_or_else(|| self.programs[program].is_done())
    }

    /// Why a program's connections could not be, or did not last.
    pub fn connection_failure(&self, program: usize) -> Option<&str> {
        self.connections.as_ref()?.failure(program)
    }

    /// How long the connection manager took for a program's connections, once all had been made:
    /// sum and longest, and how many.
    pub fn setup_times(&self, program: usize) -> Option<(SetupTimes, usize)> {
        self.connections.as_ref()?.setup_times(program)
    }

    /// The RNIC's counters.
    pub fn counters(&self) -> &longhaul_rnic::Counters {
        self.nic.rnic.counters()
    }

    /// A program.
    pub fn program(&self, program: usize) -> &Program {
        &self.programs[program]
    }

    /// What a program may do with the NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Lets a program begin at `at`, with these QPs.
    pub fn start(&mut self, program: usize, at: Instant, slots: Vec<usize>) {
        let Host { nic, programs, .. } = self;
        programs[program].start(at, slots, nic);
    }

    /// Gives programs what has completed, and lets them run.
    #[inline]
    fn turn(&mut self, now: Instant) {
        let Host { nic, programs, connections, .. } = self;
        let at = nic.seen(now);
        loop {
            let mut taken = [None; POLLED];
            let mut count = 0;
            nic.rnic.poll_cq(nic.cq, POLLED, |completion| {
                taken[count] = Some(completion);
                count += 1;
            });
            for completion in taken[..count].iter().flatten() {
                let slot = (completion.qpn.get() - nic.rnic.config().qpn_first) as usize;
                let seen = Seen { at, slot, completion: *completion };
                each!(&mut programs[nic.qps[slot].program], it => it.complete(seen));
            }
            if count < POLLED {
                break;
            }
        }
        if let Some(connections) = connections {
            connections.run(now, nic, programs);
        }
        for program in &mut *programs {
            each!(program, it => it.run(now, nic));
        }
        if let Some(connections) = connections {
            connections.end(now, nic, programs);
        }
    }
}

/// The receive side of a NIC that cannot take in all that a link can carry.
fn intake(profile: &NicProfile, port: &Port, source: MacAddr) -> Option<Intake> {
    let gap = Duration::from_ns(profile.receive_packet_ns);
    let rate =
        port.rate.or(BitRate::from_bps(profile.rate_bps)).filter(|_| gap > Duration::ZERO)?;
    let room = profile.receive_buffer_bytes;
    let xoff = if profile.pfc { room.saturating_sub(port.headroom_bytes) } else { u64::MAX };
    let pauser = Pauser::new(PfcConfig::ROCE_PRIORITY, rate, [xoff / 2, xoff, room]);
    Some(Intake::new(gap, pauser, source))
}

impl Nic {
    fn end(&self, slot: usize) -> Peer {
        let Offer { address, rkey, .. } = self.offer(slot, 0);
        Peer { ip: self.rnic.config().ip, qpn: self.qps[slot].qpn, address, rkey }
    }

    fn offer(&self, slot: usize, index: u32) -> Offer {
        Offer { index, rkey: self.keys.rkey, address: Spans::address(slot) }
    }

    /// What this NIC makes of a connection with this path MTU, and PSNs of its own and the peer's.
    fn terms(&self, mtu: Mtu, [first_psn, peer_psn]: [Psn; 2]) -> Terms {
        let NicProfile { timeout_code: timeout, retry_count, outstanding_reads: reads, .. } =
            self.profile;
        Terms { mtu, first_psn, peer_psn, timeout, retry_count, reads }
    }

    /// Lets a QP take receives.
    fn initialize(&mut self, slot: usize) -> Result<(), VerbsError> {
        let attr = QpAttr::initialize(Access::ALL);
        self.rnic.modify_qp(Instant::ZERO, self.qps[slot].qpn, &attr)
    }

    /// Lets an initialized QP receive and send.
    fn make_ready(
        &mut self,
        now: Instant,
        slot: usize,
        peer: &Peer,
        terms: &Terms,
    ) -> Result<(), VerbsError> {
        let to = &mut self.qps[slot];
        (to.peer_address, to.peer_rkey) = (peer.address, peer.rkey);
        let traffic_class = ROCE_DSCP << 2;
        let bring_up = BringUp {
            address: AddressVector { traffic_class, ..AddressVector::to(peer.ip) },
            path_mtu: terms.mtu,
            sq_psn: terms.first_psn,
            rq_psn: terms.peer_psn,
            max_rd_atomic: terms.reads,
            max_dest_rd_atomic: READS_SERVED,
            min_rnr_timer: 12,
            timeout: terms.timeout,
            retry_cnt: terms.retry_count,
            rnr_retry: RNR_RETRIES,
            ..BringUp::to(peer.ip, peer.qpn)
        };
        let qpn = to.qpn;
        let steps = bring_up.make_ready(QpKind::Rc);
        steps.iter().try_for_each(|attr| self.rnic.modify_qp(now, qpn, attr))
    }
}

impl Node for Host {
    #[inline]
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        if let Some(intake) = &mut self.intake
            && intake.hold(now, frame)
        {
            return;
        }
        self.nic.rnic.handle_frame(now, side, frame);
        self.turn(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if let Some(intake) = &mut self.intake {
            let rnic = &mut self.nic.rnic;
            while intake.release(now, |frame| rnic.handle_frame(now, 0, frame)) {}
        }
        if self.nic.rnic.poll_timeout().is_some_and(|deadline| deadline.at <= now) {
            self.nic.rnic.handle_timeout(now);
        }
        self.turn(now);
    }

    #[inline]
    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if let Some(intake) = &mut self.intake {
            intake.send_pause(now, out);
        }
        self.nic.rnic.poll_transmit(now, out);
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Deadline> {
        let program =
            self.programs.iter().filter_map(|program| each!(program, it => it.next_at())).min();
        let program = program.map(|at| Deadline { at, reason: "program" });
        let own = Deadline::earliest(self.nic.rnic.poll_timeout(), program);
        let own = match &self.intake {
            None => own,
            Some(intake) => Deadline::earliest(own, intake.poll_timeout()),
        };
        match &self.connections {
            None => own,
            Some(connections) => {
                let call = connections.next_at().map(|at| Deadline { at, reason: "call" });
                Deadline::earliest(own, call)
            }
        }
    }
}
