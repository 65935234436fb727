//! Addresses of identifiers: binding, resolution, and C socket addresses.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use longhaul_abi_defs::rdma_cm_id;
use longhaul_rdma::{ConnectionEvent, Happening};

use super::event::complete;
use super::id::{self, Id, IdState, Resolved};
use super::port;
use crate::guard::{guarded, minus_one};

/// Events that this layer raises itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Local {
    AddressResolved,
    RouteResolved,
    /// With the number of the membership.
    Joined(u64),
}

impl Local {
    fn encode(self) -> (u32, u64) {
        match self {
            Local::AddressResolved => (0, 0),
            Local::RouteResolved => (1, 0),
            Local::Joined(membership) => (2, membership),
        }
    }

    /// `None` for codes that [`raise`] never queues.
    pub(super) fn decode(code: u32, value: u64) -> Option<Local> {
        Some(match code {
            0 => Local::AddressResolved,
            1 => Local::RouteResolved,
            2 => Local::Joined(value),
            _ => return None,
        })
    }
}

/// The address family of InfiniBand addresses.
pub(super) const AF_IB: c_int = 27;

/// Reads a C socket address.
///
/// # Safety
/// `address` is null or points to a structure of its family's size.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees the address.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip).to_canonical(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

/// A C socket address, with space for any family.
pub(super) fn write(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeroes is a valid address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    // SAFETY: the storage has room and alignment for every family.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let out = &mut *at.cast::<libc::sockaddr_in>();
                out.sin_family = libc::AF_INET as libc::sa_family_t;
                out.sin_port = v4.port().to_be();
                out.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            }
            SocketAddr::V6(v6) => {
                let out = &mut *at.cast::<libc::sockaddr_in6>();
                out.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                out.sin6_port = v6.port().to_be();
                out.sin6_addr.s6_addr = v6.ip().octets();
            }
        }
    }
    storage
}

/// Reads a mandatory address. Errors are the kernel's.
///
/// # Safety
/// As [`read`].
unsafe fn required(address: *const libc::sockaddr) -> Result<SocketAddr, c_int> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: passed on to the caller; a family is there in any case.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            // No device has InfiniBand addresses.
            AF_IB => Err(libc::ENODEV),
            _ => read(address).ok_or(libc::EAFNOSUPPORT),
        }
    }
}

/// True if an address is the port's. Loopback addresses stand for it, as in the kernel.
fn is_ours(ip: IpAddr, own: IpAddr) -> bool {
    // If the port itself has a loopback address, other loopback addresses can be other ports.
    ip == own || (ip.is_loopback() && !own.is_loopback())
}

/// Binds an identifier, to every address or to the port's own.
///
/// # Safety
/// `id` is live, and `state` is its own.
pub(super) unsafe fn bind(
    id: *mut rdma_cm_id,
    state: &mut IdState,
    address: SocketAddr,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    let own = engine.attach().source_for(address.ip());
    if state.local_port != 0 {
        return Err(libc::EINVAL);
    }
    let ip = if address.ip().is_unspecified() {
        address.ip()
    } else if is_ours(address.ip(), own) {
        own
    } else {
        return Err(libc::EADDRNOTAVAIL);
    };
    // SAFETY: passed on to the caller.
    let space = unsafe { (*id).ps };
    let claim = port::claim(space, SocketAddr::new(ip, address.port()), state.sharing)?;
    state.local_port = claim.port();
    state.claim = Some(claim);
    let bound = write(SocketAddr::new(ip, state.local_port));
    // SAFETY: passed on to the caller.
    unsafe {
        (*id).route.addr.src.src_storage = bound;
        if !ip.is_unspecified() {
            id::bind_to_device(id, None)?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: as above; a live identifier.
        let bound =
            unsafe { required(address).and_then(|address| bind(id, &mut ours.lock(), address)) };
        bound.map_or_else(minus_one, |()| 0)
    })
}

/// Queues an event that this layer raises itself. The queue wakes its reader.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn raise(id: *mut rdma_cm_id, what: Local, status: c_int) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    let queue = unsafe { id::queue_of(id) }.ok_or(libc::EINVAL)?;
    let (code, value) = what.encode();
    queue.push(ConnectionEvent {
        cookie: id as u64,
        what: Happening::Local { code, status, value },
    });
    Ok(())
}

/// Resolves the address of a peer or of a multicast group: there is one port, and every address is
/// behind it. On an Ethernet segment the next hop must respond within `limit`.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    ours: &Id,
    source: Option<SocketAddr>,
    destination: SocketAddr,
    limit: Option<Duration>,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let sink = unsafe { id::sink_of(id) }.ok_or(libc::EINVAL)?;
    let own = engine.attach().source_for(destination.ip());
    // SAFETY: as above.
    let (destination, status) =
        unsafe { name_ends(id, &mut ours.lock(), own, source, destination) }?;
    if status != 0 {
        // SAFETY: as above.
        return unsafe { raise(id, Local::AddressResolved, status) };
    }
    let (code, _) = Local::AddressResolved.encode();
    // Without the identifier's lock: the first user of the port waits here for its link.
    engine.resolve_for(destination.ip(), limit, sink, code).map_err(|error| {
        // The program may retry.
        ours.lock().resolved = Resolved::Nothing;
        error.errno()
    })
}

