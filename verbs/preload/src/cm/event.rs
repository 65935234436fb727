//! Events: reading them, what reading them does to queue pairs, acknowledging them.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr;

use longhaul_abi_defs::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_UNREACHABLE, rdma_cm_event,
    rdma_cm_event_param, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use longhaul_cm::{ConnectionId, Event, ReplyInfo, RequestInfo, ServiceId};
use longhaul_rdma::{ConnectionEvent, Happening};

use super::connect::{established, move_to_error};
use super::id::{self, Channel, Id, Peer};
use super::name;
use crate::guard::{guarded, minus_one, wait_for_event};
use crate::object::{self, Kind};

/// Codes of the events that this layer raises by itself.
pub(super) const LOCAL_ADDR_RESOLVED: u32 = 0;
/// As above.
pub(super) const LOCAL_ROUTE_RESOLVED: u32 = 1;

/// Our part of an event: what it points to, and whom its acknowledgement counts for.
struct Notice {
    data: [u8; 196],
    owner: *mut rdma_cm_id,
}

impl Kind for Notice {
    type Public = rdma_cm_event;
    const MARK: u64 = 0x6c68_5f65_7665_6e74;
}

/// An event before it has a place in memory.
struct Draft<'a> {
    id: *mut rdma_cm_id,
    listen_id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    conn: rdma_conn_param,
    data: &'a [u8],
}

