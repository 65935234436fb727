//! Configuration of a switch.

use crate::pfc::{PfcConfig, PfcFault};
use longhaul_cc::RedConfig;
use longhaul_link::{LinkConfig, LinkError};
use longhaul_units::{BitRate, Duration};
use thiserror::Error;

/// Most ports of a switch: ports with frames in flight are a set of 64 bits.
pub const PORTS_MAX: usize = 64;

/// Properties of a switch. All ports are equal, except for their rates.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchConfig {
    /// Ports, 2 to [`PORTS_MAX`]: the sides of the node.
    pub ports: usize,
    /// Rate of each output in bits on the wire: a frame takes its length plus 24 bytes. With flow
    /// control, each port has its own.
    pub rate: BitRate,
    /// Rates of individual outputs, from the first on; the remaining outputs have `rate`. If a
    /// port's link is slower than its output, frames wait at the link, neither counted nor marked.
    pub port_rates: Vec<BitRate>,
    /// Queue capacity of an output, in bytes on the wire; a frame that would exceed it is dropped.
    /// For unpaced senders, set it to the sum of their windows; for others, to the bytes that
    /// arrive while marks and notifications are in flight.
    pub queue_bytes: u64,
    /// Marking of an output's queue. `None`: no marks.
    pub ecn: Option<RedConfig>,
    /// Priority-based flow control. `None`: pause frames are neither sent nor obeyed.
    pub pfc: Option<PfcConfig>,
    /// Most known addresses, static and learnt together; each takes about 32 bytes. If the table is
    /// full, further ones are not learnt.
    pub addresses_max: usize,
    /// Time after which a learnt address without traffic ages. Source of the default: IEEE 802.1Q,
    /// table 8-6.
    pub address_age: Duration,
    /// Seed of the marks, with one stream per output, and of the address table's hashes.
    pub seed: u64,
}

impl SwitchConfig {
    /// `ports` ports at `rate`: queues of 16 MiB, no marks, no flow control, 4096 addresses that
    /// age after 300 s.
    pub fn new(ports: usize, rate: BitRate) -> Self {
        SwitchConfig {
            ports,
            rate,
            port_rates: Vec::new(),
            queue_bytes: 16 << 20,
            ecn: None,
            pfc: None,
            addresses_max: 4096,
            address_age: Duration::from_ms(300_000),
            seed: 0,
        }
    }

    /// Bound on the memory for frames in all queues, in bytes: full queues of the shortest frames.
    pub fn memory_bytes_max(&self) -> u64 {
        // Half of the memory of both directions of a link.
        let of = |queue: LinkConfig| queue.memory_bytes_needed().map_or(0, |both| both / 2);
        let queues =
            (0..self.ports).fold(0, |sum: u64, port| sum.saturating_add(of(self.output(port))));
        let Some(pfc) = &self.pfc else { return queues };
        queues.saturating_add(of(LinkConfig { queue_bytes: pfc.buffer_bytes(), ..self.output(0) }))
    }

    /// An output as a link without delay, with exactly the memory that it needs.
    pub(crate) fn output(&self, port: usize) -> LinkConfig {
        let link = LinkConfig {
            rate: Some(self.port_rates.get(port).copied().unwrap_or(self.rate)),
            queue_bytes: self.queue_bytes,
            ecn: self.ecn,
            ..LinkConfig::default()
        };
        LinkConfig { memory_bytes_max: link.memory_bytes_needed().unwrap_or_default(), ..link }
    }
}

/// Why a switch or an address is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// Too few or too many ports.
    #[error("a switch has 2 to {PORTS_MAX} ports, not {ports}")]
    Ports {
        /// The number given.
        ports: usize,
    },
    /// The outputs' queues or marks are invalid.
    #[error(transparent)]
    Output(#[from] LinkError),
    /// Flow control is invalid.
    #[error("flow control: {0}")]
    Pfc(#[from] PfcFault),
    /// An address was declared behind a port that does not exist.
    #[error("no port {port}: the switch has {ports}")]
    NoPort {
        /// The port given.
        port: usize,
        /// Number of ports.
        ports: usize,
    },
    /// A group address was declared, which has no port.
    #[error("a group address lives behind no single port")]
    GroupAddress,
    /// The address table is full of declared addresses.
    #[error("all {addresses_max} addresses are taken")]
    TableFull {
        /// Its size.
        addresses_max: usize,
    },
}
