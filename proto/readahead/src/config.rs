//! Configuration of READ read-ahead.

use crate::Protocol;
use longhaul_units::Duration;
use thiserror::Error;

/// Protocols to read ahead for, and limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Protocols whose announcements are fetched at once, each with a port (in the TCP port space
    /// of the RDMA connection manager) on which to expect it. Default: none; everything passes.
    pub protocols: Vec<(Protocol, u16)>,
    /// Most connections, and most connections in set-up: 1 to 65,536, about 400 B each. Further
    /// connections are not read ahead for. Default 1024.
    pub connections_max: u32,
    /// Longest range to fetch, in bytes: 1 to 16 MiB. Default 1 MiB.
    pub range_bytes_max: u32,
    /// Most fetched bytes that wait for their reader, over all connections, including the data of a
    /// READ that was just answered. Default 256 MiB.
    pub held_bytes_max: u64,
    /// Most fetches in progress at the NIC of one initiator: 1 to 255, and at least one less than
    /// the READs that the NIC serves at once, which leaves one for the target's own READs. Default
    /// 15.
    pub fetches_max: u8,
    /// Most announcements of one connection that wait to be fetched, 40 B each: 1 to 4096. Default
    /// 1024.
    pub wanted_max: u16,
    /// Most ranges of one connection that are held for their reader: 1 to 4000. Below the
    /// outstanding commands, the rest is READ over the WAN, and delays those behind it. Default
    /// 1024.
    pub held_max: u16,
    /// Most requests of one connection that wait because its initiator's NIC serves no more READs:
    /// 1 to 4096. Default 256.
    pub waiting_max: u16,
    /// Most ranges of numbers remembered per connection, 24 B each: 16 to 65,536. Default 1024.
    pub ranges_max: u32,
    /// Memory of frames that wait for room on one side, in bytes. Default 32 MiB.
    pub queue_bytes_max: u64,
    /// How long fetched data waits for its reader, which may request it again. Exceeds the reader's
    /// ACK timeouts and retries. Default 5 s.
    pub held_for: Duration,
    /// Time after which a fetch without an answer from the NIC, on the same LAN, is repeated.
    /// Default 50 ms.
    pub retry_after: Duration,
    /// Most such repetitions: 1 to 100. Default 20.
    pub tries_max: u8,
    /// Seed of the hash tables, so that a peer cannot force collisions.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            protocols: Vec::new(),
            connections_max: 1024,
            range_bytes_max: 1 << 20,
            held_bytes_max: 256 << 20,
            fetches_max: 15,
            wanted_max: 1024,
            held_max: 1024,
            waiting_max: 256,
            ranges_max: 1024,
            queue_bytes_max: 32 << 20,
            held_for: Duration::from_ms(5000),
            retry_after: Duration::from_ms(50),
            tries_max: 20,
            seed: 0,
        }
    }
}

/// Why a [`Config`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{field} is {value}; it must lie between {min} and {max}")]
pub struct ConfigError {
    /// Name of the field.
    pub field: &'static str,
    /// The value set (durations in nanoseconds).
    pub value: u64,
    /// Smallest valid value.
    pub min: u64,
    /// Greatest valid value.
    pub max: u64,
}

impl Config {
    /// Defaults for these protocols, on their registered ports.
    pub fn of(protocols: &[Protocol]) -> Self {
        let protocols = protocols.iter().map(|protocol| (*protocol, protocol.port())).collect();
        Config { protocols, ..Config::default() }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fields = [
            ("protocols", self.protocols.len() as u64, 0, 64),
            ("connections_max", u64::from(self.connections_max), 1, 1 << 16),
            ("range_bytes_max", u64::from(self.range_bytes_max), 1, 16 << 20),
            ("held_bytes_max", self.held_bytes_max, u64::from(self.range_bytes_max), u64::MAX >> 8),
            ("fetches_max", u64::from(self.fetches_max), 1, 255),
            ("wanted_max", u64::from(self.wanted_max), 1, 4096),
            ("held_max", u64::from(self.held_max), 1, 4000),
            ("waiting_max", u64::from(self.waiting_max), 1, 4096),
            ("ranges_max", u64::from(self.ranges_max), 16, 1 << 16),
            ("queue_bytes_max", self.queue_bytes_max, 64 << 10, u64::MAX >> 8),
            ("held_for_ns", self.held_for.as_ns(), 1000, u64::MAX / 4000),
            ("retry_after_ns", self.retry_after.as_ns(), 1000, u64::MAX / 4000),
            ("tries_max", u64::from(self.tries_max), 1, 100),
        ];
        let wrong = fields.into_iter().find(|&(_, value, min, max)| !(min..=max).contains(&value));
        wrong.map_or(Ok(()), |(field, value, min, max)| Err(ConfigError { field, value, min, max }))
    }
}
