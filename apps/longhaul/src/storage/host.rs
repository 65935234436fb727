//! `longhaul storage host`.

use super::spdk::{self, Engine, Fabric, Listener};
use super::summary::{Checked, Summary};
use super::{Address, SUBSYSTEM, device, name_of_host, problem, random_id};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_boxes::number::{at_least, within};
use longhaul_boxes::quantity::Size;
use longhaul_host::placement;
use longhaul_nvme::Nqn;
use longhaul_nvme::host::Identity;
use longhaul_rdma::{Device, RdmaError};
use longhaul_storage::host::{Association, AssociationError, Settings};
use longhaul_storage::load::{self, Load, LoadError, Mix, Pattern, Record, Until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host a -- longhaul storage host 10.77.0.2
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --rw randrw --bs 16K --depth 128
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --rw randwrite --verify --ops 100000
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --rw randwrite --verify --record w.json
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --check w.json
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --jobs 4 --ramp 20 --runtime 60 --json
  longhaul exec --host a -- longhaul storage host 10.77.0.2 --engine spdk=/opt/spdk --depth 128

Names and meanings are fio's (rw, bs, iodepth, numjobs, rwmixread, ramp_time, size), except that
jobs divide the namespace among them. Patterns that write overwrite the namespace. Ctrl-C ends it
with what was measured. Exit code: 0, it ended as asked; 1, something failed, or --verify found
other data than were written. What the figures mean: docs/storage.md.";

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(100);

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The target
    #[arg(value_name = "ADDRESS[:PORT]")]
    to: Address,
    /// Pattern: read, write, rw, randread, randwrite or randrw
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    rw: Pattern,
    /// Bytes of an operation
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    bs: Size,
    /// Outstanding operations of a job
    #[arg(long, alias = "iodepth", value_name = "N", default_value_t = 64)]
    #[arg(value_parser = within::<u16>(1..=4095))]
    depth: u16,
    /// Jobs, each with a thread and a queue
    #[arg(long, alias = "numjobs", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = within::<u16>(1..=1024))]
    jobs: u16,
    /// Percentage of reads in rw and randrw
    #[arg(long, alias = "rwmixread", value_name = "PERCENT", default_value_t = 50)]
    #[arg(value_parser = within::<u8>(0..=100))]
    mix: u8,
    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds_to_run)]
    runtime: u64,
    /// Seconds before the measurement
    #[arg(long, alias = "ramp_time", value_name = "SECONDS", default_value_t = 0)]
    #[arg(value_parser = seconds)]
    ramp: u64,
    /// End each job after this many operations, instead of --runtime
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    #[arg(conflicts_with_all = ["runtime", "ramp"])]
    ops: Option<u64>,
    /// Use only this much of the namespace
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Check all data that are read against what was written, and read all that was written at the
    /// end
    #[arg(long)]
    verify: bool,
    /// With --verify: write into this file which writes were acknowledged, also when the target or
    /// the path fails, for a later --check
    #[arg(long, value_name = "FILE", requires = "verify")]
    record: Option<PathBuf>,
    /// Instead of a load: read what a load with --record wrote, and count acknowledged writes that
    /// are lost
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["verify", "rw", "bs", "ops", "runtime", "size", "jobs"])]
    check: Option<PathBuf>,
    /// Namespace [default: the first]
    #[arg(long, value_name = "N")]
    namespace: Option<u32>,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = SUBSYSTEM)]
    nqn: Nqn,
    /// Name of this host [default: a random UUID]
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<Nqn>,
    /// Longest silence before host and target give each other up, in seconds; 0 means no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = seconds)]
    keep_alive: u64,
    /// Seconds to wait for a target that does not listen yet
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = seconds)]
    wait: u64,
    /// Seed of the order and of the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What generates the load: longhaul, or spdk=DIR, bdevperf of the SPDK built in DIR
    #[arg(long, value_name = "ENGINE", default_value_t)]
    engine: Engine,
    /// Fabric to the target: tcp with SPDK only
    #[arg(long, value_enum, default_value_t, value_name = "rdma|tcp", hide_possible_values = true)]
    fabric: Fabric,
    /// Print one JSON object in fio's form instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the host.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let load = load(args)?;
    let stop = stop_flag()?;
    if let Engine::Spdk(dir) = &args.engine {
        return with_spdk(args, dir, &load, &stop);
    }
    if args.fabric == Fabric::Tcp {
        let cure = "give --engine spdk=DIR, or leave --fabric out";
        return Err(Problem::new("Longhaul's host has no NVMe/TCP", cure));
    }
    let host_id = random_id();
    let host = args.host_nqn.clone().map_or_else(|| name_of_host(host_id), Ok)?;
    let settings = Settings {
        to: args.to.0,
        identity: Identity { host_id, host, subsystem: args.nqn.clone() },
        keep_alive: Duration::from_secs(args.keep_alive),
        connect_within: Duration::from_secs(60),
    };
    let device = device()?;
    let wait = Duration::from_secs(args.wait);
    let connected = connect(&device, &settings, args.jobs, wait, &stop);
    let association = connected.map_err(|error| problem(&error))?;
    let outcome = match (&args.record, &args.check) {
        (None, None) => load::run(&association, &load, &stop),
        (Some(file), _) => {
            let recorded = load::run_recorded(&association, &load, &stop);
            let (outcome, record) = recorded.map_err(|error| of_load(&error))?;
            fs::write(file, output::to_line(&record)?)
                .map_err(|error| Problem::io("write", file, &error))?;
            outcome
        }
        (None, Some(file)) => return check(args, file, association, &stop),
    };
    let outcome = outcome.map_err(|error| of_load(&error))?;
    association.end().map_err(|error| problem(&error))?;
    if stop.load(Ordering::Relaxed) {
        eprintln!("longhaul: interrupted");
    }
    print(args, &load, &Summary::of(&load, &outcome))?;
    Ok(if outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads what a load with a record wrote.
fn check(
    args: &Args,
    file: &Path,
    association: Association,
    stop: &AtomicBool,
) -> Result<ExitCode, Problem> {
    let text = fs::read_to_string(file).map_err(|error| Problem::io("read", file, &error))?;
    let record: Record = serde_json::from_str(&text).map_err(|error| {
        let cause = format!("{} is no record of a load: {error}", file.display());
        Problem::new(cause, "give a file that --record has written")
    })?;
    let outcome = record.check(&association, stop).map_err(|error| of_load(&error))?;
    association.end().map_err(|error| problem(&error))?;
    let checked = Checked::of(&outcome);
    let text = if args.json { output::to_json(&checked)? + "\n" } else { checked.text() };
    output::print(&text)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Problem::plain("interrupted before everything was read"));
    }
    Ok(if outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(args: &Args, load: &Load, summary: &Summary) -> Result<(), Problem> {
    let text = if args.json { output::to_json(summary)? + "\n" } else { summary.text(load) };
    output::print(&text)
}

/// Has SPDK generate the load.
fn with_spdk(args: &Args, dir: &Path, load: &Load, stop: &AtomicBool) -> Result<ExitCode, Problem> {
    let lacking = [
        (args.ops.is_some(), "--ops"),
        (args.ramp > 0, "--ramp"),
        (args.size.is_some(), "--size"),
        (args.verify, "--verify"),
        (args.namespace.is_some(), "--namespace"),
        (args.wait > 0, "--wait"),
        (args.check.is_some(), "--check"),
    ];
    if let Some((_, option)) = lacking.iter().find(|(given, _)| *given) {
        let cause = format!("SPDK's bdevperf has nothing like {option}");
        return Err(Problem::new(cause, "leave it out, or use --engine longhaul"));
    }
    let Until::Time(runtime) = load.until else { return Err(Problem::plain("no runtime")) };
    let allowed = placement::allowed().map_err(|error| Problem::plain(error.to_string()))?;
    let jobs = usize::from(args.jobs);
    if allowed.len() < jobs {
        let cause =
            format!("SPDK runs each job on a processor, of which {} are here", allowed.len());
        return Err(Problem::new(cause, "use fewer --jobs"));
    }
    let to = Listener { nqn: args.nqn.clone(), fabric: args.fabric, at: args.to.0 };
    let job = spdk::Job {
        dir,
        program: "build/examples/bdevperf",
        configuration: to.of_host(args.host_nqn.as_ref(), args.keep_alive),
        processors: allowed[..jobs].to_vec(),
        memory: 0,
        options: [
            ("-q", args.depth.to_string()),
            ("-o", load.block_bytes.to_string()),
            ("-w", args.rw.to_string()),
            ("-M", args.mix.to_string()),
            ("-t", runtime.as_secs().to_string()),
        ]
        .into_iter()
        .filter(|(option, _)| *option != "-M" || args.rw.mix == Mix::Both)
        .flat_map(|(option, value)| [option.to_owned(), value])
        .chain(["-l", "-C"].map(str::to_owned))
        .collect(),
    };
    let mut running = job.start()?;
    running.wait(None, stop);
    let ended = running.end();
    if !ended.is_success() {
        return Err(spdk::failure(&ended));
    }
    let report =
        spdk::Report::read(&ended.stdout).map_err(|error| Problem::plain(error.to_string()))?;
    if report.failures > 0.0 {
        let cause = format!("{} operations per second failed", report.failures);
        return Err(Problem::new(cause, "see whether the target still runs"));
    }
    print(args, load, &Summary::of_spdk(load, &report, runtime))?;
    Ok(ExitCode::SUCCESS)
}

/// Connects; tries again for `wait` while nobody listens.
fn connect(
    device: &Device,
    settings: &Settings,
    jobs: u16,
    wait: Duration,
    stop: &AtomicBool,
) -> Result<Association, AssociationError> {
    let end = Instant::now() + wait;
    loop {
        match Association::connect(device, settings, jobs) {
            Err(AssociationError::Connect {
                cause: RdmaError::Peer(_) | RdmaError::TimedOut(_),
                ..
            }) if Instant::now() < end && !stop.load(Ordering::Relaxed) => {
                std::thread::sleep(RETRY);
            }
            outcome => return outcome,
        }
    }
}

fn load(args: &Args) -> Result<Load, Problem> {
    let bytes = u32::try_from(args.bs.bytes()).ok().filter(|bytes| *bytes > 0);
    let block_bytes = bytes.ok_or_else(|| {
        Problem::new("an operation has 1 byte to 4 GiB", "use for example --bs 4K")
    })?;
    Ok(Load {
        pattern: args.rw,
        block_bytes,
        depth: args.depth,
        jobs: args.jobs,
        read_percent: args.mix,
        until: match args.ops {
            Some(operations) => Until::Operations(operations),
            None => Until::Time(Duration::from_secs(args.runtime)),
        },
        ramp: Duration::from_secs(args.ramp),
        bytes: args.size.map(Size::bytes),
        namespace: args.namespace,
        verify: args.verify,
        seed: args.seed,
    })
}

/// Reads whole seconds: `30`, `30s` or `500ms` rounded up.
fn seconds(text: &str) -> Result<u64, String> {
    match (text.parse(), text.parse::<longhaul_units::Duration>()) {
        (Ok(seconds), _) => Ok(seconds),
        (_, Ok(time)) => Ok(time.as_ns().div_ceil(1_000_000_000)),
        _ => Err("a number of seconds is needed, such as 30 or 30s".to_owned()),
    }
}

fn seconds_to_run(text: &str) -> Result<u64, String> {
    match seconds(text)? {
        0 => Err("a second is the least".to_owned()),
        seconds => Ok(seconds),
    }
}

fn of_load(error: &LoadError) -> Problem {
    let cause = error.to_string();
    let cure = match error {
        LoadError::Association(error) => return problem(error),
        LoadError::OtherNamespace => "give the record of a load on this target",
        LoadError::NoNamespace(_) => "name another with --namespace",
        LoadError::BlockSize { .. } => "use a multiple with --bs",
        LoadError::TransferTooLong { .. } => {
            "use a smaller --bs, or raise the target's --max-transfer"
        }
        LoadError::TooDeep { .. } => "use a smaller --depth, or raise the target's",
        LoadError::TooFewQueues { .. } => "use fewer --jobs, or raise the target's --queues",
        LoadError::TooSmall { .. } => "use fewer --jobs, a smaller --depth or a larger --size",
        LoadError::Operation { .. } | LoadError::Silent(..) | LoadError::Panicked => {
            return Problem::plain(cause);
        }
    };
    Problem::new(cause, cure)
}
