//! Connections by RDMA-CM, with blocking calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, Event, ListenId, PrivateData, RdmaCmHeader, RejectReason,
    RequestInfo, ServiceId, Transport,
};
use longhaul_rnic::Mtu;

use super::{Device, Endpoint, PathSettings, QueuePair};
use crate::connection::{ConnectionEvent, ConnectionSink, Happening};
use crate::engine::Engine;
use crate::error::RdmaError;
use crate::event_queue::EventQueue;

type Events = EventQueue<ConnectionEvent>;

/// An established connection. The program owns the queue pair; dropping the connection ends it.
pub struct Connection {
    engine: Arc<Engine>,
    id: ConnectionId,
    events: Arc<Events>,
    /// Of the peer's reply; `None` on the passive side.
    reply: Option<PrivateData>,
}

/// A peer's request for a connection. Dropping it without an answer forgets it.
pub struct ConnectionRequest {
    connection: Connection,
    info: Box<RequestInfo>,
}

/// A listener on a port of the RDMA connection manager.
pub struct Listener {
    engine: Arc<Engine>,
    id: ListenId,
    events: Arc<Events>,
}

fn event(events: &Events, limit: Duration) -> Result<Event, RdmaError> {
    match events.pop_within(limit) {
        Ok(ConnectionEvent { what: Happening::Manager(event), .. }) => Ok(event),
        Ok(_) => Err(RdmaError::Peer("sent nothing of ours")),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Err(RdmaError::TimedOut(limit))
        }
        Err(source) => Err(RdmaError::Io { operation: "waiting for a connection event", source }),
    }
}

fn queue() -> Result<Arc<Events>, RdmaError> {
    let queue = EventQueue::new().map(Arc::new);
    queue.map_err(|source| RdmaError::Io { operation: "eventfd", source })
}

impl Device {
    /// Listens on `port`.
    ///
    /// # Errors
    /// [`RdmaError::Listen`], and those of attaching the port.
    pub fn listen(&self, port: u16) -> Result<Listener, RdmaError> {
        let events = queue()?;
        let sink = ConnectionSink { queue: Arc::clone(&events), cookie: 0 };
        let id = self.engine.listen(ServiceId::tcp(port), 0, sink)?;
        Ok(Listener { engine: Arc::clone(&self.engine), id, events })
    }

    /// Connects `qp`, which must be initialized, to the listener at `to`, with the path MTU of
    /// `path` or the smaller one that the peer requests.
    ///
    /// # Errors
    /// [`RdmaError::Peer`] if the peer refuses, [`RdmaError::TimedOut`] if it does not respond in
    /// time.
    pub fn connect(
        &self,
        qp: &QueuePair,
        to: SocketAddr,
        path: &PathSettings,
        limit: Duration,
    ) -> Result<Connection, RdmaError> {
        self.connect_with(qp, to, path, &[], limit)
    }

    /// As [`Device::connect`], with at most 56 bytes of private data.
    ///
    /// # Errors
    /// As [`Device::connect`]; [`RdmaError::Refused`] if the peer's program refuses.
    pub fn connect_with(
        &self,
        qp: &QueuePair,
        to: SocketAddr,
        path: &PathSettings,
        private_data: &[u8],
        limit: Duration,
    ) -> Result<Connection, RdmaError> {
        let events = queue()?;
        let psn = self.engine.fresh_psn();
        let source = self.engine.attach().source_for(to.ip());
        let header = RdmaCmHeader { source_port: 0, source, destination: to.ip() };
        let data = [&header.write(), private_data].concat();
        let request = ConnectRequest {
            destination_ip: to.ip(),
            source_ip: source,
            service_id: ServiceId::tcp(to.port()),
            transport: Transport::Rc,
            local_qpn: qp.qpn(),
            starting_psn: psn,
            responder_resources: path.reads_max,
            initiator_depth: path.reads_max,
            flow_control: false,
            retry_count: path.retry_count,
            rnr_retry_count: path.rnr_retry,
            path_mtu_code: path.mtu.code(),
            local_ack_timeout: path.timeout,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &data,
        };
        let sink = ConnectionSink { queue: Arc::clone(&events), cookie: 0 };
        let id = self.engine.connect(&request, sink)?;
        let mut connection =
            Connection { engine: Arc::clone(&self.engine), id, events, reply: None };
        self.engine.hand_over();
        match event(&connection.events, limit)? {
            Event::ConnectResponse { info, .. } => {
                // Each side tells the other its first PSN.
                let peer = Endpoint { ip: to.ip(), qpn: info.peer_qpn, psn };
                let path = PathSettings {
                    mtu: Mtu::from_code(info.path_mtu_code).unwrap_or(path.mtu),
                    ..*path
                };
                let reads = path.reads_max.min(info.initiator_depth);
                qp.connect_reading(info.peer_psn, &peer, &path, reads)?;
                self.engine.ready_to_use(id)?;
                connection.reply = Some(info.private_data);
                Ok(connection)
            }
            Event::Rejected { reason: RejectReason::CONSUMER, private_data, .. } => {
                Err(RdmaError::Refused(private_data.as_slice().into()))
            }
            Event::Unreachable { .. } => Err(RdmaError::Peer("does not answer")),
            _ => Err(RdmaError::Peer("refused the connection")),
        }
    }
}

