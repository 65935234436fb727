//! The host with the target, which may be killed.

use super::medium::{Access, Medium};
use super::nic::{BASE, Nic, READS};
use super::oracle::Oracle;
use super::{Setup, TARGET};
use longhaul_cm::{Accept as AcceptConnection, ConnectionId, Event as CmEvent, RejectReason};
use longhaul_cm::{RequestInfo, ServiceId};
use longhaul_node::{Deadline, Frame, Node, Side, Transmit};
use longhaul_nvme::target::{
    Accepted, Capsule, Hosts, Io, Namespace, Output, QueueId, Response, Source, Step, Subsystem,
    TargetConfig, Token,
};
use longhaul_nvme::{Accept, CQE_LEN, Nqn, PORT, Refusal, SQE_LEN, Target};
use longhaul_rnic::{Completion, CompletionOp, Event, SendOp, Status};
use longhaul_units::{Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

/// Largest transfer in bytes.
const TRANSFER_MAX: u32 = 32 << 10;
/// Memory of a connection's slots.
const REGION: usize = 4 << 20;
/// Connections at once.
const REGIONS: usize = 64;

pub fn subsystem() -> Nqn {
    "nqn.2026-01.longhaul:disk".parse().expect("valid")
}

/// The death of a target.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub at: Instant,
    /// Until it is started again.
    pub away: Duration,
    /// The machine dies with it, and with the machine the disk's volatile cache.
    pub loses_power: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Receive,
    Fetch,
    /// The WRITE of a response's data.
    Data,
    Respond,
}

impl Work {
    fn id(self, slot: u16) -> u64 {
        (self as u64) << 16 | u64::from(slot)
    }

    fn of(id: u64) -> (Work, u16) {
        let all = [Work::Receive, Work::Fetch, Work::Data, Work::Respond];
        (all[(id >> 16) as usize], id as u16)
    }
}

/// A connection.
struct Link {
    queue: QueueId,
    connection: ConnectionId,
    region: usize,
    capsule_len: u32,
    data_len: u32,
}

impl Link {
    fn slot_at(&self, slot: u16) -> u64 {
        let each = CQE_LEN as u32 + self.capsule_len + self.data_len;
        BASE + (self.region * REGION) as u64 + u64::from(slot) * u64::from(each)
    }

    fn capsule_at(&self, slot: u16) -> u64 {
        self.slot_at(slot) + CQE_LEN as u64
    }

    fn data_at(&self, slot: u16) -> u64 {
        self.capsule_at(slot) + u64::from(self.capsule_len)
    }
}

/// The target's process.
struct Process {
    nic: Nic,
    target: Target,
    links: BTreeMap<Qpn, Link>,
    /// Requests that wait until the target has settled.
    requests: VecDeque<(ConnectionId, Box<RequestInfo>)>,
}

enum State {
    Runs(Box<Process>),
    Away { until: Instant },
}

pub struct TargetHost {
    setup: Setup,
    state: State,
    medium: Medium,
    oracle: Rc<RefCell<Oracle>>,
    deaths: VecDeque<Death>,
    lives: u32,
    psns: SplitMix64,
}

impl Process {
    fn start(setup: &Setup, lives: u32) -> Process {
        let namespace = Namespace {
            blocks: setup.namespace_len() as u64 >> 9,
            block_shift: 9,
            id: [7; 16],
            volatile_cache: true,
        };
        let disk = Subsystem {
            nqn: subsystem(),
            serial: "1".to_owned(),
            model: "Longhaul".to_owned(),
            hosts: Hosts::Any,
            namespaces: BTreeMap::from([(1, namespace)]),
        };
        let config = TargetConfig {
            subsystems: vec![disk],
            in_capsule: setup.in_capsule,
            transfer_max: TRANSFER_MAX,
            ..TargetConfig::default()
        };
        let mut nic = Nic::start(setup, TARGET, lives, REGIONS * REGION);
        nic.rnic.cm().listen(ServiceId::tcp(PORT), 16).unwrap();
        Process {
            nic,
            target: Target::new(config),
            links: BTreeMap::new(),
            requests: VecDeque::new(),
        }
    }

    fn qpn_of(&self, queue: QueueId) -> Option<Qpn> {
        self.links.iter().find(|(_, link)| link.queue == queue).map(|(qpn, _)| *qpn)
    }

    fn close(&mut self, now: Instant, qpn: Qpn) {
        let Some(link) = self.links.remove(&qpn) else { return };
        // The peer may have ended it.
        let _ = self.nic.rnic.cm().disconnect(now, link.connection);
        self.nic.rnic.destroy_qp(qpn).unwrap();
        self.target.closed(link.queue);
    }

