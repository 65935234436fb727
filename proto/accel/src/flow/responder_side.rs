//! Responses from the WAN, and the packets that a flow sends to its responder.

use super::Flow;
use super::missing::Missing;
use super::requester::Requester;
use super::retransmission::Cause;
use crate::advice;
use crate::shared::AccelShared;
use crate::store::Awaited;
use crate::trace::OUTSTANDING_MAX;
use crate::{DropReason, WAN};
use longhaul_cc::wire_bytes;
use longhaul_node::{Frame, FrameBuf, Trailer, Transmit};
use longhaul_units::Instant;
use longhaul_wire::{Aeth, Head, NakCode, Packet, Syndrome, Verb, rnr_timer};

const BTH_ACK_REQUEST: (usize, u8) = (8, 0x80);

impl Flow {
    /// Handles a response from the WAN with a right ICRC, and forwards it if it is for the
    /// requester.
    pub(crate) fn handle_response(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        self.bookkeeping.is_used = true;
        self.answer.learn_from_responder(packet);
        if !self.is_terminated() && !self.is_for_remains(now, shared, frame, packet) {
            return;
        }
        match (packet.opcode().verb(), packet.aeth()) {
            (Some(Verb::Acknowledge), Some(aeth)) => {
                self.handle_acknowledge(now, shared, frame, packet, aeth)
            }
            _ => self.handle_data_response(now, shared, frame, packet),
        }
    }

