//! A host: the device, and a program that posts the plan's requests and checks each completion.

use super::memory::{self, Area, Pattern};
use super::plan::{Kind, Message, Plan};
use super::{Connect, Count, Setup, address_of};
use longhaul_cm::{ConnectionId, DisconnectCause, RejectReason, ServiceId, Waited};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_rnic::{
    Access, AddressVector, BringUp, Completion, CompletionOp, Config, CqId, Event, MrKeys, QpAttr,
    QpInit, QpKind, QpState, RecvWr, Rnic, SendOp, SendWr, Sge, Status,
};
use longhaul_units::{Duration, Instant, Qpn, RKey};
use longhaul_wire::MacAddr;
use std::collections::VecDeque;
use std::rc::Rc;

/// Port on which the second host listens.
pub(super) const PORT: u16 = 18515;
/// READs and atomics that a QP serves at once.
pub(super) const READS_SERVED: u8 = 16;

/// Attributes of a QP that its peer needs.
#[derive(Clone, Copy)]
pub struct Peer {
    pub qpn: Qpn,
    pub rkey: RKey,
}

/// One end of a QP.
pub(super) struct Queue {
    pub(super) qpn: Qpn,
    peer: Option<Peer>,
    /// Connection of the connection manager.
    pub(super) connection: Option<ConnectionId>,
    pub(super) life: usize,
    pub(super) is_up: bool,
    pub(super) may_send: bool,
    has_failed: bool,
    /// Messages, receives and receive completions so far, over all lives.
    posted: usize,
    pub(super) completed: usize,
    receives_posted: usize,
    received: usize,
}

/// A state change of a QP without a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Both ends are reset, with packets in flight or not.
    Down,
    /// Both ends get new numbers, and receives are posted.
    Up,
    /// Both ends are up: requests may begin.
    Begin,
}

/// How a QP's life ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Completion(Status),
    Rejected(RejectReason),
    Unreachable(Waited),
    /// Disconnected by the peer, or by a failure.
    Disconnected(DisconnectCause),
}

/// An error reported to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub at: Instant,
    pub host: usize,
    pub qp: usize,
    pub life: usize,
    pub message: usize,
    pub end: End,
}

pub struct Host {
    pub(super) number: usize,
    pub(super) setup: Setup,
    pub(super) plan: Rc<Plan>,
    pub rnic: Rnic<Pattern>,
    cq: CqId,
    keys: MrKeys,
    pub(super) queues: Vec<Queue>,
    /// Ordered by time.
    turns: VecDeque<(Instant, usize, Turn)>,
    /// Receives to be posted late.
    receives: VecDeque<(Instant, usize, usize)>,
    pub failures: Vec<Failure>,
    pub violations: Vec<String>,
    touched: Vec<usize>,
}

impl Host {
    pub fn new(number: usize, setup: &Setup, plan: &Rc<Plan>) -> Host {
        let mac = MacAddr([2, 0, 10, 77, 0, number as u8 + 1]);
        let mut config = Config::new(mac, address_of(number));
        config.port_rate = Some(setup.rate);
        config.qpn_first = 0x11 + 0x400 * number as u32;
        setup.nic.apply(&mut config);
        config.cm.connections_max = config.cm.connections_max.max(2 * setup.qps * setup.lives);
        config.cm.half_open_max = config.cm.half_open_max.max(setup.qps);
        let mut rnic = Rnic::new(config, Pattern::new(number, plan, setup.mtu.bytes()));
        let pd = rnic.alloc_pd().unwrap();
        let cq = rnic.create_cq(1 << 20).unwrap();
        let (first, len) = memory::extent(setup.qps);
        let keys = rnic.reg_mr(pd, first, len, first, Access::ALL).unwrap();
        let init =
            QpInit { rq_depth: setup.receives, ..QpInit::new(QpKind::Rc, pd, cq, setup.depth) };
        let queues = (0..setup.qps).map(|_| Queue {
            qpn: rnic.create_qp(&init).unwrap(),
            peer: None,
            connection: None,
            life: 0,
            is_up: false,
            may_send: false,
            has_failed: false,
            posted: 0,
            completed: 0,
            receives_posted: 0,
            received: 0,
        });
        let queues = queues.collect();
        if setup.connect == Connect::Manager && number == 1 {
            rnic.cm().listen(ServiceId::tcp(PORT), setup.qps).unwrap();
        }
        Host {
            number,
            setup: setup.clone(),
            plan: plan.clone(),
            rnic,
            cq,
            keys,
            queues,
            turns: turns(setup, plan, number),
            receives: VecDeque::new(),
            failures: Vec::new(),
            violations: Vec::new(),
            touched: Vec::new(),
        }
    }

