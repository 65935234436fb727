//! The common part of all table measurements: start, progress, interruption and reports.

use super::profile::Profile;
use crate::output;
use crate::problem::Problem;
use crate::sim::{self, Failure, INTERRUPTED, Interrupt};
use longhaul_bench::{Point, Record, ResultWriter, Source, Started};
use longhaul_boxes::quantity::Size;
use longhaul_measure::{Figures, Machine, Progress, Tell, pin};
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

/// Output options.
#[derive(Debug, clap::Args)]
pub struct Reporting {
    /// Fail if memory grows by more than this during a measurement
    #[arg(long, value_name = "SIZE")]
    memory_growth_max: Option<Size>,
    /// Write a flame graph of all measurements; needs perf
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Append the results to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Results of one row of a table, as reports contain them.
pub trait Report: Figures + Sized {
    /// Name of the measurement in the command and in results.
    const WHAT: &'static str;

    /// The row's parameters, by their names in results.
    fn point(&self) -> Point;
    /// Further fields of `--json`, as an object.
    fn details(&self) -> Value;
    /// All results as text, with the properties of the machine.
    fn table(machine: &Machine, outcomes: &[Self]) -> String;

    /// The record for a result file.
    fn record(&self, machine: &Machine) -> Record {
        let mut record = Record::new(Self::WHAT, Source::Measured, self.point());
        record.values.extend(self.values(machine));
        record.note(machine.to_string())
    }
}

impl Reporting {
    /// Measures each cell by `one`, on one processor if given, and reports the results.
    pub fn measure<O: Report, E: Into<Problem>>(
        &self,
        cells: &[O::Cell],
        core: Option<usize>,
        one: impl FnMut(&O::Cell, &mut Tell<'_>) -> Result<O, E>,
    ) -> Result<ExitCode, Failure> {
        let profile = self.flamegraph.as_deref().map(Profile::check).transpose()?;
        let mut writer = match &self.out {
            Some(out) => {
                Some(ResultWriter::resume(out).map_err(|e| Problem::plain(e.to_string()))?.0)
            }
            None => None,
        };
        core.map(pin).transpose().map_err(Problem::from)?;
        let interrupt = Interrupt::listen()?;
        let machine = Machine::look();
        let started = Started::now();
        let profile = profile.map(Profile::start).transpose()?;
        let mut run = Run { interrupt, progress: sim::Progress::new() };
        let outcomes = run.each(cells, one);
        let profiled = profile.map(Profile::finish).transpose();
        let outcomes = match outcomes {
            Err(_) if run.interrupt.came() => return Ok(ExitCode::from(INTERRUPTED)),
            outcomes => outcomes.map_err(Into::into)?,
        };
        output::print(&if self.json {
            json(&machine, &outcomes)?
        } else {
            O::table(&machine, &outcomes)
        })?;
        if let Some(writer) = &mut writer {
            for outcome in &outcomes {
                let record = outcome.record(&machine).from_run(started.provenance(None, 1));
                writer.record(&record).map_err(|e| Problem::plain(e.to_string()))?;
            }
        }
        profiled?;
        let faults: Vec<String> =
            outcomes.iter().flat_map(|outcome| self.faults(outcome)).collect();
        faults.iter().for_each(|fault| eprintln!("longhaul bench {}: {fault}", O::WHAT));
        Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn faults<O: Report>(&self, outcome: &O) -> Vec<String> {
        let mut faults = outcome.faults();
        let growth = outcome.memory_growth();
        if let Some(most) = self.memory_growth_max.filter(|most| growth > most.bytes()) {
            faults
                .push(format!("memory grew by {}, by more than {most}", Size::from_bytes(growth)));
        }
        faults.into_iter().map(|fault| format!("{}: {fault}", outcome.cell())).collect()
    }
}

/// Output of `--json`.
fn json<O: Report>(machine: &Machine, outcomes: &[O]) -> Result<String, Problem> {
    let result = |outcome: &O| {
        let mut result = outcome.details();
        result["point"] = json!(outcome.point());
        result["values"] = json!(outcome.values(machine));
        result
    };
    let results: Vec<_> = outcomes.iter().map(result).collect();
    let schema = format!("longhaul-{}/1", O::WHAT);
    let output = json!({ "schema": schema, "machine": machine, "results": results });
    let text = serde_json::to_string_pretty(&output);
    Ok(text.map_err(|e| Problem::plain(format!("cannot write JSON: {e}")))? + "\n")
}

/// One run of a command.
struct Run {
    interrupt: Interrupt,
    progress: sim::Progress,
}

impl Run {
    fn each<C: Display, O, E>(
        &mut self,
        cells: &[C],
        mut one: impl FnMut(&C, &mut Tell<'_>) -> Result<O, E>,
    ) -> Result<Vec<O>, E> {
        let mut outcomes = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            let place = format!("{} of {}: {cell}", at + 1, cells.len());
            outcomes.push(one(cell, &mut |progress| self.goes_on(&place, progress))?);
        }
        self.progress.done();
        Ok(outcomes)
    }

    /// Shows progress of the measurement at `place` when due; returns whether to continue.
    fn goes_on(&mut self, place: &str, at: &Progress) -> bool {
        if self.progress.is_due() {
            let pass = at.pass.name().map(|name| format!(", {name}")).unwrap_or_default();
            let memory = Size::from_bytes(at.resident_bytes >> 20 << 20);
            let [elapsed, whole] = [at.elapsed, at.whole].map(|time| time.as_secs_f64());
            self.progress.show(&format!(
                "{place}{pass}: {elapsed:.0} of {whole:.0} s, {}, {memory}",
                at.work
            ));
        }
        !self.interrupt.came()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Grown(u64);

    impl Figures for Grown {
        type Cell = &'static str;

        fn cell(&self) -> &&'static str {
            &"here"
        }

        fn values(&self, _machine: &Machine) -> BTreeMap<String, f64> {
            BTreeMap::from([("memory_growth_bytes".to_owned(), self.0 as f64)])
        }

        fn memory_growth(&self) -> u64 {
            self.0
        }

        fn faults(&self) -> Vec<String> {
            vec!["it is wrong".to_owned()]
        }
    }

    impl Report for Grown {
        const WHAT: &'static str = "growth";

        fn point(&self) -> Point {
            Point::new().with("qps", 1_u32)
        }

        fn details(&self) -> Value {
            json!({ "drops": 0 })
        }

        fn table(_machine: &Machine, _outcomes: &[Self]) -> String {
            String::new()
        }
    }

    fn faults(memory_growth_max: Option<u64>) -> Vec<String> {
        let memory_growth_max = memory_growth_max.map(Size::from_bytes);
        let reporting = Reporting { memory_growth_max, flamegraph: None, json: false, out: None };
        reporting.faults(&Grown(4 << 20))
    }

    #[test]
    fn memory_that_grows_is_a_fault_besides_an_outcomes_own() {
        assert_eq!(faults(None), ["here: it is wrong"]);
        assert_eq!(faults(Some(4 << 20)), ["here: it is wrong"]);
        let both = ["here: it is wrong", "here: memory grew by 4 MiB, by more than 3 MiB"];
        assert_eq!(faults(Some(3 << 20)), both);
    }

    #[test]
    fn json_names_schema_machine_and_all_of_an_outcome() {
        let text = json(&Machine::look(), &[Grown(7)]).unwrap();
        let output: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(output["schema"], "longhaul-growth/1");
        assert!(output["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0));
        let expected =
            json!({ "point": { "qps": 1 }, "values": { "memory_growth_bytes": 7.0 }, "drops": 0 });
        assert_eq!(output["results"], json!([expected]));
    }
}
