//! `--executor slurm` with Debian's Slurm on this machine: munged, slurmctld and slurmd with their
//! own configuration, keys and sockets. Skipped, loudly, without the packages or root.

use super::{LIMIT, Place};
use longhaul_checks::{Program, free_tcp_port, longhaul};
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

/// The daemons; ended when dropped.
struct Slurm {
    directory: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts them in `directory`; `None`, with a message, if that is not possible.
    fn start(directory: &Path) -> Option<Self> {
        for (command, package) in NEEDED {
            if find(command).is_none() {
                longhaul_namespace::skip(format!(
                    "a sweep as a job array, because {command} is missing: apt-get install \
                     {package}"
                ));
                return None;
            }
        }
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            longhaul_namespace::skip("a sweep as a job array, because Slurm's daemons need root");
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
            sinfo
                .args(["--noheader", "--format=%t"])
                .env("SLURM_CONF", directory.join("slurm.conf"));
            sinfo.output().is_ok_and(|out| out.stdout.starts_with(b"idle"))
        });
        Some(slurm)
    }

    fn spawn(&mut self, name: &str, arguments: Vec<String>) {
        let log = fs::File::create(self.directory.join(format!("{name}.out"))).unwrap();
        let mut command = Command::new(find(name).expect("it was there"));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap_or_else(|e| panic!("{name}: {e}")));
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
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
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
         PartitionName=local Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"
    )
}

#[test]
fn a_job_array_brings_the_results_of_a_local_sweep_and_goes_on_like_one() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place.runtime.path().join("slurm")) else { return };
    let conf = slurm.directory.join("slurm.conf");
    let sweep = "sweep x.toml --vary flow.size=4K..64K,x2 --vary path.distance=1km,10km";
    let submit = |more: &str| {
        let mut command = place.command(&format!("{sweep} --executor slurm --out o {more}"));
        Program::start(command.env("SLURM_CONF", &conf)).finish(LIMIT)
    };
    // Half of the results exist, from a sweep on this machine.
    assert!(
        place
            .run("sweep x.toml --vary flow.size=4K..64K,x2 --vary path.distance=1km --out o")
            .status
            .success()
    );
    let done = submit("--tasks 3");
    assert!(done.status.success(), "{done}");
    assert!(done.stderr.contains("5 of 10 points already have results"), "{done}");
    assert!(done.stderr.contains("submitted job"), "{done}");
    assert!(done.stdout.starts_with("10 points, 5 of them new"), "{done}");
    assert!(place.run(&format!("{sweep} --out local")).status.success());
    assert_eq!(place.results("o"), place.results("local"));
    let script = fs::read_to_string(place.runtime.path().join("o/sweep.sbatch")).unwrap();
    assert!(script.contains("#SBATCH --array=0-2\n"), "{script}");
    let program = longhaul().canonicalize().unwrap();
    assert!(script.contains(&format!("exec '{}' 'sweep'", program.display())), "{script}");
    // Nothing is left to do, and nothing is submitted.
    let again = submit("");
    assert!(again.status.success() && !again.stderr.contains("submitted"), "{again}");
    // sbatch's refusal is reported.
    let mut refused =
        place.command(&format!("{sweep} --executor slurm --out p --sbatch=--partition=none"));
    let refused = Program::start(refused.env("SLURM_CONF", &conf)).finish(LIMIT);
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused.stderr.contains("sbatch refused") && refused.stderr.contains("partition"),
        "{refused}"
    );
}

#[test]
fn a_wait_that_is_interrupted_leaves_a_job_that_is_collected_later() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place.runtime.path().join("slurm")) else { return };
    let conf = slurm.directory.join("slurm.conf");
    let sweep = "sweep x.toml --vary flow.size=4K..8K,+1K --out o";
    let mut command =
        place.command(&format!("{sweep} --executor slurm --tasks 2 --sbatch=--begin=now+20"));
    let program = Program::start_group(command.env("SLURM_CONF", &conf));
    let manifest = place.runtime.path().join("o/sweep.json");
    slurm
        .wait("a job", || fs::read_to_string(&manifest).is_ok_and(|text| text.contains("\"job\"")));
    program.interrupt_group();
    let ended = program.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{ended}");
    assert!(ended.stderr.contains("continues; the same command waits for it"), "{ended}");
    // No other process runs its points meanwhile.
    let mut local = place.command(sweep);
    let local = Program::start(local.env("SLURM_CONF", &conf)).finish(LIMIT);
    assert!(local.stderr.contains("runs these points"), "{local}");
    let mut again = place.command(&format!("{sweep} --executor slurm"));
    let again = Program::start(again.env("SLURM_CONF", &conf)).finish(LIMIT);
    assert!(again.status.success(), "{again}");
    assert!(again.stderr.contains("which was submitted before"), "{again}");
    assert_eq!(place.results("o").len(), 5);
}
