//! `longhaul migrate`: live migration by QEMU.

mod between;
mod cures;
mod lab;
mod machines;
mod run;
mod summary;

use crate::problem::Problem;
use longhaul_boxes::number::{at_least, within};
use longhaul_migration::{Plan, Transport};
use longhaul_units::BitRate;
use std::process::ExitCode;
use std::time::Duration;

/// Seconds of a week.
const TIMEOUT_MAX: u64 = 604_800;

/// What is migrated.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Migrate a guest that dirties and checks its memory between two hosts of a lab
    Run(Box<run::Args>),
    /// Migrate the guest of a running QEMU to another one
    Between(between::Args),
}

/// Runs a migration.
pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Between(args) => between::run(args),
    }
}

/// How memory is to be moved.
#[derive(Debug, clap::Args)]
struct Options {
    /// What carries memory: rdma, rdma-pin-all, tcp or tcp-multifd
    #[arg(long, value_name = "TRANSPORT", default_value = "rdma-pin-all")]
    transport: Transport,
    /// TCP connections of tcp-multifd
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = within::<u8>(1..=255))]
    channels: u8,
    /// Set QEMU's downtime limit, in ms [default: as QEMU is set, 300]
    #[arg(long, value_name = "MS", value_parser = at_least(1))]
    downtime_limit: Option<u64>,
    /// Highest rate [default: run, the fibre's; between, as QEMU is set]
    #[arg(long, value_name = "RATE")]
    max_bandwidth: Option<BitRate>,
    /// Cancel the migration after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = within::<u64>(1..=TIMEOUT_MAX))]
    timeout: u64,
    /// Print one JSON object on one line instead of text
    #[arg(long)]
    json: bool,
}

impl Options {
    /// The migration to `to`, where the destination listens at `listen`. `rate` is the highest
    /// unless another is given.
    fn plan(&self, to: String, listen: String, rate: Option<BitRate>) -> Plan {
        Plan {
            transport: self.transport,
            to,
            listen,
            downtime_limit: self.downtime_limit.map(Duration::from_millis),
            max_bandwidth: self.max_bandwidth.or(rate).map(|rate| rate.as_bps() / 8),
            channels: self.channels,
            disk: None,
            timeout: Duration::from_secs(self.timeout),
        }
    }
}