    pub fn peers(&self) -> Vec<Peer> {
        self.queues.iter().map(|queue| Peer { qpn: queue.qpn, rkey: self.keys.rkey }).collect()
    }

    pub fn introduce(&mut self, peers: &[Peer]) {
        self.queues.iter_mut().zip(peers).for_each(|(queue, peer)| queue.peer = Some(*peer));
    }

    /// True if a QP is in its last life, and has nothing left to complete or to receive.
    pub fn is_done(&self, qp: usize) -> bool {
        let queue = &self.queues[qp];
        let [mine, theirs] =
            [self.number, 1 - self.number].map(|from| &self.plan.streams[qp][from]);
        let is_last = queue.life + 1 == self.setup.lives;
        if queue.has_failed && self.setup.connect == Connect::Manager {
            // Nobody requests another connection.
            return true;
        }
        is_last
            && queue.is_up
            && (queue.has_failed
                || queue.completed == mine.messages.len()
                    && queue.received == theirs.receives.len()
                    && self.rnic.memory().placed(qp) == theirs.messages.len())
    }

    pub fn has_failed(&self, qp: usize) -> bool {
        self.queues[qp].has_failed
    }

    /// Describes the state of a QP at the end of a run.
    pub fn describe(&self, qp: usize) -> String {
        let Queue { life, posted, completed, received, qpn, .. } = self.queues[qp];
        let placed = self.rnic.memory().placed(qp);
        let theirs = &self.plan.streams[qp][1 - self.number];
        format!(
            "QP {qp} ({:#x}) of host {}: life {life}, posted {posted}, completed {completed} of \
             {}, received {received} of {}, placed {placed} of {}",
            qpn.get(),
            self.number,
            self.plan.streams[qp][self.number].messages.len(),
            theirs.receives.len(),
            theirs.messages.len(),
        )
    }

    /// Progress of this host's requests.
    pub fn count(&self, qp: usize, responder: &Host) -> Count {
        let messages = &self.plan.streams[qp][self.number].messages;
        let completed = self.queues[qp].completed;
        let fence = (0..completed).rev().find(|&message| messages[message].kind.fetches());
        let [placed, reached] =
            [Pattern::placed, Pattern::reached].map(|of| of(responder.rnic.memory(), qp));
        let received =
            &self.plan.streams[qp][self.number].receives[..responder.queues[qp].received];
        let reached = reached.max(received.last().map_or(0, |&message| message + 1));
        Count { messages: messages.len(), completed, placed, reached, fence }
    }

    /// A message of this host's requests.
    pub fn message(&self, qp: usize, index: usize) -> Message {
        self.plan.streams[qp][self.number].messages[index]
    }

    /// Checks that each atomic of the last life was executed once, on QPs that finished.
    pub fn check_words(&mut self, qps: &[usize]) {
        let life = self.setup.lives - 1;
        for &qp in qps {
            let wanted = self.plan.streams[qp][1 - self.number].word_after(life);
            let found = self.rnic.memory().word(qp, life);
            if wanted != found {
                self.violations.push(format!("host {}: QP {qp}'s word is {found:#x}", self.number));
            }
        }
    }

