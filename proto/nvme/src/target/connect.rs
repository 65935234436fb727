//! Connect: a queue becomes that of a controller.

use super::controller::{Controller, KeepAlive, Readiness, Serves};
use super::queue::{Fetched, Origin, QueueState, Slot};
use super::{Arrived, Step, Target, Token};
use crate::connect::{CONTROLLER_AT, HOST_AT, SUBSYSTEM_AT};
use crate::fields::array;
use crate::opcode::fabrics;
use crate::{
    CONNECT_DATA_LEN, Command, Configuration, ConnectData, DYNAMIC_CONTROLLER, Remote, Status,
    admin,
};
use longhaul_units::Instant;
use std::collections::{BTreeSet, VecDeque};

/// Controllers are numbered up to this.
const CONTROLLER_MAX: u16 = 0xffef;

/// A refused Connect: the status, and the result that names the invalid field.
type Refused = (Status, u64);

/// The field at `offset` of the command.
fn invalid_parameter(offset: u16) -> Refused {
    (Status::CONNECT_INVALID_PARAMETERS.permanent(), offset.into())
}

/// The field at `offset` of the data.
fn invalid_data(offset: u16) -> Refused {
    (Status::CONNECT_INVALID_PARAMETERS.permanent(), u64::from(offset) | 1 << 16)
}

/// The fields of a Connect command.
struct Request {
    queue: u16,
    /// Zero-based.
    size: u16,
    has_flow_control: bool,
    keep_alive_ms: u32,
}

impl Request {
    fn read(command: &Command) -> Result<Self, Refused> {
        let [first, second, keep_alive_ms, ..] = command.dwords;
        if first as u16 != 0 {
            return Err((Status::CONNECT_INCOMPATIBLE_FORMAT.permanent(), 0));
        }
        Ok(Request {
            queue: (first >> 16) as u16,
            size: second as u16,
            has_flow_control: second >> 16 & 1 << 2 == 0,
            keep_alive_ms,
        })
    }
}

impl Target {
    /// A command on a queue that belongs to no controller yet.
    pub(super) fn before_connect(&mut self, now: Instant, arrived: &Arrived<'_>) -> Step {
        let Arrived { token, origin, command, pointer, capsule } = arrived;
        let is_connect =
            command.opcode == admin::FABRICS && command.fabrics_type() == fabrics::CONNECT;
        if !is_connect {
            return self.fail(*token, *origin, Status::SEQUENCE_ERROR.permanent());
        }
        if pointer.len() != CONNECT_DATA_LEN as u32 {
            return self.fail(*token, *origin, Status::INVALID_DATA_LENGTH.permanent());
        }
        match arrived.in_capsule() {
            Ok(Some(at)) => {
                let data = (capsule.data)(at, CONNECT_DATA_LEN as u32);
                self.connect(now, *token, *origin, command, &data)
            }
            Ok(None) => self.fetch(arrived, CONNECT_DATA_LEN as u32, Fetched::Connect(*command)),
            Err(status) => self.fail(*token, *origin, status),
        }
    }

    /// READs the first `len` bytes of the host's memory into the slot's buffer. The caller has
    /// checked that there are as many.
    pub(super) fn fetch(&mut self, arrived: &Arrived<'_>, len: u32, then: Fetched) -> Step {
        let Arrived { token, origin, pointer, .. } = *arrived;
        let from = match arrived.keyed(pointer.len()) {
            Ok(from) => Remote { len, ..from },
            Err(status) => return self.fail(token, origin, status),
        };
        if let Some(queue) = self.queues.get_mut(token.queue) {
            queue.occupy(token.slot, Slot::Fetching { origin, then });
        }
        Step::Fetch { token, from }
    }

