//! Connections by RDMA-CM: the engine's calls, and where their events go.

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

/// Something that a program learns from an event channel.
#[derive(Clone, Debug)]
pub struct ConnectionEvent {
    /// What the receiver of the event calls the listener or connection.
    pub cookie: u64,
    /// What happened.
    pub what: Happening,
}

/// What happened to a listener or connection.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are the large one")]
pub enum Happening {
    /// The connection manager says so.
    Manager(Event),
    /// A layer above the engine says so, to itself: a number of its own, and a status.
    Local {
        /// Whatever the layer means by it.
        code: u32,
        /// 0 or a negative errno value.
        status: i32,
        /// Whatever the layer means by it.
        value: u64,
    },
}

/// Where the events of a listener or connection go.
#[derive(Clone)]
pub struct ConnectionSink {
    /// The event channel.
    pub queue: Arc<EventQueue<ConnectionEvent>>,
    /// What its owner calls the listener or connection.
    pub cookie: u64,
}

impl ConnectionSink {
    fn push(&self, event: Event) {
        self.queue.push(ConnectionEvent { cookie: self.cookie, what: Happening::Manager(event) });
    }
}

/// How long after a listener went requests for its service are held rather than rejected.
///
/// Programs close a listener and listen again at once (perftest does between its control connection
/// and its data connections, and where those are datagrams in the other port space), and their
/// peers do not wait for that. With the kernel's slow address resolution they hardly ever meet a
/// rejection; here they would often.
const LINGER: Duration = Duration::from_ms(10_000);
/// How long such a request is held before it is rejected.
const HOLD: Duration = Duration::from_ms(1_000);

/// How often the listeners that linger are looked at.
const LINGER_LOOK: Duration = Duration::from_ms(10);

/// A listener that the program has open.
pub(crate) struct Listening {
    sink: ConnectionSink,
    service_id: u64,
    /// Somebody has asked for the service.
    was_asked: bool,
}

/// A listener that the program has closed a moment ago.
pub(crate) struct Lingering {
    service_id: u64,
    listen: ListenId,
    until: Instant,
    /// Each with the moment of its rejection; in order.
    held: Vec<(Instant, Event)>,
}

impl DeviceState {
    /// Rejects what was held for too long, and forgets the listeners that nobody opened again.
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

    /// Forgets the closed listener whose time is over first, with what it held. False when there is
    /// none.
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

    /// Holds requests for a service that nobody listens to, where there is none of it and room for
    /// it.
    fn linger(&mut self, service_id: u64, until: Instant) {
        if let Some(closed) =
            self.lingering.iter_mut().find(|closed| closed.service_id == service_id)
        {
            closed.until = until;
        } else if let Ok(listen) = self.rnic.cm().listen(service_id, 0) {
            self.lingering.push(Lingering { service_id, listen, until, held: Vec::new() });
        }
    }

    /// A connection request goes to the listener's channel; until it is adopted, so do the new
    /// connection's further events.
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
                    // As good as now: it is at most a look ago.
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

/// Rejects a request that was held.
fn refuse(cm: &mut ConnectionManager, now: Instant, event: &Event) {
    // It may have been given up by the peer meanwhile.
    let _ = match event {
        Event::SidrRequest { id, .. } => cm.sidr_reject(now, *id, SidrStatus::Unsupported, &[]),
        _ => cm.reject(now, event.connection(), RejectReason::INVALID_SERVICE_ID, &[]),
    };
}

impl DeviceState {
    /// An event after which the connection, or the request for a datagram service, is gone.
    fn push_last(&mut self, connection: ConnectionId, event: Event) {
        if let Some(sink) = self.connections.remove(&connection) {
            sink.push(event);
        }
    }
}

impl Engine {
    /// Takes connection requests for `service_id`; see `ConnectionManager::listen`.
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
        // Listeners that the program has closed are none of its own.
        if matches!(opened, Err(ListenError::TooMany(_))) && state.end_oldest_lingering(self.now())
        {
            opened = state.rnic.cm().listen(service_id, backlog);
        }
        let listen = opened?;
        state.listeners.insert(listen, Listening { sink, service_id, was_asked: false });
        Ok(listen)
    }

