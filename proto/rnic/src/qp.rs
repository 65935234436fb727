//! One QP: its state machine and attributes around a requester and a responder.

use crate::env::{Env, QpContext};
use crate::{
    Access, AddressVector, Config, Event, Memory, QpAttr, QpEvent, QpInfo, QpInit, QpState, VerbsError,
};
use longhaul_rc::{
    Fault, Mtu, RecvQueue, Requester, RequesterConfig, RequesterSnapshot, Responder, ResponderConfig,
    ResponderSnapshot,
};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use longhaul_wire::{MacAddr, PKEY_DEFAULT, Path, PathTemplate};
use std::net::{IpAddr, Ipv4Addr};

/// An RC QP.
pub(crate) struct Qp {
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attr: QpAttr,
    pub access: Access,
    pub template: PathTemplate,
    pub peer_ip: IpAddr,
    pub requester: Requester,
    pub responder: Responder,
    pub recv: RecvQueue,
    /// In the device's list of QPs that have something to send.
    pub is_listed: bool,
    /// The time of this QP's entry in the device's timers.
    pub timer_entry: Option<Instant>,
    /// Whose turn it is when both halves have something to send.
    pub responder_first: bool,
    communicates: bool,
    drain_reported: bool,
}

/// A QP's state, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpSnapshot {
    /// The QP.
    pub qpn: Qpn,
    /// The peer's QP, once known.
    pub dest_qpn: Option<Qpn>,
    /// The peer's address, once known.
    pub peer_ip: Option<IpAddr>,
    /// State.
    pub state: QpState,
    /// Sending half.
    pub requester: RequesterSnapshot,
    /// Receiving half.
    pub responder: ResponderSnapshot,
    /// Receives posted.
    pub receives: u32,
}

/// Attributes by bit, to hold them against what a transition takes.
mod mask {
    pub const PATH_MTU: u32 = 1;
    pub const ADDRESS: u32 = 1 << 1;
    pub const DEST_QPN: u32 = 1 << 2;
    pub const RQ_PSN: u32 = 1 << 3;
    pub const SQ_PSN: u32 = 1 << 4;
    pub const ACCESS: u32 = 1 << 5;
    pub const MAX_RD: u32 = 1 << 6;
    pub const MAX_DEST_RD: u32 = 1 << 7;
    pub const MIN_RNR: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const PKEY: u32 = 1 << 12;
    pub const PORT: u32 = 1 << 13;
    pub const NAMES: [&str; 14] = [
        "path_mtu",
        "address",
        "dest_qpn",
        "rq_psn",
        "sq_psn",
        "access",
        "max_rd_atomic",
        "max_dest_rd_atomic",
        "min_rnr_timer",
        "timeout",
        "retry_cnt",
        "rnr_retry",
        "pkey_index",
        "port",
    ];
}

fn given(attr: &QpAttr) -> u32 {
    let bits = [
        attr.path_mtu.is_some(),
        attr.address.is_some(),
        attr.dest_qpn.is_some(),
        attr.rq_psn.is_some(),
        attr.sq_psn.is_some(),
        attr.access.is_some(),
        attr.max_rd_atomic.is_some(),
        attr.max_dest_rd_atomic.is_some(),
        attr.min_rnr_timer.is_some(),
        attr.timeout.is_some(),
        attr.retry_cnt.is_some(),
        attr.rnr_retry.is_some(),
        attr.pkey_index.is_some(),
        attr.port.is_some(),
    ];
    bits.iter().enumerate().fold(0, |m, (i, &set)| m | u32::from(set) << i)
}

