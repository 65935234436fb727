//! DCQCN in virtual time: the model's rates after notifications, invariants for any sequence of
//! events, and many senders at one marking queue.

use longhaul_cc::dcqcn::{
    CeOutcome, CnpOutcome, Dcqcn, NotificationConfig, NotificationPoint, ReactionConfig,
    ReactionPoint,
};
use longhaul_cc::{Pacer, RateLimiter};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};
use proptest::prelude::*;

fn gbps(gbps: u64) -> BitRate {
    BitRate::from_gbps(gbps).unwrap()
}

fn us(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

fn build(reaction: ReactionConfig, line: BitRate) -> Dcqcn {
    Dcqcn::new(&reaction, &NotificationConfig::default(), line).unwrap()
}

fn rate(point: &ReactionPoint) -> f64 {
    point.rate().map_or(f64::INFINITY, |rate| rate.as_gbps())
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-3, "{value}, expected {expected}");
}

mod reduction {
    use super::*;

    #[test]
    fn the_first_notification_halves_the_rate() {
        let dcqcn = build(ReactionConfig::NVIDIA, gbps(100));
        let mut point = ReactionPoint::new();
        assert_eq!(point.rate(), None);
        assert_eq!(point.on_cnp(us(10), &dcqcn), CnpOutcome::Handled);
        assert_near(rate(&point), 100.0 * (1.0 - 1023.0 / 2048.0));
    }

    #[test]
    fn the_first_notification_sets_the_rate_that_is_configured() {
        let config = ReactionConfig { rate_to_set_on_first_cnp: 30_000, ..ReactionConfig::NVIDIA };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(10), &dcqcn);
        assert_near(rate(&point), 30.0);
        // The target is reduced likewise: one step of fast recovery gains nothing.
        point.handle_timeout(us(310), &dcqcn);
        assert_near(rate(&point), 30.0);
    }

    #[test]
    fn notifications_within_the_period_reduce_once_at_its_end() {
        let dcqcn = build(ReactionConfig::NVIDIA, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        let first = rate(&point);
        point.on_cnp(us(1), &dcqcn);
        point.on_cnp(us(2), &dcqcn);
        assert_eq!(rate(&point), first);
        assert_eq!(point.poll_timeout(&dcqcn), Some(us(4)));
        point.handle_timeout(us(4), &dcqcn);
        let second = rate(&point);
        assert!(second < 0.52 * first, "{second}");
        point.handle_timeout(us(200), &dcqcn);
        assert_eq!(rate(&point), second);
    }

    #[test]
    fn alpha_decays_between_notifications() {
        // A millisecond is 1000 alpha periods: (1019/1024)^1000 of one is 0.75 %.
        let config = ReactionConfig { rpg_time_reset: 1_000_000, ..ReactionConfig::NVIDIA };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        let before = rate(&point);
        point.on_cnp(us(1000), &dcqcn);
        let alpha = 1023.0 / 1024.0 * (1019.0_f64 / 1024.0).powi(1000);
        assert_near(1.0 - rate(&point) / before, alpha / 2.0);
    }

    #[test]
    fn alpha_rises_in_a_period_with_a_notification() {
        let config = ReactionConfig {
            initial_alpha_value: 1,
            dce_tcp_g: 512,
            dce_tcp_rtt: 10,
            rpg_time_reset: 1_000_000,
            ..ReactionConfig::NVIDIA
        };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        let mut alpha = 1.0 / 1024.0;
        let mut expected = 100.0;
        for i in 0..6 {
            // One in each period; the first period begins at the first notification, which does not
            // count for it.
            point.on_cnp(us(i * 10), &dcqcn);
            match i {
                0 => {}
                1 => alpha /= 2.0,
                _ => alpha = alpha / 2.0 + 0.5,
            }
            expected *= 1.0 - alpha / 2.0;
            assert_near(rate(&point), expected);
        }
    }

    #[test]
    fn takes_no_more_than_the_least_share_leaves() {
        let config = ReactionConfig { rpg_gd: 10, rpg_min_dec_fac: 75, ..ReactionConfig::NVIDIA };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        assert_near(rate(&point), 75.0);
    }

    #[test]
    fn stops_at_the_least_rate() {
        let config = ReactionConfig { rpg_min_rate: 500, ..ReactionConfig::NVIDIA };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        for i in 0..10_000 {
            point.on_cnp(us(i * 4), &dcqcn);
        }
        assert_near(rate(&point), 0.5);
    }

    #[test]
    fn a_disabled_point_ignores_notifications() {
        let dcqcn = build(ReactionConfig { enable: false, ..ReactionConfig::NVIDIA }, gbps(100));
        let mut point = ReactionPoint::new();
        assert_eq!(point.on_cnp(us(0), &dcqcn), CnpOutcome::Ignored);
        assert_eq!(point.rate(), None);
    }
}

