//! `rdma_getaddrinfo`: resolves names to addresses, by the C library's resolver.

use std::ffi::{c_char, c_int};
use std::mem::size_of;
use std::net::IpAddr;
use std::ptr;

use longhaul_abi_defs::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, RAI_FAMILY,
    RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, ibv_qp_type,
    rdma_addrinfo, rdma_port_space,
};

use super::id;
use super::name::AF_IB;
use crate::guard::{guarded, minus_one};

/// Copies a socket address into memory for `free`.
///
/// # Safety
/// `address` points to `len` bytes.
unsafe fn copy(address: *const libc::sockaddr, len: libc::socklen_t) -> *mut libc::sockaddr {
    // SAFETY: the caller guarantees the address; calloc gives as many bytes.
    unsafe {
        let out = libc::calloc(1, len as usize).cast::<u8>();
        if !out.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), out, len as usize);
        }
        out.cast()
    }
}

/// The arguments for the C library.
fn question(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: null pointers and zeroes are valid.
    let mut ask: libc::addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ask.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ask.ai_flags |= libc::AI_NUMERICHOST;
    }
    ask.ai_family = hints.ai_family;
    match ibv_qp_type(hints.ai_qp_type as u32) {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => {
            ask.ai_socktype = libc::SOCK_STREAM
        }
        IBV_QPT_UD => ask.ai_socktype = libc::SOCK_DGRAM,
        _ => {}
    }
    ask.ai_protocol = match (rdma_port_space(hints.ai_port_space as u32), ask.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    ask
}

/// The first answer of a family of which the device has an address, if there is one: `localhost`
/// may list `::1` first.
///
/// # Safety
/// `found` is a list from getaddrinfo.
unsafe fn choose(found: *const libc::addrinfo) -> *const libc::addrinfo {
    let Ok(engine) = id::engine() else { return found };
    let is_reached = |family| {
        let of_family = |address| match address {
            IpAddr::V4(_) => family == libc::AF_INET,
            IpAddr::V6(_) => family == libc::AF_INET6,
        };
        engine.attach().addresses.iter().any(of_family)
    };
    let mut at = found;
    // SAFETY: passed on to the caller.
    while let Some(answer) = unsafe { at.as_ref() } {
        if is_reached(answer.ai_family) {
            return at;
        }
        at = answer.ai_next;
    }
    found
}