/// Required and optional attributes of a transition of an RC QP; `None` when it does not exist.
/// Source: IBTA, volume 1, table 91.
fn transition(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    use mask::*;
    Some(match (from, to) {
        (_, Reset | Error) => (0, 0),
        (Reset, Init) => (PKEY | PORT | ACCESS, 0),
        (Init, Init) => (0, PKEY | PORT | ACCESS),
        (Init, ReadyToReceive) => {
            (ADDRESS | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | MIN_RNR, ACCESS | PKEY)
        }
        (ReadyToReceive, ReadyToSend) => (SQ_PSN | TIMEOUT | RETRY | RNR_RETRY | MAX_RD, ACCESS | MIN_RNR),
        (ReadyToSend, ReadyToSend) | (SendQueueDrained, ReadyToSend) => (0, ACCESS | MIN_RNR),
        (ReadyToSend, SendQueueDrained) => (0, 0),
        (SendQueueDrained, SendQueueDrained) => (0, ACCESS | MIN_RNR),
        _ => return None,
    })
}

fn bound(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), VerbsError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(VerbsError::OutOfBounds { what, value, min, max })
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
    at_most("max_rd_atomic", attr.max_rd_atomic, config.rd_atomic_max)?;
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
    if let Some(address) = attr.address {
        bound("flow_label", u64::from(address.flow_label), 0, 0xf_ffff)?;
        if address.destination_ip.to_canonical().is_ipv4() != config.ip.to_canonical().is_ipv4() {
            return Err(VerbsError::Invalid("the peer's address is of another family than the port's"));
        }
    }
    Ok(())
}

impl Qp {
    pub fn new(qpn: Qpn, init: QpInit) -> Self {
        let recv = RecvQueue::new(init.rq_depth, init.recv_sge_max);
        let requester = Requester::new(init.sq_depth, init.send_sge_max, init.inline_max);
        let init = QpInit { sq_depth: requester.depth(), rq_depth: recv.depth(), ..init };
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
        let mut qp = Qp {
            qpn,
            init,
            state: QpState::Reset,
            attr: QpAttr::default(),
            access: Access::default(),
            template: PathTemplate::new(&path),
            peer_ip: nowhere,
            requester,
            responder: Responder::new(blank_responder()),
            recv,
            is_listed: false,
            timer_entry: None,
            responder_first: true,
            communicates: false,
            drain_reported: false,
        };
        qp.reset();
        qp
    }

    fn reset(&mut self) {
        self.attr = QpAttr::default();
        self.access = Access::default();
        self.responder = Responder::new(blank_responder());
        self.requester.start(*Requester::new(1, 1, 0).config());
        self.recv.clear();
        self.communicates = false;
        self.drain_reported = false;
    }

