//! Why there are no keys with a far box: what its operator has to put right.

use std::net::IpAddr;

/// Who does not come to keys with this box, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A box behind this address, or somebody in its place, has a key that is none of the peers'.
    UnknownKey {
        /// The address that was asked for, or that it spoke from.
        address: IpAddr,
    },
    /// A peer that is there.
    Peer {
        /// Its name in the configuration.
        name: String,
        /// What it does.
        why: NoKeys,
    },
}

/// Why a peer that is there does not come to keys with this box.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoKeys {
    /// It answers questions, and no handshake: this box is none of its peers, or it has another
    /// public key of it.
    Unanswered,
    /// Its response proves another pre-shared key, or none.
    PresharedKey,
    /// It began a handshake and did not go on after the response: for it that proves another
    /// pre-shared key, or none.
    Unfinished,
    /// No cipher is common.
    Cipher,
}