impl Listener {
    /// Waits for a connection request and accepts it with `qp`, which must be initialized, with its
    /// receives posted. Path MTU, timeout and retries are those of the request.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`] if no request, or no confirmation, arrives in time;
    /// [`RdmaError::Peer`].
    pub fn accept(
        &self,
        qp: &QueuePair,
        path: &PathSettings,
        limit: Duration,
    ) -> Result<Connection, RdmaError> {
        let connection = self.request(limit)?.accept(qp, path, &[])?;
        self.engine.hand_over();
        match event(&connection.events, limit)? {
            Event::Established { .. } => Ok(connection),
            _ => Err(RdmaError::Peer("gave up")),
        }
    }

    /// Waits for a connection request; a limit of zero never blocks.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`]; [`RdmaError::Peer`] if the peer withdrew an earlier one;
    /// [`RdmaError::Rejected`].
    pub fn request(&self, limit: Duration) -> Result<ConnectionRequest, RdmaError> {
        if !limit.is_zero() {
            self.engine.hand_over();
        }
        let Event::ConnectRequest { connection: id, info, .. } = event(&self.events, limit)? else {
            return Err(RdmaError::Peer("gave up"));
        };
        let events = match EventQueue::new() {
            Ok(events) => Arc::new(events),
            Err(source) => {
                self.engine.reject(id, RejectReason::NO_RESOURCES, &[])?;
                self.engine.forget_connection(id)?;
                return Err(RdmaError::Rejected { peer: info.peer_ip, source });
            }
        };
        self.engine.adopt(id, ConnectionSink { queue: Arc::clone(&events), cookie: 0 })?;
        let engine = Arc::clone(&self.engine);
        let connection = Connection { engine, id, events, reply: None };
        Ok(ConnectionRequest { connection, info })
    }
}

impl ConnectionRequest {
    /// The peer.
    #[must_use]
    pub fn peer(&self) -> IpAddr {
        self.info.peer_ip
    }

    /// The address that the peer connects to.
    #[must_use]
    pub fn local(&self) -> IpAddr {
        self.info.local_ip
    }

    /// Private data of the peer's program, with trailing zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.info.user_data()
    }

    /// Accepts it with `qp`, which must be initialized, with its receives posted, and with at most
    /// 196 bytes of private data. Does not wait for the peer's confirmation. Path MTU, timeout and
    /// retries are those of the request.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Call`].
    pub fn accept(
        self,
        qp: &QueuePair,
        path: &PathSettings,
        private_data: &[u8],
    ) -> Result<Connection, RdmaError> {
        let ConnectionRequest { connection, info } = self;
        let engine = &connection.engine;
        let psn = engine.fresh_psn();
        let (reads, serves) = (info.initiator_depth, info.responder_resources);
        let (reads, serves) = (path.reads_max.min(reads), path.reads_max.min(serves));
        let path = PathSettings {
            // The manager accepts only valid codes, up to the device's maximum.
            mtu: Mtu::from_code(info.path_mtu_code).unwrap_or(path.mtu),
            timeout: info.local_ack_timeout,
            retry_count: info.retry_count,
            rnr_retry: info.rnr_retry_count,
            ..*path
        };
        let peer = Endpoint { ip: info.peer_ip, qpn: info.peer_qpn, psn };
        qp.connect_reading(info.peer_psn, &peer, &path, reads)?;
        let accept = Accept {
            local_qpn: qp.qpn(),
            starting_psn: psn,
            responder_resources: serves,
            initiator_depth: reads,
            flow_control: false,
            rnr_retry_count: path.rnr_retry,
            srq: false,
            private_data,
        };
        engine.accept(connection.id, &accept)?;
        Ok(connection)
    }

    /// Rejects it, with at most 148 bytes of private data.
    ///
    /// # Errors
    /// [`RdmaError::Call`].
    pub fn reject(self, private_data: &[u8]) -> Result<(), RdmaError> {
        let Connection { engine, id, .. } = &self.connection;
        engine.reject(*id, RejectReason::CONSUMER, private_data)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only after a fork.
        let _ = self.engine.unlisten(self.id);
    }
}

impl Connection {
    /// Private data of the peer's reply, with trailing zeros; none on the passive side.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        self.reply.as_ref().map_or(&[], PrivateData::as_slice)
    }

    /// True if the connection ended since the last call; never blocks.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        std::iter::from_fn(|| self.events.try_pop())
            .any(|event| !matches!(event.what, Happening::Manager(Event::Established { .. })))
    }

    /// Ends the connection and waits until the peer has confirmed. The program must move its queue
    /// pair to the error state, or drop it.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`].
    pub fn disconnect(&self, limit: Duration) -> Result<(), RdmaError> {
        self.engine.disconnect(self.id)?;
        self.wait_for_end(limit)
    }

    /// Waits until either side has ended the connection.
    ///
    /// # Errors
    /// [`RdmaError::TimedOut`].
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), RdmaError> {
        self.engine.hand_over();
        loop {
            if matches!(
                event(&self.events, limit)?,
                Event::Disconnected { .. } | Event::TimewaitExit { .. }
            ) {
                return Ok(());
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Fails only after a fork.
        let _ = self.engine.forget_connection(self.id);
    }
}
