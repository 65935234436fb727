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
mod exec;
mod key;
mod lab;
mod output;
mod plan;
mod problem;
mod report;
mod reproduce;
#[cfg(test)]
mod same_box;
mod sim;
mod sweep;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
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
    /// Show what distance does to RDMA, and what accelerators do about it
    Demo(demo::Args),
    /// Run an unmodified verbs program on the software RNIC of a lab host
    Exec(exec::Args),
    /// Hosts, accelerators and a fibre of any length on this machine
    #[command(subcommand)]
    Lab(lab::Command),
    /// Accelerate what passes between two ports: a transparent box in the wire
    Accelerate(accelerate::Args),
    /// Put a fibre of any length between two ports: a transparent box in the wire
    Emulate(emulate::Args),
    /// Boxes that run: their status and health, another configuration, draining
    #[command(subcommand)]
    Box(boxes::Command),
    /// Boxes, flows and paths of this machine, live
    Top(boxes::Top),
    /// Keys by which boxes know each other
    #[command(subcommand)]
    Key(key::Command),
    /// Print what the devices of a lab's hosts have counted
    Counters(counters::Args),
    /// Print a capture of RoCEv2 traffic, one line per packet
    Decode(decode::Args),
    /// Explain a capture of RoCEv2 traffic: what limits each flow, where it stalls, what to change
    Doctor(doctor::Args),
    /// Plan a path: what it will give, what limits it, what to set
    Plan(Box<plan::Args>),
    /// Simulate a scenario file in virtual time
    Sim(sim::Args),
    /// Simulate a scenario file over ranges of its parameters
    Sweep(sweep::Args),
    /// Reproduce published tables and figures: predicted, simulated, and how far off
    Reproduce(reproduce::Args),
    /// Make tables, plots and an HTML report from files of results
    Report(report::Args),
    /// Hold two files of results against each other
    Compare(compare::Args),
    /// Measure on this machine: what a packet costs in a box
    #[command(subcommand)]
    Bench(bench::Command),
}

/// Exit code for an invalid command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => {
                eprintln!("longhaul: {}", problem::on_one_line(&error.to_string()));
                return ExitCode::from(USAGE);
            }
        },
    };
    let outcome = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Lab(command) => lab::run(command),
        Command::Accelerate(args) => accelerate::run(args),
        Command::Emulate(args) => emulate::run(args),
        Command::Box(command) => boxes::run_command(&command),
        Command::Top(args) => boxes::top(&args),
        Command::Key(command) => key::run(&command),
        Command::Counters(args) => counters::run(&args),
        Command::Decode(args) => return decode::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Report(args) => return report::run(&args),
        Command::Reproduce(args) => return reproduce::run(&args),
        Command::Compare(args) => return compare::run(&args),
        Command::Plan(args) => return plan::run(&args),
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
