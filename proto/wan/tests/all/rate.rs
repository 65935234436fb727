//! The adaptive rate at a bottleneck: utilisation, queue length and fairness.

use crate::dumbbell::bbr::Bbr;
use crate::dumbbell::cubic::Cubic;
use crate::dumbbell::{Bottleneck, Competitor, Dumbbell, Shares, adaptive};
use longhaul_units::{BitRate, Duration};

/// A path, and the part of a run that is measured, in round trips after a start.
#[derive(Clone, Copy)]
struct Setup {
    mbps: u64,
    rtt_us: u64,
    /// In bandwidth-delay products.
    buffer: f64,
    marks_at: Option<f64>,
    loss: f64,
    jitter: Duration,
}

const PLAIN: Setup = Setup {
    mbps: 1000,
    rtt_us: 10_000,
    buffer: 2.0,
    marks_at: None,
    loss: 0.0,
    jitter: Duration::ZERO,
};

impl Setup {
    fn rtt(&self) -> Duration {
        Duration::from_us(self.rtt_us)
    }

    fn rate(&self) -> BitRate {
        BitRate::from_bps(self.mbps * 1_000_000).unwrap()
    }

    fn bdp(&self) -> u64 {
        self.rate().bytes_in(self.rtt())
    }

    fn net(&self) -> Dumbbell {
        let part = |of: f64| (self.bdp() as f64 * of) as u64;
        let mut bottleneck = Bottleneck::new(self.rate(), part(self.buffer));
        bottleneck.marks_at_bytes = self.marks_at.map(part);
        bottleneck.loss = self.loss;
        bottleneck.jitter = self.jitter;
        Dumbbell::new(bottleneck)
    }

    fn join(&self, net: &mut Dumbbell, start: Duration) {
        net.pair(|id| adaptive(id, self.bdp()), self.rtt(), start);
    }

    /// Results of one pair alone, from `from` round trips on for `rtts`.
    fn alone(&self, from: u64, rtts: u64) -> Shares {
        let mut net = self.net();
        self.join(&mut net, Duration::ZERO);
        net.run_for(self.rtt().times(from));
        net.measure(self.rtt().times(rtts))
    }

    fn assert_full(&self, shares: &Shares) {
        let queue = shares.queue_mean / self.bdp() as f64;
        assert!(shares.used() >= 0.95, "{} Mbit/s, {}: {shares:?}", self.mbps, self.rtt());
        assert!(
            queue < 0.1,
            "{} Mbit/s, {}: {queue} of what it holds, {shares:?}",
            self.mbps,
            self.rtt()
        );
    }
}

mod alone {
    use super::*;

    #[test]
    fn fills_short_and_long_paths_with_next_to_no_queue() {
        for (mbps, rtt_us, from) in [
            (1000, 1000, 100),
            (10_000, 1000, 100),
            (1000, 10_000, 100),
            (10_000, 10_000, 60),
            (300, 100_000, 60),
            (2000, 100_000, 60),
        ] {
            let setup = Setup { mbps, rtt_us, ..PLAIN };
            setup.assert_full(&setup.alone(from, 60));
        }
    }

    #[test]
    fn fills_a_hundred_gigabit() {
        let setup = Setup { mbps: 100_000, rtt_us: 1000, ..PLAIN };
        setup.assert_full(&setup.alone(100, 200));
    }

    #[test]
    fn needs_no_large_buffer() {
        for buffer in [0.02, 0.1, 0.5] {
            let setup = Setup { buffer, ..PLAIN };
            let shares = setup.alone(100, 100);
            setup.assert_full(&shares);
            let dropped = shares.dropped as f64 / (100.0 * setup.bdp() as f64);
            assert!(dropped < 0.05, "{buffer}: {dropped} dropped");
        }
    }

    #[test]
    fn heeds_marks() {
        let setup = Setup { marks_at: Some(0.05), ..PLAIN };
        let shares = setup.alone(100, 100);
        setup.assert_full(&shares);
        let deep = Setup { marks_at: Some(0.01), buffer: 0.02, ..PLAIN }.alone(100, 100);
        assert!(deep.used() > 0.9, "{deep:?}");
    }

    #[test]
    fn loss_that_is_not_its_own_costs_it_nothing() {
        for loss in [1e-3, 1e-2, 5e-2] {
            let setup = Setup { loss, ..PLAIN };
            setup.assert_full(&setup.alone(150, 100));
        }
    }

    #[test]
    fn jitter_costs_it_nothing() {
        let setup = Setup { jitter: Duration::from_ms(1), ..PLAIN };
        setup.assert_full(&setup.alone(100, 100));
    }

    #[test]
    fn follows_a_rate_that_halves_and_doubles() {
        let mut net = PLAIN.net();
        PLAIN.join(&mut net, Duration::ZERO);
        net.run_for(Duration::from_ms(1000));
        let half = Setup { mbps: 500, ..PLAIN };
        net.bottleneck.set_rate(net.now, half.rate());
        net.run_for(Duration::from_ms(500));
        half.assert_full(&net.measure(Duration::from_ms(1000)));
        net.bottleneck.set_rate(net.now, PLAIN.rate());
        net.run_for(Duration::from_ms(500));
        PLAIN.assert_full(&net.measure(Duration::from_ms(1000)));
    }

