//! Interoperability of two RDMA devices beyond the usual programs: empty messages, receivers that
//! are not ready, forbidden requests, dead peers, PSN wrap, data integrity under loss.
//!
//! Two processes, one per device of any kind: the program uses only the installed libibverbs. The
//! client requests and the server responds. A scenario is one function that both run, with its own
//! TCP connection and queue pairs; a failed scenario does not prevent the next.

mod connection;
mod delivery;
mod exhaustion;
mod meeting;
mod refusals;
mod verbs;

use clap::Parser;
use connection::Side;
use meeting::Meeting;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;

/// An error, described in a sentence.
type Fault = Box<dyn std::error::Error>;

/// Name and function; both processes run the same function.
type Scenario = (&'static str, fn(&mut Side<'_>) -> Result<(), Fault>);

/// Scenarios in running order.
const SCENARIOS: [&[Scenario]; 3] =
    [delivery::SCENARIOS, exhaustion::SCENARIOS, refusals::SCENARIOS];

#[derive(Parser)]
struct Cli {
    /// Name of the device
    #[arg(short)]
    device: String,
    /// Index of its address
    #[arg(short = 'x')]
    gid_index: u8,
    /// TCP port where the two meet
    #[arg(short, default_value_t = 18777)]
    port: u16,
    /// Only these scenarios, by parts of their names, with commas between
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Times that each runs
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Where the server is; without it, this is the server
    server: Option<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failures) => {
            println!("{failures} failed");
            ExitCode::FAILURE
        }
        Err(fault) => {
            eprintln!("verbs_probe: {fault}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of failed scenarios.
fn run(cli: &Cli) -> Result<usize, Fault> {
    let library = verbs::Library::open()?;
    let device = library.device(&cli.device)?;
    let meeting = match &cli.server {
        None => Meeting::Listening(TcpListener::bind((Ipv4Addr::UNSPECIFIED, cli.port))?),
        Some(server) => Meeting::At(format!("{server}:{}", cli.port)),
    };
    let wanted = |name: &str| {
        cli.only.is_empty() || cli.only.iter().any(|part| name.contains(part.as_str()))
    };
    let chosen = SCENARIOS.iter().flat_map(|group| group.iter()).filter(|(name, _)| wanted(name));
    let (mut ran, mut failures) = (0, 0);
    for (name, scenario) in chosen {
        for _ in 0..cli.times {
            let mut side = Side::new(&device, cli.gid_index, cli.server.is_some(), meeting.meet()?);
            let outcome = scenario(&mut side).and_then(|()| side.link.agree("the end"));
            match outcome {
                Ok(()) => println!("{name}: ok"),
                Err(fault) => {
                    failures += 1;
                    println!("{name}: {fault}");
                }
            }
            ran += 1;
        }
    }
    if ran == 0 {
        return Err("no scenario has such a name".into());
    }
    Ok(failures)
}
