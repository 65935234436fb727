//! The rule by which one side of a pair follows the carrier of the other.
//!
//! At most one side is held down, and it is the other one that is watched: two sides never wait for
//! each other. A side that is held down has no carrier of its own to lose, so that it is judged
//! only once it was brought up again and had time to find one.

use std::time::{Duration, Instant};

/// Time without a loss after which a carrier counts as returned. A port that flaps faster holds the
/// other down until it stops.
pub const STABLE: Duration = Duration::from_millis(200);

/// The same for a side that is down when the box starts. Longer, so that a box at the other end of
/// the path, which lost its carrier when this one was gone, opens its side first: a host that finds
/// a carrier resolves its neighbours at once, and tries again only after a second.
pub const STABLE_AT_START: Duration = Duration::from_millis(400);

/// Time that a port has to find a carrier after it was brought up: autonegotiation and training
/// take seconds. Were it shorter than that, each side could wait for the other forever.
pub const SETTLE: Duration = Duration::from_secs(10);

/// One of the two sides of a pair: 0, the LAN's, or 1.
pub type Side = usize;

/// What to do to a side's ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Take them down.
    Hold(Side),
    /// Bring them up.
    Release(Side),
}

/// The state of a pair.
#[derive(Clone, Debug)]
pub enum Follow {
    /// Both sides are up as far as the box is concerned.
    Both {
        /// Until when a side may lack a carrier, because it was brought up.
        patience: [Option<Instant>; 2],
    },
    /// A side is held down because the other has no carrier.
    Held {
        /// The side that is down.
        side: Side,
        /// Time for which the other must have a carrier.
        stable: Duration,
        /// Since when the other has a carrier again.
        returned: Option<Instant>,
    },
}

impl Follow {
    /// The state after both sides were brought up.
    pub fn new(now: Instant) -> Self {
        Follow::Both { patience: [Some(now + SETTLE); 2] }
    }

    /// The state of a side that stays down until the other has had a carrier for a time.
    pub fn waiting(side: Side, stable: Duration) -> Self {
        Follow::Held { side, stable, returned: None }
    }

    /// The side that is held down.
    pub fn held(&self) -> Option<Side> {
        match self {
            Follow::Both { .. } => None,
            Follow::Held { side, .. } => Some(*side),
        }
    }

    /// Takes the carriers of both sides; that of a side that is held down does not matter.
    pub fn look(&mut self, now: Instant, has_carrier: [bool; 2]) -> Option<Step> {
        match self {
            Follow::Both { patience } => {
                let lost = [0, 1].into_iter().find(|&side| {
                    let lost =
                        !has_carrier[side] && patience[side].is_none_or(|until| now >= until);
                    if has_carrier[side] {
                        patience[side] = None;
                    }
                    lost
                })?;
                let side = 1 - lost;
                *self = Follow::waiting(side, STABLE);
                Some(Step::Hold(side))
            }
            Follow::Held { side, stable, returned } => {
                let side = *side;
                if !has_carrier[1 - side] {
                    *returned = None;
                    return None;
                }
                let since = *returned.get_or_insert(now);
                if now < since + *stable {
                    return None;
                }
                let mut patience = [None; 2];
                patience[side] = Some(now + SETTLE);
                *self = Follow::Both { patience };
                Some(Step::Release(side))
            }
        }
    }

