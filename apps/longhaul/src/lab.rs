//! `longhaul lab`: hosts, accelerators and a fibre on one machine.
//!
//! `up` starts a daemon that drives accelerators and link between the hosts' ports; `exec` attaches
//! programs to those ports; `status` and `down` talk to the daemon over its control socket.

use crate::output;
use crate::problem::Problem;
use clap::Subcommand;
use longhaul_boxes::number::at_least;
use longhaul_lab::{
    Daemon, Error, Lab, LabDir, LabName, LabStatus, Lifetime, Network, Spec, Stderr, control,
};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

#[derive(Subcommand)]
pub enum Command {
    /// Start a lab and return once its hosts can be used
    #[command(after_help = UP_EXAMPLES)]
    Up(Up),
    /// Show hosts and switches, and each flow: RTT, stored bytes, pseudo-ACKs, retransmits, drops
    /// with reasons
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Status),
    /// Stop a lab; programs that still run in it lose their link
    Down(Down),
    /// Run a lab in the foreground until it is told to stop
    Run(Up),
    /// Run as the daemon of a lab, with its spec on standard input
    #[command(hide = true)]
    Serve,
    /// Hold the namespaces of a lab's hosts, for its daemon
    #[command(hide = true)]
    Hold,
}

const UP_EXAMPLES: &str = "\
Examples:
  longhaul lab up --distance 1000km --rate 10G
  longhaul lab up --distance 1000km --rate 10G --accelerate
  longhaul lab up --name lossy --distance 380km --loss 1e-4 --accelerate a
  longhaul lab up --hosts 5 --rate 1G --ecn                 many to one, with ECN marks
  longhaul lab up --hosts 4 --queue 2M --ecn 128K:1M:0.05
  longhaul lab up --back-to-back                            shared memory, no fibre

Hosts a, c, e ... are at one end of the fibre and b, d, f ... at the other: a and c reach each other
through their switch alone, a and b across the fibre.
Each host has its own network (namespaces): 'longhaul exec --host a -- ping b' crosses the fibre,
and so do ssh, iperf3 and all other traffic. Where this is not possible, a line says why, and
programs share this machine's network.";

const STATUS_EXAMPLES: &str = "\
Examples:
  longhaul lab status
  longhaul lab status --watch              each second, with rates
  longhaul lab status --name lossy --json";

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
    /// Name of the lab
    #[arg(long, default_value_t)]
    pub name: LabName,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Repeat every N seconds, with each host's rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = at_least(1))]
    pub watch: Option<u64>,
}

#[derive(clap::Args)]
pub struct Down {
    /// Name of the lab
    #[arg(long, default_value_t)]
    pub name: LabName,
}

pub fn run(command: Command) -> Result<ExitCode, Problem> {
    match command {
        Command::Up(up) => start(&up),
        Command::Status(args) => show_status(&args),
        Command::Down(args) => {
            let ended = control::ask_down(&LabDir::of(&args.name)?);
            if let Some(log) = ended.map_err(cannot_end)? {
                eprintln!("longhaul: lab '{}' logged: {log}", args.name);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(up) => run_in_foreground(&up.spec),
        Command::Hold => Ok(longhaul_lab::hold()),
        Command::Serve => Ok(longhaul_lab::serve(|error: Error| Problem::from(error).to_string())),
    }
}

/// A lab that is not up needs no start for its end.
fn cannot_end(error: Error) -> Problem {
    let Error::NotUp(_) = &error else { return error.into() };
    let up = LabDir::all_up().unwrap_or_default();
    let up: Vec<String> = up.iter().map(|lab| format!("'{}'", lab.name())).collect();
    let cure = match &up[..] {
        [] => "there is nothing to stop".to_string(),
        up => format!("name one that is up by --name: {}", up.join(", ")),
    };
    Problem::new(error.to_string(), cure)
}

fn show_status(args: &Status) -> Result<ExitCode, Problem> {
    let dir = LabDir::of(&args.name)?;
    let mut before: Option<LabStatus> = None;
    loop {
        let state = control::ask_status(&dir)?;
        let text = if args.json {
            output::to_json(&state)? + "\n"
        } else {
            let rates = before.as_ref().map_or_else(String::new, |before| rates(before, &state));
            output::wrapped(&(state.to_text() + &rates), output::columns())
        };
        let Some(seconds) = args.watch else {
            output::print(&text)?;
            return Ok(ExitCode::SUCCESS);
        };
        output::repaint(&text, before.is_none(), if args.json { "" } else { "---" })?;
        before = Some(state);
        sleep(Duration::from_secs(seconds));
    }
}

/// A line for each host: its frames per second between two states of one lab.
fn rates(before: &LabStatus, now: &LabStatus) -> String {
    let seconds = (now.uptime_s - before.uptime_s).max(1e-3);
    let per_s = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
    let hosts = before.hosts.iter().zip(&now.hosts).map(|(before, now)| {
        let (then, counters) = (&before.counters, &now.counters);
        format!(
            "host {} in the last {seconds:.1} s: {:.0} frames/s sent, {:.0} received\n",
            now.name,
            per_s(then.tx_frames, counters.tx_frames),
            per_s(then.rx_frames, counters.rx_frames)
        )
    });
    hosts.collect()
}

fn start(up: &Up) -> Result<ExitCode, Problem> {
    // The lab stays up even if the output fails.
    let lab = Lab::start(&up.spec, Lifetime::UntilDown)?;
    let network = lab.dir().network();
    lab.detach();
    tell_what_is_missing(&network?);
    let spec = &up.spec;
    let text = if up.json {
        output::to_json(spec)? + "\n"
    } else {
        let hosts: String = spec
            .hosts()
            .map(|host| format!("  host {host}  {}\n", spec.device_addresses(host)[0]))
            .collect();
        format!(
            "lab '{}' is up: {}\n{hosts}run programs with: longhaul exec{} --host a -- PROGRAM\n",
            spec.name,
            spec.summary(),
            spec.name.option("--lab"),
        )
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Says why hosts share this machine's network, unless they were to.
fn tell_what_is_missing(network: &Network) {
    if let Some(why) = network.missing() {
        eprintln!(
            "longhaul: hosts have no network of their own, and share this machine's (ping and TCP \
             do not cross the fibre): {why}"
        );
    }
}

/// A lab that lives as long as this process.
fn run_in_foreground(spec: &Spec) -> Result<ExitCode, Problem> {
    let daemon = Daemon::open(spec, Stderr::AsItIs)?;
    tell_what_is_missing(daemon.network());
    output::print(&format!(
        "lab '{}' is running: {}; Ctrl-C stops it\n",
        spec.name,
        spec.summary()
    ))?;
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
