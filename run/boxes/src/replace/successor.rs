//! The new process' end.

use super::line::{Arrived, Line};
use super::{
    FromPredecessor, FromSuccessor, Listener, PATIENCE, ReplaceError, VERSION, Wanted, WantedPair,
};
use crate::carrier::Side;
use crate::claim::Claim;
use crate::control::{Control, Request, SocketPath};
use crate::journal;
use crate::plan::{BoxKind, Pair, Plan};
use crate::port::PortName;
use crate::service_manager;
use longhaul_port::Handover;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// Maximum time until the predecessor's process is gone.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The queues of a port, one per core, by pair and side.
#[derive(Default)]
pub(crate) struct Queues(BTreeMap<(usize, usize), BTreeMap<usize, Handover>>);

impl Queues {
    /// Takes those of the port at `side` of the pair.
    pub fn take(&mut self, pair: usize, side: usize) -> Vec<Handover> {
        self.0.remove(&(pair, side)).unwrap_or_default().into_values().collect()
    }
}

/// What the predecessor passed on.
pub(crate) struct Inherited {
    pub control: Control,
    pub health: Option<TcpListener>,
    pub claims: Vec<Claim>,
    /// The side of each pair that is down because the other has no carrier.
    pub held: Vec<Option<Side>>,
    pub queues: Queues,
}

/// A process that replaces a running box.
pub(crate) struct Successor {
    line: Line,
    /// PID of the running box.
    pid: u32,
    /// Address of its health server.
    health: Option<String>,
    socket_path: SocketPath,
}

impl Successor {
    /// Finds the running box, and has it agree.
    pub fn reach(socket_path: SocketPath) -> Result<Self, ReplaceError> {
        let mut stream = socket_path.connect()?;
        let request = serde_json::to_vec(&Request::Replace { version: VERSION });
        let request = [&request.unwrap_or_default()[..], b"\n"].concat();
        stream.write_all(&request).map_err(ReplaceError::Lost)?;
        let mut this = Successor { line: Line::new(stream), pid: 0, health: None, socket_path };
        match this.hear()? {
            (FromPredecessor::Accepted { pid, health }, _) => {
                (this.pid, this.health) = (pid, health);
                Ok(this)
            }
            _ => Err(unexpected()),
        }
    }

    /// True if the running box serves health at this address.
    pub fn has_health(&self, address: &longhaul_health::Address) -> bool {
        self.health.as_deref() == Some(&*address.to_string())
    }

    /// Waits until the box is drained, for at most `drain`, and receives what it has.
    pub fn inherit<S: BoxKind>(
        &mut self,
        plan: &Plan<S>,
        drain: Duration,
    ) -> Result<Inherited, ReplaceError> {
        let pairs = plan.pairs.iter().map(wanted).collect();
        let drain_ms = u64::try_from(drain.as_millis()).unwrap_or(u64::MAX);
        let invocation = service_manager::invocation();
        let wanted = Wanted { command: S::COMMAND.to_string(), invocation, drain_ms, pairs };
        self.say(FromSuccessor::Wanted(wanted))?;
        let (mut control, mut health, mut claims) = (None, None, Vec::new());
        let mut queues = Queues::default();
        let mut told: Option<Instant> = None;
        let held = loop {
            let (message, descriptors) = self.hear()?;
            match message {
                FromPredecessor::Draining { stored_bytes } => {
                    if told.is_none_or(|told| told.elapsed() >= Duration::from_secs(1)) {
                        told = Some(Instant::now());
                        journal::line(&format!(
                            "process {} drains: it owes {stored_bytes} bytes",
                            self.pid
                        ));
                    }
                }
                FromPredecessor::Listener(Listener::Health) => {
                    health = Some(TcpListener::from(one(descriptors)?));
                }
                FromPredecessor::Listener(listener) => {
                    let listening = listening(one(descriptors)?)?;
                    match listener {
                        Listener::Control => control = Some(listening),
                        _ => claims.push(Claim::inherited(listening)),
                    }
                }
                FromPredecessor::Queue { pair, side, core, numbers } => {
                    let handover = Handover { descriptors, numbers };
                    queues.0.entry((pair, side)).or_default().insert(core, handover);
                }
                FromPredecessor::Complete { held } => break held,
                FromPredecessor::Accepted { .. }
                | FromPredecessor::Refused(_)
                | FromPredecessor::Go => return Err(unexpected()),
            }
        };
        let control = Control::inherited(control.ok_or_else(unexpected)?, &self.socket_path);
        Ok(Inherited { control, health, claims, held, queues })
    }

    /// Makes the ports this process' own: the caller forwards from here on, and nothing that may
    /// fail comes before. `guard`: the stream to this box's guard.
    pub fn commit(&mut self, guard: Option<BorrowedFd<'_>>) -> Result<(), ReplaceError> {
        // A box that broke off has said so, and can still be heard. One that has died says nothing:
        // its ports have nobody else.
        let _ = self.line.send(FromSuccessor::Ready, guard.as_slice(), PATIENCE);
        match self.hear() {
            Ok((FromPredecessor::Go, _)) => {
                // If it has died meanwhile, this process has the ports all the same.
                let _ = self.say(FromSuccessor::Forwards);
                Ok(())
            }
            Ok(_) => Err(unexpected()),
            Err(ReplaceError::Lost(error)) if has_ended(&error) => {
                journal::warn(&format!("process {} has died: continuing without it", self.pid));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the end of the box that was replaced.
    pub fn conclude(mut self) {
        let deadline = Instant::now() + GONE_WITHIN;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.line.receive::<FromPredecessor>(Some(left)) {
                Ok(_) => {}
                Err(error) if has_ended(&error) => break,
                Err(_) => {
                    let pid = self.pid;
                    return journal::warn(&format!("took over, but process {pid} does not end"));
                }
            }
        }
        journal::line(&format!("took over from process {}, which has ended", self.pid));
    }

    fn say(&mut self, message: FromSuccessor) -> Result<(), ReplaceError> {
        self.line.send(message, &[], PATIENCE).map_err(ReplaceError::Lost)
    }

    fn hear(&mut self) -> Result<(FromPredecessor, Vec<OwnedFd>), ReplaceError> {
        match self.line.receive(Some(PATIENCE)).map_err(ReplaceError::Lost)? {
            Arrived::Message(FromPredecessor::Refused(why), _) => Err(ReplaceError::Refused(why)),
            Arrived::Message(message, descriptors) => Ok((message, descriptors)),
            Arrived::Unknown(why) => Err(ReplaceError::Refused(why)),
        }
    }
}

fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | BrokenPipe | ConnectionReset)
}

fn unexpected() -> ReplaceError {
    ReplaceError::Lost(io::Error::other("it said something else than expected"))
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, ReplaceError> {
    descriptors.into_iter().next().ok_or_else(unexpected)
}

/// Has later clients see this process at the other end.
fn listening(descriptor: OwnedFd) -> Result<UnixListener, ReplaceError> {
    let refused = |error: rustix::io::Errno| ReplaceError::TakeOver {
        what: "a listening socket",
        error: error.into(),
    };
    rustix::net::listen(&descriptor, 128).map_err(refused)?;
    Ok(UnixListener::from(descriptor))
}

fn wanted<S: BoxKind>(pair: &Pair<S>) -> WantedPair {
    WantedPair {
        ports: pair.ports.iter().map(PortName::to_string).collect(),
        recordings: pair.pcaps.clone(),
        cores: pair.settings.cores().count().get(),
        settings: pair.settings.written(),
    }
}
