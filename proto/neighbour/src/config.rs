//! An interface's addresses, and its resolution settings.

use longhaul_units::Duration;
use longhaul_wire::MacAddr;
use std::net::IpAddr;

/// An own address, and the prefix length of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length of the network: 0 to 32, or 0 to 128.
    pub prefix_len: u8,
}

impl Address {
    /// Returns whether `ip` is on the network of this address.
    #[must_use]
    pub fn reaches(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let differing = (own.to_bits() ^ ip.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_len.min(32))
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let differing = (own.to_bits() ^ ip.to_bits()).leading_zeros();
                differing >= u32::from(self.prefix_len.min(128))
            }
            _ => false,
        }
    }
}

/// Source of a peer's Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// The segment: next hops by prefix and gateway, resolved by ARP and neighbour discovery.
    /// Requests for our own addresses are answered.
    Segment,
    /// The owner of this state machine, which has routes and neighbours. Every peer is its own next
    /// hop, and no frames are sent or handled.
    Owner,
}

/// Configuration of a [`Neighbours`](crate::Neighbours).
#[derive(Clone, Debug)]
pub struct Config {
    /// Our Ethernet address.
    pub mac: MacAddr,
    /// Our IP addresses, at least one. Requests for them are answered. The source of our own
    /// requests is the first address on the peer's network, or else the first of its family.
    pub addresses: Vec<Address>,
    /// Gateways, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// VLAN, 1 to 4094, of all frames sent and accepted. `None`: untagged or priority-tagged.
    pub vlan: Option<u16>,
    /// Source of Ethernet addresses.
    pub asks: Asks,
    /// Maximum entries, at least 1. Default 65,536; an entry takes about 200 bytes.
    pub entries_max: usize,
    /// Maximum entries of unsolicited neighbours, as part of `entries_max`. Default 256.
    pub heard_max: usize,
    /// Retransmission interval of requests. Default 1 s. Source: RFC 4861, section 10
    /// (RETRANS_TIMER).
    pub try_interval: Duration,
    /// Maximum tries of a request, at least 1. Default 3. Source: RFC 4861, section 10.
    pub tries: u8,
    /// Time for which an entry is fresh and needs no new request. Default 30 s. Source: RFC 4861,
    /// section 10 (REACHABLE_TIME).
    pub fresh: Duration,
    /// Minimum time between two changes of a neighbour's Ethernet address. Default 1 s, as in
    /// Linux.
    pub settle: Duration,
}

impl Config {
    /// Defaults: one address, no gateway, no VLAN, resolution on the segment.
    #[must_use]
    pub fn new(mac: MacAddr, address: Address) -> Self {
        Config {
            mac,
            addresses: vec![address],
            gateways: Vec::new(),
            vlan: None,
            asks: Asks::Segment,
            entries_max: 65_536,
            heard_max: 256,
            try_interval: Duration::from_ms(1000),
            tries: 3,
            fresh: Duration::from_ms(30_000),
            settle: Duration::from_ms(1000),
        }
    }

    /// Returns whether `ip` is one of our addresses.
    #[must_use]
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }

    /// Returns the next hop to `ip`: `ip` itself on our networks (an IPv6 link-local address always
    /// is), else the gateway, if there is one.
    #[must_use]
    pub fn next_hop(&self, ip: IpAddr) -> Option<IpAddr> {
        if self.asks == Asks::Owner || self.is_on_link(ip) {
            return Some(ip);
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.is_ipv4())
    }

    pub(crate) fn is_on_link(&self, ip: IpAddr) -> bool {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        is_link_local || self.addresses.iter().any(|address| address.reaches(ip))
    }

    /// Returns the source address of requests for `ip`.
    pub(crate) fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let alike = || self.addresses.iter().filter(|address| address.ip.is_ipv4() == ip.is_ipv4());
        alike()
            .find(|address| address.reaches(ip))
            .or_else(|| alike().next())
            .map(|address| address.ip)
    }
}
