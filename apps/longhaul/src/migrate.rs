//! `longhaul migrate`: live migration by QEMU.

mod between;
mod lab;
mod run;
mod summary;

use crate::problem::Problem;
use longhaul_boxes::number::{at_least, within};
use longhaul_migration::drive::DriveError;
use longhaul_migration::machine::MachineError;
use longhaul_migration::qmp::QmpError;
use longhaul_migration::{End, Transport};
use longhaul_units::BitRate;
use std::process::ExitCode;
use std::time::Duration;

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
struct How {
    /// What carries memory: rdma, rdma-pin-all, tcp or tcp-multifd
    #[arg(long, value_name = "TRANSPORT", default_value = "rdma-pin-all")]
    transport: Transport,
    /// TCP connections of tcp-multifd
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = within::<u8>(1..=255))]
    channels: u8,
    /// Longest pause of the guest that QEMU may plan with, in ms [default: QEMU's, 300]
    #[arg(long, value_name = "MS", value_parser = at_least(1))]
    downtime_limit: Option<u64>,
    /// Highest rate [default: run, the fibre's; between, as QEMU is set]
    #[arg(long, value_name = "RATE")]
    max_bandwidth: Option<BitRate>,
    /// Cancel the migration after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = at_least(1))]
    timeout: u64,
    /// Print one JSON object on one line instead of text
    #[arg(long)]
    json: bool,
}

impl How {
    fn downtime_limit(&self) -> Option<Duration> {
        self.downtime_limit.map(Duration::from_millis)
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

const WITHOUT_RDMA: &str = "this QEMU is built without RDMA: install one that has it (Debian's \
                            qemu-system-x86), or use --transport tcp";

/// A failed migration with its remedy.
fn of_drive(error: &DriveError) -> Problem {
    let cause = error.to_string();
    let cure = match error {
        DriveError::Qmp { error: QmpError::Refused { description, .. }, .. } => match description {
            text if text.contains("unknown migration protocol") => WITHOUT_RDMA,
            text if text.contains("RDMA") => {
                "check that both hosts have an RDMA device ('longhaul exec' gives one) and \
                     reach each other"
            }
            _ => return Problem::plain(cause),
        },
        DriveError::Qmp { error, .. } => return of_qmp(error, &cause),
        DriveError::NotReady { end: End::Source, .. } => {
            "it has no guest to migrate: name the QEMU that has it first"
        }
        DriveError::NotReady { end: End::Destination, .. } => {
            "start the destination with the source's machine and '-incoming defer'"
        }
        DriveError::NoCapability { name: "rdma-pin-all", .. } => WITHOUT_RDMA,
        DriveError::NoCapability { .. } => "use a newer QEMU, or another --transport",
        DriveError::Failed(_) => {
            "see what the destination's QEMU printed; check that it is reachable, and that both \
             have the same machine"
        }
        DriveError::NeverRuns => "see what the destination's QEMU printed",
    };
    Problem::new(cause, cure)
}

/// `cause` with the remedy of a failed conversation.
fn of_qmp(error: &QmpError, cause: &str) -> Problem {
    let cure = match error {
        QmpError::Connect { .. } => {
            "start QEMU with '-qmp unix:PATH,server=on,wait=off' and name that path"
        }
        QmpError::NoGreeting(_) => {
            "a QMP socket serves one client at a time: end the other (libvirt?), or give QEMU a \
             second '-qmp'"
        }
        QmpError::NotQmp { .. } => "name a socket of '-qmp', not of '-monitor' or of a guest",
        QmpError::Closed(_) => "see what that QEMU printed",
        QmpError::Refused { .. } | QmpError::Silent { .. } => return Problem::plain(cause),
    };
    Problem::new(cause, cure)
}

/// A failed machine with its remedy.
fn of_machine(end: End, error: &MachineError) -> Problem {
    let cause = format!("{end}: {error}");
    match error {
        MachineError::Silent { .. } => {
            Problem::new(cause, "with --accel kvm, try tcg; on a busy machine, less --memory")
        }
        MachineError::Qmp(error) => of_qmp(error, &cause),
        MachineError::Ended(_) | MachineError::Start(_) => Problem::plain(cause),
    }
}