impl<'a> Draft<'a> {
    fn new(id: *mut rdma_cm_id, event: rdma_cm_event_type) -> Draft<'a> {
        let conn = rdma_conn_param::zeroed();
        Draft { id, listen_id: ptr::null_mut(), event, status: 0, conn, data: &[] }
    }

    /// Gives the event to the program. `owner` is whom it has been counted for.
    fn hand_out(self, owner: *mut rdma_cm_id) -> *mut rdma_cm_event {
        let mut notice = Notice { data: [0; 196], owner };
        let len = self.data.len().min(notice.data.len());
        notice.data[..len].copy_from_slice(&self.data[..len]);
        let mut conn = self.conn;
        conn.private_data_len = len as u8;
        let public = rdma_cm_event {
            id: self.id,
            listen_id: self.listen_id,
            event: self.event,
            status: self.status,
            param: rdma_cm_event_param { conn },
        };
        let event = object::create(public, notice);
        if len > 0 {
            // SAFETY: just made; the data lies behind the public part and lives as long.
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
        // SAFETY: the program's pointers, checked as far as that goes.
        let prepared = guarded(Err(libc::EIO), || unsafe { prepare(channel, event) });
        let ours = match prepared {
            Ok(ours) => ours,
            Err(errno) => return minus_one(errno),
        };
        // SAFETY: the channel's own descriptor.
        if !unsafe { wait_for_event(ours.queue.fd()) } {
            return -1;
        }
        // SAFETY: the caller gives room for a pointer.
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

/// Checks the arguments, and gives the engine a turn when no event is queued.
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

/// Takes the oldest event, after one has been taken from the descriptor's count; `None` when there is none
/// or the program is not told of it.
///
/// # Safety
/// Identifiers take their events out of the channel before they go.
unsafe fn take(channel: &Channel) -> Option<*mut rdma_cm_event> {
    // Counted for its owner while the queue is locked: from then on the owner's destruction waits for it.
    let (found, owner) = channel.queue.take_counted(|found| {
        let owner = owner_of(&found);
        // SAFETY: an identifier is live while events of its own are queued.
        if let Some(ours) = unsafe { object::resolve::<Id>(owner) } {
            ours.events.give();
        }
        (found, owner)
    })?;
    // SAFETY: as above, now until it is acknowledged.
    unsafe {
        let out = translate(&found, owner);
        if out.is_none()
            && let Some(ours) = object::resolve::<Id>(owner)
        {
            ours.events.acknowledge(1);
        }
        out
    }
}

/// The identifier that an event counts for: that of the connection, or else the one that the event was sent
/// to (a listener, or an identifier whose connection is just being made).
fn owner_of(event: &ConnectionEvent) -> *mut rdma_cm_id {
    let bound = match &event.what {
        Happening::Local { .. } | Happening::Manager(Event::ConnectRequest { .. }) => ptr::null_mut(),
        Happening::Manager(manager) => id::of_connection(manager.connection()),
    };
    if bound.is_null() { event.cookie as *mut rdma_cm_id } else { bound }
}

/// Makes the program's event; `None` for what the program is not told.
///
/// # Safety
/// `owner` is that of the event, and live.
unsafe fn translate(found: &ConnectionEvent, owner: *mut rdma_cm_id) -> Option<*mut rdma_cm_event> {
    let manager = match &found.what {
        Happening::Local { code, status } => return Some(local(owner, *code, *status)),
        Happening::Manager(manager) => manager,
    };
    if let Event::ConnectRequest { connection, info, .. } = manager {
        // SAFETY: passed on to the caller.
        return unsafe { connection_request(owner, *connection, info) };
    }
    // Who makes a connection holds the identifier until the two know each other; the peer may be quicker.
    // SAFETY: passed on to the caller.
    if let Some(making) = unsafe { object::resolve::<Id>(owner) } {
        drop(making.lock());
    }
    let id = id::of_connection(manager.connection());
    // SAFETY: passed on to the caller.
    let ours = unsafe { object::resolve::<Id>(id) }?;
    let draft = match manager {
        Event::ConnectRequest { .. } => return None,
        // SAFETY: a live identifier.
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
            // SAFETY: a live identifier.
            unsafe { move_to_error(id) };
            let data = private_data.as_slice();
            Draft { status: reason.0.into(), data, ..Draft::new(id, RDMA_CM_EVENT_REJECTED) }
        }
        Event::Unreachable { .. } => {
            forget(ours);
            // SAFETY: a live identifier.
            unsafe { move_to_error(id) };
            Draft { status: -libc::ETIMEDOUT, ..Draft::new(id, RDMA_CM_EVENT_UNREACHABLE) }
        }
        Event::Disconnected { .. } => {
            if ours.lock().failed {
                return None;
            }
            Draft::new(id, RDMA_CM_EVENT_DISCONNECTED)
        }
        Event::TimewaitExit { .. } => {
            forget(ours);
            Draft::new(id, RDMA_CM_EVENT_TIMEWAIT_EXIT)
        }
    };
    Some(draft.hand_out(owner))
}

/// After a terminal event the connection's number means nothing any more.
fn forget(ours: &Id) {
    if let Some(connection) = ours.lock().connection.take() {
        id::unbind_connection(connection);
    }
}

fn local(id: *mut rdma_cm_id, code: u32, status: c_int) -> *mut rdma_cm_event {
    let event = match (code, status) {
        (LOCAL_ADDR_RESOLVED, 0) => RDMA_CM_EVENT_ADDR_RESOLVED,
        (LOCAL_ADDR_RESOLVED, _) => RDMA_CM_EVENT_ADDR_ERROR,
        (_, 0) => RDMA_CM_EVENT_ROUTE_RESOLVED,
        (..) => RDMA_CM_EVENT_ROUTE_ERROR,
    };
    Draft { status, ..Draft::new(id, event) }.hand_out(id)
}

/// Makes the identifier of a new connection.
///
/// # Safety
/// `listener` is live.
unsafe fn connection_request(
    listener: *mut rdma_cm_id,
    connection: ConnectionId,
    info: &RequestInfo,
) -> Option<*mut rdma_cm_event> {
    // SAFETY: passed on to the caller.
    let listening = unsafe { object::resolve::<Id>(listener) }?;
    let engine = id::engine().ok()?;
    // SAFETY: a live identifier.
    let (channel, context, ps, qp_type) =
        unsafe { ((*listener).channel, (*listener).context, (*listener).ps, (*listener).qp_type) };
    let channel = if listening.sync { ptr::null_mut() } else { channel };
    let child = id::create(channel, context, ps, qp_type).ok();
    let Some(child) = child else {
        let _ = engine.forget_connection(connection);
        return None;
    };
    // SAFETY: just made.
    let ours = unsafe { object::resolve::<Id>(child) }?;
    // SAFETY: as above.
    unsafe {
        let bound = id::bind_to_device(child, Some(info.peer_ip)).and_then(|()| id::set_path(child));
        if bound.is_err() {
            let _ = engine.forget_connection(connection);
            id::rdma_destroy_id(child);
            return None;
        }
        let local_port = ServiceId::parts(info.service_id).map_or(0, |(_, port)| port);
        let peer_port = info.header().map_or(0, |header| header.source_port);
        (*child).route.addr.src.src_storage =
            name::write(SocketAddr::new(engine.attach().ip_addr(), local_port));
        (*child).route.addr.dst.dst_storage = name::write(SocketAddr::new(info.peer_ip, peer_port));
    }
    {
        let mut state = ours.lock();
        state.connection = Some(connection);
        state.passive = true;
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
    id::bind_connection(connection, child);
    // SAFETY: just made.
    if let Some(sink) = unsafe { id::sink_of(child) } {
        let _ = engine.adopt(connection, sink);
    }
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
    Some(Draft { listen_id: listener, conn, data: info.user_data(), ..draft }.hand_out(listener))
}

/// The peer accepted: with a queue pair of the identifier's own the library finishes the handshake, without
/// one the program does.
///
/// # Safety
/// `id` is live and `ours` is its own.
unsafe fn connection_response<'a>(id: *mut rdma_cm_id, ours: &Id, info: &'a ReplyInfo) -> Draft<'a> {
    {
        let mut state = ours.lock();
        if let Some(peer) = &mut state.peer {
            peer.qpn = info.peer_qpn.get();
            peer.psn = info.peer_psn.get();
            peer.rnr_retry_count = info.rnr_retry_count;
        }
        state.initiator_depth = state.initiator_depth.min(info.initiator_depth);
        state.responder_resources = info.responder_resources;
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
    let draft =
        Draft { conn, data: info.private_data.as_slice(), ..Draft::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE) };
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
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(notice) = (unsafe { object::resolve::<Notice>(event) }) else {
            return minus_one(libc::EINVAL);
        };
        let owner = notice.owner;
        // SAFETY: live, and the program gives it up; an identifier outlives its unacknowledged events.
        unsafe {
            object::destroy::<Notice>(event);
            if let Some(ours) = object::resolve::<Id>(owner) {
                ours.events.acknowledge(1);
            }
        }
        0
    })
}

