//! Limit on the packets that a far box has outstanding to a responder whose network drops packets.

use crate::Role;

/// Smallest window, in PSNs: a drop then costs less than its detection.
const LEAST: u64 = 16;
/// A window grows by this fraction (1/32) per window delivered.
const GROWTH: u64 = 32;

/// Window of a flow, in PSNs: none until packets are lost, then half of the outstanding PSNs,
/// growing by 1/32 with each window delivered. A loss before everything outstanding at that time is
/// delivered halves the window itself: the go-back has left few PSNs outstanding.
///
/// A requester's send queue bounds the packets that a NIC has outstanding. A box stores more, and
/// go-back-N would retransmit all of them for each packet that a full queue drops.
///
/// A responder that is not ready reduces the window to a quarter of the outstanding PSNs,
/// repeatedly down to a single packet, but not below twice the packets taken since it was last not
/// ready. Each packet that it takes then adds one. The box thus wastes fewer packets than the
/// responder takes, and a responder that takes a few packets at a time gets them in one round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// The smaller of `most` and the trial's `most`, or [`NONE`]: the only field read for most
    /// packets.
    bound: u64,
    /// The box is next to the responder's LAN, where loss means congestion.
    is_far: bool,
    most: u64,
    delivered: u64,
    /// The PSN behind all packets that were sent when the window last became half of the
    /// outstanding PSNs.
    recovered_at: u64,
    /// Set when the responder is not ready, until its limit reaches all storable PSNs.
    trial: Option<Trial>,
}

/// Limit after the responder was not ready, and the PSNs taken since.
#[derive(Clone, Copy, Debug)]
struct Trial {
    most: u64,
    taken: u64,
}

/// No window.
const NONE: u64 = u64::MAX;

impl Default for Window {
    fn default() -> Self {
        Window {
            bound: NONE,
            is_far: false,
            most: NONE,
            delivered: 0,
            recovered_at: 0,
            trial: None,
        }
    }
}

impl Window {
    /// For a flow whose box has this role.
    pub(crate) fn of(role: Role) -> Self {
        Window { is_far: role == Role::Far, ..Window::default() }
    }

    /// For the next state of the flow.
    pub(crate) fn afresh(self) -> Self {
        Window { is_far: self.is_far, ..Window::default() }
    }

    /// True if a packet may be sent with `outstanding` PSNs outstanding.
    #[inline]
    pub(crate) fn is_open(&self, outstanding: impl FnOnce() -> u64) -> bool {
        self.bound == NONE || outstanding() < self.bound
    }

    /// Notes that the packet at `seq` was lost, with `outstanding` PSNs outstanding and all before
    /// `sent_to` sent at least once. The window shrinks, but not below [`LEAST`].
    pub(crate) fn note_loss(&mut self, seq: u64, outstanding: u64, sent_to: u64) {
        if !self.is_far {
            return;
        }
        let is_recovering = self.most != NONE && seq < self.recovered_at;
        if !is_recovering {
            self.recovered_at = sent_to;
        }
        let half = if is_recovering { self.most } else { outstanding } / 2;
        self.most = self.most.min(half.max(LEAST));
        self.delivered = 0;
        self.rebound();
    }

    /// Notes that the responder was not ready, with `outstanding` PSNs outstanding.
    pub(crate) fn note_not_ready(&mut self, outstanding: u64) {
        let quarter = outstanding / 4;
        let most = match self.trial {
            None => quarter.max(LEAST),
            Some(Trial { most, taken }) => most.min(quarter.max(1)).max(2 * taken),
        };
        self.trial = Some(Trial { most, taken: 0 });
        self.rebound();
    }

    /// Notes that `psns` PSNs were delivered. A window of `all` storable PSNs is no limit.
    #[inline]
    pub(crate) fn note_delivered(&mut self, psns: u64, all: u64) {
        if self.bound != NONE {
            self.grow(psns, all);
        }
    }

