//! A lab's daemon as a child of this process.

use crate::daemon::READY;
use crate::dir::LabDir;
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
    /// Until the process that started it ends, however it ends.
    OfParent,
}

/// A lab that this process has started; stopped when dropped, unless detached.
pub struct Lab {
    dir: LabDir,
    child: Option<Child>,
}

impl Lab {
    /// Starts the daemon, which is this program as `lab serve`, and waits until its hosts can be
    /// used.
    ///
    /// # Errors
    /// Why it is not up.
    pub fn start(spec: &Spec, lifetime: Lifetime) -> Result<Self, Error> {
        let dir = LabDir::of(&spec.name)?;
        let program = std::env::current_exe().map_err(Error::FindProgram)?;
        let mut command = Command::new(program);
        command.args(["lab", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        match lifetime {
            Lifetime::OfParent => die_with_parent(&mut command),
            // A group of its own: the terminal's Ctrl-C is not for it.
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

    /// Leaves it running.
    pub fn detach(mut self) {
        self.child = None;
    }

    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // The child was not waited for yet, so that its number is still its own.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        let deadline = Instant::now() + ENDS_WITHIN;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                // There is nothing to do about a child that cannot be killed.
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

/// A daemon that is told to stop and runs for longer is stuck.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Has the kernel kill the child when this process goes, however it goes.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}
