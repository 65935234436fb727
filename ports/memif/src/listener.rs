//! One socket for many interfaces: accepts slaves, and passes each to the port with its id.
//!
//! Servicing a port of the listener, or the listener itself, also accepts connections and reads the
//! INIT that names the interface. The connection then goes into the inbox of that interface, whose
//! own thread does the rest. The ports of one listener may therefore live on different threads, and
//! the listener needs no thread.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use longhaul_port::{Descriptors, Doorbell};
use rustix::event::{Timespec, epoll};

use crate::config::{MemifConfig, MemifError};
use crate::control::{Control, Received};
use crate::handshake::{hello, secret_field};
use crate::message::{Init, MODE_ETHERNET, Message, SECRET_BYTES, VERSION};
use crate::port::MemifPort;
use crate::socket::ListeningSocket;

/// Maximum number of connections that have not named their interface; a new one evicts the oldest.
const PENDING_MAX: usize = 64;
/// Maximum number of connections accepted per call.
const ACCEPT_BATCH: usize = 16;
/// Maximum number of interfaces created on demand and not yet collected.
const UNCOLLECTED_MAX: usize = 256;

/// An interface of a listener: the state that its port and the listener share.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) id: u32,
    pub(crate) config: MemifConfig,
    /// A slave that waits for the port, which may still be connected to another slave.
    inbox: Mutex<Option<Control>>,
    pub(crate) bell: Doorbell,
}

impl Slot {
    fn new(id: u32, config: MemifConfig) -> io::Result<Self> {
        Ok(Self { id, config, inbox: Mutex::default(), bell: Doorbell::new()? })
    }

    /// Delivers a slave to the port, or refuses it if another one waits. The bell rings under the
    /// lock, so that it does not ring after the slave has been taken.
    pub(crate) fn deliver(&self, control: Control) {
        let mut inbox = unpoisoned(self.inbox.lock());
        if inbox.is_some() {
            return self.refuse(&control);
        }
        *inbox = Some(control);
        // A polling port finds the slave even without the bell.
        let _ = self.bell.ring();
    }

    /// Refuses a slave because another one has the interface.
    pub(crate) fn refuse(&self, control: &Control) {
        control.send_disconnect(&format!("interface id {} is already connected", self.id));
    }

    /// Takes the waiting slave, if there is one.
    pub(crate) fn take(&self) -> Option<Control> {
        let mut inbox = unpoisoned(self.inbox.lock());
        let taken = inbox.take();
        if taken.is_some() {
            let _ = self.bell.clear();
        }
        taken
    }
}

