//! `longhaul storage target`.

use super::{SUBSYSTEM, device};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::Size;
use longhaul_nvme::Nqn;
use longhaul_nvme::target::Hosts;
use longhaul_storage::medium::{File, FileError, Medium};
use longhaul_storage::target::{News, Served, Server, Settings};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- longhaul storage target
  longhaul exec --host b -- longhaul storage target --namespace memory:4G --block 4096
  longhaul exec --host b -- longhaul storage target --namespace file:/data/disk.img:10G
  longhaul exec --host b -- longhaul storage target --namespace file:/dev/nvme0n1 --host NQN
  longhaul exec --host b -- longhaul storage target --namespace null:1T --depth 1024

It serves until Ctrl-C. Namespaces are numbered from 1, in the order given. A write to a file is
kept by the kernel when it is completed, and by the file once a flush is completed; memory is lost
at the end. Exit code: 0, it ended as asked; 1, something failed. How to use it: docs/storage.md.";

/// Command line.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A namespace: memory:SIZE, file:PATH, file:PATH:SIZE (created if it is not there) or
    /// null:SIZE (discards writes); may be repeated
    #[arg(long, value_name = "MEDIUM", default_value = "memory:1G")]
    namespace: Vec<NamespaceMedium>,
    /// Bytes of a block: 512, 1024, 2048, 4096 and so on to 65536; once for all namespaces, or
    /// once for each
    #[arg(long, alias = "block-size", value_name = "BYTES", default_value = "512")]
    #[arg(value_parser = block)]
    block: Vec<u32>,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = SUBSYSTEM)]
    nqn: Nqn,
    /// Admit the host with this name; may be repeated [default: admit all]
    #[arg(long, value_name = "NQN")]
    host: Vec<Nqn>,
    /// Port of the RDMA connection manager
    #[arg(long, value_name = "N", default_value_t = longhaul_nvme::PORT)]
    port: u16,
    /// I/O queues that a host may have
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = within::<u16>(1..=1024))]
    queues: u16,
    /// Outstanding commands of a queue
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = within::<u16>(31..=4095))]
    depth: u16,
    /// In-capsule data: writes up to this size need no READ of the host's memory
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    in_capsule: Size,
    /// Largest transfer of a command, a power of two
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    max_transfer: Size,
    /// Print the totals as a JSON object at the end
    #[arg(long)]
    json: bool,
}

/// Medium of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamespaceMedium {
    Memory(Size),
    Null(Size),
    File(PathBuf, Option<Size>),
}

impl FromStr for NamespaceMedium {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse::<Size>().map_err(|error| error.to_string());
        match text.split_once(':') {
            Some(("memory", bytes)) => Ok(NamespaceMedium::Memory(size(bytes)?)),
            Some(("null", bytes)) => Ok(NamespaceMedium::Null(size(bytes)?)),
            Some(("file", place)) => {
                // A path may have colons.
                let sized = place.rsplit_once(':').and_then(|(path, tail)| {
                    Some(NamespaceMedium::File(path.into(), Some(size(tail).ok()?)))
                });
                Ok(sized.unwrap_or_else(|| NamespaceMedium::File(place.into(), None)))
            }
            _ => Err("memory:SIZE, file:PATH, file:PATH:SIZE or null:SIZE is needed".to_owned()),
        }
    }
}

/// Parses a block size.
fn block(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two());
    bytes
        .filter(|bytes| (512..=65536).contains(bytes))
        .ok_or_else(|| "a power of two from 512 to 65536 is needed".to_owned())
}

/// Totals for programs.
#[derive(Serialize)]
struct Summary {
    commands: u64,
    read_bytes: u64,
    written_bytes: u64,
    in_capsule_writes: u64,
    invalidations: u64,
    connections: u64,
}

