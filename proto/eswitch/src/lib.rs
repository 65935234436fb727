//! The embedded switch of a host: several functions behind one address.
//!
//! Each process that uses the host's device is a function with a slot of its own. Slots show in the numbers that
//! a function hands out: the top 6 bits of its QPNs and of its CM ids, so that every packet names
//! its function, except a connection request, which names a service. That goes to all functions; a refusal for
//! want of a listener leaves the host once every function has given it.
//!
//! It decides where a frame goes and holds no frames itself.
#![forbid(unsafe_code)]

use longhaul_node::Frame;
use longhaul_units::Qpn;
use longhaul_wire::Packet;
use longhaul_wire::mad::{Message, RejectReason};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Slots of one host: 6 bits of the QPN, of which the last value is not used, since it would reach the QPN 0xffffff
/// that means multicast.
pub const FUNCTIONS_MAX: usize = 63;
/// Bits of a QPN below the slot.
pub const QPN_SLOT_SHIFT: u32 = 18;
/// Bits of a CM id below the slot.
pub const COMM_ID_SLOT_SHIFT: u32 = 26;
/// Connection requests whose refusals are being counted.
const REQUESTS_MAX: usize = 1024;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Out of the host.
    Wire,
    /// To one function.
    Function(usize),
    /// To every attached function.
    AllFunctions,
    /// Nowhere.
    Drop(DropReason),
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// Not RoCEv2, malformed, or no message of the connection manager on QP1.
    NotRoce,
    /// No function with that slot is attached.
    NoFunction,
    /// A refusal that other functions have not given yet.
    RefusedByOthersYet,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct EmbeddedSwitch {
    address: IpAddr,
    attached: u64,
    requests: VecDeque<Request>,
}

/// A connection request that went to all functions.
#[derive(Debug)]
struct Request {
    requester: IpAddr,
    comm_id: u32,
    /// Functions that have not refused.
    open: u32,
}

/// The CM message in a packet to QP1.
fn cm_message<'a>(frame: &'a Frame<'_>) -> Option<Message<'a>> {
    let mad = frame.payload.as_bytes()?.try_into().ok()?;
    Message::read(mad).ok().map(|(_, message)| message)
}

impl EmbeddedSwitch {
    /// A switch of the host with `address`, to which no function is attached yet.
    pub fn new(address: IpAddr) -> Self {
        EmbeddedSwitch { address, attached: 0, requests: VecDeque::with_capacity(REQUESTS_MAX) }
    }

    /// Attaches or detaches the function in `slot`, which is below [`FUNCTIONS_MAX`].
    pub fn set_attached(&mut self, slot: usize, attached: bool) {
        debug_assert!(slot < FUNCTIONS_MAX);
        if attached {
            self.attached |= 1 << slot;
        } else {
            self.attached &= !(1 << slot);
        }
    }

    /// True when a function is attached in `slot`.
    pub fn is_attached(&self, slot: usize) -> bool {
        slot < FUNCTIONS_MAX && self.attached & 1 << slot != 0
    }

    /// Slots with an attached function, ascending.
    pub fn attached(&self) -> impl Iterator<Item = usize> + use<> {
        let attached = self.attached;
        (0..FUNCTIONS_MAX).filter(move |slot| attached & 1 << slot != 0)
    }

    fn to_slot(&self, slot: u32) -> Route {
        let slot = slot as usize;
        if self.is_attached(slot) { Route::Function(slot) } else { Route::Drop(DropReason::NoFunction) }
    }

    /// Routes a frame that a function sends.
    pub fn from_function(&mut self, frame: &Frame<'_>) -> Route {
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return Route::Wire };
        let to_self = packet.destination_ip() == self.address;
        if packet.dest_qp() == Qpn::GSI && self.is_early_refusal(&packet, frame) {
            return Route::Drop(DropReason::RefusedByOthersYet);
        }
        if to_self { self.from_wire(frame) } else { Route::Wire }
    }

    /// Counts a refusal for want of a listener; true while other functions may still accept.
    fn is_early_refusal(&mut self, packet: &Packet<'_>, frame: &Frame<'_>) -> bool {
        let Some(Message::Rej(refusal)) = cm_message(frame) else { return false };
        if refusal.reason != RejectReason::INVALID_SERVICE_ID {
            return false;
        }
        let requester = packet.destination_ip();
        let same = |r: &&mut Request| r.requester == requester && r.comm_id == refusal.remote_comm_id;
        match self.requests.iter_mut().find(same) {
            Some(request) => {
                request.open = request.open.saturating_sub(1);
                request.open > 0
            }
            None => false,
        }
    }

    /// Routes a frame that comes to the host.
    pub fn from_wire(&mut self, frame: &Frame<'_>) -> Route {
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return Route::Drop(DropReason::NotRoce) };
        let qpn = packet.dest_qp();
        if qpn != Qpn::GSI {
            return self.to_slot(qpn.get() >> QPN_SLOT_SHIFT);
        }
        let Some(message) = cm_message(frame) else { return Route::Drop(DropReason::NotRoce) };
        match message.remote_comm_id() {
            Some(id) => self.to_slot(id >> COMM_ID_SLOT_SHIFT),
            None => {
                self.remember(packet.source_ip(), message.local_comm_id());
                Route::AllFunctions
            }
        }
    }

    fn remember(&mut self, requester: IpAddr, comm_id: u32) {
        self.requests.retain(|r| !(r.requester == requester && r.comm_id == comm_id));
        if self.requests.len() == REQUESTS_MAX {
            self.requests.pop_front();
        }
        self.requests.push_back(Request { requester, comm_id, open: self.attached.count_ones() });
    }
}

#[cfg(test)]
mod tests;
