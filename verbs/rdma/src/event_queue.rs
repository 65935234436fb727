//! An event queue with a descriptor that programs can poll, read until empty and set non-blocking.
//!
//! The descriptor is a semaphore eventfd that counts the queued events, so the kernel provides
//! readiness, blocking and `O_NONBLOCK` as programs expect of a completion channel, an event
//! channel and a device's asynchronous event descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use crate::semaphore::Semaphore;

/// Events in order, with a pollable descriptor.
///
/// The queue has no bound of its own; the objects that raise events bound it (one event per armed
/// completion queue, a handful per connection).
///
/// A reader first decrements the descriptor's count, and then takes an event. Invariant, whenever
/// the lock is free: the count plus the number of readers between these two steps equals the number
/// of events plus `debts`.
pub struct EventQueue<T> {
    count: Semaphore,
    queued: Mutex<Queued<T>>,
}

struct Queued<T> {
    events: VecDeque<T>,
    /// Events that were removed after a reader had decremented the count for them: as many later
    /// readers get nothing. Otherwise such a reader would take an event whose own count stays,
    /// which would leave an empty queue readable.
    debts: usize,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let queued = Queued { events: VecDeque::new(), debts: 0 };
        Ok(Self { count: Semaphore::new()?, queued: Mutex::new(queued) })
    }

    /// The descriptor, readable while events are queued. The queue owns it.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.count.fd()
    }

    fn lock(&self) -> MutexGuard<'_, Queued<T>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event and makes the descriptor readable.
    pub fn push(&self, event: T) {
        let mut queued = self.lock();
        queued.events.push_back(event);
        self.count.raise();
    }

    /// Takes the oldest event. Blocks while there is none, unless the program made the descriptor
    /// non-blocking.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking descriptor without events; `Interrupted` by a signal.
    pub fn pop(&self) -> io::Result<T> {
        loop {
            self.count.lower()?;
            if let Some(event) = self.take_counted(|event| event) {
                return Ok(event);
            }
        }
    }

    /// Takes the oldest event for a caller that has decremented the descriptor's count. `None` if
    /// [`EventQueue::retain`] or [`EventQueue::try_pop`] removed the counted event: the caller must
    /// read the descriptor again.
    ///
    /// `take` runs under the queue's lock: each event is either still queued, for `retain` to find,
    /// or `take` has seen it. `take` must not use the queue.
    pub fn take_counted<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        let mut queued = self.lock();
        if queued.debts > 0 {
            queued.debts -= 1;
            return None;
        }
        queued.events.pop_front().map(take)
    }

    /// Takes the oldest event; waits for one for at most `limit`.
    ///
    /// # Errors
    /// `TimedOut` if none arrived; any error of `poll`.
    pub fn pop_within(&self, limit: Duration) -> io::Result<T> {
        let end = Instant::now() + limit;
        loop {
            if let Some(event) = self.try_pop() {
                return Ok(event);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.count.wait(left)?;
        }
    }

    /// Takes the oldest event, if there is one; never blocks.
    pub fn try_pop(&self) -> Option<T> {
        let mut queued = self.lock();
        let event = queued.events.pop_front()?;
        self.uncount(&mut queued);
        Some(event)
    }

    /// Removes the queued events that `keep` refuses, and returns them.
    pub fn retain(&self, mut keep: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queued = self.lock();
        let mut dropped = Vec::new();
        for _ in 0..queued.events.len() {
            if let Some(event) = queued.events.pop_front() {
                if keep(&event) {
                    queued.events.push_back(event);
                } else {
                    self.uncount(&mut queued);
                    dropped.push(event);
                }
            }
        }
        dropped
    }

    /// Decrements the count for a removed event, or notes that another thread has done so first.
    fn uncount(&self, queued: &mut Queued<T>) {
        if !self.count.lower_now() {
            queued.debts += 1;
        }
    }

    /// Number of queued events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// True if no event is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().events.is_empty()
    }
}

#[cfg(all(test, loom))]
mod under_loom;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Like a reader that is about to take an event.
    fn read_count(queue: &EventQueue<i32>) {
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes.
        assert_eq!(unsafe { libc::read(queue.fd(), count.as_mut_ptr().cast(), 8) }, 8);
    }

    fn readable(fd: RawFd) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    fn set_nonblocking(fd: RawFd) {
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    }

    #[test]
    fn is_readable_exactly_while_events_are_queued() {
        let queue = EventQueue::new().unwrap();
        assert!(!readable(queue.fd()));
        queue.push(1);
        queue.push(2);
        assert!(readable(queue.fd()));
        assert_eq!(queue.pop().unwrap(), 1);
        assert!(readable(queue.fd()));
        assert_eq!(queue.pop().unwrap(), 2);
        assert!(!readable(queue.fd()));
    }

    #[test]
    fn an_empty_non_blocking_queue_says_so() {
        let queue = EventQueue::<u8>::new().unwrap();
        set_nonblocking(queue.fd());
        assert_eq!(queue.pop().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn dropped_events_do_not_leave_the_descriptor_readable() {
        let queue = EventQueue::new().unwrap();
        for n in 0..6 {
            queue.push(n);
        }
        assert_eq!(queue.retain(|n| n % 2 == 0), [1, 3, 5]);
        assert_eq!([queue.pop().unwrap(), queue.pop().unwrap(), queue.pop().unwrap()], [0, 2, 4]);
        assert!(!readable(queue.fd()));
        assert_eq!(queue.try_pop(), None);
    }

    #[test]
    fn a_count_whose_event_was_dropped_stands_for_nothing() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        read_count(&queue);
        assert_eq!(queue.retain(|_| false), [1]);
        assert_eq!(queue.take_counted(|event| event), None);
    }

    #[test]
    fn a_count_does_not_stand_for_a_later_event() {
        for by_retain in [true, false] {
            let queue = EventQueue::new().unwrap();
            queue.push(1);
            read_count(&queue);
            if by_retain {
                queue.retain(|_| false);
            } else {
                queue.try_pop();
            }
            queue.push(2);
            assert_eq!(queue.take_counted(|event| event), None);
            assert!(readable(queue.fd()));
            assert_eq!(queue.pop().unwrap(), 2);
            assert!(!readable(queue.fd()), "an empty queue is not readable");
        }
    }

    #[test]
    fn a_blocked_reader_wakes_on_the_next_event() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let reader = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || queue.pop().unwrap())
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        queue.push(7);
        assert_eq!(reader.join().unwrap(), 7);
    }
}
