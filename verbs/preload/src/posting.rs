//! Posting work requests: the path that programs take per message.

use std::ffi::c_int;

use longhaul_abi_defs::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_IP_CSUM, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, ibv_ah, ibv_qp, ibv_recv_wr,
    ibv_send_wr, ibv_sge,
};
use longhaul_rdma::{Engine, ProcessMemory, errno_of_post};
use longhaul_rnic::{Destination, PostError, QpKind, RecvWr, Rnic, SGE_MAX, SendOp, SendWr, Sge};
use longhaul_units::{LKey, Qpn, RKey};

use crate::address::AddressHandle;
use crate::guard::{guarded, returned};
use crate::object;
use crate::queue_pair::queue_pair;
use crate::trace;

/// Copies a scatter/gather list; `None` if it is too long or missing.
///
/// # Safety
/// `list` points to `count` elements.
#[inline]
unsafe fn segments(list: *const ibv_sge, count: c_int, out: &mut [Sge; SGE_MAX]) -> Option<&[Sge]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= SGE_MAX)?;
    if count > 0 && list.is_null() {
        return None;
    }
    for (index, to) in out[..count].iter_mut().enumerate() {
        // SAFETY: the caller guarantees `count` elements.
        let from = unsafe { &*list.add(index) };
        *to = Sge { address: from.addr, len: from.length, lkey: LKey(from.lkey) };
    }
    Some(&out[..count])
}

/// Destination of a datagram, or the errno that refuses it.
///
/// # Safety
/// `ah` is null or points to readable memory.
#[inline]
pub(crate) unsafe fn destination(
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) -> Result<Destination, c_int> {
    // SAFETY: the program's pointer, checked as far as possible.
    let handle = unsafe { object::resolve::<AddressHandle>(ah) }.ok_or(libc::EINVAL)?;
    Ok(Destination { ah: handle.id, qpn: Qpn::new(qpn & Qpn::MAX), qkey })
}

/// The operation of a work request, or the errno that refuses it.
///
/// # Safety
/// The members that the opcode defines are readable.
#[inline]
unsafe fn operation(kind: QpKind, wr: &ibv_send_wr) -> Result<SendOp, c_int> {
    // SAFETY: the caller guarantees the members of this opcode; all of them are plain integers.
    unsafe {
        let immediate = || Some(wr.imm.imm_data.memory().to_ne_bytes());
        if kind == QpKind::Ud {
            let immediate = match wr.opcode {
                IBV_WR_SEND => None,
                IBV_WR_SEND_WITH_IMM => immediate(),
                _ => return Err(libc::EINVAL),
            };
            let ud = wr.wr.ud;
            let destination = destination(ud.ah, ud.remote_qpn, ud.remote_qkey)?;
            return Ok(SendOp::Datagram { destination, immediate });
        }
        let (remote_address, rkey) = (wr.wr.rdma.remote_addr, RKey(wr.wr.rdma.rkey));
        Ok(match wr.opcode {
            IBV_WR_RDMA_WRITE => SendOp::Write { remote_address, rkey, immediate: None },
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                SendOp::Write { remote_address, rkey, immediate: immediate() }
            }
            IBV_WR_SEND => SendOp::Send { immediate: None, invalidate: None },
            IBV_WR_SEND_WITH_IMM => SendOp::Send { immediate: immediate(), invalidate: None },
            IBV_WR_SEND_WITH_INV => {
                SendOp::Send { immediate: None, invalidate: Some(RKey(wr.imm.invalidate_rkey)) }
            }
            IBV_WR_RDMA_READ => SendOp::Read { remote_address, rkey },
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CmpSwap {
                remote_address: wr.wr.atomic.remote_addr,
                rkey: RKey(wr.wr.atomic.rkey),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
                remote_address: wr.wr.atomic.remote_addr,
                rkey: RKey(wr.wr.atomic.rkey),
                add: wr.wr.atomic.compare_add,
            },
            // Memory windows, local keys, segmentation: this device has none of them.
            IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_TSO | IBV_WR_ATOMIC_WRITE => {
                return Err(libc::EOPNOTSUPP);
            }
            _ => return Err(libc::EINVAL),
        })
    }
}

