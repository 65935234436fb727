//! Queues of a target and their slots.

use super::controller::ControllerId;
use super::step::{Io, Output, SubsystemId};
use crate::{CQE_LEN, Command, Completion, QueueRequest, Status};
use longhaul_units::{Instant, RKey};
use std::net::SocketAddr;

/// A queue of a target; never reused for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId {
    index: u32,
    generation: u32,
}

/// Where a queue stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueState {
    /// The host has not sent Connect.
    AwaitingConnect { until: Instant },
    /// The admin queue of a controller.
    Admin { controller: ControllerId },
    /// An I/O queue of a controller.
    Io { controller: ControllerId, subsystem: SubsystemId },
    /// The driver has been told to end the connection.
    Ended { controller: Option<ControllerId> },
}

/// The command of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    /// The identifier that the slot has claimed; `None` if another slot has.
    pub(super) id: Option<u16>,
    /// The identifier.
    pub(super) number: u16,
    /// Key to invalidate.
    pub(super) invalidate: Option<RKey>,
}

/// A namespace of a subsystem, and how to access it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) subsystem: SubsystemId,
    pub(super) namespace: u32,
    /// Force Unit Access: past volatile caches.
    pub(super) durable: bool,
}

/// What follows a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fetched {
    /// A Connect command with its data.
    Connect(Command),
    /// An access.
    Execute { at: Place, io: Io },
    /// Ranges to deallocate.
    Ranges { at: Place, count: u32 },
}

/// A slot: the command that occupies it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    Free,
    Fetching {
        origin: Origin,
        then: Fetched,
    },
    Executing {
        origin: Origin,
        output: Option<Output>,
    },
    /// An Asynchronous Event Request.
    Event {
        origin: Origin,
    },
    /// The response is being sent.
    Responding,
}

pub(super) struct Queue {
    pub(super) request: QueueRequest,
    /// Address that the host connected to.
    pub(super) local: SocketAddr,
    pub(super) state: QueueState,
    /// When the last command came.
    pub(super) heard: Instant,
    /// Entries of the submission queue.
    entries: u16,
    /// Commands that are not answered.
    outstanding: u16,
    /// `None` without flow control.
    sq_head: Option<u16>,
    slots: Vec<Slot>,
    /// Identifiers in use, one bit each.
    ids: Vec<u64>,
}

impl Queue {
    pub(super) fn new(
        request: QueueRequest,
        local: SocketAddr,
        slots: u16,
        state: QueueState,
        heard: Instant,
    ) -> Self {
        Queue {
            request,
            local,
            state,
            heard,
            entries: request.sends + 1,
            outstanding: 0,
            sq_head: Some(0),
            slots: vec![Slot::Free; slots.into()],
            ids: vec![0; 1 << 10],
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.state, QueueState::Ended { .. })
    }

    /// True if the host should have sent Connect.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        match self.state {
            QueueState::AwaitingConnect { until } => until <= now,
            QueueState::Admin { .. } | QueueState::Io { .. } | QueueState::Ended { .. } => false,
        }
    }

    /// The controller that it belongs to, or belonged to before its end.
    pub(super) fn controller(&self) -> Option<ControllerId> {
        match self.state {
            QueueState::Admin { controller } | QueueState::Io { controller, .. } => {
                Some(controller)
            }
            QueueState::Ended { controller } => controller,
            QueueState::AwaitingConnect { .. } => None,
        }
    }

    pub(super) fn io_controller(&self) -> Option<ControllerId> {
        match self.state {
            QueueState::Io { controller, .. } => Some(controller),
            _ => None,
        }
    }

    /// Sets what Connect negotiated.
    pub(super) fn set_entries(&mut self, entries: u16, has_flow_control: bool) {
        self.entries = entries;
        self.sq_head = has_flow_control.then_some(0);
    }

    pub(super) fn is_free(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)) == Some(&Slot::Free)
    }

    /// Counts a command. `false` if the host may not have sent it.
    pub(super) fn admit(&mut self) -> bool {
        self.outstanding = self.outstanding.saturating_add(1);
        self.outstanding <= self.entries
    }

    /// Marks an identifier as used. `false` if it is.
    pub(super) fn claim(&mut self, id: u16) -> bool {
        let (word, bit) = (&mut self.ids[usize::from(id >> 6)], 1 << (id & 63));
        let is_free = *word & bit == 0;
        *word |= bit;
        is_free
    }

    pub(super) fn occupy(&mut self, slot: u16, by: Slot) {
        if let Some(slot) = self.slots.get_mut(usize::from(slot)) {
            *slot = by;
        }
    }

    /// The state of a slot that waits for its driver, for the caller to replace.
    pub(super) fn take(&mut self, slot: u16) -> Option<Slot> {
        let slot = self.slots.get_mut(usize::from(slot))?;
        matches!(slot, Slot::Fetching { .. } | Slot::Executing { .. } | Slot::Event { .. })
            .then(|| std::mem::replace(slot, Slot::Responding))
    }

    pub(super) fn free(&mut self, slot: u16) {
        if let Some(slot @ Slot::Responding) = self.slots.get_mut(usize::from(slot)) {
            *slot = Slot::Free;
        }
    }

    /// The slots whose accesses the driver carries out.
    pub(super) fn executing(&self) -> impl Iterator<Item = u16> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, slot)| matches!(slot, Slot::Executing { .. })).map(|(number, _)| number)
    }

    /// Builds a response, and forgets its command.
    pub(super) fn complete(
        &mut self,
        slot: u16,
        origin: Origin,
        status: Status,
        result: u64,
    ) -> [u8; CQE_LEN] {
        self.occupy(slot, Slot::Responding);
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Some(id) = origin.id {
            self.ids[usize::from(id >> 6)] &= !(1 << (id & 63));
        }
        let sq_head = match &mut self.sq_head {
            Some(head) => {
                *head = if *head + 1 >= self.entries { 0 } else { *head + 1 };
                *head
            }
            None => 0xffff,
        };
        let queue = self.request.queue;
        Completion { result, sq_head, queue, id: origin.number, status }.write()
    }
}

/// All queues.
pub(super) struct Queues {
    all: Vec<(u32, Option<Queue>)>,
    max: usize,
}

impl Queues {
    pub(super) fn new(max: usize) -> Self {
        Queues { all: Vec::new(), max }
    }

    pub(super) fn insert(&mut self, queue: Queue) -> Option<QueueId> {
        let index = match self.all.iter().position(|(_, queue)| queue.is_none()) {
            Some(index) => index,
            None if self.all.len() < self.max => {
                self.all.push((0, None));
                self.all.len() - 1
            }
            None => return None,
        };
        let (generation, place) = &mut self.all[index];
        *generation = generation.wrapping_add(1);
        *place = Some(queue);
        Some(QueueId { index: index as u32, generation: *generation })
    }

    pub(super) fn get(&self, id: QueueId) -> Option<&Queue> {
        let (generation, queue) = self.all.get(id.index as usize)?;
        if *generation == id.generation { queue.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        let (generation, queue) = self.all.get_mut(id.index as usize)?;
        if *generation == id.generation { queue.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, id: QueueId) -> Option<Queue> {
        let (generation, queue) = self.all.get_mut(id.index as usize)?;
        if *generation == id.generation { queue.take() } else { None }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.all.iter().enumerate().filter_map(|(index, (generation, queue))| {
            let id = QueueId { index: index as u32, generation: *generation };
            Some((id, queue.as_ref()?))
        })
    }
}
