//! The connection manager: listeners, connections, SIDR requests and their timers.

use crate::connection::Connection;
use crate::message;
use crate::queue::Queue;
use crate::sidr::{Resolutions, SidrId};
use crate::tables::Tables;
use crate::{
    Accept, CallError, Config, ConnectError, ConnectRequest, ConnectionId, ConnectionInfo,
    ConnectionState, Counters, DisconnectCause, Event, ListenError, ListenId, Role, Waited,
};
use longhaul_node::Deadline;
use longhaul_units::{Duration, Instant, Qpn, Rng, SplitMix64};
use longhaul_wire::mad::{Mad, MessageRejected, Rej, RejectReason, Rep, Req};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Many connections, driven by MADs and time. See the crate's documentation for the sequence of
/// calls.
///
/// After any call: drain [`ConnectionManager::poll_mad`] and [`ConnectionManager::poll_event`],
/// then ask [`ConnectionManager::poll_timeout`].
///
/// Bounds: connections, half-open connections, requests for datagram services, listeners and
/// waiting answers by [`Config`]; waiting events by the connections and requests (at most four of
/// each). A received MAD, an expired timer and a call cost a few tree look-ups each, however many
/// connections there are.
#[derive(Debug)]
pub struct ConnectionManager {
    pub(crate) config: Config,
    pub(crate) tables: Tables,
    pub(crate) resolutions: Resolutions,
    pub(crate) counters: Counters,
    pub(crate) events: Queue<Event>,
    pub(crate) listeners: BTreeMap<u64, Listener>,
    pub(crate) out: Queue<Outgoing>,
    replies: usize,
    next_comm_id: u32,
    next_listen: u64,
    /// Upper half of our transaction ids.
    transaction_base: u64,
}

#[derive(Debug)]
pub(crate) struct Listener {
    pub id: ListenId,
    pub backlog: usize,
    pub undecided: usize,
}

#[derive(Debug)]
pub(crate) enum Outgoing {
    /// The message that a connection keeps.
    Kept(ConnectionId),
    /// The message that a request for a datagram service keeps.
    Sidr(SidrId),
    /// An answer that nobody keeps.
    Reply(IpAddr, Box<Mad>),
}

impl ConnectionManager {
    /// A manager without listeners or connections. Fields of `config` outside their range are
    /// forced into it.
    pub fn new(config: Config) -> Self {
        let config = config.clamped();
        let mut rng = SplitMix64::new(config.seed);
        let next_comm_id = rng.next_u64() as u32;
        let transaction_base = rng.next_u64() & 0xffff_ffff_0000_0000;
        ConnectionManager {
            config,
            tables: Tables::default(),
            resolutions: Resolutions::default(),
            counters: Counters::default(),
            events: Queue::default(),
            listeners: BTreeMap::new(),
            out: Queue::default(),
            replies: 0,
            next_comm_id,
            next_listen: 1,
            transaction_base,
        }
    }

    // Calls.

    /// Takes requests for `service_id` from this moment on: for connections, in the UDP and IPoIB
    /// port spaces for datagram services, with ids outside the TCP, UDP and IPoIB port spaces for
    /// both. `backlog`: requests at a time that the program has neither accepted nor rejected; 0
    /// for the default.
    pub fn listen(&mut self, service_id: u64, backlog: usize) -> Result<ListenId, ListenError> {
        if self.listeners.contains_key(&service_id) {
            return Err(ListenError::InUse(service_id));
        }
        if self.listeners.len() >= self.config.listeners_max {
            return Err(ListenError::TooMany(self.config.listeners_max));
        }
        let id = ListenId(self.next_listen);
        self.next_listen += 1;
        let backlog = if backlog == 0 { self.config.backlog_default } else { backlog };
        self.listeners.insert(service_id, Listener { id, backlog, undecided: 0 });
        Ok(id)
    }

