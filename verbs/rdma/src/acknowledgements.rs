//! Acknowledgement of events by the program.

use std::sync::PoisonError;

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};

/// Counts the events of one object that the program was given, and those that it has acknowledged.
/// Destroying the object waits until the two are equal.
///
/// An event counts as given while its queue is locked
/// ([`EventQueue::take_counted`](crate::EventQueue::take_counted)), and destroying the object first
/// removes its events from the queue ([`EventQueue::retain`](crate::EventQueue::retain)). Each
/// event is therefore either removed or waited for.
#[derive(Default)]
pub struct Acknowledgements {
    given: AtomicU64,
    acknowledged: Mutex<u64>,
    changed: Condvar,
}

impl Acknowledgements {
    /// Counts one more given event.
    pub fn give(&self) {
        self.given.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts `count` more acknowledged events.
    pub fn acknowledge(&self, count: u64) {
        let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *acknowledged += count;
        self.changed.notify_all();
    }

    /// Blocks until all given events have been acknowledged.
    pub fn settle(&self) {
        let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        while *acknowledged < self.given.load(Ordering::SeqCst) {
            acknowledged = self.changed.wait(acknowledged).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settling_waits_for_every_acknowledgement() {
        let acks = std::sync::Arc::new(Acknowledgements::default());
        acks.give();
        acks.give();
        acks.acknowledge(1);
        let settled = {
            let acks = std::sync::Arc::clone(&acks);
            std::thread::spawn(move || acks.settle())
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!settled.is_finished());
        acks.acknowledge(1);
        settled.join().unwrap();
    }
}
