//! Multicast groups of datagram identifiers.
//!
//! RoCE has no subnet manager: joining a group yields its address immediately, derived from the IP
//! address alone, and the queue pair is attached to the group when the event is read.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_QPT_UD, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_MC_JOIN_FLAG_RESERVED, RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_UDP_QKEY, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_ud_param,
};
use longhaul_rdma::Happening;

use super::event::complete;
use super::id::{self, Id, IdState, Peer};
use super::name::{self, Local, raise};
use crate::address::{gid_of, ibv_attach_mcast, ibv_detach_mcast, public_address};
use crate::guard::{guarded, minus_one};
use crate::object::Acknowledgements;

/// QPN of multicast packets.
const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// A group that an identifier has joined.
pub(super) struct Membership {
    number: u64,
    address: SocketAddr,
    context: usize,
    sends_only: bool,
    attached: bool,
    /// Of the event that reports it.
    events: Arc<Acknowledgements>,
}

/// Contents of a membership's event.
pub(super) struct Joined {
    pub param: rdma_ud_param,
    /// 0 or a negative errno value.
    pub status: c_int,
    /// The acknowledgement counts for this besides the identifier.
    pub events: Arc<Acknowledgements>,
}

/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn join(
    id: *mut rdma_cm_id,
    ours: &Id,
    address: SocketAddr,
    sends_only: bool,
    context: *mut c_void,
) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    let known = unsafe { !(*id).verbs.is_null() && (*id).qp_type == IBV_QPT_UD };
    let group = address.ip();
    if !known
        || id::engine()?.attach().addresses.towards(group).is_none()
        || !(group.is_multicast() || group.is_unspecified())
    {
        return Err(libc::EINVAL);
    }
    let mut state = ours.lock();
    state.memberships_made += 1;
    let number = state.memberships_made;
    state.memberships.push(Membership {
        number,
        address,
        context: context as usize,
        sends_only,
        attached: false,
        events: Arc::default(),
    });
    // SAFETY: passed on to the caller.
    unsafe { raise(id, Local::Joined(number), 0) }
}

/// Reports a membership, and attaches the identifier's queue pair to the group. `None` if the
/// program has left the group meanwhile.
///
/// # Safety
/// `id` is live and `ours` is its own.
pub(super) unsafe fn joined(id: *mut rdma_cm_id, ours: &Id, number: u64) -> Option<Joined> {
    let engine = id::engine().ok()?;
    let mut state = ours.lock();
    let traffic_class = state.traffic_class;
    let membership = state.memberships.iter_mut().find(|membership| membership.number == number)?;
    let group = membership.address.ip();
    let mut status = 0;
    // SAFETY: passed on to the caller.
    unsafe {
        let qp = (*id).qp;
        if !qp.is_null() && !membership.sends_only {
            let gid = gid_of(group);
            status = -ibv_attach_mcast(qp, &raw const gid, 0);
            membership.attached = status == 0;
        }
    }
    membership.events.give();
    let mut param = rdma_ud_param::zeroed();
    param.private_data = membership.context as *const c_void;
    param.ah_attr =
        public_address(engine.attach(), &Peer::datagram(group, traffic_class).address());
    param.qp_num = MULTICAST_QPN;
    param.qkey = RDMA_UDP_QKEY;
    Some(Joined { param, status, events: Arc::clone(&membership.events) })
}

/// Leaves a group; waits until the event that reported it has been acknowledged.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn leave(id: *mut rdma_cm_id, ours: &Id, address: SocketAddr) -> Result<(), c_int> {
    let membership = take(&mut ours.lock(), address).ok_or(libc::EADDRNOTAVAIL)?;
    // SAFETY: passed on to the caller.
    unsafe {
        if membership.attached && !(*id).qp.is_null() {
            let group = gid_of(address.ip());
            ibv_detach_mcast((*id).qp, &raw const group, 0);
        }
        if let Some(queue) = id::queue_of(id) {
            queue.retain(|event| {
                let told = matches!(event.what, Happening::Local { code, value, .. }
                    if Local::decode(code, value) == Some(Local::Joined(membership.number)));
                !(told && event.cookie == id as u64)
            });
        }
    }
    membership.events.settle();
    Ok(())
}

/// Detaches the identifier's queue pair from all groups: an attached one cannot be destroyed.
///
/// # Safety
/// `id` is live and `ours` is its own.
pub(super) unsafe fn detach_all(id: *mut rdma_cm_id, ours: &Id) {
    for membership in ours.lock().memberships.iter_mut().filter(|membership| membership.attached) {
        membership.attached = false;
        let group = gid_of(membership.address.ip());
        // SAFETY: passed on to the caller; a null queue pair is refused.
        unsafe { ibv_detach_mcast((*id).qp, &raw const group, 0) };
    }
}

fn take(state: &mut IdState, address: SocketAddr) -> Option<Membership> {
    let at = state.memberships.iter().position(|membership| membership.address == address)?;
    Some(state.memberships.remove(at))
}

/// Joins a group on behalf of the program.
unsafe fn enter(
    id: *mut rdma_cm_id,
    address: *const libc::sockaddr,
    sends_only: bool,
    context: *mut c_void,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(address)) = (unsafe { (id::resolve(id), name::read(address)) })
        else {
            return minus_one(libc::EINVAL);
        };
        // SAFETY: a live identifier.
        unsafe { join(id, ours, address, sends_only, context) }.map_or_else(minus_one, |()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let begun = enter(id, address, false, context);
        if begun == 0 { complete(id) } else { begun }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program's pointer, null or valid.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return minus_one(libc::EINVAL) };
    let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    if attr.comp_mask != both || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED.0 {
        return minus_one(libc::EINVAL);
    }
    let sends_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;

    // SAFETY: passed on.
    unsafe {
        let begun = enter(id, attr.addr, sends_only, context);
        if begun == 0 { complete(id) } else { begun }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    address: *mut libc::sockaddr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(address)) = (unsafe { (id::resolve(id), name::read(address)) })
        else {
            return minus_one(libc::EINVAL);
        };
        // SAFETY: a live identifier.
        unsafe { leave(id, ours, address) }.map_or_else(minus_one, |()| 0)
    })
}
