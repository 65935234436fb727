//! What a received MAD does.

use crate::connection::Connection;
use crate::event::PrivateData;
use crate::{
    ConnectionId, ConnectionManager, ConnectionState, DisconnectCause, Drop, Event, ReplyInfo,
    RequestInfo, Role, ServiceId, Transport, message,
};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{
    Drep, Dreq, Header, Mad, Message, MessageRejected, Mra, Rej, RejectReason, Rep, Req, Rtu,
    TransportService, ip_of_gid,
};
use std::net::IpAddr;

impl ConnectionManager {
    /// A MAD came in from `source_ip`. The caller has checked that it is 256 bytes to QP 1 with the
    /// right queue key. `Some`: it changed nothing (though it may have been answered), and why;
    /// counted already.
    pub fn handle_mad(&mut self, now: Instant, source_ip: IpAddr, mad: &Mad) -> Option<Drop> {
        self.counters.received += 1;
        let outcome = self.receive(now, source_ip, mad);
        if let Err(reason) = outcome {
            self.counters.count_drop(reason);
        }
        outcome.err()
    }

    fn receive(&mut self, now: Instant, ip: IpAddr, mad: &Mad) -> Result<(), Drop> {
        let (header, message) = Message::read(mad).map_err(|_| Drop::NotCm)?;
        self.counters.count_received(message.attribute());
        if message.remote_comm_id().is_some_and(|id| id != 0 && !self.config.owns(id)) {
            return Err(Drop::NotOurs);
        }
        match message {
            Message::Req(m) => self.on_req(now, ip, &header, &m),
            Message::Rep(m) => self.on_rep(now, ip, &header, &m),
            Message::Rtu(m) => self.on_rtu(ip, &header, &m),
            Message::Dreq(m) => self.on_dreq(now, ip, &header, &m),
            Message::Drep(m) => self.on_drep(now, ip, &m),
            Message::Rej(m) => self.on_rej(now, ip, &m),
            Message::Mra(m) => self.on_mra(now, ip, &m),
            Message::SidrReq(m) => self.on_sidr_req(now, ip, &header, &m),
            Message::SidrRep(m) => self.on_sidr_rep(ip, &m),
            Message::Lap(_) | Message::Apr(_) => Err(Drop::Unsupported),
        }
    }

    /// The connection that a message names by both ids.
    fn find(&self, ip: IpAddr, ours: u32, peers: u32) -> Result<&Connection, Drop> {
        let c = self.tables.get(ConnectionId(ours)).ok_or(Drop::UnknownConnection)?;
        if c.peer_ip != ip || c.peer_comm_id != peers {
            return Err(Drop::WrongPeer);
        }
        Ok(c)
    }

    fn reject_unknown(
        &mut self,
        ip: IpAddr,
        header: &Header,
        ids: (u32, u32),
        rejected: MessageRejected,
        reason: RejectReason,
    ) {
        self.reply(ip, message::rej_unknown(header, ids.0, ids.1, rejected, reason));
    }

