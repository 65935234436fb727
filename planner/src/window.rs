//! Windows that are refilled in lots.

use serde::Serialize;
use std::collections::VecDeque;

/// Messages per turn of a window of `window` places that are released `lot` at a time.
///
/// Example: in a queue of 128 with a completion for each 100th message, 28 places are only released
/// with the next lot of 100; hence 100 messages move per round trip, not 128. Lots of one use the
/// whole window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Places that are refilled per turn: the whole lots that fit.
    pub per_turn: u64,
    /// Position, from 1, of the message that ends a lot among those posted together: the messages
    /// by which the turn exceeds the round trip.
    pub position: u64,
}

impl Window {
    /// A window of `window` places in lots of `lot`. Both are clamped to at least 1, and `lot` to
    /// at most `window`.
    pub fn new(window: u64, lot: u64) -> Self {
        Self::with_waits(window, lot, 0, 0)
    }

    /// As [`Window::new`], in front of a second window of `room` places that are released one by
    /// one and waited for `waits` times per turn.
    ///
    /// The message that ends a lot releases the one that is `window` − `lot` + 1 further on; the
    /// message `room` further on waits for its acknowledgement. The messages behind that leave one
    /// by one, until one ends a lot, a whole number of lots after the first. That number moves in
    /// the round trips of the turn.
    pub fn with_waits(window: u64, lot: u64, room: u64, waits: u64) -> Self {
        let window = window.max(1);
        let lot = lot.clamp(1, window);
        let ahead = window - lot + 1 + waits * room;
        let per_turn = ahead.next_multiple_of(lot);
        Window { per_turn, position: per_turn - ahead + 1 }
    }
}

/// Acknowledged packets of a stream of messages, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// The requester requests an acknowledgement at a message's end and every `asked_every` packets
    /// of it.
    pub asked_every: u64,
    /// The responder acknowledges every `every` packets after its last acknowledgement,
    /// unrequested.
    pub every: u64,
    /// Packets of a message.
    pub packets: u64,
}

impl Acknowledged {
    /// Returns the last acknowledged packet before `packet`, or 0.
    fn before(&self, packet: u64) -> u64 {
        let within = (packet - 1) % self.packets;
        let asked = within / self.asked_every * self.asked_every;
        packet - 1 - within + asked + (within - asked) / self.every * self.every
    }

    /// Returns the first acknowledged packet from `packet` on.
    fn from(&self, packet: u64) -> u64 {
        let within = (packet - 1) % self.packets;
        let asked = within / self.asked_every * self.asked_every;
        let unasked = asked + (within + 1 - asked).next_multiple_of(self.every);
        packet - 1 - within + unasked.min(asked + self.asked_every).min(self.packets)
    }

    /// Returns whether `packet` is acknowledged.
    pub fn is(&self, packet: u64) -> bool {
        self.from(packet) == packet
    }

    /// Returns the first acknowledged packet of a message.
    pub fn first(&self) -> u64 {
        self.from(1)
    }

    /// Returns the average packets per turn of a window of `window` packets, and the average
    /// duration of a turn, for packets `packet_ns` apart whose acknowledgements arrive `answer_ns`
    /// later.
    ///
    /// An acknowledgement releases the packets that follow the window of the previous one; the next
    /// acknowledgement of those is a turn later. If the acknowledgements of a message release
    /// different numbers of packets, they delay each other. Therefore the stream is played,
    /// acknowledgement by acknowledgement, until it is periodic.
    pub fn turn(&self, window: u64, packet_ns: f64, answer_ns: f64) -> (f64, f64) {
        let opened = |last: u64| self.before(last) + window;
        let next = |last: u64| self.from(opened(last) + 1);
        let settled = (0..SETTLING_TURNS).fold(self.first(), |last, _| next(last));
        let (mut awaited, mut turns) = (settled, 0.0);
        let (mut begin_ns, mut whole) = (0.0, None);
        for (last, left_ns) in self.departures(window, packet_ns, answer_ns) {
            if last == awaited {
                if last == settled {
                    begin_ns = left_ns;
                } else if (last - settled) % self.packets == 0 {
                    whole = Some(((last - settled) as f64 / turns, (left_ns - begin_ns) / turns));
                }
                (awaited, turns) = (next(awaited), turns + 1.0);
            }
        }
        whole.unwrap_or_else(|| {
            // The window or a message is too long to play: assume that acknowledgements do not
            // delay each other.
            let (mut last, mut packets) = (settled, 0);
            for _ in 0..SETTLING_TURNS {
                packets += next(last) - opened(last);
                last = next(last);
            }
            let per_turn = |packets: u64| packets as f64 / SETTLING_TURNS as f64;
            (per_turn(last - settled), answer_ns + per_turn(packets) * packet_ns)
        })
    }

