//! Encrypts and authenticates the datagrams between two boxes' transports: [`Seal`], a node between
//! each transport and the WAN.
//!
//! A seal handles UDP datagrams to one port and does not interpret their content.
//! `docs/wan-encryption.md` specifies the format.
//!
//! **Lifecycle.** A datagram from the transport to an unknown address waits, and makes the seal
//! send a question along the path, with that datagram's own addresses. If a configured peer
//! answers, a handshake follows (Noise IKpsk2), and then datagrams are sealed. Keys are replaced by
//! age and by volume without an interruption.
//!
//! **Filtering.** No datagram to the port leaves unsealed, and none is accepted unsealed. Cleartext
//! RDMA is dropped in both directions unless the configuration allows it ([`Cleartext`]). All other
//! frames pass through unchanged.
//!
//! **Bytes.** A sealed frame is copied once, into a pooled buffer in which it is encrypted. In
//! virtual time a payload may be only a length ([`longhaul_node::Payload::Synthetic`]): the
//! datagram then has the format's headers and length, but nothing is encrypted, and only the
//! numbers are checked. No port delivers such a payload.
//!
//! **Determinism.** All randomness is derived from [`Config::seed`], and the caller passes the
//! time.
//!
//! **Limits.** A seal hides neither addresses nor lengths nor rates, does not split datagrams that
//! are too long for a path, and does not restrict which peer may have which address.
#![forbid(unsafe_code)]

mod addresses;
mod budget;
mod cipher;
mod config;
mod counters;
mod datagram;
pub mod format;
mod keys;
mod noise;
mod peers;
mod rdma;
mod seal;
mod session;
mod status;
mod trouble;
mod waiting;
mod window;

pub use cipher::Cipher;
pub use config::{Config, ConfigError, PeerConfig};
pub use counters::{Counters, DropReason, Drops};
pub use format::{OVERHEAD, VERSION};
pub use keys::{KEY_LEN, KEY_TEXT_LEN, KeyError, PresharedKey, PrivateKey, PublicKey};
pub use longhaul_secret::Seed;
pub use rdma::Cleartext;
pub use seal::{Seal, Sealed};
pub use status::{KeysStatus, PeerStatus};
pub use trouble::{NoKeys, Trouble};

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").field("counters", self.counters()).finish_non_exhaustive()
    }
}
