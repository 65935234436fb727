//! The combinations that the demo measures.

use longhaul_boxes::quantity::{Distance, Size};
use std::fmt;

/// One run of ib_write_bw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub distance: Distance,
    pub message: Size,
    pub accelerated: bool,
}

const SIZES: [u64; 4] = [512, 4096, 65_536, 1 << 20];
const DISTANCES_KM: [u64; 4] = [0, 10, 100, 1000];

fn cells(distances_km: &[u64], sizes: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &km in distances_km {
        for accelerated in [false, true] {
            for &bytes in sizes {
                cells.push(Cell {
                    distance: Distance::from_km(km),
                    message: Size::from_bytes(bytes),
                    accelerated,
                });
            }
        }
    }
    cells
}

/// Every distance and size, without and with accelerators, grouped by lab.
pub fn all() -> Vec<Cell> {
    cells(&DISTANCES_KM, &SIZES)
}

/// The cells of `--quick`, which take under a minute.
pub fn quick() -> Vec<Cell> {
    cells(&[1000], &[512, 65_536])
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.accelerated { "with" } else { "without" };
        write!(f, "{} over {}, {how} accelerators", self.message, self.distance)
    }
}
