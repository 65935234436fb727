//! `longhaul plan`: predicts the goodput of a path, NIC and workload, its limit, and the settings.

mod answer;
mod plot;
mod probe;
mod sizes;
mod text;

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::number::{at_least, within};
use longhaul_boxes::quantity::{Distance, probability};
use longhaul_planner::figures::{rate, size};
use longhaul_planner::{
    Accelerator, Invalid, MTUS, NicError, NicProfile, Op, Path, Plan, Request, Row, UseCase,
    interface_mtu, roce_mtu,
};
use longhaul_units::{BitRate, Duration as Span, QuantityError};
use probe::Measured;
use serde::Serialize;
use sizes::Sizes;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul plan --distance 380km --rate 100G --op read --sizes 4K..8M
  longhaul plan --rtt 10ms --rate 100G --op write --qps 4 --target 90G --use storage
  longhaul plan --distance 1000km --rate 10G --nic rxe --loss 1e-5 --svg goodput.svg
  longhaul plan --distance 380km --nic mynic.toml \\
      --json | jq '.rows[] | {size, limit: .prediction.limit}'
  longhaul plan --answer                 at the far host, then here:
  longhaul plan --probe far.example.org --rate 100G

The model, its constants and their sources: docs/spec/planner.md. NIC profiles: connectx6,
connectx6-adaptive, connectx6-apn, rxe, longhaul, ideal, das6, or a changed copy of
labs/nics/connectx6.toml. --use is one of cps, storage, database, migration, telescope, training.";

const USAGE_LINES: &str = "\
longhaul plan --distance <DISTANCE> [OPTIONS]
       longhaul plan --rtt <TIME> [OPTIONS]
       longhaul plan --probe <HOST[:PORT]> [OPTIONS]
       longhaul plan --answer [<PORT>]";

/// Command line of `longhaul plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE_LINES)]
#[command(
    group = clap::ArgGroup::new("path")
        .required(true)
        .args(["distance", "rtt", "probe", "answer"])
)]
pub struct Args {
    /// Length of the fibre, at 5 µs per km one way
    #[arg(long)]
    distance: Option<Distance>,
    /// Round-trip time, instead of --distance
    #[arg(long, value_name = "TIME", value_parser = round_trip)]
    rtt: Option<Span>,
    /// Measure RTT, loss and MTU to a host that runs 'longhaul plan --answer'
    #[arg(long, value_name = "HOST[:PORT]")]
    probe: Option<String>,
    /// Answer the probes of another host's 'longhaul plan --probe', until Ctrl-C
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = probe::PORT_TEXT)]
    #[arg(value_parser = within::<u16>(1..=u16::MAX.into()))]
    answer: Option<u16>,
    /// Number of probes for RTT and loss, ten milliseconds apart
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = within::<u32>(10..=100_000))]
    probes: u32,
    /// Rate of the path [default: the NIC's]
    #[arg(long)]
    rate: Option<BitRate>,
    /// One-way delay of equipment beyond the fibre
    #[arg(long, value_name = "TIME", default_value = "0")]
    extra: Span,
    /// Probability that a packet is lost [default: 0, or as measured]
    #[arg(long, value_parser = loss)]
    loss: Option<f64>,
    /// Path MTU of RDMA: 256, 512, 1024, 2048 or 4096 [default: 4096, or as measured]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Use IPv6 headers
    #[arg(long)]
    ipv6: bool,
    /// Operation of the program: write, send, read or atomic [default: write, or the main one of
    /// --use]
    #[arg(long)]
    op: Option<Op>,
    /// Message sizes, in steps of two [default: 4K..8M, or those of --use]
    #[arg(long, value_name = "FROM..TO")]
    sizes: Option<Sizes>,
    /// NIC profile, by name or as a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "connectx6")]
    nic: String,
    /// Number of queue pairs
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = within::<u32>(1..=1 << 24))]
    qps: u32,
    /// Messages that each queue pair keeps posted
    #[arg(long, value_name = "N", default_value_t = 128)]
    #[arg(value_parser = within::<u32>(1..=1 << 24))]
    tx_depth: u32,
    /// Messages per completion [default: perftest's: 100, at most the depth, and 1 above 8 KiB]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = within::<u32>(1..=1 << 24))]
    cq_mod: Option<u32>,
    /// Total messages per queue pair, as perftest's -n [default: unlimited]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = at_least(1))]
    iterations: Option<u64>,
    /// Target goodput [default: 90 % of the rate less headers]
    #[arg(long, value_name = "RATE")]
    target: Option<BitRate>,
    /// Purpose: implies operation, sizes and target, and prints settings of its programs
    #[arg(long = "use", value_name = "USE")]
    use_case: Option<UseCase>,
    /// RTT between a host and an accelerator beside it [default: 20.6us, as in NTT's measurements]
    #[arg(long, value_name = "TIME")]
    lan_rtt: Option<Span>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Draw the expected goodput over message size into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Length of an atomic's operand.
