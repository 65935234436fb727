//! The passive side: listeners, REQs, accepting, RTUs.

use crate::connection::Connection;
use crate::event::PrivateData;
use crate::manager::{Listener, fits};
use crate::state::State;
use crate::{
    Accept, CallError, ConnectionId, ConnectionManager, DropReason, Event, ListenError, ListenId,
    RequestInfo, Role, ServiceId, Transport, message,
};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{
    Header, MessageRejected, RejectReason, Rep, Req, Rtu, TransportService, ip_of_gid,
};
use std::net::IpAddr;

impl ConnectionManager {
    /// Accepts requests for `service_id` from here on: for connections; for datagram services in
    /// the UDP and IPoIB port spaces; for both with ids outside the TCP, UDP and IPoIB port spaces.
    /// `backlog`: requests that the program has neither accepted nor rejected; 0 for the default.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> Result<ListenId, ListenError> {
        if self.listeners.contains_key(&service_id) {
            return Err(ListenError::InUse(service_id));
        }
        if self.listeners.len() >= self.config.listeners_max {
            return Err(ListenError::TooMany(self.config.listeners_max));
        }
        let id = ListenId(self.next_listen);
        self.next_listen += 1;
        let backlog = if backlog == 0 { self.config.backlog_default } else { backlog };
        self.listeners.insert(service_id, Listener { id, backlog, undecided: 0 });
        Ok(id)
    }

    /// Removes a listener. Requests whose event has not been polled are rejected; other connections
    /// remain. The service may get another listener at once. Returns `false` if there is no such
    /// listener.
    pub fn unlisten(&mut self, now: Instant, listen: ListenId) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|_, l| l.id != listen);
        let (mut connections, mut requests) = (Vec::new(), Vec::new());
        for event in self.events.iter() {
            match event {
                Event::ConnectRequest { listen: l, connection, .. } if *l == listen => {
                    connections.push(*connection);
                }
                Event::SidrRequest { listen: l, id, .. } if *l == listen => requests.push(*id),
                _ => {}
            }
        }
        // These ids exist, so destroying them cannot fail.
        for id in connections {
            let _ = self.destroy(now, id);
        }
        for id in requests {
            let _ = self.sidr_destroy(now, id);
        }
        self.listeners.len() < before
    }

    /// Changes the backlog of the listener for `service_id`; see [`ConnectionManager::listen`].
    /// Requests already received remain. Returns `false` if there is no listener.
    pub fn set_backlog(&mut self, service_id: u64, backlog: usize) -> bool {
        let backlog = if backlog == 0 { self.config.backlog_default } else { backlog };
        self.listener(service_id).map(|listener| listener.backlog = backlog).is_some()
    }

    /// True while `service_id` has a listener.
    pub fn is_listening(&self, service_id: u64) -> bool {
        self.listeners.contains_key(&service_id)
    }

    /// Passive: accepts a connection request; sends a REP. [`Event::Established`],
    /// [`Event::Rejected`], [`Event::Unreachable`] or [`Event::Disconnected`] follows.
    pub fn accept(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        accept: &Accept<'_>,
    ) -> Result<(), CallError> {
        fits(accept.private_data, Rep::PRIVATE_LEN)
            .map_err(|(len, max)| CallError::PrivateData { len, max })?;
        let c = self.known(connection)?;
        if !matches!(c.state, State::ReqReceived { .. }) {
            return Err(CallError::State(c.state.name()));
        }
        let rep = message::rep(&self.config, c, accept);
        self.tables.set_local_qpn(connection, accept.local_qpn);
        self.enter_rep_sent(now, connection, rep);
        Ok(())
    }

    /// Passive: notes the first packet on `local_qpn`, which shows that the peer is ready even if
    /// its RTU is late or lost. Returns `true` if this established a connection;
    /// [`Event::Established`] follows. Costs a tree look-up: call it on a QP's first packet, not on
    /// each.
    pub fn established_by_traffic(&mut self, local_qpn: Qpn) -> bool {
        match self.tables.by_local_qpn(local_qpn) {
            Some(Connection { id, state: State::RepSent(_), .. }) => {
                let id = *id;
                self.establish(id);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn listener(&mut self, service_id: u64) -> Option<&mut Listener> {
        self.listeners.get_mut(&service_id)
    }

    pub(crate) fn release_backlog(&mut self, service_id: u64, listen: Option<ListenId>) {
        if let Some(l) = self.listeners.get_mut(&service_id).filter(|l| Some(l.id) == listen) {
            l.undecided -= 1;
        }
    }

    pub(crate) fn on_req(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &Req<'_>,
    ) -> Result<(), DropReason> {
        self.known_request(now, ip, header, req)?;
        let reject = |s: &mut Self, reason| {
            s.reject_unknown(ip, header, (0, req.local_comm_id), MessageRejected::Req, reason);
        };
        if !self.is_listening(req.service_id) {
            if self.config.reject_unknown_services {
                reject(self, RejectReason::INVALID_SERVICE_ID);
            }
            return Err(DropReason::NoListener);
        }
        if let Err(reason) = acceptable(ip, req) {
            reject(self, reason);
            return Err(DropReason::Unacceptable);
        }
        let path_mtu_code_max = self.config.path_mtu_code_max;
        if !(1..=path_mtu_code_max).contains(&req.path_mtu) {
            self.reply(ip, message::rej_path_mtu(header, req.local_comm_id, path_mtu_code_max));
            return Err(DropReason::Unacceptable);
        }
        if self.is_stale(now, ip, req.qpn) {
            reject(self, RejectReason::STALE_CONNECTION);
            return Err(DropReason::Stale);
        }
        let half_open_full = self.tables.half_open() >= self.config.half_open_max;
        if half_open_full || self.tables.len() >= self.config.connections_max {
            return Err(DropReason::TableFull);
        }
        let Some(listener) = self.listener(req.service_id) else {
            return Err(DropReason::NoListener);
        };
        if listener.undecided >= listener.backlog {
            return Err(DropReason::BacklogFull);
        }
        listener.undecided += 1;
        let listen = listener.id;
        let id = self.fresh_id();
        self.tables.insert(Connection {
            peer_retries_max: req.max_cm_retries,
            peer_timeout_code: req.local_response_timeout,
            service_id: req.service_id,
            listen: Some(listen),
            peer_comm_id: req.local_comm_id,
            peer_qpn: req.qpn,
            transaction: header.transaction_id,
            peer_psn: req.starting_psn,
            deadline: Some(now + self.config.decision_timeout),
            ..Connection::new(
                id,
                Role::Passive,
                State::ReqReceived { since: now, is_unseen: true },
                ip,
            )
        });
        let info = Box::new(request_info(ip, req));
        self.tell(id, Event::ConnectRequest { listen, connection: id, info });
        Ok(())
    }

    /// Handles a REQ whose sender and id may belong to a connection. `Ok`: they do not, or no
    /// longer do.
    fn known_request(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &Req<'_>,
    ) -> Result<(), DropReason> {
        let Some(c) = self.tables.by_peer_id(ip, req.local_comm_id) else { return Ok(()) };
        let id = c.id;
        let same = c.role == Role::Passive
            && c.transaction == header.transaction_id
            && c.peer_qpn == req.qpn
            && c.peer_psn == req.starting_psn;
        if same {
            match &c.state {
                State::ReqReceived { since, .. } => {
                    let waited = now.since(*since);
                    self.resend_mra(id, waited, MessageRejected::Req);
                }
                State::RepSent(_) => self.queue_kept(id),
                State::Timewait { rej, .. } => {
                    match rej.as_ref().and_then(|rej| message::rej_of_req(&rej.mad)) {
                        Some(mad) => self.reply(ip, mad),
                        None => {
                            let ids = (0, req.local_comm_id);
                            let reason = RejectReason::STALE_CONNECTION;
                            self.reject_unknown(ip, header, ids, MessageRejected::Req, reason);
                        }
                    }
                }
                _ => {}
            }
            return Err(DropReason::Duplicate);
        }
        if matches!(c.state, State::Timewait { .. }) {
            // The peer reuses an id for another connection.
            self.tables.forget_peer(id);
            return Ok(());
        }
        let ids = (0, req.local_comm_id);
        let reason = RejectReason::DUPLICATE_COMM_ID;
        self.reject_unknown(ip, header, ids, MessageRejected::Req, reason);
        self.disconnect_stale(now, id);
        Err(DropReason::Stale)
    }

    pub(crate) fn on_rtu(
        &mut self,
        ip: IpAddr,
        header: &Header,
        rtu: &Rtu<'_>,
    ) -> Result<(), DropReason> {
        let c = match self.find(ip, rtu.remote_comm_id, rtu.local_comm_id) {
            Ok(c) => c,
            Err(reason) => {
                // The peer was too late. It must not count the connection as established.
                let ids = (rtu.remote_comm_id, rtu.local_comm_id);
                let why = RejectReason::INVALID_COMM_ID;
                self.reject_unknown(ip, header, ids, MessageRejected::Other, why);
                return Err(reason);
            }
        };
        let id = c.id;
        match &c.state {
            State::RepSent(_) => {
                self.establish(id);
                Ok(())
            }
            State::Timewait { rej: Some(_), .. } => {
                self.queue_kept(id);
                Err(DropReason::Duplicate)
            }
            State::Timewait { rej: None, .. } => {
                // Our DREQ overtook our REP or this RTU. If it overtook the REP, the peer does not
                // know that the connection has ended.
                let ids = (rtu.remote_comm_id, rtu.local_comm_id);
                let why = RejectReason::STALE_CONNECTION;
                self.reject_unknown(ip, header, ids, MessageRejected::Other, why);
                Err(DropReason::Duplicate)
            }
            State::Established | State::DreqSent { .. } => Err(DropReason::Duplicate),
            _ => Err(DropReason::UnexpectedInState),
        }
    }
}

/// Returns the reason as an error if a REQ cannot be served.
fn acceptable(ip: IpAddr, req: &Req<'_>) -> Result<(), RejectReason> {
    if !ServiceId::has_connections(req.service_id) {
        // The listener serves datagrams only: in Linux the CM's consumer rejects.
        return Err(RejectReason::CONSUMER);
    }
    if transport_of(req).is_none() {
        return Err(RejectReason::INVALID_TRANSPORT);
    }
    // Otherwise the path would lead our data to a third party.
    if ip_of_gid(req.primary.local_gid) != ip {
        return Err(RejectReason::INVALID_GID);
    }
    Ok(())
}

fn transport_of(req: &Req<'_>) -> Option<Transport> {
    match req.transport {
        TransportService::Rc => Some(Transport::Rc),
        TransportService::Uc => Some(Transport::Uc),
        TransportService::Rd | TransportService::Extended(_) => None,
    }
}

fn request_info(ip: IpAddr, req: &Req<'_>) -> RequestInfo {
    RequestInfo {
        peer_ip: ip,
        local_ip: ip_of_gid(req.primary.remote_gid),
        service_id: req.service_id,
        transport: transport_of(req).unwrap_or_default(),
        peer_qpn: req.qpn,
        peer_psn: req.starting_psn,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        path_mtu_code: req.path_mtu,
        local_ack_timeout: req.primary.ack_timeout,
        srq: req.srq,
        pkey: req.pkey,
        traffic_class: req.primary.traffic_class,
        hop_limit: req.primary.hop_limit,
        flow_label: req.primary.flow_label,
        ca_guid: req.ca_guid,
        private_data: PrivateData::new(req.private_data),
    }
}
