//! Verbs that this device lacks. Each fails as the real library does on a device without them, and
//! none passes an object of this library to the real one.

use std::ffi::c_int;

use longhaul_abi_defs::{ibv_ah_attr, ibv_context, ibv_dm, ibv_ece, ibv_mr, ibv_pd, ibv_qp};

use crate::guard::{null, returned};

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
