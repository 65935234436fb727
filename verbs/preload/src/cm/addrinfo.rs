//! `rdma_getaddrinfo`: names to addresses, by the C library's resolver.

use std::ffi::{c_char, c_int};
use std::mem::size_of;
use std::ptr;

use longhaul_abi_defs::{
    IBV_QPT_RC, IBV_QPT_UD, RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, RDMA_PS_IPOIB, RDMA_PS_TCP,
    RDMA_PS_UDP, rdma_addrinfo, rdma_port_space,
};

use crate::guard::guarded;

/// A copy of a socket address in memory that `free` takes.
///
/// # Safety
/// `address` points to `len` bytes.
unsafe fn copy(address: *const libc::sockaddr, len: libc::socklen_t) -> *mut libc::sockaddr {
    // SAFETY: the caller vouches for the address; calloc gives as many bytes.
    unsafe {
        let out = libc::calloc(1, len as usize).cast::<u8>();
        if !out.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), out, len as usize);
        }
        out.cast()
    }
}

/// What the port space and the queue pair type are when the hints leave them open.
fn service(hints: Option<&rdma_addrinfo>) -> (c_int, c_int) {
    let space = hints.map_or(0, |hints| hints.ai_port_space);
    let kind = hints.map_or(0, |hints| hints.ai_qp_type);
    let datagrams = [RDMA_PS_UDP, RDMA_PS_IPOIB].contains(&rdma_port_space(space as u32))
        || (space == 0 && kind == IBV_QPT_UD.0 as c_int);
    let default_space = if datagrams { RDMA_PS_UDP } else { RDMA_PS_TCP };
    let default_kind = if datagrams { IBV_QPT_UD } else { IBV_QPT_RC };
    (
        if kind == 0 { default_kind.0 as c_int } else { kind },
        if space == 0 { default_space.0 as c_int } else { space },
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    port: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    guarded(libc::EAI_SYSTEM, || {
        // SAFETY: the program's pointers, null or valid.
        unsafe {
            if res.is_null() || (node.is_null() && port.is_null() && hints.is_null()) {
                return libc::EAI_NONAME;
            }
            let hints = hints.as_ref();
            let flags = hints.map_or(0, |hints| hints.ai_flags);
            let passive = flags & RAI_PASSIVE != 0;
            let mut ask: libc::addrinfo = std::mem::zeroed();
            ask.ai_socktype = libc::SOCK_STREAM;
            if passive {
                ask.ai_flags |= libc::AI_PASSIVE;
            }
            if flags & RAI_NUMERICHOST != 0 {
                ask.ai_flags |= libc::AI_NUMERICHOST;
            }
            if let Some(hints) = hints
                && (flags & RAI_FAMILY != 0 || hints.ai_family != 0)
            {
                ask.ai_family = hints.ai_family;
            }
            let mut found = ptr::null_mut();
            if !node.is_null() || !port.is_null() {
                let failed = libc::getaddrinfo(node, port, &raw const ask, &raw mut found);
                if failed != 0 {
                    return failed;
                }
            }
            let out = answer(hints, flags, passive, found);
            if !found.is_null() {
                libc::freeaddrinfo(found);
            }
            if out.is_null() {
                return libc::EAI_MEMORY;
            }
            res.write(out);
            0
        }
    })
}

/// # Safety
/// `found` is null or an answer of getaddrinfo; the addresses in `hints` are as long as they say.
unsafe fn answer(
    hints: Option<&rdma_addrinfo>,
    flags: c_int,
    passive: bool,
    found: *const libc::addrinfo,
) -> *mut rdma_addrinfo {
    // SAFETY: passed on to the caller; a calloc'ed structure of null pointers and zeroes is valid.
    unsafe {
        let out = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        let Some(rai) = out.as_mut() else { return out };
        (rai.ai_qp_type, rai.ai_port_space) = service(hints);
        rai.ai_flags = flags;
        if let Some(found) = found.as_ref() {
            rai.ai_family = found.ai_family;
            let address = copy(found.ai_addr, found.ai_addrlen);
            if passive {
                (rai.ai_src_addr, rai.ai_src_len) = (address, found.ai_addrlen);
            } else {
                (rai.ai_dst_addr, rai.ai_dst_len) = (address, found.ai_addrlen);
            }
        }
        if let Some(hints) = hints {
            if rai.ai_src_addr.is_null() && !hints.ai_src_addr.is_null() {
                rai.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len);
                rai.ai_src_len = hints.ai_src_len;
            }
            if rai.ai_dst_addr.is_null() && !hints.ai_dst_addr.is_null() {
                rai.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len);
                rai.ai_dst_len = hints.ai_dst_len;
            }
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
                let (source, destination) = (name::read((*res).ai_src_addr), name::read((*res).ai_dst_addr));
                let wanted = Some("10.77.0.2:18515".parse().unwrap());
                assert_eq!((source, destination), if passive { (wanted, None) } else { (None, wanted) });
                assert_eq!((*res).ai_port_space, RDMA_PS_TCP.0 as c_int);
                rdma_freeaddrinfo(res);
            }
        }
    }
}
