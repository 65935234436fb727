//! An admin queue of a host: brings a controller up, and keeps it alive.

use super::io::{connect, keyed};
use super::slots::Slots;
use super::{HostError, Submission};
use crate::fields::u32_at;
use crate::opcode::{fabrics, feature, log_page};
use crate::{
    Capabilities, Command, Completion, Configuration, ConnectData, ControllerData,
    ControllerStatus, DISCOVERY_ENTRY_LEN, DYNAMIC_CONTROLLER, DiscoveryEntry, DiscoveryHeader,
    HostId, IDENTIFY_LEN, NamespaceData, Nqn, Property, Remote, Status, admin,
};
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// Outstanding commands of an admin queue.
const DEPTH: u16 = 32;
/// Time between two looks at the status of a controller that is not ready.
const LOOK: Duration = Duration::from_ms(10);
/// Notices of changed namespaces.
const NAMESPACE_EVENTS: u32 = 1 << 8;
/// Most subsystems that a discovery reads.
const ENTRIES_MAX: u64 = 4096;

/// Who connects to which subsystem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The host's identifier.
    pub host_id: HostId,
    /// The host.
    pub host: Nqn,
    /// The subsystem.
    pub subsystem: Nqn,
}

impl Identity {
    pub(super) fn data(&self, controller: u16) -> ConnectData {
        ConnectData {
            host_id: self.host_id,
            controller,
            subsystem: self.subsystem.clone(),
            host: self.host.clone(),
        }
    }
}

/// What to bring a controller up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// This many I/O queues.
    Queues(u16),
    /// The discovery log.
    Discovery,
}

/// A namespace of the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// Number.
    pub number: u32,
    /// Size and identifier.
    pub data: NamespaceData,
}

/// News of a controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The goal is reached.
    Ready,
    /// Namespaces have changed.
    NamespacesChanged,
    /// The controller has shut down; the connection can be ended.
    ShutDown,
}

/// What a bring-up has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Number of the controller.
    pub controller: u16,
    /// Its description.
    pub data: Option<ControllerData>,
    /// Granted I/O queues.
    pub queues: u16,
    /// Entries of the largest queue.
    pub entries_max: u32,
    /// Namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// The discovery log.
    pub entries: Vec<DiscoveryEntry>,
}

/// The next step of the bring-up.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    Connect,
    Capabilities,
    Enable,
    /// Looks at the status, next at `at`, until `until`.
    Readiness {
        at: Instant,
        until: Option<Instant>,
    },
    Controller,
    Queues,
    ConfigureEvents,
    Namespaces {
        after: u32,
    },
    Namespace {
        left: VecDeque<u32>,
        is_last_list: bool,
    },
    LogHeader,
    LogEntry {
        next: u64,
        of: u64,
    },
    Ready,
    Shutdown,
    Over,
}

/// A command that is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// That of the phase.
    Phase,
    KeepAlive,
    Event,
}

struct Outstanding {
    sent: Sent,
    at: Instant,
}

/// An admin queue.
pub struct Admin {
    identity: Identity,
    goal: Goal,
    /// Longest silence that the controller accepts; zero means no limit.
    keep_alive: Duration,
    phase: Phase,
    ready_within: Duration,
    slots: Slots<Outstanding>,
    /// When the last command was sent.
    spoke: Instant,
    /// The controller refuses Asynchronous Event Requests.
    has_no_events: bool,
    progress: Progress,
}

impl Admin {
    /// An admin queue that will reach `goal` with the subsystem that `identity` names.
    #[must_use]
    pub fn new(identity: Identity, goal: Goal, keep_alive: Duration) -> Self {
        Admin {
            identity,
            goal,
            keep_alive,
            phase: Phase::Connect,
            ready_within: Duration::ZERO,
            slots: Slots::new(DEPTH),
            spoke: Instant::ZERO,
            has_no_events: goal == Goal::Discovery,
            progress: Progress::default(),
        }
    }

    /// Its outstanding commands at most: slots, each with a receive and a buffer of
    /// [`IDENTIFY_LEN`] bytes.
    pub const DEPTH: u16 = DEPTH;

    /// What the bring-up has found so far.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// True once the goal is reached.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Shuts the controller down, if it is ready.
    pub fn shut_down(&mut self) {
        self.phase = if self.is_ready() { Phase::Shutdown } else { Phase::Over };
    }

