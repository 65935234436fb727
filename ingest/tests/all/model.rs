//! The ring against an independent model, under any order of arrival, loss, duplication, wrap, late
//! windows, announcements, restarts and releases.
//!
//! The model stores who wrote each place last and everything that happened to each window, and
//! derives all fates from that after each event. The ring stores fates and changes them.

use longhaul_ingest::layout::{Layout, Shape};
use longhaul_ingest::ring::{Arrival, Delivery, Fate, Fates, Ready, Ring, Slots};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const BYTES: u32 = 100;

/// A window as the model remembers it.
#[derive(Clone, Default)]
struct Window {
    /// Index of a message and whether its latest arrival had the right length.
    arrived: BTreeMap<usize, bool>,
    never_sent: BTreeSet<usize>,
    refused: BTreeSet<usize>,
    lost: BTreeSet<usize>,
    late: BTreeSet<usize>,
    overwritten: BTreeSet<usize>,
    phase: Phase,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Phase {
    #[default]
    Open,
    Held,
    Released,
    Dropped,
}

struct Model {
    shape: Shape,
    delivery: Delivery,
    next: u64,
    windows: BTreeMap<u64, Window>,
    /// Last writer of each place.
    memory: HashMap<(u64, usize), (u64, usize)>,
    /// For each stream with a sender: windows before this are announced, if it announces.
    senders: Vec<Option<Option<u64>>>,
    early: BTreeMap<(u64, usize), Vec<(u32, u32)>>,
    ready: Vec<Ready>,
    late: u64,
    duplicates: u64,
    skipped: u64,
    undelivered: u64,
}

impl Model {
    fn new(shape: Shape, delivery: Delivery) -> Self {
        Model {
            shape,
            delivery,
            next: 0,
            windows: BTreeMap::new(),
            memory: HashMap::new(),
            senders: vec![None; shape.streams as usize],
            early: BTreeMap::new(),
            ready: Vec::new(),
            late: 0,
            duplicates: 0,
            skipped: 0,
            undelivered: 0,
        }
    }

    fn regions(&self) -> u64 {
        self.shape.regions.into()
    }

    fn indices(&self) -> usize {
        self.shape.messages() as usize
    }

    fn stream_of(&self, index: usize) -> usize {
        index / self.shape.slots as usize
    }

    fn fate(&self, number: u64, index: usize) -> Fate {
        let window = &self.windows[&number];
        if window.late.contains(&index) {
            return Fate::TooLate;
        }
        match window.arrived.get(&index) {
            Some(false) => return Fate::WrongLength,
            Some(true) => {
                let is_intact = match window.phase {
                    Phase::Open => {
                        self.memory[&(number % self.regions(), index)] == (number, index)
                    }
                    _ => !window.overwritten.contains(&index),
                };
                return if is_intact { Fate::Present } else { Fate::Overwritten };
            }
            None => {}
        }
        if window.never_sent.contains(&index) {
            Fate::NeverSent
        } else if window.refused.contains(&index) {
            Fate::NoReceive
        } else if window.lost.contains(&index) {
            Fate::Lost
        } else {
            Fate::Unaccounted
        }
    }

    fn fates(&self, number: u64) -> Vec<Fate> {
        (0..self.indices()).map(|index| self.fate(number, index)).collect()
    }

    fn open(&self) -> Vec<u64> {
        let open = self.windows.iter().filter(|(_, window)| window.phase == Phase::Open);
        open.map(|(number, _)| *number).collect()
    }

    fn held_in(&self, region: u64) -> Option<u64> {
        let held = |(number, window): &(&u64, &Window)| {
            **number % self.regions() == region && window.phase == Phase::Held
        };
        self.windows.iter().find(held).map(|(number, _)| *number)
    }

