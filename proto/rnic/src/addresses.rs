//! The IP addresses of a port, of which each is a GID.

use std::net::IpAddr;

/// The IP addresses of a port: at most one IPv4, one IPv6 and one link-local IPv6 address.
/// IPv4-mapped addresses count as IPv4.
///
/// Packets carry the address of their destination's scope as source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAddresses {
    /// Places beyond `count` repeat the first.
    all: [IpAddr; PortAddresses::MAX],
    count: usize,
}

/// Which addresses can reach each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    V4,
    V6,
    V6LinkLocal,
}

impl Scope {
    #[inline]
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Scope::V4,
            IpAddr::V6(address) if address.is_unicast_link_local() => Scope::V6LinkLocal,
            IpAddr::V6(_) => Scope::V6,
        }
    }
}

impl From<IpAddr> for PortAddresses {
    fn from(address: IpAddr) -> Self {
        PortAddresses { all: [address.to_canonical(); PortAddresses::MAX], count: 1 }
    }
}

impl PortAddresses {
    /// Most addresses of a port.
    pub const MAX: usize = 3;

    /// These addresses and another one. `None` if the port has an address of its scope.
    #[must_use]
    pub fn and(mut self, address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        if self.towards(address).is_some() {
            return None;
        }
        *self.all.get_mut(self.count)? = address;
        self.count += 1;
        Some(self)
    }

    /// The address that stands for the port where only one can.
    #[inline]
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.all[0]
    }

    /// All addresses, the first one first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = IpAddr> + use<> {
        self.all.into_iter().take(self.count)
    }

    /// Whether `address` is one of them.
    #[inline]
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.all.contains(&address)
    }

    /// The address of the scope of `peer`, by which the port can reach it.
    #[inline]
    #[must_use]
    pub fn towards(&self, peer: IpAddr) -> Option<IpAddr> {
        let scope = Scope::of(peer);
        self.all.into_iter().find(|address| Scope::of(*address) == scope)
    }

    /// The source of packets to `destination`, which [`PortAddresses::towards`] reaches.
    #[inline]
    pub(crate) fn source_for(&self, destination: IpAddr) -> IpAddr {
        self.towards(destination).unwrap_or(self.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_has_one_address_of_each_scope_at_most() {
        let v4 = PortAddresses::from(ip("::ffff:10.77.0.1"));
        assert_eq!((v4.first(), v4.iter().len()), (ip("10.77.0.1"), 1));
        assert_eq!(v4.towards(ip("fd00::2")), None);
        assert_eq!(v4.and(ip("10.77.0.9")), None);
        let both = v4.and(ip("fd00::1")).unwrap();
        assert_eq!(both.towards(ip("fe80::2")), None);
        let all = both.and(ip("fe80::1")).unwrap();
        assert_eq!(all.iter().collect::<Vec<_>>(), [ip("10.77.0.1"), ip("fd00::1"), ip("fe80::1")]);
        for other in ["10.77.0.9", "fd00::9", "fe80::9"] {
            assert_eq!(all.and(ip(other)), None);
        }
        let pairs = [("10.77.0.2", "10.77.0.1"), ("fd00::2", "fd00::1"), ("fe80::2", "fe80::1")];
        for (peer, source) in pairs {
            assert_eq!(all.towards(ip(peer)), Some(ip(source)));
            assert!(all.contains(ip(source)) && !all.contains(ip(peer)));
        }
    }
}
