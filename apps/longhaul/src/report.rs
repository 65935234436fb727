//! `longhaul report`: tables, plots and an HTML report from result files.

mod power;

use crate::output;
use crate::problem::Problem;
use longhaul_bench::{ReadError, Report, ResultFile};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul report results.jsonl                       tables and summary, as text
  longhaul report results.jsonl --out report.html     one HTML file: tables, plots, assumptions
  longhaul report a.jsonl b.jsonl --only iown2-c1 --markdown
  longhaul report results.jsonl --csv tables --svg plots
  longhaul report results.jsonl --json | jq '.experiments[] | {name, tally}'
  longhaul report results.jsonl --power tcp           energy per bit against the program tcp
  longhaul report sweep.jsonl --power fabric=software --watts 25

Files hold one JSON object per line, as 'longhaul reproduce' and 'longhaul sweep' write them:
docs/results.md. Several are merged. Exit code: 0, the report is complete, whatever it says; with
--check, 1 if a figure in it is off or missing; 2, files that cannot be read, or an experiment of
--only that is not in them.";

/// Command line of `longhaul report`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Result files; - reads standard input
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Write one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write a CSV table of each experiment's cells into this folder
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Write each plot into this folder
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Report only this experiment; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Title of the report
    #[arg(long, default_value = "Longhaul: results")]
    title: String,
    /// Print one JSON object instead of text
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print tables as Markdown
    #[arg(long)]
    markdown: bool,
    /// Exit with 1 if a figure is off or missing
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    power: power::Options,
}

/// Exit code for files that cannot be read, or that lack an experiment of `--only`.
pub const UNREADABLE: u8 = 2;

/// Creates the report.
pub fn run(args: &Args) -> ExitCode {
    let mut files = match read(&args.results, "report") {
        Ok(files) => files,
        Err(problem) => {
            eprintln!("longhaul report: {problem}");
            return ExitCode::from(UNREADABLE);
        }
    };
    if let Err(problem) = keep_only(&mut files, &args.only) {
        eprintln!("longhaul report: {problem}");
        return ExitCode::from(UNREADABLE);
    }
    let reported = match args.power.baseline() {
        Some(baseline) => power::report(&args.power, baseline, &files, args.json),
        None => report(args, &files),
    };
    match reported {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("longhaul report: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Reads `paths` for `command`, and reports truncated ones.
pub fn read(paths: &[PathBuf], command: &str) -> Result<Vec<(PathBuf, ResultFile)>, Problem> {
    let problem = |error: ReadError| match error {
        ReadError::Io { .. } => Problem::plain(error.to_string()),
        ReadError::Schema { .. } => Problem::new(
            error.to_string(),
            "use the version of longhaul that wrote it, or rerun it",
        ),
        ReadError::Line { .. } => {
            Problem::new(error.to_string(), "files of results: docs/results.md")
        }
    };
    let mut files = Vec::new();
    for path in paths {
        let file = if path.as_os_str() == "-" {
            ResultFile::read_from(std::io::stdin().lock(), "standard input".as_ref())
        } else {
            ResultFile::read(path)
        };
        let file = file.map_err(problem)?;
        if let Some(damage) = &file.damage {
            eprintln!(
                "longhaul {command}: {} line {} was cut and is left out: {}",
                path.display(),
                damage.line,
                damage.why
            );
        }
        if file.records.is_empty() && file.experiments.is_empty() {
            return Err(Problem::plain(format!("{} holds no results", path.display())));
        }
        files.push((path.clone(), file));
    }
    Ok(files)
}

/// Keeps only the experiments `names` in `files`; the error for an unknown name lists the known
/// ones.
pub fn keep_only(files: &mut [(PathBuf, ResultFile)], names: &[String]) -> Result<(), Problem> {
    if names.is_empty() {
        return Ok(());
    }
    let described =
        files.iter().flat_map(|(_, file)| file.experiments.iter().map(|e| e.name.as_str()));
    let recorded =
        files.iter().flat_map(|(_, file)| file.records.iter().map(|r| r.experiment.as_str()));
    let mut known: Vec<&str> = described.chain(recorded).collect();
    known.sort_unstable();
    known.dedup();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let cure = format!("there is {}", known.join(", "));
        return Err(Problem::new(format!("no experiment is called {unknown}"), cure));
    }
    for (_, file) in files {
        file.experiments.retain(|experiment| names.contains(&experiment.name));
        file.records.retain(|record| names.contains(&record.experiment));
    }
    Ok(())
}

fn report(args: &Args, files: &[(PathBuf, ResultFile)]) -> Result<ExitCode, Problem> {
    let report = Report::of_files(&args.title, files);
    let plain = |error: &dyn std::fmt::Display| Problem::plain(error.to_string());
    let mut wrote = Vec::new();
    if let Some(file) = &args.out {
        report.write_html(file).map_err(|e| plain(&e))?;
        wrote.push(file.display().to_string());
    }
    if let Some(folder) = &args.csv {
        let files = report.write_csv(folder).map_err(|e| plain(&e))?;
        wrote.push(format!("{} tables in {}", files.len(), folder.display()));
    }
    if let Some(folder) = &args.svg {
        let files = report.write_svg(folder).map_err(|e| plain(&e))?;
        wrote.push(format!("{} plots in {}", files.len(), folder.display()));
    }
    if args.json {
        output::print(&report.json().map_err(|e| plain(&e))?)?;
    } else if args.markdown {
        output::print(&report.markdown())?;
    } else if wrote.is_empty() {
        output::print(&report.text())?;
    } else {
        output::print(&format!("{}\nWrote {}.\n", report.outcome(), wrote.join(", ")))?;
    }
    Ok(if args.check && !report.summary().is_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
