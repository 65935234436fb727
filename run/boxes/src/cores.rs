//! The cores that share a pair of ports: their number, their processors, and whether the ports can
//! be shared.

use crate::error::{Cause, Error};
use crate::journal::{self, Level};
use crate::plan::{BoxKind, Pair};
use crate::port::{BoxPort, Dpdk};
use longhaul_host::Spread;
use longhaul_host::placement::{self, CoreList, list_text};
use serde::{Deserialize, Deserializer};
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use thiserror::Error;

/// Total bytes of the rings into one core, per side: the frames of several milliseconds, as many as
/// a socket buffers while its core waits for a processor. Larger rings would evict the frames from
/// the processor's caches.
const RINGS_BYTES: usize = 4 << 20;
/// Minimum bytes of a ring between two cores: a hundred frames of 4 KiB, or thousands of ACKs.
const RING_BYTES_MIN: usize = 512 << 10;

/// Why a pair cannot have the cores that its settings ask for.
#[derive(Debug, Error)]
pub enum CoresError {
    /// Processors of a list cannot be used.
    #[error("--cores {list}: {error}")]
    List {
        /// The list.
        list: CoreList,
        /// The cause.
        error: Cause,
    },
    /// A NUMA node beside a list of processors.
    #[error("--numa with --cores {0}, which already names the processors")]
    NodeBeside(CoreList),
    /// The processors of a node cannot be listed.
    #[error("--numa {node}: {error}")]
    Node {
        /// The node's number.
        node: u32,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// There is no such node.
    #[error("there is no NUMA node {0}")]
    NoNode(u32),
    /// This process may use fewer processors of the node than there are cores.
    #[error(
        "{count} cores on NUMA node {node}, of which this process may use only processors {has}"
    )]
    TooFew {
        /// Number of cores.
        count: NonZeroUsize,
        /// The node's number.
        node: u32,
        /// Processors that it may use.
        has: String,
    },
}

/// The settings of a pair's cores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cores {
    pub list: Option<CoreList>,
    /// NUMA node of their processors.
    pub numa: Option<u32>,
}

/// Parses a file's list of cores: a number, or text as on the command line.
pub fn cores_written<'de, D: Deserializer<'de>>(from: D) -> Result<Option<CoreList>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of cores, or a list of processors as in '4-7'")]
    enum Written {
        Number(u64),
        Text(String),
    }
    let text = match Written::deserialize(from)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl Cores {
    /// Number of cores.
    pub fn count(&self) -> NonZeroUsize {
        self.list.as_ref().map_or(NonZeroUsize::MIN, CoreList::count)
    }
}

/// Processors that each of a pair's cores may run on; none: any.
pub type Places = Vec<Option<Vec<usize>>>;

/// Decides where the cores of a pair run, before any port is opened.
///
/// # Errors
/// If there are too few processors, or the ports or the settings do not allow several cores.
pub fn decide<S: BoxKind>(pair: &Pair<S>) -> Result<Places, Error> {
    let asked = pair.settings.cores();
    let count = asked.count();
    if count > NonZeroUsize::MIN {
        pair.settings.allows_cores(count)?;
        for port in &pair.ports {
            port.check_queues(count, S::SPREAD)?;
        }
    }
    let Some(list) = &asked.list else {
        return match asked.numa {
            None => Ok(vec![None]),
            Some(node) => Ok(vec![Some(of_node(node, count)?)]),
        };
    };
    let failed = |error: Cause| CoresError::List { list: list.clone(), error };
    let allowed = placement::allowed().map_err(|e| failed(e.into()))?;
    list.check(&allowed).map_err(|e| failed(e.into()))?;
    let near = pair.ports.iter().find_map(|port| placement::node_of_interface(port.interface()?));
    match list {
        CoreList::These(_) if asked.numa.is_some() => {
            Err(CoresError::NodeBeside(list.clone()).into())
        }
        CoreList::These(processors) => {
            if let Some(node) = near {
                warn_of_node(pair, node, processors);
            }
            Ok(processors.iter().map(|one| Some(vec![*one])).collect())
        }
        CoreList::Any(_) => {
            let node = asked.numa.map(|node| of_node(node, count)).transpose()?;
            // Falls back to any processors if the device's node has too few.
            let processors = node.or_else(|| of_node(near?, count).ok());
            Ok(vec![processors; count.get()])
        }
    }
}

/// Processors of a NUMA node that this process may use.
fn of_node(node: u32, count: NonZeroUsize) -> Result<Vec<usize>, CoresError> {
    let failed = |error: std::io::Error| CoresError::Node { node, error };
    let of_node = placement::processors_of_node(node).map_err(|e| match e.kind() {
        ErrorKind::NotFound => CoresError::NoNode(node),
        _ => failed(e),
    })?;
    let allowed = placement::allowed().map_err(failed)?;
    let processors: Vec<usize> = of_node.into_iter().filter(|one| allowed.contains(one)).collect();
    if processors.len() < count.get() {
        let has = if processors.is_empty() { "none".to_string() } else { list_text(&processors) };
        return Err(CoresError::TooFew { count, node, has });
    }
    Ok(processors)
}

fn warn_of_node<S>(pair: &Pair<S>, node: u32, processors: &[usize]) {
    let Ok(near) = placement::processors_of_node(node) else { return };
    let far: Vec<usize> = processors.iter().copied().filter(|one| !near.contains(one)).collect();
    if !far.is_empty() {
        let text = format!(
            "processors {} are on another NUMA node than the ports' device, which is at node \
             {node} with processors {}: each frame crosses between the nodes",
            list_text(&far),
            list_text(&near)
        );
        journal::of_pair(Level::Warning, &pair.name, &text);
    }
}

/// How frames map to cores: by the devices' hash if the devices of all ports spread by addresses
/// alike, by [`BoxKind::SPREAD`] otherwise.
pub fn spread<S: BoxKind>(pair: &Pair<S>, dpdk: &Dpdk) -> Spread {
    let cores = pair.settings.cores().count();
    let devices_decide = pair.ports.iter().all(|port| port.spreads_by_addresses(dpdk, cores));
    if S::SPREAD == Spread::ByPair && devices_decide { Spread::AsItArrives } else { S::SPREAD }
}

/// Joins the queues of each core, `queues[core][side]`. A single core gets its queues unchanged.
pub fn join(queues: Vec<Vec<BoxPort>>, spread: Spread) -> std::io::Result<Vec<Vec<BoxPort>>> {
    let others = queues.len().saturating_sub(1);
    if others == 0 {
        return Ok(queues);
    }
    let joined = longhaul_host::join(queues, spread, (RINGS_BYTES / others).max(RING_BYTES_MIN))?;
    let port = |port| BoxPort::Shared(Box::new(port));
    Ok(joined.into_iter().map(|ports| ports.into_iter().map(port).collect()).collect())
}
