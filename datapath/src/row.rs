//! A load, what stands between its ends, and the loop around them.

use crate::meter::{Counts, HardwareCounters, Ticks, processor_time, resident_bytes};
use crate::stage::{Seen, Stage};
use crate::{Load, LoadCounters};
use hdrhistogram::Histogram;
use longhaul_host::Clock;
use longhaul_port::{LinkState, Port, PortError};
use longhaul_units::Duration as Span;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Rounds between two looks at the clock of whoever waits.
const ROUNDS: u64 = 256;
/// Longest wait for links to come up, for flows to be paired, and for what is in flight to arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// When packets without an acknowledgement are sent again meanwhile: whoever is behind the next
/// port may not have come yet.
const REPEAT_AFTER: Duration = Duration::from_millis(500);
/// Packets, each with its acknowledgement, that each flow exchanges at least before it is measured:
/// two make a flow known.
const PAIRING_PACKETS: u64 = 4;
/// How often progress is told and memory looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why a row gives no figures.
#[derive(Debug, Error)]
pub enum Failure {
    /// A port failed.
    #[error("a port failed: {0}")]
    Port(#[from] PortError),
    /// A port has no peer.
    #[error("{0}: nobody came to the other end within 20 s")]
    NoPeer(String),
    /// Nothing came through.
    #[error("no acknowledgements for {unacknowledged} of {flows} flows within 20 s: {counters}")]
    NotPaired {
        /// Flows without.
        unacknowledged: usize,
        /// All of them.
        flows: usize,
        /// What the load did.
        counters: Box<LoadCounters>,
    },
    /// Flows are not in the state that is to be measured.
    #[error(
        "{stage} has {ready} of {flows} flows; what it does for the others would be measured with \
         them"
    )]
    NotReady {
        /// Name of the stage.
        stage: &'static str,
        /// Flows that are.
        ready: u32,
        /// All of them.
        flows: u32,
    },
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

/// When a measurement ends, and what goes before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// Time under load before it begins, in which caches and pools fill.
    pub warm_up: Duration,
    /// Time that it takes at most.
    pub lasts: Duration,
    /// Packets after which it ends, if that is earlier.
    pub packets_max: Option<u64>,
    /// How long acknowledgements take, from the warm-up on.
    pub ack_delay: Span,
}

/// How far a measurement is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// Time since it began, the warm-up included.
    pub elapsed: Duration,
    /// Packets that have arrived in all.
    pub arrived: u64,
    /// Memory in use, in bytes.
    pub resident_bytes: u64,
}

/// What a stage took.
#[derive(Clone, PartialEq, Debug)]
pub struct StageCost {
    /// Its name.
    pub name: &'static str,
    /// Whether it is a part of the box, or only stands between its parts.
    pub is_box: bool,
    /// Ticks in turns in which anything happened.
    pub busy_ticks: u64,
    /// Ticks in turns in which nothing happened.
    pub idle_ticks: u64,
    /// Turns in which anything happened.
    pub busy_turns: u64,
    /// What it said at the end, since it was made.
    pub seen: Seen,
}

/// What came of a measurement.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What the load did meanwhile.
    pub counters: LoadCounters,
    /// Payload of each packet, in bytes.
    pub payload_bytes: usize,
    /// Length of each frame, in bytes, without FCS.
    pub frame_len: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// How long the thread had a processor meanwhile.
    pub used: Duration,
    /// Packets that had not arrived when all had had time to.
    pub lost: u64,
    /// What each stage took.
    pub stages: Vec<StageCost>,
    /// What the whole thread took, load included; `None` where the machine has no counters.
    pub counts: Option<Counts>,
    /// From requester to responder, in nanoseconds.
    pub one_way: Histogram<u64>,
    /// From requester to acknowledgement, in nanoseconds.
    pub acknowledged: Histogram<u64>,
    /// Memory in use as it began, at its end, and at most, in bytes.
    pub resident_bytes: [u64; 3],
}

