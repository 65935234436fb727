//! The driver of a migration: set-up, pre-copy, stop-and-copy, activation.

mod timeline;

use crate::disk::{self, Copied, Export};
use crate::qmp::{Qmp, QmpError, printable};
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;
use timeline::Timeline;

/// Time limit for a reply. QEMU replies to nothing while it sends the last pass.
const REPLIES_WITHIN: Duration = Duration::from_secs(60);
/// Polling interval for the migration's figures.
const FIGURES_INTERVAL: Duration = Duration::from_millis(100);
/// Polling interval for events; their time is that of their arrival.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for a migration to end, and its guest to run, after it was cancelled.
const CANCELS_WITHIN: Duration = Duration::from_secs(30);
/// Time limit for the destination to run the guest after the source has sent everything.
const RUNS_WITHIN: Duration = Duration::from_secs(60);
/// State of a QEMU that waits for a guest.
const INCOMING: &str = "inmigrate";
/// State of a QEMU whose guest runs.
const RUNNING: &str = "running";
/// States of a QEMU whose guest is not there yet, leaving or gone.
const WITHOUT_GUEST: [&str; 3] = [INCOMING, "finish-migrate", SENT];
/// State of a QEMU that has sent its guest, and still holds it as it was then.
const SENT: &str = "postmigrate";
/// Status of a migration that waits for the end of the disk's copy.
const PRE_SWITCHOVER: &str = "pre-switchover";
/// Passes after which the rate of dirtying tells whether a migration converges.
const PASSES: u64 = 3;
/// Characters of QEMU's name of a state, and of its reason for a failure.
const STATUS_MAX: usize = 60;
const FAILURE_MAX: usize = 500;
/// Part of the sent rate from which dirtying keeps up. A guest that rewrites its working set
/// in each pass is counted at the sent rate, less headers and the two counters' different periods.
const KEEPS_UP: f64 = 0.75;

/// What carries the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RDMA WRITE; the destination registers memory on demand, MiB by MiB.
    Rdma,
    /// RDMA WRITE; both sides register all memory in advance.
    RdmaPinAll,
    /// One TCP connection.
    Tcp,
    /// Several TCP connections, each with a thread.
    TcpMultifd,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 4] =
        [Transport::Rdma, Transport::RdmaPinAll, Transport::Tcp, Transport::TcpMultifd];

    /// True for TCP.
    pub fn is_tcp(self) -> bool {
        matches!(self, Transport::Tcp | Transport::TcpMultifd)
    }

    fn scheme(self) -> &'static str {
        if self.is_tcp() { "tcp" } else { "rdma" }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Rdma => "rdma",
            Transport::RdmaPinAll => "rdma-pin-all",
            Transport::Tcp => "tcp",
            Transport::TcpMultifd => "tcp-multifd",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|transport| transport.to_string() == text);
        found.ok_or_else(|| "use rdma, rdma-pin-all, tcp or tcp-multifd".to_owned())
    }
}

/// Settings of a migration.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What carries memory.
    pub transport: Transport,
    /// Address and port that the source connects to.
    pub to: String,
    /// Address and port at which the destination listens.
    pub listen: String,
    /// Longest pause of the guest that QEMU may plan with; `None`: as QEMU is set.
    pub downtime_limit: Option<Duration>,
    /// Bytes per second; `None`: as QEMU is set.
    pub max_bandwidth: Option<u64>,
    /// Connections of [`Transport::TcpMultifd`].
    pub channels: u8,
    /// Where the disk is copied to, before memory; `None`: both QEMUs see the same disks, or none.
    pub disk: Option<Export>,
    /// Time after which it is cancelled.
    pub timeout: Duration,
}

