//! The table of results.

use crate::bench::datapath::text::{aligned, connection, time};
use longhaul_measure::boxes::Over;
use longhaul_measure::boxes::rfc2544::search::GoalResult;
use longhaul_measure::boxes::rfc2544::{Absent, Device, Outcome};
use longhaul_measure::{Figures as _, Machine};
use std::fmt::Write as _;
use std::time::Duration;

const DASH: &str = "-";

/// Headings of the columns.
const COLUMNS: [&str; 11] = [
    "box",
    "frame",
    "distance",
    "throughput frames/s",
    "Gbit/s",
    "of max load",
    "latency mean",
    "p99",
    "back-to-back",
    "recovery",
    "reset",
];

/// Formats all results, with the properties of the machine.
pub fn render(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(row));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{machine}; {}",
        match outcomes.first().map(|outcome| (&outcome.cell().device, outcome.over())) {
            Some((Device::Ports { .. }, _)) => "between two ports",
            Some((Device::Box(_), over)) => connection(over),
            None => connection(Over::Rings),
        }
    );
    text.push_str(&aligned(&rows));
    text.push('\n');
    for outcome in outcomes {
        for line in notes(outcome) {
            let _ = writeln!(text, "{}: {line}", outcome.cell());
        }
    }
    text
}

fn row(outcome: &Outcome) -> Vec<String> {
    let cell = outcome.cell();
    let lower = match outcome.found {
        GoalResult::Regular(bounds) => Some(bounds.lower),
        GoalResult::Irregular { .. } => None,
    };
    let bits = |load: f64| format!("{:.2}", load * outcome.frame_bytes as f64 * 8.0 / 1e9);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| DASH.to_owned());
    let latency = outcome.latency.ok();
    vec![
        cell.device.name().to_owned(),
        format!("{} B", outcome.frame_bytes),
        cell.distance.to_string(),
        or_dash(lower.map(|load| format!("{load:.0}"))),
        or_dash(lower.map(bits)),
        or_dash(lower.map(|load| format!("{:.0} %", 100.0 * load / outcome.max_load))),
        or_dash(latency.map(|latency| time(latency.mean as u64))),
        or_dash(latency.map(|latency| time(latency.p99))),
        or_dash(outcome.bursts.as_ref().ok().map(|bursts| median(bursts).to_string())),
        or_dash(outcome.recoveries.as_ref().ok().map(|times| duration(median(times)))),
        or_dash(outcome.resets.as_ref().ok().map(|times| duration(median(times)))),
    ]
}

/// The lower median; zero of nothing.
fn median<T: Copy + Ord + Default>(values: &[T]) -> T {
    let mut values = values.to_vec();
    values.sort();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

fn duration(duration: Duration) -> String {
    time(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    if let GoalResult::Regular(bounds) = outcome.found {
        let upper = match bounds.upper {
            Some(upper) => format!("upper bound {upper:.0} frames/s"),
            None => "no upper bound: the maximum load is the limit".to_owned(),
        };
        notes.push(format!(
            "throughput at a loss ratio of {}: {upper}, {} trials",
            outcome.loss_ratio(),
            outcome.trials
        ));
    }
    if !outcome.loss_rates.is_empty() {
        let each = outcome.loss_rates.iter().map(|(load, loss)| {
            format!("{:.0} %: {:.3} %", 100.0 * load / outcome.max_load, 100.0 * loss)
        });
        notes.push(format!("frame loss rate by load: {}", each.collect::<Vec<_>>().join(", ")));
    }
    notes.extend(
        outcome.absent().into_iter().map(|(name, why): (_, Absent)| format!("no {name}: {why}")),
    );
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_one_of_the_values() {
        assert_eq!([median(&[3, 1, 2]), median(&[4, 1]), median::<u64>(&[])], [2, 1, 0]);
    }

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        assert_eq!(duration(Duration::from_millis(12)), "12.00 ms");
    }
}
