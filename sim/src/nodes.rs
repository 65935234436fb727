//! A network whose nodes are their owner's, with the order of events that every simulation has.

use crate::cable::{Destination, Inlet, Outlet};
use crate::region::Region;
use crate::scenario::Cable;
use longhaul_link::LinkError;
use longhaul_node::Node;
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::ops::{Index, IndexMut};

/// Nodes joined by cables, in virtual time.
///
/// A [`Simulation`](crate::Simulation) has hosts and programs of its own, and packets without
/// payload. Here the owner brings nodes of one type, gives them work between two steps, and frames
/// arrive with all their bytes. A node that it had in hand since the last step is asked first what
/// it has to send.
///
/// `nodes[n]` is node `n`.
pub struct Nodes<N> {
    region: Region<N>,
    /// The owner has had a node in hand: it may have something to send.
    is_changed: bool,
}

impl<N: Node> Nodes<N> {
    /// `nodes` at time zero, joined by `cables`, which name them by their place. All chance follows
    /// from `seed`.
    ///
    /// # Errors
    /// A cable that cannot be.
    ///
    /// # Panics
    /// When a cable ends at a node that is not there.
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

    /// Where virtual time is.
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

    /// The nodes, out of the network.
    pub fn into_nodes(self) -> Vec<N> {
        self.region.stations
    }

    /// Lets the nodes send, goes to the next moment at which anything happens, and lets all of it
    /// happen. False when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let next = self.next_at();
        next.inspect(|at| self.everything_at(*at)).is_some()
    }

    /// The same, but no further than to `end`: false when nothing happens until then, and then it
    /// is `end`.
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
