//! Commands of admin queues.

use super::controller::{Controller, ControllerId, KeepAlive, Readiness, Serves};
use super::queue::{Place, Slot};
use super::step::{ALL_NAMESPACES, EndReason, Io, Output};
use super::{Arrived, Namespace, Step, Subsystem, SubsystemId, Target, Token};
use crate::fields::put;
use crate::identify::{EVENTS_MAX, VERSION};
use crate::opcode::fabrics;
use crate::{
    Capabilities, Configuration, ControllerData, IDENTIFY_LEN, Nqn, Property, Status, admin,
    feature, log_page,
};

/// Identify structures, by CNS.
mod structure {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const NAMESPACES: u8 = 0x02;
    pub const DESCRIPTORS: u8 = 0x03;
}

/// Longest time until a controller is ready, in units of 500 ms.
const READY_WITHIN: u8 = 10;
/// Asynchronous event: notice, namespace attribute changed.
const NAMESPACES_CHANGED: u64 = 2 | (log_page::CHANGED_NAMESPACES as u64) << 16;
/// Bit of the event configuration for [`NAMESPACES_CHANGED`].
const NAMESPACE_EVENTS: u32 = 1 << 8;
/// Abort: the command was not aborted.
const NOT_ABORTED: u64 = 1;

/// What a command yields: the result, bytes for the host, or a flush of all namespaces before its
/// response.
enum Yield {
    Result(u64),
    Bytes(Vec<u8>),
    Flush(SubsystemId),
}

impl Target {
    pub(super) fn admin(&mut self, controller: ControllerId, arrived: &Arrived<'_>) -> Step {
        let Arrived { token, origin, command, .. } = arrived;
        if !self.controllers.contains_key(&controller) {
            return self.end(token.queue, EndReason::ControllerGone);
        }
        let outcome = match command.opcode {
            admin::FABRICS => self.property(controller, arrived),
            // Before the controller is ready only properties can be accessed.
            _ if !self.is_ready(controller) => Err(Status::SEQUENCE_ERROR.permanent()),
            admin::KEEP_ALIVE => Ok(Yield::Result(0)),
            admin::IDENTIFY => self.identify(controller, arrived).map(Yield::Bytes),
            admin::GET_LOG_PAGE => self.log_page(controller, arrived).map(Yield::Bytes),
            admin::GET_FEATURES => self.get_feature(controller, arrived).map(Yield::Result),
            admin::SET_FEATURES => self.set_feature(controller, arrived).map(Yield::Result),
            admin::ABORT => Ok(Yield::Result(NOT_ABORTED)),
            admin::ASYNC_EVENT => return self.hold_event(controller, arrived),
            _ => Err(Status::INVALID_OPCODE.permanent()),
        };
        match outcome {
            Ok(Yield::Result(result)) => self.succeed(*token, *origin, result),
            Ok(Yield::Flush(subsystem)) => {
                let at = Place { subsystem, namespace: ALL_NAMESPACES, durable: false };
                self.execute(*token, *origin, at, Io::Flush, None)
            }
            Ok(Yield::Bytes(bytes)) => match arrived.keyed(bytes.len() as u32) {
                Ok(remote) => {
                    let output = Some(Output::Bytes(bytes, remote));
                    self.respond(*token, *origin, Status::SUCCESS, 0, output)
                }
                Err(status) => self.fail(*token, *origin, status),
            },
            Err(status) => self.fail(*token, *origin, status),
        }
    }

    fn is_ready(&self, controller: ControllerId) -> bool {
        self.controllers.get(&controller).is_some_and(Controller::is_ready)
    }

    pub(super) fn controller(&self, id: ControllerId) -> Result<&Controller, Status> {
        self.controllers.get(&id).ok_or(Status::INTERNAL_ERROR)
    }

    fn controller_mut(&mut self, id: ControllerId) -> Result<&mut Controller, Status> {
        self.controllers.get_mut(&id).ok_or(Status::INTERNAL_ERROR)
    }

    fn property(&mut self, id: ControllerId, arrived: &Arrived<'_>) -> Result<Yield, Status> {
        let [attribute, offset, ..] = arrived.command.dwords;
        let invalid = Status::INVALID_FIELD.permanent();
        let property = Property::at(offset).filter(|one| attribute & 7 == one.size_code());
        match arrived.command.fabrics_type() {
            fabrics::PROPERTY_GET => {
                let controller = self.controller(id)?;
                Ok(Yield::Result(match property.ok_or(invalid)? {
                    Property::Capabilities => {
                        let entries_max = self.config.entries_max.into();
                        Capabilities { entries_max, ready_within: READY_WITHIN }.write()
                    }
                    Property::Version => VERSION.into(),
                    Property::Configuration => controller.readiness.configuration().0.into(),
                    Property::Status => controller.readiness.status().0.into(),
                }))
            }
            fabrics::PROPERTY_SET if property == Some(Property::Configuration) => {
                let to = Configuration(arrived.command.quad(2) as u32);
                self.configure(id, to)
            }
            fabrics::PROPERTY_SET => Err(invalid),
            fabrics::CONNECT => Err(Status::SEQUENCE_ERROR.permanent()),
            _ => Err(Status::INVALID_OPCODE.permanent()),
        }
    }

