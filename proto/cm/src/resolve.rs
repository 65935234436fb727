//! Requests for datagram services: calls, messages and timers.

use crate::event::PrivateData;
use crate::manager::{fits, same_family};
use crate::message::{self, SidrAnswer};
use crate::output::Outgoing;
use crate::sidr::{Resolution, SidrId, SidrState};
use crate::{
    CallError, ConnectError, ConnectionManager, Drop, Event, ServiceId, SidrRequest,
    SidrRequestInfo, Waited,
};
use longhaul_node::Deadline;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::mad::{Header, Mad, SidrRep, SidrReq, SidrStatus};
use std::net::IpAddr;

impl ConnectionManager {
    /// Asks a peer for the datagram QP of a service; sends SIDR_REQs until one is answered.
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
            state: SidrState::Asked,
            peer_ip: request.destination_ip,
            request_id: 0,
            service_id: request.service_id,
            transaction,
            listen: None,
            retries: 0,
            rearm: true,
            queued: None,
            event: None,
            deadline: Some(now + self.config.response_timeout()),
            kept: Some(message::sidr_req(id.0, transaction, request)),
        });
        self.queue_kept_sidr(id);
        Ok(id)
    }

    /// Passive: names the datagram QP of the service and its queue key, with at most 136 bytes of
    /// private data; sends a SIDR_REP. The id is gone, without a further event.
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

    /// Passive: refuses, with at most 136 bytes of private data; sends a SIDR_REP. The id is gone.
    /// `rdma_reject` gives [`SidrStatus::Rejected`].
    pub fn sidr_reject(
        &mut self,
        now: Instant,
        id: SidrId,
        status: SidrStatus,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        self.answer(now, id, SidrAnswer::refusal(status, private_data))
    }

    /// Forgets our own request, or refuses a peer's. The id is gone and no further event names it,
    /// queued ones included.
    pub fn sidr_destroy(&mut self, now: Instant, id: SidrId) -> Result<(), CallError> {
        match self.resolutions.get(id).map(|r| r.state) {
            Some(SidrState::Asked) => {
                self.remove_sidr(id);
                Ok(())
            }
            Some(SidrState::Undecided) => self.sidr_reject(now, id, SidrStatus::Rejected, &[]),
            Some(SidrState::Answered) | None => Err(CallError::Unknown),
        }
    }

    /// Requests for datagram services that are held: ours without an answer, and the peers',
    /// answered ones that are remembered included.
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
        let r = self.resolutions.get_mut(id).ok_or(CallError::Unknown)?;
        match r.state {
            SidrState::Undecided => {}
            SidrState::Asked => return Err(CallError::NotAsked),
            SidrState::Answered => return Err(CallError::Unknown),
        }
        r.kept = Some(message::sidr_rep(r, answer));
        let (service_id, listen) = (r.service_id, r.listen);
        if let Some(key) = r.event.take() {
            self.events.remove(key);
        }
        self.release_backlog(service_id, listen);
        self.resolutions.set_answered(id, now + self.config.sidr_memory);
        self.queue_kept_sidr(id);
        Ok(())
    }

    pub(crate) fn on_sidr_req(
        &mut self,
        now: Instant,
        ip: IpAddr,
        header: &Header,
        req: &SidrReq<'_>,
    ) -> Result<(), Drop> {
        if let Some(r) = self.resolutions.by_peer(ip, req.request_id) {
            let (id, state) = (r.id, r.state);
            let same = r.transaction == header.transaction_id && r.service_id == req.service_id;
            if same || state == SidrState::Undecided {
                // Of an answered one the answer was lost, or has crossed this repetition.
                if state == SidrState::Answered {
                    self.queue_kept_sidr(id);
                }
                return Err(Drop::Duplicate);
            }
            // The peer began anew with an old number.
            self.remove_sidr(id);
        }
        if !self.is_listening(req.service_id) {
            if self.config.reject_unknown_services {
                self.reply(ip, message::sidr_rep_unknown(header, req, SidrStatus::Unsupported));
            }
            return Err(Drop::NoListener);
        }
        if !ServiceId::has_datagrams(req.service_id) {
            self.reply(ip, message::sidr_rep_unknown(header, req, SidrStatus::Rejected));
            return Err(Drop::Unacceptable);
        }
        if self.resolutions.undecided() >= self.config.sidr_max / 2 || !self.make_room_for_sidr() {
            return Err(Drop::TableFull);
        }
        let Some(listener) = self.listener(req.service_id) else { return Err(Drop::NoListener) };
        if listener.undecided >= listener.backlog {
            return Err(Drop::BacklogFull);
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
            state: SidrState::Undecided,
            peer_ip: ip,
            request_id: req.request_id,
            service_id: req.service_id,
            transaction: header.transaction_id,
            listen: Some(listen),
            retries: 0,
            rearm: false,
            queued: None,
            event: Some(event),
            deadline: Some(now + self.config.decision_timeout),
            kept: None,
        });
        Ok(())
    }

    pub(crate) fn on_sidr_rep(&mut self, ip: IpAddr, rep: &SidrRep<'_>) -> Result<(), Drop> {
        let id = SidrId(rep.request_id);
        let r = self.resolutions.get(id).ok_or(Drop::UnknownConnection)?;
        if r.state != SidrState::Asked {
            return Err(Drop::UnexpectedInState);
        }
        if r.peer_ip != ip {
            return Err(Drop::WrongPeer);
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
        let reason = match self.resolutions.get(id).map(|r| r.state) {
            Some(SidrState::Asked) => "CM: answer to SIDR_REQ",
            Some(SidrState::Undecided) => "CM: program's decision over SIDR_REQ",
            Some(SidrState::Answered) | None => "CM: end of memory of SIDR_REP",
        };
        Some(Deadline { at, reason })
    }

    pub(crate) fn expire_sidr(&mut self, now: Instant, id: SidrId) {
        let Some(r) = self.resolutions.get_mut(id) else { return };
        let waited = match r.state {
            SidrState::Asked => {
                let waits = r.queued.is_some();
                if waits || r.retries < self.config.retries_max {
                    if !waits {
                        r.retries += 1;
                        r.rearm = true;
                        self.counters.retransmitted += 1;
                    }
                    let wait = self.config.response_timeout();
                    self.resolutions.set_deadline(id, Some(now + wait));
                    self.queue_kept_sidr(id);
                    return;
                }
                Some(Waited::ForReply)
            }
            // A request that the program has not even seen is none for it.
            SidrState::Undecided => r.event.is_none().then_some(Waited::ForDecision),
            SidrState::Answered => None,
        };
        self.remove_sidr(id);
        if let Some(waited) = waited {
            self.counters.unreachable += 1;
            self.events.push_back(Event::SidrUnreachable { id, waited });
        }
    }

    /// Hands over the message that a request keeps.
    pub(crate) fn send_sidr(&mut self, now: Instant, id: SidrId, send: impl FnOnce(IpAddr, &Mad)) {
        // Whatever ends the request takes the entry out of the queue.
        let Some(r) = self.resolutions.get_mut(id) else {
            unreachable!("queued for a forgotten request")
        };
        r.queued = None;
        let rearm = std::mem::take(&mut r.rearm);
        let Some(mad) = r.kept.as_deref() else { unreachable!("queued without a message") };
        send(r.peer_ip, mad);
        if let Some(attribute) = message::attribute(mad) {
            self.counters.count_sent(attribute);
        }
        if rearm {
            let wait = self.config.response_timeout();
            self.resolutions.set_deadline(id, Some(now + wait));
        }
    }

    /// Queues the message that the request keeps, once.
    fn queue_kept_sidr(&mut self, id: SidrId) {
        if let Some(r) = self.resolutions.get_mut(id)
            && r.queued.is_none()
        {
            r.queued = Some(self.out.push_back(Outgoing::Sidr(id)));
        }
    }

    /// True when one more request fits; an answered one is forgotten for it where need be.
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

    /// Forgets a request without a word.
    fn remove_sidr(&mut self, id: SidrId) {
        let Some(r) = self.resolutions.remove(id) else { return };
        if let Some(key) = r.queued {
            self.out.remove(key);
        }
        if let Some(key) = r.event {
            self.events.remove(key);
        }
        if r.state == SidrState::Undecided {
            self.release_backlog(r.service_id, r.listen);
        }
    }
}
