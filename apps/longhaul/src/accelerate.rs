//! `longhaul accelerate`: an accelerator between two ports.

mod detach;

use crate::boxes;
use crate::output;
use crate::problem::Problem;
use longhaul_boxes::settings::Acceleration;
use longhaul_boxes::{Entry, Given, PortName, Process};
use longhaul_units::Duration as Span;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  longhaul accelerate --lan eth1 --wan eth2
  longhaul accelerate --lan eth1 --wan eth2 --rate 10G --distance 1000km
  longhaul accelerate --lan eth1 --wan eth2 --rate 10G --distance 1000km --transport
      at both sites: loss is repaired
  longhaul accelerate --lan eth1 --wan eth2 --wan eth3 --rate 10G --distance 1000km --transport
      two paths: one may fail
  longhaul accelerate --lan eth1 --wan eth2 --wan eth3 --transport --key west.key --peer east=KEY
      and both encrypted
  longhaul accelerate --lan eth1 --wan eth2 --transport --far 10.2.0.0/16=10.2.0.1 \\
      --far 10.3.0.0/16=10.3.0.1     two far sites
  longhaul accelerate --lan eth1 --wan ethernet:eth2,02:00:00:00:00:07@100 --transport
      a leased circuit, in VLAN 100
  longhaul accelerate --lan tap:lh0 --wan memif:/run/wan.sock,master
  longhaul accelerate --lan eth1 --wan eth2 --lan eth3 --wan eth4      two pairs
  longhaul accelerate --lan eth1 --wan eth2 --transport --read-ahead nvme,rpc
      storage: writes take one round trip
  longhaul accelerate --lan eth1 --wan eth2 --mode tail
      completions with their usual meaning: the responder has the message
  longhaul accelerate --lan eth1 --wan eth2 --cores 4
      four cores share the ports; --cores 4-7: those processors
  longhaul accelerate --lan xdp:eth1 --wan xdp:eth2 --cores 4
      through AF_XDP, on interfaces with four queues
  longhaul accelerate --config /etc/longhaul/accelerate.toml
  longhaul accelerate --lan eth1 --wan eth2 --health 127.0.0.1
      health and metrics over HTTP, on port 9187
  longhaul box status accelerate --watch
  longhaul accelerate --config /etc/longhaul/accelerate.toml --replace
      takes the ports over from the running box, which drains before: no connection ends
  longhaul accelerate drain        before stopping it: connections continue without it";

const NOTES: &str = "\
RoCEv2 is accelerated untagged or behind one 802.1Q tag; all other frames pass through. Runs until
Ctrl-C or SIGTERM; SIGUSR1 prints the status, SIGHUP rereads the file of --config.";

const DOWN_EXAMPLES: &str = "\
Examples:
  longhaul accelerate down --config /etc/longhaul/accelerate-west.toml

A box that ends takes its ports down by itself, even if it is killed: this is for a service whose
processes were all killed. It leaves ports that another box has, and those of pairs with carrier
'off' or of AF_XDP with only=roce.";

#[derive(clap::Args)]
struct Down {
    /// Configuration file of the box
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(clap::Args)]
#[command(after_help = boxes::help(EXAMPLES, NOTES), args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    task: Option<Task>,
    /// Port to the accelerated hosts; one for each --wan
    #[arg(long, value_name = "PORT")]
    lan: Vec<PortName>,
    /// Port to the WAN path; with --transport several for one --lan are parallel paths, each with
    /// the given rate
    #[arg(long, value_name = "PORT")]
    wan: Vec<PortName>,
    /// Record the frames of the LAN port, both directions; repeat in the order of the pairs
    #[arg(long, value_name = "FILE")]
    pcap_lan: Vec<PathBuf>,
    /// Record the frames of the WAN port, both directions
    #[arg(long, value_name = "FILE")]
    pcap_wan: Vec<PathBuf>,
    /// Replace the running box of this name: it drains, this process takes its ports over, and it
    /// ends. Connections continue. Unless all of that succeeds, the running box continues
    #[arg(long)]
    replace: bool,
    /// With --replace: maximum time of draining, after which the running box continues
    #[arg(long, value_name = "TIME", requires = "replace", default_value = "10s")]
    drain: Span,
    /// With --replace: go to the background once the running box is replaced, for ExecReload= of a
    /// service
    #[arg(long, requires = "replace")]
    detach: bool,
    #[command(flatten)]
    settings: Acceleration,
    #[command(flatten)]
    process: Process,
}

/// Operations on a running box.
#[derive(clap::Subcommand)]
enum Task {
    /// Drain a box, so that it can be stopped without ending any connection
    #[command(after_help = boxes::DRAIN_EXAMPLES)]
    Drain(boxes::Drain),
    /// Take the ports of a box that does not run down, as it does when it ends
    #[command(after_help = DOWN_EXAMPLES)]
    Down(Down),
}

pub fn run(args: Args) -> Result<ExitCode, Problem> {
    let Args { task, lan, wan, pcap_lan, pcap_wan, settings, process, .. } = args;
    match task {
        Some(Task::Drain(drain)) => return boxes::drain(&drain),
        Some(Task::Down(args)) => return down(args),
        None => {}
    }
    if args.detach {
        return detach::replace(process.control.as_deref());
    }
    let given = Given { ports: [lan, wan], pcaps: [pcap_lan, pcap_wan] };
    let drain = Duration::from_nanos(args.drain.as_ns());
    let entry = if args.replace { Entry::Replacing { drain } } else { Entry::Fresh };
    boxes::print_end(longhaul_boxes::run(given, process, settings, entry, Problem::phrase))
}

fn down(args: Down) -> Result<ExitCode, Problem> {
    let process = Process { config: Some(args.config), ..Process::default() };
    let (down, failed) =
        longhaul_boxes::carrier::down(Given::default(), &process, &Acceleration::default())?;
    for interface in &down {
        output::print(&format!("{interface} is down\n"))?;
    }
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Problem::plain(failed.join("; "))) }
}

/// The box of these options, between two ports.
#[cfg(test)]
pub fn box_config(arguments: &str) -> longhaul_wan_box::Config {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }
    let arguments = std::iter::once("accelerate").chain(arguments.split_whitespace());
    let cli: Cli = clap::Parser::try_parse_from(arguments).unwrap();
    cli.args.settings.box_config().unwrap()
}
