//! Frames out: turns, room and pace.

use crate::{Memory, Rnic, gsi};
use longhaul_cc::wire_bytes;
use longhaul_node::{Frame, Transmit};
use longhaul_rc::{Counter, Emit};
use longhaul_units::Instant;

/// Hands frames to the taker and notes what they cost.
struct Out<'a> {
    to: &'a mut dyn Transmit,
    bytes: u64,
    wire: u64,
}

impl Emit for Out<'_> {
    #[inline]
    fn emit(&mut self, frame: &Frame<'_>) {
        let len = frame.len();
        self.bytes += len as u64;
        self.wire += wire_bytes(len);
        self.to.transmit(0, frame);
    }
}

impl<M: Memory> Rnic<M> {
    pub(crate) fn send_pending(&mut self, now: Instant, to: &mut dyn Transmit) {
        self.paced_until = None;
        if self.turns.is_empty() && !self.cm.has_mad() {
            return;
        }
        let mut room = to.room(0);
        let mut out = Out { to, bytes: 0, wire: 0 };
        let mut frames = 0;
        while room > 0 && (!self.turns.is_empty() || self.cm.has_mad()) {
            if let Some(pacer) = &self.pacer {
                let at = pacer.ready_at(now);
                if at > now {
                    self.paced_until = Some(at);
                    break;
                }
            }
            out.wire = 0;
            if !self.send_mad(now, &mut out) && !self.send_turn(now, &mut out) {
                continue;
            }
            if let Some(pacer) = &mut self.pacer {
                pacer.take(now, out.wire);
            }
            frames += 1;
            room -= 1;
        }
        self.env.counters.add(Counter::TxFrames, frames);
        self.env.counters.add(Counter::TxBytes, out.bytes);
    }

    #[inline]
    fn send_mad(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        if !self.cm.has_mad() {
            return false;
        }
        let (config, psn) = (&self.config, &mut self.mad_psn);
        let mut sent = false;
        self.cm.poll_mad(now, |to, mad| {
            gsi::send(config, to, mad, *psn, out);
            *psn = psn.plus(1);
            sent = true;
        });
        sent
    }

    /// One packet of the QP whose turn it is. False when it turned out to have none.
    #[inline]
    fn send_turn(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        let Some(slot) = self.turns.pop() else { return false };
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return false };
        qp.is_listed = false;
        let responds = qp.responder_can_transmit();
        let requests = qp.requester_can_transmit(now);
        let responder_first = responds && (qp.responder_first || !requests);
        let qp = &mut **qp;
        let mut ctx = crate::env::QpContext {
            env: &mut self.env,
            pd: qp.init.pd,
            access: qp.access,
            send_cq: qp.init.send_cq,
            recv_cq: qp.init.recv_cq,
        };
        let sent = if responder_first {
            qp.responder.transmit(&qp.recv, &mut ctx, &qp.template, out)
        } else if requests {
            qp.requester.transmit(now, &mut ctx, &qp.template, out)
        } else {
            false
        };
        qp.responder_first = !responder_first;
        if sent {
            self.settle(now, slot);
        } else {
            // What cannot be sent now waits for an event, not for a turn.
            self.settle_without_turn(slot);
        }
        sent
    }

    fn settle_without_turn(&mut self, slot: u32) {
        let Some(Some(qp)) = self.qps.get_mut(slot as usize) else { return };
        qp.settle(&mut self.env);
        if !qp.is_listed && qp.responder_can_transmit() {
            qp.is_listed = true;
            self.turns.push(slot);
        }
        if let Some(deadline) = qp.requester.deadline() {
            self.timers.want(slot, deadline.at, &mut qp.timer_entry);
        }
    }
}
