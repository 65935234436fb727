//! Replacing a running box by another process, without an interruption that a connection notices.
//!
//! The successor starts completely, except for its ports, and then asks the running box over its
//! control socket. That box, the predecessor, drains: afterwards it owes nothing, and is a wire.
//! Its threads then hold still, it passes the descriptors of its ports and sockets, and the
//! successor continues with them. What a port's socket has received and nobody has read waits in
//! the kernel meanwhile.
//!
//! ```text
//! successor                      predecessor
//!     | {"replace":{"version":1}}     |
//!     |------------------------------>|
//!     |<---------------- Accepted ----|
//!     |---- Wanted ------------------>|
//!     |<---------------- Draining ----|  repeated: the flows end
//!     |<------- Listener, Queue … ----|  its threads hold still
//!     |<---------------- Complete ----|
//!     |---- Ready ------------------->|  with the stream to the successor's guard
//!     |<---------------------- Go ----|  it uses the ports no more …
//!     |---- Forwards ---------------->|  … puts that guard in charge, and ends
//! ```
//!
//! Until `Go` either end may give up: the predecessor then continues, as it does if the successor
//! dies before `Forwards`, which it says before it uses a port. A successor that says nothing then
//! is killed. If the predecessor dies after `Complete`, the successor continues. A predecessor that
//! is told to end meanwhile ends once it is decided which of the two has the ports, or if it cannot
//! kill a successor that says nothing.
//!
//! A successor that is killed after `Forwards` leaves its ports to its guard, which has its orders
//! by then. The guard of one that failed before was never put in charge, and leaves the
//! predecessor's ports alone.

mod line;
mod predecessor;
mod successor;

pub(crate) use predecessor::Predecessor;
pub(crate) use successor::{Inherited, Queues, Successor};

use crate::carrier::Side;
use crate::control::ControlError;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Version of the messages and of what ports hand over: a box refuses every other one.
pub const VERSION: u32 = 2;

/// A box that does not answer within this time is stuck. Progress of draining is an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time for which the predecessor holds still for a successor that is not ready, or does
/// not forward.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(2);

/// Why a running box is not replaced. It continues.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// No box listens at the socket.
    #[error("there is no running box '{name}' to replace: none listens at {}", path.display())]
    NoPredecessor {
        /// Name of the box.
        name: String,
        /// Its control socket.
        path: PathBuf,
    },
    /// It cannot be reached.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// It refuses.
    #[error("the running box continues: {0}")]
    Refused(String),
    /// It broke off.
    #[error("the running box broke off: {0}")]
    Lost(io::Error),
    /// This process cannot continue with what it got.
    #[error("cannot take over {what}: {error}")]
    TakeOver {
        /// A socket.
        what: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// The predecessor's messages.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FromPredecessor {
    /// It can be replaced.
    Accepted {
        pid: u32,
        /// Address of its health server.
        health: Option<String>,
    },
    /// It continues, for this reason.
    Refused(String),
    /// It still owes this much.
    Draining { stored_bytes: u64 },
    /// A listening socket.
    Listener(Listener),
    /// One core's queue of a port.
    Queue { pair: usize, side: usize, core: usize, numbers: Vec<u64> },
    /// That was all; the side of each pair that is down because the other has no carrier.
    Complete { held: Vec<Option<Side>> },
    /// The ports are the successor's.
    Go,
}

/// What a listening socket is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Listener {
    Control,
    Health,
    /// The claim of an interface.
    Claim,
}

/// The successor's messages.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FromSuccessor {
    /// It asks for these pairs.
    Wanted(Wanted),
    /// It can continue with what it got. Comes with the stream to its guard, if it has one.
    Ready,
    /// It continues.
    Forwards,
}

/// The successor's configuration, as far as the predecessor compares it.
#[derive(Debug, Serialize, Deserialize)]
struct Wanted {
    /// `accelerate` or `emulate`.
    command: String,
    /// The service's run that the successor belongs to.
    invocation: Option<String>,
    /// Maximum time of draining, in milliseconds.
    drain_ms: u64,
    pairs: Vec<WantedPair>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WantedPair {
    /// The ports, the first side's first.
    ports: Vec<String>,
    /// The recording of each.
    recordings: Vec<Option<PathBuf>>,
    /// Number of cores that share them.
    cores: usize,
    /// Keys with their values, only compared.
    settings: Vec<(String, String)>,
}
