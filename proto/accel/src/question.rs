//! Asking a responder which PSN it expects, when its requester makes no progress.
//!
//! A responder sends one sequence NAK per gap. If the NAK passed while a box was down, the
//! restarted box sees a requester repeat one packet without an answer. But every responder answers
//! a duplicate WRITE or SEND with its latest ACK, which carries its expected PSN minus 1. The box
//! therefore sends a duplicate: a WRITE MIDDLE without payload, with a PSN far behind.
//!
//! A responder never executes it. Behind the expected PSN it is a duplicate; ahead of it, the gap
//! exists already; and at the expected PSN the responder refuses it, because a middle packet must
//! be as long as the path MTU.

use crate::accelerator::{Accelerator, LAN};
use crate::answer::template;
use crate::shared::AccelShared;
use crate::trace::OUTSTANDING_MAX;
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Duration, Instant, Psn};
use longhaul_wire::{Bth, Head, Opcode, Packet};

/// Distance in PSNs of a question behind the repeated packet: more than a box can lose, and few
/// enough that a box that knows the flow does not mistake it for another life.
const BEHIND: u64 = OUTSTANDING_MAX / 2;

/// Longest time until an answer.
const ANSWERED_WITHIN: Duration = Duration::from_ms(2000);

/// Sends a question to the responder of `packet`, a request at `seq`.
#[cold]
pub(crate) fn ask_instead_of(
    now: Instant,
    shared: &mut AccelShared,
    packet: &Packet<'_>,
    seq: u64,
) {
    let path = template(packet, false);
    let asked = packet.bth();
    let mut bth = Bth::new(
        Opcode::RC_WRITE_MIDDLE,
        packet.dest_qp(),
        Psn::from_sequence(seq.saturating_sub(BEHIND)),
    );
    bth.ack_request = true;
    (bth.migreq, bth.pkey) = (asked.migreq, asked.pkey);
    let mut head = Head::begin(&path, &bth);
    head.finish(&path, 0);
    let trailer = Trailer::Sealed { pad_len: 0 };
    shared.pass_to_wan(&Frame { head: head.bytes(), payload: Payload::EMPTY, trailer });
    shared.looks.answers_until = now + ANSWERED_WITHIN;
    shared.counters.questions += 1;
}

/// True for a question of this or another box: no NIC sends a middle packet without payload.
pub(crate) fn is_question(frame: &Frame<'_>, packet: &Packet<'_>) -> bool {
    packet.opcode() == Opcode::RC_WRITE_MIDDLE && frame.payload.is_empty()
}

impl Accelerator {
    /// Answers another box's question if this box has terminated the flow, or forwards it.
    #[cold]
    pub(crate) fn handle_question(&mut self, known: Option<u32>, frame: &Frame<'_>) {
        let terminated =
            known.filter(|&slot| self.flows.get(slot).is_some_and(|flow| flow.is_terminated()));
        match terminated.and_then(|slot| Some((slot, self.flows.get_mut(slot)?))) {
            Some((slot, flow)) => {
                flow.repeat_ack();
                self.touch(slot);
            }
            None => self.pass(LAN, frame),
        }
    }
}
