//! The host with the initiator, which connects again after every failure and goes on.

use super::nic::{BASE, MTU, Nic, READS, TIMEOUT, address_of};
use super::oracle::Oracle;
use super::target::subsystem;
use super::{INITIATOR, Setup, TARGET};
use longhaul_cm::{
    ConnectRequest, ConnectionId, Event as CmEvent, RdmaCmHeader, ServiceId, Transport,
};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_nvme::host::{
    Admin, Event as AdminEvent, Goal, HostError, Identity, IoQueue, Operation, OperationKind,
    Submission,
};
use longhaul_nvme::{CQE_LEN, IDENTIFY_LEN, PORT, QueueRequest, Remote, SQE_LEN, Status};
use longhaul_rnic::{Completion, CompletionOp, Event, QpState, SendOp, Status as WorkStatus};
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Memory of a queue.
const REGION: usize = 2 << 20;
/// Keep-alive timeout.
const KEEP_ALIVE: Duration = Duration::from_ms(5000);
/// Time until a connection is requested again after one that failed in set-up.
const AGAIN: Duration = Duration::from_ms(500);
/// Longest silence while operations are outstanding, as Linux has it.
const ANSWER_WITHIN: Duration = Duration::from_ms(30_000);
/// `wr_id` of SENDs; those of receives are below.
const SEND: u64 = 1 << 32;

/// An outstanding operation.
enum Work {
    Read { unit: usize, power_losses: u32 },
    Write { unit: usize, version: u64, power_losses: u32 },
    Flush { covered: Vec<u64> },
}

/// The connection of a queue.
struct Pair {
    qpn: Qpn,
    connection: ConnectionId,
    /// First PSN of the target.
    starting_psn: Psn,
    base: u64,
    data_len: u32,
}

impl Pair {
    fn response_at(&self, receive: u64) -> u64 {
        self.base + receive * CQE_LEN as u64
    }

    fn command_at(&self, slot: u16) -> u64 {
        let each = SQE_LEN as u64 + u64::from(self.data_len);
        self.base + (1 << 16) + u64::from(slot) * each
    }

    fn data_at(&self, slot: u16) -> u64 {
        self.command_at(slot) + SQE_LEN as u64
    }
}

struct Association {
    admin: Admin,
    io: Vec<IoQueue<Work>>,
    /// The admin queue's first.
    pairs: Vec<Pair>,
    /// Units with an outstanding operation.
    busy: BTreeSet<usize>,
    /// When an I/O queue last got a response, or a command while none was outstanding.
    heard_at: Instant,
}

impl Association {
    /// When the target counts as lost because operations are outstanding.
    fn answers_until(&self) -> Option<Instant> {
        let is_waiting = self.io.iter().any(|queue| queue.outstanding() > 0);
        is_waiting.then_some(self.heard_at + ANSWER_WITHIN)
    }
}

enum Phase {
    Down { until: Instant },
    Up(Box<Association>),
}

/// What the host still has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Random operations.
    Load {
        left: usize,
    },
    /// Read everything; the unit to read next.
    Check {
        next: usize,
    },
    Done,
}

pub struct Initiator {
    setup: Setup,
    nic: Nic,
    oracle: Rc<RefCell<Oracle>>,
    random: SplitMix64,
    phase: Phase,
    pub task: Task,
    /// Associations that came up.
    pub associations: u32,
    /// Why associations ended.
    pub failures: Vec<String>,
    pub violations: Vec<String>,
}

impl Initiator {
    pub fn new(setup: &Setup, oracle: &Rc<RefCell<Oracle>>) -> Initiator {
        let len = (1 + usize::from(setup.queues)) * REGION;
        Initiator {
            setup: setup.clone(),
            nic: Nic::start(setup, INITIATOR, 0, len),
            oracle: oracle.clone(),
            random: SplitMix64::new(setup.seed ^ 0x4057),
            phase: Phase::Down { until: Instant::ZERO },
            task: Task::Load { left: setup.operations },
            associations: 0,
            failures: Vec::new(),
            violations: Vec::new(),
        }
    }

    fn identity() -> Identity {
        let host = "nqn.2026-01.longhaul:host".parse().expect("valid");
        Identity { host_id: [1; 16], host, subsystem: subsystem() }
    }

