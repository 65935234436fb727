//! The target: its driver passes in what hosts send, and carries out [`Step`]s.
//!
//! A driver posts a receive for each slot of a queue. A capsule that arrives in a slot occupies it
//! until the response has been sent: [`Target::receive`], perhaps [`Target::fetched`], perhaps
//! [`Target::executed`], each of which returns the next step, and at last [`Target::sent`].
//! [`Target::poll_step`] returns steps that no call of the slot caused.

mod admin;
mod config;
mod connect;
mod controller;
mod io;
mod logs;
mod queue;
mod step;

pub use config::{Hosts, Namespace, Subsystem, TargetConfig};
pub use queue::QueueId;
pub use step::{
    ALL_NAMESPACES, EndReason, Io, IoError, Output, Response, Source, Step, SubsystemId, Token,
};

use crate::{Command, DataPointer, QueueRequest, RefusalReason, SQE_LEN, Status, admin as opcodes};
use controller::{Controller, ControllerId};
use longhaul_units::{Duration, Instant};
use queue::{Fetched, Origin, Queue, QueueState, Queues, Slot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

/// Time within which a host must send Connect.
const CONNECT_WITHIN: Duration = Duration::from_ms(30_000);

/// A queue that the driver shall accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The queue.
    pub queue: QueueId,
    /// Its slots: receives that the driver posts.
    pub slots: u16,
    /// Bytes of a slot's capsule.
    pub capsule: u32,
    /// Bytes of a slot's data.
    pub data: u32,
}

/// A received capsule.
pub struct Capsule<'a> {
    /// Its first 64 bytes, or all if there are fewer.
    pub head: &'a [u8],
    /// Its length in bytes.
    pub len: u32,
    /// Copies `.1` bytes at `.0` of its data, which follow the first 64 bytes.
    pub data: &'a dyn Fn(u32, u32) -> Vec<u8>,
}

impl Capsule<'_> {
    fn data_len(&self) -> u64 {
        u64::from(self.len).saturating_sub(SQE_LEN as u64)
    }
}

/// Subsystems with their controllers and queues.
pub struct Target {
    config: TargetConfig,
    queues: Queues,
    controllers: BTreeMap<ControllerId, Controller>,
    last_controller: ControllerId,
    /// Accesses that the driver carries out for queues that have ended.
    orphans: BTreeSet<Token>,
    output: VecDeque<Step>,
}