    fn configure(&mut self, id: ControllerId, to: Configuration) -> Result<Yield, Status> {
        let controller = self.controller_mut(id)?;
        controller.readiness = Readiness::after(to);
        let (serves, shuts_down) = (controller.serves, controller.is_shutting_down());
        if !controller.is_ready() {
            controller.queues.clear();
            self.end_io_queues(id, EndReason::ControllerGone);
        }
        match serves {
            Serves::Subsystem(subsystem) if shuts_down => Ok(Yield::Flush(subsystem)),
            _ => {
                self.controller_mut(id)?.note_flushed();
                Ok(Yield::Result(0))
            }
        }
    }

    fn served(&self, id: ControllerId) -> Result<Option<&Subsystem>, Status> {
        Ok(match self.controller(id)?.serves {
            Serves::Discovery => None,
            Serves::Subsystem(subsystem) => self.config.subsystems.get(subsystem),
        })
    }

    fn identify(&self, id: ControllerId, arrived: &Arrived<'_>) -> Result<Vec<u8>, Status> {
        let command = &arrived.command;
        let served = self.served(id)?;
        let invalid = Status::INVALID_FIELD.permanent();
        let named = || {
            let served = served.ok_or(invalid)?;
            let one = served.namespaces.get(&command.namespace);
            one.ok_or(Status::INVALID_NAMESPACE.permanent())
        };
        match command.dwords[0] as u8 {
            structure::CONTROLLER => Ok(self.controller_data(id, served)?.write()),
            structure::NAMESPACE => match named() {
                Ok(namespace) => Ok(namespace.data().write()),
                // A namespace that does not exist is all zeros, within the valid numbers.
                Err(_) if served.is_some_and(|one| is_valid(one, command.namespace)) => {
                    Ok(vec![0; IDENTIFY_LEN])
                }
                Err(status) => Err(status),
            },
            structure::NAMESPACES => {
                let served = served.ok_or(invalid)?;
                if command.namespace >= ALL_NAMESPACES - 1 {
                    return Err(Status::INVALID_NAMESPACE.permanent());
                }
                let later = served.namespaces.keys().filter(|one| **one > command.namespace);
                Ok(list(later.copied()))
            }
            structure::DESCRIPTORS => {
                let mut data = vec![0; IDENTIFY_LEN];
                // An NGUID of 16 bytes, and the NVM command set.
                put(&mut data, 0, &[2, 16]);
                put(&mut data, 4, &named()?.id);
                put(&mut data, 20, &[4, 1]);
                Ok(data)
            }
            _ => Err(invalid),
        }
    }

    fn controller_data(
        &self,
        id: ControllerId,
        served: Option<&Subsystem>,
    ) -> Result<ControllerData, Status> {
        let kind = self.controller(id)?.serves.kind();
        let namespaces = served.map(|one| &one.namespaces);
        let has_cache = |all: &std::collections::BTreeMap<u32, Namespace>| {
            all.values().any(|namespace| namespace.volatile_cache)
        };
        Ok(ControllerData {
            kind,
            id,
            serial: served.map(|one| one.serial.clone()).unwrap_or_default(),
            model: served.map_or_else(|| "Longhaul".to_owned(), |one| one.model.clone()),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            transfer_max_code: self.config.transfer_max_code(),
            subsystem: served.map_or_else(Nqn::discovery, |one| one.nqn.clone()),
            namespaces: namespaces.and_then(|all| all.keys().next_back().copied()).unwrap_or(0),
            commands_max: self.config.entries_max,
            in_capsule: self.config.in_capsule,
            volatile_cache: namespaces.is_some_and(has_cache),
        })
    }

    fn get_feature(&self, id: ControllerId, arrived: &Arrived<'_>) -> Result<u64, Status> {
        let controller = self.controller(id)?;
        let dword = arrived.command.dwords[0];
        // Supported capabilities: none can be saved or set per namespace, and most are fixed.
        if dword >> 8 & 7 == 3 {
            let changeable = [feature::QUEUES, feature::ASYNC_EVENTS, feature::KEEP_ALIVE];
            return Ok(if changeable.contains(&(dword as u8)) { 1 << 2 } else { 0 });
        }
        match dword as u8 {
            feature::ARBITRATION
            | feature::POWER_MANAGEMENT
            | feature::TEMPERATURE_THRESHOLD
            | feature::ERROR_RECOVERY
            | feature::WRITE_ATOMICITY => Ok(0),
            feature::VOLATILE_WRITE_CACHE => {
                Ok(self.controller_data(id, self.served(id)?)?.volatile_cache.into())
            }
            feature::QUEUES => Ok(self.queue_result()),
            feature::ASYNC_EVENTS => Ok(controller.event_configuration.into()),
            feature::KEEP_ALIVE => {
                Ok(controller.keep_alive.map_or(0, |timer| timer.interval.as_ns() / 1_000_000))
            }
            _ => Err(Status::INVALID_FIELD.permanent()),
        }
    }

