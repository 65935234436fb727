//! One run: servers, their clients, and the end of all.

use crate::process::{Ended, Group, Interruption, LOOK_AGAIN, Process};
use std::io;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Time for the other programs to end after one failed.
const OTHERS_END_WITHIN: Duration = Duration::from_secs(2);
/// A server that rests waits for its client: looks, their interval, and the processor time, in
/// ticks of 10 ms, after which a server that polls counts as one that waits.
pub(crate) const LOOKS: u32 = 10;
pub(crate) const INTERVAL: Duration = Duration::from_millis(40);
pub(crate) const TICKS_MAX: u64 = 300;

/// A program to start.
#[derive(Debug)]
pub struct Launch {
    /// Its name for errors.
    pub name: String,
    /// Its command.
    pub command: Command,
    /// How it learns that it should end.
    pub interruption: Interruption,
}

impl Launch {
    /// A program of this machine.
    pub fn here(name: impl Into<String>, command: Command) -> Self {
        Launch { name: name.into(), command, interruption: Interruption::Signal }
    }
}

/// Clients that start together, once their servers are ready.
pub struct Programs {
    /// The servers, and when each is ready.
    pub servers: Vec<(Launch, Ready)>,
    /// The clients.
    pub clients: Vec<Launch>,
    /// True if servers end by themselves; otherwise they are interrupted after the clients have
    /// ended.
    pub server_ends: bool,
    /// Longest time of all.
    pub limit: Duration,
    /// Process groups.
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
    /// The clients.
    pub clients: Vec<Ended>,
    /// The servers.
    pub servers: Vec<Ended>,
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
    #[error("{}: {}{}", .ended.name, .ended.how(), words(.ended))]
    Failed {
        /// The program.
        ended: Box<Ended>,
        /// All programs, as far as they were started.
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
        /// All programs.
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

impl Programs {
    /// Runs them, until `stop` is set.
    ///
    /// # Errors
    /// A program that does not start, fails or hangs. No program is left.
    pub fn run(self, stop: &AtomicBool) -> Result<Output, Fault> {
        let (limit, group) = (self.limit, self.group);
        let watch = Watch { deadline: Instant::now() + limit, limit, group, stop };
        let mut servers = watch.start_servers(self.servers)?;
        let mut clients = Vec::new();
        for client in self.clients {
            clients.push(watch.start(client)?);
        }
        let clients = watch.clients(clients, &mut servers)?;
        let servers = watch.servers(servers, self.server_ends, &clients)?;
        Ok(Output { clients, servers })
    }
}

/// Looks at programs until they end, time is up, or Ctrl-C comes.
struct Watch<'a> {
    deadline: Instant,
    limit: Duration,
    group: Group,
    stop: &'a AtomicBool,
}

impl Watch<'_> {
    fn start(&self, launch: Launch) -> Result<Process, Fault> {
        let Launch { name, command, interruption } = launch;
        Process::start(name.clone(), command, interruption, self.group)
            .map_err(|error| Fault::NoStart { name, error })
    }

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

    /// Starts servers together, and waits until all are ready.
    fn start_servers(&self, launches: Vec<(Launch, Ready)>) -> Result<Vec<Process>, Fault> {
        let mut servers = Vec::new();
        for (launch, ready) in launches {
            servers.push((self.start(launch)?, ready, Rest::default()));
        }
        for at in 0..servers.len() {
            let (server, ready, rest) = &mut servers[at];
            let (mut has_ended, mut is_ready) = (false, false);
            self.until(self.deadline, || {
                has_ended = server.status().is_some();
                is_ready = match ready {
                    Ready::Listens(port) => server.listens(*port),
                    Ready::Asleep => rest.is_long(server),
                    Ready::Says(text) => server.says(text),
                };
                has_ended || is_ready
            })?;
            if is_ready && !has_ended {
                continue;
            }
            let ended = Box::new(servers.swap_remove(at).0.end());
            if has_ended {
                return Err(Fault::Failed { output: vec![(*ended).clone()], ended });
            }
            let name = ended.name.clone();
            return Err(Fault::NotReady { name, limit: self.limit, ended });
        }
        Ok(servers.into_iter().map(|(server, ..)| server).collect())
    }

    /// Waits for the clients. If a program fails, the others have a little time more.
    fn clients(
        &self,
        mut clients: Vec<Process>,
        servers: &mut Vec<Process>,
    ) -> Result<Vec<Ended>, Fault> {
        let mut deadline = self.deadline;
        // The cause is more likely where the failure began.
        let mut first: Option<String> = None;
        let mut have_ended = false;
        while !have_ended && Instant::now() < deadline {
            let soon = deadline.min(Instant::now() + INTERVAL);
            let is_over = |clients: &mut Vec<Process>| {
                clients.iter_mut().all(|client| client.status().is_some())
            };
            have_ended = self.until(soon, || is_over(&mut clients))?;
            if first.is_none() {
                let mut all = servers.iter_mut().chain(&mut clients);
                let failed =
                    all.find_map(|one| one.status().is_some_and(|s| !s.success()).then_some(one));
                first = failed.map(|failed| failed.name().to_owned());
                if first.is_some() {
                    deadline = deadline.min(Instant::now() + OTHERS_END_WITHIN);
                }
            }
        }
        let ended: Vec<Ended> = clients.into_iter().map(Process::end).collect();
        if first.is_none() && ended.iter().all(Ended::is_success) {
            return Ok(ended);
        }
        let mut output = ended;
        let clients = output.len();
        output.extend(servers.drain(..).map(Process::end));
        let culprit = |one: &&Ended| first.as_ref().is_some_and(|name| *name == one.name);
        let has_failed = |one: &&Ended| one.status.is_some() && !one.is_success();
        let failed = output.iter().find(culprit);
        if let Some(failed) = failed.or_else(|| output[..clients].iter().find(has_failed)) {
            return Err(Fault::Failed { ended: Box::new(failed.clone()), output });
        }
        let hung = output[..clients].iter().find(|client| !client.is_success());
        let ended = Box::new(hung.unwrap_or(&output[0]).clone());
        Err(Fault::Hung { name: ended.name.clone(), limit: self.limit, ended, output })
    }

