//! Trials of benchmarks: a number of frames at a constant rate, and what became of them.

use crate::LoadCounters;
use crate::row::{Failure, Row};
use hdrhistogram::Histogram;
use longhaul_port::Port;
use std::time::{Duration, Instant};

/// Seconds that a refused frame may be due, beyond a burst, before that is a sign of loss.
const LATE_S: f64 = 1e-3;
const BURST: f64 = 64.0;
/// Rounds between two services of the ports.
const ROUNDS: u32 = 256;
/// Time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// Share of a trial's duration, and least time, by which the last frames may be late: a thread that
/// lost its processor catches up.
const LATE_SHARE: f64 = 0.01;
const LATE_MIN: Duration = Duration::from_millis(5);

/// A stimulus.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TrialPlan {
    /// Frames to offer.
    pub frames: u64,
    /// Intended load in frames per second; `None`: back to back, until the port refuses one.
    pub frames_per_s: Option<f64>,
    /// Time without arrivals after which outstanding frames count as lost.
    pub residual_wait: Duration,
}

/// Result of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Frames that the plan has.
    pub intended: u64,
    /// Frames that the port to the box took in time.
    pub offered: u64,
    /// Frames that arrived behind the box.
    pub received: u64,
    /// Time in which frames were offered.
    pub elapsed: Duration,
    /// Delay from the requesters' port to the responders', in nanoseconds, of a part of the frames.
    pub one_way: Histogram<u64>,
    /// Longest time between two arrivals.
    pub longest_gap: Duration,
    /// Time from the start to the last arrival; `None` if no frame arrived.
    pub last_arrival: Option<Duration>,
    /// Time from the start to the last sign of loss: a frame behind a gap, or frames that the
    /// port has refused for a millisecond.
    pub last_loss: Option<Duration>,
}

impl Trial {
    /// Intended frames that did not arrive, as a share of all.
    pub fn loss_ratio(&self) -> f64 {
        self.intended.saturating_sub(self.received) as f64 / self.intended.max(1) as f64
    }

