//! Connections: listen, connect, accept, disconnect.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use longhaul_abi_defs::{
    IBV_EVENT_COMM_EST, IBV_QPT_UC, IBV_QPT_UD, RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, rdma_cm_id,
    rdma_conn_param, rdma_port_space,
};
use longhaul_cm::{Accept, ConnectRequest, RdmaCmHeader, RejectReason, ServiceId, Transport};
use longhaul_rdma::{Engine, RdmaError};
use longhaul_units::{Psn, Qpn};

use super::event::complete;
use super::id::{self, Id, IdState, Peer, Resolved};
use super::queues::{make_ready, move_to_error};
use super::{datagram, name};
use crate::address::HOP_LIMIT_DEFAULT;
use crate::guard::{guarded, minus_one};

/// Waiting requests of a listener without a backlog of its own. Further ones are dropped, and their
/// senders retry a second later, so this must hold the thousands that arrive at once in large jobs.
const BACKLOG_DEFAULT: usize = 16_384;
/// Maximum private data of an accepting program, in bytes.
const ACCEPT_DATA_MAX: usize = 196;

/// The service id of a port.
pub(super) fn service_of(space: rdma_port_space, port: u16) -> u64 {
    // Port spaces have 16 bits.
    ServiceId::of(space.0 as u16, port)
}

/// Active side, after the peer's reply: moves the queue pair to ready, then tells the peer.
///
/// # Safety
/// `id` is live and `ours` is its own.
pub(super) unsafe fn established(id: *mut rdma_cm_id, ours: &Id) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    let ready = unsafe { make_ready(id, ours) };
    let connection = ours.lock().connection.ok_or(libc::EINVAL)?;
    let engine = id::engine()?;
    let told = ready.and_then(|()| engine.ready_to_use(connection).map_err(|error| error.errno()));
    if told.is_ok() {
        ours.lock().was_established = true;
    } else {
        // SAFETY: passed on to the caller.
        unsafe { move_to_error(id) };
    }
    told
}

/// Listens. Binds an unbound identifier to a free port on every address.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn listen(id: *mut rdma_cm_id, ours: &Id, backlog: c_int) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (sink, space) = unsafe { (id::sink_of(id).ok_or(libc::EINVAL)?, (*id).ps) };
    let mut state = ours.lock();
    if state.listen.is_some() || state.connection.is_some() || state.resolved != Resolved::Nothing {
        return Err(libc::EINVAL);
    }
    if state.local_port == 0 {
        let any = match engine.attach().ip_addr() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        // SAFETY: passed on to the caller.
        unsafe { name::bind(id, &mut state, SocketAddr::new(any, 0)) }?;
    }
    if let Some(claim) = &state.claim {
        claim.listen()?;
    }
    let service = service_of(space, state.local_port);
    let backlog =
        usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG_DEFAULT);
    let listen = engine.listen(service, backlog, sink);
    state.listen = Some(listen.map_err(|error| error.errno())?);
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        unsafe { listen(id, ours, backlog) }.map_or_else(minus_one, |()| 0)
    })
}

/// The private data of a call: that of the identifier, then that of the call.
///
/// # Safety
/// `param` is null or valid, and its data is as long as it says.
pub(super) unsafe fn private_data(state: &mut IdState, param: *const rdma_conn_param) -> Vec<u8> {
    let mut data = std::mem::take(&mut state.connect_data);
    // SAFETY: passed on to the caller.
    unsafe {
        if let Some(param) = param.as_ref()
            && !param.private_data.is_null()
        {
            let len = usize::from(param.private_data_len);
            data.extend_from_slice(std::slice::from_raw_parts(
                param.private_data.cast::<u8>(),
                len,
            ));
        }
    }
    data
}

/// Stores the READ depths that the active side requests; `limit` is the device's.
fn set_read_depths(
    state: &mut IdState,
    given: Option<&rdma_conn_param>,
    limit: u8,
) -> Result<(), c_int> {
    let asked = given.map(|p| p.initiator_depth);
    state.initiator_depth = depth(asked, RDMA_MAX_INIT_DEPTH, limit, limit)?;
    let asked = given.map(|p| p.responder_resources);
    state.responder_resources = depth(asked, RDMA_MAX_RESP_RES, limit, limit)?;
    Ok(())
}

/// Depth of outstanding READs: the program's value, bounded by the device, or `default` if the
/// program requests the maximum.
fn depth(asked: Option<u8>, as_much: u8, default: u8, limit: u8) -> Result<u8, c_int> {
    match asked {
        Some(value) if value != as_much => {
            if value > limit {
                return Err(libc::EINVAL);
            }
            Ok(value)
        }
        _ => Ok(default.min(limit)),
    }
}

