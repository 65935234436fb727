//! Stations and cables, divided into regions that run independently between exchanges of frames.

use crate::cable::{Destination, Inlet, Outbox, Outlet};
use crate::host::Host;
use crate::record::Recorder;
use crate::region::Region;
use crate::station::Station;
use longhaul_link::{LinkConfig, LinkCounters, LinkError};
use longhaul_node::Side;
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::sync::{Barrier, Mutex};

/// Minimum delay of a cable between regions.
const CUT_DELAY_MIN: Duration = Duration::from_us(20);
/// Exchanges per delay of the shortest cable between regions: more of them reduce the memory for
/// waiting frames.
const EXCHANGES_PER_DELAY: u64 = 16;
/// Exchanges between two questions to the owner whether to continue.
const PAUSES: u64 = 64;

/// A network under construction.
#[derive(Default)]
pub(crate) struct Plan {
    pub stations: Vec<Station>,
    pub cables: Vec<CablePlan>,
}

/// Both directions between two sides.
pub(crate) struct CablePlan {
    pub ends: [(usize, Side); 2],
    /// Wire configurations, by sending end.
    pub wires: [LinkConfig; 2],
    /// Minimum time between two frames, by sending end.
    pub gaps: [Duration; 2],
    /// Seeds, by sending end.
    pub seeds: [u64; 2],
    /// Maximum packets per train.
    pub train_max: u32,
    /// Recorders of both directions.
    pub recorders: [Vec<Recorder>; 2],
}

impl CablePlan {
    /// A cable that is the same in both directions.
    pub fn new(ends: [(usize, Side); 2], wire: LinkConfig, seed: u64) -> Self {
        let mut seeds = SplitMix64::new(seed);
        CablePlan {
            ends,
            wires: [wire.clone(), wire],
            gaps: [Duration::ZERO; 2],
            train_max: 1,
            seeds: [seeds.next_u64(), seeds.next_u64()],
            recorders: [Vec::new(), Vec::new()],
        }
    }
}

/// A running network.
pub(crate) struct Network {
    regions: Vec<Region<Station>>,
    /// Region of each station, and its index there.
    places: Vec<(usize, usize)>,
    /// By cable and sending end: region and outlet; region and inlet.
    cables: Vec<[Direction; 2]>,
    /// Crossings between regions: from outbox to inlet.
    crossings: Vec<Crossing>,
    /// `None`: one region.
    lookahead: Option<Duration>,
    now: Instant,
}

#[derive(Clone, Copy)]
struct Direction {
    outlet: (usize, usize),
    inlet: (usize, usize),
}

#[derive(Clone, Copy)]
struct Crossing {
    from: usize,
    outbox: usize,
    to: usize,
    inlet: usize,
}

