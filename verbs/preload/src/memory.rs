//! Memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_abi_defs::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE,
    IBV_ACCESS_ZERO_BASED, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT,
    IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_type, ibv_pd, ibv_qp,
};
use longhaul_rdma::Engine;
use longhaul_rnic::{Access, MrKeys};
use longhaul_units::LKey;

use crate::domain::Domain;
use crate::guard::{guarded, null, returned, set_errno};
use crate::object::{self, Kind, User};

struct Region {
    engine: Arc<Engine>,
    registration: Mutex<Registration>,
}

/// The current registration of a region; re-registration replaces it.
struct Registration {
    lkey: LKey,
    iova: u64,
    access: c_uint,
    _domain: User,
}

impl Kind for Region {
    type Public = ibv_mr;
    const MARK: u64 = 0x6c68_5f72_6567_696f;
}

/// The device's use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

impl Use {
    /// The device's use of memory under these access rights.
    fn of(rights: Access) -> Use {
        let writes = Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if rights.0 & writes == 0 { Use::Read } else { Use::Write }
    }
}

const PAGE: u64 = 4096;

/// Checks that every page of a range is mapped and permits this use; populates the pages. Refuses
/// other memory with EFAULT, as the kernel does when it pins, since using it later would crash the
/// program.
fn is_usable(address: u64, len: u64, usage: Use) -> bool {
    const BYTES_AT_ONCE: u64 = 1 << 26;
    let Some(end) = address.checked_add(len) else { return false };
    let advice =
        if usage == Use::Write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
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

/// Kernels before 5.14 lack the advice to populate.
fn kernel_knows(advice: c_int) -> bool {
    // SAFETY: an empty range.
    unsafe { libc::madvise(ptr::null_mut(), 0, advice) == 0 }
}

/// Checks that every page of a range is mapped, with any permissions. `at` is a multiple of the
/// page size.
fn is_mapped(at: u64, len: u64) -> bool {
    let mut residency = vec![0_u8; len.div_ceil(PAGE) as usize];
    // SAFETY: mincore does not touch the range that it is asked about; `residency` has a byte per
    // page.
    unsafe { libc::mincore(at as *mut c_void, len as usize, residency.as_mut_ptr()) == 0 }
}

/// The flags that a region may have: those with a meaning here, those that the kernel accepts from
/// everybody, and those that any device may ignore.
const KNOWN_ACCESS: c_uint = Access::ALL.0
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_OPTIONAL_RANGE;

/// The first address for peers, and their rights, of a range that passes the checks of the kernel,
/// in the kernel's order. Source: Linux, `ib_check_mr_access`, `ib_uverbs_reg_mr`, `ib_umem_get`.
fn checked(address: u64, len: u64, iova: u64, access: c_uint) -> Result<(u64, Access), c_int> {
    let rights = Access(access & Access::ALL.0);
    let remote_write = rights.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
    if access & !KNOWN_ACCESS != 0 || (remote_write && !rights.contains(Access::LOCAL_WRITE)) {
        return Err(libc::EINVAL);
    }
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let zero_based = access & IBV_ACCESS_ZERO_BASED != 0;
    if !zero_based && address % PAGE != iova % PAGE {
        return Err(libc::EINVAL);
    }
    // A region has at least one page, and does not wrap around the address space.
    let ends = address.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
    if ends.is_none_or(|end| end == address) {
        return Err(libc::EINVAL);
    }
    let needs = if access & IBV_ACCESS_MW_BIND != 0 { Use::Write } else { Use::of(rights) };
    if !is_usable(address, len, needs) {
        return Err(libc::EFAULT);
    }
    Ok((if zero_based { 0 } else { iova }, rights))
}

fn register(
    domain: &Domain,
    address: u64,
    len: u64,
    iova: u64,
    access: c_uint,
) -> Result<MrKeys, c_int> {
    let (iova, rights) = checked(address, len, iova, access)?;
    let keys =
        domain.engine.with_quietly(|rnic| rnic.reg_mr(domain.id, address, len, iova, rights));
    keys.and_then(|keys| Ok(keys?)).map_err(|error| error.errno())
}

/// Creates a memory region.
///
/// # Safety
/// `pd` is null or points to readable memory.
unsafe fn create(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program's pointer, checked as far as possible.
    let Some(domain) = (unsafe { object::resolve::<Domain>(pd) }) else {
        return null(libc::EINVAL);
    };
    match register(domain, addr as u64, len as u64, iova, access) {
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
            let registration =
                Registration { lkey: keys.lkey, iova, access, _domain: domain.users.join() };
            let engine = Arc::clone(&domain.engine);
            object::create(public, Region { engine, registration: Mutex::new(registration) })
        }
        Err(errno) => null(errno),
    }
}

