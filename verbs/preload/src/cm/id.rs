//! Event channels and identifiers.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use longhaul_abi_defs::{
    __be16, IBV_QPT_RC, RDMA_PS_TCP, ibv_qp_type, ibv_sa_path_rec, rdma_cm_event, rdma_cm_id,
    rdma_event_channel, rdma_port_space,
};
use longhaul_cm::{ConnectionId, Event, ListenId};
use longhaul_rdma::{ConnectionEvent, ConnectionSink, Engine, EventQueue, Happening};

use super::name;
use crate::device::{self, PORT};
use crate::guard::{guarded, minus_one, null};
use crate::memory::ibv_alloc_pd;
use crate::object::{self, Acknowledgements, Kind};
use crate::process;
use crate::queue_pair::gid_of;

/// Our part of an event channel.
pub(crate) struct Channel {
    pub(super) queue: Arc<EventQueue<ConnectionEvent>>,
}

impl Kind for Channel {
    type Public = rdma_event_channel;
    const MARK: u64 = 0x6c68_5f63_6d5f_6368;
}

/// Our part of an identifier.
pub(crate) struct Id {
    pub(super) state: Mutex<IdState>,
    pub(super) events: Acknowledgements,
    /// Made without a channel: its calls wait for their events.
    pub(super) sync: bool,
}

impl Kind for Id {
    type Public = rdma_cm_id;
    const MARK: u64 = 0x6c68_5f63_6d5f_6964;
}

/// What a connection needs to know of the other side, from its REQ or REP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub ip: IpAddr,
    pub qpn: u32,
    pub psn: u32,
    pub mtu_code: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub traffic_class: u8,
}

/// What changes over the life of an identifier.
#[derive(Default)]
pub(super) struct IdState {
    pub listen: Option<ListenId>,
    pub connection: Option<ConnectionId>,
    /// The connection has been established at some time.
    pub was_established: bool,
    /// Moving the queue pair failed; nothing more is reported.
    pub failed: bool,
    pub passive: bool,
    pub peer: Option<Peer>,
    /// First PSN that we send.
    pub psn: u32,
    pub local_port: u16,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    pub traffic_class: u8,
    pub ack_timeout: Option<u8>,
    /// What `rdma_create_ep` keeps for the connections of a listener.
    pub qp_init_attr: Option<longhaul_abi_defs::ibv_qp_init_attr>,
    pub connect_data: Vec<u8>,
}

impl Id {
    pub(super) fn lock(&self) -> MutexGuard<'_, IdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Identifiers by connection: events name connections.
pub(super) static BY_CONNECTION: LazyLock<Mutex<HashMap<ConnectionId, usize>>> =
    LazyLock::new(Mutex::default);

/// The identifier of a connection; null when it has none any more.
pub(super) fn of_connection(connection: ConnectionId) -> *mut rdma_cm_id {
    let map = BY_CONNECTION.lock().unwrap_or_else(PoisonError::into_inner);
    map.get(&connection).map_or(ptr::null_mut(), |address| *address as *mut rdma_cm_id)
}

pub(super) fn bind_connection(connection: ConnectionId, id: *mut rdma_cm_id) {
    BY_CONNECTION.lock().unwrap_or_else(PoisonError::into_inner).insert(connection, id as usize);
}

pub(super) fn unbind_connection(connection: ConnectionId) {
    BY_CONNECTION.lock().unwrap_or_else(PoisonError::into_inner).remove(&connection);
}

/// The engine behind every identifier.
pub(super) fn engine() -> Result<Arc<Engine>, c_int> {
    let context = device::shared_context()?;
    // SAFETY: our own context.
    unsafe { device::context(context) }.map(|ours| Arc::clone(&ours.engine)).ok_or(libc::ENODEV)
}

/// The queue of an identifier's channel.
///
/// # Safety
/// `id` is live, and so is its channel.
pub(super) unsafe fn queue_of<'a>(id: *mut rdma_cm_id) -> Option<&'a Arc<EventQueue<ConnectionEvent>>> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<Channel>((*id).channel).map(|channel| &channel.queue) }
}