impl Measured {
    /// Packets that arrived, per second.
    pub fn packets_per_s(&self) -> f64 {
        self.counters.arrived as f64 / self.elapsed.as_secs_f64()
    }

    /// Payload that arrived, in bits per second.
    pub fn goodput_bps(&self) -> f64 {
        self.packets_per_s() * self.payload_bytes as f64 * 8.0
    }

    /// The part of the time in which the thread had a processor: less than 1 where others wanted it
    /// too.
    pub fn processor_share(&self) -> f64 {
        (self.used.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)).min(1.0)
    }

    /// Ticks in busy turns of `stage`, per packet that arrived. What others had of the processor
    /// meanwhile is taken off, as if it had come upon all stages alike.
    pub fn ticks_per_packet(&self, stage: &StageCost) -> f64 {
        stage.busy_ticks as f64 * self.processor_share() / self.counters.arrived.max(1) as f64
    }

    /// [`Measured::ticks_per_packet`] of all stages of the box. `None` without a box or packets.
    pub fn box_ticks_per_packet(&self) -> Option<f64> {
        let of_box = || self.stages.iter().filter(|stage| stage.is_box);
        let is_there = of_box().next().is_some() && self.counters.arrived > 0;
        is_there.then(|| of_box().map(|stage| self.ticks_per_packet(stage)).sum())
    }
}

#[derive(Clone, Copy, Default)]
struct Spent {
    busy_ticks: u64,
    idle_ticks: u64,
    busy_turns: u64,
}

/// A load between whose ports there are stages, or another process.
pub struct Row<P> {
    load: Load,
    /// The requesters' port, and the responders'.
    ends: [P; 2],
    stages: Vec<Box<dyn Stage>>,
    spent: Vec<Spent>,
    clock: Clock,
    ticks: Ticks,
    /// Whether other threads may want this processor when there is nothing to do.
    yields: bool,
}

impl<P: Port> Row<P> {
    /// `near` is the requesters' port and `far` the responders'. The stages' own ports join them.
    pub fn new(load: Load, near: P, far: P, stages: Vec<Box<dyn Stage>>) -> Self {
        let spent = vec![Spent::default(); stages.len()];
        let yields = stages.is_empty();
        Row {
            load,
            ends: [near, far],
            stages,
            spent,
            clock: Clock::start(),
            ticks: Ticks::new(),
            yields,
        }
    }

    /// The load.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// The load.
    pub fn load_mut(&mut self) -> &mut Load {
        &mut self.load
    }

    /// Sends a burst, has each stage take its turn, and answers what arrived; true when anything
    /// happened.
    ///
    /// # Errors
    /// A port's.
    pub fn round(&mut self) -> Result<bool, PortError> {
        let [near, far] = &mut self.ends;
        let mut moved = self.load.send(near)?;
        let mut before = self.ticks.now();
        for (stage, spent) in self.stages.iter_mut().zip(&mut self.spent) {
            let is_busy = stage.turn(&self.clock)?;
            let after = self.ticks.now();
            if is_busy {
                spent.busy_ticks += after - before;
                spent.busy_turns += 1;
                moved += 1;
            } else {
                spent.idle_ticks += after - before;
            }
            before = after;
        }
        moved += self.load.respond(far, self.clock.now())?;
        moved += self.load.take_acks(near)?;
        if moved == 0 && self.yields {
            std::thread::yield_now();
        }
        Ok(moved > 0)
    }