/// Sets the addresses of both ends. Returns the peer's address, and the status of an event that
/// reports it as unreachable from here, or 0.
///
/// # Safety
/// `id` is live and `state` is its own.
unsafe fn name_ends(
    id: *mut rdma_cm_id,
    state: &mut IdState,
    own: IpAddr,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<(SocketAddr, c_int), c_int> {
    if state.listen.is_some() || state.connection.is_some() || state.resolved != Resolved::Nothing {
        return Err(libc::EINVAL);
    }
    let source_ip = source.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    // "This machine", possibly another of its processes.
    let here = destination.ip().is_unspecified() || is_ours(destination.ip(), own);
    let destination = if here { SocketAddr::new(own, destination.port()) } else { destination };
    let status = if source_ip.is_some_and(|ip| !is_ours(ip, own)) {
        -libc::EADDRNOTAVAIL
    } else if destination.is_ipv4() != own.is_ipv4() {
        -libc::ENETUNREACH
    } else {
        0
    };
    if status == 0 {
        // SAFETY: passed on to the caller.
        unsafe { id::bind_to_device(id, Some(destination.ip())) }?;
        if state.local_port == 0 {
            match source.map_or(0, |address| address.port()) {
                0 => {
                    // SAFETY: as above.
                    let space = unsafe { (*id).ps };
                    let claim = port::claim(space, SocketAddr::new(own, 0), state.sharing)?;
                    state.local_port = claim.port();
                    state.claim = Some(claim);
                }
                // Connections to different peers may use the same source port.
                wanted => state.local_port = wanted,
            }
        }
        let local = write(SocketAddr::new(own, state.local_port));
        // SAFETY: passed on to the caller.
        unsafe { (*id).route.addr.src.src_storage = local };
        state.resolved = Resolved::Address;
    }
    // SAFETY: passed on to the caller.
    unsafe { (*id).route.addr.dst.dst_storage = write(destination) };
    Ok((destination, status))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    destination: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let limit = u64::try_from(timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
    let begun = guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: as above; a live identifier.
        let resolved = unsafe {
            required(destination).and_then(|to| resolve(id, ours, read(source), to, limit))
        };
        resolved.map_or_else(minus_one, |()| 0)
    });
    // SAFETY: passed on.
    if begun == 0 { unsafe { complete(id) } } else { begun }
}

/// Resolves the route: the only path of RoCE.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn resolve_route(id: *mut rdma_cm_id, ours: &Id) -> Result<(), c_int> {
    let mut state = ours.lock();
    if state.resolved != Resolved::Address {
        return Err(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    unsafe {
        id::set_path(id)?;
        state.resolved = Resolved::Route;
        raise(id, Local::RouteResolved, 0)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_resolve_route(
    id: *mut rdma_cm_id,
    _timeout_ms: c_int,
) -> c_int {
    let begun = guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        unsafe { resolve_route(id, ours) }.map_or_else(minus_one, |()| 0)
    });
    // SAFETY: passed on.
    if begun == 0 { unsafe { complete(id) } } else { begun }
}

/// The port of a socket address in network byte order; 0 if it has none.
unsafe fn port_of(address: *const libc::sockaddr) -> u16 {
    // SAFETY: an address inside a live identifier.
    unsafe { read(address) }.map_or(0, |address| address.port().to_be())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program's pointer, checked as far as possible.
    guarded(0, || match unsafe { id::resolve(id) } {
        // SAFETY: a live identifier.
        Some(_) => unsafe { port_of((&raw const (*id).route.addr.src).cast()) },
        None => 0,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program's pointer, checked as far as possible.
    guarded(0, || match unsafe { id::resolve(id) } {
        // SAFETY: a live identifier.
        Some(_) => unsafe { port_of((&raw const (*id).route.addr.dst).cast()) },
        None => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    #[test]
    fn socket_addresses_survive_the_way_to_c_and_back() {
        for text in ["10.77.0.1:18515", "[fd00::1]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = write(address);
            // SAFETY: a valid socket address.
            assert_eq!(unsafe { read((&raw const c).cast()) }, Some(address));
        }
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(ptr::null()) }, None);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_one() {
        let c = write("[::ffff:10.77.0.1]:5".parse().unwrap());
        // SAFETY: a valid socket address.
        assert_eq!(unsafe { read((&raw const c).cast()) }, Some("10.77.0.1:5".parse().unwrap()));
    }
}
