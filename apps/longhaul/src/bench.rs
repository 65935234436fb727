//! `longhaul bench`: measurements of this machine.

mod datapath;

use std::process::ExitCode;

/// What is measured.
#[derive(clap::Subcommand)]
pub enum Command {
    /// What a packet costs in a box, and how many it passes on
    Datapath(Box<datapath::Args>),
}

/// Runs it.
pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Datapath(args) => datapath::run(args),
    }
}
