//! ACKs and NAKs that a responder owes.

use super::Fault;
use longhaul_wire::{NakCode, Syndrome};

/// What a responder owes about the PSNs it has received.
///
/// ACKs are coalesced: one ACK covers all packets before the expected PSN (IBTA, volume 1, section
/// 9.7.5.1.2). Only one sequence or RNR NAK is raised for each expected PSN.
#[derive(Debug)]
pub(super) struct Acknowledgement {
    ack_is_due: bool,
    /// Packets taken since the latest ACK or NAK.
    unacknowledged: u32,
    nak: Option<Nak>,
    /// A sequence or RNR NAK was raised for the expected PSN; none other until that PSN arrives.
    gap_is_open: bool,
    /// Highest PSN that arrived ahead of a gap.
    gap_top: u64,
}

/// Why a packet is not acknowledged. Source: IBTA, volume 1, section 9.7.5.2.
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
    /// Of the packet before the expected one.
    Ack,
    /// Of the expected packet.
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
    pub(super) fn new() -> Self {
        Acknowledgement {
            ack_is_due: false,
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

    /// `count` packets of a SEND or WRITE were taken. An ACK is due on request, and after every
    /// `ack_every` packets.
    #[inline]
    pub(super) fn taken(&mut self, count: u32, ack_request: bool, ack_every: u32) {
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
                Reply::Ack
            }
            // A NAK acknowledges as much. But kernel rxe resets its retry counter on ACKs only, and
            // ignores a second NAK before one, so that it would have to wait for its timer.
            Some(_) if self.ack_is_due => Reply::Ack,
            Some(nak) => {
                self.nak = None;
                Reply::Nak(nak)
            }
            None if self.ack_is_due => Reply::Ack,
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
