//! The table of results.

use longhaul_boxes::quantity::Size;
use longhaul_datapath::Measured;
use longhaul_measure::boxes::{BoxKind, Outcome, Over};
use longhaul_measure::{Figures as _, Machine};
use std::fmt::Write as _;

const DASH: &str = "-";

/// Headings of the columns.
const COLUMNS: [&str; 15] = [
    "box",
    "payload",
    "QPs",
    "distance",
    "M/s",
    "Gbit/s",
    "box M/s",
    "box Gbit/s",
    "cycles",
    "to forward",
    "one way p50",
    "p99",
    "p99.9",
    "ACK p50",
    "lost",
];

/// What connects load and box, in words.
pub fn connection(over: Over) -> &'static str {
    match over {
        Over::Memif => "over memif, the box in a process of its own",
        Over::CopyingRings => "over rings that copy, all in one thread",
        Over::Rings => "over rings, all in one thread",
    }
}

/// Formats all results, with the properties of the machine.
pub fn render(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(|outcome| row(machine, outcomes, outcome)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{machine}; {}",
        connection(outcomes.first().map_or(Over::Rings, Outcome::over))
    );
    text.push_str(&aligned(&rows));
    text.push('\n');
    for outcome in outcomes {
        for line in notes(outcome) {
            let _ = writeln!(text, "{}: {line}", outcome.cell());
        }
    }
    if let Some(why) = machine.no_counters() {
        let _ = writeln!(
            text,
            "instructions, cache misses: not available here ({why}); cycles are ticks of the \
             time-stamp counter"
        );
    }
    text
}

/// Aligns columns to their widest cell, the first to the left.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max()
    };
    let mut text = String::new();
    for row in rows {
        let cells = (0..columns).zip(row).map(|(at, cell)| {
            let width = width(at).unwrap_or(0);
            if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(machine: &Machine, all: &[Outcome], outcome: &Outcome) -> Vec<String> {
    let (cell, measured) = (outcome.cell(), outcome.measured());
    let millions =
        |pps: Option<f64>| pps.map_or(DASH.to_owned(), |pps| format!("{:.2}", pps / 1e6));
    let bits = |pps: f64| format!("{:.1}", pps * measured.payload_bytes as f64 * 8.0 / 1e9);
    let ticks = outcome.box_ticks(machine);
    let floor = all.iter().find(|other| {
        let (a, b) = (other.cell(), cell);
        a.kind == BoxKind::Forward
            && (a.payload_bytes, a.flows, a.distance) == (b.payload_bytes, b.flows, b.distance)
    });
    let ratio = floor.and_then(|floor| Some(ticks? / floor.box_ticks(machine)?));
    let [one_way, acked] = [&measured.one_way, &measured.acknowledged]
        .map(|times| [0.5, 0.99, 0.999].map(|part| time(times.value_at_quantile(part))));
    let [p50, p99, p999] = one_way;
    let [acked, ..] = acked;
    vec![
        cell.kind.name().to_owned(),
        Size::from_bytes(cell.payload_bytes as u64).to_string(),
        cell.flows.to_string(),
        cell.distance.to_string(),
        millions(Some(measured.packets_per_s())),
        bits(measured.packets_per_s()),
        millions(outcome.box_pps(machine)),
        outcome.box_pps(machine).map_or(DASH.to_owned(), bits),
        ticks.map_or(DASH.to_owned(), |ticks| format!("{ticks:.0}")),
        ratio.map_or(DASH.to_owned(), |ratio| format!("{ratio:.2}")),
        p50,
        p99,
        p999,
        acked,
        measured.lost.to_string(),
    ]
}

/// `850 ns`, `12.3 µs`, `5.01 ms`.
pub fn time(ns: u64) -> String {
    match ns {
        0..1000 => format!("{ns} ns"),
        1000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        _ => format!("{:.2} ms", ns as f64 / 1e6),
    }
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let measured = outcome.measured();
    let mut notes = Vec::new();
    if let Some(alone) = outcome.load_alone_pps()
        && measured.packets_per_s() > 0.8 * alone
    {
        notes.push(format!("the load alone reaches {:.2} M/s: it may be the limit", alone / 1e6));
    }
    if let Some(theirs) = outcome.testpmd_pps() {
        let ratio = measured.packets_per_s() / theirs;
        notes.push(format!(
            "testpmd (macswap) with the same load {:.2} M/s; ours is {ratio:.2} of it",
            theirs / 1e6
        ));
    }
    if let Some([instructions, misses]) = outcome.counted() {
        notes.push(format!(
            "{instructions:.0} instructions and {misses:.2} cache misses per packet"
        ));
    }
    let stages = stages(measured);
    if measured.stages.len() > 1 {
        notes.push(format!("cycles per packet: {stages}"));
    }
    if let Some(parts) = outcome.parts() {
        let [(_, plain), (_, coding), (_, encryption), (_, ratio)] = parts.values();
        notes.push(format!(
            "{ratio:.2} of the sum of its parts: {plain:.0} plain, {coding:.0} coding, \
             {encryption:.0} encryption"
        ));
    }
    let drops = outcome.drops();
    if !drops.is_empty() {
        let all: Vec<String> =
            drops.iter().map(|(name, count)| format!("{count} {name}")).collect();
        notes.push(format!("dropped: {}", all.join(", ")));
    }
    let counters = &measured.counters;
    if counters.behind_gaps + counters.duplicates > 0 {
        notes.push(format!(
            "{} packets behind gaps, {} duplicates",
            counters.behind_gaps, counters.duplicates
        ));
    }
    let share = measured.processor_share();
    if share < 0.98 && outcome.over() != Over::Memif {
        notes.push(format!(
            "other processes used the processor for {:.0} % of the time, which is subtracted from \
             the box's cycles, but not from M/s and times",
            100.0 * (1.0 - share)
        ));
    }
    let [start, _, most] = measured.resident_bytes;
    let grew = (most - start) as f64 / f64::from(1 << 20);
    notes.push(format!("memory {} MiB, grew by {grew:.1} MiB", most >> 20));
    notes
}

fn stages(measured: &Measured) -> String {
    let each = measured.stages.iter().map(|stage| {
        let between = if stage.is_box { "" } else { " (not counted)" };
        format!("{} {:.0}{between}", stage.name, measured.ticks_per_packet(stage))
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest() {
        let rows =
            [["a", "bb", "c"], ["aaa", "b", "µµ"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "a    bb   c\naaa   b  µµ\n");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([850, 12_345, 5_012_345].map(time), ["850 ns", "12.3 µs", "5.01 ms"]);
    }
}