    fn close(&mut self, number: u64) {
        for index in 0..self.indices() {
            let announced = matches!(self.senders[self.stream_of(index)],
                Some(Some(until)) if number < until);
            if announced && self.fate(number, index) == Fate::Unaccounted {
                self.windows.get_mut(&number).unwrap().lost.insert(index);
            }
        }
        let fates = self.fates(number);
        let is_held = self.held_in(number % self.regions()).is_some();
        let window = self.windows.get_mut(&number).unwrap();
        window.overwritten = (0..fates.len()).filter(|i| fates[*i] == Fate::Overwritten).collect();
        if is_held {
            window.phase = Phase::Dropped;
            self.undelivered += 1;
        } else {
            window.phase = Phase::Held;
            self.ready.push(Ready { window: number, fates: fates.into() });
        }
    }

    fn settle(&mut self) {
        let newest = self.next.wrapping_sub(1);
        loop {
            let due = |number: &u64| {
                let settled = self.fates(*number).iter().all(|fate| {
                    matches!(fate, Fate::Present | Fate::NeverSent | Fate::WrongLength)
                });
                let announced = self.senders.iter().all(|sender| match sender {
                    Some(Some(until)) => number < until,
                    _ => true,
                });
                let age = newest - number;
                settled
                    || age >= self.regions() / 2
                    || (age > self.shape.lateness.into() && announced)
            };
            let mut open = self.open().into_iter();
            let found = match self.delivery {
                Delivery::InOrder => open.next().filter(due),
                Delivery::WhenComplete => open.find(due),
            };
            match found {
                Some(number) => self.close(number),
                None => return,
            }
        }
    }

    fn close_all(&mut self) {
        self.open().into_iter().for_each(|number| self.close(number));
    }

    fn begin(&mut self, last: u64) {
        if last - self.next >= self.regions() / 2 {
            self.close_all();
            self.skipped += last - self.next;
            self.next = last;
        }
        for number in self.next..=last {
            let mut window = Window::default();
            for index in 0..self.indices() {
                if self.senders[self.stream_of(index)].is_none() {
                    window.never_sent.insert(index);
                }
            }
            for stream in 0..self.senders.len() {
                for (from, to) in self.early.get(&(number, stream)).into_iter().flatten() {
                    let base = stream * self.shape.slots as usize;
                    window.never_sent.extend((*from..*to).map(|slot| base + slot as usize));
                }
            }
            self.windows.insert(number, window);
        }
        self.next = last + 1;
    }

    fn arrive(&mut self, number: u64, stream: u32, slot: u32, bytes: u32) {
        if number >= self.next {
            self.begin(number);
        }
        let index = (stream * self.shape.slots + slot) as usize;
        let region = number % self.regions();
        let end = (index + bytes.div_ceil(BYTES).max(1) as usize).min(self.indices());
        for at in index..end {
            self.memory.insert((region, at), (number, index));
        }
        if let Some(held) = self.held_in(region) {
            for at in index..end {
                if (held, at) != (number, index) && self.fate(held, at) == Fate::Present {
                    self.windows.get_mut(&held).unwrap().overwritten.insert(at);
                }
            }
        }
        let Some(window) = self.windows.get(&number) else {
            self.late += 1;
            return;
        };
        let again = window.arrived.contains_key(&index) || window.late.contains(&index);
        match window.phase {
            Phase::Open => {
                self.duplicates += u64::from(again);
                let window = self.windows.get_mut(&number).unwrap();
                window.arrived.insert(index, bytes == BYTES);
            }
            Phase::Held | Phase::Released if self.is_remembered(number) => {
                if again {
                    self.duplicates += 1;
                } else {
                    self.windows.get_mut(&number).unwrap().late.insert(index);
                    self.late += 1;
                }
            }
            _ => self.late += 1,
        }
        self.settle();
    }

    /// A released window is remembered until the next one begins in its region; one over which
    /// another had begun, not even until then.
    fn is_remembered(&self, number: u64) -> bool {
        let window = &self.windows[&number];
        let later = self.windows.range(number + 1..).any(|(later, window)| {
            later % self.regions() == number % self.regions() && window.phase != Phase::Dropped
        });
        match window.phase {
            Phase::Held => true,
            Phase::Released => !later,
            _ => false,
        }
    }

