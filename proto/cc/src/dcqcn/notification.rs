//! DCQCN's notification point: decides when a receiver sends a CNP.

use super::Dcqcn;
use longhaul_units::Instant;

/// Reaction to a marked packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CeOutcome {
    /// Send a CNP to the packet's sender (`np_cnp_sent`).
    SendCnp,
    /// The last CNP is too recent.
    TooSoon,
    /// The notification point is disabled.
    Disabled,
}

/// Time of one QP's last CNP. Every marked packet counts as `np_ecn_marked_roce_packets`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    last: Option<Instant>,
}

impl NotificationPoint {
    /// Creates a notification point that has sent nothing.
    pub const fn new() -> Self {
        NotificationPoint { last: None }
    }

    /// Handles a packet for this QP that arrived at `now` with CE (both bits) in its ECN field.
    pub fn on_ce(&mut self, now: Instant, dcqcn: &Dcqcn) -> CeOutcome {
        let Some(gap) = dcqcn.cnp_gap else { return CeOutcome::Disabled };
        if self.last.is_some_and(|last| now.since(last) < gap) {
            return CeOutcome::TooSoon;
        }
        self.last = Some(now);
        CeOutcome::SendCnp
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NotificationConfig, ReactionConfig};
    use super::*;
    use longhaul_units::BitRate;

    fn dcqcn(notification: NotificationConfig) -> Dcqcn {
        Dcqcn::new(&ReactionConfig::NVIDIA, &notification, BitRate::from_gbps(100).unwrap())
            .unwrap()
    }

    #[test]
    fn answers_the_first_mark_and_then_one_in_each_gap() {
        let dcqcn = dcqcn(NotificationConfig::default());
        let mut point = NotificationPoint::new();
        let sent = (0..1000).filter(|i| {
            let now = Instant::from_ns(7 + i * 100);
            point.on_ce(now, &dcqcn) == CeOutcome::SendCnp
        });
        assert_eq!(sent.count(), 25, "one each 4 µs in 100 µs");
    }

    #[test]
    fn a_gap_of_zero_answers_each() {
        let dcqcn = dcqcn(NotificationConfig { enable: true, min_time_between_cnps: 0 });
        let mut point = NotificationPoint::new();
        for _ in 0..3 {
            assert_eq!(point.on_ce(Instant::ZERO, &dcqcn), CeOutcome::SendCnp);
        }
    }

    #[test]
    fn switched_off_it_answers_none() {
        let dcqcn = dcqcn(NotificationConfig { enable: false, min_time_between_cnps: 4 });
        assert_eq!(NotificationPoint::new().on_ce(Instant::ZERO, &dcqcn), CeOutcome::Disabled);
    }

    #[test]
    fn a_clock_that_steps_back_sends_none() {
        let dcqcn = dcqcn(NotificationConfig::default());
        let mut point = NotificationPoint::new();
        assert_eq!(point.on_ce(Instant::from_ns(10_000), &dcqcn), CeOutcome::SendCnp);
        assert_eq!(point.on_ce(Instant::from_ns(1), &dcqcn), CeOutcome::TooSoon);
    }
}
