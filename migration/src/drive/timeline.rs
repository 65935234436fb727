//! When a migration's phases began, from the events of both QEMUs.

use super::{End, Phases};
use crate::qmp::Event;
use std::time::{Duration, Instant};

/// All timestamps come from the driver's clock, at the arrival of each event.
#[derive(Debug)]
pub struct Timeline {
    begun: Instant,
    active: Option<Instant>,
    stopped: Option<Instant>,
    source_done: Option<Instant>,
    resumed: Option<Instant>,
}

impl Timeline {
    /// Of a migration that is ordered at `begun`.
    pub fn starting(begun: Instant) -> Self {
        Timeline { begun, active: None, stopped: None, source_done: None, resumed: None }
    }

    /// Takes an event of QEMU; the first of each kind counts.
    pub fn note(&mut self, end: End, event: &Event) {
        let slot = match (end, event.name.as_str(), event.data["status"].as_str()) {
            (End::Source, "MIGRATION", Some("active")) => &mut self.active,
            (End::Source, "MIGRATION", Some("completed")) => &mut self.source_done,
            (End::Source, "STOP", _) => &mut self.stopped,
            (End::Destination, "RESUME", _) => &mut self.resumed,
            _ => return,
        };
        slot.get_or_insert(event.at);
    }

    /// The source was seen to have sent everything.
    pub fn note_source_done(&mut self, at: Instant) {
        self.source_done.get_or_insert(at);
    }

    /// The destination was seen to have left its waiting state.
    pub fn note_arrival(&mut self, at: Instant) {
        self.resumed.get_or_insert(at);
    }

    /// When it was ordered.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// When pre-copy began.
    pub fn active(&self) -> Option<Instant> {
        self.active
    }

    /// The source has said that it has sent everything.
    pub fn source_is_done(&self) -> bool {
        self.source_done.is_some()
    }

    /// The phases of a completed migration, and its total time. A guest that was stopped before has
    /// no stop-and-copy.
    pub fn phases(&self) -> (Phases, Duration) {
        let begun = self.begun();
        let done = self.source_done.unwrap_or(begun);
        let active = self.active.unwrap_or(begun);
        let stopped = self.stopped.unwrap_or(done);
        let resumed = self.resumed.unwrap_or(done);
        let phases = Phases {
            setup: active.saturating_duration_since(begun),
            precopy: stopped.saturating_duration_since(active),
            stop_and_copy: done.saturating_duration_since(stopped),
            activation: resumed.saturating_duration_since(done),
        };
        (phases, done.max(resumed).saturating_duration_since(begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn phases_lie_between_events() {
        let begun = Instant::now();
        let mut timeline = Timeline::starting(begun);
        let mut note = |end, name: &str, data: Value, ms: u64| {
            let at = begun + Duration::from_millis(ms);
            timeline.note(end, &Event { at, name: name.to_owned(), data });
        };
        note(End::Source, "MIGRATION", json!({"status": "setup"}), 1);
        note(End::Source, "MIGRATION", json!({"status": "active"}), 10);
        note(End::Destination, "MIGRATION", json!({"status": "active"}), 12);
        note(End::Source, "STOP", Value::Null, 100);
        note(End::Source, "MIGRATION", json!({"status": "completed"}), 130);
        note(End::Destination, "RESUME", Value::Null, 150);
        note(End::Source, "STOP", Value::Null, 900);
        let (phases, total) = timeline.phases();
        let ms = [phases.setup, phases.precopy, phases.stop_and_copy, phases.activation, total]
            .map(|phase| phase.as_millis());
        assert_eq!(ms, [10, 90, 30, 20, 150]);
    }
}
