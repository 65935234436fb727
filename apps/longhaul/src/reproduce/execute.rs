//! Runs points of experiments on all cores.

use super::declared::{Declared, Planned, Run, only};
use super::predict::{Predicted, predict};
use crate::problem::Problem;
use longhaul_bench::{Point, Record, Source, Started};
use longhaul_sim::{Migrated, Outcome, Scenario, Simulation, Test};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs every point on `jobs` threads. Calls `done` with the number of finished points after each.
pub fn execute(
    declared: &Declared,
    points: &[Planned],
    jobs: usize,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<Record>, Problem> {
    let name = &declared.experiment.name;
    let next = AtomicUsize::new(0);
    let finished = AtomicUsize::new(0);
    let has_failed = AtomicBool::new(false);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed)
                    && let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(point) = points.get(at)
                {
                    let result = one(name, &declared.runs()[point.run], point);
                    has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    // A panicking thread ends the scope, and this function.
                    results
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, result));
                    done(finished.fetch_add(1, Ordering::Relaxed) + 1);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    let mut of_points = Vec::new();
    for (at, result) in results {
        of_points.push((at, result?));
    }
    let mut records = gains(declared, points, &of_points);
    for (number, run) in declared.runs().iter().enumerate() {
        let own = of_points.iter().filter(|(at, _)| points[*at].run == number);
        let own = own.flat_map(|(_, records)| records.iter().cloned());
        match &run.best_by {
            None => records.extend(own),
            Some(keys) => records.extend(best(own, keys)),
        }
    }
    for claim in &declared.arithmetic {
        for (point, value, figure) in claim.results()? {
            records.push(Record::new(name, Source::Predicted, point).value(value, figure));
        }
    }
    Ok(records)
}

/// Simulates and predicts a point. A failed run gives a record with the error.
fn one(experiment: &str, run: &Run, planned: &Planned) -> Result<Vec<Record>, Problem> {
    let here = |error: String| {
        Problem::plain(format!("{experiment}, {}: {error}", planned.varied.join(", ")))
    };
    let no_files = &mut |name: &str| Err(format!("{name} is not in the program"));
    let scenario = planned.scenario.load(no_files).map_err(|e| here(e.to_string()))?.scenario;
    let mut records = Vec::new();
    if !run.simulated_only {
        records.push(predicted(experiment, planned, &scenario));
    }
    let started = Started::now();
    let (seed, owed) = (scenario.seed, owed(&scenario, Source::Simulated));
    let simulation =
        Simulation::new(scenario.clone(), |_, _| None).map_err(|e| here(e.to_string()))?;
    let outcome = simulation.run(1, |_| true);
    let record = Record::new(experiment, Source::Simulated, planned.point.clone());
    let record = match fault(&outcome) {
        Some(why) => owed.iter().fold(record, |record, value| record.failure(value, why)),
        None => figures(record, &scenario, &outcome),
    };
    records.push(record.from_run(started.provenance(Some(seed), 1)));
    Ok(records.into_iter().map(|record| finished(record, planned)).collect())
}

/// Predicts a point with the planner.
fn predicted(experiment: &str, planned: &Planned, scenario: &Scenario) -> Record {
    let started = Started::now();
    let record = Record::new(experiment, Source::Predicted, planned.point.clone());
    let record = match predict(scenario) {
        Ok(Predicted { values, note }) => values
            .into_iter()
            .fold(record, |record, (name, value)| record.value(name, value))
            .note(note),
        Err(problem) => {
            let why = problem.to_string();
            let owed = owed(scenario, Source::Predicted);
            owed.iter().fold(record, |record, value| record.failure(value, &why))
        }
    };
    record.from_run(started.provenance(None, 1))
}

