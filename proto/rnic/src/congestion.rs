//! Congestion control between the wire and the QPs: marked packets in, CNPs out, CNPs in.

use crate::path::{source_port, vlan};
use crate::pause::NOTIFICATIONS;
use crate::{Config, DropReason, Memory, QpKind, Resolution, Rnic};
use longhaul_cc::dcqcn::{CeOutcome, CnpOutcome, Dcqcn, NotificationConfig, ReactionConfig};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{BitRate, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Ecn, Head, MacAddr, Opcode, Packet, Path, PathTemplate};
use longhaul_work::{Counter, Emit};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Traffic class of a CNP: DSCP 48 and ECT(0), as ConnectX adapters send it.
const CNP_TRAFFIC_CLASS: u8 = 48 << 2 | Ecn::ECT_0;
const CNP_HOP_LIMIT: u8 = 64;
/// Payload behind the BTH of a CNP. Source: IBTA, annex A17, section 17.9.3.
const CNP_RESERVED: [u8; 16] = [0; 16];
/// Maximum number of queued CNPs; for others, the next marked packet requests one again.
const PENDING_MAX: usize = 256;

/// CNPs to send: the peer, the source Ethernet address of its packets, and the QP that should slow
/// down.
#[derive(Debug, Default)]
pub(crate) struct Pending(VecDeque<(IpAddr, MacAddr, Qpn)>);

impl Pending {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parameters with both points disabled.
pub(crate) fn switched_off() -> Dcqcn {
    let reaction = ReactionConfig { enable: false, ..ReactionConfig::NVIDIA };
    let notification = NotificationConfig { enable: false, ..NotificationConfig::default() };
    let any_rate =
        BitRate::from_gbps(100).and_then(|rate| Dcqcn::new(&reaction, &notification, rate).ok());
    match any_rate {
        Some(dcqcn) => dcqcn,
        None => unreachable!("the preset is valid at 100 Gbit/s"),
    }
}

impl<M: Memory> Rnic<M> {
    /// Notes a packet for the QP in `slot`; if it is marked, the peer's QP `sender` may have to
    /// slow down.
    #[inline]
    pub(crate) fn note_marks(&mut self, now: Instant, slot: u32, packet: &Packet<'_>, sender: Qpn) {
        if Ecn::of_traffic_class(packet.traffic_class()) == Ecn::Congested {
            self.note_congestion(now, slot, packet, sender);
        }
    }

    #[cold]
    fn note_congestion(&mut self, now: Instant, slot: u32, packet: &Packet<'_>, sender: Qpn) {
        self.env.counters.count(Counter::EcnMarkedPackets);
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        // A CNP without room must not start the QP's interval.
        if self.cnps.0.len() < PENDING_MAX
            && qp.notification.on_ce(now, &self.dcqcn) == CeOutcome::SendCnp
        {
            let peer = packet.source_ip();
            // An unresolved peer is notified through the hop that its packets came from.
            let mac = match self.hops.look_up(&self.config, peer) {
                Resolution::Known(mac) => mac,
                Resolution::Asking | Resolution::Failed(_) => packet.path().source_mac,
            };
            self.cnps.0.push_back((peer, mac, sender));
        }
    }

    /// Handles a CNP whose partition key and ICRC are valid.
    pub(crate) fn accept_cnp(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        let slot = self.slot(packet.dest_qp()).ok_or(DropReason::NoQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(DropReason::NoQp) };
        if !qp.receives() {
            return Err(DropReason::QpState);
        }
        // Only a connection's peer sends CNPs for it; those for datagrams can come from any
        // destination.
        if qp.init.kind != QpKind::Ud && packet.source_ip() != qp.peer_ip {
            return Err(DropReason::SourceIp);
        }
        match qp.limiter.on_cnp(now, &self.dcqcn) {
            CnpOutcome::Handled => self.env.counters.count(Counter::CnpHandled),
            CnpOutcome::Ignored => return Err(DropReason::Cnp),
        }
        Ok(())
    }

    /// Sends one queued CNP, if any.
    pub(crate) fn send_cnp(&mut self, emit: &mut impl Emit) -> bool {
        if self.pauses.holds(NOTIFICATIONS) {
            return false;
        }
        let Some((peer, hop, qpn)) = self.cnps.0.pop_front() else { return false };
        self.env.counters.count(Counter::CnpSent);
        emit_cnp(&self.config, hop, peer, qpn, emit);
        true
    }
}

fn emit_cnp(config: &Config, hop: MacAddr, peer: IpAddr, qpn: Qpn, emit: &mut impl Emit) {
    let template = PathTemplate::new(&Path {
        source_mac: config.mac,
        destination_mac: hop,
        vlan: vlan(config),
        source_ip: config.addresses.source_for(peer),
        destination_ip: peer,
        traffic_class: CNP_TRAFFIC_CLASS,
        hop_limit: CNP_HOP_LIMIT,
        flow_label: 0,
        udp_source_port: source_port(config, 0, qpn, qpn),
    });
    let mut bth = Bth::new(Opcode::CNP, qpn, Psn::new(0));
    bth.becn = true;
    bth.migreq = true;
    let mut head = Head::begin(&template, &bth);
    let pad_len = head.finish(&template, CNP_RESERVED.len());
    emit.emit(&Frame {
        head: head.bytes(),
        payload: Payload::Bytes(&CNP_RESERVED),
        trailer: Trailer::Sealed { pad_len },
    });
}
