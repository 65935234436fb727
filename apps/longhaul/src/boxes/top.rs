//! `longhaul top`: a live view of boxes with their ports, flows by rate, and the paths between
//! boxes.

mod sample;
mod view;

use super::answer::{self, Answer};
use crate::output;
use crate::problem::Problem;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sample::{Sample, Snapshot};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub const EXAMPLES: &str = "\
Examples:
  longhaul top
  longhaul top accelerate-west --interval 5
  longhaul top --once                  one frame as plain text, for pipes and scripts

Keys: q ends it, s sorts flows by rate, stored bytes, delay or name, p or space pauses. A flow's
rate is that of the payload that its box stores; one that passes by its mode has packets per second
alone. What columns mean:
  share     of the store, for a tenant: above it, requests are acknowledged no sooner than delivered
  store     bytes of requests that the responder is not known to have
  ack       how long requests wait for their pseudo-ACK
  resent    packets per second that the box sends again
  parity    parities per second that a path carries
  repaired  packets per second that parity brings at the far box
  lost      packets per second that a path loses; what is not repaired is sent again";

/// Maximum columns and rows of the single frame of `--once`.
const ONCE_COLUMNS: u16 = 140;
const ONCE_ROWS_MAX: u16 = 2000;

/// Poll interval of keys.
const KEYS_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Which box [default: all]
    name: Option<String>,
    /// Seconds between two looks
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    interval: u64,
    /// Print one frame as plain text, after one interval
    #[arg(long)]
    once: bool,
}

/// Sort order of flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Order {
    #[default]
    Rate,
    Stored,
    Delay,
    Name,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Order::Rate => Order::Stored,
            Order::Stored => Order::Delay,
            Order::Delay => Order::Name,
            Order::Name => Order::Rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Rate => "rate",
            Order::Stored => "store",
            Order::Delay => "ack",
            Order::Name => "name",
        }
    }
}

/// The user's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Choice {
    order: Order,
    is_paused: bool,
    has_ended: bool,
}

impl Choice {
    fn take(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if with_control => self.has_ended = true,
            KeyCode::Char('q') | KeyCode::Esc => self.has_ended = true,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            _ => {}
        }
    }
}

