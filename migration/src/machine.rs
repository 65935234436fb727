//! QEMU processes with the guest.

use crate::guest::{Heard, LOW_END};
use crate::qmp::{Address, Qmp, QmpError};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use thiserror::Error;

const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time limit for QEMU to listen for QMP.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of QEMU's last words that are kept.
const WORDS: usize = 4096;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// QEMU's translator, which works everywhere.
    Tcg,
    /// The processor, through the kernel.
    Kvm,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accel::Tcg => "tcg",
            Accel::Kvm => "kvm",
        })
    }
}

impl FromStr for Accel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcg" => Ok(Accel::Tcg),
            "kvm" => Ok(Accel::Kvm),
            _ => Err("use tcg or kvm".to_owned()),
        }
    }
}

/// A QEMU that is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// What executes the guest.
    pub accel: Accel,
    /// Bytes of memory, in whole MiB.
    pub memory: u64,
    /// File with the guest's image.
    pub image: PathBuf,
    /// Socket for QMP.
    pub socket: PathBuf,
    /// It waits for a guest instead of starting its own.
    pub waits: bool,
}

impl Config {
    /// Its command line behind the program's name. Both ends have the same machine; a guest that
    /// fails ends it.
    pub fn arguments(&self) -> Vec<OsString> {
        let accel = match self.accel {
            Accel::Tcg => "tcg,thread=multi",
            Accel::Kvm => "kvm",
        };
        let mut socket = OsString::from("unix:");
        socket.push(doubled_commas(&self.socket));
        socket.push(",server=on,wait=off");
        let mut arguments: Vec<OsString> = Vec::new();
        let options = [
            ("-machine", format!("pc,max-ram-below-4g={LOW_END}")),
            ("-accel", accel.to_owned()),
            ("-cpu", "max".to_owned()),
            ("-m", format!("{}M", self.memory >> 20)),
            ("-display", "none".to_owned()),
            ("-chardev", "stdio,id=guest,signal=off".to_owned()),
            ("-serial", "chardev:guest".to_owned()),
        ];
        arguments.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
        for (option, value) in options {
            arguments.extend([option.into(), value.into()]);
        }
        arguments.extend(["-kernel".into(), self.image.clone().into_os_string()]);
        arguments.extend(["-qmp".into(), socket]);
        if self.waits {
            arguments.extend(["-incoming", "defer"].map(OsString::from));
        }
        arguments
    }
}

