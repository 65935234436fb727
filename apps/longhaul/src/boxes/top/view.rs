//! One frame of `longhaul top`.

use super::sample::{FlowRow, PathRow, Snapshot};
use super::{Choice, Order};
use crate::output::table::{self, Column, figures, words};
use longhaul_boxes::figures::{bytes, measured_fraction, microseconds};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Borders, Paragraph};

/// Rows of a table besides its data: title and headings.
const TABLE_ROWS: usize = 2;

const FLOW_COLUMNS: [Column; 10] = [
    words("box/pair", 3, 8),
    words("flow", 10, 32),
    words("mode", 2, 5),
    words("state", 8, 11),
    figures("Gbit/s", 9),
    figures("packets/s", 4),
    figures("store", 7),
    figures("ack", 1),
    figures("round trip", 5),
    figures("resent/s", 6),
];

const PATH_COLUMNS: [Column; 10] = [
    words("box/pair", 3, 8),
    words("path", 10, 23),
    words("link", 9, 4),
    figures("round trip", 8),
    figures("loss", 7),
    words("layout", 1, 5),
    figures("sent/s", 4),
    figures("lost/s", 6),
    figures("parity/s", 2),
    figures("repaired/s", 5),
];

/// `snapshot` as text, without trailing blanks and without empty tables.
pub fn text(snapshot: &Snapshot, width: usize) -> String {
    let mut lines: Vec<String> =
        snapshot.boxes.iter().map(|line| table::truncate(line, width)).collect();
    if !snapshot.paths.is_empty() {
        let rows: Vec<_> = snapshot.paths.iter().map(path_row).collect();
        lines.extend([String::new(), "paths".to_string()]);
        lines.extend(table::lines(PATH_COLUMNS, &rows, width));
    }
    if !snapshot.flows.is_empty() {
        let order = Order::default();
        let rows: Vec<_> = snapshot.sorted(order).into_iter().map(flow_row).collect();
        lines.extend([String::new(), flows_title(order)]);
        lines.extend(table::lines(FLOW_COLUMNS, &rows, width));
    }
    lines.iter().map(|line| line.trim_end().to_string() + "\n").collect()
}

fn flows_title(order: Order) -> String {
    format!("flows by {}", order.name())
}

/// Rows needed to show all of `snapshot`.
fn rows(snapshot: &Snapshot) -> u16 {
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
    let width = usize::from(area.width);
    let lines: Vec<Line<'_>> =
        snapshot.boxes.iter().map(|line| Line::raw(table::truncate(line, width))).collect();
    frame.render_widget(Paragraph::new(Text::from(lines)), top);
    if !snapshot.paths.is_empty() {
        let rows: Vec<_> = snapshot.paths.iter().map(path_row).collect();
        frame.render_widget(below("paths", table::lines(PATH_COLUMNS, &rows, width)), paths);
    }
    let title = flows_title(choice.order);
    let rows: Vec<_> = snapshot.sorted(choice.order).into_iter().map(flow_row).collect();
    frame.render_widget(below(&title, table::lines(FLOW_COLUMNS, &rows, width)), flows);
    let paused = if choice.is_paused { "  paused" } else { "" };
    frame.render_widget(Paragraph::new(format!("q quit  s sort  p pause{paused}")), foot);
}

/// A table below a rule with its title; the first line has the headings.
fn below(title: &str, lines: Vec<String>) -> Paragraph<'_> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let styles = std::iter::once(bold).chain(std::iter::repeat(Style::new()));
    let lines = lines.into_iter().zip(styles).map(|(line, style)| Line::styled(line, style));
    let block = Block::new().borders(Borders::TOP).title(title);
    Paragraph::new(lines.collect::<Vec<_>>()).block(block)
}

fn flow_row(flow: &FlowRow) -> [String; 10] {
    [
        flow.place.clone(),
        flow.name.clone(),
        flow.mode.clone(),
        flow.state.clone(),
        format!("{:.3}", flow.bits_per_s / 1e9),
        format!("{:.0}", flow.packets_per_s),
        bytes(flow.stored_bytes),
        or_dash(flow.ack_delay_us),
        or_dash(flow.rtt_us),
        format!("{:.0}", flow.resent_per_s),
    ]
}

fn path_row(path: &PathRow) -> [String; 10] {
    [
        path.place.clone(),
        path.name.clone(),
        if path.is_up { "up" } else { "out" }.to_string(),
        or_dash(path.rtt_us),
        measured_fraction(path.loss),
        path.parity.clone(),
        format!("{:.0}", path.sent_per_s),
        format!("{:.0}", path.lost_per_s),
        format!("{:.0}", path.parity_per_s),
        format!("{:.0}", path.repaired_per_s),
    ]
}

fn or_dash(us: Option<f64>) -> String {
    us.map_or_else(|| "-".to_string(), microseconds)
}
