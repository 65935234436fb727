//! Bookkeeping of a ring of regions: which messages of which window have arrived.
//!
//! A [`Ring`] has no device, clock or memory. Its input are completions ([`Ring::arrive`]), what
//! senders announce over their sessions ([`Ring::announce`]) and releases of chunks; its output are
//! closed windows with a [`Fate`] per message ([`Ring::take_ready`]).
//!
//! The device places bytes before software knows of them, and the sender chooses the place: window
//! w is always in region w modulo the number of regions. So a region's state follows from window
//! numbers:
//!
//! | state | the region | leaves it when |
//! |---|---|---|
//! | queued | has not been used | a message of its window, or of a later one, arrives |
//! | filling | receives a window | the window closes |
//! | valid | is held by a chunk | the chunk is released; a later window may arrive over it |
//! | released | may be overwritten | its next window begins |
//!
//! A window closes when nothing further is expected of it; or when it is more than `lateness`
//! behind the newest and all senders have announced what they sent of it; or when it is half a ring
//! behind. The other half of the ring is the time that holders of chunks have.
//!
//! **Overwritten data.** A late message, or a window that arrives while a chunk is held, is placed
//! over another window's bytes. Its completion tells: the window numbers differ. An aborted UC
//! message writes a part of its place without completion, but only to a place whose own message is
//! missing, or that the same stream has wrapped around to; the wrap itself is detected by the
//! completions of the other messages.

mod fate;
mod lateness;
mod region;

pub use fate::{Fate, Fates};
pub use lateness::Lateness;

use crate::layout::{Layout, Shape};
use region::{Placed, Recount, Region, Window};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use thiserror::Error;

/// When chunks are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// In the order of their windows.
    #[default]
    InOrder,
    /// As soon as they are complete, also before earlier windows.
    WhenComplete,
}

/// A completion, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the stream in the ring.
    pub stream: u32,
    /// The window on the wire.
    pub window: u32,
    /// Slot in the stream's part.
    pub slot: u32,
    /// Length of the message.
    pub bytes: u32,
}

/// Slots in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Slots {
    /// The first one.
    pub first: u32,
    /// Their number.
    pub count: u32,
}

/// A closed window, whose region is the receiver's until [`Ring::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The window, without wrap.
    pub window: u64,
    /// One for each message, stream after stream.
    pub fates: Box<[Fate]>,
}

/// Counts of a ring since its creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completions.
    pub arrivals: u64,
    /// Bytes that completions reported.
    pub bytes: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Messages of closed windows.
    pub late: u64,
    /// Arrivals by the age of their window.
    pub lateness: Lateness,
    /// Immediates that name no place of the ring.
    pub outside: u64,
    /// Windows delivered.
    pub windows_delivered: u64,
    /// Of those, with all messages present.
    pub windows_complete: u64,
    /// Windows dropped because the chunk of an earlier one was held in their region.
    pub windows_undelivered: u64,
    /// Windows of which nothing arrived and that were skipped: more than half a ring in a row.
    pub windows_skipped: u64,
    /// Messages of the closed windows, by stream of the ring.
    pub fates: Vec<Fates>,
}

/// Recounts a message of a closed window.
struct Recounting<'a> {
    fates: &'a mut [Fates],
    slots: u32,
}

impl Recount for Recounting<'_> {
    fn recount(&mut self, index: usize, from: Fate, to: Fate) {
        self.fates[index / self.slots as usize].change(from, to);
    }
}

/// A stream of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// It has no sender.
    Absent,
    /// Its sender announces nothing.
    Silent,
    /// Its sender has announced what it sent of all windows before `until`.
    Announcing { until: u64 },
}

