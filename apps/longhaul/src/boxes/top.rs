//! `longhaul top`: a live view of boxes and labs with their ports, flows by rate, and the paths
//! between boxes.

mod sample;
mod view;

use super::answer::{self, Answer};
use crate::output;
use crate::problem::Problem;
use longhaul_boxes::control::ControlError;
use longhaul_boxes::number::within;
use longhaul_lab::{LabDir, control as lab_control};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use sample::{Sample, Snapshot};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub const EXAMPLES: &str = "\
Examples:
  longhaul top
  longhaul top accelerate-west --interval 5
  longhaul top --once                  one frame as plain text, for pipes and scripts

Keys: q quits, s sorts flows by rate, stored bytes, delay or name, p or space pauses. A flow's rate
is the rate of payload that its box stores; a flow that passes by its mode only has packets per
second. Columns:
  share     of the store, for a tenant: above it, requests are acknowledged only once delivered
  store     bytes of requests that the responder has not acknowledged
  ack       delay of pseudo-ACKs after their requests
  resent    packets per second that the box retransmits
  parity    parities per second on a path
  repaired  packets per second that the far box repairs by parity
  lost      packets per second that a path loses; unrepaired ones are retransmitted";

/// Columns of the single frame of `--once` where there is no terminal.
const ONCE_COLUMNS: usize = 140;

/// Poll interval of keys.
const KEYS_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Top {
    /// Name of the box or lab [default: all]
    name: Option<String>,
    /// Seconds between updates
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        value_parser = within::<u64>(1..=3600)
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
        let columns = if stdout().is_terminal() { output::columns() } else { ONCE_COLUMNS };
        output::print(&view::text(&snapshot, columns))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !stdout().is_terminal() {
        return Err(Problem::new(
            "standard output is not a terminal",
            "use --once for one frame as text",
        ));
    }
    let samples = keep_looking(args.name.clone(), interval);
    let signal = signals()?;
    let failed =
        |e: std::io::Error| Problem::plain(format!("cannot show anything on this terminal: {e}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, first, &samples, &signal);
    ratatui::restore();
    // Shows the cursor again.
    drop(terminal);
    if let Some(signal) = taken(&signal) {
        // Ends the process, unless the parent ignores the signal.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    shown.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// The last signal to end, 0 if none: it ends the process once the terminal is restored.
fn signals() -> Result<Arc<AtomicUsize>, Problem> {
    let last = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_usize(signal, Arc::clone(&last), signal as usize)
            .map_err(|e| Problem::plain(format!("cannot handle signals: {e}")))?;
    }
    Ok(last)
}

fn taken(signal: &AtomicUsize) -> Option<i32> {
    i32::try_from(signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
}

/// Asks all boxes and labs, or the one with this name.
fn look(name: Option<&str>) -> Result<Sample, Problem> {
    let mut labs = LabDir::all_up()?;
    labs.retain(|lab| name.is_none_or(|name| lab.name().as_str() == name));
    let labs: Vec<_> = labs.iter().filter_map(|lab| lab_control::ask_status(lab).ok()).collect();
    let boxes = match answer::ask(name, None) {
        Err(_) if !labs.is_empty() => Vec::new(),
        Err(ControlError::Nobody(_)) => return Err(nothing_runs(name)),
        boxes => boxes?,
    };
    Ok(Sample { at: Instant::now(), boxes, labs })
}

fn nothing_runs(name: Option<&str>) -> Problem {
    match name {
        Some(name) => Problem::new(
            format!("no box or lab called '{name}' is running here"),
            "'longhaul top' without a name shows all that this user runs",
        ),
        None => Problem::new(
            "no box or lab is running here",
            "start one with 'longhaul accelerate', 'longhaul emulate' or 'longhaul lab up', or run \
             top as the user who did",
        ),
    }
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
                    labs: Vec::new(),
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
    signal: &AtomicUsize,
) -> std::io::Result<()> {
    let mut choice = Choice::default();
    let mut before = first;
    let mut snapshot = Snapshot::between(None, &before);
    while !choice.has_ended && taken(signal).is_none() {
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

#[cfg(test)]
pub mod tests {
    use super::sample::tests::{later, sample};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    /// The lines that a terminal of this size shows.
    fn lines_of(snapshot: &Snapshot, choice: Choice, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| view::draw(frame, snapshot, choice)).unwrap();
        let buffer = terminal.backend().buffer();
        let line =
            |row| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..rows).map(line).collect()
    }

    fn shown(choice: Choice, columns: u16, rows: u16) -> String {
        let first = sample();
        let snapshot = Snapshot::between(Some(&first), &later(&first));
        lines_of(&snapshot, choice, columns, rows).join("\n")
    }

    /// A frame of this size.
    pub fn view(columns: usize, rows: u16) -> String {
        shown(Choice::default(), columns.try_into().unwrap(), rows)
    }

    /// The status of the boxes in the sample.
    pub fn status() -> String {
        sample().boxes.iter().map(Answer::to_text).collect()
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
            "0.01",
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
    fn flows_have_their_names_states_and_delays_at_any_width() {
        for columns in [80, 100, 140] {
            let frame = view(columns, 30);
            for part in ["10.000 ms", "accelerated", "10.0.0.1 > 10.0.0.2 QP 0x11"] {
                assert!(frame.contains(part), "{columns}, {part}:\n{frame}");
            }
        }
    }

    #[test]
    fn a_status_names_what_a_box_does_in_words_that_agree_with_their_counts() {
        let text = status();
        for part in [
            "QP 0x11: mode early, accelerated (learnt from CM), RTT 10.000 ms, pseudo-ACKs after \
             100 µs, 5 B stored in 1 frame\n",
            "10 packets stored, 1 delivered, 1 pseudo-ACK; retransmits: NAK 0, RNR 0, timeout 0; \
             7 ACKs absorbed; drops: psn_gap 2\n",
            "tenant 10.0.0.1: 2 flows, 505 B stored of a share of 2.9 KiB\n",
            "repaired by 0 parities (20+2), 1 outage\n",
            "wan eth2, down: in 1 frame, 1.5 KiB (0 Gbit/s, 0 frames/s); out ",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn one_frame_as_text_has_everything() {
        let first = sample();
        let text = view::text(&Snapshot::between(Some(&first), &later(&first)), 140);
        for part in ["QP 0x11", "QP 0x22", "10.000 ms", "does not answer", "not ready"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
        assert!(text.contains("\n\nflows by rate\n") && !text.contains("quit"), "{text}");
        let idle = Snapshot { boxes: vec!["emulate west".to_string()], ..Snapshot::default() };
        assert_eq!(view::text(&idle, 140), "emulate west\n");
    }
}
