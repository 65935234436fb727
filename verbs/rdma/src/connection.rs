//! RDMA-CM connections: calls of the engine, and delivery of events.

use std::sync::Arc;

use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, ConnectionManager, Event, ListenError, ListenId,
    RejectReason, ServiceId, SidrId, SidrRequest, SidrStatus,
};
use longhaul_units::{Duration, Instant, Qpn};

use crate::device_state::DeviceState;
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::event_queue::EventQueue;

/// An event for a program's event channel.
#[derive(Clone, Debug)]
pub struct ConnectionEvent {
    /// The listener's or connection's cookie, which its owner chose.
    pub cookie: u64,
    /// The event.
    pub what: Happening,
}

/// The kind of event of a listener or connection.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one")]
pub enum Happening {
    /// An event of the connection manager.
    Manager(Event),
    /// An event that a layer above the engine sends to itself.
    Local {
        /// Defined by the layer.
        code: u32,
        /// 0 or a negative errno value.
        status: i32,
        /// Defined by the layer.
        value: u64,
    },
}

/// Destination of the events of a listener or connection.
#[derive(Clone)]
pub struct ConnectionSink {
    /// The event channel.
    pub queue: Arc<EventQueue<ConnectionEvent>>,
    /// The owner's cookie of the listener or connection.
    pub cookie: u64,
}

impl ConnectionSink {
    fn push(&self, event: Event) {
        self.queue.push(ConnectionEvent { cookie: self.cookie, what: Happening::Manager(event) });
    }
}

/// Time after a listener's close during which requests for its service are held instead of
/// rejected.
///
/// Programs close a listener and listen again at once (perftest does between its control connection
/// and its data connections, which for datagrams are in the other port space), and their peers do
/// not wait for that. With the kernel's slow address resolution peers hardly ever meet a rejection;
/// here they often would.
const LINGER: Duration = Duration::from_ms(10_000);
/// Time for which such a request is held before it is rejected.
const HOLD: Duration = Duration::from_ms(1_000);

/// Interval at which lingering listeners are checked.
const LINGER_LOOK: Duration = Duration::from_ms(10);

/// An open listener of the program.
pub(crate) struct Listening {
    sink: ConnectionSink,
    service_id: u64,
    /// A peer has requested the service.
    was_asked: bool,
}

/// A recently closed listener of the program.
pub(crate) struct Lingering {
    service_id: u64,
    listen: ListenId,
    until: Instant,
    /// Held requests with the time of their rejection, in order.
    held: Vec<(Instant, Event)>,
}

impl DeviceState {
    /// Rejects requests that were held for too long, and removes lingering listeners whose time is
    /// over.
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        if now.since(self.lingers_at) < LINGER_LOOK {
            return;
        }
        self.lingers_at = now;
        let Self { rnic, lingering, .. } = self;
        lingering.retain_mut(|lingering| {
            lingering.held.retain(|(until, event)| {
                if now >= *until {
                    refuse(rnic.cm(), now, event);
                }
                now < *until
            });
            let stays = now < lingering.until || !lingering.held.is_empty();
            if !stays {
                rnic.cm().unlisten(now, lingering.listen);
            }
            stays
        });
    }

    /// Removes the closed listener whose time ends first, with its held requests. `false` if there
    /// is none.
    fn end_oldest_lingering(&mut self, now: Instant) -> bool {
        let oldest = self.lingering.iter().enumerate().min_by_key(|(_, closed)| closed.until);
        let Some((at, _)) = oldest else { return false };
        let closed = self.lingering.swap_remove(at);
        for (_, event) in &closed.held {
            refuse(self.rnic.cm(), now, event);
        }
        self.rnic.cm().unlisten(now, closed.listen);
        true
    }

    /// Holds requests for a service without a listener, if that is not already done and the table
    /// has space.
    fn linger(&mut self, service_id: u64, until: Instant) {
        if let Some(closed) =
            self.lingering.iter_mut().find(|closed| closed.service_id == service_id)
        {
            closed.until = until;
        } else if let Ok(listen) = self.rnic.cm().listen(service_id, 0) {
            self.lingering.push(Lingering { service_id, listen, until, held: Vec::new() });
        }
    }

    /// A connection request goes to the listener's channel; until it is adopted, so do further
    /// events of the new connection.
    pub(crate) fn dispatch_connection(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { listen, .. } | Event::SidrRequest { listen, .. } => {
                let connection = event.connection();
                if let Some(listening) = self.listeners.get_mut(&listen) {
                    listening.was_asked = true;
                    listening.sink.push(event);
                    self.connections.insert(connection, listening.sink.clone());
                } else if let Some(closed) =
                    self.lingering.iter_mut().find(|closed| closed.listen == listen)
                {
                    // `lingers_at` is at most one interval old.
                    closed.held.push((self.lingers_at + HOLD, event));
                }
            }
            Event::Rejected { connection, .. }
            | Event::Unreachable { connection, .. }
            | Event::TimewaitExit { connection } => self.push_last(connection, event),
            Event::SidrResponse { .. } | Event::SidrUnreachable { .. } => {
                self.push_last(event.connection(), event);
            }
            Event::ConnectResponse { connection, .. }
            | Event::Established { connection }
            | Event::Disconnected { connection, .. } => {
                if let Some(sink) = self.connections.get(&connection) {
                    sink.push(event);
                }
            }
        }
    }
}

