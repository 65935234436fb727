//! The IP addresses of a port, of which each is a GID.

use std::net::IpAddr;

/// The IP addresses of a port: one, or one of each family. IPv4-mapped addresses count as IPv4.
///
/// Packets carry the address of their destination's family as source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAddresses {
    first: IpAddr,
    second: Option<IpAddr>,
}

impl From<IpAddr> for PortAddresses {
    fn from(address: IpAddr) -> Self {
        PortAddresses { first: address.to_canonical(), second: None }
    }
}

impl PortAddresses {
    /// These addresses and another one. `None` if the port has an address of its family.
    #[must_use]
    pub fn and(self, address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        let is_free = self.towards(address).is_none();
        is_free.then_some(PortAddresses { second: Some(address), ..self })
    }

    /// The address that stands for the port where only one can.
    #[inline]
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// All addresses, the first one first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = IpAddr> + use<> {
        let count = 1 + usize::from(self.second.is_some());
        [self.first, self.second.unwrap_or(self.first)].into_iter().take(count)
    }

    /// Whether `address` is one of them.
    #[inline]
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address == self.first || Some(address) == self.second
    }

    /// The address of the family of `peer`, by which the port can reach it.
    #[inline]
    #[must_use]
    pub fn towards(&self, peer: IpAddr) -> Option<IpAddr> {
        if self.first.is_ipv4() == peer.is_ipv4() { Some(self.first) } else { self.second }
    }

    /// The source of packets to `destination`, which [`PortAddresses::towards`] reaches.
    #[inline]
    pub(crate) fn source_for(&self, destination: IpAddr) -> IpAddr {
        self.towards(destination).unwrap_or(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_port_has_one_address_of_each_family_at_most() {
        let v4 = PortAddresses::from(ip("::ffff:10.77.0.1"));
        assert_eq!((v4.first(), v4.iter().len()), (ip("10.77.0.1"), 1));
        assert_eq!(v4.towards(ip("fd00::2")), None);
        assert_eq!(v4.and(ip("10.77.0.9")), None);
        let both = v4.and(ip("fd00::1")).unwrap();
        assert_eq!(both.iter().collect::<Vec<_>>(), [ip("10.77.0.1"), ip("fd00::1")]);
        assert_eq!(both.and(ip("fd00::9")), None);
        for (peer, source) in [("10.77.0.2", "10.77.0.1"), ("fd00::2", "fd00::1")] {
            assert_eq!(both.towards(ip(peer)), Some(ip(source)));
            assert!(both.contains(ip(source)) && !both.contains(ip(peer)));
        }
    }
}