mod target {
    use super::*;

    /// Two reductions with `between` in the middle; returns the rate after one step of fast
    /// recovery, in Gbit/s.
    fn recovered(
        config: ReactionConfig,
        between: impl Fn(&mut ReactionPoint, &Dcqcn),
    ) -> (f64, f64) {
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        between(&mut point, &dcqcn);
        let before = rate(&point);
        let due = point.poll_timeout(&dcqcn).unwrap();
        let again = Instant::from_ps(due.as_ps() - 1);
        point.on_cnp(again, &dcqcn);
        let reduced = rate(&point);
        point.handle_timeout(again + Duration::from_us(300), &dcqcn);
        (2.0 * rate(&point) - reduced, before)
    }

    #[test]
    fn stays_without_an_increase_in_between() {
        let (target, _) = recovered(ReactionConfig::NVIDIA, |_, _| {});
        assert_near(target, 100.0);
    }

    #[test]
    fn is_clamped_after_an_increase_by_time() {
        let between =
            |point: &mut ReactionPoint, dcqcn: &Dcqcn| point.handle_timeout(us(300), dcqcn);
        let (target, before) = recovered(ReactionConfig::NVIDIA, between);
        assert_near(target, before);
        let config =
            ReactionConfig { clamp_tgt_rate_after_time_inc: false, ..ReactionConfig::NVIDIA };
        assert_near(recovered(config, between).0, 100.0);
    }

    #[test]
    fn is_clamped_after_an_increase_by_bytes() {
        let between =
            |point: &mut ReactionPoint, dcqcn: &Dcqcn| point.on_sent(us(100), 2_097_088, dcqcn);
        let config =
            ReactionConfig { clamp_tgt_rate_after_time_inc: false, ..ReactionConfig::NVIDIA };
        let (target, before) = recovered(config, between);
        assert_near(target, before);
    }

    #[test]
    fn is_always_clamped_when_told_so() {
        let config = ReactionConfig { clamp_tgt_rate: true, ..ReactionConfig::NVIDIA };
        let (target, before) = recovered(config, |_, _| {});
        assert_near(target, before);
    }
}

mod recovery {
    use super::*;

