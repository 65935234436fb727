//! Event channels and identifiers.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use longhaul_abi_defs::{
    __be16, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, RDMA_PS_IB, RDMA_PS_IPOIB, RDMA_PS_TCP,
    RDMA_PS_UDP, ibv_qp_init_attr, ibv_qp_type, ibv_sa_path_rec, rdma_cm_event, rdma_cm_id,
    rdma_event_channel, rdma_port_space,
};
use longhaul_cm::{ConnectionId, Event, ListenId, SidrId};
use longhaul_rdma::{ConnectionEvent, ConnectionSink, Engine, EventQueue, Happening};
use longhaul_rnic::AddressVector;

use super::multicast::Membership;
use super::port::{Claim, Sharing};
use crate::address::{HOP_LIMIT_DEFAULT, gid_of};
use crate::device::{self, PORT};
use crate::domain::ibv_alloc_pd;
use crate::guard::{guarded, minus_one, null};
use crate::object::{self, Acknowledgements, Kind};
use crate::process;

/// The library's part of an event channel.
pub(crate) struct Channel {
    pub(super) queue: Arc<EventQueue<ConnectionEvent>>,
}

impl Kind for Channel {
    type Public = rdma_event_channel;
    const MARK: u64 = 0x6c68_5f63_6d5f_6368;
}

/// The library's part of an identifier.
#[derive(Default)]
pub(crate) struct Id {
    state: Mutex<IdState>,
    pub(super) events: Acknowledgements,
}

impl Kind for Id {
    type Public = Shown;
    const MARK: u64 = 0x6c68_5f63_6d5f_6964;
}

/// An identifier as others see it: programs use its public part; the real library's rsockets, which
/// use these identifiers, access two members of that library's private part. These have not changed
/// since rdma-core 13.
#[repr(C)]
pub(crate) struct Shown {
    public: UnsafeCell<rdma_cm_id>,
    /// The real library's record of the device; null makes it look through its devices for the
    /// limits.
    device: *const c_void,
    connect_data: *const c_void,
    connect_data_len: usize,
    events_completed: c_int,
    connect_error: c_int,
    /// Set if the program gave no channel: calls then wait for their events.
    sync: AtomicI32,
}

/// The library's part of the identifier that a program's pointer refers to.
///
/// # Safety
/// As [`object::resolve`].
pub(super) unsafe fn resolve<'a>(id: *mut rdma_cm_id) -> Option<&'a Id> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<Id>(id.cast()) }
}

/// Drops an identifier that the program destroys.
///
/// # Safety
/// As [`object::destroy`].
pub(super) unsafe fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: passed on to the caller.
    unsafe { object::destroy::<Id>(id.cast()) };
}

/// Creates an unbound identifier. `sync`: its calls wait for their events.
pub(super) fn make(public: rdma_cm_id, sync: bool) -> *mut rdma_cm_id {
    let shown = Shown {
        public: UnsafeCell::new(public),
        device: ptr::null(),
        connect_data: ptr::null(),
        connect_data_len: 0,
        events_completed: 0,
        connect_error: 0,
        sync: AtomicI32::new(sync.into()),
    };
    object::create(shown, Id::default()).cast()
}

/// True if the identifier's calls wait for their events.
///
/// # Safety
/// `id` is live.
pub(super) unsafe fn is_sync(id: *mut rdma_cm_id) -> bool {
    // SAFETY: passed on to the caller.
    unsafe { (*id.cast::<Shown>()).sync.load(Ordering::Relaxed) != 0 }
}

/// # Safety
/// `id` is live.
unsafe fn set_sync(id: *mut rdma_cm_id, sync: bool) {
    // SAFETY: passed on to the caller.
    unsafe { (*id.cast::<Shown>()).sync.store(sync.into(), Ordering::Relaxed) };
}

/// Properties of the other side, from its REQ or REP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub ip: IpAddr,
    pub qpn: u32,
    /// First PSN that it expects from this side.
    pub psn: u32,
    pub mtu_code: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub traffic_class: u8,
}

impl Peer {
    /// The peer of a datagram service.
    pub(super) fn datagram(ip: IpAddr, traffic_class: u8) -> Peer {
        Peer {
            ip,
            qpn: 0,
            psn: 0,
            mtu_code: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            traffic_class,
        }
    }

    /// Its address in the device's form.
    pub(super) fn address(&self) -> AddressVector {
        AddressVector {
            destination_ip: self.ip,
            hop_limit: HOP_LIMIT_DEFAULT,
            traffic_class: self.traffic_class,
            flow_label: 0,
        }
    }
}

/// State of resolving the peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Resolved {
    /// Nothing is resolved.
    #[default]
    Nothing,
    /// The peer's address is resolved.
    Address,
    /// The route is resolved too.
    Route,
}

