//! ACKs and NAKs that a responder owes.

use super::Fault;
use longhaul_wire::{NakCode, Syndrome};

/// State of the ACKs and NAKs that a responder owes.
///
/// ACKs are coalesced: one ACK covers all packets up to the latest SEND or WRITE (IBTA, volume 1,
/// section 9.7.5.1.2). Only one sequence or RNR NAK is raised for each expected PSN.
///
/// No ACK carries the PSN of a READ or an atomic: only responses acknowledge these. A requester
/// that still waits for a response should treat such an ACK as an implied NAK. Kernel rxe treats it
/// as the response: in `rxe_comp.c`, `check_ack` does not compare a bare ACK with the kind of its
/// request, and `COMPST_WRITE_SEND` completes any request whose last PSN it carries. The kernel's
/// own responder sends none for a READ, which does not advance its `resp.ack_psn`.
#[derive(Debug)]
pub(super) struct Acknowledgement {
    ack_is_due: bool,
    /// PSN behind the latest packet of a SEND or WRITE that was taken.
    end: u64,
    /// Packets taken since the latest ACK or NAK.
    unacknowledged: u32,
    nak: Option<Nak>,
    /// A sequence or RNR NAK was raised for the expected PSN; none other until that PSN arrives.
    gap_is_open: bool,
    /// Highest PSN that arrived ahead of a gap.
    gap_top: u64,
}

/// Reason for a NAK. Source: IBTA, volume 1, section 9.7.5.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Nak {
    /// PSN sequence error: the expected packet is missing.
    Sequence,
    /// Receiver not ready: no receive work request waits.
    NotReady { timer_code: u8 },
    /// The responder has failed.
    Fatal(Fault),
}

/// The acknowledge packet to send next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// An ACK of everything before this PSN.
    Ack { end: u64 },
    /// A NAK of the expected packet.
    Nak(Nak),
}

impl Nak {
    pub(super) fn syndrome(self) -> Syndrome {
        match self {
            Nak::Sequence => Syndrome::Nak(NakCode::PsnSequence),
            Nak::NotReady { timer_code } => Syndrome::RnrNak { timer_code },
            Nak::Fatal(fault) => Syndrome::Nak(fault.nak_code()),
        }
    }
}

impl Acknowledgement {
    /// `first`: PSN of the connection's first packet.
    pub(super) fn new(first: u64) -> Self {
        Acknowledgement {
            ack_is_due: false,
            end: first,
            unacknowledged: 0,
            nak: None,
            gap_is_open: false,
            gap_top: 0,
        }
    }

    #[inline]
    pub(super) fn is_owed(&self) -> bool {
        self.nak.is_some() || self.ack_is_due
    }

    pub(super) fn gap_is_open(&self) -> bool {
        self.gap_is_open
    }

    /// An ACK is due: a duplicate request arrived.
    pub(super) fn owe_ack(&mut self) {
        self.ack_is_due = true;
    }

    /// `count` packets of a SEND or WRITE were taken, the last before `end`. An ACK is due on
    /// request, and after every `ack_every` packets.
    #[inline]
    pub(super) fn taken(&mut self, end: u64, count: u32, ack_request: bool, ack_every: u32) {
        self.end = end;
        self.close_gap();
        if let Some(Nak::NotReady { .. }) = self.nak {
            self.nak = None;
        }
        self.unacknowledged += count;
        if ack_request || self.unacknowledged >= ack_every {
            self.ack_is_due = true;
        }
    }

    /// The expected packet has arrived.
    #[inline]
    pub(super) fn close_gap(&mut self) {
        self.gap_is_open = false;
    }

    /// Packets up to `last` arrived ahead of the expected one.
    #[cold]
    pub(super) fn out_of_sequence(&mut self, last: u64) {
        self.gap_top = self.gap_top.max(last);
        if !self.gap_is_open {
            self.gap_is_open = true;
            self.nak = Some(Nak::Sequence);
        }
    }

    /// The expected packet needs a receive, and none waits.
    pub(super) fn not_ready(&mut self, timer_code: u8) {
        self.gap_is_open = true;
        self.nak = Some(Nak::NotReady { timer_code });
    }

    /// The responder has failed.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.nak = Some(Nak::Fatal(fault));
    }

    /// Takes the packet to send next.
    #[inline]
    pub(super) fn take(&mut self, expected: u64) -> Option<Reply> {
        let reply = match self.nak {
            // The gap closed before the NAK could be sent.
            Some(Nak::Sequence) if expected > self.gap_top => {
                self.nak = None;
                Reply::Ack { end: self.end }
            }
            // A NAK acknowledges as much. However, kernel rxe resets its retry counter only on
            // ACKs, and ignores a second NAK before one, so that it would have to wait for its
            // timer.
            Some(_) if self.ack_is_due => Reply::Ack { end: self.end },
            Some(nak) => {
                self.nak = None;
                Reply::Nak(nak)
            }
            None if self.ack_is_due => Reply::Ack { end: self.end },
            None => return None,
        };
        self.settle();
        Some(reply)
    }

    /// A packet was sent that acknowledges everything before the expected PSN.
    #[inline]
    pub(super) fn settle(&mut self) {
        self.ack_is_due = false;
        self.unacknowledged = 0;
    }
}