    /// Waits for servers whose clients have ended, or interrupts them.
    fn servers(
        &self,
        mut servers: Vec<Process>,
        end_themselves: bool,
        clients: &[Ended],
    ) -> Result<Vec<Ended>, Fault> {
        let have_ended =
            |servers: &mut Vec<Process>| servers.iter_mut().all(|server| server.status().is_some());
        if !end_themselves {
            servers.iter_mut().for_each(Process::interrupt);
            let within = servers.iter().map(Process::ends_within).max().unwrap_or_default();
            let deadline = Instant::now() + within;
            self.until(deadline, || have_ended(&mut servers))?;
            return Ok(servers.into_iter().map(Process::end).collect());
        }
        self.until(self.deadline, || have_ended(&mut servers))?;
        let ended: Vec<Ended> = servers.into_iter().map(Process::end).collect();
        let Some(failed) = ended.iter().find(|server| !server.is_success()) else {
            return Ok(ended);
        };
        let (name, failed) = (failed.name.clone(), Box::new(failed.clone()));
        let output = clients.iter().chain(&ended).cloned().collect();
        Err(match failed.status {
            Some(_) => Fault::Failed { ended: failed, output },
            None => Fault::Hung { name, limit: self.limit, ended: failed, output },
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

    fn programs(server: &str, ready: Ready, client: &str) -> Programs {
        Programs {
            servers: vec![(Launch::here("server", sh(server)), ready)],
            clients: vec![Launch::here("client", sh(client))],
            server_ends: true,
            limit: LONG,
            group: Group::Own,
        }
    }

    fn says() -> Ready {
        Ready::Says("ready".to_owned())
    }

    fn run(programs: Programs) -> Result<Output, Fault> {
        programs.run(&AtomicBool::new(false))
    }

    #[test]
    fn all_outputs_are_kept() {
        let output = run(programs("echo ready; sleep 0.2; echo s", says(), "echo c")).unwrap();
        assert_eq!((&*output.clients[0].stdout, &*output.servers[0].stdout), ("c\n", "ready\ns\n"));
        let asleep =
            Programs { server_ends: false, ..programs("sleep 1000", Ready::Asleep, "echo c") };
        let output = run(asleep).unwrap();
        assert!(output.clients[0].is_success() && !output.servers[0].is_success());
    }

    #[test]
    fn failures_name_the_program_and_its_last_words() {
        let fails = "echo ready; echo broken >&2; exit 3";
        let text = |programs| run(programs).unwrap_err().to_string();
        assert_eq!(text(programs("exit 3", says(), "")), "server: exit status: 3");
        assert_eq!(text(programs(fails, says(), "sleep 1000")), "server: exit status: 3: broken");
        let client = programs("echo ready; sleep 1000", says(), "echo no >&2; exit 1");
        assert_eq!(text(client), "client: exit status: 1: no");
        let killed = programs("echo ready; sleep 1000", says(), "kill -9 $$");
        assert!(text(killed).starts_with("client: signal: 9"));
        let limit = Duration::from_millis(300);
        let hangs =
            Programs { limit, ..programs("echo ready; sleep 1000", says(), "echo x; sleep 1000") };
        assert_eq!(text(hangs), "client did not end within 0.3 s: x");
        let late = Programs { limit, ..programs("sleep 1000", says(), "") };
        assert_eq!(text(late), "server was not ready within 0.3 s");
        let clients = vec![Launch::here("x", Command::new("/no/such"))];
        let none = Programs { servers: Vec::new(), clients, ..programs("", says(), "") };
        assert!(text(none).starts_with("cannot run x: "));
    }

    #[test]
    fn one_of_several_that_fails_ends_the_others() {
        let mut several = programs("echo ready; sleep 1000", says(), "sleep 1000");
        several.clients.push(Launch::here("other", sh("echo no >&2; exit 4")));
        several.servers.push((Launch::here("second", sh("echo ready; sleep 1000")), says()));
        let fault = run(several).unwrap_err();
        assert_eq!(fault.to_string(), "other: exit status: 4: no");
        assert_eq!(fault.outputs().len(), 4);
    }

    #[test]
    fn an_interruption_ends_all() {
        let both = programs("echo ready; sleep 1000", says(), "sleep 1000");
        assert!(matches!(both.run(&AtomicBool::new(true)), Err(Fault::Interrupted)));
    }
}
