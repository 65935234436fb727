//! Requests for datagram services (SIDR): what is known of each, and by what it is found.

use crate::queue::Key;
use crate::{ConnectionId, ListenId};
use longhaul_units::Instant;
use longhaul_wire::mad::Mad;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One request for a datagram service, ours or a peer's; of one space of numbers with
/// [`ConnectionId`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SidrId(pub(crate) u32);

impl SidrId {
    /// The number, which is the request id on the wire where the request is ours.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}

impl From<SidrId> for ConnectionId {
    /// The same number, by which [`crate::Event::connection`] names a request.
    fn from(id: SidrId) -> Self {
        ConnectionId(id.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SidrState {
    /// Ours, not answered yet.
    Asked,
    /// A peer's, which our program has not answered yet.
    Undecided,
    /// A peer's that was answered: over for the program, kept for a peer that did not get the
    /// answer.
    Answered,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub id: SidrId,
    pub state: SidrState,
    pub peer_ip: IpAddr,
    /// The peer's number of its request; 0 where the request is ours.
    pub request_id: u32,
    pub service_id: u64,
    pub transaction: u64,
    pub listen: Option<ListenId>,
    pub retries: u8,
    /// The wait for the answer begins when the queued message leaves.
    pub rearm: bool,
    /// Where `kept` waits in the output queue.
    pub queued: Option<Key>,
    /// The peer's request, as long as the program has not polled it.
    pub event: Option<Key>,
    pub deadline: Option<Instant>,
    /// Our request, or our answer.
    pub kept: Option<Box<Mad>>,
}

/// All requests, with the indexes that messages and timers find them by.
#[derive(Debug, Default)]
pub(crate) struct Resolutions {
    all: BTreeMap<SidrId, Box<Resolution>>,
    by_peer: BTreeMap<(IpAddr, u32), SidrId>,
    timers: BTreeSet<(Instant, SidrId)>,
    /// By the end of their memory.
    answered: BTreeSet<(Instant, SidrId)>,
    undecided: usize,
}

impl Resolutions {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn undecided(&self) -> usize {
        self.undecided
    }

    pub fn contains(&self, id: SidrId) -> bool {
        self.all.contains_key(&id)
    }

    pub fn get(&self, id: SidrId) -> Option<&Resolution> {
        self.all.get(&id).map(Box::as_ref)
    }

    /// For fields that no index depends on: not the state, the deadline or the peer.
    pub fn get_mut(&mut self, id: SidrId) -> Option<&mut Resolution> {
        self.all.get_mut(&id).map(Box::as_mut)
    }

    pub fn by_peer(&self, ip: IpAddr, request_id: u32) -> Option<&Resolution> {
        self.by_peer.get(&(ip, request_id)).and_then(|id| self.get(*id))
    }

    pub fn first_timer(&self) -> Option<(Instant, SidrId)> {
        self.timers.first().copied()
    }

    /// The answered one that will be forgotten first.
    pub fn oldest_answered(&self) -> Option<SidrId> {
        self.answered.first().map(|(_, id)| *id)
    }

    pub fn insert(&mut self, resolution: Resolution) {
        let id = resolution.id;
        if let Some(at) = resolution.deadline {
            self.timers.insert((at, id));
        }
        if resolution.state != SidrState::Asked {
            self.by_peer.insert((resolution.peer_ip, resolution.request_id), id);
        }
        self.undecided += usize::from(resolution.state == SidrState::Undecided);
        self.all.insert(id, Box::new(resolution));
    }

    pub fn remove(&mut self, id: SidrId) -> Option<Box<Resolution>> {
        self.set_deadline(id, None);
        let resolution = self.all.remove(&id)?;
        self.undecided -= usize::from(resolution.state == SidrState::Undecided);
        let key = (resolution.peer_ip, resolution.request_id);
        if self.by_peer.get(&key) == Some(&id) {
            self.by_peer.remove(&key);
        }
        Some(resolution)
    }

    /// The program has answered; `until` when that is remembered.
    pub fn set_answered(&mut self, id: SidrId, until: Instant) {
        let Some(resolution) = self.all.get_mut(&id) else { return };
        self.undecided -= usize::from(resolution.state == SidrState::Undecided);
        resolution.state = SidrState::Answered;
        self.set_deadline(id, Some(until));
        self.answered.insert((until, id));
    }

    pub fn set_deadline(&mut self, id: SidrId, deadline: Option<Instant>) {
        let Some(resolution) = self.all.get_mut(&id) else { return };
        if let Some(old) = std::mem::replace(&mut resolution.deadline, deadline) {
            self.timers.remove(&(old, id));
            self.answered.remove(&(old, id));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }

    /// Entries of all indexes, to be held against the requests.
    #[cfg(test)]
    pub fn index_sizes(&self) -> [usize; 4] {
        [self.by_peer.len(), self.timers.len(), self.answered.len(), self.undecided]
    }
}