    #[test]
    fn fast_recovery_halves_the_distance_at_each_tick() {
        let dcqcn = build(ReactionConfig { rpg_threshold: 5, ..ReactionConfig::NVIDIA }, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        let missing = 100.0 - rate(&point);
        for tick in 1..=5 {
            point.handle_timeout(us(300 * tick), &dcqcn);
            assert_near(100.0 - rate(&point), missing / f64::from(1 << tick));
        }
    }

    #[test]
    fn one_notification_costs_as_long_as_the_model_says() {
        // 50 Gbit/s are missing, and a halving takes 300 µs; after 14 less than 5 Mbit/s are
        // missing.
        let dcqcn =
            build(ReactionConfig { rpg_byte_reset: 0, ..ReactionConfig::NVIDIA }, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        let mut now = Instant::ZERO;
        while let Some(next) = point.poll_timeout(&dcqcn) {
            now = next;
            point.handle_timeout(now, &dcqcn);
        }
        assert_eq!(now, us(14 * 300));
    }

    #[test]
    fn bytes_count_like_ticks() {
        let dcqcn = build(ReactionConfig { rpg_threshold: 5, ..ReactionConfig::NVIDIA }, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        let missing = 100.0 - rate(&point);
        point.on_sent(us(1), 2_097_087, &dcqcn);
        assert_near(100.0 - rate(&point), missing);
        point.on_sent(us(2), 1, &dcqcn);
        assert_near(100.0 - rate(&point), missing / 2.0);
        point.on_sent(us(3), 3 * 2_097_088, &dcqcn);
        assert_near(100.0 - rate(&point), missing / 16.0);
    }

    /// Starts at 1 Gbit/s, with the same target, and returns the rate after this many ticks and
    /// byte counts.
    fn increased(ticks: u64, counts: u64) -> f64 {
        let config = ReactionConfig {
            rate_to_set_on_first_cnp: 1000,
            rpg_threshold: 2,
            ..ReactionConfig::NVIDIA
        };
        let dcqcn = build(config, gbps(100));
        let mut point = ReactionPoint::new();
        point.on_cnp(us(0), &dcqcn);
        point.on_sent(us(1), counts * 2_097_088, &dcqcn);
        point.handle_timeout(us(ticks * 300), &dcqcn);
        rate(&point) * 1000.0
    }

    #[test]
    fn beyond_the_threshold_the_target_moves() {
        assert_near(increased(2, 0), 1000.0);
        assert_near(increased(3, 0), 1002.5);
        assert_near(increased(0, 3), 1002.5);
        assert_near(increased(4, 0), 1002.5 / 2.0 + 1010.0 / 2.0);
        // Counts 1 to 3 add one step, ticks 1 and 2 two more; tick 3 is the first beyond both.
        assert_near(increased(3, 3), 1038.0);
    }

    #[test]
    fn hyper_increase_takes_larger_steps() {
        let additive = increased(1003, 0) - 1000.0;
        let hyper = increased(1003, 3) - 1000.0;
        assert!((9.5..10.5).contains(&(hyper / additive)), "{hyper} and {additive} Mbit/s");
    }

    #[test]
    fn a_rest_brings_the_line_rate_back() {
        let dcqcn = build(ReactionConfig::NVIDIA, gbps(100));
        let mut point = ReactionPoint::new();
        for i in 0..1000 {
            point.on_cnp(us(i * 4), &dcqcn);
        }
        assert_near(rate(&point), 0.001);
        point.handle_timeout(us(20_000_000), &dcqcn);
        assert_eq!(point.rate(), None);
        // The next notification is a first one.
        point.on_cnp(us(20_000_000), &dcqcn);
        assert_near(rate(&point), 50.0);
    }
}

mod any_sequence {
    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Cnp,
        Sent(u64),
        Ask,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Cnp),
            (0_u64..10_000_000).prop_map(Event::Sent),
            any::<u64>().prop_map(Event::Sent),
            Just(Event::Ask),
        ]
    }