/// # Safety
/// The arguments are null or valid, `res` is valid.
unsafe fn resolve(
    node: *const c_char,
    port: *const c_char,
    hints: Option<&rdma_addrinfo>,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    if hints.is_some_and(|hints| hints.ai_family == AF_IB) {
        // No device has InfiniBand addresses.
        return libc::EAI_FAMILY;
    }
    let mut found = ptr::null_mut();
    // SAFETY: passed on to the caller.
    unsafe {
        if !node.is_null() || !port.is_null() {
            let ask = hints.map(question);
            let ask = ask.as_ref().map_or(ptr::null(), ptr::from_ref);
            let failed = libc::getaddrinfo(node, port, ask, &raw mut found);
            if failed != 0 {
                return failed;
            }
        }
        let out = answer(hints, choose(found));
        if !found.is_null() {
            libc::freeaddrinfo(found);
        }
        if out.is_null() {
            return libc::EAI_MEMORY;
        }
        res.write(out);
    }
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    port: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    guarded(libc::EAI_SYSTEM, || {
        if res.is_null() || (node.is_null() && port.is_null() && hints.is_null()) {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: the program's pointers, null or valid.
        unsafe { resolve(node, port, hints.as_ref(), res) }
    })
}

/// Builds the program's answer from the C library's, and from the hints if those say more or no
/// name was given.
///
/// # Safety
/// `found` is null or an answer of getaddrinfo; the addresses in `hints` are as long as they say.
unsafe fn answer(
    hints: Option<&rdma_addrinfo>,
    found: *const libc::addrinfo,
) -> *mut rdma_addrinfo {
    // SAFETY: passed on to the caller; a calloc'ed structure of null pointers and zeroes is valid.
    unsafe {
        let out = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        let Some(rai) = out.as_mut() else { return out };
        let passive = hints.is_some_and(|hints| hints.ai_flags & RAI_PASSIVE != 0);
        if let Some(hints) = hints {
            rai.ai_qp_type = hints.ai_qp_type;
            rai.ai_port_space = hints.ai_port_space;
        }
        if let Some(found) = found.as_ref() {
            let datagrams = found.ai_socktype == libc::SOCK_DGRAM;
            if rai.ai_qp_type == 0 {
                rai.ai_qp_type = (if datagrams { IBV_QPT_UD } else { IBV_QPT_RC }).0 as c_int;
            }
            if rai.ai_port_space == 0 {
                rai.ai_port_space = (if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP }).0 as c_int;
            }
            rai.ai_family = found.ai_family;
            let address = copy(found.ai_addr, found.ai_addrlen);
            if passive {
                rai.ai_flags = RAI_PASSIVE;
                (rai.ai_src_addr, rai.ai_src_len) = (address, found.ai_addrlen);
            } else {
                (rai.ai_dst_addr, rai.ai_dst_len) = (address, found.ai_addrlen);
            }
        } else if let Some(hints) = hints {
            rai.ai_flags = hints.ai_flags & !RAI_FAMILY;
            rai.ai_family = hints.ai_family;
            if hints.ai_dst_len > 0 && !hints.ai_dst_addr.is_null() {
                rai.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len);
                rai.ai_dst_len = hints.ai_dst_len;
            }
        }
        if let Some(hints) = hints
            && rai.ai_src_addr.is_null()
            && hints.ai_src_len > 0
            && !hints.ai_src_addr.is_null()
        {
            rai.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len);
            rai.ai_src_len = hints.ai_src_len;
        }
        out
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_freeaddrinfo(list: *mut rdma_addrinfo) {
    let mut next = list;
    // SAFETY: a list that rdma_getaddrinfo made; programs may have put memory of malloc's into it.
    unsafe {
        while let Some(rai) = next.as_mut() {
            next = rai.ai_next;
            libc::free(rai.ai_connect);
            libc::free(rai.ai_route);
            libc::free(rai.ai_src_canonname.cast());
            libc::free(rai.ai_dst_canonname.cast());
            libc::free(rai.ai_src_addr.cast());
            libc::free(rai.ai_dst_addr.cast());
            libc::free((&raw mut *rai).cast());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::name;

    #[test]
    fn the_resolved_address_is_the_source_of_a_listener_and_the_destination_of_a_caller() {
        for passive in [true, false] {
            let mut hints = rdma_addrinfo::zeroed();
            hints.ai_flags = RAI_NUMERICHOST | if passive { RAI_PASSIVE } else { 0 };
            let mut res = ptr::null_mut();
            // SAFETY: valid arguments; the answer is freed once.
            unsafe {
                let failed = rdma_getaddrinfo(
                    c"10.77.0.2".as_ptr(),
                    c"18515".as_ptr(),
                    &raw const hints,
                    &raw mut res,
                );
                assert_eq!(failed, 0);
                let (source, destination) =
                    (name::read((*res).ai_src_addr), name::read((*res).ai_dst_addr));
                let wanted = Some("10.77.0.2:18515".parse().unwrap());
                assert_eq!(
                    (source, destination),
                    if passive { (wanted, None) } else { (None, wanted) }
                );
                assert_eq!((*res).ai_port_space, RDMA_PS_TCP.0 as c_int);
                rdma_freeaddrinfo(res);
            }
        }
    }

    fn asked(text: &std::ffi::CStr, hints: &rdma_addrinfo) -> Result<(c_int, c_int, c_int), c_int> {
        let mut res = ptr::null_mut();
        // SAFETY: valid arguments; the answer is freed once.
        unsafe {
            match rdma_getaddrinfo(text.as_ptr(), c"7".as_ptr(), hints, &raw mut res) {
                0 => {
                    let found = ((*res).ai_family, (*res).ai_qp_type, (*res).ai_port_space);
                    rdma_freeaddrinfo(res);
                    Ok(found)
                }
                failed => Err(failed),
            }
        }
    }

    #[test]
    fn the_kind_of_service_follows_from_whichever_hint_there_is() {
        let hints = |kind: u32, space: u32| rdma_addrinfo {
            ai_qp_type: kind as c_int,
            ai_port_space: space as c_int,
            ..rdma_addrinfo::zeroed()
        };
        let (rc, ud) = (IBV_QPT_RC.0 as c_int, IBV_QPT_UD.0 as c_int);
        let (tcp, udp) = (RDMA_PS_TCP.0 as c_int, RDMA_PS_UDP.0 as c_int);
        let v4 = libc::AF_INET;
        let ask = |kind, space| asked(c"10.77.0.2", &hints(kind, space));
        assert_eq!(ask(0, 0), Ok((v4, rc, tcp)));
        assert_eq!(ask(IBV_QPT_UD.0, 0), Ok((v4, ud, udp)));
        assert_eq!(ask(0, RDMA_PS_UDP.0), Ok((v4, ud, udp)));
        assert_eq!(ask(IBV_QPT_UC.0, RDMA_PS_IB.0).unwrap().2, RDMA_PS_IB.0 as c_int);
        assert_eq!(asked(c"fd00::1", &hints(0, 0)), Ok((libc::AF_INET6, rc, tcp)));
    }

    #[test]
    fn infiniband_addresses_are_refused() {
        let hints =
            rdma_addrinfo { ai_flags: RAI_FAMILY, ai_family: AF_IB, ..rdma_addrinfo::zeroed() };
        assert_eq!(asked(c"fd00::1", &hints), Err(libc::EAI_FAMILY));
    }
}