    /// When to look again, although no carrier changes.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Follow::Both { patience } => patience.iter().flatten().min().copied(),
            Follow::Held { stable, returned, .. } => returned.map(|since| since + *stable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAN: Side = 0;
    const WAN: Side = 1;
    const MS: Duration = Duration::from_millis(1);

    /// A pair whose sides both have had a carrier, and the present.
    fn up() -> (Follow, Instant) {
        let now = Instant::now();
        let mut follow = Follow::new(now);
        assert_eq!(follow.look(now, [true, true]), None);
        assert_eq!(follow.deadline(), None);
        (follow, now)
    }

    #[test]
    fn a_loss_takes_the_other_side_down_at_once_and_its_return_brings_it_up() {
        for lost in [LAN, WAN] {
            let (mut follow, now) = up();
            let (mut without, other) = ([true; 2], 1 - lost);
            without[lost] = false;
            assert_eq!(follow.look(now, without), Some(Step::Hold(other)));
            assert_eq!(follow.held(), Some(other));
            // The side that was taken down lost its carrier by that.
            assert_eq!(follow.look(now + MS, [false, false]), None);
            let mut back = [false; 2];
            back[lost] = true;
            assert_eq!(follow.look(now + 50 * MS, back), None);
            let at = follow.deadline().unwrap();
            assert_eq!(at, now + 50 * MS + STABLE);
            assert_eq!(follow.look(at, back), Some(Step::Release(other)));
            // It may take a while to find its carrier.
            assert_eq!(follow.look(at + 5000 * MS, back), None);
            assert_eq!(follow.look(at + 5001 * MS, [true, true]), None);
            assert_eq!((follow.held(), follow.deadline()), (None, None));
        }
    }

    #[test]
    fn a_side_that_lost_its_own_carrier_meanwhile_is_found_out() {
        let (mut follow, now) = up();
        assert_eq!(follow.look(now, [false, false]), Some(Step::Hold(WAN)));
        follow.look(now, [true, false]);
        let released = now + STABLE;
        assert_eq!(follow.look(released, [true, false]), Some(Step::Release(WAN)));
        let late = follow.deadline().unwrap();
        assert_eq!(late, released + SETTLE);
        assert_eq!(follow.look(late - MS, [true, false]), None);
        assert_eq!(follow.look(late, [true, false]), Some(Step::Hold(LAN)));
        // Only the WAN decides now.
        follow.look(late + MS, [false, true]);
        let step = follow.look(late + MS + STABLE, [false, true]);
        assert_eq!(step, Some(Step::Release(LAN)));
    }

    /// A box that starts again brings its LAN up after that of the box at the other end of the
    /// path, which had taken it down.
    #[test]
    fn a_box_that_starts_opens_its_lan_last() {
        let now = Instant::now();
        let mut near = Follow::waiting(LAN, STABLE_AT_START);
        let mut far = Follow::waiting(LAN, STABLE);
        let mut opened = Vec::new();
        for ms in 0..1000 {
            for (name, of) in [("near", &mut near), ("far", &mut far)] {
                let step = of.look(now + ms * MS, [false, true]);
                opened.extend(step.map(|step| (name, step)));
            }
        }
        assert_eq!(opened, [("far", Step::Release(LAN)), ("near", Step::Release(LAN))]);
    }

    #[test]
    fn a_side_that_flaps_is_down_for_the_other_until_it_stops() {
        let (mut follow, now) = up();
        let mut steps = Vec::new();
        // A hundred times a second, for ten seconds.
        for half in 0..2000 {
            steps.extend(follow.look(now + 5 * half * MS, [half % 2 == 1, true]));
        }
        assert_eq!(steps, [Step::Hold(WAN)]);
        let end = follow.deadline().unwrap();
        assert_eq!(follow.look(end, [true, true]), Some(Step::Release(WAN)));
    }

    /// A line of boxes between two hosts. Box `n` has link `n` at its LAN and link `n + 1` at its
    /// WAN; a link has a carrier if it is not cut and neither of its ends is held down.
    struct Line {
        boxes: Vec<Follow>,
        is_cut: Vec<bool>,
        now: Instant,
    }

    impl Line {
        fn new(boxes: usize) -> Self {
            let now = Instant::now();
            Line { boxes: vec![Follow::new(now); boxes], is_cut: vec![false; boxes + 1], now }
        }

        fn has_carrier(&self, link: usize) -> bool {
            let is_held = |at: Option<usize>, side| {
                at.and_then(|at| self.boxes.get(at)).is_some_and(|of| of.held() == Some(side))
            };
            !self.is_cut[link] && !is_held(link.checked_sub(1), WAN) && !is_held(Some(link), LAN)
        }

        /// Lets time pass, in steps of a millisecond.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.now < end {
                for at in 0..self.boxes.len() {
                    let carriers = [self.has_carrier(at), self.has_carrier(at + 1)];
                    self.boxes[at].look(self.now, carriers);
                }
                self.now += MS;
            }
        }
    }

    #[test]
    fn hosts_behind_a_line_of_boxes_see_every_cut_and_every_repair() {
        for (first, second) in [(0, 0), (0, 3), (1, 2), (3, 1), (2, 0)] {
            let mut line = Line::new(3);
            line.pass(2 * STABLE);
            line.is_cut[first] = true;
            line.is_cut[second] = true;
            line.pass(10 * MS);
            assert_eq!([0, 3].map(|link| line.has_carrier(link)), [false; 2], "{first} {second}");
            line.is_cut[first] = false;
            line.pass(2 * SETTLE);
            let ends = [0, 3].map(|link| line.has_carrier(link));
            assert_eq!(ends, [first == second; 2], "{first} {second}");
            line.is_cut[second] = false;
            line.pass(2 * SETTLE);
            assert!((0..4).all(|link| line.has_carrier(link)), "{first} {second}");
        }
    }
}