    /// Times are picoseconds, scaled by a power of two so that all scales occur.
    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let pause = (0_u32..54, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1));
        prop::collection::vec((pause, event()), 1..60)
    }

    prop_compose! {
        fn config()(
            (clamp_tgt_rate, clamp_tgt_rate_after_time_inc) in any::<(bool, bool)>(),
            dce_tcp_g in 0_u32..1024,
            dce_tcp_rtt in 1_u32..131_072,
            initial_alpha_value in 1_u32..1024,
            rate_reduce_monitor_period in prop_oneof![Just(0), 0_u32..1000, any::<u32>()],
            rate_to_set_on_first_cnp in prop_oneof![Just(0), any::<u32>()],
            (rpg_ai_rate, rpg_hai_rate) in prop_oneof![
                (1_u32..100, 1_u32..1000),
                (1..=u32::MAX, 1..=u32::MAX),
            ],
            rpg_byte_reset in prop_oneof![Just(0), Just(1), any::<u32>()],
            rpg_time_reset in prop_oneof![1_u32..1000, 1..=u32::MAX],
            (rpg_threshold, rpg_gd, rpg_min_dec_fac) in (0_u32..32, 10_u32..12, 0_u32..101),
            rpg_min_rate in 1_u32..1000,
        ) -> ReactionConfig {
            ReactionConfig {
                enable: true, clamp_tgt_rate, clamp_tgt_rate_after_time_inc, dce_tcp_g, dce_tcp_rtt,
                initial_alpha_value, rate_reduce_monitor_period, rate_to_set_on_first_cnp,
                rpg_ai_rate, rpg_hai_rate, rpg_byte_reset, rpg_time_reset, rpg_threshold, rpg_gd,
                rpg_min_dec_fac, rpg_min_rate, rpg_max_rate: 0,
            }
        }
    }

    fn apply(point: &mut ReactionPoint, now: Instant, event: &Event, dcqcn: &Dcqcn) {
        match event {
            Event::Cnp => drop(point.on_cnp(now, dcqcn)),
            Event::Sent(bytes) => point.on_sent(now, *bytes, dcqcn),
            Event::Ask => point.handle_timeout(now, dcqcn),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 1000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn leaves_the_rate_between_least_and_line(
            config in config(),
            line in prop_oneof![1_000_000_000..1_000_000_000_000_u64, Just(u64::MAX)],
            events in events(),
        ) {
            let dcqcn = build(config, BitRate::from_bps(line).unwrap());
            let mut point = ReactionPoint::new();
            let mut now = Instant::ZERO;
            for (pause, event) in events {
                now += Duration::from_ps(pause);
                apply(&mut point, now, &event, &dcqcn);
                if let Some(rate) = point.rate() {
                    let least = u64::from(config.rpg_min_rate) * 1_000_000;
                    prop_assert!((least..=line).contains(&rate.as_bps()), "{rate}");
                }
            }
        }

        #[test]
        fn gives_the_same_rate_however_often_it_is_asked(config in config(), events in events()) {
            let dcqcn = build(config, gbps(100));
            let (mut lazy, mut keen) = (ReactionPoint::new(), ReactionPoint::new());
            let mut now = Instant::ZERO;
            for (pause, event) in events {
                let next = now + Duration::from_ps(pause);
                for _ in 0..200 {
                    match keen.poll_timeout(&dcqcn) {
                        Some(at) if at < next => keen.handle_timeout(at, &dcqcn),
                        _ => break,
                    }
                }
                now = next;
                keen.handle_timeout(now, &dcqcn);
                apply(&mut keen, now, &event, &dcqcn);
                if !matches!(event, Event::Ask) {
                    apply(&mut lazy, now, &event, &dcqcn);
                }
            }
            lazy.handle_timeout(now, &dcqcn);
            keen.handle_timeout(now, &dcqcn);
            prop_assert_eq!(lazy.rate(), keen.rate());
        }

        #[test]
        fn a_limiter_neither_panics_nor_stops_for_good(config in config(), events in events()) {
            let dcqcn = build(config, gbps(100));
            let mut limiter = RateLimiter::new();
            let mut now = Instant::ZERO;
            for (pause, event) in events {
                now += Duration::from_ps(pause);
                match event {
                    Event::Cnp => drop(limiter.on_cnp(now, &dcqcn)),
                    Event::Sent(bytes) => limiter.take(now, bytes, &dcqcn),
                    Event::Ask => {
                        let ready = limiter.ready_at(now, &dcqcn);
                        prop_assert!(ready >= now);
                    }
                }
            }
        }
    }
}

mod shared_bottleneck {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    const PACKET: u64 = 4178;

    /// A queue that marks as RED does, by its length when a packet arrives, and drops packets that
    /// do not fit.
    struct Queue {
        rate: BitRate,
        /// Time at which the queue will be empty.
        free_at: Instant,
        k_min: u64,
        k_max: u64,
        p_max: f64,
        room: u64,
        drops: u64,
    }