    fn handle_acknowledge(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
        aeth: Aeth,
    ) {
        if let Syndrome::Reserved(_) = aeth.syndrome {
            shared.counters.syndromes_unknown += 1;
            shared.pass_to_lan(frame);
            return;
        }
        let reference = self.store.responder_next;
        let seq = packet.psn().unwrap_near(reference).unwrap_or(0);
        if seq >= self.store.sent_to() {
            return self.handle_ack_outside(shared, frame, seq);
        }
        if self.store.awaited.front().is_some_and(|awaited| awaited.last < seq) {
            // A packet behind a READ was acknowledged, so that the READ's responses are lost.
            self.note_lost_response(now);
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                self.responder.retransmission.note_answer(now);
                if seq + 1 >= reference {
                    self.note_credits_after(seq, aeth);
                }
                self.take_delivered(now, shared, seq + 1);
                self.requester.acks.want(seq + 1);
                self.absorb(shared);
            }
            Syndrome::RnrNak { timer_code } if seq >= reference => {
                self.responder.retransmission.note_heard(now);
                self.take_delivered(now, shared, seq);
                self.responder.retransmission.go_back(&mut self.store, seq, Cause::Rnr);
                let Requester { hold, missing, .. } = &mut self.requester;
                let timer = rnr_timer(timer_code);
                shared.give(advice::on_rnr_timer(timer, &shared.config), &self.key);
                let until = hold.note_not_ready(now, &shared.config, timer, &self.store, missing);
                self.responder.retransmission.wait_for_responder(until);
                self.counters.rnr_nak_absorbed += 1;
                shared.counters.rnr_nak_absorbed += 1;
                self.absorb(shared);
            }
            Syndrome::Nak(NakCode::PsnSequence) if seq >= reference => {
                self.responder.retransmission.note_answer(now);
                self.handle_sequence_nak(now, shared, seq);
                self.absorb(shared);
            }
            Syndrome::Nak(code) if seq >= reference && code != NakCode::PsnSequence => {
                self.handle_fatal_nak(now, shared, frame, seq, code);
            }
            // Of packets that were delivered since; reserved ones have been passed.
            Syndrome::RnrNak { .. } | Syndrome::Nak(_) | Syndrome::Reserved(_) => {
                self.absorb(shared);
            }
        }
    }

    /// Handles an ACK of a packet that this box never sent. The requester may have sent it before
    /// the flow was learnt or past this box, and is expecting the ACK. If it continues behind that
    /// packet, the responder has everything stored here.
    fn handle_ack_outside(&mut self, shared: &mut AccelShared, frame: &Frame<'_>, seq: u64) {
        let end = self.store.end();
        if seq < end {
            return self.drop_frame(shared, DropReason::AckOutside);
        }
        if seq < end + OUTSTANDING_MAX {
            self.lives.note_acked_elsewhere(seq);
        }
        shared.counters.acks_unseen += 1;
        shared.pass_to_lan(frame);
    }

    fn absorb(&mut self, shared: &mut AccelShared) {
        self.counters.acks_absorbed += 1;
        shared.counters.acks_absorbed += 1;
        self.drop_frame(shared, DropReason::AckAbsorbed);
    }

    /// The responder has sent a sequence NAK.
    fn handle_sequence_nak(&mut self, now: Instant, shared: &mut AccelShared, seq: u64) {
        self.take_delivered(now, shared, seq);
        shared.counters.packet_seq_err += 1;
        self.counters.packet_seq_err += 1;
        shared.give(self.counters.advice_on_nak(&shared.config), &self.key);
        let goes_back = self.responder.retransmission.go_back_to_lost(now, &mut self.store, seq);
        // The requester would repeat them, but it is not told.
        let lacks = |read: &Awaited| read.last < seq && read.recover_at.is_some();
        if goes_back && self.store.awaited.front().is_some_and(lacks) {
            self.resend_reads(now, shared, true);
        }
    }

    /// Fails the flow, because the responder refuses `seq` for good. The requester gets the NAK
    /// itself if `seq` was not acknowledged to it. If `seq` was, but not its whole message, the
    /// requester gets a NAK with the same code: the work request fails as it would without a box.
    fn handle_fatal_nak(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        seq: u64,
        code: NakCode,
    ) {
        self.take_delivered(now, shared, seq);
        let refused = self.store.entry(self.store.index_of(seq));
        let is_within =
            refused.is_some_and(|entry| entry.messages_before() == self.requester.acks.messages());
        // If the LAN queue has no room for the NAK, the requester is told later.
        let told = seq >= self.requester.acks.to() && shared.pass_to_lan(frame);
        if told {
            let (frontier, messages) = self.store.frontier();
            let messages = if frontier == seq { messages } else { self.requester.acks.messages() };
            self.requester.acks.raise_with(seq, messages);
            shared.counters.fatal_naks_passed += 1;
        } else {
            self.drop_frame(shared, DropReason::AckAbsorbed);
        }
        let code = if is_within { code } else { NakCode::RemoteOperational };
        let is_owed = !told && self.store.end() > self.requester.acks.to();
        self.fail(now, shared, code, is_owed);
    }

    fn note_credits_after(&mut self, seq: u64, aeth: Aeth) {
        // The MSN counts messages from the start of the flow, modulo 2^24: take the nearest count.
        let reference = self.responder.credits.messages();
        let distance = i64::from(aeth.msn.since(self.msn_after(reference)));
        let Some(messages) = reference.checked_add_signed(distance) else { return };
        if messages > self.store.messages() || seq >= self.store.sent_to() {
            return;
        }
        self.responder.credits.raise(messages);
        self.note_credits(aeth);
    }

    /// Takes the responder's credits, which count from its MSN.
    pub(crate) fn note_credits(&mut self, aeth: Aeth) {
        if self.responder.credits.note(aeth.syndrome) && self.started {
            // A requester that waits for credits learns of them only from an ACK.
            self.requester.acks.repeat();
        }
    }

    /// Notes that the responder has everything below `next`.
    pub(crate) fn take_delivered(&mut self, now: Instant, shared: &mut AccelShared, next: u64) {
        if next <= self.store.responder_next {
            return;
        }
        let psns_max = u64::from(shared.config.flow_psns_max);
        self.responder.retransmission.note_delivered(now, &self.store, next, psns_max);
        self.store.responder_next = next;
        self.requester.hold.note_ready();
        self.let_go(now, shared);
        self.responder.retransmission.note_progress(now, &self.store);
    }

    /// Releases delivered packets, and uses the memory that becomes free.
    fn let_go(&mut self, now: Instant, shared: &mut AccelShared) {
        let released = self.store.release(self.store.responder_next, false);
        self.store.rest(&mut shared.spare);
        if released.packets == 0 {
            return;
        }
        self.counters.delivered_packets += released.packets;
        shared.shares.sub(self.tenant, released.bytes);
        if let Some(sent_at) = released.sample {
            self.responder.retransmission.sample(sent_at, now);
        }
        let idle = self.store.is_empty();
        self.requester.allowance.note_delivered(
            now,
            &shared.config,
            self.responder.retransmission.rtt(),
            released.bytes,
            idle,
        );
        self.advance_frontier(now, shared);
        self.ask_again_if_roomy(shared);
    }

    /// Owes a NAK if a packet was refused for lack of room and there is room again.
    pub(crate) fn ask_again_if_roomy(&mut self, shared: &AccelShared) {
        let config = &shared.config;
        let roomy = self.store.bytes() <= config.flow_bytes_max / 2
            && (shared.shares.is_roomy(config, self.tenant) || self.store.is_empty())
            && self.store.psns() <= u64::from(config.flow_psns_max) / 2;
        if self.requester.missing.is_full() && roomy {
            self.requester.missing =
                Missing::since_room(!self.requester.hold.is_coming_back(&self.store));
        }
    }

    /// Forwards a READ response or atomic ACK to the requester, and notes the responder's progress.
    fn handle_data_response(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        frame: &Frame<'_>,
        packet: &Packet<'_>,
    ) {
        if !shared.pass_to_lan(frame) {
            // Dropped, which counts as a loss on the path: nothing may rely on it.
            return;
        }
        self.resolve_by_response(packet, frame.payload.len());
        let seq = packet.psn().unwrap_near(self.store.responder_next).unwrap_or(0);
        if self.requester.replay.take_if(|replay| replay.ends_with(seq)).is_some() {
            self.follow_passed_responses(shared);
        }
        let Some(&awaited) = self.store.awaited.front() else { return };
        let Some(sent_at) =
            awaited.sent_at.filter(|_| seq >= awaited.first && seq < self.store.sent_to())
        else {
            return;
        };
        self.responder.retransmission.note_heard(now);
        // The request that it answers has been executed, and everything before that.
        let answered = self.store.awaited_at(seq).copied();
        let answered_to = answered.map(|answered| answered.last + 1);
        // Its first response tells the RTT; later ones also tell how long the READ is.
        if let Some(sent_at) =
            answered.filter(|read| read.first == seq && read.next == seq).and_then(|it| it.sent_at)
        {
            self.responder.retransmission.sample(sent_at, now);
        }
        if seq != awaited.next {
            if seq > awaited.next && self.responder.retransmission.rtt().can_answer(sent_at, now) {
                self.note_lost_response(now);
            }
        } else {
            self.requester.acks.raise(awaited.first);
            self.advance_awaited(now, shared, awaited, seq == awaited.last);
        }
        match answered_to {
            Some(next) if next > self.store.responder_next => {
                self.take_delivered(now, shared, next)
            }
            _ => {
                self.let_go(now, shared);
                if seq == awaited.next {
                    self.responder.retransmission.note_progress(now, &self.store);
                }
            }
        }
    }

    /// Notes that the next response to `front`, the first awaited request, has passed.
    fn advance_awaited(
        &mut self,
        now: Instant,
        shared: &AccelShared,
        front: Awaited,
        is_last: bool,
    ) {
        let last = front.last;
        if let Some(front) = self.store.awaited.front_mut() {
            front.next += 1;
            front.recover_at = None;
        }
        if is_last {
            let messages =
                self.store.entry(self.store.index_of(last)).map_or(0, |entry| entry.messages);
            self.store.count_answered(last);
            self.requester.acks.raise_with(last + 1, messages);
            // A pseudo-ACK behind the READ must not overtake its last response.
            self.follow_passed_responses(shared);
            // The requester dropped responses to one that this one has overtaken.
            let rtt = self.responder.retransmission.rtt();
            if self.store.is_overtaken(last + 1)
                && front.sent_at.is_some_and(|at| rtt.can_answer(at, now))
            {
                self.note_lost_response(now);
            }
        }
    }

    /// Notes that a response to the first awaited request was lost. The request is retransmitted
    /// unless the requester first requests the rest itself.
    fn note_lost_response(&mut self, now: Instant) {
        let retransmission = &self.responder.retransmission;
        let grace = retransmission.grace();
        let recent = |at: Instant| !retransmission.rtt().can_answer(at, now);
        if let Some(front) = self.store.awaited.front_mut()
            && !front.sent_at.is_some_and(recent)
        {
            front.recover_at.get_or_insert(now + grace);
        }
    }

    /// Retransmits the first awaited READ or atomic, and those behind it that an answered one has
    /// overtaken; if `all`, all that were sent.
    pub(crate) fn resend_reads(&mut self, now: Instant, shared: &mut AccelShared, all: bool) {
        let answered_sent_at = self.store.answered_sent_at;
        let sent_before = self.store.sent_before();
        if let Some(front) = self.store.awaited.front_mut() {
            front.recover_at = None;
        }
        for index in 0..self.store.awaited.len() {
            let is_due = |awaited: &&Awaited| {
                awaited.first < sent_before
                    && (all || index == 0 || awaited.sent_at < answered_sent_at)
            };
            let Some(awaited) = self.store.awaited.get(index).filter(is_due) else { break };
            let first = awaited.first;
            self.store.count_request_sent(first, now);
            let entry = self.store.entry(self.store.index_of(first));
            if let Some(frame) = entry.and_then(|entry| entry.frame.clone()) {
                shared.queue_to_wan(frame);
                self.counters.retransmits_read += 1;
                shared.counters.retransmits_read += 1;
            }
        }
        self.responder.retransmission.note_resent(now);
        self.follow_passed_requests(shared);
    }

    /// Sends everything again that is not known to be delivered.
    pub(crate) fn resend_all(&mut self, now: Instant) {
        self.responder.retransmission.resend_all(now, &mut self.store);
    }

    /// Handles a CNP of the responder.
    pub(crate) fn handle_cnp(&mut self, now: Instant, shared: &mut AccelShared) {
        if self.is_terminated() {
            self.responder.retransmission.note_heard(now);
            let is_heeded =
                shared.config.heed_cnps && self.responder.pace.handle_cnp(now, &shared.dcqcn);
            shared.counters.rp_cnp_handled += u64::from(is_heeded);
            if is_heeded {
                self.counters.rp_cnp_handled += 1;
                shared.give(self.counters.advice_on_cnp(), &self.key);
            }
        }
    }

    /// True if the rate limit holds the next packet back, until a deadline of
    /// [`Flow::handle_timeout`].
    #[inline]
    pub(crate) fn is_held_back(&mut self, now: Instant, shared: &AccelShared) -> bool {
        self.responder.pace.holds_back(now, &shared.dcqcn)
    }

    /// Sends the next packet to the responder. Returns its bytes on the wire.
    pub(crate) fn send_next(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        out: &mut dyn Transmit,
    ) -> Option<u64> {
        if self.responder.retransmission.is_probe_due() {
            return self.send_probe(now, shared, out);
        }
        let restart_timer = !self.store.is_outstanding();
        let before = self.store.responder_next;
        let entry = self.store.next_to_send()?;
        let frame = entry.frame.as_ref()?;
        let bytes = wire_bytes(frame.len());
        if self.responder.retransmission.is_open(|| (entry.last() + 1).saturating_sub(before)) {
            out.transmit_held(WAN, frame);
        } else {
            // No packet follows before an answer, so ask for one.
            send_asking(frame, out);
        }
        self.responder.pace.take(now, bytes, &shared.dcqcn);
        if self.store.count_sent(now) {
            self.responder.retransmission.note_resent(now);
            let (of_flow, of_all) = match self.responder.retransmission.cause() {
                Cause::Nak => {
                    (&mut self.counters.retransmits_nak, &mut shared.counters.retransmits_nak)
                }
                Cause::Rnr => {
                    (&mut self.counters.retransmits_rnr, &mut shared.counters.retransmits_rnr)
                }
                Cause::Timeout => (
                    &mut self.counters.retransmits_timeout,
                    &mut shared.counters.retransmits_timeout,
                ),
            };
            *of_flow += 1;
            *of_all += 1;
        }
        if restart_timer {
            self.responder.retransmission.restart_timer(now);
        }
        Some(bytes)
    }

    /// Sends a probe: the oldest packet, with AckReq.
    fn send_probe(
        &mut self,
        now: Instant,
        shared: &mut AccelShared,
        out: &mut dyn Transmit,
    ) -> Option<u64> {
        self.responder.retransmission.note_probe_sent(now);
        let index = self.store.index_of(self.store.responder_next);
        // If everything else is delivered, only a READ without its responses may be left.
        let index = if index < self.store.len() { index } else { 0 };
        let first = self.store.entry(index)?.first;
        let entry = self.store.front_mut_at(index)?;
        entry.times_sent = entry.times_sent.saturating_add(1);
        let frame = entry.frame.as_ref()?;
        let bytes = wire_bytes(frame.len());
        send_asking(frame, out);
        self.store.count_request_sent(first, now);
        self.counters.retransmits_timeout += 1;
        shared.counters.retransmits_timeout += 1;
        Some(bytes)
    }
}

