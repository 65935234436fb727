//! The limiter of a QP in virtual time: exact rates, by program and by congestion.

use longhaul_cc::dcqcn::{CnpOutcome, Dcqcn, NotificationConfig, ReactionConfig};
use longhaul_cc::{RateLimit, RateLimiter, wire_bytes};
use longhaul_units::{BitRate, Duration, Instant, Rng, SplitMix64};

const SECOND: Instant = Instant::from_ns(1_000_000_000);
/// Ethernet, IPv4, UDP, BTH and ICRC around the payload of a MIDDLE packet.
const HEADERS: usize = 14 + 20 + 8 + 12 + 4;
const RETH: usize = 16;
const MTU: usize = 4096;

fn gbps(gbps: u64) -> BitRate {
    BitRate::from_gbps(gbps).unwrap()
}

fn dcqcn(line_gbps: u64) -> Dcqcn {
    Dcqcn::nvidia(gbps(line_gbps)).unwrap()
}

fn kbps(rate: BitRate) -> u32 {
    (rate.as_bps() / 1000) as u32
}

/// Wire bytes of the packets of equal WRITEs, repeated.
struct Writes {
    message: usize,
    done: usize,
}

impl Writes {
    fn of(message: usize) -> Self {
        Writes { message, done: 0 }
    }

    fn next_packet(&mut self) -> u64 {
        let reth = if self.done == 0 { RETH } else { 0 };
        let payload = MTU.min(self.message - self.done);
        self.done = (self.done + payload) % self.message;
        wire_bytes(HEADERS + reth + payload)
    }
}

/// Sends as fast as the limiter permits, called at the times that it requests plus up to `lateness`
/// at random.
fn send_for(
    limiter: &mut RateLimiter,
    dcqcn: &Dcqcn,
    message: usize,
    from: Instant,
    until: Instant,
    lateness: Duration,
) -> u64 {
    let mut rng = SplitMix64::new(9);
    let mut writes = Writes::of(message);
    let mut now = from;
    let mut bytes = 0;
    loop {
        let ready = limiter.ready_at(now, dcqcn);
        if ready > now {
            let late = if lateness == Duration::ZERO { 0 } else { rng.below(lateness.as_ps()) };
            now = ready + Duration::from_ps(late);
            if now >= until {
                return bytes;
            }
            continue;
        }
        let packet = writes.next_packet();
        limiter.take(now, packet, dcqcn);
        bytes += packet;
    }
}

#[track_caller]
fn assert_exact(bytes: u64, rate: BitRate, time: Duration, what: &str) {
    let expected = rate.bytes_in(time) as f64;
    let error = bytes as f64 / expected - 1.0;
    assert!(error.abs() < 0.005, "{what}: {:+.3} %", error * 100.0);
}

fn limited(rate: BitRate, burst: u32) -> RateLimiter {
    let mut limiter = RateLimiter::new();
    limiter.set_limit(Instant::ZERO, RateLimit::from_verbs(kbps(rate), burst, 0));
    limiter
}

mod program_limit {
    use super::*;

    #[test]
    fn is_exact_over_a_second_from_64_bytes_to_64_kib() {
        let dcqcn = dcqcn(400);
        for rate in [1, 10, 25, 100] {
            for message in [64, 1000, 4096, 65_536] {
                let rate = gbps(rate);
                // A second at 100 Gbit/s is 77 million small packets; a tenth of it must suffice.
                let is_long = message >= MTU || rate <= gbps(10);
                let end = if is_long { SECOND } else { Instant::from_ns(100_000_000) };
                let mut limiter = limited(rate, 0);
                let bytes =
                    send_for(&mut limiter, &dcqcn, message, Instant::ZERO, end, Duration::ZERO);
                assert_exact(
                    bytes,
                    rate,
                    end.since(Instant::ZERO),
                    &format!("{rate}, {message} B"),
                );
            }
        }
    }

    #[test]
    fn is_exact_when_the_loop_comes_late() {
        let dcqcn = dcqcn(400);
        for rate in [1, 10, 100] {
            for lateness_us in [5, 50, 900] {
                let rate = gbps(rate);
                let mut limiter = limited(rate, 0);
                let lateness = Duration::from_us(lateness_us);
                let bytes = send_for(&mut limiter, &dcqcn, 65_536, Instant::ZERO, SECOND, lateness);
                let what = format!("{rate}, up to {lateness} late");
                assert_exact(bytes, rate, SECOND.since(Instant::ZERO), &what);
            }
        }
    }

    #[test]
    fn a_pause_saves_up_no_more_than_the_burst() {
        let dcqcn = dcqcn(400);
        let rate = gbps(10);
        let mut limiter = limited(rate, 0);
        let end = SECOND + Duration::from_ms(30);
        let bytes = send_for(&mut limiter, &dcqcn, 4096, SECOND, end, Duration::from_us(50));
        assert_exact(bytes, rate, end.since(SECOND), "30 ms after a pause");
    }

