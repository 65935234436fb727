//! Path MTU discovery by padded PINGs, after RFC 8899.
//!
//! A path begins with a length that nearly every path carries. A round of probes tries several
//! lengths at once, the longest first; the next round tries lengths between the longest that was
//! answered and the shortest that was not. If long datagrams are lost while shorter ones arrive,
//! the result is withdrawn and the search begins again.
//!
//! Lengths are those of IP packets as the transport sends them; a layer between it and the path,
//! such as a seal, is measured along with the path.

use crate::silence::HELD_UP;
use longhaul_units::{Duration, Instant};

/// Minimum path MTU in bytes: what every IPv4 host must accept.
pub(crate) const MTU_MIN: u16 = 576;
/// Length that a path is assumed to carry without a probe, in bytes (RFC 8899's BASE_PLPMTU).
pub(crate) const MTU_BASE: u16 = 1200;
/// Common path MTUs, the longest first: 4 KiB of RoCE with all its headers, Ethernet, Ethernet with
/// a seal.
const USUAL: [u16; 4] = [4264, 1500, 1468, MTU_BASE];
/// Lengths probed at once.
const AT_ONCE: usize = USUAL.len() + 1;
/// Probes of a length before it counts as too long.
const TRIES: u8 = 3;
/// The search ends when the unknown range is at most this, in bytes.
const RESOLUTION: u16 = 8;
/// Interval after which longer datagrams are probed again, because the path may have changed.
const RAISE_AFTER: Duration = Duration::from_ms(60_000);

/// An outstanding PING, padded to a length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) nonce: u64,
    /// Length of the IP packet.
    pub(crate) len: u16,
    is_answered: bool,
}

pub(crate) struct PathMtu {
    most: u16,
    /// Longest length known to get through.
    current: u16,
    /// Shortest length known not to get through, or `most + 1`.
    too_long: u16,
    round: [Option<Probe>; AT_ONCE],
    /// Consecutive rounds with an unanswered probe.
    tries: u8,
    /// Time of the next round.
    next_at: Instant,
    /// This round was extended because this box was held up.
    is_extended: bool,
    /// Times that the result was withdrawn.
    pub(crate) black_holes: u64,
}

impl PathMtu {
    /// Starts discovery on a path of which nothing is known. Lengths above `most` are never tried.
    pub(crate) fn new(now: Instant, most: u16) -> Self {
        PathMtu {
            most,
            current: MTU_BASE.min(most),
            too_long: most + 1,
            round: [None; AT_ONCE],
            tries: 0,
            next_at: now,
            is_extended: false,
            black_holes: 0,
        }
    }

    /// Length of the longest datagram that may be sent, in bytes.
    #[inline]
    pub(crate) fn get(&self) -> u16 {
        self.current
    }

    /// `true` if nothing much longer is likely to get through.
    pub(crate) fn is_settled(&self) -> bool {
        self.too_long - self.current <= RESOLUTION
    }