/// A path in an option of QEMU, where a comma ends a value and two are one.
fn doubled_commas(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Why a machine cannot be used.
#[derive(Debug, Error)]
pub enum MachineError {
    /// The process did not start.
    #[error("cannot run QEMU: {0}")]
    Start(io::Error),
    /// The process ended.
    #[error("QEMU ended ({0})")]
    Ended(String),
    /// No QMP.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The guest does not say what it should.
    #[error("the guest has not {what} within {} s", .limit.as_secs())]
    Silent {
        /// What it should have done.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
}

/// A QEMU process; killed when dropped.
pub struct Machine {
    child: Child,
    socket: PathBuf,
    orders: Option<ChildStdin>,
    heard: Arc<Mutex<Heard>>,
    words: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on what a pipe delivers, until it ends.
fn read_all(
    pipe: Option<impl Read + Send + 'static>,
    mut take: impl FnMut(&[u8]) + Send + 'static,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut bytes = [0; 4096];
        loop {
            match pipe.read(&mut bytes) {
                Ok(count @ 1..) => take(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    })
}

impl Machine {
    /// Starts `command`, QEMU with the arguments of a [`Config`] with this `socket`.
    ///
    /// # Errors
    /// If there is no such program.
    pub fn start(mut command: Command, socket: PathBuf) -> Result<Self, MachineError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(MachineError::Start)?;
        let (heard, words) = (Arc::<Mutex<Heard>>::default(), Arc::<Mutex<Vec<u8>>>::default());
        let (hears, keeps) = (Arc::clone(&heard), Arc::clone(&words));
        let readers = vec![
            read_all(child.stdout.take(), move |bytes| {
                locked(&hears).take(bytes, Instant::now());
            }),
            read_all(child.stderr.take(), move |bytes| {
                let mut words = locked(&keeps);
                words.extend_from_slice(bytes);
                let surplus = words.len().saturating_sub(WORDS);
                words.drain(..surplus);
            }),
        ];
        let orders = child.stdin.take();
        Ok(Machine { child, socket, orders, heard, words, readers })
    }

    /// Connects to QMP, once QEMU listens.
    ///
    /// # Errors
    /// If it ends before, or does not listen in time.
    pub fn connect(&mut self) -> Result<Qmp, MachineError> {
        let deadline = Instant::now() + LISTENS_WITHIN;
        loop {
            match Qmp::connect(&Address::Unix(self.socket.clone())) {
                Err(QmpError::Connect { .. }) if Instant::now() < deadline => sleep(LOOK_AGAIN),
                Err(error) => return Err(self.end().unwrap_or(MachineError::Qmp(error))),
                Ok(qmp) => return Ok(qmp),
            }
            if let Some(ended) = self.end() {
                return Err(ended);
            }
        }
    }

    /// How it ended and its last words, if it has ended.
    pub fn end(&mut self) -> Option<MachineError> {
        let status = self.child.try_wait().ok()??;
        // Nobody else has the pipes.
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let words = String::from_utf8_lossy(&locked(&self.words)).into_owned();
        let lines: Vec<&str> = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let said = match lines.last() {
            Some(_) => format!("{status}: {}", lines[lines.len().saturating_sub(3)..].join("; ")),
            None => status.to_string(),
        };
        Some(MachineError::Ended(said))
    }

    /// What the guest has said here.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        locked(&self.heard)
    }

    /// Sends the guest an order.
    ///
    /// # Errors
    /// If QEMU is gone.
    pub fn order(&mut self, order: u8) -> Result<(), MachineError> {
        let sent = match &mut self.orders {
            Some(pipe) => pipe.write_all(&[order]).and_then(|()| pipe.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        sent.map_err(|error| self.end().unwrap_or(MachineError::Start(error)))
    }

    /// Waits until what the guest has said `is_so`.
    ///
    /// # Errors
    /// If QEMU ends before, or the guest does not say it within `limit`.
    pub fn wait_until(
        &mut self,
        what: &'static str,
        limit: Duration,
        is_so: impl Fn(&Heard) -> bool,
    ) -> Result<(), MachineError> {
        let deadline = Instant::now() + limit;
        while !is_so(&self.heard()) {
            if let Some(ended) = self.end() {
                return Err(ended);
            }
            if Instant::now() > deadline {
                return Err(MachineError::Silent { what, limit });
            }
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_the_same_machine() {
        let config = Config {
            accel: Accel::Tcg,
            memory: 64 << 20,
            image: "/d/guest.bin".into(),
            socket: "/d/a,b.qmp".into(),
            waits: false,
        };
        let line = |config: &Config| config.arguments().join(&OsString::from(" "));
        let source = line(&config).into_string().unwrap();
        assert!(
            source.contains("-m 64M") && source.contains("unix:/d/a,,b.qmp,server"),
            "{source}"
        );
        let destination = line(&Config { waits: true, ..config }).into_string().unwrap();
        assert_eq!(destination, source + " -incoming defer");
        assert_eq!(Accel::Kvm.to_string().parse(), Ok(Accel::Kvm));
    }

    #[test]
    fn a_machine_that_ends_leaves_its_last_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one >&2; echo two >&2; exit 3"]);
        let mut machine = Machine::start(command, "/nonexistent/qmp".into()).unwrap();
        let error = machine.connect().err().unwrap().to_string();
        assert_eq!(error, "QEMU ended (exit status: 3: one; two)");
        assert!(machine.order(b'v').is_err());
    }
}
