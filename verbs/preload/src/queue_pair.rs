//! Queue pairs: creation, state and attributes.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use longhaul_abi_defs::{
    IBV_QP_AV, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV,
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
    IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
    IBV_QP_INIT_ATTR_XRCD, IBV_QP_RATE_LIMIT, IBV_QP_STATE, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV,
    IBV_QPT_XRC_SEND, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr, ibv_qp_state, ibv_qp_type,
};
use longhaul_rdma::{AsyncEvent, AsyncSink, Engine, EventQueue};
use longhaul_rnic::{QpAttr, QpInfo, QpInit, QpKind, QpState, RateLimit};
use longhaul_units::Qpn;

use crate::completion::queue;
use crate::device::{self, QUEUE_DEPTH_MAX};
use crate::domain::Domain;
use crate::guard::{guarded, null, returned};
use crate::object::{self, Acknowledgements, Kind, User};
use crate::qp_attributes::{attributes, capacities, limit_of_static_rate, public_attributes};
use crate::shared_queue::SharedQueue;
use crate::work_builder::{self, WorkBuilder};

/// Minimum inline bytes of a queue pair per entry of its scatter/gather list.
const INLINE_PER_ENTRY: u32 = 16;

/// The library's part of a queue pair.
pub(crate) struct QueuePair {
    pub(crate) engine: Arc<Engine>,
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpKind,
    /// The operations that the program requested for the builder interface; `None` if it requested
    /// no such interface.
    pub(crate) send_ops: Option<u64>,
    context_events: Arc<EventQueue<AsyncEvent>>,
    /// In kbit/s, as the program set it.
    rate_limit: AtomicU32,
    /// Code of the rate in the address vector, which takes effect when the queue pair becomes ready
    /// to send.
    static_rate: AtomicU8,
    pub(crate) async_events: Acknowledgements,
    pub(crate) work_builder: WorkBuilder,
    _domain: User,
}

impl Kind for QueuePair {
    /// Every queue pair has space for the builder interface, which starts like the plain one.
    type Public = ibv_qp_ex;
    const MARK: u64 = 0x6c68_5f71_7061_6972;
}

/// The library's part of the queue pair that a program's pointer refers to.
///
/// # Safety
/// As [`object::resolve`].
#[inline]
pub(crate) unsafe fn queue_pair<'a>(qp: *mut ibv_qp) -> Option<&'a QueuePair> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<QueuePair>(qp.cast()) }
}

fn kind_of(kind: ibv_qp_type) -> Result<QpKind, c_int> {
    match kind {
        IBV_QPT_RC => Ok(QpKind::Rc),
        IBV_QPT_UC => Ok(QpKind::Uc),
        IBV_QPT_UD => Ok(QpKind::Ud),
        IBV_QPT_RAW_PACKET | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV | IBV_QPT_DRIVER => {
            Err(libc::EOPNOTSUPP)
        }
        _ => Err(libc::EINVAL),
    }
}

/// The operations that the builder supports for a queue pair, as bits `IBV_QP_EX_WITH_*`.
pub(crate) const fn operations_of(kind: QpKind) -> u64 {
    const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    match kind {
        QpKind::Ud => SENDS,
        QpKind::Uc => SENDS | WRITES,
        QpKind::Rc => {
            SENDS
                | WRITES
                | IBV_QP_EX_WITH_SEND_WITH_INV
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        }
    }
}

