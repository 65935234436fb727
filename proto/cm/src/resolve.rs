//! Requests for datagram services: calls, messages and timers.

use crate::event::PrivateData;
use crate::manager::{fits, same_family};
use crate::message::{self, SidrAnswer};
use crate::output::Outgoing;
use crate::sidr::{PeerRequest, Resolution, SidrId, SidrState};
use crate::state::Kept;
use crate::{
    CallError, ConnectError, ConnectionManager, DropReason, Event, ServiceId, SidrRequest,
    SidrRequestInfo, Waited,
};
use longhaul_node::Deadline;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{Header, Mad, SidrRep, SidrReq, SidrStatus};
use std::net::IpAddr;

impl ConnectionManager {
    /// Requests the datagram QP of a service from a peer; sends SIDR_REQs until one is answered.
    /// [`Event::SidrResponse`] or [`Event::SidrUnreachable`] follows.
    pub fn sidr_request(
        &mut self,
        now: Instant,
        request: &SidrRequest<'_>,
    ) -> Result<SidrId, ConnectError> {
        fits(request.private_data, SidrReq::PRIVATE_LEN)
            .map_err(|(len, max)| ConnectError::PrivateData { len, max })?;
        same_family(request.source_ip, request.destination_ip)?;
        if !self.make_room_for_sidr() {
            return Err(ConnectError::TooMany(self.config.sidr_max));
        }
        let fresh = self.fresh_id();
        let transaction = self.transaction_of(fresh);
        let id = SidrId(fresh.0);
        self.resolutions.insert(Resolution {
            id,
            peer_ip: request.destination_ip,
            deadline: Some(now + self.config.response_timeout()),
            state: SidrState::Asked {
                message: Kept {
                    rearm: true,
                    ..Kept::new(message::sidr_req(id.0, transaction, request))
                },
                retries: 0,
            },
        });
        self.queue_kept_sidr(id);
        Ok(id)
    }

    /// Passive: answers with the datagram QP of the service, its queue key and at most 136 bytes of
    /// private data; sends a SIDR_REP. The id is invalid afterwards, without a further event.
    pub fn sidr_accept(
        &mut self,
        now: Instant,
        id: SidrId,
        qpn: Qpn,
        qkey: u32,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        self.answer(now, id, SidrAnswer { status: SidrStatus::Valid, qpn, qkey, private_data })
    }

    /// Passive: refuses, with at most 136 bytes of private data; sends a SIDR_REP. The id is
    /// invalid afterwards. `rdma_reject` uses [`SidrStatus::Rejected`].
    pub fn sidr_reject(
        &mut self,
        now: Instant,
        id: SidrId,
        status: SidrStatus,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        self.answer(now, id, SidrAnswer::refusal(status, private_data))
    }

    /// Cancels our own request, or refuses a peer's. The id is invalid afterwards, and no further
    /// event carries it, queued ones included.
    pub fn sidr_destroy(&mut self, now: Instant, id: SidrId) -> Result<(), CallError> {
        match self.resolutions.get(id).map(|r| &r.state) {
            Some(SidrState::Asked { .. }) => {
                self.remove_sidr(id);
                Ok(())
            }
            Some(SidrState::Undecided { .. }) => {
                self.sidr_reject(now, id, SidrStatus::Rejected, &[])
            }
            Some(SidrState::Answered { .. }) | None => Err(CallError::Unknown),
        }
    }

    /// Number of stored requests for datagram services: unanswered ones of ours, and the peers',
    /// including answered ones that are remembered.
    pub fn sidr_count(&self) -> usize {
        self.resolutions.len()
    }

    fn answer(
        &mut self,
        now: Instant,
        id: SidrId,
        answer: SidrAnswer<'_>,
    ) -> Result<(), CallError> {
        fits(answer.private_data, SidrRep::PRIVATE_LEN)
            .map_err(|(len, max)| CallError::PrivateData { len, max })?;
        let (asked, listen, event) = match self.resolutions.get(id).map(|r| &r.state) {
            Some(&SidrState::Undecided { asked, listen, event }) => (asked, listen, event),
            Some(SidrState::Asked { .. }) => return Err(CallError::NotAsked),
            Some(SidrState::Answered { .. }) | None => return Err(CallError::Unknown),
        };
        if let Some(key) = event {
            self.events.remove(key);
        }
        self.release_backlog(asked.service_id, Some(listen));
        let answer = message::sidr_rep(&asked, answer);
        self.resolutions.set_answered(id, answer, now + self.config.sidr_memory);
        self.queue_kept_sidr(id);
        Ok(())
    }

