//! Events: reading them, their effect on queue pairs, acknowledging them.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_MULTICAST_ERROR,
    RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE,
    ibv_qp_type, rdma_cm_event, rdma_cm_event_param, rdma_cm_event_type, rdma_cm_id,
    rdma_conn_param, rdma_event_channel, rdma_ud_param,
};
use longhaul_cm::{
    ConnectionId, DisconnectCause, Event, RdmaCmHeader, ReplyInfo, RequestInfo, ServiceId, SidrId,
    SidrRequestInfo, SidrStatus, Transport,
};
use longhaul_rdma::{ConnectionEvent, Happening};
use longhaul_units::Qpn;

use super::connect::established;
use super::id::{self, Channel, Id, Peer, Resolved};
use super::name::{self, Local};
use super::queues::move_to_error;
use super::{datagram, multicast};
use crate::address::public_address;
use crate::guard::{guarded, minus_one, pause, wait_for_event};
use crate::object::{self, Acknowledgements, Kind};

/// Maximum private data of an event, in bytes: a SIDR_REQ without its header is shorter.
const DATA_MAX: usize = 216;

/// The library's part of an event: the data that it points to, and the object whose events it
/// counts for.
struct Notice {
    data: [u8; DATA_MAX],
    owner: *mut rdma_cm_id,
    membership: Option<Arc<Acknowledgements>>,
}

impl Kind for Notice {
    type Public = rdma_cm_event;
    const MARK: u64 = 0x6c68_5f65_7665_6e74;
}

/// Description of the other side in an event.
enum Param {
    Connection(rdma_conn_param),
    Datagrams(rdma_ud_param),
}

/// An event that has not been allocated yet.
struct Draft<'a> {
    id: *mut rdma_cm_id,
    listen_id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    param: Param,
    data: &'a [u8],
    membership: Option<Arc<Acknowledgements>>,
}

impl<'a> Draft<'a> {
    fn new(id: *mut rdma_cm_id, event: rdma_cm_event_type) -> Draft<'a> {
        Draft {
            id,
            listen_id: ptr::null_mut(),
            event,
            status: 0,
            param: Param::Connection(rdma_conn_param::zeroed()),
            data: &[],
            membership: None,
        }
    }

    /// Gives the event to the program. `owner` is the identifier that it has been counted for.
    fn hand_out(self, owner: *mut rdma_cm_id) -> *mut rdma_cm_event {
        let mut notice = Notice { data: [0; DATA_MAX], owner, membership: self.membership };
        let len = self.data.len().min(DATA_MAX);
        notice.data[..len].copy_from_slice(&self.data[..len]);
        let mut param = match self.param {
            Param::Connection(conn) => rdma_cm_event_param { conn },
            Param::Datagrams(ud) => rdma_cm_event_param { ud },
        };
        // Both kinds start with their private data.
        param.conn.private_data_len = len as u8;
        let public = rdma_cm_event {
            id: self.id,
            listen_id: self.listen_id,
            event: self.event,
            status: self.status,
            param,
        };
        let event = object::create(public, notice);
        if len > 0 {
            // SAFETY: just created; the data lies behind the public part and lives as long.
            unsafe {
                if let Some(notice) = object::resolve::<Notice>(event) {
                    (*event).param.conn.private_data = notice.data.as_ptr().cast();
                }
            }
        }
        event
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    loop {
        // SAFETY: the program's pointers, checked as far as possible.
        let prepared = guarded(Err(libc::EIO), || unsafe { prepare(channel, event) });
        let ours = match prepared {
            Ok(ours) => ours,
            // SAFETY: as above.
            Err(_) if unsafe { is_destroyed(channel) } => return gone(),
            Err(errno) => return minus_one(errno),
        };
        // SAFETY: the channel's descriptor.
        let waited = unsafe { wait_for_event(ours.queue.fd()) };
        // SAFETY: as above.
        if unsafe { is_destroyed(channel) } {
            return gone();
        }
        if !waited {
            return -1;
        }
        // SAFETY: the caller provides space for a pointer.
        let taken = guarded(Some(-1), || unsafe {
            take(ours).map(|out| {
                event.write(out);
                0
            })
        });
        if let Some(result) = taken {
            return result;
        }
    }
}