/// For identifiers without a channel: waits for the event of the call just made.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        match object::resolve::<Id>(id) {
            Some(ours) if ours.sync => {}
            Some(_) => return 0,
            None => return minus_one(libc::EINVAL),
        }
        let before = std::mem::replace(&mut (*id).event, ptr::null_mut());
        if !before.is_null() {
            rdma_ack_cm_event(before);
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use longhaul_abi_defs::{IBV_QPT_RC, RDMA_PS_TCP};
    use longhaul_cm::{ConnectRequest, ConnectionManager};
    use longhaul_rdma::EventQueue;
    use longhaul_units::{Instant, Psn, Qpn};

    use super::*;
    use crate::object::Acknowledgements;

    fn connection() -> ConnectionId {
        let request = ConnectRequest {
            destination_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
            source_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
            service_id: ServiceId::tcp(7),
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

    /// An identifier without device, on a channel with one event of its connection. The caller frees both.
    fn with_event(connection: ConnectionId) -> (*mut rdma_event_channel, *mut rdma_cm_id) {
        let queue = Arc::new(EventQueue::new().unwrap());
        let kind = Id { state: Mutex::default(), events: Acknowledgements::default(), sync: false };
        let public = rdma_cm_id { ps: RDMA_PS_TCP, qp_type: IBV_QPT_RC, ..rdma_cm_id::zeroed() };
        let id = object::create(public, kind);
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
            let ours = object::resolve::<Id>(id).unwrap();
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
            object::destroy::<Id>(id);
            object::destroy::<Channel>(channel);
        }
    }

    #[test]
    fn an_event_that_the_program_is_not_told_needs_no_acknowledgement() {
        let (channel, id) = with_event(connection());
        // SAFETY: as above.
        unsafe {
            assert!(take(object::resolve::<Channel>(channel).unwrap()).is_none());
            object::resolve::<Id>(id).unwrap().events.settle();
            object::destroy::<Id>(id);
            object::destroy::<Channel>(channel);
        }
    }
}