    /// Number of I/O queues, zero-based, both ways.
    fn queue_result(&self) -> u64 {
        let queues = u64::from(self.config.queues_max.saturating_sub(1));
        queues | queues << 16
    }

    fn set_feature(&mut self, id: ControllerId, arrived: &Arrived<'_>) -> Result<u64, Status> {
        let [dword, value, ..] = arrived.command.dwords;
        match dword as u8 {
            feature::QUEUES => {
                let (wanted, granted) = (u64::from(value), self.queue_result());
                let either = |shift: u32| (wanted >> shift & 0xffff).min(granted >> shift & 0xffff);
                Ok(either(0) | either(16) << 16)
            }
            feature::ASYNC_EVENTS => {
                self.controller_mut(id)?.event_configuration = value;
                Ok(0)
            }
            feature::KEEP_ALIVE => {
                // The latest command is this one.
                let now = self.heard(id, self.controller(id)?);
                self.controller_mut(id)?.keep_alive = KeepAlive::start(now, value);
                Ok(0)
            }
            feature::ARBITRATION
            | feature::POWER_MANAGEMENT
            | feature::TEMPERATURE_THRESHOLD
            | feature::ERROR_RECOVERY
            | feature::VOLATILE_WRITE_CACHE
            | feature::WRITE_ATOMICITY
            | feature::HOST_ID => Err(Status::FEATURE_NOT_CHANGEABLE.permanent()),
            _ => Err(Status::INVALID_FIELD.permanent()),
        }
    }

    fn hold_event(&mut self, id: ControllerId, arrived: &Arrived<'_>) -> Step {
        let Arrived { token, origin, .. } = *arrived;
        match self.controllers.get_mut(&id) {
            Some(controller) if controller.events.len() < EVENTS_MAX => {
                controller.events.push_back(token);
            }
            _ => return self.fail(token, origin, Status::EVENT_LIMIT_EXCEEDED.permanent()),
        }
        if let Some(queue) = self.queues.get_mut(token.queue) {
            queue.occupy(token.slot, Slot::Event { origin });
        }
        self.notify(id);
        Step::Nothing
    }

    /// Replaces, adds or (`None`) removes a namespace, and notifies the hosts that asked for it.
    pub fn set_namespace(&mut self, subsystem: SubsystemId, number: u32, to: Option<Namespace>) {
        let Some(of) = self.config.subsystems.get_mut(subsystem) else { return };
        match to {
            Some(namespace) => of.namespaces.insert(number, namespace),
            None => of.namespaces.remove(&number),
        };
        let serving: Vec<ControllerId> = self
            .controllers
            .iter()
            .filter(|(_, one)| one.serves == Serves::Subsystem(subsystem))
            .map(|(id, _)| *id)
            .collect();
        for id in serving {
            if let Some(controller) = self.controllers.get_mut(&id) {
                controller.changed.insert(number);
            }
            self.notify(id);
        }
    }

    /// Completes a held Asynchronous Event Request if namespaces changed and the host does not
    /// know.
    fn notify(&mut self, id: ControllerId) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        let is_wanted = controller.event_configuration & NAMESPACE_EVENTS != 0;
        if controller.notified || controller.changed.is_empty() || !is_wanted {
            return;
        }
        let Some(token) = controller.events.pop_front() else { return };
        controller.notified = true;
        self.complete_event(token, NAMESPACES_CHANGED);
    }

    fn complete_event(&mut self, token: Token, result: u64) {
        let slot = self.queues.get_mut(token.queue).and_then(|queue| queue.take(token.slot));
        if let Some(Slot::Event { origin }) = slot {
            let step = self.succeed(token, origin, result);
            self.output.push_back(step);
        }
    }

    /// The Changed Namespace List, which the host then knows.
    ///
    /// With `retains` the event stays as it is: the host reads the list once more.
    pub(super) fn changed(&mut self, id: ControllerId, retains: bool) -> Result<Vec<u8>, Status> {
        let controller = self.controller_mut(id)?;
        let page = list(controller.changed.iter().copied());
        if !retains {
            controller.notified = false;
            controller.changed.clear();
        }
        Ok(page)
    }
}

/// True for a number that a namespace of `subsystem` could have.
fn is_valid(subsystem: &Subsystem, namespace: u32) -> bool {
    let last = subsystem.namespaces.keys().next_back().copied().unwrap_or(0);
    (1..=last).contains(&namespace)
}

/// A list of up to 1024 numbers.
fn list(numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut data: Vec<u8> = numbers.into_iter().take(1024).flat_map(u32::to_le_bytes).collect();
    data.resize(IDENTIFY_LEN, 0);
    data
}