/// True if `channel` does not point to a channel any more.
///
/// # Safety
/// As [`object::resolve`].
unsafe fn is_destroyed(channel: *mut rdma_event_channel) -> bool {
    // SAFETY: passed on to the caller.
    !channel.is_null() && unsafe { object::resolve::<Channel>(channel) }.is_none()
}

/// Waiting on a destroyed channel ends with an error, but not at once.
///
/// A thread that sleeps here while another one destroys the channel is never woken. Programs rely
/// on that: they destroy the channel and exit, and a thread that returned here at that moment
/// (rping's) would end the process with an error of its own.
fn gone() -> c_int {
    pause(1000);
    minus_one(libc::EBADF)
}

/// Checks the arguments, and runs a turn of the engine if no event is queued.
///
/// # Safety
/// As [`object::resolve`].
unsafe fn prepare<'a>(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> Result<&'a Channel, c_int> {
    // SAFETY: passed on to the caller.
    let ours = unsafe { object::resolve::<Channel>(channel) }.ok_or(libc::EINVAL)?;
    let engine = id::engine()?;
    if event.is_null() {
        return Err(libc::EINVAL);
    }
    if ours.queue.is_empty() {
        engine.turn().map_err(|error| error.errno())?;
        engine.hand_over();
    }
    Ok(ours)
}

/// Takes the oldest event, after the caller has decremented the descriptor's count; `None` if there
/// is none or the program does not see it.
///
/// # Safety
/// Identifiers remove their events from the channel before they are destroyed.
unsafe fn take(channel: &Channel) -> Option<*mut rdma_cm_event> {
    // Counted for its owner while the queue is locked: from then on the owner's destruction waits
    // for it.
    let (found, owner) = channel.queue.take_counted(|found| {
        let owner = owner_of(&found);
        // SAFETY: an identifier is live while events of its own are queued.
        if let Some(ours) = unsafe { id::resolve(owner) } {
            ours.events.give();
        }
        (found, owner)
    })?;
    // SAFETY: as above, now until it is acknowledged.
    unsafe {
        let out = translate(&found, owner);
        if out.is_none()
            && let Some(ours) = id::resolve(owner)
        {
            ours.events.acknowledge(1);
        }
        out
    }
}

/// The identifier that an event counts for: that of the connection, or else the event's destination
/// (a listener, or an identifier whose connection is being created).
fn owner_of(event: &ConnectionEvent) -> *mut rdma_cm_id {
    let bound = match &event.what {
        Happening::Local { .. }
        | Happening::Manager(Event::ConnectRequest { .. } | Event::SidrRequest { .. }) => {
            ptr::null_mut()
        }
        Happening::Manager(manager) => id::of_connection(manager.connection()),
    };
    if bound.is_null() { event.cookie as *mut rdma_cm_id } else { bound }
}

/// Builds the program's event; `None` if the program does not see it.
///
/// # Safety
/// `owner` is the event's, and live.
unsafe fn translate(found: &ConnectionEvent, owner: *mut rdma_cm_id) -> Option<*mut rdma_cm_event> {
    let manager = match &found.what {
        Happening::Local { code, status, value } => {
            let what = Local::decode(*code, *value)?;
            // SAFETY: passed on to the caller.
            return unsafe { local(owner, what, *status) }.map(|draft| draft.hand_out(owner));
        }
        Happening::Manager(manager) => manager,
    };
    // SAFETY: passed on to the caller.
    let requested = unsafe {
        match manager {
            Event::ConnectRequest { connection, info, .. } => {
                Some(connection_request(owner, *connection, info))
            }
            Event::SidrRequest { id, info, .. } => Some(service_request(owner, *id, info)),
            _ => None,
        }
    };
    if let Some(draft) = requested {
        return draft.map(|draft| draft.hand_out(owner));
    }
    // The creator of a connection holds the identifier's lock until the two are bound, but the peer
    // may respond sooner. SAFETY: passed on to the caller.
    if let Some(making) = unsafe { id::resolve(owner) } {
        drop(making.lock());
    }
    let id = id::of_connection(manager.connection());
    // SAFETY: passed on to the caller.
    let ours = unsafe { id::resolve(id) }?;
    // SAFETY: a live identifier.
    unsafe { of_known(id, ours, manager) }.map(|draft| draft.hand_out(owner))
}