/// Runs the target.
pub fn run(args: &Args) -> Result<ExitCode, Problem> {
    let settings = settings(args)?;
    let stop = stop_flag()?;
    let device = device()?;
    let mut server = Server::listen(&device, settings).map_err(|error| {
        Problem::new(error.to_string(), "if another program listens there, choose another --port")
    })?;
    let address = device.engine().attach().ip_addr();
    eprintln!("longhaul: serving {} at {address}, port {}", args.nqn, args.port);
    server.run(&stop, tell).map_err(|error| Problem::plain(error.to_string()))?;
    let totals = server.totals();
    let summary = Summary {
        commands: totals.commands,
        read_bytes: totals.read_bytes,
        written_bytes: totals.written_bytes,
        in_capsule_writes: totals.in_capsule_writes,
        invalidations: totals.invalidations,
        connections: totals.connections,
    };
    if args.json {
        output::print(&(output::to_json(&summary)? + "\n"))?;
    } else {
        output::print(&format!(
            "{} commands on {} connections: {} bytes read, {} written\n",
            summary.commands, summary.connections, summary.read_bytes, summary.written_bytes
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(news: News) {
    match news {
        News::Connected { peer } => eprintln!("longhaul: {peer} connected a queue"),
        News::Refused { peer, reason } => eprintln!("longhaul: refused {peer}: {reason}"),
        News::Ending { peer, reason } => eprintln!("longhaul: disconnecting {peer}: {reason}"),
        News::Ended { peer, status: Some(status) } => {
            eprintln!("longhaul: lost a queue of {peer}: {status}");
        }
        News::Ended { peer, status: None } => eprintln!("longhaul: {peer} disconnected a queue"),
    }
}

fn settings(args: &Args) -> Result<Settings, Problem> {
    let (in_capsule, transfer) = (args.in_capsule.bytes(), args.max_transfer.bytes());
    if in_capsule > 1 << 20 || in_capsule % 16 != 0 {
        let cure = "use for example --in-capsule 8K";
        return Err(Problem::new("in-capsule data is a multiple of 16 bytes, at most 1 MiB", cure));
    }
    if !transfer.is_power_of_two() || !(4096..=8 << 20).contains(&transfer) {
        let cure = "use for example --max-transfer 256K";
        return Err(Problem::new("the largest transfer is a power of two, 4 KiB to 8 MiB", cure));
    }
    let blocks = blocks(&args.block, args.namespace.len())?;
    let namespaces = args.namespace.iter().zip(blocks).map(|(medium, block)| served(medium, block));
    Ok(Settings {
        port: args.port,
        nqn: args.nqn.clone(),
        hosts: match args.host.is_empty() {
            true => Hosts::Any,
            false => Hosts::Only(args.host.iter().cloned().collect()),
        },
        namespaces: namespaces.collect::<Result<_, _>>()?,
        queues: args.queues,
        entries: args.depth + 1,
        in_capsule: in_capsule as u32,
        transfer_max: transfer as u32,
    })
}

/// The block size of each of `count` namespaces.
fn blocks(given: &[u32], count: usize) -> Result<Vec<u32>, Problem> {
    match given {
        [of_all] => Ok(vec![*of_all; count]),
        _ if given.len() == count => Ok(given.to_vec()),
        _ => {
            let cause = format!("{} block sizes are no match for {count} namespaces", given.len());
            Err(Problem::new(cause, "give --block once, or once for each --namespace"))
        }
    }
}

fn served(medium: &NamespaceMedium, block: u32) -> Result<Served, Problem> {
    let block_shift = block.ilog2() as u8;
    let (medium, bytes) = match medium {
        NamespaceMedium::Memory(size) => {
            let bytes = usize::try_from(size.bytes())
                .map_err(|_| Problem::plain("this machine cannot address so much memory"))?;
            (Medium::memory(bytes), size.bytes())
        }
        NamespaceMedium::Null(size) => (Medium::Null, size.bytes()),
        NamespaceMedium::File(path, size) => {
            let file = File::open(path, size.map(Size::bytes)).map_err(|error| {
                let cure = match error {
                    FileError::InUse(_) => "end that program, or serve a copy",
                    FileError::Io { .. } => "give a size to create it, as in file:PATH:10G",
                };
                Problem::new(error.to_string(), cure)
            })?;
            let bytes = file.bytes();
            (Medium::File(file), bytes)
        }
    };
    if bytes < block.into() {
        let cause = format!("a namespace of {bytes} bytes has no block of {block} bytes");
        return Err(Problem::new(cause, "use a larger medium"));
    }
    Ok(Served { medium, bytes, block_shift })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_named() {
        let parsed = |text: &str| text.parse::<NamespaceMedium>();
        let size = Size::from_bytes;
        assert_eq!(parsed("memory:1G"), Ok(NamespaceMedium::Memory(size(1 << 30))));
        assert_eq!(parsed("null:1M"), Ok(NamespaceMedium::Null(size(1 << 20))));
        assert_eq!(parsed("file:/a"), Ok(NamespaceMedium::File("/a".into(), None)));
        let created = NamespaceMedium::File("/a".into(), Some(size(4096)));
        assert_eq!(parsed("file:/a:4K"), Ok(created));
        let disk = "/dev/disk/by-path/pci-0000:01:00.0";
        let device = NamespaceMedium::File(disk.into(), None);
        assert_eq!(parsed(&format!("file:{disk}")), Ok(device));
        for text in ["", "memory", "disk:1G", "memory:banana"] {
            parsed(text).unwrap_err();
        }
        assert_eq!((block("4096"), block("513").is_err()), (Ok(4096), true));
    }

    #[test]
    fn a_block_size_is_for_all_namespaces_or_for_one() {
        assert_eq!(blocks(&[512], 3).ok(), Some(vec![512; 3]));
        assert_eq!(blocks(&[512, 4096], 2).ok(), Some(vec![512, 4096]));
        assert!(blocks(&[512, 4096], 3).is_err());
    }
}
