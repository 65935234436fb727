//! A host: an RNIC, the programs that use it, and the costs between them.

mod arrivals;
mod bandwidth;
mod bring_up;
mod connections;
mod doorbells;
mod events;
mod intake;
mod latency;
mod listener;
mod memory;
mod migration;
mod receiver;
mod sender;
mod storage;

pub(crate) use arrivals::Arrivals;
pub(crate) use bandwidth::{Bandwidth, Goal, Plan};
pub(crate) use connections::{Caller, Service, Waiting};
pub(crate) use events::{Threads, Window};
pub(crate) use latency::{Latency, Role};
pub(crate) use listener::Listener;
pub(crate) use migration::{Course, Migrator};
pub use migration::{Migration, Writes};
pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;
pub use storage::Storage;
pub(crate) use storage::{Commands, Controller, Initiator};

use crate::oracle::Connection;
use crate::profile::NicProfile;
use connections::{Connections, SetupTimes};
use intake::Intake;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_rnic::{
    Access, Completion, Config, CqId, Event, MrKeys, Mtu, PdId, QpInit, QpKind, Rnic, SendOp,
    SendWr, Sge, SrqId, SrqInit, VerbsError,
};
use longhaul_switch::PauseCounters;
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, RKey};
use longhaul_wire::MacAddr;
use memory::{Capsule, Spans};
use std::net::{IpAddr, Ipv4Addr};

/// Completions polled at a time.
const POLLED: usize = 64;
/// Outstanding READs and atomics that a QP serves as responder.
const READS_SERVED: u8 = 128;
/// RNR retries: without end.
const RNR_RETRIES: u8 = 7;

/// A program's interface to the NIC.
pub(crate) struct Nic {
    rnic: Rnic<Spans>,
    profile: NicProfile,
    pd: PdId,
    cq: CqId,
    keys: MrKeys,
    /// QP, peer memory and owner of each slot.
    qps: Vec<QpUse>,
    /// The queue that QPs with receives share.
    srq: Option<Shared>,
    /// Program and thread of each completion queue that raises events.
    threads: Vec<Option<(usize, usize)>>,
    /// Earliest time at which the port begins the next message.
    message_at: Instant,
}

/// A shared receive queue.
struct Shared {
    id: SrqId,
    depth: u32,
    is_filled: bool,
}

#[derive(Clone, Copy)]
struct QpUse {
    qpn: Qpn,
    kind: QpKind,
    dscp: u8,
    program: usize,
    window: Window,
    arrivals: Arrivals,
    peer_address: u64,
    peer_rkey: RKey,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    ip: IpAddr,
    qpn: Qpn,
    /// Start of its memory, and the key.
    address: u64,
    rkey: RKey,
}

/// Parameters of a connection, as seen by one end.
#[derive(Clone, Copy, Debug)]
struct Terms {
    mtu: Mtu,
    /// First PSN of this end and of its peer.
    first_psn: Psn,
    peer_psn: Psn,
    timeout: u8,
    retry_count: u8,
    /// Maximum outstanding READs and atomics of this end.
    reads: u8,
}

/// A completion, and the time at which its program can see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub at: Instant,
    pub slot: usize,
    pub completion: Completion,
}

/// Operation of a flow.
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
    /// `true` if each message consumes a receive of the responder.
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

/// The programs of a host.
pub(crate) enum Program {
    Bandwidth(Bandwidth),
    Latency(Latency),
    Receiver(Receiver),
    Sender(Sender),
    Listener(Listener),
    Initiator(Initiator),
    Controller(Controller),
    Migrator(Migrator),
}

macro_rules! each {
    ($program:expr, $it:ident => $call:expr) => {
        match $program {
            Program::Bandwidth($it) => $call,
            Program::Latency($it) => $call,
            Program::Receiver($it) => $call,
            Program::Sender($it) => $call,
            Program::Listener($it) => $call,
            Program::Initiator($it) => $call,
            Program::Controller($it) => $call,
            Program::Migrator($it) => $call,
        }
    };
}

