//! Configuration of a seal: its key, its peers, its paths.

use crate::Cleartext;
use crate::cipher::Cipher;
use crate::keys::{PresharedKey, PrivateKey, PublicKey};
use longhaul_secret::Seed;
use longhaul_units::Duration;
use thiserror::Error;

/// Paths at most: a datagram has 4 bits for its own.
pub(crate) const PATHS_MAX: u8 = 15;
/// Peers at most.
pub(crate) const PEERS_MAX: usize = 128;

/// A far box.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// For reports.
    pub name: String,
    /// What it is known by.
    pub public_key: PublicKey,
    /// A further secret, the same at both ends. Default none.
    pub preshared_key: Option<PresharedKey>,
}

/// What a seal is given: keys, limits and times.
///
/// Memory: twice `queue_bytes_max` for each path, 128 KiB of datagrams that wait for keys, `window`
/// / 4 bytes for each path of each set of keys, of which a peer has three
/// at most, and about 100 bytes for each address.
#[derive(Clone, Debug)]
pub struct Config {
    /// This box's secret.
    pub private_key: PrivateKey,
    /// The far boxes that are talked to, 1 to 128. All others are refused.
    pub peers: Vec<PeerConfig>,
    /// Where all randomness comes from. On real ports: from the operating system, another at each
    /// start.
    pub seed: Seed,
    /// Paths: one side for each on either face. 1 to 15. Default 1.
    pub paths: u8,
    /// UDP destination port of the datagrams that are sealed; that of the transport. Default 4797.
    pub port: u16,
    /// What RDMA may cross the WAN unsealed, both ways. Default none.
    pub cleartext: Cleartext,
    /// Ciphers that this box takes, best first; one or two. Default AES-256-GCM, ChaCha20-Poly1305;
    /// for real ports [`Cipher::for_this_processor`].
    pub ciphers: Vec<Cipher>,
    /// Age of keys at which they are replaced. They end at four times this age. 1 s to 1 h. Default
    /// 120 s.
    pub rekey_after: Duration,
    /// Bytes sealed with keys, in either direction, at which they are replaced. They end at four
    /// times as many. 64 KiB to 2^40, far inside what either cipher bears. Default 2^40: 88 s at
    /// 100 Gbit/s.
    pub rekey_bytes: u64,
    /// How long replaced keys are still taken. Above the longest time on the way, reordering and
    /// repetitions of the last message included. 10 ms to 60 s. Default 10 s.
    pub old_keys_for: Duration,
    /// How far a datagram may be overtaken by others of its path and still be taken, a power of
    /// two. 2^16 to 2^22. Default 2^18: 86 ms of 4 KiB frames at 100 Gbit/s.
    pub window: u32,
    /// Bytes of memory for frames that wait for room, for each path and direction. 64 KiB to 1 GiB.
    /// Default 4 MiB.
    pub queue_bytes_max: u64,
    /// Addresses behind far boxes that are known at once. 1 to 2^20. Default 4096.
    pub addresses_max: u32,
    /// Answers to strangers per second, and as many notices of unknown keys, none longer than its
    /// question. 1 to 2^20. Default 1000.
    pub answers_per_s: u32,
    /// Handshake messages per second that are calculated with, about 0.3 ms each. 1 to 2^16.
    /// Default 100.
    pub handshakes_per_s: u32,
    /// Time between repetitions of a question or a handshake message, of which five are sent. Above
    /// the RTT. 1 ms to 60 s. Default 250 ms.
    pub ask_every: Duration,
    /// Time for which an address without an answer is left alone. 10 ms to 1 h. Default 10 s.
    pub ask_pause: Duration,
}