/// Sends a stored request, with AckReq set if possible.
fn send_asking(held: &FrameBuf, out: &mut dyn Transmit) {
    let frame = held.as_frame();
    let Some(head) = ask_for_ack(&frame) else { return out.transmit_held(WAN, held) };
    let pad_len = match frame.trailer {
        Trailer::Received { pad_len, .. }
        | Trailer::Checked { pad_len, .. }
        | Trailer::Sealed { pad_len } => pad_len,
        Trailer::None => 0,
    };
    let trailer = Trailer::Sealed { pad_len };
    out.transmit(WAN, &Frame { head: head.bytes(), payload: frame.payload, trailer });
}

/// Returns the frame's headers with AckReq set; `None` if it is already set, or cannot be set.
///
/// A UDP checksum, which kernels add when they send through sockets, would become wrong: it covers
/// AckReq and the ICRC. It is cleared over IPv4; over IPv6 a receiver may require one, so AckReq is
/// not set.
fn ask_for_ack(frame: &Frame<'_>) -> Option<Head> {
    let packet = Packet::parse(frame.head).ok()??;
    let bth = packet.layout().bth;
    let checksum = bth.checked_sub(2)?..bth;
    let is_summed = frame.head.get(checksum.clone())? != [0, 0];
    if is_summed && packet.source_ip().is_ipv6() {
        return None;
    }
    let (byte, bit) = BTH_ACK_REQUEST;
    let at = bth + byte;
    if frame.head.get(at).is_none_or(|flags| flags & bit != 0) {
        return None;
    }
    let mut bytes = [0; longhaul_wire::HEAD_MAX];
    let bytes = bytes.get_mut(..frame.head.len())?;
    bytes.copy_from_slice(frame.head);
    bytes[at] |= bit;
    bytes[checksum].fill(0);
    Some(Head::copy_of(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_node::Payload;
    use longhaul_units::{Psn, Qpn};
    use longhaul_wire::{Bth, MacAddr, Opcode, Path, PathTemplate};
    use std::net::IpAddr;

    /// Headers of a WRITE MIDDLE between two addresses, with a UDP checksum.
    fn summed(source: &str, destination: &str, checksum: [u8; 2]) -> Vec<u8> {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let template = PathTemplate::new(&Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source_ip: ip(source),
            destination_ip: ip(destination),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_WRITE_MIDDLE, Qpn::new(17), Psn::new(5)));
        head.finish(&template, 0);
        let mut bytes = head.bytes().to_vec();
        let bth = bytes.len() - 12;
        bytes[bth - 2..bth].copy_from_slice(&checksum);
        bytes
    }

    fn asked(bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = Frame { head: bytes, payload: Payload::Bytes(&[]), trailer: Trailer::None };
        ask_for_ack(&frame).map(|head| head.bytes().to_vec())
    }

    #[test]
    fn a_checksum_that_would_be_wrong_is_left_out() {
        let bytes = summed("10.0.0.1", "10.0.0.2", [0xab, 0xcd]);
        let asking = asked(&bytes).unwrap();
        let packet = Packet::parse(&asking).unwrap().unwrap();
        let bth = packet.layout().bth;
        assert!(packet.bth().ack_request);
        assert_eq!(asking[bth - 2..bth], [0, 0]);
        assert_eq!(asked(&asking), None, "it asks already");
    }

    #[test]
    fn over_ipv6_a_frame_with_a_checksum_stays_as_it_is() {
        assert_eq!(asked(&summed("fd00::1", "fd00::2", [0xab, 0xcd])), None);
        assert!(asked(&summed("fd00::1", "fd00::2", [0, 0])).is_some());
    }
}
