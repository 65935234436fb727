//! Journal lines about sessions with far boxes and their paths.

use crate::figures::count;
use crate::journal::Level;
use crate::state::{PathState, SessionState, TransportState};
use longhaul_units::{Duration, Instant};
use std::collections::BTreeMap;

/// Minimum time between two lines about one path, or about sessions with one box. Later changes are
/// summarised in one line.
const QUIET: Duration = Duration::from_ms(10_000);

/// The state that the journal last reported.
#[derive(Default)]
pub struct SessionNews {
    boxes: BTreeMap<String, ToldBox>,
}

/// Of one far box.
#[derive(Default)]
struct ToldBox {
    /// Name of its open session.
    session: Option<u32>,
    /// Time of the last line.
    at: Option<Instant>,
    paths: Vec<ToldPath>,
}

/// Of one path. A path counts as up when its session opens.
struct ToldPath {
    is_up: bool,
    outages: u64,
    at: Option<Instant>,
}

impl SessionNews {
    /// Returns lines about the changes since the last call.
    pub fn since_last(&mut self, now: Instant, state: &TransportState) -> Vec<(Level, String)> {
        let open: BTreeMap<&String, &SessionState> = state
            .sessions
            .iter()
            .filter(|session| session.is_open)
            .map(|session| (&session.far_box, session))
            .collect();
        for far_box in open.keys() {
            self.boxes.entry((*far_box).clone()).or_default();
        }
        let mut lines = Vec::new();
        for (far_box, told) in &mut self.boxes {
            let session = open.get(far_box).copied();
            lines.extend(told.session_line(now, far_box, session));
            // Paths of a session that is not reported yet are reported later.
            let session = session.filter(|session| told.session == Some(session.name));
            lines.extend(session.iter().flat_map(|session| told.path_lines(now, session)));
        }
        // Forgets boxes that stay away, to bound memory.
        self.boxes.retain(|_, told| told.session.is_some() || is_quiet(told.at, now));
        lines
    }
}

impl ToldBox {
    fn session_line(
        &mut self,
        now: Instant,
        far_box: &str,
        session: Option<&SessionState>,
    ) -> Option<(Level, String)> {
        let name = session.map(|session| session.name);
        if name == self.session || is_quiet(self.at, now) {
            return None;
        }
        self.at = Some(now);
        let before = std::mem::replace(&mut self.session, name);
        let Some(session) = session else {
            let text = format!(
                "the session with box {far_box} is closed: the box ended, or did not answer for \
                 too long; this box looks for it again when hosts send to its site"
            );
            return Some((Level::Warning, text));
        };
        let told = |path: &PathState| ToldPath { is_up: true, outages: path.outages, at: None };
        self.paths = session.paths.iter().map(told).collect();
        let paths = count(session.paths.len() as u64, "path");
        Some(match before {
            None => (Level::Info, format!("a session with box {far_box} is open, by {paths}")),
            Some(_) => (
                Level::Warning,
                format!(
                    "box {far_box} has restarted: its old session is closed, and a new one is \
                     open, by {paths}"
                ),
            ),
        })
    }

    fn path_lines(&mut self, now: Instant, session: &SessionState) -> Vec<(Level, String)> {
        let up = session.paths.iter().filter(|path| path.is_up).count();
        let of = session.paths.len();
        let lines = (1..).zip(self.paths.iter_mut().zip(&session.paths)).filter_map(
            |(number, (told, path))| {
                let (level, what) = told.change(now, path)?;
                let text = format!("path {number} to box {} {what}", session.far_box);
                Some((level, if path.is_up { text } else { format!("{text}; {up} of {of} up") }))
            },
        );
        lines.collect()
    }
}

impl ToldPath {
    fn change(&mut self, now: Instant, path: &PathState) -> Option<(Level, String)> {
        let outages = path.outages.saturating_sub(self.outages);
        if (path.is_up == self.is_up && outages == 0) || is_quiet(self.at, now) {
            return None;
        }
        let before = std::mem::replace(
            self,
            ToldPath { is_up: path.is_up, outages: path.outages, at: Some(now) },
        );
        Some(match (before.is_up, path.is_up) {
            (_, false) if outages > 1 => (
                Level::Warning,
                format!("is out, {} since the last line", count(outages, "outage")),
            ),
            (_, false) => (Level::Warning, "is out".to_string()),
            (false, true) if outages == 0 => (Level::Info, "is up again".to_string()),
            (_, true) => (Level::Warning, format!("was out {}, and is up", count(outages, "time"))),
        })
    }
}

