//! A memif interface as a [`Port`]: connects, reconnects, and moves frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_port::{
    Descriptors, DropReason, Lease, LinkState, Port, PortCapabilities, PortCounters, PortError,
    check_length, forward_port,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::config::{MemifConfig, MemifError};
use crate::control::{self, Control};
use crate::handshake::{MasterHandshake, Queues, SlaveHandshake, Step};
use crate::listener::{Hub, Listener, Slot};
use crate::message::Message;
use crate::receiver::Receiver;
use crate::sender::Built;
use crate::socket::connect_to;
use crate::violation::{Violation, violation};

/// Interval between a slave's attempts to connect.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Interval at which a polling port checks its sockets.
const SERVICE_EVERY: Duration = Duration::from_millis(1);
/// Maximum time of a slave from INIT to CONNECT, after which it loses the interface.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Maximum control messages per call.
const MESSAGES_PER_SERVICE: usize = 64;

/// Role of this side.
enum Role {
    Slave { path: PathBuf, id: u32, retry_at: Instant, timer: OwnedFd },
    Master { hub: Arc<Hub>, slot: Arc<Slot> },
}

enum Handshake {
    Slave(SlaveHandshake),
    Master(MasterHandshake),
}

/// State of the connection.
enum Stage {
    /// No peer. Frames that the last one had published may remain to be received.
    Down {
        leftover: Option<Box<Receiver>>,
    },
    Handshake {
        control: Control,
        handshake: Box<Handshake>,
        since: Instant,
    },
    Up {
        control: Control,
        queues: Box<Queues>,
    },
}

/// Why a connection ended.
enum End {
    /// The peer closed it, with or without a reason.
    Left(String),
    /// The peer violated the protocol.
    Broken(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Broken(violation)
    }
}

/// One memif interface.
///
/// The interface connects and reconnects inside [`Port::service`]; construction does not wait for a
/// peer. A polling port checks its sockets at most once per millisecond, so `service` is cheap
/// enough for every turn of a loop.
pub struct MemifPort {
    name: Arc<str>,
    config: MemifConfig,
    role: Role,
    stage: Stage,
    counters: PortCounters,
    last_disconnect: Option<String>,
    armed: bool,
    /// Set by `arm`: an interrupt may have arrived since the counter was last cleared.
    interrupted: bool,
    serviced_at: Option<Instant>,
    /// Buffer for frames that are given to a port without a peer.
    discard: Box<[u8]>,
}

impl MemifPort {
    /// An interface in the slave role, which connects to the master at `path` and asks for `id`.
    ///
    /// # Errors
    /// [`MemifError::Config`] or [`MemifError::Io`]. A master that does not exist yet is not an
    /// error.
    pub fn slave(path: impl AsRef<Path>, id: u32, config: MemifConfig) -> Result<Self, MemifError> {
        config.validate()?;
        let path = path.as_ref().to_owned();
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(io::Error::from)
        .and_then(|timer| set_timer(&timer, Duration::from_nanos(1)).map(|()| timer))
        .map_err(|source| MemifError::Io {
            path: path.clone(),
            operation: "making a timer",
            source,
        })?;
        let retry_at = Instant::now();
        Ok(Self::new(config, Role::Slave { path, id, retry_at, timer }))
    }

    /// The only interface of its own socket, in the master role. See [`Listener`] for several.
    ///
    /// # Errors
    /// As [`Listener::bind`] and [`Listener::port`].
    pub fn master(
        path: impl AsRef<Path>,
        id: u32,
        config: MemifConfig,
    ) -> Result<Self, MemifError> {
        config.validate()?;
        Listener::bind(path)?.port(id, config)
    }

    pub(crate) fn of_master(hub: Arc<Hub>, slot: Arc<Slot>) -> Self {
        Self::new(slot.config.clone(), Role::Master { hub, slot })
    }

    fn new(config: MemifConfig, role: Role) -> Self {
        Self {
            name: config.name.as_str().into(),
            discard: vec![0; config.frame_bytes_max].into_boxed_slice(),
            config,
            role,
            stage: Stage::Down { leftover: None },
            counters: PortCounters::default(),
            last_disconnect: None,
            armed: false,
            interrupted: false,
            serviced_at: None,
        }
    }

    /// The interface id.
    #[must_use]
    pub fn id(&self) -> u32 {
        match &self.role {
            Role::Slave { id, .. } => *id,
            Role::Master { slot, .. } => slot.id,
        }
    }

