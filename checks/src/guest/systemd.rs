//! A guest whose first process is systemd, from this machine's packages, and its services.

use super::{Guest, GuestConfig, programs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Debian's packages that it consists of, beside the libraries that its programs need.
const PACKAGES: [&str; 2] = ["systemd", "libnss-systemd"];
/// The first process.
const SYSTEMD: &str = "/lib/systemd/systemd";
/// Parts of the packages that services do without.
const LEFT_OUT: [&str; 3] = ["/usr/share/", "/usr/lib/systemd/catalog/", "/usr/lib/systemd/user/"];
/// Units that need a bus or a terminal.
const MASKED: [&str; 3] = ["systemd-logind.service", "getty.target", "systemd-firstboot.service"];
/// Time limit of a command or a change of state; a service takes seconds.
const LIMIT: Duration = Duration::from_secs(240);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// This machine has no systemd to put into a guest.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("dpkg lists no files of package {0}: apt-get install {0}")]
pub struct NoSystemd(&'static str);

impl GuestConfig {
    /// Makes systemd the first process, with this machine's users of the system alone.
    ///
    /// # Errors
    /// If it is not installed.
    ///
    /// # Panics
    /// If the package `mount` is not installed.
    pub fn systemd(mut self) -> Result<Self, NoSystemd> {
        for package in PACKAGES {
            self.installed.extend(contents(package).ok_or(NoSystemd(package))?);
        }
        // systemd names these by path.
        for program in ["mount", "umount"] {
            self.moved.push((format!("/bin/{program}"), programs::find(program, "mount")));
        }
        for (path, content) in [
            ("/etc/machine-id", "6c6f6e676861756c0000000000000001\n"),
            ("/etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
            ("/etc/group", "root:x:0:\n"),
            ("/etc/nsswitch.conf", "passwd: files systemd\ngroup: files systemd\n"),
        ] {
            self.files.push((path.to_owned(), content.into()));
        }
        for unit in MASKED {
            self.links.push((format!("/etc/systemd/system/{unit}"), "/dev/null".to_owned()));
        }
        self.first = Some(SYSTEMD.into());
        let words = ["systemd.unit=multi-user.target", "systemd.getty_auto=no"];
        self.kernel_arguments.extend(words.map(str::to_owned));
        Ok(self)
    }
}

/// The files of an installed package.
fn contents(package: &str) -> Option<Vec<PathBuf>> {
    let listed = Command::new("dpkg").args(["-L", package]).output().ok()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_wanted = |path: &&str| !LEFT_OUT.iter().any(|left_out| path.starts_with(left_out));
    let paths = text.lines().filter(is_wanted).map(PathBuf::from);
    // Minimal installations leave some out.
    let paths = paths.filter(|path| path.symlink_metadata().is_ok() && path != Path::new("/."));
    listed.status.success().then(|| paths.collect())
}

/// A unit of a guest with systemd.
#[derive(Clone, Copy)]
pub struct Service<'a> {
    guest: &'a Guest,
    unit: &'a str,
}

impl<'a> Service<'a> {
    /// The unit with this name.
    pub fn new(guest: &'a Guest, unit: &'a str) -> Self {
        Service { guest, unit }
    }

    /// Runs `systemctl VERB`, which must succeed.
    ///
    /// # Panics
    /// If it fails, with the unit's journal.
    pub fn order(&self, verb: &str) {
        let done = self.guest.run(&format!("systemctl {verb} {}", self.unit), LIMIT);
        assert!(done.status.success(), "{done}\n{}", self.journal());
    }

    /// Runs `systemctl VERB`, which must fail.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn refuse(&self, verb: &str) {
        let done = self.guest.run(&format!("systemctl {verb} {}", self.unit), LIMIT);
        assert!(!done.status.success(), "{done}\n{}", self.journal());
    }

    /// A property, as `systemctl show` prints it.
    ///
    /// # Panics
    /// If systemd does not answer.
    pub fn property(&self, name: &str) -> String {
        let shown = format!("systemctl show --value -p {name} {}", self.unit);
        self.guest.succeed(&shown, LIMIT).stdout.trim().to_owned()
    }

    /// PID of the main process; 0 without one.
    ///
    /// # Panics
    /// If systemd does not answer.
    pub fn main_pid(&self) -> u32 {
        self.property("MainPID").parse().expect("a PID")
    }

    /// PIDs of all its processes.
    ///
    /// # Panics
    /// If the guest does not answer.
    pub fn pids(&self) -> Vec<u32> {
        let group = self.property("ControlGroup");
        let listed = self.guest.run(&format!("cat '/sys/fs/cgroup{group}/cgroup.procs'"), LIMIT);
        if group.is_empty() {
            return Vec::new();
        }
        listed.stdout.lines().map(|line| line.parse().expect("a PID")).collect()
    }

    /// Waits until `is_so` of the unit.
    ///
    /// # Panics
    /// If that takes too long, with `what` and the unit's journal.
    pub fn wait(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_so(self) {
            let status = || self.guest.run(&format!("systemctl status {}", self.unit), LIMIT);
            assert!(Instant::now() < deadline, "{what}\n{}\n{}", status(), self.journal());
            sleep(LOOK_AGAIN);
        }
    }

    /// What its processes and systemd wrote about it.
    ///
    /// # Panics
    /// If the guest does not answer.
    pub fn journal(&self) -> String {
        let read = format!("journalctl --sync; journalctl -o cat -u {}", self.unit);
        self.guest.run(&read, LIMIT).stdout
    }

    /// What its processes alone wrote.
    ///
    /// # Panics
    /// If the guest does not answer.
    pub fn said(&self) -> String {
        let read = format!("journalctl --sync; journalctl -o cat _SYSTEMD_UNIT={}", self.unit);
        self.guest.run(&read, LIMIT).stdout
    }
}
