//! Programs with a time limit, whose output appears in failure messages.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The `longhaul` in this executable's target directory: the release build for benches, and for
/// tests what `cargo xtask program` built.
///
/// # Panics
/// If it was not built.
pub fn longhaul() -> PathBuf {
    let this = std::env::current_exe().expect("the path of this test");
    let is_bench = this.ancestors().take(3).any(|dir| dir.ends_with("release"));
    let (place, build) = match is_bench {
        true => ("release", "build --release -p longhaul -p longhaul-preload"),
        false => ("test-program", "xtask program"),
    };
    let built = this
        .ancestors()
        .map(|dir| dir.join(place))
        .find(|dir| dir.join("longhaul").is_file() && dir.join("liblonghaul_preload.so").is_file());
    let Some(built) = built else {
        panic!("longhaul is missing: cargo {build}");
    };
    built.join("longhaul")
}

/// The `longhaul` built with DPDK, which `cargo xtask ci` and `dpdk` pass in `LONGHAUL_WITH_DPDK`.
pub fn longhaul_with_dpdk() -> Option<PathBuf> {
    std::env::var_os("LONGHAUL_WITH_DPDK").map(PathBuf::from)
}

/// The interpreter with the libraries that `./longhaul test` installs from PyPI, or else the
/// system's.
pub fn python() -> PathBuf {
    let built = longhaul();
    let installed = built.ancestors().nth(2).map(|target| target.join("python/bin/python"));
    installed.filter(|python| python.exists()).unwrap_or_else(|| "python3".into())
}

/// Fails the test if `program` is not installed.
///
/// # Panics
/// With the name of its Debian package.
pub fn require(program: &str, package: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    assert!(found, "{program} is not installed: apt-get install {package}");
}

/// A running program; killed when dropped.
pub struct Program {
    name: String,
    child: Child,
    /// Standard output, and standard error.
    output: [Collected; 2],
}

/// What a program has written to a pipe so far.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// A program that has exited.
#[derive(Debug)]
pub struct Finished {
    /// Its command line.
    pub name: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Program {
    /// Starts `command` and collects its output.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let name = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let output = [Collected::of(child.stdout.take()), Collected::of(child.stderr.take())];
        Program { name, child, output }
    }

    /// Starts `command` in its own process group, as an interactive shell does.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_group(command: &mut Command) -> Self {
        Self::start(command.process_group(0))
    }

    /// Emulates Ctrl-C at the terminal of a program started by [`Program::start_group`].
    pub fn interrupt_group(&self) {
        // SAFETY: kill has no preconditions; the child was not waited for, so its process id is not
        // reused.
        unsafe { libc::kill(-(self.id() as libc::pid_t), libc::SIGINT) };
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: libc::c_int) {
        kill(self.id(), signal);
    }

    /// `true` while it runs.
    ///
    /// # Panics
    /// If its state cannot be read.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until its output contains `text`.
    ///
    /// # Panics
    /// If it exits without, or does not write it within `limit`.
    pub fn wait_for_output(&mut self, text: &str, limit: Duration) {
        self.wait_until(&format!("it writes {text:?}"), limit, |program| {
            program.output.iter().any(|output| output.text().contains(text))
        });
    }

    /// Waits until it has installed a handler for `signal`, which otherwise just ends it.
    ///
    /// # Panics
    /// If it exits before, or does not within `limit`.
    pub fn wait_for_handler(&mut self, signal: libc::c_int, limit: Duration) {
        self.wait_until(&format!("it handles signal {signal}"), limit, |program| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", program.id()));
            let status = status.unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            caught.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
        });
    }

    fn wait_until(&mut self, what: &str, limit: Duration, is_so: impl Fn(&Program) -> bool) {
        let deadline = Instant::now() + limit;
        loop {
            // In this order: it may write and exit between the two.
            let runs = self.is_running();
            if !runs {
                self.output.iter_mut().for_each(Collected::finish);
            }
            if is_so(self) {
                return;
            }
            let [stdout, stderr] = self.output.each_ref().map(Collected::text);
            assert!(
                runs && Instant::now() < deadline,
                "{}: waited until {what}\n--- stdout\n{stdout}\n--- stderr\n{stderr}",
                self.name
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it has exited.
    ///
    /// # Panics
    /// If it runs longer than `limit`.
    pub fn wait(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.is_running() {
            assert!(Instant::now() < deadline, "{} ran longer than {limit:?}", self.name);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it exits, with any status.
    ///
    /// # Panics
    /// If it runs longer than `limit`.
    pub fn finish(self, limit: Duration) -> Finished {
        self.end_within(limit).unwrap_or_else(|hung| panic!("{hung}"))
    }

    /// Waits until it exits, with any status.
    ///
    /// # Errors
    /// Its output so far, if it runs longer than `limit`; it is killed.
    ///
    /// # Panics
    /// If its state cannot be read.
    pub fn end_within(mut self, limit: Duration) -> Result<Finished, String> {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() > deadline => break None,
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                Err(e) => panic!("{}: {e}", self.name),
            }
        };
        if status.is_none() {
            // It may have exited in the meantime.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        self.output.iter_mut().for_each(Collected::finish);
        let [stdout, stderr] = self.output.each_ref().map(Collected::text);
        let name = self.name.clone();
        match status {
            Some(status) => Ok(Finished { name, status, stdout, stderr }),
            None => Err(format!(
                "{name} ran longer than {limit:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
            )),
        }
    }

    /// Waits until it exits, which must be a success.
    ///
    /// # Panics
    /// If it fails or runs longer than `limit`.
    pub fn succeed(self, limit: Duration) -> Finished {
        let finished = self.finish(limit);
        assert!(finished.status.success(), "{finished}");
        finished
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has exited, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finished { name, status, stdout, stderr } = self;
        write!(f, "{name}: {status}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// Sends a signal to process `id`, which may have ended.
pub fn kill(id: u32, signal: libc::c_int) {
    // SAFETY: kill has no preconditions.
    unsafe { libc::kill(id as libc::pid_t, signal) };
}

/// Command lines of the running processes in `group`.
pub fn members_of_group(group: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let living = processes.filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may contain anything; state, parent and group follow.
        let Some((_, rest)) = stat.rsplit_once(')') else { return false };
        let mut columns = rest.split_whitespace();
        let state = columns.next().unwrap_or_default();
        state != "Z" && columns.nth(1) == Some(&group.to_string())
    });
    living
        .map(|entry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).replace('\0', " ")
        })
        .collect()
}

impl Collected {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let kept = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut some = [0; 16 << 10];
            // Output before an error is shown.
            loop {
                let count = match pipe.read(&mut some) {
                    Ok(count @ 1..) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    _ => return,
                };
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&some[..count]);
            }
        });
        Collected { bytes, reader: Some(reader) }
    }

    /// Waits until nobody can write to the pipe any more.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            // It does not panic.
            let _ = reader.join();
        }
    }

    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