/// # Safety
/// `id` is live; `param` is null or valid.
unsafe fn connect(
    id: *mut rdma_cm_id,
    ours: &Id,
    param: *const rdma_conn_param,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (given, destination, sink, kind, space) = unsafe {
        let destination =
            name::read((&raw const (*id).route.addr.dst).cast()).ok_or(libc::EINVAL)?;
        let sink = id::sink_of(id).ok_or(libc::EINVAL)?;
        (param.as_ref(), destination, sink, (*id).qp_type, (*id).ps)
    };
    let mut state = ours.lock();
    if state.resolved != Resolved::Route || state.connection.is_some() {
        return Err(libc::EINVAL);
    }
    if kind == IBV_QPT_UD {
        // SAFETY: passed on to the caller.
        return unsafe { datagram::connect(id, &mut state, param, destination, sink) };
    }
    // SAFETY: passed on to the caller.
    let (local_qpn, srq) = unsafe { queue_pair_of(id, given)? };
    set_read_depths(&mut state, given, engine.attach().read_depth)?;
    state.psn = engine.fresh_psn().get();
    let timeout = state.ack_timeout.unwrap_or(engine.attach().cm_ack_timeout);
    let retry_count = given.map_or(7, |p| p.retry_count.min(7));
    let mtu_code = crate::device::mtu_code(engine.attach());
    state.peer = Some(Peer {
        ip: destination.ip(),
        qpn: 0,
        psn: 0,
        mtu_code,
        timeout,
        retry_count,
        rnr_retry_count: 7,
        traffic_class: state.traffic_class,
    });
    // SAFETY: passed on to the caller.
    let user_data = unsafe { private_data(&mut state, param) };
    let data = header(&engine, state.local_port, destination)
        .with_user_data(&user_data)
        .ok_or(libc::EINVAL)?;
    let request = ConnectRequest {
        destination_ip: destination.ip(),
        source_ip: engine.attach().source_for(destination.ip()),
        service_id: service_of(space, destination.port()),
        transport: if kind == IBV_QPT_UC { Transport::Uc } else { Transport::Rc },
        local_qpn: Qpn::new(local_qpn),
        starting_psn: Psn::new(state.psn),
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        flow_control: given.is_some_and(|p| p.flow_control != 0),
        retry_count,
        rnr_retry_count: given.map_or(7, |p| p.rnr_retry_count.min(7)),
        path_mtu_code: mtu_code,
        local_ack_timeout: timeout,
        srq,
        traffic_class: state.traffic_class,
        hop_limit: HOP_LIMIT_DEFAULT,
        flow_label: 0,
        private_data: &data,
    };
    // The identifier stays locked until it is bound: `event::translate` waits for that.
    let connection = engine.connect(&request, sink).map_err(|error| error.errno())?;
    state.connection = Some(connection);
    id::bind_connection(connection, id);
    Ok(())
}

/// Number of the identifier's queue pair, and whether that has a shared receive queue. For a queue
/// pair of its own, the program provides both.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn queue_pair_of(
    id: *mut rdma_cm_id,
    given: Option<&rdma_conn_param>,
) -> Result<(u32, bool), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            given.map(|param| (param.qp_num, param.srq != 0)).ok_or(libc::EINVAL)
        } else {
            Ok(((*qp).qp_num, !(*qp).srq.is_null()))
        }
    }
}

pub(super) fn header(engine: &Engine, source_port: u16, destination: SocketAddr) -> RdmaCmHeader {
    let source = engine.attach().source_for(destination.ip());
    RdmaCmHeader { source_port, source, destination: destination.ip() }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    let begun = guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        unsafe { connect(id, ours, param) }.map_or_else(minus_one, |()| 0)
    });
    // SAFETY: passed on.
    if begun == 0 { unsafe { complete(id) } } else { begun }
}

