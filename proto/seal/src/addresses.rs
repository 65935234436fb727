//! Which peer is behind which address, and who is asked for.

use crate::session::Way;
use foldhash::fast::FixedState;
use longhaul_units::Instant;
use longhaul_wire::{Path, Udp, address_bits};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Questions under way at once.
const CALLS_MAX: usize = 64;
/// Times that a question is asked.
pub(crate) const TRIES: u32 = 5;

/// An address beyond the WAN, in its VLAN.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AddressKey {
    address: u128,
    vlan: u16,
}

impl AddressKey {
    fn of(address: IpAddr, vlan: Option<u16>) -> Self {
        AddressKey { address: address_bits(address), vlan: vlan.unwrap_or_default() & 0xfff }
    }

    pub(crate) fn address(&self) -> IpAddr {
        let address = Ipv6Addr::from_bits(self.address);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// The destination of datagrams along `way`.
    pub(crate) fn destination(way: &Path) -> Self {
        AddressKey::of(way.destination_ip, way.vlan)
    }

    /// Of the datagram whose headers are `head`, the source or the destination.
    #[inline]
    pub(crate) fn in_head(head: &[u8], udp: Udp, is_source: bool) -> Self {
        let vlan = if udp.ip >= 18 {
            u16::from_be_bytes([head[udp.ip - 4] & 0xf, head[udp.ip - 3]])
        } else {
            0
        };
        let address = if is_source { udp.source_bits(head) } else { udp.destination_bits(head) };
        AddressKey { address, vlan }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// The peer's place in the configuration.
    By(usize),
    /// None, as far as is known.
    NoneUntil(Instant),
}

/// A question who is behind an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) nonce: u64,
    pub(crate) way: Way,
    pub(crate) tries: u32,
    pub(crate) next_at: Instant,
    /// Keys are wanted even if there are some: those that there are may be unknown to the far box.
    pub(crate) wants_fresh_keys: bool,
}

impl Call {
    pub(crate) fn key(&self) -> AddressKey {
        AddressKey::destination(&self.way.headers)
    }
}

/// See the module.
pub(crate) struct Addresses {
    known: HashMap<AddressKey, Reach, FixedState>,
    max: usize,
    pub(crate) calls: Vec<Call>,
}

impl Addresses {
    pub(crate) fn new(max: u32, seed: u64) -> Self {
        Addresses {
            known: HashMap::with_hasher(FixedState::with_seed(seed)),
            max: max as usize,
            calls: Vec::new(),
        }
    }

    /// The peer behind `key`.
    #[inline]
    pub(crate) fn peer(&self, key: &AddressKey) -> Option<usize> {
        match self.known.get(key) {
            Some(Reach::By(peer)) => Some(*peer),
            _ => None,
        }
    }

    /// True when somebody may be asked for `key`.
    pub(crate) fn may_call(&self, now: Instant, key: &AddressKey) -> bool {
        let is_paused =
            matches!(self.known.get(key), Some(Reach::NoneUntil(until)) if *until > now);
        !is_paused
            && self.calls.len() < CALLS_MAX
            && self.calls.iter().all(|call| call.key() != *key)
    }

    /// `peer` is behind `key`. False: there is no room in the table.
    pub(crate) fn learn(&mut self, now: Instant, key: AddressKey, peer: usize) -> bool {
        self.put(now, key, Reach::By(peer))
    }

    /// Nobody is behind `key` until `until`.
    pub(crate) fn pause(&mut self, now: Instant, key: AddressKey, until: Instant) {
        self.put(now, key, Reach::NoneUntil(until));
    }

    fn put(&mut self, now: Instant, key: AddressKey, reach: Reach) -> bool {
        if self.known.len() >= self.max && !self.known.contains_key(&key) {
            self.known
                .retain(|_, reach| !matches!(reach, Reach::NoneUntil(until) if *until <= now));
            if self.known.len() >= self.max {
                return false;
            }
        }
        self.known.insert(key, reach);
        true
    }

    /// Takes the call out that an answer with `nonce` from the destination of its way belongs to.
    pub(crate) fn answered(&mut self, nonce: u64, key: &AddressKey) -> Option<Call> {
        let at = self.calls.iter().position(|call| call.nonce == nonce && call.key() == *key)?;
        Some(self.calls.swap_remove(at))
    }
}
