//! Programs on other hosts, by ssh.

use super::{Addresses, Cause, End, Executor, Refusal, Side};
use crate::grid::Settings;
use crate::process::{Ended, Interruption};
use crate::programs::{LOOKS, Launch, Ready, TICKS_MAX};
use crate::slurm::quoted;
use crate::topology::Topology;
use longhaul_bench::Point as Place;
use longhaul_units::{Rng as _, SplitMix64};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Beginning of the script in which a program runs on its host.
const SCRIPT: &str = include_str!("remote.sh");
/// What that script prints when a server is ready.
const READY: &str = "longhaul: the server is ready";
/// Ports for servers, below those that Linux gives to clients. A port that is taken makes an
/// attempt fail, and the next one gets another.
const PORTS: std::ops::Range<u16> = 20_000..32_768;
/// Exit codes: of ssh for its own errors, of a shell for a program that does not exist and one that
/// cannot be executed.
const OF_SSH: i32 = 255;
const NO_PROGRAM: i32 = 127;
const NO_PERMISSION: i32 = 126;

/// `[ssh]` of a campaign's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SshHosts {
    /// Hosts of clients, as ssh knows them.
    pub clients: Vec<String>,
    /// Hosts of servers.
    pub servers: Vec<String>,
    /// Addresses of servers, where these are not the host names of ssh's configuration.
    #[serde(default)]
    pub addresses: BTreeMap<String, HostAddresses>,
    /// Longest time of a connection's start, in seconds.
    #[serde(default)]
    pub connect_timeout_s: Option<u16>,
    /// Another configuration of ssh.
    #[serde(default)]
    pub config: Option<PathBuf>,
}

/// Addresses of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostAddresses {
    /// Of its RDMA device.
    #[serde(default)]
    pub rdma: Option<String>,
    /// For TCP.
    #[serde(default)]
    pub tcp: Option<String>,
}

impl SshHosts {
    /// Checks the names of hosts.
    ///
    /// # Errors
    /// What is missing or no name.
    pub fn check(&self) -> Result<(), Refusal> {
        for (hosts, key) in [(&self.clients, "clients"), (&self.servers, "servers")] {
            if hosts.is_empty() {
                return Err(Refusal(format!("'{key}' names no host")));
            }
            let is_name = |host: &&String| {
                !host.is_empty() && !host.starts_with('-') && !host.contains(char::is_whitespace)
            };
            if let Some(host) = hosts.iter().find(|host| !is_name(host)) {
                return Err(Refusal(format!("\"{host}\" is no name of a host")));
            }
        }
        if let Some(host) = self.addresses.keys().find(|host| !self.servers.contains(host)) {
            return Err(Refusal(format!("'addresses' has \"{host}\", which 'servers' has not")));
        }
        Ok(())
    }

    /// Texts that identify them.
    pub(crate) fn identity(&self) -> impl Iterator<Item = &str> {
        self.clients.iter().chain(&self.servers).map(String::as_str)
    }
}

/// Runs programs on other hosts. A host ends its program when the connection ends.
pub struct BySsh {
    hosts: SshHosts,
    entered: Option<Settings>,
    ports: RefCell<SplitMix64>,
}

