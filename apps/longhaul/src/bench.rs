//! `longhaul bench`: measurements of this machine.

mod boxes;
mod datapath;
mod profile;
mod reporting;
mod rnic;

use std::process::ExitCode;

/// Kind of measurement.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure the cost of a packet in a box, and the packet rate
    Datapath(Box<datapath::Args>),
    /// Test a box as RFC 2544 tests network devices
    Box(Box<boxes::Args>),
    /// Measure the speed of the software RNIC, and the cost of its parts
    Rnic(Box<rnic::Args>),
}

/// Runs the benchmark.
pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Datapath(args) => datapath::run(args),
        Command::Box(args) => boxes::run(args),
        Command::Rnic(args) => rnic::run(args),
    }
}
