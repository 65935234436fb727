//! Rate of a path shared by several senders, on one or more threads.

use longhaul_units::{BitRate, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a sender reserves at once. With fewer, a cache line would move between threads for
/// each frame.
const BATCH_BYTES: u64 = 16 << 10;

/// Rate of a path that several senders share, on one thread or more: each may use the rate that the
/// others leave.
///
/// The senders share one number: the time until which the path is reserved. Clones share it, and
/// compare equal.
#[derive(Clone, Debug)]
pub struct JointRate {
    rate: BitRate,
    /// In picoseconds, like [`Instant`].
    reserved_until: Arc<AtomicU64>,
}

impl PartialEq for JointRate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.reserved_until, &other.reserved_until)
    }
}

impl JointRate {
    /// A path with this rate, in bytes on the wire ([`crate::wire_bytes`]), without reservations.
    pub fn new(rate: BitRate) -> Self {
        JointRate { rate, reserved_until: Arc::default() }
    }

    /// The rate of all senders together.
    pub fn rate(&self) -> BitRate {
        self.rate
    }

    /// Reserves transmission time for `bytes` after all earlier reservations. Returns its start.
    fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        let takes = self.rate.time_for_bytes(bytes).as_ps();
        let later = |until: u64| Some(until.max(now.as_ps()).saturating_add(takes));
        // The number orders no other memory accesses.
        let reserved =
            self.reserved_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        let (Ok(before) | Err(before)) = reserved;
        Instant::from_ps(before.max(now.as_ps()))
    }
}

/// One sender of a [`JointRate`], used like a [`crate::Pacer`].
///
/// A sender that has sent 16 KiB reserves transmission time for them, and continues when its
/// reservation begins, after all earlier ones. Busy senders therefore get equal shares, in turns of
/// 16 KiB, and none waits for an idle one. In any time `t` they together send at most `rate * t`,
/// plus 32 KiB and two frames each, twice the amount of one reservation. An idle sender earns no
/// credit.
#[derive(Debug)]
pub struct JointPacer {
    joint: JointRate,
    /// Bytes on the wire sent without a reservation.
    unreserved: u64,
    ready: Instant,
}

impl JointPacer {
    /// Creates a sender that has sent nothing.
    pub fn new(joint: JointRate) -> Self {
        JointPacer { joint, unreserved: 0, ready: Instant::ZERO }
    }

    /// Time at which the next frame may be sent, at least `now`.
    #[inline]
    pub fn ready_at(&self, now: Instant) -> Instant {
        self.ready.max(now)
    }

    /// Counts `bytes` on the wire as sent at `now`.
    #[inline]
    pub fn take(&mut self, now: Instant, bytes: u64) {
        self.unreserved = self.unreserved.saturating_add(bytes);
        if self.unreserved >= BATCH_BYTES {
            self.ready = self.joint.reserve(now, std::mem::take(&mut self.unreserved));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::Duration;
    use proptest::prelude::*;

    const FRAME: u64 = 4248;

    fn senders(joint: &JointRate, count: usize) -> Vec<JointPacer> {
        (0..count).map(|_| JointPacer::new(joint.clone())).collect()
    }

    /// Lets the senders in `who`, which are always busy, send frames until `end`. Returns the bytes
    /// of each.
    fn run(pacers: &mut [JointPacer], who: &[usize], mut now: Instant, end: Instant) -> Vec<u64> {
        let mut sent = vec![0; pacers.len()];
        loop {
            for &one in who {
                while pacers[one].ready_at(now) <= now {
                    pacers[one].take(now, FRAME);
                    sent[one] += FRAME;
                }
            }
            let next = who.iter().map(|one| pacers[*one].ready_at(now)).min().unwrap();
            if next >= end {
                return sent;
            }
            now = next;
        }
    }

    #[test]
    fn those_that_have_something_share_all_of_it_alike_and_the_others_cost_nothing() {
        let rate = BitRate::from_gbps(10).unwrap();
        let joint = JointRate::new(rate);
        let mut pacers = senders(&joint, 4);
        let ms = |ms: u64| Instant::ZERO + Duration::from_ms(ms);
        for (who, from, to) in [
            (&[0, 1, 2, 3][..], 0, 100),
            (&[2], 100, 200),
            (&[1, 3], 200, 300),
            (&[0, 1, 2, 3], 500, 600),
        ] {
            let sent = run(&mut pacers, who, ms(from), ms(to));
            let (all, share) = (
                rate.bytes_in(Duration::from_ms(100)),
                sent.iter().sum::<u64>() / who.len() as u64,
            );
            let slack = 4 * 2 * (BATCH_BYTES + FRAME);
            assert!(sent.iter().sum::<u64>().abs_diff(all) <= slack, "{sent:?} of {all}");
            assert!(who.iter().all(|one| sent[*one].abs_diff(share) <= slack), "{sent:?}");
        }
    }

    #[test]
    fn reservations_of_several_threads_all_count() {
        let rate = BitRate::from_gbps(100).unwrap();
        let joint = JointRate::new(rate);
        std::thread::scope(|scope| {
            for mut pacer in senders(&joint, 4) {
                scope.spawn(move || {
                    let mut now = Instant::ZERO;
                    for _ in 0..10_000 {
                        now = pacer.ready_at(now);
                        pacer.take(now, FRAME);
                    }
                });
            }
        });
        // Each reservation counted, however the threads interleaved.
        let reserved = 4 * (10_000 / 4) * 4 * FRAME;
        let until = joint.reserved_until.load(Ordering::Relaxed);
        assert!(until >= rate.time_for_bytes(reserved).as_ps(), "{until}");
    }

    #[test]
    fn extreme_values_saturate() {
        let joint = JointRate::new(BitRate::from_bps(1).unwrap());
        let mut pacer = JointPacer::new(joint.clone());
        for _ in 0..3 {
            pacer.take(Instant::from_ps(u64::MAX), u64::MAX);
        }
        assert_eq!(pacer.ready_at(Instant::ZERO), Instant::from_ps(u64::MAX));
        assert!(joint == joint.clone() && joint != JointRate::new(joint.rate()));
    }

    proptest! {
        #[test]
        fn together_they_never_exceed_the_rate(
            bps in 1_000_000_u64..1_000_000_000_000,
            count in 1..5_usize,
            frames in prop::collection::vec((0..5_usize, 84_u64..FRAME, 0_u64..10_000_000), 1..400),
        ) {
            let joint = JointRate::new(BitRate::from_bps(bps).unwrap());
            let mut pacers = senders(&joint, count);
            let mut now = Instant::from_ns(5);
            let mut sent: Vec<(Instant, u64)> = Vec::new();
            for (who, bytes, pause_ps) in frames {
                let pacer = &mut pacers[who % count];
                now = pacer.ready_at(now + Duration::from_ps(pause_ps));
                pacer.take(now, bytes);
                sent.push((now, bytes));
            }
            let beyond = count as u64 * 2 * (BATCH_BYTES + FRAME);
            for (first, &(from, _)) in sent.iter().enumerate() {
                let mut bytes = 0;
                for &(to, len) in &sent[first..] {
                    bytes += len;
                    let passed = joint.rate().bytes_in(to.since(from) + Duration::from_ps(1));
                    prop_assert!(bytes <= passed + 1 + beyond, "{bytes} B in {:?}", to.since(from));
                }
            }
        }
    }
}
