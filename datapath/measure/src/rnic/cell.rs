//! What a row of the table is about: the line between the ends, and the transfer.

use super::CellError;
use longhaul_boxes::Xdp;
use longhaul_boxes::quantity::Size;
use longhaul_datapath::{Operation, TransferConfig};
use longhaul_rnic::Mtu;
use std::fmt;

/// Connection of the two ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// Rings in one process, whose ends take turns.
    Rings {
        /// Frames per ring.
        frames: u32,
    },
    /// Shared memory between two processes.
    Memif {
        /// Frames per ring.
        frames: u32,
    },
    /// AF_XDP at both ends of a cable, two processes.
    Xdp {
        /// The requester's interface.
        requester: Xdp,
        /// The responder's interface.
        responder: Xdp,
    },
}

impl Line {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Line::Rings { .. } => "rings",
            Line::Memif { .. } => "memif",
            Line::Xdp { .. } => "xdp",
        }
    }
}

/// Parameters of one row of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Connection of the two ends.
    pub line: Line,
    /// Operation of the requester.
    pub operation: Operation,
    /// Length of each message.
    pub message_bytes: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// Number of queue pairs.
    pub qps: u32,
    /// Messages in flight per queue pair.
    pub depth: u32,
}

impl Cell {
    /// Checks whether it can be measured.
    ///
    /// # Errors
    /// The first bound that it breaks.
    pub fn check(&self) -> Result<(), CellError> {
        self.transfer(false).check()?;
        match self.line {
            Line::Rings { frames } | Line::Memif { frames } if !frames.is_power_of_two() => {
                Err(CellError::Ring(frames))
            }
            _ => Ok(()),
        }
    }

    /// Configuration of both ends.
    pub(super) fn transfer(&self, is_instrumented: bool) -> TransferConfig {
        let Cell { operation, message_bytes, mtu, qps, depth, .. } = *self;
        TransferConfig { operation, message_bytes, mtu, qps, depth, is_instrumented }
    }

    /// Average payload per packet.
    pub fn payload_bytes(&self) -> f64 {
        let len = u64::from(self.message_bytes);
        len as f64 / self.mtu.packets(len) as f64
    }

    /// Index of the end that sends the payload.
    pub(super) fn sender(&self) -> usize {
        usize::from(self.operation == Operation::Read)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::from_bytes(self.message_bytes.into());
        let (operation, over) = (self.operation.name(), self.line.name());
        write!(f, "{operation} {size}, {} QPs, over {over}", self.qps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_datapath::TransferError;

    #[test]
    fn a_cell_that_cannot_be_measured_names_its_bound() {
        let fine = Cell {
            line: Line::Rings { frames: 512 },
            operation: Operation::Write,
            message_bytes: 65_536,
            mtu: Mtu::B4096,
            qps: 8,
            depth: 16,
        };
        assert_eq!(fine.check(), Ok(()));
        assert_eq!(fine.to_string(), "write 64 KiB, 8 QPs, over rings");
        let odd = Cell { line: Line::Memif { frames: 100 }, ..fine.clone() };
        assert_eq!(odd.check(), Err(CellError::Ring(100)));
        let none = Cell { qps: 0, ..fine };
        assert_eq!(none.check(), Err(TransferError::QueuePairs(0).into()));
    }
}
