//! Rejections: the program's, and received REJs.

use crate::connection::Connection;
use crate::event::PrivateData;
use crate::manager::fits;
use crate::state::State;
use crate::{
    CallError, ConnectionId, ConnectionManager, DisconnectCause, DropReason, Event, message,
};
use longhaul_units::Instant;
use longhaul_wire::mad::{Rej, RejectReason};
use std::net::IpAddr;

/// No rejection information, no private data.
pub(crate) const NOTHING: (&[u8], &[u8]) = (&[], &[]);

impl ConnectionManager {
    /// Rejects a connection request, or (active) a reply; sends a REJ. The id is invalid
    /// afterwards. `rdma_reject` uses [`RejectReason::CONSUMER`] and at most 148 bytes of private
    /// data.
    pub fn reject(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        self.reject_with_info(now, connection, reason, &[], private_data)
    }

    /// Same as [`ConnectionManager::reject`], with at most 72 bytes of additional rejection
    /// information, which the standard defines for each reason. A REJ for [`RejectReason::TIMEOUT`]
    /// carries our adapter's GUID instead.
    pub fn reject_with_info(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), CallError> {
        fits(private_data, Rej::PRIVATE_LEN)
            .map_err(|(len, max)| CallError::PrivateData { len, max })?;
        fits(info, Rej::INFO_LEN).map_err(|(len, max)| CallError::Information { len, max })?;
        let c = self.known(connection)?;
        match &c.state {
            State::ReqReceived { .. } | State::RepReceived { .. } | State::RepSent(_) => {
                self.refuse(now, connection, reason, (info, private_data));
                Ok(())
            }
            state => Err(CallError::State(state.name())),
        }
    }

    /// The peer ended a handshake: removes the connection and reports an event.
    pub(crate) fn rejected(&mut self, id: ConnectionId, rej: &Rej<'_>) {
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

    /// Returns the connection that a REJ refers to. Its sender need not have an id and, if it
    /// withdraws its REQ, does not know ours.
    fn find_rejected(&self, ip: IpAddr, rej: &Rej<'_>) -> Result<&Connection, DropReason> {
        if rej.remote_comm_id == 0 {
            if rej.reason != RejectReason::TIMEOUT {
                return Err(DropReason::UnknownConnection);
            }
            return self
                .tables
                .by_peer_id(ip, rej.local_comm_id)
                .ok_or(DropReason::UnknownConnection);
        }
        let c = self
            .tables
            .get(ConnectionId(rej.remote_comm_id))
            .ok_or(DropReason::UnknownConnection)?;
        let ids_agree =
            rej.local_comm_id == 0 || c.peer_comm_id == 0 || c.peer_comm_id == rej.local_comm_id;
        if c.peer_ip != ip || !ids_agree {
            return Err(DropReason::WrongPeer);
        }
        Ok(c)
    }

    pub(crate) fn on_rej(
        &mut self,
        now: Instant,
        ip: IpAddr,
        rej: &Rej<'_>,
    ) -> Result<(), DropReason> {
        let c = self.find_rejected(ip, rej)?;
        let id = c.id;
        let path_mtu_wanted = message::path_mtu_wanted(rej);
        match c.state {
            State::ReqSent(_) if path_mtu_wanted.is_some() => {
                self.rejected_for_path_mtu(now, id, rej)
            }
            // It rejects a duplicate of our first REQ.
            _ if path_mtu_wanted.is_some() && c.path_mtu_lowered => Err(DropReason::Duplicate),
            State::ReqReceived { is_unseen: true, .. } => {
                // The peer withdrew its request before the program saw it.
                self.cancel_events(id);
                self.remove(id);
                Ok(())
            }
            State::ReqReceived { .. }
            | State::ReqSent(_)
            | State::RepReceived { .. }
            | State::RepSent(_) => {
                self.rejected(id, rej);
                Ok(())
            }
            State::Established | State::DreqSent { .. } => {
                self.disconnected(now, id, DisconnectCause::Rejected(rej.reason));
                Ok(())
            }
            State::Timewait { .. } => Err(DropReason::Duplicate),
        }
    }

    /// Handles the rejection of our REQ for its path MTU: sends another with the peer's path MTU.
    fn rejected_for_path_mtu(
        &mut self,
        now: Instant,
        id: ConnectionId,
        rej: &Rej<'_>,
    ) -> Result<(), DropReason> {
        let Some(c) = self.tables.get_mut(id) else { return Err(DropReason::UnknownConnection) };
        let State::ReqSent(req) = &mut c.state else { return Err(DropReason::UnexpectedInState) };
        let lower = message::path_mtu_wanted(rej).filter(|wanted| *wanted < c.path_mtu_code);
        let another = lower.and_then(|wanted| {
            Some((wanted, message::req_with_path_mtu(&req.message.mad, wanted)?))
        });
        match another {
            Some((path_mtu_code, mad)) => {
                req.replace(mad);
                (c.path_mtu_code, c.path_mtu_lowered) = (path_mtu_code, true);
                self.send_kept(now, id);
                Ok(())
            }
            // It rejects a duplicate of our first REQ.
            None if c.path_mtu_lowered => Err(DropReason::Duplicate),
            None => {
                self.rejected(id, rej);
                Ok(())
            }
        }
    }
}