/// # Safety
/// `id` is live; `param` is null or valid.
unsafe fn accept(
    id: *mut rdma_cm_id,
    ours: &Id,
    param: *const rdma_conn_param,
) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (given, local_qpn, srq) = unsafe {
        let given = param.as_ref();
        let (qpn, srq) = queue_pair_of(id, given)?;
        (given, qpn, srq)
    };
    let limit = engine.attach().read_depth;
    let (connection, data, psn, initiator_depth, responder_resources) = {
        let mut state = ours.lock();
        let connection = state.connection.filter(|_| state.passive).ok_or(libc::EINVAL)?;
        let (offered, wanted) = (state.initiator_depth, state.responder_resources);
        state.initiator_depth =
            depth(given.map(|p| p.initiator_depth), RDMA_MAX_INIT_DEPTH, offered, limit)?;
        state.responder_resources =
            depth(given.map(|p| p.responder_resources), RDMA_MAX_RESP_RES, wanted, limit)?;
        state.psn = engine.fresh_psn().get();
        // SAFETY: passed on to the caller.
        let data = unsafe { private_data(&mut state, param) };
        (connection, data, state.psn, state.initiator_depth, state.responder_resources)
    };
    if data.len() > ACCEPT_DATA_MAX {
        return Err(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    unsafe { make_ready(id, ours) }?;
    let answer = Accept {
        local_qpn: Qpn::new(local_qpn),
        starting_psn: Psn::new(psn),
        responder_resources,
        initiator_depth,
        flow_control: given.is_some_and(|p| p.flow_control != 0),
        rnr_retry_count: given.map_or(7, |p| p.rnr_retry_count.min(7)),
        srq,
        private_data: &data,
    };
    engine.accept(connection, &answer).map_err(|error| {
        // SAFETY: passed on to the caller.
        unsafe { move_to_error(id) };
        error.errno()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    let mut datagrams = false;
    let begun = guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        let accepted = unsafe {
            datagrams = (*id).qp_type == IBV_QPT_UD;
            if datagrams { datagram::accept(id, ours, param) } else { accept(id, ours, param) }
        };
        accepted.map_or_else(minus_one, |()| 0)
    });
    // Nothing follows where a datagram service was named.
    // SAFETY: passed on.
    if begun == 0 && !datagrams { unsafe { complete(id) } } else { begun }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        unsafe {
            if !(*id).qp.is_null() {
                return minus_one(libc::EINVAL);
            }
            established(id, ours).map_or_else(minus_one, |()| 0)
        }
    })
}

unsafe fn refuse(id: *mut rdma_cm_id, data: *const c_void, len: u8, reason: RejectReason) -> c_int {
    // SAFETY: the program's pointer, checked as far as possible.
    let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
    let data = if data.is_null() {
        &[]
    } else {
        // SAFETY: the caller gives `len` bytes.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }
    };
    // SAFETY: a live identifier.
    let refused = if unsafe { (*id).qp_type } == IBV_QPT_UD {
        datagram::reject(ours, data)
    } else {
        reject(ours, reason, data)
    };
    refused.map_or_else(minus_one, |()| 0)
}

fn reject(ours: &Id, reason: RejectReason, data: &[u8]) -> Result<(), c_int> {
    let connection = ours.lock().connection.ok_or(libc::EINVAL)?;
    id::engine()?.reject(connection, reason, data).map_err(|error| error.errno())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: passed on.
    guarded(-1, || unsafe { refuse(id, data, len, RejectReason::CONSUMER) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // "Vendor option not supported".
    // SAFETY: passed on.
    guarded(-1, || unsafe { refuse(id, data, len, RejectReason(35)) })
}

/// Ends a connection. `false` if it has already ended, so that no event follows.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn disconnect(id: *mut rdma_cm_id, ours: &Id) -> Result<bool, c_int> {
    // SAFETY: passed on to the caller.
    unsafe { move_to_error(id) };
    let (connection, request, was_established) = {
        let state = ours.lock();
        (state.connection, state.request, state.was_established)
    };
    let Some(connection) = connection.filter(|_| request.is_none()) else {
        // It has ended, or is in time-wait; or it is a datagram service, which has no end.
        return if was_established { Ok(false) } else { Err(libc::EINVAL) };
    };
    match id::engine()?.disconnect(connection) {
        Ok(()) => Ok(true),
        Err(RdmaError::Call(_)) if was_established => Ok(false),
        Err(error) => Err(error.errno()),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let mut follows = false;
    let begun = guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        match unsafe { disconnect(id, ours) } {
            Ok(ends) => {
                follows = ends;
                0
            }
            Err(errno) => minus_one(errno),
        }
    });
    // SAFETY: passed on.
    if begun == 0 && follows { unsafe { complete(id) } } else { begun }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { id::resolve(id) }) else { return minus_one(libc::EINVAL) };
        if ours.lock().connection.is_none() || event != IBV_EVENT_COMM_EST.0 {
            return minus_one(libc::EINVAL);
        }
        // Data that arrives before the RTU counts as the RTU, without the program's help.
        0
    })
}
