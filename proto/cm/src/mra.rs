//! MRAs: one side extends the other's timeout while its program decides.

use crate::state::State;
use crate::{CallError, ConnectionId, ConnectionManager, DropReason, message};
use longhaul_units::{Duration, Instant};
use longhaul_wire::mad::{MessageRejected, Mra};
use std::net::IpAddr;

impl ConnectionManager {
    /// Extends the peer's timeout while the program decides on a request or a reply; sends an MRA.
    /// `service_timeout_code`: extension, 4.096 µs times 2^code, 0 to 31.
    pub fn mra(
        &mut self,
        connection: ConnectionId,
        service_timeout_code: u8,
    ) -> Result<(), CallError> {
        let code = service_timeout_code.min(31);
        let received = match &self.known(connection)?.state {
            State::ReqReceived { .. } => MessageRejected::Req,
            State::RepReceived { .. } => MessageRejected::Rep,
            state => return Err(CallError::State(state.name())),
        };
        self.send_mra(connection, received, code);
        Ok(())
    }

    /// Answers a duplicate REQ or REP while the program decides: repeats our MRA, or sends the
    /// configured one. An early duplicate was created by the network; an MRA for it would make the
    /// peer wait if our answer were lost.
    pub(crate) fn resend_mra(
        &mut self,
        id: ConnectionId,
        waited: Duration,
        received: MessageRejected,
    ) {
        let early = self.config.response_timeout().divided_by(4);
        let automatic = self.config.mra_timeout_code.filter(|_| waited >= early);
        let sent = self.tables.get(id).and_then(|c| c.mra_sent);
        if let Some(code) = sent.or(automatic) {
            self.send_mra(id, received, code);
        }
    }

    fn send_mra(&mut self, id: ConnectionId, received: MessageRejected, code: u8) {
        let Some(c) = self.tables.get_mut(id) else { return };
        c.mra_sent = Some(code);
        let (ip, mad) = (c.peer_ip, message::mra(c, received, code));
        self.reply(ip, mad);
    }

    pub(crate) fn on_mra(
        &mut self,
        now: Instant,
        ip: IpAddr,
        mra: &Mra<'_>,
    ) -> Result<(), DropReason> {
        let c = self
            .tables
            .get_mut(ConnectionId(mra.remote_comm_id))
            .ok_or(DropReason::UnknownConnection)?;
        if c.peer_ip != ip {
            return Err(DropReason::WrongPeer);
        }
        let id = c.id;
        let is_peers = c.peer_comm_id == mra.local_comm_id;
        let extended = match (&mut c.state, mra.received) {
            // One MRA per message sent, or a peer could extend the wait without limit.
            (State::ReqSent(sent) | State::RepSent(sent), _) if sent.is_extended => {
                return Err(DropReason::Duplicate);
            }
            (State::ReqSent(req), MessageRejected::Req) => req,
            (State::RepSent(rep), MessageRejected::Rep) if is_peers => rep,
            _ => return Err(DropReason::UnexpectedInState),
        };
        extended.is_extended = true;
        let wait = self.config.peer_timeout(mra.service_timeout);
        self.tables.set_deadline(id, Some(now + wait));
        Ok(())
    }
}
