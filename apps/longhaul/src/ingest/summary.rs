//! Counts of a receiver for people and programs.

use super::presence::Table;
use super::receive::Taken;
use longhaul_ingest::receiver::Statistics;
use longhaul_ingest::ring::Fate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Result of a receiver.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Seconds.
    pub elapsed_s: f64,
    /// Messages that arrived.
    pub arrivals: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages of closed windows by fate.
    pub messages: BTreeMap<&'static str, u64>,
    /// The same by stream.
    pub streams: Vec<BTreeMap<&'static str, u64>>,
    /// Windows delivered.
    pub windows: u64,
    /// Of those, complete.
    pub windows_complete: u64,
    /// Windows dropped because their region was held.
    pub windows_undelivered: u64,
    /// Windows of which nothing arrived during an outage.
    pub windows_skipped: u64,
    /// Messages that arrived again.
    pub duplicates: u64,
    /// Messages after their window was closed.
    pub late: u64,
    /// Immediates outside the layout.
    pub outside: u64,
    /// Completions of a wrong stream or kind.
    pub foreign: u64,
    /// Messages that the device dropped for want of a receive.
    pub out_of_buffer: u64,
    /// Queue pairs that failed.
    pub failed_pairs: u64,
    /// Senders refused.
    pub refused: u64,
    /// Messages whose bytes were not their sender's; absent without --verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<u64>,
    /// Messages overwritten while their chunk was read.
    pub overwritten_in_use: u64,
    /// Windows that the sink did not take.
    pub unwritten: u64,
    /// Presence by stream and time; only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence: Option<Table>,
    /// Why the sink failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink_failure: Option<String>,
}

impl Summary {
    /// The summary of these counts.
    pub fn of(statistics: &Statistics, elapsed: Duration) -> Self {
        let counts = &statistics.counts;
        Summary {
            elapsed_s: elapsed.as_secs_f64(),
            arrivals: counts.arrivals,
            bytes: counts.bytes,
            messages: statistics.fates.by_name().collect(),
            streams: counts.fates.iter().map(|fates| fates.by_name().collect()).collect(),
            windows: counts.windows_delivered,
            windows_complete: counts.windows_complete,
            windows_undelivered: counts.windows_undelivered,
            windows_skipped: counts.windows_skipped,
            duplicates: counts.duplicates,
            late: counts.late,
            outside: counts.outside,
            foreign: statistics.foreign,
            out_of_buffer: statistics.out_of_buffer,
            failed_pairs: statistics.failed_pairs,
            refused: statistics.refused,
            damaged: None,
            overwritten_in_use: 0,
            unwritten: 0,
            presence: None,
            sink_failure: None,
        }
    }

    /// The same with what became of the chunks.
    pub fn with(self, taken: &Taken) -> Self {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            damaged: taken.damaged(),
            overwritten_in_use: get(&taken.overwritten),
            unwritten: get(&taken.unwritten),
            sink_failure: taken.failure(),
            ..self
        }
    }

    /// Some lines for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} messages of {} windows in {:.1} s: {:.3} % present; {} windows complete\n",
            self.messages.values().sum::<u64>(),
            self.windows + self.windows_undelivered,
            self.elapsed_s,
            share(self.messages["present"], self.messages.values().sum()),
            self.windows_complete,
        );
        let missing = self.messages.iter().filter(|(name, n)| **name != "present" && **n > 0);
        let others = [
            ("duplicates", self.duplicates),
            ("late", self.late),
            ("outside the layout", self.outside),
            ("of a wrong stream or kind", self.foreign),
            ("refused by an empty receive queue", self.out_of_buffer),
            ("overwritten in use", self.overwritten_in_use),
            ("damaged", self.damaged.unwrap_or(0)),
            ("windows undelivered: their region was held", self.windows_undelivered),
            ("windows skipped", self.windows_skipped),
            ("windows that the sink did not take", self.unwritten),
            ("queue pairs failed", self.failed_pairs),
            ("senders refused", self.refused),
        ];
        let named = missing.map(|(name, n)| (name.replace('_', " "), *n));
        let others = others.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| (name.into(), n));
        for (name, number) in named.chain(others) {
            text += &format!("  {number} {name}\n");
        }
        text
    }
}

/// A line of live text: what happened between two counts.
pub fn live(before: &Statistics, after: &Statistics, between: Duration) -> String {
    let seconds = between.as_secs_f64().max(1e-9);
    let bits = (after.counts.bytes - before.counts.bytes) as f64 * 8.0;
    let messages = after.counts.arrivals - before.counts.arrivals;
    let of = |fate| after.fates.of(fate).saturating_sub(before.fates.of(fate));
    let closed = after.fates.total() - before.fates.total();
    let mut line = format!(
        "{:7.3} Gbit/s  {:9.0} msg/s  present {:7.3} %  ring {}/{}  open {}  senders {}",
        bits / seconds / 1e9,
        messages as f64 / seconds,
        share(of(Fate::Present), closed),
        after.held_regions,
        after.regions,
        after.open_windows,
        after.sessions,
    );
    for fate in Fate::ALL.into_iter().filter(|fate| *fate != Fate::Present && of(*fate) > 0) {
        line += &format!("  {} {}", fate.name().replace('_', " "), of(fate));
    }
    let late = after.counts.late - before.counts.late;
    if late > 0 {
        line += &format!("  late {late}");
    }
    let undelivered = after.counts.windows_undelivered - before.counts.windows_undelivered;
    if undelivered > 0 {
        line += &format!("  windows undelivered {undelivered}");
    }
    line + "\n"
}

/// Percentage; 100 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 * 100.0 / whole as f64 }
}