impl Network {
    /// Builds the network. Regions are the components without the cables of at least
    /// [`CUT_DELAY_MIN`].
    pub fn new(plan: Plan) -> Result<Self, LinkError> {
        let region_of = regions(plan.stations.len(), &plan.cables);
        let count = region_of.iter().max().map_or(1, |last| last + 1);
        let mut parts: Vec<Parts> = (0..count).map(|_| Parts::default()).collect();
        let mut places = Vec::new();
        for (station, region) in plan.stations.into_iter().zip(&region_of) {
            places.push((*region, parts[*region].stations.len()));
            parts[*region].stations.push(station);
            parts[*region].sides.push(Vec::new());
        }
        let (mut crossings, mut cables, mut lookahead) = (Vec::new(), Vec::new(), None::<Duration>);
        for cable in plan.cables {
            let mut recorders = cable.recorders;
            let mut directions = Vec::new();
            for end in [0, 1] {
                let ((from, side), (to, to_side)) = (cable.ends[end], cable.ends[1 - end]);
                let ((from_region, from), (to_region, to)) = (places[from], places[to]);
                let inlet = parts[to_region].inlets.len();
                parts[to_region].inlets.push(Inlet::new(to, to_side));
                let destination = if from_region == to_region {
                    Destination::Here(inlet)
                } else {
                    let outbox = parts[from_region].outboxes;
                    parts[from_region].outboxes += 1;
                    crossings.push(Crossing { from: from_region, outbox, to: to_region, inlet });
                    let delay = cable.wires[end].delay_min();
                    lookahead = Some(lookahead.map_or(delay, |least| least.min(delay)));
                    Destination::There(outbox)
                };
                let (wire, seed, gap) = (&cable.wires[end], cable.seeds[end], cable.gaps[end]);
                let mut outlet = Outlet::new(wire, end, seed, gap, from, destination)?;
                outlet.train_max = cable.train_max;
                outlet.recorders = std::mem::take(&mut recorders[end]);
                let part = &mut parts[from_region];
                let sides = &mut part.sides[from];
                if sides.len() <= side {
                    sides.resize(side + 1, usize::MAX);
                }
                sides[side] = part.outlets.len();
                directions.push(Direction {
                    outlet: (from_region, part.outlets.len()),
                    inlet: (to_region, inlet),
                });
                part.outlets.push(outlet);
            }
            cables.push([directions[0], directions[1]]);
        }
        let regions = parts
            .into_iter()
            .map(|part| {
                Region::new(part.stations, part.sides, part.outlets, part.inlets, part.outboxes)
            })
            .collect();
        let lookahead =
            lookahead.map(|delay| Duration::from_ps((delay.as_ps() / EXCHANGES_PER_DELAY).max(1)));
        Ok(Network { regions, places, cables, crossings, lookahead, now: Instant::ZERO })
    }