/// A side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where the guest is.
    Source,
    /// Where it goes.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Destination => "destination",
        })
    }
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum DriveError {
    /// QMP failed.
    #[error("{end}: {error}")]
    Qmp {
        /// On this side.
        end: End,
        /// How.
        error: QmpError,
    },
    /// A guest is not in a state to be migrated.
    #[error("{end}: the guest is in state '{status}'")]
    NotReady {
        /// On this side.
        end: End,
        /// QEMU's word.
        status: String,
    },
    /// QEMU lacks a capability that the transport needs.
    #[error("{end}: this QEMU has no migration capability '{name}'")]
    NoCapability {
        /// On this side.
        end: End,
        /// Its name.
        name: &'static str,
    },
    /// QEMU gave the migration up.
    #[error("the migration failed: {0}")]
    Failed(String),
    /// The destination has everything and does not run the guest.
    #[error(
        "the destination has not started the guest {} s after the source had sent everything",
        RUNS_WITHIN.as_secs()
    )]
    NeverRuns,
    /// It is unknown whether the guest has run on the destination: the source has sent it.
    #[error("{0}; the guest stands still on the source, which had sent everything")]
    AfterSending(Box<DriveError>),
    /// The job that copies the disk does not end.
    #[error("the copy of the disk does not end, although everything is copied")]
    DiskNeverEnds,
    /// The job that copies the disk ended.
    #[error("the copy of the disk failed: {0}")]
    Disk(String),
}

/// Durations of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Connection and registration of memory.
    pub setup: Duration,
    /// Passes over memory while the guest runs.
    pub precopy: Duration,
    /// From the guest's stop until the source has sent everything.
    pub stop_and_copy: Duration,
    /// From then until the destination runs the guest.
    pub activation: Duration,
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The guest is on the destination.
    Completed(Phases),
    /// It was cancelled.
    DidNotFinish {
        /// Why it had not finished.
        reason: Reason,
        /// The guest runs on the source, or is paused there as before.
        source_runs: bool,
    },
}

/// Why a migration has not finished in time.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Passes end with more dirty memory than can be sent within the downtime limit.
    Diverges {
        /// Passes so far.
        passes: u64,
        /// Dirty bytes when it was cancelled.
        left: u64,
        /// Bytes that the guest dirties per second, each page once in a pass, as QEMU counts.
        dirtied_per_s: f64,
        /// Bytes sent per second.
        sent_per_s: f64,
    },
    /// Time was up while passes became shorter, or before that could be told.
    TooSlow {
        /// Bytes that were not sent.
        left: u64,
        /// Bytes sent per second.
        sent_per_s: f64,
    },
    /// The disk was not copied yet.
    CopiesDisk {
        /// Bytes that were not copied.
        left: u64,
    },
    /// The first pass had not begun.
    InSetup,
    /// The user ended it.
    Interrupted,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let rate = |bytes: f64| bytes * 8e-9;
        match *self {
            Reason::Diverges { passes, left, dirtied_per_s, sent_per_s } => write!(
                f,
                "diverges: after {passes} passes {:.1} MiB are dirty; {:.2} Gbit/s are sent, and \
                 {:.2} Gbit/s become dirty, each page counted once in a pass",
                mib(left),
                rate(sent_per_s),
                rate(dirtied_per_s)
            ),
            Reason::TooSlow { left, sent_per_s } => {
                let sent = rate(sent_per_s);
                write!(f, "too slow: {:.1} MiB are left, at {sent:.2} Gbit/s", mib(left))
            }
            Reason::CopiesDisk { left } => {
                write!(f, "the disk is still being copied: {:.1} MiB are left", mib(left))
            }
            Reason::InSetup => {
                f.write_str("still in set-up: not connected, or memory not yet registered")
            }
            Reason::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// A migration that has ended.
#[derive(Clone, Debug)]
pub struct Migration {
    /// How.
    pub outcome: Outcome,
    /// From the order until the guest ran on the destination, or until the order to cancel; without
    /// the copy of the disk before.
    pub total: Duration,
    /// Time in which the disk was copied.
    pub disk: Option<Duration>,
    /// Passes over memory, the last one included.
    pub passes: u64,
    /// Bytes sent, by QEMU's count.
    pub transferred: u64,
    /// The guest's pause, as QEMU measures it on the source.
    pub downtime: Option<Duration>,
}

/// Figures of `query-migrate`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    status: String,
    failure: Option<String>,
    downtime: Option<Duration>,
    passes: u64,
    transferred: u64,
    left: u64,
    dirtied_per_s: f64,
}

impl Figures {
    fn of(reply: &Value) -> Self {
        let ram = &reply["ram"];
        let number = |name: &str| ram[name].as_u64().unwrap_or_default();
        let page = ram["page-size"].as_u64().unwrap_or(crate::guest::PAGE);
        Figures {
            status: printable(reply["status"].as_str().unwrap_or("none"), STATUS_MAX),
            failure: reply["error-desc"].as_str().map(|text| printable(text, FAILURE_MAX)),
            downtime: reply["downtime"].as_u64().map(Duration::from_millis),
            passes: number("dirty-sync-count"),
            transferred: number("transferred"),
            left: number("remaining"),
            dirtied_per_s: number("dirty-pages-rate") as f64 * page as f64,
        }
    }
}

