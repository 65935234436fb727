//! Which far box serves which address beyond the WAN.

use crate::far::FarBoxes;
use crate::key::{AddressKey, Map, map};
use crate::{Config, FarBox, FarStatus};
use longhaul_node::Side;
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::Path;
use std::collections::VecDeque;

/// HELLOs before an address counts as without a far box.
pub(crate) const TRIES: u32 = 5;
/// Addresses that are asked for at once.
const ASKING_MAX: usize = 256;

/// The outstanding search for the far box of an address.
#[derive(Clone, Copy, Debug)]
struct Search {
    nonce: u64,
    tries: u32,
    asked_at: Instant,
    route: Path,
}

#[derive(Clone, Copy, Debug)]
enum Reach {
    Asking(Search),
    /// By this session.
    By(u32),
    /// By none, as far as is known.
    None {
        again_at: Instant,
    },
}

/// What is known of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The session that serves it.
    By(u32),
    /// It is being asked for.
    Asking,
    /// No box, as far as is known.
    Nobody,
    /// There is no room to find out.
    Full,
}

/// A HELLO to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) side: Side,
    pub(crate) route: Path,
    pub(crate) nonce: u64,
}

/// See the module.
pub(crate) struct Addresses {
    known: Map<AddressKey, Reach>,
    /// Those asked for, in the order in which they are asked for again.
    asking: VecDeque<(Instant, AddressKey)>,
    far: FarBoxes,
    max: usize,
    sides: usize,
    every: Duration,
    pause: Duration,
}

impl Addresses {
    pub(crate) fn new(config: &Config, seed: u64) -> Self {
        Addresses {
            known: map(seed),
            asking: VecDeque::new(),
            far: FarBoxes::new(config),
            max: config.addresses_max as usize,
            sides: config.paths.len(),
            every: config.hello_every,
            pause: config.hello_pause,
        }
    }

    /// What stands for the destination of `route` in the table. `None`: nobody is asked for it.
    fn key(&self, route: &Path) -> Option<AddressKey> {
        Some(AddressKey::destination(&self.far.ask_along(*route)?))
    }

    /// Who serves the destination of `route`; asks if that is not known.
    pub(crate) fn find(&mut self, now: Instant, route: Path, rng: &mut impl Rng) -> Found {
        let Some(route) = self.far.ask_along(route) else { return Found::Nobody };
        let key = AddressKey::destination(&route);
        match self.known.get(&key) {
            Some(Reach::By(session)) => return Found::By(*session),
            Some(Reach::Asking(_)) => return Found::Asking,
            Some(Reach::None { again_at }) if *again_at > now => return Found::Nobody,
            _ => {}
        }
        if self.asking.len() >= ASKING_MAX {
            return Found::Nobody;
        }
        if !self.make_room(now, key) {
            return Found::Full;
        }
        let search = Search { nonce: rng.next_u64(), tries: 0, asked_at: now, route };
        self.known.insert(key, Reach::Asking(search));
        self.asking.push_front((now, key));
        Found::Asking
    }

    /// True when `key` has a place in the table.
    fn make_room(&mut self, now: Instant, key: AddressKey) -> bool {
        if self.known.len() < self.max || self.known.contains_key(&key) {
            return true;
        }
        self.known
            .retain(|_, reach| !matches!(reach, Reach::None { again_at } if *again_at <= now));
        self.known.len() < self.max
    }

    /// `session` serves the destination of `route`: a host there has sent a frame by it. For a
    /// whole site that is not enough. True when that was being asked for.
    pub(crate) fn learn_of_host(&mut self, now: Instant, route: &Path, session: u32) -> bool {
        self.key(route) == Some(AddressKey::destination(route)) && self.learn(now, route, session)
    }

