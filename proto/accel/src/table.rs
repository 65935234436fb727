//! The flow table: slots, and indices of their flows.

use crate::candidates::Candidates;
use crate::flow::Flow;
use crate::index::Index;
use crate::key::{Map, WireKey, map};
use crate::timers::SlotId;
use longhaul_units::{Instant, Psn, Qpn};

/// Slots examined per eviction, at least.
const LOOKS_MAX: usize = 64;

struct Slot {
    generation: u32,
    flow: Option<Box<Flow>>,
}

pub(crate) struct FlowTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    flows_max: usize,
    /// Slot at which the next search for a victim begins.
    hand: usize,
    by_responder: Index,
    by_requester: Index,
    /// Flows whose requester's QPN is unknown, by address pair.
    unpaired: Map<WireKey, Candidates>,
    /// Flows whose requester's QPN has another owner, with data to deliver.
    orphans: Vec<u32>,
    last_lan: Option<(WireKey, u32)>,
    last_wan: Option<(WireKey, u32)>,
}

/// True if requests with `key` belong to the flow in a slot.
fn has_responder<'a>(slots: &'a [Slot], key: &'a WireKey) -> impl Fn(u32) -> bool + 'a {
    |slot| {
        slots
            .get(slot as usize)
            .and_then(|s| s.flow.as_deref())
            .is_some_and(|flow| flow.key().wire() == *key)
    }
}

/// True if responses with `key` belong to the flow in a slot.
fn has_requester<'a>(slots: &'a [Slot], key: &'a WireKey) -> impl Fn(u32) -> bool + 'a {
    |slot| {
        let flow = slots.get(slot as usize).and_then(|s| s.flow.as_deref());
        flow.is_some_and(|flow| {
            flow.requester_qpn().is_some_and(|qpn| flow.key().to_requester(qpn) == *key)
        })
    }
}

impl FlowTable {
    pub(crate) fn new(flows_max: u32, seed: u64) -> Self {
        FlowTable {
            slots: Vec::new(),
            free: Vec::new(),
            flows_max: flows_max as usize,
            hand: 0,
            by_responder: Index::new(seed),
            by_requester: Index::new(seed ^ 1),
            unpaired: map(seed ^ 2),
            orphans: Vec::new(),
            last_lan: None,
            last_wan: None,
        }
    }

    /// Returns the flow of a request from the LAN.
    #[inline(always)]
    pub(crate) fn by_responder(&mut self, key: WireKey) -> Option<u32> {
        match self.last_lan {
            Some((last, slot)) if last == key => Some(slot),
            _ => self.find_by_responder(key),
        }
    }

    fn find_by_responder(&mut self, key: WireKey) -> Option<u32> {
        let slot = self.by_responder.get(&key, has_responder(&self.slots, &key))?;
        self.last_lan = Some((key, slot));
        Some(slot)
    }

    /// Returns the flow to whose requester a packet from the WAN goes.
    #[inline(always)]
    pub(crate) fn by_requester(&mut self, key: WireKey) -> Option<u32> {
        match self.last_wan {
            Some((last, slot)) if last == key => Some(slot),
            _ => self.find_by_requester(key),
        }
    }