/// The event of a known connection or request.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn of_known<'a>(id: *mut rdma_cm_id, ours: &Id, manager: &'a Event) -> Option<Draft<'a>> {
    Some(match manager {
        Event::ConnectRequest { .. } | Event::SidrRequest { .. } => return None,
        // SAFETY: passed on to the caller.
        Event::ConnectResponse { info, .. } => unsafe { connection_response(id, ours, info) },
        Event::Established { .. } => {
            ours.lock().was_established = true;
            Draft::new(id, RDMA_CM_EVENT_ESTABLISHED)
        }
        Event::Rejected { reason, private_data, .. } => {
            forget(ours);
            if ours.lock().failed {
                return None;
            }
            // SAFETY: passed on to the caller.
            unsafe { move_to_error(id) };
            let data = private_data.as_slice();
            Draft { status: reason.0.into(), data, ..Draft::new(id, RDMA_CM_EVENT_REJECTED) }
        }
        Event::Unreachable { .. } => {
            forget(ours);
            // SAFETY: passed on to the caller.
            unsafe { move_to_error(id) };
            Draft { status: -libc::ETIMEDOUT, ..Draft::new(id, RDMA_CM_EVENT_UNREACHABLE) }
        }
        Event::Disconnected { cause, .. } => {
            if ours.lock().failed {
                return None;
            }
            let status = if *cause == DisconnectCause::NoAnswer { -libc::ETIMEDOUT } else { 0 };
            Draft { status, ..Draft::new(id, RDMA_CM_EVENT_DISCONNECTED) }
        }
        Event::TimewaitExit { .. } => {
            forget(ours);
            Draft::new(id, RDMA_CM_EVENT_TIMEWAIT_EXIT)
        }
        Event::SidrResponse { status: SidrStatus::Valid, qpn, qkey, private_data, .. } => {
            let param = service(ours, *qpn, *qkey);
            Draft {
                param,
                data: private_data.as_slice(),
                ..Draft::new(id, RDMA_CM_EVENT_ESTABLISHED)
            }
        }
        Event::SidrResponse { status, private_data, .. } => {
            forget(ours);
            let data = private_data.as_slice();
            Draft {
                status: datagram::code_of(*status),
                data,
                ..Draft::new(id, RDMA_CM_EVENT_UNREACHABLE)
            }
        }
        Event::SidrUnreachable { .. } => {
            forget(ours);
            if ours.lock().passive {
                // The program answered a request too late; its answer will fail.
                return None;
            }
            Draft { status: -libc::ETIMEDOUT, ..Draft::new(id, RDMA_CM_EVENT_UNREACHABLE) }
        }
    })
}

/// The queue pair of the peer's service. The request ends with this.
fn service(ours: &Id, qpn: Qpn, qkey: u32) -> Param {
    forget(ours);
    let mut state = ours.lock();
    state.was_established = true;
    let mut param = rdma_ud_param::zeroed();
    if let (Some(peer), Ok(engine)) = (state.peer, id::engine()) {
        param.ah_attr = public_address(engine.attach(), &peer.address());
    }
    param.qp_num = qpn.get();
    param.qkey = qkey;
    Param::Datagrams(param)
}

/// A terminal event invalidates the number of its connection or request.
fn forget(ours: &Id) {
    let mut state = ours.lock();
    state.request = None;
    if let Some(connection) = state.connection.take() {
        id::unbind_connection(connection);
    }
}