/// Values that a prediction or simulation produces unless it fails; `total_s` only of a migration
/// that finishes.
fn owed(scenario: &Scenario, source: Source) -> &'static [&'static str] {
    match (scenario.flows.first().map(|flow| flow.test), source) {
        (Some(Test::Migration { .. }), _) => &["finished_percent", "total_s"],
        (_, Source::Predicted) => &["goodput_bps", "latency_ns"],
        (Some(Test::Latency { .. }), _) => {
            &["goodput_bps", "frame_efficiency_percent", "latency_ns"]
        }
        _ => &["goodput_bps", "frame_efficiency_percent"],
    }
}

/// Returns why a run has no valid result.
fn fault(outcome: &Outcome) -> Option<&str> {
    let failure = outcome.flows.iter().filter_map(|flow| flow.failure.as_ref());
    outcome.violations.iter().chain(failure).chain(&outcome.unfinished).next().map(String::as_str)
}

fn figures(record: Record, scenario: &Scenario, outcome: &Outcome) -> Record {
    let flow = &outcome.flows[0];
    if let Some(migrated) = &flow.migration {
        return of_migration(record, migrated);
    }
    let mut record = record
        .value("goodput_bps", outcome.flows.iter().map(|flow| flow.goodput_bps).sum())
        .value("frame_efficiency_percent", frame_efficiency_percent(outcome));
    if let Some(latency) = flow.latency {
        record = record.value("latency_ns", latency.median_ns);
    }
    let ends = &scenario.flows[0];
    for (value, station) in
        [("requester_cpu_percent", ends.from), ("responder_cpu_percent", ends.to)]
    {
        let name = &scenario.stations[station].name;
        let host = outcome.hosts.iter().find(|host| host.name == *name);
        if let Some(load) = host.and_then(|host| host.load) {
            record = record.value(value, load.cpu_percent);
        }
    }
    let lost = outcome.wires.iter().map(|wire| wire.lost_frames).sum::<u64>();
    if lost > 0 {
        record = record.value("lost_packets", lost as f64);
    }
    record
}

fn of_migration(record: Record, migrated: &Migrated) -> Record {
    match (migrated.finished, migrated.downtime_ns) {
        (true, Some(downtime_ns)) => record
            .value("finished_percent", 100.0)
            .value("total_s", migrated.total_ns as f64 / 1e9)
            .value("downtime_ms", downtime_ns as f64 / 1e6)
            .note(format!("passes: {}", migrated.passes)),
        _ => record.value("finished_percent", 0.0).note(format!("passes: {}", migrated.passes)),
    }
}

/// Completes a record with copied values and the fitted flag.
fn finished(mut record: Record, planned: &Planned) -> Record {
    for (value, copy) in &planned.copies {
        if let Some(figure) = record.values.get(value).copied() {
            record.values.insert(copy.clone(), figure);
        }
        if let Some(why) = record.failed.get(value).cloned() {
            record.failed.insert(copy.clone(), why);
        }
    }
    if planned.fitted { record.fitted() } else { record }
}

/// Share of payload in the frame bytes on the first cable, in the direction of the payload.
fn frame_efficiency_percent(outcome: &Outcome) -> f64 {
    let carried = outcome.wires.iter().map(|wire| wire.entered_bytes).max().unwrap_or(0);
    let payload: u64 = outcome.flows.iter().map(|flow| flow.bytes).sum();
    100.0 * payload as f64 / carried.max(1) as f64
}

