//! Reasons why there are no keys with a far box, for its operator to correct.

use std::net::IpAddr;

/// A far box without keys, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A box behind this address, or an impostor, has a key of no configured peer.
    UnknownKey {
        /// The address that was asked, or that the box used.
        address: IpAddr,
    },
    /// A peer that was found.
    Peer {
        /// Its name in the configuration.
        name: String,
        /// Reason why there are no keys.
        why: NoKeys,
    },
}

/// Reason why a peer that was found has no keys with this box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoKeys {
    /// It answers questions but not handshakes: this box is not among its peers, or it has another
    /// public key for this box.
    Unanswered,
    /// It answers handshakes, and none of its responses is authentic: its pre-shared key differs,
    /// or is missing. Somebody on the path who forges responses and suppresses the true ones looks
    /// the same.
    PresharedKey,
    /// It started a handshake and did not continue after the response: its pre-shared key differs,
    /// or is missing.
    Unfinished,
    /// There is no common cipher.
    Cipher,
}
