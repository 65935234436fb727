//! Ports of each port space, and their owners.
//!
//! An identifier claims a port when it is bound, and keeps it until it is destroyed. A listener's
//! children use its number without a claim, as in the kernel: a program may bind a port again while
//! connections of an earlier listener are alive.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_abi_defs::rdma_port_space;

/// Ports for identifiers without an explicit one.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

static TABLE: Mutex<Table> = Mutex::new(Table { claims: BTreeMap::new(), last_claim: 0, next: 0 });

struct Table {
    claims: BTreeMap<(u32, u16), Vec<Entry>>,
    last_claim: u64,
    /// Where the next search for a free ephemeral port starts, counted from the first.
    next: u32,
}

struct Entry {
    claim: u64,
    ip: IpAddr,
    sharing: Sharing,
}

/// Conditions under which an identifier shares its port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sharing {
    /// With others that set this too, while none of them listens.
    pub reuse: bool,
    /// With those of the other address family that set this too.
    pub one_family: bool,
}

/// A claimed port. Dropping it frees the port.
#[derive(Debug)]
pub(super) struct Claim {
    space: rdma_port_space,
    port: u16,
    number: u64,
}

impl Claim {
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Checks that a listener may have this port: nobody else has it, with or without reuse.
    pub(super) fn listen(&self) -> Result<(), c_int> {
        let mut table = table();
        let entries = table.claims.get_mut(&(self.space.0, self.port)).ok_or(libc::EINVAL)?;
        let at = entries.iter().position(|entry| entry.claim == self.number).ok_or(libc::EINVAL)?;
        let mine = Entry { claim: self.number, ip: entries[at].ip, sharing: entries[at].sharing };
        admit(entries, &mine, false)?;
        entries[at].sharing.reuse = false;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = table();
        let key = (self.space.0, self.port);
        if let Some(entries) = table.claims.get_mut(&key) {
            entries.retain(|entry| entry.claim != self.number);
            if entries.is_empty() {
                table.claims.remove(&key);
            }
        }
    }
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that `mine` may be added to `entries`. Errors are the kernel's.
fn admit(entries: &[Entry], mine: &Entry, may_share: bool) -> Result<(), c_int> {
    for other in entries.iter().filter(|other| other.claim != mine.claim) {
        let shares = may_share && mine.sharing.reuse && other.sharing.reuse;
        let apart = mine.sharing.one_family
            && other.sharing.one_family
            && mine.ip.is_ipv4() != other.ip.is_ipv4();
        if shares || apart {
            continue;
        }
        if mine.ip.is_unspecified() || other.ip.is_unspecified() {
            return Err(libc::EADDRNOTAVAIL);
        }
        if mine.ip == other.ip {
            return Err(libc::EADDRINUSE);
        }
    }
    Ok(())
}

/// Claims the port of `address`, or a free one if that is 0.
pub(super) fn claim(
    space: rdma_port_space,
    address: SocketAddr,
    sharing: Sharing,
) -> Result<Claim, c_int> {
    let mut table = table();
    let table = &mut *table;
    let port = if address.port() == 0 { free_port(table, space)? } else { address.port() };
    table.last_claim += 1;
    let entry = Entry { claim: table.last_claim, ip: address.ip(), sharing };
    let entries = table.claims.entry((space.0, port)).or_default();
    admit(entries, &entry, true)?;
    entries.push(entry);
    Ok(Claim { space, port, number: table.last_claim })
}

/// A port that no identifier of this process has. The search starts after the last one found, and
/// first at a place that depends on the process id, so that two processes of one host rarely
/// collide.
fn free_port(table: &mut Table, space: rdma_port_space) -> Result<u16, c_int> {
    let span = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let offset = std::process::id().wrapping_mul(7919) % span;
    for step in 0..span {
        let at = (table.next + step) % span;
        let port = EPHEMERAL.start() + ((offset + at) % span) as u16;
        if !table.claims.contains_key(&(space.0, port)) {
            table.next = (at + 1) % span;
            return Ok(port);
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_abi_defs::{RDMA_PS_TCP, RDMA_PS_UDP};

    const ALONE: Sharing = Sharing { reuse: false, one_family: false };
    const REUSE: Sharing = Sharing { reuse: true, one_family: false };
    const FAMILY: Sharing = Sharing { reuse: false, one_family: true };

    fn claim(space: rdma_port_space, address: &str, sharing: Sharing) -> Result<Claim, c_int> {
        super::claim(space, address.parse().unwrap(), sharing)
    }

    #[test]
    fn ephemeral_ports_are_handed_out_once() {
        let claims: Vec<_> =
            (0..100).map(|_| claim(RDMA_PS_TCP, "10.77.0.1:0", ALONE).unwrap()).collect();
        let mut ports: Vec<_> = claims.iter().map(Claim::port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| EPHEMERAL.contains(port)));
    }

    #[test]
    fn a_port_is_free_again_when_its_owner_goes() {
        let first = claim(RDMA_PS_TCP, "0.0.0.0:1101", ALONE).unwrap();
        assert_eq!(claim(RDMA_PS_TCP, "0.0.0.0:1101", ALONE).map(drop), Err(libc::EADDRNOTAVAIL));
        drop(first);
        assert!(claim(RDMA_PS_TCP, "0.0.0.0:1101", ALONE).is_ok());
    }

    #[test]
    fn port_spaces_do_not_meet() {
        let _tcp = claim(RDMA_PS_TCP, "10.77.0.1:1102", ALONE).unwrap();
        assert!(claim(RDMA_PS_UDP, "10.77.0.1:1102", ALONE).is_ok());
        assert_eq!(claim(RDMA_PS_TCP, "10.77.0.1:1102", ALONE).map(drop), Err(libc::EADDRINUSE));
    }

    #[test]
    fn those_who_share_a_port_cannot_both_listen() {
        let first = claim(RDMA_PS_TCP, "10.77.0.1:1103", REUSE).unwrap();
        let second = claim(RDMA_PS_TCP, "10.77.0.1:1103", REUSE).unwrap();
        assert_eq!(first.listen(), Err(libc::EADDRINUSE));
        drop(second);
        assert_eq!(first.listen(), Ok(()));
        assert_eq!(claim(RDMA_PS_TCP, "10.77.0.1:1103", REUSE).map(drop), Err(libc::EADDRINUSE));
    }

    #[test]
    fn the_families_are_apart_only_where_both_say_so() {
        let _four = claim(RDMA_PS_TCP, "0.0.0.0:1104", FAMILY).unwrap();
        assert!(claim(RDMA_PS_TCP, "[::]:1104", FAMILY).is_ok());
        assert_eq!(claim(RDMA_PS_TCP, "[::]:1104", ALONE).map(drop), Err(libc::EADDRNOTAVAIL));
    }
}
