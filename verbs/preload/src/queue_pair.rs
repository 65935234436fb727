//! Queue pairs: creation, state and attributes.

use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_MIG_MIGRATED, IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV, IBV_QP_CAP, IBV_QP_CUR_STATE,
    IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_INIT_ATTR_PD, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX,
    IBV_QP_PORT, IBV_QP_QKEY, IBV_QP_RATE_LIMIT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPT_RC, ibv_ah_attr, ibv_context, ibv_gid, ibv_mtu, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_state,
};
use longhaul_rdma::{AsyncEvent, Engine, EventQueue, QpSink};
use longhaul_rnic::{Access, AddressVector, Mtu, QpAttr, QpInfo, QpInit, QpKind, QpState};
use longhaul_units::{Psn, Qpn};
use longhaul_wire::mad::{gid_of_ip, ip_of_gid};

use crate::completion::Queue;
use crate::device::{self, GID_COUNT, PORT};
use crate::guard::{guarded, null, returned};
use crate::memory::Domain;
use crate::object::{self, Acknowledgements, Kind};

/// TTL when the program gives none.
const HOP_LIMIT_DEFAULT: u8 = 64;

/// Our part of a queue pair.
pub(crate) struct QueuePair {
    pub(crate) engine: Arc<Engine>,
    pub(crate) qpn: Qpn,
    context_events: Arc<EventQueue<AsyncEvent>>,
    signal_all: bool,
    cap: ibv_qp_cap,
    pub(crate) async_events: Acknowledgements,
}

impl Kind for QueuePair {
    type Public = ibv_qp;
    const MARK: u64 = 0x6c68_5f71_7061_6972;
}