    fn begin_stream(&mut self, stream: usize, ahead: u64, announces: bool) -> Option<u64> {
        let first = self.next + ahead;
        let others = self.senders.iter().any(Option::is_some);
        if self.senders[stream].is_some() || (others && ahead > self.regions() / 2) {
            return None;
        }
        if !others {
            self.close_all();
            self.next = first;
            self.early.clear();
        }
        self.senders[stream] = Some(announces.then_some(first));
        Some(first)
    }

    fn end_stream(&mut self, stream: usize) {
        let was = self.senders[stream];
        if let Some(Some(until)) = was {
            if until > self.next && until - self.next <= self.regions() / 2 {
                self.begin(until - 1);
                self.settle();
            }
            for number in self.open().into_iter().filter(|number| *number < until) {
                for index in 0..self.indices() {
                    if self.stream_of(index) == stream
                        && self.fate(number, index) == Fate::Unaccounted
                    {
                        self.windows.get_mut(&number).unwrap().lost.insert(index);
                    }
                }
            }
        }
        self.senders[stream] = None;
        if self.senders.iter().all(Option::is_none) {
            self.close_all();
        }
        self.settle();
    }

    fn announce(&mut self, stream: usize, number: u64, from: u32, to: u32) {
        let Some(Some(until)) = &mut self.senders[stream] else { return };
        *until = (*until).max(number + 1);
        if number >= self.next {
            if number < self.next + self.regions() {
                self.early.entry((number, stream)).or_default().push((from, to));
            }
            self.settle();
            return;
        }
        let base = stream * self.shape.slots as usize;
        let unsent = base + from as usize..base + to as usize;
        let is_open = self.windows.get(&number).is_some_and(|w| w.phase == Phase::Open);
        if is_open {
            for index in unsent {
                if matches!(self.fate(number, index), Fate::Unaccounted | Fate::NoReceive) {
                    self.windows.get_mut(&number).unwrap().never_sent.insert(index);
                }
            }
        } else if self.windows.contains_key(&number) && self.is_remembered(number) {
            for index in base..base + self.shape.slots as usize {
                let fate = self.fate(number, index);
                let window = self.windows.get_mut(&number).unwrap();
                if unsent.contains(&index) && matches!(fate, Fate::Unaccounted | Fate::NoReceive) {
                    window.never_sent.insert(index);
                } else if fate == Fate::Unaccounted {
                    window.lost.insert(index);
                }
            }
        }
        self.settle();
    }

    fn refuse(&mut self, stream: u32, after: u64, before: u64, queue: u32, queues: u32) {
        let (first, last) =
            (after / u64::from(self.shape.slots), before / u64::from(self.shape.slots));
        let numbers: Vec<u64> =
            self.windows.range(first..=last).map(|(number, _)| *number).collect();
        for number in numbers {
            let is_open = self.windows[&number].phase == Phase::Open;
            // Where a window is arriving over a held one, only the later one is considered.
            let is_covered = self.windows.range(number + 1..).any(|(later, window)| {
                *later <= last
                    && later % self.regions() == number % self.regions()
                    && window.phase == Phase::Open
            });
            if !is_open && (is_covered || !self.is_remembered(number)) {
                continue;
            }
            for slot in 0..self.shape.slots {
                let position = number * u64::from(self.shape.slots) + u64::from(slot);
                let index = (stream * self.shape.slots + slot) as usize;
                let fate = self.fate(number, index);
                let is_missing = fate == Fate::Unaccounted || fate == Fate::Lost && !is_open;
                if slot % queues == queue && position > after && position < before && is_missing {
                    self.windows.get_mut(&number).unwrap().refused.insert(index);
                }
            }
        }
    }

