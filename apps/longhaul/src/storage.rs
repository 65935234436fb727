//! `longhaul storage`: NVMe over Fabrics.

mod discover;
mod host;
mod spdk;
mod summary;
mod target;

use crate::problem::Problem;
use longhaul_nvme::host::HostError;
use longhaul_nvme::{DISCOVERY_NQN, Nqn, Status};
use longhaul_rdma::Device;
use longhaul_storage::host::AssociationError;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;

/// Name of a subsystem unless the user gives one.
const SUBSYSTEM: &str = "nqn.2026-01.longhaul:storage";

/// Side.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Serve namespaces in memory or files to hosts
    Target(Box<target::Args>),
    /// Generate load on a namespace, and measure and verify it
    Host(Box<host::Args>),
    /// List the subsystems that a target offers
    Discover(discover::Args),
}

/// Runs a side.
pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Target(args) => target::run(args),
        Command::Host(args) => host::run(args),
        Command::Discover(args) => discover::run(args),
    }
}

/// The software RNIC of this process.
fn device() -> Result<Device, Problem> {
    Device::from_env().map_err(|error| {
        Problem::new(format!("cannot open the device: {error}"), "run it with 'longhaul exec'")
    })
}

/// A target's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address(SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = text.parse::<SocketAddr>().ok();
        let without =
            || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, longhaul_nvme::PORT));
        with_port.or_else(without).map(Address).ok_or_else(|| {
            "an IP address is needed, with or without a port, as in 10.77.0.2:4420".to_owned()
        })
    }
}

/// A random UUID of version 4, for a host that has no identifier of its own.
fn random_id() -> [u8; 16] {
    let words = [0, 1].map(|word| RandomState::new().hash_one(word));
    let mut id = [0; 16];
    id[..8].copy_from_slice(&words[0].to_be_bytes());
    id[8..].copy_from_slice(&words[1].to_be_bytes());
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Name of the host with this UUID.
fn name_of_host(id: [u8; 16]) -> Result<Nqn, Problem> {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    let name = format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}");
    name.parse().map_err(|error| Problem::plain(format!("{error}")))
}

/// The error with its remedy.
fn problem(error: &AssociationError) -> Problem {
    let cause = error.to_string();
    let cure = match (error, error.connect_status().map(Status::code)) {
        (_, Some(code)) if code == Status::CONNECT_INVALID_HOST.code() => {
            "name a host that the target admits with --host-nqn, or admit this one there with \
             'longhaul storage target --host NQN'"
        }
        (_, Some(code)) if code == Status::CONNECT_INVALID_PARAMETERS.code() => {
            "list the subsystems with 'longhaul storage discover', and name one with --nqn"
        }
        (AssociationError::Connect { .. }, _) => {
            "start 'longhaul storage target' there first, or give it time with --wait SECONDS"
        }
        (AssociationError::Refused { .. }, _) => {
            "use fewer --jobs or a smaller --depth, or raise the target's --queues and --depth"
        }
        (
            AssociationError::Ended(_)
            | AssociationError::Lost { .. }
            | AssociationError::Controller(HostError::Silent(_)),
            _,
        ) => {
            "see whether the target still runs and whether the path loses frames, and give a \
             target that only is slow a longer --keep-alive"
        }
        _ => return Problem::plain(cause),
    };
    Problem::new(cause, cure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_default_port() {
        let parsed = |text: &str| text.parse::<Address>().map(|address| address.0.to_string());
        assert_eq!(parsed("10.77.0.2").unwrap(), "10.77.0.2:4420");
        assert_eq!(parsed("10.77.0.2:7").unwrap(), "10.77.0.2:7");
        assert_eq!(parsed("fd77::2").unwrap(), "[fd77::2]:4420");
        assert!(parsed("b").unwrap_err().contains("as in 10.77.0.2:4420"));
    }

    #[test]
    fn a_host_without_a_name_is_a_random_uuid() {
        let (one, other) = (random_id(), random_id());
        assert_ne!(one, other);
        let name = name_of_host(one).unwrap();
        assert_eq!((name.as_str().len(), one[6] >> 4, one[8] >> 6), (32 + 36, 4, 2));
        SUBSYSTEM.parse::<Nqn>().unwrap();
    }
}