    /// Interface name that the connected peer sent.
    #[must_use]
    pub fn peer_name(&self) -> Option<&str> {
        match &self.stage {
            Stage::Up { queues, .. } => Some(&queues.peer_name),
            _ => None,
        }
    }

    /// Whether this call of `service` must check the sockets: at most once per interval in polling
    /// mode, always after a wake-up or during a handshake.
    fn due(&mut self) -> bool {
        let now = Instant::now();
        let urgent = self.interrupted || matches!(self.stage, Stage::Handshake { .. });
        let recently = self.serviced_at.is_some_and(|at| now.duration_since(at) < SERVICE_EVERY);
        if recently && !urgent {
            return false;
        }
        self.serviced_at = Some(now);
        true
    }

    /// Looks for a new peer while there is none.
    fn seek(&mut self) -> Result<(), PortError> {
        let handshake;
        let control = match &mut self.role {
            Role::Slave { path, id, retry_at, timer } => {
                let now = Instant::now();
                if now < *retry_at {
                    return Ok(());
                }
                *retry_at = now + RETRY_EVERY;
                set_timer(timer, RETRY_EVERY)
                    .map_err(|error| PortError::io("setting the reconnect timer", error))?;
                match connect_to(path) {
                    Ok(socket) => {
                        handshake = Handshake::Slave(SlaveHandshake::new(*id, &self.config));
                        Control::new(socket)
                    }
                    Err(error) => {
                        self.last_disconnect = Some(format!("connecting: {error}"));
                        return Ok(());
                    }
                }
            }
            Role::Master { slot, .. } => {
                let Some(control) = slot.take() else { return Ok(()) };
                if control.send(&Message::Ack, None).is_err() {
                    return Ok(());
                }
                handshake = Handshake::Master(MasterHandshake::new(&self.config));
                control
            }
        };
        let handshake = Box::new(handshake);
        self.stage = Stage::Handshake { control, handshake, since: Instant::now() };
        Ok(())
    }

    /// A slave that waits although this port has a peer. It must be taken before the peer's
    /// messages are read: if the peer closed its connection before the other one was opened, its
    /// messages then include the close.
    fn contender(&mut self) -> Option<Control> {
        match (&self.role, &self.stage) {
            (Role::Master { slot, .. }, Stage::Handshake { .. } | Stage::Up { .. }) => slot.take(),
            _ => None,
        }
    }

    /// Refuses `contender` if the peer is still connected after all its messages have been read.
    fn decide(&self, contender: Control, all_read: bool) {
        let Role::Master { slot, .. } = &self.role else { return };
        match &self.stage {
            Stage::Handshake { .. } | Stage::Up { .. } if all_read => slot.refuse(&contender),
            _ => slot.deliver(contender),
        }
    }

    /// Processes one control message. `Ok(false)`: none waits.
    fn handle_message(&mut self) -> Result<bool, End> {
        let (control, handshake) = match &mut self.stage {
            Stage::Down { .. } => return Ok(false),
            Stage::Handshake { control, handshake, .. } => (control, Some(handshake)),
            Stage::Up { control, .. } => (control, None),
        };
        let (message, fd) = match control.receive()? {
            control::Received::Nothing => return Ok(false),
            control::Received::Closed => {
                return Err(End::Left("the peer closed the connection".to_owned()));
            }
            control::Received::Message(message, fd) => (message, fd),
        };
        let Some(handshake) = handshake else {
            return match message {
                Message::Disconnect { reason, .. } => Err(End::Left(reason)),
                Message::Ack => Ok(true),
                other => Err(violation!("unexpected {} while connected", other.name()).into()),
            };
        };
        let step = match &mut **handshake {
            Handshake::Slave(slave) => slave.handle(message)?,
            Handshake::Master(master) => master.handle(message, fd)?,
        };
        let unsent = |error: io::Error| End::Left(format!("sending to the peer: {error}"));
        match step {
            Step::Left(reason) => return Err(End::Left(reason)),
            Step::Answer(answer) => {
                let fd = match &**handshake {
                    Handshake::Slave(slave) => slave.descriptor(),
                    Handshake::Master(_) => None,
                };
                control.send(&answer, fd).map_err(unsent)?;
            }
            Step::Up(queues, answer) => {
                if let Some(answer) = answer {
                    control.send(&answer, None).map_err(unsent)?;
                }
                self.come_up(queues);
            }
        }
        Ok(true)
    }

    /// Processes a bounded number of control messages. Returns `true` if no more wait.
    fn handle_messages(&mut self) -> Result<bool, PortError> {
        for _ in 0..MESSAGES_PER_SERVICE {
            match self.handle_message() {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(end) => return self.go_down(end).map(|()| true),
            }
        }
        Ok(false)
    }

