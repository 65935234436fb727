//! The discovery log page.

use crate::Nqn;
use crate::fields::{array, put, put_text, text, u16_at, u64_at};
use std::net::IpAddr;

/// Length of the log's header, and of each entry.
pub const DISCOVERY_ENTRY_LEN: usize = 1024;

/// RDMA.
const RDMA: u8 = 1;

/// Header of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoveryHeader {
    /// Changes with each change of the log.
    pub generation: u64,
    /// Number of entries.
    pub entries: u64,
}

impl DiscoveryHeader {
    /// Writes the header.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISCOVERY_ENTRY_LEN];
        put(&mut bytes, 0, &self.generation.to_le_bytes());
        put(&mut bytes, 8, &self.entries.to_le_bytes());
        bytes
    }

    /// Parses the header; `None` if it has another format.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let is_known = bytes.len() >= 18 && u16_at(bytes, 16) == 0;
        is_known
            .then(|| DiscoveryHeader { generation: u64_at(bytes, 0), entries: u64_at(bytes, 8) })
    }
}

/// Address family of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressFamily {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Kind of the subsystem of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubsystemKind {
    /// A discovery subsystem, of this or another target.
    Discovery,
    /// A subsystem with namespaces.
    Nvm,
}

/// An entry for an RDMA transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryEntry {
    /// Kind.
    pub kind: SubsystemKind,
    /// Address.
    pub address: String,
    /// Address family.
    pub family: AddressFamily,
    /// Service: a port.
    pub service: String,
    /// Subsystem.
    pub subsystem: Nqn,
    /// Largest admin queue.
    pub admin_entries: u16,
}

impl DiscoveryEntry {
    pub(crate) fn of(
        kind: SubsystemKind,
        address: IpAddr,
        port: u16,
        subsystem: &Nqn,
        admin_entries: u16,
    ) -> Self {
        let family = if address.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
        DiscoveryEntry {
            kind,
            address: address.to_string(),
            family,
            service: port.to_string(),
            subsystem: subsystem.clone(),
            admin_entries,
        }
    }

    /// Writes the entry.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut bytes = vec![0; DISCOVERY_ENTRY_LEN];
        bytes[0] = RDMA;
        bytes[1] = match self.family {
            AddressFamily::Ipv4 => 1,
            AddressFamily::Ipv6 => 2,
        };
        bytes[2] = match self.kind {
            SubsystemKind::Discovery => 3,
            SubsystemKind::Nvm => 2,
        };
        // SQ flow control can be disabled.
        bytes[3] = 1 << 2;
        put(&mut bytes, 4, &1_u16.to_le_bytes());
        put(&mut bytes, 6, &crate::DYNAMIC_CONTROLLER.to_le_bytes());
        put(&mut bytes, 8, &self.admin_entries.to_le_bytes());
        put_text(&mut bytes, 32, 32, &self.service);
        put(&mut bytes, 256, self.subsystem.as_str().as_bytes());
        put_text(&mut bytes, 512, 256, &self.address);
        // Reliable connected; provider not specified; RDMA-CM.
        bytes[768..771].copy_from_slice(&[1, 1, 1]);
        bytes
    }

    /// Parses an entry; `None` if it is for another transport, or invalid.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DISCOVERY_ENTRY_LEN] = bytes.try_into().ok()?;
        let family = match (bytes[0], bytes[1]) {
            (RDMA, 1) => AddressFamily::Ipv4,
            (RDMA, 2) => AddressFamily::Ipv6,
            _ => return None,
        };
        let kind = match bytes[2] {
            1 | 3 => SubsystemKind::Discovery,
            2 => SubsystemKind::Nvm,
            _ => return None,
        };
        Some(DiscoveryEntry {
            kind,
            address: text(&bytes[512..768]),
            family,
            service: text(&bytes[32..64]),
            subsystem: Nqn::read(&array(bytes, 256)).ok()?,
            admin_entries: u16_at(bytes, 8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_written() {
        let name: Nqn = "nqn.2026-01.org.example:disk".parse().unwrap();
        for address in ["10.77.0.2", "fd77::2"] {
            let address = address.parse().unwrap();
            let entry = DiscoveryEntry::of(SubsystemKind::Nvm, address, 4420, &name, 32);
            assert_eq!(DiscoveryEntry::read(&entry.write()), Some(entry));
        }
        let header = DiscoveryHeader { generation: 4, entries: 2 };
        assert_eq!(DiscoveryHeader::read(&header.write()), Some(header));
        assert_eq!(DiscoveryEntry::read(&[0; DISCOVERY_ENTRY_LEN]), None);
    }
}
