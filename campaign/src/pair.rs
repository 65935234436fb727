//! One run: a server, its client, and the end of both.

use crate::process::{Ended, Group, LOOK_AGAIN, Process};
use rustix::process::Signal;
use std::io;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time for a server to end after its client failed, or after it was interrupted.
const SERVER_ENDS_WITHIN: Duration = Duration::from_secs(2);
/// A server that rests waits for its client: looks, their interval, and the processor time, in
/// ticks of 10 ms, after which a server that polls counts as one that waits.
const LOOKS: u32 = 10;
const INTERVAL: Duration = Duration::from_millis(40);
const TICKS_MAX: u64 = 300;

/// A client and its server.
pub struct Pair {
    /// The server: its name for errors, its command, and when it is ready.
    pub server: Option<(String, Command, Ready)>,
    /// The client: its name for errors, and its command.
    pub client: (String, Command),
    /// True if the server ends by itself; otherwise it is interrupted after its client has ended.
    pub server_ends: bool,
    /// Longest time of both.
    pub limit: Duration,
    /// Process group of both.
    pub group: Group,
}

/// Condition for the start of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The server listens on this TCP port.
    Listens(u16),
    /// The server sleeps.
    Asleep,
    /// The server has printed this text.
    Says(String),
}

/// What a run printed.
#[derive(Clone, Debug)]
pub struct Output {
    /// The client.
    pub client: Ended,
    /// The server, if there is one.
    pub server: Option<Ended>,
}

/// Why a run has no result.
#[derive(Debug, Error)]
pub enum Fault {
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// A program cannot be started.
    #[error("cannot run {name}: {error}")]
    NoStart {
        /// The program.
        name: String,
        /// The operating system's error.
        error: io::Error,
    },
    /// The server was not ready in time.
    #[error("{name} was not ready within {} s{}", limit.as_secs_f64(), words(.ended))]
    NotReady {
        /// The server.
        name: String,
        /// Longest time of the run.
        limit: Duration,
        /// The server.
        ended: Box<Ended>,
    },
    /// A program ended in an error.
    #[error("{}: {}{}", .ended.name, .ended.how, words(.ended))]
    Failed {
        /// The program.
        ended: Box<Ended>,
        /// Both programs, as far as they were started.
        output: Vec<Ended>,
    },
    /// A program did not end in time.
    #[error("{name} did not end within {} s{}", limit.as_secs_f64(), words(.ended))]
    Hung {
        /// The program.
        name: String,
        /// Longest time of the run.
        limit: Duration,
        /// The program.
        ended: Box<Ended>,
        /// Both programs.
        output: Vec<Ended>,
    },
}

fn words(ended: &Ended) -> String {
    ended.last_words().map(|words| format!(": {words}")).unwrap_or_default()
}

impl Fault {
    /// What the programs printed.
    pub fn outputs(&self) -> &[Ended] {
        match self {
            Fault::Interrupted | Fault::NoStart { .. } => &[],
            Fault::NotReady { ended, .. } => std::slice::from_ref(ended),
            Fault::Failed { output, .. } | Fault::Hung { output, .. } => output,
        }
    }
}

/// A TCP port that no program of this machine uses.
///
/// # Errors
/// The operating system's.
pub fn free_tcp_port() -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}

impl Pair {
    /// Runs both, until `stop` is set.
    ///
    /// # Errors
    /// A program that does not start, fails or hangs. No program is left.
    pub fn run(self, stop: &AtomicBool) -> Result<Output, Fault> {
        let (limit, group) = (self.limit, self.group);
        let watch = Watch { deadline: Instant::now() + limit, limit, group, stop };
        let mut server = match self.server {
            Some((name, command, ready)) => Some(watch.start_server(name, command, &ready)?),
            None => None,
        };
        let (name, command) = self.client;
        let client = start(name, command, group)?;
        let ended = watch.client(client, &mut server)?;
        let Some(server) = server else {
            return Ok(Output { client: ended, server: None });
        };
        let server = watch.server(server, self.server_ends, &ended)?;
        Ok(Output { client: ended, server: Some(server) })
    }
}

fn start(name: String, command: Command, group: Group) -> Result<Process, Fault> {
    Process::start(name.clone(), command, group).map_err(|error| Fault::NoStart { name, error })
}

/// Looks at programs until they end, time is up, or Ctrl-C comes.
struct Watch<'a> {
    deadline: Instant,
    limit: Duration,
    group: Group,
    stop: &'a AtomicBool,
}

