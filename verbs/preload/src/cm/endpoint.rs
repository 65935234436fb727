//! Endpoints: identifiers made from an address in one call, and listeners that wait for requests.

use std::ffi::c_int;
use std::ptr;

use longhaul_abi_defs::{
    IBV_QPT_RC, RAI_PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_REJECTED, ibv_context, ibv_pd,
    ibv_qp_init_attr, rdma_addrinfo, rdma_cm_id, rdma_port_space,
};

use super::connect::{rdma_create_qp, rdma_destroy_qp};
use super::event::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::{self, Id, rdma_destroy_id};
use super::name::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::device;
use crate::guard::{guarded, minus_one, null};
use crate::object;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_ep(
    out: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, null or valid.
        let Some(res) = (unsafe { res.as_ref() }) else { return minus_one(libc::EINVAL) };
        if out.is_null() || res.ai_qp_type != IBV_QPT_RC.0 as c_int {
            return minus_one(if out.is_null() { libc::EINVAL } else { libc::EOPNOTSUPP });
        }
        let space = rdma_port_space(res.ai_port_space as u32);
        let made = match id::create(ptr::null_mut(), ptr::null_mut(), space, IBV_QPT_RC) {
            Ok(made) => made,
            Err(errno) => return minus_one(errno),
        };
        // SAFETY: just made; the program's other pointers are null or valid.
        unsafe {
            let failed = if res.ai_flags & RAI_PASSIVE != 0 {
                rdma_bind_addr(made, res.ai_src_addr) != 0
            } else {
                rdma_resolve_addr(made, res.ai_src_addr, res.ai_dst_addr, 2000) != 0
                    || rdma_resolve_route(made, 2000) != 0
            };
            let attr_given = attr.as_mut();
            let failed = failed
                || match attr_given {
                    None => false,
                    Some(attr) if res.ai_flags & RAI_PASSIVE == 0 => {
                        attr.qp_type = IBV_QPT_RC;
                        rdma_create_qp(made, pd, attr) != 0
                    }
                    Some(attr) => {
                        // For the connections that the listener will get.
                        if let Some(ours) = object::resolve::<Id>(made) {
                            attr.qp_type = IBV_QPT_RC;
                            ours.lock().qp_init_attr = Some(*attr);
                        }
                        if !pd.is_null() {
                            (*made).pd = pd;
                        }
                        false
                    }
                };
            if failed {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
                rdma_destroy_id(made);
                return minus_one(errno);
            }
            if let Some(ours) = object::resolve::<Id>(made)
                && !res.ai_connect.is_null()
            {
                let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
                ours.lock().connect_data = data.to_vec();
            }
            out.write(made);
        }
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the program's pointer, checked as far as that goes.
    guarded((), || unsafe {
        if object::resolve::<Id>(id).is_some() {
            if !(*id).qp.is_null() {
                rdma_destroy_qp(id);
            }
            rdma_destroy_id(id);
        }
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, out: *mut *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        unsafe {
            let Some(ours) = object::resolve::<Id>(listen).filter(|ours| ours.sync && !out.is_null()) else {
                return minus_one(libc::EINVAL);
            };
            let before = std::mem::replace(&mut (*listen).event, ptr::null_mut());
            if !before.is_null() {
                rdma_ack_cm_event(before);
            }
            let mut event = ptr::null_mut();
            if rdma_get_cm_event((*listen).channel, &raw mut event) != 0 {
                return -1;
            }
            let errno = match (*event).event {
                RDMA_CM_EVENT_REJECTED => libc::ECONNREFUSED,
                RDMA_CM_EVENT_CONNECT_REQUEST => 0,
                _ => libc::EINVAL,
            };
            let template = ours.lock().qp_init_attr;
            let failed = errno != 0
                || template
                    .is_some_and(|mut attr| rdma_create_qp((*event).id, (*listen).pd, &raw mut attr) != 0);
            if failed {
                (*listen).event = event;
                return if errno != 0 { minus_one(errno) } else { -1 };
            }
            out.write((*event).id);
            (*(*event).id).event = event;
        }
        0
    })
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
