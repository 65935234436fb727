//! The flows: slots, and the ways to find one.

use crate::flow::Flow;
use crate::index::Index;
use crate::key::{Map, WireKey, map};
use crate::timers::SlotId;
use longhaul_units::{Duration, Qpn};

/// Flows between the same two addresses that are considered when directions are paired.
const CANDIDATES_MAX: usize = 64;
/// Silence of a candidate's requester after which another flow may take its place.
const CANDIDATE_SILENT: Duration = Duration::from_ms(1000);
/// Slots looked at when one is needed and none is free.
const LOOKS_MAX: usize = 64;

struct Slot {
    generation: u32,
    flow: Option<Box<Flow>>,
}

pub(crate) struct FlowTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    flows_max: usize,
    /// Where the search for a flow to evict goes on.
    hand: usize,
    by_responder: Index,
    by_requester: Index,
    /// Flows without a known requester QPN, by the pair of addresses.
    unpaired: Map<WireKey, Vec<u32>>,
    last_lan: Option<(WireKey, u32)>,
    last_wan: Option<(WireKey, u32)>,
}

/// Whether the flow in a slot is the one that requests with `key` belong to.
fn has_responder<'a>(slots: &'a [Slot], key: &'a WireKey) -> impl Fn(u32) -> bool + 'a {
    |slot| {
        slots.get(slot as usize).and_then(|s| s.flow.as_deref()).is_some_and(|flow| flow.key.wire() == *key)
    }
}

