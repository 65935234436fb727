//! MADs to send: replies, and messages that are retransmitted until answered.

use crate::sidr::SidrId;
use crate::state::State;
use crate::{ConnectionId, ConnectionManager, message};
use longhaul_units::{Duration, Instant};
use longhaul_wire::mad::Mad;
use std::net::IpAddr;

/// An entry of the output queue.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// The message kept by a connection.
    Kept(ConnectionId),
    /// The message kept by a request for a datagram service.
    Sidr(SidrId),
    /// A reply that is not kept.
    Reply(IpAddr, Box<Mad>),
}

impl ConnectionManager {
    /// Passes the next MAD to `send`, with its destination. Returns `false` if none waits. Check
    /// for room first.
    ///
    /// MADs go to QP 1, from QP 1, with queue key [`longhaul_wire::mad::GSI_QKEY`].
    pub fn poll_mad(&mut self, now: Instant, send: impl FnOnce(IpAddr, &Mad)) -> bool {
        let Some((_, next)) = self.out.pop_front() else { return false };
        match next {
            Outgoing::Reply(ip, mad) => {
                self.replies -= 1;
                if let Some(attribute) = message::attribute(&mad) {
                    self.counters.count_sent(attribute);
                }
                send(ip, &mad);
            }
            Outgoing::Kept(id) => self.transmit_kept(now, id, send),
            Outgoing::Sidr(id) => self.send_sidr(now, id, send),
        }
        true
    }

    /// True if [`ConnectionManager::poll_mad`] has a MAD to send.
    pub fn has_mad(&self) -> bool {
        !self.out.is_empty()
    }

    /// Queues a reply that is never retransmitted: if it is lost, the peer retransmits its request.
    pub(crate) fn reply(&mut self, ip: IpAddr, mad: Box<Mad>) {
        self.reply_within(self.config.replies_max, ip, mad);
    }

    /// Queues a reply that each connection sends once, so that a burst of other replies does not
    /// displace it.
    pub(crate) fn reply_once(&mut self, ip: IpAddr, mad: Box<Mad>) {
        self.reply_within(self.config.replies_max + self.config.connections_max, ip, mad);
    }

    fn reply_within(&mut self, replies_max: usize, ip: IpAddr, mad: Box<Mad>) {
        if self.replies >= replies_max {
            self.counters.replies_dropped += 1;
            return;
        }
        self.replies += 1;
        self.out.push_back(Outgoing::Reply(ip, mad));
    }

    /// Queues the message kept by a connection, unless it is queued already.
    pub(crate) fn queue_kept(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get_mut(id) else { return };
        if let Some(kept) = c.state.kept_mut().filter(|kept| kept.queued.is_none()) {
            kept.queued = Some(self.out.push_back(Outgoing::Kept(id)));
        }
    }

    /// Queues the message kept by a connection, and starts its timer.
    pub(crate) fn send_kept(&mut self, now: Instant, id: ConnectionId) {
        let wait = self.answer_timeout(id);
        self.tables.set_deadline(id, Some(now + wait));
        self.queue_kept(id);
    }

    /// Passes the message kept by a connection to `send`.
    fn transmit_kept(&mut self, now: Instant, id: ConnectionId, send: impl FnOnce(IpAddr, &Mad)) {
        // Leaving the state that keeps a message also removes it from the queue.
        let Some(c) = self.tables.get_mut(id) else {
            unreachable!("queued for a forgotten connection")
        };
        let ip = c.peer_ip;
        let Some(kept) = c.state.kept_mut() else { unreachable!("queued without a message") };
        kept.queued = None;
        let rearm = std::mem::take(&mut kept.rearm);
        send(ip, &kept.mad);
        if let Some(attribute) = message::attribute(&kept.mad) {
            self.counters.count_sent(attribute);
        }
        if rearm {
            // The timeout starts when the message is sent, not when it was queued.
            let wait = self.answer_timeout(id);
            self.tables.set_deadline(id, Some(now + wait));
        }
    }

    /// Retransmits the message of a connection. Returns `false` if no answer is expected, or if no
    /// retries are left. A message that is still queued consumes no retry.
    pub(crate) fn retransmit(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(c) = self.tables.get_mut(id) else { return false };
        let Some(unanswered) = c.state.unanswered_mut() else { return false };
        unanswered.is_extended = false;
        if unanswered.message.queued.is_none() {
            if unanswered.retries >= unanswered.retries_max {
                return false;
            }
            unanswered.retries += 1;
            unanswered.message.rearm = true;
            self.counters.retransmitted += 1;
        }
        self.send_kept(now, id);
        true
    }

    fn answer_timeout(&self, id: ConnectionId) -> Duration {
        match self.tables.get(id) {
            Some(c) if matches!(c.state, State::RepSent(_)) => {
                self.config.peer_timeout(c.peer_timeout_code)
            }
            _ => self.config.response_timeout(),
        }
    }
}
