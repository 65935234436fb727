//! Single rules of the ring, each by example.

use longhaul_ingest::layout::{Layout, Shape};
use longhaul_ingest::ring::{Arrival, BeginError, Delivery, Fate, Ready, Ring, Slots};

const BYTES: u32 = 1000;

fn ring(delivery: Delivery) -> Ring {
    let shape = Shape {
        layout: Layout { stream_bits: 8, window_bits: 8, slot_bits: 16 },
        streams: 1,
        streams_per_ring: 1,
        slots: 3,
        message_bytes: BYTES,
        regions: 8,
        lateness: 1,
    };
    shape.check().unwrap();
    let mut ring = Ring::new(&shape, delivery);
    ring.begin_stream(0, None, true).unwrap();
    ring
}

fn arrive(ring: &mut Ring, window: u32, slots: impl IntoIterator<Item = u32>) {
    for slot in slots {
        ring.arrive(Arrival { stream: 0, window: window % 256, slot, bytes: BYTES }, BYTES);
    }
}

fn next(ring: &mut Ring) -> (u64, Vec<Fate>) {
    let Ready { window, fates } = ring.take_ready().expect("a closed window");
    (window, fates.to_vec())
}

use Fate::{Lost, NeverSent, NoReceive, Overwritten, Present, TooLate, Unaccounted, WrongLength};

#[test]
fn a_complete_window_is_delivered_at_once() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [2, 0]);
    assert_eq!(ring.take_ready(), None);
    arrive(&mut ring, 0, [1]);
    assert_eq!(next(&mut ring), (0, vec![Present; 3]));
}

#[test]
fn order_is_kept_or_not_as_asked() {
    for (delivery, first) in [(Delivery::InOrder, 0), (Delivery::WhenComplete, 1)] {
        let mut ring = ring(delivery);
        arrive(&mut ring, 0, [0, 1]);
        arrive(&mut ring, 1, 0..3);
        arrive(&mut ring, 0, [2]);
        assert_eq!(next(&mut ring).0, first);
        assert_eq!(next(&mut ring).0, 1 - first);
    }
}

#[test]
fn announcements_distinguish_what_was_not_sent_from_what_was_lost() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [0]);
    ring.announce(0, 0, &[Slots { first: 1, count: 1 }]);
    arrive(&mut ring, 1, [0]);
    arrive(&mut ring, 2, [0]);
    assert_eq!(next(&mut ring), (0, vec![Present, NeverSent, Lost]));
    // Window 1 is not announced, so it waits for half the ring.
    arrive(&mut ring, 4, [0]);
    assert_eq!(ring.take_ready(), None);
    arrive(&mut ring, 5, [0]);
    assert_eq!(next(&mut ring), (1, vec![Present, Unaccounted, Unaccounted]));
    // An announcement after that changes the counts and the held window.
    ring.announce(0, 1, &[Slots { first: 2, count: 7 }]);
    assert_eq!(ring.held(1), Some([Present, Lost, NeverSent].as_slice()));
    assert_eq!(ring.counts().fates[0].of(NeverSent), 2);
}

#[test]
fn late_messages_are_counted_and_a_held_window_shows_them() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [0]);
    ring.announce(0, 0, &[]);
    arrive(&mut ring, 2, [0]);
    assert_eq!(next(&mut ring).0, 0);
    arrive(&mut ring, 0, [1, 1, 0]);
    assert_eq!(ring.held(0), Some([Present, TooLate, Lost].as_slice()));
    assert_eq!((ring.counts().late, ring.counts().duplicates), (1, 2));
}

#[test]
fn a_window_that_wraps_over_a_held_one_is_detected() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, 0..3);
    let (_, fates) = next(&mut ring);
    for window in 1..8 {
        arrive(&mut ring, window, 0..3);
        let (window, fates) = next(&mut ring);
        assert_eq!(ring.release(window, fates.into()), 0);
    }
    arrive(&mut ring, 8, [1]);
    assert_eq!(ring.held(0), Some([Present, Overwritten, Present].as_slice()));
    assert_eq!(ring.release(0, fates.into()), 1);
    arrive(&mut ring, 8, [0, 2]);
    assert_eq!(next(&mut ring), (8, vec![Present; 3]), "the later window is delivered");
    assert_eq!(ring.held_regions(), 1);
}

