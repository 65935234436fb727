//! Protection domains, thread domains, and parent domains that join the two.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use longhaul_rdma::Engine;
use longhaul_rnic::PdId;

use crate::device;
use crate::guard::{guarded, null, returned};
use crate::object::{self, Kind, User, Users};

/// The library's part of a protection domain, or of a parent domain.
pub(crate) struct Domain {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: PdId,
    /// Objects that were created in it.
    pub(crate) users: Users,
    /// The parts of a parent domain.
    parts: Option<(User, Option<User>)>,
}

impl Kind for Domain {
    type Public = ibv_pd;
    const MARK: u64 = 0x6c68_5f64_6f6d_6169;
}

/// A program's promise to use some objects from one thread only. It has no effect, since the engine
/// has its own lock.
struct ThreadDomain {
    users: Users,
}

impl Kind for ThreadDomain {
    type Public = ibv_td;
    const MARK: u64 = 0x6c68_7468_7264_6f6d;
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { device::context(context) }) else { return null(libc::EINVAL) };
        match ours.engine.with_quietly(|rnic| rnic.alloc_pd()).and_then(|pd| Ok(pd?)) {
            Ok(id) => {
                let engine = Arc::clone(&ours.engine);
                let domain = Domain { engine, id, users: Users::default(), parts: None };
                object::create(ibv_pd { context, handle: id.0 }, domain)
            }
            Err(error) => null(error.errno()),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(domain) = (unsafe { object::resolve::<Domain>(pd) }) else {
            return returned(libc::EINVAL);
        };
        if domain.users.count() > 0 {
            return returned(libc::EBUSY);
        }
        if domain.parts.is_none() {
            let freed = domain.engine.with_quietly(|rnic| rnic.dealloc_pd(domain.id));
            if let Err(error) = freed.and_then(|done| Ok(done?)) {
                return returned(error.errno());
            }
        }
        // SAFETY: live, and the program destroys it.
        unsafe { object::destroy::<Domain>(pd) };
        0
    })
}

pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(_), Some(attr)) = (unsafe { (device::context(context), attr.as_ref()) }) else {
            return null(libc::EINVAL);
        };
        if attr.comp_mask != 0 {
            return null(libc::EINVAL);
        }
        object::create(ibv_td { context }, ThreadDomain { users: Users::default() })
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        match unsafe { object::resolve::<ThreadDomain>(td) } {
            None => returned(libc::EINVAL),
            Some(ours) if ours.users.count() > 0 => returned(libc::EBUSY),
            Some(_) => {
                // SAFETY: live, and the program destroys it.
                unsafe { object::destroy::<ThreadDomain>(td) };
                0
            }
        }
    })
}

/// Custom allocators are accepted but never called: they are for memory of a provider's queues,
/// which are elsewhere here.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(_), Some(attr)) = (unsafe { (device::context(context), attr.as_ref()) }) else {
            return null(libc::EINVAL);
        };
        let allocators = attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        if attr.comp_mask & !KNOWN != 0
            || (allocators && (attr.alloc.is_none() || attr.free.is_none()))
        {
            return null(libc::EINVAL);
        }
        // SAFETY: as above.
        let Some(domain) = (unsafe { object::resolve::<Domain>(attr.pd) }) else {
            return null(libc::EINVAL);
        };
        let thread = if attr.td.is_null() {
            None
        } else {
            // SAFETY: as above.
            match unsafe { object::resolve::<ThreadDomain>(attr.td) } {
                Some(thread) => Some(thread.users.join()),
                None => return null(libc::EINVAL),
            }
        };
        let parts = Some((domain.users.join(), thread));
        let engine = Arc::clone(&domain.engine);
        let parent = Domain { engine, id: domain.id, users: Users::default(), parts };
        object::create(ibv_pd { context, handle: domain.id.0 }, parent)
    })
}