/// Where the engine sends the events of an identifier.
///
/// # Safety
/// As [`queue_of`].
pub(super) unsafe fn sink_of(id: *mut rdma_cm_id) -> Option<ConnectionSink> {
    // SAFETY: passed on to the caller.
    unsafe { queue_of(id) }.map(|queue| ConnectionSink { queue: Arc::clone(queue), cookie: id as u64 })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guarded(ptr::null_mut(), || {
        if process::device().is_null() {
            return null(libc::ENODEV);
        }
        match EventQueue::new() {
            Ok(queue) => {
                object::create(rdma_event_channel { fd: queue.fd() }, Channel { queue: Arc::new(queue) })
            }
            Err(error) => null(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program's pointer, checked as far as that goes; the program gives it up.
    guarded((), || unsafe { object::destroy::<Channel>(channel) });
}

/// Makes an identifier on a channel, or on one of its own when `channel` is null.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, c_int> {
    if ps != RDMA_PS_TCP || qp_type != IBV_QPT_RC {
        return Err(libc::EOPNOTSUPP);
    }
    let sync = channel.is_null();
    let channel = if sync {
        // SAFETY: no arguments.
        let own = unsafe { rdma_create_event_channel() };
        if own.is_null() {
            return Err(libc::ENODEV);
        }
        own
    } else {
        // SAFETY: the program's pointer, checked as far as that goes.
        if unsafe { object::resolve::<Channel>(channel) }.is_none() {
            return Err(libc::EINVAL);
        }
        channel
    };
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::zeroed() };
    let kind = Id { state: Mutex::default(), events: Acknowledgements::default(), sync };
    Ok(object::create(public, kind))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    guarded(-1, || {
        if process::device().is_null() {
            return minus_one(libc::ENODEV);
        }
        if id.is_null() {
            return minus_one(libc::EINVAL);
        }
        match create(channel, context, ps, IBV_QPT_RC) {
            Ok(made) => {
                // SAFETY: the caller gives room for a pointer.
                unsafe { id.write(made) };
                0
            }
            Err(errno) => minus_one(errno),
        }
    })
}

/// Binds an identifier to the device: context, protection domain, port, addresses and GIDs.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn bind_to_device(id: *mut rdma_cm_id, peer: Option<IpAddr>) -> Result<(), c_int> {
    let context = device::shared_context()?;
    let pd = default_domain()?;
    let ip = engine()?.attach().ip_addr();
    // SAFETY: the caller vouches for the identifier.
    unsafe {
        (*id).verbs = context;
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
        (*id).port_num = PORT;
        let addresses = &mut (*id).route.addr.addr.ibaddr;
        addresses.sgid = gid_of(ip);
        addresses.pkey = __be16::new(0xffff);
        if let Some(peer) = peer {
            addresses.dgid = gid_of(peer);
        }
    }
    Ok(())
}

/// The protection domain that identifiers have by default. It lives as long as the shared context.
fn default_domain() -> Result<*mut longhaul_abi_defs::ibv_pd, c_int> {
    static DOMAIN: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    let context = device::shared_context()?;
    let mut domain = DOMAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((pd, of)) = *domain
        && of == context as usize
    {
        return Ok(pd as *mut _);
    }
    // SAFETY: our own context.
    let pd = unsafe { ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(libc::ENOMEM);
    }
    *domain = Some((pd as usize, context as usize));
    Ok(pd)
}

/// Gives an identifier the one path that RoCE has.
///
/// # Safety
/// `id` is live and bound to the device.
pub(super) unsafe fn set_path(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let engine = engine()?;
    // SAFETY: the caller vouches for the identifier; the record is calloc's, and freed with it.
    unsafe {
        if (*id).route.path_rec.is_null() {
            let record = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast::<ibv_sa_path_rec>();
            if record.is_null() {
                return Err(libc::ENOMEM);
            }
            (*id).route.path_rec = record;
        }
        (*id).route.num_paths = 1;
        let addresses = &(*id).route.addr.addr.ibaddr;
        let record = &mut *(*id).route.path_rec;
        record.dgid = addresses.dgid;
        record.sgid = addresses.sgid;
        record.hop_limit = 64;
        record.reversible = 1;
        record.numb_path = 1;
        record.pkey = __be16::new(0xffff);
        // 2: exactly.
        record.mtu_selector = 2;
        record.mtu = device::mtu_code(engine.attach());
        record.rate_selector = 2;
        record.packet_life_time_selector = 2;
        record.packet_life_time = engine.attach().cm_ack_timeout.saturating_sub(1);
    }
    Ok(())
}

/// Frees an identifier that nobody uses any more.
///
/// # Safety
/// `id` is live and given up; `channel` is its own when it was made without one.
unsafe fn free(id: *mut rdma_cm_id, sync: bool) {
    // SAFETY: passed on to the caller.
    unsafe {
        libc::free((*id).route.path_rec.cast());
        let channel = (*id).channel;
        object::destroy::<Id>(id);
        if sync {
            object::destroy::<Channel>(channel);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { object::resolve::<Id>(id) }) else { return minus_one(libc::EINVAL) };
        let engine = match engine() {
            Ok(engine) => engine,
            Err(errno) => return minus_one(errno),
        };
        let (listen, connection, port) = {
            let mut state = ours.lock();
            (state.listen.take(), state.connection.take(), std::mem::take(&mut state.local_port))
        };
        name::release_port(port, listen.is_some());
        // The parent's device, after a fork: nothing to tell anybody.
        if let Some(listen) = listen {
            let _ = engine.unlisten(listen);
        }
        if let Some(connection) = connection {
            let _ = engine.forget_connection(connection);
            unbind_connection(connection);
        }
        // SAFETY: a live identifier.
        if let Some(queue) = unsafe { queue_of(id) } {
            let dropped = queue.retain(|event| !concerns(event, id as u64, connection));
            for event in dropped {
                if let Happening::Manager(Event::ConnectRequest { connection, .. }) = event.what {
                    let _ = engine.forget_connection(connection);
                }
            }
        }
        // SAFETY: a live identifier, whose event is its own.
        unsafe {
            let event: *mut rdma_cm_event = std::mem::replace(&mut (*id).event, ptr::null_mut());
            if !event.is_null() {
                super::event::rdma_ack_cm_event(event);
            }
            ours.events.settle();
            free(id, ours.sync);
        }
        0
    })
}

