//! A requester's outstanding packets, in order.

use crate::stalls::Level;
use std::collections::VecDeque;

/// Maximum outstanding packets of a flow without known responses.
const UNPAIRED_MAX: usize = 4096;
/// Maximum outstanding packets of a flow.
const PAIRED_MAX: usize = 1 << 20;
/// Maximum ranges of skipped PSNs of a flow.
const HOLES_MAX: usize = 1024;

/// One request packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub sequence: u64,
    /// Its PSNs: for a READ the number of responses, otherwise one.
    pub span: u32,
    /// The span is unknown until the path MTU or the next request is known.
    pub span_is_open: bool,
    pub payload_len: u32,
    /// Length of a READ, if its RETH was captured.
    pub dma_len: Option<u32>,
    pub first_ns: u64,
    pub last_ns: u64,
    pub was_resent: bool,
    /// Sent after a gap, so that the responder discards it.
    pub is_discarded: bool,
    pub ends_message: bool,
    /// A READ or atomic with an incomplete response.
    pub awaits_answer: bool,
    /// Responses seen of a READ.
    pub answered: u32,
}

impl Sent {
    pub fn end(&self) -> u64 {
        self.sequence + u64::from(self.span)
    }
}

/// PSNs that were skipped: lost before the capture point, reordered, or missed by the capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub from: u64,
    pub to: u64,
    pub at_ns: u64,
}

/// Remaining outstanding packets of all flows together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub left: usize,
}

/// The outstanding packets of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    sent: VecDeque<Sent>,
    holes: VecDeque<Hole>,
    ends: u32,
    awaiting: u32,
    pub bytes: u64,
    /// Packets evicted for lack of memory.
    pub forgotten: u64,
}

impl Window {
    pub fn push(&mut self, sent: Sent, is_paired: bool, budget: &mut Budget) {
        let most = if is_paired { PAIRED_MAX } else { UNPAIRED_MAX };
        if self.sent.len() >= most || budget.left == 0 {
            self.forgotten += u64::from(is_paired);
            if self.pop(budget).is_none() {
                return;
            }
        }
        self.ends += u32::from(sent.ends_message);
        self.awaiting += u32::from(sent.awaits_answer);
        self.bytes += u64::from(sent.payload_len);
        self.sent.push_back(sent);
        budget.left -= 1;
    }

    pub fn pop(&mut self, budget: &mut Budget) -> Option<Sent> {
        let sent = self.sent.pop_front()?;
        self.ends -= u32::from(sent.ends_message);
        self.awaiting -= u32::from(sent.awaits_answer);
        self.bytes -= u64::from(sent.payload_len);
        budget.left += 1;
        Some(sent)
    }

    pub fn clear(&mut self, budget: &mut Budget) {
        while self.pop(budget).is_some() {}
        self.sent = VecDeque::new();
        self.holes.clear();
    }

    pub fn front(&self) -> Option<&Sent> {
        self.sent.front()
    }

    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub fn back_mut(&mut self) -> Option<&mut Sent> {
        self.sent.back_mut()
    }

    /// Returns the packet whose span contains `sequence`.
    pub fn find(&mut self, sequence: u64) -> Option<&mut Sent> {
        let after = self.sent.partition_point(|s| s.sequence <= sequence);
        let sent = self.sent.get_mut(after.checked_sub(1)?)?;
        (sequence < sent.end()).then_some(sent)
    }

    /// Records that the response to the READ or atomic at `sequence` is complete.
    pub fn answered(&mut self, sequence: u64) {
        if let Some(sent) = self.find(sequence)
            && sent.awaits_answer
        {
            sent.awaits_answer = false;
            self.awaiting -= 1;
        }
    }

    pub fn level(&self) -> Level {
        let (Some(front), Some(back)) = (self.sent.front(), self.sent.back()) else {
            return Level::default();
        };
        Level {
            messages: self.ends + u32::from(!back.ends_message),
            packets: u32::try_from(back.end() - front.sequence).unwrap_or(u32::MAX),
            reads: self.awaiting,
            mid_message: !back.ends_message,
        }
    }

    /// PSNs between the oldest and the newest packet.
    pub fn psn_delta(&self) -> Option<u64> {
        Some(self.sent.back()?.sequence - self.sent.front()?.sequence)
    }

    pub fn skipped(&mut self, hole: Hole) {
        if self.holes.len() == HOLES_MAX {
            self.holes.pop_front();
        }
        self.holes.push_back(hole);
    }

    /// Removes `sequence` from its hole and returns that hole.
    pub fn fill(&mut self, sequence: u64) -> Option<Hole> {
        let at = self.holes.iter().position(|h| (h.from..h.to).contains(&sequence))?;
        let hole = self.holes[at];
        let (before, after) = (Hole { to: sequence, ..hole }, Hole { from: sequence + 1, ..hole });
        match (before.from < before.to, after.from < after.to) {
            (false, false) => drop(self.holes.remove(at)),
            (true, false) => self.holes[at] = before,
            (false, true) => self.holes[at] = after,
            (true, true) => {
                self.holes[at] = before;
                if self.holes.len() < HOLES_MAX {
                    self.holes.insert(at + 1, after);
                }
            }
        }
        Some(hole)
    }

    /// Removes and counts skipped PSNs below `sequence`.
    pub fn take_holes_below(&mut self, sequence: u64) -> u64 {
        let mut missing = 0;
        while let Some(hole) = self.holes.front_mut()
            && hole.from < sequence
        {
            let end = hole.to.min(sequence);
            missing += end - hole.from;
            if end == hole.to {
                self.holes.pop_front();
            } else {
                hole.from = end;
            }
        }
        missing
    }
}
