//! `longhaul doctor`: analyses the flows in a capture of RoCEv2, and advises changes.

mod plot;

use crate::output;
use crate::problem::Problem;
use longhaul_doctor::report::{Flow, Severity};
use longhaul_doctor::{Doctor, End, Options, Report, Trace, examine, text};
use longhaul_units::BitRate;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  longhaul doctor capture.pcapng
  longhaul doctor --flow 2 --svg flow2.svg capture.pcap
  longhaul doctor --rate 100G capture.pcap
  longhaul doctor --json capture.pcap | jq '.flows[].findings[] | {rule, share_of_time}'
  tcpdump -i eth0 -s 128 -w - udp port 4791 | longhaul doctor -

Exit code: 0, the capture was read to its end; 1, the traffic contains a failure (a fatal NAK, a
wrong ICRC); 2, not a capture, one that cannot be read to its end, or a wrong argument; 3, a result
that cannot be written.";

/// Pause between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Command line of `longhaul doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A pcap or pcapng file; - reads standard input
    capture: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Describe this flow in detail [default: the worst]
    #[arg(long, value_name = "N")]
    flow: Option<usize>,
    /// Maximum number of flows to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Draw the flow's packets over time into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rate of the path, such as 100G, for advice about windows [default: estimated from the
    /// highest rate seen]
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
}

/// Exit code for a capture that cannot be read to its end.
const UNREADABLE: u8 = 2;
/// Exit code for a result that cannot be written: 1 is a finding.
const UNWRITABLE: u8 = 3;

/// Why there is no result.
enum Failure {
    /// The capture, or an argument.
    Input(Problem),
    /// The result cannot be written.
    Output(Problem),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Failure::Input(problem)
    }
}

/// Analyses the capture.
pub fn run(args: &Args) -> ExitCode {
    let (problem, code) = match explain(args) {
        Ok(code) => return code,
        Err(Failure::Input(problem)) => (problem, UNREADABLE),
        Err(Failure::Output(problem)) => (problem, UNWRITABLE),
    };
    eprintln!("longhaul doctor: {problem}");
    ExitCode::from(code)
}

fn explain(args: &Args) -> Result<ExitCode, Failure> {
    let is_stdin = args.capture == Path::new("-");
    if is_stdin && args.svg.is_some() {
        return Err(Failure::Input(Problem::new(
            "--svg reads the capture twice",
            "give a file instead of standard input",
        )));
    }
    let options =
        Options { rate: args.rate, seed: RandomState::new().hash_one(0), ..Options::default() };
    let input = open(&args.capture)?;
    let name = input.name.clone();
    let mut doctor = Doctor::new(options);
    read(input, &mut doctor)?;
    let report = doctor.finish();
    let number = args.flow.unwrap_or(1);
    let flow = report.flows.iter().find(|flow| flow.number == number);
    if flow.is_none() && args.flow.is_some() {
        let there = report.flows.len();
        return Err(Failure::Input(Problem::plain(format!(
            "there is no flow {number}: the capture has {there} with requests"
        ))));
    }
    if let Some(path) = &args.svg {
        let flow = flow.ok_or_else(|| Problem::plain("there is no flow to draw"))?;
        draw(&args.capture, options, flow, path)?;
    }
    if args.json {
        let mut json = serde_json::to_string_pretty(&report)
            .map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))?;
        json.push('\n');
        output::print(&json).map_err(Failure::Output)?;
    } else {
        let selection = text::Selection { top: args.top, flow: args.flow };
        let text = text::render(&name, &report, selection, output::columns());
        output::print(&text).map_err(Failure::Output)?;
    }
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> ExitCode {
    if report.capture.end != End::Complete {
        return ExitCode::from(UNREADABLE);
    }
    let flows = report.flows.iter().flat_map(|flow| &flow.findings);
    match report.findings.iter().chain(flows).any(|finding| finding.severity == Severity::Failure) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Source of a capture.
struct Input {
    name: String,
    bytes: Box<dyn Read>,
    /// Length of a file.
    length: Option<u64>,
}

fn open(path: &Path) -> Result<Input, Problem> {
    if path == Path::new("-") {
        if io::stdin().is_terminal() {
            return Err(Problem::new(
                "standard input is a terminal",
                "give a capture file or pipe one in",
            ));
        }
        let bytes = Box::new(io::stdin().lock());
        return Ok(Input { name: "standard input".to_owned(), bytes, length: None });
    }
    let file = File::open(path).map_err(|e| Problem::io("open", path, &e))?;
    let length = file.metadata().ok().filter(|m| m.is_file()).map(|m| m.len());
    Ok(Input { name: path.display().to_string(), bytes: Box::new(file), length })
}

/// Reads the whole input, with progress on a terminal.
fn read(input: Input, doctor: &mut Doctor) -> Result<(), Problem> {
    let Input { name, bytes, length } = input;
    let begun = Instant::now();
    let mut shown = None;
    let on_terminal = io::stderr().is_terminal();
    let outcome = examine(bytes, doctor, |bytes| {
        let due = shown.map_or(begun.elapsed(), |at: Instant| at.elapsed()) >= PROGRESS_INTERVAL;
        if on_terminal && due {
            shown = Some(Instant::now());
            let percent = length
                .filter(|&l| l > 0)
                .map(|l| format!(", {} %", bytes * 100 / l))
                .unwrap_or_default();
            eprint!("\r{} MB read{percent} \x1b[K", bytes / 1_000_000);
        }
    });
    if shown.is_some() {
        eprint!("\r\x1b[K");
        let _ = io::stderr().flush();
    }
    outcome.map_err(|e| Problem::plain(format!("{name} {e}")))
}

fn draw(capture: &Path, options: Options, flow: &Flow, path: &Path) -> Result<(), Failure> {
    let mut doctor = Doctor::tracing(options, Trace::of(flow));
    read(open(capture)?, &mut doctor)?;
    let trace = doctor.finish_trace().ok_or_else(|| {
        Problem::plain(format!("{} changed while it was read", capture.display()))
    })?;
    plot::write(&trace, flow, capture, path).map_err(Failure::Output)
}
