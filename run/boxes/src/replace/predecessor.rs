//! The running box's end.

use super::line::{Arrived, Line};
use super::{
    FromPredecessor, FromSuccessor, Listener, PATIENCE, READY_WITHIN, VERSION, Wanted, WantedPair,
};
use crate::carrier;
use crate::journal;
use crate::operation::{Operated, Operation};
use crate::pair::Observer;
use crate::plan::{BoxKind, Pair};
use crate::port::PortName;
use crate::service_manager;
use crate::stillness::{Still, StirringError};
use longhaul_port::Handover;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a box looks whether it still owes anything, or is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Interval of messages about progress.
const TELL_AGAIN: Duration = Duration::from_millis(500);

/// A running box that another process may replace.
pub(crate) struct Predecessor<S: BoxKind> {
    pub operation: Arc<Operation<S>>,
    /// Its listening sockets.
    pub control: UnixListener,
    pub health: Option<TcpListener>,
    pub claims: Vec<UnixListener>,
    /// Closing it ends this process.
    signals: signal_hook::iterator::Handle,
    /// A successor is being served.
    is_busy: AtomicBool,
    /// This process is to end.
    is_to_end: AtomicBool,
    /// Locked while the ports are another process' for the taking.
    fate: Mutex<Fate>,
}

/// What becomes of this process.
enum Fate {
    /// It runs.
    Runs,
    /// It ends, because another process has its ports.
    Replaced,
    /// It ends, and its ports with it.
    Ends,
}

/// The process that asks.
struct Peer {
    pid: u32,
    /// For killing it; none if the system refuses.
    process: Option<OwnedFd>,
}

/// Why it is not replaced.
enum Failure {
    /// The successor may be told.
    Refused(String),
    /// The successor is gone, or silent.
    Lost(String),
    /// It was killed when it had begun to use the ports, which this process cannot use any more.
    Died,
    /// It may have the ports, says nothing, and cannot be killed; this process is to end.
    InDoubt,
}

impl Failure {
    fn refused<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Failure::Refused(why.into()))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let ended = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionReset
        );
        Failure::Lost(if ended { "it ended".to_string() } else { error.to_string() })
    }
}

impl<S: BoxKind> Predecessor<S> {
    pub fn new(
        operation: Arc<Operation<S>>,
        control: UnixListener,
        health: Option<TcpListener>,
        claims: Vec<UnixListener>,
        signals: signal_hook::iterator::Handle,
    ) -> Self {
        let (is_busy, is_to_end) = (AtomicBool::new(false), AtomicBool::new(false));
        let fate = Mutex::new(Fate::Runs);
        Predecessor { operation, control, health, claims, signals, is_busy, is_to_end, fate }
    }

