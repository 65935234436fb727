//! Transmissions of one path by number: in flight, arrived or lost.

use crate::format::AckEntry;
use crate::long_losses::LongLosses;
use crate::rtt::{LossMeter, Reordering, Rtt};
use crate::silence::HELD_UP;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

/// State of one transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SentState {
    InFlight,
    /// Presumed lost; kept for a while in case it has arrived after all.
    Lost,
    Arrived,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    record: u32,
    /// Bytes on the wire.
    bytes: u16,
    state: SentState,
}

/// Maximum extension of the wait for acknowledgements after this box was held up.
const UNREAD_MAX: Duration = Duration::from_ms(25);

/// Outcome of a transmission of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It arrived.
    Arrived,
    /// It arrived after it was presumed lost.
    ArrivedLate,
    /// It was lost.
    Lost,
    /// It was lost for a reason that the path explains: the path is down, or does not carry
    /// datagrams of this length.
    GivenUp,
    /// It was lost and is released; a late arrival would go unnoticed.
    Forgotten,
}

/// A block of parity over the numbers `start..end`, ended at `at`. Until its parity can have
/// arrived, none of them is known to be lost.
#[derive(Clone, Copy, Debug)]
struct Cover {
    start: u64,
    end: u64,
    at: Instant,
}

/// Transmissions of one path. Numbers increase by one and are never reused.
pub(crate) struct Flight {
    /// Number of the ring's front.
    base: u64,
    ring: VecDeque<Sent>,
    /// All numbers before this one are resolved.
    scan: u64,
    /// Blocks of parity with unresolved numbers.
    covers: VecDeque<Cover>,
    /// First number of the block of parity that has not ended.
    open_from: Option<u64>,
    in_flight: u64,
    in_flight_bytes: u64,
    largest_arrived: Option<(u64, Instant)>,
    /// Acknowledgements may lie unread until this time, because this box was held up.
    unread_until: Instant,
    /// First unresolved number for which that extension was granted.
    unread_for: Option<u64>,
    /// RTT of the largest number that arrived.
    newest_rtt: Duration,
    pub(crate) rtt: Rtt,
    pub(crate) reordering: Reordering,
    pub(crate) loss: LossMeter,
    pub(crate) sent: u64,
    /// Numbers that arrived, each counted once.
    pub(crate) arrived: u64,
    /// Bytes on the wire of those.
    pub(crate) arrived_bytes: u64,
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    pub(crate) long: LongLosses,
}

impl Flight {
    /// Creates an empty flight. Transmissions of more than `long_from` bytes on the wire count as
    /// long.
    pub(crate) fn new(long_from: u64) -> Self {
        Flight {
            base: 0,
            ring: VecDeque::new(),
            scan: 0,
            covers: VecDeque::new(),
            open_from: None,
            in_flight: 0,
            in_flight_bytes: 0,
            largest_arrived: None,
            unread_until: Instant::ZERO,
            unread_for: None,
            newest_rtt: Duration::ZERO,
            rtt: Rtt::default(),
            reordering: Reordering::default(),
            loss: LossMeter::default(),
            sent: 0,
            arrived: 0,
            arrived_bytes: 0,
            lost: 0,
            spurious: 0,
            long: LongLosses::new(long_from),
        }
    }