    pub fn context<'a, M>(
        &mut self,
        env: &'a mut Env<M>,
    ) -> (QpContext<'a, M>, &mut Requester, &mut Responder, &mut RecvQueue) {
        let ctx = QpContext {
            env,
            pd: self.init.pd,
            access: self.access,
            send_cq: self.init.send_cq,
            recv_cq: self.init.recv_cq,
        };
        (ctx, &mut self.requester, &mut self.responder, &mut self.recv)
    }

    /// Changes attributes and state, or neither.
    pub fn modify<M: Memory>(
        &mut self,
        attr: &QpAttr,
        config: &Config,
        env: &mut Env<M>,
    ) -> Result<(), VerbsError> {
        let (from, to) = (self.state, attr.state.unwrap_or(self.state));
        let (required, optional) = transition(from, to).ok_or(VerbsError::BadTransition { from, to })?;
        let given = given(attr);
        let missing = required & !given;
        if missing != 0 {
            let attribute = mask::NAMES[missing.trailing_zeros() as usize];
            return Err(VerbsError::MissingAttribute { from, to, attribute });
        }
        if to != QpState::Reset && to != QpState::Error && given & !(required | optional) != 0 {
            return Err(VerbsError::Invalid("an attribute that this transition does not take"));
        }
        check_bounds(attr, config)?;
        match to {
            QpState::Reset => self.reset(),
            QpState::Error => {
                self.state = to;
                self.flush(env);
                return Ok(());
            }
            _ => self.merge(attr),
        }
        self.state = to;
        match (from, to) {
            (QpState::Init, QpState::ReadyToReceive) => self.ready_to_receive(config),
            (QpState::ReadyToReceive, QpState::ReadyToSend) => self.ready_to_send(config),
            (_, QpState::SendQueueDrained) => self.requester.pause(true),
            (QpState::SendQueueDrained, QpState::ReadyToSend) => {
                self.requester.pause(false);
                self.drain_reported = false;
            }
            _ => {}
        }
        Ok(())
    }

    fn merge(&mut self, attr: &QpAttr) {
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
        mine.pkey_index = attr.pkey_index.or(mine.pkey_index);
        mine.port = attr.port.or(mine.port);
        if let Some(access) = attr.access {
            self.access = access;
        }
        if let Some(code) = attr.min_rnr_timer {
            self.responder.set_min_rnr_timer(code);
        }
    }

    fn ready_to_receive(&mut self, config: &Config) {
        let attr = &self.attr;
        let dest_qpn = attr.dest_qpn.unwrap_or_default();
        if let Some(address) = &attr.address {
            self.peer_ip = address.destination_ip.to_canonical();
            self.template = PathTemplate::new(&path(config, address, self.qpn, dest_qpn));
        }
        self.responder = Responder::new(ResponderConfig {
            qpn: self.qpn,
            dest_qpn,
            rq_psn: attr.rq_psn.unwrap_or_default(),
            mtu: attr.path_mtu.unwrap_or(Mtu::B256),
            max_dest_rd_atomic: u32::from(attr.max_dest_rd_atomic.unwrap_or(0)),
            min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
            ack_every: config.ack_every.max(1),
            report_credits: config.report_credits,
            migreq: config.migreq,
            pkey: PKEY_DEFAULT,
        });
    }

    fn ready_to_send(&mut self, config: &Config) {
        let attr = &self.attr;
        self.requester.start(RequesterConfig {
            qpn: self.qpn,
            dest_qpn: attr.dest_qpn.unwrap_or_default(),
            sq_psn: attr.sq_psn.unwrap_or_default(),
            mtu: attr.path_mtu.unwrap_or(Mtu::B256),
            max_rd_atomic: u32::from(attr.max_rd_atomic.unwrap_or(0)),
            timeout: attr.timeout.and_then(Duration::of_ack_timeout),
            retry_cnt: attr.retry_cnt.unwrap_or(0),
            rnr_retry: attr.rnr_retry.unwrap_or(0),
            window_packets: config.window_packets.clamp(1, longhaul_rc::WINDOW_MAX),
            window_messages: config.window_messages.max(1),
            ack_request_every: config.ack_request_every.max(1),
            obey_credits: config.obey_credits,
            migreq: config.migreq,
            pkey: PKEY_DEFAULT,
        });
    }

    /// Completes everything queued with a flush error.
    pub fn flush<M: Memory>(&mut self, env: &mut Env<M>) {
        let (mut ctx, requester, responder, recv) = self.context(env);
        requester.flush(&mut ctx);
        responder.flush(recv, &mut ctx);
    }

    /// After anything happened: failures become the error state, and events are raised.
    pub fn settle<M: Memory>(&mut self, env: &mut Env<M>) {
        let qpn = self.qpn;
        if self.state == QpState::Error {
            return;
        }
        if let Some(fault) = self.responder.fault() {
            let kind = match fault {
                Fault::InvalidRequest => QpEvent::RequestError,
                Fault::RemoteAccess => QpEvent::AccessError,
                Fault::RemoteOperational => QpEvent::Fatal,
            };
            env.events.push_back(Event::Qp { qpn, kind });
            self.state = QpState::Error;
            self.flush(env);
        } else if self.requester.is_failed() {
            self.state = QpState::Error;
            self.flush(env);
        } else if self.state == QpState::SendQueueDrained
            && !self.drain_reported
            && self.requester.is_drained()
        {
            self.drain_reported = true;
            env.events.push_back(Event::Qp { qpn, kind: QpEvent::SendQueueDrained });
        }
    }

    /// A request arrived. True the first time that this happens before the state is ready to send.
    pub fn note_request(&mut self) -> bool {
        let first = self.state == QpState::ReadyToReceive && !self.communicates;
        self.communicates = true;
        first
    }

    /// True when the responder may send: while connected, and to say why it gave up.
    #[inline]
    pub fn responder_can_transmit(&self) -> bool {
        let speaks = match self.state {
            QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrained => true,
            QpState::Error => self.responder.fault().is_some(),
            QpState::Reset | QpState::Init => false,
        };
        speaks && self.responder.can_transmit()
    }

    /// True when the requester may send.
    #[inline]
    pub fn requester_can_transmit(&self, now: Instant) -> bool {
        matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrained)
            && self.requester.can_transmit(now)
    }

    pub fn info(&self) -> QpInfo {
        let mut attr = self.attr;
        attr.state = Some(self.state);
        if attr.sq_psn.is_some() {
            attr.sq_psn = Some(self.requester.snapshot().next);
        }
        if attr.rq_psn.is_some() {
            attr.rq_psn = Some(self.responder.snapshot().expected);
        }
        QpInfo { qpn: self.qpn, init: self.init, state: self.state, attr }
    }

    pub fn snapshot(&self) -> QpSnapshot {
        QpSnapshot {
            qpn: self.qpn,
            dest_qpn: self.attr.dest_qpn,
            peer_ip: self.attr.address.map(|a| a.destination_ip.to_canonical()),
            state: self.state,
            requester: self.requester.snapshot(),
            responder: self.responder.snapshot(),
            receives: self.recv.len(),
        }
    }
}

