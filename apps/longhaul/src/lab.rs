//! `longhaul lab`: hosts, accelerators and a fibre on one machine.
//!
//! `up` starts a daemon that drives accelerators and link between the hosts' ports; `exec` attaches
//! programs to those ports; `status` and `down` talk to the daemon over its control socket.

mod control;
mod daemon;
mod dir;
mod fabric;
mod log;
mod node;
mod spec;
mod status;

pub use daemon::{Lab, Lifetime};
pub use dir::{LabDir, preloadable};
#[cfg(test)]
pub use spec::box_config;
pub use spec::{Accelerate, HostName, LabName, Spec};

use crate::output;
use crate::problem::Problem;
use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum Command {
    /// Start a lab and return once its hosts can be used
    #[command(after_help = UP_EXAMPLES)]
    Up(Up),
    /// Show hosts and switches, and each flow: RTT, stored bytes, pseudo-ACKs, retransmits, drops
    /// with reasons
    Status(Status),
    /// Stop a lab; programs that still run in it see the cable pulled
    Down(Down),
    /// Run a lab in the foreground until it is told to stop
    Run(Up),
    /// The process behind a lab; its spec comes on standard input
    #[command(hide = true)]
    Serve,
}

const UP_EXAMPLES: &str = "\
Examples:
  longhaul lab up --distance 1000km --rate 10G
  longhaul lab up --distance 1000km --rate 10G --accelerate
  longhaul lab up --name lossy --distance 380km --loss 1e-4 --accelerate a
  longhaul lab up --hosts 5 --rate 1G --ecn                 many to one, with congestion marks
  longhaul lab up --hosts 4 --queue 2M --ecn 128K:1M:0.05

Hosts a, c, e ... are at one end of the fibre and b, d, f ... at the other: a and c reach each other through their
switch alone, a and b across the fibre.";

#[derive(clap::Args)]
pub struct Up {
    #[command(flatten)]
    pub spec: Spec,
    /// Print the lab as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Status {
    /// Which lab
    #[arg(long, default_value_t)]
    pub name: LabName,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Down {
    /// Which lab
    #[arg(long, default_value_t)]
    pub name: LabName,
}

pub fn run(command: Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Up(up) => start(&up),
        Command::Status(args) => {
            let state = control::ask_status(&LabDir::of(&args.name)?)?;
            let text =
                if args.json { output::to_json(&state)? + "\n" } else { status::to_text(&state) };
            output::print(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Down(args) => {
            control::ask_down(&LabDir::of(&args.name)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(up) => daemon::run_in_foreground(&up.spec),
        Command::Serve => Ok(daemon::serve()),
    }
}

fn start(up: &Up) -> Result<ExitCode, Problem> {
    // Whatever becomes of the output, the lab is up.
    Lab::start(&up.spec, Lifetime::UntilDown)?.detach();
    let spec = &up.spec;
    let text = if up.json {
        output::to_json(spec)? + "\n"
    } else {
        let hosts: String =
            spec.hosts().map(|host| format!("  host {host}  {}\n", host.ip())).collect();
        format!(
            "lab '{}' is up: {}\n{hosts}run programs with: longhaul exec --host a -- PROGRAM\n",
            spec.name,
            spec.summary()
        )
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