    /// Waits for links, and has every flow exchange a few packets with acknowledgements, so that
    /// boxes know them. After losses this also restores flows whose packets are missing.
    ///
    /// # Errors
    /// Nobody at the other end, no acknowledgements, or flows that a stage does not know.
    pub fn pair(&mut self) -> Result<(), Failure> {
        // Ports that nobody is at drop what they are given.
        self.load.set_quota(Some(0));
        self.load.set_allowance(u64::MAX);
        let before = self.load.longest_flow();
        let deadline = Instant::now() + PATIENCE;
        while self.service()? == LinkState::Down {
            if Instant::now() > deadline {
                let down = self.ends.iter().find(|end| end.link_state() == LinkState::Down);
                let name = down.map(|end| end.capabilities().name.to_string()).unwrap_or_default();
                return Err(Failure::NoPeer(name));
            }
            self.round()?;
        }
        let deadline = Instant::now() + PATIENCE;
        for packets in 1.. {
            self.load.set_quota(Some(before + packets));
            let mut repeat_at = Instant::now() + REPEAT_AFTER;
            while !self.load.is_paired() {
                for _ in 0..ROUNDS {
                    self.round()?;
                }
                self.service()?;
                if Instant::now() > repeat_at {
                    repeat_at = Instant::now() + REPEAT_AFTER;
                    self.load.repeat();
                }
                if Instant::now() > deadline {
                    let flows = self.load.config().flows as usize;
                    let unacknowledged = self.load.unpaired();
                    let counters = Box::new(self.load.counters());
                    return Err(Failure::NotPaired { unacknowledged, flows, counters });
                }
            }
            let not_ready = self.not_ready();
            if packets >= PAIRING_PACKETS && not_ready.is_none() {
                break;
            }
            if let Some(failure) = not_ready.filter(|_| Instant::now() > deadline) {
                return Err(failure);
            }
        }
        self.load.set_quota(None);
        Ok(())
    }

    fn not_ready(&self) -> Option<Failure> {
        let flows = self.load.config().flows;
        self.stages.iter().find_map(|stage| {
            let ready = stage.seen().ready_flows.filter(|ready| *ready < flows)?;
            Some(Failure::NotReady { stage: stage.name(), ready, flows })
        })
    }

    pub(crate) fn service(&mut self) -> Result<LinkState, PortError> {
        let mut state = LinkState::Up;
        for end in &mut self.ends {
            if end.service()? == LinkState::Down {
                state = LinkState::Down;
            }
        }
        Ok(state)
    }

    /// Warms up and measures. `tell` is told five times a second how far it is, and says whether to
    /// go on.
    ///
    /// # Errors
    /// As [`Row::pair`], which comes before; or interrupted.
    pub fn measure(
        &mut self,
        plan: &Plan,
        mut tell: impl FnMut(&Progress) -> bool,
    ) -> Result<Measured, Failure> {
        let began = Instant::now();
        self.load.set_ack_delay(plan.ack_delay);
        let mut most = 0;
        self.run(plan.warm_up, None, began, &mut most, &mut tell)?;
        let (resident, mut most) = (resident_bytes(), 0);
        self.spent.fill(Spent::default());
        self.load.forget_times();
        let before = self.load.counters();
        let mut counters = HardwareCounters::open().ok();
        if let Some(open) = &mut counters
            && open.start().is_err()
        {
            counters = None;
        }
        let (start, start_used) = (Instant::now(), processor_time());
        let packets_max = plan.packets_max.map(|packets| before.arrived + packets);
        self.run(plan.lasts, packets_max, began, &mut most, &mut tell)?;
        let elapsed = start.elapsed();
        let used = processor_time().saturating_sub(start_used);
        let counts = counters.and_then(|mut counters| counters.stop().ok());
        let after = self.load.counters();
        let stages = self.costs();
        let (one_way, acknowledged) =
            (self.load.one_way().clone(), self.load.acknowledged().clone());
        let at_end = resident_bytes();
        let lost = self.drain()?;
        Ok(Measured {
            counters: after.since(&before),
            payload_bytes: self.load.config().payload_bytes,
            frame_len: self.load.frame_len(),
            elapsed,
            used,
            lost,
            stages,
            counts,
            one_way,
            acknowledged,
            resident_bytes: [resident, at_end, most.max(at_end).max(resident)],
        })
    }

