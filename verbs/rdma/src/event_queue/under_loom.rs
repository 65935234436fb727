//! Loom tests of readers, raisers and the destroyer of an object at one queue, under all
//! interleavings: no event is lost, no event of a destroyed object is given out, and an empty queue
//! is never left readable.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::EventQueue;
use crate::acknowledgements::Acknowledgements;

/// An event of the object that is destroyed.
const DOOMED: u8 = 1;
/// An event of another object.
const OTHER: u8 = 2;

fn queue() -> Arc<EventQueue<u8>> {
    Arc::new(EventQueue::new().unwrap())
}

fn assert_silent(queue: &EventQueue<u8>) {
    assert!(queue.is_empty());
    assert_eq!(queue.lock().debts, 0);
    assert!(!queue.count.lower_now(), "an empty queue is readable");
}

#[test]
fn each_event_goes_to_one_reader() {
    loom::model(|| {
        let queue = queue();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.pop().unwrap())
            })
            .collect();
        queue.push(DOOMED);
        queue.push(OTHER);
        let read: u8 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert_eq!(read, DOOMED + OTHER);
        assert_silent(&queue);
    });
}

#[test]
fn events_taken_out_leave_the_others_to_the_readers() {
    loom::model(|| {
        let queue = queue();
        queue.push(DOOMED);
        let reader = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                let mut others = 0;
                while others < 2 {
                    others += usize::from(queue.pop().unwrap() == OTHER);
                }
            })
        };
        queue.push(OTHER);
        queue.retain(|event| *event != DOOMED);
        queue.push(OTHER);
        reader.join().unwrap();
        assert_silent(&queue);
    });
}

#[test]
fn one_who_waits_and_one_who_looks_share_the_events() {
    loom::model(|| {
        let queue = queue();
        let reader = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.pop().unwrap())
        };
        queue.push(DOOMED);
        queue.push(OTHER);
        let looked = queue.try_pop();
        // Whichever of the two took the first event, the reader gets one.
        let read = reader.join().unwrap();
        let left = queue.try_pop();
        assert_eq!(u8::from(looked.is_some()) + u8::from(left.is_some()), 1);
        assert_eq!(read + looked.or(left).unwrap(), DOOMED + OTHER);
        assert_silent(&queue);
    });
}

/// An object whose events go to a queue. `alive` may be accessed while an event of it is
/// unacknowledged.
struct Object {
    alive: UnsafeCell<bool>,
    acknowledgements: Acknowledgements,
}

// SAFETY: loom checks that `alive` is not written while others read it.
unsafe impl Sync for Object {}
// SAFETY: as above.
unsafe impl Send for Object {}

/// Like a program that takes an event, accesses its object, and acknowledges it.
fn read_until_other(queue: &EventQueue<u8>, object: &Object, touched: &AtomicUsize) {
    loop {
        queue.count.lower().unwrap();
        let taken = queue.take_counted(|event| {
            if event == DOOMED {
                object.acknowledgements.give();
            }
            event
        });
        match taken {
            Some(DOOMED) => {
                // SAFETY: loom reports a concurrent write.
                object.alive.with(|alive| assert!(unsafe { *alive }, "an event of what is gone"));
                touched.fetch_add(1, Ordering::Relaxed);
                object.acknowledgements.acknowledge(1);
            }
            Some(_) => return,
            None => {}
        }
    }
}

#[test]
fn an_object_goes_when_its_events_are_taken_out_or_acknowledged() {
    loom::model(|| {
        let (queue, touched) = (queue(), Arc::new(AtomicUsize::new(0)));
        let object = Arc::new(Object {
            alive: UnsafeCell::new(true),
            acknowledgements: Acknowledgements::default(),
        });
        let reader = {
            let (queue, object, touched) =
                (Arc::clone(&queue), Arc::clone(&object), Arc::clone(&touched));
            thread::spawn(move || read_until_other(&queue, &object, &touched))
        };
        queue.push(DOOMED);
        // From here on it raises no events.
        let taken_out = queue.retain(|event| *event != DOOMED).len();
        object.acknowledgements.settle();
        // SAFETY: loom reports a concurrent read.
        object.alive.with_mut(|alive| unsafe { *alive = false });
        assert_eq!(taken_out + touched.load(Ordering::Relaxed), 1);
        queue.push(OTHER);
        reader.join().unwrap();
        assert_silent(&queue);
    });
}
