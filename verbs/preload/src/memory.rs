//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_ACCESS_ON_DEMAND, IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_ERR_INPUT, ibv_context, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp,
};
use longhaul_rdma::Engine;
use longhaul_rnic::{Access, PdId};
use longhaul_units::LKey;

use crate::device;
use crate::guard::{guarded, null, returned};
use crate::object::{self, Kind};

/// Our part of a protection domain.
pub(crate) struct Domain {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: PdId,
}

impl Kind for Domain {
    type Public = ibv_pd;
    const MARK: u64 = 0x6c68_5f64_6f6d_6169;
}

struct Region {
    engine: Arc<Engine>,
    lkey: LKey,
}

impl Kind for Region {
    type Public = ibv_mr;
    const MARK: u64 = 0x6c68_5f72_6567_696f;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { device::context(context) }) else { return null(libc::EINVAL) };
        match ours.engine.with(|rnic, _| rnic.alloc_pd()).and_then(|pd| Ok(pd?)) {
            Ok(id) => {
                let public = ibv_pd { context, handle: id.0 };
                object::create(public, Domain { engine: Arc::clone(&ours.engine), id })
            }
            Err(error) => null(error.errno()),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(domain) = (unsafe { object::resolve::<Domain>(pd) }) else { return returned(libc::EINVAL) };
        if let Err(error) =
            domain.engine.with(|rnic, _| rnic.dealloc_pd(domain.id)).and_then(|done| Ok(done?))
        {
            return returned(error.errno());
        }
        // SAFETY: live, and the program gives it up.
        unsafe { object::destroy::<Domain>(pd) };
        0
    })
}

/// What memory is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

impl Use {
    /// What the device may do with memory that it has these rights to.
    fn of(rights: Access) -> Use {
        let writes = Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if rights.0 & writes == 0 { Use::Read } else { Use::Write }
    }
}

const PAGE: u64 = 4096;

/// Whether every page of a range is mapped and may be used so; brings the pages in. A region over other
/// memory is refused with EFAULT, as the kernel does when it pins: to use it later would end the program.
fn is_usable(address: u64, len: u64, usage: Use) -> bool {
    const BYTES_AT_ONCE: u64 = 1 << 26;
    let Some(end) = address.checked_add(len) else { return false };
    let advice = if usage == Use::Write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let known = kernel_knows(advice);
    let mut at = address & !(PAGE - 1);
    while at < end {
        let span = (end - at).min(BYTES_AT_ONCE);
        let usable = if known {
            // SAFETY: populating faults pages in and changes no byte; the kernel checks the range.
            unsafe { libc::madvise(at as *mut c_void, span as usize, advice) == 0 }
        } else {
            is_mapped(at, span)
        };
        if !usable {
            return false;
        }
        at += span;
    }
    true
}

/// Kernels before 5.14 do not know the advice to populate.
fn kernel_knows(advice: c_int) -> bool {
    // SAFETY: an empty range.
    unsafe { libc::madvise(ptr::null_mut(), 0, advice) == 0 }
}

/// Whether every page of a range is mapped, with whatever rights. `at` is a multiple of the page size.
fn is_mapped(at: u64, len: u64) -> bool {
    let mut residency = vec![0_u8; len.div_ceil(PAGE) as usize];
    // SAFETY: mincore does not touch the range that it is asked about; `residency` has a byte per page.
    unsafe { libc::mincore(at as *mut c_void, len as usize, residency.as_mut_ptr()) == 0 }
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_uint) -> *mut ibv_mr {
    // SAFETY: the program's pointer, checked as far as that goes.
    let Some(domain) = (unsafe { object::resolve::<Domain>(pd) }) else { return null(libc::EINVAL) };
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    let address = addr as u64;
    let rights = Access(access & Access::ALL.0);
    if !is_usable(address, len as u64, Use::of(rights)) {
        return null(libc::EFAULT);
    }
    let keys = domain.engine.with(|rnic, _| rnic.reg_mr(domain.id, address, len as u64, iova, rights));
    match keys.and_then(|keys| Ok(keys?)) {
        Ok(keys) => {
            let public = ibv_mr {
                // SAFETY: a live protection domain.
                context: unsafe { (*pd).context },
                pd,
                addr,
                length: len,
                handle: keys.lkey.0,
                lkey: keys.lkey.0,
                rkey: keys.rkey.0,
            };
            object::create(public, Region { engine: Arc::clone(&domain.engine), lkey: keys.lkey })
        }
        Err(error) => null(error.errno()),
    }
}

// The header has macros of these two names, for compilers to choose between them.

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    guarded(ptr::null_mut(), || unsafe { register(pd, addr, len, addr as u64, access as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    guarded(ptr::null_mut(), || unsafe { register(pd, addr, len, iova, access as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    guarded(ptr::null_mut(), || unsafe { register(pd, addr, len, iova, access) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _len: usize,
    _access: c_int,
) -> c_int {
    returned(libc::EOPNOTSUPP);
    IBV_REREG_MR_ERR_INPUT.0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(region) = (unsafe { object::resolve::<Region>(mr) }) else { return returned(libc::EINVAL) };
        if let Err(error) =
            region.engine.with(|rnic, _| rnic.dereg_mr(region.lkey)).and_then(|done| Ok(done?))
        {
            return returned(error.errno());
        }
        // SAFETY: live, and the program gives it up.
        unsafe { object::destroy::<Region>(mr) };
        0
    })
}

pub(crate) unsafe extern "C" fn alloc_mw(_pd: *mut ibv_pd, _kind: ibv_mw_type) -> *mut ibv_mw {
    null(libc::EOPNOTSUPP)
}

pub(crate) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    returned(libc::EOPNOTSUPP)
}

pub(crate) unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_noticed() {
        let bytes = vec![0_u8; 100_000];
        for usage in [Use::Read, Use::Write] {
            assert!(is_usable(bytes.as_ptr() as u64, bytes.len() as u64, usage));
            assert!(!is_usable(0x1000, 64, usage));
            assert!(!is_usable(u64::MAX - 10, 64, usage));
        }
        assert!(!is_mapped(0x1000, 64));
    }

    #[test]
    fn memory_is_usable_as_its_protection_allows() {
        if !kernel_knows(libc::MADV_POPULATE_WRITE) {
            return;
        }
        let pages = 3 * PAGE as usize;
        for (protection, read, write) in [
            (libc::PROT_READ | libc::PROT_WRITE, true, true),
            (libc::PROT_READ, true, false),
            (libc::PROT_NONE, false, false),
        ] {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping of its own, gone after its last use.
            unsafe {
                let at = libc::mmap(ptr::null_mut(), pages, protection, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                let (address, len) = (at as u64 + 100, 2 * PAGE);
                assert_eq!(is_usable(address, len, Use::Read), read, "{protection}");
                assert_eq!(is_usable(address, len, Use::Write), write, "{protection}");
                assert!(is_mapped(at as u64, len));
                libc::munmap(at, pages);
            }
        }
    }

    #[test]
    fn any_right_to_write_needs_writable_memory() {
        assert_eq!(Use::of(Access(0)), Use::Read);
        assert_eq!(Use::of(Access::REMOTE_READ), Use::Read);
        for rights in
            [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ.and(Access::LOCAL_WRITE)]
        {
            assert_eq!(Use::of(rights), Use::Write);
        }
    }
}