    /// Requests the connection of queue `number`, whose slots have `data_len` bytes.
    fn connect(&mut self, now: Instant, number: u16, request: QueueRequest, data_len: u32) -> Pair {
        let receives = u64::from(request.receives);
        let base = BASE + usize::from(number) as u64 * REGION as u64;
        let qpn = self.nic.create_qp(now, 4 * u32::from(request.sends) + 8, receives as u32);
        let starting_psn = Psn::new(self.random.next_u64() as u32);
        let [source, destination] = [INITIATOR, TARGET].map(address_of);
        let header = RdmaCmHeader { source_port: 999, source, destination };
        let connect = ConnectRequest {
            destination_ip: destination,
            source_ip: source,
            service_id: ServiceId::tcp(PORT),
            transport: Transport::Rc,
            local_qpn: qpn,
            starting_psn,
            responder_resources: READS,
            initiator_depth: READS,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu_code: MTU.code(),
            local_ack_timeout: TIMEOUT,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &header.with_user_data(&request.write()).expect("it fits"),
        };
        let connection = self.nic.rnic.cm().connect(now, &connect).expect("there is room");
        let pair = Pair { qpn, connection, starting_psn, base, data_len };
        for receive in 0..receives {
            self.nic.post_recv(qpn, receive, pair.response_at(receive), CQE_LEN as u32);
        }
        pair
    }

    fn begin(&mut self, now: Instant) {
        let depth = Admin::DEPTH;
        let request = QueueRequest { queue: 0, receives: depth, sends: depth - 1, controller: 0 };
        let pair = self.connect(now, 0, request, IDENTIFY_LEN as u32);
        let goal = Goal::Queues(self.setup.queues);
        self.phase = Phase::Up(Box::new(Association {
            admin: Admin::new(Self::identity(), goal, KEEP_ALIVE),
            io: Vec::new(),
            pairs: vec![pair],
            busy: BTreeSet::new(),
            heard_at: now,
        }));
    }

    /// Ends the association. Its outstanding operations may or may not have been executed.
    fn fail(&mut self, now: Instant, why: String) {
        let Phase::Up(association) = &mut self.phase else { return };
        let is_up = association.io.iter().any(IoQueue::is_ready);
        for pair in &association.pairs {
            // The peer may have ended it.
            let _ = self.nic.rnic.cm().disconnect(now, pair.connection);
            self.nic.rnic.destroy_qp(pair.qpn).unwrap();
        }
        let pause = if is_up { self.setup.reconnect_after } else { AGAIN };
        self.failures.push(format!("{now:?}: {why}"));
        self.phase = Phase::Down { until: now + pause };
        if let Task::Check { next } = &mut self.task {
            *next = 0;
        }
    }

    fn manage(&mut self, now: Instant, event: CmEvent) {
        let Phase::Up(association) = &mut self.phase else { return };
        let connection = event.connection();
        let number = association.pairs.iter().position(|pair| pair.connection == connection);
        let Some(number) = number else { return };
        match event {
            CmEvent::ConnectResponse { info, .. } => {
                let Pair { qpn, starting_psn, .. } = association.pairs[number];
                let psns = [info.peer_psn, starting_psn];
                self.nic.make_ready(now, qpn, INITIATOR, info.peer_qpn, psns);
                self.nic.rnic.cm().ready_to_use(now, connection).expect("it was answered");
                if number > 0 {
                    self.send_connect(now, number);
                }
            }
            CmEvent::Rejected { reason, .. } => self.fail(now, format!("rejected: {reason:?}")),
            CmEvent::Unreachable { .. } => self.fail(now, "unreachable".to_owned()),
            CmEvent::Disconnected { .. } => self.fail(now, "disconnected".to_owned()),
            _ => {}
        }
    }

    /// SENDs the Connect command of an I/O queue.
    fn send_connect(&mut self, now: Instant, number: usize) {
        let Phase::Up(association) = &mut self.phase else { return };
        let Association { admin, io, pairs, .. } = &mut **association;
        let rkey = self.nic.keys.rkey;
        let pair = &pairs[number];
        let buffer = |slot| Remote { address: pair.data_at(slot), rkey, len: pair.data_len };
        let controller = admin.progress().controller;
        let connect = io[number - 1].connect(&Self::identity(), controller, buffer);
        send(&mut self.nic, now, pair, &connect.expect("it was not sent"));
    }