    fn turn(&mut self, now: Instant) {
        while let Some(&(at, qp, turn)) = self.turns.front()
            && at <= now
        {
            self.turns.pop_front();
            self.take_turn(now, qp, turn);
        }
        while let Some(&(at, qp, life)) = self.receives.front()
            && at <= now
        {
            self.receives.pop_front();
            if self.queues[qp].life == life && self.queues[qp].is_up {
                self.post_receives(qp, 1);
            }
        }
        loop {
            let mut taken = [None; 32];
            let mut count = 0;
            self.rnic.poll_cq(self.cq, taken.len(), |completion| {
                taken[count] = Some(completion);
                count += 1;
            });
            for completion in taken[..count].iter().flatten() {
                self.complete(now, completion);
            }
            if count < taken.len() {
                break;
            }
        }
        for qp in std::mem::take(&mut self.touched) {
            self.post(now, qp);
        }
        while let Some(event) = self.rnic.poll_event() {
            if let Event::Cm(event) = event {
                self.manage(now, event);
            }
        }
    }

    fn take_turn(&mut self, now: Instant, qp: usize, turn: Turn) {
        match turn {
            Turn::Down => {
                self.reset(now, qp);
                self.begin_life(qp, self.queues[qp].life + 1);
                if let Some(connection) = self.queues[qp].connection {
                    // It is established, or has already ended.
                    let _ = self.rnic.cm().disconnect(now, connection);
                }
            }
            Turn::Up => {
                self.initialize(now, qp);
                match self.setup.connect {
                    Connect::Aside => self.make_ready(now, qp),
                    Connect::Manager => self.ask(now, qp),
                }
            }
            Turn::Begin => self.begin(now, qp),
        }
    }

    /// Adds a future turn.
    pub(super) fn add_turn(&mut self, at: Instant, qp: usize, turn: Turn) {
        let place = self.turns.partition_point(|&(other, ..)| other <= at);
        self.turns.insert(place, (at, qp, turn));
    }

    pub(super) fn begin(&mut self, now: Instant, qp: usize) {
        self.queues[qp].may_send = true;
        self.post(now, qp);
    }

    pub(super) fn reset(&mut self, now: Instant, qp: usize) {
        let reset = QpAttr::to(QpState::Reset);
        self.rnic.modify_qp(now, self.queues[qp].qpn, &reset).unwrap();
        self.queues[qp].is_up = false;
        self.queues[qp].may_send = false;
    }

    pub(super) fn fail(&mut self, at: Instant, qp: usize, message: usize, end: End) {
        let queue = &mut self.queues[qp];
        if !queue.has_failed {
            let (host, life) = (self.number, queue.life);
            self.failures.push(Failure { at, host, qp, life, message, end });
        }
        queue.has_failed = true;
    }

    pub(super) fn begin_life(&mut self, qp: usize, life: usize) {
        let [mine, theirs] =
            [self.number, 1 - self.number].map(|from| &self.plan.streams[qp][from]);
        let queue = &mut self.queues[qp];
        queue.life = life;
        queue.has_failed = false;
        (queue.posted, queue.completed) = (mine.first_of(life), mine.first_of(life));
        let [first, _] = theirs.receives_of(life);
        (queue.receives_posted, queue.received) = (first, first);
        self.rnic.memory_mut().begin_life(qp, life);
    }

    pub(super) fn initialize(&mut self, now: Instant, qp: usize) {
        let attr = QpAttr::initialize(Access::ALL);
        self.rnic.modify_qp(now, self.queues[qp].qpn, &attr).unwrap();
        self.queues[qp].is_up = true;
        self.post_receives(qp, self.setup.receives as usize);
    }

