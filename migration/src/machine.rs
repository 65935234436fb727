//! QEMU processes with the guest.

use crate::disk::DISK;
use crate::guest::{Heard, LOW_END};
use crate::qmp::{Address, Qmp, QmpError, printable};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Polling interval for what QEMU does.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for a QEMU that closes its sockets to end.
pub const ENDS_WITHIN: Duration = Duration::from_millis(500);
/// Time limit for QEMU to listen for QMP.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// Bytes of QEMU's standard error that are kept.
const STDERR_KEPT: usize = 4096;
/// Characters of it that an error quotes.
const QUOTED: usize = 1000;

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

/// Configuration of a QEMU process.
#[derive(Clone, Debug)]
pub struct Config {
    /// What executes the guest.
    pub accel: Accel,
    /// Bytes of memory, in whole MiB.
    pub memory: u64,
    /// File with the guest's image.
    pub image: PathBuf,
    /// Raw image of a disk, which the guest does not see.
    pub disk: Option<PathBuf>,
    /// Socket for QMP.
    pub socket: PathBuf,
    /// It waits for a guest instead of starting its own.
    pub waits: bool,
}

impl Config {
    /// Its command line behind the program's name. Both ends use the same machine type; -no-reboot
    /// ends QEMU on a triple fault.
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
        if let Some(disk) = &self.disk {
            // Without a device: the firmware would drive it, in memory that the guest checks.
            let mut file = OsString::from(format!("raw,node-name={DISK},file.driver=file"));
            file.push(",file.filename=");
            file.push(doubled_commas(disk));
            arguments.extend(["-blockdev".into(), file]);
        }
        arguments.extend(["-qmp".into(), socket]);
        if self.waits {
            arguments.extend(["-incoming", "defer"].map(OsString::from));
        }
        arguments
    }
}

/// A path in an option of QEMU, where a comma must be doubled.
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
    /// The guest cannot be told anything.
    #[error("cannot send the guest an order: {0}")]
    Order(io::Error),
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

/// A QEMU process in a process group of its own, which is killed when it is dropped: Ctrl-C at the
/// terminal is for the driver.
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
        command.process_group(0);
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
                let surplus = words.len().saturating_sub(STDERR_KEPT);
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
                Err(QmpError::Connect { .. } | QmpError::NoGreeting(_))
                    if Instant::now() < deadline =>
                {
                    sleep(POLL_INTERVAL);
                }
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
        let leader = Pid::from_child(&self.child);
        // Without waiting for it, so that its number is not reused.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(ended) = waitid(WaitId::Pid(leader), options) {
            ended?;
            // A wrapper's children have the pipes as well; there may be none.
            let _ = kill_process_group(leader, Signal::KILL);
        }
        let status = self.child.try_wait().ok()??;
        self.readers.drain(..).for_each(|reader| drop(reader.join()));
        let words = String::from_utf8_lossy(&locked(&self.words)).into_owned();
        let lines: Vec<&str> = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        let said = match lines.last() {
            Some(_) => format!("{status}: {}", lines[lines.len().saturating_sub(3)..].join("; ")),
            None => status.to_string(),
        };
        Some(MachineError::Ended(printable(&said, QUOTED)))
    }

    /// Like [`Machine::end`], for a QEMU that may end within `limit`.
    pub fn end_within(&mut self, limit: Duration) -> Option<MachineError> {
        let deadline = Instant::now() + limit;
        loop {
            let end = self.end();
            if end.is_some() || Instant::now() > deadline {
                return end;
            }
            sleep(POLL_INTERVAL);
        }
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
        sent.map_err(|error| self.end_within(ENDS_WITHIN).unwrap_or(MachineError::Order(error)))
    }

    /// Waits until what the guest has said `is_so`; false if `stop` becomes true before.
    ///
    /// # Errors
    /// If QEMU ends before, or the guest does not say it within `limit`.
    pub fn wait_until(
        &mut self,
        what: &'static str,
        limit: Duration,
        stop: &AtomicBool,
        is_so: impl Fn(&Heard) -> bool,
    ) -> Result<bool, MachineError> {
        let deadline = Instant::now() + limit;
        while !is_so(&self.heard()) {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if let Some(ended) = self.end() {
                return Err(ended);
            }
            if Instant::now() > deadline {
                return Err(MachineError::Silent { what, limit });
            }
            sleep(POLL_INTERVAL);
        }
        Ok(true)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // One that was waited for has no group any more, and its number may be another's.
        if self.end().is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
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
            disk: None,
            socket: "/d/a,b.qmp".into(),
            waits: false,
        };
        let line = |config: &Config| config.arguments().join(&OsString::from(" "));
        let source = line(&config).into_string().unwrap();
        assert!(
            source.contains("-m 64M") && source.contains("unix:/d/a,,b.qmp,server"),
            "{source}"
        );
        let destination = line(&Config { waits: true, ..config.clone() }).into_string().unwrap();
        assert_eq!(destination, source + " -incoming defer");
        let with_disk = line(&Config { disk: Some("/d/a,b.img".into()), ..config });
        assert!(with_disk.into_string().unwrap().contains("file.filename=/d/a,,b.img -qmp"));
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

    #[test]
    fn a_wrapper_that_ends_before_its_children_does_not_keep_us() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 3600 & echo done >&2; exit 3"]);
        let mut machine = Machine::start(command, "/nonexistent/qmp".into()).unwrap();
        let ended = machine.end_within(Duration::from_secs(60)).unwrap().to_string();
        assert_eq!(ended, "QEMU ended (exit status: 3: done)");
    }
}
