//! A run as a record in a result file.

use longhaul_bench::{Point, Provenance, Record, Scalar, Source};
use longhaul_sim::file::{Parameter, ParameterValue};
use longhaul_sim::{FlowOutcome, Outcome, PortOutcome, Scenario};

/// Returns the record of a run with `parameters` set. With several flows, values have the flow's
/// name as prefix, and there are sums `goodput_bps` and `messages_per_s`.
pub fn record(
    experiment: &str,
    parameters: &[Parameter],
    scenario: &Scenario,
    outcome: &Outcome,
    provenance: Provenance,
) -> Record {
    let mut record = Record::new(experiment, Source::Simulated, point(parameters));
    let flows = &outcome.flows;
    let is_one = flows.len() == 1;
    for flow in flows {
        let prefix = if is_one { String::new() } else { format!("{}.", flow.name) };
        for (name, value) in values(flow) {
            record = record.value(&format!("{prefix}{name}"), value);
        }
    }
    if !is_one {
        record = record
            .value("goodput_bps", flows.iter().map(|flow| flow.goodput_bps).sum())
            .value("messages_per_s", flows.iter().map(|flow| flow.messages_per_second).sum());
    }
    let sum = |of: fn(&longhaul_sim::WireOutcome) -> u64| {
        outcome.wires.iter().map(of).sum::<u64>() as f64
    };
    record = record
        .value("lost_frames", sum(|wire| wire.lost_frames))
        .value("queue_full_frames", sum(|wire| wire.queue_full_frames))
        .value("ecn_marked_frames", sum(|wire| wire.ecn_marked_frames));
    for host in &outcome.hosts {
        let Some(load) = host.load else { continue };
        record = record
            .value(&format!("{}.cpu_percent", host.name), load.cpu_percent)
            .value(&format!("{}.completion_events", host.name), load.events as f64)
            .value(&format!("{}.wakeups", host.name), load.wakeups as f64);
    }
    for (name, value) in of_switches(outcome) {
        record = record.value(&name, value);
    }
    record = record
        .value("ended_at_ns", outcome.ended_at_ns as f64)
        .value("events", outcome.events as f64)
        .value("violations", outcome.violations.len() as f64);
    let notes: Vec<String> = notes(outcome).collect();
    if !notes.is_empty() {
        record = record.note(notes.join("; "));
    }
    debug_assert_eq!(flows.len(), scenario.flows.len());
    record.from_run(provenance)
}

/// Values of each switch's ports, named after the switch and the port's neighbour, and of all
/// together.
fn of_switches(outcome: &Outcome) -> Vec<(String, f64)> {
    let mut values = Vec::new();
    for switch in &outcome.switches {
        for port in &switch.ports {
            let prefix = format!("{}.{}.", switch.name, port.leads_to);
            values.extend(
                of_port(port).map(|(name, value)| (format!("{prefix}{name}"), value as f64)),
            );
            let drops = port.drops.iter();
            values.extend(
                drops.map(|(reason, count)| (format!("{prefix}dropped_{reason}"), *count as f64)),
            );
        }
    }
    if !outcome.switches.is_empty() {
        let mut all: Vec<(&str, u64)> = Vec::new();
        for port in outcome.switches.iter().flat_map(|switch| &switch.ports) {
            for (name, value) in of_port(port) {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, most)) if name.starts_with("queue_max") => *most = value.max(*most),
                    Some((_, sum)) => *sum += value,
                    None => all.push((name, value)),
                }
            }
        }
        values.extend(
            all.into_iter().map(|(name, value)| (format!("switches.{name}"), value as f64)),
        );
    }
    values
}

fn of_port(port: &PortOutcome) -> [(&'static str, u64); 8] {
    [
        ("forwarded_frames", port.forwarded_frames),
        ("forwarded_bytes", port.forwarded_bytes),
        ("queue_max_bytes", port.queue_bytes_max),
        ("dropped_frames", port.dropped_frames()),
        ("ecn_marked_frames", port.ecn_marked_frames),
        ("pauses_sent", port.pauses_sent),
        ("pauses_received", port.pauses_received),
        ("paused_ns", port.paused_ns),
    ]
}

/// Warnings and failures of the run.
pub fn notes(outcome: &Outcome) -> impl Iterator<Item = String> + '_ {
    let failures = outcome.flows.iter().filter_map(|flow| {
        let failure = flow.failure.as_ref()?;
        Some(format!("flow {} failed: {failure}", flow.name))
    });
    let unfinished = outcome.unfinished.iter().map(|why| format!("not all flows ended: {why}"));
    let violations = outcome.violations.iter().map(|what| format!("must never happen: {what}"));
    failures.chain(unfinished).chain(violations)
}

/// Converts parameters to a result's point.
pub fn point(parameters: &[Parameter]) -> Point {
    parameters.iter().fold(Point::new(), |point, Parameter { key, value }| {
        let value = match value {
            ParameterValue::Whole(number) => Scalar::from(*number),
            ParameterValue::Real(number) => Scalar::from(*number),
            ParameterValue::Flag(flag) => Scalar::from(*flag),
            ParameterValue::Text(text) => Scalar::from(text.clone()),
        };
        point.with(key, value)
    })
}

fn values(flow: &FlowOutcome) -> Vec<(&'static str, f64)> {
    let mut values = vec![
        ("goodput_bps", flow.goodput_bps),
        ("messages_per_s", flow.messages_per_second),
        ("messages", flow.messages as f64),
        ("transferred_bytes", flow.bytes as f64),
        ("elapsed_ns", flow.elapsed_ns as f64),
    ];
    if let Some(latency) = flow.latency {
        values.extend([
            ("latency_min_ns", latency.min_ns),
            ("latency_mean_ns", latency.mean_ns),
            ("latency_median_ns", latency.median_ns),
            ("latency_p99_ns", latency.p99_ns),
            ("latency_p999_ns", latency.p999_ns),
            ("latency_max_ns", latency.max_ns),
        ]);
    }
    if let Some(arrivals) = flow.arrivals {
        values.extend([
            ("arrived_messages", arrivals.messages as f64),
            ("incomplete_messages", arrivals.incomplete as f64),
            ("flagged_messages", arrivals.flagged as f64),
            ("duplicate_messages", arrivals.duplicates as f64),
        ]);
        values.extend(arrivals.lost.map(|lost| ("lost_messages", lost as f64)));
    }
    if let Some(migrated) = flow.migration {
        values.extend([
            ("finished_percent", if migrated.finished { 100.0 } else { 0.0 }),
            ("total_ns", migrated.total_ns as f64),
            ("passes", migrated.passes as f64),
            ("disk_bytes", migrated.disk_bytes as f64),
            ("memory_bytes", migrated.memory_bytes as f64),
            ("left_bytes", migrated.left_bytes as f64),
        ]);
        let phases = [
            ("setup_ns", migrated.setup_ns),
            ("disk_ns", migrated.disk_ns),
            ("pre_copy_ns", migrated.pre_copy_ns),
            ("downtime_ns", migrated.downtime_ns),
        ];
        values.extend(phases.into_iter().filter_map(|(name, ns)| Some((name, ns? as f64))));
    }
    if let Some(setup) = flow.setup {
        values.extend([("setup_mean_ns", setup.mean_ns), ("setup_max_ns", setup.max_ns)]);
    }
    values
}
