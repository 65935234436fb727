//! SPDK's programs as target and host: `nvmf_tgt` and `bdevperf` of a built SPDK.

mod configuration;
mod report;

pub use configuration::{Backing, Fabric, Listener, Subsystem};
pub use report::Report;

use crate::problem::Problem;
use longhaul_campaign::{Ended, Group, Interruption, Process};
use longhaul_host::placement::list_text;
use serde_json::Value;
use std::fmt;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of looks at a program.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time for a program to end after it was interrupted.
const END_WITHIN: Duration = Duration::from_secs(20);
/// Huge pages that a program needs beside the contents of its namespaces, in MiB.
const OWN_MEMORY_MIB: u64 = 512;
/// What its programs are without, and how to provide it.
const BUILD: &str = "give the directory of a built SPDK (docs/storage.md, section SPDK)";

/// The programs that serve and load storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Longhaul's own, in this process.
    #[default]
    Longhaul,
    /// Those of a built SPDK in this directory.
    Spdk(PathBuf),
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "longhaul" => Ok(Engine::Longhaul),
            Some(("spdk", dir)) if !dir.is_empty() => Ok(Engine::Spdk(dir.into())),
            _ => Err("longhaul, or spdk=DIR with the directory of a built SPDK, is needed".into()),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Longhaul => f.write_str("longhaul"),
            Engine::Spdk(dir) => write!(f, "spdk={}", dir.display()),
        }
    }
}

/// A program of SPDK, its configuration and where it runs.
pub struct Job<'a> {
    /// Directory of the built SPDK.
    pub dir: &'a Path,
    /// The program, below [`Job::dir`].
    pub program: &'static str,
    /// Its configuration: `subsystems` and their methods.
    pub configuration: Value,
    /// Processors of its reactors.
    pub processors: Vec<usize>,
    /// Bytes of its namespaces in memory.
    pub memory: u64,
    /// Its own options.
    pub options: Vec<String>,
}

/// A running program of SPDK, with the directory of its configuration.
pub struct Running {
    process: Process,
    _place: Place,
}

impl Job<'_> {
    /// Starts the program.
    ///
    /// # Errors
    /// If it is not there, or cannot start, or the machine lacks huge pages.
    pub fn start(self) -> Result<Running, Problem> {
        let program = self.dir.join(self.program);
        if !program.is_file() {
            return Err(Problem::new(format!("{} is not there", program.display()), BUILD));
        }
        let memory_mib = self.memory.div_ceil(1 << 20) + OWN_MEMORY_MIB;
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        check_huge_pages(&meminfo, memory_mib)?;
        let place = Place::create()?;
        let file = place.0.join("configuration.json");
        fs::write(&file, self.configuration.to_string())
            .map_err(|error| Problem::io("write", &file, &error))?;
        let mut command = Command::new(&program);
        command
            .args(["--no-pci", "--disable-cpumask-locks", "--json"])
            .arg(&file)
            .arg("--rpc-socket")
            .arg(place.0.join("rpc"))
            .args(["--cpumask", &format!("[{}]", list_text(&self.processors))])
            .args(["--mem-size", &memory_mib.to_string()])
            .args(&self.options);
        // A build with shared libraries does not find its own.
        let mut path = self.dir.join("build/lib").into_os_string();
        if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(others);
        }
        command.env("LD_LIBRARY_PATH", path);
        let name = self.program.rsplit('/').next().unwrap_or_default().to_owned();
        let process = Process::start(name, command, Interruption::Signal, Group::Callers)
            .map_err(|error| Problem::io("start", &program, &error))?;
        Ok(Running { process, _place: place })
    }
}