    impl Queue {
        /// Time at which the packet leaves, and whether it is marked; `None` if it is dropped.
        fn pass(&mut self, now: Instant, rng: &mut SplitMix64) -> Option<(Instant, bool)> {
            let held = self.rate.bytes_in(self.free_at.since(now));
            if held + PACKET > self.room {
                self.drops += 1;
                return None;
            }
            let p = if held <= self.k_min {
                0.0
            } else if held >= self.k_max {
                1.0
            } else {
                self.p_max * (held - self.k_min) as f64 / (self.k_max - self.k_min) as f64
            };
            self.free_at = self.free_at.max(now) + self.rate.time_for_bytes(PACKET);
            Some((self.free_at, rng.chance(p)))
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Step {
        Cnp,
        Arrive { marked: bool },
        Send,
    }

    struct Flow {
        limiter: RateLimiter,
        port: Pacer,
        notification: NotificationPoint,
        cnps: u64,
        /// During the measured period.
        bytes: u64,
    }

    struct Outcome {
        jain: f64,
        utilisation: f64,
        drops: u64,
        cnps: u64,
    }

    /// Senders at line rate, starting 1 ms apart, into one queue of the same rate for 300 ms, of
    /// which the second half is measured.
    fn run(flows: usize, line: BitRate, dcqcn: &Dcqcn) -> Outcome {
        let flight = Duration::from_us(2);
        let end = us(300_000);
        let half = us(150_000);
        let k_min = line.bytes_in(Duration::from_us(32));
        let mut queue = Queue {
            rate: line,
            free_at: Instant::ZERO,
            k_min,
            k_max: 4 * k_min,
            p_max: 0.2,
            room: 32 * k_min,
            drops: 0,
        };
        let mut rng = SplitMix64::new(5);
        let mut heap = BinaryHeap::new();
        let mut all: Vec<Flow> = Vec::new();
        for i in 0..flows {
            heap.push(Reverse((us(1000 * i as u64), i, Step::Send)));
            all.push(Flow {
                limiter: RateLimiter::new(),
                port: Pacer::new(line, 0),
                notification: NotificationPoint::new(),
                cnps: 0,
                bytes: 0,
            });
        }
        while let Some(Reverse((now, i, step))) = heap.pop() {
            if now >= end {
                break;
            }
            let flow = &mut all[i];
            match step {
                Step::Cnp => {
                    flow.cnps += 1;
                    assert_eq!(flow.limiter.on_cnp(now, dcqcn), CnpOutcome::Handled);
                }
                Step::Arrive { marked } => {
                    flow.bytes += if now >= half { PACKET } else { 0 };
                    if marked && flow.notification.on_ce(now, dcqcn) == CeOutcome::SendCnp {
                        heap.push(Reverse((now + flight, i, Step::Cnp)));
                    }
                }
                Step::Send => {
                    let ready = flow.limiter.ready_at(now, dcqcn).max(flow.port.ready_at(now));
                    if ready > now {
                        heap.push(Reverse((ready, i, Step::Send)));
                        continue;
                    }
                    flow.limiter.take(now, PACKET, dcqcn);
                    flow.port.take(now, PACKET);
                    if let Some((left, marked)) = queue.pass(now, &mut rng) {
                        heap.push(Reverse((left + flight, i, Step::Arrive { marked })));
                    }
                    heap.push(Reverse((flow.port.ready_at(now), i, Step::Send)));
                }
            }
        }
        let shares: Vec<f64> = all.iter().map(|flow| flow.bytes as f64).collect();
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        Outcome {
            jain: sum * sum / (flows as f64 * squares),
            utilisation: sum / line.bytes_in(end.since(half)) as f64,
            drops: queue.drops,
            cnps: all.iter().map(|flow| flow.cnps).sum(),
        }
    }

    #[test]
    fn one_sender_keeps_the_line_rate() {
        let outcome = run(1, gbps(10), &build(ReactionConfig::NVIDIA, gbps(10)));
        assert_eq!(outcome.cnps, 0);
        assert!(outcome.utilisation > 0.999, "{}", outcome.utilisation);
    }

    fn assert_fair(name: &str, dcqcn: &Dcqcn, line: BitRate) {
        for flows in [2, 4, 16] {
            let outcome = run(flows, line, dcqcn);
            let Outcome { jain, utilisation, drops, cnps } = outcome;
            let what = format!(
                "{name}, {flows} at {line}: Jain {jain:.3}, utilisation {utilisation:.3}, {cnps} \
                 CNPs, {drops} drops"
            );
            assert!(jain > 0.9, "{what}");
            assert!(utilisation > 0.85, "{what}");
        }
    }

    #[test]
    fn senders_with_an_adapters_defaults_share_fairly() {
        for line in [gbps(10), gbps(40)] {
            assert_fair("NVIDIA", &build(ReactionConfig::NVIDIA, line), line);
        }
    }

    #[test]
    fn senders_with_the_papers_parameters_share_fairly() {
        let notification = NotificationConfig { enable: true, min_time_between_cnps: 50 };
        for line in [gbps(10), gbps(40)] {
            let dcqcn = Dcqcn::new(&ReactionConfig::PAPER, &notification, line).unwrap();
            assert_fair("paper", &dcqcn, line);
        }
    }
}