    pub(crate) fn on_sidr_req(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &SidrReq<'_>,
    ) -> Result<(), DropReason> {
        let asked = PeerRequest {
            request_id: req.request_id,
            service_id: req.service_id,
            transaction: header.transaction_id,
        };
        if let Some(r) = self.resolutions.by_peer(ip, req.request_id) {
            let id = r.id;
            match &r.state {
                // The answer was lost, or this repetition has crossed it.
                SidrState::Answered { asked: known, .. } if *known == asked => {
                    self.queue_kept_sidr(id);
                    return Err(DropReason::Duplicate);
                }
                SidrState::Undecided { .. } => return Err(DropReason::Duplicate),
                // The peer reuses the request id for another request.
                _ => self.remove_sidr(id),
            }
        }
        if !self.is_listening(req.service_id) {
            if self.config.reject_unknown_services {
                self.reply(ip, message::sidr_rep_unknown(header, req, SidrStatus::Unsupported));
            }
            return Err(DropReason::NoListener);
        }
        if !ServiceId::has_datagrams(req.service_id) {
            self.reply(ip, message::sidr_rep_unknown(header, req, SidrStatus::Rejected));
            return Err(DropReason::Unacceptable);
        }
        if self.resolutions.undecided() >= self.config.sidr_max / 2 || !self.make_room_for_sidr() {
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
        let id = SidrId(self.fresh_id().0);
        let info = Box::new(SidrRequestInfo {
            peer_ip: ip,
            service_id: req.service_id,
            pkey: req.pkey,
            private_data: PrivateData::new(req.private_data),
        });
        let event = self.events.push_back(Event::SidrRequest { listen, id, info });
        self.resolutions.insert(Resolution {
            id,
            peer_ip: ip,
            deadline: Some(now + self.config.decision_timeout),
            state: SidrState::Undecided { asked, listen, event: Some(event) },
        });
        Ok(())
    }

    pub(crate) fn on_sidr_rep(&mut self, ip: IpAddr, rep: &SidrRep<'_>) -> Result<(), DropReason> {
        let id = SidrId(rep.request_id);
        let r = self.resolutions.get(id).ok_or(DropReason::UnknownConnection)?;
        if !matches!(r.state, SidrState::Asked { .. }) {
            return Err(DropReason::UnexpectedInState);
        }
        if r.peer_ip != ip {
            return Err(DropReason::WrongPeer);
        }
        self.remove_sidr(id);
        match rep.status {
            SidrStatus::Valid => self.counters.resolved += 1,
            _ => self.counters.rejected += 1,
        }
        let SidrRep { status, qpn, qkey, .. } = *rep;
        let private_data = PrivateData::new(rep.private_data);
        self.events.push_back(Event::SidrResponse { id, status, qpn, qkey, private_data });
        Ok(())
    }

    pub(crate) fn sidr_timeout(&self) -> Option<Deadline> {
        let (at, id) = self.resolutions.first_timer()?;
        let reason = match self.resolutions.get(id).map(|r| &r.state) {
            Some(SidrState::Asked { .. }) => "CM: answer to SIDR_REQ",
            Some(SidrState::Undecided { .. }) => "CM: program's decision over SIDR_REQ",
            Some(SidrState::Answered { .. }) | None => "CM: end of memory of SIDR_REP",
        };
        Some(Deadline { at, reason })
    }

    pub(crate) fn expire_sidr(&mut self, now: Instant, id: SidrId) {
        let Some(r) = self.resolutions.get_mut(id) else { return };
        let waited = match &mut r.state {
            SidrState::Asked { message, retries } => {
                let waits = message.queued.is_some();
                if waits || *retries < self.config.retries_max {
                    if !waits {
                        *retries += 1;
                        message.rearm = true;
                        self.counters.retransmitted += 1;
                    }
                    let wait = self.config.response_timeout();
                    self.resolutions.set_deadline(id, Some(now + wait));
                    self.queue_kept_sidr(id);
                    return;
                }
                Some(Waited::ForReply)
            }
            // A request whose event was not polled ends without an event.
            SidrState::Undecided { event, .. } => event.is_none().then_some(Waited::ForDecision),
            SidrState::Answered { .. } => None,
        };
        self.remove_sidr(id);
        if let Some(waited) = waited {
            self.counters.unreachable += 1;
            self.events.push_back(Event::SidrUnreachable { id, waited });
        }
    }

    /// Passes the message kept by a request to `send`.
    pub(crate) fn send_sidr(&mut self, now: Instant, id: SidrId, send: impl FnOnce(IpAddr, &Mad)) {
        // Removing a request also removes its message from the queue.
        let Some(r) = self.resolutions.get_mut(id) else {
            unreachable!("queued for a forgotten request")
        };
        let ip = r.peer_ip;
        let Some(kept) = r.state.kept_mut() else { unreachable!("queued without a message") };
        kept.queued = None;
        let rearm = std::mem::take(&mut kept.rearm);
        send(ip, &kept.mad);
        if let Some(attribute) = message::attribute(&kept.mad) {
            self.counters.count_sent(attribute);
        }
        if rearm {
            let wait = self.config.response_timeout();
            self.resolutions.set_deadline(id, Some(now + wait));
        }
    }

    /// Queues the message kept by a request, unless it is queued already.
    fn queue_kept_sidr(&mut self, id: SidrId) {
        let Some(r) = self.resolutions.get_mut(id) else { return };
        if let Some(kept) = r.state.kept_mut().filter(|kept| kept.queued.is_none()) {
            kept.queued = Some(self.out.push_back(Outgoing::Sidr(id)));
        }
    }

    /// True if one more request fits. Evicts the oldest answered request if the table is full.
    fn make_room_for_sidr(&mut self) -> bool {
        if self.resolutions.len() < self.config.sidr_max {
            return true;
        }
        match self.resolutions.oldest_answered() {
            Some(id) => {
                self.remove_sidr(id);
                true
            }
            None => false,
        }
    }

    /// Removes a request, its queued message and its event.
    fn remove_sidr(&mut self, id: SidrId) {
        let Some(r) = self.resolutions.remove(id) else { return };
        match r.state {
            SidrState::Asked { message: kept, .. } | SidrState::Answered { answer: kept, .. } => {
                if let Some(key) = kept.queued {
                    self.out.remove(key);
                }
            }
            SidrState::Undecided { asked, listen, event } => {
                if let Some(key) = event {
                    self.events.remove(key);
                }
                self.release_backlog(asked.service_id, Some(listen));
            }
        }
    }
}
