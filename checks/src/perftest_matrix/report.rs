//! The matrix as Markdown and JSON.

use super::{By, Case, Measure, Outcome, PROGRAMS, Refusal, Run, TABLES, VARIATIONS};
use crate::perftest::{BANDWIDTH, TYPICAL};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One table for each transport and connection method, and a reason for each refusal.
pub fn markdown(runs: &[Run]) -> String {
    let mut refusals: Vec<&'static Refusal> = Vec::new();
    let mut text = String::from(
        "# perftest on Longhaul's device\n\n\
         Two processes back to back over shared memory; written by `cargo test -p longhaul-checks \
         --test perftest_matrix -- --ignored`. A number is the average bandwidth in MiB/s (bw) or \
         half a round trip in µs (lat; the typical one, or the average with `-D`), measured while \
         several pairs share the machine: it shows that the run ended well, not how fast the \
         device is. A letter is a refusal by perftest itself, explained below. A dash is a \
         combination that is not tried.\n",
    );
    for (transport, by) in TABLES {
        let of_table: Vec<&Run> = runs
            .iter()
            .filter(|run| run.case.transport == transport && run.case.by == by)
            .collect();
        let Some(first) = of_table.first() else { continue };
        let connected =
            if by == By::RdmaCm { "connected by RDMA-CM (`-R`)" } else { "connected over TCP" };
        let _ = writeln!(text, "\n## {}, {connected}\n", first.case.transport_name());
        table(&mut text, &of_table, &mut refusals);
    }
    text += "\n## Refusals\n\n";
    for (number, refusal) in refusals.iter().enumerate() {
        let Refusal { message, why } = refusal;
        let _ = writeln!(text, "- **{}** “{}”: {why}", letter(number), message.trim());
    }
    text
}

fn table(text: &mut String, runs: &[&Run], refusals: &mut Vec<&'static Refusal>) {
    let names = PROGRAMS.map(|(verb, measure)| {
        let case = Case { verb, measure, ..runs[0].case };
        case.program().trim_start_matches("ib_").to_owned()
    });
    let _ = writeln!(text, "| options | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(names.len()));
    for variation in VARIATIONS {
        let cells = PROGRAMS.map(|(verb, measure)| {
            let run = runs.iter().find(|run| {
                let case = &run.case;
                case.verb == verb
                    && case.measure == measure
                    && std::ptr::eq(case.variation, variation)
            });
            run.map_or("–".to_owned(), |run| cell(run, refusals))
        });
        if cells.iter().any(|cell| cell != "–") {
            let options = if variation.options.is_empty() { "none" } else { variation.options };
            let _ = writeln!(text, "| `{options}` | {} |", cells.join(" | "));
        }
    }
}

fn cell(run: &Run, refusals: &mut Vec<&'static Refusal>) -> String {
    match &run.outcome {
        Outcome::Ran(row) => format!("{:.4}", Figure(headline(&run.case, row))),
        Outcome::Refused(refusal) => {
            let known = refusals.iter().position(|known| known == refusal).unwrap_or_else(|| {
                refusals.push(refusal);
                refusals.len() - 1
            });
            letter(known)
        }
        Outcome::Failed(_) => "**fails**".to_owned(),
    }
}

/// The main figure of a row.
fn headline(case: &Case, row: &[f64]) -> f64 {
    match case.measure {
        Measure::Bandwidth => row[BANDWIDTH],
        // With `-D` the average is the only time.
        Measure::Latency => row[if row.len() == 4 { 2 } else { TYPICAL }],
    }
}

/// Formats large numbers with few digits.
struct Figure(f64);

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = if self.0 >= 100.0 { 0 } else { 2 };
        write!(f, "{:.digits$}", self.0)
    }
}

/// a to z, then aa and so on.
fn letter(number: usize) -> String {
    let last = char::from(b'a' + (number % 26) as u8);
    if number < 26 { last.to_string() } else { format!("{}{last}", letter(number / 26 - 1)) }
}

/// Every run with its command line.
pub fn json(runs: &[Run]) -> Value {
    let one = |run: &Run| {
        let outcome = match &run.outcome {
            Outcome::Ran(row) => json!({ "runs": row }),
            Outcome::Refused(refusal) => {
                json!({ "refused": refusal.message.trim(), "why": refusal.why })
            }
            Outcome::Failed(text) => json!({ "fails": text }),
        };
        json!({ "program": run.case.program(), "transport": run.case.transport_name(),
                "rdma_cm": run.case.by == By::RdmaCm, "options": run.case.variation.options,
                "server": run.line, "seconds": run.took.as_secs_f64(), "outcome": outcome })
    };
    runs.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_lettered_without_end() {
        assert_eq!([0, 25, 26, 51, 52].map(letter), ["a", "z", "aa", "az", "ba"]);
    }
}
