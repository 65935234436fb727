//! Points of experiments, run on all cores.

use super::declared::{Declared, Planned, Run, only};
use super::predict::predict;
use crate::problem::Problem;
use longhaul_bench::{Point, Record, Source, Started};
use longhaul_sim::{Outcome, Simulation};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs every point on `jobs` threads. `done` is told how many are, after each.
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
                    // A thread that panics ends the scope, and this with it.
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, result));
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

/// Simulated, and predicted.
fn one(experiment: &str, run: &Run, planned: &Planned) -> Result<Vec<Record>, Problem> {
    let here = |error: String| Problem::plain(format!("{experiment}, {:?}: {error}", planned.varied));
    let no_files = &mut |name: &str| Err(format!("{name} is not in the program"));
    let scenario = planned.scenario.load(no_files).map_err(|e| here(e.to_string()))?.scenario;
    let fitted = |record: Record| if planned.fitted { record.fitted() } else { record };
    let mut records = Vec::new();
    let started = Started::now();
    if !run.simulated_only {
        let prediction = predict(&scenario)?;
        let record = Record::new(experiment, Source::Predicted, planned.point.clone())
            .from_run(started.provenance(None, 1))
            .value("goodput_bps", prediction.goodput_bps)
            .value("latency_ns", prediction.latency_ns)
            .note(format!("limit: {}", prediction.limit));
        records.push(fitted(record));
    }
    let seed = scenario.seed;
    let simulation = Simulation::new(scenario, |_, _| None).map_err(|e| here(e.to_string()))?;
    let outcome = simulation.run(1, |_| true);
    let faults = outcome.violations.iter().chain(&outcome.unfinished);
    if let Some(fault) = faults.chain(outcome.flows[0].failure.as_ref()).next() {
        return Err(here(fault.clone()));
    }
    let flow = &outcome.flows[0];
    let mut record = Record::new(experiment, Source::Simulated, planned.point.clone())
        .from_run(started.provenance(Some(seed), 1))
        .value("goodput_bps", flow.goodput_bps)
        .value("frame_efficiency_percent", frame_efficiency_percent(&outcome));
    if let Some(latency) = flow.latency {
        record = record.value("latency_ns", latency.median_ns);
    }
    let lost = outcome.wires.iter().map(|wire| wire.lost_frames).sum::<u64>();
    if lost > 0 {
        record = record.value("lost_packets", lost as f64);
    }
    records.push(fitted(record));
    Ok(records)
}

/// Payload among the bytes of frames that the first cable carried in the direction of the payload.
fn frame_efficiency_percent(outcome: &Outcome) -> f64 {
    let carried = outcome.wires.iter().map(|wire| wire.entered_bytes).max().unwrap_or(0);
    let payload: u64 = outcome.flows.iter().map(|flow| flow.bytes).sum();
    100.0 * payload as f64 / carried.max(1) as f64
}

/// Of each run that is held against another, goodput divided by the other's.
fn gains(declared: &Declared, points: &[Planned], results: &[(usize, Vec<Record>)]) -> Vec<Record> {
    let mut gains = Vec::new();
    for (number, run) in declared.runs().iter().enumerate() {
        let own = || results.iter().filter(|(at, _)| points[*at].run == number);
        for (other, (at, records)) in run.against.iter().flat_map(|other| own().map(move |own| (other, own)))
        {
            let counterpart = results.iter().find(|(there, _)| {
                let there = &points[*there];
                declared.runs()[there.run].name == *other && there.varied == points[*at].varied
            });
            let Some((_, others)) = counterpart else { continue };
            let value = format!("gain_over_{other}");
            for record in records {
                let goodput = |record: &Record| record.values.get("goodput_bps").copied();
                let beside = others.iter().find(|other| other.source == record.source).and_then(goodput);
                if let (Some(own), Some(beside)) = (goodput(record), beside) {
                    let gain = Record { values: BTreeMap::new(), ..record.clone() };
                    gains.push(gain.value(&value, own / beside));
                }
            }
        }
    }
    gains
}

/// The most goodput of each source, at a point with these parameters alone.
fn best(records: impl Iterator<Item = Record>, keys: &[String]) -> Vec<Record> {
    let mut best: BTreeMap<(Source, Point), Record> = BTreeMap::new();
    for record in records {
        let point = only(&record.point, keys);
        let goodput = |record: &Record| record.values.get("goodput_bps").copied().unwrap_or(0.0);
        let key = (record.source, point.clone());
        if best.get(&key).is_none_or(|known| goodput(known) < goodput(&record)) {
            let at = record.point.iter().filter(|(key, _)| point.get(key).is_none());
            let at: Vec<_> = at.map(|(key, value)| format!("{key} {value}")).collect();
            best.insert(key, Record { point, ..record }.note(format!("at {}", at.join(", "))));
        }
    }
    best.into_values().collect()
}