/// An event that this layer raised itself.
///
/// # Safety
/// `id` is live.
unsafe fn local<'a>(id: *mut rdma_cm_id, what: Local, status: c_int) -> Option<Draft<'a>> {
    let event = match (what, status) {
        (Local::AddressResolved, 0) => RDMA_CM_EVENT_ADDR_RESOLVED,
        (Local::AddressResolved, _) => {
            // The program may retry. SAFETY: passed on to the caller.
            unsafe { id::resolve(id) }?.lock().resolved = Resolved::Nothing;
            RDMA_CM_EVENT_ADDR_ERROR
        }
        (Local::RouteResolved, 0) => RDMA_CM_EVENT_ROUTE_RESOLVED,
        (Local::RouteResolved, _) => RDMA_CM_EVENT_ROUTE_ERROR,
        (Local::Joined(number), _) => {
            // SAFETY: passed on to the caller.
            let joined = unsafe { multicast::joined(id, id::resolve(id)?, number) }?;
            let done = joined.status == 0;
            return Some(Draft {
                status: joined.status,
                param: Param::Datagrams(joined.param),
                membership: Some(joined.events),
                ..Draft::new(
                    id,
                    if done { RDMA_CM_EVENT_MULTICAST_JOIN } else { RDMA_CM_EVENT_MULTICAST_ERROR },
                )
            });
        }
    };
    Some(Draft { status, ..Draft::new(id, event) })
}

/// The sender of a request for a connection or a service, and its target.
struct Caller {
    ip: IpAddr,
    service_id: u64,
    header: Option<RdmaCmHeader>,
    kind: ibv_qp_type,
}

/// Creates the identifier of a peer's request, on the listener's channel or on its own. `None` if
/// that fails, or if the listener is for another kind of queue pair; the request is then refused.
///
/// # Safety
/// `listener` is live.
unsafe fn child_of(listener: *mut rdma_cm_id, caller: &Caller) -> Option<*mut rdma_cm_id> {
    // SAFETY: passed on to the caller; the child is just created.
    unsafe {
        let listening = id::resolve(listener)?;
        let engine = id::engine().ok()?;
        if listening.lock().typed && (*listener).qp_type != caller.kind {
            return None;
        }
        let channel = if id::is_sync(listener) { ptr::null_mut() } else { (*listener).channel };
        let child = id::create(channel, (*listener).context, (*listener).ps, caller.kind).ok()?;
        let bound = id::bind_to_device(child, Some(caller.ip)).and_then(|()| id::set_path(child));
        if bound.is_err() {
            id::rdma_destroy_id(child);
            return None;
        }
        let local_port = ServiceId::parts(caller.service_id).map_or(0, |(_, port)| port);
        let peer_port = caller.header.map_or(0, |header| header.source_port);
        let local = SocketAddr::new(engine.attach().source_for(caller.ip), local_port);
        (*child).route.addr.src.src_storage = name::write(local);
        (*child).route.addr.dst.dst_storage = name::write(SocketAddr::new(caller.ip, peer_port));
        let mut state = id::resolve(child)?.lock();
        state.passive = true;
        state.typed = true;
        state.local_port = local_port;
        state.resolved = Resolved::Route;
        Some(child)
    }
}

/// Creates the identifier of a new connection.
///
/// # Safety
/// `listener` is live.
unsafe fn connection_request(
    listener: *mut rdma_cm_id,
    connection: ConnectionId,
    info: &RequestInfo,
) -> Option<Draft<'_>> {
    let kind = if info.transport == Transport::Uc { IBV_QPT_UC } else { IBV_QPT_RC };
    let caller =
        Caller { ip: info.peer_ip, service_id: info.service_id, header: info.header(), kind };
    // SAFETY: passed on to the caller.
    let Some(child) = (unsafe { child_of(listener, &caller) }) else {
        if let Ok(engine) = id::engine() {
            let _ = engine.forget_connection(connection);
        }
        return None;
    };
    // SAFETY: just created.
    let ours = unsafe { id::resolve(child) }?;
    {
        let mut state = ours.lock();
        state.connection = Some(connection);
        state.initiator_depth = info.initiator_depth;
        state.responder_resources = info.responder_resources;
        state.peer = Some(Peer {
            ip: info.peer_ip,
            qpn: info.peer_qpn.get(),
            psn: info.peer_psn.get(),
            mtu_code: info.path_mtu_code,
            timeout: info.local_ack_timeout,
            retry_count: info.retry_count,
            rnr_retry_count: info.rnr_retry_count,
            traffic_class: info.traffic_class,
        });
    }
    // SAFETY: just created.
    unsafe { adopt(child, connection) };
    let conn = rdma_conn_param {
        responder_resources: info.responder_resources,
        initiator_depth: info.initiator_depth,
        flow_control: info.flow_control.into(),
        retry_count: info.retry_count,
        rnr_retry_count: info.rnr_retry_count,
        srq: info.srq.into(),
        qp_num: info.peer_qpn.get(),
        ..rdma_conn_param::zeroed()
    };
    let draft = Draft::new(child, RDMA_CM_EVENT_CONNECT_REQUEST);
    Some(Draft {
        listen_id: listener,
        param: Param::Connection(conn),
        data: info.user_data(),
        ..draft
    })
}

