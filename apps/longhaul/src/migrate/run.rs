//! `longhaul migrate run`.

use super::lab::{DESTINATION, Hosts, SOURCE, Which};
use super::summary::{Checked, Summary, text};
use super::{How, of_drive, of_machine};
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::{exec, output};
use longhaul_boxes::number::at_least;
use longhaul_boxes::quantity::Size;
use longhaul_boxes::runtime_dir::private_dir;
use longhaul_lab::{HostName, INTERFACE, die_with_parent};
use longhaul_migration::guest::{CHECK_ALL, Load, LoadError, Report, silence};
use longhaul_migration::machine::{Accel, Config, Machine};
use longhaul_migration::{End, Migration, Outcome, Plan, migrate};
use longhaul_units::{QuantityError, size_bytes};
use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul migrate run
  longhaul migrate run --distance 1000km --loss 1e-3 --accelerate transport
  longhaul migrate run --distance 1000km --transport tcp-multifd --memory 4G --dirty 500M
  longhaul migrate run --lab default --repeat 5 --json
  for km in 0 100 1000; do longhaul migrate run --distance ${km}km --json; done > table.jsonl

Two QEMUs run on hosts a and b of a lab. The guest fills its memory with a pattern, rewrites the
working set in turn at the rate of --dirty, and checks every page; the result says how many pages it
checked on the destination and how many were wrong. QEMU (Debian's qemu-system-x86) must be
installed; nothing else is needed, no kernel and no disk. Exit code: 0, it ended, even if by
--timeout; 1, something failed, or memory is wrong. What the figures mean: docs/migration.md.";

/// Port of the destination.
const PORT: u16 = 4455;
/// Bytes per second that the guest checks beside its work.
const CHECKED_PER_S: u64 = 64 << 20;
/// Time limit for a guest to boot, beyond that for its memory.
const BOOTS_WITHIN: Duration = Duration::from_secs(60);
/// Bytes per second that a guest fills or checks at the least.
const MEMORY_PER_S: u64 = 20 << 20;
/// Time limit for a guest that was stopped to go on.
const GOES_ON_WITHIN: Duration = Duration::from_secs(30);

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Memory of the guest
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Bytes that the guest dirties per second; 0: none
    #[arg(long, value_name = "SIZE", default_value = "100M", value_parser = bytes)]
    dirty: u64,
    /// Bytes that are dirtied in turn [default: all memory]
    #[arg(long, value_name = "SIZE")]
    working_set: Option<Size>,
    #[command(flatten)]
    how: How,
    /// TCP congestion control of the lab's host a, cubic or bbr [default: as it is set]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// What executes the guest: tcg, or kvm where the processor may be used
    #[arg(long, value_name = "tcg|kvm", default_value = "tcg")]
    accel: Accel,
    /// The QEMU of both hosts
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: OsString,
    /// Migrate this many times, each with new QEMUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least(1))]
    repeat: u64,
}

fn bytes(text: &str) -> Result<u64, QuantityError> {
    size_bytes(text)
}

