//! Two processes connected by shared memory, without a lab: the fastest network available.

use crate::lab::RuntimeDir;
use crate::pair::{self, LIMIT, Ready};
use crate::program::{Finished, Program, longhaul};
use longhaul_rdma::attach;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

/// The server's address.
pub const SERVER_IP: &str = "10.77.0.2";
/// The client's address.
pub const CLIENT_IP: &str = "10.77.0.1";

/// Rendezvous of one server and one client at a time.
pub struct BackToBack {
    dir: RuntimeDir,
    server_ip: IpAddr,
}

impl BackToBack {
    /// Creates an empty one.
    #[expect(clippy::new_without_default, reason = "creates a directory")]
    pub fn new() -> Self {
        Self::with_server_ip(SERVER_IP.parse().expect("an address"))
    }

    /// Creates one whose server has this address, for programs that use one address for TCP and for
    /// RDMA-CM.
    pub fn with_server_ip(server_ip: IpAddr) -> Self {
        BackToBack { dir: RuntimeDir::new(), server_ip }
    }

    /// The server's command for `line`, split at spaces.
    pub fn server(&self, line: &str) -> Command {
        self.attached("master", &self.server_ip.to_string(), line)
    }

    /// The client's command for `line`, split at spaces.
    pub fn client(&self, line: &str) -> Command {
        self.attached("slave", CLIENT_IP, line)
    }

    fn attached(&self, role: &str, ip: &str, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        command
            .args(words)
            .current_dir(self.dir.path())
            .env("LD_PRELOAD", longhaul().with_file_name("liblonghaul_preload.so"))
            .env(attach::ENV_SOCKET, self.dir.path().join("memif"))
            .env(attach::ENV_ROLE, role)
            .env(attach::ENV_IP, ip);
        command
    }

    /// Starts a server and waits until its client may start.
    ///
    /// # Errors
    /// The output, if it exits before, or is not ready in time.
    pub fn start(&self, server: &mut Command, ready: Ready) -> Result<Program, String> {
        let server = Program::start(server);
        match ready {
            Ready::Tcp(port) => {
                let id = server.id();
                pair::try_wait_until(server, "it listens", || pair::is_listened_on(id, port))
            }
            Ready::Attached => {
                let socket = self.dir.path().join("memif");
                let server = pair::try_wait_until(server, "it attaches", || socket.exists())?;
                pair::wait_until_asleep(server.id());
                Ok(server)
            }
        }
    }

    /// Runs a server and a client, command lines split at spaces; both must succeed, the client
    /// within `limit`.
    ///
    /// # Errors
    /// The output of both, if one of them fails or hangs.
    pub fn try_pair(
        &self,
        server: &str,
        client: &str,
        ready: Ready,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        let server = self.start(&mut self.server(server), ready)?;
        pair::end_both(server, &mut self.client(client), limit)
    }

    /// [`BackToBack::try_pair`] for a test.
    ///
    /// # Panics
    /// If one of them fails or hangs, with the output of both.
    pub fn pair(
        &self,
        server: &str,
        client: &str,
        ready: Ready,
        limit: Duration,
    ) -> (Finished, Finished) {
        self.try_pair(server, client, ready, limit).unwrap_or_else(|text| panic!("{text}"))
    }

    /// Runs one program alone; it must succeed.
    ///
    /// # Panics
    /// If it fails or hangs, with its output.
    pub fn alone(&self, line: &str) -> Finished {
        Program::start(&mut self.server(line)).succeed(LIMIT)
    }
}