    /// Connects the I/O queues.
    fn connect_queues(&mut self, now: Instant) {
        let Phase::Up(association) = &self.phase else { return };
        let controller = association.admin.progress().controller;
        let in_capsule = association.admin.progress().data.as_ref().map_or(0, |it| it.in_capsule);
        let depth = self.setup.depth;
        for number in 1..=self.setup.queues {
            let request =
                QueueRequest { queue: number, receives: depth + 1, sends: depth, controller };
            let data_len = (self.setup.unit_len as u32).max(1024);
            let pair = self.connect(now, number, request, data_len);
            let Phase::Up(association) = &mut self.phase else { return };
            association.pairs.push(pair);
            association.io.push(IoQueue::new(number, depth, in_capsule));
        }
        self.associations += 1;
    }

    fn complete(&mut self, now: Instant, completion: &Completion) -> Result<(), HostError> {
        let Phase::Up(association) = &mut self.phase else { return Ok(()) };
        let Association { admin, io, pairs, busy, heard_at } = &mut **association;
        let number = pairs.iter().position(|pair| pair.qpn == completion.qpn);
        let Some(number) = number else { return Ok(()) };
        let pair = &pairs[number];
        if completion.status != WorkStatus::Success {
            let why = format!("queue {number}: {:?}", completion.status);
            self.fail(now, why);
            return Ok(());
        }
        if completion.op != CompletionOp::Recv {
            return Ok(());
        }
        let at = pair.response_at(completion.wr_id);
        let capsule = self.nic.read(at, completion.byte_len as usize);
        self.nic.post_recv(pair.qpn, completion.wr_id, at, CQE_LEN as u32);
        if number == 0 {
            let nic = &self.nic;
            let data = |slot, len| nic.read(pair.data_at(slot), len);
            if admin.completed(now, &capsule, data)? == Some(AdminEvent::Ready) {
                self.connect_queues(now);
            }
            return Ok(());
        }
        *heard_at = now;
        let Some(answer) = io[number - 1].completed(&capsule)? else { return Ok(()) };
        if answer.status != Status::SUCCESS {
            self.violations.push(format!("{now:?}: an operation failed: {}", answer.status));
            return Ok(());
        }
        let mut oracle = self.oracle.borrow_mut();
        match answer.context {
            Work::Read { unit, power_losses } => {
                busy.remove(&unit);
                let found = self.nic.read(pair.data_at(answer.slot), oracle.unit_len());
                if let Err(why) = oracle.read(unit, &found, power_losses) {
                    self.violations.push(format!("{now:?}: {why}"));
                }
            }
            Work::Write { unit, version, power_losses } => {
                busy.remove(&unit);
                oracle.acknowledge(unit, version, power_losses);
            }
            Work::Flush { covered } => oracle.flushed(&covered),
        }
        Ok(())
    }

    /// Starts operations on idle queues.
    fn submit(&mut self, now: Instant) {
        let Phase::Up(association) = &mut self.phase else { return };
        if association.answers_until().is_none() {
            association.heard_at = now;
        }
        let Association { io, pairs, busy, .. } = &mut **association;
        let mut oracle = self.oracle.borrow_mut();
        let unit_len = oracle.unit_len();
        let rkey = self.nic.keys.rkey;
        for (queue, pair) in io.iter_mut().zip(&pairs[1..]) {
            while queue.next_slot().is_some() {
                let (kind, unit) = match &mut self.task {
                    Task::Load { left: 0 } if busy.is_empty() => {
                        self.task = Task::Check { next: 0 };
                        continue;
                    }
                    Task::Load { left: 0 } => break,
                    Task::Load { left } => {
                        let draw = self.random.next_u64();
                        let units = oracle.units();
                        let from = (draw >> 8) as usize % units;
                        let idle = (from..from + units).map(|unit| unit % units);
                        let Some(unit) = { idle }.find(|unit| !busy.contains(unit)) else { break };
                        *left -= 1;
                        match draw % 16 {
                            0 => (OperationKind::Flush, unit),
                            1..=4 => (OperationKind::Read, unit),
                            _ => (OperationKind::Write, unit),
                        }
                    }
                    Task::Check { next } if *next < oracle.units() => {
                        *next += 1;
                        (OperationKind::Read, *next - 1)
                    }
                    Task::Check { .. } if busy.is_empty() => {
                        self.task = Task::Done;
                        break;
                    }
                    Task::Check { .. } | Task::Done => break,
                };
                if kind != OperationKind::Flush {
                    busy.insert(unit);
                }
                let blocks = (unit_len >> 9) as u32;
                let mut operation = Operation {
                    kind,
                    namespace: 1,
                    block: unit as u64 * u64::from(blocks),
                    blocks,
                    bytes: unit_len as u32,
                };
                let slot = queue.next_slot().expect("just asked");
                let power_losses = oracle.power_losses;
                let work = match kind {
                    OperationKind::Read => Work::Read { unit, power_losses },
                    OperationKind::Flush => {
                        operation.bytes = 0;
                        Work::Flush { covered: oracle.covered() }
                    }
                    _ => {
                        let (version, bytes) = oracle.begin(unit);
                        self.nic.write(pair.data_at(slot), &bytes);
                        Work::Write { unit, version, power_losses }
                    }
                };
                let buffer =
                    |slot| Remote { address: pair.data_at(slot), rkey, len: pair.data_len };
                let submission = queue.submit(&operation, work, buffer);
                let Ok(submission) = submission else { unreachable!("a slot is free") };
                send(&mut self.nic, now, pair, &submission);
            }
        }
    }