impl Target {
    /// A target without connections.
    #[must_use]
    pub fn new(config: TargetConfig) -> Self {
        Target {
            queues: Queues::new(config.connections_max),
            config,
            controllers: BTreeMap::new(),
            last_controller: 0,
            orphans: BTreeSet::new(),
            output: VecDeque::new(),
        }
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Number of controllers, by the name of the host.
    pub fn hosts(&self) -> impl Iterator<Item = &crate::Nqn> {
        self.controllers.values().map(Controller::host)
    }

    /// True while accesses of ended connections go on. A host repeats them over its next
    /// connection: until they are [`Target::executed`], the driver holds requests back, so that
    /// none overtakes what is written then.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// A host requests a connection to `local`, with the private data of its request. A driver
    /// calls this only while the target is not [settling](Target::is_settling).
    ///
    /// # Errors
    /// The reason for the rejection.
    pub fn request(
        &mut self,
        now: Instant,
        local: SocketAddr,
        private_data: &[u8],
    ) -> Result<Accepted, RefusalReason> {
        let request = QueueRequest::read(private_data).map_err(|error| error.0)?;
        if request.queue > self.config.queues_max {
            return Err(RefusalReason::Queue);
        }
        if request.sends >= self.config.entries_max {
            return Err(RefusalReason::Sends);
        }
        let (capsule, data) = match request.queue {
            0 => (0, crate::IDENTIFY_LEN as u32),
            _ => (self.config.in_capsule, self.config.transfer_max),
        };
        // As many slots again for commands that were answered and not acknowledged.
        let slots = (request.sends + 1).saturating_mul(2);
        let state = QueueState::AwaitingConnect { until: now + CONNECT_WITHIN };
        let queue = Queue::new(request, local, slots, state, now);
        let queue = self.queues.insert(queue).ok_or(RefusalReason::Resources)?;
        Ok(Accepted { queue, slots, capsule: SQE_LEN as u32 + capsule, data })
    }

    /// A capsule arrived in a slot.
    pub fn receive(&mut self, now: Instant, token: Token, capsule: &Capsule<'_>) -> Step {
        let Some(queue) = self.queues.get_mut(token.queue) else { return Step::Nothing };
        if queue.is_ended() || !queue.is_free(token.slot) {
            return Step::Nothing;
        }
        queue.heard = now;
        let Some(command) = Command::read(capsule.head) else {
            return self.end(token.queue, EndReason::Malformed);
        };
        if !queue.admit() {
            return self.end(token.queue, EndReason::TooManyCommands);
        }
        let mut origin = Origin { id: Some(command.id), number: command.id, invalidate: None };
        if !queue.claim(command.id) {
            origin.id = None;
            return self.fail(token, origin, Status::ID_CONFLICT);
        }
        let pointer = match command.data() {
            Ok(pointer) => pointer,
            Err(status) => return self.fail(token, origin, status),
        };
        if let DataPointer::Keyed { remote, invalidate: true } = pointer {
            origin.invalidate = Some(remote.rkey);
        }
        let is_fabrics = command.opcode == opcodes::FABRICS;
        if !is_fabrics && !command.is_plain() {
            return self.fail(token, origin, Status::INVALID_FIELD.permanent());
        }
        let arrived = Arrived { token, origin, command, pointer, capsule };
        match queue.state {
            QueueState::AwaitingConnect { .. } => self.before_connect(now, &arrived),
            QueueState::Admin { controller } => self.admin(controller, &arrived),
            QueueState::Io { .. } if is_fabrics => {
                self.fail(token, origin, Status::SEQUENCE_ERROR.permanent())
            }
            QueueState::Io { controller, subsystem } => self.io(controller, subsystem, &arrived),
            QueueState::Ended { .. } => Step::Nothing,
        }
    }

    /// The data that [`Step::Fetch`] requested is in the slot's buffer; `data` copies its first
    /// bytes.
    pub fn fetched(&mut self, now: Instant, token: Token, data: &dyn Fn(u32) -> Vec<u8>) -> Step {
        let Some(queue) = self.queues.get_mut(token.queue) else { return Step::Nothing };
        match queue.take(token.slot) {
            Some(Slot::Fetching { origin, then: Fetched::Connect(command) }) => {
                self.connect(now, token, origin, &command, &data(crate::CONNECT_DATA_LEN as u32))
            }
            Some(Slot::Fetching { origin, then: Fetched::Execute { at, io } }) => {
                self.execute(token, origin, at, io, None)
            }
            Some(Slot::Fetching { origin, then: Fetched::Ranges { at, count } }) => {
                self.deallocate(token, origin, at, &data(16 * count))
            }
            _ => Step::Nothing,
        }
    }

    /// The driver has carried out [`Step::Execute`].
    pub fn executed(&mut self, token: Token, outcome: Result<(), IoError>) -> Step {
        let Some(queue) = self.queues.get_mut(token.queue) else {
            self.orphans.remove(&token);
            return Step::Nothing;
        };
        match (queue.take(token.slot), outcome) {
            (Some(Slot::Executing { origin, output }), Ok(())) => {
                if let QueueState::Admin { controller } = queue.state {
                    self.controllers
                        .get_mut(&controller)
                        .into_iter()
                        .for_each(Controller::note_flushed);
                }
                self.respond(token, origin, Status::SUCCESS, 0, output)
            }
            (Some(Slot::Executing { origin, .. }), Err(error)) => {
                self.fail(token, origin, error.status())
            }
            _ => Step::Nothing,
        }
    }

    /// The response of a slot has been sent and acknowledged: the driver may post its receive.
    pub fn sent(&mut self, token: Token) {
        if let Some(queue) = self.queues.get_mut(token.queue) {
            queue.free(token.slot);
        }
    }

    /// A connection ended, whoever ended it.
    pub fn closed(&mut self, queue: QueueId) {
        let Some(closed) = self.queues.remove(queue) else { return };
        self.orphans.extend(closed.executing().map(|slot| Token { queue, slot }));
        let Some(id) = closed.controller() else { return };
        match self.controllers.get_mut(&id) {
            Some(controller) if controller.admin == queue => {
                self.controllers.remove(&id);
                self.end_io_queues(id, EndReason::ControllerGone);
            }
            Some(controller) => {
                controller.queues.remove(&closed.request.queue);
            }
            None => {}
        }
    }

    /// The next step that no slot's call returned.
    pub fn poll_step(&mut self) -> Option<Step> {
        self.output.pop_front()
    }

    /// When [`Target::expire`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connects = self.queues.iter().filter_map(|(_, queue)| match queue.state {
            QueueState::AwaitingConnect { until } => Some(until),
            _ => None,
        });
        let timers = self.controllers.values().filter_map(|one| one.keep_alive);
        connects.chain(timers.map(|timer| timer.ends())).min()
    }

    /// Ends queues whose hosts are silent.
    pub fn expire(&mut self, now: Instant) {
        let late = self.queues.iter().filter(|(_, queue)| queue.is_late(now));
        let late: Vec<QueueId> = late.map(|(id, _)| id).collect();
        for queue in late {
            let step = self.end(queue, EndReason::NoConnect);
            self.output.push_back(step);
        }
        let due = self.controllers.iter().filter_map(|(id, controller)| {
            let timer = controller.keep_alive.filter(|timer| timer.ends() <= now)?;
            Some((*id, controller.admin, self.heard(*id, controller) >= timer.since))
        });
        let due: Vec<(ControllerId, QueueId, bool)> = due.collect();
        for (id, admin, is_alive) in due {
            if is_alive {
                self.restart_keep_alive(id, now);
                continue;
            }
            self.controllers.remove(&id);
            self.end_io_queues(id, EndReason::KeepAliveExpired);
            let step = self.end(admin, EndReason::KeepAliveExpired);
            self.output.push_back(step);
        }
    }

    fn restart_keep_alive(&mut self, id: ControllerId, now: Instant) {
        let controller = self.controllers.get_mut(&id);
        if let Some(timer) = controller.and_then(|one| one.keep_alive.as_mut()) {
            timer.since = now;
        }
    }

    /// When a controller's host last sent a command on any of its queues.
    fn heard(&self, id: ControllerId, controller: &Controller) -> Instant {
        let of_io = self.queues.iter().filter(|(_, queue)| queue.io_controller() == Some(id));
        let admin = self.queues.get(controller.admin).into_iter();
        let heard = of_io.map(|(_, queue)| queue).chain(admin).map(|queue| queue.heard);
        heard.max().unwrap_or_default()
    }

    fn end(&mut self, queue: QueueId, reason: EndReason) -> Step {
        match self.queues.get_mut(queue) {
            Some(found) if !found.is_ended() => {
                found.state = QueueState::Ended { controller: found.controller() };
                Step::Disconnect { queue, reason }
            }
            _ => Step::Nothing,
        }
    }

    fn end_io_queues(&mut self, controller: ControllerId, reason: EndReason) {
        let queues = self.queues.iter();
        let of_it = queues.filter(|(_, queue)| queue.io_controller() == Some(controller));
        let of_it: Vec<QueueId> = of_it.map(|(id, _)| id).collect();
        for queue in of_it {
            let step = self.end(queue, reason);
            self.output.push_back(step);
        }
    }

    fn fail(&mut self, token: Token, origin: Origin, status: Status) -> Step {
        self.respond(token, origin, status, 0, None)
    }

    fn succeed(&mut self, token: Token, origin: Origin, result: u64) -> Step {
        self.respond(token, origin, Status::SUCCESS, result, None)
    }

    fn respond(
        &mut self,
        token: Token,
        origin: Origin,
        status: Status,
        result: u64,
        output: Option<Output>,
    ) -> Step {
        match self.queues.get_mut(token.queue) {
            Some(queue) if !queue.is_ended() => {
                let completion = queue.complete(token.slot, origin, status, result);
                let invalidate = origin.invalidate;
                Step::Respond(Response { token, completion, invalidate, output })
            }
            _ => Step::Nothing,
        }
    }
}