/// Unwraps a lock whose data stays valid if a thread panics while it holds the lock.
fn unpoisoned<T>(result: Result<T, std::sync::PoisonError<T>>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct HubState {
    pending: Vec<Control>,
    slots: HashMap<u32, Arc<Slot>>,
    /// Configuration of interfaces that are created on demand; without it, unknown interfaces are
    /// refused.
    on_demand: Option<MemifConfig>,
    uncollected: Vec<Arc<Slot>>,
}

/// State that a listener and its ports share.
#[derive(Debug)]
pub(crate) struct Hub {
    socket: ListeningSocket,
    /// Readable when `socket` or a pending connection is.
    readiness: OwnedFd,
    /// Rings when an interface is created on demand.
    bell: Doorbell,
    state: Mutex<HubState>,
}

impl Hub {
    fn bind(path: &Path) -> Result<Self, MemifError> {
        let socket = ListeningSocket::bind(path)?;
        let io_error = |source: io::Error| MemifError::Io {
            path: path.to_owned(),
            operation: "watching the socket",
            source,
        };
        let bell = Doorbell::new().map_err(io_error)?;
        let readiness =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| io_error(errno.into()))?;
        let hub = Self { socket, readiness, bell, state: Mutex::default() };
        hub.watch(&hub.socket).map_err(io_error)?;
        Ok(hub)
    }

    fn watch(&self, fd: impl AsFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.readiness, fd, data, epoll::EventFlags::IN)?)
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        unpoisoned(self.state.lock())
    }

    /// Readable when [`Hub::pump`] has work to do.
    pub(crate) fn readiness(&self) -> &OwnedFd {
        &self.readiness
    }

    /// Accepts slaves, and delivers those that have named their interface. Does nothing while
    /// another thread does this.
    pub(crate) fn pump(&self) -> io::Result<()> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        // A readiness check is cheap; an accept without a connection creates and discards a socket.
        let mut ready = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        if epoll::wait(&self.readiness, &mut ready[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?
            == 0
        {
            return Ok(());
        }
        let accepted = self.accept(&mut state);
        let pending = std::mem::take(&mut state.pending);
        for control in pending {
            match control.receive() {
                Ok(Received::Nothing) => state.pending.push(control),
                Ok(Received::Closed) => {}
                Ok(Received::Message(Message::Init(init), _)) => {
                    let _ = epoll::delete(&self.readiness, &control);
                    match self.admit(&mut state, &init) {
                        Ok(slot) => slot.deliver(control),
                        Err(reason) => control.send_disconnect(&reason),
                    }
                }
                Ok(Received::Message(other, _)) => {
                    control.send_disconnect(&format!("{} where INIT comes first", other.name()));
                }
                Err(violation) => control.send_disconnect(&violation.0),
            }
        }
        accepted
    }

    fn accept(&self, state: &mut HubState) -> io::Result<()> {
        for _ in 0..ACCEPT_BATCH {
            let Some(socket) = self.socket.accept()? else { break };
            let control = Control::new(socket);
            if control.send(&hello(), None).is_err() {
                continue;
            }
            if state.pending.len() == PENDING_MAX {
                state.pending.remove(0).send_disconnect("too many connections without INIT");
            }
            self.watch(&control)?;
            state.pending.push(control);
        }
        Ok(())
    }

    /// The interface that a slave names, if it may have it.
    fn admit(&self, state: &mut HubState, init: &Init) -> Result<Arc<Slot>, String> {
        if init.version != VERSION {
            return Err(format!("memif version {:#x} instead of {VERSION:#x}", init.version));
        }
        if init.mode != MODE_ETHERNET {
            return Err(format!("interface mode {} instead of Ethernet", init.mode));
        }
        let slot = match state.slots.get(&init.id) {
            Some(slot) => Arc::clone(slot),
            None => self.make_on_demand(state, init)?,
        };
        check_secret(slot.config.secret.as_deref(), &init.secret)?;
        Ok(slot)
    }

    fn make_on_demand(&self, state: &mut HubState, init: &Init) -> Result<Arc<Slot>, String> {
        let id = init.id;
        let Some(template) = &state.on_demand else {
            return Err(format!("no interface with id {id} on this socket"));
        };
        check_secret(template.secret.as_deref(), &init.secret)?;
        if state.uncollected.len() == UNCOLLECTED_MAX {
            return Err("too many new interfaces at once".to_owned());
        }
        let slot = Slot::new(id, template.clone())
            .map_err(|error| format!("no resources for interface id {id}: {error}"))?;
        let slot = Arc::new(slot);
        state.slots.insert(id, Arc::clone(&slot));
        state.uncollected.push(Arc::clone(&slot));
        // A polling listener finds the interface even without the bell.
        let _ = self.bell.ring();
        Ok(slot)
    }

    /// Removes an interface. A slave that waits for it is disconnected.
    pub(crate) fn remove(&self, slot: &Arc<Slot>) {
        let mut state = self.lock();
        if state.slots.get(&slot.id).is_some_and(|registered| Arc::ptr_eq(registered, slot)) {
            state.slots.remove(&slot.id);
        }
        drop(state);
        if let Some(control) = slot.take() {
            control.send_disconnect("the interface is gone");
        }
    }
}

