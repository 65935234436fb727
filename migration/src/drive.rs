//! The driver of a migration: set-up, pre-copy, stop-and-copy, activation.

mod timeline;

use crate::qmp::{Qmp, QmpError};
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;
use timeline::Timeline;

/// Time limit for a reply. QEMU replies to nothing while it sends the last pass.
const REPLIES_WITHIN: Duration = Duration::from_secs(60);
/// Time between two looks at the migration's figures.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Time for the first events to be looked at; their time is that of their arrival.
const EVENTS: Duration = Duration::from_millis(20);
/// Time limit for a migration to end after it was cancelled.
const CANCELS_WITHIN: Duration = Duration::from_secs(15);
/// Time limit for the destination to run the guest after the source has sent everything.
const RUNS_WITHIN: Duration = Duration::from_secs(60);
/// State of a QEMU that waits for a guest.
const WAITS: &str = "inmigrate";
/// States of a QEMU whose guest is not there yet, leaving or gone.
const WITHOUT_GUEST: [&str; 3] = [WAITS, "finish-migrate", "postmigrate"];
/// Passes after which a migration that goes on is one that does not converge.
const PASSES: u64 = 3;

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

/// A migration that is to be.
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
        "the destination has not started the guest {} s after the source was done",
        RUNS_WITHIN.as_secs()
    )]
    NeverRuns,
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
        /// The guest runs on the source.
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
    /// Time was up in an early pass.
    TooSlow {
        /// Bytes that were not sent.
        left: u64,
        /// Bytes sent per second.
        sent_per_s: f64,
    },
    /// The connection was not up.
    NoConnection,
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
            Reason::NoConnection => f.write_str("source and destination never connected"),
            Reason::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// A migration that has ended.
#[derive(Clone, Debug)]
pub struct Migration {
    /// How.
    pub outcome: Outcome,
    /// From the order until the guest ran on the destination, or until the order to cancel.
    pub total: Duration,
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
            status: reply["status"].as_str().unwrap_or("none").to_owned(),
            failure: reply["error-desc"].as_str().map(str::to_owned),
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
    let mut drive = Drive { source, destination, timeline: Timeline::default() };
    drive.prepare(plan)?;
    drive.begin(plan)?;
    drive.follow(plan, stop)
}

struct Drive<'a> {
    source: &'a mut Qmp,
    destination: &'a mut Qmp,
    timeline: Timeline,
}

