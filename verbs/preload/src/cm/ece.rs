//! Enhanced connection establishment: options that two adapters of one vendor negotiate. This
//! device has none: a program's options are ignored, and the peer's are never reported.

use std::ffi::c_int;

use longhaul_abi_defs::{ibv_ece, rdma_cm_id};

use super::id;
use crate::guard::{guarded, minus_one};

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        unsafe {
            let (Some(_), Some(ece)) = (id::resolve(id), ece.as_ref()) else {
                return minus_one(libc::EINVAL);
            };
            if !(*id).qp.is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
                return minus_one(libc::EINVAL);
            }
        }
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        unsafe {
            if id::resolve(id).is_none() || ece.is_null() || !(*id).qp.is_null() {
                return minus_one(libc::EINVAL);
            }
            ece.write(ibv_ece::zeroed());
        }
        0
    })
}
