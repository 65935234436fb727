//! Queues of identifiers: queue pairs, completion queues and shared receive queues that
//! `rdma_create_qp` and `rdma_create_srq` create.

use std::ffi::c_int;
use std::ptr;

use longhaul_abi_defs::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_UD, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC, ibv_cq, ibv_pd,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id,
};

use super::id::{self, Id};
use super::{attributes, multicast};
use crate::completion::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::guard::{guarded, minus_one};
use crate::queue_pair::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp};
use crate::shared_queue::{ibv_create_srq, ibv_destroy_srq};

/// The errno of the last call, which failed.
fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM)
}

/// Moves the identifier's queue pair to a state, with the attributes that follow from the
/// connection.
///
/// # Safety
/// `id` is live and has a queue pair.
unsafe fn step(id: *mut rdma_cm_id, ours: &Id, state: ibv_qp_state) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    unsafe {
        let (mut attr, mask) =
            attributes::for_state(engine.attach(), &ours.lock(), (*id).qp_type, state)?;
        match ibv_modify_qp((*id).qp, &raw mut attr, mask as c_int) {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}

/// Moves the identifier's queue pair, if it has one, to ready to send.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn make_ready(id: *mut rdma_cm_id, ours: &Id) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        // Again, because the access rights are only known now.
        step(id, ours, IBV_QPS_INIT)?;
        step(id, ours, IBV_QPS_RTR)?;
        step(id, ours, IBV_QPS_RTS)
    }
}

/// Moves the identifier's queue pair, if it has one, to the error state.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn move_to_error(id: *mut rdma_cm_id) {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = IBV_QPS_ERR;
    // SAFETY: passed on to the caller.
    unsafe {
        if !(*id).qp.is_null() {
            ibv_modify_qp((*id).qp, &raw mut attr, IBV_QP_STATE as c_int);
        }
    }
}

/// Creates the completion queues that the program did not provide, each with a channel.
///
/// # Safety
/// `id` is live and bound to the device.
unsafe fn create_queues(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        let context = (*id).verbs;
        for (size, channel, cq) in [
            (recv, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq),
            (send, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq),
        ] {
            if size > 0 {
                *channel = ibv_create_comp_channel(context);
                if (*channel).is_null() {
                    return Err(last_errno());
                }
                *cq = ibv_create_cq(context, size as c_int, id.cast(), *channel, 0);
                if (*cq).is_null() {
                    return Err(last_errno());
                }
            }
        }
    }
    Ok(())
}