    /// The next command to send; `buffer` returns the memory of a slot.
    ///
    /// # Errors
    /// If the controller did not answer in time.
    pub fn poll_command(
        &mut self,
        now: Instant,
        buffer: impl Fn(u16) -> Remote,
    ) -> Result<Option<Submission>, HostError> {
        let limit = self.keep_alive;
        let is_late = |one: &Outstanding| {
            limit > Duration::ZERO && one.sent != Sent::Event && one.at + limit <= now
        };
        if self.slots.iter().any(is_late) {
            return Err(HostError::Silent(self.name()));
        }
        if !self.sends(Sent::Phase)
            && let Some((command, data)) = self.of_phase(now)
        {
            return Ok(self.send(now, Sent::Phase, command, data, buffer));
        }
        if self.is_ready() && !self.has_no_events && !self.sends(Sent::Event) {
            let command = Command::new(admin::ASYNC_EVENT, 0);
            return Ok(self.send(now, Sent::Event, command, Transfer::None, buffer));
        }
        let is_due = self.keep_alive_at().is_some_and(|at| at <= now);
        if is_due {
            let command = Command::new(admin::KEEP_ALIVE, 0);
            return Ok(self.send(now, Sent::KeepAlive, command, Transfer::None, buffer));
        }
        Ok(None)
    }