    fn totals(&self) -> Vec<Fates> {
        let mut totals = vec![Fates::default(); self.senders.len()];
        for (number, window) in &self.windows {
            if window.phase != Phase::Open {
                for index in 0..self.indices() {
                    totals[self.stream_of(index)].add(self.fate(*number, index));
                }
            }
        }
        totals
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// `back` windows behind the next one, or `-back` ahead of it.
    Arrive {
        back: i64,
        stream: u32,
        slot: u32,
        bytes: u32,
    },
    /// All of a window but one slot, in order.
    Fill {
        back: i64,
        stream: u32,
        without: u32,
    },
    Announce {
        back: i64,
        stream: u32,
        from: u32,
        to: u32,
    },
    Begin {
        stream: u32,
        ahead: u64,
        announces: bool,
    },
    End {
        stream: u32,
    },
    Release {
        which: usize,
    },
    Refuse {
        stream: u32,
        back: i64,
        len: u64,
        queue: u32,
    },
    CloseAll,
}

fn event(streams: u32, slots: u32) -> impl Strategy<Value = Event> {
    let stream = 0..streams;
    let near = prop_oneof![20 => -2_i64..5, 3 => -20_i64..30];
    let bytes =
        prop_oneof![12 => Just(BYTES), 1 => Just(0), 1 => Just(BYTES * 2 + 1), 1 => 1..BYTES];
    prop_oneof![
        20 => (near.clone(), stream.clone(), 0..slots, bytes)
            .prop_map(|(back, stream, slot, bytes)| Event::Arrive { back, stream, slot, bytes }),
        10 => (-1_i64..3, stream.clone(), 0..slots * 2)
            .prop_map(|(back, stream, without)| Event::Fill { back, stream, without }),
        6 => (near.clone(), stream.clone(), 0..slots, 0..slots + 1).prop_map(
            |(back, stream, a, b)| Event::Announce { back, stream, from: a.min(b), to: a.max(b) }),
        4 => (stream.clone(), prop_oneof![4 => Just(0_u64), 1 => 0..40_u64], any::<bool>())
            .prop_map(|(stream, ahead, announces)| Event::Begin { stream, ahead, announces }),
        1 => stream.clone().prop_map(|stream| Event::End { stream }),
        8 => (0_usize..8).prop_map(|which| Event::Release { which }),
        2 => (stream, near, 0..20_u64, 0..2_u32)
            .prop_map(|(stream, back, len, queue)| Event::Refuse { stream, back, len, queue }),
        1 => Just(Event::CloseAll),
    ]
}

/// Both, fed with the same events.
struct Pair {
    ring: Ring,
    model: Model,
    /// Delivered and not released.
    held: Vec<Ready>,
    outside: u64,
}

impl Pair {
    fn number(&self, back: i64) -> Option<u64> {
        self.model.next.checked_add_signed(-back)
    }

    fn arrive(&mut self, number: u64, stream: u32, slot: u32, bytes: u32) {
        let window = self.model.shape.layout.wire_window(number);
        let found = self.ring.arrive(Arrival { stream, window, slot, bytes }, BYTES);
        assert_eq!(found, Some(number), "the window without wrap");
        self.model.arrive(number, stream, slot, bytes);
    }