/// Whether the flow in a slot is the one that responses with `key` belong to.
fn has_requester<'a>(slots: &'a [Slot], key: &'a WireKey) -> impl Fn(u32) -> bool + 'a {
    |slot| {
        let flow = slots.get(slot as usize).and_then(|s| s.flow.as_deref());
        flow.is_some_and(|flow| flow.requester_qpn.is_some_and(|qpn| flow.key.to_requester(qpn) == *key))
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
            last_lan: None,
            last_wan: None,
        }
    }

    /// Finds the flow of a request from the LAN.
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

    /// Finds the flow whose requester a packet from the WAN goes to.
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
        self.slots.get(id.slot as usize).is_some_and(|s| s.generation == id.generation && s.flow.is_some())
    }

    /// Flows in the table.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How many slots there are, free ones included.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Flows in the slots from `first` on, with their slots.
    pub(crate) fn from(&self, first: u32) -> impl Iterator<Item = (u32, &Flow)> {
        let slots = self.slots.get(first as usize..).unwrap_or_default();
        (first..).zip(slots).filter_map(|(number, slot)| Some((number, slot.flow.as_deref()?)))
    }

    /// The flow that has to go for another one to come; `None` when there is room, or when none can go. What showed a single
    /// packet goes first, and what is not terminated before what is: no flood drives out what is known.
    pub(crate) fn victim(&mut self) -> Option<u32> {
        if self.has_room() {
            return None;
        }
        let (mut watched, mut idle) = (None, None);
        for _ in 0..LOOKS_MAX.max(2 * self.slots.len().min(LOOKS_MAX)) {
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(flow) = self.slots[self.hand].flow.as_deref_mut() else { continue };
            let is_watched = flow.state != crate::FlowState::Terminated;
            if flow.state == crate::FlowState::Learning && !flow.goes_on {
                return Some(self.hand as u32);
            }
            let was_used = std::mem::take(&mut flow.used);
            if is_watched && !was_used {
                watched = watched.or(Some(self.hand as u32));
            } else if !was_used && flow.store.is_empty() {
                idle = idle.or(Some(self.hand as u32));
            }
        }
        watched.or(idle)
    }

    /// True when one more flow can be taken in.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.flows_max
    }

    /// Takes a flow in. Its key must not be known. `None` when the table is full.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < self.flows_max => {
                self.slots.push(Slot { generation: 0, flow: None });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let key = flow.key.wire();
        self.by_responder.insert(&key, slot, has_responder(&self.slots, &key));
        let mut flow = flow;
        match flow.requester_qpn {
            Some(qpn) => self.set_requester(slot, &flow, qpn),
            None => flow.is_candidate = self.add_candidate(slot, flow.key.pair()),
        }
        self.slots[slot as usize].flow = Some(Box::new(flow));
        Some(slot)
    }

    fn set_requester(&mut self, slot: u32, flow: &Flow, qpn: Qpn) {
        let key = flow.key.to_requester(qpn);
        self.by_requester.insert(&key, slot, has_requester(&self.slots, &key));
        self.last_wan = None;
    }

    /// True when there was room.
    fn add_candidate(&mut self, slot: u32, pair: WireKey) -> bool {
        let candidates = self.unpaired.entry(pair).or_default();
        let has_room = candidates.len() < CANDIDATES_MAX;
        if has_room {
            candidates.push(slot);
        }
        has_room
    }

    /// Unpaired ACKs between this flow's addresses may be its own, which goes on. When there are many such flows, it has to
    /// wait until one of them is learnt or silent.
    pub(crate) fn nominate(&mut self, slot: u32) {
        let Some((pair, now)) = self.get(slot).map(|flow| (flow.key.pair(), flow.heard.at)) else { return };
        let mut candidates = self.unpaired.remove(&pair).unwrap_or_default();
        if candidates.len() >= CANDIDATES_MAX {
            let may_go = |&slot: &u32| {
                self.get(slot).is_none_or(|flow| !flow.goes_on || now.since(flow.heard.at) > CANDIDATE_SILENT)
            };
            if let Some(at) = candidates.iter().position(may_go) {
                let gone = candidates.swap_remove(at);
                if let Some(flow) = self.get_mut(gone) {
                    flow.is_candidate = false;
                }
            }
        }
        if candidates.len() < CANDIDATES_MAX {
            candidates.push(slot);
            if let Some(flow) = self.get_mut(slot) {
                flow.is_candidate = true;
            }
        }
        self.unpaired.insert(pair, candidates);
    }

    fn remove_candidate(&mut self, slot: u32, pair: WireKey) {
        if let Some(candidates) = self.unpaired.get_mut(&pair) {
            candidates.retain(|&candidate| candidate != slot);
            if candidates.is_empty() {
                self.unpaired.remove(&pair);
            }
        }
        if let Some(flow) = self.get_mut(slot) {
            flow.is_candidate = false;
        }
    }

    fn forget_requester(&mut self, slot: u32, flow_key: &crate::FlowKey, qpn: Qpn) {
        let key = flow_key.to_requester(qpn);
        self.by_requester.remove(&key, slot);
        self.last_wan = None;
    }

    /// The requester's QPN of the flow in `slot` has become known.
    pub(crate) fn pair(&mut self, slot: u32, qpn: Qpn) {
        let Some(flow) = self.get(slot) else { return };
        let key = flow.key;
        self.remove_candidate(slot, key.pair());
        let to_requester = key.to_requester(qpn);
        self.by_requester.insert(&to_requester, slot, has_requester(&self.slots, &to_requester));
        self.last_wan = None;
    }

    /// The flow in `slot` is learnt afresh, so that its requester may be another one.
    pub(crate) fn unpair(&mut self, slot: u32) {
        let Some(flow) = self.get_mut(slot) else { return };
        let key = flow.key;
        if let Some(qpn) = flow.requester_qpn.take() {
            self.forget_requester(slot, &key, qpn);
        }
    }

    /// Slots of flows that an unpaired response between these addresses could belong to.
    pub(crate) fn candidates(&self, pair: WireKey) -> &[u32] {
        self.unpaired.get(&pair).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Box<Flow>> {
        let flow = self.slots.get_mut(slot as usize)?.flow.take()?;
        self.slots[slot as usize].generation = self.slots[slot as usize].generation.wrapping_add(1);
        self.free.push(slot);
        self.by_responder.remove(&flow.key.wire(), slot);
        self.last_lan = None;
        match flow.requester_qpn {
            Some(qpn) => self.forget_requester(slot, &flow.key, qpn),
            None => self.remove_candidate(slot, flow.key.pair()),
        }
        Some(flow)
    }
}