    fn come_up(&mut self, queues: Box<Queues>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Down { leftover: None });
        let Stage::Handshake { control, .. } = stage else { return };
        if self.armed {
            queues.receiver.request_interrupts(true);
            // A frame may have arrived before interrupts were on; a spurious wake-up is harmless.
            let _ = queues.receive_bell.ring();
        }
        self.stage = Stage::Up { control, queues };
        self.counters.link_ups = self.counters.link_ups.wrapping_add(1);
        self.last_disconnect = None;
    }

    /// Ends the connection. Frames that an honest peer had published stay receivable.
    fn go_down(&mut self, end: End) -> Result<(), PortError> {
        let stage = std::mem::replace(&mut self.stage, Stage::Down { leftover: None });
        let (control, queues) = match stage {
            Stage::Down { .. } => return Ok(()),
            Stage::Handshake { control, .. } => (control, None),
            Stage::Up { control, queues } => (control, Some(queues)),
        };
        match &mut self.role {
            Role::Slave { retry_at, timer, .. } => {
                *retry_at = Instant::now() + RETRY_EVERY;
                set_timer(timer, RETRY_EVERY)
                    .map_err(|error| PortError::io("setting the reconnect timer", error))?;
            }
            Role::Master { .. } => {}
        }
        match end {
            End::Left(reason) => {
                if let Some(mut queues) = queues {
                    queues.receiver.end();
                    let leftover = Some(Box::new(queues.receiver));
                    self.stage = Stage::Down { leftover };
                }
                self.last_disconnect = Some(reason);
                Ok(())
            }
            End::Broken(Violation(detail)) => {
                control.send_disconnect(&detail);
                self.counters.peer_violations = self.counters.peer_violations.wrapping_add(1);
                self.last_disconnect = Some(detail.clone());
                Err(PortError::PeerViolation { port: self.name.to_string(), detail })
            }
        }
    }

    /// Passes on a result of the queues, or disconnects the peer that violated the protocol.
    fn enforce<T>(&mut self, result: Result<T, Violation>) -> Result<T, PortError> {
        match result {
            Ok(value) => Ok(value),
            Err(violation) => match self.go_down(End::Broken(violation)) {
                Err(error) => Err(error),
                Ok(()) => unreachable!("a broken rule is always reported"),
            },
        }
    }

    /// Counts the result for a frame of `len` bytes; `false` if no slot is free.
    #[inline]
    fn count_built(
        &mut self,
        len: usize,
        result: Result<Built, Violation>,
    ) -> Result<bool, PortError> {
        match self.enforce(result)? {
            Built::Yes => self.counters.count_tx(len),
            Built::Full => {
                self.counters.tx_full = self.counters.tx_full.wrapping_add(1);
                return Ok(false);
            }
            Built::NeverFits => self.counters.tx_drops.count(DropReason::FrameTooLong),
        }
        Ok(true)
    }

    fn clear_interrupts(&mut self) -> Result<(), PortError> {
        if self.interrupted {
            if let Stage::Up { queues, .. } = &self.stage {
                queues
                    .receive_bell
                    .clear()
                    .map_err(|error| PortError::io("reading an interrupt counter", error))?;
            }
            self.interrupted = self.armed;
        }
        Ok(())
    }

    /// Disconnects a slave that stops in the middle of the handshake, to free the interface.
    fn check_handshake_time(&mut self) -> Result<(), PortError> {
        match (&self.stage, &self.role) {
            (Stage::Handshake { since, .. }, Role::Master { .. })
                if since.elapsed() > HANDSHAKE_MAX =>
            {
                self.go_down(End::Broken(violation!("the handshake took over {HANDSHAKE_MAX:?}")))
            }
            _ => Ok(()),
        }
    }

    fn receive_each<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        max: usize,
        each: &mut F,
    ) -> Result<usize, PortError> {
        let result = match &mut self.stage {
            Stage::Up { queues, .. } => queues.receiver.receive(max, &mut self.counters, each),
            Stage::Down { leftover: Some(receiver) } => {
                let result = receiver.receive(max, &mut self.counters, each);
                if result.is_err() || receiver.drained() {
                    self.stage = Stage::Down { leftover: None };
                }
                return Ok(result.unwrap_or(0));
            }
            _ => return Ok(0),
        };
        self.enforce(result)
    }
}

impl Port for MemifPort {
    forward_port!(|self| self => receive_each);

