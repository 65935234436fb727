//! Maps addresses to the peers behind them, and tracks the questions in progress.

use crate::session::Way;
use foldhash::fast::FixedState;
use longhaul_units::Instant;
use longhaul_wire::{Path, Udp, address_bits};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of concurrent questions.
const CALLS_MAX: usize = 64;
/// Times that a question is sent.
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

    /// Destination of datagrams along `way`.
    pub(crate) fn destination(way: &Path) -> Self {
        AddressKey::of(way.destination_ip, way.vlan)
    }

    /// Source or destination of the datagram whose headers are `head`.
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
    /// Index of the peer in the configuration.
    By(usize),
    /// No known peer, until this time.
    NoneUntil(Instant),
}

/// A question for the peer behind an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) nonce: u64,
    pub(crate) way: Way,
    pub(crate) tries: u32,
    pub(crate) next_at: Instant,
    /// The answer starts a handshake even if keys exist, because the far box may not know them.
    pub(crate) wants_fresh_keys: bool,
}

impl Call {
    pub(crate) fn key(&self) -> AddressKey {
        AddressKey::destination(&self.way.headers)
    }
}

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

    /// Peer behind `key`, if known.
    #[inline]
    pub(crate) fn peer(&self, key: &AddressKey) -> Option<usize> {
        match self.known.get(key) {
            Some(Reach::By(peer)) => Some(*peer),
            _ => None,
        }
    }

    /// `true` if a question for `key` may be sent.
    pub(crate) fn may_call(&self, now: Instant, key: &AddressKey) -> bool {
        let is_paused =
            matches!(self.known.get(key), Some(Reach::NoneUntil(until)) if *until > now);
        !is_paused
            && self.calls.len() < CALLS_MAX
            && self.calls.iter().all(|call| call.key() != *key)
    }

    /// Notes that `peer` is behind `key`. Returns `false` if the table is full.
    pub(crate) fn learn(&mut self, now: Instant, key: AddressKey, peer: usize) -> bool {
        self.put(now, key, Reach::By(peer))
    }

    /// Notes that no peer is behind `key` until `until`.
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

    /// Removes and returns the call that an answer with `nonce` from `key` belongs to.
    pub(crate) fn answered(&mut self, nonce: u64, key: &AddressKey) -> Option<Call> {
        let at = self.calls.iter().position(|call| call.nonce == nonce && call.key() == *key)?;
        Some(self.calls.swap_remove(at))
    }
}
