//! The neighbour table.

use longhaul_units::Instant;
use longhaul_wire::MacAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A held next hop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HopId(u32);

/// Why a peer's Ethernet address cannot be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No reply after all tries.
    NoAnswer,
    /// Not on our networks, and no gateway is configured.
    NoRoute,
    /// All entries of the table are in use.
    TableFull,
}

impl Failure {
    /// Description for messages.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Failure::NoAnswer => "nobody answers for it",
            Failure::NoRoute => "there is no route to it",
            Failure::TableFull => "too many neighbours are in use",
        }
    }
}

/// State of a peer's address resolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Resolved.
    Known(MacAddr),
    /// A request is outstanding.
    Asking,
    /// Failed. The next request starts again.
    Failed(Failure),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Confirmed recently.
    Fresh,
    /// Not confirmed recently, and not requested.
    Stale,
    /// With the remaining tries. A known Ethernet address stays valid until they are used up.
    Asking { tries: u8 },
    /// Without an Ethernet address.
    Failed(Failure),
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub ip: IpAddr,
    pub mac: Option<MacAddr>,
    pub phase: Phase,
    pub holders: u32,
    /// Time of the last change of `mac`.
    pub changed_at: Instant,
    /// Time of the last look-up.
    pub used_at: Instant,
    /// Unsolicited: created by a packet from the neighbour.
    pub is_heard: bool,
    /// A request is due.
    pub is_asked_for: bool,
    /// In the queue of requests, where it stays even if its request becomes obsolete.
    pub is_queued: bool,
    /// Its deadline in the table's timers.
    due: Option<Instant>,
}

impl Entry {
    pub fn resolution(&self) -> Resolution {
        match (self.phase, self.mac) {
            (Phase::Failed(failure), _) => Resolution::Failed(failure),
            (_, Some(mac)) => Resolution::Known(mac),
            (_, None) => Resolution::Asking,
        }
    }
}

/// A bounded table of entries by number and by address, with their timers.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_ip: BTreeMap<IpAddr, HopId>,
    due: BTreeSet<(Instant, HopId)>,
    entries_max: usize,
}

impl Table {
    pub fn new(entries_max: usize) -> Self {
        Table {
            entries: Vec::new(),
            free: Vec::new(),
            by_ip: BTreeMap::new(),
            due: BTreeSet::new(),
            entries_max: entries_max.clamp(1, u32::MAX as usize),
        }
    }

    pub fn find(&self, ip: IpAddr) -> Option<HopId> {
        self.by_ip.get(&ip).copied()
    }

    pub fn get(&self, id: HopId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, id: HopId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    pub fn len(&self) -> usize {
        self.by_ip.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.entries_max
    }

    /// Inserts an entry for `ip`, which must have none; there must be room.
    pub fn insert(
        &mut self,
        now: Instant,
        ip: IpAddr,
        phase: Phase,
        mac: Option<MacAddr>,
    ) -> HopId {
        let entry = Entry {
            ip,
            mac,
            phase,
            holders: 0,
            changed_at: now,
            used_at: now,
            is_heard: false,
            is_asked_for: false,
            is_queued: false,
            due: None,
        };
        let id = match self.free.pop() {
            Some(free) => HopId(free),
            None => {
                self.entries.push(None);
                HopId(self.entries.len() as u32 - 1)
            }
        };
        self.entries[id.0 as usize] = Some(entry);
        self.by_ip.insert(ip, id);
        id
    }

    pub fn remove(&mut self, id: HopId) {
        self.set_due(id, None);
        if let Some(entry) = self.entries.get_mut(id.0 as usize).and_then(Option::take) {
            self.by_ip.remove(&entry.ip);
            self.free.push(id.0);
        }
    }

    /// Returns the least recently used entry without holders or an outstanding request.
    pub fn idlest(&self) -> Option<HopId> {
        let idle = self.by_ip.values().filter_map(|&id| Some((id, self.get(id)?)));
        let idle = idle.filter(|(_, entry)| {
            entry.holders == 0 && !matches!(entry.phase, Phase::Asking { .. })
        });
        idle.min_by_key(|(_, entry)| entry.used_at).map(|(id, _)| id)
    }

    pub fn set_due(&mut self, id: HopId, at: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if let Some(before) = entry.due.take() {
            self.due.remove(&(before, id));
        }
        entry.due = at;
        if let Some(at) = at {
            self.due.insert((at, id));
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes an expired entry and clears its deadline.
    pub fn pop_due(&mut self, now: Instant) -> Option<HopId> {
        let (at, id) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.set_due(id, None);
        Some(id)
    }
}