const ATOMIC_BYTES: u64 = 8;
/// Exit code for invalid values.
const USAGE: u8 = 2;

/// Output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    /// Version of this layout.
    schema: &'static str,
    /// With `--probe`.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<&'a Measured>,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// Why planning failed.
enum Failure {
    /// A value on the command line, or in a profile.
    Value(Problem),
    /// Anything else.
    Other(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::Other(problem)
    }
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Failure::Value(Problem::plain(invalid.to_string()))
    }
}

/// Plans, or answers probes.
pub fn run(args: &Args) -> ExitCode {
    let done = match args.answer {
        Some(port) => answer::run(port).map_err(Failure::Other),
        None => plan(args),
    };
    let (problem, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Value(problem)) => (problem, ExitCode::from(USAGE)),
        Err(Failure::Other(problem)) => (problem, ExitCode::FAILURE),
    };
    eprintln!("longhaul plan: {problem}");
    code
}

/// Round trip over the longest `--distance`.
const ROUND_TRIP_MAX: Span = Span::of_fibre_m(80_000_000).times(2);

fn round_trip(text: &str) -> Result<Span, String> {
    let rtt: Span = text.parse().map_err(|e: QuantityError| e.to_string())?;
    if rtt > ROUND_TRIP_MAX {
        return Err(format!(
            "longer than {ROUND_TRIP_MAX}, the round trip over 80000 km of fibre, twice around the \
             Earth"
        ));
    }
    Ok(rtt)
}

fn loss(text: &str) -> Result<f64, &'static str> {
    let loss = probability(text).ok().filter(|loss| *loss < 1.0);
    loss.ok_or("not the loss of a path: write a number from 0 to below 1, as in 1e-4 or 0.01%")
}

fn plan(args: &Args) -> Result<(), Failure> {
    let nic = profile(&args.nic)?;
    let request = request(args)?;
    let plan = |measured: Option<&Measured>| {
        let plan = Plan::new(&path(args, &nic, measured)?, &nic, &request)?;
        refuse_target_beyond_path(args, &plan)?;
        Ok::<_, Failure>(plan)
    };
    // Validate all values before measuring.
    plan(None)?;
    let measured = match &args.probe {
        Some(peer) => Some(probe::measure(peer, args.probes)?),
        None => None,
    };
    let plan = plan(measured.as_ref())?;
    if let Some(file) = &args.svg {
        plot::write(&plan, file)?;
    }
    if args.json {
        let output = Output { schema: "longhaul-plan/1", probe: measured.as_ref(), plan: &plan };
        let mut json = serde_json::to_string_pretty(&output)
            .map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))?;
        json.push('\n');
        output::print(&json)?;
    } else {
        output::print(&text::render(&plan, measured.as_ref(), output::columns()))?;
    }
    Ok(())
}

/// Refuses a target above the rate that headers leave at every size.
fn refuse_target_beyond_path(args: &Args, plan: &Plan) -> Result<(), Failure> {
    let ceiling = |row: &&Row| row.prediction.ceiling_bps;
    let most = plan.rows.iter().max_by(|a, b| ceiling(a).total_cmp(&ceiling(b)));
    let (Some(target), Some(most)) = (plan.request.target_bps, most) else { return Ok(()) };
    if target <= ceiling(&most) {
        return Ok(());
    }
    let name = match (args.target, args.use_case) {
        (None, Some(case)) => format!("the target of --use {case}, {},", rate(target)),
        _ => format!("--target {}", rate(target)),
    };
    let cause = format!(
        "{name} is more than the path carries: headers leave at most {} of {}, with messages of {}",
        rate(rounded_down(ceiling(&most))),
        rate(plan.path.rate_bps),
        size(most.size)
    );
    let cure = match (target < plan.path.rate_bps, args.target) {
        (true, Some(_)) => "lower it, or plan larger messages or a larger MTU",
        (true, None) => "give a --target, or plan larger messages or a larger MTU",
        (false, Some(_)) => "lower it, or raise --rate",
        (false, None) => "give a --target, or raise --rate",
    };
    Err(Failure::Value(Problem::new(cause, cure)))
}

/// `value` with three significant digits, not rounded up.
fn rounded_down(value: f64) -> f64 {
    let unit = 10_f64.powf(value.log10().floor() - 2.0);
    (value / unit).floor() * unit
}