    /// Number of the next transmission.
    pub(crate) fn next_number(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// Number of unresolved transmissions.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes on the wire of the unresolved transmissions.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// RTT of the largest number that arrived; zero before the first arrival.
    pub(crate) fn newest_rtt(&self) -> Duration {
        self.newest_rtt
    }

    /// Numbers from the oldest unresolved one to the next.
    pub(crate) fn span(&self) -> u64 {
        self.next_number() - self.scan
    }

    /// Largest number that arrived.
    pub(crate) fn largest_arrived(&self) -> Option<u64> {
        self.largest_arrived.map(|(largest, _)| largest)
    }

    /// Notes a transmission of `record`, `bytes` on the wire, under the next number.
    #[inline]
    pub(crate) fn note(&mut self, now: Instant, record: u32, bytes: u64) {
        let bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        self.ring.push_back(Sent { at: now, record, bytes, state: SentState::InFlight });
        self.in_flight += 1;
        self.in_flight_bytes += u64::from(bytes);
        self.sent += 1;
    }

    /// Notes that parity covers the numbers before `next`, at least the last one. Blocks with
    /// numbers before `open` have ended.
    pub(crate) fn cover(&mut self, now: Instant, open: u64, next: u64) {
        let start = self.open_from.unwrap_or(next - 1);
        self.open_from = (open < next).then_some(open);
        if open > start {
            self.covers.push_back(Cover { start, end: open, at: now });
        }
    }

    /// Ends the open block of parity, if there is one, before the next number.
    pub(crate) fn end_block(&mut self, now: Instant) {
        if let Some(start) = self.open_from.take() {
            self.covers.push_back(Cover { start, end: self.next_number(), at: now });
        }
    }

    /// Notes that parity of the last block that ended is in flight.
    pub(crate) fn note_parity(&mut self, now: Instant) {
        if let Some(cover) = self.covers.back_mut() {
            cover.at = now;
        }
    }

    /// Time at which the last datagram that can deliver `number` was sent: its own transmission, at
    /// `at`, or the parity of its block. `None` if that parity is not sent yet. No block before the
    /// front of `covers` contains `number`.
    fn sent_wholly_at(&self, number: u64, at: Instant) -> Option<Instant> {
        if self.open_from.is_some_and(|open| number >= open) {
            return None;
        }
        let cover = self.covers.front().filter(|cover| (cover.start..cover.end).contains(&number));
        Some(cover.map_or(at, |cover| cover.at.max(at)))
    }

    /// Applies an acknowledgement. Returns `false`, and ignores it, if it names a number that was
    /// never sent.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        entries: &[AckEntry],
        delay: Duration,
        mut told: impl FnMut(u32, Fate),
    ) -> bool {
        let words = entries.iter().map(|entry| (self.unwrap(entry.word), entry.mask));
        let is_outside = |(word, mask): (Option<u64>, u64)| match (word, mask) {
            (Some(word), 1..) => {
                word * 64 + u64::from(63 - mask.leading_zeros()) >= self.next_number()
            }
            (word, _) => word.is_none(),
        };
        if words.clone().any(is_outside) {
            return false;
        }
        let largest_before = self.largest_arrived;
        for entry in entries {
            let Some(word) = self.unwrap(entry.word) else { continue };
            let mut mask = entry.mask;
            while mask != 0 {
                let number = word * 64 + u64::from(mask.trailing_zeros());
                mask &= mask - 1;
                self.arrived(now, number, largest_before, delay, &mut told);
            }
        }
        true
    }

    /// Unwraps `low`, the low half of a word, to the word nearest to the next number's.
    fn unwrap(&self, low: u32) -> Option<u64> {
        let near = self.next_number() / 64;
        near.checked_add_signed(i64::from(low.wrapping_sub(near as u32) as i32))
    }

    #[inline]
    fn arrived(
        &mut self,
        now: Instant,
        number: u64,
        largest_before: Option<(u64, Instant)>,
        delay: Duration,
        told: &mut impl FnMut(u32, Fate),
    ) {
        let Some(place) = number.checked_sub(self.base) else { return };
        let Some(sent) = self.ring.get_mut(place as usize) else { return };
        let before = std::mem::replace(&mut sent.state, SentState::Arrived);
        let Sent { at, record, bytes, .. } = *sent;
        match before {
            SentState::Arrived => return,
            SentState::InFlight => {
                self.in_flight -= 1;
                self.in_flight_bytes -= u64::from(bytes);
                self.loss.arrived(1);
                told(record, Fate::Arrived);
            }
            SentState::Lost => {
                self.spurious += 1;
                self.loss.was_not_lost();
                told(record, Fate::ArrivedLate);
            }
        }
        self.arrived += 1;
        self.arrived_bytes += u64::from(bytes);
        self.long.arrived(number, u64::from(bytes));
        if self.largest_arrived.is_none_or(|(largest, _)| number > largest) {
            self.largest_arrived = Some((number, at));
            self.newest_rtt = now.since(at) - delay;
            self.rtt.sample(self.newest_rtt);
        }
        if largest_before.is_some_and(|(largest, _)| number < largest) {
            let cover = self.covers.iter().find(|cover| (cover.start..cover.end).contains(&number));
            let at = cover.map_or(at, |cover| cover.at.max(at));
            self.reordering.note(now.since(at) - self.newest_rtt);
        }
    }

