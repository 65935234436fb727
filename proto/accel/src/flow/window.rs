//! How much a far box has outstanding to a responder whose network drops.

use crate::Role;

/// Fewest PSNs: what a drop costs is then less than what its discovery does.
const LEAST: u64 = 16;
/// By which part of itself a window grows while so much is delivered.
const GROWTH: u64 = 32;

/// The outstanding window of a flow, in PSNs: none until packets are lost, then half of what was
/// outstanding, growing by a 32nd with each window delivered.
///
/// A requester's send queue bounds what a NIC has outstanding. A box stores more than that, and
/// go-back-N would send all of it again for each packet that a full queue drops.
///
/// A responder that is not ready leaves a quarter of what was outstanding, if it goes on down to a
/// single packet, or twice what it has taken since it was last not ready, and each packet that it
/// takes then lets one more be outstanding: what is sent for nothing is less than what it takes,
/// and one that takes a few packets at a time gets them in one round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// What of `most` and `trial` is less, or [`NONE`]: nothing else is looked at for a packet of
    /// most flows.
    bound: u64,
    /// The box stands before the responder's LAN, where what is lost is lost to congestion.
    is_far: bool,
    most: u64,
    delivered: u64,
    /// Since the responder was not ready.
    trial: Option<Trial>,
}

/// What may be outstanding to a responder that was not ready, and what it has taken since then.
#[derive(Clone, Copy, Debug)]
struct Trial {
    most: u64,
    taken: u64,
}

/// No window.
const NONE: u64 = u64::MAX;

impl Default for Window {
    fn default() -> Self {
        Window { bound: NONE, is_far: false, most: NONE, delivered: 0, trial: None }
    }
}

impl Window {
    /// That of a flow whose box is so far from its requester.
    pub(crate) fn of(role: Role) -> Self {
        Window { is_far: role == Role::Far, ..Window::default() }
    }

    /// That of another life of the flow.
    pub(crate) fn afresh(self) -> Self {
        Window { is_far: self.is_far, ..Window::default() }
    }

    /// True if a packet may be sent with so many PSNs outstanding.
    #[inline]
    pub(crate) fn is_open(&self, outstanding: impl FnOnce() -> u64) -> bool {
        self.bound == NONE || outstanding() < self.bound
    }

    /// A packet was lost with so many outstanding. The same loss, or one found while what it made
    /// necessary is still sent, shows fewer outstanding, and leaves the window as it is.
    pub(crate) fn note_loss(&mut self, outstanding: u64) {
        if !self.is_far {
            return;
        }
        self.most = self.most.min((outstanding / 2).max(LEAST));
        self.delivered = 0;
        self.rebound();
    }

    /// The responder was not ready for a packet, with so many outstanding.
    pub(crate) fn note_not_ready(&mut self, outstanding: u64) {
        let quarter = outstanding / 4;
        let most = match self.trial {
            None => quarter.max(LEAST),
            Some(Trial { most, taken }) => most.min(quarter.max(1)).max(2 * taken),
        };
        self.trial = Some(Trial { most, taken: 0 });
        self.rebound();
    }

    /// So many PSNs were delivered. A window that holds `all` that may be stored is none.
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
        window.note_loss(3200);
        assert!(window.is_open(|| 1 << 30));
    }

    #[test]
    fn a_loss_halves_what_is_outstanding_and_deliveries_bring_it_back() {
        let mut window = Window::of(Role::Far);
        window.note_loss(3200);
        assert!(window.is_open(|| 1599) && !window.is_open(|| 1600));
        window.note_loss(40);
        assert!(window.is_open(|| 19) && !window.is_open(|| 20));
        window.note_loss(2);
        assert!(window.is_open(|| 15) && !window.is_open(|| 16));
        let mut psns = 0;
        while !window.is_open(|| 32) {
            window.note_delivered(4, 1000);
            psns += 4;
        }
        assert!((300..600).contains(&psns), "twice as much after {psns} PSNs");
        (0..100_000).for_each(|_| window.note_delivered(4, 1000));
        assert!(window.is_open(|| u64::MAX), "as large as all that there is");
    }
}
