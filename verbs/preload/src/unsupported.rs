//! Verbs that this device does not have. Each fails as the real library does on a device without them, and
//! none reaches the real library with an object that it does not know.

use std::ffi::c_int;

use longhaul_abi_defs::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_dm, ibv_ece, ibv_gid, ibv_grh, ibv_mr, ibv_pd, ibv_qp, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
};

use crate::guard::{minus_one, null, returned};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(_pd: *mut ibv_pd, _attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(_srq: *mut ibv_srq) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(_pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(_ah: *mut ibv_ah) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    returned(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(_fd: c_int) -> *mut ibv_context {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    null(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    returned(libc::EOPNOTSUPP)
}

/// rsockets reach into the insides of the real library's identifiers; a program is told that there are none.
#[unsafe(no_mangle)]
unsafe extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    minus_one(libc::EAFNOSUPPORT)
}
