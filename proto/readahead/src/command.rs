//! Announcements of commands and calls, independent of the protocol.

use longhaul_units::RKey;
use longhaul_wire::Reth;
use thiserror::Error;

/// Most ranges examined per command; the target READs further ones itself.
pub const RANGES_MAX: usize = 8;

/// A range of the initiator's memory that a command lets its target READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Key of the memory region.
    pub rkey: RKey,
    /// Length in bytes.
    pub len: u32,
}

impl Range {
    const NONE: Range = Range { address: 0, rkey: RKey(0), len: 0 };

    /// The range that a READ requests.
    pub fn of(reth: &Reth) -> Self {
        Range { address: reth.virtual_address, rkey: reth.rkey, len: reth.len }
    }

    /// True if the two share bytes, under the same key.
    pub fn overlaps(&self, other: &Range) -> bool {
        let end = |range: &Range| range.address.saturating_add(u64::from(range.len));
        other.rkey == self.rkey && self.address < end(other) && other.address < end(self)
    }

    /// True if it includes all of `other`, under the same key.
    pub fn contains(&self, other: &Range) -> bool {
        other.rkey == self.rkey
            && other.address.checked_sub(self.address).is_some_and(|at| {
                at.checked_add(u64::from(other.len)).is_some_and(|end| end <= u64::from(self.len))
            })
    }
}

/// The parts of a command capsule or RPC call that read-ahead needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The identifier that its answer repeats: an NVMe command identifier, or an RPC's XID.
    pub id: u32,
    /// By its protocol the target READs the ranges, and nobody may change them until the answer.
    pub is_stable: bool,
    /// It names no further ranges.
    pub is_whole: bool,
    ranges: [Range; RANGES_MAX],
    count: usize,
}

impl Command {
    /// A command without ranges.
    pub(crate) fn new(id: u32) -> Self {
        Command {
            id,
            is_stable: false,
            is_whole: true,
            ranges: [Range::NONE; RANGES_MAX],
            count: 0,
        }
    }

    pub(crate) fn push(&mut self, range: Range) {
        match self.ranges.get_mut(self.count) {
            Some(place) => {
                *place = range;
                self.count += 1;
            }
            None => self.is_whole = false,
        }
    }

    /// The ranges that it names.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges[..self.count]
    }
}

/// Protocols whose announcements are parsed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// NVMe over Fabrics, RDMA transport.
    Nvme,
    /// RPC-over-RDMA version 1 (RFC 8166), used by NFS.
    Rpc,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Nvme, Protocol::Rpc];

    /// Name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Nvme => "nvme",
            Protocol::Rpc => "rpc",
        }
    }

    /// The protocol's registered port.
    pub const fn port(self) -> u16 {
        match self {
            Protocol::Nvme => 4420,
            Protocol::Rpc => 20_049,
        }
    }

    /// True if the private data of a connection request (behind the RDMA connection manager's
    /// header) are this protocol's, for a connection that carries commands.
    pub fn is_spoken(self, private_data: &[u8]) -> bool {
        match self {
            Protocol::Nvme => crate::nvme::is_io_queue(private_data),
            Protocol::Rpc => crate::rpc::is_version_1(private_data),
        }
    }

    /// The command in the first packet of an initiator's SEND, if it can be parsed.
    pub fn command(self, payload: &[u8]) -> Option<Command> {
        match self {
            Protocol::Nvme => crate::nvme::command(payload),
            Protocol::Rpc => crate::rpc::call(payload),
        }
    }

    /// The command that a target's SEND may end, by its first packet.
    pub fn answered(self, payload: &[u8]) -> Option<u32> {
        match self {
            Protocol::Nvme => crate::nvme::completed(payload),
            Protocol::Rpc => crate::rpc::replied(payload),
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// No protocol has this name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is neither nvme nor rpc")]
pub struct UnknownProtocol(pub String);

impl std::str::FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, UnknownProtocol> {
        let known = Protocol::ALL.into_iter().find(|protocol| protocol.name() == text);
        known.ok_or_else(|| UnknownProtocol(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_what_lies_in_it_under_its_key() {
        let range = |address, rkey, len| Range { address, rkey: RKey(rkey), len };
        let all = range(1000, 7, 100);
        assert!(all.contains(&all) && all.contains(&range(1050, 7, 50)));
        for outside in
            [range(999, 7, 5), range(1050, 7, 51), range(1000, 8, 100), range(u64::MAX, 7, 9)]
        {
            assert!(!all.contains(&outside), "{outside:?}");
        }
        assert!(all.overlaps(&range(1099, 7, 1)) && all.overlaps(&range(900, 7, 500)));
        assert!(!all.overlaps(&range(1100, 7, 1)) && !all.overlaps(&range(1050, 8, 1)));
    }
}