    #[test]
    fn one_with_little_to_send_does_not_guess() {
        let mut net = PLAIN.net();
        PLAIN.join(&mut net, Duration::ZERO);
        // A tenth of the rate for long, then the full rate.
        net.slow_down(0, Duration::from_us(330));
        net.run_for(Duration::from_ms(1500));
        let path = net.path(0);
        assert_eq!(path.limited_by, "sender");
        net.slow_down(0, Duration::ZERO);
        net.run_for(Duration::from_ms(20));
        assert!(net.bottleneck.queue_max < 2 * PLAIN.bdp(), "{}", net.bottleneck.queue_max);
        net.run_for(Duration::from_ms(1000));
        PLAIN.assert_full(&net.measure(Duration::from_ms(500)));
        let path = net.path(0);
        let delivered = path.delivered.unwrap().as_gbps();
        assert!((0.9..1.05).contains(&delivered), "{path:?}");
        assert!(path.queue_delay.unwrap() < Duration::from_ms(3), "{path:?}");
    }
}

mod together {
    use super::*;

    fn shares(setup: &Setup, starts_ms: &[u64], until_ms: u64, over_ms: u64) -> Shares {
        let mut net = setup.net();
        starts_ms.iter().for_each(|&start| setup.join(&mut net, Duration::from_ms(start)));
        net.run_for(Duration::from_ms(until_ms));
        net.measure(Duration::from_ms(over_ms))
    }

    #[test]
    fn two_share_although_one_comes_late() {
        for setup in [
            PLAIN,
            Setup { rtt_us: 1000, ..PLAIN },
            Setup { marks_at: Some(0.05), ..PLAIN },
            Setup { loss: 1e-3, ..PLAIN },
        ] {
            let shares = shares(&setup, &[0, 1000], 4000, 1000);
            setup.assert_full(&shares);
            assert!(shares.jain() > 0.95, "{shares:?}");
        }
    }

    #[test]
    fn two_that_begin_at_once_share() {
        let shares = shares(&PLAIN, &[0, 0], 2000, 1000);
        PLAIN.assert_full(&shares);
        assert!(shares.jain() > 0.95, "{shares:?}");
    }

    #[test]
    fn four_need_no_long_queue_after_the_rate_fell() {
        let mut net = PLAIN.net();
        [0, 300, 600, 900].iter().for_each(|ms| PLAIN.join(&mut net, Duration::from_ms(*ms)));
        net.run_for(Duration::from_ms(4000));
        let slow = Setup { mbps: 250, ..PLAIN };
        net.bottleneck.set_rate(net.now, slow.rate());
        net.run_for(Duration::from_ms(2000));
        let shares = net.measure(Duration::from_ms(2000));
        assert!(shares.used() >= 0.95, "{shares:?}");
        assert!(shares.queue_mean < 0.2 * slow.bdp() as f64, "{shares:?}");
    }

    #[test]
    fn four_share_less_evenly() {
        let shares = shares(&PLAIN, &[0, 300, 600, 900], 4000, 4000);
        PLAIN.assert_full(&shares);
        assert!(shares.jain() > 0.8, "{shares:?}");
    }
}

/// One pair and one other flow at 500 Mbit/s over 200 and 1000 km.
mod beside_tcp {
    use super::*;

    /// Shares of the pair and of the other flow, which begins 2 s after the pair or before it.
    fn shares(
        rtt_us: u64,
        buffer: f64,
        other: Box<dyn Competitor>,
        is_first: bool,
    ) -> (f64, Shares) {
        let setup = Setup { mbps: 500, rtt_us, buffer, ..PLAIN };
        let mut net = setup.net();
        let (start, other_start) = if is_first { (0, 2000) } else { (2000, 0) };
        setup.join(&mut net, Duration::from_ms(start));
        net.other(other, setup.rtt(), Duration::from_ms(other_start));
        net.run_for(Duration::from_ms(6000));
        let shares = net.measure(Duration::from_ms(14_000));
        (shares.of_rate[0], shares)
    }

    fn assert_half(rtt_us: u64, other: fn() -> Box<dyn Competitor>, is_first: bool) {
        for buffer in [0.5, 1.0, 4.0] {
            let (share, shares) = shares(rtt_us, buffer, other(), is_first);
            assert!((0.35..=0.65).contains(&share), "{rtt_us} us, {buffer} BDP: {shares:?}");
        }
    }

    fn cubic() -> Box<dyn Competitor> {
        Box::new(Cubic::new())
    }

    fn bbr() -> Box<dyn Competitor> {
        Box::new(Bbr::new())
    }

    #[test]
    fn cubic_that_comes_later_leaves_half_and_gets_half() {
        assert_half(2000, cubic, true);
        assert_half(10_000, cubic, true);
    }

    #[test]
    fn cubic_that_was_first_leaves_half_and_keeps_half() {
        assert_half(2000, cubic, false);
        assert_half(10_000, cubic, false);
    }

    #[test]
    fn bbr_that_comes_later_leaves_half_and_gets_half() {
        assert_half(2000, bbr, true);
        assert_half(10_000, bbr, true);
    }

    #[test]
    fn bbr_that_was_first_leaves_half_and_keeps_half() {
        assert_half(2000, bbr, false);
        assert_half(10_000, bbr, false);
    }
}