    /// Detects losses: numbers overtaken by a later one for longer than the reordering window.
    pub(crate) fn detect(&mut self, now: Instant, mut told: impl FnMut(u32, Fate)) {
        let rtt = self.rtt.smoothed();
        self.reordering.end_epoch(now, rtt);
        let Some((largest, newest_at)) = self.largest_arrived else { return };
        let window = self.reordering.window(rtt);
        self.note_if_held_up(now);
        while self.scan < largest {
            while self.covers.front().is_some_and(|cover| cover.end <= self.scan) {
                self.covers.pop_front();
            }
            let place = (self.scan - self.base) as usize;
            let Some(sent) = self.ring.get(place) else { break };
            if sent.state == SentState::InFlight {
                let Some(at) = self.sent_wholly_at(self.scan, sent.at) else { break };
                let is_awaited = at + self.newest_rtt + window > now || self.unread_until > now;
                if at + window > newest_at && is_awaited {
                    break;
                }
                let sent = &mut self.ring[place];
                sent.state = SentState::Lost;
                self.in_flight -= 1;
                self.in_flight_bytes -= u64::from(sent.bytes);
                self.lost += 1;
                self.long.lost(self.scan, u64::from(sent.bytes));
                self.loss.lost();
                told(sent.record, Fate::Lost);
            }
            self.scan += 1;
        }
        self.forget(now, told);
    }

    /// Extends the wait for acknowledgements, once per number, if this box is late for a deadline:
    /// lateness says nothing about the path.
    fn note_if_held_up(&mut self, now: Instant) {
        let Some(due) = self.detect_at() else { return };
        let late = now.since(due);
        if late >= HELD_UP && self.unread_for != Some(self.scan) {
            self.unread_for = Some(self.scan);
            self.unread_until = now + late.min(UNREAD_MAX);
        }
    }

    /// Releases resolved transmissions, and those lost so long ago that they will not arrive.
    fn forget(&mut self, now: Instant, mut told: impl FnMut(u32, Fate)) {
        let timeout = self.rtt.response_timeout() + self.reordering.window(self.rtt.smoothed());
        while let Some(front) = self.ring.front() {
            match front.state {
                SentState::InFlight => break,
                SentState::Lost if front.at + timeout.times(2) > now => break,
                SentState::Lost => told(front.record, Fate::Forgotten),
                SentState::Arrived => {}
            }
            self.ring.pop_front();
            self.base += 1;
        }
        self.scan = self.scan.max(self.base);
    }

    /// Gives up everything in flight: the path is down.
    pub(crate) fn give_up(&mut self, mut told: impl FnMut(u32, Fate)) {
        for sent in self.ring.iter_mut().filter(|sent| sent.state == SentState::InFlight) {
            sent.state = SentState::Lost;
            self.lost += 1;
            told(sent.record, Fate::GivenUp);
        }
        (self.in_flight, self.in_flight_bytes) = (0, 0);
        self.scan = self.next_number();
        self.covers.clear();
        self.open_from = None;
    }

    /// Number of long transmissions in flight that were sent before `at`, at most `most`.
    pub(crate) fn long_before(&self, at: Instant, most: usize) -> usize {
        let before = self.ring.iter().take_while(|sent| sent.at < at);
        let is_long = |sent: &&Sent| {
            u64::from(sent.bytes) > self.long.from && sent.state == SentState::InFlight
        };
        before.filter(is_long).take(most).count()
    }

    /// `true` if a transmission in flight has more than `bytes` bytes on the wire.
    pub(crate) fn has_longer(&self, bytes: u64) -> bool {
        self.ring
            .iter()
            .any(|sent| sent.state == SentState::InFlight && u64::from(sent.bytes) > bytes)
    }

    /// Gives up transmissions in flight of more than `bytes` bytes on the wire: they are too long
    /// for the path.
    pub(crate) fn give_up_longer(&mut self, bytes: u64, mut told: impl FnMut(u32, Fate)) {
        let in_flight = self.ring.iter_mut().filter(|sent| sent.state == SentState::InFlight);
        for sent in in_flight.filter(|sent| u64::from(sent.bytes) > bytes) {
            sent.state = SentState::Lost;
            self.in_flight -= 1;
            self.in_flight_bytes -= u64::from(sent.bytes);
            self.lost += 1;
            told(sent.record, Fate::GivenUp);
        }
    }

    /// Time at which a loss may be detected without a further acknowledgement.
    pub(crate) fn detect_at(&self) -> Option<Instant> {
        let (largest, _) = self.largest_arrived?;
        if self.scan >= largest {
            return None;
        }
        let sent = self.ring.get((self.scan - self.base) as usize)?;
        let at = self.sent_wholly_at(self.scan, sent.at)?;
        Some(
            (at + self.newest_rtt + self.reordering.window(self.rtt.smoothed()))
                .max(self.unread_until),
        )
    }

