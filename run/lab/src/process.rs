//! A lab's daemon as a child of this process.

use crate::daemon::READY;
use crate::dir::{LabDir, last_words};
use crate::error::Error;
use crate::spec::Spec;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a lab lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until `longhaul lab down`.
    UntilDown,
    /// Until the process that started it ends, even by a signal.
    OfParent,
    /// As [`Lifetime::OfParent`], but Ctrl-C at the terminal reaches only the process that started
    /// it.
    OfParentAlone,
}

/// A lab that this process has started. Dropping it stops the lab, unless it is detached.
pub struct Lab {
    dir: LabDir,
    child: Option<Child>,
}

impl Lab {
    /// Starts the daemon, which is this executable as `lab serve`, and waits until the hosts can be
    /// used.
    ///
    /// # Errors
    /// The reason why it is not up.
    pub fn start(spec: &Spec, lifetime: Lifetime) -> Result<Self, Error> {
        if spec.wan_rate.is_some() && !spec.accelerate.has_transport() {
            return Err(Error::WanRateWithoutTransport);
        }
        let dir = LabDir::of(&spec.name)?;
        let program = std::env::current_exe().map_err(Error::FindProgram)?;
        let mut command = Command::new(program);
        command.args(["lab", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        match lifetime {
            Lifetime::OfParent => die_with_parent(&mut command),
            Lifetime::OfParentAlone => die_with_parent(command.process_group(0)),
            // Its own process group, so that Ctrl-C in the terminal does not reach it.
            Lifetime::UntilDown => drop(command.process_group(0)),
        }
        let mut child = command.spawn().map_err(Error::Start)?;
        let text = serde_json::to_string(spec).map_err(Error::Describe)?;
        let told = child.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
        let mut answer = String::new();
        let heard = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut answer));
        let lab = Lab { dir, child: Some(child) };
        match (told, heard, answer.trim_end()) {
            (Some(Ok(())), Some(Ok(_)), READY) => Ok(lab),
            (_, _, "") => Err(Error::EndedEarly(lab.dir.last_words())),
            (_, _, refusal) => Err(Error::Refused(refusal.to_owned())),
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &LabDir {
        &self.dir
    }

    /// Stops the lab. Returns the last lines of its log, which is deleted.
    pub fn end(mut self) -> Option<String> {
        let log = self.dir.open_log();
        self.stop();
        log.and_then(last_words)
    }

    /// Leaves it running.
    pub fn detach(mut self) {
        self.child = None;
    }

    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // The child has not been waited for, so its pid cannot have been reused.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let deadline = Instant::now() + ENDS_WITHIN;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // A failure to kill the child is ignored.
                let _ = child.kill().and_then(|()| child.wait());
                self.dir.remove();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A daemon that runs for longer after it was told to stop is stuck.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Makes the kernel kill the child when this process ends, even by a signal.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}