    /// Starts again from the minimum, after the path was down: it may be another path, or it was
    /// down because its MTU is less than assumed.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.restart_from(now, MTU_MIN);
    }

    fn restart_from(&mut self, now: Instant, len: u16) {
        let current = len.min(self.most);
        *self = PathMtu { current, black_holes: self.black_holes, ..PathMtu::new(now, self.most) };
    }

    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Returns the probes to send, the longest first. `timeout` is the time allowed for an answer;
    /// `nonce` draws a secret for each.
    pub(crate) fn probe(
        &mut self,
        now: Instant,
        timeout: Duration,
        nonce: impl FnMut() -> u64,
    ) -> [Option<Probe>; AT_ONCE] {
        if self.next_at > now {
            return [None; AT_ONCE];
        }
        let is_open = self.round.iter().flatten().any(|probe| !probe.is_answered);
        let is_late = now.since(self.next_at) >= HELD_UP;
        if is_open && is_late && !std::mem::replace(&mut self.is_extended, true) {
            self.next_at = now + timeout;
            return [None; AT_ONCE];
        }
        if self.is_settled() {
            self.too_long = self.most + 1;
        }
        self.close_round();
        if self.is_settled() {
            self.next_at = now + RAISE_AFTER;
            return [None; AT_ONCE];
        }
        self.next_at = now + timeout;
        self.begin_round(nonce);
        self.round
    }

    /// Evaluates a round whose time has expired.
    fn close_round(&mut self) {
        let unanswered = self.round.iter().flatten().filter(|probe| !probe.is_answered);
        let shortest = unanswered.map(|probe| probe.len).filter(|len| *len > self.current).min();
        self.round = [None; AT_ONCE];
        self.tries = if shortest.is_some() { self.tries + 1 } else { 0 };
        if let Some(shortest) = shortest.filter(|_| self.tries == TRIES) {
            self.too_long = self.too_long.min(shortest);
            self.tries = 0;
        }
    }

    fn begin_round(&mut self, mut nonce: impl FnMut() -> u64) {
        let is_open = |len: u16| len > self.current && len < self.too_long;
        let [usual, ethernet, sealed, base] = USUAL;
        let mut lens = [self.most, usual, ethernet, sealed, base];
        if !lens.iter().any(|len| is_open(*len)) {
            lens = [self.current + (self.too_long - self.current) / 2, 0, 0, 0, 0];
        }
        self.is_extended = false;
        let mut before = 0;
        let mut round = [None; AT_ONCE];
        for (place, len) in round.iter_mut().zip(lens) {
            let is_probed = is_open(len) && len != before;
            *place = is_probed.then(|| Probe { nonce: nonce(), len, is_answered: false });
            before = len;
        }
        self.round = round;
    }

    /// `true` if a PING with this secret was sent in this round.
    pub(crate) fn is_outstanding(&self, nonce: u64) -> bool {
        self.round.iter().flatten().any(|probe| probe.nonce == nonce)
    }

    /// Handles the answer to a PING. Returns `false` if it answers none of this round.
    pub(crate) fn answered(&mut self, now: Instant, nonce: u64) -> bool {
        let Some(probe) = self.round.iter_mut().flatten().find(|probe| probe.nonce == nonce) else {
            return false;
        };
        probe.is_answered = true;
        self.current = self.current.max(probe.len);
        if self.round.iter().flatten().all(|probe| probe.is_answered) {
            self.next_at = now;
        }
        true
    }

    /// Length in bytes above which the loss of a datagram may be due to its length.
    pub(crate) fn floor(&self) -> u16 {
        if self.current > MTU_BASE { MTU_BASE } else { MTU_MIN.min(self.most) }
    }

    /// Handles a black hole: returns to a length that every path carries, and searches again.
    /// Returns `false` if the length is already minimal.
    pub(crate) fn collapse(&mut self, now: Instant) -> bool {
        let floor = self.floor();
        if floor >= self.current {
            return false;
        }
        self.restart_from(now, floor);
        self.black_holes += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_ms(10);

    /// Runs the search to its end. Returns the number of probes and the time taken.
    fn search(
        mtu: &mut PathMtu,
        mut now: Instant,
        mut gets_through: impl FnMut(u16) -> bool,
    ) -> (u32, Instant) {
        let (mut nonce, mut probes) = (0, 0);
        while !mtu.is_settled() {
            let asked = mtu.probe(now, RTT.times(2), || {
                nonce += 1;
                nonce
            });
            for probe in asked.into_iter().flatten() {
                probes += 1;
                if gets_through(probe.len) {
                    assert!(mtu.answered(now + RTT, probe.nonce));
                }
            }
            if mtu.is_settled() {
                break;
            }
            assert!(mtu.next_at() > now, "time goes on");
            now = mtu.next_at();
            assert!(probes < 200);
        }
        (probes, now)
    }

    fn path(mtu: u16) -> PathMtu {
        let mut path = PathMtu::new(Instant::ZERO, 4352);
        search(&mut path, Instant::ZERO, |len| len <= mtu);
        path
    }

    #[test]
    fn usual_lengths_are_found_in_one_round_trip() {
        for len in [1468, 1500, 4264, 4352] {
            let mut mtu = PathMtu::new(Instant::ZERO, 4352);
            for probe in mtu.probe(Instant::ZERO, RTT, || 7).into_iter().flatten() {
                if probe.len <= len {
                    mtu.round.iter_mut().flatten().find(|p| p.len == probe.len).unwrap().nonce =
                        u64::from(len);
                }
            }
            mtu.answered(Instant::ZERO + RTT, u64::from(len));
            assert_eq!(mtu.get(), len);
        }
    }

    #[test]
    fn what_does_not_get_through_is_taken_back_and_looked_for_again() {
        let mut mtu = path(4352);
        assert_eq!(mtu.floor(), MTU_BASE);
        assert!(mtu.collapse(Instant::ZERO));
        assert_eq!((mtu.get(), mtu.floor(), mtu.black_holes), (MTU_BASE, MTU_MIN, 1));
        assert!(mtu.collapse(Instant::ZERO));
        assert!(!mtu.collapse(Instant::ZERO), "there is nothing below");
        assert_eq!((mtu.get(), mtu.black_holes), (MTU_MIN, 2));
        search(&mut mtu, Instant::ZERO, |len| len <= 1500);
        assert_eq!(mtu.get(), 1500);
    }

    #[test]
    fn a_path_that_grows_is_found_to() {
        let mut mtu = path(1500);
        let now = mtu.next_at() + RAISE_AFTER;
        let asked = mtu.probe(now, RTT, || 9);
        assert!(asked.into_iter().flatten().any(|probe| probe.len == 4352));
        let mut mtu = path(4352);
        let now = mtu.next_at() + RAISE_AFTER;
        assert!(mtu.probe(now, RTT, || 9).iter().all(Option::is_none), "there is nothing longer");
    }

    #[test]
    fn answers_to_no_question_change_nothing() {
        let mut mtu = PathMtu::new(Instant::ZERO, 4352);
        mtu.probe(Instant::ZERO, RTT, || 5);
        assert!(!mtu.answered(Instant::ZERO, 6) && !mtu.is_outstanding(6) && mtu.is_outstanding(5));
        assert_eq!(mtu.get(), MTU_BASE);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// The path MTU is found to within a few bytes and never exceeded; loss costs only probes.
        #[test]
        fn what_a_path_takes_is_found(
            of in 576..9500_u16,
            most in 1200..9300_u16,
            seed in any::<u64>(),
        ) {
            let mut mtu = PathMtu::new(Instant::ZERO, most);
            if of < MTU_BASE && mtu.get() > of {
                prop_assert!(mtu.collapse(Instant::ZERO));
            }
            let mut chance = seed;
            let (probes, took) = search(&mut mtu, Instant::ZERO, |len| {
                chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                len <= of && chance >> 60 != 0
            });
            let expected = of.min(most);
            prop_assert!(mtu.get() <= expected);
            // The probability of losing a probe three times in a row is one in four thousand.
            prop_assert!(
                mtu.get() + RESOLUTION >= expected || mtu.get() + 2000 > expected,
                "{} of {expected}",
                mtu.get()
            );
            prop_assert!(probes < 150 && took <= Instant::ZERO + RTT.times(200));
        }
    }
}
