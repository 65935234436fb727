//! Debian's Slurm on this machine, for one test.

use crate::pair::{LIMIT, free_tcp_port};
use crate::program::Program;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Commands and their Debian packages.
const NEEDED: [(&str, &str); 4] = [
    ("munged", "munge"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("sbatch", "slurm-client"),
];

/// munged, slurmctld and slurmd with their own configuration, keys and sockets: a cluster of one
/// node with two processors. Ended when dropped.
pub struct Slurm {
    directory: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts them in `directory`; `None`, with a message, if that is not possible.
    ///
    /// # Panics
    /// If a daemon does not start.
    pub fn start(directory: &Path) -> Option<Self> {
        for (command, package) in NEEDED {
            if find(command).is_none() {
                longhaul_namespace::skip(format!(
                    "job arrays, because {command} is missing: apt-get install {package}"
                ));
                return None;
            }
        }
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            longhaul_namespace::skip("job arrays, because Slurm's daemons need root");
            return None;
        }
        fs::create_dir_all(directory.join("state")).unwrap();
        fs::create_dir_all(directory.join("spool")).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
        let key = directory.join("munge.key");
        fs::write(&key, [7; 128]).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(directory.join("slurm.conf"), configuration(directory)).unwrap();
        let mut slurm = Slurm { directory: directory.to_owned(), daemons: Vec::new() };
        let at = |name: &str| directory.join(name).display().to_string();
        let munge =
            ["--foreground", "--force", "--num-threads=1"].map(str::to_owned).into_iter().chain([
                format!("--key-file={}", at("munge.key")),
                format!("--socket={}", at("munge.socket")),
                format!("--pid-file={}", at("munged.pid")),
                format!("--log-file={}", at("munged.log")),
                format!("--seed-file={}", at("munged.seed")),
            ]);
        slurm.spawn("munged", munge.collect());
        slurm.wait("munged's socket", || directory.join("munge.socket").exists());
        let conf = at("slurm.conf");
        slurm.spawn("slurmctld", vec!["-D".into(), "-f".into(), conf.clone()]);
        slurm.spawn("slurmd", vec!["-D".into(), "-f".into(), conf, "-N".into(), host_name()]);
        slurm.wait("a node that is idle", || {
            let mut sinfo = Command::new("sinfo");
            let asked = slurm.of(sinfo.args(["--noheader", "--format=%t"])).output();
            asked.is_ok_and(|out| out.stdout.starts_with(b"idle"))
        });
        Some(slurm)
    }

    /// `command`, for this cluster.
    pub fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("SLURM_CONF", self.directory.join("slurm.conf"))
    }

    /// What one of Slurm's commands prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn ask(&self, line: &str) -> String {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        Program::start(self.of(command.args(words))).succeed(LIMIT).stdout
    }

    fn spawn(&mut self, name: &str, arguments: Vec<String>) {
        let log = fs::File::create(self.directory.join(format!("{name}.out"))).unwrap();
        let mut command = Command::new(find(name).expect("it was there"));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap_or_else(|e| panic!("{name}: {e}")));
    }

    /// Waits until `is_so`.
    ///
    /// # Panics
    /// If that takes too long, with the daemons' logs.
    pub fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_so() {
            let logs = ["munged", "slurmctld", "slurmd"].map(|name| {
                fs::read_to_string(self.directory.join(format!("{name}.out"))).unwrap_or_default()
            });
            assert!(Instant::now() < deadline, "{what}: not in time\n{}", logs.join("\n"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // Fails if it has exited, which is fine.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Administrators' programs are not in every user's PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

fn configuration(directory: &Path) -> String {
    let (controller, node) = (free_tcp_port(), free_tcp_port());
    let (host, at) = (host_name(), directory.display());
    format!(
        "ClusterName=check\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nCredType=cred/munge\n\
         StateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
         SlurmctldPort={controller}\nSlurmdPort={node}\n\
         SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
         SlurmdParameters=config_overrides\nSchedulerType=sched/builtin\n\
         SchedulerParameters=sched_interval=1\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory\n\
         DefMemPerCPU=1000\nJobAcctGatherType=jobacct_gather/linux\n\
         JobAcctGatherParams=OverMemoryKill\nJobAcctGatherFrequency=task=1\nKillWait=2\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN\n\
         PartitionName=local Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"
    )
}