    #[test]
    fn a_burst_that_the_program_names_is_kept() {
        let dcqcn = dcqcn(400);
        let mut limiter = limited(gbps(1), 10_000);
        let mut back_to_back = 0;
        while limiter.ready_at(SECOND, &dcqcn) == SECOND {
            limiter.take(SECOND, 1000, &dcqcn);
            back_to_back += 1000;
        }
        assert!(back_to_back <= 10_000, "{back_to_back}");
    }

    #[test]
    fn zero_lifts_it() {
        assert_eq!(RateLimit::from_verbs(0, 0, 0), None);
        let mut limiter = limited(gbps(1), 0);
        assert_eq!(limiter.rate(), Some(gbps(1)));
        limiter.set_limit(Instant::ZERO, None);
        assert!(!limiter.is_active());
        limiter.take(Instant::ZERO, u64::MAX, &dcqcn(10));
        assert_eq!(limiter.ready_at(Instant::ZERO, &dcqcn(10)), Instant::ZERO);
    }

    #[test]
    fn changes_at_once() {
        let dcqcn = dcqcn(400);
        let mut limiter = limited(gbps(1), 0);
        send_for(&mut limiter, &dcqcn, 4096, Instant::ZERO, SECOND, Duration::ZERO);
        limiter.set_limit(SECOND, RateLimit::from_verbs(kbps(gbps(20)), 0, 0));
        let end = SECOND + Duration::from_ms(100);
        let bytes = send_for(&mut limiter, &dcqcn, 4096, SECOND, end, Duration::ZERO);
        assert_exact(bytes, gbps(20), end.since(SECOND), "20 Gbit/s after 1");
    }
}

mod congestion {
    use super::*;

    #[test]
    fn without_notifications_there_is_no_limiter() {
        let mut limiter = RateLimiter::new();
        let dcqcn = dcqcn(100);
        for ns in 0..1000 {
            let now = Instant::from_ns(ns);
            assert_eq!(limiter.ready_at(now, &dcqcn), now);
            limiter.take(now, 4178, &dcqcn);
        }
        assert!(!limiter.is_active());
        assert_eq!(size_of::<RateLimiter>(), 8);
    }

    #[test]
    fn the_lower_one_of_both_limits_holds() {
        let dcqcn = dcqcn(100);
        let mut limiter = limited(gbps(80), 0);
        assert_eq!(limiter.on_cnp(Instant::ZERO, &dcqcn), CnpOutcome::Handled);
        let halved = limiter.rate().unwrap().as_gbps();
        assert!((50.0..50.1).contains(&halved), "{halved}");
        limiter.set_limit(Instant::ZERO, RateLimit::from_verbs(kbps(gbps(3)), 0, 0));
        assert_eq!(limiter.rate(), Some(gbps(3)));
        limiter.set_limit(Instant::ZERO, None);
        assert_eq!(limiter.rate().unwrap().as_gbps(), halved);
    }

    #[test]
    fn the_limiter_is_gone_once_the_rate_is_back() {
        let dcqcn = dcqcn(100);
        let mut limiter = RateLimiter::new();
        limiter.on_cnp(Instant::ZERO, &dcqcn);
        assert!(limiter.is_active());
        assert_eq!(limiter.ready_at(SECOND, &dcqcn), SECOND);
        assert!(!limiter.is_active());

        let mut limiter = limited(gbps(7), 0);
        limiter.on_cnp(Instant::ZERO, &dcqcn);
        limiter.ready_at(SECOND, &dcqcn);
        assert_eq!(limiter.rate(), Some(gbps(7)));
    }

    #[test]
    fn a_notification_leaves_nothing_saved_up() {
        let dcqcn = dcqcn(100);
        let mut limiter = RateLimiter::new();
        limiter.on_cnp(SECOND, &dcqcn);
        assert!(limiter.ready_at(SECOND, &dcqcn) > SECOND);
    }

    #[test]
    fn a_waiting_packet_gains_from_each_increase() {
        // 64 KiB of debt at 1 Mbit/s take half a second; by then the rate has recovered.
        let config = ReactionConfig { rate_to_set_on_first_cnp: 1, ..ReactionConfig::NVIDIA };
        let dcqcn = Dcqcn::new(&config, &NotificationConfig::default(), gbps(1)).unwrap();
        let mut limiter = RateLimiter::new();
        limiter.on_cnp(Instant::ZERO, &dcqcn);
        limiter.take(Instant::ZERO, 65_536, &dcqcn);
        let mut now = Instant::ZERO;
        let mut asked = 0;
        loop {
            let ready = limiter.ready_at(now, &dcqcn);
            if ready == now {
                break;
            }
            now = ready;
            asked += 1;
        }
        assert!(now < Instant::from_ns(20_000_000), "{now:?}");
        assert!((2..100).contains(&asked), "{asked}");
    }
}