/// Rejects a held request.
fn refuse(cm: &mut ConnectionManager, now: Instant, event: &Event) {
    // The peer may have given it up meanwhile.
    let _ = match event {
        Event::SidrRequest { id, .. } => cm.sidr_reject(now, *id, SidrStatus::Unsupported, &[]),
        _ => cm.reject(now, event.connection(), RejectReason::INVALID_SERVICE_ID, &[]),
    };
}

impl DeviceState {
    /// Delivers an event after which the connection, or the request for a datagram service, no
    /// longer exists.
    fn push_last(&mut self, connection: ConnectionId, event: Event) {
        if let Some(sink) = self.connections.remove(&connection) {
            sink.push(event);
        }
    }
}

impl Engine {
    /// Accepts connection requests for `service_id`; see `ConnectionManager::listen`.
    ///
    /// # Errors
    /// [`RdmaError::Listen`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn listen(
        &self,
        service_id: u64,
        backlog: usize,
        sink: ConnectionSink,
    ) -> Result<ListenId, RdmaError> {
        self.start()?;
        let mut state = self.lock()?;
        let closed = state.lingering.iter().position(|closed| closed.service_id == service_id);
        if let Some(closed) = closed.map(|at| state.lingering.swap_remove(at)) {
            state.rnic.cm().set_backlog(service_id, backlog);
            state.listeners.insert(closed.listen, Listening { sink, service_id, was_asked: false });
            for (_, event) in closed.held {
                state.dispatch_connection(event);
            }
            return Ok(closed.listen);
        }
        let mut opened = state.rnic.cm().listen(service_id, backlog);
        // A lingering listener makes way for a new one.
        if matches!(opened, Err(ListenError::TooMany(_))) && state.end_oldest_lingering(self.now())
        {
            opened = state.rnic.cm().listen(service_id, backlog);
        }
        let listen = opened?;
        state.listeners.insert(listen, Listening { sink, service_id, was_asked: false });
        Ok(listen)
    }

    /// Stops accepting requests. No event of the listener is queued after this returns. Requests of
    /// the next ten seconds are held for up to a second each, in case the program listens to the
    /// service again, unless other listeners need the space.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn unlisten(&self, listen: ListenId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let until = self.now() + LINGER;
        if let Some(Listening { service_id, was_asked, .. }) = state.listeners.remove(&listen) {
            state.lingering.push(Lingering { service_id, listen, until, held: Vec::new() });
            // Programs also exchange addresses over a connection to the port at which they then
            // serve datagrams (perftest does). Without a request for a connection, no address was
            // exchanged.
            if let Some((ServiceId::TCP, port)) = ServiceId::parts(service_id)
                && was_asked
            {
                state.linger(ServiceId::udp(port), until);
            }
        }
        Ok(())
    }

    /// Requests a connection from a peer; see `ConnectionManager::connect`.
    ///
    /// # Errors
    /// [`RdmaError::Connect`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn connect(
        &self,
        request: &ConnectRequest<'_>,
        sink: ConnectionSink,
    ) -> Result<ConnectionId, RdmaError> {
        self.start()?;
        self.await_peer()?;
        let mut state = self.lock()?;
        let now = self.now();
        let connection = state.rnic.cm().connect(now, request)?;
        state.connections.insert(connection, sink);
        state.send(now);
        self.rouse_thread(&state);
        Ok(connection)
    }

    /// Redirects the events of a connection to `sink`: for a new connection from a request, or one
    /// that moves to another channel.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn adopt(&self, connection: ConnectionId, sink: ConnectionSink) -> Result<(), RdmaError> {
        if let Some(known) = self.lock()?.connections.get_mut(&connection) {
            *known = sink;
        }
        Ok(())
    }

    /// Redirects the requests of a listener to another channel.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn adopt_listener(&self, listen: ListenId, sink: ConnectionSink) -> Result<(), RdmaError> {
        if let Some(listening) = self.lock()?.listeners.get_mut(&listen) {
            listening.sink = sink;
        }
        Ok(())
    }

    /// Accepts a connection request.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn accept(&self, connection: ConnectionId, accept: &Accept<'_>) -> Result<(), RdmaError> {
        self.with(|rnic, now| rnic.cm().accept(now, connection, accept))??;
        Ok(())
    }

    /// Rejects a connection request or a reply.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn reject(
        &self,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), RdmaError> {
        self.with(|rnic, now| rnic.cm().reject(now, connection, reason, private_data))??;
        Ok(())
    }

    /// Tells the peer that accepted the connection that this side is ready.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn ready_to_use(&self, connection: ConnectionId) -> Result<(), RdmaError> {
        self.with(|rnic, now| rnic.cm().ready_to_use(now, connection))??;
        Ok(())
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn disconnect(&self, connection: ConnectionId) -> Result<(), RdmaError> {
        self.with(|rnic, now| rnic.cm().disconnect(now, connection))??;
        Ok(())
    }

    /// Requests the datagram QP of a service from a peer; see `ConnectionManager::sidr_request`.
    /// The events of the request carry the number that [`Event::connection`] returns.
    ///
    /// # Errors
    /// [`RdmaError::Connect`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn resolve_service(
        &self,
        request: &SidrRequest<'_>,
        sink: ConnectionSink,
    ) -> Result<SidrId, RdmaError> {
        self.start()?;
        self.await_peer()?;
        let mut state = self.lock()?;
        let now = self.now();
        let id = state.rnic.cm().sidr_request(now, request)?;
        state.connections.insert(id.into(), sink);
        state.send(now);
        self.rouse_thread(&state);
        Ok(id)
    }

    /// Answers a request for the datagram QP of a service.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn offer_service(
        &self,
        id: SidrId,
        qpn: Qpn,
        qkey: u32,
        private_data: &[u8],
    ) -> Result<(), RdmaError> {
        self.forget_sink(id)?;
        self.with(|rnic, now| rnic.cm().sidr_accept(now, id, qpn, qkey, private_data))??;
        Ok(())
    }

    /// Refuses a request for the datagram QP of a service.
    ///
    /// # Errors
    /// [`RdmaError::Call`], [`RdmaError::Forked`].
    pub fn refuse_service(
        &self,
        id: SidrId,
        status: SidrStatus,
        private_data: &[u8],
    ) -> Result<(), RdmaError> {
        self.forget_sink(id)?;
        self.with(|rnic, now| rnic.cm().sidr_reject(now, id, status, private_data))??;
        Ok(())
    }

    /// Drops a request for a datagram service, sent or received. No event of it is queued after
    /// this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_service(&self, id: SidrId) -> Result<(), RdmaError> {
        self.forget_sink(id)?;
        // It may have ended already.
        let _ = self.with(|rnic, now| rnic.cm().sidr_destroy(now, id))?;
        Ok(())
    }

    fn forget_sink(&self, id: SidrId) -> Result<(), RdmaError> {
        self.lock()?.connections.remove(&ConnectionId::from(id));
        Ok(())
    }

    /// Drops a connection in any state. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_connection(&self, connection: ConnectionId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        // It may have ended already.
        let _ = state.rnic.cm().destroy(now, connection);
        state.connections.remove(&connection);
        state.send(now);
        self.rouse_thread(&state);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use longhaul_cm::{DropReason, Transport};
    use longhaul_units::Psn;

    use super::*;
    use crate::attach::{Attach, ENV_IP, ENV_ROLE, ENV_SOCKET, Role};

    const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    const PORT: u16 = 7471;

    fn engine(name: &str) -> Arc<Engine> {
        let socket = std::env::temp_dir()
            .join(format!("longhaul-listen-{}-{name}.sock", std::process::id()));
        let attach = Attach::from_lookup(|variable| match variable {
            ENV_SOCKET => Some(socket.display().to_string()),
            ENV_IP => Some(US.to_string()),
            ENV_ROLE => Some("master".to_owned()),
            _ => None,
        });
        let attach = attach.unwrap();
        assert!(matches!(attach.line, crate::attach::Line::Memif { role: Role::Master, .. }));
        // SAFETY: no memory is ever registered.
        unsafe { Engine::new(attach) }.unwrap()
    }

    fn sink() -> ConnectionSink {
        ConnectionSink { queue: Arc::new(EventQueue::new().unwrap()), cookie: 0 }
    }

    /// A peer, which sends requests to the engine.
    struct Peer(ConnectionManager);

    impl Peer {
        fn new() -> Self {
            Peer(ConnectionManager::new(longhaul_cm::Config {
                seed: 7,
                ..longhaul_cm::Config::default()
            }))
        }

        fn ask(&mut self, engine: &Engine, qpn: u32) -> Option<DropReason> {
            let request = ConnectRequest {
                destination_ip: US,
                source_ip: PEER,
                service_id: ServiceId::tcp(PORT),
                transport: Transport::Rc,
                local_qpn: Qpn::new(qpn),
                starting_psn: Psn::new(0),
                responder_resources: 1,
                initiator_depth: 1,
                flow_control: false,
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
            self.0.connect(Instant::from_ns(1), &request).unwrap();
            self.deliver(engine)
        }

        fn ask_for_datagrams(&mut self, engine: &Engine) -> Option<DropReason> {
            let request = SidrRequest {
                destination_ip: US,
                source_ip: PEER,
                service_id: ServiceId::udp(PORT),
                private_data: &[],
            };
            self.0.sidr_request(Instant::from_ns(1), &request).unwrap();
            self.deliver(engine)
        }

        fn deliver(&mut self, engine: &Engine) -> Option<DropReason> {
            let mut dropped = None;
            self.0.poll_mad(Instant::from_ns(1), |_, mad| {
                dropped = engine.with(|rnic, now| rnic.cm().handle_mad(now, PEER, mad)).unwrap();
            });
            // The next call dispatches events.
            engine.with_quietly(|_| ()).unwrap();
            dropped
        }
    }

    #[test]
    fn a_service_that_is_listened_to_again_has_the_new_backlog() {
        let engine = engine("backlog");
        let listen = engine.listen(ServiceId::tcp(PORT), 8, sink()).unwrap();
        engine.unlisten(listen).unwrap();
        engine.listen(ServiceId::tcp(PORT), 1, sink()).unwrap();
        let mut peer = Peer::new();
        assert_eq!(
            [11, 12].map(|qpn| peer.ask(&engine, qpn)),
            [None, Some(DropReason::BacklogFull)]
        );
    }

    #[test]
    fn closed_listeners_make_room_for_new_ones() {
        let engine = engine("room");
        for port in 1..=3000 {
            let listen = engine.listen(ServiceId::tcp(port), 0, sink()).unwrap();
            engine.unlisten(listen).unwrap();
        }
        // Open listeners stay.
        let open: Vec<_> =
            (1..=1024).map(|port| engine.listen(ServiceId::ib(port), 0, sink()).unwrap()).collect();
        assert!(matches!(engine.listen(ServiceId::ib(9999), 0, sink()), Err(RdmaError::Listen(_))));
        engine.unlisten(open[0]).unwrap();
        engine.listen(ServiceId::ib(9999), 0, sink()).unwrap();
    }

    #[test]
    fn datagrams_are_held_only_where_an_address_may_have_been_exchanged() {
        let engine = engine("datagrams");
        let listen = engine.listen(ServiceId::tcp(PORT), 0, sink()).unwrap();
        engine.unlisten(listen).unwrap();
        let mut peer = Peer::new();
        assert_eq!(
            peer.ask_for_datagrams(&engine),
            Some(DropReason::NoListener),
            "nobody has asked"
        );
        let listen = engine.listen(ServiceId::tcp(PORT), 0, sink()).unwrap();
        assert_eq!(peer.ask(&engine, 11), None);
        engine.unlisten(listen).unwrap();
        assert_eq!(peer.ask_for_datagrams(&engine), None);
        let sink = sink();
        engine.listen(ServiceId::udp(PORT), 0, sink.clone()).unwrap();
        let event = sink.queue.pop_within(std::time::Duration::ZERO).unwrap();
        assert!(matches!(event.what, Happening::Manager(Event::SidrRequest { .. })), "{event:?}");
    }
}
