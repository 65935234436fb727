//! `longhaul storage target`.

use super::spdk::{self, Backing, Engine, Fabric, Listener, Subsystem};
use super::{SUBSYSTEM, device};
use crate::output;
use crate::problem::Problem;
use crate::signals::stop_flag;
use longhaul_boxes::number::within;
use longhaul_boxes::quantity::Size;
use longhaul_host::placement::{self, CoreList};
use longhaul_nvme::Nqn;
use longhaul_nvme::target::Hosts;
use longhaul_rdma::Attach;
use longhaul_storage::medium::{File, FileError, Medium};
use longhaul_storage::target::{News, Served, Server, Settings};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

const EXAMPLES: &str = "\
Examples:
  longhaul exec --host b -- longhaul storage target
  longhaul exec --host b -- longhaul storage target --namespace memory:4G --block 4096
  longhaul exec --host b -- longhaul storage target --namespace file:/data/disk.img:10G
  longhaul exec --host b -- longhaul storage target --namespace file:/dev/nvme0n1 --host NQN
  longhaul exec --host b -- longhaul storage target --namespace null:1T --depth 1024
  longhaul exec --host b -- longhaul storage target --engine spdk=/opt/spdk --fabric tcp

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
    /// What serves: longhaul, or spdk=DIR, nvmf_tgt of the SPDK built in DIR
    #[arg(long, value_name = "ENGINE", default_value_t)]
    engine: Engine,
    /// Fabric to the hosts: tcp with SPDK only
    #[arg(long, value_enum, default_value_t, value_name = "rdma|tcp", hide_possible_values = true)]
    fabric: Fabric,
    /// Address to serve with SPDK [default: that of the device of 'longhaul exec']
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Processors of SPDK: how many, or which [default: 1, the last]
    #[arg(long, value_name = "N|LIST")]
    cores: Option<CoreList>,
    /// Print the totals as a JSON object at the end, unless SPDK serves
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

impl NamespaceMedium {
    /// The block device of SPDK that has it.
    fn backing(&self) -> Result<Backing, Problem> {
        Ok(match self {
            NamespaceMedium::Memory(size) => Backing::Memory { bytes: size.bytes() },
            NamespaceMedium::Null(size) => Backing::Null { bytes: size.bytes() },
            NamespaceMedium::File(path, size) => {
                // SPDK creates none.
                open(path, *size)?;
                Backing::File { path: path.clone() }
            }
        })
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
    let sizes = Sizes::of(args)?;
    let stop = stop_flag()?;
    if let Engine::Spdk(dir) = &args.engine {
        return with_spdk(args, dir, sizes, &stop);
    }
    let only_spdk = [
        (args.fabric == Fabric::Tcp, "--fabric tcp"),
        (args.address.is_some(), "--address"),
        (args.cores.is_some(), "--cores"),
    ];
    if let Some((_, option)) = only_spdk.iter().find(|(given, _)| *given) {
        let cause = format!("Longhaul's target has nothing like {option}");
        return Err(Problem::new(cause, "leave it out, or give --engine spdk=DIR"));
    }
    let settings = settings(args, sizes)?;
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

/// Sizes in bytes, checked.
struct Sizes {
    in_capsule: u32,
    transfer: u32,
    /// Of a block, for each namespace.
    blocks: Vec<u32>,
}

impl Sizes {
    fn of(args: &Args) -> Result<Self, Problem> {
        let (in_capsule, transfer) = (args.in_capsule.bytes(), args.max_transfer.bytes());
        if in_capsule > 1 << 20 || in_capsule % 16 != 0 {
            let cause = "in-capsule data is a multiple of 16 bytes, at most 1 MiB";
            return Err(Problem::new(cause, "use for example --in-capsule 8K"));
        }
        if !transfer.is_power_of_two() || !(4096..=8 << 20).contains(&transfer) {
            let cause = "the largest transfer is a power of two, 4 KiB to 8 MiB";
            return Err(Problem::new(cause, "use for example --max-transfer 256K"));
        }
        let blocks = blocks(&args.block, args.namespace.len())?;
        Ok(Sizes { in_capsule: in_capsule as u32, transfer: transfer as u32, blocks })
    }
}

fn settings(args: &Args, sizes: Sizes) -> Result<Settings, Problem> {
    let namespaces = args.namespace.iter().zip(sizes.blocks);
    let namespaces = namespaces.map(|(medium, block)| served(medium, block));
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
        in_capsule: sizes.in_capsule,
        transfer_max: sizes.transfer,
    })
}

/// Has SPDK serve, until it ends or `stop` is set.
fn with_spdk(
    args: &Args,
    dir: &Path,
    sizes: Sizes,
    stop: &AtomicBool,
) -> Result<ExitCode, Problem> {
    let allowed = placement::allowed().map_err(|error| Problem::plain(error.to_string()))?;
    let cores = args.cores.clone().unwrap_or_default();
    cores.check(&allowed).map_err(|error| Problem::plain(error.to_string()))?;
    let processors = match cores {
        CoreList::Any(count) => allowed[allowed.len() - count.get()..].to_vec(),
        CoreList::These(processors) => processors,
    };
    let device = || Attach::from_env().map(|attach| attach.ip_addr());
    let address = args.address.map_or_else(device, Ok).map_err(|_| {
        let cure = "give --address, or run it with 'longhaul exec'";
        Problem::new("nothing says at which address to serve", cure)
    })?;
    let backings: Vec<Backing> =
        args.namespace.iter().map(NamespaceMedium::backing).collect::<Result<_, _>>()?;
    let subsystem = Subsystem {
        listener: Listener {
            nqn: args.nqn.clone(),
            fabric: args.fabric,
            at: SocketAddr::new(address, args.port),
        },
        hosts: args.host.clone(),
        namespaces: backings.into_iter().zip(sizes.blocks).collect(),
        queues: args.queues,
        depth: args.depth,
        in_capsule: sizes.in_capsule,
        transfer_max: sizes.transfer,
    };
    let job = spdk::Job {
        dir,
        program: "build/bin/nvmf_tgt",
        configuration: subsystem.of_target(),
        processors,
        memory: subsystem.memory(),
        options: Vec::new(),
    };
    let mut running = job.start()?;
    let has_ended = running.wait(Some("Target Listening on"), stop);
    if !has_ended {
        eprintln!("longhaul: serving {} at {address}, port {}, with SPDK", args.nqn, args.port);
        running.wait(None, stop);
    }
    let ended = running.end();
    if ended.is_success() { Ok(ExitCode::SUCCESS) } else { Err(spdk::failure(&ended)) }
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

/// Opens a file; creates it if a size is given.
fn open(path: &Path, size: Option<Size>) -> Result<File, Problem> {
    File::open(path, size.map(Size::bytes)).map_err(|error| {
        let cure = match error {
            FileError::InUse(_) => "end that program, or serve a copy",
            FileError::Io { .. } => "give a size to create it, as in file:PATH:10G",
        };
        Problem::new(error.to_string(), cure)
    })
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
            let file = open(path, *size)?;
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
