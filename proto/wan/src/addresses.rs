//! Maps addresses beyond the WAN to the far boxes that serve them.

use crate::far::FarBoxes;
use crate::key::{AddressKey, Map, map};
use crate::{Config, FarBox, FarStatus};
use longhaul_node::Side;
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::Path;
use std::collections::VecDeque;

/// HELLOs sent before an address counts as without a far box.
pub(crate) const TRIES: u32 = 5;
/// Maximum number of concurrent searches.
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
    /// Served by this session.
    By(u32),
    /// Served by no known session.
    None {
        again_at: Instant,
    },
}

/// Result of looking up an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Served by this session.
    By(u32),
    /// A search is in progress.
    Asking,
    /// No known box serves it.
    Nobody,
    /// The table has no room for a search.
    Full,
}

/// A HELLO to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) side: Side,
    pub(crate) route: Path,
    pub(crate) nonce: u64,
}

pub(crate) struct Addresses {
    known: Map<AddressKey, Reach>,
    /// Addresses being searched for, in the order of their next HELLO.
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

    /// Table key of the destination of `route`. `None` if no HELLO may be sent for it.
    fn key(&self, route: &Path) -> Option<AddressKey> {
        Some(AddressKey::destination(&self.far.ask_along(*route)?))
    }

    /// Looks up the destination of `route`, and starts a search if nothing is known of it.
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

    /// Makes room for `key` if necessary; `false` if the table is full.
    fn make_room(&mut self, now: Instant, key: AddressKey) -> bool {
        if self.known.len() < self.max || self.known.contains_key(&key) {
            return true;
        }
        self.known
            .retain(|_, reach| !matches!(reach, Reach::None { again_at } if *again_at <= now));
        self.known.len() < self.max
    }

    /// Notes that a host at the destination of `route` sent a frame through `session`. This does
    /// not show that `session` serves the host's whole site. Returns `true` if a search for the
    /// address was in progress.
    pub(crate) fn learn_of_host(&mut self, now: Instant, route: &Path, session: u32) -> bool {
        self.key(route) == Some(AddressKey::destination(route)) && self.learn(now, route, session)
    }

    /// Notes that the box of `session` answered for the destination of `route`, hence for every
    /// address with the same key. Returns `true` if a search for it was in progress.
    pub(crate) fn learn(&mut self, now: Instant, route: &Path, session: u32) -> bool {
        let Some(key) = self.key(route) else { return false };
        if !self.make_room(now, key) {
            return false;
        }
        matches!(self.known.insert(key, Reach::By(session)), Some(Reach::Asking(_)))
    }

    /// `true` if `session` is known to serve the destination of `route`.
    pub(crate) fn is_served(&self, route: &Path, session: u32) -> bool {
        let reach = self.key(route).and_then(|key| self.known.get(&key));
        matches!(reach, Some(Reach::By(by)) if *by == session)
    }

    /// `true` if hosts here send to the destination of `route` and no session is known to serve it.
    pub(crate) fn is_sought(&self, route: &Path) -> bool {
        let reach = self.key(route).and_then(|key| self.known.get(&key));
        matches!(reach, Some(Reach::Asking(_) | Reach::None { .. }))
    }

    /// Makes the next HELLO of every search due immediately.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.asking.iter_mut().for_each(|(at, _)| *at = now.min(*at));
    }

    /// Returns the time of the last HELLO of the search that an answer with `nonce` ends. The
    /// answer's source must be the address that was asked for, and its destination the address that
    /// asked: no checksum protects the addresses of a HELLO over IPv6.
    pub(crate) fn asked(&self, route: &Path, nonce: u64) -> Option<Instant> {
        match self.known.get(&self.key(route)?) {
            Some(Reach::Asking(search))
                if search.nonce == nonce && search.route.source_ip == route.source_ip =>
            {
                Some(search.asked_at)
            }
            _ => None,
        }
    }

    /// Suspends searches for the destination of `route` for the configured pause.
    pub(crate) fn pause(&mut self, now: Instant, route: &Path) {
        let again_at = now + self.pause;
        let Some(key) = self.key(route) else { return };
        if let Some(reach) = self.known.get_mut(&key) {
            *reach = Reach::None { again_at };
        }
    }

    /// Forgets the addresses of `session`, which has ended, and searches for them again after
    /// `wait`. Other searches retransmit at once, because the box may have answered their HELLOs in
    /// a former life.
    pub(crate) fn forget(&mut self, now: Instant, session: u32, wait: Duration) {
        self.hurry(now);
        for reach in self.known.values_mut() {
            if matches!(reach, Reach::By(by) if *by == session) {
                *reach = Reach::None { again_at: now + wait };
            }
        }
    }

    /// Returns the next HELLO that is due.
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
                // The answer to the last HELLO may be in flight.
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

    /// Status of the configured far boxes. `box_of` maps a session to its box number.
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
