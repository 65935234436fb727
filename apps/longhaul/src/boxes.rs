//! `longhaul box`: status and control of running boxes.

mod answer;
mod orders;
pub mod top;

pub use orders::{DRAIN_EXAMPLES, Drain, drain};
pub use top::{Top, top};

use crate::output;
use crate::problem::Problem;
use answer::Answer;
use clap::Subcommand;
use longhaul_boxes::number::at_least;
use longhaul_boxes::{Ended, Error, PortName};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Command {
    /// Show ports, rates, stores, flows and drops with reasons
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Make a box reread its configuration file
    #[command(after_help = orders::RELOAD_EXAMPLES)]
    Reload(orders::Reload),
    /// Drain a box, so that it can be stopped without ending any connection
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(Drain),
    /// Check whether a box is ready, and print the reason if not
    #[command(after_help = orders::HEALTH_EXAMPLES)]
    Health(orders::Health),
}

/// Guards the carrier of the ports of the box that started this process.
pub fn guard() -> Result<ExitCode, Problem> {
    let guarded = longhaul_boxes::carrier::guard();
    guarded
        .map(|()| ExitCode::SUCCESS)
        .map_err(|error| Problem::plain(format!("a box starts its guard itself: {error}")))
}

const STATUS_EXAMPLES: &str = "\
Examples:
  longhaul box status                      of all boxes that run here
  longhaul box status accelerate --watch   once per second
  longhaul box status --json
  longhaul box status --prometheus         for a scraper, through node_exporter's textfile collector

Boxes are found in the caller's runtime directory and below /run/longhaul.";

#[derive(clap::Args)]
pub struct Status {
    /// Name of the box [default: all]
    #[arg(conflicts_with = "control")]
    name: Option<String>,
    /// Control socket of the box, if it was started with --control
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print everything as JSON, a list of boxes
    #[arg(long, conflicts_with = "prometheus")]
    json: bool,
    /// Print in Prometheus' text format
    #[arg(long)]
    prometheus: bool,
    /// Repeat every N seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = at_least(1))]
    watch: Option<u64>,
}

pub fn run_command(command: &Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Status(args) => show_status(args),
        Command::Reload(args) => orders::reload(args),
        Command::Drain(args) => drain(args),
        Command::Health(args) => orders::health(args),
    }
}

fn show_status(args: &Status) -> Result<ExitCode, Problem> {
    let mut is_first = true;
    loop {
        let boxes = answer::ask(args.name.as_deref(), args.control.as_deref())?;
        let text = match (args.json, args.prometheus) {
            (true, _) => output::to_json(&boxes)? + "\n",
            (_, true) => answer::exposition(&boxes),
            _ => {
                let text = boxes.iter().map(Answer::to_text).collect::<Vec<_>>().join("\n");
                output::wrapped(&text, output::columns())
            }
        };
        match args.watch {
            Some(_) => {
                let rule = if args.json || args.prometheus { "" } else { "---" };
                output::repaint(&text, is_first, rule)?;
            }
            None => output::print(&text)?,
        }
        is_first = false;
        let Some(seconds) = args.watch else {
            let any = boxes.iter().any(|answer| matches!(answer, Answer::State(_)));
            return Ok(if any { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        };
        sleep(Duration::from_secs(seconds));
    }
}

/// Help text after the options of a command that runs a box.
pub fn help(examples: &str, notes: &str) -> String {
    format!("{examples}\n\n{}\n{notes}", PortName::HELP)
}

/// Exit code of a box whose configuration is at fault: a service manager need not try again.
const CONFIGURATION: u8 = 2;

/// Prints the final summary of a box, or why its configuration is refused.
pub fn print_end(ended: Result<Ended, Error>) -> Result<ExitCode, Problem> {
    let ended = match ended {
        Err(error) if error.is_of_configuration() => {
            eprintln!("longhaul: {}", Problem::from(error));
            return Ok(ExitCode::from(CONFIGURATION));
        }
        ended => ended?,
    };
    output::print(&output::wrapped(&ended.summary.to_text(), output::columns()))?;
    Ok(if ended.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
