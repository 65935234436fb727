//! `longhaul migrate run`.

use super::Options;
use super::lab::{DESTINATION, Hosts, LabOptions};
use super::machines::{Files, Machines, available_memory, check_memory};
use super::summary::{Checked, Summary, text};
use crate::problem::Problem;
use crate::signals::stop_flag;
use crate::sim::INTERRUPTED;
use crate::{exec, output};
use longhaul_boxes::number::at_least;
use longhaul_boxes::quantity::Size;
use longhaul_migration::disk::Export;
use longhaul_migration::guest::{CHECK_ALL, Load, Report, silence};
use longhaul_migration::machine::{Accel, ENDS_WITHIN, Machine, MachineError};
use longhaul_migration::{End, Migration, Outcome, Reason, migrate};
use longhaul_units::size_bytes;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul migrate run
  longhaul migrate run --distance 1000km --loss 1e-3 --accelerate transport
  longhaul migrate run --distance 1000km --transport tcp-multifd --memory 4G --dirty 500M
  longhaul migrate run --distance 1000km --memory 1G --disk 2G
  longhaul migrate run --lab default --repeat 5 --json
  for km in 0 100 1000; do longhaul migrate run --distance ${km}km --json; done > table.jsonl

Two QEMUs run on hosts a and b of a lab. The guest fills its memory with a pattern, rewrites the
working set in turn at the rate of --dirty, and checks every page above the first 8 MiB; the result
says how many pages it checked on the destination and how many were wrong. QEMU (Debian's
qemu-system-x86) must be installed; it needs no kernel or disk image. Exit code: 0, it ended, even
if by --timeout; 1, something failed, the guest was not seen to run, or memory is wrong; 130, it was
interrupted. What the figures mean: docs/migration.md.";

/// Port of the destination.
const PORT: u16 = 4455;
/// Port of the destination's disk.
const NBD_PORT: u16 = 10809;
/// Bytes per second of all its pages that the guest checks beside its work.
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
    lab: LabOptions,
    /// Memory of the guest
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Bytes that the guest dirties per second; 0: none
    #[arg(long, value_name = "SIZE", default_value = "100M", value_parser = size_bytes)]
    dirty: u64,
    /// Set the guest's working set, which is dirtied in turn [default: all memory]
    #[arg(long, value_name = "SIZE")]
    working_set: Option<Size>,
    /// Give the guest a disk of this size, and copy it before its memory, by NBD over the lab's
    /// network; afterwards both disks are compared
    #[arg(long, value_name = "SIZE")]
    disk: Option<Size>,
    #[command(flatten)]
    options: Options,
    /// TCP congestion control of the lab's host a, cubic or bbr [default: as it is set]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// What executes the guest: tcg, or kvm (needs /dev/kvm)
    #[arg(long, value_name = "tcg|kvm", default_value = "tcg")]
    accel: Accel,
    /// The QEMU of both hosts
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    qemu: OsString,
    /// Migrate this many times, each with new QEMUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least(1))]
    repeat: u64,
}

/// Migrates as often as asked.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let transport = args.options.transport;
    if args.congestion.is_some() && !transport.is_tcp() {
        let cause = format!("--congestion is for TCP, and the transport is {transport}");
        return Err(Problem::new(cause, "leave it out, or use --transport tcp"));
    }
    let load = load(args);
    let image = load.image()?;
    // Where the kernel does not say, QEMU will.
    available_memory().map_or(Ok(()), |available| check_memory(load.memory, available))?;
    exec::find_program(&args.qemu)?;
    let stop = stop_flag()?;
    let hosts = args.lab.hosts()?;
    hosts.check(transport, args.disk.is_some())?;
    let code = repeat(args, &load, &image, &hosts, &stop);
    hosts.end();
    Ok(code?.into())
}