/// Migrates the guest of `source` to `destination`. Cancels at the plan's timeout, or when `stop`
/// becomes true.
///
/// # Errors
/// If the guest cannot be migrated, or one of the QEMUs fails.
pub fn migrate(
    source: &mut Qmp,
    destination: &mut Qmp,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<Migration, DriveError> {
    let timeline = Timeline::starting(Instant::now());
    let mut drive = Drive { source, destination, timeline, was_running: true, mirrors_disk: false };
    drive.prepare(plan)?;
    if stop.load(Ordering::Relaxed) {
        let outcome = Outcome::DidNotFinish { reason: Reason::Interrupted, source_runs: true };
        let total = Duration::ZERO;
        return Ok(Migration::unbegun(outcome, total));
    }
    drive.listen(plan)?;
    let migration = drive.copy_and_begin(plan, stop).map_err(|error| drive.give_back(error));
    if plan.disk.is_some() {
        match &migration {
            Ok(Migration { outcome: Outcome::Completed(_), .. }) => disk::close(drive.destination),
            _ => disk::abandon(drive.source, drive.destination),
        }
    }
    migration
}

impl Migration {
    /// One whose memory was not begun.
    fn unbegun(outcome: Outcome, total: Duration) -> Self {
        Migration { outcome, total, disk: None, passes: 0, transferred: 0, downtime: None }
    }
}

/// Executes a command on a side.
pub(crate) fn execute(
    qmp: &mut Qmp,
    end: End,
    command: &str,
    with: Value,
) -> Result<Value, DriveError> {
    qmp.execute(command, with, REPLIES_WITHIN).map_err(|error| DriveError::Qmp { end, error })
}

struct Drive<'a> {
    source: &'a mut Qmp,
    destination: &'a mut Qmp,
    timeline: Timeline,
    /// The guest ran before.
    was_running: bool,
    /// Each of the guest's writes goes to the destination's disk, too.
    mirrors_disk: bool,
}