/// Creates the identifier of a request for a datagram service.
///
/// # Safety
/// `listener` is live.
unsafe fn service_request(
    listener: *mut rdma_cm_id,
    request: SidrId,
    info: &SidrRequestInfo,
) -> Option<Draft<'_>> {
    let (ip, service_id, header) = (info.peer_ip, info.service_id, info.header());
    let caller = Caller { ip, service_id, header, kind: IBV_QPT_UD };
    // SAFETY: passed on to the caller.
    let Some(child) = (unsafe { child_of(listener, &caller) }) else {
        if let Ok(engine) = id::engine() {
            let _ = engine.forget_service(request);
        }
        return None;
    };
    // SAFETY: just created.
    let ours = unsafe { id::resolve(child) }?;
    {
        let mut state = ours.lock();
        state.request = Some(request);
        state.connection = Some(request.into());
        state.peer = Some(Peer::datagram(ip, 0));
    }
    // SAFETY: just created.
    unsafe { adopt(child, request.into()) };
    let draft = Draft::new(child, RDMA_CM_EVENT_CONNECT_REQUEST);
    let param = Param::Datagrams(rdma_ud_param::zeroed());
    Some(Draft { listen_id: listener, param, data: info.user_data(), ..draft })
}

/// Redirects the events of a connection or request to its own identifier.
///
/// # Safety
/// `child` is live.
unsafe fn adopt(child: *mut rdma_cm_id, connection: ConnectionId) {
    id::bind_connection(connection, child);
    // SAFETY: passed on to the caller.
    if let (Some(sink), Ok(engine)) = (unsafe { id::sink_of(child) }, id::engine()) {
        let _ = engine.adopt(connection, sink);
    }
}

/// The peer accepted: if the identifier has a queue pair, the library completes the handshake;
/// otherwise the program does.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn connection_response<'a>(
    id: *mut rdma_cm_id,
    ours: &Id,
    info: &'a ReplyInfo,
) -> Draft<'a> {
    {
        let mut state = ours.lock();
        if let Some(peer) = &mut state.peer {
            peer.qpn = info.peer_qpn.get();
            peer.psn = info.peer_psn.get();
            peer.mtu_code = info.path_mtu_code;
            peer.rnr_retry_count = info.rnr_retry_count;
        }
        state.initiator_depth = state.initiator_depth.min(info.initiator_depth);
        // rxe replies with its limits, not with the offered values.
        state.responder_resources = state.responder_resources.min(info.responder_resources);
    }
    let conn = rdma_conn_param {
        responder_resources: info.responder_resources,
        initiator_depth: info.initiator_depth,
        flow_control: info.flow_control.into(),
        rnr_retry_count: info.rnr_retry_count,
        srq: info.srq.into(),
        qp_num: info.peer_qpn.get(),
        ..rdma_conn_param::zeroed()
    };
    let draft = Draft {
        param: Param::Connection(conn),
        data: info.private_data.as_slice(),
        ..Draft::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE)
    };
    // SAFETY: passed on to the caller.
    unsafe {
        if (*id).qp.is_null() {
            return draft;
        }
        match established(id, ours) {
            Ok(()) => Draft { event: RDMA_CM_EVENT_ESTABLISHED, ..draft },
            Err(errno) => {
                ours.lock().failed = true;
                Draft { event: RDMA_CM_EVENT_CONNECT_ERROR, status: -errno, ..draft }
            }
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(notice) = (unsafe { object::resolve::<Notice>(event) }) else {
            return minus_one(libc::EINVAL);
        };
        let owner = notice.owner;
        let membership = notice.membership.clone();
        // SAFETY: live, and the program destroys it; an identifier outlives its unacknowledged
        // events.
        unsafe {
            object::destroy::<Notice>(event);
            if let Some(ours) = id::resolve(owner) {
                ours.events.acknowledge(1);
            }
        }
        if let Some(membership) = membership {
            membership.acknowledge(1);
        }
        0
    })
}

