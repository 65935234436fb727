//! Encrypts and authenticates what two boxes' transports send each other: [`Seal`], a node between
//! each of them and the WAN.
//!
//! It knows UDP datagrams to one port and nothing of what is in them. `docs/wan-encryption.md`
//! describes the format.
//!
//! **Lifecycle.** A datagram from the transport to an address that is not known makes the seal ask
//! along the path, with that datagram's own addresses, who is there; the datagram itself waits. A
//! box that is one of the configured peers answers, a handshake (Noise IKpsk2) follows, and from
//! then on datagrams are sealed. Keys are replaced by age and by volume while the old ones go on.
//!
//! **What passes.** To the port, nothing leaves unsealed and nothing unsealed is taken. RDMA in the
//! clear is dropped both ways, unless the configuration allows it ([`Cleartext`]). All other frames
//! pass, both ways, untouched.
//!
//! **Bytes.** A sealed frame is copied once, into a pooled buffer in which it is encrypted. In
//! virtual time a payload may be a mere length ([`longhaul_node::Payload::Synthetic`]): then the
//! datagram has the format's headers and length, but nothing is encrypted, and the numbers alone
//! are checked. No port delivers such a payload.
//!
//! **Purity.** All randomness follows from [`Config::seed`], and time is the caller's.
//!
//! **What it does not do.** It hides neither addresses nor lengths nor rates; it does not split
//! what is too long for a path; it does not decide which peer may have which address.
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