    fn accept(&mut self, now: Instant, id: ConnectionId, info: &RequestInfo, starting_psn: Psn) {
        let local = SocketAddr::new(info.local_ip, PORT);
        let accepted = match self.target.request(now, local, info.user_data()) {
            Ok(accepted) => accepted,
            Err(reason) => {
                let data = Refusal(reason).write();
                let _ = self.nic.rnic.cm().reject(now, id, RejectReason::CONSUMER, &data);
                return;
            }
        };
        let Accepted { queue, slots, capsule, data } = accepted;
        let is_taken = |region: usize| self.links.values().any(|link| link.region == region);
        let region = (0..REGIONS).find(|region| !is_taken(*region)).expect("few connections");
        let link = Link { queue, connection: id, region, capsule_len: capsule, data_len: data };
        assert!(link.slot_at(slots) <= BASE + ((region + 1) * REGION) as u64, "slots fit");
        let qpn = self.nic.create_qp(now, 3 * u32::from(slots), slots.into());
        for slot in 0..slots {
            self.nic.post_recv(qpn, Work::Receive.id(slot), link.capsule_at(slot), capsule);
        }
        self.nic.make_ready(now, qpn, TARGET, info.peer_qpn, [info.peer_psn, starting_psn]);
        let accept = AcceptConnection {
            local_qpn: qpn,
            starting_psn,
            responder_resources: READS,
            initiator_depth: READS,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            private_data: &Accept { receives: slots / 2 }.write(),
        };
        self.links.insert(qpn, link);
        if self.nic.rnic.cm().accept(now, id, &accept).is_err() {
            // The host gave up meanwhile.
            self.close(now, qpn);
        }
    }

    fn manage(&mut self, now: Instant, event: CmEvent) {
        let connection = event.connection();
        let link = self.links.iter().find(|(_, link)| link.connection == connection);
        let qpn = link.map(|(qpn, _)| *qpn);
        match event {
            CmEvent::ConnectRequest { info, .. } => self.requests.push_back((connection, info)),
            CmEvent::Rejected { .. }
            | CmEvent::Unreachable { .. }
            | CmEvent::Disconnected { .. } => {
                self.requests.retain(|(id, _)| *id != connection);
                if let Some(qpn) = qpn {
                    self.close(now, qpn);
                }
            }
            _ => {}
        }
    }

    fn complete(&mut self, now: Instant, completion: &Completion) -> Step {
        let qpn = completion.qpn;
        let Some(link) = self.links.get(&qpn) else { return Step::Nothing };
        if completion.status != Status::Success {
            self.close(now, qpn);
            return Step::Nothing;
        }
        let (work, slot) = Work::of(completion.wr_id);
        let token = Token { queue: link.queue, slot };
        let (capsule_at, data_at) = (link.capsule_at(slot), link.data_at(slot));
        match work {
            Work::Receive => {
                assert_eq!(completion.op, CompletionOp::Recv);
                let len = completion.byte_len;
                let head = self.nic.read(capsule_at, SQE_LEN.min(len as usize));
                let data = |at: u32, len: u32| {
                    self.nic.read(capsule_at + SQE_LEN as u64 + u64::from(at), len as usize)
                };
                self.target.receive(now, token, &Capsule { head: &head, len, data: &data })
            }
            Work::Fetch => {
                self.target.fetched(now, token, &|len| self.nic.read(data_at, len as usize))
            }
            Work::Data => Step::Nothing,
            Work::Respond => {
                self.target.sent(token);
                let len = link.capsule_len;
                self.nic.post_recv(qpn, Work::Receive.id(slot), capsule_at, len);
                Step::Nothing
            }
        }
    }

    fn carry_out(&mut self, now: Instant, step: Step, medium: &mut Medium) {
        match step {
            Step::Nothing => {}
            Step::Fetch { token, from } => {
                let Some(qpn) = self.qpn_of(token.queue) else { return };
                let at = self.links[&qpn].data_at(token.slot);
                let op = SendOp::Read { remote_address: from.address, rkey: from.rkey };
                self.nic.post(now, qpn, Work::Fetch.id(token.slot), op, (at, from.len));
            }
            Step::Execute { token, io, durable, .. } => {
                let Some(qpn) = self.qpn_of(token.queue) else { return };
                let link = &self.links[&qpn];
                let data = match io {
                    Io::Write { len, from, .. } => {
                        let at = match from {
                            Source::Buffer => link.data_at(token.slot),
                            Source::Capsule(at) => {
                                link.capsule_at(token.slot) + SQE_LEN as u64 + u64::from(at)
                            }
                        };
                        self.nic.read(at, len as usize)
                    }
                    _ => Vec::new(),
                };
                medium.submit(now, Access { token, io, durable, data });
            }
            Step::Respond(response) => self.respond(now, response),
            Step::Disconnect { queue, .. } => {
                if let Some(qpn) = self.qpn_of(queue) {
                    self.close(now, qpn);
                }
            }
        }
    }