    /// A Connect command with its data.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        token: Token,
        origin: Origin,
        command: &Command,
        data: &[u8],
    ) -> Step {
        let outcome = Request::read(command).and_then(|request| {
            let data = ConnectData::read(&array(data, 0)).map_err(invalid_data)?;
            self.join(now, token, &request, data)
        });
        match outcome {
            Ok(controller) => self.succeed(token, origin, controller.into()),
            Err((status, result)) => self.respond(token, origin, status, result, None),
        }
    }

    fn join(
        &mut self,
        now: Instant,
        token: Token,
        request: &Request,
        data: ConnectData,
    ) -> Result<u16, Refused> {
        let of_connection = match self.queues.get(token.queue) {
            Some(queue) => queue.request,
            None => return Err((Status::INTERNAL_ERROR, 0)),
        };
        if request.queue != of_connection.queue {
            return Err(invalid_parameter(42));
        }
        if request.size == 0 || request.size > of_connection.sends {
            return Err(invalid_parameter(44));
        }
        let (state, controller) = match request.queue {
            0 => {
                let controller = self.create_controller(now, token, request, data)?;
                (QueueState::Admin { controller }, controller)
            }
            _ => self.join_controller(request, &data)?,
        };
        if let Some(queue) = self.queues.get_mut(token.queue) {
            queue.state = state;
            queue.heard = now;
            queue.set_entries(request.size + 1, request.has_flow_control);
        }
        Ok(controller)
    }

    fn create_controller(
        &mut self,
        now: Instant,
        token: Token,
        request: &Request,
        data: ConnectData,
    ) -> Result<u16, Refused> {
        let subsystems = &self.config.subsystems;
        let serves = if data.subsystem.is_discovery() {
            Serves::Discovery
        } else {
            let named = subsystems.iter().position(|one| one.nqn == data.subsystem);
            Serves::Subsystem(named.ok_or(invalid_data(SUBSYSTEM_AT))?)
        };
        // The model of controllers is dynamic: the host cannot choose one.
        if data.controller != DYNAMIC_CONTROLLER {
            return Err(invalid_data(CONTROLLER_AT));
        }
        let is_admitted = match serves {
            Serves::Discovery => true,
            Serves::Subsystem(id) => subsystems[id].hosts.admit(&data.host),
        };
        // One identifier belongs to one host.
        let mut controllers = self.controllers.values();
        let is_taken = data.host_id != [0; 16]
            && controllers.any(|other| other.host_id == data.host_id && other.host != data.host);
        if !is_admitted || is_taken {
            return Err((Status::CONNECT_INVALID_HOST.permanent(), 0));
        }
        let busy = (Status::CONTROLLER_BUSY, 0);
        if self.controllers.len() >= self.config.controllers_max {
            return Err(busy);
        }
        let first = self.last_controller.wrapping_add(1);
        let free = (0..=CONTROLLER_MAX)
            .map(|offset| first.wrapping_add(offset))
            .find(|id| (1..=CONTROLLER_MAX).contains(id) && !self.controllers.contains_key(id));
        let id = free.ok_or(busy)?;
        self.last_controller = id;
        let controller = Controller {
            serves,
            host: data.host,
            host_id: data.host_id,
            admin: token.queue,
            readiness: Readiness::Disabled(Configuration::default()),
            keep_alive: KeepAlive::start(now, request.keep_alive_ms),
            queues: BTreeSet::new(),
            event_configuration: 0,
            events: VecDeque::new(),
            changed: BTreeSet::new(),
            notified: false,
        };
        self.controllers.insert(id, controller);
        Ok(id)
    }

    fn join_controller(
        &mut self,
        request: &Request,
        data: &ConnectData,
    ) -> Result<(QueueState, u16), Refused> {
        let id = data.controller;
        let controller = self.controllers.get_mut(&id).ok_or(invalid_data(CONTROLLER_AT))?;
        let Serves::Subsystem(subsystem) = controller.serves else {
            return Err((Status::INVALID_QUEUE_ID.permanent(), 0));
        };
        let is_same = self.config.subsystems.get(subsystem).map(|one| &one.nqn);
        if is_same != Some(&data.subsystem) {
            return Err(invalid_data(SUBSYSTEM_AT));
        }
        if controller.host != data.host {
            return Err(invalid_data(HOST_AT));
        }
        if controller.host_id != data.host_id {
            return Err(invalid_data(0));
        }
        if !controller.is_ready() || !controller.queues.insert(request.queue) {
            return Err((Status::SEQUENCE_ERROR.permanent(), 0));
        }
        Ok((QueueState::Io { controller: id, subsystem }, id))
    }
}
