//! `longhaul compare`: compares two result files.

use crate::output;
use crate::problem::Problem;
use crate::report::{UNREADABLE, keep_only, read};
use longhaul_bench::{
    Comparison, Difference, FEW, Origin, Quantity, Record, ResultFile, Tolerance, Unmatched,
};
use longhaul_boxes::figures::count;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  longhaul compare before.jsonl after.jsonl
  longhaul compare before.jsonl after.jsonl --tolerance 0      every figure must be equal
  longhaul compare simulated.jsonl measured.jsonl --tolerance 5% --only iown2-c1
  longhaul compare full.jsonl part.jsonl --common              only common points
  longhaul compare a.jsonl b.jsonl --json | jq '.differences[] | select(.is_beyond)'

Points are matched by experiment, source and parameters, or by experiment and parameters if one file
simulated the experiment and the other measured it. Where both files have several runs of a point,
medians are compared, with a 95 % bootstrap interval of their ratio; a deviation whose interval
includes 1 is marked ~ and is no difference. Exit code: 0, both files have all points, within
the tolerance; 1, they differ; 2, files that cannot be read or have no point in common.";

/// Default number of differences shown as text.
const SHOWN: usize = 30;

/// Command line of `longhaul compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Result file to compare with
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Result file to compare
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Maximum deviation of a figure of B from A's, in percent of A's
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    tolerance: f64,
    /// Ignore points that only one file has
    #[arg(long)]
    common: bool,
    /// Compare only this experiment; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List all figures, not only the largest deviations
    #[arg(long)]
    all: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    /// Version of this layout.
    schema: &'static str,
    is_same: bool,
    tolerance_percent: f64,
    compared: usize,
    beyond: usize,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Reads a tolerance: `1%`, `0.5 %`, `2`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=1e6).contains(&percent) => Ok(percent),
        _ => Err("not a tolerance: write a percentage, as in 1% or 0.5%".to_owned()),
    }
}

/// Compares.
pub fn run(args: &Args) -> ExitCode {
    let comparison = match compare(args) {
        Ok(comparison) => comparison,
        Err(problem) => {
            eprintln!("longhaul compare: {problem}");
            return ExitCode::from(UNREADABLE);
        }
    };
    let is_same =
        comparison.beyond() == 0 && comparison.only_a.is_empty() && comparison.only_b.is_empty();
    match print(args, &comparison, is_same) {
        Ok(()) if is_same => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("longhaul compare: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn compare(args: &Args) -> Result<Comparison, Problem> {
    let mut files = read(&[args.a.clone(), args.b.clone()], "compare")?;
    keep_only(&mut files, &args.only)?;
    let records = |file: &ResultFile| -> Vec<Record> {
        let published =
            file.experiments.iter().flat_map(|experiment| experiment.published_records());
        published.chain(file.records.iter().cloned()).collect()
    };
    let tolerance = Tolerance::Percent(args.tolerance);
    let mut comparison = Comparison::new(&records(&files[0].1), &records(&files[1].1), tolerance);
    if comparison.differences.is_empty() {
        let cause =
            format!("{} and {} have no point in common", args.a.display(), args.b.display());
        return Err(Problem::plain(cause));
    }
    if args.common {
        comparison.only_a.clear();
        comparison.only_b.clear();
    }
    Ok(comparison)
}

fn print(args: &Args, comparison: &Comparison, is_same: bool) -> Result<(), Problem> {
    if !args.json {
        return output::print(&text(args, comparison));
    }
    let output = Output {
        schema: "longhaul-compare/1",
        is_same,
        tolerance_percent: args.tolerance,
        compared: comparison.differences.len(),
        beyond: comparison.beyond(),
        comparison,
    };
    let json = serde_json::to_string_pretty(&output)
        .map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))?;
    output::print(&(json + "\n"))
}

fn text(args: &Args, comparison: &Comparison) -> String {
    let mut text = String::new();
    let size = |difference: &Difference| difference.deviation.map_or(f64::INFINITY, f64::abs);
    let mut shown: Vec<&Difference> = comparison.differences.iter().collect();
    if !args.all {
        shown.sort_by(|a, b| size(b).total_cmp(&size(a)));
        shown.retain(|difference| size(difference) > 0.0);
        shown.truncate(SHOWN);
    }
    if !shown.is_empty() {
        let header =
            ["experiment", "point", "value", "A", "B", "B / A", "95 % of B / A", "deviation"];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        lines.extend(shown.iter().map(|difference| line(difference)));
        write_grid(&mut text, &lines);
        let others = comparison.differences.len() - shown.len();
        if others > 0 && shown.len() < SHOWN {
            let _ = writeln!(text, "\nThe other {others} figures are the same.");
        } else if others > 0 {
            let _ =
                writeln!(text, "\nThe {SHOWN} largest deviations; --all lists {others} others.");
        }
    }
    for (name, only) in [(&args.a, &comparison.only_a), (&args.b, &comparison.only_b)] {
        write_missing(&mut text, &name.display().to_string(), only, args.all);
    }
    write_origins(&mut text, &comparison.provenance, args.all);
    let few = comparison.differences.iter().filter(|difference| difference.is_of_few()).count();
    if few > 0 {
        let few = count(few as u64, "figure");
        let _ = writeln!(text, "\n{few} of fewer than {FEW} runs: their intervals say little.");
    }
    let before = if text.is_empty() { "" } else { "\n" };
    let _ = writeln!(
        text,
        "{before}{} of {} figures within {} %{}",
        comparison.differences.len() - comparison.beyond(),
        comparison.differences.len(),
        args.tolerance,
        match comparison.worst() {
            Some(worst) if worst.deviation != Some(0.0) =>
                format!("; farthest apart: {}", deviation(worst)),
            _ => "; all the same".to_owned(),
        }
    );
    text
}