    /// SENDs commands of the admin queue.
    fn administer(&mut self, now: Instant) -> Result<(), HostError> {
        let Phase::Up(association) = &mut self.phase else { return Ok(()) };
        let Association { admin, pairs, .. } = &mut **association;
        let pair = &pairs[0];
        let is_connected =
            self.nic.rnic.query_qp(pair.qpn).is_ok_and(|qp| qp.state == QpState::ReadyToSend);
        let rkey = self.nic.keys.rkey;
        let buffer = |slot| Remote { address: pair.data_at(slot), rkey, len: pair.data_len };
        while is_connected && let Some(submission) = admin.poll_command(now, buffer)? {
            send(&mut self.nic, now, pair, &submission);
        }
        Ok(())
    }

    /// `false` if nothing happened.
    fn turn(&mut self, now: Instant) -> bool {
        if let Phase::Down { until } = self.phase
            && until <= now
            && self.task != Task::Done
        {
            self.begin(now);
        }
        let mut completions = Vec::new();
        self.nic.rnic.poll_cq(self.nic.cq, 64, |completion| completions.push(completion));
        let mut worked = !completions.is_empty();
        for completion in &completions {
            if let Err(error) = self.complete(now, completion) {
                self.fail(now, error.to_string());
            }
        }
        while let Some(event) = self.nic.rnic.poll_event() {
            worked = true;
            if let Event::Cm(event) = event {
                self.manage(now, event);
            }
        }
        if let Err(error) = self.administer(now) {
            self.fail(now, error.to_string());
        }
        if let Phase::Up(association) = &self.phase
            && association.answers_until().is_some_and(|until| until <= now)
        {
            self.fail(now, format!("no answer within {ANSWER_WITHIN:?}"));
        }
        self.submit(now);
        worked
    }
}

fn send(nic: &mut Nic, now: Instant, pair: &Pair, submission: &Submission) {
    let Submission { slot, command, data, in_capsule } = submission;
    nic.write(pair.data_at(*slot), data);
    nic.write(pair.command_at(*slot), command);
    let op = SendOp::Send { immediate: None, invalidate: None };
    let piece = (pair.command_at(*slot), SQE_LEN as u32 + in_capsule);
    nic.post(now, pair.qpn, SEND, op, piece);
}

impl Node for Initiator {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.nic.rnic.handle_frame(now, side, frame);
        while self.turn(now) {}
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.nic.rnic.handle_timeout(now);
        while self.turn(now) {}
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.nic.rnic.poll_transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let at = |at, reason| Deadline { at, reason };
        let own = match &self.phase {
            Phase::Down { until } if self.task != Task::Done => Some(at(*until, "connect")),
            Phase::Down { .. } => None,
            Phase::Up(association) => {
                let due = association.admin.poll_timeout().into_iter();
                due.chain(association.answers_until()).min().map(|due| at(due, "answer"))
            }
        };
        Deadline::earliest(self.nic.rnic.poll_timeout(), own)
    }
}
