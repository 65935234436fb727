//! Frames in: all checks before a QP gets a packet.

use crate::qp::Qp;
use crate::srq::shared_queue;
use crate::transport::Transport as Halves;
use crate::{DropReason, Event, Memory, QpEvent, QpKind, QpState, Rnic, gsi};
use longhaul_node::Frame;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::{Bth, PKEY_DEFAULT, Packet, Transport, Verb};
use longhaul_work::{Context, Counter};

/// VLAN ID bits of a tag; the others are the priority.
const VLAN_ID: u16 = 0xfff;

/// `true` if a packet's partition key matches the default one in its lower 15 bits. The device is a
/// full member, so the peer may be a limited one. Source: IBTA, volume 1, section 10.9.3.
fn pkey_matches(pkey: u16) -> bool {
    (pkey ^ PKEY_DEFAULT) & 0x7fff == 0
}

impl<M: Memory> Rnic<M> {
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, frame: &Frame<'_>) {
        let count = u64::from(frame.payload.count());
        self.env.counters.add(Counter::RxFrames, count);
        self.env.counters.add(Counter::RxBytes, count * frame.len() as u64);
        if let Err(reason) = self.accept(now, frame) {
            self.env.counters.count(reason);
        }
    }

    #[inline]
    fn accept(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), DropReason> {
        let packet = match Packet::parse(frame.head) {
            Ok(Some(packet)) => packet,
            Ok(None) => return self.accept_other(now, frame),
            Err(_) => return Err(DropReason::Malformed),
        };
        if let Some(ours) = self.vlan
            && packet.path().vlan.map_or(0, |tag| tag & VLAN_ID) != ours
        {
            return Err(DropReason::NotRoce);
        }
        let bth = packet.bth();
        if bth.version != 0 {
            return Err(DropReason::Version);
        }
        let transport = bth.opcode.transport();
        if !self.config.addresses.contains(packet.destination_ip()) {
            let is_multicast = transport == Transport::Ud && bth.dest_qp == Qpn::MULTICAST;
            return if is_multicast {
                self.accept_multicast(now, frame, &packet, &bth)
            } else {
                Err(DropReason::DestinationIp)
            };
        }
        match transport {
            Transport::Rc => self.accept_connected(now, frame, &packet, &bth, QpKind::Rc),
            Transport::Uc => self.accept_connected(now, frame, &packet, &bth, QpKind::Uc),
            Transport::Ud if bth.dest_qp == Qpn::GSI => self.accept_mad(now, frame, &packet, &bth),
            Transport::Ud => self.accept_datagram(now, frame, &packet, &bth),
            Transport::Cnp => {
                check_seal(frame, &packet, &bth).and_then(|()| self.accept_cnp(now, &packet))
            }
            Transport::Other => Err(DropReason::Opcode),
        }
    }

    /// Handles a frame that is not RoCEv2: neighbour discovery or a pause frame.
    #[cold]
    fn accept_other(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), DropReason> {
        if !self.hops.take(now, frame) {
            return self.accept_pause(now, frame);
        }
        self.follow_neighbours();
        Ok(())
    }

    fn accept_mad(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) -> Result<(), DropReason> {
        check_seal(frame, packet, bth)?;
        let mad = gsi::receive(packet, bth, &frame.payload)?;
        self.hops.heard(now, packet);
        self.cm.handle_mad(now, packet.source_ip(), &mad);
        Ok(())
    }

    #[inline]
    fn accept_connected(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
        kind: QpKind,
    ) -> Result<(), DropReason> {
        let verb = bth.opcode.verb().ok_or(DropReason::Opcode)?;
        let slot = self.slot(bth.dest_qp).ok_or(DropReason::NoQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(DropReason::NoQp) };
        if qp.init.kind != kind {
            return Err(DropReason::Opcode);
        }
        let is_request = bth.opcode.is_request();
        let receives = match qp.state {
            QpState::ReadyToSend | QpState::SendQueueDrained => true,
            QpState::ReadyToReceive | QpState::SendQueueError => is_request,
            QpState::Reset | QpState::Init | QpState::Error => false,
        };
        if !receives {
            return Err(DropReason::QpState);
        }
        if packet.source_ip() != qp.peer_ip {
            return Err(DropReason::SourceIp);
        }
        check_seal(frame, packet, bth)?;
        if is_request && qp.note_request() {
            let qpn = qp.qpn;
            self.env.events.push_back(Event::Qp { qpn, kind: QpEvent::CommunicationEstablished });
            self.cm.established_by_traffic(qpn);
        }
        let Qp { transport, recv, init, access, attr, .. } = &mut **qp;
        let sender = attr.dest_qpn.unwrap_or_default();
        let shared = shared_queue(&mut self.srqs, init);
        let queue = shared.unwrap_or(recv);
        let mut ctx = Qp::context(init, *access, &mut self.env);
        match transport {
            Halves::Rc { responder, .. } if is_request => {
                responder.handle_request(packet, bth, &frame.payload, queue, &mut ctx);
            }
            Halves::Rc { requester, .. } => {
                respond(requester, now, verb, frame, packet, bth, &mut ctx)?
            }
            Halves::Uc { responder, .. } => {
                responder.handle_request(packet, bth, &frame.payload, queue, &mut ctx);
            }
            Halves::Ud { .. } => return Err(DropReason::Opcode),
        }
        if let Some(srq) = init.srq {
            self.watch_srq(srq);
        }
        self.note_marks(now, slot, packet, sender);
        self.settle(now, slot);
        Ok(())
    }

    fn accept_datagram(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) -> Result<(), DropReason> {
        let slot = self.slot(bth.dest_qp).ok_or(DropReason::NoQp)?;
        self.check_datagram_qp(slot)?;
        check_seal(frame, packet, bth)?;
        self.take_datagram(now, slot, frame, packet, bth);
        Ok(())
    }

    /// Delivers one copy to each QP that is attached to the group.
    fn accept_multicast(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) -> Result<(), DropReason> {
        let group = packet.destination_ip();
        if self.groups.members(group).is_empty() {
            return Err(DropReason::DestinationIp);
        }
        check_seal(frame, packet, bth)?;
        let mut at = 0;
        while let Some(&slot) = self.groups.members(group).get(at) {
            at += 1;
            match self.check_datagram_qp(slot) {
                Ok(()) => self.take_datagram(now, slot, frame, packet, bth),
                Err(reason) => self.env.counters.count(reason),
            }
        }
        Ok(())
    }

    /// Checks that the QP accepts datagrams in its state.
    fn check_datagram_qp(&self, slot: u32) -> Result<(), DropReason> {
        let Some(Some(qp)) = self.qps.get(slot as usize) else { return Err(DropReason::NoQp) };
        if qp.init.kind != QpKind::Ud {
            return Err(DropReason::Opcode);
        }
        if qp.receives() { Ok(()) } else { Err(DropReason::QpState) }
    }

    fn take_datagram(
        &mut self,
        now: Instant,
        slot: u32,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) {
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        let Qp { transport, recv, init, access, .. } = &mut **qp;
        let queue = shared_queue(&mut self.srqs, init).unwrap_or(recv);
        let mut ctx = Qp::context(init, *access, &mut self.env);
        let is_delivered = match transport {
            Halves::Ud { responder, .. } => {
                responder.handle_datagram(packet, bth, &frame.payload, queue, &mut ctx)
            }
            Halves::Rc { .. } | Halves::Uc { .. } => false,
        };
        if let Some(srq) = init.srq {
            self.watch_srq(srq);
        }
        // No CNP for a multicast datagram: every member would send one, and a forged one would
        // direct them all at its victim.
        if is_delivered
            && bth.dest_qp != Qpn::MULTICAST
            && let Some(deth) = packet.deth()
        {
            self.note_marks(now, slot, packet, deth.source_qp);
        }
        self.settle(now, slot);
    }
}

