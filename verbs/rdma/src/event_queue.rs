//! A queue of events behind a descriptor that programs can poll, read until empty and set non-blocking.
//!
//! The descriptor is a semaphore eventfd that counts the queued events, so that readiness, blocking and
//! `O_NONBLOCK` are the kernel's own: exactly what programs expect of a completion channel, an event
//! channel and the asynchronous event descriptor of a device.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::ReadWriteFlags;

/// Events in order, with a pollable descriptor.
///
/// Unbounded by itself; what is queued is bounded by the objects that raise events (one per armed
/// completion queue, a handful per connection).
pub struct EventQueue<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: eventfd returned a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: Mutex::new(VecDeque::new()) })
    }

    /// The descriptor, readable while events are queued. It stays the queue's.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an event and makes the descriptor readable.
    pub fn push(&self, event: T) {
        let mut events = self.lock();
        events.push_back(event);
        // A system call without the C library, whose `write` might cancel the program's thread right here. It
        // cannot fail: the counter counts queued events and does not overflow.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Takes the oldest event; blocks while there is none, unless the program made the descriptor
    /// non-blocking.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking descriptor without events; `Interrupted` by a signal.
    pub fn pop(&self) -> io::Result<T> {
        loop {
            let mut count = [0_u8; 8];
            // SAFETY: eight writable bytes.
            let n = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if n < 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(event) = self.take_counted(|event| event) {
                return Ok(event);
            }
        }
    }

    /// Takes the oldest event for a caller who has read one from the descriptor's count. `None` when
    /// [`EventQueue::retain`] dropped the event that this count stood for.
    ///
    /// `take` runs under the queue's lock: an event is either still queued, for `retain` to find, or `take`
    /// has seen it. It must not use the queue.
    pub fn take_counted<R>(&self, take: impl FnOnce(T) -> R) -> Option<R> {
        let mut events = self.lock();
        events.pop_front().map(take)
    }

    /// Takes the oldest event; waits for one until the time is over.
    ///
    /// # Errors
    /// `TimedOut` when none came; whatever `poll` fails with.
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
            let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            let millis = left.as_millis().clamp(1, 1000) as libc::c_int;
            // SAFETY: one valid pollfd.
            if unsafe { libc::poll(&raw mut poll, 1, millis) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }

    /// Takes the oldest event, if there is one; never blocks.
    pub fn try_pop(&self) -> Option<T> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        self.uncount();
        Some(event)
    }

    /// Drops the queued events that `keep` refuses, and returns them.
    pub fn retain(&self, mut keep: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut events = self.lock();
        let mut dropped = Vec::new();
        for _ in 0..events.len() {
            if let Some(event) = events.pop_front() {
                if keep(&event) {
                    events.push_back(event);
                } else {
                    self.uncount();
                    dropped.push(event);
                }
            }
        }
        dropped
    }

    /// Takes one from the descriptor's count, if there is one to take, whatever the descriptor's flags.
    fn uncount(&self) {
        let mut count = [0_u8; 8];
        // NOWAIT keeps it from blocking when another thread took the count first; that thread then finds
        // the queue empty and waits on. The offset stands for "no offset".
        let slices = &mut [IoSliceMut::new(&mut count)];
        let _ = rustix::io::preadv2(&self.fd, slices, u64::MAX, ReadWriteFlags::NOWAIT);
    }

    /// Events queued at this moment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// True when nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

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
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes.
        assert_eq!(unsafe { libc::read(queue.fd(), count.as_mut_ptr().cast(), 8) }, 8);
        assert_eq!(queue.retain(|_| false), [1]);
        assert_eq!(queue.take_counted(|event| event), None);
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