fn blank_responder() -> ResponderConfig {
    ResponderConfig {
        qpn: Qpn::new(0),
        dest_qpn: Qpn::new(0),
        rq_psn: Psn::new(0),
        mtu: Mtu::B256,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        ack_every: 1,
        report_credits: false,
        migreq: false,
        pkey: PKEY_DEFAULT,
    }
}

/// TTL when an address vector leaves it at 0.
const HOP_LIMIT: u8 = 64;

/// The path that an address vector describes.
fn path(config: &Config, address: &AddressVector, local: Qpn, remote: Qpn) -> Path {
    let destination_ip = address.destination_ip.to_canonical();
    Path {
        source_mac: config.mac,
        destination_mac: neighbour(config, destination_ip),
        vlan: None,
        source_ip: config.ip.to_canonical(),
        destination_ip,
        traffic_class: address.traffic_class,
        hop_limit: if address.hop_limit == 0 { HOP_LIMIT } else { address.hop_limit },
        flow_label: if destination_ip.is_ipv6() { address.flow_label } else { 0 },
        udp_source_port: source_port(address.flow_label, local, remote),
    }
}

/// The MAC address of `ip`: as configured, else 02:00 and the last four bytes of the address.
pub(crate) fn neighbour(config: &Config, ip: IpAddr) -> MacAddr {
    if let Some((_, mac)) = config.neighbours.iter().find(|(known, _)| known.to_canonical() == ip) {
        return *mac;
    }
    let [a, b, c, d] = match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    MacAddr([2, 0, a, b, c, d])
}

/// The UDP source port that spreads flows over paths, the same in both directions.
///
/// Source: Linux, `rdma_flow_label_to_udp_sport` and `rdma_calc_flow_label`.
pub(crate) fn source_port(flow_label: u32, local: Qpn, remote: Qpn) -> u16 {
    let label = if flow_label != 0 {
        flow_label & 0xf_ffff
    } else {
        let mut v = u64::from(local.get()) * u64::from(remote.get());
        v ^= v >> 20;
        v ^= v >> 40;
        (v & 0xf_ffff) as u32
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_alike_in_both_directions() {
        let (a, b) = (Qpn::new(0x1234), Qpn::new(0xabcdef));
        assert_eq!(source_port(0, a, b), source_port(0, b, a));
        assert!(source_port(0, a, b) >= 0xc000);
        assert_eq!(source_port(0x4001, a, b), 0xc000);
    }

    #[test]
    fn unknown_neighbours_follow_their_address() {
        let config = Config::new(MacAddr::default(), IpAddr::from([10, 77, 0, 1]));
        assert_eq!(neighbour(&config, IpAddr::from([10, 77, 0, 2])), MacAddr([2, 0, 10, 77, 0, 2]));
    }
}
