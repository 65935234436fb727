//! DPDK's `dpdk-testpmd`, without hugepages and without the machine's network cards.

use crate::program::Finished;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PROGRAM: &str = "dpdk-testpmd";
const PROMPT: &str = "testpmd> ";
const LIMIT: Duration = Duration::from_secs(240);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A running testpmd at its prompt; killed when dropped.
pub struct Testpmd {
    child: Child,
    stdin: ChildStdin,
    output: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    /// Bytes of output already searched.
    seen: usize,
}

impl Testpmd {
    /// Reason to skip: testpmd is not installed. `None` if it is.
    pub fn missing() -> Option<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|dir| dir.join(PROGRAM).is_file());
        (!found).then(|| {
            format!("{PROGRAM} is not installed: apt-get install dpdk-dev librte-net-memif23")
        })
    }

    /// Starts testpmd with these virtual devices and arguments, and waits for its prompt.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(devices: &[String], arguments: &[&str]) -> Self {
        // Its prompt bypasses the stdio buffer that holds the rest of its output.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", PROGRAM]);
        command.args(["--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry"]);
        // Both of its threads on any processor: by default each is bound to one.
        command.arg(format!("--lcores=(0,1)@(0-{})", processors() - 1));
        command.args(devices.iter().map(|device| format!("--vdev={device}")));
        command.args(["--", "-i", "--total-num-mbufs=8192"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{PROGRAM}: {e}"));
        let output = Arc::default();
        let readers = vec![
            collect(child.stdout.take().expect("piped"), &output),
            collect(child.stderr.take().expect("piped"), &output),
        ];
        let stdin = child.stdin.take().expect("piped");
        let mut testpmd = Testpmd { child, stdin, output, readers, seen: 0 };
        testpmd.wait_for(PROMPT);
        testpmd
    }

    /// Runs a command and returns its output.
    ///
    /// # Panics
    /// If testpmd has exited, or does not return to its prompt.
    pub fn command(&mut self, text: &str) -> String {
        writeln!(self.stdin, "{text}").unwrap_or_else(|e| panic!("{PROGRAM} has gone: {e}"));
        // It echoes the command after its prompt.
        self.wait_for(text);
        self.wait_for(PROMPT)
    }

    fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(at) = output[self.seen..].find(text) {
                let from = self.seen;
                self.seen += at + text.len();
                return output[from..from + at].to_owned();
            }
            assert!(Instant::now() < deadline, "{PROGRAM} does not say {text:?}:\n{output}");
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Quits testpmd and waits for its exit.
    ///
    /// # Panics
    /// When it does not.
    pub fn quit(mut self) -> Finished {
        // It may have exited already.
        let _ = writeln!(self.stdin, "quit");
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => thread::sleep(LOOK_AGAIN),
                Err(e) => panic!("{PROGRAM}: {e}"),
            }
            assert!(Instant::now() < deadline, "{PROGRAM} does not end");
        };
        for reader in self.readers.drain(..) {
            reader.join().expect("a reader");
        }
        let stdout = self.output.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Finished { name: PROGRAM.to_owned(), status, stdout, stderr: String::new() }
    }

    /// Kills it with SIGKILL, without a chance to disconnect.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Fails if it has exited, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn collect(mut pipe: impl Read + Send + 'static, output: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]);
            output.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
        }
    })
}
