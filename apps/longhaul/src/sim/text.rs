//! The outcome of a run as text.

use super::results::notes;
use longhaul_bench::Scalar;
use longhaul_sim::file::LinkPlan;
use longhaul_sim::{Connect, Outcome, Scenario, Test};
use std::fmt::Write as _;

/// A table whose columns are as wide as their longest cell; the first is aligned left, the rest
/// right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heads: &[&str]) -> Self {
        Table { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    fn render(&self, out: &mut String) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // Writing to a String cannot fail.
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out.push('\n');
    }
}

/// Formats the outcome.
pub fn render(
    experiment: &str,
    scenario: &Scenario,
    links: &[LinkPlan],
    outcome: &Outcome,
) -> String {
    let mut out = format!(
        "{experiment}: {} of virtual time, {} events, seed {}\n\n",
        of("_ns", outcome.ended_at_ns as f64),
        outcome.events,
        scenario.seed
    );
    flows(&mut out, scenario, outcome);
    wires(&mut out, links, outcome);
    switches(&mut out, outcome);
    for accelerator in
        outcome.accelerators.iter().filter(|accelerator| !accelerator.counters.is_empty())
    {
        counters(&mut out, &format!("accelerator {}", accelerator.name), &accelerator.counters);
    }
    for host in outcome.hosts.iter().filter(|host| !host.counters.is_empty()) {
        counters(&mut out, &format!("host {}", host.name), &host.counters);
    }
    for note in notes(outcome) {
        let _ = writeln!(out, "{note}");
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Formats a number with the unit of the name's suffix.
fn of(unit: &str, number: f64) -> String {
    Scalar::from(number).humanised(&format!("x{unit}"))
}

fn flows(out: &mut String, scenario: &Scenario, outcome: &Outcome) {
    let mut heads = vec![
        "flow",
        "what",
        "QPs",
        "messages",
        "goodput",
        "messages/s",
        "latency: min",
        "median",
        "99 %",
    ];
    let has_setup = scenario.flows.iter().any(|flow| flow.connect != Connect::OutOfBand);
    if has_setup {
        heads.extend(["set-up: mean", "slowest"]);
    }
    let mut table = Table::new(&heads);
    for (flow, found) in scenario.flows.iter().zip(&outcome.flows) {
        let test = if matches!(flow.test, Test::Latency { .. }) { " latency" } else { "" };
        let latency = |of_latency: fn(&longhaul_sim::Latency) -> f64| {
            found.latency.map_or_else(|| "-".to_owned(), |latency| of("_ns", of_latency(&latency)))
        };
        let mut row = vec![
            found.name.clone(),
            format!("{}{test} {}", flow.op.name(), of("_bytes", flow.message_bytes.into())),
            flow.qps.to_string(),
            found.messages.to_string(),
            of("_bps", found.goodput_bps),
            format!("{:.0}", found.messages_per_second),
            latency(|latency| latency.min_ns),
            latency(|latency| latency.median_ns),
            latency(|latency| latency.p99_ns),
        ];
        if has_setup {
            let time =
                |time_ns: Option<f64>| time_ns.map_or_else(|| "-".to_owned(), |ns| of("_ns", ns));
            row.push(time(found.setup.map(|setup| setup.mean_ns)));
            row.push(time(found.setup.map(|setup| setup.max_ns)));
        }
        table.rows.push(row);
    }
    table.render(out);
}

fn wires(out: &mut String, links: &[LinkPlan], outcome: &Outcome) {
    let mut table = Table::new(&[
        "link",
        "from",
        "to",
        "frames",
        "bytes",
        "lost",
        "queue full",
        "marked",
        "queue max",
    ]);
    for (number, wire) in outcome.wires.iter().enumerate() {
        table.rows.push(vec![
            links.get(number / 2).map_or_else(String::new, |link| link.name.clone()),
            wire.from.clone(),
            wire.to.clone(),
            wire.entered_frames.to_string(),
            wire.entered_bytes.to_string(),
            wire.lost_frames.to_string(),
            wire.queue_full_frames.to_string(),
            wire.ecn_marked_frames.to_string(),
            of("_bytes", wire.queue_bytes_max as f64),
        ]);
    }
    table.render(out);
}

fn switches(out: &mut String, outcome: &Outcome) {
    if outcome.switches.is_empty() {
        return;
    }
    let heads = ["switch", "to", "frames", "bytes", "queue max", "marked", "dropped"];
    let of_pauses = ["pauses sent", "received", "paused", "held max"];
    let ports = || outcome.switches.iter().flat_map(|switch| &switch.ports);
    let has_pauses = ports().any(|port| port.held_bytes_max > 0 || port.pauses_received > 0);
    let mut table = Table::new(&[&heads[..], if has_pauses { &of_pauses } else { &[] }].concat());
    for switch in &outcome.switches {
        for port in &switch.ports {
            let reasons: Vec<String> =
                port.drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            let mut row = vec![
                switch.name.clone(),
                port.leads_to.clone(),
                port.forwarded_frames.to_string(),
                port.forwarded_bytes.to_string(),
                of("_bytes", port.queue_bytes_max as f64),
                port.ecn_marked_frames.to_string(),
                if reasons.is_empty() { "0".to_owned() } else { reasons.join(", ") },
            ];
            if has_pauses {
                row.extend([
                    port.pauses_sent.to_string(),
                    port.pauses_received.to_string(),
                    of("_ns", port.paused_ns as f64),
                    of("_bytes", port.held_bytes_max as f64),
                ]);
            }
            table.rows.push(row);
        }
    }
    table.render(out);
}

fn counters(out: &mut String, title: &str, counters: &[(String, u64)]) {
    let _ = writeln!(out, "{title}");
    let width = counters.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, count) in counters {
        let _ = writeln!(out, "  {name:<width$}  {count}");
    }
    out.push('\n');
}
