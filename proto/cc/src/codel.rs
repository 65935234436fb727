//! Controlled delay (CoDel): bounds the time that packets wait in a queue, RFC 8289.

use longhaul_units::{Duration, Instant};

/// Number of intervals after a dropping state within which the next one continues at its rate.
const RESUME_INTERVALS: u64 = 16;

/// Parameters of [`Codel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelConfig {
    /// Sojourn time that a standing queue may have.
    pub target: Duration,
    /// Time for which the sojourn time must exceed the target before a packet is dropped; the
    /// longest RTT that senders usually have.
    pub interval: Duration,
}

impl CodelConfig {
    /// Interval for paths with unknown or shorter RTT, RFC 8289 section 4.3.
    pub const INTERVAL_MIN: Duration = Duration::from_ms(100);

    /// Parameters for a path with this RTT, zero if unknown: an interval of one RTT, at least
    /// [`CodelConfig::INTERVAL_MIN`], and a target of a twentieth of it, at least 5 ms. RFC 8289
    /// section 4.4 recommends 5 % to 10 %.
    pub fn for_round_trip(round_trip: Duration) -> Self {
        let interval = round_trip.max(Self::INTERVAL_MIN);
        CodelConfig { target: interval.divided_by(20), interval }
    }
}

impl Default for CodelConfig {
    fn default() -> Self {
        CodelConfig::for_round_trip(Duration::ZERO)
    }
}

/// Decides for each packet that leaves a queue whether to drop it (or to mark it, if its sender
/// reacts to marks).
///
/// Source: RFC 8289, section 5; for marks also Linux, `include/net/codel_impl.h`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// Time at which the sojourn time will have exceeded the target for an interval.
    first_above: Option<Instant>,
    dropping: Option<Dropping>,
    /// Drops of the last dropping state, at its end and at its beginning, and when its next drop
    /// was due.
    last: Last,
}

#[derive(Clone, Copy, Debug)]
struct Dropping {
    /// Packets dropped in this state, plus those of the last one if it continues.
    count: u32,
    /// Time of the next drop; after a drop, of the one that was due.
    next: Instant,
    /// `next` is to be advanced if the next packet has waited too long as well.
    is_next_stale: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    count: u32,
    count_at_start: u32,
    next: Instant,
}

/// What happens to a packet that [`Codel::judge`] selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// It is dropped, and the next packet is judged at the same time.
    Drop,
    /// It is marked and sent.
    Mark,
}

impl Codel {
    /// `true` if the packet that leaves the queue at `now`, after `sojourn` in it, is to be dropped
    /// or marked: `signal`. `is_short`: at most one packet of full length stays in the queue.
    #[inline]
    pub fn judge(
        &mut self,
        config: &CodelConfig,
        now: Instant,
        sojourn: Duration,
        is_short: bool,
        signal: Signal,
    ) -> bool {
        let is_late = self.is_late(config, now, sojourn, is_short);
        match (&mut self.dropping, is_late) {
            (None, false) => false,
            (None, true) => {
                self.start(config, now);
                true
            }
            (Some(_), false) => {
                self.stop();
                false
            }
            (Some(state), true) => {
                if state.is_next_stale {
                    state.advance(config);
                }
                let is_due = now >= state.next;
                if is_due {
                    state.count = state.count.saturating_add(1);
                    state.is_next_stale = signal == Signal::Drop;
                    if signal == Signal::Mark {
                        state.advance(config);
                    }
                }
                is_due
            }
        }
    }

    /// Notes that the queue was found empty.
    #[inline]
    pub fn note_empty(&mut self) {
        self.first_above = None;
        self.stop();
    }

    /// `true` if the sojourn time has exceeded the target for an interval.
    #[inline]
    fn is_late(
        &mut self,
        config: &CodelConfig,
        now: Instant,
        sojourn: Duration,
        is_short: bool,
    ) -> bool {
        if sojourn < config.target || is_short {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + config.interval)
    }

    /// Enters the dropping state with the first drop. A state shortly after another begins at the
    /// rate which that one reached.
    #[cold]
    fn start(&mut self, config: &CodelConfig, now: Instant) {
        let reached = self.last.count.saturating_sub(self.last.count_at_start);
        let is_recent = now.since(self.last.next) < config.interval.times(RESUME_INTERVALS);
        let count = if reached > 1 && is_recent { reached } else { 1 };
        let next = now + spacing(config, count);
        self.last.count_at_start = count;
        self.dropping = Some(Dropping { count, next, is_next_stale: false });
    }

    fn stop(&mut self) {
        if let Some(Dropping { count, next, .. }) = self.dropping.take() {
            self.last = Last { count, next, ..self.last };
        }
    }
}

impl Dropping {
    fn advance(&mut self, config: &CodelConfig) {
        self.next += spacing(config, self.count);
        self.is_next_stale = false;
    }
}