/// Computes the gains of runs over others: goodput divided by the other's, and the part of the
/// other's responder's processor time that a run saves.
fn gains(declared: &Declared, points: &[Planned], results: &[(usize, Vec<Record>)]) -> Vec<Record> {
    let mut gains = Vec::new();
    for (number, run) in declared.runs().iter().enumerate() {
        let own = || results.iter().filter(|(at, _)| points[*at].run == number);
        for (other, (at, records)) in
            run.against.iter().flat_map(|other| own().map(move |own| (other, own)))
        {
            let counterpart = results.iter().find(|(there, _)| {
                let there = &points[*there];
                declared.runs()[there.run].name == *other && there.varied == points[*at].varied
            });
            let Some((_, others)) = counterpart else { continue };
            let value = format!("gain_over_{other}");
            for record in records {
                let Some(beside) = others.iter().find(|other| other.source == record.source) else {
                    continue;
                };
                let goodput = |record: &Record| record.values.get("goodput_bps").copied();
                let cpu = |record: &Record| record.values.get("responder_cpu_percent").copied();
                let (values, failed) = (BTreeMap::new(), BTreeMap::new());
                let mut gain = Record { values, failed, ..record.clone() };
                if let (Some(own), Some(beside)) = (cpu(record), cpu(beside)) {
                    let saved = 100.0 * (1.0 - own / beside);
                    gain = gain.value(&format!("cpu_percent_saved_over_{other}"), saved);
                }
                if let (Some(own), Some(beside)) = (goodput(record), goodput(beside)) {
                    gains.push(gain.value(&value, own / beside));
                } else if let Some(why) =
                    [record, beside].iter().find_map(|of| of.failed.get("goodput_bps"))
                {
                    gains.push(gain.failure(&value, why));
                }
            }
        }
    }
    gains
}

/// Returns the maximum goodput of each source, at a point with these parameters only. If any of the
/// runs failed, the maximum is unknown and the result is that error.
fn best(records: impl Iterator<Item = Record>, keys: &[String]) -> Vec<Record> {
    let mut best: BTreeMap<(Source, Point), Record> = BTreeMap::new();
    for record in records {
        let point = only(&record.point, keys);
        let goodput = |record: &Record| match record.failed.is_empty() {
            true => record.values.get("goodput_bps").copied().unwrap_or(0.0),
            false => f64::INFINITY,
        };
        let key = (record.source, point.clone());
        if best.get(&key).is_none_or(|known| goodput(known) < goodput(&record)) {
            let at = record.point.iter().filter(|(key, _)| point.get(key).is_none());
            let at: Vec<_> = at.map(|(key, value)| format!("{key} {value}")).collect();
            best.insert(key, Record { point, ..record }.note(format!("at {}", at.join(", "))));
        }
    }
    best.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::declared::Extent;

    /// A flow that completes in time over a kilometre, but not over 10,000; the best of each, and a
    /// gain.
    const EXPERIMENT: &str = r#"
[experiment]
name = "late"
[scenario]
time_max = "10ms"
[scenario.path]
rate = "10G"
distance = "1km"
nic = "connectx6"
[[scenario.flow]]
op = "write"
size = "4K"
iterations = 100
[[run]]
name = "near"
point = { way = "near" }
[[run]]
name = "far"
point = { way = "far" }
set = { "path.distance" = "10000km" }
against = ["near"]
[[run]]
point = { way = "best" }
vary = { "path.distance" = "1km,10000km" }
best_by = ["way"]
"#;

    #[test]
    fn a_run_that_ends_in_an_error_leaves_the_others_their_figures() {
        let declared: Declared = toml::from_str(EXPERIMENT).expect("an experiment");
        let (points, _) = declared.plan(Extent::Whole).expect("a plan");
        let records = execute(&declared, &points, 2, |_| ()).expect("records");
        let of = |way: &str, source| {
            let at = format!("way {way}");
            let of = records.iter().filter(|it| it.source == source && it.point.to_string() == at);
            let (mut values, mut failed) = (BTreeMap::new(), BTreeMap::new());
            for record in of {
                values.extend(record.values.clone());
                failed.extend(record.failed.clone());
            }
            (values, failed)
        };
        let (values, failed) = of("near", Source::Simulated);
        assert!(values["goodput_bps"] > 0.0 && failed.is_empty(), "{records:#?}");
        for way in ["far", "best"] {
            let (values, failed) = of(way, Source::Simulated);
            assert_eq!(
                (values.len(), failed["goodput_bps"].as_str()),
                (0, "its time was over"),
                "{way}"
            );
        }
        assert_eq!(of("far", Source::Simulated).1["gain_over_near"], "its time was over");
        assert!(of("far", Source::Predicted).0["gain_over_near"] < 1.0);
    }
}
