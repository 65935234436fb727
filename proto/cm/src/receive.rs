//! Received MADs, by message.

use crate::connection::Connection;
use crate::{ConnectionId, ConnectionManager, DropReason, message};
use longhaul_units::Instant;
use longhaul_wire::mad::{Header, Mad, Message, MessageRejected, RejectReason};
use std::net::IpAddr;

impl ConnectionManager {
    /// Handles a MAD from `source_ip`. The caller must have checked that it is 256 bytes long, for
    /// QP 1, with the right queue key. Returns the reason, which is counted, if the MAD had no
    /// effect; it may have been answered.
    pub fn handle_mad(&mut self, now: Instant, source_ip: IpAddr, mad: &Mad) -> Option<DropReason> {
        self.counters.received += 1;
        let outcome = self.receive(now, source_ip, mad);
        if let Err(reason) = outcome {
            self.counters.drops.count(reason);
        }
        outcome.err()
    }

    fn receive(&mut self, now: Instant, ip: IpAddr, mad: &Mad) -> Result<(), DropReason> {
        let (header, message) = Message::read(mad).map_err(|_| DropReason::NotCm)?;
        self.counters.count_received(message.attribute());
        if message.remote_comm_id().is_some_and(|id| id != 0 && !self.config.owns(id)) {
            return Err(DropReason::NotOurs);
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
            Message::Lap(_) | Message::Apr(_) => Err(DropReason::Unsupported),
        }
    }

    /// Returns the connection with both ids of a message.
    pub(crate) fn find(
        &self,
        ip: IpAddr,
        ours: u32,
        peers: u32,
    ) -> Result<&Connection, DropReason> {
        let c = self.tables.get(ConnectionId(ours)).ok_or(DropReason::UnknownConnection)?;
        if c.peer_ip != ip || c.peer_comm_id != peers {
            return Err(DropReason::WrongPeer);
        }
        Ok(c)
    }

    /// Rejects a message without a connection. `ids`: ours and the peer's.
    pub(crate) fn reject_unknown(
        &mut self,
        ip: IpAddr,
        header: &Header,
        ids: (u32, u32),
        rejected: MessageRejected,
        reason: RejectReason,
    ) {
        self.reply(ip, message::rej_unknown(header, ids.0, ids.1, rejected, reason));
    }
}
