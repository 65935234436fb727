//! `longhaul lab`: hosts, accelerators and a fibre on one machine.
//!
//! `up` starts a daemon that drives accelerators and link between the hosts' ports; `exec` attaches
//! programs to those ports; `status` and `down` talk to the daemon over its control socket.

use crate::output;
use crate::problem::Problem;
use clap::Subcommand;
use longhaul_lab::{Daemon, Error, Lab, LabDir, LabName, Lifetime, Spec, Stderr, control};
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

Hosts a, c, e ... are at one end of the fibre and b, d, f ... at the other: a and c reach each other
through their switch alone, a and b across the fibre.";

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
            let text = if args.json { output::to_json(&state)? + "\n" } else { state.to_text() };
            output::print(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Down(args) => {
            control::ask_down(&LabDir::of(&args.name)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(up) => run_in_foreground(&up.spec),
        Command::Serve => Ok(longhaul_lab::serve(|error: Error| Problem::from(error).to_string())),
    }
}

fn start(up: &Up) -> Result<ExitCode, Problem> {
    // The lab stays up even if the output fails.
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

/// A lab that lives as long as this process.
fn run_in_foreground(spec: &Spec) -> Result<ExitCode, Problem> {
    let daemon = Daemon::open(spec, Stderr::AsItIs)?;
    output::print(&format!("lab '{}' runs: {}; Ctrl-C ends it\n", spec.name, spec.summary()))?;
    Ok(daemon.run())
}

/// The box at the first site of a lab of these options.
#[cfg(test)]
pub fn box_config(arguments: &str) -> longhaul_wan_box::Config {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        up: Up,
    }
    let arguments = std::iter::once("up").chain(arguments.split_whitespace());
    let cli: Cli = clap::Parser::try_parse_from(arguments).unwrap();
    longhaul_lab::box_config(&cli.up.spec, 0)
}