/// Shows running boxes until the user quits.
///
/// # Errors
/// No box is running, or there is no terminal.
pub fn top(args: &Top) -> Result<ExitCode, Problem> {
    let interval = Duration::from_secs(args.interval);
    let first = look(args.name.as_deref())?;
    if args.once {
        thread::sleep(interval);
        let snapshot = Snapshot::between(Some(&first), &look(args.name.as_deref())?);
        output::print(&as_text(&snapshot, Choice::default())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Problem::new(
            "standard output is no terminal",
            "say --once for one frame as text",
        ));
    }
    let samples = keep_looking(args.name.clone(), interval);
    let failed =
        |e: std::io::Error| Problem::plain(format!("cannot show anything on this terminal: {e}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, first, &samples);
    ratatui::restore();
    shown.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn look(name: Option<&str>) -> Result<Sample, Problem> {
    let boxes = answer::ask(name, None)?;
    Ok(Sample { at: Instant::now(), boxes })
}

/// Samples on a separate thread, so that a box that does not reply does not delay key handling.
fn keep_looking(name: Option<String>, interval: Duration) -> Receiver<Sample> {
    let (give, take) = sync_channel(1);
    thread::spawn(move || {
        loop {
            thread::sleep(interval);
            let sample = look(name.as_deref()).unwrap_or_else(|problem| {
                let name = name.clone().unwrap_or_else(|| "any".to_string());
                Sample {
                    at: Instant::now(),
                    boxes: vec![Answer::Failed { name, error: problem.to_string() }],
                }
            });
            if give.send(sample).is_err() {
                return;
            }
        }
    });
    take
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    first: Sample,
    samples: &Receiver<Sample>,
) -> std::io::Result<()> {
    let mut choice = Choice::default();
    let mut before = first;
    let mut snapshot = Snapshot::between(None, &before);
    while !choice.has_ended {
        terminal.draw(|frame| view::draw(frame, &snapshot, choice))?;
        if event::poll(KEYS_EVERY)?
            && let Event::Key(key) = event::read()?
        {
            choice.take(key);
        }
        if let Ok(sample) = samples.try_recv() {
            if !choice.is_paused {
                snapshot = Snapshot::between(Some(&before), &sample);
            }
            before = sample;
        }
    }
    Ok(())
}

/// Formats one frame as text, with as many rows as needed.
fn as_text(snapshot: &Snapshot, choice: Choice) -> Result<String, Problem> {
    let rows = view::rows(snapshot).min(ONCE_ROWS_MAX);
    let lines = lines_of(snapshot, choice, ONCE_COLUMNS, rows)?;
    Ok(lines.iter().map(|line| line.trim_end().to_string() + "\n").collect())
}

/// The lines that a terminal of this size shows.
fn lines_of(
    snapshot: &Snapshot,
    choice: Choice,
    columns: u16,
    rows: u16,
) -> Result<Vec<String>, Problem> {
    let failed = |e: &dyn std::fmt::Display| Problem::plain(format!("cannot draw: {e}"));
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).map_err(|e| failed(&e))?;
    terminal.draw(|frame| view::draw(frame, snapshot, choice)).map_err(|e| failed(&e))?;
    let buffer = terminal.backend().buffer();
    let line = |row| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    Ok((0..rows).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::sample::tests::{later, sample};
    use super::*;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    fn shown(choice: Choice, columns: u16, rows: u16) -> String {
        let first = sample();
        let snapshot = Snapshot::between(Some(&first), &later(&first));
        lines_of(&snapshot, choice, columns, rows).unwrap().join("\n")
    }

    #[test]
    fn keys_sort_pause_and_end() {
        let mut choice = Choice::default();
        for order in [Order::Stored, Order::Delay, Order::Name, Order::Rate] {
            choice.take(key(KeyCode::Char('s')));
            assert_eq!(choice.order, order);
        }
        choice.take(key(KeyCode::Char('p')));
        assert!(choice.is_paused);
        choice.take(key(KeyCode::Char(' ')));
        choice.take(key(KeyCode::Char('x')));
        assert_eq!(choice, Choice::default());
        for end in [
            key(KeyCode::Char('q')),
            key(KeyCode::Esc),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            let mut choice = Choice::default();
            choice.take(end);
            assert!(choice.has_ended);
        }
    }

    #[test]
    fn a_frame_has_boxes_flows_and_paths() {
        let frame = shown(Choice::default(), 140, 30);
        for part in [
            "accelerate west",
            "not ready: pair one: wan port eth2 is down",
            "10.0.0.1 > 10.0.0.2 QP 0x11",
            "early",
            "8.000",
            "100 µs",
            "10.000 ms",
            "1.0e-2",
            "does not answer",
        ] {
            assert!(frame.contains(part), "{part}:\n{frame}");
        }
    }

    #[test]
    fn flows_are_sorted_as_chosen() {
        let place = |order, flow: &str| {
            let frame = shown(Choice { order, ..Choice::default() }, 140, 30);
            frame.find(flow).unwrap_or_else(|| panic!("{flow}:\n{frame}"))
        };
        let (fast, full) = ("QP 0x11", "QP 0x22");
        assert!(place(Order::Rate, fast) < place(Order::Rate, full));
        assert!(place(Order::Stored, full) < place(Order::Stored, fast));
        assert!(place(Order::Delay, full) < place(Order::Delay, fast));
        assert!(place(Order::Name, fast) < place(Order::Name, full));
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        for (columns, rows) in [(1, 1), (20, 3), (40, 8), (80, 24), (300, 100)] {
            shown(Choice { is_paused: true, ..Choice::default() }, columns, rows);
        }
        assert!(shown(Choice { is_paused: true, ..Choice::default() }, 140, 30).contains("paused"));
    }

    #[test]
    fn one_frame_as_text_has_everything() {
        let first = sample();
        let text =
            as_text(&Snapshot::between(Some(&first), &later(&first)), Choice::default()).unwrap();
        for part in ["QP 0x11", "QP 0x22", "10.000 ms", "does not answer", "not ready"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }
}
