//! Addresses and ports of identifiers: binding, resolving, and C's socket addresses.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use longhaul_abi_defs::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, rdma_cm_id,
};
use longhaul_rdma::{ConnectionEvent, Happening};

use super::event::{LOCAL_ADDR_RESOLVED, LOCAL_ROUTE_RESOLVED, complete};
use super::id::{self, Id};
use crate::guard::{guarded, minus_one};
use crate::object;

/// Ports that identifiers without one of their own get.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Ephemeral ports in use.
static PORTS: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that no identifier of this process has; spread by the process id, so that two processes of one
/// host seldom meet.
fn take_port() -> Result<u16, c_int> {
    let span = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let first = std::process::id().wrapping_mul(7919);
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    (0..span)
        .map(|step| EPHEMERAL.start() + (first.wrapping_add(step) % span) as u16)
        .find(|port| ports.insert(*port))
        .ok_or(libc::EADDRNOTAVAIL)
}

/// Gives an ephemeral port back. A listener's children keep using its number, as in the kernel.
pub(super) fn release_port(port: u16, _was_listening: bool) {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
}

/// Reads a C socket address.
///
/// # Safety
/// `address` is null or points to as much as its family says.
pub(super) unsafe fn read(address: *const libc::sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the address.
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

/// A C socket address, with room for any family.
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

/// Whether an address is that of the port. Loopback addresses stand for it, as they do in the kernel.
fn is_ours(ip: IpAddr, own: IpAddr) -> bool {
    ip == own || ip.is_loopback()
}

/// Binds an identifier: to every address or to the port's own.
///
/// # Safety
/// `id` is live.
unsafe fn bind(id: *mut rdma_cm_id, ours: &Id, address: SocketAddr) -> Result<(), c_int> {
    let engine = id::engine()?;
    let own = engine.attach().ip_addr();
    let mut state = ours.lock();
    if state.local_port != 0 {
        return Err(libc::EINVAL);
    }
    let ip = if address.ip().is_unspecified() {
        address.ip()
    } else if is_ours(address.ip(), own) {
        // SAFETY: passed on to the caller.
        unsafe { id::bind_to_device(id, None) }?;
        own
    } else {
        return Err(libc::EADDRNOTAVAIL);
    };
    state.local_port = if address.port() == 0 { take_port()? } else { address.port() };
    let bound = write(SocketAddr::new(ip, state.local_port));
    // SAFETY: passed on to the caller.
    unsafe { (*id).route.addr.src.src_storage = bound };
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut libc::sockaddr) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        let (Some(ours), Some(address)) = (unsafe { (object::resolve::<Id>(id), read(address)) }) else {
            return minus_one(libc::EINVAL);
        };
        // SAFETY: a live identifier.
        match unsafe { bind(id, ours, address) } {
            Ok(()) => 0,
            Err(errno) => minus_one(errno),
        }
    })
}

/// Queues an event that this layer raises by itself, and wakes nobody: the queue does.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn raise(id: *mut rdma_cm_id, code: u32, status: c_int) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    let queue = unsafe { id::queue_of(id) }.ok_or(libc::EINVAL)?;
    queue.push(ConnectionEvent { cookie: id as u64, what: Happening::Local { code, status } });
    Ok(())
}

/// Resolves the peer's address: there is one port, and every address is behind it.
///
/// # Safety
/// `id` is live.
unsafe fn resolve(
    id: *mut rdma_cm_id,
    ours: &Id,
    source: Option<SocketAddr>,
    destination: SocketAddr,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    let own = engine.attach().ip_addr();
    let source_ip = source.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    let status = if source_ip.is_some_and(|ip| !is_ours(ip, own)) {
        -libc::EADDRNOTAVAIL
    } else if destination.is_ipv4() != own.is_ipv4() || destination.ip().is_unspecified() {
        -libc::ENETUNREACH
    } else {
        0
    };
    if status == 0 {
        // SAFETY: passed on to the caller.
        unsafe { id::bind_to_device(id, Some(destination.ip())) }?;
        let mut state = ours.lock();
        if state.local_port == 0 {
            let wanted = source.map_or(0, |address| address.port());
            state.local_port = if wanted == 0 { take_port()? } else { wanted };
        }
        let local = write(SocketAddr::new(own, state.local_port));
        // SAFETY: passed on to the caller.
        unsafe { (*id).route.addr.src.src_storage = local };
    }
    // SAFETY: passed on to the caller.
    unsafe {
        (*id).route.addr.dst.dst_storage = write(destination);
        raise(id, LOCAL_ADDR_RESOLVED, status)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut libc::sockaddr,
    destination: *mut libc::sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        let (Some(ours), Some(to)) = (unsafe { (object::resolve::<Id>(id), read(destination)) }) else {
            return minus_one(libc::EINVAL);
        };
        // SAFETY: as above; a live identifier.
        match unsafe { resolve(id, ours, read(source), to) } {
            // SAFETY: as above.
            Ok(()) => unsafe { complete(id) },
            Err(errno) => minus_one(errno),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        unsafe {
            if object::resolve::<Id>(id).is_none() || (*id).verbs.is_null() {
                return minus_one(libc::EINVAL);
            }
            match id::set_path(id).and_then(|()| raise(id, LOCAL_ROUTE_RESOLVED, 0)) {
                Ok(()) => complete(id),
                Err(errno) => minus_one(errno),
            }
        }
    })
}

/// The port of a socket address, in network byte order, 0 without one.
unsafe fn port_of(address: *const libc::sockaddr) -> u16 {
    // SAFETY: an address inside a live identifier.
    unsafe { read(address) }.map_or(0, |address| address.port().to_be())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program's pointer, checked as far as that goes.
    guarded(0, || match unsafe { object::resolve::<Id>(id) } {
        // SAFETY: a live identifier.
        Some(_) => unsafe { port_of((&raw const (*id).route.addr.src).cast()) },
        None => 0,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the program's pointer, checked as far as that goes.
    guarded(0, || match unsafe { object::resolve::<Id>(id) } {
        // SAFETY: a live identifier.
        Some(_) => unsafe { port_of((&raw const (*id).route.addr.dst).cast()) },
        None => 0,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        if value.is_null() || len == 0 {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: the caller gives `len` bytes, at least one.
        let byte = unsafe { ptr::read(value.cast::<u8>()) };
        match (level, name) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => ours.lock().traffic_class = byte,
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) if byte < 32 => ours.lock().ack_timeout = Some(byte),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => return minus_one(libc::EINVAL),
            // Listening twice is refused whatever this says, and only IPv4 is spoken.
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY) => {}
            _ => return minus_one(libc::ENOSYS),
        }
        0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn ephemeral_ports_are_handed_out_once() {
        let (a, b) = (take_port().unwrap(), take_port().unwrap());
        assert_ne!(a, b);
        assert!(EPHEMERAL.contains(&a) && EPHEMERAL.contains(&b));
        release_port(a, false);
        release_port(b, false);
    }
}