    fn on_req(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &Req<'_>,
    ) -> Result<(), Drop> {
        self.known_request(now, ip, header, req)?;
        let reject = |s: &mut Self, reason| {
            s.reject_unknown(ip, header, (0, req.local_comm_id), MessageRejected::Req, reason);
        };
        if !self.is_listening(req.service_id) {
            if self.config.reject_unknown_services {
                reject(self, RejectReason::INVALID_SERVICE_ID);
            }
            return Err(Drop::NoListener);
        }
        if let Err(reason) = acceptable(ip, req) {
            reject(self, reason);
            return Err(Drop::Unacceptable);
        }
        let path_mtu_code_max = self.config.path_mtu_code_max;
        if !(1..=path_mtu_code_max).contains(&req.path_mtu) {
            self.reply(ip, message::rej_path_mtu(header, req.local_comm_id, path_mtu_code_max));
            return Err(Drop::Unacceptable);
        }
        if self.is_stale(now, ip, req.qpn) {
            reject(self, RejectReason::STALE_CONNECTION);
            return Err(Drop::Stale);
        }
        let half_open_full = self.tables.half_open() >= self.config.half_open_max;
        if half_open_full || self.tables.len() >= self.config.connections_max {
            return Err(Drop::TableFull);
        }
        let Some(listener) = self.listener(req.service_id) else { return Err(Drop::NoListener) };
        if listener.undecided >= listener.backlog {
            return Err(Drop::BacklogFull);
        }
        listener.undecided += 1;
        let listen = listener.id;
        let id = self.fresh_id();
        self.tables.insert(Connection {
            unseen: true,
            retries_max: req.max_cm_retries,
            peer_timeout_code: req.local_response_timeout,
            service_id: req.service_id,
            listen: Some(listen),
            peer_comm_id: req.local_comm_id,
            peer_qpn: req.qpn,
            transaction: header.transaction_id,
            peer_psn: req.starting_psn,
            came_at: now,
            deadline: Some(now + self.config.decision_timeout),
            ..Connection::new(id, Role::Passive, ConnectionState::ReqReceived, ip)
        });
        let info = Box::new(request_info(ip, req));
        self.tell(id, Event::ConnectRequest { listen, connection: id, info });
        Ok(())
    }