    #[cold]
    fn grow(&mut self, psns: u64, all: u64) {
        if let Some(trial) = self.trial {
            let grown = Trial { most: trial.most + psns, taken: trial.taken + psns };
            self.trial = (grown.most < all).then_some(grown);
        }
        if self.most != NONE {
            self.delivered += psns;
            if self.delivered >= self.most {
                self.delivered = 0;
                let grown = self.most + (self.most / GROWTH).max(1);
                self.most = if grown < all { grown } else { NONE };
            }
        }
        self.rebound();
    }

    fn rebound(&mut self) {
        self.bound = self.trial.map_or(self.most, |trial| self.most.min(trial.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_none_before_a_loss() {
        let mut window = Window::default();
        window.note_delivered(1 << 20, 1 << 21);
        assert!(window.is_open(|| 1 << 30));
    }

    #[test]
    fn a_responder_that_is_not_ready_is_sent_less_and_less_until_it_takes_something() {
        let mut window = Window::of(Role::Near);
        let mut sent = 0;
        for _ in 0..20 {
            let outstanding = (0..4096).find(|&n| !window.is_open(|| n)).unwrap_or(4096);
            sent += outstanding;
            window.note_not_ready(outstanding);
        }
        assert!(sent < 2 * 4096 && window.is_open(|| 0) && !window.is_open(|| 1), "{sent}");
        window.note_delivered(1, 1 << 21);
        assert!(window.is_open(|| 1) && !window.is_open(|| 2));
        (0..20).for_each(|_| window.note_delivered(1 << 20, 1 << 21));
        assert!(window.is_open(|| 1 << 30));
    }

    #[test]
    fn a_responder_that_takes_a_few_packets_at_a_time_gets_them_in_one_round() {
        for takes in [1, 3, 16, 100] {
            let mut window = Window::of(Role::Near);
            let (mut sent, mut taken) = (0, 0);
            for round in 0..40 {
                let outstanding = (0..4096).find(|&n| !window.is_open(|| n)).unwrap_or(4096);
                let delivered = takes.min(outstanding);
                if round >= 20 {
                    (sent, taken) = (sent + outstanding, taken + delivered);
                }
                window.note_delivered(delivered, 1 << 21);
                window.note_not_ready(outstanding);
            }
            assert!(taken == 20 * takes && sent <= 2 * taken, "{takes}: {taken} of {sent}");
        }
    }

    #[test]
    fn a_near_box_has_none() {
        let mut window = Window::of(Role::Near);
        window.note_loss(0, 3200, 3200);
        assert!(window.is_open(|| 1 << 30));
    }

    /// The window, in PSNs.
    fn most(window: &Window) -> u64 {
        (0..).find(|&psns| !window.is_open(|| psns)).unwrap()
    }

    #[test]
    fn a_loss_halves_what_is_outstanding_and_deliveries_bring_it_back() {
        let mut window = Window::of(Role::Far);
        window.note_loss(0, 3200, 3200);
        assert_eq!(most(&window), 1600);
        window.note_loss(3200, 40, 3240);
        assert_eq!(most(&window), 20);
        window.note_loss(3240, 2, 3242);
        assert_eq!(most(&window), 16);
        let mut psns = 0;
        while !window.is_open(|| 32) {
            window.note_delivered(4, 1000);
            psns += 4;
        }
        assert!((300..600).contains(&psns), "twice as much after {psns} PSNs");
        (0..100_000).for_each(|_| window.note_delivered(4, 1000));
        assert!(window.is_open(|| u64::MAX), "as large as all that there is");
    }

    #[test]
    fn a_loss_of_what_is_retransmitted_halves_the_window_and_not_the_little_outstanding() {
        let mut window = Window::of(Role::Far);
        window.note_loss(0, 3200, 3200);
        // The go-back is 40 PSNs on when the next loss shows.
        window.note_loss(100, 40, 3200);
        assert_eq!(most(&window), 800);
        window.note_loss(3199, 1, 3200);
        assert_eq!(most(&window), 400);
        window.note_loss(3200, 300, 3500);
        assert_eq!(most(&window), 150, "everything sent before the first loss is delivered");
    }
}
