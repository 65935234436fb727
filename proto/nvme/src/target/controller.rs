//! Controllers of a target.

use super::queue::QueueId;
use super::step::{SubsystemId, Token};
use crate::{Configuration, ControllerKind, ControllerStatus, HostId, Nqn};
use longhaul_units::{Duration, Instant};
use std::collections::{BTreeSet, VecDeque};

/// A controller's number.
pub(super) type ControllerId = u16;

/// What a controller serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Serves {
    Discovery,
    Subsystem(SubsystemId),
}

impl Serves {
    pub(super) fn kind(self) -> ControllerKind {
        match self {
            Serves::Discovery => ControllerKind::Discovery,
            Serves::Subsystem(_) => ControllerKind::Io,
        }
    }
}

/// What the host has configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    Disabled(Configuration),
    Ready(Configuration),
    /// The host enabled it with a configuration that it does not support.
    Fatal(Configuration),
    /// The host shuts it down, and volatile caches are being flushed.
    ShuttingDown(Configuration),
    ShutDown(Configuration),
}

impl Readiness {
    /// The state after a write to the configuration.
    pub(super) fn after(to: Configuration) -> Self {
        match to {
            to if to.shuts_down() => Readiness::ShuttingDown(to),
            to if !to.is_enabled() => Readiness::Disabled(to),
            to if to.is_supported() => Readiness::Ready(to),
            to => Readiness::Fatal(to),
        }
    }

    pub(super) fn configuration(self) -> Configuration {
        let (Readiness::Disabled(value)
        | Readiness::Ready(value)
        | Readiness::Fatal(value)
        | Readiness::ShuttingDown(value)
        | Readiness::ShutDown(value)) = self;
        value
    }

    pub(super) fn status(self) -> ControllerStatus {
        match self {
            Readiness::Disabled(_) => ControllerStatus::DISABLED,
            Readiness::Ready(_) => ControllerStatus::READY,
            Readiness::Fatal(_) => ControllerStatus::FATAL,
            Readiness::ShuttingDown(_) => ControllerStatus::SHUTTING_DOWN,
            Readiness::ShutDown(_) => ControllerStatus::SHUT_DOWN,
        }
    }
}

/// A running keep-alive timer.
///
/// Any command keeps the controller alive (TBKAS): the timer expires at the end of an interval
/// without one. A host may skip its Keep Alive in an interval with other commands, so its longest
/// silence is almost two intervals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeepAlive {
    pub(super) interval: Duration,
    /// When the current interval began.
    pub(super) since: Instant,
}

impl KeepAlive {
    /// The timer for a timeout of `ms` milliseconds; 0 means none.
    pub(super) fn start(now: Instant, ms: u32) -> Option<Self> {
        let interval = Duration::from_ms(ms.into());
        (ms > 0).then_some(KeepAlive { interval, since: now })
    }

    pub(super) fn ends(&self) -> Instant {
        self.since + self.interval
    }
}

/// An association of a host.
pub(super) struct Controller {
    pub(super) serves: Serves,
    pub(super) host: Nqn,
    pub(super) host_id: HostId,
    pub(super) admin: QueueId,
    pub(super) readiness: Readiness,
    /// `None`: the host may be silent for ever.
    pub(super) keep_alive: Option<KeepAlive>,
    /// Numbers of connected I/O queues.
    pub(super) queues: BTreeSet<u16>,
    /// Value of the Asynchronous Event Configuration feature.
    pub(super) event_configuration: u32,
    /// Held Asynchronous Event Requests.
    pub(super) events: VecDeque<Token>,
    /// Namespaces that changed since the host last read their log.
    pub(super) changed: BTreeSet<u32>,
    /// The change of the log has been notified.
    pub(super) notified: bool,
}

impl Controller {
    pub(super) fn host(&self) -> &Nqn {
        &self.host
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.readiness, Readiness::Ready(_))
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        matches!(self.readiness, Readiness::ShuttingDown(_))
    }

    /// Volatile caches have been flushed.
    pub(super) fn note_flushed(&mut self) {
        if let Readiness::ShuttingDown(configuration) = self.readiness {
            self.readiness = Readiness::ShutDown(configuration);
        }
    }
}