    /// Frames that arrived, per second.
    pub fn forwarding_rate(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

fn received(counters: &LoadCounters) -> u64 {
    counters.arrived + counters.duplicates + counters.behind_gaps
}

impl<P: Port> Row<P> {
    /// Runs a trial over flows that are [paired](Row::pair). `tell` gets the elapsed time several
    /// times per second, and returns whether to continue.
    ///
    /// # Errors
    /// A port failed, or interrupted.
    pub fn trial(
        &mut self,
        plan: &TrialPlan,
        mut tell: impl FnMut(Duration) -> bool,
    ) -> Result<Trial, Failure> {
        self.load_mut().forget_times();
        let before = self.load().counters();
        let start = Instant::now();
        let mut watch = ArrivalWatch::new(start, &before);
        let mut tell_at = start;
        let lasts = plan.frames_per_s.map(|rate| plan.frames as f64 / rate);
        let limit = lasts.map(|lasts| {
            Duration::from_secs_f64(lasts)
                + LATE_MIN.max(Duration::from_secs_f64(lasts * LATE_SHARE))
        });
        let elapsed = loop {
            let now = Instant::now();
            let elapsed = now - start;
            let offered = self.load().counters().since(&before).sent;
            if offered >= plan.frames || limit.is_some_and(|limit| elapsed > limit) {
                break elapsed;
            }
            let due = match plan.frames_per_s {
                Some(rate) => plan.frames.min((elapsed.as_secs_f64() * rate) as u64 + 1),
                None => plan.frames,
            };
            let allowed = due.saturating_sub(offered);
            self.load_mut().set_allowance(allowed);
            self.round()?;
            let after = self.load().counters();
            let is_refused = allowed > 0 && after.since(&before).sent == offered;
            let is_late =
                plan.frames_per_s.is_some_and(|rate| allowed as f64 > rate * LATE_S + BURST);
            watch.look(now, &after, is_refused && is_late);
            if is_refused && plan.frames_per_s.is_none() {
                break elapsed;
            }
            if watch.rounds.is_multiple_of(ROUNDS) {
                self.service()?;
                if now >= tell_at {
                    tell_at = now + TELL_EVERY;
                    if !tell(elapsed) {
                        return Err(Failure::Interrupted);
                    }
                }
            }
        };
        let offered = self.load().counters().since(&before).sent;
        self.load_mut().set_allowance(0);
        while received(&self.load().counters().since(&before)) < offered
            && watch.last_arrival.elapsed() < plan.residual_wait
        {
            self.round()?;
            watch.look(Instant::now(), &self.load().counters(), false);
        }
        let counters = self.load().counters().since(&before);
        Ok(Trial {
            intended: plan.frames,
            offered,
            received: received(&counters).min(offered),
            elapsed,
            one_way: self.load().one_way().clone(),
            longest_gap: watch.longest_gap,
            last_arrival: (received(&counters) > 0).then(|| watch.last_arrival - start),
            last_loss: watch.last_loss,
        })
    }
}

/// What arrivals say while a trial runs.
struct ArrivalWatch {
    start: Instant,
    rounds: u32,
    received: u64,
    behind_gaps: u64,
    last_arrival: Instant,
    longest_gap: Duration,
    last_loss: Option<Duration>,
}

impl ArrivalWatch {
    fn new(start: Instant, before: &LoadCounters) -> Self {
        ArrivalWatch {
            start,
            rounds: 0,
            received: received(before),
            behind_gaps: before.behind_gaps,
            last_arrival: start,
            longest_gap: Duration::ZERO,
            last_loss: None,
        }
    }

    fn look(&mut self, now: Instant, counters: &LoadCounters, is_refused: bool) {
        self.rounds = self.rounds.wrapping_add(1);
        let received = received(counters);
        if received > self.received {
            self.received = received;
            self.longest_gap = self.longest_gap.max(now - self.last_arrival);
            self.last_arrival = now;
        }
        if is_refused || counters.behind_gaps > self.behind_gaps {
            self.behind_gaps = counters.behind_gaps;
            self.last_loss = Some(now - self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bridge, Load, LoadConfig, RingEnd, Seen, Stage};
    use longhaul_host::Clock;
    use longhaul_port::PortError;

    fn plan(frames: u64, frames_per_s: Option<f64>) -> TrialPlan {
        TrialPlan { frames, frames_per_s, residual_wait: Duration::from_millis(50) }
    }

    /// Takes every frame, and loses every `n`th.
    struct Loses {
        ports: [RingEnd; 2],
        n: u64,
        seen: u64,
    }

    impl Stage for Loses {
        fn name(&self) -> &'static str {
            "loses"
        }

        fn turn(&mut self, _clock: &Clock) -> Result<bool, PortError> {
            let [near, far] = &mut self.ports;
            let room = far.transmit_room().min(64);
            let moved = near.receive(room, &mut |frame| {
                self.seen += 1;
                if !self.seen.is_multiple_of(self.n) {
                    let copied = far.transmit(frame.len(), &mut |out| out.copy_from_slice(frame));
                    assert!(copied.is_ok_and(|took| took));
                }
            })?;
            far.flush()?;
            let back = far.receive(near.transmit_room(), &mut |frame| {
                let copied = near.transmit(frame.len(), &mut |out| out.copy_from_slice(frame));
                assert!(copied.is_ok_and(|took| took));
            })?;
            near.flush()?;
            Ok(moved + back > 0)
        }

        fn seen(&self) -> Seen {
            Seen::default()
        }
    }

    fn row(stage: impl FnOnce([RingEnd; 2]) -> Box<dyn Stage>) -> Row<RingEnd> {
        let (near, left) = RingEnd::pair("near", 256, 4352, false).unwrap();
        let (right, far) = RingEnd::pair("far", 256, 4352, false).unwrap();
        let config = LoadConfig { flows: 4, depth: 1 << 16, ..LoadConfig::new(64) };
        let mut row = Row::new(Load::new(config).unwrap(), near, far, vec![stage([left, right])]);
        row.pair().unwrap();
        row
    }

    #[test]
    fn a_wire_loses_nothing_and_a_trial_ends_with_its_frames() {
        let mut row = row(|ports| Box::new(Bridge::new(ports)));
        let trial = row.trial(&plan(500, Some(50_000.0)), |_| true).unwrap();
        // A busy machine may keep the thread from offering all in time.
        assert!(trial.offered > 0 && trial.received == trial.offered, "{trial:?}");
        assert_eq!(trial.loss_ratio(), (500 - trial.offered) as f64 / 500.0);
        assert!(trial.elapsed >= Duration::from_millis(9), "{:?}", trial.elapsed);
        assert!(trial.forwarding_rate() > 0.0 && trial.longest_gap > Duration::ZERO);
    }

    #[test]
    fn lost_frames_are_counted_and_flows_restored_for_the_next_trial() {
        let mut row = row(|ports| Box::new(Loses { ports, n: 100, seen: 0 }));
        for _ in 0..2 {
            let trial = row.trial(&plan(2_000, Some(1e6)), |_| true).unwrap();
            let lost = trial.offered - trial.received;
            assert!((15..=25).contains(&lost), "{trial:?}");
            assert!(trial.last_loss.is_some() && trial.loss_ratio() > 0.0);
            row.pair().unwrap();
        }
    }

    #[test]
    fn frames_that_nobody_takes_in_time_are_lost() {
        let mut row = row(|ports| Box::new(Bridge::new(ports)));
        // More than a thread can offer in a millisecond.
        let trial = row.trial(&plan(1_000_000, Some(1e9)), |_| true).unwrap();
        assert!(trial.offered < trial.intended && trial.loss_ratio() > 0.5, "{trial:?}");
    }

    #[test]
    fn a_callback_ends_a_trial() {
        let mut row = row(|ports| Box::new(Bridge::new(ports)));
        let ended = row.trial(&plan(1_000_000, Some(1e5)), |_| false);
        assert!(matches!(ended, Err(Failure::Interrupted)));
    }
}