impl Drive<'_> {
    fn qmp(&mut self, end: End) -> &mut Qmp {
        match end {
            End::Source => self.source,
            End::Destination => self.destination,
        }
    }

    fn execute(&mut self, end: End, command: &str, with: Value) -> Result<Value, DriveError> {
        execute(self.qmp(end), end, command, with)
    }

    /// Checks both guests' states, and sets capabilities and parameters.
    fn prepare(&mut self, plan: &Plan) -> Result<(), DriveError> {
        for end in [End::Source, End::Destination] {
            let status = self.run_state(end)?;
            let has_guest = !WITHOUT_GUEST.contains(&status.as_str());
            let is_ready = match end {
                End::Source => has_guest,
                End::Destination => status == INCOMING,
            };
            if !is_ready {
                return Err(DriveError::NotReady { end, status });
            }
            if end == End::Source {
                self.was_running = status == RUNNING;
            }
        }
        for end in [End::Source, End::Destination] {
            self.set_capabilities(end, plan)?;
        }
        let mut parameters = json!({});
        if plan.transport == Transport::TcpMultifd {
            parameters["multifd-channels"] = plan.channels.into();
            self.execute(End::Destination, "migrate-set-parameters", parameters.clone())?;
        }
        if let Some(limit) = plan.downtime_limit {
            parameters["downtime-limit"] = (limit.as_millis() as u64).into();
        }
        if let Some(bandwidth) = plan.max_bandwidth {
            parameters["max-bandwidth"] = bandwidth.into();
        }
        self.execute(End::Source, "migrate-set-parameters", parameters)?;
        Ok(())
    }

    fn run_state(&mut self, end: End) -> Result<String, DriveError> {
        let reply = self.execute(end, "query-status", json!({}))?;
        Ok(printable(reply["status"].as_str().unwrap_or("unknown"), STATUS_MAX))
    }

    /// Sets what the transport needs, and clears what it must not have. Without events there are no
    /// phases.
    fn set_capabilities(&mut self, end: End, plan: &Plan) -> Result<(), DriveError> {
        let transport = plan.transport;
        let wanted = [
            ("events", true),
            ("pause-before-switchover", end == End::Source && plan.disk.is_some()),
            ("rdma-pin-all", transport == Transport::RdmaPinAll),
            ("multifd", transport == Transport::TcpMultifd),
        ];
        let known = self.execute(end, "query-migrate-capabilities", json!({}))?;
        let known = known.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut changes = Vec::new();
        for (name, state) in wanted {
            match known.iter().find(|one| one["capability"] == name) {
                Some(one) if one["state"] == state => {}
                Some(_) => changes.push(json!({"capability": name, "state": state})),
                None if state => return Err(DriveError::NoCapability { end, name }),
                None => {}
            }
        }
        self.execute(end, "migrate-set-capabilities", json!({"capabilities": changes}))?;
        Ok(())
    }

    /// Makes the destination listen.
    fn listen(&mut self, plan: &Plan) -> Result<(), DriveError> {
        let uri = json!({"uri": format!("{}:{}", plan.transport.scheme(), plan.listen)});
        self.execute(End::Destination, "migrate-incoming", uri)?;
        // Events of an earlier migration.
        self.read_events(Duration::ZERO)
    }

    /// Copies the disk, if there is one to copy, and then migrates.
    fn copy_and_begin(&mut self, plan: &Plan, stop: &AtomicBool) -> Result<Migration, DriveError> {
        let Some(export) = &plan.disk else { return self.begin(plan, stop) };
        let begun = Instant::now();
        disk::begin(self.source, self.destination, export)?;
        loop {
            let Some(Copied { left, is_ready, .. }) = disk::progress(self.source)? else {
                return Err(DriveError::Disk("QEMU's job has ended".to_owned()));
            };
            if is_ready {
                break;
            }
            let is_stopped = stop.load(Ordering::Relaxed);
            if is_stopped || begun.elapsed() >= plan.timeout {
                let reason =
                    if is_stopped { Reason::Interrupted } else { Reason::CopiesDisk { left } };
                let outcome = Outcome::DidNotFinish { reason, source_runs: true };
                return Ok(Migration::unbegun(outcome, begun.elapsed()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.mirrors_disk = true;
        let disk = Some(begun.elapsed());
        self.begin(plan, stop).map(|migration| Migration { disk, ..migration })
    }

    /// Makes the source connect, and waits for the end. Over RDMA QEMU replies once memory is
    /// registered.
    fn begin(&mut self, plan: &Plan, stop: &AtomicBool) -> Result<Migration, DriveError> {
        self.timeline = Timeline::starting(Instant::now());
        let deadline = self.timeline.begun() + plan.timeout;
        let uri = json!({"uri": format!("{}:{}", plan.transport.scheme(), plan.to)});
        let sent = self.source.send("migrate", uri);
        loop {
            match self.source.reply(&sent, POLL_INTERVAL) {
                Ok(Some(_)) => return self.follow(deadline, stop),
                Ok(None) => {}
                Err(error) => {
                    let source = DriveError::Qmp { end: End::Source, error };
                    return Err(self.destination_death().unwrap_or(source));
                }
            }
            if Instant::now() >= deadline || stop.load(Ordering::Relaxed) {
                return self.give_up(&Figures::default(), stop);
            }
        }
    }

    /// The destination's error, if its QEMU has exited: the source's is then a consequence.
    fn destination_death(&mut self) -> Option<DriveError> {
        let end = End::Destination;
        match self.destination.execute("query-status", json!({}), REPLIES_WITHIN) {
            Err(error @ QmpError::Closed(_)) => Some(DriveError::Qmp { end, error }),
            _ => None,
        }
    }

    fn read_events(&mut self, limit: Duration) -> Result<(), DriveError> {
        for (end, limit) in [(End::Source, limit), (End::Destination, Duration::ZERO)] {
            let events = self.qmp(end).events(limit);
            for event in events.map_err(|error| DriveError::Qmp { end, error })? {
                self.timeline.note(end, &event);
            }
        }
        Ok(())
    }

    fn figures(&mut self) -> Result<Figures, DriveError> {
        Ok(Figures::of(&self.execute(End::Source, "query-migrate", json!({}))?))
    }

    /// Waits for the end.
    fn follow(&mut self, deadline: Instant, stop: &AtomicBool) -> Result<Migration, DriveError> {
        let mut look = Instant::now();
        loop {
            self.read_events(POLL_INTERVAL)?;
            let ends = Instant::now() >= deadline || stop.load(Ordering::Relaxed);
            if Instant::now() < look && !ends && !self.timeline.source_is_done() {
                continue;
            }
            look = Instant::now() + FIGURES_INTERVAL;
            let figures = self.figures()?;
            match figures.status.as_str() {
                "completed" => return self.arrive(),
                "failed" | "cancelled" => return Err(self.why_failed(figures)),
                // The guest is stopped, and its disk is the same at both ends.
                PRE_SWITCHOVER if !ends && self.mirrors_disk => {
                    disk::complete(self.source)?;
                    self.mirrors_disk = false;
                    let state = json!({"state": PRE_SWITCHOVER});
                    self.execute(End::Source, "migrate-continue", state)?;
                }
                _ if ends => return self.give_up(&figures, stop),
                _ => {}
            }
        }
    }

    fn why_failed(&mut self, figures: Figures) -> DriveError {
        self.destination_death().unwrap_or_else(|| {
            DriveError::Failed(figures.failure.unwrap_or_else(|| {
                format!("QEMU at {} reports '{}'", self.source.address(), figures.status)
            }))
        })
    }

    /// Waits until the destination runs the guest.
    fn arrive(&mut self) -> Result<Migration, DriveError> {
        self.timeline.note_source_done(Instant::now());
        let deadline = Instant::now() + RUNS_WITHIN;
        loop {
            self.read_events(POLL_INTERVAL)?;
            let arrived = self.run_state(End::Destination)? != INCOMING;
            if arrived {
                self.read_events(Duration::ZERO)?;
                self.timeline.note_arrival(Instant::now());
                break;
            }
            if Instant::now() > deadline {
                return Err(DriveError::NeverRuns);
            }
        }
        let figures = self.figures()?;
        let (phases, total) = self.timeline.phases();
        Ok(Migration {
            outcome: Outcome::Completed(phases),
            total,
            disk: None,
            passes: figures.passes,
            transferred: figures.transferred,
            downtime: figures.downtime,
        })
    }

    /// Cancels it; it may complete nevertheless.
    fn give_up(&mut self, figures: &Figures, stop: &AtomicBool) -> Result<Migration, DriveError> {
        let total = self.timeline.begun().elapsed();
        let reason = match stop.load(Ordering::Relaxed) {
            true => Reason::Interrupted,
            false => self.reason(figures),
        };
        let deadline = Instant::now() + CANCELS_WITHIN;
        let source_runs = match self.cancel(deadline).as_deref() {
            Some("completed") => return self.arrive(),
            Some(_) => self.source_runs_by(deadline),
            None => false,
        };
        Ok(Migration {
            outcome: Outcome::DidNotFinish { reason, source_runs },
            total,
            disk: None,
            passes: figures.passes,
            transferred: figures.transferred,
            downtime: None,
        })
    }

    /// Cancels a migration that failed: the guest stays, where that is still possible. `error` is
    /// the one to report, with what became of the guest.
    fn give_back(&mut self, error: DriveError) -> DriveError {
        let deadline = Instant::now() + CANCELS_WITHIN;
        self.cancel(deadline);
        match self.ask_by(deadline, "query-status") {
            Some(reply) if reply["status"] == SENT => DriveError::AfterSending(Box::new(error)),
            _ => error,
        }
    }

    /// Cancels the migration and waits for its end: its last status, or `None` at the deadline. A
    /// QEMU that is stuck in RDMA replies to nothing.
    fn cancel(&mut self, deadline: Instant) -> Option<String> {
        self.ask_by(deadline, "migrate_cancel")?;
        loop {
            let status = Figures::of(&self.ask_by(deadline, "query-migrate")?).status;
            match status.as_str() {
                "completed" | "cancelled" | "failed" | "none" => return Some(status),
                _ => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Waits until the guest runs on the source again. One that was paused stays so.
    fn source_runs_by(&mut self, deadline: Instant) -> bool {
        while self.was_running {
            match self.ask_by(deadline, "query-status") {
                None => return false,
                Some(reply) if reply["status"] == RUNNING => return true,
                Some(_) => std::thread::sleep(POLL_INTERVAL),
            }
        }
        true
    }

    /// The source's reply to `command`, unless it fails or the deadline passes.
    fn ask_by(&mut self, deadline: Instant, command: &str) -> Option<Value> {
        let left = deadline.checked_duration_since(Instant::now())?;
        self.source.execute(command, json!({}), left).ok()
    }

    fn reason(&self, figures: &Figures) -> Reason {
        let Some(active) = self.timeline.active() else { return Reason::InSetup };
        let sent_per_s = figures.transferred as f64 / active.elapsed().as_secs_f64();
        let Figures { passes, left, dirtied_per_s, .. } = *figures;
        if passes >= PASSES && dirtied_per_s >= KEEPS_UP * sent_per_s {
            Reason::Diverges { passes, left, dirtied_per_s, sent_per_s }
        } else {
            Reason::TooSlow { left, sent_per_s }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::Address;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};
    use std::thread;

    #[test]
    fn a_transport_has_a_name() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        assert!("udp".parse::<Transport>().unwrap_err().contains("rdma-pin-all"));
    }

    #[test]
    fn figures_are_those_of_the_reply() {
        let reply = json!({
            "status": "completed", "downtime": 12, "total-time": 900,
            "ram": {"transferred": 5000, "remaining": 7, "dirty-sync-count": 4,
                    "dirty-pages-rate": 10, "page-size": 4096},
        });
        let figures = Figures::of(&reply);
        assert_eq!((figures.passes, figures.transferred, figures.left), (4, 5000, 7));
        assert_eq!(figures.dirtied_per_s, 40960.0);
        assert_eq!(figures.downtime, Some(Duration::from_millis(12)));
        assert_eq!(Figures::of(&json!({})).status, "none");
    }

    #[test]
    fn a_reason_names_both_rates() {
        let reason =
            Reason::Diverges { passes: 5, left: 3 << 20, dirtied_per_s: 125e6, sent_per_s: 25e6 };
        let text = "diverges: after 5 passes 3.0 MiB are dirty; 0.20 Gbit/s are sent, and 1.00 \
                    Gbit/s become dirty, each page counted once in a pass";
        assert_eq!(reason.to_string(), text);
    }

    #[test]
    fn a_migration_diverges_if_dirtying_keeps_up_with_sending() {
        let (mut source, mut destination) = (Peer::start(&[]), Peer::start(&[]));
        let begun = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let mut drive = Drive {
            source: &mut source.qmp,
            destination: &mut destination.qmp,
            timeline: Timeline::starting(begun),
            was_running: true,
            mirrors_disk: false,
        };
        let figures = Figures { passes: 9, transferred: 10_000_000, left: 5, ..Figures::default() };
        assert_eq!(drive.reason(&figures), Reason::InSetup);
        let data = json!({"status": "active"});
        let active = crate::qmp::Event { at: begun, name: "MIGRATION".to_owned(), data };
        drive.timeline.note(End::Source, &active);
        assert!(matches!(drive.reason(&figures), Reason::TooSlow { left: 5, .. }));
        let dirtied = Figures { dirtied_per_s: 1e6, ..figures };
        assert!(matches!(drive.reason(&dirtied), Reason::Diverges { passes: 9, .. }));
        let early = Figures { passes: 2, ..dirtied };
        assert!(matches!(drive.reason(&early), Reason::TooSlow { .. }));
    }

    /// An imitated QEMU.
    struct Peer {
        qmp: Qmp,
        commands: Arc<Mutex<Vec<String>>>,
    }

    impl Peer {
        /// One that replies to each command as `replies` say, the last of a command for good; with
        /// nothing to `null`. It ends when it `dies`.
        fn start(replies: &'static [(&'static str, &'static str)]) -> Self {
            static NUMBER: AtomicUsize = AtomicUsize::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("longhaul-drive-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let commands = Arc::<Mutex<Vec<String>>>::default();
            let noted = Arc::clone(&commands);
            thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let mut to = stream.try_clone().unwrap();
                to.write_all(b"{\"QMP\": {}}\n").unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let command: Value = serde_json::from_str(&line).unwrap();
                    let name = command["execute"].as_str().unwrap().to_owned();
                    let times = noted.lock().unwrap().iter().filter(|one| **one == name).count();
                    noted.lock().unwrap().push(name.clone());
                    let of_it: Vec<_> = replies.iter().filter(|(of, _)| *of == name).collect();
                    let reply = of_it.get(times).or(of_it.last()).map_or("{}", |(_, reply)| reply);
                    if reply == "dies" {
                        return;
                    }
                    let reply: Value = serde_json::from_str(reply).unwrap();
                    if reply.is_null() {
                        continue;
                    }
                    let reply = json!({"return": reply, "id": command["id"]});
                    if to.write_all(format!("{reply}\n").as_bytes()).is_err() {
                        return;
                    }
                }
            });
            let qmp = Qmp::connect(&Address::Unix(path.clone())).unwrap();
            std::fs::remove_file(path).unwrap();
            Peer { qmp, commands }
        }

        fn got(&self, command: &str) -> bool {
            self.commands.lock().unwrap().iter().any(|one| one == command)
        }
    }

    const KNOWN: (&str, &str) =
        ("query-migrate-capabilities", r#"[{"capability": "events", "state": true}]"#);
    const WAITING: &[(&str, &str)] = &[("query-status", r#"{"status": "inmigrate"}"#), KNOWN];

    fn migrated(source: &mut Peer, timeout: Duration, stop: bool) -> Result<Migration, DriveError> {
        migrated_to(&mut Peer::start(WAITING), source, timeout, stop)
    }

    fn migrated_to(
        destination: &mut Peer,
        source: &mut Peer,
        timeout: Duration,
        stop: bool,
    ) -> Result<Migration, DriveError> {
        let plan = Plan {
            transport: Transport::Tcp,
            to: "192.0.2.7:4455".to_owned(),
            listen: "192.0.2.7:4455".to_owned(),
            downtime_limit: None,
            max_bandwidth: None,
            channels: 1,
            disk: None,
            timeout,
        };
        migrate(&mut source.qmp, &mut destination.qmp, &plan, &AtomicBool::new(stop))
    }

    #[test]
    fn time_is_up_before_the_source_has_connected() {
        let mut source = Peer::start(&[
            KNOWN,
            ("query-status", r#"{"status": "running"}"#),
            ("query-status", r#"{"status": "finish-migrate"}"#),
            ("query-status", r#"{"status": "running"}"#),
            ("migrate", "null"),
            ("query-migrate", r#"{"status": "cancelling"}"#),
            ("query-migrate", r#"{"status": "cancelled"}"#),
        ]);
        let outcome = migrated(&mut source, Duration::ZERO, false).unwrap().outcome;
        let reason = Reason::InSetup;
        assert_eq!(outcome, Outcome::DidNotFinish { reason, source_runs: true });
    }

    #[test]
    fn a_migration_that_fails_is_cancelled() {
        let mut source = Peer::start(&[
            KNOWN,
            ("query-status", r#"{"status": "running"}"#),
            ("query-migrate", r#"{"status": "failed", "error-desc": "one\ntwo"}"#),
        ]);
        let error = migrated(&mut source, Duration::from_secs(60), false).unwrap_err();
        assert_eq!(error.to_string(), "the migration failed: one.two");
        assert!(source.got("migrate_cancel"));
    }

    #[test]
    fn a_guest_that_was_sent_to_a_destination_that_died_stands_still() {
        let mut source = Peer::start(&[
            KNOWN,
            ("query-status", r#"{"status": "running"}"#),
            ("query-status", r#"{"status": "postmigrate"}"#),
            ("query-migrate", r#"{"status": "completed"}"#),
        ]);
        let mut destination = Peer::start(&[
            KNOWN,
            ("query-status", r#"{"status": "inmigrate"}"#),
            ("query-status", "dies"),
        ]);
        let limit = Duration::from_secs(60);
        let error = migrated_to(&mut destination, &mut source, limit, false).unwrap_err();
        assert!(
            matches!(&error, DriveError::AfterSending(cause)
                if matches!(**cause, DriveError::Qmp { end: End::Destination, .. })),
            "{error}"
        );
        assert!(error.to_string().contains("stands still on the source"), "{error}");
    }

    #[test]
    fn an_interrupted_run_does_not_migrate() {
        let mut source = Peer::start(&[KNOWN, ("query-status", r#"{"status": "running"}"#)]);
        let outcome = migrated(&mut source, Duration::from_secs(60), true).unwrap().outcome;
        let reason = Reason::Interrupted;
        assert_eq!(outcome, Outcome::DidNotFinish { reason, source_runs: true });
        assert!(!source.got("migrate"));
    }
}
