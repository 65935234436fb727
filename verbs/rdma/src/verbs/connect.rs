//! Connections by RDMA-CM, with blocking calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, Event, ListenId, RdmaCmHeader, ServiceId, Transport,
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
    let queue =
        EventQueue::new().map_err(|source| RdmaError::Io { operation: "eventfd", source })?;
    Ok(Arc::new(queue))
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
        let events = queue()?;
        let psn = self.engine.fresh_psn();
        let source = self.engine.attach().source_for(to.ip());
        let header = RdmaCmHeader { source_port: 0, source, destination: to.ip() };
        let data = header.write();
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
        let connection = Connection { engine: Arc::clone(&self.engine), id, events };
        self.engine.hand_over();
        match event(&connection.events, limit)? {
            Event::ConnectResponse { info, .. } => {
                // Each side tells the other its first PSN.
                let peer = Endpoint { ip: to.ip(), qpn: info.peer_qpn, psn };
                let path = PathSettings {
                    mtu: Mtu::from_code(info.path_mtu_code).unwrap_or(path.mtu),
                    reads_max: path.reads_max.min(info.initiator_depth),
                    ..*path
                };
                qp.connect(info.peer_psn, &peer, &path)?;
                self.engine.ready_to_use(id)?;
                Ok(connection)
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
        self.engine.hand_over();
        let Event::ConnectRequest { connection: id, info, .. } = event(&self.events, limit)? else {
            return Err(RdmaError::Peer("gave up"));
        };
        let events = queue()?;
        self.engine.adopt(id, ConnectionSink { queue: Arc::clone(&events), cookie: 0 })?;
        let connection = Connection { engine: Arc::clone(&self.engine), id, events };
        let psn = self.engine.fresh_psn();
        let reads_max = path.reads_max.min(info.initiator_depth).min(info.responder_resources);
        let path = PathSettings {
            // The manager accepts only valid codes, up to the device's maximum.
            mtu: Mtu::from_code(info.path_mtu_code).unwrap_or(path.mtu),
            reads_max,
            timeout: info.local_ack_timeout,
            retry_count: info.retry_count,
            rnr_retry: info.rnr_retry_count,
            ..*path
        };
        qp.connect(info.peer_psn, &Endpoint { ip: info.peer_ip, qpn: info.peer_qpn, psn }, &path)?;
        let accept = Accept {
            local_qpn: qp.qpn(),
            starting_psn: psn,
            responder_resources: reads_max,
            initiator_depth: reads_max,
            flow_control: false,
            rnr_retry_count: path.rnr_retry,
            srq: false,
            private_data: &[],
        };
        self.engine.accept(id, &accept)?;
        self.engine.hand_over();
        match event(&connection.events, limit)? {
            Event::Established { .. } => Ok(connection),
            _ => Err(RdmaError::Peer("gave up")),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only after a fork.
        let _ = self.engine.unlisten(self.id);
    }
}

impl Connection {
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