    fn find_by_requester(&mut self, key: WireKey) -> Option<u32> {
        let slot = self.by_requester.get(&key, has_requester(&self.slots, &key))?;
        self.last_wan = Some((key, slot));
        Some(slot)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Flow> {
        self.slots.get_mut(slot as usize)?.flow.as_deref_mut()
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Flow> {
        self.slots.get(slot as usize)?.flow.as_deref()
    }

    pub(crate) fn id(&self, slot: u32) -> SlotId {
        let generation = self.slots.get(slot as usize).map_or(0, |slot| slot.generation);
        SlotId { slot, generation }
    }

    pub(crate) fn is_current(&self, id: SlotId) -> bool {
        self.current(id).is_some()
    }

    /// The flow in `slot`, with its [`SlotId`].
    #[inline]
    pub(crate) fn identified(&mut self, slot: u32) -> Option<(SlotId, &mut Flow)> {
        let place = self.slots.get_mut(slot as usize)?;
        Some((SlotId { slot, generation: place.generation }, place.flow.as_deref_mut()?))
    }

    /// The flow with this id, if it is still in the table.
    pub(crate) fn current(&self, id: SlotId) -> Option<&Flow> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.flow.as_deref().filter(|_| slot.generation == id.generation)
    }

    /// The flow with this id, if it is still in the table.
    #[inline]
    pub(crate) fn current_mut(&mut self, id: SlotId) -> Option<&mut Flow> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.flow.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    /// Number of flows.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of slots, free ones included.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Flows in the slots from `first` on, with their slots.
    pub(crate) fn from(&self, first: u32) -> impl Iterator<Item = (u32, &Flow)> {
        let slots = self.slots.get(first as usize..).unwrap_or_default();
        (first..).zip(slots).filter_map(|(number, slot)| Some((number, slot.flow.as_deref()?)))
    }

    /// The flow to evict for a new one; `None` if there is room, or if no flow can be evicted.
    /// Strays are evicted first, then flows that deliver nothing, so that no flood evicts
    /// terminated flows.
    pub(crate) fn victim(&mut self) -> Option<u32> {
        if self.has_room() {
            return None;
        }
        let (mut watched, mut idle) = (None, None);
        for _ in 0..LOOKS_MAX.max(2 * self.slots.len().min(LOOKS_MAX)) {
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(flow) = self.slots[self.hand].flow.as_deref_mut() else { continue };
            let is_watched = !flow.delivers();
            if flow.is_learning() && flow.is_stray() {
                return Some(self.hand as u32);
            }
            let was_used = std::mem::take(&mut flow.bookkeeping.is_used);
            if is_watched && !was_used {
                watched = watched.or(Some(self.hand as u32));
            } else if !was_used && flow.is_delivered() {
                idle = idle.or(Some(self.hand as u32));
            }
        }
        watched.or(idle)
    }

    /// True if there is room for one more flow.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.flows_max
    }

