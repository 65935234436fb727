//! What identifiers of this device cannot do: shared receive queues, multicast, connection options of other
//! vendors. None reaches the real library with an identifier that it does not know.

use std::ffi::{c_int, c_void};

use longhaul_abi_defs::{
    ibv_ece, ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id, rdma_cm_join_mc_attr_ex,
};

use crate::guard::minus_one;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    _id: *mut rdma_cm_id,
    _pd: *mut ibv_pd,
    _attr: *mut ibv_srq_init_attr,
) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(_id: *mut rdma_cm_id, _attr: *mut ibv_srq_init_attr_ex) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_srq(_id: *mut rdma_cm_id) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast(
    _id: *mut rdma_cm_id,
    _address: *mut libc::sockaddr,
    _context: *mut c_void,
) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_join_multicast_ex(
    _id: *mut rdma_cm_id,
    _attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(_id: *mut rdma_cm_id, _address: *mut libc::sockaddr) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(_id: *mut rdma_cm_id, _ece: *mut ibv_ece) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}