/// The last and most expensive checks: partition key, ICRC, and the checksums that a kernel's
/// network stack would verify.
#[inline]
fn check_seal(frame: &Frame<'_>, packet: &Packet<'_>, bth: &Bth) -> Result<(), DropReason> {
    if !pkey_matches(bth.pkey) {
        return Err(DropReason::PKey);
    }
    let layout = packet.layout();
    if !frame.icrc_is_right_at(&layout) {
        return Err(DropReason::Icrc);
    }
    if !frame.checksums_are_right_at(&layout) {
        return Err(DropReason::Checksum);
    }
    Ok(())
}

/// Passes a response to its requester.
#[inline]
fn respond<C: Context>(
    requester: &mut longhaul_rc::Requester,
    now: Instant,
    verb: Verb,
    frame: &Frame<'_>,
    packet: &Packet<'_>,
    bth: &Bth,
    ctx: &mut C,
) -> Result<(), DropReason> {
    let aeth = packet.aeth();
    match (verb, &aeth) {
        (Verb::Acknowledge, Some(aeth)) => requester.handle_ack(now, bth.psn, aeth, ctx),
        (Verb::ReadResponse, aeth) => {
            requester.handle_read_response(
                now,
                bth.psn,
                bth.opcode,
                aeth.as_ref(),
                &frame.payload,
                ctx,
            );
        }
        (Verb::AtomicAcknowledge, Some(aeth)) => {
            let result = packet.atomic_ack_eth().ok_or(DropReason::Malformed)?;
            requester.handle_atomic_ack(now, bth.psn, aeth, result.original, ctx);
        }
        _ => return Err(DropReason::Malformed),
    }
    Ok(())
}