impl Drive<'_> {
    fn qmp(&mut self, end: End) -> &mut Qmp {
        match end {
            End::Source => self.source,
            End::Destination => self.destination,
        }
    }

    fn execute(&mut self, end: End, command: &str, with: Value) -> Result<Value, DriveError> {
        let reply = self.qmp(end).execute(command, with, REPLIES_WITHIN);
        reply.map_err(|error| DriveError::Qmp { end, error })
    }

    /// Checks both guests' states, and sets capabilities and parameters.
    fn prepare(&mut self, plan: &Plan) -> Result<(), DriveError> {
        for end in [End::Source, End::Destination] {
            let status = self.run_state(end)?;
            let has_guest = !WITHOUT_GUEST.contains(&status.as_str());
            let is_ready = match end {
                End::Source => has_guest,
                End::Destination => status == WAITS,
            };
            if !is_ready {
                return Err(DriveError::NotReady { end, status });
            }
        }
        for end in [End::Source, End::Destination] {
            self.set_capabilities(end, plan.transport)?;
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
        Ok(reply["status"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Sets what the transport needs, and clears what it must not have. Without events there are no
    /// phases.
    fn set_capabilities(&mut self, end: End, transport: Transport) -> Result<(), DriveError> {
        let wanted = [
            ("events", true),
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

    /// Makes the destination listen and the source connect. Over RDMA QEMU replies once memory is
    /// registered.
    fn begin(&mut self, plan: &Plan) -> Result<(), DriveError> {
        let scheme = plan.transport.scheme();
        let uri = json!({"uri": format!("{scheme}:{}", plan.listen)});
        self.execute(End::Destination, "migrate-incoming", uri)?;
        // Events of an earlier migration.
        self.read_events(Duration::ZERO)?;
        self.timeline = Timeline::starting(Instant::now());
        let uri = json!({"uri": format!("{scheme}:{}", plan.to)});
        let reply = self.source.execute("migrate", uri, plan.timeout.max(REPLIES_WITHIN));
        reply.map_err(|error| self.failure(error))?;
        Ok(())
    }

    /// The error of the source, unless the destination has died of the same.
    fn failure(&mut self, error: QmpError) -> DriveError {
        match self.destination.next_event(LOOK_AGAIN) {
            Err(error) => DriveError::Qmp { end: End::Destination, error },
            Ok(_) => DriveError::Qmp { end: End::Source, error },
        }
    }

    fn read_events(&mut self, limit: Duration) -> Result<(), DriveError> {
        for (end, limit) in [(End::Source, limit), (End::Destination, Duration::ZERO)] {
            let failed = |error| DriveError::Qmp { end, error };
            let mut next = self.qmp(end).next_event(limit).map_err(failed)?;
            while let Some(event) = next {
                self.timeline.note(end, &event);
                next = self.qmp(end).next_event(Duration::ZERO).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn figures(&mut self) -> Result<Figures, DriveError> {
        Ok(Figures::of(&self.execute(End::Source, "query-migrate", json!({}))?))
    }

    /// Waits for the end.
    fn follow(&mut self, plan: &Plan, stop: &AtomicBool) -> Result<Migration, DriveError> {
        let deadline = self.timeline.begun() + plan.timeout;
        let mut look = Instant::now();
        loop {
            self.read_events(EVENTS)?;
            let ends = Instant::now() >= deadline || stop.load(Ordering::Relaxed);
            if Instant::now() < look && !ends && !self.timeline.source_is_done() {
                continue;
            }
            look = Instant::now() + LOOK_AGAIN;
            let figures = self.figures()?;
            match figures.status.as_str() {
                "completed" => return self.arrive(),
                "failed" | "cancelled" => return Err(self.why_failed(figures)),
                _ if ends => return self.give_up(figures, stop.load(Ordering::Relaxed)),
                _ => {}
            }
        }
    }

    fn why_failed(&mut self, figures: Figures) -> DriveError {
        let gone = self.destination.execute("query-status", json!({}), REPLIES_WITHIN);
        match gone {
            Err(error @ QmpError::Closed(_)) => DriveError::Qmp { end: End::Destination, error },
            _ => DriveError::Failed(figures.failure.unwrap_or_else(|| {
                format!("QEMU at {} reports '{}'", self.source.address(), figures.status)
            })),
        }
    }

    /// Waits until the destination runs the guest.
    fn arrive(&mut self) -> Result<Migration, DriveError> {
        self.timeline.note_source_done(Instant::now());
        let deadline = Instant::now() + RUNS_WITHIN;
        loop {
            self.read_events(EVENTS)?;
            let arrived = self.run_state(End::Destination)? != WAITS;
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
            passes: figures.passes,
            transferred: figures.transferred,
            downtime: figures.downtime,
        })
    }

    /// Cancels it; it may complete nevertheless.
    fn give_up(&mut self, figures: Figures, interrupted: bool) -> Result<Migration, DriveError> {
        let total = self.timeline.begun().elapsed();
        let reason = if interrupted { Reason::Interrupted } else { self.reason(&figures) };
        // A QEMU that is stuck in RDMA replies to nothing.
        let _ = self.source.execute("migrate_cancel", json!({}), CANCELS_WITHIN);
        let deadline = Instant::now() + CANCELS_WITHIN;
        let mut source_runs = false;
        while Instant::now() < deadline {
            let reply = self.source.execute("query-migrate", json!({}), CANCELS_WITHIN);
            let Ok(reply) = reply else { break };
            match Figures::of(&reply).status.as_str() {
                "completed" => return self.arrive(),
                "cancelled" | "failed" | "none" => {
                    source_runs = self.run_state(End::Source)? == "running";
                    break;
                }
                _ => std::thread::sleep(EVENTS),
            }
        }
        Ok(Migration {
            outcome: Outcome::DidNotFinish { reason, source_runs },
            total,
            passes: figures.passes,
            transferred: figures.transferred,
            downtime: None,
        })
    }

    fn reason(&self, figures: &Figures) -> Reason {
        let Some(active) = self.timeline.active() else { return Reason::NoConnection };
        let sent_per_s = figures.transferred as f64 / active.elapsed().as_secs_f64();
        let left = figures.left;
        match figures.passes {
            PASSES.. => Reason::Diverges {
                passes: figures.passes,
                left,
                dirtied_per_s: figures.dirtied_per_s,
                sent_per_s,
            },
            _ => Reason::TooSlow { left, sent_per_s },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