/// True if a line written at `at` is too recent for another one.
fn is_quiet(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.since(at) < QUIET)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Far box, name of the session, and per path whether it is up and how often it was down.
    type Session<'a> = (&'a str, u32, &'a [(bool, u64)]);

    fn state(sessions: &[Session<'_>]) -> TransportState {
        let path = |(is_up, outages): &(bool, u64)| {
            json!({
                "is_up": is_up, "outages": outages, "rtt_us": null, "loss": 0.0, "in_flight": 0,
                "copies": 1, "sent": 0, "lost": 0,
            })
        };
        let session = |(far_box, name, paths): &Session<'_>| {
            json!({
                "far_box": far_box, "name": name, "is_open": true, "streams_out": 0,
                "streams_in": 0, "send_bytes": 0, "send_bytes_peak": 0, "receive_bytes": 0,
                "receive_bytes_peak": 0, "far_room_bytes": 0,
                "paths": paths.iter().map(path).collect::<Vec<_>>(),
            })
        };
        let sessions: Vec<_> = sessions.iter().map(session).collect();
        let state = json!({ "counters": {}, "drops": {}, "refused": null, "sessions": sessions });
        serde_json::from_value(state).unwrap()
    }

    struct Journal(SessionNews);

    impl Journal {
        fn at(&mut self, s: u64, sessions: &[Session<'_>]) -> Vec<String> {
            let now = Instant::ZERO + Duration::from_ms(s * 1000);
            self.0.since_last(now, &state(sessions)).into_iter().map(|(_, text)| text).collect()
        }
    }

    const UP: (bool, u64) = (true, 0);

    #[test]
    fn a_session_that_opens_closes_or_is_another_after_a_restart_is_told_once() {
        let mut journal = Journal(SessionNews::default());
        assert_eq!(journal.at(0, &[]), [""; 0]);
        let opened = journal.at(1, &[("b", 7, &[UP, UP])]);
        assert_eq!(opened, ["a session with box b is open, by 2 paths"]);
        assert_eq!(journal.at(2, &[("b", 7, &[UP, UP])]), [""; 0]);
        let restarted = journal.at(20, &[("b", 8, &[UP])]);
        assert_eq!(
            restarted,
            ["box b has restarted: its old session is closed, and a new one is open, by 1 path"]
        );
        let closed = journal.at(40, &[]);
        assert!(closed.len() == 1 && closed[0].starts_with("the session with box b is closed"));
        assert_eq!(journal.at(60, &[]), [""; 0]);
        assert!(journal.0.boxes.is_empty(), "nothing is kept of a box that has gone");
    }

    #[test]
    fn a_path_that_fails_or_recovers_is_told_with_how_many_are_left() {
        let mut journal = Journal(SessionNews::default());
        journal.at(0, &[("b", 7, &[UP, UP])]);
        let out = journal.at(1, &[("b", 7, &[UP, (false, 1)])]);
        assert_eq!(out, ["path 2 to box b is out; 1 of 2 up"]);
        assert_eq!(journal.at(20, &[("b", 7, &[UP, (true, 1)])]), ["path 2 to box b is up again"]);
        let was = journal.at(40, &[("b", 7, &[UP, (true, 2)])]);
        assert_eq!(was, ["path 2 to box b was out 1 time, and is up"]);
    }

    #[test]
    fn what_changes_again_and_again_has_a_line_every_ten_seconds() {
        let mut journal = Journal(SessionNews::default());
        journal.at(0, &[("b", 7, &[UP])]);
        let lines: Vec<_> = (1..=100)
            .flat_map(|s| journal.at(s, &[("b", 7, &[(s % 2 == 0, s.div_ceil(2))])]))
            .collect();
        assert_eq!(lines.len(), 10, "{lines:#?}");
        assert_eq!(lines[0], "path 1 to box b is out; 0 of 1 up");
        assert_eq!(lines[1], "path 1 to box b is out, 5 outages since the last line; 0 of 1 up");
        let restarts = (0..100).flat_map(|s| journal.at(200 + s, &[("c", s as u32, &[UP])]));
        let restarts: Vec<_> = restarts.filter(|line| line.contains("box c")).collect();
        assert_eq!(restarts.len(), 10, "{restarts:#?}");
    }
}
