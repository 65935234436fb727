//! Status of a peer and of the keys in use with it.

use crate::{Cipher, PublicKey};
use longhaul_units::Duration;

/// Snapshot of what there is with one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its name in the configuration.
    pub name: String,
    /// What it is known by.
    pub public_key: PublicKey,
    /// The keys in use, once there are any.
    pub keys: Option<KeysStatus>,
    /// A handshake is under way.
    pub is_shaking_hands: bool,
    /// Handshakes that came to keys.
    pub handshakes: u64,
}

/// Snapshot of the keys in use with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysStatus {
    /// What they are for.
    pub cipher: Cipher,
    /// Time since they were made.
    pub age: Duration,
    /// Bytes sealed with them.
    pub bytes_sealed: u64,
    /// Bytes opened with them.
    pub bytes_opened: u64,
    /// This box began the handshake.
    pub is_initiator: bool,
}