/// The device's initial attributes of a queue pair, or the errno that refuses it.
///
/// # Safety
/// `pd` and the queues named by `attr` are null or point to readable memory.
unsafe fn initial<'a>(
    pd: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<(&'a Domain, QpInit), c_int> {
    // SAFETY: the program's pointers, checked as far as possible.
    let (domain, send_cq, recv_cq) = unsafe {
        (
            object::resolve::<Domain>(pd).ok_or(libc::EINVAL)?,
            queue(attr.send_cq).ok_or(libc::EINVAL)?,
            queue(attr.recv_cq).ok_or(libc::EINVAL)?,
        )
    };
    let shared = if attr.srq.is_null() {
        None
    } else {
        // SAFETY: as above.
        Some(unsafe { object::resolve::<SharedQueue>(attr.srq) }.ok_or(libc::EINVAL)?)
    };
    let engine = &domain.engine;
    // Objects from before a fork belong to another device.
    let all_of_one = Arc::ptr_eq(engine, &send_cq.engine)
        && Arc::ptr_eq(engine, &recv_cq.engine)
        && shared.is_none_or(|shared| Arc::ptr_eq(engine, &shared.engine));
    let kind = kind_of(attr.qp_type)?;
    let too_deep = attr.cap.max_send_wr.max(attr.cap.max_recv_wr) > QUEUE_DEPTH_MAX;
    if !all_of_one || too_deep {
        return Err(libc::EINVAL);
    }
    if send_ops.is_some_and(|ops| ops & !operations_of(kind) != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    let init = QpInit {
        pd: domain.id,
        kind,
        send_cq: send_cq.id,
        recv_cq: recv_cq.id,
        srq: shared.map(|shared| shared.id),
        sq_depth: attr.cap.max_send_wr.max(1),
        rq_depth: if shared.is_some() { 0 } else { attr.cap.max_recv_wr },
        send_sge_max: attr.cap.max_send_sge.max(1),
        recv_sge_max: if shared.is_some() { 1 } else { attr.cap.max_recv_sge.max(1) },
        // Rounded up like by kernel devices: programs send a few bytes inline without a request for
        // it.
        inline_max: attr
            .cap
            .max_inline_data
            .max(INLINE_PER_ENTRY.saturating_mul(attr.cap.max_send_sge)),
        signal_all: attr.sq_sig_all != 0,
    };
    Ok((domain, init))
}

/// Creates a queue pair, and writes the granted capacities into `attr`.
///
/// # Safety
/// `pd` and the queues named by `attr` are null or point to readable memory.
unsafe fn create(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    send_ops: Option<u64>,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: passed on to the caller.
    let (domain, init) = unsafe { initial(pd, attr, send_ops) }?;
    let engine = &domain.engine;
    // SAFETY: a live protection domain, and the context of it.
    let (context, events) = unsafe {
        let context = (*pd).context;
        (
            context,
            device::context(context).map(|ours| Arc::clone(&ours.events)).ok_or(libc::EINVAL)?,
        )
    };
    let nameless = AsyncSink { asynchronous: Arc::clone(&events), cookie: 0 };
    let qpn = engine.create_qp(&init, nameless).map_err(|error| error.errno())?;
    attr.cap = capacities(&info_of(engine, qpn)?.init);
    let mut public = ibv_qp_ex::zeroed();
    public.qp_base = ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: qpn.get(),
        qp_num: qpn.get(),
        state: IBV_QPS_RESET,
        qp_type: attr.qp_type,
        ..ibv_qp::zeroed()
    };
    let part = QueuePair {
        engine: Arc::clone(engine),
        qpn,
        kind: init.kind,
        send_ops,
        context_events: Arc::clone(&events),
        rate_limit: AtomicU32::new(0),
        static_rate: AtomicU8::new(0),
        async_events: Acknowledgements::default(),
        work_builder: WorkBuilder::default(),
        _domain: domain.users.join(),
    };
    let qp = object::create(public, part);
    // SAFETY: just created.
    unsafe { work_builder::equip(qp, &attr.cap) };
    let sink = AsyncSink { asynchronous: events, cookie: qp as u64 };
    engine.set_qp_sink(qpn, sink).map_err(|error| error.errno())?;
    Ok(qp.cast())
}

/// Removes the completions of a queue pair that is reset or destroyed from its queues, as far as
/// they have left the device.
///
/// # Safety
/// As [`object::resolve`].
unsafe fn forget_completions(queues: [*mut ibv_cq; 2], qpn: Qpn) {
    for cq in queues {
        // SAFETY: passed on to the caller.
        if let Some(part) = unsafe { queue(cq) } {
            part.iteration.forget(qpn.get());
        }
    }
}

fn info_of(engine: &Engine, qpn: Qpn) -> Result<QpInfo, c_int> {
    let info = engine.with_quietly(|rnic| rnic.query_qp(qpn)).and_then(|info| Ok(info?));
    info.map_err(|error| error.errno())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer.
        let Some(attr) = (unsafe { attr.as_mut() }) else { return null(libc::EINVAL) };
        // SAFETY: passed on.
        unsafe { create(pd, attr, None) }.unwrap_or_else(null)
    })
}

/// Extended attributes with a meaning here.
const TAKEN: u32 =
    IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
/// Extended attributes of features that this device lacks: XRC, segmentation, receive hashing.
const FOREIGN: u32 = IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    | IBV_QP_INIT_ATTR_IND_TABLE
    | IBV_QP_INIT_ATTR_RX_HASH;

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointers. Older programs pass less than the whole structure, so
        // that no reference to it is made; comp_mask says which members are there.
        unsafe {
            if attr.is_null() || device::context(context).is_none() {
                return null(libc::EINVAL);
            }
            let mask = (*attr).comp_mask;
            if mask & FOREIGN != 0 {
                return null(libc::EOPNOTSUPP);
            }
            if mask & !TAKEN != 0 || mask & IBV_QP_INIT_ATTR_PD == 0 {
                return null(libc::EINVAL);
            }
            if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*attr).create_flags != 0 {
                return null(libc::EOPNOTSUPP);
            }
            let asks = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
            let send_ops = if asks { Some((*attr).send_ops_flags) } else { None };
            // The extended structure starts like the plain one.
            create((*attr).pd, &mut *attr.cast::<ibv_qp_init_attr>(), send_ops).unwrap_or_else(null)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// Adds the limit of the address vector's rate, on the transition to "ready to send" and when the