    /// Takes no more requests. Those whose event has not been polled yet are rejected; connections
    /// that the program knows live on. The service may be listened to again at once. False when
    /// there is no such listener.
    pub fn unlisten(&mut self, now: Instant, listen: ListenId) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|_, l| l.id != listen);
        let (mut connections, mut requests) = (Vec::new(), Vec::new());
        for event in self.events.iter() {
            match event {
                Event::ConnectRequest { listen: l, connection, .. } if *l == listen => {
                    connections.push(*connection);
                }
                Event::SidrRequest { listen: l, id, .. } if *l == listen => requests.push(*id),
                _ => {}
            }
        }
        // Known and in a state that destroy accepts, so it cannot fail.
        for id in connections {
            let _ = self.destroy(now, id);
        }
        for id in requests {
            let _ = self.sidr_destroy(now, id);
        }
        self.listeners.len() < before
    }

    /// Changes the backlog of who listens to `service_id`, as given to
    /// [`ConnectionManager::listen`]. Requests that were taken already stay. False when nobody
    /// listens.
    pub fn set_backlog(&mut self, service_id: u64, backlog: usize) -> bool {
        let backlog = if backlog == 0 { self.config.backlog_default } else { backlog };
        self.listener(service_id).map(|listener| listener.backlog = backlog).is_some()
    }

    /// True while somebody listens to `service_id`.
    pub fn is_listening(&self, service_id: u64) -> bool {
        self.listeners.contains_key(&service_id)
    }

    /// Asks a peer for a connection; sends a REQ. [`Event::ConnectResponse`], [`Event::Rejected`]
    /// or [`Event::Unreachable`] follows.
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
        let mad = message::req(&self.config, id.0, transaction, request);
        self.tables.insert(Connection {
            retries_max: self.config.retries_max,
            local_qpn: request.local_qpn,
            service_id: request.service_id,
            transaction,
            path_mtu_code,
            ..Connection::new(id, Role::Active, ConnectionState::ReqSent, request.destination_ip)
        });
        self.send_kept(now, id, mad);
        Ok(id)
    }

    /// Passive: accepts a connection request; sends a REP. [`Event::Established`],
    /// [`Event::Rejected`], [`Event::Unreachable`] or [`Event::Disconnected`] follows.
    pub fn accept(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        accept: &Accept<'_>,
    ) -> Result<(), CallError> {
        fits(accept.private_data, Rep::PRIVATE_LEN)
            .map_err(|(len, max)| CallError::PrivateData { len, max })?;
        let c = self.tables.get(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        if c.state != ConnectionState::ReqReceived {
            return Err(CallError::State(c.state));
        }
        let mad = message::rep(&self.config, c, accept);
        self.tables.set_local_qpn(connection, accept.local_qpn);
        self.set_state(connection, ConnectionState::RepSent);
        self.send_kept(now, connection, mad);
        Ok(())
    }

    /// Refuses a connection request, or (active) a reply; sends a REJ. The id is gone.
    /// `rdma_reject` gives [`RejectReason::CONSUMER`] and at most 148 bytes of private data.
    pub fn reject(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CallError> {
        self.reject_with_info(now, connection, reason, &[], private_data)
    }

    /// As [`ConnectionManager::reject`], with at most 72 bytes of additional rejection information,
    /// of which the standard says for each reason what they mean. A REJ for
    /// [`RejectReason::TIMEOUT`] names our adapter there instead.
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
        let c = self.tables.get(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        match c.state {
            ConnectionState::ReqReceived
            | ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::RepAcknowledged => {
                self.refuse(now, connection, reason, (info, private_data));
                Ok(())
            }
            state => Err(CallError::State(state)),
        }
    }

    /// Active: our QP is in RTS; sends an RTU. The connection is established, without a further
    /// event.
    pub fn ready_to_use(
        &mut self,
        _now: Instant,
        connection: ConnectionId,
    ) -> Result<(), CallError> {
        let c = self.tables.get(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        if c.state != ConnectionState::RepReceived {
            return Err(CallError::State(c.state));
        }
        let (ip, mad) = (c.peer_ip, message::rtu(c));
        self.set_state(connection, ConnectionState::Established);
        self.counters.established += 1;
        self.reply_once(ip, mad);
        Ok(())
    }

    /// Passive: the first packet came in on `local_qpn`, so the peer is ready though its RTU is
    /// late or lost. True when that established a connection; [`Event::Established`] follows then.
    /// Costs a tree look-up: call it on a QP's first packet, not on each.
    pub fn established_by_traffic(&mut self, local_qpn: Qpn) -> bool {
        match self.tables.by_local_qpn(local_qpn) {
            Some(c)
                if matches!(
                    c.state,
                    ConnectionState::RepSent | ConnectionState::RepAcknowledged
                ) =>
            {
                let id = c.id;
                self.establish(id);
                true
            }
            _ => false,
        }
    }

    /// Ends an established connection; sends DREQs until one is answered. [`Event::Disconnected`]
    /// and [`Event::TimewaitExit`] follow. Does nothing when the end has begun already, by
    /// whomever.
    ///
    /// Passive also before the RTU: the peer may count the connection as established.
    pub fn disconnect(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let c = self.tables.get(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        match c.state {
            ConnectionState::Established
            | ConnectionState::RepSent
            | ConnectionState::RepAcknowledged => {
                self.begin_disconnect(now, connection);
                Ok(())
            }
            ConnectionState::DreqSent | ConnectionState::Timewait => Ok(()),
            state => Err(CallError::State(state)),
        }
    }

    /// Forgets a connection in whatever state, and tells the peer: a REJ during the handshake,
    /// DREQs when the peer may count it as established. The id is gone and no further event names
    /// it, queued ones included; duties towards the peer are finished behind the scenes.
    pub fn destroy(&mut self, now: Instant, connection: ConnectionId) -> Result<(), CallError> {
        let c = self.tables.get(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        let state = c.state;
        self.cancel_events(connection);
        match state {
            ConnectionState::ReqSent | ConnectionState::ReqAcknowledged => {
                self.abandon_request(connection);
            }
            ConnectionState::ReqReceived | ConnectionState::RepReceived => {
                self.refuse(now, connection, RejectReason::CONSUMER, NOTHING);
            }
            // After our REP the peer may count the connection as established, and a lost REJ would
            // leave it so: a DREQ is retransmitted until it is answered.
            ConnectionState::RepSent
            | ConnectionState::RepAcknowledged
            | ConnectionState::Established => {
                self.orphan(connection);
                self.begin_disconnect(now, connection);
            }
            ConnectionState::DreqSent | ConnectionState::Timewait => self.orphan(connection),
        }
        Ok(())
    }

    /// Extends the peer's timeout (MRA) while the program decides on a request or a reply;
    /// sends an MRA. `service_timeout_code`: time wanted, 4.096 µs times 2^code, 0 to 31.
    pub fn mra(
        &mut self,
        connection: ConnectionId,
        service_timeout_code: u8,
    ) -> Result<(), CallError> {
        let code = service_timeout_code.min(31);
        let c = self.tables.get_mut(connection).filter(|c| !c.orphan).ok_or(CallError::Unknown)?;
        let received = match c.state {
            ConnectionState::ReqReceived => MessageRejected::Req,
            ConnectionState::RepReceived => MessageRejected::Rep,
            state => return Err(CallError::State(state)),
        };
        c.mra_sent = Some(code);
        let (ip, mad) = (c.peer_ip, message::mra(c, received, code));
        self.reply(ip, mad);
        Ok(())
    }

    // What to do next.

    /// Hands the next MAD to `send`, with its destination. False when none waits; ask for room
    /// first.
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
            Outgoing::Kept(id) => {
                // Whatever ends the connection or answers its message takes the entry out of the
                // queue.
                let Some(c) = self.tables.get_mut(id) else {
                    unreachable!("queued for a forgotten connection")
                };
                c.queued = None;
                let rearm = std::mem::take(&mut c.rearm);
                let Some(mad) = c.kept.as_deref() else { unreachable!("queued without a message") };
                send(c.peer_ip, mad);
                if let Some(attribute) = message::attribute(mad) {
                    self.counters.count_sent(attribute);
                }
                if rearm {
                    // The wait begins when the message leaves, not when it was queued.
                    let wait = self.answer_timeout(id);
                    self.tables.set_deadline(id, Some(now + wait));
                }
            }
            Outgoing::Sidr(id) => self.send_sidr(now, id, send),
        }
        true
    }

    /// True when [`ConnectionManager::poll_mad`] has something to send.
    pub fn has_mad(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let (key, event) = self.events.pop_front()?;
        if let Event::SidrRequest { id, .. } = event {
            if let Some(resolution) = self.resolutions.get_mut(id) {
                resolution.event = None;
            }
        } else if let Some(c) = self.tables.get_mut(event.connection()) {
            if let Some(place) = c.events.iter_mut().find(|place| **place == Some(key)) {
                *place = None;
            }
            c.unseen &= !matches!(event, Event::ConnectRequest { .. });
        }
        Some(event)
    }

    /// When [`ConnectionManager::handle_timeout`] must be called next.
    pub fn poll_timeout(&self) -> Option<Deadline> {
        let connections = self.tables.first_timer().map(|(at, id)| {
            let reason = self.tables.get(id).map_or("CM", Connection::reason);
            Deadline { at, reason }
        });
        Deadline::earliest(connections, self.sidr_timeout())
    }

    /// Retransmits unanswered messages, abandons those out of retries, ends time-waits.
    /// Early calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.tables.first_timer().filter(|(at, _)| *at <= now) {
            self.tables.set_deadline(id, None);
            self.expire(now, id);
        }
        while let Some((_, id)) = self.resolutions.first_timer().filter(|(at, _)| *at <= now) {
            self.resolutions.set_deadline(id, None);
            self.expire_sidr(now, id);
        }
    }

    // What there is.

    /// One connection; `None` when the id is gone.
    pub fn connection(&self, connection: ConnectionId) -> Option<ConnectionInfo> {
        self.tables.get(connection).filter(|c| !c.orphan).map(Connection::info)
    }

    /// Every connection, orphans and time-waits included, in the order of their ids.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionInfo> {
        self.tables.iter().map(Connection::info)
    }

    /// Free-running counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration in effect.
    pub fn config(&self) -> &Config {
        &self.config
    }

    // Machinery, shared with reception.

    pub(crate) fn listener(&mut self, service_id: u64) -> Option<&mut Listener> {
        self.listeners.get_mut(&service_id)
    }

    /// A communication id that no connection and no request has, never 0.
    pub(crate) fn fresh_id(&mut self) -> ConnectionId {
        let bits = self.config.comm_id_bits();
        let prefix = u64::from(self.config.comm_id_prefix) << bits;
        loop {
            let low = u64::from(self.next_comm_id) & ((1 << bits) - 1);
            self.next_comm_id = self.next_comm_id.wrapping_add(1);
            let id = ConnectionId((prefix | low) as u32);
            if low != 0 && !self.tables.contains(id) && !self.resolutions.contains(SidrId(id.0)) {
                return id;
            }
        }
    }

    /// All that we begin over one connection shares a transaction id, as with Linux.
    pub(crate) fn transaction_of(&self, id: ConnectionId) -> u64 {
        self.transaction_base | u64::from(id.0)
    }

    /// Queues a reply that is never retransmitted: the peer retransmits its request if it is lost.
    pub(crate) fn reply(&mut self, ip: IpAddr, mad: Box<Mad>) {
        self.reply_within(self.config.replies_max, ip, mad);
    }

    /// Queues an answer that each connection gives once: not to be dropped because many ask at a
    /// time.
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

    /// Queues the message that the connection keeps, unless it is queued.
    pub(crate) fn queue_kept(&mut self, id: ConnectionId) {
        if let Some(c) = self.tables.get_mut(id)
            && c.queued.is_none()
            && c.kept.is_some()
        {
            c.queued = Some(self.out.push_back(Outgoing::Kept(id)));
        }
    }

    /// Queues an event of a connection that lives on.
    pub(crate) fn tell(&mut self, id: ConnectionId, event: Event) {
        let key = self.events.push_back(event);
        if let Some(c) = self.tables.get_mut(id)
            && let Some(place) = c.events.iter_mut().find(|place| place.is_none())
        {
            *place = Some(key);
        }
    }

    /// Takes the events of a connection that the program has not polled out of the queue.
    pub(crate) fn cancel_events(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get_mut(id) else { return };
        for key in std::mem::take(&mut c.events).into_iter().flatten() {
            self.events.remove(key);
        }
    }

    /// Sends a message that is retransmitted until it is answered.
    pub(crate) fn send_kept(&mut self, now: Instant, id: ConnectionId, mad: Box<Mad>) {
        let wait = self.answer_timeout(id);
        if let Some(c) = self.tables.get_mut(id) {
            c.kept = Some(mad);
            c.retries = 0;
            c.rearm = true;
        }
        self.tables.set_deadline(id, Some(now + wait));
        self.queue_kept(id);
    }

    /// The kept message has been answered.
    pub(crate) fn answered(&mut self, id: ConnectionId) {
        self.tables.set_deadline(id, None);
        if let Some(c) = self.tables.get_mut(id) {
            c.kept = None;
            c.rearm = false;
            if let Some(key) = c.queued.take() {
                self.out.remove(key);
            }
        }
    }

    fn answer_timeout(&self, id: ConnectionId) -> Duration {
        match self.tables.get(id) {
            Some(c)
                if matches!(
                    c.state,
                    ConnectionState::RepSent | ConnectionState::RepAcknowledged
                ) =>
            {
                self.config.peer_timeout(c.peer_timeout_code)
            }
            _ => self.config.response_timeout(),
        }
    }

    pub(crate) fn set_state(&mut self, id: ConnectionId, state: ConnectionState) {
        if state != ConnectionState::ReqReceived {
            self.decided(id);
        }
        self.tables.set_state(id, state);
    }

    /// A request that waited for the program's decision no longer counts against its listener's
    /// backlog.
    fn decided(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get(id) else { return };
        if c.state == ConnectionState::ReqReceived {
            let (service_id, listen) = (c.service_id, c.listen);
            self.release_backlog(service_id, listen);
        }
    }

    pub(crate) fn release_backlog(&mut self, service_id: u64, listen: Option<ListenId>) {
        if let Some(l) = self.listeners.get_mut(&service_id).filter(|l| Some(l.id) == listen) {
            l.undecided -= 1;
        }
    }

    /// Forgets a connection without a word.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        self.decided(id);
        if let Some(c) = self.tables.remove(id)
            && let Some(key) = c.queued
        {
            self.out.remove(key);
        }
    }

    fn orphan(&mut self, id: ConnectionId) {
        if let Some(c) = self.tables.get_mut(id) {
            c.orphan = true;
        }
    }

    pub(crate) fn establish(&mut self, id: ConnectionId) {
        self.answered(id);
        self.set_state(id, ConnectionState::Established);
        self.counters.established += 1;
        self.tell(id, Event::Established { connection: id });
    }

    pub(crate) fn begin_disconnect(&mut self, now: Instant, id: ConnectionId) {
        let transaction = self.transaction_of(id);
        let retries_max = self.config.retries_max;
        let Some(c) = self.tables.get_mut(id) else { return };
        c.retries_max = retries_max;
        let mad = message::dreq(c, transaction);
        self.answered(id);
        self.set_state(id, ConnectionState::DreqSent);
        self.send_kept(now, id, mad);
    }

    /// The connection is over: tells the owner, and keeps its ids for a while.
    pub(crate) fn disconnected(&mut self, now: Instant, id: ConnectionId, cause: DisconnectCause) {
        self.answered(id);
        self.counters.disconnected += 1;
        if self.tables.get(id).is_some_and(|c| !c.orphan) {
            self.tell(id, Event::Disconnected { connection: id, cause });
        }
        self.enter_timewait(now, id, self.config.timewait);
    }

    fn enter_timewait(&mut self, now: Instant, id: ConnectionId, period: Duration) {
        self.set_state(id, ConnectionState::Timewait);
        self.tables.set_deadline(id, Some(now + period));
    }

    /// Ends a handshake with a REJ. The connection stays as an orphan, which resends the REJ
    /// for each duplicate of the peer's message. `said`: rejection information and private data.
    fn refuse(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: RejectReason,
        said: (&[u8], &[u8]),
    ) {
        let Some(c) = self.tables.get(id) else { return };
        let rejected = match c.state {
            ConnectionState::ReqReceived => MessageRejected::Req,
            ConnectionState::RepReceived => MessageRejected::Rep,
            _ => MessageRejected::Other,
        };
        let (ip, mad) = (c.peer_ip, message::rej(&self.config, c, rejected, reason, said));
        let asked_for = c.mra_sent.map_or(Duration::ZERO, |code| self.config.mra_timeout(code));
        if self.tables.len() > self.config.connections_max / 2 {
            // Under pressure memory goes to the living: a lost REJ is then not resent.
            self.remove(id);
            self.reply(ip, mad);
            return;
        }
        self.answered(id);
        self.orphan(id);
        // Long enough to see the peer's retransmissions.
        let repeats = self.config.response_timeout().times(2).max(asked_for);
        self.enter_timewait(now, id, self.config.timewait + repeats);
        if let Some(c) = self.tables.get_mut(id) {
            c.kept = Some(mad);
        }
        self.queue_kept(id);
    }

    /// Takes our own REQ back: the peer may have a half-open connection.
    fn abandon_request(&mut self, id: ConnectionId) {
        let Some(c) = self.tables.get(id) else { return };
        let mad =
            message::rej(&self.config, c, MessageRejected::Other, RejectReason::TIMEOUT, NOTHING);
        let ip = c.peer_ip;
        self.remove(id);
        self.reply(ip, mad);
    }

    fn expire(&mut self, now: Instant, id: ConnectionId) {
        let Some(c) = self.tables.get_mut(id) else { return };
        match c.state {
            ConnectionState::ReqSent | ConnectionState::ReqAcknowledged => {
                if !self.retransmit(now, id, ConnectionState::ReqSent) {
                    self.abandon_request(id);
                    self.unreachable(id, Waited::ForReply);
                }
            }
            ConnectionState::RepSent | ConnectionState::RepAcknowledged => {
                if !self.retransmit(now, id, ConnectionState::RepSent) {
                    self.refuse(now, id, RejectReason::TIMEOUT, NOTHING);
                    self.unreachable(id, Waited::ForReadyToUse);
                }
            }
            ConnectionState::ReqReceived => {
                let unseen = c.unseen;
                self.cancel_events(id);
                self.refuse(now, id, RejectReason::TIMEOUT, NOTHING);
                if !unseen {
                    self.unreachable(id, Waited::ForDecision);
                }
            }
            ConnectionState::DreqSent => {
                if !self.retransmit(now, id, ConnectionState::DreqSent) {
                    self.disconnected(now, id, DisconnectCause::NoAnswer);
                }
            }
            ConnectionState::Timewait => {
                let orphan = c.orphan;
                self.remove(id);
                if !orphan {
                    self.events.push_back(Event::TimewaitExit { connection: id });
                }
            }
            ConnectionState::RepReceived | ConnectionState::Established => {}
        }
    }

    /// Retransmits the kept message; false when no retries are left.
    fn retransmit(&mut self, now: Instant, id: ConnectionId, state: ConnectionState) -> bool {
        self.tables.set_state(id, state);
        let wait = self.answer_timeout(id);
        let Some(c) = self.tables.get_mut(id) else { return false };
        if c.queued.is_none() {
            if c.retries >= c.retries_max {
                return false;
            }
            c.retries += 1;
            c.rearm = true;
            self.counters.retransmitted += 1;
        }
        self.tables.set_deadline(id, Some(now + wait));
        self.queue_kept(id);
        true
    }

    fn unreachable(&mut self, id: ConnectionId, waited: Waited) {
        self.counters.unreachable += 1;
        self.events.push_back(Event::Unreachable { connection: id, waited });
    }
}

/// No rejection information, no private data.
const NOTHING: (&[u8], &[u8]) = (&[], &[]);

/// `Err` when the addresses are of different families.
pub(crate) fn same_family(source: IpAddr, destination: IpAddr) -> Result<(), ConnectError> {
    if source.is_ipv4() == destination.is_ipv4() {
        Ok(())
    } else {
        Err(ConnectError::Families(source, destination))
    }
}

/// `Err` with the length and the limit when `data` is too long.
pub(crate) fn fits(data: &[u8], max: usize) -> Result<(), (usize, usize)> {
    if data.len() > max { Err((data.len(), max)) } else { Ok(()) }
}