#[test]
fn a_ring_that_nobody_drains_drops_windows_and_counts_them() {
    let mut ring = ring(Delivery::InOrder);
    for window in 0..20 {
        arrive(&mut ring, window, 0..3);
    }
    assert_eq!(ring.counts().windows_delivered, 8);
    assert_eq!(ring.counts().windows_undelivered, 12);
    assert_eq!(ring.counts().fates[0].of(Overwritten), 24);
}

#[test]
fn a_late_message_overwrites_its_successors_place() {
    let mut ring = ring(Delivery::InOrder);
    for window in 0..8 {
        arrive(&mut ring, window, 0..3);
        let (window, fates) = next(&mut ring);
        ring.release(window, fates.into());
    }
    arrive(&mut ring, 8, [0, 1]);
    arrive(&mut ring, 0, [0, 2]);
    arrive(&mut ring, 8, [2]);
    ring.close_all();
    assert_eq!(next(&mut ring), (8, vec![Overwritten, Present, Present]));
}

#[test]
fn a_long_message_overwrites_its_neighbour_until_that_arrives() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [1]);
    ring.arrive(Arrival { stream: 0, window: 0, slot: 0, bytes: BYTES + 1 }, BYTES);
    ring.close_all();
    assert_eq!(next(&mut ring), (0, vec![WrongLength, Overwritten, Unaccounted]));
}

#[test]
fn refused_messages_are_those_between_two_arrivals_of_their_queue_pair() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [0]);
    arrive(&mut ring, 1, [1]);
    assert_eq!(ring.refuse(0, 0, 4, (0, 1), 3), 3);
    ring.close_all();
    assert_eq!(next(&mut ring), (0, vec![Present, NoReceive, NoReceive]));
    assert_eq!(next(&mut ring), (1, vec![NoReceive, Present, Unaccounted]));
}

#[test]
fn a_closed_window_is_told_that_its_messages_were_refused() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [0]);
    ring.announce(0, 0, &[]);
    arrive(&mut ring, 2, [0]);
    assert_eq!(next(&mut ring), (0, vec![Present, Lost, Lost]));
    assert_eq!(ring.refuse(0, 0, 6, (0, 1), 5), 5);
    assert_eq!(ring.held(0), Some([Present, NoReceive, NoReceive].as_slice()));
    assert_eq!((ring.counts().fates[0].of(Lost), ring.counts().fates[0].of(NoReceive)), (0, 2));
}

#[test]
fn an_outage_is_skipped_and_the_numbers_of_windows_go_on() {
    let mut ring = ring(Delivery::InOrder);
    arrive(&mut ring, 0, [0]);
    arrive(&mut ring, 100, 0..3);
    assert_eq!((next(&mut ring).0, next(&mut ring).0), (0, 100));
    assert_eq!(ring.counts().windows_skipped, 99);
    arrive(&mut ring, 199, 0..3);
    arrive(&mut ring, 301, 0..3);
    assert_eq!((next(&mut ring).0, next(&mut ring).0), (199, 301));
}

#[test]
fn places_outside_the_ring_are_counted() {
    let mut ring = ring(Delivery::InOrder);
    for (stream, slot) in [(1, 0), (0, 3), (u32::MAX, u32::MAX)] {
        let arrival = Arrival { stream, window: 0, slot, bytes: BYTES };
        assert_eq!(ring.arrive(arrival, BYTES), None);
    }
    assert_eq!((ring.counts().outside, ring.open_windows()), (3, 0));
}

#[test]
fn a_sender_that_ends_leaves_its_windows_and_one_that_returns_continues() {
    let mut ring = ring(Delivery::InOrder);
    assert_eq!(ring.begin_stream(0, None, true), Err(BeginError::Taken));
    arrive(&mut ring, 0, [0]);
    ring.announce(0, 0, &[]);
    ring.announce(0, 1, &[Slots { first: 0, count: 1 }]);
    ring.end_stream(0);
    assert_eq!(next(&mut ring), (0, vec![Present, Lost, Lost]));
    assert_eq!(next(&mut ring), (1, vec![NeverSent, Lost, Lost]), "nothing of it arrived");
    assert_eq!(ring.begin_stream(0, Some(1), true), Err(BeginError::Behind { first: 1, next: 2 }));
    assert_eq!(ring.begin_stream(0, None, true), Ok(2));
    arrive(&mut ring, 2, 0..3);
    assert_eq!(next(&mut ring), (2, vec![Present; 3]));
}