/// Migrates as often as asked.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let load = load(args);
    let image = load.image().map_err(of_load)?;
    check_memory(load.memory)?;
    let stop = stop_flag()?;
    let hosts = args.which.hosts()?;
    hosts.check(args.how.transport)?;
    let congestion = match args.how.transport.is_tcp() {
        true => Some(congestion(&hosts, args.congestion.as_deref())?),
        false => None,
    };
    let mut right = true;
    for _ in 0..args.repeat {
        let mut summary = once(args, &load, &image, &hosts, &stop)?;
        summary.with_congestion(congestion.clone());
        right &= summary.is_memory_right();
        output::print(&if args.how.json { summary.to_line()? } else { text(&summary) })?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(args: &Args) -> Load {
    let mut load = Load {
        memory: args.memory.bytes(),
        working_set: 0,
        dirty_per_s: args.dirty,
        check_per_s: CHECKED_PER_S,
    };
    load.working_set = match args.working_set {
        Some(size) => size.bytes(),
        None => load.checked_bytes(),
    };
    load
}

/// The TCP congestion control of the source's host, set to `wanted` if given.
fn congestion(hosts: &Hosts, wanted: Option<&str>) -> Result<String, Problem> {
    // Namespaces may set only what the machine allows all users; a route may name any.
    const SETS_AND_READS: &str = r#"f=/proc/sys/net/ipv4/tcp_congestion_control
        if [ -z "$1" ]; then cat $f
        elif { echo "$1" > $f; } 2>/dev/null || ip route change "$2" dev "$3" congctl "$1"
        then echo "$1"
        else exit 1
        fi"#;
    let name = wanted.unwrap_or_default();
    let network = format!("{}/24", Ipv4Addr::from(SOURCE.ip().to_bits() & !0xff));
    let words = ["sh", "-c", SETS_AND_READS, "sh", name, &network, INTERFACE];
    let words = words.map(OsString::from);
    let done = exec::command(hosts.dir(), SOURCE, &words)?.output();
    let done = done.map_err(|e| Problem::plain(format!("cannot run sh on host {SOURCE}: {e}")))?;
    let name = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    if done.status.success() && wanted.is_none_or(|wanted| wanted == name) {
        return Ok(name);
    }
    let wanted = wanted.unwrap_or("any");
    let cause = format!("host {SOURCE} cannot use TCP congestion control '{wanted}'");
    Err(Problem::new(cause, format!("load it, as root: modprobe tcp_{wanted}")))
}

/// Fails if this machine has no memory for both ends.
fn check_memory(of_guest: u64) -> Result<(), Problem> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    // Where the kernel does not say, QEMU will.
    let Some(available) = kib.map(|kib| kib << 10) else { return Ok(()) };
    if 2 * of_guest <= available {
        return Ok(());
    }
    let cause = format!(
        "source and destination need {} each, and this machine has {:.1} GiB available",
        Size::from_bytes(of_guest),
        available as f64 / f64::from(1 << 30)
    );
    Err(Problem::new(cause, "use a smaller --memory"))
}

fn of_load(error: LoadError) -> Problem {
    let cure = match error {
        LoadError::Memory => "use for example --memory 1G",
        LoadError::WorkingSet(..) => "use a smaller --working-set, of 4 KiB at least, or --dirty 0",
        LoadError::Rate => "use a smaller --dirty",
    };
    Problem::new(error.to_string(), cure)
}

/// A directory for the image and the sockets, removed when dropped.
struct Files {
    path: PathBuf,
}

impl Files {
    fn new(image: &[u8]) -> Result<Self, Problem> {
        let path = private_dir(&format!("migration-{}", std::process::id()))?;
        let files = Files { path };
        let image_path = files.image();
        fs::write(&image_path, image).map_err(|e| Problem::io("write", &image_path, &e))?;
        Ok(files)
    }

    fn image(&self) -> PathBuf {
        self.path.join("guest.bin")
    }