/// Why a stream cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BeginError {
    /// It has a sender.
    #[error("it has a sender already")]
    Taken,
    /// Its first window is over.
    #[error("its first window, {first}, is over: the next one is {next}")]
    Behind {
        /// The requested window.
        first: u64,
        /// First window that has not begun.
        next: u64,
    },
    /// Its first window is too far ahead of the other streams of the ring.
    #[error(
        "its first window, {first}, is too far ahead of window {next}, the next one of the streams \
         that share its ring"
    )]
    Ahead {
        /// The requested window.
        first: u64,
        /// First window that has not begun.
        next: u64,
    },
}

/// Bookkeeping of the streams that share a ring of regions.
pub struct Ring {
    layout: Layout,
    slots: u32,
    lateness: u64,
    delivery: Delivery,
    streams: Vec<Stream>,
    regions: Vec<Region>,
    /// First window that has not begun.
    next: u64,
    /// Windows that are open, oldest first.
    open: VecDeque<u64>,
    /// Announced before their first message arrived: the messages that were not sent.
    announced: BTreeMap<u64, BTreeSet<usize>>,
    ready: VecDeque<Ready>,
    /// Buffers for reuse.
    spare: Vec<Box<[Fate]>>,
    counts: Counts,
}

impl Ring {
    /// An empty ring of a shape that was checked.
    #[must_use]
    pub fn new(shape: &Shape, delivery: Delivery) -> Self {
        let streams = shape.streams_per_ring as usize;
        Ring {
            layout: shape.layout,
            slots: shape.slots,
            lateness: shape.lateness.into(),
            delivery,
            streams: vec![Stream::Absent; streams],
            regions: (0..shape.regions).map(|_| Region::Queued).collect(),
            next: 0,
            open: VecDeque::new(),
            announced: BTreeMap::new(),
            ready: VecDeque::new(),
            spare: Vec::new(),
            counts: Counts { fates: vec![Fates::default(); streams], ..Counts::default() },
        }
    }

    /// Counts since the creation.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// First window that has not begun.
    #[must_use]
    pub fn next_window(&self) -> u64 {
        self.next
    }

    /// Windows that have begun and not closed.
    #[must_use]
    pub fn open_windows(&self) -> usize {
        self.open.len()
    }

    /// Regions held by chunks, delivered or about to be.
    #[must_use]
    pub fn held_regions(&self) -> usize {
        self.regions.iter().filter(|region| matches!(region, Region::Valid { .. })).count()
    }

    fn half(&self) -> u64 {
        self.regions.len() as u64 / 2
    }

    fn region_of(&self, window: u64) -> usize {
        (window % self.regions.len() as u64) as usize
    }

    /// A sender begins with window `first`, or with the next one. Returns its first window.
    ///
    /// # Errors
    /// If the stream has a sender, or `first` does not fit the ring's windows.
    pub fn begin_stream(
        &mut self,
        stream: u32,
        first: Option<u64>,
        announces: bool,
    ) -> Result<u64, BeginError> {
        if self.streams[stream as usize] != Stream::Absent {
            return Err(BeginError::Taken);
        }
        let next = self.next;
        let first = first.unwrap_or(next);
        if first < next {
            return Err(BeginError::Behind { first, next });
        }
        let is_alone = self.streams.iter().all(|other| *other == Stream::Absent);
        if !is_alone && first - next > self.half() {
            return Err(BeginError::Ahead { first, next });
        }
        if is_alone {
            self.close_all();
            self.next = first;
            self.announced.clear();
        }
        self.streams[stream as usize] =
            if announces { Stream::Announcing { until: first } } else { Stream::Silent };
        Ok(first)
    }

    /// The sender of a stream has ended or is gone, and its messages have arrived or are lost.
    pub fn end_stream(&mut self, stream: u32) {
        let was = std::mem::replace(&mut self.streams[stream as usize], Stream::Absent);
        if let Stream::Announcing { until } = was
            && until > self.next
            && until - self.next <= self.half()
        {
            // Nothing of its last windows arrived: they were sent all the same.
            self.streams[stream as usize] = was;
            self.begin_windows(until - 1);
            self.close_due();
            self.streams[stream as usize] = Stream::Absent;
        }
        if let Stream::Announcing { until } = was {
            self.account(stream, until);
        }
        if self.streams.iter().all(|stream| *stream == Stream::Absent) {
            self.close_all();
        } else {
            self.close_due();
        }
    }

