//! Path rate control: the rate found at a bottleneck, and robustness against invalid input.

use longhaul_cc::{Heard, PathRate, RateLimitedBy};
use longhaul_units::{BitRate, Duration, Instant};
use proptest::prelude::*;
use std::collections::VecDeque;

const FRAME: u64 = 1250;

/// A sender that always has data, and a bottleneck with an unbounded queue.
struct Model {
    now: Instant,
    rate: PathRate,
    bottleneck: BitRate,
    rtt: Duration,
    free_at: Instant,
    /// For each frame, the time of its acknowledgement and the time sent.
    flight: VecDeque<(Instant, Instant)>,
    next_at: Instant,
    heard: Heard,
    /// Longest queuing delay of a frame since this was set to zero.
    wait_max: Duration,
}

impl Model {
    fn new(mbps: u64, rtt: Duration, most: Option<BitRate>) -> Self {
        let mut rate = PathRate::new(7, most);
        rate.note_rtt(Instant::ZERO, rtt);
        Model {
            now: Instant::ZERO,
            rate,
            bottleneck: BitRate::from_bps(mbps * 1_000_000).unwrap(),
            rtt,
            free_at: Instant::ZERO,
            flight: VecDeque::new(),
            next_at: Instant::ZERO,
            heard: Heard::default(),
            wait_max: Duration::ZERO,
        }
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let answer = self.flight.front().map_or(Instant::from_ps(u64::MAX), |&(at, _)| at);
            self.now = answer.min(self.next_at);
            if self.now > until {
                return;
            }
            if answer <= self.next_at {
                let (_, sent_at) = self.flight.pop_front().unwrap();
                self.heard.arrived += 1;
                self.heard.arrived_to += 1;
                self.heard.arrived_bytes += FRAME;
                self.heard.rtt = self.now.since(sent_at);
                self.rate.hear(self.now, &self.heard);
            } else {
                self.send();
            }
        }
    }

    fn send(&mut self) {
        self.next_at = self.now + self.rate.rate().time_for_bytes(FRAME);
        if self.flight.len() as u64 * FRAME > self.rate.in_flight_max() {
            self.next_at = self.now + self.rtt.divided_by(20);
            return;
        }
        self.wait_max = self.wait_max.max(self.free_at.since(self.now));
        self.free_at = self.free_at.max(self.now) + self.bottleneck.time_for_bytes(FRAME);
        self.flight.push_back((self.free_at + self.rtt, self.now));
        self.heard.next += 1;
        self.heard.sent_bytes += FRAME;
    }

    /// Utilisation of the bottleneck over this time.
    fn used(&mut self, time: Duration) -> f64 {
        self.wait_max = Duration::ZERO;
        let before = self.heard.arrived_bytes;
        self.run_for(time);
        (self.heard.arrived_bytes - before) as f64 / self.bottleneck.bytes_in(time) as f64
    }
}

#[test]
fn finds_a_bottleneck_and_keeps_its_queue_short() {
    let mut model = Model::new(400, Duration::from_ms(20), None);
    assert_eq!(model.rate.limited_by(), RateLimitedBy::Start);
    model.run_for(Duration::from_ms(2000));
    assert!(model.used(Duration::from_ms(2000)) > 0.95);
    assert!(model.wait_max < Duration::from_ms(6), "{}", model.wait_max);
    assert!(
        (model.rate.rtt_least().as_secs_f64() - 0.02).abs() < 0.0005,
        "{}",
        model.rate.rtt_least()
    );
}

#[test]
fn follows_a_bottleneck_down_and_up() {
    let mut model = Model::new(400, Duration::from_ms(20), None);
    model.run_for(Duration::from_ms(2000));
    for mbps in [100, 400, 1600] {
        model.bottleneck = BitRate::from_bps(mbps * 1_000_000).unwrap();
        model.run_for(Duration::from_ms(2000));
        let used = model.used(Duration::from_ms(1000));
        assert!(used > 0.93, "{used} of {mbps}");
        assert!(model.wait_max < Duration::from_ms(8), "{} at {mbps}", model.wait_max);
    }
}

#[test]
fn never_exceeds_what_it_may_at_most() {
    let most = BitRate::from_bps(100_000_000).unwrap();
    let mut model = Model::new(400, Duration::from_ms(20), Some(most));
    for _ in 0..200 {
        model.run_for(Duration::from_ms(10));
        assert!(model.rate.rate() <= most);
    }
    assert!(model.used(Duration::from_ms(1000)) > 0.23);
    assert_eq!(model.rate.limited_by(), RateLimitedBy::Most);
}

#[test]
fn a_longer_path_is_believed_in_after_two_windows() {
    let mut model = Model::new(400, Duration::from_ms(20), None);
    model.run_for(Duration::from_ms(2000));
    model.rtt = Duration::from_ms(40);
    model.run_for(Duration::from_ms(12_000));
    assert!(model.used(Duration::from_ms(1000)) > 0.93);
    assert!(model.rate.rtt_least() >= Duration::from_ms(40), "{}", model.rate.rtt_least());
}

#[test]
fn the_same_seed_does_the_same() {
    let run = || {
        let mut model = Model::new(400, Duration::from_ms(20), None);
        model.run_for(Duration::from_ms(1000));
        (model.rate.rate(), model.heard)
    };
    assert_eq!(run(), run());
}

fn anything() -> impl Strategy<Value = u64> {
    prop_oneof![0..10_u64, 0..1_000_000_u64, any::<u64>(), Just(u64::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any input in any order, the rate and the in-flight limit are positive, and the maximum
    /// is not exceeded.
    #[test]
    fn absurd_news_do_no_harm(
        most in prop_oneof![Just(None), (1_000_u64..1_000_000_000_000).prop_map(BitRate::from_bps)],
        news in prop::collection::vec(prop::array::uniform9(anything()), 1..300),
    ) {
        let mut rate = PathRate::new(3, most);
        let mut now = Instant::ZERO;
        for [step, next, arrived_to, arrived, lost, marked, sent_bytes, arrived_bytes, rtt] in news
        {
            now += Duration::from_ps(step);
            let rtt = Duration::from_ps(rtt);
            let heard =
                Heard { next, arrived_to, arrived, lost, marked, sent_bytes, arrived_bytes, rtt };
            rate.hear(now, &heard);
            prop_assert!(rate.rate().as_bps() > 0);
            prop_assert!(most.is_none_or(|most| rate.rate() <= most));
            prop_assert!(rate.in_flight_max() > 0 && rate.in_flight_max() < 1 << 42);
            prop_assert!((0.0..=1.0).contains(&rate.gain()));
            prop_assert!(rate.delivered().is_none_or(|rate| rate.as_bps() > 0));
        }
    }

    /// The controller recovers after invalid input.
    #[test]
    fn it_recovers_from_lies(
        lies in prop::collection::vec((0_u64..100_000_000, 0_u64..10_000_000_000_000), 1..100),
    ) {
        let mut model = Model::new(100, Duration::from_ms(5), None);
        model.run_for(Duration::from_ms(300));
        for (bytes, rtt) in lies {
            let heard = Heard {
                rtt: model.rtt + Duration::from_ps(rtt),
                arrived_bytes: model.heard.arrived_bytes + bytes,
                ..model.heard
            };
            model.rate.hear(model.now, &heard);
        }
        model.run_for(Duration::from_ms(12_000));
        let used = model.used(Duration::from_ms(500));
        prop_assert!(used > 0.9, "{used}");
    }
}
