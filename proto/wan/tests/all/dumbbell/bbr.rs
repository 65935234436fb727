//! A sender with BBR's first version (draft-cardwell-iccrg-bbr-congestion-control-00), in packets.

use super::Competitor;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

const START_GAIN: f64 = 2.885;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Packets sent back to back: those of a millisecond, 2 to 64 KiB.
const QUANTUM_S: f64 = 0.001;
const QUANTUM_MAX: f64 = 43.0;
const REORDERING: u64 = 3;
const RTT_WINDOW: Duration = Duration::from_ms(10_000);
const PROBE_RTT: Duration = Duration::from_ms(200);
const RTO: Duration = Duration::from_ms(1000);

#[derive(Clone, Copy, PartialEq)]
enum State {
    Start,
    Drain,
    Bandwidth,
    Rtt { until: Instant },
}

#[derive(Clone, Copy)]
struct Sent {
    number: u64,
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
}

pub struct Bbr {
    flight: VecDeque<Sent>,
    next: u64,
    state: State,
    delivered: u64,
    delivered_at: Instant,
    round_ends: u64,
    round: u64,
    /// Maximum delivery rates, packets per second, by round.
    rates: VecDeque<(u64, f64)>,
    full_rate: f64,
    full_rounds: u32,
    rtt_least: Option<Duration>,
    rtt_least_at: Instant,
    phase: usize,
    phase_at: Instant,
    /// Packets left of this quantum, and the time of the next one.
    quantum: u64,
    next_at: Instant,
    heard_at: Instant,
}

impl Bbr {
    pub fn new() -> Self {
        Bbr {
            flight: VecDeque::new(),
            next: 0,
            state: State::Start,
            delivered: 0,
            delivered_at: Instant::ZERO,
            round_ends: 0,
            round: 0,
            rates: VecDeque::new(),
            full_rate: 0.0,
            full_rounds: 0,
            rtt_least: None,
            rtt_least_at: Instant::ZERO,
            phase: 0,
            phase_at: Instant::ZERO,
            quantum: 0,
            next_at: Instant::ZERO,
            heard_at: Instant::ZERO,
        }
    }

    fn rate(&self) -> Option<f64> {
        self.rates.iter().map(|&(_, rate)| rate).max_by(f64::total_cmp)
    }

    fn bdp(&self) -> Option<f64> {
        Some(self.rate()? * self.rtt_least?.as_secs_f64())
    }

    fn gains(&self) -> (f64, f64) {
        match self.state {
            State::Start => (START_GAIN, START_GAIN),
            State::Drain => (1.0 / START_GAIN, START_GAIN),
            State::Bandwidth => (CYCLE[self.phase], 2.0),
            State::Rtt { .. } => (1.0, 0.0),
        }
    }

    fn window(&self) -> f64 {
        match (self.state, self.bdp()) {
            (State::Rtt { .. }, _) => 4.0,
            (_, Some(bdp)) => (self.gains().1 * bdp).max(4.0),
            (_, None) => 10.0,
        }
    }

    fn turn_round(&mut self, now: Instant) {
        self.round += 1;
        self.round_ends = self.delivered + self.flight.len() as u64;
        while self.rates.front().is_some_and(|&(round, _)| round + 10 < self.round) {
            self.rates.pop_front();
        }
        if self.state == State::Start {
            let rate = self.rate().unwrap_or(0.0);
            if rate >= 1.25 * self.full_rate {
                (self.full_rate, self.full_rounds) = (rate, 0);
            } else {
                self.full_rounds += 1;
            }
            if self.full_rounds >= 3 {
                self.state = State::Drain;
                self.phase_at = now;
            }
        }
    }

    fn step(&mut self, now: Instant) {
        let (Some(bdp), Some(rtt)) = (self.bdp(), self.rtt_least) else { return };
        let in_flight = self.flight.len() as f64;
        match self.state {
            State::Drain if in_flight <= bdp => {
                (self.state, self.phase, self.phase_at) = (State::Bandwidth, 2, now);
            }
            State::Bandwidth => {
                let is_over = now.since(self.phase_at) > rtt;
                let turns = match CYCLE[self.phase] {
                    gain if gain < 1.0 => is_over || in_flight <= bdp,
                    gain if gain > 1.0 => {
                        is_over && in_flight >= 1.25 * bdp
                            || now.since(self.phase_at) > rtt.times(3)
                    }
                    _ => is_over,
                };
                if turns {
                    (self.phase, self.phase_at) = ((self.phase + 1) % CYCLE.len(), now);
                }
                if now.since(self.rtt_least_at) > RTT_WINDOW {
                    self.state = State::Rtt { until: now + PROBE_RTT.max(rtt) + rtt };
                    self.rtt_least = None;
                }
            }
            State::Rtt { until } if now >= until => {
                (self.state, self.phase, self.phase_at) = (State::Bandwidth, 2, now);
                self.rtt_least_at = now;
            }
            _ => {}
        }
    }
}

impl Competitor for Bbr {
    fn sends(&mut self, now: Instant) -> bool {
        if self.flight.back().is_some_and(|last| now.since(last.at.max(self.heard_at)) >= RTO) {
            self.flight.clear();
        }
        let room = self.window() - self.flight.len() as f64;
        let may = room > 0.0 && (self.quantum > 0 || self.next_at <= now);
        if may {
            if self.flight.is_empty() {
                self.delivered_at = now;
            }
            let Bbr { delivered, delivered_at, next, .. } = *self;
            self.flight.push_back(Sent { number: next, at: now, delivered, delivered_at });
            self.next += 1;
            if self.quantum == 0
                && let Some(rate) = self.rate()
            {
                let rate = (rate * self.gains().0).max(1.0);
                let quantum = (rate * QUANTUM_S).clamp(2.0, QUANTUM_MAX).min(room.ceil());
                self.quantum = quantum as u64;
                let takes = Duration::from_ps((quantum / rate * 1e12) as u64);
                self.next_at = self.next_at.max(now) + takes;
            }
            self.quantum = self.quantum.saturating_sub(1);
        }
        may
    }

    fn acknowledged(&mut self, now: Instant, number: u64) {
        let Ok(place) = self.flight.binary_search_by_key(&number, |sent| sent.number) else {
            return;
        };
        let Some(sent) = self.flight.remove(place) else { return };
        self.heard_at = now;
        self.delivered += 1;
        self.delivered_at = now;
        let seconds = now.since(sent.delivered_at).as_secs_f64();
        let rtt = now.since(sent.at);
        if self.rtt_least.is_none_or(|least| rtt <= least) {
            (self.rtt_least, self.rtt_least_at) = (Some(rtt), now);
        }
        if seconds > 0.0 {
            let rate = (self.delivered - sent.delivered) as f64 / seconds;
            while self.rates.back().is_some_and(|&(_, before)| before <= rate) {
                self.rates.pop_back();
            }
            self.rates.push_back((self.round, rate));
        }
        if sent.delivered >= self.round_ends {
            self.turn_round(now);
        }
        while self.flight.front().is_some_and(|oldest| oldest.number + REORDERING <= number) {
            self.flight.pop_front();
        }
        self.step(now);
    }

    fn wakes_at(&self, now: Instant) -> Option<Instant> {
        if (self.flight.len() as f64) < self.window() {
            if self.quantum > 0 {
                return Some(now + Duration::from_ps(1));
            }
            return Some(self.next_at.max(now + Duration::from_ps(1)));
        }
        self.flight.back().map(|last| (last.at.max(self.heard_at) + RTO).max(now))
    }
}
