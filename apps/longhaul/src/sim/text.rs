//! The outcome of a run as text.

use super::results::notes;
use crate::output::table::blocks;
use longhaul_bench::Scalar;
use longhaul_sim::file::LinkPlan;
use longhaul_sim::{Connect, Outcome, Scenario, Test};
use std::fmt::Write as _;

/// Rows of a table, headings first.
type Rows = Vec<Vec<String>>;

fn heads(heads: &[&str]) -> Rows {
    vec![heads.iter().map(|head| (*head).to_owned()).collect()]
}

/// Formats the outcome.
pub fn render(
    experiment: &str,
    scenario: &Scenario,
    links: &[LinkPlan],
    outcome: &Outcome,
    width: usize,
) -> String {
    let mut out = format!(
        "{experiment}: {} of virtual time, {} events, seed {}\n",
        of("_ns", outcome.ended_at_ns as f64),
        outcome.events,
        scenario.seed
    );
    for (rows, keys) in [
        (flows(scenario, outcome), 1),
        (arrivals(outcome), 1),
        (migrations(outcome), 1),
        (loads(outcome), 1),
        (wires(links, outcome), 3),
        (switches(outcome), 2),
    ] {
        // A scenario without switches has no table of them.
        if rows.len() > 1 {
            out.push('\n');
            out.push_str(&blocks(&rows, keys, width));
        }
    }
    out.push('\n');
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

fn flows(scenario: &Scenario, outcome: &Outcome) -> Rows {
    let mut columns = vec![
        "flow",
        "what",
        "QPs",
        "messages",
        "goodput",
        "messages/s",
        "min latency",
        "median latency",
        "99 % latency",
    ];
    let has_setup = scenario.flows.iter().any(|flow| flow.connect != Connect::OutOfBand);
    if has_setup {
        columns.extend(["mean set-up", "slowest set-up"]);
    }
    let mut table = heads(&columns);
    for (flow, found) in scenario.flows.iter().zip(&outcome.flows) {
        let test = match flow.test {
            Test::Bandwidth { .. } => "",
            Test::Latency { .. } => " latency",
            Test::Storage { .. } => " storage",
            Test::Migration { .. } => " migration",
        };
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
        table.push(row);
    }
    table
}

/// What arrived of each flow with UC.
fn arrivals(outcome: &Outcome) -> Rows {
    let mut table = heads(&["flow", "arrived", "lost", "flagged", "incomplete", "duplicates"]);
    for flow in &outcome.flows {
        let Some(arrivals) = flow.arrivals else { continue };
        table.push(vec![
            flow.name.clone(),
            arrivals.messages.to_string(),
            arrivals.lost.map_or_else(|| "-".to_owned(), |lost| lost.to_string()),
            arrivals.flagged.to_string(),
            arrivals.incomplete.to_string(),
            arrivals.duplicates.to_string(),
        ]);
    }
    table
}

/// Phases of each migration.
fn migrations(outcome: &Outcome) -> Rows {
    let mut table = heads(&[
        "flow",
        "migration",
        "total",
        "set-up",
        "disk",
        "pre-copy",
        "downtime",
        "passes",
        "disk sent",
        "memory sent",
        "memory left",
    ]);
    for flow in &outcome.flows {
        let Some(migrated) = flow.migration else { continue };
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| of("_ns", ns as f64));
        table.push(vec![
            flow.name.clone(),
            if migrated.finished { "finished" } else { "did not finish" }.to_owned(),
            of("_ns", migrated.total_ns as f64),
            time(migrated.setup_ns),
            time(migrated.disk_ns),
            time(migrated.pre_copy_ns),
            time(migrated.downtime_ns),
            migrated.passes.to_string(),
            of("_bytes", migrated.disk_bytes as f64),
            of("_bytes", migrated.memory_bytes as f64),
            of("_bytes", migrated.left_bytes as f64),
        ]);
    }
    table
}

/// CPU load of each host whose programs wait for events.
fn loads(outcome: &Outcome) -> Rows {
    let mut table = heads(&["host", "CPU, % of a core", "threads", "events", "wake-ups"]);
    for host in &outcome.hosts {
        let Some(load) = host.load else { continue };
        table.push(vec![
            host.name.clone(),
            format!("{:.1}", load.cpu_percent),
            load.threads.to_string(),
            load.events.to_string(),
            load.wakeups.to_string(),
        ]);
    }
    table
}

fn wires(links: &[LinkPlan], outcome: &Outcome) -> Rows {
    let mut table = heads(&[
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
        table.push(vec![
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
    table
}

fn switches(outcome: &Outcome) -> Rows {
    let columns = ["switch", "to", "frames", "bytes", "queue max", "marked", "dropped"];
    let of_pauses = ["pauses sent", "pauses received", "paused", "held max"];
    let ports = || outcome.switches.iter().flat_map(|switch| &switch.ports);
    let has_pauses = ports().any(|port| port.held_bytes_max > 0 || port.pauses_received > 0);
    let mut table = heads(&[&columns[..], if has_pauses { &of_pauses } else { &[] }].concat());
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
            table.push(row);
        }
    }
    table
}

fn counters(out: &mut String, title: &str, counters: &[(String, u64)]) {
    let _ = writeln!(out, "{title}");
    let width = counters.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, count) in counters {
        let _ = writeln!(out, "  {name:<width$}  {count}");
    }
    out.push('\n');
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use longhaul_sim::Simulation;
    use longhaul_sim::file::{EXAMPLE, Loaded, ScenarioFile};

    /// The outcome of the example that users begin with.
    pub fn view() -> impl Fn(usize) -> String {
        let file = ScenarioFile::parse("example", EXAMPLE).unwrap();
        let no_files = &mut |name: &str| Err(format!("no file {name}"));
        let Loaded { scenario, links, .. } = file.load(no_files).unwrap();
        let simulation = Simulation::new(scenario.clone(), |_, _| None).unwrap();
        let outcome = simulation.run(1, |_| true);
        move |width| render("example", &scenario, &links, &outcome, width)
    }

    /// A migration of 64 MiB at 8 Gbit/s: 67 ms.
    #[test]
    fn a_migration_shows_its_phases_and_whether_it_finished() {
        for (timeout, shown) in [("1s", "finished"), ("20ms", "did not finish")] {
            let text = format!(
                "[path]\ndistance = \"1km\"\n[[flow]]\ntest = \"migration\"\nmemory = \"64M\"\n\
                 memory_rate = \"8G\"\ntimeout = \"{timeout}\""
            );
            let file = ScenarioFile::parse("m", &text).unwrap();
            let no_files = &mut |name: &str| Err(format!("no file {name}"));
            let Loaded { scenario, links, .. } = file.load(no_files).unwrap();
            let outcome = Simulation::new(scenario.clone(), |_, _| None).unwrap().run(1, |_| true);
            let text = render("m", &scenario, &links, &outcome, 400);
            let row = text.lines().find(|line| line.contains(shown)).unwrap();
            let phases = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            let phases: Vec<&str> = phases.collect();
            let (total, is_stopped) = match timeout {
                "1s" => ("67.", true),
                _ => ("20 ms", false),
            };
            assert!(phases[2].starts_with(total), "{text}");
            assert_eq!(phases[6] != "-", is_stopped, "{text}");
        }
    }

    #[test]
    fn a_narrow_terminal_gets_every_figure_of_a_wide_one() {
        let view = view();
        let words = |width| {
            let text = view(width);
            let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words.dedup();
            words
        };
        assert_eq!(words(80), words(400));
    }
}
