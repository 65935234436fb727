//! Shared receive queues.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};
use longhaul_rdma::{AsyncEvent, AsyncSink, Engine, EventQueue};
use longhaul_rnic::{SrqId, SrqInit};

use crate::device;
use crate::domain::Domain;
use crate::guard::{guarded, null, returned};
use crate::object::{self, Acknowledgements, Kind, User};
use crate::posting::{post_receives, refuse};

/// The library's part of a shared receive queue.
pub(crate) struct SharedQueue {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: SrqId,
    context_events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) async_events: Acknowledgements,
    _domain: User,
}

impl Kind for SharedQueue {
    type Public = ibv_srq;
    const MARK: u64 = 0x6c68_5f73_7271_5f5f;
}

/// Creates a shared receive queue, and writes the granted capacities into `init`. Its limit is
/// ignored, as the manual page says.
///
/// # Safety
/// `pd` is null or points to readable memory.
unsafe fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: the program's pointer, checked as far as possible.
    let domain = unsafe { object::resolve::<Domain>(pd) }.ok_or(libc::EINVAL)?;
    // SAFETY: a live protection domain, and the context of it.
    let (context, events) = unsafe {
        let context = (*pd).context;
        (
            context,
            device::context(context).map(|ours| Arc::clone(&ours.events)).ok_or(libc::EINVAL)?,
        )
    };
    let engine = &domain.engine;
    let wanted =
        SrqInit { pd: domain.id, depth: init.attr.max_wr, sge_max: init.attr.max_sge, limit: 0 };
    let id = engine.create_srq(&wanted).map_err(|error| error.errno())?;
    let granted = engine.with_quietly(|rnic| rnic.query_srq(id)).and_then(|granted| Ok(granted?));
    let granted = granted.map_err(|error| error.errno())?;
    init.attr.max_wr = granted.depth;
    init.attr.max_sge = granted.sge_max;
    let public =
        ibv_srq { context, srq_context: init.srq_context, pd, handle: id.0, ..ibv_srq::zeroed() };
    let kind = SharedQueue {
        engine: Arc::clone(engine),
        id,
        context_events: Arc::clone(&events),
        async_events: Acknowledgements::default(),
        _domain: domain.users.join(),
    };
    let srq = object::create(public, kind);
    let sink = AsyncSink { asynchronous: events, cookie: srq as u64 };
    engine.set_srq_sink(id, sink).map_err(|error| error.errno())?;
    Ok(srq)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    guarded(ptr::null_mut(), || {
        // SAFETY: the program's pointer.
        let Some(init) = (unsafe { init.as_mut() }) else { return null(libc::EINVAL) };
        // SAFETY: passed on.
        unsafe { create(pd, init) }.unwrap_or_else(null)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointers, checked as far as possible.
        let (Some(ours), Some(attr)) =
            (unsafe { (object::resolve::<SharedQueue>(srq), attr.as_ref()) })
        else {
            return returned(libc::EINVAL);
        };
        let mask = mask as c_uint;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return returned(libc::EINVAL);
        }
        let depth = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        let modified = ours.engine.with_quietly(|rnic| rnic.modify_srq(ours.id, depth, limit));
        modified.and_then(|done| Ok(done?)).map_or_else(|error| returned(error.errno()), |()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let ours = unsafe { object::resolve::<SharedQueue>(srq) }.filter(|_| !attr.is_null());
        let Some(ours) = ours else { return returned(libc::EINVAL) };
        match ours.engine.with_quietly(|rnic| rnic.query_srq(ours.id)).and_then(|found| Ok(found?))
        {
            Ok(found) => {
                let (max_wr, max_sge, srq_limit) = (found.depth, found.sge_max, found.limit);
                // SAFETY: the caller provides space for the structure.
                unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit }) };
                0
            }
            Err(error) => returned(error.errno()),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { object::resolve::<SharedQueue>(srq) }) else {
            return returned(libc::EINVAL);
        };
        if let Err(error) = ours.engine.destroy_srq(ours.id) {
            return returned(error.errno());
        }
        let cookie = srq as u64;
        ours.context_events.retain(|event| *event != AsyncEvent::SrqLimitReached { cookie });
        ours.async_events.settle();
        // SAFETY: live, and the program destroys it.
        unsafe { object::destroy::<SharedQueue>(srq) };
        0
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        match unsafe { object::resolve::<SharedQueue>(srq) } {
            // SAFETY: the program gives a list of work requests, and room for a pointer or none.
            Some(ours) => unsafe {
                post_receives(&ours.engine, first, bad, |rnic, receive| {
                    rnic.post_srq_recv(ours.id, receive)
                })
            },
            // SAFETY: as above.
            None => unsafe { refuse(bad, first, libc::EINVAL) },
        }
    })
}