impl Running {
    /// Waits until it ends, or says `text` if that is given; interrupts it once `stop` is set.
    /// `true` if it has ended.
    pub fn wait(&mut self, text: Option<&str>, stop: &AtomicBool) -> bool {
        let mut kill_at = None;
        loop {
            if self.process.status().is_some() {
                return true;
            }
            if text.is_some_and(|text| self.process.says(text)) {
                return false;
            }
            if stop.load(Ordering::Relaxed) && kill_at.is_none() {
                self.process.interrupt();
                kill_at = Some(Instant::now() + END_WITHIN);
            }
            if kill_at.is_some_and(|at| Instant::now() > at) {
                return true;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// What it printed; kills it if it still runs.
    pub fn end(self) -> Ended {
        self.process.end()
    }
}

/// What made a program of SPDK fail: its own lines of errors, and what is known to cure them.
pub fn failure(ended: &Ended) -> Problem {
    let lines = || ended.stderr.lines().chain(ended.stdout.lines()).map(str::trim);
    let error = lines()
        .find_map(|line| line.split_once("*ERROR*: ").map(|(_, error)| error))
        .or_else(|| lines().find(|line| line.starts_with("EAL: ")))
        .or_else(|| ended.last_words())
        .unwrap_or("it printed nothing");
    let cause = format!("{} of SPDK failed ({}): {error}", ended.name, ended.how());
    let says = |text: &str| lines().any(|line| line.contains(text));
    if says("error while loading shared libraries") {
        Problem::new(cause, BUILD)
    } else if says("Cannot get hugepage information") {
        let cure = "mount huge pages: mount -t hugetlbfs none /dev/hugepages";
        Problem::new(cause, cure)
    } else if says("DPDK") && says("not supported") {
        Problem::new(cause, "build SPDK against a DPDK that it supports")
    } else if error.contains("onnect") {
        let cure = "see whether a target serves that name there, over that --fabric";
        Problem::new(cause, cure)
    } else {
        Problem::plain(cause)
    }
}

/// Checks that `meminfo` has so many MiB of free huge pages.
fn check_huge_pages(meminfo: &str, needed_mib: u64) -> Result<(), Problem> {
    let value = |key: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let (total, free, kib) =
        (value("HugePages_Total:"), value("HugePages_Free:"), value("Hugepagesize:").max(1));
    let free_mib = free * kib / 1024;
    if free_mib >= needed_mib {
        return Ok(());
    }
    let missing = ((needed_mib - free_mib) * 1024).div_ceil(kib);
    let cause = format!("SPDK needs {needed_mib} MiB of huge pages, and {free_mib} MiB are free");
    Err(Problem::new(
        cause,
        format!("as root: sysctl vm.nr_hugepages={}; or use less memory:", total + missing),
    ))
}

/// A directory of this process that nobody else may use; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn create() -> Result<Self, Problem> {
        let path = std::env::temp_dir().join(format!("longhaul-spdk-{}", std::process::id()));
        let mut builder = DirBuilder::new();
        builder.mode(0o700).create(&path).map_err(|error| Problem::io("create", &path, &error))?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What remains is a few hundred bytes of a temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    #[test]
    fn an_engine_is_ours_or_a_directory() {
        assert_eq!("longhaul".parse(), Ok(Engine::Longhaul));
        let spdk = Engine::Spdk("/opt/spdk".into());
        assert_eq!(
            ("spdk=/opt/spdk".parse(), spdk.to_string()),
            (Ok(spdk), "spdk=/opt/spdk".into())
        );
        for text in ["", "spdk", "spdk=", "fio=/usr"] {
            assert!(text.parse::<Engine>().is_err(), "{text}");
        }
    }

    #[test]
    fn missing_huge_pages_are_counted() {
        let meminfo =
            "HugePages_Total:     100\nHugePages_Free:       50\nHugepagesize:   2048 kB\n";
        check_huge_pages(meminfo, 100).unwrap();
        let problem = check_huge_pages(meminfo, 768).unwrap_err().to_string();
        assert!(problem.contains("needs 768 MiB of huge pages, and 100 MiB are free"), "{problem}");
        assert!(problem.contains("vm.nr_hugepages=434"), "{problem}");
        check_huge_pages("", 1).unwrap_err();
    }

    #[test]
    fn a_failure_is_told_by_its_first_error() {
        let ended = Ended {
            name: "nvmf_tgt".to_owned(),
            status: Some(ExitStatus::from_raw(1 << 8)),
            stdout: String::new(),
            stderr: "[t] pci.c: 57:init: *ERROR*: DPDK LTS version 22.11.11 not supported.\n\
                     [t] app.c: 387:setup: *ERROR*: Unable to initialize SPDK env\n"
                .to_owned(),
        };
        assert_eq!(
            failure(&ended).to_string(),
            "nvmf_tgt of SPDK failed (exit status: 1): DPDK LTS version 22.11.11 not supported.; \
             build SPDK against a DPDK that it supports"
        );
    }
}
