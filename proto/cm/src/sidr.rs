//! Requests for datagram services (SIDR), indexed by id, by peer and by deadline.

use crate::queue::Key;
use crate::state::Kept;
use crate::{ConnectionId, ListenId};
use longhaul_units::Instant;
use longhaul_wire::mad::Mad;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Identifies a request for a datagram service, ours or a peer's. Shares its numbers with
/// [`ConnectionId`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct SidrId(pub(crate) u32);

impl SidrId {
    /// The number; for our requests, the request id on the wire.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}

impl From<SidrId> for ConnectionId {
    /// The same number, as [`crate::Event::connection`] returns it.
    fn from(id: SidrId) -> Self {
        ConnectionId(id.0)
    }
}

#[derive(Debug)]
pub(crate) enum SidrState {
    /// Our request without an answer, and the number of its retransmissions.
    Asked { message: Kept, retries: u8 },
    /// A peer's request that our program has not answered.
    Undecided {
        asked: PeerRequest,
        listen: ListenId,
        /// Its entry in the event queue, until the program polls it.
        event: Option<Key>,
    },
    /// A peer's request that our program has answered. The answer is retransmitted if the peer
    /// repeats its request.
    Answered { asked: PeerRequest, answer: Kept },
}

/// Contents of a peer's SIDR_REQ; a repetition has the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeerRequest {
    pub request_id: u32,
    pub service_id: u64,
    pub transaction: u64,
}

impl SidrState {
    /// The peer's request; `None` for ours.
    pub fn asked(&self) -> Option<&PeerRequest> {
        match self {
            SidrState::Asked { .. } => None,
            SidrState::Undecided { asked, .. } | SidrState::Answered { asked, .. } => Some(asked),
        }
    }

    /// Our request or our answer.
    pub fn kept_mut(&mut self) -> Option<&mut Kept> {
        match self {
            SidrState::Asked { message: kept, .. } | SidrState::Answered { answer: kept, .. } => {
                Some(kept)
            }
            SidrState::Undecided { .. } => None,
        }
    }

    fn is_undecided(&self) -> bool {
        matches!(self, SidrState::Undecided { .. })
    }
}

/// One request.
#[derive(Debug)]
pub(crate) struct Resolution {
    pub id: SidrId,
    pub peer_ip: IpAddr,
    pub deadline: Option<Instant>,
    pub state: SidrState,
}

/// All requests and their indexes.
#[derive(Debug, Default)]
pub(crate) struct Resolutions {
    all: BTreeMap<SidrId, Box<Resolution>>,
    by_peer: BTreeMap<(IpAddr, u32), SidrId>,
    timers: BTreeSet<(Instant, SidrId)>,
    /// Answered requests, by the time at which they are forgotten.
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

    /// For fields that no index depends on: not the variant of the state, the deadline or the peer.
    pub fn get_mut(&mut self, id: SidrId) -> Option<&mut Resolution> {
        self.all.get_mut(&id).map(Box::as_mut)
    }

    pub fn by_peer(&self, ip: IpAddr, request_id: u32) -> Option<&Resolution> {
        self.by_peer.get(&(ip, request_id)).and_then(|id| self.get(*id))
    }

    pub fn first_timer(&self) -> Option<(Instant, SidrId)> {
        self.timers.first().copied()
    }

    /// The answered request that expires first.
    pub fn oldest_answered(&self) -> Option<SidrId> {
        self.answered.first().map(|(_, id)| *id)
    }

    pub fn insert(&mut self, resolution: Resolution) {
        let id = resolution.id;
        if let Some(at) = resolution.deadline {
            self.timers.insert((at, id));
        }
        if let Some(asked) = resolution.state.asked() {
            self.by_peer.insert((resolution.peer_ip, asked.request_id), id);
        }
        self.undecided += usize::from(resolution.state.is_undecided());
        self.all.insert(id, Box::new(resolution));
    }

    pub fn remove(&mut self, id: SidrId) -> Option<Box<Resolution>> {
        self.set_deadline(id, None);
        let resolution = self.all.remove(&id)?;
        self.undecided -= usize::from(resolution.state.is_undecided());
        if let Some(asked) = resolution.state.asked() {
            self.by_peer.remove(&(resolution.peer_ip, asked.request_id));
        }
        Some(resolution)
    }

    /// Answers a peer's undecided request with `answer`, which is kept until `until`.
    pub fn set_answered(&mut self, id: SidrId, answer: Box<Mad>, until: Instant) {
        let Some(resolution) = self.all.get_mut(&id) else { return };
        let SidrState::Undecided { asked, .. } = resolution.state else { return };
        resolution.state = SidrState::Answered { asked, answer: Kept::new(answer) };
        self.undecided -= 1;
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

    /// Number of entries of each index.
    #[cfg(test)]
    pub fn index_sizes(&self) -> [usize; 4] {
        [self.by_peer.len(), self.timers.len(), self.answered.len(), self.undecided]
    }
}