    /// Returns whether this process, which is to end, has been replaced; rules it out for the time
    /// to come if not. Waits if that is being decided, a few times [`READY_WITHIN`] at most.
    pub fn is_replaced_at_end(&self) -> bool {
        self.is_to_end.store(true, Ordering::Relaxed);
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*fate, Fate::Replaced) {
            return true;
        }
        *fate = Fate::Ends;
        false
    }

    /// Serves a successor that speaks this version, on a thread of its own.
    pub fn serve(self: &Arc<Self>, stream: UnixStream, version: u32) {
        let this = Arc::clone(self);
        let work = move || {
            let mut line = Line::new(stream);
            if this.is_busy.swap(true, Ordering::AcqRel) {
                let why = "another process is already replacing it".to_string();
                let _ = line.send(FromPredecessor::Refused(why), &[], PATIENCE);
                return;
            }
            this.serve_one(&mut line, version);
            this.is_busy.store(false, Ordering::Release);
        };
        if let Err(error) = thread::Builder::new().name("replace".to_string()).spawn(work) {
            journal::warn(&format!("cannot be replaced: cannot start a thread: {error}"));
        }
    }

    fn serve_one(&self, line: &mut Line, version: u32) {
        let (who, outcome) = match self.admit(line, version) {
            Ok(peer) => (format!("process {}", peer.pid), self.hand_over(line, &peer)),
            Err(failure) => ("a process".to_string(), Err(failure)),
        };
        let why = match outcome {
            Ok(()) => return,
            Err(Failure::Refused(why) | Failure::Lost(why)) => why,
            Err(Failure::Died) => {
                return journal::warn(&format!(
                    "{who} was killed as it began to forward: this box ends too; start it again"
                ));
            }
            Err(Failure::InDoubt) => {
                return journal::warn(&format!(
                    "{who} has the ports and still does not forward: this box ends without it, as \
                     if it were not replaced"
                ));
            }
        };
        // Also one that was too slow, which would take silence for this box's death.
        let _ = line.send(FromPredecessor::Refused(why.clone()), &[], PATIENCE);
        journal::warn(&format!("{who} does not replace this box, which continues: {why}"));
    }

    /// Checks who asks.
    fn admit(&self, line: &mut Line, version: u32) -> Result<Peer, Failure> {
        if version != VERSION {
            return Failure::refused(format!(
                "it hands over by version {VERSION}, and the new program takes over by version \
                 {version}: drain and restart it"
            ));
        }
        let peer = rustix::net::sockopt::socket_peercred(&*line).map_err(io::Error::from)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return Failure::refused("only its user and root may replace it");
        }
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        Ok(Peer { pid, process: pidfd_open(peer.pid, PidfdFlags::empty()).ok() })
    }

    fn hand_over(&self, line: &mut Line, peer: &Peer) -> Result<(), Failure> {
        let health = self.operation.plan().health.map(|address| address.to_string());
        let accepted = FromPredecessor::Accepted { pid: std::process::id(), health };
        line.send(accepted, &[], PATIENCE)?;
        let wanted = match line.receive(Some(PATIENCE))? {
            Arrived::Message(FromSuccessor::Wanted(wanted), _) => wanted,
            _ => return Failure::refused("the new process said something else than expected"),
        };
        let different = self.compare(&wanted).or_else(Failure::refused)?;
        let with = match &different[..] {
            [] => String::new(),
            keys => format!(" with other settings ({})", keys.join(", ")),
        };
        let limit = Duration::from_millis(wanted.drain_ms);
        journal::line(&format!(
            "process {} asks to replace this box{with}: draining for at most {} s",
            peer.pid,
            limit.as_secs_f64()
        ));
        let was_draining = self.operation.is_draining();
        let outcome = self.drain(line, limit).and_then(|still| self.pass_on(line, still, peer));
        if outcome.is_err() && !was_draining {
            // Fails only for boxes without flows.
            let _ = self.operation.set_draining(false);
        }
        outcome
    }

    /// Compares the successor's configuration; returns the keys that differ and may.
    fn compare(&self, wanted: &Wanted) -> Result<Vec<String>, String> {
        if service_manager::waits() && service_manager::invocation() != wanted.invocation {
            return Err("it is a service, and the new process is not part of that: 'systemctl \
                        reload' replaces it"
                .to_string());
        }
        let plan = self.operation.plan();
        if wanted.command != S::COMMAND || S::COMMAND != "accelerate" {
            return Err(format!("it is a box of 'longhaul {}', which is not replaced", S::COMMAND));
        }
        if plan.pairs.len() != wanted.pairs.len() {
            let (has, wants) = (plan.pairs.len(), wanted.pairs.len());
            return Err(format!("the new configuration has {wants} pairs and it has {has}"));
        }
        let pairs = plan.pairs.iter().zip(&wanted.pairs);
        let differing = pairs.map(|(own, wanted)| compare_pair(own, wanted));
        let differing = differing.collect::<Result<Vec<_>, _>>()?;
        let held = self.operation.carriers().held();
        for ((pair, held), keys) in plan.pairs.iter().zip(held).zip(&differing) {
            if held.is_some() && keys.iter().any(|key| key == "carrier") {
                return Err(format!(
                    "pair {}: a side is down because the other has no carrier, and 'carrier' \
                     differs: replace it once both are up",
                    pair.name
                ));
            }
        }
        for observer in self.operation.observers() {
            let brief = observer.brief().and_then(|pair| pair.read_ahead);
            let served = brief.map_or(0, |state| {
                state.connections.iter().filter(|connection| connection.is_ready).count()
            });
            if served > 0 {
                return Err(format!(
                    "pair {}: it reads ahead for {served} connections, which would end without it: \
                     end them first, or replace it at another time",
                    observer.name()
                ));
            }
        }
        Ok(differing.into_iter().flatten().collect())
    }

    /// Drains until all threads hold still, which they do once the box owes nothing.
    fn drain(&self, line: &mut Line, limit: Duration) -> Result<Vec<Vec<Still>>, Failure> {
        self.operation.set_draining(true).or_else(|e| Failure::refused(e.to_string()))?;
        let start = Instant::now();
        let look_again = Timespec::try_from(LOOK_AGAIN).map_err(io::Error::other)?;
        let mut told: Option<Instant> = None;
        loop {
            let stored_bytes = self.stored_bytes()?;
            if stored_bytes == 0 {
                match self.hold_still() {
                    Ok(still) => return Ok(still),
                    Err(StirringError::NotYet) => {}
                    Err(error @ StirringError::Port(_)) => {
                        return Failure::refused(error.to_string());
                    }
                }
            }
            if start.elapsed() >= limit {
                return Failure::refused(format!(
                    "after {} s it still owes {stored_bytes} bytes that it acknowledged; \
                     'longhaul box status' lists their flows, --drain gives more time, and a box \
                     that is stopped loses them",
                    limit.as_secs_f64()
                ));
            }
            if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                told = Some(Instant::now());
                line.send(FromPredecessor::Draining { stored_bytes }, &[], PATIENCE)?;
            }
            // The successor says nothing meanwhile, unless it ends.
            let mut waiting = [PollFd::new(&*line, PollFlags::IN)];
            match poll(&mut waiting, Some(&look_again)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Err(Failure::Lost("it ended".to_string())),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    fn stored_bytes(&self) -> Result<u64, Failure> {
        let pairs = self.operation.observers().iter().map(Observer::brief);
        let pairs = pairs.collect::<Option<Vec<_>>>();
        let pairs = pairs.ok_or_else(|| Failure::Refused("it is ending".to_string()))?;
        Ok(pairs.iter().map(crate::status::PairStatus::stored_bytes).sum())
    }

    /// Makes the threads of all pairs hold still; returns them by pair and core.
    fn hold_still(&self) -> Result<Vec<Vec<Still>>, StirringError> {
        let observers = self.operation.observers();
        let threads: Vec<_> = observers.iter().flat_map(Observer::threads).collect();
        let threads: Vec<_> =
            threads.iter().map(|(asked, call)| (Arc::clone(asked), call as &dyn Fn())).collect();
        let mut all = crate::stillness::hold_still(&threads)?.into_iter();
        Ok(observers.iter().map(|pair| all.by_ref().take(pair.cores()).collect()).collect())
    }

    /// Passes everything on, and gives it away once the successor continues with it.
    fn pass_on(&self, line: &mut Line, still: Vec<Vec<Still>>, peer: &Peer) -> Result<(), Failure> {
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*fate, Fate::Ends) {
            return Failure::refused("it is ending");
        }
        let since = Instant::now();
        self.send_all(line, &still)?;
        let guard = match line.receive(Some(READY_WITHIN))? {
            Arrived::Message(FromSuccessor::Ready, descriptors) => descriptors.into_iter().next(),
            _ => return Failure::refused("the new process said something else than expected"),
        };
        line.send(FromPredecessor::Go, &[], READY_WITHIN)?;
        let has_died = self.await_forwards(line, peer)?;
        if !has_died {
            guard.into_iter().for_each(carrier::put_in_charge);
        }
        let interrupted = since.elapsed();
        still.into_iter().flatten().for_each(Still::give_away);
        if has_died {
            *fate = Fate::Ends;
            self.signals.close();
            return Err(Failure::Died);
        }
        *fate = Fate::Replaced;
        let pid = peer.pid;
        if let Err(error) = service_manager::tell(&format!("MAINPID={pid}")) {
            journal::warn(&format!("cannot tell the service manager of process {pid}: {error}"));
        }
        journal::line(&format!(
            "process {pid} has replaced this box; it forwarded nothing for {:.1} ms",
            interrupted.as_secs_f64() * 1e3
        ));
        self.signals.close();
        Ok(())
    }

    fn send_all(&self, line: &mut Line, still: &[Vec<Still>]) -> io::Result<()> {
        let control = (Listener::Control, self.control.as_fd());
        let health = self.health.iter().map(|health| (Listener::Health, health.as_fd()));
        let claims = self.claims.iter().map(|claim| (Listener::Claim, claim.as_fd()));
        for (listener, fd) in std::iter::once(control).chain(health).chain(claims) {
            line.send(FromPredecessor::Listener(listener), &[fd], PATIENCE)?;
        }
        for (pair, cores) in still.iter().enumerate() {
            for (core, still) in cores.iter().enumerate() {
                for (side, port) in still.ports.iter().enumerate() {
                    let Handover { descriptors, numbers } = port;
                    let fds: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
                    let numbers = numbers.clone();
                    let queue = FromPredecessor::Queue { pair, side, core, numbers };
                    line.send(queue, &fds, PATIENCE)?;
                }
            }
        }
        let held = self.operation.carriers().held();
        line.send(FromPredecessor::Complete { held }, &[], PATIENCE)
    }

    /// Waits until the successor forwards. Only its end shows that it does not and will not: one
    /// that says nothing is killed. Returns whether it was killed too late.
    fn await_forwards(&self, line: &mut Line, peer: &Peer) -> Result<bool, Failure> {
        let mut said = line.receive(Some(READY_WITHIN));
        let mut is_killed = false;
        if said.as_ref().is_err_and(is_timeout) {
            let killed = peer.process.as_ref().map(|it| pidfd_send_signal(it, Signal::KILL));
            is_killed = matches!(killed, Some(Ok(())));
            if !is_killed {
                journal::warn(&format!(
                    "process {} has the ports and does not forward: kill it, and this box \
                     continues",
                    peer.pid
                ));
            }
        }
        while said.as_ref().is_err_and(is_timeout) {
            if self.is_to_end.load(Ordering::Relaxed) {
                return Err(Failure::InDoubt);
            }
            said = line.receive(Some(LOOK_AGAIN));
        }
        if said.is_err() && is_killed {
            return Err(Failure::Lost("it said nothing in time, and was killed".to_string()));
        }
        match said? {
            Arrived::Message(FromSuccessor::Forwards, _) => Ok(is_killed),
            _ => Failure::refused("the new process said something else than expected"),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Compares a pair; returns the keys of its settings that differ.
fn compare_pair<S: BoxKind>(own: &Pair<S>, wanted: &WantedPair) -> Result<Vec<String>, String> {
    let ports: Vec<String> = own.ports.iter().map(PortName::to_string).collect();
    if ports != wanted.ports {
        return Err(format!(
            "pair {}: the new configuration has the ports {}, and it has {}: drain and restart it",
            own.name,
            wanted.ports.join(", "),
            ports.join(", ")
        ));
    }
    if let Some(why) = own.ports.iter().find_map(PortName::stays) {
        return Err(format!("pair {}: {why}", own.name));
    }
    let cores = own.settings.cores().count().get();
    if cores != wanted.cores {
        return Err(format!(
            "pair {}: the new configuration has {} cores, and it has {cores}, each with sockets of \
             its own: drain and restart it",
            own.name, wanted.cores
        ));
    }
    let recordings = own.pcaps.iter().flatten();
    let mut wants = wanted.recordings.iter().flatten();
    if let Some(path) = recordings.into_iter().find(|path| wants.any(|wanted| wanted == *path)) {
        return Err(format!(
            "pair {}: it still records to {}: name another file",
            own.name,
            path.display()
        ));
    }
    let own_settings = own.settings.written();
    let differs = |(key, value): &&(String, String)| {
        !wanted.settings.iter().any(|(same, wanted)| same == key && wanted == value)
    };
    Ok(own_settings.iter().filter(differs).map(|(key, _)| key.clone()).collect())
}
