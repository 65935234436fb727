//! `longhaul bench`: measurements of this machine.

mod datapath;
mod machine;
mod pinning;
mod profile;
mod reporting;
mod rnic;

use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub enum Command {
    /// What a packet costs in a box, and how many it passes on
    Datapath(Box<datapath::Args>),
    /// How fast the software RNIC sends and receives, and what its time goes into
    Rnic(Box<rnic::Args>),
}

/// Runs the benchmark.
pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Datapath(args) => datapath::run(args),
        Command::Rnic(args) => rnic::run(args),
    }
}