/// vector changes later, unless the program sets a limit in the same call.
fn with_static_rate(
    mut wanted: QpAttr,
    ours: &QueuePair,
    from: ibv_qp_state,
    attr: &ibv_qp_attr,
    mask: c_uint,
) -> Result<QpAttr, c_int> {
    let has_address = mask & IBV_QP_AV != 0;
    let fresh =
        if has_address { Some(limit_of_static_rate(attr.ah_attr.static_rate)?) } else { None };
    if wanted.rate_limit.is_some() {
        return Ok(wanted);
    }
    match wanted.state {
        Some(QpState::ReadyToSend) if from == IBV_QPS_RTR => {
            let limit = limit_of_static_rate(ours.static_rate.load(Ordering::Relaxed))?;
            wanted.rate_limit = limit.map(Some);
        }
        None | Some(QpState::SendQueueDrained) => wanted.rate_limit = fresh,
        _ => {}
    }
    Ok(wanted)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(attr)) = (unsafe { (queue_pair(qp), attr.as_ref()) }) else {
            return returned(libc::EINVAL);
        };
        let mask = mask as c_uint;
        // SAFETY: a live queue pair.
        let state = unsafe { (*qp).state };
        let wanted = attributes(attr, mask, state, ours.engine.attach());
        let wanted =
            match wanted.and_then(|wanted| with_static_rate(wanted, ours, state, attr, mask)) {
                Ok(wanted) => wanted,
                Err(errno) => return returned(errno),
            };
        if let Err(error) = ours.engine.modify_qp(ours.qpn, &wanted) {
            return returned(error.errno());
        }
        if mask & IBV_QP_AV != 0 {
            ours.static_rate.store(attr.ah_attr.static_rate, Ordering::Relaxed);
        }
        if mask & IBV_QP_STATE != 0 {
            // SAFETY: as above.
            unsafe { (*qp).state = attr.qp_state };
            if attr.qp_state == IBV_QPS_RESET {
                // SAFETY: a live queue pair, which its completion queues outlive.
                unsafe { forget_completions([(*qp).send_cq, (*qp).recv_cq], ours.qpn) };
                ours.rate_limit.store(0, Ordering::Relaxed);
                ours.static_rate.store(0, Ordering::Relaxed);
            }
        }
        if mask & IBV_QP_RATE_LIMIT != 0 {
            ours.rate_limit.store(attr.rate_limit, Ordering::Relaxed);
        }
        0
    })
}

pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(attr)) = (unsafe { (queue_pair(qp), attr.as_ref()) }) else {
            return returned(libc::EINVAL);
        };
        let shapes_bursts = attr.max_burst_sz != 0 || attr.typical_pkt_sz != 0;
        if attr.comp_mask != 0 || (shapes_bursts && attr.rate_limit == 0) {
            return returned(libc::EINVAL);
        }
        let limit = RateLimit::from_verbs(attr.rate_limit, attr.max_burst_sz, attr.typical_pkt_sz);
        let wanted = QpAttr { rate_limit: Some(limit), ..QpAttr::default() };
        if let Err(error) = ours.engine.modify_qp(ours.qpn, &wanted) {
            return returned(error.errno());
        }
        ours.rate_limit.store(attr.rate_limit, Ordering::Relaxed);
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue_pair(qp) }) else { return returned(libc::EINVAL) };
        let info = match info_of(&ours.engine, ours.qpn) {
            Ok(info) => info,
            Err(errno) => return returned(errno),
        };
        // SAFETY: a live queue pair; the caller provides space for the requested attributes.
        unsafe {
            (*qp).state = ibv_qp_state(info.state as u32);
            if !attr.is_null() {
                let mut found = public_attributes(
                    ours.engine.attach(),
                    &info,
                    ours.rate_limit.load(Ordering::Relaxed),
                );
                found.ah_attr.static_rate = ours.static_rate.load(Ordering::Relaxed);
                attr.write(found);
            }
            if !init_attr.is_null() {
                init_attr.write(ibv_qp_init_attr {
                    qp_context: (*qp).qp_context,
                    send_cq: (*qp).send_cq,
                    recv_cq: (*qp).recv_cq,
                    srq: (*qp).srq,
                    cap: capacities(&info.init),
                    qp_type: (*qp).qp_type,
                    sq_sig_all: info.init.signal_all.into(),
                });
            }
        }
        0
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { queue_pair(qp) }) else { return returned(libc::EINVAL) };
        if let Err(error) = ours.engine.destroy_qp(ours.qpn) {
            return returned(error.errno());
        }
        // SAFETY: a live queue pair; the program does not give its completion queues up at the same
        // time.
        unsafe { forget_completions([(*qp).send_cq, (*qp).recv_cq], ours.qpn) };
        let mine = qp as u64;
        ours.context_events
            .retain(|event| !matches!(event, AsyncEvent::Qp { cookie, .. } if *cookie == mine));
        ours.async_events.settle();
        // SAFETY: live, and the program destroys it.
        unsafe { object::destroy::<QueuePair>(qp.cast()) };
        0
    })
}
