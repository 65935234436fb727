//! A receiver's answers to probes and scrapers.

use super::receive::Taken;
use super::summary::Summary;
use crate::problem::Problem;
use longhaul_health::{Address, Metrics, Probed, labels};
use longhaul_ingest::receiver::{Receiver, Statistics};
use longhaul_ingest::ring::{Fate, Lateness};
use std::iter::once;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

struct Probe {
    receiver: Arc<Receiver>,
    taken: Arc<Taken>,
    begun: Instant,
}

/// Listens.
///
/// # Errors
/// If the address cannot be bound.
pub fn listen(address: Address) -> Result<TcpListener, Problem> {
    longhaul_health::listen(address).map_err(|error| {
        Problem::new(format!("cannot answer at --health {address}: {error}"), "choose another")
    })
}

/// Starts to answer.
///
/// # Errors
/// If the threads cannot be started.
pub fn serve(
    listener: &TcpListener,
    receiver: &Arc<Receiver>,
    taken: &Arc<Taken>,
) -> Result<(), Problem> {
    let (receiver, taken) = (Arc::clone(receiver), Arc::clone(taken));
    let probe: Arc<dyn Probed> = Arc::new(Probe { receiver, taken, begun: Instant::now() });
    longhaul_health::serve(listener, &probe)
        .and_then(|()| listener.local_addr())
        .map(|address| eprintln!("longhaul: serving http://{address}/metrics"))
        .map_err(|error| Problem::plain(format!("cannot answer by HTTP: {error}")))
}

impl Probed for Probe {
    fn metrics(&self) -> Option<String> {
        Some(metrics(&self.receiver.statistics(), &self.taken).exposition())
    }

    fn state(&self) -> Option<serde_json::Result<String>> {
        let summary = Summary::of(&self.receiver.statistics(), self.begun.elapsed());
        Some(serde_json::to_string_pretty(&summary.with(&self.taken)))
    }

    fn not_ready(&self) -> Vec<String> {
        let failure = self.taken.failure().map(|why| format!("the sink has failed: {why}"));
        self.stuck().into_iter().chain(failure).collect()
    }

    fn stuck(&self) -> Vec<String> {
        let has_stopped = self.receiver.has_stopped();
        has_stopped.then(|| "the receiver has stopped".to_owned()).into_iter().collect()
    }
}

/// The metrics of a receiver, under spead2's names where they mean the same: a message is a heap.
fn metrics(now: &Statistics, taken: &Taken) -> Metrics {
    let mut metrics = Metrics::default();
    count(&mut metrics, now, taken);
    for (name, help, value) in [
        ("max_batch", "Most messages that one poll found.", now.max_batch),
        ("senders", "Senders connected.", now.sessions),
        ("regions", "Regions of all rings.", now.regions),
        ("held_regions", "Regions with windows that were not released.", now.held_regions),
        ("open_windows", "Windows that receive messages.", now.open_windows),
        ("sink_failed", "1 once the sink has failed.", taken.failure().is_some().into()),
    ] {
        metrics.gauge(&format!("longhaul_ingest_{name}"), help, "", value as f64);
    }
    for (stream, fates) in now.counts.fates.iter().enumerate() {
        for fate in Fate::ALL {
            let of_fate = labels(&[("stream", &stream.to_string()), ("fate", fate.name())]);
            metrics.gauge(
                "longhaul_ingest_messages",
                "Messages of closed windows by fate. A late message changes its fate.",
                &of_fate,
                fates.of(fate) as f64,
            );
        }
    }
    let bounds = Lateness::BOUNDS.iter().map(|bound| *bound as f64).chain(once(f64::INFINITY));
    let buckets: Vec<_> = bounds.zip(now.counts.lateness.counts().iter().copied()).collect();
    metrics.histogram(
        "longhaul_ingest_lateness_windows",
        "Newer windows that had begun when a message arrived.",
        &buckets,
        now.counts.lateness.sum() as f64,
    );
    metrics
}

/// Adds what never falls.
fn count(metrics: &mut Metrics, now: &Statistics, taken: &Taken) {
    let counts = &now.counts;
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    for (name, help, value) in [
        ("heaps", "Messages that arrived.", counts.arrivals),
        ("bytes", "Bytes of the messages that arrived.", counts.bytes),
        ("batches", "Polls of a completion queue that found messages.", now.batches),
        ("too_old_heaps", "Messages of windows that were closed.", counts.late),
        (
            "rejected_heaps",
            "Messages whose immediate names no place, or another sender's.",
            counts.outside + now.foreign,
        ),
        ("duplicate_heaps", "Messages that had arrived before.", counts.duplicates),
        ("windows", "Windows delivered.", counts.windows_delivered),
        ("complete_windows", "Windows delivered with all messages.", counts.windows_complete),
        (
            "undelivered_windows",
            "Windows dropped because their region was held.",
            counts.windows_undelivered,
        ),
        ("skipped_windows", "Windows of which nothing arrived.", counts.windows_skipped),
        ("unwritten_windows", "Windows that the sink did not take.", of(&taken.unwritten)),
        (
            "damaged_heaps",
            "Messages with bytes that their sender did not send.",
            taken.damaged().unwrap_or(0),
        ),
        (
            "overwritten_in_use_heaps",
            "Messages overwritten while their window was read.",
            of(&taken.overwritten),
        ),
        (
            "out_of_buffer",
            "Messages that the device dropped because no receive was posted.",
            now.out_of_buffer,
        ),
        ("failed_queue_pairs", "Queue pairs that failed.", now.failed_pairs),
        ("refused_senders", "Senders refused.", now.refused),
    ] {
        metrics.count(&format!("longhaul_ingest_{name}"), help, "", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_ingest::ring::Fates;

    #[test]
    fn the_document_has_each_metric_with_its_kind() {
        let document = include_str!("../../../../docs/ingest.md");
        let mut now = Statistics::default();
        now.counts.fates = vec![Fates::default(); 2];
        let metrics = metrics(&now, &Taken::new(2, false));
        let mut rows = Vec::new();
        for (name, kind, help) in metrics.described() {
            let row = format!("| `{name}` | {kind} | {} |\n", help.trim_end_matches('.'));
            assert!(document.contains(&row), "docs/ingest.md lacks {row}");
            rows.push(row);
        }
        let documented = document.lines().filter(|line| line.starts_with("| `longhaul_ingest_"));
        assert_eq!(documented.count(), rows.len(), "docs/ingest.md has metrics that do not exist");
        let of_streams = metrics.samples("longhaul_ingest_messages");
        assert_eq!(of_streams.lines().count(), 2 * Fate::ALL.len());
    }
}
