//! Endpoints: identifiers created from an address in one call, and listeners that wait for
//! requests.

use std::ffi::c_int;
use std::ptr;

use longhaul_abi_defs::{
    RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, RDMA_OPTION_IB,
    RDMA_OPTION_IB_PATH, ibv_context, ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_addrinfo,
    rdma_cm_id, rdma_port_space,
};

use super::event::{acknowledge_before, complete, rdma_get_cm_event};
use super::id::{self, rdma_destroy_id};
use super::name::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::option;
use super::queues::{rdma_create_qp, rdma_destroy_qp, rdma_destroy_srq};
use crate::device;
use crate::guard::{guarded, minus_one, null};

/// Creates the identifier of an endpoint, of the kind that the address requests.
fn identifier(res: &rdma_addrinfo) -> Result<*mut rdma_cm_id, c_int> {
    let space = rdma_port_space(res.ai_port_space as u32);
    let kind = match res.ai_qp_type {
        0 => id::implied(space),
        given => ibv_qp_type(given as u32),
    };
    let made = id::create(ptr::null_mut(), ptr::null_mut(), space, kind)?;
    // SAFETY: just created.
    if let Some(ours) = unsafe { id::resolve(made) } {
        ours.lock().typed = true;
    }
    Ok(made)
}

/// Resolves the address and route of an active endpoint, and creates its queue pair. `false` with
/// `errno` set.
///
/// It blocks, and may be cancelled while it does: it then holds nothing that needs dropping.
///
/// # Safety
/// `made` is live; the other pointers are null or valid.
unsafe extern "C-unwind" fn prepare_active(
    made: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> bool {
    // SAFETY: passed on to the caller.
    unsafe {
        if rdma_resolve_addr(made, (*res).ai_src_addr, (*res).ai_dst_addr, 0) != 0 {
            return false;
        }
        let routed = if (*res).ai_route_len > 0 {
            let set = guarded(-1, || {
                let Some(ours) = id::resolve(made) else { return minus_one(libc::EINVAL) };
                let (route, len) = ((*res).ai_route, (*res).ai_route_len);
                option::set(made, ours, (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH), route, len)
                    .map_or_else(minus_one, |()| 0)
            });
            if set == 0 { complete(made) } else { set }
        } else {
            rdma_resolve_route(made, 0)
        };
        if routed != 0 {
            return false;
        }
        if !attr.is_null() {
            (*attr).qp_type = (*made).qp_type;
            if rdma_create_qp(made, pd, attr) != 0 {
                return false;
            }
        }
    }
    true
}

/// Binds a passive endpoint, and keeps the attributes for its connections' queue pairs.
///
/// # Safety
/// As [`prepare_active`].
unsafe fn prepare_passive(
    made: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> bool {
    // SAFETY: passed on to the caller.
    unsafe {
        if rdma_bind_addr(made, (*res).ai_src_addr) != 0 {
            return false;
        }
        if !pd.is_null() {
            (*made).pd = pd;
        }
        if let (Some(attr), Some(ours)) = (attr.as_ref(), id::resolve(made)) {
            ours.lock().qp_init_attr = Some(ibv_qp_init_attr { qp_type: (*made).qp_type, ..*attr });
        }
    }
    true
}

/// Ends [`rdma_create_ep`]: gives the endpoint to the program, or destroys it.
///
/// # Safety
/// As [`prepare_active`].
unsafe fn hand_out(
    out: *mut *mut rdma_cm_id,
    made: *mut rdma_cm_id,
    res: *const rdma_addrinfo,
    prepared: bool,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        if !prepared {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
            rdma_destroy_ep(made);
            return minus_one(errno);
        }
        if (*res).ai_flags & RAI_PASSIVE == 0
            && (*res).ai_connect_len > 0
            && !(*res).ai_connect.is_null()
            && let Some(ours) = id::resolve(made)
        {
            let data =
                std::slice::from_raw_parts((*res).ai_connect.cast::<u8>(), (*res).ai_connect_len);
            ours.lock().connect_data = data.to_vec();
        }
        out.write(made);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_create_ep(
    out: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let made = guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointers, null or valid.
        match unsafe { res.as_ref() } {
            Some(res) if !out.is_null() => identifier(res).unwrap_or_else(null),
            _ => null(libc::EINVAL),
        }
    });
    if made.is_null() {
        return -1;
    }
    // SAFETY: just created; the program's other pointers are null or valid.
    unsafe {
        let prepared = if (*res).ai_flags & RAI_PASSIVE != 0 {
            guarded(false, || prepare_passive(made, res, pd, attr))
        } else {
            prepare_active(made, res, pd, attr)
        };
        guarded(-1, || hand_out(out, made, res, prepared))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program's pointer, checked as far as possible.
    guarded((), || unsafe {
        if id::resolve(id).is_some() {
            if !(*id).qp.is_null() {
                rdma_destroy_qp(id);
            }
            rdma_destroy_srq(id);
            rdma_destroy_id(id);
        }
    });
}

/// Gives the identifier of a request to the program, with a queue pair if `rdma_create_ep` was
/// given its attributes.
///
/// # Safety
/// `listen` is live and `event` an event of it; `out` has room for a pointer.
unsafe fn take_request(
    listen: *mut rdma_cm_id,
    event: *mut longhaul_abi_defs::rdma_cm_event,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        let Some(ours) = id::resolve(listen) else { return minus_one(libc::EINVAL) };
        let errno = match ((*event).event, (*event).status) {
            (RDMA_CM_EVENT_REJECTED, _) => libc::ECONNREFUSED,
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => 0,
            (_, 0) => libc::EINVAL,
            (_, status) => status.abs(),
        };
        if errno != 0 {
            (*listen).event = event;
            return minus_one(errno);
        }
        let template = ours.lock().qp_init_attr;
        if let Some(mut attr) = template
            && rdma_create_qp((*event).id, (*listen).pd, &raw mut attr) != 0
        {
            (*listen).event = event;
            return -1;
        }
        out.write((*event).id);
        (*(*event).id).event = event;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    out: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the program's pointers, checked as far as possible.
    unsafe {
        let ready = guarded(-1, || {
            let is_sync = id::resolve(listen).is_some() && id::is_sync(listen);
            if !is_sync || out.is_null() {
                return minus_one(libc::EINVAL);
            }
            acknowledge_before(listen);
            0
        });
        let mut event = ptr::null_mut();
        if ready != 0 || rdma_get_cm_event((*listen).channel, &raw mut event) != 0 {
            return -1;
        }
        guarded(-1, || take_request(listen, event, out))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    guarded(ptr::null_mut(), || {
        // SAFETY: calloc of two pointers; the caller gives null or room for a count.
        unsafe {
            if !count.is_null() {
                count.write(0);
            }
            let context = match device::shared_context() {
                Ok(context) => context,
                Err(errno) => return null(errno),
            };
            let list = libc::calloc(2, size_of::<*mut ibv_context>()).cast::<*mut ibv_context>();
            if list.is_null() {
                return null(libc::ENOMEM);
            }
            list.write(context);
            if !count.is_null() {
                count.write(1);
            }
            list
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list came from calloc in rdma_get_devices.
    unsafe { libc::free(list.cast()) };
}
