//! `rdma_set_option`.

use std::ffi::{c_int, c_void};

use longhaul_abi_defs::{
    IBV_PATH_FLAG_BIDIRECTIONAL, IBV_PATH_FLAG_GMP, IBV_PATH_FLAG_PRIMARY, IBV_QPT_UD,
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
    RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, ibv_path_data, rdma_cm_id,
};

use super::id::{self, Id, Resolved};
use super::name::{Local, raise};
use crate::guard::{guarded, minus_one};

/// Maximum code of an ACK timeout.
const ACK_TIMEOUT_MAX: u8 = 31;

/// Sets an option of the identifier. Errors are the kernel's.
fn of_identifier(id: *mut rdma_cm_id, ours: &Id, name: c_int, value: &[u8]) -> Result<(), c_int> {
    let mut state = ours.lock();
    let byte = || if let [byte] = value { Ok(*byte) } else { Err(libc::EINVAL) };
    let flag = || -> Result<bool, c_int> {
        let number = value.try_into().map_err(|_| libc::EINVAL)?;
        Ok(c_int::from_ne_bytes(number) != 0)
    };
    match name {
        RDMA_OPTION_ID_TOS => state.traffic_class = byte()?,
        RDMA_OPTION_ID_ACK_TIMEOUT => {
            let code = byte()?;
            // SAFETY: a live identifier.
            if code > ACK_TIMEOUT_MAX || unsafe { (*id).qp_type } == IBV_QPT_UD {
                return Err(libc::EINVAL);
            }
            state.ack_timeout = Some(code);
        }
        RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY if state.local_port != 0 => {
            return Err(libc::EINVAL);
        }
        RDMA_OPTION_ID_REUSEADDR => state.sharing.reuse = flag()?,
        RDMA_OPTION_ID_AFONLY => state.sharing.one_family = flag()?,
        _ => return Err(libc::ENOSYS),
    }
    Ok(())
}

/// Adopts the program's path instead of a resolved one; of several, the one for all purposes.
/// Fields without meaning on RoCE are ignored.
///
/// # Safety
/// `id` is live.
unsafe fn take_path(id: *mut rdma_cm_id, ours: &Id, value: &[u8]) -> Result<(), c_int> {
    let wanted = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
    let paths = value.chunks_exact(size_of::<ibv_path_data>());
    if !paths.remainder().is_empty() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the structure has this many bytes, and all bit patterns are valid.
    let mut paths =
        paths.map(|bytes| unsafe { bytes.as_ptr().cast::<ibv_path_data>().read_unaligned() });
    let path = paths.find(|path| path.flags == wanted).ok_or(libc::EINVAL)?.path;
    let mut state = ours.lock();
    if state.resolved != Resolved::Address {
        return Err(libc::EINVAL);
    }
    // SAFETY: passed on to the caller; the path is made by the first call.
    unsafe {
        id::set_path(id)?;
        let record = &mut *(*id).route.path_rec;
        record.traffic_class = path.tclass;
        record.packet_life_time = path.packetlifetime & 0x3f;
        record.flow_label =
            longhaul_abi_defs::__be32::new(path.flowlabel_hoplimit.get() >> 8 & 0x000f_ffff);
        state.traffic_class = path.tclass;
        state.resolved = Resolved::Route;
        raise(id, Local::RouteResolved, 0)
    }
}

/// Sets an option.
///
/// # Safety
/// `id` is live, and `value` points to `len` bytes or is null.
pub(super) unsafe fn set(
    id: *mut rdma_cm_id,
    ours: &Id,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: usize,
) -> Result<(), c_int> {
    if value.is_null() || len == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
    match (level, name) {
        (RDMA_OPTION_ID, _) => of_identifier(id, ours, name, value),
        // SAFETY: passed on to the caller.
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => unsafe { take_path(id, ours, value) },
        _ => Err(libc::ENOSYS),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier; the program's value.
        unsafe { set(id, ours, (level, name), value, len) }.map_or_else(minus_one, |()| 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_abi_defs::{IBV_QPT_RC, RDMA_PS_TCP};

    #[test]
    fn lengths_and_ranges_are_held_to() {
        let public = rdma_cm_id { ps: RDMA_PS_TCP, qp_type: IBV_QPT_RC, ..rdma_cm_id::zeroed() };
        let id = id::make(public, false);
        // SAFETY: live, and freed once.
        unsafe {
            let ours = id::resolve(id).unwrap();
            let option = move |name, value: &[u8]| {
                set(id, ours, (RDMA_OPTION_ID, name), value.as_ptr().cast(), value.len())
            };
            assert_eq!(option(RDMA_OPTION_ID_TOS, &[0x68]), Ok(()));
            assert_eq!(option(RDMA_OPTION_ID_TOS, &[0x68, 0]), Err(libc::EINVAL));
            assert_eq!(option(RDMA_OPTION_ID_ACK_TIMEOUT, &[31]), Ok(()));
            assert_eq!(option(RDMA_OPTION_ID_ACK_TIMEOUT, &[32]), Err(libc::EINVAL));
            assert_eq!(option(RDMA_OPTION_ID_REUSEADDR, &[1, 0, 0, 0]), Ok(()));
            assert_eq!(option(RDMA_OPTION_ID_AFONLY, &[1]), Err(libc::EINVAL));
            assert_eq!(option(99, &[1]), Err(libc::ENOSYS));
            assert_eq!(ours.lock().traffic_class, 0x68);
            assert_eq!(ours.lock().ack_timeout, Some(31));
            assert!(ours.lock().sharing.reuse);
            (*id).qp_type = IBV_QPT_UD;
            assert_eq!(option(RDMA_OPTION_ID_ACK_TIMEOUT, &[10]), Err(libc::EINVAL));
            id::destroy(id);
        }
    }
}