    /// `session` serves the destination of `route`, and all for which that stands: its box has
    /// answered there. True when that was being asked for.
    pub(crate) fn learn(&mut self, now: Instant, route: &Path, session: u32) -> bool {
        let Some(key) = self.key(route) else { return false };
        if !self.make_room(now, key) {
            return false;
        }
        matches!(self.known.insert(key, Reach::By(session)), Some(Reach::Asking(_)))
    }

    /// `session` serves the destination of `route`, as far as is known.
    pub(crate) fn is_served(&self, route: &Path, session: u32) -> bool {
        let reach = self.key(route).and_then(|key| self.known.get(&key));
        matches!(reach, Some(Reach::By(by)) if *by == session)
    }

    /// Hosts here send to the destination of `route`, and no session is known to serve it.
    pub(crate) fn is_sought(&self, route: &Path) -> bool {
        let reach = self.key(route).and_then(|key| self.known.get(&key));
        matches!(reach, Some(Reach::Asking(_) | Reach::None { .. }))
    }

    /// All that is asked for is asked for at once.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.asking.iter_mut().for_each(|(at, _)| *at = now.min(*at));
    }

    /// When the last HELLO of a search was sent, of which an answer with `nonce` came from the
    /// destination of `route`.
    pub(crate) fn asked(&self, route: &Path, nonce: u64) -> Option<Instant> {
        match self.known.get(&self.key(route)?) {
            Some(Reach::Asking(search)) if search.nonce == nonce => Some(search.asked_at),
            _ => None,
        }
    }

    /// Nobody serves the destination of `route` for a while.
    pub(crate) fn pause(&mut self, now: Instant, route: &Path) {
        let again_at = now + self.pause;
        let Some(key) = self.key(route) else { return };
        if let Some(reach) = self.known.get_mut(&key) {
            *reach = Reach::None { again_at };
        }
    }

    /// `session` is over: its addresses are searched for afresh, after `wait`. HELLOs that its box
    /// may have answered in another life are retransmitted at once.
    pub(crate) fn forget(&mut self, now: Instant, session: u32, wait: Duration) {
        self.hurry(now);
        for reach in self.known.values_mut() {
            if matches!(reach, Reach::By(by) if *by == session) {
                *reach = Reach::None { again_at: now + wait };
            }
        }
    }

    /// The next HELLO that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Ask> {
        while let Some(&(at, key)) = self.asking.front() {
            if at > now {
                return None;
            }
            self.asking.pop_front();
            let Some(reach) = self.known.get_mut(&key) else { continue };
            let Reach::Asking(search) = reach else { continue };
            let again_at = search.asked_at + self.every;
            if search.tries == TRIES && again_at > now {
                // Its answer may be in flight.
                self.asking.push_back((again_at, key));
                continue;
            }
            if search.tries == TRIES {
                *reach = Reach::None { again_at: now + self.pause };
                continue;
            }
            let side = 1 + search.tries as usize % self.sides;
            search.tries += 1;
            search.asked_at = now;
            let ask = Ask { side, route: search.route, nonce: search.nonce };
            self.asking.push_back((now + self.every, key));
            return Some(ask);
        }
        None
    }

    /// What is known of the far boxes of the configuration. `box_of` names a session's.
    pub(crate) fn far(&self, box_of: impl Fn(u32) -> Option<u64>) -> Vec<FarStatus> {
        let status = |far: &FarBox| {
            let is_of = |key: &AddressKey| match far.via {
                Some(via) => key.address() == via,
                None => far.prefix.contains(key.address()),
            };
            let mut status = FarStatus { far: *far, reached: Vec::new(), is_silent: false };
            for (_, reach) in self.known.iter().filter(|(key, _)| is_of(key)) {
                match reach {
                    Reach::By(session) => status.reached.extend(box_of(*session)),
                    Reach::None { .. } => status.is_silent = true,
                    Reach::Asking(_) => {}
                }
            }
            status.reached.sort_unstable();
            status.reached.dedup();
            status
        };
        self.far.iter().map(status).collect()
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.asking.front().map(|&(at, _)| at)
    }
}