impl Config {
    /// The defaults, with what has none.
    pub fn new(private_key: PrivateKey, peers: Vec<PeerConfig>, seed: Seed) -> Self {
        Config {
            private_key,
            peers,
            seed,
            paths: 1,
            port: 4797,
            cleartext: Cleartext::Of(Vec::new()),
            ciphers: vec![Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305],
            rekey_after: Duration::from_ms(120_000),
            rekey_bytes: 1 << 40,
            old_keys_for: Duration::from_ms(10_000),
            window: 1 << 18,
            queue_bytes_max: 4 << 20,
            addresses_max: 4096,
            answers_per_s: 1000,
            handshakes_per_s: 100,
            ask_every: Duration::from_ms(250),
            ask_pause: Duration::from_ms(10_000),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        const MS: u64 = 1_000_000;
        let peers = self.peers.len() as u64;
        for (field, value, min, max) in [
            ("paths", u64::from(self.paths), 1, u64::from(PATHS_MAX)),
            ("peers", peers, 1, PEERS_MAX as u64),
            ("rekey_after", self.rekey_after.as_ns(), 1000 * MS, 3_600_000 * MS),
            ("rekey_bytes", self.rekey_bytes, 64 << 10, 1 << 40),
            ("old_keys_for", self.old_keys_for.as_ns(), 10 * MS, 60_000 * MS),
            ("queue_bytes_max", self.queue_bytes_max, 64 << 10, 1 << 30),
            ("addresses_max", u64::from(self.addresses_max), 1, 1 << 20),
            ("answers_per_s", u64::from(self.answers_per_s), 1, 1 << 20),
            ("handshakes_per_s", u64::from(self.handshakes_per_s), 1, 1 << 16),
            ("ask_every", self.ask_every.as_ns(), MS, 60_000 * MS),
            ("ask_pause", self.ask_pause.as_ns(), 10 * MS, 3_600_000 * MS),
        ] {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { field, value, min, max });
            }
        }
        if !self.window.is_power_of_two() || !(1 << 16..=1 << 22).contains(&self.window) {
            return Err(ConfigError::Window { value: self.window });
        }
        if self.port == longhaul_wire::ROCEV2_PORT {
            return Err(ConfigError::Port);
        }
        let [first, rest @ ..] = &self.ciphers[..] else { return Err(ConfigError::Ciphers) };
        if rest.len() > 1 || rest.contains(first) {
            return Err(ConfigError::Ciphers);
        }
        self.check_peers()
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        let own = self.private_key.public();
        for (at, peer) in self.peers.iter().enumerate() {
            if peer.public_key == own {
                return Err(ConfigError::OwnKey { name: peer.name.clone() });
            }
            let twin = self.peers[..at].iter().find(|other| other.public_key == peer.public_key);
            if let Some(twin) = twin {
                return Err(ConfigError::SameKey {
                    name: peer.name.clone(),
                    other: twin.name.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Why a [`Config`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A field lies outside its range.
    #[error("{field} is {value}; it must lie between {min} and {max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// What it was set to (durations in nanoseconds).
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
    /// No power of two in its range.
    #[error("window is {value}; it must be a power of two from 65536 to 4194304, as 262144 is")]
    Window {
        /// The value given.
        value: u32,
    },
    /// The port of RoCEv2.
    #[error("port is 4791, which is RoCEv2's own: give that of the transport, as 4797 is")]
    Port,
    /// None, or one twice.
    #[error("ciphers must name one or two different ones, best first")]
    Ciphers,
    /// A peer that is this box.
    #[error("peer {name} has this box's own public key: give it that of the far box")]
    OwnKey {
        /// The peer.
        name: String,
    },
    /// Two peers that cannot be told apart.
    #[error("{}: remove one, or give it its own key", same_key(name, other))]
    SameKey {
        /// The peer.
        name: String,
        /// The one before it.
        other: String,
    },
}

/// Names the peers that have the same public key.
fn same_key(name: &str, other: &str) -> String {
    if name == other {
        format!("peer {name} is given twice with the same public key")
    } else {
        format!("peers {name} and {other} have the same public key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let key = |n: u8| PrivateKey::generate(&Seed::new([n; 32]));
        let peer =
            PeerConfig { name: "far".into(), public_key: key(2).public(), preshared_key: None };
        Config::new(key(1), vec![peer], Seed::new([3; 32]))
    }

    #[test]
    fn a_field_out_of_range_is_named_with_its_range() {
        assert_eq!(config().check(), Ok(()));
        let wrong = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.paths = 16), "paths is 16; it must lie between 1 and 15");
        assert!(wrong(|c| c.window = 70_000).contains("power of two"));
        assert!(wrong(|c| c.port = 4791).contains("4797"));
        assert!(wrong(|c| c.ciphers = vec![]).contains("one or two"));
        assert!(wrong(|c| c.ciphers = vec![Cipher::Aes256Gcm; 2]).contains("different"));
        assert!(wrong(|c| c.peers.clear()).contains("peers is 0"));
        assert!(
            wrong(|c| c.peers[0].public_key = c.private_key.public()).contains("own public key")
        );
        assert!(wrong(|c| c.peers.push(c.peers[0].clone())).contains("peer far is given twice"));
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", config());
        let text = config().private_key.to_text();
        assert!(text.lines().all(|line| !shown.contains(line)));
        assert!(shown.contains("PrivateKey(secret)") && shown.contains("Seed(secret)"));
    }
}
