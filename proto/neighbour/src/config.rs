//! Addresses of an interface, and how it resolves those of others.

use longhaul_units::Duration;
use longhaul_wire::MacAddr;
use std::net::IpAddr;

/// An address of ours, and how far its network reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Leading bits that the network's addresses share: 0 to 32, or 0 to 128.
    pub prefix_len: u8,
}

impl Address {
    /// Whether `ip` is on the network of this address.
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

/// Who is asked for the Ethernet address of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asks {
    /// The segment: next hops by prefix and gateway, ARP and neighbour discovery for them. Requests
    /// for our own addresses are answered.
    Segment,
    /// The owner of this state machine, who knows routes and neighbours; each peer is its own next
    /// hop here, and nothing is sent or taken.
    Owner,
}

/// What we are, and how we ask.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our Ethernet address.
    pub mac: MacAddr,
    /// Our IP addresses, to which requests are answered; the first of a family that reaches a peer,
    /// or else the first of the family, is where our own come from. At least one.
    pub addresses: Vec<Address>,
    /// Next hops to everywhere else, at most one of each family.
    pub gateways: Vec<IpAddr>,
    /// VLAN, 1 to 4094, that everything is sent in; only what comes in it is taken. `None`:
    /// untagged, or tagged with a priority alone.
    pub vlan: Option<u16>,
    /// Whom to ask.
    pub asks: Asks,
    /// Neighbours that are remembered at once, at least 1. Default 65,536; an entry takes about 200
    /// bytes.
    pub entries_max: usize,
    /// Neighbours that are remembered because they spoke to us first, at most; part of
    /// `entries_max`. Default 256.
    pub heard_max: usize,
    /// Time between two tries of a question. Default 1 s. Source: RFC 4861, section 10
    /// (RETRANS_TIMER).
    pub try_interval: Duration,
    /// Tries before a question counts as unanswered, at least 1. Default 3. Source: RFC 4861,
    /// section 10.
    pub tries: u8,
    /// How long an answer is taken for granted before it is asked for again. Default 30 s. Source:
    /// RFC 4861, section 10 (REACHABLE_TIME).
    pub fresh: Duration,
    /// The least time between two changes of one neighbour's Ethernet address. Default 1 s, as
    /// Linux.
    pub settle: Duration,
}

impl Config {
    /// Everything at its usual value: one address, no gateway, no VLAN, asking the segment.
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

    /// True when `ip` is one of our addresses.
    #[must_use]
    pub fn is_ours(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|address| address.ip == ip)
    }

    /// Where frames to `ip` go first: `ip` itself on our networks (an IPv6 link-local address
    /// always is), else the gateway; `None` when there is none.
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

    /// The address that a question about `ip` comes from.
    pub(crate) fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let alike = || self.addresses.iter().filter(|address| address.ip.is_ipv4() == ip.is_ipv4());
        alike()
            .find(|address| address.reaches(ip))
            .or_else(|| alike().next())
            .map(|address| address.ip)
    }
}
