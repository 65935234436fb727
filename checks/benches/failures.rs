//! Time until RoCE, other datagrams and TCP flow again after failures of a box, in each topology
//! and with each kind of port.
//!
//! `cargo build --release -p longhaul -p longhaul-preload && cargo bench -p longhaul-checks --bench
//! failures`, as root. `--only 'routes upgrade'` measures the cells whose names contain these
//! words.

use clap::Parser;
use longhaul_checks::network::failures::{Cell, Failure, Outcome, Resumption};
use longhaul_checks::network::{Flow, SILENCE};
use longhaul_checks::require;
use longhaul_checks::samples::{Keep, median};
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;

#[derive(Parser)]
struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Words that a cell's name must contain
    #[arg(long, default_value = "")]
    only: String,
    #[command(flatten)]
    keep: Keep,
}

/// Medians of one flow, in ms.
struct Medians {
    after_failure: Option<f64>,
    after_repair: Option<f64>,
    longest_gap: f64,
}

impl Medians {
    fn of(outcomes: &[Outcome], flow: Flow) -> Self {
        let all = |one: fn(Resumption) -> Option<Duration>| {
            let samples = outcomes.iter().map(|outcome| one(outcome.of(flow)).map(ms));
            // A flow that waits for the repair in any round needs it.
            samples.collect::<Option<Vec<f64>>>().map(|samples| median(&samples))
        };
        Medians {
            after_failure: all(|times| times.after_failure),
            after_repair: all(|times| times.after_repair),
            longest_gap: all(|times| Some(times.longest_gap)).expect("gaps"),
        }
    }

    fn text(&self) -> String {
        let time = |time: Option<f64>, none: &str| {
            time.map_or(none.to_owned(), |time| format!("{time:.0}"))
        };
        let Medians { after_failure, after_repair, longest_gap } = self;
        format!(
            "{:>7} {:>7} {longest_gap:>7.0}",
            time(*after_failure, "no"),
            time(*after_repair, "")
        )
    }

    fn json(&self) -> Value {
        json!({
            "after_failure_ms": self.after_failure, "after_repair_ms": self.after_repair,
            "longest_gap_ms": self.longest_gap,
        })
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(1).collect()
}

fn main() {
    let args = Args::parse();
    require("ib_write_bw", "perftest");
    println!(
        "medians of {} rounds, ms until a flow runs again, silent for less than {} ms at a time: \
         after the failure ('no': not before the repair), after the repair; longest gap; load {}",
        args.rounds,
        SILENCE.as_millis(),
        load()
    );
    println!("{:<44}{:^24}{:^24}{:^24}", "", "RoCE", "other datagrams", "TCP");
    let mut all = Vec::new();
    for cell in Cell::all() {
        let Cell { failure, topology, ports } = cell;
        let name = format!("{topology:<16}{ports:<15}{failure}");
        if !args.only.split_whitespace().all(|word| name.contains(word)) {
            continue;
        }
        if let Some(reason) = cell.absent() {
            println!("{name:<44}  absent: {reason}");
            all.push(json!({ "cell": name, "absent": reason }));
            continue;
        }
        let outcomes: Option<Vec<Outcome>> = (0..args.rounds).map(|_| cell.run(&name)).collect();
        let Some(outcomes) = outcomes else {
            all.push(json!({ "cell": name, "absent": "this machine cannot" }));
            continue;
        };
        let flows = Flow::ALL.map(|flow| Medians::of(&outcomes, flow));
        let columns = flows.each_ref().map(Medians::text).join(" ");
        let stalled: Vec<f64> = outcomes.iter().filter_map(|one| one.stalled.map(ms)).collect();
        let clear: usize = match failure {
            Failure::WrongKey => {
                outcomes.iter().filter_map(|one| one.meanwhile).map(|[n, ..]| n).sum()
            }
            _ => 0,
        };
        let note = match () {
            () if !stalled.is_empty() => format!("  the full flow: {:.0}", median(&stalled)),
            () if clear > 0 => format!("  {clear} RoCE datagrams IN THE CLEAR"),
            () => String::new(),
        };
        println!("{name:<44}{columns}{note}");
        let [roce, other, tcp] = flows.each_ref().map(Medians::json);
        all.push(json!({
            "cell": name, "roce": roce, "other": other, "tcp": tcp,
            "full_flow_ms": stalled, "roce_in_the_clear": clear,
        }));
    }
    args.keep.write("failures.json", &json!({ "load": load(), "cells": all }));
}