/// Whether a queued event is about this identifier. Events of a connection that nobody has adopted yet
/// carry the listener's cookie and go with it.
fn concerns(event: &ConnectionEvent, cookie: u64, connection: Option<ConnectionId>) -> bool {
    match &event.what {
        Happening::Local { .. } => event.cookie == cookie,
        Happening::Manager(manager) => {
            let about = manager.connection();
            connection == Some(about) || (event.cookie == cookie && of_connection(about).is_null())
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointers, checked as far as that goes.
        let (Some(ours), Some(from)) = (unsafe { (object::resolve::<Id>(id), queue_of(id).cloned()) }) else {
            return minus_one(libc::EINVAL);
        };
        let Ok(engine) = engine() else { return minus_one(libc::ENODEV) };
        if channel.is_null() || ours.sync {
            // Identifiers that wait for their own events keep their own channel.
            return minus_one(libc::EOPNOTSUPP);
        }
        // SAFETY: as above.
        let Some(to) = (unsafe { object::resolve::<Channel>(channel) }) else {
            return minus_one(libc::EINVAL);
        };
        let state = ours.lock();
        let sink = ConnectionSink { queue: Arc::clone(&to.queue), cookie: id as u64 };
        if let Some(listen) = state.listen {
            let _ = engine.adopt_listener(listen, sink.clone());
        }
        if let Some(connection) = state.connection {
            let _ = engine.adopt(connection, sink);
        }
        // SAFETY: a live identifier.
        unsafe { (*id).channel = channel };
        for event in from.retain(|event| !concerns(event, id as u64, state.connection)) {
            to.queue.push(event);
        }
        0
    })
}
