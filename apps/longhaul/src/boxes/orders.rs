//! Orders to running boxes: reload, drain, and the query of their health.

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::control::{Reached, Request};
use longhaul_boxes::figures::count;
use longhaul_boxes::state::Flow;
use longhaul_boxes::status::BoxStatus;
use longhaul_units::Duration as Span;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub const RELOAD_EXAMPLES: &str = "\
Examples:
  longhaul box reload                       the only box that runs here
  longhaul box reload accelerate-west
  kill -HUP PID                             the same; the result is in the box's journal

The box first reads and checks the whole file. It can change policy rules, mode, window, memory,
give_up and, without a transport, rate and distance while it runs. If anything else differs, it
names the difference and changes nothing. Known flows keep their mode: docs/semantics.md.";

pub const DRAIN_EXAMPLES: &str = "\
Examples:
  longhaul accelerate drain                     the only box that runs here
  longhaul accelerate drain west --timeout 30s && systemctl restart longhaul-accelerate@west
  longhaul accelerate drain west --undo

The box accepts no new flows, sends no more early acknowledgements, and delivers all data that it
has acknowledged. Each flow then passes, and continues without the box. Exit code 0: the stores are
empty. 3: the timeout expired; the flows with stored data are listed, and the box keeps draining.";

pub const HEALTH_EXAMPLES: &str = "\
Examples:
  longhaul box health                  of the only box that runs here
  longhaul box health accelerate-west && echo well

Exit code 0: the box is ready: its ports are up, its threads run, it is not draining and, with a
transport, a far box is reached. 1: it is not ready; the reason is printed. Over HTTP, for probes:
--health of 'longhaul accelerate'.";

/// Exit code of a drain that timed out.
const TIME_IS_OVER: u8 = 3;

/// Poll interval of a draining box, and interval of progress reports.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Maximum flows named after a timeout.
const NAMED_MAX: usize = 20;

#[derive(clap::Args)]
pub struct Reload {
    /// Name of the box [default: the only one]
    #[arg(conflicts_with = "control")]
    name: Option<String>,
    /// Name of the box, as NAME
    #[arg(long = "box", value_name = "NAME", hide = true, conflicts_with_all = ["name", "control"])]
    same_name: Option<String>,
    /// Control socket of the box, if it was started with --control
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Health {
    /// Name of the box [default: the only one]
    #[arg(conflicts_with = "control")]
    name: Option<String>,
    /// Control socket of the box, if it was started with --control
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Drain {
    /// Name of the box [default: the only one]
    #[arg(conflicts_with = "control")]
    name: Option<String>,
    /// Control socket of the box, if it was started with --control
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Maximum time to wait for empty stores [default: unlimited]
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Stop draining: accept flows again
    #[arg(long, conflicts_with = "timeout")]
    undo: bool,
}

/// Makes a box reload its configuration.
///
/// # Errors
/// The configuration is invalid, or the box does not reply.
pub fn reload(args: &Reload) -> Result<ExitCode, Problem> {
    let name = args.name.as_ref().or(args.same_name.as_ref());
    let reached = Reached::find(name.map(String::as_str), args.control.as_deref())?;
    let changed = reached.order(Request::Reload)?;
    let text = match &changed[..] {
        [] => "nothing differs\n".to_string(),
        changed => format!("changed: {}\n", changed.join(", ")),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Queries whether a box is ready.
///
/// # Errors
/// The box is not ready, with the reason, or does not reply.
pub fn health(args: &Health) -> Result<ExitCode, Problem> {
    let reached = Reached::find(args.name.as_deref(), args.control.as_deref())?;
    let notes = reached.order(Request::Health)?;
    let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
    output::print(&format!("ready\n{notes}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Drains a box and waits for the end of draining; or undoes it.
///
/// # Errors
/// The box has no accelerator, or does not reply.
pub fn drain(args: &Drain) -> Result<ExitCode, Problem> {
    let reached = Reached::find(args.name.as_deref(), args.control.as_deref())?;
    if args.undo {
        reached.order(Request::Undrain)?;
        output::print("accepting flows again\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    reached.order(Request::Drain)?;
    let started = Instant::now();
    let limit = args.timeout.map(|limit| Duration::from_nanos(limit.as_ns()));
    let mut told: Option<Instant> = None;
    loop {
        let status = reached.status()?;
        let stored = stored_bytes(&status);
        if stored == 0 {
            output::print("drained: the stores are empty\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            eprint!("longhaul: {}", what_is_left(&status));
            return Ok(ExitCode::from(TIME_IS_OVER));
        }
        if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
            let flows = count(holding(&status).count() as u64, "flow");
            eprintln!("{stored} bytes stored, in {flows}");
            told = Some(Instant::now());
        }
        sleep(LOOK_AGAIN);
    }
}

fn stored_bytes(status: &BoxStatus) -> u64 {
    status.pairs.iter().map(|pair| pair.stored_bytes()).sum()
}

/// Flows that still hold data.
fn holding(status: &BoxStatus) -> impl Iterator<Item = &Flow> {
    let flows = status.pairs.iter().filter_map(|pair| pair.accelerator.as_ref());
    flows.flat_map(|accelerator| &accelerator.flows).filter(|flow| flow.stored_bytes > 0)
}

fn what_is_left(status: &BoxStatus) -> String {
    let mut text = format!(
        "{} bytes are still stored, and '{}' keeps draining; '--undo' accepts flows again; \
         stopping the box now loses the data of these flows:\n",
        stored_bytes(status),
        status.name
    );
    for flow in holding(status).take(NAMED_MAX) {
        text += &format!(
            "  {} to {} QP {:#x}: {} bytes, {}\n",
            flow.requester,
            flow.responder,
            flow.responder_qpn,
            flow.stored_bytes,
            flow.state_in_words()
        );
    }
    let more = holding(status).count().saturating_sub(NAMED_MAX);
    if more > 0 {
        text += &format!("  and {}\n", count(more as u64, "more flow"));
    }
    text
}