    pub(super) fn make_ready(&mut self, now: Instant, qp: usize) {
        let Queue { qpn, life, peer, .. } = self.queues[qp];
        let peer = peer.expect("introduced");
        let psn = |host| self.plan.first_psn(qp, host, life);
        let number = self.plan.number(qp, self.number, life, 2);
        let flow_label = if self.setup.random_ports { number as u32 & 0xf_ffff } else { 0 };
        let ip = address_of(1 - self.number);
        let nic = &self.setup.nic;
        let to = BringUp {
            address: AddressVector { flow_label, ..AddressVector::to(ip) },
            path_mtu: self.setup.mtu,
            sq_psn: psn(self.number),
            rq_psn: psn(1 - self.number),
            max_rd_atomic: nic.reads,
            max_dest_rd_atomic: READS_SERVED,
            min_rnr_timer: nic.rnr_timer,
            timeout: nic.timeout,
            retry_cnt: nic.retries,
            rnr_retry: nic.rnr_retries,
            ..BringUp::to(ip, peer.qpn)
        };
        let steps = to.make_ready(QpKind::Rc);
        steps.iter().for_each(|attr| self.rnic.modify_qp(now, qpn, attr).unwrap());
    }

    fn post_receives(&mut self, qp: usize, most: usize) {
        let Queue { qpn, life, .. } = self.queues[qp];
        let [_, end] = self.plan.streams[qp][1 - self.number].receives_of(life);
        let queue = &mut self.queues[qp];
        let to = end.min(queue.receives_posted + most);
        while queue.receives_posted < to {
            let number = queue.receives_posted as u64;
            let at = memory::address(qp, Area::Received, number * self.plan.stride);
            let segments =
                [Sge { address: at, len: self.plan.stride as u32, lkey: self.keys.lkey }];
            self.rnic.post_recv(qpn, &RecvWr { wr_id: number, segments: &segments }).unwrap();
            queue.receives_posted += 1;
        }
    }

    fn post(&mut self, now: Instant, qp: usize) {
        let stream = &self.plan.streams[qp][self.number];
        let queue = &mut self.queues[qp];
        let end = stream.first_of(queue.life + 1);
        if !queue.may_send || queue.has_failed || !self.setup.sends(self.number) {
            return;
        }
        while queue.posted < end && queue.posted - queue.completed < self.setup.depth as usize {
            let index = queue.posted;
            let (message, peer) = (stream.messages[index], queue.peer.expect("introduced"));
            let (op, area) =
                operation(qp, index, queue.life, &message, peer.rkey, self.plan.stride);
            let own = index as u64 * self.plan.stride;
            let address = memory::address(qp, area, own);
            let segments = [Sge { address, len: message.len, lkey: self.keys.lkey }];
            let wr = SendWr {
                wr_id: index as u64,
                op,
                segments: &segments,
                inline: false,
                signaled: true,
                solicited: false,
                fence: false,
            };
            self.rnic.post_send(now, queue.qpn, &wr).unwrap();
            queue.posted += 1;
        }
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        let qp = (completion.qpn.get() - self.rnic.config().qpn_first) as usize;
        if completion.status != Status::Success {
            let message = completion.wr_id as usize;
            return self.fail(now, qp, message, End::Completion(completion.status));
        }
        let is_receive =
            matches!(completion.op, CompletionOp::Recv | CompletionOp::RecvWriteImmediate);
        let wrong =
            if is_receive { self.receive(now, qp, completion) } else { self.take(qp, completion) };
        if let Some(what) = wrong {
            self.violations.push(format!("host {}, QP {qp}: {what}: {completion:?}", self.number));
        }
    }

