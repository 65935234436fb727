//! The `longhaul` program: thin mains over the crates that do the work.

mod accelerate;
mod bench;
mod boxes;
mod compare;
mod counters;
mod decode;
mod demo;
mod doctor;
mod emulate;
mod env;
mod exec;
mod export;
mod ingest;
mod job_array;
mod key;
mod lab;
mod labs;
mod measure;
mod migrate;
mod output;
mod plan;
mod problem;
mod report;
mod reproduce;
#[cfg(test)]
mod same_box;
mod signals;
mod sim;
mod storage;
mod sweep;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// RDMA that works over distance.
#[derive(Parser)]
#[command(version, about, long_about = None, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  longhaul demo --quick
  longhaul lab up --distance 1000km --rate 10G --accelerate
  longhaul exec --host b -- ib_write_bw -d longhaul0 -R &
  longhaul exec --host a -- ib_write_bw -d longhaul0 -R 10.77.0.2
  longhaul lab status
  longhaul counters
  longhaul lab down
  longhaul emulate --a eth1 --b eth2 --distance 1000km
  longhaul accelerate --lan eth1 --wan eth2 --rate 10G --distance 1000km
  longhaul top
  longhaul plan --distance 380km --rate 100G --op read";

#[derive(Subcommand)]
enum Command {
    /// Show the effect of distance on RDMA, and of accelerators on that
    Demo(demo::Args),
    /// Run an unmodified verbs program on a software RNIC: in a lab, or on this machine's network
    Exec(exec::Args),
    /// Print the environment of exec, for a shell, a CI job or a container
    Env(env::Args),
    /// Run hosts, accelerators and a fibre of any length on this machine
    #[command(subcommand)]
    Lab(lab::Command),
    /// Accelerate the traffic between two ports: a transparent box in the wire
    Accelerate(accelerate::Args),
    /// Emulate a fibre of any length between two ports: a transparent box in the wire
    Emulate(emulate::Args),
    /// Control running boxes: status, health, reload, drain
    #[command(subcommand)]
    Box(boxes::Command),
    /// Guard the carrier of the ports of the box that started this
    #[command(hide = true, name = longhaul_boxes::carrier::GUARD)]
    CarrierGuard,
    /// Show boxes, flows and paths of this machine, live
    Top(boxes::Top),
    /// Manage the keys by which boxes authenticate each other
    #[command(subcommand)]
    Key(key::Command),
    /// Print the counters of a lab's devices
    Counters(counters::Args),
    /// Print a capture of RoCEv2 traffic, one line per packet
    Decode(decode::Args),
    /// Explain a capture of RoCEv2 traffic: the limit and the stalls of each flow, and cures
    Doctor(doctor::Args),
    /// Plan a path: predict its goodput and limit, and choose settings
    Plan(Box<plan::Args>),
    /// Measure a campaign: programs over a grid of distances, losses, sizes and repeats
    Measure(measure::Args),
    /// Simulate a scenario file in virtual time
    Sim(sim::Args),
    /// Simulate a scenario file over ranges of its parameters
    Sweep(sweep::Args),
    /// Reproduce published tables and figures: predict, simulate, and compare
    Reproduce(reproduce::Args),
    /// Create tables, plots and an HTML report from result files
    Report(report::Args),
    /// Compare two result files
    Compare(compare::Args),
    /// Export result files: CSV, OpenMetrics, perftest's JSON, pscheduler's results
    Export(export::Args),
    /// Receive and send telescope data: WRITEs with immediate into placed memory
    #[command(subcommand)]
    Ingest(ingest::Command),
    /// Serve and load storage: NVMe over Fabrics, target and host
    #[command(subcommand)]
    Storage(storage::Command),
    /// Migrate a running guest between two QEMUs, and measure and verify it
    #[command(subcommand)]
    Migrate(migrate::Command),
    /// Measure this machine: cost of a packet in a box, speed of the software RNIC
    #[command(subcommand)]
    Bench(bench::Command),
}

/// Exit code for an invalid command line.
const USAGE: u8 = 2;

/// Parses the command line. The parser takes `-5km` for an option: the second attempt passes it to
/// the option before it, so that the error is about the value.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = output::with_flowing_epilogues(Cli::command());
    let mut parse = |arguments: Vec<OsString>| {
        let found = command.try_get_matches_from_mut(arguments)?;
        Cli::from_arg_matches(&found)
    };
    let given: Vec<OsString> = std::env::args_os().collect();
    parse(given.clone()).map_err(|error| match error.kind() {
        ErrorKind::UnknownArgument => match parse(problem::with_negative_values(given)) {
            Err(of_value) if of_value.kind() == ErrorKind::ValueValidation => of_value,
            _ => error,
        },
        _ => error,
    })
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => {
                eprintln!("longhaul: {}", problem::of_command_line(&error));
                return ExitCode::from(USAGE);
            }
        },
    };
    let outcome = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Env(args) => env::run(&args),
        Command::Lab(command) => lab::run(command),
        Command::Accelerate(args) => accelerate::run(args),
        Command::Emulate(args) => emulate::run(args),
        Command::Box(command) => boxes::run_command(&command),
        Command::CarrierGuard => boxes::guard(),
        Command::Top(args) => boxes::top(&args),
        Command::Key(command) => key::run(&command),
        Command::Counters(args) => counters::run(&args),
        Command::Ingest(command) => ingest::run(&command),
        Command::Storage(command) => storage::run(&command),
        Command::Migrate(command) => migrate::run(&command),
        Command::Decode(args) => return decode::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Report(args) => return report::run(&args),
        Command::Reproduce(args) => return reproduce::run(&args),
        Command::Compare(args) => return compare::run(&args),
        Command::Export(args) => return export::run(&args),
        Command::Plan(args) => return plan::run(&args),
        Command::Measure(args) => return measure::run(&args),
        Command::Sim(args) => return sim::run(&args),
        Command::Sweep(args) => return sweep::run(&args),
        Command::Bench(command) => return bench::run(&command),
    };
    match outcome {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("longhaul: {problem}");
            ExitCode::FAILURE
        }
    }
}
