//! A host over a device: an association with a controller, and its I/O queues.

mod pair;
mod queue;

pub use queue::Queue;

use crate::{DeviceError, cannot};
use longhaul_host::Clock;
use longhaul_nvme::host::{Admin, Event, Goal, HostError, Identity, NamespaceInfo, Progress};
use longhaul_nvme::{DiscoveryEntry, IDENTIFY_LEN, QueueRequest, RefusalReason, Status};
use longhaul_rdma::{Device, ProtectionDomain, RdmaError};
use pair::Pair;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// Longest sleep of the thread that keeps an association alive.
const SLEEP: Duration = Duration::from_millis(200);
/// Time for the peer to confirm the end of a connection.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Why a host cannot go on.
#[derive(Debug, Error)]
pub enum AssociationError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No connection.
    #[error("cannot connect to {to}: {cause}")]
    Connect {
        /// The target.
        to: SocketAddr,
        /// The cause.
        cause: RdmaError,
    },
    /// The target refused a queue.
    #[error("{to} refuses queue {queue}: {reason}")]
    Refused {
        /// The target.
        to: SocketAddr,
        /// The queue.
        queue: u16,
        /// The target's reason.
        reason: RefusalReason,
    },
    /// The controller cannot be used.
    #[error("the controller cannot be used: {0}")]
    Controller(#[from] HostError),
    /// The connection ended.
    #[error("the connection of queue {queue} ended: {cause}")]
    Lost {
        /// The queue.
        queue: u16,
        /// What ended it.
        cause: Box<str>,
    },
    /// The admin queue ended, and with it the association.
    #[error("the association ended: {0}")]
    Ended(Arc<AssociationError>),
}

impl AssociationError {
    /// The status with which the target refused Connect, if that is what happened.
    #[must_use]
    pub fn connect_status(&self) -> Option<Status> {
        match self {
            AssociationError::Controller(HostError::Refused { command: "Connect", status }) => {
                Some(*status)
            }
            _ => None,
        }
    }
}

/// What ended an association, for its queues; empty while it lasts.
type Fate = OnceLock<Arc<AssociationError>>;

/// What to connect to, and as whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The target.
    pub to: SocketAddr,
    /// The host and the subsystem.
    pub identity: Identity,
    /// Longest silence between host and controller; zero means no limit.
    pub keep_alive: Duration,
    /// Time for a connection to be made.
    pub connect_within: Duration,
}

/// An admin queue with its connection.
struct AdminLink {
    admin: Admin,
    pair: Pair,
    clock: Clock,
}

impl AdminLink {
    fn connect(
        device: &Device,
        pd: &ProtectionDomain,
        settings: &Settings,
        goal: Goal,
    ) -> Result<Self, AssociationError> {
        let depth = Admin::DEPTH;
        let request = QueueRequest { queue: 0, receives: depth, sends: depth - 1, controller: 0 };
        let (len, within) = (IDENTIFY_LEN as u32, settings.connect_within);
        let pair = Pair::connect(device, pd, settings, &request, depth, len, within)?;
        let keep_alive = longhaul_units::Duration::from_ns(settings.keep_alive.as_nanos() as u64);
        let admin = Admin::new(settings.identity.clone(), goal, keep_alive);
        Ok(AdminLink { admin, pair, clock: Clock::start() })
    }

    /// Sends what is to be sent and handles responses; sleeps for at most `limit` if there are
    /// none.
    fn turn(&mut self, limit: Duration) -> Result<Vec<Event>, AssociationError> {
        let AdminLink { admin, pair, clock } = self;
        while let Some(submission) = admin.poll_command(clock.now(), |slot| pair.buffer(slot))? {
            pair.send(&submission);
        }
        let until = admin.poll_timeout().map(|at| at.since(clock.now()).as_ns());
        let limit = until.map_or(limit, |ns| limit.min(Duration::from_nanos(ns)));
        let mut events = Vec::new();
        let mut responses = Vec::new();
        pair.responses(limit, &mut responses)?;
        for response in responses {
            let data = |slot: u16, len: usize| pair.data(slot, len);
            events.extend(admin.completed(clock.now(), response.bytes(), data)?);
        }
        Ok(events)
    }

    /// Brings the controller up within this time.
    fn bring_up(&mut self, within: Duration) -> Result<(), AssociationError> {
        let begun = std::time::Instant::now();
        while !self.turn(SLEEP)?.contains(&Event::Ready) {
            if begun.elapsed() > within {
                let cause = format!("the controller was not ready within {} s", within.as_secs());
                return Err(AssociationError::Lost { queue: 0, cause: cause.into() });
            }
        }
        Ok(())
    }