    /// Messages of announced open windows that have not arrived are lost.
    fn account(&mut self, stream: u32, until: u64) {
        let range = self.part(stream);
        for number in self.open.iter().filter(|number| **number < until) {
            let region = (*number % self.regions.len() as u64) as usize;
            if let Some(window) = self.regions[region].open() {
                for index in range.clone() {
                    if window.fates()[index] == Fate::Unaccounted {
                        window.set(index, Fate::Lost);
                    }
                }
            }
        }
    }

    fn part(&self, stream: u32) -> Range<usize> {
        let from = stream as usize * self.slots as usize;
        from..from + self.slots as usize
    }

    /// A message has arrived. Returns its window without wrap; `None` if the immediate names no
    /// place of the ring.
    #[inline]
    pub fn arrive(&mut self, arrival: Arrival, message_bytes: u32) -> Option<u64> {
        self.counts.arrivals += 1;
        self.counts.bytes += u64::from(arrival.bytes);
        let is_inside = (arrival.stream as usize) < self.streams.len() && arrival.slot < self.slots;
        let Some(number) = self.unwrapped(arrival.window).filter(|_| is_inside) else {
            self.counts.outside += 1;
            return None;
        };
        let begins = number >= self.next;
        if begins {
            self.begin_windows(number);
        }
        self.counts.lateness.add(self.next - 1 - number);
        let index = arrival.stream as usize * self.slots as usize + arrival.slot as usize;
        let is_right = arrival.bytes == message_bytes;
        let fate = if is_right { Fate::Present } else { Fate::WrongLength };
        let covered = arrival.bytes.div_ceil(message_bytes).max(1);
        let region = self.region_of(number);
        let mut counts = Recounting { fates: &mut self.counts.fates, slots: self.slots };
        let end = index + covered as usize;
        let placed = self.regions[region].place(number, index, end, fate, &mut counts);
        match placed {
            Placed::Arrived => {}
            Placed::Duplicate => self.counts.duplicates += 1,
            Placed::Late { .. } | Placed::Stale => self.counts.late += 1,
        }
        if begins || self.regions[region].open().is_some_and(|window| window.is_settled()) {
            self.close_due();
        }
        Some(number)
    }

    /// The window nearest to the next one that has this number on the wire.
    fn unwrapped(&self, window: u32) -> Option<u64> {
        let numbers = 1_u64 << self.layout.window_bits;
        let ahead = u64::from(window).wrapping_sub(self.next) & (numbers - 1);
        if u64::from(window) >= numbers {
            None
        } else if ahead < numbers / 2 {
            self.next.checked_add(ahead)
        } else {
            self.next.checked_sub(numbers - ahead)
        }
    }

    /// Begins all windows up to `last`; after a jump of more than half a ring only `last`.
    fn begin_windows(&mut self, last: u64) {
        if last - self.next >= self.half() {
            self.close_all();
            self.counts.windows_skipped += last - self.next;
            self.next = last;
        }
        for number in self.next..=last {
            self.begin(number);
        }
        self.next = last + 1;
        if !self.announced.is_empty() {
            // Of windows that were skipped.
            self.announced = self.announced.split_off(&self.next);
        }
    }