    fn respond(&mut self, now: Instant, response: Response) {
        let Response { token, completion, output, .. } = response;
        let Some(qpn) = self.qpn_of(token.queue) else { return };
        let link = &self.links[&qpn];
        let (at, response_at) = (link.data_at(token.slot), link.slot_at(token.slot));
        let remote = match output {
            Some(Output::Buffer(remote)) => Some(remote),
            Some(Output::Bytes(bytes, remote)) => {
                self.nic.write(at, &bytes);
                Some(remote)
            }
            None => None,
        };
        if let Some(remote) = remote {
            let op = SendOp::Write {
                remote_address: remote.address,
                rkey: remote.rkey,
                immediate: None,
            };
            self.nic.post(now, qpn, Work::Data.id(token.slot), op, (at, remote.len));
        }
        self.nic.write(response_at, &completion);
        let op = SendOp::Send { immediate: None, invalidate: None };
        let wr_id = Work::Respond.id(token.slot);
        self.nic.post(now, qpn, wr_id, op, (response_at, CQE_LEN as u32));
    }

    /// `false` if nothing happened.
    fn turn(&mut self, now: Instant, medium: &mut Medium, psns: &mut SplitMix64) -> bool {
        let mut completions = Vec::new();
        self.nic.rnic.poll_cq(self.nic.cq, 64, |completion| completions.push(completion));
        let mut worked = !completions.is_empty();
        for completion in &completions {
            let step = self.complete(now, completion);
            self.carry_out(now, step, medium);
        }
        while let Some(event) = self.nic.rnic.poll_event() {
            worked = true;
            if let Event::Cm(event) = event {
                self.manage(now, event);
            }
        }
        while !self.target.is_settling()
            && let Some((connection, info)) = self.requests.pop_front()
        {
            worked = true;
            self.accept(now, connection, &info, Psn::new(psns.next_u64() as u32));
        }
        while let Some((token, outcome)) = medium.poll(now) {
            worked = true;
            let qpn = self.qpn_of(token.queue);
            if let (Some(link), Ok(bytes)) = (qpn.map(|qpn| &self.links[&qpn]), &outcome) {
                self.nic.write(link.data_at(token.slot), bytes);
            }
            let step = self.target.executed(token, outcome.map(|_| ()));
            self.carry_out(now, step, medium);
        }
        if self.target.poll_timeout().is_some_and(|at| at <= now) {
            self.target.expire(now);
        }
        while let Some(step) = self.target.poll_step() {
            worked = true;
            self.carry_out(now, step, medium);
        }
        worked
    }
}

impl TargetHost {
    pub fn new(setup: &Setup, oracle: &Rc<RefCell<Oracle>>) -> TargetHost {
        TargetHost {
            setup: setup.clone(),
            state: State::Runs(Box::new(Process::start(setup, 0))),
            medium: Medium::new(setup.namespace_len(), setup.slowest_access, setup.seed),
            oracle: oracle.clone(),
            deaths: setup.deaths.iter().copied().collect(),
            lives: 0,
            psns: SplitMix64::new(setup.seed ^ 0x7a67),
        }
    }

    pub fn contents(&self) -> &[u8] {
        self.medium.contents()
    }

    /// Kills and starts the target at its times.
    fn live(&mut self, now: Instant) {
        if let State::Away { until } = self.state
            && until <= now
        {
            self.lives += 1;
            self.state = State::Runs(Box::new(Process::start(&self.setup, self.lives)));
        }
        if let State::Runs(_) = self.state
            && let Some(death) = self.deaths.front().copied().filter(|death| death.at <= now)
        {
            self.deaths.pop_front();
            self.state = State::Away { until: now + death.away };
            if death.loses_power {
                self.medium.lose_power();
                self.oracle.borrow_mut().lose_power();
            } else {
                self.medium.abandon();
            }
        }
    }

    fn turn(&mut self, now: Instant) {
        self.live(now);
        if let State::Runs(process) = &mut self.state {
            while process.turn(now, &mut self.medium, &mut self.psns) {}
        }
    }
}

impl Node for TargetHost {
    fn handle_frame(&mut self, now: Instant, side: Side, frame: &Frame<'_>) {
        self.live(now);
        if let State::Runs(process) = &mut self.state {
            process.nic.rnic.handle_frame(now, side, frame);
        }
        self.turn(now);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.live(now);
        if let State::Runs(process) = &mut self.state {
            process.nic.rnic.handle_timeout(now);
        }
        self.turn(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut dyn Transmit) {
        if let State::Runs(process) = &mut self.state {
            process.nic.rnic.poll_transmit(now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Deadline> {
        let at = |at: Option<Instant>, reason| at.map(|at| Deadline { at, reason });
        let death = at(self.deaths.front().map(|death| death.at), "death");
        match &self.state {
            State::Away { until } => at(Some(*until), "start"),
            State::Runs(process) => [
                process.nic.rnic.poll_timeout(),
                at(process.target.poll_timeout(), "target"),
                at(self.medium.next_at(), "medium"),
                death,
            ]
            .into_iter()
            .fold(None, Deadline::earliest),
        }
    }
}