/// Reports the first request that was not posted, and the errno.
///
/// # Safety
/// `bad` is null or has space for a pointer.
pub(crate) unsafe fn refuse<W>(bad: *mut *mut W, wr: *mut W, errno: c_int) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bad.write(wr) };
    }
    returned(errno)
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller provides space for a pointer, or none.
        let refuse = |wr, errno| unsafe { refuse(bad, wr, errno) };
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue_pair(qp) }) else {
            return refuse(first, libc::EINVAL);
        };
        let mut wr = first;
        let posted = ours.engine.with(|rnic, now| {
            let mut list = [Sge::default(); SGE_MAX];
            // SAFETY: the program gives a list of work requests that ends with a null pointer.
            while let Some(request) = unsafe { wr.as_ref() } {
                // SAFETY: as above.
                let op = unsafe { operation(ours.kind, request) }?;
                // SAFETY: as above.
                let segments = unsafe { segments(request.sg_list, request.num_sge, &mut list) }
                    .ok_or(libc::EINVAL)?;
                let flags = request.send_flags;
                if flags & IBV_SEND_IP_CSUM != 0 {
                    // For devices that support it, unlike this one.
                    return Err(libc::EINVAL);
                }
                let send = SendWr {
                    wr_id: request.wr_id,
                    op,
                    segments,
                    inline: flags & IBV_SEND_INLINE != 0,
                    signaled: flags & IBV_SEND_SIGNALED != 0,
                    solicited: flags & IBV_SEND_SOLICITED != 0,
                    fence: flags & IBV_SEND_FENCE != 0,
                };
                rnic.post_send(now, ours.qpn, &send).map_err(|error| errno_of_post(&error))?;
                trace::posted(&send);
                wr = request.next;
            }
            Ok(())
        });
        match posted {
            Ok(Ok(())) => 0,
            Ok(Err(errno)) => refuse(wr, errno),
            Err(error) => refuse(first, error.errno()),
        }
    })
}

/// Posts a list of receive work requests, each by `post`.
///
/// # Safety
/// `first` starts a list that ends with a null pointer; `bad` is null or has space for a pointer.
#[inline]
pub(crate) unsafe fn post_receives(
    engine: &Engine,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    post: impl Fn(&mut Rnic<ProcessMemory>, &RecvWr<'_>) -> Result<(), PostError>,
) -> c_int {
    let mut wr = first;
    let posted = engine.with_quietly(|rnic| {
        let mut list = [Sge::default(); SGE_MAX];
        // SAFETY: the program gives a list of work requests that ends with a null pointer.
        while let Some(request) = unsafe { wr.as_ref() } {
            // SAFETY: as above.
            let segments = unsafe { segments(request.sg_list, request.num_sge, &mut list) }
                .ok_or(libc::EINVAL)?;
            let receive = RecvWr { wr_id: request.wr_id, segments };
            post(rnic, &receive).map_err(|error| errno_of_post(&error))?;
            wr = request.next;
        }
        Ok(())
    });
    let (wr, errno) = match posted {
        Ok(Ok(())) => return 0,
        Ok(Err(errno)) => (wr, errno),
        Err(error) => (first, error.errno()),
    };
    // SAFETY: passed on to the caller.
    unsafe { refuse(bad, wr, errno) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        match unsafe { queue_pair(qp) } {
            // SAFETY: the program gives a list of work requests, and room for a pointer or none.
            Some(ours) => unsafe {
                post_receives(&ours.engine, first, bad, |rnic, receive| {
                    rnic.post_recv(ours.qpn, receive)
                })
            },
            // SAFETY: as above.
            None => unsafe { refuse(bad, first, libc::EINVAL) },
        }
    })
}