    fn begin(&mut self, number: u64) {
        let len = self.streams.len() * self.slots as usize;
        let index = self.region_of(number);
        let region = std::mem::replace(&mut self.regions[index], Region::Queued);
        let (held, buffer) = match region {
            Region::Queued => (None, self.spare.pop()),
            Region::Filling(_) => unreachable!("a window closes half a ring before its successor"),
            Region::Valid { held, .. } => (Some(held), self.spare.pop()),
            Region::Released(old) => (None, Some(old.into_fates())),
        };
        let mut fates = buffer.unwrap_or_else(|| vec![Fate::Unaccounted; len].into());
        for (part, stream) in fates.chunks_mut(self.slots as usize).zip(&self.streams) {
            let has_sender = *stream != Stream::Absent;
            part.fill(if has_sender { Fate::Unaccounted } else { Fate::NeverSent });
        }
        for unsent in self.announced.remove(&number).into_iter().flatten() {
            fates[unsent] = Fate::NeverSent;
        }
        let window = Window::begin(number, fates);
        self.regions[index] = match held {
            Some(held) => Region::Valid { held, overrun: Some(window) },
            None => Region::Filling(window),
        };
        self.open.push_back(number);
    }

    /// The sender of `stream` has sent its part of `window`, except the slots `unsent`; those
    /// outside the part are ignored.
    pub fn announce(&mut self, stream: u32, window: u64, unsent: &[Slots]) {
        let Stream::Announcing { until } = &mut self.streams[stream as usize] else { return };
        *until = (*until).max(window.saturating_add(1));
        let part = self.part(stream);
        let slots = self.slots;
        let unsent = unsent.iter().map(|range| {
            let from = range.first.min(slots);
            let to = range.first.saturating_add(range.count).min(slots);
            part.start + from as usize..part.start + to as usize
        });
        if window >= self.next {
            if window - self.next < self.regions.len() as u64 {
                self.announced.entry(window).or_default().extend(unsent.flatten());
            }
            self.close_due();
            return;
        }
        let region = self.region_of(window);
        let region = &mut self.regions[region];
        if let Some(open) = region.open().filter(|open| open.number == window) {
            for index in unsent.flatten() {
                if matches!(open.fates()[index], Fate::Unaccounted | Fate::NoReceive) {
                    open.set(index, Fate::NeverSent);
                }
            }
        } else if let Some(closed) = region.closed().filter(|closed| closed.number == window) {
            let fates = &mut self.counts.fates[stream as usize];
            for index in unsent.flatten() {
                let was = closed.fates()[index];
                if matches!(was, Fate::Unaccounted | Fate::NoReceive) {
                    closed.set(index, Fate::NeverSent);
                    fates.change(was, Fate::NeverSent);
                }
            }
            for index in part {
                if closed.fates()[index] == Fate::Unaccounted {
                    closed.set(index, Fate::Lost);
                    fates.change(Fate::Unaccounted, Fate::Lost);
                }
            }
        }
        self.close_due();
    }

    /// The device had no receive work request for some messages: those of `stream` between the
    /// positions `after` and `before` (window times slots plus slot) that have not arrived were
    /// refused, if they belong to its queue pair `queue` of `queues`; at most `limit`. Returns
    /// their number.
    pub fn refuse(
        &mut self,
        stream: u32,
        after: u64,
        before: u64,
        (queue, queues): (u32, u32),
        limit: u64,
    ) -> u64 {
        let slots = u64::from(self.slots);
        let part = self.part(stream);
        let (first, last) = (after / slots, before / slots);
        let mut marked = 0;
        for ahead in 0..self.regions.len() as u64 {
            let region = self.region_of(first.wrapping_add(ahead));
            let region = &mut self.regions[region];
            let is_within = |window: &&mut Window| (first..=last).contains(&window.number);
            let (window, is_open) = match region.open().filter(is_within) {
                Some(window) => (window, true),
                None => match region.closed().filter(is_within) {
                    Some(window) => (window, false),
                    None => continue,
                },
            };
            for slot in (queue..self.slots).step_by(queues as usize) {
                let index = part.start + slot as usize;
                let position = window.number * slots + u64::from(slot);
                let was = window.fates()[index];
                let is_missing = was == Fate::Unaccounted || was == Fate::Lost && !is_open;
                if marked < limit && is_missing && (after + 1..before).contains(&position) {
                    window.set(index, Fate::NoReceive);
                    marked += 1;
                    if !is_open {
                        self.counts.fates[stream as usize].change(was, Fate::NoReceive);
                    }
                }
            }
        }
        marked
    }