/// A command with its slot and its capsule.
struct Arrived<'a> {
    token: Token,
    origin: Origin,
    command: Command,
    pointer: DataPointer,
    capsule: &'a Capsule<'a>,
}

impl Arrived<'_> {
    /// Offset of the data in the capsule's data, if that is where they are.
    fn in_capsule(&self) -> Result<Option<u32>, Status> {
        let DataPointer::InCapsule { offset, len } = self.pointer else { return Ok(None) };
        match offset.checked_add(u64::from(len)) {
            Some(end) if end <= self.capsule.data_len() => {
                u32::try_from(offset).map(Some).map_err(|_| Status::INVALID_SGL_OFFSET.permanent())
            }
            _ if offset > self.capsule.data_len() => Err(Status::INVALID_SGL_OFFSET.permanent()),
            _ => Err(Status::INVALID_DATA_LENGTH.permanent()),
        }
    }

    /// The host's memory for `len` bytes.
    fn keyed(&self, len: u32) -> Result<crate::Remote, Status> {
        match self.pointer {
            DataPointer::Keyed { remote, .. } if remote.len == len => Ok(remote),
            DataPointer::Keyed { .. } => Err(Status::INVALID_DATA_LENGTH.permanent()),
            DataPointer::InCapsule { .. } => Err(Status::INVALID_SGL_TYPE.permanent()),
        }
    }
}