/// The mutable state of an identifier.
#[derive(Default)]
pub(super) struct IdState {
    pub listen: Option<ListenId>,
    /// The connection, or the number of the request for a datagram service.
    pub connection: Option<ConnectionId>,
    /// Set if `connection` is such a request.
    pub request: Option<SidrId>,
    /// The connection has been established at least once.
    pub was_established: bool,
    /// The transition of the queue pair failed; no further events are reported.
    pub failed: bool,
    pub passive: bool,
    pub peer: Option<Peer>,
    /// First PSN that this side expects from the peer.
    pub psn: u32,
    pub resolved: Resolved,
    /// 0 before the identifier is bound.
    pub local_port: u16,
    /// Holds `local_port`; a listener's children, and identifiers with an explicit source port,
    /// hold none.
    pub claim: Option<Claim>,
    pub sharing: Sharing,
    pub initiator_depth: u8,
    pub responder_resources: u8,
    pub traffic_class: u8,
    pub ack_timeout: Option<u8>,
    /// The kind of queue pair was chosen, not implied by the port space.
    pub typed: bool,
    /// Attributes from `rdma_create_ep` for the connections of a listener.
    pub qp_init_attr: Option<ibv_qp_init_attr>,
    pub connect_data: Vec<u8>,
    pub memberships: Vec<Membership>,
    pub memberships_made: u64,
}

impl Id {
    pub(super) fn lock(&self) -> MutexGuard<'_, IdState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if queue pairs of `qp_type` fit port space `ps`.
pub(super) fn suits(ps: rdma_port_space, qp_type: ibv_qp_type) -> bool {
    match ps {
        RDMA_PS_TCP => [IBV_QPT_RC, IBV_QPT_UC].contains(&qp_type),
        RDMA_PS_UDP | RDMA_PS_IPOIB => qp_type == IBV_QPT_UD,
        RDMA_PS_IB => [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD].contains(&qp_type),
        _ => false,
    }
}

/// The kind of queue pair that a port space implies.
pub(super) fn implied(ps: rdma_port_space) -> ibv_qp_type {
    if [RDMA_PS_UDP, RDMA_PS_IPOIB].contains(&ps) { IBV_QPT_UD } else { IBV_QPT_RC }
}

/// Identifiers by connection, since events name connections.
pub(super) static BY_CONNECTION: LazyLock<Mutex<HashMap<ConnectionId, usize>>> =
    LazyLock::new(Mutex::default);

/// The identifier of a connection; null if it has none any more.
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

/// The engine of all identifiers.
pub(super) fn engine() -> Result<Arc<Engine>, c_int> {
    let context = device::shared_context()?;
    // SAFETY: the library's own context.
    unsafe { device::context(context) }.map(|ours| Arc::clone(&ours.engine)).ok_or(libc::ENODEV)
}

/// The queue of an identifier's channel.
///
/// # Safety
/// `id` is live, and so is its channel.
pub(super) unsafe fn queue_of<'a>(
    id: *mut rdma_cm_id,
) -> Option<&'a Arc<EventQueue<ConnectionEvent>>> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<Channel>((*id).channel).map(|channel| &channel.queue) }
}