/// For identifiers without a channel: waits for the event of the call that was just created. It may
/// be cancelled there.
///
/// # Safety
/// `id` is null, or a pointer from the program.
pub(super) unsafe extern "C-unwind" fn complete(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        let is_sync = guarded(Err(libc::EIO), || {
            id::resolve(id).ok_or(libc::EINVAL)?;
            let is_sync = id::is_sync(id);
            if is_sync {
                acknowledge_before(id);
            }
            Ok(is_sync)
        });
        match is_sync {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(errno) => return minus_one(errno),
        }
        let mut event = ptr::null_mut();
        if rdma_get_cm_event((*id).channel, &raw mut event) != 0 {
            return -1;
        }
        (*id).event = event;
        match (*event).status {
            0 => 0,
            _ if (*event).event == RDMA_CM_EVENT_REJECTED => minus_one(libc::ECONNREFUSED),
            status => minus_one(status.abs()),
        }
    }
}

/// Acknowledges the event of its last call, which the identifier keeps.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn acknowledge_before(id: *mut rdma_cm_id) {
    // SAFETY: passed on to the caller.
    unsafe {
        let before = std::mem::replace(&mut (*id).event, ptr::null_mut());
        if !before.is_null() {
            rdma_ack_cm_event(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use longhaul_abi_defs::RDMA_PS_TCP;
    use longhaul_cm::{ConnectRequest, ConnectionManager};
    use longhaul_rdma::EventQueue;
    use longhaul_units::{Instant, Psn};

    use super::*;

    fn connection() -> ConnectionId {
        let request = ConnectRequest {
            destination_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
            source_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
            service_id: ServiceId::tcp(7),
            transport: longhaul_cm::Transport::Rc,
            local_qpn: Qpn::new(17),
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu_code: 5,
            local_ack_timeout: 17,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &[],
        };
        let mut manager = ConnectionManager::new(longhaul_cm::Config::default());
        manager.connect(Instant::ZERO, &request).unwrap()
    }

    /// An identifier without a device, on a channel with one event of its connection. The caller
    /// frees both.
    fn with_event(connection: ConnectionId) -> (*mut rdma_event_channel, *mut rdma_cm_id) {
        let queue = Arc::new(EventQueue::new().unwrap());
        let public = rdma_cm_id { ps: RDMA_PS_TCP, qp_type: IBV_QPT_RC, ..rdma_cm_id::zeroed() };
        let id = id::make(public, false);
        let what = Happening::Manager(Event::Established { connection });
        queue.push(ConnectionEvent { cookie: id as u64, what });
        (object::create(rdma_event_channel { fd: queue.fd() }, Channel { queue }), id)
    }

    #[test]
    fn a_peer_quicker_than_the_connecting_call_is_heard_all_the_same() {
        let connection = connection();
        let (channel, id) = with_event(connection);
        // SAFETY: both are live, and freed once, at the end.
        unsafe {
            let ours = id::resolve(id).unwrap();
            let connecting = ours.lock();
            let at = channel as usize;
            let reader = std::thread::spawn(move || {
                let channel = object::resolve::<Channel>(at as *mut rdma_event_channel).unwrap();
                take(channel).map(|event| event as usize)
            });
            std::thread::sleep(Duration::from_millis(30));
            id::bind_connection(connection, id);
            drop(connecting);
            let event = reader.join().unwrap().expect("an event") as *mut rdma_cm_event;
            assert_eq!(((*event).event, (*event).id), (RDMA_CM_EVENT_ESTABLISHED, id));
            rdma_ack_cm_event(event);
            ours.events.settle();
            id::unbind_connection(connection);
            id::destroy(id);
            object::destroy::<Channel>(channel);
        }
    }

    #[test]
    fn an_event_that_the_program_is_not_told_needs_no_acknowledgement() {
        let (channel, id) = with_event(connection());
        // SAFETY: as above.
        unsafe {
            assert!(take(object::resolve::<Channel>(channel).unwrap()).is_none());
            id::resolve(id).unwrap().events.settle();
            id::destroy(id);
            object::destroy::<Channel>(channel);
        }
    }
}