    /// When [`Admin::poll_command`] has something to do next, unless a response arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let look = match self.phase {
            Phase::Readiness { at, .. } if !self.sends(Sent::Phase) => Some(at),
            _ => None,
        };
        let late = self.slots.iter().filter(|one| one.sent != Sent::Event).map(|one| one.at);
        let limit = (self.keep_alive > Duration::ZERO).then_some(self.keep_alive);
        let late = late.min().and_then(|at| Some(at + limit?));
        look.into_iter().chain(self.keep_alive_at()).chain(late).min()
    }

    /// True if such a command is outstanding.
    fn sends(&self, sent: Sent) -> bool {
        self.slots.iter().any(|one| one.sent == sent)
    }

    fn keep_alive_at(&self) -> Option<Instant> {
        let is_limited = self.keep_alive > Duration::ZERO && self.is_ready();
        (is_limited && !self.sends(Sent::KeepAlive))
            .then(|| self.spoke + self.keep_alive.divided_by(3))
    }

    fn send(
        &mut self,
        now: Instant,
        sent: Sent,
        mut command: Command,
        data: Transfer,
        buffer: impl Fn(u16) -> Remote,
    ) -> Option<Submission> {
        let (slot, id) = self.slots.occupy(Outstanding { sent, at: now }).ok()?;
        self.spoke = now;
        let remote = buffer(slot);
        match data {
            Transfer::Connect => {
                let ms = (self.keep_alive.as_ns() / 1_000_000).min(u32::MAX.into()) as u32;
                let data = self.identity.data(DYNAMIC_CONTROLLER);
                return Some(connect(slot, id, (0, DEPTH - 1, ms), &data, remote));
            }
            Transfer::FromController(len) => command.descriptor = keyed(remote, len).write(),
            Transfer::None => {}
        }
        command.id = id;
        Some(Submission { slot, command: command.write(), data: Vec::new(), in_capsule: 0 })
    }

    /// The phase's command, unless it has none now.
    fn of_phase(&self, now: Instant) -> Option<(Command, Transfer)> {
        let whole = Transfer::FromController(IDENTIFY_LEN as u32);
        Some(match &self.phase {
            Phase::Connect => (Command::new(admin::FABRICS, 0), Transfer::Connect),
            Phase::Capabilities => (get(Property::Capabilities), Transfer::None),
            Phase::Enable => (set(Configuration::ENABLED), Transfer::None),
            Phase::Readiness { at, .. } if *at > now => return None,
            Phase::Readiness { .. } => (get(Property::Status), Transfer::None),
            Phase::Controller => (identify(1, 0), whole),
            Phase::Queues => {
                let Goal::Queues(wanted) = self.goal else { return None };
                let wanted = u32::from(wanted.max(1) - 1);
                (set_feature(feature::QUEUES, wanted | wanted << 16), Transfer::None)
            }
            Phase::ConfigureEvents => {
                (set_feature(feature::ASYNC_EVENTS, NAMESPACE_EVENTS), Transfer::None)
            }
            Phase::Namespaces { after } => (identify(2, *after), whole),
            Phase::Namespace { left, .. } => (identify(0, *left.front()?), whole),
            Phase::LogHeader => discovery_log(0),
            Phase::LogEntry { next, .. } => discovery_log(next + 1),
            Phase::Shutdown => (set(Configuration::ENABLED.shutting_down()), Transfer::None),
            Phase::Ready | Phase::Over => return None,
        })
    }

    /// Name of the phase's command.
    fn name(&self) -> &'static str {
        match self.phase {
            Phase::Connect => "Connect",
            Phase::Capabilities => "Property Get (CAP)",
            Phase::Enable | Phase::Shutdown => "Property Set (CC)",
            Phase::Readiness { .. } => "Property Get (CSTS)",
            Phase::Controller => "Identify Controller",
            Phase::Queues => "Set Features (Number of Queues)",
            Phase::ConfigureEvents => "Set Features (Asynchronous Event Configuration)",
            Phase::Namespaces { .. } => "Identify (Active Namespace List)",
            Phase::Namespace { .. } => "Identify Namespace",
            Phase::LogHeader | Phase::LogEntry { .. } => "Get Log Page (Discovery)",
            Phase::Ready | Phase::Over => "Keep Alive",
        }
    }

    /// A response capsule; `data` copies bytes of a slot's buffer.
    ///
    /// # Errors
    /// [`HostError`]: the connection must be ended.
    pub fn completed(
        &mut self,
        now: Instant,
        capsule: &[u8],
        data: impl FnOnce(u16, usize) -> Vec<u8>,
    ) -> Result<Option<Event>, HostError> {
        let completion = Completion::read(capsule).ok_or(HostError::Length(capsule.len()))?;
        let Completion { id, status, result, .. } = completion;
        let (slot, of) = self.slots.release(id).ok_or(HostError::UnknownCommand(id))?;
        match of.sent {
            Sent::KeepAlive if status.is_success() => Ok(None),
            Sent::KeepAlive => Err(HostError::Refused { command: "Keep Alive", status }),
            // The only notice that this host enables.
            Sent::Event if status.is_success() => Ok(Some(Event::NamespacesChanged)),
            Sent::Event => {
                self.has_no_events = true;
                Ok(None)
            }
            Sent::Phase => {
                let was_ready = self.is_ready();
                self.advance(now, status, result, |len| data(slot, len))?;
                Ok(match self.phase {
                    Phase::Ready if !was_ready => Some(Event::Ready),
                    Phase::Over => Some(Event::ShutDown),
                    _ => None,
                })
            }
        }
    }

    /// The phase's command has completed.
    fn advance(
        &mut self,
        now: Instant,
        status: Status,
        result: u64,
        data: impl FnOnce(usize) -> Vec<u8>,
    ) -> Result<(), HostError> {
        let command = self.name();
        if !status.is_success() {
            return Err(HostError::Refused { command, status });
        }
        let invalid = HostError::Data(command);
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Connect => {
                self.progress.controller = result as u16;
                Phase::Capabilities
            }
            Phase::Capabilities => {
                let capabilities = Capabilities::read(result);
                self.progress.entries_max = capabilities.entries_max;
                let units = u64::from(capabilities.ready_within).max(1);
                self.ready_within = Duration::from_ms(500).times(units);
                Phase::Enable
            }
            Phase::Enable => Phase::Readiness { at: now, until: None },
            Phase::Readiness { until, .. } => self.readiness(now, result, until)?,
            Phase::Controller => {
                let read = ControllerData::read(&data(IDENTIFY_LEN)).ok_or(invalid)?;
                self.progress.data = Some(read);
                if self.goal == Goal::Discovery { Phase::LogHeader } else { Phase::Queues }
            }
            Phase::Queues => {
                let Goal::Queues(wanted) = self.goal else { return Err(HostError::NoQueues) };
                let granted = (result & 0xffff).min(result >> 16 & 0xffff) as u16;
                self.progress.queues = granted.saturating_add(1).min(wanted);
                Phase::ConfigureEvents
            }
            Phase::ConfigureEvents => Phase::Namespaces { after: 0 },
            Phase::Namespaces { after } => list(&data(IDENTIFY_LEN), after).ok_or(invalid)?,
            Phase::Namespace { left, is_last_list } => {
                self.namespace(left, is_last_list, &data(IDENTIFY_LEN)).ok_or(invalid)?
            }
            Phase::LogHeader => {
                let header = DiscoveryHeader::read(&data(DISCOVERY_ENTRY_LEN)).ok_or(invalid)?;
                log_from(0, header.entries.min(ENTRIES_MAX))
            }
            Phase::LogEntry { next, of } => {
                // Entries of other transports are skipped.
                let entry = DiscoveryEntry::read(&data(DISCOVERY_ENTRY_LEN));
                self.progress.entries.extend(entry);
                log_from(next + 1, of)
            }
            Phase::Ready => Phase::Ready,
            Phase::Shutdown | Phase::Over => Phase::Over,
        };
        Ok(())
    }

    fn readiness(
        &self,
        now: Instant,
        result: u64,
        until: Option<Instant>,
    ) -> Result<Phase, HostError> {
        let status = ControllerStatus(result as u32);
        let until = until.unwrap_or(now + self.ready_within);
        match status {
            status if status.is_fatal() => Err(HostError::Fatal),
            status if status.is_ready() => Ok(Phase::Controller),
            _ if now >= until => Err(HostError::NotReady(self.ready_within)),
            _ => Ok(Phase::Readiness { at: now + LOOK, until: Some(until) }),
        }
    }

    /// One namespace of the list has been identified.
    fn namespace(
        &mut self,
        mut left: VecDeque<u32>,
        is_last_list: bool,
        data: &[u8],
    ) -> Option<Phase> {
        let number = left.pop_front()?;
        // One that was removed meanwhile, or has an impossible format, is left out.
        if let Some(data) = NamespaceData::read(data).filter(|data| data.metadata == 0) {
            self.progress.namespaces.push(NamespaceInfo { number, data });
        }
        Some(match (left.is_empty(), is_last_list) {
            (false, _) => Phase::Namespace { left, is_last_list },
            (true, true) => Phase::Ready,
            (true, false) => Phase::Namespaces { after: number },
        })
    }
}