    fn run(
        &mut self,
        lasts: Duration,
        packets_max: Option<u64>,
        began: Instant,
        most: &mut u64,
        tell: &mut impl FnMut(&Progress) -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + lasts;
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            for _ in 0..ROUNDS {
                self.round()?;
            }
            self.service()?;
            let now = Instant::now();
            let arrived = self.load.counters().arrived;
            if now >= look_at {
                look_at = now + LOOK_EVERY;
                let resident_bytes = resident_bytes();
                *most = resident_bytes.max(*most);
                if !tell(&Progress { elapsed: began.elapsed(), arrived, resident_bytes }) {
                    return Err(Failure::Interrupted);
                }
            }
            if now >= deadline || packets_max.is_some_and(|packets| arrived >= packets) {
                return Ok(());
            }
        }
    }

    fn costs(&self) -> Vec<StageCost> {
        let all = self.stages.iter().zip(&self.spent);
        all.map(|(stage, spent)| StageCost {
            name: stage.name(),
            is_box: stage.is_box(),
            busy_ticks: spent.busy_ticks,
            idle_ticks: spent.idle_ticks,
            busy_turns: spent.busy_turns,
            seen: stage.seen(),
        })
        .collect()
    }

    /// Lets what is in flight arrive: how many packets did not.
    fn drain(&mut self) -> Result<u64, Failure> {
        let deadline = Instant::now() + PATIENCE.min(Duration::from_secs(2));
        self.load.set_quota(Some(0));
        while !self.load.is_quiet() && Instant::now() < deadline {
            for _ in 0..ROUNDS {
                self.round()?;
            }
        }
        let missing = self.load.missing();
        self.load.set_quota(None);
        Ok(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bridge, LoadConfig};
    use longhaul_port::loopback;

    const SLOTS: usize = 256;
    const FRAME_MAX: usize = 4352;

    fn brief() -> Plan {
        Plan {
            warm_up: Duration::from_millis(5),
            lasts: Duration::from_secs(10),
            packets_max: Some(20_000),
            ack_delay: Span::ZERO,
        }
    }

    #[test]
    fn a_bridge_passes_all_on() {
        let (near, left) = loopback::pair("near", SLOTS, FRAME_MAX).unwrap();
        let (right, far) = loopback::pair("far", SLOTS, FRAME_MAX).unwrap();
        let load = Load::new(LoadConfig { flows: 5, ..LoadConfig::new(512) }).unwrap();
        let mut row = Row::new(load, near, far, vec![Box::new(Bridge::new([left, right]))]);
        row.pair().unwrap();
        let measured = row.measure(&brief(), |_| true).unwrap();
        assert!(measured.counters.arrived >= 20_000, "{measured:?}");
        assert_eq!((measured.lost, measured.counters.behind_gaps), (0, 0));
        assert_eq!(measured.stages.len(), 1);
        assert!(
            measured.stages[0].busy_ticks > 0 && measured.box_ticks_per_packet().unwrap() > 1.0
        );
        assert!(measured.one_way.len() > 100 && measured.acknowledged.len() > 100);
        let share = measured.processor_share();
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert!(measured.goodput_bps() > measured.packets_per_s());
    }

    #[test]
    fn a_row_of_nothing_measures_the_load_alone() {
        let (near, far) = loopback::pair("wire", SLOTS, FRAME_MAX).unwrap();
        let load = Load::new(LoadConfig { flows: 64, ..LoadConfig::new(64) }).unwrap();
        let mut row = Row::new(load, near, far, Vec::new());
        row.pair().unwrap();
        let measured = row.measure(&brief(), |_| true).unwrap();
        assert!(measured.counters.arrived >= 20_000);
        assert_eq!(measured.box_ticks_per_packet(), None);
    }

    #[test]
    fn who_says_no_ends_it() {
        let (near, far) = loopback::pair("wire", SLOTS, FRAME_MAX).unwrap();
        let mut row = Row::new(Load::new(LoadConfig::new(64)).unwrap(), near, far, Vec::new());
        row.pair().unwrap();
        let plan = Plan { packets_max: None, ..brief() };
        assert!(matches!(row.measure(&plan, |_| false), Err(Failure::Interrupted)));
    }
}