/// Returns a profile by name, or from a file if the name looks like one.
fn profile(name: &str) -> Result<NicProfile, Failure> {
    let looks_like_a_file = name.ends_with(".toml") || name.contains('/');
    if !looks_like_a_file {
        return NicProfile::named(name).map_err(|e| Failure::Value(Problem::plain(e.to_string())));
    }
    let text = std::fs::read_to_string(name)
        .map_err(|e| Failure::Value(Problem::io("read the NIC profile", name.as_ref(), &e)))?;
    NicProfile::read(&text)
        .map_err(|e: NicError| Failure::Value(Problem::plain(format!("{name}: {e}"))))
}

fn request(args: &Args) -> Result<Request, Failure> {
    let from_use = args.use_case.map(|case| Sizes::between(case.sizes()));
    let sizes = args.sizes.or(from_use).unwrap_or(Sizes::between((4 << 10, 8 << 20)));
    let op = args.op.or(args.use_case.map(UseCase::op)).unwrap_or(Op::Write);
    let accelerator = Accelerator::default();
    if args.cq_mod.is_some_and(|cq_mod| cq_mod > args.tx_depth) {
        let cause = format!(
            "--cq-mod {} is more than --tx-depth {}",
            args.cq_mod.unwrap_or(0),
            args.tx_depth
        );
        let cure = "the queue would fill before it requests a completion";
        return Err(Failure::Value(Problem::new(cause, cure)));
    }
    if op == Op::Atomic && args.sizes.is_some_and(|sizes| sizes.all() != [ATOMIC_BYTES]) {
        let cause = "--sizes does not go with --op atomic: atomics are 8 bytes";
        return Err(Failure::Value(Problem::new(cause, "leave --sizes out")));
    }
    Ok(Request {
        op,
        sizes: if op == Op::Atomic { vec![ATOMIC_BYTES] } else { sizes.all() },
        qps: args.qps,
        tx_depth: args.tx_depth,
        cq_mod: args.cq_mod,
        iterations: args.iterations,
        target_bps: args
            .target
            .map(|rate| rate.as_bps() as f64)
            .or(args.use_case.and_then(UseCase::target_bps)),
        use_case: args.use_case,
        accelerator: Accelerator {
            lan_rtt_ns: args.lan_rtt.map_or(accelerator.lan_rtt_ns, |rtt| rtt.as_ns() as f64),
            ..accelerator
        },
    })
}

/// The path as given, with measured values for the rest.
fn path(args: &Args, nic: &NicProfile, measured: Option<&Measured>) -> Result<Path, Failure> {
    let fibre_ns = match (args.rtt, args.distance, measured) {
        (Some(rtt), ..) => rtt.as_ps() as f64 / 2e3,
        (_, Some(distance), _) => Path::of_km(distance.km(), 1.0).one_way_ns,
        (.., Some(measured)) => measured.rtt_median_us * 500.0,
        _ => 0.0,
    };
    let mtu = match (args.mtu, measured.and_then(|m| m.path_mtu)) {
        (Some(mtu), _) => mtu,
        (None, Some(ip)) => roce_mtu(ip).ok_or_else(|| {
            let least = interface_mtu(MTUS[0]);
            Problem::plain(format!("the path carries {ip} bytes; RDMA needs {least}"))
        })?,
        (None, None) => 4096,
    };
    let path = Path {
        one_way_ns: fibre_ns + args.extra.as_ps() as f64 / 1e3,
        rate_bps: args.rate.map_or(nic.rate_bps as f64, |rate| rate.as_bps() as f64),
        loss: args.loss.or(measured.map(|m| m.loss)).unwrap_or(0.0),
        mtu,
        ipv6: args.ipv6 || measured.is_some_and(|m| m.is_ipv6),
        vlan: false,
    };
    path.check()?;
    if path.rate_bps > nic.rate_bps as f64 {
        let (rate, most) = (path.rate_bps / 1e9, nic.rate_bps as f64 / 1e9);
        let cause = format!("--rate {rate}G is more than the {most}G of --nic {}", args.nic);
        let cure = "lower it, or give a faster --nic: a copy of labs/nics/connectx6.toml with its \
                    rate_bps";
        return Err(Failure::Value(Problem::new(cause, cure)));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_end_where_distances_do() {
        assert!("80000km".parse::<Distance>().is_ok() && "80001km".parse::<Distance>().is_err());
        assert_eq!(round_trip("800ms"), Ok(ROUND_TRIP_MAX));
        assert!(round_trip("801ms").unwrap_err().contains("longer than 800 ms"));
    }

    #[test]
    fn the_largest_target_that_is_named_is_accepted() {
        assert_eq!(rounded_down(9.796_6e9).round(), 9.79e9);
        assert_eq!(rounded_down(285_714.3).round(), 285e3);
    }
}
