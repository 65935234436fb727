//! A network of the caller's nodes, with the order of events of every simulation.

use crate::cable::{Destination, Inlet, Outlet};
use crate::region::Region;
use crate::scenario::Cable;
use longhaul_link::LinkError;
use longhaul_node::Node;
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::ops::{Index, IndexMut};

/// Nodes joined by cables, in virtual time.
///
/// A [`Simulation`](crate::Simulation) has its own hosts and programs, and packets without payload.
/// Here the caller provides nodes of one type and gives them work between steps, and frames keep
/// all their bytes. A step first asks the nodes that the caller accessed since the last step for
/// frames to send.
///
/// `nodes[n]` is node `n`.
pub struct Nodes<N> {
    region: Region<N>,
    /// The caller has accessed nodes, which may have frames to send.
    is_changed: bool,
}

impl<N: Node> Nodes<N> {
    /// Creates a network of `nodes` at time zero, joined by `cables`, which refer to nodes by
    /// index. `seed` determines all randomness.
    ///
    /// # Errors
    /// An invalid cable.
    ///
    /// # Panics
    /// If a cable ends at a node that does not exist.
    pub fn new(nodes: Vec<N>, cables: &[Cable], seed: u64) -> Result<Self, LinkError> {
        let mut seeds = SplitMix64::new(seed);
        let mut sides = vec![Vec::new(); nodes.len()];
        let (mut outlets, mut inlets) = (Vec::new(), Vec::new());
        for cable in cables {
            for (end, [from, to]) in
                [cable.ends, [cable.ends[1], cable.ends[0]]].into_iter().enumerate()
            {
                let mut wire = cable.wire.clone();
                if end == 1 && cable.loss_toward_second_only {
                    wire.loss = 0.0;
                }
                let inlet = Destination::Here(inlets.len());
                inlets.push(Inlet::new(to.0, to.1));
                let mut outlet =
                    Outlet::new(&wire, end, seeds.next_u64(), Duration::ZERO, from.0, inlet)?;
                outlet.packer.keeps_bytes = true;
                let sides: &mut Vec<usize> = &mut sides[from.0];
                sides.resize(sides.len().max(from.1 + 1), usize::MAX);
                sides[from.1] = outlets.len();
                outlets.push(outlet);
            }
        }
        Ok(Nodes { region: Region::new(nodes, sides, outlets, inlets, 0), is_changed: false })
    }

    /// The current virtual time.
    pub fn now(&self) -> Instant {
        self.region.now
    }

    /// The nodes, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &N> {
        self.region.stations.iter()
    }

    /// The nodes, in their order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut N> {
        self.is_changed = true;
        self.region.stations.iter_mut()
    }

    /// Returns the nodes and drops the network.
    pub fn into_nodes(self) -> Vec<N> {
        self.region.stations
    }

    /// Lets the nodes send, advances to the next event and processes all events of that time.
    /// Returns `false` if there are none.
    pub fn step(&mut self) -> bool {
        let next = self.next_at();
        next.inspect(|at| self.everything_at(*at)).is_some()
    }

    /// The same, but advances at most to `end`: returns `false` at `end` if there is no event
    /// before.
    pub fn step_until(&mut self, end: Instant) -> bool {
        let next = self.next_at().filter(|at| *at <= end);
        match next {
            Some(at) => self.everything_at(at),
            None => self.region.now = self.region.now.max(end),
        }
        next.is_some()
    }

    fn next_at(&mut self) -> Option<Instant> {
        if std::mem::take(&mut self.is_changed) {
            self.region.ask_all();
        }
        self.region.next_at()
    }

    fn everything_at(&mut self, at: Instant) {
        self.region.run_until(at + Duration::from_ps(1));
    }
}

impl<N> Index<usize> for Nodes<N> {
    type Output = N;

    fn index(&self, node: usize) -> &N {
        &self.region.stations[node]
    }
}

impl<N> IndexMut<usize> for Nodes<N> {
    fn index_mut(&mut self, node: usize) -> &mut N {
        self.is_changed = true;
        &mut self.region.stations[node]
    }
}