impl Program {
    /// `true` if it has succeeded or failed, or has no end of its own.
    pub fn is_done(&self) -> bool {
        match self {
            Program::Bandwidth(program) => program.is_done(),
            Program::Latency(program) => program.is_done(),
            Program::Sender(program) => program.is_done(),
            Program::Initiator(program) => program.is_done(),
            Program::Migrator(program) => program.is_done(),
            Program::Receiver(_) | Program::Listener(_) | Program::Controller(_) => true,
        }
    }

    /// Messages that a requester has completed, when the last was, and its goal. `None`: a latency
    /// test or a responder.
    pub fn completed(&self) -> Option<(u64, Instant, Goal)> {
        match self {
            Program::Bandwidth(it) => Some((it.messages, it.last, it.plan().goal)),
            Program::Sender(it) => Some((it.messages, it.last, it.plan().goal)),
            Program::Initiator(it) => Some((it.messages, it.last, it.commands().goal)),
            Program::Migrator(it) => Some((it.messages, it.last, it.goal())),
            _ => None,
        }
    }

    /// The threads of a program that waits for events.
    pub fn threads(&self) -> Option<&Threads> {
        match self {
            Program::Sender(program) => Some(program.threads()),
            Program::Listener(program) => Some(program.threads()),
            _ => None,
        }
    }

    fn threads_mut(&mut self) -> Option<&mut Threads> {
        match self {
            Program::Sender(program) => Some(program.threads_mut()),
            Program::Listener(program) => Some(program.threads_mut()),
            _ => None,
        }
    }

    /// Handles a completion of a program that polls.
    fn complete(&mut self, seen: Seen) {
        match self {
            Program::Bandwidth(program) => program.complete(seen),
            Program::Latency(program) => program.complete(seen),
            Program::Receiver(program) => program.complete(seen),
            Program::Initiator(program) => program.complete(seen),
            Program::Controller(program) => program.complete(seen),
            Program::Migrator(program) => program.complete(seen),
            // Their threads poll their own completion queues.
            Program::Sender(_) | Program::Listener(_) => {}
        }
    }

    fn start(&mut self, at: Instant, slots: Vec<usize>, nic: &mut Nic) {
        each!(self, it => it.start(at, slots, nic));
    }
}

/// A host with one port, side 0.
pub(crate) struct Host {
    nic: Nic,
    /// `None`: its NIC receives at line rate.
    intake: Option<Box<Intake>>,
    programs: Vec<Program>,
    /// Connections of the connection manager; `None`: unused.
    connections: Option<Box<Connections>>,
    /// Some QPs complete their sends as they transmit.
    is_unreliable: bool,
}

/// The link at a host's port.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Rate that defines pause quanta; `None`: pauses are ignored.
    pub rate: Option<BitRate>,
    /// Bytes on the wire that arrive after a pause was sent.
    pub headroom_bytes: u64,
    pub dcqcn: Option<Dcqcn>,
}

impl Nic {
    /// Time for a program to post one work request, and to poll one completion.
    pub fn costs(&self) -> (Duration, Duration) {
        (Duration::from_ns(self.profile.post_ns), Duration::from_ns(self.profile.poll_ns))
    }

    /// Time for a program to ring a doorbell.
    pub fn list_cost(&self) -> Duration {
        Duration::from_ns(self.profile.list_ns)
    }

    /// READs of a queue pair that the NIC has outstanding at most.
    pub fn reads_max(&self) -> u32 {
        self.profile.outstanding_reads.into()
    }

    /// The start of a slot's memory and its key, as a peer names them.
    pub fn own_memory(&self, slot: usize) -> (u64, RKey) {
        (Spans::address(slot), self.keys.rkey)
    }

    /// Returns the time at which the NIC sees a work request posted at `at`.
    pub fn doorbell(&self, at: Instant) -> Instant {
        at + Duration::from_ns(self.profile.doorbell_ns)
    }

    /// Returns the time at which a program sees a completion of time `at`.
    pub fn seen(&self, at: Instant) -> Instant {
        at + Duration::from_ns(self.profile.completion_ns)
    }

    /// Begins a message.
    ///
    /// # Errors
    /// The time at which the port can begin one.
    pub fn begin_message(&mut self, now: Instant) -> Result<(), Instant> {
        if self.message_at > now {
            return Err(self.message_at);
        }
        self.message_at = now + Duration::from_ns(self.profile.message_ns);
        Ok(())
    }

