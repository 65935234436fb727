//! The active side: connecting, REPs, readiness.

use crate::connection::Connection;
use crate::event::PrivateData;
use crate::manager::{fits, same_family};
use crate::state::{State, Unanswered};
use crate::{
    CallError, ConnectError, ConnectRequest, ConnectionId, ConnectionManager, DropReason, Event,
    ReplyInfo, Role, message,
};
use longhaul_units::Instant;
use longhaul_wire::mad::{Header, MessageRejected, RejectReason, Rep, Req};
use std::net::IpAddr;

impl ConnectionManager {
    /// Requests a connection from a peer; sends a REQ. [`Event::ConnectResponse`],
    /// [`Event::Rejected`] or [`Event::Unreachable`] follows.
    pub fn connect(
        &mut self,
        now: Instant,
        request: &ConnectRequest<'_>,
    ) -> Result<ConnectionId, ConnectError> {
        fits(request.private_data, Req::PRIVATE_LEN)
            .map_err(|(len, max)| ConnectError::PrivateData { len, max })?;
        same_family(request.source_ip, request.destination_ip)?;
        if self.tables.len() >= self.config.connections_max {
            return Err(ConnectError::TooMany(self.config.connections_max));
        }
        let id = self.fresh_id();
        let transaction = self.transaction_of(id);
        let path_mtu_code = request.path_mtu_code.min(self.config.path_mtu_code_max);
        let request = &ConnectRequest { path_mtu_code, ..*request };
        let req = message::req(&self.config, id.0, transaction, request);
        let state = State::ReqSent(Unanswered::new(req, self.config.retries_max));
        self.tables.insert(Connection {
            local_qpn: request.local_qpn,
            service_id: request.service_id,
            transaction,
            path_mtu_code,
            deadline: Some(now + self.config.response_timeout()),
            ..Connection::new(id, Role::Active, state, request.destination_ip)
        });
        self.queue_kept(id);
        Ok(id)
    }

    /// Active: our QP is in RTS; sends an RTU. The connection is established, without a further
    /// event.
    pub fn ready_to_use(
        &mut self,
        _now: Instant,
        connection: ConnectionId,
    ) -> Result<(), CallError> {
        let c = self.known(connection)?;
        if !matches!(c.state, State::RepReceived { .. }) {
            return Err(CallError::State(c.state.name()));
        }
        let (ip, mad) = (c.peer_ip, message::rtu(c));
        self.enter_established(connection);
        self.reply_once(ip, mad);
        Ok(())
    }

    pub(crate) fn on_rep(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        rep: &Rep<'_>,
    ) -> Result<(), DropReason> {
        let id = ConnectionId(rep.remote_comm_id);
        let ids = (rep.remote_comm_id, rep.local_comm_id);
        let Some(c) = self.tables.get(id) else {
            let reason = RejectReason::INVALID_COMM_ID;
            self.reject_unknown(ip, header, ids, MessageRejected::Rep, reason);
            return Err(DropReason::UnknownConnection);
        };
        if c.peer_ip != ip {
            return Err(DropReason::WrongPeer);
        }
        if c.role != Role::Active {
            return Err(DropReason::UnexpectedInState);
        }
        if !matches!(c.state, State::ReqSent(_)) {
            return Err(self.handle_duplicate_rep(now, id, ip, header, rep));
        }
        let path_mtu_code = c.path_mtu_code;
        if self.tables.by_peer_id(ip, rep.local_comm_id).is_some()
            || self.is_stale(now, ip, rep.qpn)
        {
            self.reject_unknown(
                ip,
                header,
                ids,
                MessageRejected::Rep,
                RejectReason::STALE_CONNECTION,
            );
            return Err(DropReason::Stale);
        }
        self.tables.set_peer(id, rep.local_comm_id, rep.qpn);
        self.enter_rep_received(now, id);
        let info = Box::new(reply_info(ip, path_mtu_code, rep));
        self.tell(id, Event::ConnectResponse { connection: id, info });
        Ok(())
    }

    fn handle_duplicate_rep(
        &mut self,
        now: Instant,
        id: ConnectionId,
        ip: IpAddr,
        header: &Header,
        rep: &Rep<'_>,
    ) -> DropReason {
        let Some(c) = self.tables.get(id) else { return DropReason::UnknownConnection };
        if c.peer_comm_id != rep.local_comm_id {
            // A duplicate of our REQ began a second connection, which must not stay half-open.
            let ids = (rep.remote_comm_id, rep.local_comm_id);
            self.reject_unknown(
                ip,
                header,
                ids,
                MessageRejected::Rep,
                RejectReason::STALE_CONNECTION,
            );
            return DropReason::Stale;
        }
        match c.state {
            State::Established => {
                let mad = message::rtu(c);
                self.reply(ip, mad);
            }
            State::RepReceived { since } => {
                self.resend_mra(id, now.since(since), MessageRejected::Rep);
            }
            State::Timewait { .. } => self.queue_kept(id),
            _ => {}
        }
        DropReason::Duplicate
    }
}

fn reply_info(ip: IpAddr, path_mtu_code: u8, rep: &Rep<'_>) -> ReplyInfo {
    ReplyInfo {
        path_mtu_code,
        peer_ip: ip,
        peer_qpn: rep.qpn,
        peer_psn: rep.starting_psn,
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        ack_delay_code: rep.target_ack_delay,
        flow_control: rep.flow_control,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        ca_guid: rep.ca_guid,
        private_data: PrivateData::new(rep.private_data),
    }
}
