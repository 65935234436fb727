//! Connections: queue pairs of identifiers, listening, connecting, accepting, ending.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use longhaul_abi_defs::{
    IBV_QP_INIT_ATTR_PD, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
    RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_state, rdma_cm_id, rdma_conn_param,
};
use longhaul_cm::{Accept, ConnectRequest, RdmaCmHeader, RejectReason, ServiceId};
use longhaul_rdma::{Engine, RdmaError};
use longhaul_units::{Psn, Qpn};

use super::event::complete;
use super::id::{self, Id, IdState, Peer};
use super::{attributes, name};
use crate::completion::{ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::guard::{guarded, minus_one};
use crate::object;
use crate::queue_pair::{create_qp_ex, ibv_destroy_qp, ibv_modify_qp};

/// TTL of connections.
const HOP_LIMIT: u8 = 64;
/// Most private data that an accepting program can give.
const ACCEPT_DATA_MAX: usize = 196;

/// Moves the identifier's queue pair to a state with the attributes that follow from the connection.
///
/// # Safety
/// `id` is live and has a queue pair.
unsafe fn step(id: *mut rdma_cm_id, ours: &Id, state: ibv_qp_state) -> Result<(), c_int> {
    let (mut attr, mask) = attributes::for_state(&ours.lock(), state)?;
    // SAFETY: passed on to the caller.
    match unsafe { ibv_modify_qp((*id).qp, &raw mut attr, mask as c_int) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Moves the identifier's queue pair, when it has one, to ready to send.
///
/// # Safety
/// `id` is live.
unsafe fn make_ready(id: *mut rdma_cm_id, ours: &Id) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    unsafe {
        if (*id).qp.is_null() {
            return Ok(());
        }
        // Again, because the access rights are known only now.
        step(id, ours, IBV_QPS_INIT)?;
        step(id, ours, IBV_QPS_RTR)?;
        step(id, ours, IBV_QPS_RTS)
    }
}

/// Active side, after the peer's answer: queue pair ready, then the peer is told.
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

/// Moves the identifier's queue pair, when it has one, to the error state.
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

/// Makes the completion queues that the program did not bring, each with a channel.
///
/// # Safety
/// `id` is live and bound to the device.
unsafe fn create_queues(id: *mut rdma_cm_id, send: u32, recv: u32) -> Result<(), c_int> {
    let last = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM);
    // SAFETY: passed on to the caller.
    unsafe {
        if recv > 0 {
            (*id).recv_cq_channel = ibv_create_comp_channel((*id).verbs);
            if (*id).recv_cq_channel.is_null() {
                return Err(last());
            }
            (*id).recv_cq = ibv_create_cq((*id).verbs, recv as c_int, id.cast(), (*id).recv_cq_channel, 0);
            if (*id).recv_cq.is_null() {
                return Err(last());
            }
        }
        if send > 0 {
            (*id).send_cq_channel = ibv_create_comp_channel((*id).verbs);
            if (*id).send_cq_channel.is_null() {
                return Err(last());
            }
            (*id).send_cq = ibv_create_cq((*id).verbs, send as c_int, id.cast(), (*id).send_cq_channel, 0);
            if (*id).send_cq.is_null() {
                return Err(last());
            }
        }
    }
    Ok(())
}

/// Takes the completion queues away that were made for the identifier.
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

/// Makes the identifier's queue pair.
///
/// # Safety
/// `id` is live; `attr` points to as many members as its `comp_mask` says.
unsafe fn create_queue_pair(
    id: *mut rdma_cm_id,
    ours: &Id,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<(), c_int> {
    // SAFETY: passed on to the caller. Members beyond the mask are not touched.
    unsafe {
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        if (*attr).comp_mask & IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= IBV_QP_INIT_ATTR_PD;
            (*attr).pd = (*id).pd;
        }
        let size = |given: bool, depth: u32| if given { 0 } else { depth };
        let send = size(!(*attr).send_cq.is_null() || !(*id).send_cq.is_null(), (*attr).cap.max_send_wr);
        let recv = size(!(*attr).recv_cq.is_null() || !(*id).recv_cq.is_null(), (*attr).cap.max_recv_wr);
        let made = create_queues(id, send, recv).and_then(|()| {
            if (*attr).send_cq.is_null() {
                (*attr).send_cq = (*id).send_cq;
            }
            if (*attr).recv_cq.is_null() {
                (*attr).recv_cq = (*id).recv_cq;
            }
            let qp = create_qp_ex((*id).verbs, attr);
            if qp.is_null() {
                return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM));
            }
            (*id).qp = qp;
            step(id, ours, IBV_QPS_INIT).inspect_err(|_| {
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

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        if attr.is_null() {
            return minus_one(libc::EINVAL);
        }
        // SAFETY: a live identifier; the program says with its mask what is there.
        match unsafe { create_queue_pair(id, ours, attr) } {
            Ok(()) => 0,
            Err(errno) => minus_one(errno),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        let (Some(ours), Some(attr)) = (unsafe { (object::resolve::<Id>(id), attr.as_mut()) }) else {
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
        // SAFETY: the program's pointer, checked as far as that goes.
        unsafe {
            if object::resolve::<Id>(id).is_some() {
                let qp = std::mem::replace(&mut (*id).qp, ptr::null_mut());
                if !qp.is_null() {
                    ibv_destroy_qp(qp);
                }
                destroy_queues(id);
            }
        }
    });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        let engine = match id::engine() {
            Ok(engine) => engine,
            Err(errno) => return minus_one(errno),
        };
        // SAFETY: a live identifier.
        let Some(sink) = (unsafe { id::sink_of(id) }) else { return minus_one(libc::EINVAL) };
        let mut state = ours.lock();
        if state.local_port == 0 || state.listen.is_some() || state.connection.is_some() {
            return minus_one(libc::EINVAL);
        }
        match engine.listen(ServiceId::tcp(state.local_port), usize::try_from(backlog).unwrap_or(0), sink) {
            Ok(listen) => {
                state.listen = Some(listen);
                0
            }
            Err(error) => minus_one(error.errno()),
        }
    })
}

/// The private data of a call: what the identifier carries, then what the call gives.
///
/// # Safety
/// `param` is null or valid, and its data is as long as it says.
unsafe fn private_data(state: &mut IdState, param: *const rdma_conn_param) -> Vec<u8> {
    let mut data = std::mem::take(&mut state.connect_data);
    // SAFETY: passed on to the caller.
    unsafe {
        if let Some(param) = param.as_ref()
            && !param.private_data.is_null()
        {
            let len = usize::from(param.private_data_len);
            data.extend_from_slice(std::slice::from_raw_parts(param.private_data.cast::<u8>(), len));
        }
    }
    data
}

/// Depth of outstanding READs: what the program asks for, bounded by the device, or `default` when it asks
/// for as much as possible.
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
unsafe fn connect(id: *mut rdma_cm_id, ours: &Id, param: *const rdma_conn_param) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (given, local_qpn, destination, sink) = unsafe {
        let given = param.as_ref();
        let qp = (*id).qp;
        let qpn = if qp.is_null() { given.map(|p| p.qp_num).ok_or(libc::EINVAL)? } else { (*qp).qp_num };
        let destination = name::read((&raw const (*id).route.addr.dst).cast()).ok_or(libc::EINVAL)?;
        (given, qpn, destination, id::sink_of(id).ok_or(libc::EINVAL)?)
    };
    let limit = engine.attach().read_depth;
    let mut state = ours.lock();
    if state.local_port == 0 || state.connection.is_some() || state.listen.is_some() {
        return Err(libc::EINVAL);
    }
    state.initiator_depth = depth(given.map(|p| p.initiator_depth), RDMA_MAX_INIT_DEPTH, limit, limit)?;
    state.responder_resources = depth(given.map(|p| p.responder_resources), RDMA_MAX_RESP_RES, limit, limit)?;
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
    let header = header(&engine, state.local_port, destination);
    let data = header.with_user_data(&user_data).ok_or(libc::EINVAL)?;
    let request = ConnectRequest {
        destination_ip: destination.ip(),
        source_ip: engine.attach().ip_addr(),
        service_id: ServiceId::tcp(destination.port()),
        local_qpn: Qpn::new(local_qpn),
        starting_psn: Psn::new(state.psn),
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        flow_control: given.is_some_and(|p| p.flow_control != 0),
        retry_count,
        rnr_retry_count: given.map_or(7, |p| p.rnr_retry_count.min(7)),
        path_mtu_code: mtu_code,
        local_ack_timeout: timeout,
        srq: false,
        traffic_class: state.traffic_class,
        hop_limit: HOP_LIMIT,
        flow_label: 0,
        private_data: &data,
    };
    // The identifier stays locked until it is bound: `event::translate` waits for that.
    let connection = engine.connect(&request, sink).map_err(|error| error.errno())?;
    state.connection = Some(connection);
    id::bind_connection(connection, id);
    Ok(())
}

fn header(engine: &Engine, source_port: u16, destination: SocketAddr) -> RdmaCmHeader {
    let source: IpAddr = engine.attach().ip_addr();
    RdmaCmHeader { source_port, source, destination: destination.ip() }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        match unsafe { connect(id, ours, param) } {
            // SAFETY: as above.
            Ok(()) => unsafe { complete(id) },
            Err(errno) => minus_one(errno),
        }
    })
}

