//! A region: stations that one event loop runs.

use crate::cable::{Destination, Inlet, Outbox, Outlet};
use crate::schedule::Schedule;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_units::Instant;

/// Events at one virtual time beyond which the network is assumed to loop.
const STILL_EVENTS_MAX: u64 = 50_000_000;

/// Stations, and the ends of cables at them.
pub(crate) struct Region<N> {
    pub stations: Vec<N>,
    /// Outlet of each station and side.
    sides: Vec<Vec<usize>>,
    pub outlets: Vec<Outlet>,
    pub inlets: Vec<Inlet>,
    pub outboxes: Vec<Outbox>,
    /// Slots of stations, inlets and outlets, in this order.
    schedule: Schedule,
    pub now: Instant,
    pub events: u64,
    still_events: u64,
}

impl<N: Node> Region<N> {
    /// `sides[station][side]` is the outlet there.
    pub fn new(
        stations: Vec<N>,
        sides: Vec<Vec<usize>>,
        outlets: Vec<Outlet>,
        inlets: Vec<Inlet>,
        outboxes: usize,
    ) -> Self {
        let slots = stations.len() + inlets.len() + outlets.len();
        let mut region = Region {
            stations,
            sides,
            outlets,
            inlets,
            outboxes: (0..outboxes).map(|_| Outbox::default()).collect(),
            schedule: Schedule::new(slots),
            now: Instant::ZERO,
            events: 0,
            still_events: 0,
        };
        region.ask_all();
        region
    }

    /// Asks every station for frames, after the caller may have given it work.
    pub fn ask_all(&mut self) {
        (0..self.stations.len()).for_each(|station| self.ask(station));
    }

    /// Time of the next event.
    pub fn next_at(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| at)
    }

    /// Processes all events before `end`.
    pub fn run_until(&mut self, end: Instant) {
        while let Some((at, slot)) = self.schedule.first()
            && at < end
        {
            self.step(at, slot);
        }
    }

    #[inline]
    fn step(&mut self, at: Instant, slot: usize) {
        self.still_events = if at > self.now { 0 } else { self.still_events + 1 };
        assert!(self.still_events < STILL_EVENTS_MAX, "no end of events at {at:?}, slot {slot}");
        self.now = at;
        self.events += 1;
        let (stations, inlets) = (self.stations.len(), self.inlets.len());
        let station = if slot < stations {
            self.stations[slot].handle_timeout(at);
            slot
        } else if slot < stations + inlets {
            self.arrive(at, slot - stations)
        } else {
            self.outlets[slot - stations - inlets].station
        };
        self.ask(station);
    }

    /// Delivers the front of an inlet's ring; returns its station.
    #[inline]
    fn arrive(&mut self, now: Instant, at: usize) -> usize {
        let inlet = &mut self.inlets[at];
        let (station, side) = (inlet.station, inlet.side);
        let to = &mut self.stations[station];
        let (frames, bytes) = (&mut inlet.frames, &mut inlet.bytes);
        inlet.ring.pop(|frame| {
            let count = u64::from(frame.payload.count());
            *frames += count;
            *bytes += count * frame.len() as u64;
            to.handle_frame(now, side, frame);
        });
        self.schedule.set(self.stations.len() + at, inlet.ring.next_due());
        station
    }

    /// Lets a station send, and reschedules it and its cables.
    #[inline]
    fn ask(&mut self, station: usize) {
        let (now, inlets_from) = (self.now, self.stations.len());
        let outlets_from = inlets_from + self.inlets.len();
        self.sides[station].iter().for_each(|&outlet| self.outlets[outlet].begin());
        let mut out = Out {
            now,
            sides: &self.sides[station],
            outlets: &mut self.outlets,
            inlets: &mut self.inlets,
            outboxes: &mut self.outboxes,
            schedule: &mut self.schedule,
            inlets_from,
        };
        self.stations[station].poll_transmit(now, &mut out);
        for &outlet in &self.sides[station] {
            self.schedule.set(outlets_from + outlet, self.outlets[outlet].wanted_at(now));
        }
        let deadline = self.stations[station].poll_timeout().map(|deadline| deadline.at.max(now));
        self.schedule.set(station, deadline);
    }

    /// Adds frames from another region. All arrive later than any event that was processed here.
    pub fn receive(&mut self, at: usize, outbox: &mut Outbox) {
        let inlet = &mut self.inlets[at];
        inlet.ring.append(&mut outbox.packets, &mut outbox.news);
        self.schedule.set(self.stations.len() + at, inlet.ring.next_due());
    }
}

/// The sink of a station's frames.
struct Out<'a> {
    now: Instant,
    sides: &'a [usize],
    outlets: &'a mut [Outlet],
    inlets: &'a mut [Inlet],
    outboxes: &'a mut [Outbox],
    schedule: &'a mut Schedule,
    inlets_from: usize,
}

impl Transmit for Out<'_> {
    #[inline]
    fn room(&mut self, side: Side) -> usize {
        self.outlets[self.sides[side]].room(self.now)
    }

    #[inline]
    fn train_max(&mut self, side: Side) -> u32 {
        self.outlets[self.sides[side]].train_max
    }

    #[inline]
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        let outlet = &mut self.outlets[self.sides[side]];
        match outlet.to {
            Destination::Here(at) => {
                let ring = &mut self.inlets[at].ring;
                let was_empty = ring.len() == 0;
                outlet.send(self.now, frame, |packet, news| ring.push(packet, news));
                if was_empty {
                    self.schedule.set(self.inlets_from + at, ring.next_due());
                }
            }
            Destination::There(at) => {
                let outbox = &mut self.outboxes[at];
                outlet.send(self.now, frame, |packet, news| outbox.push(packet, news));
            }
        }
    }
}
