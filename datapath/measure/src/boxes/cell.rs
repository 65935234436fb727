//! What a row of the table is about: the kind of box, and its parameters.

use longhaul_boxes::quantity::{Distance, Size};
use longhaul_units::BitRate;
use longhaul_wan::Parity;
use std::fmt;

/// Kind of box to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoxKind {
    /// The load alone, its two ends joined.
    None,
    /// Frames forwarded from port to port: the minimum cost of a box.
    Forward,
    /// One accelerator.
    Accelerator,
    /// Accelerators with a transport at both ends of a path: both boxes together.
    Paired,
    /// An emulated fibre.
    Emulator,
}

impl BoxKind {
    /// All of them.
    pub const ALL: [BoxKind; 5] =
        [BoxKind::None, BoxKind::Forward, BoxKind::Accelerator, BoxKind::Paired, BoxKind::Emulator];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            BoxKind::None => "load",
            BoxKind::Forward => "forward",
            BoxKind::Accelerator => "accelerator",
            BoxKind::Paired => "paired",
            BoxKind::Emulator => "emulator",
        }
    }

    /// Whether it acknowledges stored packets at once.
    pub(super) fn acknowledges_early(self) -> bool {
        matches!(self, BoxKind::Accelerator | BoxKind::Paired)
    }

    /// Whether it applies back-pressure instead of dropping.
    pub(super) fn pushes_back(self) -> bool {
        self.acknowledges_early()
    }

    /// Whether it contains the long path.
    pub(super) fn has_the_path_inside(self) -> bool {
        matches!(self, BoxKind::Paired | BoxKind::Emulator)
    }
}

/// Connection of load and box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// One thread; frames pass by reference.
    Rings,
    /// One thread; frames are copied into and out of the rings, as by ports that must copy.
    CopyingRings,
    /// Shared memory between two processes.
    Memif,
}

impl Over {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Over::Rings => "rings",
            Over::CopyingRings => "copying-rings",
            Over::Memif => "memif",
        }
    }
}

/// Parameters of one row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Kind of box.
    pub kind: BoxKind,
    /// Payload of each packet, in bytes.
    pub payload_bytes: usize,
    /// Number of QPs.
    pub flows: u32,
    /// Distance to the responders.
    pub distance: Distance,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell { kind, payload_bytes, flows, distance } = self;
        let size = Size::from_bytes(*payload_bytes as u64);
        write!(f, "{} {size}, {flows} QPs, {distance}", kind.name())
    }
}

/// Settings of the boxes.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Rate of an emulated fibre.
    pub rate: BitRate,
    /// Parity of paired boxes.
    pub parity: Parity,
    /// Loss probability between paired boxes.
    pub loss: f64,
    /// Whether paired boxes encrypt.
    pub is_encrypted: bool,
}