    /// Number of regions, and so of useful threads.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.regions.iter().map(|region| region.events).sum()
    }

    /// A station.
    pub fn station(&self, station: usize) -> &Station {
        let (region, place) = self.places[station];
        &self.regions[region].stations[place]
    }

    /// Counters of the direction of a cable in which its end `end` sends.
    pub fn passed(&self, cable: usize, end: usize) -> LinkCounters {
        let Direction { outlet: (from, outlet), inlet: (to, inlet) } = self.cables[cable][end];
        let mut counters = self.regions[from].outlets[outlet].counters();
        let inlet = &self.regions[to].inlets[inlet];
        counters.delivered_frames = inlet.frames;
        counters.delivered_bytes = inlet.bytes;
        counters.in_flight_frames -= inlet.frames;
        counters
    }

    /// Takes the recorders, at the end of a run.
    pub fn take_recorders(&mut self) -> impl Iterator<Item = Recorder> + '_ {
        self.regions
            .iter_mut()
            .flat_map(|region| &mut region.outlets)
            .flat_map(|outlet| std::mem::take(&mut outlet.recorders))
    }

    /// Runs until there are no more events, or until `end`, on `threads` threads. Calls `go_on`
    /// periodically. The outcome, and the times of these calls, do not depend on the number of
    /// threads.
    pub fn run(&mut self, end: Instant, threads: usize, mut go_on: impl FnMut(&Network) -> bool) {
        while self.now < end
            && let Some(next) = self.regions.iter().filter_map(Region::next_at).min()
            && next < end
        {
            match self.lookahead {
                None => self.run_alone(next, end),
                Some(step) => self.run_together(next, step, end, threads),
            }
            if !go_on(self) {
                return;
            }
        }
    }

    fn run_alone(&mut self, next: Instant, end: Instant) {
        // Long enough to amortise the call, short enough to end soon after the last program.
        let pause = Duration::from_us(100).times(PAUSES);
        let until = end.min(next + pause);
        self.regions[0].run_until(until);
        self.now = until;
    }

    fn run_together(&mut self, next: Instant, step: Duration, end: Instant, threads: usize) {
        let begin = self.now.max(next);
        let until = |round: u64| end.min(begin + step.times(round + 1));
        if threads < 2 {
            for round in 0..PAUSES {
                self.regions.iter_mut().for_each(|region| region.run_until(until(round)));
                self.exchange();
            }
        } else {
            self.run_on_threads(threads.min(self.regions.len()), until);
        }
        self.now = until(PAUSES - 1);
    }

    /// Delivers each region's frames from the other regions.
    fn exchange(&mut self) {
        for &Crossing { from, outbox, to, inlet } in &self.crossings {
            let mut sent = std::mem::take(&mut self.regions[from].outboxes[outbox]);
            self.regions[to].receive(inlet, &mut sent);
            self.regions[from].outboxes[outbox] = sent;
        }
    }

    fn run_on_threads(&mut self, threads: usize, until: impl Fn(u64) -> Instant + Sync) {
        // Frames between regions: one thread fills each outbox and another empties it, on different
        // sides of a barrier.
        let carried: Vec<Mutex<Outbox>> = self.crossings.iter().map(|_| Mutex::default()).collect();
        let barrier = Barrier::new(threads);
        let crossings = &self.crossings;
        let regions = self.regions.len();
        let mut shares: Vec<Vec<(usize, &mut Region<Station>)>> =
            (0..threads).map(|_| Vec::new()).collect();
        for (number, region) in self.regions.iter_mut().enumerate() {
            shares[number * threads / regions].push((number, region));
        }
        std::thread::scope(|scope| {
            for mut share in shares {
                let (carried, barrier, until) = (&carried, &barrier, &until);
                scope.spawn(move || {
                    for round in 0..PAUSES {
                        for (number, region) in &mut share {
                            region.run_until(until(round));
                            swap_each(crossings, carried, |crossing, outbox| {
                                if crossing.from == *number {
                                    std::mem::swap(outbox, &mut region.outboxes[crossing.outbox]);
                                }
                            });
                        }
                        barrier.wait();
                        for (number, region) in &mut share {
                            swap_each(crossings, carried, |crossing, outbox| {
                                if crossing.to == *number {
                                    region.receive(crossing.inlet, outbox);
                                }
                            });
                        }
                        barrier.wait();
                    }
                });
            }
        });
    }

    /// A host.
    ///
    /// # Panics
    /// If the station is not a host.
    pub fn host(&self, station: usize) -> &Host {
        match self.station(station) {
            Station::Host(host) => host,
            _ => panic!("station {station} is no host"),
        }
    }
}

fn swap_each(
    crossings: &[Crossing],
    carried: &[Mutex<Outbox>],
    mut each: impl FnMut(&Crossing, &mut Outbox),
) {
    for (crossing, outbox) in crossings.iter().zip(carried) {
        // No thread panics while it holds the lock; otherwise the scope ends with that panic.
        let mut outbox = outbox.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        each(crossing, &mut outbox);
    }
}

#[derive(Default)]
struct Parts {
    stations: Vec<Station>,
    sides: Vec<Vec<usize>>,
    outlets: Vec<Outlet>,
    inlets: Vec<Inlet>,
    outboxes: usize,
}

/// Returns each station's region: short cables join stations into one.
fn regions(stations: usize, cables: &[CablePlan]) -> Vec<usize> {
    let mut of: Vec<usize> = (0..stations).collect();
    fn root(of: &mut [usize], mut at: usize) -> usize {
        while of[at] != at {
            of[at] = of[of[at]];
            at = of[at];
        }
        at
    }
    for cable in cables {
        let delay = cable.wires[0].delay_min().min(cable.wires[1].delay_min());
        if delay < CUT_DELAY_MIN {
            let [a, b] = cable.ends.map(|(station, _)| root(&mut of, station));
            of[a.max(b)] = a.min(b);
        }
    }
    let roots: Vec<usize> = (0..stations).map(|station| root(&mut of, station)).collect();
    let mut numbers = roots.clone();
    numbers.sort_unstable();
    numbers.dedup();
    roots.iter().map(|root| numbers.partition_point(|number| number < root)).collect()
}