/// Data of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transfer {
    None,
    Connect,
    FromController(u32),
}

fn log_from(next: u64, of: u64) -> Phase {
    if next < of { Phase::LogEntry { next, of } } else { Phase::Ready }
}

/// The phase after a list of namespaces above `after`; `None` if the list is not ascending.
fn list(data: &[u8], after: u32) -> Option<Phase> {
    let all = (0..IDENTIFY_LEN / 4).map(|i| u32_at(data, 4 * i));
    let left: VecDeque<u32> = all.take_while(|number| *number != 0).collect();
    let is_ascending = left.iter().zip(left.iter().skip(1)).all(|(one, next)| one < next);
    if !is_ascending || left.front().is_some_and(|first| *first <= after) {
        return None;
    }
    let is_last_list = left.len() < IDENTIFY_LEN / 4;
    Some(if left.is_empty() { Phase::Ready } else { Phase::Namespace { left, is_last_list } })
}

fn get(property: Property) -> Command {
    let mut command = Command::new(admin::FABRICS, fabrics::PROPERTY_GET.into());
    command.dwords[..2].copy_from_slice(&[property.size_code(), property.offset()]);
    command
}

fn set(to: Configuration) -> Command {
    let mut command = Command::new(admin::FABRICS, fabrics::PROPERTY_SET.into());
    let property = Property::Configuration;
    command.dwords[..2].copy_from_slice(&[property.size_code(), property.offset()]);
    command.set_quad(2, to.0.into());
    command
}

fn identify(structure: u32, namespace: u32) -> Command {
    let mut command = Command::new(admin::IDENTIFY, namespace);
    command.dwords[0] = structure;
    command
}

fn set_feature(feature: u8, value: u32) -> Command {
    let mut command = Command::new(admin::SET_FEATURES, 0);
    command.dwords[..2].copy_from_slice(&[feature.into(), value]);
    command
}

/// The header of the discovery log, or entry `index - 1`.
fn discovery_log(index: u64) -> (Command, Transfer) {
    let mut command = Command::new(admin::GET_LOG_PAGE, 0);
    let len = DISCOVERY_ENTRY_LEN as u32;
    command.dwords[0] = u32::from(log_page::DISCOVERY) | (len / 4 - 1) << 16;
    command.set_quad(2, index * u64::from(len));
    (command, Transfer::FromController(len))
}