fn check_secret(wanted: Option<&str>, given: &[u8; SECRET_BYTES]) -> Result<(), String> {
    if wanted.is_none() {
        return Ok(());
    }
    if given.iter().all(|byte| *byte == 0) {
        return Err("a secret is required".to_owned());
    }
    // The text ends at the first zero; the bytes behind it are not part of the secret.
    let end = given.iter().position(|byte| *byte == 0).unwrap_or(SECRET_BYTES);
    let mut text = [0; SECRET_BYTES];
    text[..end].copy_from_slice(&given[..end]);
    let wanted = secret_field(wanted);
    let difference = wanted.iter().zip(&text).fold(0, |sum, (left, right)| sum | (left ^ right));
    if difference == 0 { Ok(()) } else { Err("the secret is wrong".to_owned()) }
}

/// A memif socket on which this process is the master of any number of interfaces.
///
/// Only its owner may access the socket file, which is removed when the listener and all its ports
/// are dropped. Dropping the listener alone leaves its ports working, including reconnects.
#[derive(Debug)]
pub struct Listener {
    hub: Arc<Hub>,
}

impl Listener {
    /// Listens at `path`. Replaces the stale socket file of a dead process.
    ///
    /// # Errors
    /// [`MemifError::AddressInUse`] if a process listens there, [`MemifError::NotASocket`] if the
    /// path names another kind of file, [`MemifError::Io`] otherwise.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, MemifError> {
        Ok(Self { hub: Arc::new(Hub::bind(path.as_ref())?) })
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.hub.socket.path()
    }

    /// Creates the interface `id`, which then waits for its slave. Dropping the port removes it.
    ///
    /// # Errors
    /// [`MemifError::DuplicateId`], [`MemifError::Config`], or [`MemifError::Io`].
    pub fn port(&self, id: u32, config: MemifConfig) -> Result<MemifPort, MemifError> {
        config.validate()?;
        let path = || self.path().to_owned();
        let slot = Slot::new(id, config).map_err(|source| MemifError::Io {
            path: path(),
            operation: "making an interface",
            source,
        })?;
        let slot = Arc::new(slot);
        let mut state = self.hub.lock();
        if state.slots.contains_key(&id) {
            return Err(MemifError::DuplicateId { path: path(), id });
        }
        state.slots.insert(id, Arc::clone(&slot));
        drop(state);
        Ok(MemifPort::of_master(Arc::clone(&self.hub), slot))
    }

    /// From now on creates an interface, with this configuration, for every unknown id that a slave
    /// asks for. [`Listener::service`] returns the new ports.
    ///
    /// # Errors
    /// [`MemifError::Config`].
    pub fn accept_unknown(&self, template: MemifConfig) -> Result<(), MemifError> {
        template.validate()?;
        self.hub.lock().on_demand = Some(template);
        Ok(())
    }

    /// Accepts slaves, and returns the ports created on demand since the last call, whose slaves
    /// are waiting. Never blocks. Not needed if all interfaces are created by [`Listener::port`].
    ///
    /// # Errors
    /// [`MemifError::Io`] if connections cannot be accepted.
    pub fn service(&self) -> Result<Vec<MemifPort>, MemifError> {
        let io_error = |source| MemifError::Io {
            path: self.path().to_owned(),
            operation: "accepting slaves",
            source,
        };
        self.hub.pump().map_err(io_error)?;
        let new = std::mem::take(&mut self.hub.lock().uncollected);
        if !new.is_empty() {
            self.hub.bell.clear().map_err(io_error)?;
        }
        Ok(new.into_iter().map(|slot| MemifPort::of_master(Arc::clone(&self.hub), slot)).collect())
    }

    /// Descriptors that become readable when [`Listener::service`] has work to do.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors {
        Descriptors::from_iter([self.hub.readiness.as_raw_fd(), self.hub.bell.as_raw_fd()])
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        state.on_demand = None;
        let uncollected = std::mem::take(&mut state.uncollected);
        drop(state);
        for slot in uncollected {
            self.hub.remove(&slot);
        }
    }
}