    fn apply(&mut self, event: Event) {
        let slots = self.model.shape.slots;
        match event {
            Event::Arrive { back, stream, slot, bytes } => {
                if let Some(number) = self.number(back) {
                    self.arrive(number, stream, slot, bytes);
                }
            }
            Event::Fill { back, stream, without } => {
                if let Some(number) = self.number(back) {
                    for slot in (0..slots).filter(|slot| *slot != without) {
                        self.arrive(number, stream, slot, BYTES);
                    }
                }
            }
            Event::Announce { back, stream, from, to } => {
                if let Some(number) = self.number(back) {
                    let unsent = [Slots { first: from, count: to - from }];
                    self.ring.announce(stream, number, &unsent);
                    self.model.announce(stream as usize, number, from, to);
                }
            }
            Event::Begin { stream, ahead, announces } => {
                let first = Some(self.model.next + ahead);
                let begun = self.ring.begin_stream(stream, first, announces).ok();
                assert_eq!(begun, self.model.begin_stream(stream as usize, ahead, announces));
            }
            Event::End { stream } => {
                self.ring.end_stream(stream);
                self.model.end_stream(stream as usize);
            }
            Event::Release { which } => {
                if which < self.held.len() {
                    let Ready { window, fates } = self.held.remove(which);
                    let is = |fate: &Fate| *fate == Fate::Overwritten;
                    let expected = self.model.fates(window).iter().filter(|f| is(f)).count();
                    assert_eq!(self.ring.release(window, fates), expected as u64);
                    self.model.windows.get_mut(&window).unwrap().phase = Phase::Released;
                }
            }
            Event::Refuse { stream, back, len, queue } => {
                if let Some(number) = self.number(back) {
                    let after = number * u64::from(slots);
                    self.ring.refuse(stream, after, after + len, (queue, 2), u64::MAX);
                    self.model.refuse(stream, after, after + len, queue, 2);
                }
            }
            Event::CloseAll => {
                self.ring.close_all();
                self.model.close_all();
            }
        }
    }

    fn compare(&mut self) {
        for expected in std::mem::take(&mut self.model.ready) {
            let found = self.ring.take_ready();
            assert_eq!(found.as_ref(), Some(&expected));
            self.held.extend(found);
        }
        assert_eq!(self.ring.take_ready(), None);
        for held in &self.held {
            let expected = self.model.fates(held.window);
            assert_eq!(self.ring.held(held.window), Some(expected.as_slice()));
        }
        let counts = self.ring.counts();
        assert_eq!(counts.fates, self.model.totals(), "messages of closed windows");
        assert_eq!(counts.late, self.model.late, "late");
        assert_eq!(counts.duplicates, self.model.duplicates, "duplicates");
        assert_eq!(counts.windows_skipped, self.model.skipped, "skipped");
        assert_eq!(counts.windows_undelivered, self.model.undelivered, "undelivered");
        assert_eq!(counts.outside, self.outside);
        assert_eq!(self.ring.next_window(), self.model.next);
        assert_eq!(self.ring.open_windows(), self.model.open().len());
        assert_eq!(self.ring.held_regions(), self.held.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_events_give_exactly_the_models_fates(
        streams in 1_u32..3,
        lateness in 0_u32..4,
        regions in prop_oneof![Just(8_u32), Just(16)],
        in_order: bool,
        events in (Just(()), 1_u32..5).prop_flat_map(|((), slots)| {
            (Just(slots), vec(event(2, slots), 1..120))
        }),
        first in prop_oneof![Just(0_u64), 0_u64..1000],
    ) {
        let (slots, events) = events;
        let shape = Shape {
            // 64 numbers of windows wrap many times.
            layout: Layout { stream_bits: 10, window_bits: 6, slot_bits: 16 },
            streams,
            streams_per_ring: streams,
            slots,
            message_bytes: BYTES,
            regions,
            lateness,
        };
        shape.check().unwrap();
        let delivery = if in_order { Delivery::InOrder } else { Delivery::WhenComplete };
        let mut pair = Pair {
            ring: Ring::new(&shape, delivery),
            model: Model::new(shape, delivery),
            held: Vec::new(),
            outside: 0,
        };
        pair.apply(Event::Begin { stream: 0, ahead: first, announces: true });
        for event in events {
            let of = match &event {
                Event::Arrive { stream, .. } | Event::Fill { stream, .. }
                | Event::Announce { stream, .. } | Event::Begin { stream, .. }
                | Event::End { stream } | Event::Refuse { stream, .. } => *stream,
                _ => 0,
            };
            if of < streams {
                pair.apply(event);
                pair.compare();
            }
        }
    }
}