    /// Messages that were received completely in a slot's memory.
    pub fn messages(&self, slot: usize) -> u64 {
        self.rnic.memory().messages(slot)
    }

    /// Out-of-place writes to a slot's memory.
    pub fn misplaced(&self, slot: usize) -> u64 {
        self.rnic.memory().misplaced(slot)
    }

    /// Posts a work request, visible to the device immediately. Returns whether it was accepted.
    pub fn post(&mut self, now: Instant, slot: usize, posted: &Posted) -> bool {
        let &Posted { op, size, wr_id, signaled, solicited, offset, .. } = posted;
        let QpUse { qpn, peer_address, peer_rkey: rkey, .. } = self.qps[slot];
        let remote_address = peer_address + offset;
        // Immediate data numbers the messages of a QP.
        let number = Some((wr_id as u32).to_be_bytes());
        let op = match op {
            Op::Write => SendOp::Write { remote_address, rkey, immediate: None },
            Op::WriteImmediate => SendOp::Write { remote_address, rkey, immediate: number },
            Op::Send => SendOp::Send { immediate: None, invalidate: None },
            Op::Read => SendOp::Read { remote_address, rkey },
            Op::Atomic => SendOp::FetchAdd { remote_address, rkey, add: 1 },
        };
        let address = match &posted.capsule {
            Some(capsule) => self.rnic.memory_mut().load(slot, capsule),
            None => Spans::address(slot),
        };
        let segments = [Sge { address, len: size, lkey: self.keys.lkey }];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: posted.capsule.is_some(),
            signaled,
            solicited,
            fence: false,
        };
        self.rnic.post_send(now, qpn, &wr).is_ok()
    }

    /// Posts a receive for a message of at most `size` bytes. Returns whether there was room.
    pub fn post_receive(&mut self, slot: usize, size: u32) -> bool {
        self.post_receive_at(Spans::address(slot), slot, size)
    }

    /// Posts a receive for a capsule, which leaves the slot's data alone. Returns whether there was
    /// room.
    pub fn post_capsule_receive(&mut self, slot: usize, size: u32) -> bool {
        self.post_receive_at(Spans::capsules(slot), slot, size)
    }

    fn post_receive_at(&mut self, address: u64, slot: usize, size: u32) -> bool {
        let segments = [Sge { address, len: size, lkey: self.keys.lkey }];
        let wr = longhaul_rnic::RecvWr { wr_id: 0, segments: &segments };
        match &self.srq {
            Some(shared) => self.rnic.post_srq_recv(shared.id, &wr).is_ok(),
            None => self.rnic.post_recv(self.qps[slot].qpn, &wr).is_ok(),
        }
    }

    /// Returns whether QPs share a receive queue.
    pub fn is_shared(&self) -> bool {
        self.srq.is_some()
    }

    /// Fills the shared receive queue, the first time.
    pub fn fill_shared(&mut self, size: u32) {
        let Some(shared) = self.srq.as_mut().filter(|shared| !shared.is_filled) else { return };
        shared.is_filled = true;
        for _ in 0..shared.depth {
            self.post_receive(0, size);
        }
    }

    /// Notes a message that a program took from a completion queue at `at`. Returns its slot.
    pub fn arrived(&mut self, at: Instant, completion: &Completion) -> usize {
        let slot = self.slot(completion.qpn);
        let QpUse { window, arrivals, .. } = &mut self.qps[slot];
        match completion.immediate {
            Some(number) => arrivals.note_number(at, u32::from_be_bytes(number), window.holds(at)),
            None => arrivals.note(at, window.holds(at)),
        }
        slot
    }

    /// What a responder's program knows of a slot's messages.
    pub fn arrivals(&self, slot: usize) -> &Arrivals {
        &self.qps[slot].arrivals
    }

    /// Messages that ended before they were complete in a slot's memory.
    pub fn incomplete(&self, slot: usize) -> u64 {
        self.rnic.memory().incomplete(slot)
    }

    fn slot(&self, qpn: Qpn) -> usize {
        (qpn.get() - self.rnic.config().qpn_first) as usize
    }

    /// Creates a completion queue whose events go to a thread.
    fn create_cq(&mut self, depth: u32, thread: (usize, usize)) -> Result<CqId, VerbsError> {
        let cq = self.rnic.create_cq(depth)?;
        let at = cq.0 as usize;
        self.threads.resize(self.threads.len().max(at + 1), None);
        self.threads[at] = Some(thread);
        Ok(cq)
    }

    /// Requests the next event of a completion queue.
    fn arm(&mut self, cq: CqId, solicited_only: bool) {
        // The queue exists as long as its program.
        let _ = self.rnic.arm_cq(cq, solicited_only);
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub op: Op,
    pub size: u32,
    pub wr_id: u64,
    pub signaled: bool,
    pub solicited: bool,
    /// Offset of its data in the peer's memory, in bytes.
    pub offset: u64,
    /// The bytes of a SEND, which is posted inline; without, a message has a length only.
    pub capsule: Option<Capsule>,
}

