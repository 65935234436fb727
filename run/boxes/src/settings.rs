//! Settings of boxes: an accelerator, a fibre, and the keys and far boxes that they name.

mod acceleration;
mod emulation;
mod far;
mod key;
mod reference;
pub(crate) mod table;
mod wan_rate;

pub use acceleration::Acceleration;
pub use emulation::Emulation;
pub use far::{Far, FarError};
pub use key::{FILE_BYTES_MAX, KeyFileError, Peer, PeerError, Psk, PskError, read_key, seed};
pub use reference::reference;
pub use wan_rate::{WanRate, WanRateError};

use crate::error::Cause;
use crate::quantity::Size;
use longhaul_accel::{PolicyError, Prefix};
use longhaul_link::LinkError;
use longhaul_wan_box::ConfigError;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use thiserror::Error;

/// Why settings contradict each other.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A whole box cannot be built from them.
    #[error(transparent)]
    Box(#[from] ConfigError),
    /// The halves of a running box cannot apply them.
    #[error(transparent)]
    Halves(longhaul_accel::ConfigError),
    /// The rules of a file are not a valid policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A fibre cannot be built from them.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A far box with a representative address, on several cores.
    #[error(
        "--far {prefix}={via} with --cores {count}: each core asks for the addresses of its own \
         hosts"
    )]
    ViaWithCores {
        /// The site's prefix.
        prefix: Prefix,
        /// The representative address.
        via: IpAddr,
        /// Number of cores.
        count: NonZeroUsize,
    },
    /// A core's share of the limits is too small.
    #[error("the share of each of {count} cores: {error}")]
    PartOfCore {
        /// Number of cores.
        count: NonZeroUsize,
        /// The limit that is too small.
        error: Box<SettingsError>,
    },
    /// More than two cores for the two directions of a fibre.
    #[error("{0} cores for the two directions of a fibre")]
    MoreCoresThanDirections(NonZeroUsize),
    /// A setting requires a key of this box.
    #[error("{0} without --key")]
    WithoutKey(String),
    /// A key without a transport.
    #[error("--key without --transport")]
    KeyWithoutTransport,
    /// A key without a peer.
    #[error("--key without --peer")]
    KeyWithoutPeer,
    /// A pre-shared key for an unknown peer.
    #[error("--psk for '{0}' without a --peer of that name")]
    PskOfNobody(String),
    /// Prefixes in cleartext beside permission for all traffic.
    #[error("--clear {0} with --key-optional")]
    ClearWithKeyOptional(Prefix),
    /// A cleartext prefix overlaps a far box's.
    #[error("--clear {clear} and --far {far} overlap")]
    ClearOverlapsFar {
        /// The cleartext prefix.
        clear: Prefix,
        /// The far box's prefix.
        far: Prefix,
    },
    /// Far boxes without a transport.
    #[error("--far without --transport")]
    FarWithoutTransport,
    /// Read-ahead without a transport.
    #[error("--read-ahead without --transport")]
    ReadAheadWithoutTransport,
    /// A transport's rate without a transport.
    #[error("--wan-rate without --transport")]
    WanRateWithoutTransport,
    /// This machine's addresses cannot be listed.
    #[error("cannot list this machine's addresses: {0}")]
    OwnAddresses(Cause),
    /// A far box has an address of this machine.
    #[error("the far box for {prefix} has this machine's own address {via}")]
    FarIsHere {
        /// The site's prefix.
        prefix: Prefix,
        /// The representative address.
        via: IpAddr,
    },
    /// A fibre with a length and a delay.
    #[error("a fibre has both a delay and a distance")]
    DelayAndDistance,
    /// Bursts without a mean loss.
    #[error("bursts of losses without a loss probability: give their mean, as loss 1e-3")]
    BurstsWithoutLoss,
    /// Losses within bursts, without bursts.
    #[error("losses within bursts without bursts: give their mean length, as loss-burst 8")]
    InBurstWithoutBursts,
    /// A delay of reordered frames without their probability.
    #[error("a delay of reordered frames without their probability: give it too, as reorder 1e-3")]
    ReorderDelayWithoutReorder,
    /// A flow could be acknowledged more than the memory holds.
    #[error("--window {window} exceeds the memory of {memory}")]
    WindowOverMemory {
        /// The window given.
        window: Size,
        /// The memory, given or the default.
        memory: Size,
    },
    /// A change of a running fibre.
    #[error("a running fibre cannot change")]
    FixedFibre,
}
