//! A TCP sender with CUBIC (RFC 9438) and a simplified HyStart++ (RFC 9406), in packets.

use super::Competitor;
use longhaul_units::{Duration, Instant};
use std::collections::VecDeque;

const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// Later packets acknowledged after which a packet is lost.
const REORDERING: u64 = 3;
const RTO: Duration = Duration::from_ms(1000);

pub struct Cubic {
    /// Unacknowledged packets, oldest first: number and time sent.
    flight: VecDeque<(u64, Instant)>,
    next: u64,
    window: f64,
    threshold: f64,
    window_max: f64,
    epoch: Option<Instant>,
    /// Window of a Reno sender under the same conditions.
    friendly: f64,
    /// Losses of packets before this one belong to the same event.
    recovers_at: u64,
    rtt: f64,
    rtt_least: f64,
    heard_at: Instant,
}

impl Cubic {
    pub fn new() -> Self {
        Cubic {
            flight: VecDeque::new(),
            next: 0,
            window: 10.0,
            threshold: f64::MAX,
            window_max: 0.0,
            epoch: None,
            friendly: 0.0,
            recovers_at: 0,
            rtt: 0.0,
            rtt_least: f64::MAX,
            heard_at: Instant::ZERO,
        }
    }

    fn back_off(&mut self) {
        // Fast convergence: a flow whose window shrinks releases more.
        self.window_max = if self.window < self.window_max {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
        self.recovers_at = self.next;
    }

    fn grow(&mut self, now: Instant) {
        if self.window < self.threshold {
            self.window += 1.0;
            let delay = self.rtt - self.rtt_least;
            if delay > (self.rtt_least / 8.0).clamp(0.004, 0.016) && self.window > 16.0 {
                self.threshold = self.window;
                self.window_max = self.window;
            }
            return;
        }
        let epoch = *self.epoch.get_or_insert_with(|| {
            self.friendly = self.window;
            now
        });
        let reach = (self.window_max * (1.0 - BETA) / C).max(0.0).cbrt();
        let t = now.since(epoch).as_secs_f64() + self.rtt;
        let target =
            (C * (t - reach).powi(3) + self.window_max).clamp(self.window, 1.5 * self.window);
        self.friendly += 3.0 * (1.0 - BETA) / (1.0 + BETA) / self.friendly.max(1.0);
        if target > self.window {
            self.window += (target - self.window) / self.window;
        }
        self.window = self.window.max(self.friendly);
    }
}

impl Competitor for Cubic {
    fn sends(&mut self, now: Instant) -> bool {
        if let Some(&(_, at)) = self.flight.front()
            && now.since(at.max(self.heard_at)) >= RTO
        {
            self.flight.clear();
            self.back_off();
            self.window = 2.0;
        }
        let may = (self.flight.len() as f64) < self.window;
        if may {
            self.flight.push_back((self.next, now));
            self.next += 1;
        }
        may
    }

    fn acknowledged(&mut self, now: Instant, number: u64) {
        let Ok(place) = self.flight.binary_search_by_key(&number, |&(number, _)| number) else {
            return;
        };
        let Some((_, at)) = self.flight.remove(place) else { return };
        self.heard_at = now;
        self.rtt = now.since(at).as_secs_f64();
        self.rtt_least = self.rtt_least.min(self.rtt);
        while let Some(&(oldest, _)) = self.flight.front()
            && oldest + REORDERING <= number
        {
            self.flight.pop_front();
            if oldest >= self.recovers_at {
                self.back_off();
            }
        }
        if number >= self.recovers_at {
            self.grow(now);
        }
    }

    fn wakes_at(&self, now: Instant) -> Option<Instant> {
        self.flight.front().map(|&(_, at)| (at.max(self.heard_at) + RTO).max(now))
    }
}