impl BySsh {
    /// An executor on these hosts.
    pub fn new(hosts: SshHosts) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = since.as_nanos() as u64 ^ u64::from(std::process::id());
        BySsh { hosts, entered: None, ports: RefCell::new(SplitMix64::new(seed)) }
    }

    fn name(&self, end: End) -> Result<&str, Refusal> {
        let (hosts, key) = match end.side {
            Side::Client => (&self.hosts.clients, "clients"),
            Side::Server => (&self.hosts.servers, "servers"),
        };
        let host = hosts.get(end.number).map(String::as_str);
        host.ok_or_else(|| Refusal(format!("[ssh] names {} {key}", hosts.len())))
    }

    /// ssh with its options.
    fn ssh(&self) -> Command {
        let mut ssh = Command::new("ssh");
        if let Some(config) = &self.hosts.config {
            ssh.arg("-F").arg(config);
        }
        let timeout = self.hosts.connect_timeout_s.unwrap_or(10).max(1);
        // Never ask, and notice a connection that is lost.
        ssh.args(["-T", "-oBatchMode=yes", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"]);
        ssh.arg(format!("-oConnectTimeout={timeout}"));
        ssh
    }

    /// Runs `words` on the host at `end`, with `more` of the script.
    fn run(&self, end: End, name: String, words: &[String], more: &str) -> Result<Launch, Refusal> {
        let mut command = self.ssh();
        let script = format!("{SCRIPT}{more}exec \"$@\" </dev/null\n");
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let line = format!("exec sh -c {} sh {}", quoted(&script), words.join(" "));
        command.arg("--").arg(self.name(end)?).arg(line);
        Ok(Launch { name, command, interruption: Interruption::EndOfInput })
    }

    /// The host name that ssh's configuration gives a host.
    fn host_name(&self, host: &str) -> Result<String, Refusal> {
        let asked = self.ssh().arg("-G").arg("--").arg(host).output();
        let out = asked.map_err(|error| Refusal(format!("cannot run ssh: {error}")))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let name = text.lines().find_map(|line| line.strip_prefix("hostname "));
        name.map(|name| name.trim().to_owned()).ok_or_else(|| {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.lines().next().unwrap_or_default();
            Refusal(format!("ssh knows no address of {host}: {said}"))
        })
    }
}

/// The part of the script that prints [`READY`] once `condition` has returned.
fn watch(condition: &str) -> String {
    format!("( exec >/dev/null; {condition}; lives && echo \"{READY}\" >&2 ) &\n")
}

impl Executor for BySsh {
    fn takes(&self, key: &str) -> bool {
        Topology::takes(key)
    }

    fn parameters(&self, path: &Settings) -> Result<Place, Refusal> {
        let Topology { clients, servers } = Topology::of(path)?;
        for (wanted, hosts, key) in
            [(clients, &self.hosts.clients, "clients"), (servers, &self.hosts.servers, "servers")]
        {
            let there = hosts.len();
            if wanted > there {
                let why = format!("'{key}' = {wanted}, and [ssh] names {there}: name more hosts");
                return Err(Refusal(why));
            }
        }
        Topology::parameters(path)
    }

    fn enter(&mut self, path: &Settings) -> Result<bool, Refusal> {
        Ok(self.entered.replace(path.clone()).as_ref() != Some(path))
    }

    fn leave(&mut self) -> Option<String> {
        self.entered = None;
        None
    }

    fn addresses(&self, server: usize) -> Result<Addresses, Refusal> {
        let host = self.name(End { side: Side::Server, number: server })?;
        let given = self.hosts.addresses.get(host).cloned().unwrap_or_default();
        let known = match (given.tcp, &given.rdma) {
            (Some(tcp), _) => tcp,
            (None, Some(rdma)) => rdma.clone(),
            (None, None) => self.host_name(host)?,
        };
        Ok(Addresses {
            rdma: given.rdma.unwrap_or_else(|| known.clone()),
            tcp: known,
            off_path: None,
        })
    }

    fn host(&self, end: End) -> Option<String> {
        self.name(end).ok().map(str::to_owned)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn launch(&self, end: End, name: String, words: &[String]) -> Result<Launch, Refusal> {
        self.run(end, name, words, "")
    }

    fn serve(
        &self,
        end: End,
        name: String,
        words: &[String],
        ready: Ready,
    ) -> Result<(Launch, Ready), Refusal> {
        let more = match ready {
            Ready::Says(_) => return Ok((self.launch(end, name, words)?, ready)),
            Ready::Listens(port) => watch(&format!("listens {port:04X}")),
            Ready::Asleep => watch(&format!("sleeps {LOOKS} {TICKS_MAX}")),
        };
        Ok((self.run(end, name, words, &more)?, Ready::Says(READY.to_owned())))
    }

    fn port(&self) -> io::Result<u16> {
        let span = u64::from(PORTS.end - PORTS.start);
        Ok(PORTS.start + self.ports.borrow_mut().below(span) as u16)
    }

    fn explain(&self, ended: &Ended) -> Option<Cause> {
        cause(ended.status.and_then(|status| status.code())?, &ended.stderr)
    }
}

/// Why a program on another host failed, from its exit code and errors.
fn cause(code: i32, errors: &str) -> Option<Cause> {
    let of = |why: String, is_final: bool| Some(Cause { why, is_final });
    let lines = || errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let line_with = |parts: &[&str]| {
        lines().rfind(|line| parts.iter().any(|part| line.contains(part))).map(str::to_owned)
    };
    match code {
        NO_PROGRAM if line_with(&["not found", "No such file"]).is_some() => {
            of("the program is not installed on this host, or not in its PATH".to_owned(), true)
        }
        NO_PERMISSION if line_with(&["ermission denied"]).is_some() => {
            of("the program cannot be executed on this host".to_owned(), true)
        }
        OF_SSH => {
            if line_with(&["Host key verification failed", "host key is known"]).is_some() {
                let why = "the key of the host is unknown or has changed: connect once by hand, \
                           or add it with ssh-keyscan";
                return of(why.to_owned(), true);
            }
            if line_with(&["Permission denied (", "Too many authentication"]).is_some() {
                let why = "ssh asks for a password or refuses the key: set up a key with \
                           ssh-copy-id, or start ssh-agent";
                return of(why.to_owned(), true);
            }
            let unreachable =
                ["ssh: connect to host", "Could not resolve", "kex_exchange", "banner exchange"];
            if let Some(line) = line_with(&unreachable) {
                return of(format!("the host is down or unreachable ({line})"), false);
            }
            let lost = [
                "closed by remote host",
                "Broken pipe",
                "not responding",
                "reset by peer",
                "Connection to",
            ];
            line_with(&lost).and_then(|line| of(format!("the connection was lost ({line})"), false))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Group;
    use crate::programs::Programs;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn hosts(clients: &[&str], servers: &[&str]) -> SshHosts {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        SshHosts { clients: names(clients), servers: names(servers), ..SshHosts::default() }
    }

    #[test]
    fn names_of_hosts_are_checked() {
        hosts(&["a@n1"], &["n2"]).check().unwrap();
        for (clients, servers, part) in [
            (&[][..], &["n2"][..], "'clients' names no host"),
            (&["n1"], &[], "'servers' names no host"),
            (&["-oProxyCommand=x"], &["n2"], "is no name of a host"),
            (&["n1"], &["n 2"], "is no name of a host"),
        ] {
            let refused = hosts(clients, servers).check().unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
        let mut other = hosts(&["n1"], &["n2"]);
        other.addresses.insert("n3".to_owned(), HostAddresses::default());
        assert!(other.check().unwrap_err().to_string().contains("\"n3\""));
    }

    #[test]
    fn failures_of_ssh_have_a_cure() {
        for (code, errors, part, is_final) in [
            (255, "ssh: connect to host n1 port 22: Connection refused", "is down", false),
            (255, "ssh: Could not resolve hostname n1: Name unknown", "unreachable", false),
            (255, "n@n1: Permission denied (publickey,password).", "ssh-copy-id", true),
            (255, "x\nHost key verification failed.\n", "ssh-keyscan", true),
            (255, "Connection to n1 closed by remote host.", "was lost", false),
            (255, "Timeout, server n1 not responding.", "was lost", false),
            (127, "sh: 1: exec: x: not found", "not installed on this host", true),
        ] {
            let found = cause(code, errors).unwrap_or_else(|| panic!("no cause of {errors}"));
            assert!(found.why.contains(part) && found.is_final == is_final, "{found:?}");
        }
        assert_eq!(cause(255, "the program's own error"), None);
        assert_eq!(cause(1, "Permission denied (publickey)"), None);
    }

    /// The script that would run on another host, here.
    fn here(script: &str, more: &str) -> Launch {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{SCRIPT}{more}exec \"$@\" </dev/null\n")]);
        command.args(["sh", "sh", "-c", script]);
        Launch { name: "x".to_owned(), command, interruption: Interruption::EndOfInput }
    }

    #[test]
    fn the_script_ends_its_program_and_knows_when_a_server_is_ready() {
        let says = || Ready::Says(READY.to_owned());
        let interrupted = "trap 'echo interrupted; exit 0' INT; while :; do sleep 0.1; done";
        let server = here(interrupted, &watch("sleeps 1 1000"));
        let stubborn = here("trap '' INT; sleep 1000.75", &watch(&format!("sleeps {LOOKS} 300")));
        let programs = Programs {
            servers: vec![(server, says()), (stubborn, says())],
            clients: vec![here("echo done; exit 0", "")],
            server_ends: false,
            limit: Duration::from_secs(60),
            group: Group::Own,
        };
        let output = programs.run(&AtomicBool::new(false)).unwrap();
        assert_eq!(output.clients[0].stdout, "done\n");
        assert_eq!(output.servers[0].stdout, "interrupted\n", "{:?}", output.servers);
        assert!(output.servers[1].status.is_some_and(|status| status.code().is_none()));
    }
}