/// Destination of the engine's events for an identifier.
///
/// # Safety
/// As [`queue_of`].
pub(super) unsafe fn sink_of(id: *mut rdma_cm_id) -> Option<ConnectionSink> {
    // SAFETY: passed on to the caller.
    unsafe { queue_of(id) }
        .map(|queue| ConnectionSink { queue: Arc::clone(queue), cookie: id as u64 })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    guarded(ptr::null_mut(), || {
        if process::device().is_null() {
            return null(libc::ENODEV);
        }
        match EventQueue::new() {
            Ok(queue) => object::create(
                rdma_event_channel { fd: queue.fd() },
                Channel { queue: Arc::new(queue) },
            ),
            Err(error) => null(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the program's pointer, checked as far as possible; the program destroys it.
    guarded((), || unsafe { object::destroy::<Channel>(channel) });
}

/// Creates an identifier on a channel, or on its own if `channel` is null.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, c_int> {
    if !suits(ps, qp_type) {
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
        // SAFETY: the program's pointer, checked as far as possible.
        if unsafe { object::resolve::<Channel>(channel) }.is_none() {
            return Err(libc::EINVAL);
        }
        channel
    };
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::zeroed() };
    Ok(make(public, sync))
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
        if ![RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB].contains(&ps) {
            return minus_one(libc::EINVAL);
        }
        match create(channel, context, ps, implied(ps)) {
            Ok(made) => {
                // SAFETY: the caller provides space for a pointer.
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
pub(super) unsafe fn bind_to_device(
    id: *mut rdma_cm_id,
    peer: Option<IpAddr>,
) -> Result<(), c_int> {
    let context = device::shared_context()?;
    let pd = default_domain()?;
    let engine = engine()?;
    let attach = engine.attach();
    let ip = peer.map_or(attach.ip_addr(), |peer| attach.source_for(peer));
    // SAFETY: the caller guarantees the identifier.
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

/// Default protection domain of identifiers. It lives as long as the shared context.
fn default_domain() -> Result<*mut longhaul_abi_defs::ibv_pd, c_int> {
    static DOMAIN: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    let context = device::shared_context()?;
    let mut domain = DOMAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((pd, of)) = *domain
        && of == context as usize
    {
        return Ok(pd as *mut _);
    }
    // SAFETY: this library's context.
    let pd = unsafe { ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(libc::ENOMEM);
    }
    *domain = Some((pd as usize, context as usize));
    Ok(pd)
}

/// Gives an identifier the only path of RoCE.
///
/// # Safety
/// `id` is live and bound to the device.
pub(super) unsafe fn set_path(id: *mut rdma_cm_id) -> Result<(), c_int> {
    let engine = engine()?;
    // SAFETY: the caller guarantees the identifier; the record is calloc's, and freed with it.
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

/// Frees an identifier without users.
///
/// # Safety
/// `id` is live and destroyed by the program; `channel` is its own if it was created without one.
unsafe fn free(id: *mut rdma_cm_id, sync: bool) {
    // SAFETY: passed on to the caller.
    unsafe {
        libc::free((*id).route.path_rec.cast());
        let channel = (*id).channel;
        destroy(id);
        if sync {
            object::destroy::<Channel>(channel);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { resolve(id) }) else { return minus_one(libc::EINVAL) };
        let engine = match engine() {
            Ok(engine) => engine,
            Err(errno) => return minus_one(errno),
        };
        let (listen, connection, request, claim) = {
            let mut state = ours.lock();
            (state.listen.take(), state.connection.take(), state.request.take(), state.claim.take())
        };
        drop(claim);
        // After a fork the device is the parent's, and nobody is to be told.
        if let Some(listen) = listen {
            let _ = engine.unlisten(listen);
        }
        if let Some(connection) = connection {
            let _ = match request {
                Some(request) => engine.forget_service(request),
                None => engine.forget_connection(connection),
            };
            unbind_connection(connection);
        }
        let _ = engine.forget_resolutions(id as u64);
        // SAFETY: a live identifier.
        if let Some(queue) = unsafe { queue_of(id) }.filter(|queue| !queue.is_empty()) {
            for event in queue.retain(|event| !concerns(event, id as u64, connection)) {
                match event.what {
                    Happening::Manager(Event::ConnectRequest { connection, .. }) => {
                        let _ = engine.forget_connection(connection);
                    }
                    Happening::Manager(Event::SidrRequest { id, .. }) => {
                        let _ = engine.forget_service(id);
                    }
                    _ => {}
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
            free(id, is_sync(id));
        }
        0
    })
}

/// True if a queued event concerns this identifier. Events of a connection that has not been
/// adopted carry the listener's cookie, and are removed with it.
fn concerns(event: &ConnectionEvent, cookie: u64, connection: Option<ConnectionId>) -> bool {
    match &event.what {
        Happening::Local { .. } => event.cookie == cookie,
        Happening::Manager(manager) => {
            let about = manager.connection();
            connection == Some(about) || (event.cookie == cookie && of_connection(about).is_null())
        }
    }
}

/// Moves an identifier, and its unread events, to another channel; a null channel means one of its
/// own, for whose events its calls then wait. Waits until the events that were read have been
/// acknowledged.
///
/// # Safety
/// `id` is live, and `channel` is null or a pointer from the program.
pub(super) unsafe fn migrate(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> Result<(), c_int> {
    // SAFETY: passed on to the caller.
    let (ours, from) =
        unsafe { (resolve(id).ok_or(libc::EINVAL)?, queue_of(id).cloned().ok_or(libc::EINVAL)?) };
    let engine = engine()?;
    // SAFETY: a live identifier.
    let (was_sync, sync) = (unsafe { is_sync(id) }, channel.is_null());
    if was_sync && sync {
        return Err(libc::EINVAL);
    }
    let channel = if sync {
        // SAFETY: no arguments.
        let own = unsafe { rdma_create_event_channel() };
        if own.is_null() {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM));
        }
        own
    } else {
        channel
    };
    // SAFETY: as above.
    let to = unsafe { object::resolve::<Channel>(channel) }.ok_or(libc::EINVAL)?;
    {
        let state = ours.lock();
        let sink = ConnectionSink { queue: Arc::clone(&to.queue), cookie: id as u64 };
        if let Some(listen) = state.listen {
            let _ = engine.adopt_listener(listen, sink.clone());
        }
        if let Some(connection) = state.connection {
            let _ = engine.adopt(connection, sink.clone());
        }
        let _ = engine.adopt_resolutions(&sink);
        for event in from.retain(|event| !concerns(event, id as u64, state.connection)) {
            to.queue.push(event);
        }
    }
    // SAFETY: a live identifier, whose event is its own, and so is its channel where it was made
    // without one.
    unsafe {
        let before = std::mem::replace(&mut (*id).channel, channel);
        set_sync(id, sync);
        if was_sync {
            let event = std::mem::replace(&mut (*id).event, ptr::null_mut());
            if !event.is_null() {
                super::event::rdma_ack_cm_event(event);
            }
            object::destroy::<Channel>(before);
        }
    }
    ours.events.settle();
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program's pointers, checked as far as possible.
    guarded(-1, || unsafe { migrate(id, channel) }.map_or_else(minus_one, |()| 0))
}
