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

/// A QP.
pub(crate) struct Qp {
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attr: QpAttr,
    pub access: Access,
    pub template: PathTemplate,
    pub peer_ip: IpAddr,
    /// What keeps the way to the peer known.
    pub hop: Option<HopId>,
    pub transport: Transport,
    /// Without entries where receives are shared.
    pub recv: RecvQueue,
    /// Holds back requests and READ responses.
    pub limiter: RateLimiter,
    pub notification: NotificationPoint,
    /// In the device's list of QPs that have something to send.
    pub is_listed: bool,
    /// The time of this QP's entry in the device's timers.
    pub timer_entry: Option<Instant>,
    /// The same among the QPs that a rate holds back.
    pub paced_entry: Option<Instant>,
    /// Whose turn it is when both halves have something to send.
    pub responder_first: bool,
    communicates: bool,
    drain_event: bool,
}

/// A QP's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpSnapshot {
    /// The QP.
    pub qpn: Qpn,
    /// Its transport.
    pub kind: QpKind,
    /// The peer's QP, once known.
    pub dest_qpn: Option<Qpn>,
    /// The peer's address, once known.
    pub peer_ip: Option<IpAddr>,
    /// State.
    pub state: QpState,
    /// The next PSN to be sent.
    pub next_psn: Psn,
    /// The next PSN expected.
    pub expected_psn: Psn,
    /// More of a reliable connection.
    pub reliable: Option<(longhaul_rc::RequesterSnapshot, longhaul_rc::ResponderSnapshot)>,
    /// Receives of its own that are posted.
    pub receives: u32,
}

fn bound(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfBounds { what, value, min, max })
}

/// Whether an address vector can be used by this device.
pub(crate) fn check_address(address: &AddressVector, config: &Config) -> Result<(), VerbsError> {
    bound("flow_label", u64::from(address.flow_label), 0, 0xf_ffff)?;
    if address.destination_ip.to_canonical().is_ipv4() != config.ip.is_ipv4() {
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

    /// The view of the device that a QP's halves get.
    #[inline]
    pub fn context<'a, M>(init: &QpInit, access: Access, env: &'a mut Env<M>) -> QpContext<'a, M> {
        QpContext { env, pd: init.pd, access, send_cq: init.send_cq, recv_cq: init.recv_cq }
    }

    /// Whether [`Qp::modify`] can be called with `attr`.
    pub fn check(&self, attr: &QpAttr, config: &Config) -> Result<(), VerbsError> {
        transition::check(self.init.kind, self.state, attr.state.unwrap_or(self.state), attr)?;
        check_bounds(attr, config)
    }

    /// Changes attributes and state, which has been checked. `hop` is the way to the address that
    /// `attr` names, if it does, and `shared` the receive queue that it shares, if it does. Returns
    /// the hold on a way that it needs no more.
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

    /// The error state: completes everything queued with a flush error. What is posted later ends
    /// likewise.
    pub fn fail<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        let was_up = !matches!(self.state, QpState::Error | QpState::Reset);
        self.state = QpState::Error;
        self.flush(env, shared);
        if was_up && self.init.srq.is_some() {
            env.events.push_back(Event::Qp { qpn: self.qpn, kind: QpEvent::LastWqeReached });
        }
    }

    /// The requester has failed and flushed its queue. Only a reliable connection fails with it,
    /// because its peer waits for what is missing. Source: IBTA, volume 1, section 10.3.1.
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

    /// Completes the sends that are queued with a flush error.
    pub fn flush_sends<M: Memory>(&mut self, env: &mut Env<M>) {
        self.transport.flush_sends(&mut Qp::context(&self.init, self.access, env));
    }

    /// Completes what is queued with a flush error.
    pub fn flush<M: Memory>(&mut self, env: &mut Env<M>, shared: Option<&mut RecvQueue>) {
        let mut ctx = Qp::context(&self.init, self.access, env);
        self.transport.flush(shared.unwrap_or(&mut self.recv), &mut ctx);
        ctx.flush_receives(&mut self.recv, self.qpn, self.attr.dest_qpn.unwrap_or_default());
    }

    /// After anything happened: failures become an error state, and events are raised.
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

    /// A request arrived. True the first time that this happens before the state is ready to send.
    pub fn note_request(&mut self) -> bool {
        let first = self.state == QpState::ReadyToReceive && !self.communicates;
        self.communicates = true;
        first
    }

    /// True in the states that take requests.
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

    /// True when the responder may send: while connected, and to say why it gave up.
    #[inline]
    pub fn responder_can_transmit(&self) -> bool {
        let speaks =
            self.receives() || (self.state == QpState::Error && self.transport.fault().is_some());
        speaks && self.transport.responder_can_transmit()
    }

    /// True when the requester may send, as far as rates allow.
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