/// Makes a queue pair, and writes the capacities granted into `attr`.
///
/// # Safety
/// `pd` and the queues named by `attr` are null or point to readable memory.
unsafe fn create(pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the program's pointers, checked as far as that goes.
    let (domain, send_cq, recv_cq) = unsafe {
        (
            object::resolve::<Domain>(pd).ok_or(libc::EINVAL)?,
            object::resolve::<Queue>(attr.send_cq).ok_or(libc::EINVAL)?,
            object::resolve::<Queue>(attr.recv_cq).ok_or(libc::EINVAL)?,
        )
    };
    if attr.qp_type != IBV_QPT_RC || !attr.srq.is_null() {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: a live protection domain.
    let context = unsafe { (*pd).context };
    // SAFETY: the context of a live object.
    let events =
        unsafe { device::context(context) }.map(|ours| Arc::clone(&ours.events)).ok_or(libc::EINVAL)?;
    let init = QpInit {
        pd: domain.id,
        kind: QpKind::Rc,
        send_cq: send_cq.id,
        recv_cq: recv_cq.id,
        sq_depth: attr.cap.max_send_wr.max(1),
        rq_depth: attr.cap.max_recv_wr.max(1),
        send_sge_max: attr.cap.max_send_sge.max(1),
        recv_sge_max: attr.cap.max_recv_sge.max(1),
        inline_max: attr.cap.max_inline_data,
        signal_all: attr.sq_sig_all != 0,
    };
    let engine = &domain.engine;
    let nameless = QpSink { asynchronous: Arc::clone(&events), cookie: 0 };
    let qpn = engine.create_qp(&init, nameless).map_err(|error| error.errno())?;
    attr.cap.max_send_sge = init.send_sge_max;
    attr.cap.max_recv_sge = init.recv_sge_max;
    let public = ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        handle: qpn.get(),
        qp_num: qpn.get(),
        state: IBV_QPS_RESET,
        qp_type: attr.qp_type,
        ..ibv_qp::zeroed()
    };
    let kind = QueuePair {
        engine: Arc::clone(engine),
        qpn,
        context_events: Arc::clone(&events),
        signal_all: init.signal_all,
        cap: attr.cap,
        async_events: Acknowledgements::default(),
    };
    let qp = object::create(public, kind);
    let sink = QpSink { asynchronous: events, cookie: qp as u64 };
    engine.set_qp_sink(qpn, sink).map_err(|error| error.errno())?;
    Ok(qp)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer.
        let Some(attr) = (unsafe { attr.as_mut() }) else { return null(libc::EINVAL) };
        // SAFETY: passed on.
        unsafe { create(pd, attr) }.unwrap_or_else(null)
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer. Older programs pass less than the whole structure, so that no
        // reference to it is made; comp_mask says which members are there.
        unsafe {
            if attr.is_null() {
                return null(libc::EINVAL);
            }
            if (*attr).comp_mask != IBV_QP_INIT_ATTR_PD {
                return null(libc::EOPNOTSUPP);
            }
            // The extended structure begins as the plain one.
            create((*attr).pd, &mut *attr.cast::<ibv_qp_init_attr>()).unwrap_or_else(null)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // Queue pairs have no builder interface; programs then post lists.
    ptr::null_mut()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: c_uint, _flags: u32) -> c_int {
    0
}

fn state_of(state: ibv_qp_state) -> Result<QpState, c_int> {
    Ok(match state {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::ReadyToReceive,
        IBV_QPS_RTS => QpState::ReadyToSend,
        IBV_QPS_SQD => QpState::SendQueueDrained,
        IBV_QPS_ERR => QpState::Error,
        _ => return Err(libc::EINVAL),
    })
}

/// The IP address that a GID stands for.
fn ip_of(gid: &ibv_gid) -> IpAddr {
    ip_of_gid(gid.bytes())
}

fn address_of(attr: &ibv_ah_attr) -> Result<AddressVector, c_int> {
    // RoCE has no addresses but GIDs.
    if attr.is_global == 0 || attr.port_num != PORT || u32::from(attr.grh.sgid_index) >= GID_COUNT {
        return Err(libc::EINVAL);
    }
    Ok(AddressVector {
        destination_ip: ip_of(&attr.grh.dgid),
        hop_limit: if attr.grh.hop_limit == 0 { HOP_LIMIT_DEFAULT } else { attr.grh.hop_limit },
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
    })
}

/// Attributes that this device does not take at all.
const UNSUPPORTED: c_uint = IBV_QP_ALT_PATH | IBV_QP_CAP | IBV_QP_RATE_LIMIT;
/// Attributes that make no difference here.
const IGNORED: c_uint = IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY;

/// What of `attr` the mask selects.
fn attributes(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpAttr, c_int> {
    if mask & UNSUPPORTED != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let migrated = mask & IBV_QP_PATH_MIG_STATE == 0 || attr.path_mig_state == IBV_MIG_MIGRATED;
    if mask & IBV_QP_QKEY != 0 || !migrated {
        return Err(libc::EINVAL);
    }
    let has = |bit: c_uint| mask & bit != 0;
    let psn = |raw: u32| if raw >> 24 == 0 { Ok(Psn::new(raw)) } else { Err(libc::EINVAL) };
    let mut out = QpAttr::default();
    if has(IBV_QP_STATE) {
        out.state = Some(state_of(attr.qp_state)?);
    }
    if has(IBV_QP_PATH_MTU) {
        let code = u8::try_from(attr.path_mtu.0).map_err(|_| libc::EINVAL)?;
        out.path_mtu = Some(Mtu::from_code(code).ok_or(libc::EINVAL)?);
    }
    if has(IBV_QP_AV) {
        out.address = Some(address_of(&attr.ah_attr)?);
    }
    if has(IBV_QP_DEST_QPN) {
        if attr.dest_qp_num > Qpn::MAX {
            return Err(libc::EINVAL);
        }
        out.dest_qpn = Some(Qpn::new(attr.dest_qp_num));
    }
    if has(IBV_QP_RQ_PSN) {
        // Programs draw 32-bit random numbers and expect the device to keep 24 bits.
        out.rq_psn = Some(psn(attr.rq_psn & 0x00ff_ffff)?);
    }
    if has(IBV_QP_SQ_PSN) {
        out.sq_psn = Some(psn(attr.sq_psn & 0x00ff_ffff)?);
    }
    out.access = has(IBV_QP_ACCESS_FLAGS).then_some(Access(attr.qp_access_flags & Access::ALL.0));
    out.max_rd_atomic = has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic);
    out.max_dest_rd_atomic = has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic);
    out.min_rnr_timer = has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer);
    out.timeout = has(IBV_QP_TIMEOUT).then_some(attr.timeout);
    out.retry_cnt = has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt);
    out.rnr_retry = has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry);
    out.pkey_index = has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index);
    out.port = has(IBV_QP_PORT).then_some(attr.port_num);
    let known = IBV_QP_STATE
        | IBV_QP_PATH_MTU
        | IBV_QP_AV
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_SQ_PSN
        | IBV_QP_ACCESS_FLAGS
        | IBV_QP_MAX_QP_RD_ATOMIC
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER
        | IBV_QP_TIMEOUT
        | IBV_QP_RETRY_CNT
        | IBV_QP_RNR_RETRY
        | IBV_QP_PKEY_INDEX
        | IBV_QP_PORT
        | IBV_QP_PATH_MIG_STATE
        | IGNORED;
    if mask & !known != 0 { Err(libc::EINVAL) } else { Ok(out) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        let (Some(ours), Some(attr)) = (unsafe { (object::resolve::<QueuePair>(qp), attr.as_ref()) }) else {
            return returned(libc::EINVAL);
        };
        let wanted = match attributes(attr, mask as c_uint) {
            Ok(wanted) => wanted,
            Err(errno) => return returned(errno),
        };
        if let Err(error) = ours.engine.modify_qp(ours.qpn, &wanted) {
            return returned(error.errno());
        }
        if wanted.state.is_some() {
            // SAFETY: a live queue pair.
            unsafe { (*qp).state = attr.qp_state };
        }
        0
    })
}

