//! One QP: its state machine and attributes around a requester and a responder.

use crate::env::{Env, QpContext};
use crate::hop::Hop;
use crate::path::path;
use crate::transition;
use crate::transport::{Fault, Transport};
use crate::{
    Access, AddressVector, Config, Event, Memory, QpAttr, QpEvent, QpInfo, QpInit, QpKind, QpState,
    VerbsError,
};
use longhaul_cc::RateLimiter;
use longhaul_cc::dcqcn::NotificationPoint;
use longhaul_neighbour::HopId;
use longhaul_units::{Instant, Psn, Qpn};
use longhaul_wire::{MacAddr, Path, PathTemplate};
use longhaul_work::RecvQueue;
use std::net::{IpAddr, Ipv4Addr};

/// A QP and its attributes.
pub(crate) struct Qp {
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attr: QpAttr,
    pub access: Access,
    pub template: PathTemplate,
    pub peer_ip: IpAddr,
    /// Keeps the hop to the peer resolved.
    pub hop: Option<HopId>,
    pub transport: Transport,
    /// Without entries if the QP uses a shared receive queue.
    pub recv: RecvQueue,
    /// Limits the rate of requests and READ responses.
    pub limiter: RateLimiter,
    pub notification: NotificationPoint,
    /// Whether the QP is in the device's list of QPs with packets to send.
    pub is_listed: bool,
    /// Time of this QP's entry in the device's timers.
    pub timer_entry: Option<Instant>,
    /// Time of this QP's entry among the rate-limited QPs.
    pub paced_entry: Option<Instant>,
    /// Whether the responder sends next if both halves have something to send.
    pub responder_first: bool,
    communicates: bool,
    drain_event: bool,
}

/// Snapshot of a QP for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpSnapshot {
    /// The QP.
    pub qpn: Qpn,
    /// Transport service.
    pub kind: QpKind,
    /// The peer's QP, once known.
    pub dest_qpn: Option<Qpn>,
    /// The peer's IP address, once known.
    pub peer_ip: Option<IpAddr>,
    /// State.
    pub state: QpState,
    /// Next PSN to send.
    pub next_psn: Psn,
    /// Next PSN expected.
    pub expected_psn: Psn,
    /// Further state of a reliable connection.
    pub reliable: Option<(longhaul_rc::RequesterSnapshot, longhaul_rc::ResponderSnapshot)>,
    /// Receives posted to its own receive queue.
    pub receives: u32,
}

fn bound(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfBounds { what, value, min, max })
}

/// Checks that this device can use an address vector.
pub(crate) fn check_address(address: &AddressVector, config: &Config) -> Result<(), VerbsError> {
    bound("flow_label", u64::from(address.flow_label), 0, 0xf_ffff)?;
    if config.addresses.towards(address.destination_ip.to_canonical()).is_none() {
        return Err(VerbsError::Invalid("the peer's address is of another family than the port's"));
    }
    Ok(())
}

fn check_bounds(attr: &QpAttr, config: &Config) -> Result<(), VerbsError> {
    let at_most = |what, value: Option<u8>, max: u8| match value {
        Some(v) => bound(what, u64::from(v), 0, u64::from(max)),
        None => Ok(()),
    };
    at_most("timeout", attr.timeout, 31)?;
    at_most("retry_cnt", attr.retry_cnt, 7)?;
    at_most("rnr_retry", attr.rnr_retry, 7)?;
    at_most("min_rnr_timer", attr.min_rnr_timer, 31)?;
    at_most("max_rd_atomic", attr.max_rd_atomic, config.rd_atomic_initiated_max)?;
    at_most("max_dest_rd_atomic", attr.max_dest_rd_atomic, config.rd_atomic_max)?;
    if let Some(mtu) = attr.path_mtu {
        bound("path_mtu", u64::from(mtu.bytes()), 256, u64::from(config.path_mtu_max.bytes()))?;
    }
    if let Some(index) = attr.pkey_index {
        bound("pkey_index", u64::from(index), 0, 0)?;
    }
    if let Some(port) = attr.port {
        bound("port", u64::from(port), 1, 1)?;
    }
    attr.address.as_ref().map_or(Ok(()), |address| check_address(address, config))
}

impl Qp {
    pub fn new(qpn: Qpn, init: QpInit, config: &Config) -> Self {
        let rq_depth = if init.srq.is_some() { 0 } else { init.rq_depth };
        let recv = RecvQueue::new(rq_depth, init.recv_sge_max);
        let transport = Transport::new(qpn, &init, config);
        let init = QpInit { sq_depth: transport.sq_depth(), rq_depth: recv.depth(), ..init };
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let path = Path {
            source_mac: MacAddr::default(),
            destination_mac: MacAddr::default(),
            vlan: None,
            source_ip: nowhere,
            destination_ip: nowhere,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            udp_source_port: 0,
        };
        Qp {
            qpn,
            init,
            state: QpState::Reset,
            attr: QpAttr::default(),
            access: Access::default(),
            template: PathTemplate::new(&path),
            peer_ip: nowhere,
            hop: None,
            transport,
            recv,
            limiter: RateLimiter::new(),
            notification: NotificationPoint::new(),
            is_listed: false,
            timer_entry: None,
            paced_entry: None,
            responder_first: true,
            communicates: false,
            drain_event: false,
        }
    }

