//! `longhaul accelerate`: an accelerator between two ports.

use crate::boxes::{self, Given, PortName, Process, Settings, by, plan, written};
use crate::fibre::ack_window_bytes;
use crate::problem::Problem;
use crate::quantity::{Distance, Size, memory, time};
use longhaul_accel::{Accelerator, Config};
use longhaul_units::{BitRate, Duration as Span};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Names of an accelerator's sides, in the order of its own.
const SIDES: [&str; 2] = ["lan", "wan"];

const EXAMPLES: &str = "\
Examples:
  longhaul accelerate --lan eth1 --wan eth2
  longhaul accelerate --lan eth1 --wan eth2 --rate 10G --distance 1000km
  longhaul accelerate --lan tap:lh0 --wan memif:/run/wan.sock,master
  longhaul accelerate --lan eth1 --wan eth2 --lan eth3 --wan eth4      two pairs
  longhaul accelerate --config /etc/longhaul/accelerate.toml
  longhaul box status accelerate --watch

PORT is an interface that exists (eth1), tap:NAME, which is made if need be, or memif:PATH[,master|slave]. Give interfaces
no addresses, and set their MTU to the hosts'. RoCEv2 is accelerated untagged or behind one 802.1Q tag; everything else
passes as it is. Runs until Ctrl-C or SIGTERM; SIGUSR1 prints the status.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port to the hosts that are accelerated; one for each --wan
    #[arg(long, value_name = "PORT")]
    lan: Vec<PortName>,
    /// Port to the long path
    #[arg(long, value_name = "PORT")]
    wan: Vec<PortName>,
    /// Record what passes the LAN port, both ways; for several pairs, in their order
    #[arg(long, value_name = "FILE")]
    pcap_lan: Vec<PathBuf>,
    /// Record what passes the WAN port, both ways
    #[arg(long, value_name = "FILE")]
    pcap_wan: Vec<PathBuf>,
    #[command(flatten)]
    settings: Acceleration,
    #[command(flatten)]
    process: Process,
}

/// What an accelerator is given.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default)]
struct Acceleration {
    /// Rate of the long path, which is not exceeded [default: as fast as the port takes frames]
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    rate: Option<BitRate>,
    /// Length of the long path, for the window
    #[arg(long)]
    #[serde(deserialize_with = "written")]
    distance: Option<Distance>,
    /// How far a host may run ahead of the other end [default: four times what is under way in a round trip, at least 16M;
    /// 64M without rate and distance]
    #[arg(long, value_name = "SIZE")]
    #[serde(deserialize_with = "written")]
    window: Option<Size>,
    /// Memory for the store [default: 1G]
    #[arg(long, value_parser = memory)]
    #[serde(deserialize_with = "memory_written")]
    memory: Option<Size>,
    /// Silence of the other end after which its flows are given up [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    #[serde(deserialize_with = "time_written")]
    give_up: Option<Span>,
    /// Flows known at once [default: 4096]
    #[arg(long, value_name = "N")]
    flows: Option<u32>,
}

fn memory_written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
    by(from, memory)
}

fn time_written<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Span>, D::Error> {
    by(from, time)
}

impl Settings for Acceleration {
    fn over(&self, below: &Self) -> Self {
        Acceleration {
            rate: self.rate.or(below.rate),
            distance: self.distance.or(below.distance),
            window: self.window.or(below.window),
            memory: self.memory.or(below.memory),
            give_up: self.give_up.or(below.give_up),
            flows: self.flows.or(below.flows),
        }
    }
}

impl Acceleration {
    fn config(&self) -> Config {
        let least = Config::default();
        let total_bytes_max = self.memory.map_or(least.total_bytes_max, Size::bytes);
        let window = match (self.window, self.rate, self.distance) {
            (Some(window), _, _) => window.bytes(),
            (None, Some(rate), Some(distance)) => ack_window_bytes(rate, Span::of_fibre_m(distance.metres())),
            _ => least.ack_window_bytes,
        };
        // What a requester may have outstanding beyond the window is as much again as by default.
        let flow_bytes_max =
            window.saturating_add(least.flow_bytes_max - least.ack_window_bytes).min(total_bytes_max);
        Config {
            flow_bytes_max,
            ack_window_bytes: window,
            total_bytes_max,
            wan_rate: self.rate,
            give_up_after: self.give_up.unwrap_or(least.give_up_after),
            flows_max: self.flows.unwrap_or(least.flows_max),
            seed: boxes::random_seed(),
            ..least
        }
    }

    fn accelerator(&self) -> Result<Accelerator, Problem> {
        Accelerator::new(self.config()).map_err(|e| Problem::plain(e.to_string()))
    }
}

pub fn run(args: Args) -> Result<ExitCode, Problem> {
    let Args { lan, wan, pcap_lan, pcap_wan, settings, process } = args;
    let given = Given { ports: [lan, wan], pcaps: [pcap_lan, pcap_wan] };
    let plan = plan("accelerate", SIDES, given, &process, &settings)?;
    boxes::run("accelerate", plan, Acceleration::accelerator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(arguments: &str) -> Acceleration {
        let arguments = std::iter::once("accelerate").chain(arguments.split_whitespace());
        Cli::try_parse_from(arguments).unwrap().args.settings
    }

    #[test]
    fn the_window_follows_rate_and_distance_unless_it_is_given() {
        let window = |arguments| settings(arguments).config().ack_window_bytes;
        assert_eq!(window(""), Config::default().ack_window_bytes);
        assert_eq!(window("--rate 10G --distance 1000km"), 50_000_000);
        assert_eq!(window("--rate 10G --distance 1km"), 16 << 20);
        assert_eq!(window("--rate 10G --distance 1000km --window 7M"), 7 << 20);
    }

    #[test]
    fn what_it_is_given_can_always_be_built() {
        for arguments in
            ["", "--memory 64K", "--rate 400G --distance 20000km", "--window 4K", "--memory 1T --flows 1"]
        {
            assert!(settings(arguments).accelerator().is_ok(), "{arguments}");
        }
        let refusal = settings("--flows 0").accelerator().err().unwrap().to_string();
        assert!(refusal.contains("flows_max is 0; it must lie between 1 and"), "{refusal}");
    }

    #[test]
    fn the_example_file_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples/accelerate.toml");
        let process = Process { config: Some(file.into()), ..Process::default() };
        let plan = plan("accelerate", SIDES, Given::default(), &process, &settings("")).unwrap();
        let [storage, compute] = &plan.pairs[..] else { panic!("{plan:?}") };
        assert_eq!(storage.settings, settings("--rate 10G --distance 1000km --memory 2G"));
        assert_eq!(compute.settings, settings("--rate 25G --distance 1000km --memory 2G"));
        // A service has a user, and may not choose another.
        assert_eq!((&*storage.name, plan.user.as_deref()), ("storage", None));
    }

    #[test]
    fn every_setting_can_be_written_in_a_file() {
        let file = "rate = '1G'\ndistance = '5km'\nwindow = '1M'\nmemory = '2G'\ngive_up = '3s'\nflows = 9";
        let arguments = "--rate 1G --distance 5km --window 1M --memory 2G --give-up 3s --flows 9";
        assert_eq!(toml::from_str::<Acceleration>(file).unwrap(), settings(arguments));
        assert!(toml::from_str::<Acceleration>("memory = '1'").is_err(), "too little");
    }
}