    /// The newest unresolved transmissions, at most `count`.
    pub(crate) fn tail(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        let in_flight = self.ring.iter().rev().filter(|sent| sent.state == SentState::InFlight);
        in_flight.take(count).map(|sent| sent.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }

    fn flight(count: u32) -> Flight {
        let mut flight = Flight::new(900);
        (0..count).for_each(|n| flight.note(at(u64::from(n)), n, 1000));
        flight
    }

    fn ack(flight: &mut Flight, now: Instant, numbers: &[u64]) -> Vec<(u32, Fate)> {
        let mut told = Vec::new();
        let entries: Vec<AckEntry> = numbers
            .iter()
            .map(|n| AckEntry { word: (n / 64) as u32, mask: 1 << (n % 64) })
            .collect();
        assert!(
            flight.take(now, &entries, Duration::ZERO, |record, fate| told.push((record, fate)))
        );
        flight.detect(now, |record, fate| told.push((record, fate)));
        told
    }

    #[test]
    fn what_is_overtaken_for_long_enough_is_lost() {
        let mut flight = flight(200);
        assert_eq!(ack(&mut flight, at(1010), &[10]), [(10, Fate::Arrived)]);
        // The minimum window is 20 µs: a transmission sent 20 µs before the newest arrival is lost.
        let told = ack(&mut flight, at(1025), &[25]);
        assert_eq!(told[0], (25, Fate::Arrived));
        assert_eq!(told[1..].iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(told[1..].iter().all(|t| t.1 == Fate::Lost));
        assert_eq!(flight.detect_at(), Some(at(6 + 1000 + 20)));
    }

    #[test]
    fn a_lost_one_that_arrives_widens_the_window() {
        let mut flight = flight(200);
        ack(&mut flight, at(1100), &[100]);
        assert_eq!(flight.lost, 81);
        let told = ack(&mut flight, at(1150), &[0]);
        assert_eq!(told[0], (0, Fate::ArrivedLate));
        assert_eq!(flight.spurious, 1);
        assert!(flight.reordering.window(Duration::from_us(1000)) >= Duration::from_us(150));
    }

    #[test]
    fn what_parity_may_bring_is_not_lost_before_the_parity_is_overdue() {
        let mut flight = flight(200);
        // Blocks from 50 on: one of 50 numbers, and one that has not ended.
        flight.cover(at(50), 50, 51);
        flight.cover(at(200), 100, 101);
        flight.note_parity(at(210));
        let mut lost = Vec::new();
        let told = ack(&mut flight, at(1199), &[199]);
        assert_eq!(told.len(), 51, "what came before parity is lost as ever");
        // The first block counts as sent at 210 µs; the second has not ended.
        assert_eq!(flight.detect_at(), Some(at(210 + 1000 + 20)));
        flight.detect(at(1230), |record, _| lost.push(record));
        assert_eq!(lost, (50..100).collect::<Vec<_>>());
        flight.end_block(at(1240));
        flight.detect(at(2260), |record, _| lost.push(record));
        assert_eq!(lost, (50..199).collect::<Vec<_>>());
    }

    #[test]
    fn acknowledgements_of_what_was_never_sent_are_not_believed() {
        let mut flight = flight(100);
        let entries = [AckEntry { word: 0, mask: 1 }, AckEntry { word: 1, mask: 1 << 40 }];
        assert!(!flight.take(at(1000), &entries, Duration::ZERO, |_, _| panic!("nothing happens")));
        let entries = [AckEntry { word: u32::MAX, mask: 1 }];
        assert!(!flight.take(at(1000), &entries, Duration::ZERO, |_, _| panic!("nothing happens")));
        assert_eq!(flight.in_flight(), 100);
    }

    #[test]
    fn every_transmission_is_let_go_of_once() {
        let mut flight = flight(100);
        let mut ends = [0; 100];
        let numbers: Vec<u64> = (0..100).filter(|n| n % 7 != 0).collect();
        let mut told = ack(&mut flight, at(1100), &numbers);
        flight.give_up(|record, fate| told.push((record, fate)));
        flight.detect(at(1_000_000), |record, fate| told.push((record, fate)));
        for (record, fate) in told {
            ends[record as usize] += u32::from(!matches!(fate, Fate::Lost | Fate::GivenUp));
        }
        assert_eq!(ends, [1; 100]);
        assert_eq!((flight.in_flight(), flight.in_flight_bytes(), flight.span()), (0, 0, 0));
        assert_eq!(flight.arrived_bytes, 1000 * numbers.len() as u64);
    }
}
