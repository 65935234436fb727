//! The embedded switch of a host: several functions behind the same addresses.
//!
//! Each process that uses the host's device is a function with its own slot. The top 6 bits of a
//! function's QPNs and CM ids are its slot, so every packet identifies its function, except the
//! CM's REQ and SIDR_REQ, which name a service. Those go to all functions, and a refusal for lack
//! of a listener leaves the host once every function has sent one. Every function answers every
//! copy of a request; each copy restarts the collection, so that a function that has begun to
//! listen is found.
//!
//! Multicasts also go to all functions, because the switch does not track group membership. A
//! multicast that a function sends leaves the host and is delivered to every function, including
//! the sender: a QP that is a member of its destination group receives its own messages, without a
//! loopback in the function or on the wire.
//!
//! A host may also have a kernel side: the network interface of the operating system at the same
//! addresses. RoCEv2 to the host goes to its functions, every other frame to the kernel.
//!
//! The switch only decides; it holds no frames.
#![forbid(unsafe_code)]

use foldhash::fast::FixedState;
use longhaul_node::Frame;
use longhaul_units::Qpn;
use longhaul_wire::Packet;
use longhaul_wire::mad::{Message, RejectReason, SidrStatus};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Slots of a host: 6 bits of the QPN, without the last value, which includes the multicast QPN
/// 0xffffff.
pub const FUNCTIONS_MAX: usize = 63;
/// Bits of a QPN below the slot.
pub const QPN_SLOT_SHIFT: u32 = 18;
/// Bits of a CM id below the slot.
pub const COMM_ID_SLOT_SHIFT: u32 = 26;
/// Maximum requests whose refusals are collected: far more than a host receives within the one or
/// two seconds that a program may take to refuse. About 100 bytes each.
const REQUESTS_MAX: usize = 65_536;

/// Destination of a frame.
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
    /// To the host's kernel.
    Kernel,
    /// Dropped.
    Drop(DropReason),
}

/// Why a frame is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// Not RoCEv2 and the host has no kernel side, malformed, or no message of the connection
    /// manager on QP1.
    NotRoce,
    /// No function with that slot is attached.
    NoFunction,
    /// A refusal that other functions have not sent yet, or of a request that was already refused
    /// or evicted: the requester retries.
    RefusedByOthersYet,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct EmbeddedSwitch {
    addresses: Vec<IpAddr>,
    has_kernel: bool,
    /// One bit for each slot.
    attached: u64,
    /// Requests sent to all functions, with the slots that have refused the last copy.
    requests: HashMap<RequestKey, u64, FixedState>,
    /// Their distinct keys, oldest first.
    ages: VecDeque<RequestKey>,
}

/// The fields that a refusal has in common with its request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RequestKey {
    requester: IpAddr,
    service: Service,
    /// The requester's communication id, or request id of a datagram service.
    id: u32,
}

/// Kind of a request; each kind has its own id space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Service {
    /// By REQ.
    Connection,
    /// By SIDR_REQ.
    Datagrams,
}

impl RequestKey {
    /// Returns the key of a request to all functions, if `message` to or from `requester` is one.
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

    /// Returns the key of the request that a message refuses for lack of a listener.
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

/// `true` for a multicast packet: by its QPN, and its IP or Ethernet address.
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
    /// Creates the switch of the host with `addresses`, without attached functions and kernel side.
    /// `seed` keys its hashes, so that peers cannot cause collisions.
    pub fn new(addresses: &[IpAddr], seed: u64) -> Self {
        EmbeddedSwitch {
            addresses: addresses.to_vec(),
            has_kernel: false,
            attached: 0,
            requests: HashMap::with_hasher(FixedState::with_seed(seed)),
            ages: VecDeque::new(),
        }
    }

    /// Adds or removes the kernel side.
    pub fn set_kernel(&mut self, has_kernel: bool) {
        self.has_kernel = has_kernel;
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

    /// Returns whether a function is attached in `slot`.
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
        let to_self = self.addresses.contains(&packet.destination_ip());
        if packet.dest_qp() == Qpn::GSI && self.is_held_refusal(slot, &packet, frame) {
            return Route::Drop(DropReason::RefusedByOthersYet);
        }
        if to_self { self.from_wire(frame) } else { Route::Wire }
    }

    /// Records a refusal for lack of a listener; `false` if it was the last one, or is not a
    /// refusal.
    fn is_held_refusal(&mut self, slot: usize, packet: &Packet<'_>, frame: &Frame<'_>) -> bool {
        let refused = cm_message(frame)
            .and_then(|message| RequestKey::of_refusal(packet.destination_ip(), &message));
        let Some(refused) = refused else { return false };
        let Some(by) = self.requests.get_mut(&refused) else { return true };
        *by |= 1 << slot;
        let is_last = self.attached & !*by == 0;
        if is_last {
            // One reply is enough. If it is lost, the requester asks all functions again.
            *by = 0;
        }
        !is_last
    }

    /// Routes a frame that the host's kernel sends. RoCEv2, as from a software RNIC of the kernel,
    /// is delivered like a function's.
    pub fn from_kernel(&mut self, frame: &Frame<'_>) -> Route {
        let Ok(Some(packet)) = Packet::parse(frame.head) else { return Route::Wire };
        if is_multicast(&packet) {
            return Route::WireAndAllFunctions;
        }
        let to_self = self.addresses.contains(&packet.destination_ip());
        if to_self { self.from_wire(frame) } else { Route::Wire }
    }

    /// Routes a frame that arrives at the host.
    pub fn from_wire(&mut self, frame: &Frame<'_>) -> Route {
        let packet = match Packet::parse(frame.head) {
            Ok(Some(packet)) => packet,
            Ok(None) if self.has_kernel => return Route::Kernel,
            Ok(None) | Err(_) => return Route::Drop(DropReason::NotRoce),
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
