//! Table of learnt MAC addresses.

use foldhash::fast::FixedState;
use longhaul_units::{Duration, Instant};
use longhaul_wire::MacAddr;
use std::collections::HashMap;

/// How often a full table is searched for aged addresses.
const SEARCH_INTERVAL: Duration = Duration::from_ms(1000);

/// Port of each known address. Hashes are keyed, so that stations cannot force collisions.
#[derive(Debug)]
pub(crate) struct Addresses {
    known: HashMap<u64, Entry, FixedState>,
    max: usize,
    age: Duration,
    /// Time of the last search of a full table.
    searched_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    port: usize,
    lifetime: Lifetime,
}

#[derive(Clone, Copy, Debug)]
enum Lifetime {
    Declared,
    SeenAt(Instant),
}

impl Entry {
    fn is_alive(&self, now: Instant, age: Duration) -> bool {
        match self.lifetime {
            Lifetime::Declared => true,
            Lifetime::SeenAt(at) => now.since(at) < age,
        }
    }
}

/// An address in a form that hashes in a few instructions.
#[inline]
fn key(address: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = address.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl Addresses {
    pub(crate) fn new(max: usize, age: Duration, seed: u64) -> Self {
        let known = HashMap::with_capacity_and_hasher(max, FixedState::with_seed(seed));
        Addresses { known, max, age, searched_at: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Adds a static address. Returns `false` if the table is full.
    pub(crate) fn declare(&mut self, address: MacAddr, port: usize) -> bool {
        let key = key(address);
        let fits = self.known.contains_key(&key) || self.known.len() < self.max;
        if fits {
            self.known.insert(key, Entry { port, lifetime: Lifetime::Declared });
        }
        fits
    }

    /// Learns that `address` is behind `port`. Returns `false` if the table is full.
    #[inline]
    pub(crate) fn learn(&mut self, now: Instant, address: MacAddr, port: usize) -> bool {
        let key = key(address);
        let seen = Entry { port, lifetime: Lifetime::SeenAt(now) };
        match self.known.get_mut(&key) {
            Some(Entry { lifetime: Lifetime::Declared, .. }) => true,
            Some(entry) => {
                *entry = seen;
                true
            }
            None => {
                let has_room = self.known.len() < self.max || self.make_room(now);
                if has_room {
                    self.known.insert(key, seen);
                }
                has_room
            }
        }
    }

    /// Removes aged addresses, if a search is due. Returns whether there is room.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.searched_at.is_some_and(|at| now.since(at) < SEARCH_INTERVAL) {
            return false;
        }
        self.searched_at = Some(now);
        let age = self.age;
        self.known.retain(|_, entry| entry.is_alive(now, age));
        self.known.len() < self.max
    }

    /// The port behind which `address` is.
    #[inline]
    pub(crate) fn port_of(&self, now: Instant, address: MacAddr) -> Option<usize> {
        let entry = self.known.get(&key(address))?;
        entry.is_alive(now, self.age).then_some(entry.port)
    }
}
