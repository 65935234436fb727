//! `longhaul export`: result files in the formats of other programs.

use crate::output;
use crate::problem::Problem;
use crate::report::{UNREADABLE, keep_only, read};
use clap::ValueEnum;
use longhaul_bench::{Record, ResultFile, export};
use longhaul_boxes::figures::count;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul export results.jsonl --format csv --out runs.csv
  longhaul export results.jsonl --format parquet --out runs.parquet
  longhaul export results.jsonl --format openmetrics --out metrics.txt
  longhaul export results.jsonl --format perftest-json --out perftest
  longhaul export results.jsonl --format pscheduler --out pscheduler --only write-over-distance

CSV and Parquet have a line for each value of each run, and OpenMetrics a gauge for each value, in
base units. Parquet is not text: it needs --out, or another program behind a pipe.
perftest's JSON and pscheduler's results hold one run each: --out is a directory of
EXPERIMENT-N.json; without --out, the files must have one such run. Exit code: 0; 1, nothing to
export, or it cannot be written; 2, files that cannot be read.";

/// Command line of `longhaul export`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Result files; - reads standard input
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Format to write
    #[arg(long, value_enum)]
    format: Format,
    /// File to write, or the directory of formats with a file for each run [default: print]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Export only this experiment; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// What perftest writes with --out_json, for each run of it
    PerftestJson,
    /// OpenMetrics 1.0, for Prometheus
    Openmetrics,
    /// A line for each value of each run
    Csv,
    /// The same lines in typed columns, as Apache Parquet
    Parquet,
    /// The result of pscheduler's throughput test, for each run with goodput
    Pscheduler,
}

/// Exports.
pub fn run(args: &Args) -> ExitCode {
    let records = match records(args) {
        Ok(records) => records,
        Err(problem) => {
            eprintln!("longhaul export: {problem}");
            return ExitCode::from(UNREADABLE);
        }
    };
    match write(args, &records) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("longhaul export: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// All records of the files, published figures among them.
fn records(args: &Args) -> Result<Vec<Record>, Problem> {
    let mut files = read(&args.results, "export")?;
    keep_only(&mut files, &args.only)?;
    let of_file = |(_, file): (PathBuf, ResultFile)| {
        let published: Vec<Record> =
            file.experiments.iter().flat_map(|one| one.published_records()).collect();
        published.into_iter().chain(file.records)
    };
    Ok(files.into_iter().flat_map(of_file).collect())
}

fn write(args: &Args, records: &[Record]) -> Result<(), Problem> {
    let documents: Vec<(&str, String)> = match args.format {
        Format::Csv => return write_one(args.out.as_deref(), export::csv(records).as_bytes()),
        Format::Openmetrics => {
            return write_one(args.out.as_deref(), export::openmetrics(records).as_bytes());
        }
        Format::Parquet => {
            if args.out.is_none() && std::io::stdout().is_terminal() {
                let cause = "Parquet is not text, and standard output is a terminal";
                return Err(Problem::new(cause, "name a file with --out"));
            }
            let file = export::parquet(records);
            let file = file.map_err(|error| Problem::plain(error.to_string()))?;
            return write_one(args.out.as_deref(), &file);
        }
        Format::PerftestJson => each(records, export::perftest)?,
        Format::Pscheduler => each(records, export::pscheduler)?,
    };
    match (&args.out, &documents[..]) {
        (_, []) => {
            let what = match args.format {
                Format::PerftestJson => "runs of perftest",
                _ => "runs with goodput",
            };
            Err(Problem::plain(format!("the files have no {what}")))
        }
        (None, [(_, document)]) => output::print(document),
        (None, several) => Err(Problem::new(
            format!("a file holds one run, and there are {}", several.len()),
            "name a directory with --out",
        )),
        (Some(directory), several) => write_each(directory, several),
    }
}

/// The JSON of each record that has one, with the name of its experiment.
fn each(
    records: &[Record],
    of: impl Fn(&Record) -> Option<serde_json::Value>,
) -> Result<Vec<(&str, String)>, Problem> {
    let found = records.iter().filter_map(|record| Some((record, of(record)?)));
    found
        .map(|(record, json)| Ok((record.experiment.as_str(), output::to_json(&json)? + "\n")))
        .collect()
}

fn write_one(out: Option<&Path>, bytes: &[u8]) -> Result<(), Problem> {
    match out {
        None => output::print_bytes(bytes),
        Some(path) => fs::write(path, bytes).map_err(|error| Problem::io("write", path, &error)),
    }
}

fn write_each(directory: &Path, documents: &[(&str, String)]) -> Result<(), Problem> {
    fs::create_dir_all(directory).map_err(|error| Problem::io("create", directory, &error))?;
    let digits = documents.len().to_string().len();
    for (number, (experiment, document)) in (1..).zip(documents) {
        let path = directory.join(format!("{experiment}-{number:0digits$}.json"));
        fs::write(&path, document).map_err(|error| Problem::io("write", &path, &error))?;
    }
    let runs = count(documents.len() as u64, "run");
    output::print(&format!("{runs} in {}\n", directory.display()))
}
