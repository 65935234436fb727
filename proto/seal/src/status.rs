//! Status of a peer and its keys.

use crate::{Cipher, PublicKey};
use longhaul_units::Duration;

/// Snapshot of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Public key that identifies it.
    pub public_key: PublicKey,
    /// Keys in use, if there are any.
    pub keys: Option<KeysStatus>,
    /// Whether a handshake is in progress.
    pub is_shaking_hands: bool,
    /// Handshakes completed.
    pub handshakes: u64,
}

/// Snapshot of the keys in use with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeysStatus {
    /// Cipher of the keys.
    pub cipher: Cipher,
    /// Age of the keys.
    pub age: Duration,
    /// Bytes sealed.
    pub bytes_sealed: u64,
    /// Bytes opened.
    pub bytes_opened: u64,
    /// Whether this box started the handshake.
    pub is_initiator: bool,
}
