//! The combinations that the demo measures: transports and paths.

use longhaul_boxes::figures::count;
use longhaul_boxes::quantity::{Distance, Size};
use std::fmt;

/// One run: a transport over a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub path: Fibre,
    pub transport: Transport,
}

/// A fibre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fibre {
    pub distance: Distance,
    /// Probability with which it loses a frame.
    pub loss: f64,
}

/// What carries the data, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// RC WRITEs of `message_bytes`.
    Rdma { message_bytes: u64, accelerated: bool },
    /// The kernel's TCP.
    Tcp { congestion_control: CongestionControl, connections: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CongestionControl {
    Cubic,
    Bbr,
}

impl CongestionControl {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            CongestionControl::Cubic => "cubic",
            CongestionControl::Bbr => "bbr",
        }
    }
}

const MESSAGES: [u64; 3] = [4096, 65_536, 1 << 20];
const CONNECTIONS: [u32; 2] = [1, 8];
/// Distances in km and loss.
const PATHS: [(u64, f64); 6] =
    [(0, 0.0), (10, 0.0), (100, 0.0), (1000, 0.0), (1000, 1e-4), (1000, 1e-3)];
const QUICK_MESSAGES: [u64; 1] = [65_536];
const QUICK_PATHS: [(u64, f64); 2] = [(1000, 0.0), (1000, 1e-3)];

impl Transport {
    pub fn is_accelerated(self) -> bool {
        matches!(self, Transport::Rdma { accelerated: true, .. })
    }

    pub fn is_tcp(self) -> bool {
        matches!(self, Transport::Tcp { .. })
    }
}

/// In the order of the table: RDMA by message size, then TCP.
fn transports(messages: &[u64]) -> Vec<Transport> {
    let rdma = messages.iter().flat_map(|&message_bytes| {
        [false, true].map(|accelerated| Transport::Rdma { message_bytes, accelerated })
    });
    let tcp = [CongestionControl::Cubic, CongestionControl::Bbr].into_iter();
    let tcp = tcp.flat_map(|congestion_control| {
        CONNECTIONS.map(|connections| Transport::Tcp { congestion_control, connections })
    });
    rdma.chain(tcp).collect()
}

/// Grouped by lab: one without and one with accelerators per path.
fn cells(paths: &[(u64, f64)], messages: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &(km, loss) in paths {
        let path = Fibre { distance: Distance::from_km(km), loss };
        let (accelerated, plain): (Vec<_>, Vec<_>) =
            transports(messages).into_iter().partition(|transport| transport.is_accelerated());
        cells
            .extend(plain.into_iter().chain(accelerated).map(|transport| Cell { path, transport }));
    }
    cells
}

/// Every path and transport.
pub fn all() -> Vec<Cell> {
    cells(&PATHS, &MESSAGES)
}

/// The cells of `--quick`, which take under a minute.
pub fn quick() -> Vec<Cell> {
    cells(&QUICK_PATHS, &QUICK_MESSAGES)
}

impl fmt::Display for Fibre {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.distance.fmt(f)?;
        if self.loss > 0.0 {
            write!(f, ", loss {:e}", self.loss)?;
        }
        Ok(())
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Transport::Rdma { message_bytes, accelerated } => {
                let how = if accelerated { "accelerated" } else { "plain" };
                write!(f, "RDMA {how}, {}", Size::from_bytes(message_bytes))
            }
            Transport::Tcp { congestion_control, connections } => {
                let name = congestion_control.name().to_uppercase();
                write!(f, "TCP {name}, {}", count(u64::from(connections), "connection"))
            }
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.transport, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_every_transport_and_two_labs() {
        let cells = all();
        assert_eq!(cells.len(), PATHS.len() * transports(&MESSAGES).len());
        let labs = cells.chunk_by(|a, b| {
            a.path == b.path && a.transport.is_accelerated() == b.transport.is_accelerated()
        });
        assert_eq!(labs.count(), 2 * PATHS.len());
    }

    #[test]
    fn a_cell_names_transport_and_path() {
        let path = Fibre { distance: Distance::from_km(1000), loss: 1e-4 };
        let transport =
            Transport::Tcp { congestion_control: CongestionControl::Bbr, connections: 8 };
        let cell = Cell { path, transport };
        assert_eq!(cell.to_string(), "TCP BBR, 8 connections over 1000 km, loss 1e-4");
        let transport = Transport::Rdma { message_bytes: 4096, accelerated: true };
        let path = Fibre { loss: 0.0, ..path };
        assert_eq!(Cell { path, transport }.to_string(), "RDMA accelerated, 4 KiB over 1000 km");
    }
}
