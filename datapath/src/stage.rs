//! What stands between requesters and responders.

use longhaul_host::{Clock, MalformedFrames, TurnConfig, turn};
use longhaul_node::Node;
use longhaul_port::{Port, PortError, Received};

/// Frames that a [`Bridge`] carries at once: as many as a box takes from a port in a turn.
const BURST: usize = 64;
/// Steps in a row of a node to which more came than it takes at once: what stands before it may
/// send more frames than it is given, and would otherwise outrun it for ever.
const STEPS_MAX: usize = 4;

/// What a stage says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Frames that it dropped for want of room or sense, by name.
    pub drops: Vec<(&'static str, u64)>,
    /// Flows that are in the state that is to be measured; `None` when it knows no flows.
    pub ready_flows: Option<u32>,
    /// Other figures worth showing, by name.
    pub counts: Vec<(&'static str, u64)>,
}

/// One of what is measured, between two ports.
pub trait Stage {
    /// What it is called in tables.
    fn name(&self) -> &'static str;

    /// Takes one bounded step; true when anything happened.
    ///
    /// # Errors
    /// A port's.
    fn turn(&mut self, clock: &Clock) -> Result<bool, PortError>;

    /// What it says of itself.
    fn seen(&self) -> Seen;

    /// Whether it is a part of the box that is measured; what only stands between its parts is not.
    fn is_box(&self) -> bool {
        true
    }
}

/// A node between ports, driven as a box's driver does: port `i` is its side `i`.
pub struct NodeStage<N, P> {
    name: &'static str,
    node: N,
    ports: Vec<P>,
    look: fn(&N) -> Seen,
    is_box: bool,
    refused: u64,
    port_errors: u64,
}

impl<N: Node, P: Port> NodeStage<N, P> {
    /// `look` tells what the node says of itself.
    pub fn new(name: &'static str, node: N, ports: Vec<P>, look: fn(&N) -> Seen) -> Self {
        NodeStage { name, node, ports, look, is_box: true, refused: 0, port_errors: 0 }
    }

    /// Not a part of what is measured.
    #[must_use]
    pub fn between_boxes(self) -> Self {
        NodeStage { is_box: false, ..self }
    }
}

impl<N: Node, P: Port> Stage for NodeStage<N, P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn turn(&mut self, clock: &Clock) -> Result<bool, PortError> {
        let config = TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() };
        let errors = &mut self.port_errors;
        // As a driver does, which goes on: a frame that was too long for the port is no reason to
        // stop.
        let mut step = || {
            turn(&mut self.node, &mut self.ports, &|| clock.now(), &config, &mut |_, _| {
                *errors += 1
            })
        };
        let mut done = step();
        let is_busy = done.is_busy();
        self.refused += done.refused as u64;
        for _ in 1..STEPS_MAX {
            if done.received < config.receive_batch {
                break;
            }
            done = step();
            self.refused += done.refused as u64;
        }
        Ok(is_busy)
    }

    fn is_box(&self) -> bool {
        self.is_box
    }

    fn seen(&self) -> Seen {
        let mut seen = (self.look)(&self.node);
        let of_ports = [("refused_by_port", self.refused), ("port_errors", self.port_errors)];
        seen.drops.extend(of_ports.into_iter().filter(|(_, count)| *count > 0));
        seen
    }
}

/// Passes frames from one port to the other, both ways, and nothing else: what any box costs at
/// least. What is lent passes by reference, the rest by a copy.
pub struct Bridge<P> {
    ports: [P; 2],
}

impl<P: Port> Bridge<P> {
    /// Between these two.
    pub fn new(ports: [P; 2]) -> Self {
        Bridge { ports }
    }

    /// One step, as [`Stage::turn`].
    ///
    /// # Errors
    /// A port's.
    pub fn carry(&mut self) -> Result<bool, PortError> {
        let [a, b] = &mut self.ports;
        Ok(carry(a, b)? + carry(b, a)? > 0)
    }
}

fn carry<P: Port>(from: &mut P, to: &mut P) -> Result<usize, PortError> {
    from.service()?;
    let room = to.transmit_room().min(BURST);
    let mut failed = None;
    let carried = from.receive_lent(room, &mut |frame| {
        let sent = match frame {
            Received::Lent(lease) => to.transmit_lent(lease),
            frame => {
                to.transmit(frame.bytes().len(), &mut |out| out.copy_from_slice(frame.bytes()))
            }
        };
        if let Err(error) = sent {
            failed.get_or_insert(error);
        }
    })?;
    to.flush()?;
    failed.map_or(Ok(carried), Err)
}

impl<P: Port> Stage for Bridge<P> {
    fn name(&self) -> &'static str {
        "forward"
    }

    fn turn(&mut self, _clock: &Clock) -> Result<bool, PortError> {
        self.carry()
    }

    fn seen(&self) -> Seen {
        Seen::default()
    }
}
