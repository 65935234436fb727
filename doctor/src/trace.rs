//! Packets of one flow for a time-sequence plot: PSNs over time.
//!
//! A second pass over the capture collects the points, because the first determines the flow's
//! extent. Points are thinned to a screen's resolution, so memory does not grow with the capture.

use crate::report::Flow;

/// Cells of the plot; points of one kind in one cell are kept once.
const COLUMNS: usize = 600;
const ROWS: usize = 360;

/// Kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mark {
    /// An acknowledgement.
    Ack,
    /// A packet of a READ response.
    ReadResponse,
    /// A packet of a request other than READ.
    Request,
    /// A READ request.
    ReadRequest,
    /// A retransmission.
    Again,
    /// A NAK or RNR NAK.
    Nak,
    /// A congestion notification packet.
    Cnp,
}

impl Mark {
    /// All kinds, in drawing order: rare ones on top.
    pub const ALL: [Mark; 7] = [
        Mark::Ack,
        Mark::ReadResponse,
        Mark::Request,
        Mark::ReadRequest,
        Mark::Again,
        Mark::Nak,
        Mark::Cnp,
    ];
}

/// Points of one flow.
#[derive(Clone, Debug)]
pub struct Trace {
    flow_id: usize,
    start_ns: u64,
    duration_ns: u64,
    first: u64,
    psns: u64,
    points: Vec<(f64, f64, Mark)>,
    taken: Vec<bool>,
}

impl Trace {
    /// Creates a trace of `flow`, from a report on the same capture.
    pub fn of(flow: &Flow) -> Self {
        Trace {
            flow_id: flow.id,
            start_ns: flow.start_ns,
            duration_ns: flow.duration_ns.max(1),
            first: (1 << 24) + u64::from(flow.first_psn.unwrap_or(0)),
            psns: flow.psns.max(1),
            points: Vec::new(),
            taken: vec![false; COLUMNS * ROWS * Mark::ALL.len()],
        }
    }

    pub(crate) fn flow_id(&self) -> usize {
        self.flow_id
    }

    /// Points: nanoseconds since the flow's first packet, packets since its first PSN, kind.
    pub fn points(&self) -> &[(f64, f64, Mark)] {
        &self.points
    }

    pub(crate) fn add(&mut self, now_ns: u64, sequence: u64, mark: Mark) {
        let x = now_ns.saturating_sub(self.start_ns) as f64 / self.duration_ns as f64;
        let Some(above) = sequence.checked_sub(self.first) else { return };
        let y = above as f64 / self.psns as f64;
        if x > 1.0 || y > 1.0 {
            return; // Of an earlier life of the queue pair: the axes show the last.
        }
        let column = ((x * COLUMNS as f64) as usize).min(COLUMNS - 1);
        let row = ((y * ROWS as f64) as usize).min(ROWS - 1);
        let taken = &mut self.taken[(row * COLUMNS + column) * Mark::ALL.len() + mark as usize];
        if !std::mem::replace(taken, true) {
            self.points.push((x * self.duration_ns as f64, y * self.psns as f64, mark));
        }
    }
}