fn line(difference: &Difference) -> Vec<String> {
    let quantity = Quantity::of(&difference.value);
    let source = match difference.source_a == difference.source_b {
        true => difference.source_a.name().to_owned(),
        false => format!("{} → {}", difference.source_a.name(), difference.source_b.name()),
    };
    let mark = match (difference.is_off, difference.is_beyond) {
        (_, true) => "  ✗",
        (true, false) => "  ~",
        (false, false) => "",
    };
    let interval = difference.ratio_interval.as_ref();
    vec![
        difference.experiment.clone(),
        difference.point.to_string(),
        format!("{}, {source}", quantity.label()),
        quantity.humanised(difference.a),
        quantity.humanised(difference.b),
        difference.ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.4}")),
        interval.map_or(String::new(), |i| format!("{:.4}–{:.4}", i.start(), i.end())),
        deviation(difference) + mark,
    ]
}

fn deviation(difference: &Difference) -> String {
    match difference.deviation {
        Some(deviation) if deviation.abs() < 1e-4 && deviation != 0.0 => {
            format!("{:+.1e} %", deviation * 100.0)
        }
        Some(deviation) => format!("{:+.2} %", deviation * 100.0),
        None => "from zero".to_owned(),
    }
}

/// Aligns columns of figures to the right, of words to the left.
fn write_grid(text: &mut String, lines: &[Vec<String>]) {
    const WORDS: usize = 3;
    let parts = |cell: &'_ String| {
        let figure = cell.trim_end_matches(['✗', '~']).trim_end();
        (figure.to_owned(), cell[figure.len()..].to_owned())
    };
    let width =
        |i: usize| lines.iter().map(|line| parts(&line[i]).0.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    // Without repeated runs there are no intervals.
    let is_empty = |i: usize| lines[1..].iter().all(|line| line[i].is_empty());
    let shown: Vec<usize> = (0..widths.len()).filter(|i| !is_empty(*i)).collect();
    for line in lines {
        let mut row = String::new();
        for &i in &shown {
            let (figure, mark) = parts(&line[i]);
            let width = widths[i];
            // Writing to a String cannot fail.
            let _ = if i < WORDS {
                write!(row, "{figure:<width$}  {mark}")
            } else {
                write!(row, "{figure:>width$}{mark}  ")
            };
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

/// Values of a differing field of the provenance that are shown.
const ORIGINS_SHOWN: usize = 2;

/// What differs in how the figures were made.
fn write_origins(text: &mut String, origins: &[Origin], all: bool) {
    if origins.is_empty() {
        return;
    }
    let listed = |values: &[String]| match values {
        [] => "–".to_owned(),
        _ if all || values.len() <= ORIGINS_SHOWN => values.join(" | "),
        _ => format!(
            "{} and {} more",
            values[..ORIGINS_SHOWN].join(" | "),
            values.len() - ORIGINS_SHOWN
        ),
    };
    let _ = writeln!(text, "\nProvenance differs:");
    for Origin { experiment, name, a, b } in origins {
        let _ = writeln!(text, "  {experiment}  {name}: {} → {}", listed(a), listed(b));
    }
}

fn write_missing(text: &mut String, name: &str, only: &[Unmatched], all: bool) {
    if only.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nOnly in {name}: {}", only.len());
    let most = if all { usize::MAX } else { SHOWN / 3 };
    for unmatched in only.iter().take(most) {
        let quantity = Quantity::of(&unmatched.value);
        let _ = writeln!(
            text,
            "  {}  {}  {}, {}  {}",
            unmatched.experiment,
            unmatched.point,
            quantity.label(),
            unmatched.source.name(),
            quantity.humanised(unmatched.figure)
        );
    }
    if only.len() > most {
        let _ = writeln!(text, "  and {} more; --all lists them", only.len() - most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_a_percentage() {
        assert_eq!(["1%", "0.5 %", "2", "0"].map(percent), [Ok(1.0), Ok(0.5), Ok(2.0), Ok(0.0)]);
        for text in ["", "%", "-1%", "one", "NaN", "inf"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
