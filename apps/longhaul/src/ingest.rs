//! `longhaul ingest`: telescope data by WRITE with immediate into placed memory.

mod health;
mod presence;
mod receive;
mod replay;
mod send;
mod summary;

use longhaul_ingest::device::ibverbs::Ibverbs;
use longhaul_ingest::device::software::Software;
use std::process::ExitCode;

use crate::problem::Problem;

/// Side.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Receive windows of messages from stations, with presence for each message
    Receive(Box<receive::Args>),
    /// Send as a station does: subbands, packet rate, jitter, gaps
    Send(Box<send::Args>),
}

/// Runs a side.
pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Receive(args) => receive::run(args),
        Command::Send(args) => send::run(args),
    }
}

/// The software RNIC of this process.
fn software() -> Result<Software, Problem> {
    Software::open().map_err(|error| {
        let cure = "run it with 'longhaul exec', or name a device of libibverbs with --device";
        Problem::new(error.to_string(), cure)
    })
}

/// A device of libibverbs.
fn ibverbs(name: &str) -> Result<Ibverbs, Problem> {
    Ibverbs::open(name).map_err(|error| Problem::plain(error.to_string()))
}
