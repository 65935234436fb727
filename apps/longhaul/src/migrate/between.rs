//! `longhaul migrate between`.

use super::summary::{Summary, text};
use super::{How, of_drive, of_qmp};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_migration::qmp::{Address, Qmp};
use longhaul_migration::{End, Plan, migrate};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul migrate between ./source.qmp ./destination.qmp --to 192.0.2.7:4455
  longhaul migrate between ./source.qmp 192.0.2.7:4444 --to 192.0.2.7:4455 --transport tcp --json
  longhaul migrate between a.qmp b.qmp --to 10.77.0.2:4455 --downtime-limit 1000 --max-bandwidth 8G

Each QEMU is named by the socket of its option '-qmp': a path, or HOST:PORT. The destination has the
source's machine and '-incoming defer'. Storage is not copied: both must see the same disks. Ctrl-C
and --timeout cancel the migration, and the guest runs on. Exit code: 0, it ended, even if by
--timeout; 1, something failed. What the figures mean: docs/migration.md.";

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// QMP of the QEMU that has the guest
    #[arg(value_name = "SOURCE-QMP")]
    source: Address,
    /// QMP of the QEMU that waits for it
    #[arg(value_name = "DEST-QMP")]
    destination: Address,
    /// Address at which the destination takes the guest's memory
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    to: String,
    /// Address at which the destination listens, if it is another one
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    listen: Option<String>,
    #[command(flatten)]
    how: How,
}

fn host_and_port(text: &str) -> Result<String, String> {
    let is_one = text
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    is_one
        .then(|| text.to_owned())
        .ok_or_else(|| "an address with a port is needed, as in 192.0.2.7:4455".to_owned())
}

/// Migrates.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let stop = stop_flag()?;
    let how = &args.how;
    let plan = Plan {
        transport: how.transport,
        to: args.to.clone(),
        listen: args.listen.clone().unwrap_or_else(|| args.to.clone()),
        downtime_limit: how.downtime_limit(),
        max_bandwidth: how.max_bandwidth.map(|rate| rate.as_bps() / 8),
        channels: how.channels,
        timeout: how.timeout(),
    };
    let connect = |end: End, address: &Address| {
        Qmp::connect(address).map_err(|error| of_qmp(&error, &format!("{end}: {error}")))
    };
    let mut source = connect(End::Source, &args.source)?;
    let mut destination = connect(End::Destination, &args.destination)?;
    let migration = migrate(&mut source, &mut destination, &plan, &stop);
    let migration = migration.map_err(|error| of_drive(&error))?;
    let summary = Summary::of(how.transport, &migration);
    output::print(&if how.json { summary.to_line()? } else { text(&summary) })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_to_an_address_with_a_port() {
        assert_eq!(host_and_port("192.0.2.7:4455").as_deref(), Ok("192.0.2.7:4455"));
        assert_eq!(host_and_port("[fd77::2]:4455").as_deref(), Ok("[fd77::2]:4455"));
        for text in ["192.0.2.7", ":4455", "a:b"] {
            assert!(host_and_port(text).unwrap_err().contains("with a port"), "{text}");
        }
    }
}
