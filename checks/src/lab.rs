//! A lab for one test.

use crate::pair::{self, LIMIT, Ready};
use crate::program::{Finished, Program, longhaul};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A private directory for all files of `longhaul` at run time: no test sees the labs of another or
/// of a user, and leftovers are evident. Removed when dropped.
pub struct RuntimeDir {
    path: PathBuf,
}

impl RuntimeDir {
    /// Creates an empty directory. Its path is short, because socket paths are.
    ///
    /// # Panics
    /// If it cannot be created.
    #[expect(clippy::new_without_default, reason = "creates a directory")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/tmp/longhaul-check-{}-{number}", std::process::id()));
        // A killed run with the same process id may have left one.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        RuntimeDir { path }
    }

    /// `longhaul` with `arguments`, split at spaces.
    pub fn longhaul(&self, arguments: &str) -> Command {
        let mut command = Command::new(longhaul());
        command
            .args(arguments.split_whitespace())
            .env("XDG_RUNTIME_DIR", &self.path)
            .env_remove("LD_PRELOAD");
        command
    }

    /// Like `longhaul`, run inside the directory.
    pub fn longhaul_inside(&self, arguments: &str) -> Command {
        let mut command = self.longhaul(arguments);
        command.current_dir(&self.path);
        command
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the lab called `name`.
    pub fn of_lab(&self, name: &str) -> PathBuf {
        self.path.join("longhaul").join(name)
    }

    /// Everything in it, except the empty directory that labs share.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        list(&self.path, &mut found);
        found.retain(|path| *path != self.path.join("longhaul"));
        found
    }
}

fn list(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, found);
        }
        found.push(path);
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        // Leftovers are in /tmp.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A lab, removed when dropped.
///
/// Only one runs on the machine at a time: concurrent labs starve each other on few cores. A test
/// that holds one must not request a second.
pub struct TestLab {
    runtime: RuntimeDir,
    /// Released last.
    _turn: Turn,
}

/// The name of a [`TestLab`].
pub(crate) const NAME: &str = "check";

impl TestLab {
    /// Runs `longhaul lab up` with `arguments`, split at spaces. Unless they say otherwise, hosts
    /// share this machine's network, so that programs meet at 127.0.0.1 also where there are no
    /// namespaces.
    ///
    /// # Panics
    /// If the lab does not come up.
    pub fn up(arguments: &str) -> Self {
        Self::up_with(arguments.split_whitespace())
    }

    /// Like [`TestLab::up`], with arguments that may contain spaces, such as rules.
    ///
    /// # Panics
    /// Like [`TestLab::up`].
    pub fn up_with(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let turn = Turn::take();
        let lab = TestLab { runtime: RuntimeDir::new(), _turn: turn };
        lab.start(arguments);
        lab
    }

    /// Brings the lab up again after it went down.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn up_again(&self, arguments: &str) {
        self.start(arguments.split_whitespace());
    }

    fn start(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        let mut command = self.runtime.longhaul(&format!("lab up --name {NAME}"));
        command.args(arguments);
        let has_own = |option: &OsStr| option == "--network" || option == "--back-to-back";
        if !command.get_args().any(has_own) {
            command.args(["--network", "none"]);
        }
        Program::start(&mut command).succeed(LIMIT);
    }

    /// Directory of its files.
    pub fn runtime(&self) -> &RuntimeDir {
        &self.runtime
    }

    /// Command to run a line, split at spaces, on `host`.
    pub fn command(&self, host: &str, line: &str) -> Command {
        self.runtime.longhaul(&format!("exec --lab {NAME} --host {host} -- {line}"))
    }

    /// Starts a command line, split at spaces, on `host`.
    pub fn exec(&self, host: &str, line: &str) -> Program {
        Program::start(&mut self.command(host, line))
    }

    /// Waits until `server`, on host b, accepts connections.
    ///
    /// # Panics
    /// If it does not in time, with the server's output.
    pub fn wait_for(&self, server: Program, ready: Ready) -> Program {
        match ready {
            Ready::Tcp(port) => pair::wait_for_listener(server, port),
            Ready::Attached => {
                let server = pair::wait_until(server, "it attaches", || {
                    self.status()["hosts"][1]["programs"] != 0
                });
                pair::wait_until_asleep(server.id());
                server
            }
        }
    }

    /// Starts `server` on host b and then `client` on host a.
    ///
    /// # Panics
    /// If the server never listens.
    pub fn start_pair(&self, server: &str, client: &str, ready: Ready) -> (Program, Program) {
        let server = self.wait_for(self.exec("b", server), ready);
        (server, self.exec("a", client))
    }

    /// Runs `server` on host b and then `client` on host a; both must succeed within `limit`.
    ///
    /// # Panics
    /// If one of them fails, with the output of both.
    pub fn pair(
        &self,
        server: &str,
        client: &str,
        ready: Ready,
        limit: Duration,
    ) -> (Finished, Finished) {
        let server = self.wait_for(self.exec("b", server), ready);
        pair::end_both(server, &mut self.command("a", client), limit)
            .unwrap_or_else(|text| panic!("{text}"))
    }

    /// Parsed output of `longhaul lab status --json`.
    ///
    /// # Panics
    /// If there is none.
    pub fn status(&self) -> serde_json::Value {
        let mut command = self.runtime.longhaul(&format!("lab status --json --name {NAME}"));
        let status = Program::start(&mut command).succeed(LIMIT);
        serde_json::from_str(&status.stdout).unwrap_or_else(|e| panic!("{e} in {}", status.stdout))
    }

    /// Frames that the fibre lost in `direction` (0: from host a to host b).
    ///
    /// # Panics
    /// If the status lacks it.
    pub fn losses(&self, direction: usize) -> u64 {
        let status = self.status();
        status["link"][direction]["drops"]["loss"]
            .as_u64()
            .unwrap_or_else(|| panic!("no losses in {status}"))
    }

    /// Kills the lab's daemon with SIGKILL.
    ///
    /// # Panics
    /// If the lab is not up.
    pub fn kill(&self) {
        let pid = self.status()["pid"].as_u64().expect("a process id");
        crate::kill(pid as u32, libc::SIGKILL);
        let deadline = Instant::now() + LIMIT;
        while Path::new(&format!("/proc/{pid}/fd/0")).exists() {
            assert!(Instant::now() < deadline, "the daemon, {pid}, survives SIGKILL");
            sleep(LOOK_AGAIN);
        }
    }

    /// Takes the lab down.
    ///
    /// # Panics
    /// If `lab down` fails.
    pub fn down(&self) {
        Program::start(&mut self.runtime.longhaul(&format!("lab down --name {NAME}")))
            .succeed(LIMIT);
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        // It may be down already.
        let _ = self.runtime.longhaul(&format!("lab down --name {NAME}")).output();
    }
}

/// The right to load the machine; other test processes wait for it.
pub struct Turn {
    /// Released with the file.
    _lock: File,
}

impl Turn {
    /// Waits for it.
    ///
    /// # Panics
    /// If the lock file cannot be used.
    pub fn take() -> Self {
        let path = longhaul().with_file_name("longhaul-checks.lock");
        let lock = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        lock.lock().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Turn { _lock: lock }
    }
}