    /// Deals with a REQ whose sender and id we know. `Ok`: it is a new one.
    fn known_request(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &Req<'_>,
    ) -> Result<(), Drop> {
        let Some(c) = self.tables.by_peer_id(ip, req.local_comm_id) else { return Ok(()) };
        let id = c.id;
        let same = c.role == Role::Passive
            && c.transaction == header.transaction_id
            && c.peer_qpn == req.qpn
            && c.peer_psn == req.starting_psn;
        if same {
            match c.state {
                ConnectionState::ReqReceived => self.send_mra(now, id, MessageRejected::Req),
                ConnectionState::RepSent | ConnectionState::RepAcknowledged => self.queue_kept(id),
                ConnectionState::Timewait => {
                    match c.kept.as_deref().and_then(message::rej_of_req) {
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
            return Err(Drop::Duplicate);
        }
        if c.state == ConnectionState::Timewait {
            // The peer began anew with an old id.
            self.tables.forget_peer(id);
            return Ok(());
        }
        let ids = (0, req.local_comm_id);
        let reason = RejectReason::DUPLICATE_COMM_ID;
        self.reject_unknown(ip, header, ids, MessageRejected::Req, reason);
        self.abandon_stale(now, id);
        Err(Drop::Stale)
    }

    /// Answers a duplicate with an MRA while our program decides. One that comes early was
    /// duplicated by the network: it must not make the peer wait where our answer gets lost.
    fn send_mra(&mut self, now: Instant, id: ConnectionId, received: MessageRejected) {
        let early = self.config.response_timeout().divided_by(4);
        let Some(c) = self.tables.get_mut(id) else { return };
        let automatic = self.config.mra_timeout_code.filter(|_| now.since(c.came_at) >= early);
        let Some(code) = c.mra_sent.or(automatic) else { return };
        c.mra_sent = Some(code);
        let (ip, mad) = (c.peer_ip, message::mra(c, received, code));
        self.reply(ip, mad);
    }

    /// True when the peer's QP belongs to a live connection of ours: that one is over for the peer,
    /// so it is ended here too. Source: IBTA, volume 1, section 12.9.8.3.1.
    fn is_stale(&mut self, now: Instant, ip: IpAddr, qpn: Qpn) -> bool {
        let Some(id) = self.tables.by_peer_qpn(ip, qpn).map(|c| c.id) else { return false };
        self.abandon_stale(now, id);
        true
    }

    fn abandon_stale(&mut self, now: Instant, id: ConnectionId) {
        let state = self.tables.get(id).map(|c| c.state);
        if matches!(
            state,
            Some(
                ConnectionState::Established
                    | ConnectionState::RepSent
                    | ConnectionState::RepAcknowledged
            )
        ) {
            self.begin_disconnect(now, id);
        }
    }

    fn on_rep(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        rep: &Rep<'_>,
    ) -> Result<(), Drop> {
        let id = ConnectionId(rep.remote_comm_id);
        let ids = (rep.remote_comm_id, rep.local_comm_id);
        let Some(c) = self.tables.get(id) else {
            let reason = RejectReason::INVALID_COMM_ID;
            self.reject_unknown(ip, header, ids, MessageRejected::Rep, reason);
            return Err(Drop::UnknownConnection);
        };
        if c.peer_ip != ip {
            return Err(Drop::WrongPeer);
        }
        if c.role != Role::Active {
            return Err(Drop::UnexpectedInState);
        }
        if !matches!(c.state, ConnectionState::ReqSent | ConnectionState::ReqAcknowledged) {
            return Err(self.handle_duplicate_rep(now, id, ip, header, rep));
        }
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
            return Err(Drop::Stale);
        }
        self.answered(id);
        self.tables.set_peer(id, rep.local_comm_id, rep.qpn);
        if let Some(c) = self.tables.get_mut(id) {
            c.came_at = now;
        }
        self.set_state(id, ConnectionState::RepReceived);
        let path_mtu_code = self.tables.get(id).map_or(0, |c| c.path_mtu_code);
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
    ) -> Drop {
        let Some(c) = self.tables.get(id) else { return Drop::UnknownConnection };
        if c.peer_comm_id != rep.local_comm_id {
            // A second connection that a retransmitted REQ of ours made: it must not stay
            // half-open.
            let ids = (rep.remote_comm_id, rep.local_comm_id);
            self.reject_unknown(
                ip,
                header,
                ids,
                MessageRejected::Rep,
                RejectReason::STALE_CONNECTION,
            );
            return Drop::Stale;
        }
        match c.state {
            ConnectionState::Established => {
                let mad = message::rtu(c);
                self.reply(ip, mad);
            }
            ConnectionState::RepReceived => self.send_mra(now, id, MessageRejected::Rep),
            ConnectionState::Timewait => self.queue_kept(id),
            _ => {}
        }
        Drop::Duplicate
    }

    fn on_rtu(&mut self, ip: IpAddr, header: &Header, rtu: &Rtu<'_>) -> Result<(), Drop> {
        let c = match self.find(ip, rtu.remote_comm_id, rtu.local_comm_id) {
            Ok(c) => c,
            Err(reason) => {
                // The peer took so long that we gave up: it must not count this as established.
                let ids = (rtu.remote_comm_id, rtu.local_comm_id);
                let why = RejectReason::INVALID_COMM_ID;
                self.reject_unknown(ip, header, ids, MessageRejected::Other, why);
                return Err(reason);
            }
        };
        let id = c.id;
        match c.state {
            ConnectionState::RepSent | ConnectionState::RepAcknowledged => {
                self.establish(id);
                Ok(())
            }
            ConnectionState::Timewait if c.kept.is_some() => {
                self.queue_kept(id);
                Err(Drop::Duplicate)
            }
            ConnectionState::Timewait => {
                // Our DREQ overtook our REP, or this RTU: in the first case the peer must be told
                // again.
                let ids = (rtu.remote_comm_id, rtu.local_comm_id);
                let why = RejectReason::STALE_CONNECTION;
                self.reject_unknown(ip, header, ids, MessageRejected::Other, why);
                Err(Drop::Duplicate)
            }
            ConnectionState::Established | ConnectionState::DreqSent => Err(Drop::Duplicate),
            _ => Err(Drop::UnexpectedInState),
        }
    }

    fn on_dreq(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        dreq: &Dreq<'_>,
    ) -> Result<(), Drop> {
        let (id, state) = match self.find(ip, dreq.remote_comm_id, dreq.local_comm_id) {
            Ok(c) if c.local_qpn != dreq.remote_qpn => return Err(Drop::WrongQpn),
            Ok(c) => (c.id, c.state),
            Err(reason) => {
                // Whatever the peer means to end is over here: let it go.
                self.reply(ip, message::drep(header, dreq));
                if self.takes_acceptance_back(ip, dreq) {
                    let id = ConnectionId(dreq.remote_comm_id);
                    let rej = Rej {
                        local_comm_id: dreq.local_comm_id,
                        remote_comm_id: dreq.remote_comm_id,
                        rejected: MessageRejected::Other,
                        reason: RejectReason::CONSUMER,
                        info_len: 0,
                        info: &[],
                        private_data: &[0; Rej::PRIVATE_LEN],
                    };
                    self.rejected(id, &rej);
                    return Ok(());
                }
                return Err(reason);
            }
        };
        match state {
            ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::RepAcknowledged
            | ConnectionState::Established
            | ConnectionState::DreqSent => {
                self.reply_once(ip, message::drep(header, dreq));
                self.disconnected(now, id, DisconnectCause::ByPeer);
                Ok(())
            }
            ConnectionState::Timewait => {
                self.reply(ip, message::drep(header, dreq));
                Err(Drop::Duplicate)
            }
            _ => Err(Drop::UnexpectedInState),
        }
    }

    /// True when a DREQ ends what we have only asked for: it overtook the peer's REP, or that was
    /// lost.
    fn takes_acceptance_back(&self, ip: IpAddr, dreq: &Dreq<'_>) -> bool {
        self.tables.get(ConnectionId(dreq.remote_comm_id)).is_some_and(|c| {
            matches!(c.state, ConnectionState::ReqSent | ConnectionState::ReqAcknowledged)
                && c.peer_ip == ip
                && c.local_qpn == dreq.remote_qpn
        })
    }

    /// A handshake is over before it succeeded.
    fn rejected(&mut self, id: ConnectionId, rej: &Rej<'_>) {
        self.remove(id);
        self.counters.rejected += 1;
        let private_data = PrivateData::new(rej.private_data);
        let info = rej.info[..rej.info.len().min(rej.info_len.into())].into();
        let Rej { reason, rejected, .. } = *rej;
        self.events.push_back(Event::Rejected {
            connection: id,
            reason,
            rejected,
            info,
            private_data,
        });
    }

    fn on_drep(&mut self, now: Instant, ip: IpAddr, drep: &Drep<'_>) -> Result<(), Drop> {
        let c = self.find(ip, drep.remote_comm_id, drep.local_comm_id)?;
        let id = c.id;
        match c.state {
            ConnectionState::DreqSent => {
                self.disconnected(now, id, DisconnectCause::ByUs);
                Ok(())
            }
            ConnectionState::Timewait => Err(Drop::Duplicate),
            _ => Err(Drop::UnexpectedInState),
        }
    }

    /// The connection that a REJ is about. Its sender need not have an id, and one that gives up
    /// its REQ does not know ours.
    fn find_rejected(&self, ip: IpAddr, rej: &Rej<'_>) -> Result<&Connection, Drop> {
        if rej.remote_comm_id == 0 {
            if rej.reason != RejectReason::TIMEOUT {
                return Err(Drop::UnknownConnection);
            }
            return self.tables.by_peer_id(ip, rej.local_comm_id).ok_or(Drop::UnknownConnection);
        }
        let c = self.tables.get(ConnectionId(rej.remote_comm_id)).ok_or(Drop::UnknownConnection)?;
        let ids_agree =
            rej.local_comm_id == 0 || c.peer_comm_id == 0 || c.peer_comm_id == rej.local_comm_id;
        if c.peer_ip != ip || !ids_agree {
            return Err(Drop::WrongPeer);
        }
        Ok(c)
    }

    fn on_rej(&mut self, now: Instant, ip: IpAddr, rej: &Rej<'_>) -> Result<(), Drop> {
        let c = self.find_rejected(ip, rej)?;
        let (id, unseen) = (c.id, c.unseen);
        let path_mtu_wanted = message::path_mtu_wanted(rej);
        match c.state {
            ConnectionState::ReqSent | ConnectionState::ReqAcknowledged
                if path_mtu_wanted.is_some() =>
            {
                self.rejected_for_path_mtu(now, id, rej)
            }
            // It is about a copy of an earlier REQ of ours.
            _ if path_mtu_wanted.is_some() && c.path_mtu_lowered => Err(Drop::Duplicate),
            ConnectionState::ReqReceived if unseen => {
                // The program need not hear of a request that was taken back.
                self.cancel_events(id);
                self.remove(id);
                Ok(())
            }
            ConnectionState::ReqReceived
            | ConnectionState::ReqSent
            | ConnectionState::ReqAcknowledged
            | ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::RepAcknowledged => {
                self.rejected(id, rej);
                Ok(())
            }
            ConnectionState::Established | ConnectionState::DreqSent => {
                self.disconnected(now, id, DisconnectCause::Rejected(rej.reason));
                Ok(())
            }
            ConnectionState::Timewait => Err(Drop::Duplicate),
        }
    }

    /// Our REQ was rejected for its path MTU: asks again with the one that the peer takes.
    fn rejected_for_path_mtu(
        &mut self,
        now: Instant,
        id: ConnectionId,
        rej: &Rej<'_>,
    ) -> Result<(), Drop> {
        let again = self.tables.get_mut(id).and_then(|c| {
            let wanted =
                message::path_mtu_wanted(rej).filter(|wanted| *wanted < c.path_mtu_code)?;
            let mad = message::req_with_path_mtu(c.kept.as_deref()?, wanted)?;
            (c.path_mtu_code, c.path_mtu_lowered) = (wanted, true);
            Some(mad)
        });
        if let Some(mad) = again {
            self.set_state(id, ConnectionState::ReqSent);
            self.send_kept(now, id, mad);
            return Ok(());
        }
        if self.tables.get(id).is_some_and(|c| c.path_mtu_lowered) {
            // It is about a copy of the REQ before.
            return Err(Drop::Duplicate);
        }
        self.rejected(id, rej);
        Ok(())
    }

    fn on_mra(&mut self, now: Instant, ip: IpAddr, mra: &Mra<'_>) -> Result<(), Drop> {
        let c = self.tables.get(ConnectionId(mra.remote_comm_id)).ok_or(Drop::UnknownConnection)?;
        if c.peer_ip != ip {
            return Err(Drop::WrongPeer);
        }
        let (id, state) = (c.id, c.state);
        let next = match (state, mra.received) {
            (ConnectionState::ReqSent, MessageRejected::Req) => ConnectionState::ReqAcknowledged,
            (ConnectionState::RepSent, MessageRejected::Rep)
                if c.peer_comm_id == mra.local_comm_id =>
            {
                ConnectionState::RepAcknowledged
            }
            // One MRA per message sent, or a peer could extend the wait for ever.
            (ConnectionState::ReqAcknowledged | ConnectionState::RepAcknowledged, _) => {
                return Err(Drop::Duplicate);
            }
            _ => return Err(Drop::UnexpectedInState),
        };
        self.set_state(id, next);
        let wait = self.config.peer_timeout(mra.service_timeout);
        self.tables.set_deadline(id, Some(now + wait));
        Ok(())
    }
}

/// `Err` with the reason when a REQ cannot be served.
fn acceptable(ip: IpAddr, req: &Req<'_>) -> Result<(), RejectReason> {
    if !ServiceId::has_connections(req.service_id) {
        // The listener wants datagrams: Linux has its connection manager's user refuse.
        return Err(RejectReason::CONSUMER);
    }
    if transport_of(req).is_none() {
        return Err(RejectReason::INVALID_TRANSPORT);
    }
    // The path would lead our data to a third party.
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
