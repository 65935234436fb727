//! The embedded switch of a host: several functions behind one address.
//!
//! Each process that uses the host's device is a function with a slot of its own. Slots show in the
//! numbers that a function hands out: the top 6 bits of its QPNs and of its CM ids, so that every
//! packet names its function, except a request that names a service: the CM's REQ and SIDR_REQ.
//! Those go to all functions; a refusal for want of a listener leaves the host once every function
//! has given it. Every function answers every copy of a request, so that each copy starts the
//! collection anew and a function that has begun to listen is not overheard.
//!
//! A multicast goes to all functions too, since it is not known here who has joined which group.
//! One that a function sends leaves the host and also comes back to every function, the sender's
//! own included: a QP that has joined the group it sends to gets its own messages, and neither
//! function nor wire has to return them.
//!
//! It decides where a frame goes and holds no frames itself.
#![forbid(unsafe_code)]

use foldhash::fast::FixedState;
use longhaul_node::Frame;
use longhaul_units::Qpn;
use longhaul_wire::Packet;
use longhaul_wire::mad::{Message, RejectReason, SidrStatus};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Slots of one host: 6 bits of the QPN, of which the last value is not used, since it would reach
/// the QPN 0xffffff that means multicast.
pub const FUNCTIONS_MAX: usize = 63;
/// Bits of a QPN below the slot.
pub const QPN_SLOT_SHIFT: u32 = 18;
/// Bits of a CM id below the slot.
pub const COMM_ID_SLOT_SHIFT: u32 = 26;
/// Requests whose refusals are collected: far more than a host is asked within the second or two
/// that a program may take over its refusal. About 100 bytes each, once there were so many.
const REQUESTS_MAX: usize = 65_536;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Out of the host.
    Wire,
    /// To one function.
    Function(usize),
    /// To every attached function.
    AllFunctions,
    /// Out of the host, and to every attached function as well.
    WireAndAllFunctions,
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
    /// A refusal that other functions have not given yet, or one of a request that has been refused
    /// already or that is not remembered: its requester asks again.
    RefusedByOthersYet,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct EmbeddedSwitch {
    address: IpAddr,
    /// One bit for each slot.
    attached: u64,
    /// Requests that went to all functions, each with the slots of those that have refused its last
    /// copy.
    requests: HashMap<RequestKey, u64, FixedState>,
    /// Their keys, each once, the oldest first.
    ages: VecDeque<RequestKey>,
}

/// What a refusal repeats of the request that it refuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RequestKey {
    requester: IpAddr,
    service: Service,
    /// The requester's communication id, or request id of a datagram service.
    id: u32,
}

/// What a request asks for; each has ids of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Service {
    /// By REQ.
    Connection,
    /// By SIDR_REQ.
    Datagrams,
}

impl RequestKey {
    /// Of a message to or from `requester`: which request it is, when it is one to all functions.
    fn of_request(requester: IpAddr, message: &Message<'_>) -> Option<Self> {
        match message {
            Message::Req(m) => {
                Some(RequestKey { requester, service: Service::Connection, id: m.local_comm_id })
            }
            Message::SidrReq(m) => {
                Some(RequestKey { requester, service: Service::Datagrams, id: m.request_id })
            }
            _ => None,
        }
    }

    /// Which request a message refuses for want of a listener, when it does.
    fn of_refusal(requester: IpAddr, message: &Message<'_>) -> Option<Self> {
        match message {
            Message::Rej(m) if m.reason == RejectReason::INVALID_SERVICE_ID => {
                Some(RequestKey { requester, service: Service::Connection, id: m.remote_comm_id })
            }
            Message::SidrRep(m) if m.status == SidrStatus::Unsupported => {
                Some(RequestKey { requester, service: Service::Datagrams, id: m.request_id })
            }
            _ => None,
        }
    }
}

