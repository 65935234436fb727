//! What boxes are given: an accelerator, a fibre, and the keys and far boxes that are named in
//! them.

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
use longhaul_accel::{PolicyError, Prefix};
use longhaul_link::LinkError;
use longhaul_wan_box::ConfigError;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use thiserror::Error;

/// Why settings make no sense together.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A whole box cannot be made of them.
    #[error(transparent)]
    Box(#[from] ConfigError),
    /// The halves of a running box cannot go by them.
    #[error(transparent)]
    Halves(longhaul_accel::ConfigError),
    /// The rules of a file make no policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A fibre cannot be made of them.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A far box has an address that stands for others, and there are several cores.
    #[error(
        "--far {prefix}={via} with --cores {count}: each core asks for the addresses of its own \
         hosts"
    )]
    ViaWithCores {
        /// The site's addresses.
        prefix: Prefix,
        /// The one that is asked for.
        via: IpAddr,
        /// How many cores.
        count: NonZeroUsize,
    },
    /// A core's part of what is bounded for all is too little.
    #[error("a core's part of what {count} cores share: {error}")]
    PartOfCore {
        /// How many cores.
        count: NonZeroUsize,
        /// What it is too little for.
        error: Box<SettingsError>,
    },
    /// A fibre has two directions, and there are more cores.
    #[error("{0} cores for the two directions of a fibre")]
    MoreCoresThanDirections(NonZeroUsize),
    /// Something needs a key of this box.
    #[error("{0} without --key")]
    WithoutKey(String),
    /// A key without a transport.
    #[error("--key without --transport")]
    KeyWithoutTransport,
    /// A key without a peer.
    #[error("--key without --peer")]
    KeyWithoutPeer,
    /// A pre-shared key is for a peer that is not named.
    #[error("--psk for '{0}', which no --peer names")]
    PskOfNobody(String),
    /// Some traffic may be in the clear, and all may.
    #[error("--clear {0} with --key-optional")]
    ClearWithKeyOptional(Prefix),
    /// Addresses in the clear are those of a far box.
    #[error("--clear {clear} and --far {far} overlap")]
    ClearOverlapsFar {
        /// Those in the clear.
        clear: Prefix,
        /// The far box's.
        far: Prefix,
    },
    /// Far boxes without a transport.
    #[error("--far without --transport")]
    FarWithoutTransport,
    /// Read-ahead without a transport.
    #[error("--read-ahead without --transport")]
    ReadAheadWithoutTransport,
    /// A rate of the transport without a transport.
    #[error("--wan-rate without --transport")]
    WanRateWithoutTransport,
    /// This machine's addresses cannot be told.
    #[error("cannot list this machine's addresses: {0}")]
    OwnAddresses(Cause),
    /// A far box is asked for at an address of this machine.
    #[error("the far box for {prefix} has this machine's own address {via}")]
    FarIsHere {
        /// The site's addresses.
        prefix: Prefix,
        /// The one that is asked for.
        via: IpAddr,
    },
    /// How long a fibre is, said twice.
    #[error("a fibre has both a delay and a distance")]
    DelayAndDistance,
    /// Bursts without a mean.
    #[error("bursts of losses without a loss: give their mean, as loss 1e-3")]
    BurstsWithoutLoss,
    /// Losses within bursts without bursts.
    #[error("losses within bursts without bursts: give their mean length, as loss-burst 8")]
    InBurstWithoutBursts,
    /// A fibre that runs is to become another.
    #[error("a fibre does not change while it runs")]
    FixedFibre,
}
