//! A program on the verbs API that compares every byte and every completion with the expected ones.
//!
//! Two processes, one per host, started by the tests through `longhaul exec`. They exchange
//! addresses and synchronise over TCP on a path that no box affects, usually the loopback
//! interface. The work that each posts is derived from the seed alone, so that each side knows the
//! other's.

mod flood;
mod kills;
mod plan;
mod refusal;
mod session;
mod stress;
mod transfer;
mod unready;

use clap::Parser;
use std::net::Ipv4Addr;
use std::process::ExitCode;

/// An error, described in a sentence.
type Fault = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    place: ProcessRole,
    #[command(subcommand)]
    task: Task,
}

/// Role of this process.
#[derive(clap::Args, Clone, Copy, Debug)]
struct ProcessRole {
    /// Listens for the other one; otherwise connects to it
    #[arg(long)]
    server: bool,
    /// TCP port on the loopback interface
    #[arg(long)]
    port: u16,
    /// Address of the server, if both hosts have their own loopback interface
    #[arg(long, default_value_t = Ipv4Addr::LOCALHOST)]
    meet: Ipv4Addr,
}

#[derive(clap::Subcommand)]
enum Task {
    /// WRITE, SEND and READ, both ways at once, in random order and sizes
    Transfer(transfer::Args),
    /// What a responder must refuse
    Refusal(refusal::Args),
    /// Every operation on many queue pairs, both ways, for a time
    Stress(stress::Args),
    /// WRITEs from the client, until all are done or the queue pair fails
    Flood(flood::Args),
    /// SENDs to receivers that are not ready until the test says so
    Unready(unready::Args),
    /// Every operation, both ways, on a queue pair that is made anew when it fails
    Kills(kills::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.task {
        Task::Transfer(args) => transfer::run(cli.place, args),
        Task::Refusal(args) => refusal::run(cli.place, args),
        Task::Stress(args) => stress::run(cli.place, args),
        Task::Flood(args) => flood::run(cli.place, args),
        Task::Unready(args) => unready::run(cli.place, args),
        Task::Kills(args) => kills::run(cli.place, args),
    };
    match outcome {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("integrity: {}: {fault}", if cli.place.server { "server" } else { "client" });
            ExitCode::FAILURE
        }
    }
}