/// Time between two drops: the interval divided by the square root of their number.
fn spacing(config: &CodelConfig, count: u32) -> Duration {
    Duration::from_ps((config.interval.as_ps() as f64 / f64::from(count).sqrt()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const FRAME: u64 = 1500;

    fn ms(ms: u64) -> Duration {
        Duration::from_ms(ms)
    }

    /// The pseudo-code of RFC 8289, section 5, line by line.
    #[derive(Default)]
    struct Reference {
        config: CodelConfig,
        queue: VecDeque<(Instant, u64)>,
        first_above_time: Option<Instant>,
        drop_next: Instant,
        count: u32,
        lastcount: u32,
        dropping: bool,
        dropped: Vec<u64>,
    }

    impl Reference {
        fn dodequeue(&mut self, now: Instant) -> (Option<(Instant, u64)>, bool) {
            let Some(packet) = self.queue.pop_front() else {
                self.first_above_time = None;
                return (None, false);
            };
            let sojourn = now.since(packet.0);
            if sojourn < self.config.target || self.queue.len() as u64 * FRAME <= FRAME {
                self.first_above_time = None;
                return (Some(packet), false);
            }
            match self.first_above_time {
                None => {
                    self.first_above_time = Some(now + self.config.interval);
                    (Some(packet), false)
                }
                Some(at) => (Some(packet), now >= at),
            }
        }

        fn control_law(&self, t: Instant, count: u32) -> Instant {
            t + spacing(&self.config, count)
        }

        fn dequeue(&mut self, now: Instant) -> Option<u64> {
            let (mut packet, mut ok_to_drop) = self.dodequeue(now);
            if self.dropping {
                if !ok_to_drop {
                    self.dropping = false;
                }
                while now >= self.drop_next && self.dropping {
                    self.dropped.extend(packet.map(|packet| packet.1));
                    self.count += 1;
                    (packet, ok_to_drop) = self.dodequeue(now);
                    if !ok_to_drop {
                        self.dropping = false;
                    } else {
                        self.drop_next = self.control_law(self.drop_next, self.count);
                    }
                }
            } else if ok_to_drop {
                self.dropped.extend(packet.map(|packet| packet.1));
                packet = self.dodequeue(now).0;
                self.dropping = true;
                let delta = self.count.saturating_sub(self.lastcount);
                self.count = 1;
                if delta > 1 && now.since(self.drop_next) < self.config.interval.times(16) {
                    self.count = delta;
                }
                self.drop_next = self.control_law(now, self.count);
                self.lastcount = self.count;
            }
            packet.map(|packet| packet.1)
        }
    }

    /// A queue of numbered packets in front of [`Codel`].
    #[derive(Default)]
    struct Queue {
        config: CodelConfig,
        codel: Codel,
        queue: VecDeque<(Instant, u64)>,
        signalled: Vec<u64>,
    }

    impl Queue {
        fn dequeue(&mut self, now: Instant, signal: Signal) -> Option<u64> {
            loop {
                let Some((at, number)) = self.queue.pop_front() else {
                    self.codel.note_empty();
                    return None;
                };
                let is_short = self.queue.len() <= 1;
                if !self.codel.judge(&self.config, now, now.since(at), is_short, signal) {
                    return Some(number);
                }
                self.signalled.push(number);
                if signal == Signal::Mark {
                    return Some(number);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn drops_exactly_what_the_pseudo_code_of_the_rfc_drops(
            steps in prop::collection::vec((0..20_u64, 0..4_u64, 0..40_u64), 1..600),
        ) {
            let (mut reference, mut queue) = (Reference::default(), Queue::default());
            let (mut now, mut number) = (Instant::ZERO + ms(1), 0);
            for (arrivals, dequeues, pause_ms) in steps {
                for _ in 0..arrivals {
                    reference.queue.push_back((now, number));
                    queue.queue.push_back((now, number));
                    number += 1;
                }
                now += ms(pause_ms);
                for _ in 0..dequeues {
                    prop_assert_eq!(reference.dequeue(now), queue.dequeue(now, Signal::Drop));
                }
                prop_assert_eq!(&reference.dropped, &queue.signalled);
            }
        }

        #[test]
        fn never_signals_a_queue_that_stays_below_the_target(
            waits in prop::collection::vec((0..5_000_u64, 0..1_000_u64), 1..500),
            marks in any::<bool>(),
        ) {
            let config = CodelConfig::default();
            let mut codel = Codel::default();
            let mut now = Instant::ZERO;
            let signal = if marks { Signal::Mark } else { Signal::Drop };
            for (sojourn_us, pause_ms) in waits {
                now += ms(pause_ms);
                let sojourn = Duration::from_us(sojourn_us);
                prop_assert!(!codel.judge(&config, now, sojourn, false, signal));
            }
        }
    }

    /// Signals per interval, over ten intervals, of a queue that always exceeds the target.
    fn signals(signal: Signal) -> Vec<usize> {
        let mut queue = Queue::default();
        let mut now = Instant::ZERO;
        let mut counts = Vec::new();
        for _ in 0..10 {
            for _ in 0..1000 {
                let arrived = Instant::from_ps(now.as_ps().saturating_sub(ms(20).as_ps()));
                queue.queue.extend([(arrived, 0); 200]);
                queue.dequeue(now, signal);
                queue.queue.clear();
                now += Duration::from_us(100);
            }
            counts.push(std::mem::take(&mut queue.signalled).len());
        }
        counts
    }

    #[test]
    fn a_standing_queue_is_signalled_more_and_more_often() {
        for signal in [Signal::Drop, Signal::Mark] {
            let counts = signals(signal);
            assert_eq!(counts[..2], [0, 1], "the first after an interval: {counts:?}");
            assert!(counts.is_sorted(), "{counts:?}");
            assert!((5..=7).contains(&counts[9]), "a rate that grows linearly: {counts:?}");
        }
    }

    #[test]
    fn one_packet_is_never_late() {
        let mut codel = Codel::default();
        for at in 0..1000 {
            let now = Instant::ZERO + ms(at);
            assert!(!codel.judge(&CodelConfig::default(), now, ms(500), true, Signal::Drop));
        }
    }

    #[test]
    fn a_long_path_has_a_long_interval_and_a_target_in_proportion() {
        let short = CodelConfig::for_round_trip(ms(2));
        assert_eq!((short.target, short.interval), (ms(5), ms(100)));
        assert_eq!(short, CodelConfig::default());
        let long = CodelConfig::for_round_trip(ms(400));
        assert_eq!((long.target, long.interval), (ms(20), ms(400)));
    }
}
