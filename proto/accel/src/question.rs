//! Asking a responder how far it is, on behalf of a requester whose packets lead nowhere.
//!
//! A responder sends one sequence NAK for a gap. If that passed while a box was away, the box that
//! is back sees a requester repeat one packet, and no answer. But every responder answers a
//! duplicate WRITE or SEND with its latest ACK, which names the PSN that it has come to. So the box
//! sends one: a WRITE MIDDLE without payload, of a PSN far behind.
//!
//! Nothing can be taken from it. Behind what is expected it is a duplicate, before it the gap is
//! there already, and as the packet that is expected it is refused: a middle packet is as long as
//! the path MTU.

use crate::accelerator::{Accelerator, LAN};
use crate::answer::template;
use crate::shared::AccelShared;
use crate::trace::OUTSTANDING_MAX;
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Duration, Instant, Psn};
use longhaul_wire::{Bth, Head, Opcode, Packet};

/// PSNs that a question lies behind the packet that is repeated: more than are lost with a box, and
/// few enough that a box that knows the flow does not take it for another life's.
const BEHIND: u64 = OUTSTANDING_MAX / 2;

/// Longest time that an answer takes.
const ANSWERED_WITHIN: Duration = Duration::from_ms(2000);

/// Sends the responder of `packet`, a request at `seq`, a question.
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

/// True for a question, of this box's or of one before it: no NIC sends a middle packet without
/// payload.
pub(crate) fn is_question(frame: &Frame<'_>, packet: &Packet<'_>) -> bool {
    packet.opcode() == Opcode::RC_WRITE_MIDDLE && frame.payload.is_empty()
}

impl Accelerator {
    /// Another box's question: whoever has terminated the flow answers it.
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