    /// Takes no more requests. No event of the listener is queued after this returns. Requests of
    /// the next ten seconds are held for up to a second each, in case the service is listened to
    /// again, unless other listeners need the room.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn unlisten(&self, listen: ListenId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let until = self.now() + LINGER;
        if let Some(Listening { service_id, was_asked, .. }) = state.listeners.remove(&listen) {
            state.lingering.push(Lingering { service_id, listen, until, held: Vec::new() });
            // Programs also exchange addresses over a connection to the port at which they then
            // serve datagrams (perftest does). Where nobody asked for a connection, no address was
            // exchanged.
            if let Some((ServiceId::TCP, port)) = ServiceId::parts(service_id)
                && was_asked
            {
                state.linger(ServiceId::udp(port), until);
            }
        }
        Ok(())
    }

    /// Asks a peer for a connection; see `ConnectionManager::connect`.
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

    /// From now on sends the events of a connection to `sink`: a new one that a request brought, or
    /// one that moves to another channel.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn adopt(&self, connection: ConnectionId, sink: ConnectionSink) -> Result<(), RdmaError> {
        if let Some(known) = self.lock()?.connections.get_mut(&connection) {
            *known = sink;
        }
        Ok(())
    }

    /// Sends the requests of a listener to another channel.
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

    /// Refuses a connection request or a reply.
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

    /// Tells the peer that accepted us that we are ready.
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

    /// Asks a peer for the datagram QP of a service; see `ConnectionManager::sidr_request`. The
    /// events of the request carry the number that [`Event::connection`] gives.
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

    /// Names the datagram QP of a service to who asked for it.
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

    /// Refuses to name one.
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

    /// Forgets a request for a datagram service, ours or a peer's. No event of it is queued after
    /// this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_service(&self, id: SidrId) -> Result<(), RdmaError> {
        self.forget_sink(id)?;
        // It may have ended by itself.
        let _ = self.with(|rnic, now| rnic.cm().sidr_destroy(now, id))?;
        Ok(())
    }

    fn forget_sink(&self, id: SidrId) -> Result<(), RdmaError> {
        self.lock()?.connections.remove(&ConnectionId::from(id));
        Ok(())
    }

    /// Forgets a connection in whatever state. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn forget_connection(&self, connection: ConnectionId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        // It may have ended by itself.
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

    use longhaul_cm::{Drop, Transport};
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

    /// A peer, which asks the engine.
    struct Peer(ConnectionManager);

    impl Peer {
        fn new() -> Self {
            Peer(ConnectionManager::new(longhaul_cm::Config {
                seed: 7,
                ..longhaul_cm::Config::default()
            }))
        }

        fn ask(&mut self, engine: &Engine, qpn: u32) -> Option<Drop> {
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

        fn ask_for_datagrams(&mut self, engine: &Engine) -> Option<Drop> {
            let request = SidrRequest {
                destination_ip: US,
                source_ip: PEER,
                service_id: ServiceId::udp(PORT),
                private_data: &[],
            };
            self.0.sidr_request(Instant::from_ns(1), &request).unwrap();
            self.deliver(engine)
        }

        fn deliver(&mut self, engine: &Engine) -> Option<Drop> {
            let mut dropped = None;
            self.0.poll_mad(Instant::from_ns(1), |_, mad| {
                dropped = engine.with(|rnic, now| rnic.cm().handle_mad(now, PEER, mad)).unwrap();
            });
            // Events are dispatched with the next call.
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
        assert_eq!([11, 12].map(|qpn| peer.ask(&engine, qpn)), [None, Some(Drop::BacklogFull)]);
    }

    #[test]
    fn closed_listeners_make_room_for_new_ones() {
        let engine = engine("room");
        for port in 1..=3000 {
            let listen = engine.listen(ServiceId::tcp(port), 0, sink()).unwrap();
            engine.unlisten(listen).unwrap();
        }
        // Those that are open stay.
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
        assert_eq!(peer.ask_for_datagrams(&engine), Some(Drop::NoListener), "nobody has asked");
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