/// True for a packet to a group of QPs: by its QPN, and by its address at the IP or the Ethernet
/// layer.
fn is_multicast(packet: &Packet<'_>) -> bool {
    packet.dest_qp() == Qpn::MULTICAST
        && (packet.destination_ip().is_multicast()
            || packet.head().first().is_some_and(|byte| byte & 1 != 0))
}

/// The CM message in a packet to QP1.
fn cm_message<'a>(frame: &'a Frame<'_>) -> Option<Message<'a>> {
    let mad = frame.payload.as_bytes()?.try_into().ok()?;
    Message::read(mad).ok().map(|(_, message)| message)
}

impl EmbeddedSwitch {
    /// A switch of the host with `address`, to which no function is attached yet. `seed` keys its
    /// hashes, so that peers cannot aim at collisions.
    pub fn new(address: IpAddr, seed: u64) -> Self {
        let requests = HashMap::with_hasher(FixedState::with_seed(seed));
        EmbeddedSwitch { address, attached: 0, requests, ages: VecDeque::new() }
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
        if self.is_attached(slot) {
            Route::Function(slot)
        } else {
            Route::Drop(DropReason::NoFunction)
        }
    }

    /// Routes a frame that the function in `slot`, which is below [`FUNCTIONS_MAX`], sends.
    pub fn from_function(&mut self, slot: usize, frame: &Frame<'_>) -> Route {
        debug_assert!(slot < FUNCTIONS_MAX);
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return Route::Wire };
        if is_multicast(&packet) {
            return Route::WireAndAllFunctions;
        }
        let to_self = packet.destination_ip() == self.address;
        if packet.dest_qp() == Qpn::GSI && self.is_held_refusal(slot, &packet, frame) {
            return Route::Drop(DropReason::RefusedByOthersYet);
        }
        if to_self { self.from_wire(frame) } else { Route::Wire }
    }

    /// Notes a refusal for want of a listener; false when that was the last one, or none.
    fn is_held_refusal(&mut self, slot: usize, packet: &Packet<'_>, frame: &Frame<'_>) -> bool {
        let refused = cm_message(frame)
            .and_then(|message| RequestKey::of_refusal(packet.destination_ip(), &message));
        let Some(refused) = refused else { return false };
        let Some(by) = self.requests.get_mut(&refused) else { return true };
        *by |= 1 << slot;
        let is_last = self.attached & !*by == 0;
        if is_last {
            // One answer is enough. Should it be lost, the requester asks all of them again.
            *by = 0;
        }
        !is_last
    }

    /// Routes a frame that comes to the host.
    pub fn from_wire(&mut self, frame: &Frame<'_>) -> Route {
        let Ok(Some(packet)) = Packet::parse(frame.head) else {
            return Route::Drop(DropReason::NotRoce);
        };
        if is_multicast(&packet) {
            return Route::AllFunctions;
        }
        let qpn = packet.dest_qp();
        if qpn != Qpn::GSI {
            return self.to_slot(qpn.get() >> QPN_SLOT_SHIFT);
        }
        let Some(message) = cm_message(frame) else { return Route::Drop(DropReason::NotRoce) };
        match (RequestKey::of_request(packet.source_ip(), &message), message.remote_comm_id()) {
            (Some(request), _) => {
                self.remember(request);
                Route::AllFunctions
            }
            (None, Some(id)) => self.to_slot(id >> COMM_ID_SLOT_SHIFT),
            (None, None) => Route::Drop(DropReason::NotRoce),
        }
    }

    fn remember(&mut self, key: RequestKey) {
        if let Some(refused_by) = self.requests.get_mut(&key) {
            *refused_by = 0;
            return;
        }
        if self.ages.len() == REQUESTS_MAX
            && let Some(oldest) = self.ages.pop_front()
        {
            self.requests.remove(&oldest);
        }
        self.ages.push_back(key);
        self.requests.insert(key, 0);
    }
}

#[cfg(test)]
mod tests;
