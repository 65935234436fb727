//! `longhaul storage discover`.

use super::{Address, DISCOVERY_NQN, device, name_of_host, problem, random_id};
use crate::output;
use crate::problem::Problem;
use longhaul_nvme::host::Identity;
use longhaul_nvme::{Nqn, SubsystemKind};
use longhaul_storage::host::{Settings, discover};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host a -- longhaul storage discover 10.77.0.2
  longhaul exec --host a -- longhaul storage discover 10.77.0.2:4420 --json";

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The target
    #[arg(value_name = "ADDRESS[:PORT]")]
    to: Address,
    /// Name of this host [default: a random UUID]
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<Nqn>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// A subsystem for programs.
#[derive(Serialize)]
struct Entry {
    subtype: &'static str,
    traddr: String,
    trsvcid: String,
    subnqn: String,
}

/// Lists the subsystems.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let host_id = random_id();
    let host = args.host_nqn.clone().map_or_else(|| name_of_host(host_id), Ok)?;
    let subsystem = DISCOVERY_NQN.parse().map_err(|e| Problem::plain(format!("{e}")))?;
    let settings = Settings {
        to: args.to.0,
        identity: Identity { host_id, host, subsystem },
        keep_alive: Duration::from_secs(60),
        connect_within: Duration::from_secs(60),
    };
    let found = discover(&device()?, &settings).map_err(|error| problem(&error))?;
    let entries = found.into_iter().map(|entry| Entry {
        subtype: match entry.kind {
            SubsystemKind::Discovery => "discovery subsystem",
            SubsystemKind::Nvm => "nvme subsystem",
        },
        traddr: entry.address,
        trsvcid: entry.service,
        subnqn: entry.subsystem.to_string(),
    });
    let entries: Vec<Entry> = entries.collect();
    if args.json {
        output::print(&(output::to_json(&entries)? + "\n"))?;
    } else {
        for Entry { subtype, traddr, trsvcid, subnqn } in entries {
            output::print(&format!("{subnqn}  {traddr}  {trsvcid}  ({subtype})\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
