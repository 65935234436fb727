//! Transitions between the states of a connection, one function each.

use crate::rejection::NOTHING;
use crate::state::{Kept, State, Unanswered};
use crate::{ConnectionId, ConnectionManager, DisconnectCause, Event, ListenId, Waited, message};
use longhaul_units::{Duration, Instant};
use longhaul_wire::mad::{Mad, MessageRejected, RejectReason};

impl ConnectionManager {
    /// Enters `state` until `deadline`. Removes the message of the previous state from the queue; a
    /// decided request no longer counts against its listener's backlog.
    fn enter(&mut self, id: ConnectionId, state: State, deadline: Option<Instant>) {
        self.tables.set_deadline(id, deadline);
        if let Some(previous) = self.tables.replace_state(id, state) {
            let listener = self.tables.get(id).map(|c| (c.service_id, c.listen));
            self.leave(previous, listener);
        }
    }

    fn leave(&mut self, mut state: State, listener: Option<(u64, Option<ListenId>)>) {
        if let Some(key) = state.kept_mut().and_then(|kept| kept.queued) {
            self.out.remove(key);
        }
        if let State::ReqReceived { .. } = state
            && let Some((service_id, listen)) = listener
        {
            self.release_backlog(service_id, listen);
        }
    }

    /// Removes a connection without an event or a message.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        if let Some(c) = self.tables.remove(id) {
            let listener = Some((c.service_id, c.listen));
            self.leave(c.state, listener);
        }
    }

    /// ReqSent to RepReceived.
    pub(crate) fn enter_rep_received(&mut self, now: Instant, id: ConnectionId) {
        self.enter(id, State::RepReceived { since: now }, None);
    }

    /// ReqReceived to RepSent.
    pub(crate) fn enter_rep_sent(&mut self, now: Instant, id: ConnectionId, rep: Box<Mad>) {
        let retries_max = self.tables.get(id).map_or(0, |c| c.peer_retries_max);
        self.enter(id, State::RepSent(Unanswered::new(rep, retries_max)), None);
        self.send_kept(now, id);
    }

    /// RepReceived or RepSent to Established.
    pub(crate) fn enter_established(&mut self, id: ConnectionId) {
        self.enter(id, State::Established, None);
        self.counters.established += 1;
    }

    /// RepSent to Established, with an event.
    pub(crate) fn establish(&mut self, id: ConnectionId) {
        self.enter_established(id);
        self.tell(id, Event::Established { connection: id });
    }

    /// RepSent or Established to DreqSent. `is_orphan`: the program has destroyed the connection.
    pub(crate) fn begin_disconnect(&mut self, now: Instant, id: ConnectionId, is_orphan: bool) {
        let Some(c) = self.tables.get(id) else { return };
        let dreq = message::dreq(c, self.transaction_of(id));
        let dreq = Unanswered::new(dreq, self.config.retries_max);
        self.enter(id, State::DreqSent { dreq, is_orphan }, None);
        self.send_kept(now, id);
    }

    /// Any state after the handshake to Timewait, with an event.
    pub(crate) fn disconnected(&mut self, now: Instant, id: ConnectionId, cause: DisconnectCause) {
        let Some(is_orphan) = self.tables.get(id).map(|c| c.state.is_orphan()) else { return };
        self.counters.disconnected += 1;
        let over = State::Timewait { rej: None, is_orphan };
        self.enter(id, over, Some(now + self.config.timewait));
        if !is_orphan {
            self.tell(id, Event::Disconnected { connection: id, cause });
        }
    }

    /// A state of the handshake to Timewait, with a REJ that is resent for each duplicate of the
    /// peer's message. `said`: rejection information and private data.
    pub(crate) fn refuse(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: RejectReason,
        said: (&[u8], &[u8]),
    ) {
        let Some(c) = self.tables.get(id) else { return };
        let rejected = match c.state {
            State::ReqReceived { .. } => MessageRejected::Req,
            State::RepReceived { .. } => MessageRejected::Rep,
            _ => MessageRejected::Other,
        };
        let (ip, mad) = (c.peer_ip, message::rej(&self.config, c, rejected, reason, said));
        let asked_for = c.mra_sent.map_or(Duration::ZERO, |code| self.config.mra_timeout(code));
        if self.tables.len() > self.config.connections_max / 2 {
            // With a full table live connections need the memory: a lost REJ is not resent.
            self.remove(id);
            self.reply(ip, mad);
            return;
        }
        // Covers the peer's retransmissions.
        let repeats = self.config.response_timeout().times(2).max(asked_for);
        let over = State::Timewait { rej: Some(Kept::new(mad)), is_orphan: true };
        self.enter(id, over, Some(now + self.config.timewait + repeats));
        self.queue_kept(id);
    }

    /// Ends ReqSent: a REJ ends the half-open connection that the peer may have.
    pub(crate) fn take_request_back(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get(id) else { return };
        let mad =
            message::rej(&self.config, c, MessageRejected::Other, RejectReason::TIMEOUT, NOTHING);
        let ip = c.peer_ip;
        self.remove(id);
        self.reply(ip, mad);
    }

    /// Handles the expired deadline of a connection.
    pub(crate) fn expire(&mut self, now: Instant, id: ConnectionId) {
        if self.retransmit(now, id) {
            return;
        }
        let Some(c) = self.tables.get(id) else { return };
        match c.state {
            State::ReqSent(_) => {
                self.take_request_back(id);
                self.unreachable(id, Waited::ForReply);
            }
            State::RepSent(_) => {
                self.refuse(now, id, RejectReason::TIMEOUT, NOTHING);
                self.unreachable(id, Waited::ForReadyToUse);
            }
            State::ReqReceived { is_unseen, .. } => {
                self.cancel_events(id);
                self.refuse(now, id, RejectReason::TIMEOUT, NOTHING);
                if !is_unseen {
                    self.unreachable(id, Waited::ForDecision);
                }
            }
            State::DreqSent { .. } => self.disconnected(now, id, DisconnectCause::NoAnswer),
            State::Timewait { is_orphan, .. } => {
                self.remove(id);
                if !is_orphan {
                    self.events.push_back(Event::TimewaitExit { connection: id });
                }
            }
            State::RepReceived { .. } | State::Established => {}
        }
    }

    fn unreachable(&mut self, id: ConnectionId, waited: Waited) {
        self.counters.unreachable += 1;
        self.events.push_back(Event::Unreachable { connection: id, waited });
    }
}
