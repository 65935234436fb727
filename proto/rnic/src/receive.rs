//! Frames in: everything that is checked before a QP sees a packet.

use crate::{DropReason, Event, Memory, QpEvent, QpState, Rnic, gsi};
use longhaul_node::Frame;
use longhaul_rc::Counter;
use longhaul_units::{Instant, Qpn};
use longhaul_wire::{Bth, PKEY_DEFAULT, Packet, Transport, Verb};

/// True when a packet's partition key matches the default one: the same 15 bits. Ours is a full member, so the
/// other may be limited. Source: IBTA, volume 1, section 10.9.3.
fn pkey_matches(pkey: u16) -> bool {
    (pkey ^ PKEY_DEFAULT) & 0x7fff == 0
}

impl<M: Memory> Rnic<M> {
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, frame: &Frame<'_>) {
        self.env.counters.count(Counter::RxFrames);
        self.env.counters.add(Counter::RxBytes, frame.len() as u64);
        if let Err(reason) = self.accept(now, frame) {
            self.env.counters.count(reason);
        }
    }

    #[inline]
    fn accept(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), DropReason> {
        let packet = match Packet::parse(frame.head) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Err(DropReason::NotRoce),
            Err(_) => return Err(DropReason::Malformed),
        };
        let bth = packet.bth();
        if bth.version != 0 {
            return Err(DropReason::Version);
        }
        if packet.destination_ip() != self.config.ip {
            return Err(DropReason::DestinationIp);
        }
        if bth.dest_qp == Qpn::GSI && bth.opcode.transport() == Transport::Ud {
            return self.accept_mad(now, frame, &packet, &bth);
        }
        match bth.opcode.transport() {
            Transport::Rc => self.accept_rc(now, frame, &packet, &bth),
            Transport::Cnp => Err(DropReason::Cnp),
            _ => Err(DropReason::Opcode),
        }
    }

    fn accept_mad(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) -> Result<(), DropReason> {
        if !pkey_matches(bth.pkey) {
            return Err(DropReason::PKey);
        }
        if !frame.icrc_is_right() {
            return Err(DropReason::Icrc);
        }
        let mad = gsi::receive(packet, bth, &frame.payload)?;
        self.cm.handle_mad(now, packet.source_ip(), &mad);
        Ok(())
    }

    #[inline]
    fn accept_rc(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        bth: &Bth,
    ) -> Result<(), DropReason> {
        let verb = bth.opcode.verb().ok_or(DropReason::Opcode)?;
        let slot = self.slot(bth.dest_qp).ok_or(DropReason::NoQp)?;
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return Err(DropReason::NoQp) };
        let is_request = bth.opcode.is_request();
        let receives = match qp.state {
            QpState::ReadyToSend | QpState::SendQueueDrained => true,
            QpState::ReadyToReceive => is_request,
            QpState::Reset | QpState::Init | QpState::Error => false,
        };
        if !receives {
            return Err(DropReason::QpState);
        }
        if packet.source_ip() != qp.peer_ip {
            return Err(DropReason::SourceIp);
        }
        if !pkey_matches(bth.pkey) {
            return Err(DropReason::PKey);
        }
        if !frame.icrc_is_right() {
            return Err(DropReason::Icrc);
        }
        if is_request && qp.note_request() {
            let qpn = qp.qpn;
            self.env.events.push_back(Event::Qp { qpn, kind: QpEvent::CommunicationEstablished });
            self.cm.established_by_traffic(qpn);
        }
        let (mut ctx, requester, responder, recv) = qp.context(&mut self.env);
        match verb {
            Verb::Acknowledge => {
                let Some(aeth) = packet.aeth() else { return Err(DropReason::Malformed) };
                requester.handle_ack(now, bth.psn, &aeth, &mut ctx);
            }
            Verb::ReadResponse => {
                let aeth = packet.aeth();
                requester.handle_read_response(
                    now,
                    bth.psn,
                    bth.opcode,
                    aeth.as_ref(),
                    &frame.payload,
                    &mut ctx,
                );
            }
            Verb::AtomicAcknowledge => return Err(DropReason::Opcode),
            _ => responder.handle_request(packet, bth, &frame.payload, recv, &mut ctx),
        }
        self.settle(now, slot);
        Ok(())
    }
}
