//! Teardown of connections: disconnecting, destroying, DREQs and DREPs.

use crate::rejection::NOTHING;
use crate::state::State;
use crate::{CallError, ConnectionId, ConnectionManager, DisconnectCause, DropReason, message};
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{Drep, Dreq, Header, MessageRejected, Rej, RejectReason};
use std::net::IpAddr;

impl ConnectionManager {
    /// Ends an established connection; sends DREQs until one is answered.
    /// [`crate::Event::Disconnected`] and [`crate::Event::TimewaitExit`] follow. Does nothing if
    /// either side has begun the teardown.
    ///
    /// On the passive side also valid before the RTU: the peer may count the connection as
    /// established.
    pub fn disconnect(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let c = self.known(connection)?;
        match &c.state {
            State::Established | State::RepSent(_) => {
                self.begin_disconnect(now, connection, false);
                Ok(())
            }
            State::DreqSent { .. } | State::Timewait { .. } => Ok(()),
            state => Err(CallError::State(state.name())),
        }
    }

    /// Destroys a connection in any state, and tells the peer: by a REJ during the handshake, by
    /// DREQs if the peer may count it as established. The id is invalid afterwards, and no further
    /// event carries it, queued events included. The manager completes the exchange with the peer
    /// itself.
    pub fn destroy(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        self.known(connection)?;
        self.cancel_events(connection);
        let Some(c) = self.tables.get_mut(connection) else { return Err(CallError::Unknown) };
        match &mut c.state {
            State::ReqSent(_) => self.take_request_back(connection),
            State::ReqReceived { .. } | State::RepReceived { .. } => {
                self.refuse(now, connection, RejectReason::CONSUMER, NOTHING);
            }
            // After our REP the peer may count the connection as established. A REJ could be lost,
            // but a DREQ is retransmitted until it is answered.
            State::RepSent(_) | State::Established => self.begin_disconnect(now, connection, true),
            State::DreqSent { is_orphan, .. } | State::Timewait { is_orphan, .. } => {
                *is_orphan = true;
            }
        }
        Ok(())
    }

    /// True if the peer's QP belongs to a live connection of ours. That connection has ended for
    /// the peer, so it is ended here too. Source: IBTA, volume 1, section 12.9.8.3.1.
    pub(crate) fn is_stale(&mut self, now: Instant, ip: IpAddr, qpn: Qpn) -> bool {
        let Some(id) = self.tables.by_peer_qpn(ip, qpn).map(|c| c.id) else { return false };
        self.disconnect_stale(now, id);
        true
    }

    /// Ends a connection that the peer has forgotten.
    pub(crate) fn disconnect_stale(&mut self, now: Instant, id: ConnectionId) {
        let Some(c) = self.tables.get(id) else { return };
        if matches!(c.state, State::Established | State::RepSent(_)) {
            self.begin_disconnect(now, id, false);
        }
    }

    pub(crate) fn on_dreq(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        dreq: &Dreq<'_>,
    ) -> Result<(), DropReason> {
        let c = match self.find(ip, dreq.remote_comm_id, dreq.local_comm_id) {
            Ok(c) if c.local_qpn != dreq.remote_qpn => return Err(DropReason::WrongQpn),
            Ok(c) => c,
            Err(reason) => {
                // The connection has ended here. An answer ends the peer's retransmissions.
                self.reply(ip, message::drep(header, dreq));
                if self.ends_our_request(ip, dreq) {
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
        let id = c.id;
        match c.state {
            State::RepReceived { .. }
            | State::RepSent(_)
            | State::Established
            | State::DreqSent { .. } => {
                self.reply_once(ip, message::drep(header, dreq));
                self.disconnected(now, id, DisconnectCause::ByPeer);
                Ok(())
            }
            State::Timewait { .. } => {
                self.reply(ip, message::drep(header, dreq));
                Err(DropReason::Duplicate)
            }
            State::ReqSent(_) | State::ReqReceived { .. } => Err(DropReason::UnexpectedInState),
        }
    }

    /// True if a DREQ ends a connection whose REP has not arrived: the DREQ overtook the REP, or
    /// the REP was lost.
    fn ends_our_request(&self, ip: IpAddr, dreq: &Dreq<'_>) -> bool {
        self.tables.get(ConnectionId(dreq.remote_comm_id)).is_some_and(|c| {
            matches!(c.state, State::ReqSent(_))
                && c.peer_ip == ip
                && c.local_qpn == dreq.remote_qpn
        })
    }

    pub(crate) fn on_drep(
        &mut self,
        now: Instant,
        ip: IpAddr,
        drep: &Drep<'_>,
    ) -> Result<(), DropReason> {
        let c = self.find(ip, drep.remote_comm_id, drep.local_comm_id)?;
        let id = c.id;
        match c.state {
            State::DreqSent { .. } => {
                self.disconnected(now, id, DisconnectCause::ByUs);
                Ok(())
            }
            State::Timewait { .. } => Err(DropReason::Duplicate),
            _ => Err(DropReason::UnexpectedInState),
        }
    }
}