/// The exit code of all migrations.
fn repeat(
    args: &Args,
    load: &Load,
    image: &[u8],
    hosts: &Hosts,
    stop: &AtomicBool,
) -> Result<u8, Problem> {
    let congestion = match args.options.transport.is_tcp() {
        true => Some(hosts.congestion(args.congestion.as_deref())?),
        false => None,
    };
    let mut code = 0;
    for _ in 0..args.repeat {
        let Some(mut summary) = once(args, load, image, hosts, stop)? else { break };
        summary.with_congestion(congestion.as_ref().map(|one| one.name().to_owned()));
        let line = if args.options.json { output::to_line(&summary)? } else { text(&summary) };
        output::print(&line)?;
        if code == 0 {
            code = summary.exit_code();
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let interrupted = code == 0 && stop.load(Ordering::Relaxed);
    Ok(if interrupted { INTERRUPTED } else { code })
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

/// One migration with new QEMUs; `None` if it was interrupted before.
fn once(
    args: &Args,
    load: &Load,
    image: &[u8],
    hosts: &Hosts,
    stop: &AtomicBool,
) -> Result<Option<Summary>, Problem> {
    let (qemu, accel, memory) = (&args.qemu, args.accel, load.memory);
    let (files, has_disk) = (Files::new(image)?, args.disk.is_some());
    if let Some(size) = args.disk {
        files.write_disks(size.bytes())?;
    }
    let machines = Machines { hosts, qemu, accel, memory, has_disk, files };
    let (mut source, mut destination) =
        (machines.start(End::Source)?, machines.start(End::Destination)?);
    let of = |end| move |error| Problem::from((end, error));
    let mut source_qmp = source.connect().map_err(of(End::Source))?;
    let mut destination_qmp = destination.connect().map_err(of(End::Destination))?;
    let limit = time_for(BOOTS_WITHIN, load);
    let started = source.wait_until("started", limit, stop, |heard| heard.report.is_some());
    if !started.map_err(of(End::Source))? {
        return Ok(None);
    }
    let to = format!("{}:{PORT}", DESTINATION.ip());
    let mut plan = args.options.plan(to.clone(), to, Some(hosts.spec().rate));
    plan.disk = args.disk.map(|_| {
        let host = DESTINATION.ip().to_string();
        Export { host, port: NBD_PORT }
    });
    let before = source.heard().report;
    let migration = migrate(&mut source_qmp, &mut destination_qmp, &plan, stop);
    let migration = migration.map_err(|error| {
        // A QEMU that ended says more than the connection to it.
        let ended = [(End::Destination, &mut destination), (End::Source, &mut source)]
            .into_iter()
            .find_map(|(end, machine)| Some((end, machine.end_within(ENDS_WITHIN)?)));
        ended.map_or_else(|| Problem::from(error), Problem::from)
    })?;
    let dirtied = dirtied_per_s(load, before, source.heard().report);
    let mut summary = Summary::of(args.options.transport, &migration);
    summary.over(hosts.spec());
    summary.with_guest(load, args.accel.to_string(), dirtied);
    if let (Some(size), Some(time)) = (args.disk, migration.disk) {
        let is_there = matches!(migration.outcome, Outcome::Completed(_));
        let wrong = is_there.then(|| machines.files.compare_disks()).transpose()?;
        summary.with_disk(size, time, wrong);
    }
    let (silent, checked) = verdict(&migration, load, &mut source, &mut destination, stop)?;
    summary.with_words(silent, checked);
    Ok(Some(summary))
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

/// The guest's silence, and its check of all memory where it runs, unless it was interrupted.
fn verdict(
    migration: &Migration,
    load: &Load,
    source: &mut Machine,
    destination: &mut Machine,
    stop: &AtomicBool,
) -> Result<(Option<Duration>, Option<Checked>), Problem> {
    let end = match migration.outcome {
        Outcome::Completed(_) => End::Destination,
        Outcome::DidNotFinish { reason: Reason::Interrupted, .. }
        | Outcome::DidNotFinish { source_runs: false, .. } => return Ok((None, None)),
        Outcome::DidNotFinish { .. } => End::Source,
    };
    let machine = match end {
        End::Source => &mut *source,
        End::Destination => &mut *destination,
    };
    let checked = check_all(machine, load, stop).map_err(|error| Problem::from((end, error)))?;
    let checked = checked.map(|(before, report)| {
        // Of the source's checks, all count: the guest has been nowhere else.
        let before = if end == End::Source { 0 } else { before.checked };
        Checked::new(end.to_string(), &report, before)
    });
    let silent =
        (end == End::Destination).then(|| silence(&source.heard(), &destination.heard())).flatten();
    Ok((silent, checked))
}

/// The guest's first report on `machine` that arrives, and the one after a check of all memory;
/// `None` if `stop` becomes true before.
fn check_all(
    machine: &mut Machine,
    load: &Load,
    stop: &AtomicBool,
) -> Result<Option<(Report, Report)>, MachineError> {
    let resumed =
        machine.wait_until("resumed", GOES_ON_WITHIN, stop, |heard| heard.report.is_some())?;
    let before = machine.heard().report.map(|(_, report)| report).unwrap_or_default();
    if !resumed {
        return Ok(None);
    }
    machine.order(CHECK_ALL)?;
    let limit = time_for(GOES_ON_WITHIN, load);
    let checked = machine.wait_until("checked its memory", limit, stop, |heard| {
        heard.report.is_some_and(|(_, report)| report.full_checks > 0)
    })?;
    let after = machine.heard().report.map(|(_, report)| report).unwrap_or_default();
    Ok(checked.then_some((before, after)))
}
