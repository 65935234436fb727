//! Windows that are refilled in lots.

use serde::Serialize;

/// How a window of `window` places whose places come back `lot` at a time fills a round trip.
///
/// A queue of 128 with a completion for each 100th: while 100 are on their way, 28 wait that nothing will ever free before
/// the next 100; so 100, not 128, move per round trip. Lots of one give the whole window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Places that are refilled per turn: whole lots that fit.
    pub per_turn: u64,
    /// Which of the places that are filled together ends a lot, counted from 1: so long does the turn take beyond the
    /// round trip.
    pub position: u64,
}

impl Window {
    /// Of `window` places in lots of `lot`; both are taken to be at least 1, the lot to be no larger than the window.
    pub fn new(window: u64, lot: u64) -> Self {
        Self::with_waits(window, lot, 0, 0)
    }

    /// As [`Window::new`], behind a second window of `room` places that come back one by one and are waited for `waits` times
    /// in each turn.
    ///
    /// The message that ends a lot lets another be posted that is `window` − `lot` + 1 further on; `room` messages further on
    /// is one that waits for its answer. The messages behind that leave one by one, until one ends a lot: a whole number of
    /// lots after the first. That is how many move in the round trips of the turn.
    pub fn with_waits(window: u64, lot: u64, room: u64, waits: u64) -> Self {
        let window = window.max(1);
        let lot = lot.clamp(1, window);
        let ahead = window - lot + 1 + waits * room;
        let per_turn = ahead.next_multiple_of(lot);
        Window { per_turn, position: per_turn - ahead + 1 }
    }
}

/// How many packets a window of `window` of them moves per turn, and the place among them, counted from 1, that ends the
/// turn, both on average, where messages of `packets` are acknowledged at each `lot`-th packet and at their end.
///
/// An acknowledgement lets packets go from one beyond the window behind the acknowledgement before it; the next one that
/// they bring about is a turn later.
pub(crate) fn of_packets(window: u64, lot: u64, packets: u64) -> (f64, f64) {
    let lot = lot.min(window);
    let message = |packet: u64| (packet - 1) / packets * packets;
    let acknowledged_before = |packet: u64| {
        let start = message(packet);
        start + (packet - 1 - start) / lot * lot
    };
    let acknowledged_from = |packet: u64| {
        let start = message(packet);
        start + (packet - start).next_multiple_of(lot).min(packets)
    };
    let first = lot.min(packets);
    let (mut last, mut positions) = (first, 0);
    for _ in 0..PACKET_TURNS {
        let before = acknowledged_before(last) + window;
        last = acknowledged_from(before + 1);
        positions += last - before;
    }
    ((last - first) as f64 / PACKET_TURNS as f64, positions as f64 / PACKET_TURNS as f64)
}

/// How many READs of `packets` responses a window of `window` packets lets begin per turn, and the response among a READ's,
/// counted from 1, that ends the turn.
///
/// A READ takes the numbers of all its responses at once and begins while any number is free; each response frees its own.
/// So the READ that is `⌈window / packets⌉` further on begins when the first response is there that leaves less than the
/// window before it.
pub(crate) fn of_reads(window: u64, packets: u64) -> (u64, u64) {
    let messages = window.div_ceil(packets);
    (messages, messages * packets - window + 1)
}

/// Turns that are averaged over.
const PACKET_TURNS: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts and frees places step by step, all that happen at once in one step.
    fn by_hand(window: u64, lot: u64, turns: u64) -> u64 {
        let (mut posted, mut freed) = (window, 0);
        for _ in 0..turns {
            // Everything posted has come back; only whole lots free their places.
            freed = posted / lot * lot;
            posted = freed + window;
        }
        freed
    }

    #[test]
    fn whole_lots_move_per_turn() {
        for (window, lot) in [(128, 100), (128, 1), (128, 64), (2048, 100), (16, 16), (128, 66), (7, 3)] {
            let w = Window::new(window, lot);
            assert_eq!(by_hand(window, lot, 10), w.per_turn * 10, "{window} in lots of {lot}");
        }
    }

    #[test]
    fn packets_move_in_the_lots_that_are_acknowledged() {
        assert_eq!(of_packets(128, 66, 1), (128.0, 1.0));
        assert_eq!(of_packets(128, 66, 16), (128.0, 16.0));
        // Acknowledged at 66 and at the end.
        assert_eq!(of_packets(128, 66, 128), (128.0, 66.0));
        assert_eq!(of_packets(128, 66, 100), (100.0, 38.0));
        // One endless message.
        assert_eq!(of_packets(128, 66, 1 << 19), (66.0, 4.0));
        assert_eq!(of_packets(1, 66, 5), (1.0, 1.0));
    }

    #[test]
    fn reads_begin_while_any_number_is_free() {
        for (window, packets) in
            [(129, 1), (129, 16), (128, 16), (129, 128), (129, 1000), (1, 1), (1, 5), (7, 3)]
        {
            let (messages, response) = of_reads(window, packets);
            // The numbers that are taken before READ i + messages, where i's responses up to that one are there.
            let taken = |responses: u64| messages * packets - responses;
            assert!(taken(response) < window && taken(response - 1) >= window, "{window}, {packets}");
            assert!((1..=packets).contains(&response));
        }
        assert_eq!(of_reads(129, 128), (2, 128));
        assert_eq!(of_reads(128, 16), (8, 1));
    }

    #[test]
    fn the_place_that_ends_a_lot_is_where_perftest_signals() {
        // 128 posted, #100 done, 128 to 227 posted: #200 is the 72nd of them.
        assert_eq!(Window::new(128, 100), Window { per_turn: 100, position: 72 });
        assert_eq!(Window::new(128, 1), Window { per_turn: 128, position: 1 });
        assert_eq!(Window::new(16, 16), Window { per_turn: 16, position: 16 });
        assert_eq!(Window::new(3, 100), Window { per_turn: 3, position: 3 });
    }
}