impl Watch<'_> {
    /// Waits for `is_so`, until `deadline`. Returns whether it is so.
    fn until(&self, deadline: Instant, mut is_so: impl FnMut() -> bool) -> Result<bool, Fault> {
        loop {
            if is_so() {
                return Ok(true);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Fault::Interrupted);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Starts a server, and waits until it is ready.
    fn start_server(
        &self,
        name: String,
        command: Command,
        ready: &Ready,
    ) -> Result<Process, Fault> {
        let mut server = start(name.clone(), command, self.group)?;
        let mut rest = Rest::default();
        let (mut has_ended, mut is_ready) = (false, false);
        self.until(self.deadline, || {
            has_ended = server.status().is_some();
            is_ready = match ready {
                Ready::Listens(port) => server.listens(*port),
                Ready::Asleep => rest.is_long(&server),
                Ready::Says(text) => server.says(text),
            };
            has_ended || is_ready
        })?;
        if is_ready && !has_ended {
            return Ok(server);
        }
        let ended = Box::new(server.end());
        if has_ended {
            return Err(Fault::Failed { output: vec![(*ended).clone()], ended });
        }
        Err(Fault::NotReady { name, limit: self.limit, ended })
    }

    /// Waits for the client. If the server fails, the client has a little time more.
    fn client(&self, mut client: Process, server: &mut Option<Process>) -> Result<Ended, Fault> {
        let mut deadline = self.deadline;
        let mut server_failed = false;
        let mut has_ended = false;
        while !has_ended && Instant::now() < deadline {
            let soon = deadline.min(Instant::now() + INTERVAL);
            has_ended = self.until(soon, || client.status().is_some())?;
            let failed = server.as_mut().and_then(Process::status).is_some_and(|s| !s.success());
            if failed && !server_failed {
                server_failed = true;
                deadline = deadline.min(Instant::now() + SERVER_ENDS_WITHIN);
            }
        }
        let ended = client.end();
        if ended.is_success && !server_failed {
            return Ok(ended);
        }
        let server = server.take().map(Process::end);
        let output: Vec<Ended> = [ended.clone()].into_iter().chain(server.clone()).collect();
        Err(match server {
            // The cause is more likely where the failure began.
            Some(server) if server_failed => Fault::Failed { ended: Box::new(server), output },
            _ if has_ended => Fault::Failed { ended: Box::new(ended), output },
            _ => {
                let (name, ended) = (ended.name.clone(), Box::new(ended));
                Fault::Hung { name, limit: self.limit, ended, output }
            }
        })
    }

    /// Waits for a server whose client has ended, or interrupts it.
    fn server(
        &self,
        mut server: Process,
        ends_itself: bool,
        client: &Ended,
    ) -> Result<Ended, Fault> {
        if !ends_itself {
            server.signal(Signal::INT);
            let deadline = Instant::now() + SERVER_ENDS_WITHIN;
            self.until(deadline, || server.status().is_some())?;
            return Ok(server.end());
        }
        let has_ended = self.until(self.deadline, || server.status().is_some())?;
        let ended = server.end();
        if ended.is_success {
            return Ok(ended);
        }
        let output = vec![client.clone(), ended.clone()];
        let (name, ended) = (ended.name.clone(), Box::new(ended));
        Err(match has_ended {
            true => Fault::Failed { ended, output },
            false => Fault::Hung { name, limit: self.limit, ended, output },
        })
    }
}

/// Observations of a server that may be at rest.
#[derive(Default)]
struct Rest {
    looked: Option<(Instant, u64)>,
    quiet: u32,
}

impl Rest {
    /// True once the server has slept for several looks without using the processor, or polls.
    fn is_long(&mut self, server: &Process) -> bool {
        if self.looked.is_some_and(|(at, _)| at.elapsed() < INTERVAL) {
            return false;
        }
        let Some((sleeps, ticks)) = server.rest() else { return false };
        let is_quiet = sleeps && self.looked.is_some_and(|(_, before)| before == ticks);
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.looked = Some((Instant::now(), ticks));
        self.quiet >= LOOKS || ticks > TICKS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(120);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn pair(server: &str, ready: Ready, client: &str) -> Pair {
        Pair {
            server: Some(("server".to_owned(), sh(server), ready)),
            client: ("client".to_owned(), sh(client)),
            server_ends: true,
            limit: LONG,
            group: Group::Own,
        }
    }

    fn run(pair: Pair) -> Result<Output, Fault> {
        pair.run(&AtomicBool::new(false))
    }

    #[test]
    fn both_outputs_are_kept() {
        let says = Ready::Says("ready".to_owned());
        let output = run(pair("echo ready; sleep 0.2; echo s", says, "echo c")).unwrap();
        assert_eq!(
            (&*output.client.stdout, &*output.server.unwrap().stdout),
            ("c\n", "ready\ns\n")
        );
        let asleep = Pair { server_ends: false, ..pair("sleep 1000", Ready::Asleep, "echo c") };
        let output = run(asleep).unwrap();
        assert_eq!((output.client.is_success, output.server.unwrap().is_success), (true, false));
    }

    #[test]
    fn failures_name_the_program_and_its_last_words() {
        let says = || Ready::Says("ready".to_owned());
        let fails = "echo ready; echo broken >&2; exit 3";
        let text = |pair| run(pair).unwrap_err().to_string();
        assert_eq!(text(pair("exit 3", says(), "")), "server: exit status: 3");
        assert_eq!(text(pair(fails, says(), "sleep 1000")), "server: exit status: 3: broken");
        let client = pair("echo ready; sleep 1000", says(), "echo no >&2; exit 1");
        assert_eq!(text(client), "client: exit status: 1: no");
        let limit = Duration::from_millis(300);
        let hangs = Pair { limit, ..pair("echo ready; sleep 1000", says(), "echo x; sleep 1000") };
        assert_eq!(text(hangs), "client did not end within 0.3 s: x");
        let late = Pair { limit, ..pair("sleep 1000", says(), "") };
        assert_eq!(text(late), "server was not ready within 0.3 s");
        let none =
            Pair { client: ("x".to_owned(), Command::new("/no/such")), ..pair("", says(), "") };
        let none = Pair { server: None, ..none };
        assert!(text(none).starts_with("cannot run x: "));
    }

    #[test]
    fn an_interruption_ends_both() {
        let both = pair("echo ready; sleep 1000", Ready::Says("ready".to_owned()), "sleep 1000");
        assert!(matches!(both.run(&AtomicBool::new(true)), Err(Fault::Interrupted)));
    }
}