    fn reset(&mut self, config: &Config, shared: Option<&mut RecvQueue>) {
        self.attr = QpAttr::default();
        self.access = Access::default();
        self.transport.release(shared.unwrap_or(&mut self.recv));
        self.transport.start_responder(self.qpn, &self.init, &self.attr, config);
        self.transport.start_requester(self.qpn, &self.attr, config);
        self.recv.clear();
        self.limiter = RateLimiter::new();
        self.notification = NotificationPoint::new();
        self.communicates = false;
        self.drain_event = false;
    }

    /// The context that a QP's halves get.
    #[inline]
    pub fn context<'a, M>(init: &QpInit, access: Access, env: &'a mut Env<M>) -> QpContext<'a, M> {
        QpContext { env, pd: init.pd, access, send_cq: init.send_cq, recv_cq: init.recv_cq }
    }

    /// Checks that [`Qp::modify`] may be called with `attr`.
    pub fn check(&self, attr: &QpAttr, config: &Config) -> Result<(), VerbsError> {
        transition::check(self.init.kind, self.state, attr.state.unwrap_or(self.state), attr)?;
        check_bounds(attr, config)
    }

    /// Changes attributes and state, which [`Qp::check`] has accepted. `hop` is the hop to the
    /// address in `attr`, if any, and `shared` the shared receive queue, if any. Returns the hold
    /// on a hop that is no longer needed.
    #[must_use]
    pub fn modify<M: Memory>(
        &mut self,
        now: Instant,
        attr: &QpAttr,
        hop: Option<Hop>,
        config: &Config,
        env: &mut Env<M>,
        shared: Option<&mut RecvQueue>,
    ) -> Option<HopId> {
        let (from, to) = (self.state, attr.state.unwrap_or(self.state));
        let released = match to {
            QpState::Reset => {
                for cq in [self.init.send_cq, self.init.recv_cq] {
                    if let Some(cq) = env.cqs.get_mut(cq.0) {
                        cq.forget(self.qpn);
                    }
                }
                self.reset(config, shared);
                self.hop.take()
            }
            QpState::Error => {
                self.fail(env, shared);
                return hop.and_then(|hop| hop.id);
            }
            _ => self.merge(now, attr, hop, config),
        };
        self.state = to;
        match (from, to) {
            (QpState::Init, QpState::ReadyToReceive) => {
                self.transport.start_responder(self.qpn, &self.init, &self.attr, config);
            }
            (QpState::ReadyToReceive, QpState::ReadyToSend) => {
                self.transport.start_requester(self.qpn, &self.attr, config);
            }
            (QpState::ReadyToSend, QpState::SendQueueDrained) => {
                self.drain_event = attr.drain_event.unwrap_or(false);
                self.transport.pause(true);
            }
            (QpState::SendQueueDrained, QpState::ReadyToSend) => {
                self.drain_event = false;
                self.transport.pause(false);
            }
            (QpState::SendQueueError, QpState::ReadyToSend) => self.transport.recover(),
            _ => {}
        }
        released
    }

    fn merge(
        &mut self,
        now: Instant,
        attr: &QpAttr,
        hop: Option<Hop>,
        config: &Config,
    ) -> Option<HopId> {
        let mine = &mut self.attr;
        mine.path_mtu = attr.path_mtu.or(mine.path_mtu);
        mine.address = attr.address.or(mine.address);
        mine.dest_qpn = attr.dest_qpn.or(mine.dest_qpn);
        mine.rq_psn = attr.rq_psn.or(mine.rq_psn);
        mine.sq_psn = attr.sq_psn.or(mine.sq_psn);
        mine.access = attr.access.or(mine.access);
        mine.max_rd_atomic = attr.max_rd_atomic.or(mine.max_rd_atomic);
        mine.max_dest_rd_atomic = attr.max_dest_rd_atomic.or(mine.max_dest_rd_atomic);
        mine.min_rnr_timer = attr.min_rnr_timer.or(mine.min_rnr_timer);
        mine.timeout = attr.timeout.or(mine.timeout);
        mine.retry_cnt = attr.retry_cnt.or(mine.retry_cnt);
        mine.rnr_retry = attr.rnr_retry.or(mine.rnr_retry);
        mine.qkey = attr.qkey.or(mine.qkey);
        mine.rate_limit = attr.rate_limit.or(mine.rate_limit);
        mine.pkey_index = attr.pkey_index.or(mine.pkey_index);
        mine.port = attr.port.or(mine.port);
        if let Some(access) = attr.access {
            self.access = access;
        }
        let mut released = None;
        if let (Some(address), Some(Hop { mac, id })) = (&attr.address, hop) {
            self.peer_ip = address.destination_ip.to_canonical();
            let dest_qpn = self.attr.dest_qpn.unwrap_or_default();
            self.template = PathTemplate::new(&path(config, mac, address, self.qpn, dest_qpn));
            released = std::mem::replace(&mut self.hop, id);
        }
        if let Some(limit) = attr.rate_limit {
            self.limiter.set_limit(now, limit);
        }
        self.transport.adopt(attr);
        released
    }

    /// Enters the error state: completes everything queued with a flush error. Later posts complete
    /// likewise.
    pub fn fail<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        let was_up = !matches!(self.state, QpState::Error | QpState::Reset);
        self.state = QpState::Error;
        self.flush(env, shared);
        if was_up && self.init.srq.is_some() {
            env.events.push_back(Event::Qp { qpn: self.qpn, kind: QpEvent::LastWqeReached });
        }
    }

    /// Handles a failed requester, which has flushed its queue. Only a reliable connection fails
    /// with it, because its peer waits for the missing packets. Source: IBTA, volume 1, section
    /// 10.3.1.
    #[cold]
    fn fail_sends<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        match self.init.kind {
            QpKind::Rc => self.fail(env, shared),
            QpKind::Uc | QpKind::Ud => {
                self.state = QpState::SendQueueError;
                self.drain_event = false;
            }
        }
    }

    /// Completes the queued sends with a flush error.
    pub fn flush_sends<M: Memory>(&mut self, env: &mut Env<M>) {
        self.transport.flush_sends(&mut Qp::context(&self.init, self.access, env));
    }

    /// Completes everything queued with a flush error.
    pub fn flush<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        let mut ctx = Qp::context(&self.init, self.access, env);
        self.transport.flush(shared.unwrap_or(&mut self.recv), &mut ctx);
        ctx.flush_receives(&mut self.recv, self.qpn, self.attr.dest_qpn.unwrap_or_default());
    }

    /// Called after any event: turns failures into the error state, and raises events.
    #[inline]
    pub fn settle<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        if self.state == QpState::Error {
            return;
        }
        let qpn = self.qpn;
        if let Some(fault) = self.transport.fault() {
            let kind = match fault {
                Fault::InvalidRequest => QpEvent::RequestError,
                Fault::RemoteAccess => QpEvent::AccessError,
                Fault::Local => QpEvent::Fatal,
            };
            env.events.push_back(Event::Qp { qpn, kind });
            self.fail(env, shared);
        } else if self.transport.is_failed() {
            self.fail_sends(env, shared);
        } else if self.drain_event && self.transport.is_drained() {
            self.drain_event = false;
            env.events.push_back(Event::Qp { qpn, kind: QpEvent::SendQueueDrained });
        }
    }

    /// Notes a request. Returns `true` for the first one before the QP is ready to send.
    pub fn note_request(&mut self) -> bool {
        let first = self.state == QpState::ReadyToReceive && !self.communicates;
        self.communicates = true;
        first
    }

    /// `true` in the states that accept requests.
    #[inline]
    pub fn receives(&self) -> bool {
        matches!(
            self.state,
            QpState::ReadyToReceive
                | QpState::ReadyToSend
                | QpState::SendQueueDrained
                | QpState::SendQueueError
        )
    }

    /// `true` if the responder may send: while connected, and to report its failure.
    #[inline]
    pub fn responder_can_transmit(&self) -> bool {
        let speaks =
            self.receives() || (self.state == QpState::Error && self.transport.fault().is_some());
        speaks && self.transport.responder_can_transmit()
    }

    /// `true` if the requester may send, rate limits included.
    #[inline]
    pub fn requester_can_transmit(&self, now: Instant) -> bool {
        matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrained)
            && self.transport.requester_can_transmit(now)
    }

    pub fn info(&self) -> QpInfo {
        let mut attr = self.attr;
        attr.state = Some(self.state);
        if attr.sq_psn.is_some() {
            attr.sq_psn = Some(self.transport.next_psn());
        }
        if attr.rq_psn.is_some() {
            attr.rq_psn = Some(self.transport.expected_psn());
        }
        let draining = self.state == QpState::SendQueueDrained && !self.transport.is_drained();
        QpInfo { qpn: self.qpn, init: self.init, state: self.state, draining, attr }
    }

    pub fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            qpn: self.qpn,
            kind: self.init.kind,
            dest_qpn: self.attr.dest_qpn,
            peer_ip: self.attr.address.map(|a| a.destination_ip.to_canonical()),
            state: self.state,
            next_psn: self.transport.next_psn(),
            expected_psn: self.transport.expected_psn(),
            reliable: match &self.transport {
                Transport::Rc { requester, responder } => {
                    Some((requester.snapshot(), responder.snapshot()))
                }
                Transport::Uc { .. } | Transport::Ud { .. } => None,
            },
            receives: self.recv.len(),
        }
    }
}