    fn shut_down(&mut self) {
        let end = std::time::Instant::now() + END_WITHIN;
        self.admin.shut_down();
        while std::time::Instant::now() < end {
            match self.turn(SLEEP) {
                Ok(events) if !events.contains(&Event::ShutDown) => {}
                // Whatever ended the connection: it has ended.
                Ok(_) | Err(_) => break,
            }
        }
        self.pair.disconnect(END_WITHIN);
    }
}

/// Subsystems that the target at `settings.to` offers; `settings.identity` names the discovery
/// subsystem.
///
/// # Errors
/// If the target does not answer, or refuses.
pub fn discover(
    device: &Device,
    settings: &Settings,
) -> Result<Vec<DiscoveryEntry>, AssociationError> {
    let pd = device.alloc_pd().map_err(cannot("allocate a protection domain"))?;
    let mut link = AdminLink::connect(device, &pd, settings, Goal::Discovery)?;
    link.bring_up(settings.connect_within)?;
    let entries = link.admin.progress().entries.clone();
    link.shut_down();
    Ok(entries)
}

/// An association with a controller. A thread keeps it alive; dropping it ends it.
pub struct Association {
    device: Device,
    pd: ProtectionDomain,
    settings: Settings,
    progress: Progress,
    stop: Arc<AtomicBool>,
    fate: Arc<Fate>,
    keeper: Option<JoinHandle<()>>,
}

impl Association {
    /// Connects to a subsystem, and requests `queues` I/O queues.
    ///
    /// # Errors
    /// If the target does not answer, or refuses.
    pub fn connect(
        device: &Device,
        settings: &Settings,
        queues: u16,
    ) -> Result<Self, AssociationError> {
        let pd = device.alloc_pd().map_err(cannot("allocate a protection domain"))?;
        let mut link = AdminLink::connect(device, &pd, settings, Goal::Queues(queues))?;
        link.bring_up(settings.connect_within)?;
        let progress = link.admin.progress().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let fate = Arc::new(Fate::new());
        let keeper = {
            let (stop, fate) = (Arc::clone(&stop), Arc::clone(&fate));
            std::thread::spawn(move || keep_alive(link, &stop, &fate))
        };
        let (device, settings) = (device.clone(), settings.clone());
        Ok(Association { device, pd, settings, progress, stop, fate, keeper: Some(keeper) })
    }

    /// What the controller is and grants.
    #[must_use]
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The namespace with this number, or the first.
    #[must_use]
    pub fn namespace(&self, number: Option<u32>) -> Option<NamespaceInfo> {
        let mut all = self.progress.namespaces.iter();
        match number {
            Some(number) => all.find(|one| one.number == number).copied(),
            None => all.next().copied(),
        }
    }

    /// Bytes that one operation transfers at most.
    #[must_use]
    pub fn transfer_max(&self) -> u64 {
        match self.progress.data.as_ref().map_or(0, |data| data.transfer_max_code) {
            0 => u64::from(u32::MAX),
            code => 4096_u64.checked_shl(code.into()).unwrap_or(u64::MAX),
        }
    }

    /// Connects I/O queue `number`, from 1, for `depth` outstanding operations of at most `bytes`
    /// bytes.
    ///
    /// # Errors
    /// If the target refuses.
    pub fn queue<T>(
        &self,
        number: u16,
        depth: u16,
        bytes: u32,
    ) -> Result<Queue<T>, AssociationError> {
        Queue::connect(self, number, depth, bytes)
    }

    /// Shuts the controller down.
    ///
    /// # Errors
    /// If the association was lost before.
    pub fn end(mut self) -> Result<(), AssociationError> {
        self.stop_keeper();
        is_alive(&self.fate)
    }

    fn stop_keeper(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // It does not panic.
            let _ = keeper.join();
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.stop_keeper();
    }
}

fn is_alive(fate: &Fate) -> Result<(), AssociationError> {
    fate.get().map_or(Ok(()), |cause| Err(AssociationError::Ended(Arc::clone(cause))))
}

/// Keeps the association alive until it is stopped, and then shuts it down; sets `fate` if it ends
/// before.
fn keep_alive(mut link: AdminLink, stop: &AtomicBool, fate: &Fate) {
    while !stop.load(Ordering::Relaxed) {
        if let Err(cause) = link.turn(SLEEP) {
            // Nobody else sets it.
            let _ = fate.set(Arc::new(cause));
            return;
        }
    }
    link.shut_down();
}