/// # Safety
/// `id` is live; `param` is null or valid.
unsafe fn accept(id: *mut rdma_cm_id, ours: &Id, param: *const rdma_conn_param) -> Result<(), c_int> {
    let engine = id::engine()?;
    // SAFETY: passed on to the caller.
    let (given, local_qpn) = unsafe {
        let given = param.as_ref();
        let qp = (*id).qp;
        (given, if qp.is_null() { given.map(|p| p.qp_num).ok_or(libc::EINVAL)? } else { (*qp).qp_num })
    };
    let limit = engine.attach().read_depth;
    let (connection, data, psn, initiator_depth, responder_resources) = {
        let mut state = ours.lock();
        let connection = state.connection.filter(|_| state.passive).ok_or(libc::EINVAL)?;
        let (offered, wanted) = (state.initiator_depth, state.responder_resources);
        state.initiator_depth = depth(given.map(|p| p.initiator_depth), RDMA_MAX_INIT_DEPTH, offered, limit)?;
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
        srq: false,
        private_data: &data,
    };
    engine.accept(connection, &answer).map_err(|error| {
        // SAFETY: passed on to the caller.
        unsafe { move_to_error(id) };
        error.errno()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        match unsafe { accept(id, ours, param) } {
            // SAFETY: as above.
            Ok(()) => unsafe { complete(id) },
            Err(errno) => minus_one(errno),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
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
    // SAFETY: the program's pointer, checked as far as that goes.
    let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
    let data = if data.is_null() {
        &[]
    } else {
        // SAFETY: the caller gives `len` bytes.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }
    };
    let Some(connection) = ours.lock().connection else { return minus_one(libc::EINVAL) };
    match id::engine().map(|engine| engine.reject(connection, reason, data)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => minus_one(error.errno()),
        Err(errno) => minus_one(errno),
    }
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

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        // SAFETY: a live identifier.
        unsafe { move_to_error(id) };
        let (connection, was_established) = {
            let state = ours.lock();
            (state.connection, state.was_established)
        };
        let done = match (connection, id::engine()) {
            (Some(connection), Ok(engine)) => engine.disconnect(connection),
            (_, Err(errno)) => return minus_one(errno),
            // Over, time-wait included.
            (None, _) if was_established => return 0,
            (None, _) => return minus_one(libc::EINVAL),
        };
        match done {
            // SAFETY: a live identifier.
            Ok(()) => unsafe { complete(id) },
            Err(RdmaError::Call(_)) if was_established => 0,
            Err(error) => minus_one(error.errno()),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, _event: c_uint) -> c_int {
    // Data that arrives before the RTU counts as the RTU without the program's help.
    // SAFETY: the program's pointer, checked as far as that goes.
    guarded(-1, || if unsafe { object::resolve::<Id>(id) }.is_some() { 0 } else { minus_one(libc::EINVAL) })
}