    /// Checks a completion of this host's request.
    fn take(&mut self, qp: usize, completion: &Completion) -> Option<&'static str> {
        let queue = &mut self.queues[qp];
        let index = completion.wr_id as usize;
        if index != queue.completed {
            return Some("out of order");
        }
        let message = self.plan.streams[qp][self.number].messages[index];
        queue.completed += 1;
        self.touched.push(qp);
        let is_there = !message.kind.fetches() || self.rnic.memory().fetched(qp) > index;
        let op = match message.kind {
            Kind::Send | Kind::SendImmediate => CompletionOp::Send,
            Kind::Write | Kind::WriteImmediate => CompletionOp::Write,
            Kind::Read => CompletionOp::Read,
            Kind::FetchAdd { .. } => CompletionOp::FetchAdd,
            Kind::CompareSwap { .. } => CompletionOp::CmpSwap,
        };
        match () {
            () if completion.op != op => Some("another operation"),
            () if completion.byte_len != message.len => Some("another length"),
            () if !is_there => Some("bytes are missing"),
            () => None,
        }
    }

    /// Checks a received message of the peer.
    fn receive(
        &mut self,
        now: Instant,
        qp: usize,
        completion: &Completion,
    ) -> Option<&'static str> {
        let stream = &self.plan.streams[qp][1 - self.number];
        let queue = &mut self.queues[qp];
        if completion.wr_id as usize != queue.received {
            return Some("out of order");
        }
        let index = stream.receives[queue.received];
        let message = stream.messages[index];
        queue.received += 1;
        match self.setup.receive_delay {
            Duration::ZERO => self.post_receives(qp, 1),
            delay => self.receives.push_back((now + delay, qp, queue.life)),
        }
        let op = match message.kind {
            Kind::WriteImmediate => CompletionOp::RecvWriteImmediate,
            _ => CompletionOp::Recv,
        };
        match () {
            () if completion.op != op => Some("another operation"),
            () if completion.byte_len != message.len => Some("another length"),
            () if completion.immediate != message.immediate(index) => Some("another immediate"),
            () if self.rnic.memory().placed(qp) <= index => Some("bytes are missing"),
            () => None,
        }
    }
}

/// When QPs change state: the same at both ends, except for the order within an instant. Further
/// turns of the connection manager follow from its events.
fn turns(setup: &Setup, plan: &Plan, host: usize) -> VecDeque<(Instant, usize, Turn)> {
    let mut turns = Vec::new();
    for qp in 0..setup.qps {
        let offset = plan.number(qp, 0, 0, 3) % (setup.stagger.as_ns() + 1);
        let first = Instant::ZERO + Duration::from_ns(offset);
        if setup.connect == Connect::Manager {
            turns.extend((host == 0).then_some((first, qp, Turn::Up)));
            continue;
        }
        for life in 0..setup.lives {
            let at = first + setup.lifetime.times(life as u64);
            let up = if life > 0 { at + setup.gap } else { at };
            if life > 0 {
                turns.push((at, qp, Turn::Down));
            }
            turns.push((up, qp, Turn::Up));
            turns.push((up + Duration::from_us(1), qp, Turn::Begin));
        }
    }
    turns.sort_by_key(|&(at, ..)| at);
    turns.into()
}

fn operation(
    qp: usize,
    index: usize,
    life: usize,
    message: &Message,
    rkey: RKey,
    stride: u64,
) -> (SendOp, Area) {
    let own = index as u64 * stride;
    let immediate = message.immediate(index);
    let written = memory::address(qp, Area::Written, own);
    let word = memory::address(qp, Area::Words, life as u64 * 8);
    match message.kind {
        Kind::Send | Kind::SendImmediate => {
            (SendOp::Send { immediate, invalidate: None }, Area::Source)
        }
        Kind::Write | Kind::WriteImmediate => {
            (SendOp::Write { remote_address: written, rkey, immediate }, Area::Source)
        }
        Kind::Read => {
            let remote_address = memory::address(qp, Area::Readable, own);
            (SendOp::Read { remote_address, rkey }, Area::Fetched)
        }
        Kind::FetchAdd { add } => {
            (SendOp::FetchAdd { remote_address: word, rkey, add }, Area::Fetched)
        }
        Kind::CompareSwap { compare, swap } => {
            (SendOp::CmpSwap { remote_address: word, rkey, compare, swap }, Area::Fetched)
        }
    }
}

impl Node for Host {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.rnic.handle_frame(now, side, frame);
        self.turn(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.rnic.poll_timeout().is_some_and(|deadline| deadline.at <= now) {
            self.rnic.handle_timeout(now);
        }
        self.turn(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        self.rnic.poll_transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let turn = self.turns.front().map(|&(at, ..)| at);
        let receive = self.receives.front().map(|&(at, ..)| at);
        let own = [turn, receive].into_iter().flatten().min();
        Deadline::earliest(
            self.rnic.poll_timeout(),
            own.map(|at| Deadline { at, reason: "program" }),
        )
    }
}