    /// Whether all senders have announced what they sent of `window`.
    fn is_announced(&self, window: u64) -> bool {
        self.streams.iter().all(|stream| match stream {
            Stream::Absent | Stream::Silent => true,
            Stream::Announcing { until } => window < *until,
        })
    }

    fn close_due(&mut self) {
        let mut at = 0;
        while let Some(number) = self.open.get(at).copied() {
            let age = self.next - 1 - number;
            let region = self.region_of(number);
            let is_settled = self.regions[region].open().is_some_and(|w| w.is_settled());
            let is_due = is_settled
                || age >= self.half()
                || (age > self.lateness && self.is_announced(number));
            if is_due {
                self.open.remove(at);
                self.close(number);
            } else if self.delivery == Delivery::InOrder {
                return;
            } else {
                at += 1;
            }
        }
    }

    /// Closes all open windows, whatever is missing.
    pub fn close_all(&mut self) {
        while let Some(number) = self.open.pop_front() {
            self.close(number);
        }
    }

    /// Fixes the fates of an open window, and delivers it unless its region is held.
    fn close(&mut self, number: u64) {
        let index = self.region_of(number);
        let announced: Vec<bool> = (self.streams.iter())
            .map(|stream| matches!(stream, Stream::Announcing { until } if number < *until))
            .collect();
        let Some(window) = self.regions[index].open() else { return };
        for at in 0..window.fates().len() {
            let stream = at / self.slots as usize;
            if window.fates()[at] == Fate::Unaccounted && announced[stream] {
                window.set(at, Fate::Lost);
            }
            self.counts.fates[stream].add(window.fates()[at]);
        }
        match std::mem::replace(&mut self.regions[index], Region::Queued) {
            Region::Filling(window) => {
                self.counts.windows_delivered += 1;
                let is_complete = window.fates().iter().all(|fate| *fate == Fate::Present);
                self.counts.windows_complete += u64::from(is_complete);
                let mut fates = self.spare.pop().unwrap_or_else(|| window.fates().into());
                fates.copy_from_slice(window.fates());
                self.ready.push_back(Ready { window: number, fates });
                self.regions[index] = Region::Valid { held: window, overrun: None };
            }
            Region::Valid { held, overrun } => {
                self.counts.windows_undelivered += 1;
                self.spare.extend(overrun.map(Window::into_fates));
                self.regions[index] = Region::Valid { held, overrun: None };
            }
            other => self.regions[index] = other,
        }
    }

    /// The next closed window, oldest closing first.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Fates of a window that was delivered and is not released: they change when late messages
    /// arrive or data is overwritten. `None` if it is not held.
    #[must_use]
    pub fn held(&self, window: u64) -> Option<&[Fate]> {
        match &self.regions[self.region_of(window)] {
            Region::Valid { held, .. } if held.number == window => Some(held.fates()),
            _ => None,
        }
    }

    /// Releases a delivered window; `fates` is its buffer, for reuse. Returns the number of its
    /// messages that were overwritten.
    pub fn release(&mut self, window: u64, fates: Box<[Fate]>) -> u64 {
        let index = self.region_of(window);
        if fates.len() == self.streams.len() * self.slots as usize {
            self.spare.push(fates);
        }
        match std::mem::replace(&mut self.regions[index], Region::Queued) {
            Region::Valid { held, overrun } if held.number == window => {
                let overwritten =
                    held.fates().iter().filter(|fate| **fate == Fate::Overwritten).count();
                self.regions[index] = match overrun {
                    Some(later) => {
                        self.spare.push(held.into_fates());
                        Region::Filling(later)
                    }
                    None => Region::Released(held),
                };
                overwritten as u64
            }
            other => {
                self.regions[index] = other;
                0
            }
        }
    }
}
