//! `longhaul emulate`: a fibre of any length between two ports.

use crate::boxes;
use crate::problem::Problem;
use longhaul_boxes::settings::Emulation;
use longhaul_boxes::{Entry, Given, PortName, Process};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul emulate --a eth1 --b eth2 --distance 1000km
  longhaul emulate --a eth1 --b eth2 --delay 5ms --rate 10G --loss 1e-4
  longhaul emulate --a eth1 --b eth2 --loss 1e-3 --loss-burst 20     # 20 in a row on average
  longhaul emulate --a eth1 --b eth2 --reorder 0.01 --reorder-delay 200us --duplicate 1e-3 \\
      --corrupt 1e-5
  longhaul emulate --a eth1 --b eth2 --rule 'read-response from a: lose 1%' \\
      --rule 'roce qpn 0x17: mark'
  longhaul emulate --a eth1 --b eth2 --rule 'write from a: corrupt icrc once' \\
      --rule 'any: delay 0-100us'
  longhaul emulate --a eth1 --b eth2 --at '10s cut 50ms' --at '5s-20s loss 1e-3' \\
      --at '60s delay 20ms'
  longhaul emulate --a tap:lh0 --b tap:lh1 --distance 380km --queue 2M --ecn
  longhaul emulate --a eth1 --b eth2 --a eth3 --b eth4 --distance 100km      two fibres
  longhaul emulate --a dpdk:0000:3b:00.0 --b dpdk:0000:3b:00.1 --distance 100km --rate 100G
  longhaul emulate --a eth1 --b eth2 --distance 100km --cores 2,3
      one core per direction: processors 2 and 3
  longhaul emulate --config /etc/longhaul/emulate.toml
  longhaul box status emulate --json";

const NOTES: &str = "\
All frames are delayed, not only RoCEv2. Runs until Ctrl-C or SIGTERM; SIGUSR1 prints the status.";

#[derive(clap::Args)]
#[command(after_help = boxes::help(EXAMPLES, NOTES))]
pub struct Args {
    /// Port at one end; one for each --b
    #[arg(long, value_name = "PORT")]
    a: Vec<PortName>,
    /// Port at the other end
    #[arg(long, value_name = "PORT")]
    b: Vec<PortName>,
    /// Record the frames of port a, both directions; repeat in the order of the pairs
    #[arg(long, value_name = "FILE")]
    pcap_a: Vec<PathBuf>,
    /// Record the frames of port b, both directions
    #[arg(long, value_name = "FILE")]
    pcap_b: Vec<PathBuf>,
    #[command(flatten)]
    settings: Emulation,
    #[command(flatten)]
    process: Process,
}

pub fn run(args: Args) -> Result<ExitCode, Problem> {
    let Args { a, b, pcap_a, pcap_b, settings, process } = args;
    let given = Given { ports: [a, b], pcaps: [pcap_a, pcap_b] };
    boxes::print_end(longhaul_boxes::run(given, process, settings, Entry::Fresh, Problem::phrase))
}
