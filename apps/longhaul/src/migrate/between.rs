//! `longhaul migrate between`.

use super::Options;
use super::summary::{Summary, text};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_migration::qmp::{Address, Qmp, is_host_and_port};
use longhaul_migration::{End, migrate};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul migrate between ./source.qmp ./destination.qmp --to 192.0.2.7:4455
  longhaul migrate between ./source.qmp 192.0.2.7:4444 --to 192.0.2.7:4455 --transport tcp --json
  longhaul migrate between a.qmp b.qmp --to 10.77.0.2:4455 --downtime-limit 1000 --max-bandwidth 8G

Each QEMU is named by the socket of its option '-qmp': a path, or HOST:PORT. The destination has the
source's machine and '-incoming defer'. Storage is not copied: both must see the same disks. Ctrl-C
and --timeout cancel the migration, and the guest runs on. Exit code: 0, it ended, even if by
--timeout; 1, something failed, or the guest was not seen to run; 130, it was interrupted. What the
figures mean: docs/migration.md.";

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
    options: Options,
}

fn host_and_port(text: &str) -> Result<String, String> {
    is_host_and_port(text)
        .then(|| text.to_owned())
        .ok_or_else(|| "an address with a port is needed, as in 192.0.2.7:4455".to_owned())
}

/// Migrates.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let stop = stop_flag()?;
    let options = &args.options;
    let listen = args.listen.as_ref().unwrap_or(&args.to);
    let plan = options.plan(args.to.clone(), listen.clone(), None);
    let connect = |end: End, address: &Address| {
        Qmp::connect(address).map_err(|error| Problem::from((end, error)))
    };
    let mut source = connect(End::Source, &args.source)?;
    let mut destination = connect(End::Destination, &args.destination)?;
    let migration = migrate(&mut source, &mut destination, &plan, &stop)?;
    let summary = Summary::of(options.transport, &migration);
    output::print(&if options.json { output::to_line(&summary)? } else { text(&summary) })?;
    Ok(summary.exit_code().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_to_an_address_with_a_port() {
        assert_eq!(host_and_port("192.0.2.7:4455").as_deref(), Ok("192.0.2.7:4455"));
        assert_eq!(host_and_port("[fd77::2]:4455").as_deref(), Ok("[fd77::2]:4455"));
        for text in ["192.0.2.7", ":4455", "a:b", "a:0"] {
            assert!(host_and_port(text).unwrap_err().contains("with a port"), "{text}");
        }
    }
}
