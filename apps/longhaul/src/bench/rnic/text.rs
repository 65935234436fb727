//! The tables of results.

use crate::bench::datapath::text::aligned;
use longhaul_boxes::quantity::Size;
use longhaul_datapath::WorkPart;
use longhaul_measure::rnic::{Cost, Outcome};
use longhaul_measure::{Figures as _, Machine};
use std::fmt::Write as _;

const COLUMNS: [&str; 13] = [
    "over",
    "op",
    "message",
    "MTU",
    "QPs",
    "Gbit/s",
    "sender Gbit/s",
    "cycles",
    "per byte",
    "receiver Gbit/s",
    "cycles",
    "per byte",
    "repeated",
];

/// Formats all results, with the properties of the machine.
pub fn render(machine: &Machine, outcomes: &[Outcome]) -> String {
    let mut text = format!("{machine}\n");
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().map(|outcome| row(machine, outcome)));
    text.push_str(&aligned(&rows));
    if outcomes.iter().any(Outcome::is_instrumented) {
        text.push_str("\ncycles per packet by part, in an instrumented pass\n");
        text.push_str(&aligned(&parts(machine, outcomes)));
    }
    text.push('\n');
    for outcome in outcomes {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}: memory {} MiB, grew by {:.1} MiB",
            outcome.cell(),
            outcome.resident_peak() >> 20,
            outcome.memory_growth() as f64 / f64::from(1 << 20)
        );
    }
    text
}

fn row(machine: &Machine, outcome: &Outcome) -> Vec<String> {
    let cell = outcome.cell();
    let of_end = |cost: &Cost| {
        [
            format!("{:.1}", cost.goodput_bps / 1e9),
            format!("{:.0}", cost.ticks_per_packet),
            format!("{:.3}", cost.ticks_per_packet / cell.payload_bytes()),
        ]
    };
    let [sender, receiver] = outcome.costs(machine);
    let mut row = vec![
        cell.line.name().to_owned(),
        cell.operation.name().to_owned(),
        Size::from_bytes(cell.message_bytes.into()).to_string(),
        cell.mtu.bytes().to_string(),
        cell.qps.to_string(),
        format!("{:.1}", outcome.goodput_bps() / 1e9),
    ];
    row.extend(of_end(&sender));
    row.extend(of_end(&receiver));
    row.push(outcome.retransmits().to_string());
    row
}

/// A row for each instrumented end.
fn parts(machine: &Machine, outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut head = vec!["".to_owned(), "end".to_owned()];
    head.extend(WorkPart::ALL.map(|part| part.name().to_owned()));
    head.extend(["rest", "instrumented", "plain"].map(str::to_owned));
    let mut rows = vec![head];
    for outcome in outcomes {
        let Some(instrumented) = outcome.instrumented_costs(machine) else { continue };
        for ((name, instrumented), plain) in
            ["sender", "receiver"].iter().zip(instrumented).zip(outcome.costs(machine))
        {
            let mut row = vec![outcome.cell().to_string(), (*name).to_owned()];
            let parts = instrumented.parts.unwrap_or_default();
            row.extend(parts.iter().map(|(_, ticks)| format!("{ticks:.0}")));
            let rest =
                instrumented.ticks_per_packet - parts.iter().map(|(_, ticks)| ticks).sum::<f64>();
            row.extend(
                [rest, instrumented.ticks_per_packet, plain.ticks_per_packet]
                    .map(|ticks| format!("{ticks:.0}")),
            );
            rows.push(row);
        }
    }
    rows
}