fn public_attributes(info: &QpInfo, cap: ibv_qp_cap) -> ibv_qp_attr {
    let mut attr = ibv_qp_attr::zeroed();
    let set = &info.attr;
    attr.qp_state = ibv_qp_state(info.state as u32);
    attr.cur_qp_state = attr.qp_state;
    attr.path_mtu = ibv_mtu(set.path_mtu.map_or(0, |mtu| mtu.code().into()));
    attr.path_mig_state = IBV_MIG_MIGRATED;
    attr.rq_psn = set.rq_psn.unwrap_or_default().get();
    attr.sq_psn = set.sq_psn.unwrap_or_default().get();
    attr.dest_qp_num = set.dest_qpn.unwrap_or_default().get();
    attr.qp_access_flags = set.access.unwrap_or_default().0;
    attr.cap = cap;
    if let Some(address) = set.address {
        attr.ah_attr = public_address(&address);
    }
    attr.max_rd_atomic = set.max_rd_atomic.unwrap_or(0);
    attr.max_dest_rd_atomic = set.max_dest_rd_atomic.unwrap_or(0);
    attr.min_rnr_timer = set.min_rnr_timer.unwrap_or(0);
    attr.port_num = set.port.unwrap_or(0);
    attr.timeout = set.timeout.unwrap_or(0);
    attr.retry_cnt = set.retry_cnt.unwrap_or(0);
    attr.rnr_retry = set.rnr_retry.unwrap_or(0);
    attr
}

/// The address of a peer as programs see it.
pub(crate) fn public_address(address: &AddressVector) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = gid_of(address.destination_ip);
    attr.grh.flow_label = address.flow_label;
    attr.grh.sgid_index = 1;
    attr.grh.hop_limit = address.hop_limit;
    attr.grh.traffic_class = address.traffic_class;
    attr.is_global = 1;
    attr.port_num = PORT;
    attr
}

/// The GID that stands for an IP address.
pub(crate) fn gid_of(ip: IpAddr) -> ibv_gid {
    ibv_gid::from_bytes(gid_of_ip(ip))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else { return returned(libc::EINVAL) };
        let info = match ours.engine.with_quietly(|rnic| rnic.query_qp(ours.qpn)).and_then(|info| Ok(info?)) {
            Ok(info) => info,
            Err(error) => return returned(error.errno()),
        };
        // SAFETY: a live queue pair; the caller gives room for what it wants to know.
        unsafe {
            (*qp).state = ibv_qp_state(info.state as u32);
            if !attr.is_null() {
                attr.write(public_attributes(&info, ours.cap));
            }
            if !init_attr.is_null() {
                init_attr.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: ptr::null_mut(),
                    cap: ours.cap,
                    qp_type: (*qp).qp_type,
                    sq_sig_all: ours.signal_all.into(),
                });
            }
        }
        0
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<QueuePair>(qp) }) else { return returned(libc::EINVAL) };
        if let Err(error) = ours.engine.destroy_qp(ours.qpn) {
            return returned(error.errno());
        }
        let mine = qp as u64;
        ours.context_events
            .retain(|event| !matches!(event, AsyncEvent::Qp { cookie, .. } if *cookie == mine));
        ours.async_events.settle();
        // SAFETY: live, and the program gives it up.
        unsafe { object::destroy::<QueuePair>(qp) };
        0
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_mapped_gid_is_an_ipv4_address() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
        assert_eq!(ip_of(&gid_of(ip)), ip);
        let other = IpAddr::V6("fe80::1".parse().unwrap());
        assert_eq!(ip_of(&gid_of(other)), other);
    }

    #[test]
    fn only_selected_attributes_are_taken() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rq_psn = 0xff00_0001;
        let taken = attributes(&attr, IBV_QP_TIMEOUT | IBV_QP_RQ_PSN).unwrap();
        assert_eq!((taken.timeout, taken.retry_cnt, taken.rq_psn), (Some(14), None, Some(Psn::new(1))));
    }

    #[test]
    fn an_address_without_a_gid_is_refused() {
        let mut attr = ibv_qp_attr::zeroed();
        attr.ah_attr.port_num = PORT;
        assert_eq!(attributes(&attr, IBV_QP_AV), Err(libc::EINVAL));
        attr.ah_attr.is_global = 1;
        assert!(attributes(&attr, IBV_QP_AV).is_ok());
    }

    #[test]
    fn unknown_attributes_are_refused() {
        let attr = ibv_qp_attr::zeroed();
        assert_eq!(attributes(&attr, 1 << 29), Err(libc::EINVAL));
        assert_eq!(attributes(&attr, IBV_QP_ALT_PATH), Err(libc::EOPNOTSUPP));
    }
}