    /// Returns each acknowledged packet of a stream that begins with nothing in flight, and its
    /// departure time.
    pub fn departures(
        self,
        window: u64,
        packet_ns: f64,
        answer_ns: f64,
    ) -> impl Iterator<Item = (u64, f64)> {
        // The last packet sent, the last permitted one, and the time at which the line is free.
        let (mut sent, mut allowed, mut line_ns) = (0, window, 0.0_f64);
        let mut coming = VecDeque::new();
        (0..PLAYED_MAX).map(move |_| {
            let asking = self.from(sent + 1);
            while sent < asking {
                if sent == allowed
                    && let Some((at, acknowledged)) = coming.pop_front()
                {
                    (line_ns, allowed) = (line_ns.max(at), acknowledged + window);
                }
                let until = asking.min(allowed);
                line_ns += (until - sent) as f64 * packet_ns;
                sent = until;
            }
            coming.push_back((line_ns + answer_ns, sent));
            (sent, line_ns)
        })
    }
}

/// Turns after which a stream's start has no effect.
const SETTLING_TURNS: u64 = 32;
/// Maximum number of acknowledgements played: some tens of microseconds of computing.
const PLAYED_MAX: u64 = 1 << 14;

/// Returns the READs of `packets` responses that begin per turn in a window of `window` packets,
/// and the response of a READ, from 1, that ends the turn.
///
/// A READ takes the PSNs of all its responses at once and begins while any PSN is free; each
/// response frees its own. The READ that is `⌈window / packets⌉` further on therefore begins at the
/// first response that leaves less than the window before it.
pub(crate) fn of_reads(window: u64, packets: u64) -> (u64, u64) {
    let messages = window.div_ceil(packets);
    (messages, messages * packets - window + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Posts and frees places step by step, all that happen at once in one step.
    fn by_hand(window: u64, lot: u64, turns: u64) -> u64 {
        let (mut posted, mut freed) = (window, 0);
        for _ in 0..turns {
            // All posted messages have completed; only whole lots release their places.
            freed = posted / lot * lot;
            posted = freed + window;
        }
        freed
    }

    #[test]
    fn whole_lots_move_per_turn() {
        for (window, lot) in
            [(128, 100), (128, 1), (128, 64), (2048, 100), (16, 16), (128, 66), (7, 3)]
        {
            let w = Window::new(window, lot);
            assert_eq!(by_hand(window, lot, 10), w.per_turn * 10, "{window} in lots of {lot}");
        }
    }

    /// Packets per turn, and the packets by which a turn exceeds the path's delay.
    fn of_packets(window: u64, asked_every: u64, packets: u64) -> (f64, f64) {
        let (moved, ns) =
            Acknowledged { asked_every, every: 1 << 23, packets }.turn(window, 1.0, 10_000.0);
        (moved, ns - 10_000.0)
    }

    #[test]
    fn packets_move_in_the_lots_that_are_acknowledged() {
        assert_eq!(of_packets(128, 66, 1), (128.0, 1.0));
        assert_eq!(of_packets(128, 66, 16), (128.0, 16.0));
        // Acknowledged at 66 and at the end.
        assert_eq!(of_packets(128, 66, 128), (128.0, 66.0));
        assert_eq!(of_packets(128, 66, 100), (100.0, 38.0));
        assert_eq!(of_packets(1, 1, 5), (1.0, 1.0));
        // One endless message: from 129 + 66n + 1 on to 66(n + 3).
        assert_eq!(of_packets(129, 66, 1 << 23), (66.0, 3.0));
    }

    #[test]
    fn messages_shorter_than_the_interval_move_whole() {
        for (packets, messages) in
            [(5, 25.0), (8, 16.0), (9, 14.0), (15, 8.0), (43, 3.0), (60, 2.0), (66, 1.0)]
        {
            let moved = of_packets(129, 66, packets).0;
            assert_eq!(moved / packets as f64, messages, "messages of {packets} packets");
        }
    }

    #[test]
    fn acknowledgements_come_where_either_side_counts_to_its_interval() {
        for (asked_every, every, packets) in
            [(66, 1 << 23, 150), (66, 64, 150), (64, 64, 130), (200, 64, 150), (7, 3, 1)]
        {
            let acknowledged = Acknowledged { asked_every, every, packets };
            // Both count as they send and receive.
            let (mut unasked, mut unanswered, mut last) = (0, 0, 0);
            for packet in 1..1000 {
                assert_eq!(acknowledged.before(packet), last, "{acknowledged:?} before {packet}");
                (unasked, unanswered) = (unasked + 1, unanswered + 1);
                let is_asked = packet % packets == 0 || unasked == asked_every;
                if is_asked {
                    unasked = 0;
                }
                if is_asked || unanswered == every {
                    unanswered = 0;
                    assert_eq!(
                        acknowledged.from(last + 1),
                        packet,
                        "{acknowledged:?} from {}",
                        last + 1
                    );
                    assert_eq!(acknowledged.from(packet), packet);
                    last = packet;
                }
            }
        }
    }

    #[test]
    fn reads_begin_while_any_number_is_free() {
        for (window, packets) in
            [(129, 1), (129, 16), (128, 16), (129, 128), (129, 1000), (1, 1), (1, 5), (7, 3)]
        {
            let (messages, response) = of_reads(window, packets);
            // PSNs in use before READ i + `messages`, once i's responses up to that one have
            // arrived.
            let taken = |responses: u64| messages * packets - responses;
            assert!(
                taken(response) < window && taken(response - 1) >= window,
                "{window}, {packets}"
            );
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