    fn socket(&self, end: End) -> PathBuf {
        self.path.join(format!("{end}.qmp"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What remains is in the runtime directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// One migration with new QEMUs.
fn once(
    args: &Args,
    load: &Load,
    image: &[u8],
    hosts: &Hosts,
    stop: &AtomicBool,
) -> Result<Summary, Problem> {
    let files = Files::new(image)?;
    let start = |end, host| start(args, load, hosts, &files, end, host);
    let (mut source, mut destination) =
        (start(End::Source, SOURCE)?, start(End::Destination, DESTINATION)?);
    let of = |end| move |error| of_machine(end, &error);
    let mut source_qmp = source.connect().map_err(of(End::Source))?;
    let mut destination_qmp = destination.connect().map_err(of(End::Destination))?;
    let limit = time_for(BOOTS_WITHIN, load);
    source.wait_until("started", limit, |heard| heard.report.is_some()).map_err(of(End::Source))?;
    let plan = plan(args, hosts);
    let before = source.heard().report;
    let migration = migrate(&mut source_qmp, &mut destination_qmp, &plan, stop);
    let migration = migration.map_err(|error| {
        // A QEMU that ended says more than the connection to it.
        let ended = [(End::Destination, &mut destination), (End::Source, &mut source)]
            .into_iter()
            .find_map(|(end, machine)| Some((end, ended(machine)?)));
        ended.map_or_else(|| of_drive(&error), |(end, error)| of_machine(end, &error))
    })?;
    let dirtied = dirtied_per_s(load, before, source.heard().report);
    let mut summary = Summary::of(args.how.transport, &migration);
    summary.over(hosts.spec());
    summary.with_guest(load, args.accel.to_string(), dirtied);
    let (silent, checked) = verdict(&migration, load, &mut source, &mut destination)?;
    summary.with_words(silent, checked);
    Ok(summary)
}

/// A QEMU that closes its sockets ends soon after.
fn ended(machine: &mut Machine) -> Option<longhaul_migration::machine::MachineError> {
    const ENDS_WITHIN: Duration = Duration::from_millis(500);
    let deadline = Instant::now() + ENDS_WITHIN;
    loop {
        let end = machine.end();
        if end.is_some() || Instant::now() > deadline {
            return end;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn start(
    args: &Args,
    load: &Load,
    hosts: &Hosts,
    files: &Files,
    end: End,
    host: HostName,
) -> Result<Machine, Problem> {
    let config = Config {
        accel: args.accel,
        memory: load.memory,
        image: files.image(),
        socket: files.socket(end),
        waits: end == End::Destination,
    };
    let mut words = vec![args.qemu.clone()];
    words.extend(config.arguments());
    let mut command = exec::command(hosts.dir(), host, &words)?;
    die_with_parent(&mut command);
    Machine::start(command, config.socket).map_err(|error| of_machine(end, &error))
}

fn plan(args: &Args, hosts: &Hosts) -> Plan {
    let how = &args.how;
    let to = format!("{}:{PORT}", DESTINATION.ip());
    let max_bandwidth = how.max_bandwidth.unwrap_or(hosts.spec().rate);
    Plan {
        transport: how.transport,
        listen: to.clone(),
        to,
        downtime_limit: how.downtime_limit(),
        max_bandwidth: Some(max_bandwidth.as_bps() / 8),
        channels: how.channels,
        timeout: how.timeout(),
    }
}

fn time_for(least: Duration, load: &Load) -> Duration {
    least + Duration::from_secs(load.memory / MEMORY_PER_S)
}

/// Bytes dirtied per second between two reports of the guest.
fn dirtied_per_s(
    load: &Load,
    from: Option<(Instant, Report)>,
    to: Option<(Instant, Report)>,
) -> Option<f64> {
    let ((then, first), (now, last)) = (from?, to?);
    let seconds = now.saturating_duration_since(then).as_secs_f64();
    let pages = last.dirtied(load).saturating_sub(first.dirtied(load));
    (seconds > 0.0).then(|| (pages * longhaul_migration::guest::PAGE) as f64 / seconds)
}

/// The guest's silence, and its check of all memory where it runs.
fn verdict(
    migration: &Migration,
    load: &Load,
    source: &mut Machine,
    destination: &mut Machine,
) -> Result<(Option<Duration>, Option<Checked>), Problem> {
    let end = match migration.outcome {
        Outcome::Completed(_) => End::Destination,
        Outcome::DidNotFinish { source_runs: true, .. } => End::Source,
        Outcome::DidNotFinish { source_runs: false, .. } => return Ok((None, None)),
    };
    let before = match end {
        End::Source => 0,
        End::Destination => source.heard().report.map_or(0, |(_, report)| report.checked),
    };
    let machine = match end {
        End::Source => &mut *source,
        End::Destination => &mut *destination,
    };
    let of = |error| of_machine(end, &error);
    machine.wait_until("gone on", GOES_ON_WITHIN, |heard| heard.first.is_some()).map_err(of)?;
    machine.order(CHECK_ALL).map_err(of)?;
    let limit = time_for(GOES_ON_WITHIN, load);
    let is_done = |report: &Report| report.full_checks > 0;
    machine
        .wait_until("checked its memory", limit, |heard| {
            heard.report.as_ref().is_some_and(|(_, report)| is_done(report))
        })
        .map_err(of)?;
    let report = machine.heard().report.map(|(_, report)| report).unwrap_or_default();
    let checked = Checked::new(end.to_string(), &report, before);
    let silent =
        (end == End::Destination).then(|| silence(&source.heard(), &destination.heard())).flatten();
    Ok((silent, Some(checked)))
}