/// Destroys the completion queues that were created for the identifier.
///
/// # Safety
/// `id` is live.
unsafe fn destroy_queues(id: *mut rdma_cm_id) {
    // SAFETY: passed on to the caller; the members are null or the identifier's own.
    unsafe {
        for cq in [&mut (*id).recv_cq, &mut (*id).send_cq] {
            let cq = std::mem::replace(cq, ptr::null_mut());
            if !cq.is_null() {
                ibv_destroy_cq(cq);
            }
        }
        for channel in [&mut (*id).recv_cq_channel, &mut (*id).send_cq_channel] {
            let channel = std::mem::replace(channel, ptr::null_mut());
            if !channel.is_null() {
                ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Checks that the identifier accepts a queue pair of this kind. If its port space allows several,
/// and no peer has been told yet, the queue pair decides.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn take_kind(id: *mut rdma_cm_id, ours: &Id, kind: ibv_qp_type) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        if (*id).qp_type == kind {
            return Ok(());
        }
        let state = ours.lock();
        let open = !state.typed && state.connection.is_none() && id::suits((*id).ps, kind);
        if !open {
            return Err(libc::EINVAL);
        }
        (*id).qp_type = kind;
    }
    Ok(())
}

/// Creates the identifier's queue pair, ready to be connected; a datagram one ready to send.
///
/// # Safety
/// `id` is live; `attr` points to as many members as its `comp_mask` says.
unsafe fn create_queue_pair(
    id: *mut rdma_cm_id,
    ours: &Id,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<(), c_int> {
    // SAFETY: passed on to the caller. No reference to the whole structure is made.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        if (*attr).comp_mask & IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
            (*attr).pd = (*id).pd;
        }
        let differ = |mine: *mut ibv_cq, given: *mut ibv_cq| {
            !mine.is_null() && !given.is_null() && mine != given
        };
        if differ((*id).send_cq, (*attr).send_cq) || differ((*id).recv_cq, (*attr).recv_cq) {
            return Err(libc::EINVAL);
        }
        take_kind(id, ours, (*attr).qp_type)?;
        let size = |given: bool, depth: u32| if given { 0 } else { depth };
        let send =
            size(!(*attr).send_cq.is_null() || !(*id).send_cq.is_null(), (*attr).cap.max_send_wr);
        let recv =
            size(!(*attr).recv_cq.is_null() || !(*id).recv_cq.is_null(), (*attr).cap.max_recv_wr);
        let made = create_queues(id, send, recv).and_then(|()| {
            for (to, own) in [
                (&raw mut (*attr).send_cq, (*id).send_cq),
                (&raw mut (*attr).recv_cq, (*id).recv_cq),
            ] {
                if (*to).is_null() {
                    *to = own;
                }
            }
            // A program that posts on one side only gives one queue; the device needs two.
            if (*attr).recv_cq.is_null() {
                (*attr).recv_cq = (*attr).send_cq;
            } else if (*attr).send_cq.is_null() {
                (*attr).send_cq = (*attr).recv_cq;
            }
            if (*attr).srq.is_null() {
                (*attr).srq = (*id).srq;
            }
            let qp = create_qp_ex((*id).verbs, attr);
            if qp.is_null() {
                return Err(last_errno());
            }
            (*id).qp = qp;
            initialize(id, ours).inspect_err(|_| {
                ibv_destroy_qp(qp);
                (*id).qp = ptr::null_mut();
            })
        });
        match made {
            Ok(()) => (*id).pd = (*(*id).qp).pd,
            Err(errno) => {
                destroy_queues(id);
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Moves a new queue pair to the state in which librdmacm returns it: initialized, or ready to send
/// for datagrams.
///
/// # Safety
/// `id` is live and has a queue pair.
unsafe fn initialize(id: *mut rdma_cm_id, ours: &Id) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        step(id, ours, IBV_QPS_INIT)?;
        if (*id).qp_type == IBV_QPT_UD {
            for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
                let (mut attr, mask) = attributes::datagram_step(state);
                match ibv_modify_qp((*id).qp, &raw mut attr, mask as c_int) {
                    0 => {}
                    errno => return Err(errno),
                }
            }
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        if attr.is_null() {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: a live identifier; the program says with its mask what is there.
        unsafe { create_queue_pair(id, ours, attr) }.map_or_else(minus_one, |()| 0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(attr)) = (unsafe { (id::resolve(id), attr.as_mut()) }) else {
            return minus_one(libc::EINVAL);
        };
        let mut extended = ibv_qp_init_attr_ex {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            ..ibv_qp_init_attr_ex::zeroed()
        };
        // SAFETY: a live identifier and a whole structure.
        match unsafe { create_queue_pair(id, ours, &raw mut extended) } {
            Ok(()) => {
                attr.send_cq = extended.send_cq;
                attr.recv_cq = extended.recv_cq;
                attr.srq = extended.srq;
                attr.cap = extended.cap;
                0
            }
            Err(errno) => minus_one(errno),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        unsafe {
            if let Some(ours) = id::resolve(id) {
                multicast::detach_all(id, ours);
                let qp = std::mem::replace(&mut (*id).qp, ptr::null_mut());
                if !qp.is_null() {
                    ibv_destroy_qp(qp);
                }
                destroy_queues(id);
            }
        }
    });
}

/// Creates the identifier's shared receive queue, the default of its queue pair.
///
/// # Safety
/// `id` is live.
unsafe fn create_shared(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_srq_init_attr,
) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        let pd = if pd.is_null() { (*id).pd } else { pd };
        if pd.is_null() || !(*id).srq.is_null() {
            return Err(libc::EINVAL);
        }
        let srq = ibv_create_srq(pd, attr);
        if srq.is_null() {
            return Err(last_errno());
        }
        (*id).srq = srq;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        unsafe {
            let (Some(_), Some(attr)) = (id::resolve(id), attr.as_mut()) else {
                return minus_one(libc::EINVAL);
            };
            create_shared(id, pd, attr).map_or_else(minus_one, |()| 0)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible; the mask says which members
        // of the structure are there, so that no reference to the whole is made.
        unsafe {
            if id::resolve(id).is_none() || attr.is_null() {
                return minus_one(libc::EINVAL);
            }
            let mask = (*attr).comp_mask;
            if mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
                return minus_one(libc::EINVAL);
            }
            if (*attr).srq_type != IBV_SRQT_BASIC {
                return minus_one(libc::EOPNOTSUPP);
            }
            let pd = if mask & IBV_SRQ_INIT_ATTR_PD == 0 { ptr::null_mut() } else { (*attr).pd };
            // The extended structure starts like the plain one.
            match create_shared(id, pd, &mut *attr.cast::<ibv_srq_init_attr>()) {
                Ok(()) => 0,
                Err(errno) => minus_one(errno),
            }
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the program's pointer, checked as far as possible.
        unsafe {
            if id::resolve(id).is_some() && !(*id).srq.is_null() && ibv_destroy_srq((*id).srq) == 0
            {
                (*id).srq = ptr::null_mut();
            }
        }
    });
}
