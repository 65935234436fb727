//! One frame of `longhaul top`.

use super::Choice;
use super::sample::{FlowRow, PathRow, Snapshot};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Table};

/// Rows of a table besides its data: title and headings.
const TABLE_ROWS: usize = 2;

const FLOW_WIDTHS: [Constraint; 10] = [
    Constraint::Min(16),
    Constraint::Min(32),
    Constraint::Length(5),
    Constraint::Length(14),
    Constraint::Length(8),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(8),
];

const PATH_WIDTHS: [Constraint; 10] = [
    Constraint::Min(16),
    Constraint::Min(24),
    Constraint::Length(4),
    Constraint::Length(11),
    Constraint::Length(8),
    Constraint::Length(12),
    Constraint::Length(10),
    Constraint::Length(8),
    Constraint::Length(8),
    Constraint::Length(10),
];

/// Rows needed to show all of `snapshot`.
pub fn rows(snapshot: &Snapshot) -> u16 {
    let rows = snapshot.boxes.len() + path_rows(snapshot) + TABLE_ROWS + snapshot.flows.len() + 1;
    u16::try_from(rows).unwrap_or(u16::MAX)
}

fn path_rows(snapshot: &Snapshot) -> usize {
    if snapshot.paths.is_empty() { 0 } else { TABLE_ROWS + snapshot.paths.len() }
}

/// Draws `snapshot`: boxes, paths, flows, and the available keys.
pub fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, choice: Choice) {
    let rows = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
    let area = frame.area();
    // If not everything fits, flows get at least a few rows.
    let is_tight = self::rows(snapshot) > area.height;
    let part = |rows: usize, share: usize| {
        if is_tight { rows.min(usize::from(area.height) / share) } else { rows }
    };
    let [top, paths, flows, foot] = Layout::vertical([
        rows(part(snapshot.boxes.len(), 2)),
        rows(part(path_rows(snapshot), 3)),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    let lines: Vec<Line<'_>> = snapshot.boxes.iter().map(|line| Line::raw(&**line)).collect();
    frame.render_widget(Paragraph::new(Text::from(lines)), top);
    if !snapshot.paths.is_empty() {
        let rows = snapshot.paths.iter().map(path_row);
        let head = [
            "box/pair",
            "path",
            "link",
            "round trip",
            "loss",
            "layout",
            "sent/s",
            "lost/s",
            "parity/s",
            "repaired/s",
        ];
        frame.render_widget(table("paths", head, PATH_WIDTHS, rows), paths);
    }
    let head = [
        "box/pair",
        "flow",
        "mode",
        "state",
        "Gbit/s",
        "packets/s",
        "store",
        "ack",
        "round trip",
        "resent/s",
    ];
    let title = format!("flows by {}", choice.order.name());
    let sorted = snapshot.sorted(choice.order);
    frame.render_widget(table(&title, head, FLOW_WIDTHS, sorted.into_iter().map(flow_row)), flows);
    let paused = if choice.is_paused { "  paused" } else { "" };
    frame.render_widget(Paragraph::new(format!("q quit  s sort  p pause{paused}")), foot);
}

fn table<'a>(
    title: &'a str,
    head: [&'a str; 10],
    widths: [Constraint; 10],
    rows: impl Iterator<Item = Row<'a>>,
) -> Table<'a> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    // Aligned as the cells below: words left, numbers right.
    let head = head
        .into_iter()
        .enumerate()
        .map(|(at, text)| if at < 3 { Cell::from(text) } else { right(text) });
    let block = Block::new().borders(Borders::TOP).title(title);
    Table::new(rows, widths).header(Row::new(head).style(bold)).block(block)
}

fn right<'a>(text: impl Into<String>) -> Cell<'a> {
    Cell::from(Text::raw(text.into()).alignment(Alignment::Right))
}

fn flow_row(flow: &FlowRow) -> Row<'_> {
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_string(), microseconds);
    Row::new([
        Cell::from(&*flow.place),
        Cell::from(&*flow.name),
        Cell::from(&*flow.mode),
        right(&*flow.state),
        right(format!("{:.3}", flow.bits_per_s / 1e9)),
        right(format!("{:.0}", flow.packets_per_s)),
        right(bytes(flow.stored_bytes)),
        right(us(flow.ack_delay_us)),
        right(us(flow.rtt_us)),
        right(format!("{:.0}", flow.resent_per_s)),
    ])
}

fn path_row(path: &PathRow) -> Row<'_> {
    Row::new([
        Cell::from(&*path.place),
        Cell::from(&*path.name),
        Cell::from(if path.is_up { "up" } else { "out" }),
        right(path.rtt_us.map_or_else(|| "-".to_string(), microseconds)),
        right(format!("{:.1e}", path.loss)),
        right(&*path.parity),
        right(format!("{:.0}", path.sent_per_s)),
        right(format!("{:.0}", path.lost_per_s)),
        right(format!("{:.0}", path.parity_per_s)),
        right(format!("{:.0}", path.repaired_per_s)),
    ])
}

/// Milliseconds from one on.
fn microseconds(us: f64) -> String {
    if us < 1000.0 { format!("{us:.0} µs") } else { format!("{:.3} ms", us / 1e3) }
}

/// With a binary prefix.
fn bytes(bytes: u64) -> String {
    const PREFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (1..PREFIXES.len()).take_while(|power| bytes >> (10 * power) > 0).count();
    let digits = usize::from(power > 0);
    format!("{:.digits$} {}", bytes as f64 / (1u64 << (10 * power)) as f64, PREFIXES[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_times_are_short() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (9 << 20, "9.0 MiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(
            (microseconds(12.3), microseconds(1234.5)),
            ("12 µs".to_string(), "1.234 ms".to_string())
        );
    }
}
