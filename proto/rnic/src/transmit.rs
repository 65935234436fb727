//! Frames out: turns, room and pacing.

use crate::pause::{MANAGEMENT, NOTIFICATIONS};
use crate::qp::Qp;
use crate::srq::shared_queue;
use crate::{Listed, Memory, Neighbours, Resolution, Rnic, gsi, hop};
use longhaul_cc::wire_bytes;
use longhaul_node::{Frame, Transmit};
use longhaul_units::Instant;
use longhaul_work::{Counter, Emit};

/// Passes frames to the output and counts their cost.
struct Out<'a> {
    to: &'a mut dyn Transmit,
    /// Frames transmitted; one of them may stand for several.
    taken: usize,
    frames: u64,
    bytes: u64,
    wire: u64,
}

impl Emit for Out<'_> {
    #[inline]
    fn emit(&mut self, frame: &Frame<'_>) {
        let (len, count) = (frame.len(), u64::from(frame.payload.count()));
        self.taken += 1;
        self.frames += count;
        self.bytes += count * len as u64;
        self.wire += count * wire_bytes(len);
        self.to.transmit(0, frame);
    }

    #[inline]
    fn train_max(&mut self) -> u32 {
        self.to.train_max(0)
    }
}

impl<M: Memory> Rnic<M> {
    pub(crate) fn send_pending(&mut self, now: Instant, to: &mut dyn Transmit) {
        self.paced_until = None;
        self.env.now = now;
        if self.pauses.is_any() {
            self.end_pauses(now);
        }
        if !self.has_pending() && !self.hops_pending() {
            return;
        }
        let mut room = to.room(0);
        let mut out = Out { to, taken: 0, frames: 0, bytes: 0, wire: 0 };
        if self.hops_pending() {
            self.send_by_segment(now, &mut room, &mut out);
        }
        while room > 0 && self.has_pending() {
            if let Some(pacer) = &self.pacer {
                let at = pacer.ready_at(now);
                if at > now {
                    self.paced_until = Some(at);
                    break;
                }
            }
            (out.wire, out.taken) = (0, 0);
            if !self.send_mad(now, &mut out) && !self.send_cnp(&mut out) {
                self.send_next_qp(now, room, &mut out);
            }
            if let Some(pacer) = &mut self.pacer {
                pacer.take(now, out.wire);
            }
            room -= out.taken;
        }
        // Neighbour solicitations that just became due.
        if self.hops_pending() {
            self.send_by_segment(now, &mut room, &mut out);
        }
        self.env.counters.add(Counter::TxFrames, out.frames);
        self.env.counters.add(Counter::TxBytes, out.bytes);
    }

    #[inline]
    fn has_pending(&self) -> bool {
        !self.ready_qps.is_empty() || self.mads_pending() || self.cnps_pending()
    }

    #[inline]
    fn mads_pending(&self) -> bool {
        self.cm.has_mad() && !self.pauses.holds(MANAGEMENT)
    }

    #[inline]
    fn cnps_pending(&self) -> bool {
        !self.cnps.is_empty() && !self.pauses.holds(NOTIFICATIONS)
    }

    #[inline]
    fn hops_pending(&self) -> bool {
        self.hops.has_pending() && !self.pauses.holds(MANAGEMENT)
    }

    /// Sends the segment's own frames, and the datagrams that waited for an address. They are few
    /// and not paced.
    #[cold]
    fn send_by_segment(&mut self, now: Instant, room: &mut usize, out: &mut Out<'_>) {
        while *room > 0
            && let Some(frame) = self.hops.neighbours_mut().and_then(Neighbours::poll_frame)
        {
            hop::emit(&frame, out);
            *room -= 1;
        }
        while *room > 0
            && let Some((to, mac, mad)) = self.hops.next_ready(now, &self.config)
        {
            self.mad_psn = self.mad_psn.plus(1);
            gsi::send(&self.config, mac, to, &mad, self.mad_psn, out);
            *room -= 1;
        }
    }

    #[inline]
    fn send_mad(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        if !self.mads_pending() {
            return false;
        }
        let (config, psn, hops) = (&self.config, &mut self.mad_psn, &mut self.hops);
        let mut sent = false;
        self.cm.poll_mad(now, |to, mad| {
            let to = to.to_canonical();
            match hops.ask(now, config, to) {
                Resolution::Known(mac) => {
                    gsi::send(config, mac, to, mad, *psn, out);
                    *psn = psn.plus(1);
                    sent = true;
                }
                // The neighbour solicitation is sent first.
                Resolution::Asking => hops.wait(now, to, mad),
                // The connection manager retries.
                Resolution::Failed(_) => {}
            }
        });
        sent
    }

    /// Maximum packets, at most `room`, that the QP whose turn it is may send before its state is
    /// evaluated again. More than one only if no other QP waits and no rate limits this one.
    #[inline]
    fn run_max(&self, room: usize, is_limited: bool) -> usize {
        let is_alone = self.ready_qps.is_empty() && !self.mads_pending() && !self.cnps_pending();
        if is_alone && !is_limited && self.pacer.is_none() { room } else { 1 }
    }

    /// Sends one packet of the QP whose turn it is, or several if no other waits. None if the QP
    /// turns out to have nothing to send.
    #[inline]
    fn send_next_qp(&mut self, now: Instant, room: usize, out: &mut Out<'_>) {
        let Some(slot) = self.ready_qps.pop() else { return };
        if self.pauses.is_any() && self.waits_for_link(slot) {
            return;
        }
        let Some(Some(qp)) = self.qps.get(slot as usize) else { return };
        let run_max = self.run_max(room, qp.limiter.is_active());
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        qp.is_listed = false;
        let qp = &mut **qp;
        let (mut responds, mut requests) =
            (qp.responder_can_transmit(), qp.requester_can_transmit(now));
        let answers = responds && qp.transport.responder_sends_data();
        let mut held_back = false;
        if requests || answers {
            let ready = qp.limiter.ready_at(now, &self.dcqcn);
            held_back = ready > now;
            if held_back {
                self.paced.schedule(slot, ready, &mut qp.paced_entry);
                requests = false;
                responds &= !answers;
            }
        }
        let responder_first = responds && (qp.responder_first || !requests);
        let is_data = !responder_first || answers;
        // If both halves have something to send, they alternate.
        let run_max = if responds && requests { 1 } else { run_max };
        let mut ctx = Qp::context(&qp.init, qp.access, &mut self.env);
        let before = out.wire;
        let mut sent = 0;
        if responder_first {
            let queue = shared_queue(&mut self.srqs, &qp.init).unwrap_or(&mut qp.recv);
            while sent < run_max
                && qp.transport.transmit_response(queue, &mut ctx, &qp.template, out)
            {
                sent += 1;
            }
        } else if requests {
            while sent < run_max && qp.transport.transmit_request(now, &mut ctx, &qp.template, out)
            {
                sent += 1;
            }
        }
        if sent > 0 && is_data {
            qp.limiter.take(now, out.wire - before, &self.dcqcn);
        }
        qp.responder_first = !responder_first;
        // A request that cannot be sent waits for an event, and a rate-limited one for its time;
        // neither waits for a turn.
        let listed = if sent > 0 {
            Listed::Both
        } else if held_back {
            Listed::No
        } else {
            Listed::Responses
        };
        self.settle_listed(now, slot, listed);
    }
}
