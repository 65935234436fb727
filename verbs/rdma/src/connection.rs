//! Connections by RDMA-CM: the engine's calls, and where their events go.

use std::sync::Arc;

use longhaul_cm::{Accept, ConnectRequest, ConnectionId, Event, ListenId, RejectReason};

use longhaul_units::{Duration, Instant};

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
pub enum Happening {
    /// The connection manager says so.
    Manager(Event),
    /// A layer above the engine says so, to itself: a number of its own, and a status.
    Local {
        /// Whatever the layer means by it.
        code: u32,
        /// 0 or a negative errno value.
        status: i32,
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
/// Programs close a listener and listen again at once (perftest does between its control connection and its
/// data connections), and their peers do not wait for that. With the kernel's slow address resolution they
/// hardly ever meet a rejection; here they would often.
const LINGER: Duration = Duration::from_ms(10_000);
/// How long such a request is held before it is rejected.
const HOLD: Duration = Duration::from_ms(1_000);

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
        let Self { rnic, lingering, .. } = self;
        lingering.retain_mut(|lingering| {
            lingering.held.retain(|(until, event)| {
                if now >= *until {
                    // It may have been given up by the peer meanwhile.
                    let reason = RejectReason::INVALID_SERVICE_ID;
                    let _ = rnic.cm().reject(now, event.connection(), reason, &[]);
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

    /// A connection request goes to the listener's channel; until it is adopted, so do the new connection's
    /// further events.
    pub(crate) fn dispatch_connection(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { listen, connection, .. } => {
                if let Some((sink, _)) = self.listeners.get(&listen).cloned() {
                    sink.push(event);
                    self.connections.insert(connection, sink);
                } else if let Some(closed) = self.lingering.iter_mut().find(|closed| closed.listen == listen)
                {
                    closed.held.push((self.lingers_at + HOLD, event));
                }
            }
            Event::Rejected { connection, .. }
            | Event::Unreachable { connection, .. }
            | Event::TimewaitExit { connection } => {
                if let Some(sink) = self.connections.remove(&connection) {
                    sink.push(event);
                }
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
            state.listeners.insert(closed.listen, (sink, service_id));
            for (_, event) in closed.held {
                state.dispatch_connection(event);
            }
            return Ok(closed.listen);
        }
        let listen = state.rnic.cm().listen(service_id, backlog)?;
        state.listeners.insert(listen, (sink, service_id));
        Ok(listen)
    }

    /// Takes no more requests. No event of the listener is queued after this returns. Requests of the next
    /// ten seconds are held for up to a second each, in case the service is listened to again.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn unlisten(&self, listen: ListenId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let until = self.now() + LINGER;
        if let Some((_, service_id)) = state.listeners.remove(&listen) {
            state.lingering.push(Lingering { service_id, listen, until, held: Vec::new() });
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

    /// From now on sends the events of a connection to `sink`: a new one that a request brought, or one
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

    /// Sends the requests of a listener to another channel.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn adopt_listener(&self, listen: ListenId, sink: ConnectionSink) -> Result<(), RdmaError> {
        if let Some((known, _)) = self.lock()?.listeners.get_mut(&listen) {
            *known = sink;
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
