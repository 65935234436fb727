//! A frame whose parts arrive one by one.

use crate::format::{Extent, assemble};
use longhaul_node::{FrameBuf, FramePool};

/// Maximum number of pieces held of one frame, which may have been split more than once, at
/// different offsets.
const PIECES_MAX: usize = 64;

/// Some of a frame's bytes behind the UDP header.
pub(crate) struct Piece {
    pub(crate) offset: u16,
    pub(crate) len: u16,
    pub(crate) held: FrameBuf,
}

/// Relation of a piece to those that are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    Wanted,
    /// All of its bytes are held.
    Covered,
    /// It belongs to a frame of another length, or exceeds the maximum.
    Unfit,
}

/// The pieces held of one frame, sorted by offset.
pub(crate) struct Partial {
    total: u16,
    udp_checksum: u16,
    pieces: Vec<Piece>,
}

impl Partial {
    /// A frame with `total` bytes behind UDP. `room` is an empty list to reuse.
    pub(crate) fn new(total: u16, udp_checksum: u16, room: Vec<Piece>) -> Self {
        Partial { total, udp_checksum, pieces: room }
    }

    /// Classifies `len` bytes at `extent`.
    pub(crate) fn fit(&self, extent: Extent, len: u16) -> Fit {
        if extent.total != self.total {
            return Fit::Unfit;
        }
        let (from, end) = (extent.offset, extent.offset + len);
        if self.covered_from(from) >= end {
            Fit::Covered
        } else if self.pieces.len() >= PIECES_MAX {
            Fit::Unfit
        } else {
            Fit::Wanted
        }
    }

    /// End of the contiguous bytes held from `from` on.
    fn covered_from(&self, from: u16) -> u16 {
        let mut to = from;
        for piece in &self.pieces {
            if piece.offset > to {
                break;
            }
            to = to.max(piece.offset + piece.len);
        }
        to
    }

    pub(crate) fn add(&mut self, piece: Piece) {
        let place = self.pieces.partition_point(|before| before.offset <= piece.offset);
        self.pieces.insert(place, piece);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.covered_from(0) >= self.total
    }

    /// Returns the frame. `None` if its bytes do not form a RoCE packet.
    pub(crate) fn assemble(&self, pool: &mut FramePool, scratch: &mut Vec<u8>) -> Option<FrameBuf> {
        let pieces = self.pieces.iter().map(|piece| (piece.offset, &piece.held));
        assemble(pool, scratch, self.udp_checksum, self.total, pieces)
    }

    /// Returns the list, emptied for reuse.
    pub(crate) fn into_room(mut self) -> Vec<Piece> {
        self.pieces.clear();
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_node::Frame;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// With pieces that overlap, repeat or are missing, the bytes held are exactly known, and
        /// the number of pieces stays bounded.
        #[test]
        fn what_is_there_is_known(
            pieces in prop::collection::vec((0..200_u16, 1..60_u16), 0..200),
        ) {
            let mut pool = FramePool::new();
            let held = pool.hold(&Frame::opaque(&[0; 60]));
            let mut partial = Partial::new(200, 0, Vec::new());
            let mut is_there = [false; 200];
            for (offset, len) in pieces {
                let len = len.min(200 - offset);
                let range = usize::from(offset)..usize::from(offset + len);
                let fit = partial.fit(Extent { offset, total: 200 }, len);
                prop_assert_eq!(
                    fit == Fit::Covered,
                    is_there[range.clone()].iter().all(|there| *there)
                );
                prop_assert_eq!(partial.fit(Extent { offset, total: 201 }, len), Fit::Unfit);
                if fit == Fit::Wanted {
                    is_there[range].fill(true);
                    partial.add(Piece { offset, len, held: held.clone() });
                }
                prop_assert!(partial.pieces.len() <= PIECES_MAX);
                prop_assert_eq!(partial.is_whole(), is_there.iter().all(|there| *there));
            }
        }
    }
}