// The header has macros of these two names, which select between them at compile time.

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    guarded(ptr::null_mut(), || unsafe { create(pd, addr, len, addr as u64, access as c_uint) })
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
    guarded(ptr::null_mut(), || unsafe { create(pd, addr, len, iova, access as c_uint) })
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
    guarded(ptr::null_mut(), || unsafe { create(pd, addr, len, iova, access) })
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

/// Re-registers a region under the same keys, like hardware, since peers know them. A refusal
/// leaves the region unchanged.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    let failed = |code: c_int, errno| {
        set_errno(errno);
        code
    };
    guarded(IBV_REREG_MR_ERR_CMD.0, || {
        let (flags, access) = (flags as c_uint, access as c_uint);
        let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
        let regrants = flags & IBV_REREG_MR_CHANGE_ACCESS != 0;
        let rehomes = flags & IBV_REREG_MR_CHANGE_PD != 0;
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(region) = (unsafe { object::resolve::<Region>(mr) }) else {
            return failed(IBV_REREG_MR_ERR_INPUT.0, libc::EINVAL);
        };
        let nothing = flags == 0 || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0;
        if nothing || (moves && (len == 0 || addr.is_null())) || (access != 0 && !regrants) {
            return failed(IBV_REREG_MR_ERR_INPUT.0, libc::EINVAL);
        }
        let mut registration = region.registration.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a live region, whose public part nobody else writes to; and the program's
        // pointer, checked as far as possible.
        unsafe {
            let pd = if rehomes { pd } else { (*mr).pd };
            let here = ((*mr).addr, (*mr).length, registration.iova);
            let (addr, len, iova) = if moves { (addr, len, addr as u64) } else { here };
            let access = if regrants { access } else { registration.access };
            let Some(domain) = object::resolve::<Domain>(pd) else {
                return failed(IBV_REREG_MR_ERR_INPUT.0, libc::EINVAL);
            };
            if !Arc::ptr_eq(&domain.engine, &region.engine) {
                // After a fork, in the child.
                return failed(IBV_REREG_MR_ERR_INPUT.0, libc::EINVAL);
            }
            let (lkey, address, length) = (registration.lkey, addr as u64, len as u64);
            let replaced = checked(address, length, iova, access).and_then(|(first, rights)| {
                let replaced = region.engine.with_quietly(|rnic| {
                    rnic.rereg_mr(lkey, domain.id, address, length, first, rights)
                });
                replaced.and_then(|done| Ok(done?)).map_err(|error| error.errno())
            });
            if let Err(errno) = replaced {
                return failed(IBV_REREG_MR_ERR_CMD.0, errno);
            }
            *registration = Registration { lkey, iova, access, _domain: domain.users.join() };
            ((*mr).pd, (*mr).addr, (*mr).length) = (pd, addr, len);
        }
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(region) = (unsafe { object::resolve::<Region>(mr) }) else {
            return returned(libc::EINVAL);
        };
        let lkey = region.registration.lock().unwrap_or_else(PoisonError::into_inner).lkey;
        let freed = region.engine.with_quietly(|rnic| rnic.dereg_mr(lkey));
        if let Err(error) = freed.and_then(|done| Ok(done?)) {
            return returned(error.errno());
        }
        // SAFETY: live, and the program destroys it.
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
        for rights in [
            Access::LOCAL_WRITE,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ.and(Access::LOCAL_WRITE),
        ] {
            assert_eq!(Use::of(rights), Use::Write);
        }
    }
}