    /// Adds a flow, whose key must be unknown. `None` if the table is full.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<u32> {
        let key = flow.key().wire();
        let slot = self.insert_successor(flow)?;
        self.by_responder.insert(&key, slot, has_responder(&self.slots, &key));
        Some(slot)
    }

    /// Adds another life of a known flow; requests still map to the known one. `None` if the table
    /// is full.
    pub(crate) fn insert_successor(&mut self, flow: Flow) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.flows_max => {
                self.slots.push(Slot { generation: 0, flow: None });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        if let Some(qpn) = flow.requester_qpn() {
            self.set_requester(slot, &flow, qpn);
        }
        self.slots[slot as usize].flow = Some(Box::new(flow));
        Some(slot)
    }

    /// Maps the requests with its key to the flow in `slot`.
    pub(crate) fn take_requests(&mut self, slot: u32) {
        let Some(key) = self.get(slot).map(|flow| flow.key().wire()) else { return };
        self.by_responder.insert(&key, slot, has_responder(&self.slots, &key));
        self.last_lan = None;
    }

    fn set_requester(&mut self, slot: u32, flow: &Flow, qpn: Qpn) {
        let key = flow.key().to_requester(qpn);
        self.by_requester.insert(&key, slot, has_requester(&self.slots, &key));
        self.last_wan = None;
    }

    /// Updates the candidate entry of the flow in `slot`, unless it is paired.
    pub(crate) fn nominate(&mut self, slot: u32) {
        let Some(flow) =
            self.slots.get_mut(slot as usize).and_then(|slot| slot.flow.as_deref_mut())
        else {
            return;
        };
        let (pair, is_paired) = (flow.key().pair(), flow.requester_qpn().is_some());
        let Some(learning) = flow.learning_mut().filter(|_| !is_paired) else { return };
        self.unpaired.entry(pair).or_default().put(
            slot,
            &mut learning.place,
            learning.trace.range(),
        );
    }

    fn remove_candidate(&mut self, slot: u32) {
        let Some(flow) = self.get_mut(slot) else { return };
        let pair = flow.key().pair();
        let Some(place) = flow.learning_mut().and_then(|learning| learning.place.take()) else {
            return;
        };
        let Some(candidates) = self.unpaired.get_mut(&pair) else { return };
        let moved = candidates.take_out(place);
        if candidates.is_empty() {
            self.unpaired.remove(&pair);
        }
        if let Some(learning) = moved.and_then(|slot| self.get_mut(slot)?.learning_mut()) {
            learning.place = Some(place);
        }
    }

    /// Notes an unfollowed requester between these addresses: until `until`, an ACK that fits one
    /// flow may be for that requester.
    pub(crate) fn note_unfollowed(&mut self, pair: WireKey, until: Instant) {
        // Without candidates no ACK is attributed.
        if let Some(candidates) = self.unpaired.get_mut(&pair) {
            candidates.note_unfollowed(until);
        }
    }

    fn forget_requester(&mut self, slot: u32, flow_key: &crate::FlowKey, qpn: Qpn) {
        let key = flow_key.to_requester(qpn);
        self.by_requester.remove(&key, slot);
        self.last_wan = None;
    }

    /// Maps responses to `qpn` to the flow in `slot`.
    pub(crate) fn pair(&mut self, slot: u32, qpn: Qpn) {
        self.remove_candidate(slot);
        let Some(flow) = self.get_mut(slot) else { return };
        flow.set_requester(qpn);
        let to_requester = flow.key().to_requester(qpn);
        self.by_requester.insert(&to_requester, slot, has_requester(&self.slots, &to_requester));
        self.last_wan = None;
    }

    /// Forgets the requester of the flow in `slot`, which may have changed.
    pub(crate) fn unpair(&mut self, slot: u32) {
        let Some(flow) = self.get_mut(slot) else { return };
        let key = *flow.key();
        if let Some(qpn) = flow.take_requester() {
            self.forget_requester(slot, &key, qpn);
        }
    }

    /// Unmaps responses to the requester of the flow in `slot`, because its QPN has another owner.
    pub(crate) fn let_requester_go(&mut self, slot: u32) {
        let Some(flow) = self.get(slot) else { return };
        if let Some(qpn) = flow.requester_qpn() {
            let key = *flow.key();
            self.forget_requester(slot, &key, qpn);
            self.orphans.push(slot);
        }
    }

    #[inline]
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The orphan to which an ACK or NAK with `key` for `psn` belongs.
    pub(crate) fn orphan(&self, key: WireKey, psn: Psn) -> Option<u32> {
        let is_for = |flow: &Flow| {
            flow.requester_qpn().is_some_and(|qpn| flow.key().to_requester(qpn) == key)
                && flow.has_outstanding(psn)
        };
        self.orphans.iter().copied().find(|&slot| self.get(slot).is_some_and(is_for))
    }

    /// Candidates for an unpaired response between these addresses.
    pub(crate) fn candidates(&self, pair: WireKey) -> Option<&Candidates> {
        self.unpaired.get(&pair)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Box<Flow>> {
        self.remove_candidate(slot);
        let flow = self.slots.get_mut(slot as usize)?.flow.take()?;
        self.slots[slot as usize].generation = self.slots[slot as usize].generation.wrapping_add(1);
        self.free.push(slot);
        self.by_responder.remove(&flow.key().wire(), slot);
        self.last_lan = None;
        if let Some(qpn) = flow.requester_qpn() {
            self.forget_requester(slot, flow.key(), qpn);
        }
        self.orphans.retain(|&orphan| orphan != slot);
        Some(flow)
    }
}
