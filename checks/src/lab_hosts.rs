//! Lab hosts with a network, for libraries that exchange addresses over TCP and look up the
//! interface of the device.

use crate::pair::Ready;
use crate::program::longhaul;
use crate::{Finished, Program, TestLab, pair};
use longhaul_namespace::skip;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A lab of two hosts with a network, a and b.
pub struct LabHosts {
    lab: TestLab,
}

/// Where the ranks of an MPI program run.
#[derive(Clone, Copy, Debug)]
pub enum Ranks {
    /// Half of them on each host.
    OnBothHosts,
    /// All of them on host a.
    OnHostA,
}

impl LabHosts {
    /// Brings up a lab with `arguments`, split at spaces. `None`: hosts can have no network here,
    /// and it was reported that the test is skipped.
    ///
    /// # Panics
    /// If the lab does not come up.
    pub fn up(arguments: &str) -> Option<Self> {
        let lab = TestLab::up(&format!("--network kernel {arguments}"));
        let network = &lab.status()["network"];
        if network["kind"] == "kernel" {
            return Some(LabHosts { lab });
        }
        skip(format!("hosts have no network here: {}", network["why"]));
        None
    }

    /// The lab.
    pub fn lab(&self) -> &TestLab {
        &self.lab
    }

    fn start(&self, host: &str, line: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = self.lab.command(host, line);
        command.envs(variables.iter().copied());
        command
    }

    /// Runs a line, split at spaces, on host a; it must succeed within `limit`.
    ///
    /// # Panics
    /// If it does not.
    pub fn run(&self, line: &str, limit: Duration) -> Finished {
        Program::start(&mut self.lab.command("a", line)).succeed(limit)
    }

    /// Runs `server` on host b until it is `ready`, and then `client` on host a, both with these
    /// environment variables; both must succeed within `limit`.
    ///
    /// # Panics
    /// If one of them fails, with the output of both.
    pub fn pair(
        &self,
        lines: (&str, &str),
        ready: Ready,
        variables: &[(&str, &str)],
        limit: Duration,
    ) -> (Finished, Finished) {
        let (server, client) = self.ends(lines, ready, variables, limit);
        let succeeded = server.status.success() && client.status.success();
        assert!(succeeded, "=== the client\n{client}\n=== the server\n{server}");
        (server, client)
    }

    /// [`LabHosts::pair`] with any exit status.
    ///
    /// # Panics
    /// If one of them does not exit within `limit`.
    pub fn ends(
        &self,
        (server, client): (&str, &str),
        ready: Ready,
        variables: &[(&str, &str)],
        limit: Duration,
    ) -> (Finished, Finished) {
        let server = Program::start(&mut self.start("b", server, variables));
        let server = self.lab.wait_for(server, ready);
        let client = Program::start(&mut self.start("a", client, variables)).finish(limit);
        (server.finish(pair::LIMIT), client)
    }

    /// Runs `ranks` ranks of `line` by Open MPI, with `options` of mpirun: half of them on each
    /// host, or all on host a.
    ///
    /// # Panics
    /// If one of them fails, or they are not done within `limit`.
    pub fn mpirun(
        &self,
        ranks: u32,
        place: Ranks,
        options: &str,
        line: &str,
        limit: Duration,
    ) -> Finished {
        let exec = format!("exec {} exec --lab {}", longhaul().display(), crate::lab::NAME);
        // mpirun starts its daemon by a line for the shell of the other host.
        let agent =
            self.script("agent", &format!("host=$1; shift; {exec} --host $host -- sh -c \"$*\""));
        let hosts = match place {
            Ranks::OnBothHosts => format!("a:{0},b:{0}", ranks / 2),
            Ranks::OnHostA => format!("a:{ranks}"),
        };
        let mut command = self.lab.command("a", &format!("mpirun -np {ranks}"));
        command
            .args(["--host", &hosts, "--mca", "plm_rsh_agent"])
            .arg(agent)
            .args(["--mca", "oob_tcp_if_include", "lh0", "--bind-to", "none"])
            .args(options.split_whitespace())
            .args(line.split_whitespace())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        Program::start_group(&mut command).succeed(limit)
    }

    fn script(&self, name: &str, line: &str) -> PathBuf {
        let runtime = self.lab.runtime().path();
        let path = runtime.join(name);
        let text = format!("#!/bin/sh\nexport XDG_RUNTIME_DIR={}\n{line}\n", runtime.display());
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        path
    }

    /// Bytes that the devices of programs on host a have sent and received since the lab came up.
    ///
    /// # Panics
    /// If their counters cannot be read.
    pub fn device_bytes(&self) -> u64 {
        let line = format!("counters --json --lab {}", crate::lab::NAME);
        let done = Program::start(&mut self.lab.runtime().longhaul(&line)).succeed(pair::LIMIT);
        let all: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
        // Before the first program there are no counters.
        ["tx_bytes", "rx_bytes"].iter().filter_map(|name| all["a"][name].as_u64()).sum()
    }
}