    fn transmit_room(&mut self) -> usize {
        let result = match &mut self.stage {
            Stage::Up { queues, .. } => queues.sender.room(),
            _ => return 1 << self.config.ring_size_log2,
        };
        // One slot after a violation, so that the caller calls `transmit`, which finds and reports
        // it.
        result.unwrap_or(1)
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.config.frame_bytes_max)?;
        let Stage::Up { queues, .. } = &mut self.stage else {
            fill(&mut self.discard[..len]);
            self.counters.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        };
        let result = queues.sender.build(len, fill);
        self.count_built(len, result)
    }

    fn transmit_pieces(&mut self, pieces: &[&[u8]; 3]) -> Result<bool, PortError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        check_length(len, self.config.frame_bytes_max)?;
        let Stage::Up { queues, .. } = &mut self.stage else {
            self.counters.tx_drops.count(DropReason::LinkDown);
            return Ok(true);
        };
        let result = queues.sender.send(len, pieces);
        self.count_built(len, result)
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        self.transmit_pieces(&[lease.bytes(), &[], &[]])
    }

    fn flush(&mut self) -> Result<(), PortError> {
        match &mut self.stage {
            Stage::Up { queues, .. } => {
                queues.sender.publish().map_err(|error| PortError::io("waking the peer", error))
            }
            _ => Ok(()),
        }
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        self.armed = true;
        self.interrupted = true;
        let result = match &mut self.stage {
            Stage::Up { queues, .. } => {
                queues.receiver.request_interrupts(true);
                queues.receiver.waiting()
            }
            Stage::Down { leftover } => Ok(leftover.is_some()),
            Stage::Handshake { .. } => Ok(false),
        };
        let waiting = self.enforce(result)?;
        if waiting {
            self.disarm();
        }
        Ok(waiting)
    }

    fn disarm(&mut self) {
        self.armed = false;
        if let Stage::Up { queues, .. } = &self.stage {
            queues.receiver.request_interrupts(false);
        }
    }

    fn descriptors(&self) -> Descriptors {
        let mut fds = Descriptors::new();
        match &self.stage {
            Stage::Down { .. } => {}
            Stage::Handshake { control, .. } => fds.push(control.as_fd().as_raw_fd()),
            Stage::Up { control, queues } => {
                fds.push(control.as_fd().as_raw_fd());
                fds.push(queues.receive_bell.as_raw_fd());
            }
        }
        match &self.role {
            Role::Slave { timer, .. } => {
                if matches!(self.stage, Stage::Down { .. }) {
                    fds.push(timer.as_raw_fd());
                }
            }
            Role::Master { hub, slot } => {
                fds.push(hub.readiness().as_raw_fd());
                fds.push(slot.bell.as_raw_fd());
            }
        }
        fds
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        if !self.due() {
            return Ok(self.link_state());
        }
        self.clear_interrupts()?;
        // An error of the listener must not keep this port from its own peer.
        let accepted = match &self.role {
            Role::Master { hub, .. } => hub.pump(),
            Role::Slave { .. } => Ok(()),
        };
        if matches!(self.stage, Stage::Down { .. }) {
            self.seek()?;
        }
        let contender = self.contender();
        let all_read = self.handle_messages();
        if let Some(contender) = contender {
            self.decide(contender, matches!(all_read, Ok(true)));
        }
        all_read?;
        self.check_handshake_time()?;
        accepted.map_err(|error| PortError::io("accepting slaves", error))?;
        Ok(self.link_state())
    }

    fn link_state(&self) -> LinkState {
        match self.stage {
            Stage::Up { .. } => LinkState::Up,
            _ => LinkState::Down,
        }
    }

    fn last_disconnect(&self) -> Option<&str> {
        self.last_disconnect.as_deref()
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "memif",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.config.frame_bytes_max,
            transmit_slots: 1 << self.config.ring_size_log2,
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for MemifPort {
    fn drop(&mut self) {
        match &self.stage {
            Stage::Down { .. } => {}
            Stage::Handshake { control, .. } | Stage::Up { control, .. } => {
                control.send_disconnect("the interface is gone");
            }
        }
        if let Role::Master { hub, slot } = &self.role {
            hub.remove(slot);
        }
    }
}

/// Makes the timer readable once, `after` from now.
fn set_timer(timer: &OwnedFd, after: Duration) -> io::Result<()> {
    let at = Timespec {
        tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(after.subsec_nanos()),
    };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let setting = Itimerspec { it_interval: never, it_value: at };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &setting)?;
    Ok(())
}