/// Parameters of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpPlan {
    pub kind: QpKind,
    pub dscp: u8,
    pub sq_depth: u32,
    pub rq_depth: u32,
    /// Message size in bytes.
    pub size: u32,
    /// Inline bytes of a send work request.
    pub inline_max: u32,
    pub window: Window,
}

impl Host {
    /// Creates the `number`-th host of a network, 0 to 65,533.
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
        let intake = Intake::of(profile, &port, config.mac);
        config.seed = seed;
        config.link_rate = port.rate.filter(|_| profile.pfc);
        config.port_rate = BitRate::from_bps(profile.egress_rate_bps);
        config.dcqcn = port.dcqcn;
        config.window_messages = profile.outstanding_wqes;
        config.window_packets = profile.outstanding_psns;
        config.ack_request_every = profile.ack_request_every;
        // The profile alone determines when a NIC requests acknowledgements.
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
        let srq = match profile.srq_depth {
            0 => None,
            depth => {
                let id = rnic.create_srq(&SrqInit { pd, depth, sge_max: 1, limit: 0 })?;
                Some(Shared { id, depth, is_filled: false })
            }
        };
        let nic = Nic {
            srq,
            threads: Vec::new(),
            rnic,
            profile: profile.clone(),
            pd,
            cq,
            keys,
            qps: Vec::new(),
            message_at: Instant::ZERO,
        };
        Ok(Host { nic, intake, programs: Vec::new(), connections: None, is_unreliable: false })
    }

    /// The Ethernet address of the `number`-th host.
    pub fn address(number: usize) -> MacAddr {
        let [high, low] = (number as u16 + 1).to_be_bytes();
        MacAddr([2, 0, 10, 77, high, low])
    }

    /// Packets dropped at the NIC's full receive buffer, and flow control's counters. `None`: the
    /// NIC receives at line rate.
    pub fn intake(&self) -> Option<(u64, PauseCounters)> {
        self.intake.as_ref().map(|intake| (intake.discarded, intake.counters()))
    }

    /// Adds a program and returns its number.
    pub fn add(&mut self, program: Program) -> usize {
        self.programs.push(program);
        self.programs.len() - 1
    }

    /// Receives of the shared receive queue, if there is one.
    pub fn shared_depth(&self) -> Option<u32> {
        self.nic.srq.as_ref().map(|shared| shared.depth)
    }

    /// Adds a thread to a program that waits for events and is not added yet. Returns its number.
    pub fn add_thread(&mut self, threads: &mut Threads, depth: u32) -> Result<usize, VerbsError> {
        let program = self.programs.len();
        threads.add(program, depth, &mut self.nic).map(|(thread, _)| thread)
    }

    /// The program that serves the shared receive queue.
    pub fn listener_mut(&mut self) -> Option<(usize, &mut Listener)> {
        self.programs.iter_mut().enumerate().find_map(|(number, program)| match program {
            Program::Listener(listener) if self.nic.srq.is_some() => Some((number, listener)),
            _ => None,
        })
    }

    /// Creates an unconnected QP for a program, and for the thread of this number if the program
    /// waits for events. Returns its slot.
    pub fn create_qp(
        &mut self,
        program: usize,
        thread: usize,
        plan: &QpPlan,
    ) -> Result<usize, VerbsError> {
        let nic = &mut self.nic;
        let cq = self.programs[program].threads().map_or(nic.cq, |threads| threads.cq(thread));
        let srq = nic.srq.as_ref().filter(|_| plan.rq_depth > 0).map(|shared| shared.id);
        let init = QpInit {
            srq,
            rq_depth: if srq.is_some() { 0 } else { plan.rq_depth },
            signal_all: false,
            inline_max: plan.inline_max,
            ..QpInit::new(plan.kind, nic.pd, cq, plan.sq_depth)
        };
        let qpn = nic.rnic.create_qp(&init)?;
        nic.rnic.memory_mut().add(u64::from(plan.size), plan.kind == QpKind::Uc);
        let (kind, dscp, window) = (plan.kind, plan.dscp, plan.window);
        nic.qps.push(QpUse {
            qpn,
            kind,
            dscp,
            program,
            window,
            arrivals: Arrivals::default(),
            peer_address: 0,
            peer_rkey: RKey(0),
        });
        self.is_unreliable |= kind == QpKind::Uc;
        Ok(nic.qps.len() - 1)
    }

    /// Connects a QP of `a` with one of `b`, as programs that exchange parameters out of band.
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

    /// Returns both directions of requests between a QP of `a` and one of `b`, with their first
    /// PSNs.
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
        self.nic.rnic.config().addresses.first()
    }

    /// Connects a program's QPs through the connection manager when it begins; the program starts
    /// afterwards.
    pub fn call(&mut self, caller: Caller) -> Result<(), VerbsError> {
        caller.qps.iter().try_for_each(|qp| self.nic.initialize(qp.slot))?;
        self.connections.get_or_insert_default().call(caller);
        Ok(())
    }

    /// Prepares QPs for connection requests, and listens if `listens`. QPs of one port have numbers
    /// in the order of these calls.
    pub fn serve(&mut self, service: Service, listens: bool) -> Result<(), VerbsError> {
        service.qps.iter().try_for_each(|qp| self.nic.initialize(qp.slot))?;
        let connections = self.connections.get_or_insert_default();
        if listens { connections.listen(service, &mut self.nic) } else { Ok(()) }
    }

    /// Returns whether a program is done, and its connections of the connection manager have ended.
    pub fn is_done(&self, program: usize) -> bool {
        let by_manager =
            self.connections.as_ref().and_then(|connections| connections.is_over(program));
        by_manager.unwrap_or_else(|| self.programs[program].is_done())
    }

    /// Reason why a program's connections failed.
    pub fn connection_failure(&self, program: usize) -> Option<&str> {
        self.connections.as_ref()?.failure(program)
    }

    /// Set-up times of a program's connections, once all are established: sum, maximum, and count.
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

    /// A program's interface to the NIC.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Starts a program at `at`, with these QPs.
    pub fn start(&mut self, program: usize, at: Instant, slots: Vec<usize>) {
        let Host { nic, programs, .. } = self;
        programs[program].start(at, slots, nic);
    }

    /// The programs.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Delivers completions to the programs that poll, and events to the threads that wait.
    #[inline]
    fn deliver(&mut self, now: Instant) {
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
                let slot = nic.slot(completion.qpn);
                let seen = Seen { at, slot, completion: *completion };
                programs[nic.qps[slot].program].complete(seen);
            }
            if count < POLLED {
                break;
            }
        }
        while let Some(event) = nic.rnic.poll_event() {
            match event {
                Event::CompletionReady(cq) => {
                    let thread = nic.threads.get(cq.0 as usize).copied().flatten();
                    if let Some((program, thread)) = thread
                        && let Some(threads) = programs[program].threads_mut()
                    {
                        threads.notify(thread, at, nic);
                    }
                }
                Event::Cm(event) => {
                    if let Some(connections) = connections {
                        connections.handle(now, event, nic, programs);
                    }
                }
                Event::CqError(_) | Event::SrqLimitReached(_) | Event::Qp { .. } => {}
            }
        }
    }

    /// Delivers completions and events, and runs the programs.
    #[inline]
    fn turn(&mut self, now: Instant) {
        if let Some(connections) = &mut self.connections {
            connections.run(now, &mut self.nic);
        }
        self.deliver(now);
        let Host { nic, programs, connections, .. } = self;
        for program in &mut *programs {
            each!(program, it => it.run(now, nic));
        }
        if let Some(connections) = connections {
            connections.end(now, nic, programs);
        }
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
        if self.is_unreliable {
            self.deliver(now);
        }
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
