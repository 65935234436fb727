//! Configuration of the WAN transport: paths, rates, parity, bounds on memory.

use crate::FarBox;
use crate::far::FAR_MAX;
use longhaul_cc::CodelConfig;
use longhaul_secret::Seed;
use longhaul_units::{BitRate, Duration};
use longhaul_wire::Prefix;
use std::net::IpAddr;
use thiserror::Error;

/// Rate at which a path is sent on. Retransmissions, parity and control datagrams count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The rate at which the port accepts frames, for a port that is the bottleneck and exerts
    /// back-pressure.
    #[default]
    Port,
    /// A fixed rate in bits per second on the wire, for a path whose rate is known and not shared.
    Fixed(BitRate),
    /// The rate that the bottleneck has room for, as measured by [`longhaul_cc::PathRate`], for a
    /// path that is shared or whose rate is unknown or varies.
    Adaptive {
        /// Upper limit, in bits per second on the wire.
        most: Option<BitRate>,
    },
}

impl Rate {
    /// The rate that is never exceeded, if there is one.
    pub fn most(self) -> Option<BitRate> {
        match self {
            Rate::Port => None,
            Rate::Fixed(rate) => Some(rate),
            Rate::Adaptive { most } => most,
        }
    }
}

/// A known rate is kept to; otherwise the port's.
impl From<Option<BitRate>> for Rate {
    fn from(rate: Option<BitRate>) -> Self {
        rate.map_or(Rate::Port, Rate::Fixed)
    }
}

/// One path to the far box: a side of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// How fast to send. Default [`Rate::Port`].
    pub rate: Rate,
    /// Bytes that may leave back to back after a pause, on a path with a rate. At least 1. Default
    /// 64 KiB.
    pub burst_bytes: u64,
    /// Longest IP packet that the path is probed for, in bytes, 576 to 9216. PINGs of up to this
    /// length find the path's MTU, and longer frames are split. Layers between the transport and
    /// the path add their own bytes: a seal adds 32. Default 4352, enough for 4 KiB of RoCE with
    /// its headers.
    pub mtu_max: u16,
}

impl Default for PathConfig {
    fn default() -> Self {
        PathConfig { rate: Rate::Port, burst_bytes: 64 << 10, mtu_max: 4352 }
    }
}

/// When parity is sent. From parity the far box computes lost datagrams, which then need no
/// retransmission.
///
/// The path's loss decides the amount: none up to 1e-5, at most 5 % of the bytes of DATA below
/// 1e-3, 8.5 % at 1e-2, 18 % at 5e-2, 40 % at 0.2. Parity that a far box sends is always used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parity {
    /// Never: a lost datagram waits for its retransmission.
    Off,
    /// When frames leave room on the path, or when parity costs less than the retransmissions that
    /// it saves. Goodput is at least that of [`Parity::Off`], and streams wait less while the path
    /// is not full.
    #[default]
    Adaptive,
    /// As much as keeps streams from waiting, even on a full path: prefers latency to goodput.
    Always,
}

/// Limits, rates and times of a transport.
///
/// Memory for each of `sessions_max` sessions: `send_bytes_max` and `receive_bytes_max`, and 4
/// bytes for each of `reorder_frames_max`. For each path: `numbers_max` · 3 / 8 bytes, 24 bytes for
/// each frame in flight, and if the path loses, `parity_bytes_max` with 8 MiB for received
/// datagrams and up to 1024 payloads (4 MiB of 4 KiB) for sent ones. In addition, twice
/// `passthrough_bytes_max` for each direction, and about 300 bytes for each stream and address. All
/// but the bitmap of numbers grows with use.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Paths to the far box, 1 to 15, one for each side from 1 on. A frame may leave by another
    /// side unchanged, so the routers behind all sides must answer to the same Ethernet addresses.
    pub paths: Vec<PathConfig>,
    /// UDP destination port of tunnelled frames and control datagrams; not 4791. Both boxes must
    /// use the same. Default 4797.
    pub port: u16,
    /// Number of this box, which must differ from the far box's. It is sent to every box that asks,
    /// and must not be derived from `seed`.
    pub box_id: u64,
    /// Source of the instance, session numbers, cookies and nonces. It must differ at each start of
    /// a box: a far box recognises a restart by the values derived from it.
    pub seed: Seed,
    /// Digest of the settings that both boxes must share; a far box with another digest is refused.
    /// Default 0.
    pub policy: u64,
    /// Transports among which this box shares its work, including this one. One transport handles
    /// all traffic of an address pair, chosen by a rule that both boxes share
    /// ([`longhaul_wire::pair_hash`]), so each transport meets exactly one at the far box. A far
    /// box with another number of transports is refused. 1 to 255. Default 1.
    pub cores: u8,
    /// Bytes of memory for unacknowledged frames, for each session. Twice the sum of all paths'
    /// bandwidth-delay products (RTT) keeps the paths full under any loss: 250 MB at 100 Gbit/s and
    /// 10 ms. At least 64 KiB. Default 256 MiB.
    pub send_bytes_max: u64,
    /// Bytes of memory of unsent frames above which the node exerts back-pressure on side 0
    /// ([`longhaul_node::Node::intake`]). Frames that wait here delay later ones, and no other
    /// stream can overtake them. At least 64 KiB. Default 1 MiB.
    pub queue_bytes_max: u64,
    /// Bytes of memory for received frames that wait for earlier ones or for room on side 0, for
    /// each session. It is advertised to the far box, which sends no more. Use two and a half times
    /// the bandwidth-delay product (RTT). At least 64 KiB. Default 320 MiB.
    pub receive_bytes_max: u64,
    /// Out-of-order positions that all streams of a session together may hold; a frame further
    /// ahead is dropped. 64 to 2^24. Default 2^20.
    pub reorder_frames_max: u32,
    /// Maximum distance between a path's oldest unresolved number and its newest, a power of two.
    /// Half as many frames can be in flight on a path. 2^10 to 2^24. Default 2^20: 524,288 frames,
    /// 100 Gbit/s of 4 KiB over 170 ms.
    pub numbers_max: u32,
    /// Maximum number of far boxes with a session. 1 to 256. Default 8.
    pub sessions_max: u32,
    /// Streams that one session may have open in one direction: address pairs with destination QPs.
    /// Traffic of further streams passes untunnelled. 1 to 65,536. Default 16,384.
    pub streams_max: u32,
    /// Addresses for which the transport remembers which far box, if any, serves them. 1 to 2^20.
    /// Default 4096.
    pub addresses_max: u32,
    /// Far boxes known in advance, with the address to ask for each site. At most 256, with
    /// disjoint prefixes. Default none.
    pub far: Vec<FarBox>,
    /// Whether to search for addresses outside those sites as well. Default `true`.
    pub asks_others: bool,
    /// Prefixes that no far box serves: no HELLO is sent for their addresses, and frames to them
    /// pass. At most 256. Default none.
    pub without_box: Vec<Prefix>,
    /// Bytes of memory for frames that wait during the search for a far box instead of passing, for
    /// a path that would drop them in cleartext. A frame waits at most as long as its search lasts.
    /// At most 1 GiB. Default 0: frames pass.
    pub waiting_bytes_max: u64,
    /// Whether every datagram from the paths comes from a far box that has proved its key, as
    /// behind a seal. If so, the first frame of a stream shows that its source is behind that box;
    /// otherwise a HELLO asks. Default `false`.
    pub is_sealed: bool,
    /// Bytes of passed-through RoCEv2 frames that may wait for room on a side, and as many of other
    /// frames. At least 64 KiB. Default 32 MiB.
    pub passthrough_bytes_max: u64,
    /// Bound of the time for which the frames of a flow that is not RoCEv2 wait for room. Beyond it
    /// they are marked, or dropped if their sender does not react to marks
    /// ([`crate::DropReason::QueueDelay`]). RoCEv2 frames are neither. Target and interval at least
    /// 1 µs. Default 5 ms and 100 ms.
    pub passthrough_delay: CodelConfig,
    /// Numbered datagrams after which an acknowledgement is sent immediately. 1 to 64. Default 32.
    pub ack_every: u32,
    /// Maximum delay of an acknowledgement; a sixteenth of the RTT if that is less. 10 µs to 100
    /// ms. Default 1 ms.
    pub ack_delay_max: Duration,
    /// Maximum number of copies of a retransmitted frame; loss and frames in flight decide how many
    /// are sent. 1 to 4. Default 4.
    pub copies_max: u8,
    /// When parity is sent. Default [`Parity::Adaptive`].
    pub parity: Parity,
    /// Bytes of received frames that are kept for each path on which the far box sends parity,
    /// until nothing of their group can be missing; the oldest are released first. Four blocks of
    /// parity suit every path: 2 RTTs' worth, 134 MB at most with 4 KiB. 64 KiB to 4 GiB. Default
    /// 64 MiB.
    pub parity_bytes_max: u64,
    /// Silence of a path, beyond its RTT, after which the path is down and its frames are
    /// retransmitted on the others. It applies while another path shows that the far box runs; ten
    /// times as long applies otherwise. 1 ms to 10 s. Default 25 ms.
    pub path_out_after: Duration,
    /// Time after which an idle path is probed. 1 ms to 60 s. Default 100 ms.
    pub keep_alive: Duration,
    /// Time without any path after which a session ends and traffic passes untunnelled. 10 ms to
    /// 600 s. Default 2 s.
    pub dead_after: Duration,
    /// Time without a frame after which a stream is closed. 1 ms to 24 h. Default 60 s.
    pub stream_idle: Duration,
    /// Interval between the HELLOs of a search, of which five are sent. 1 ms to 60 s. Default 250
    /// ms.
    pub hello_every: Duration,
    /// Time after which to search again for an address for which no far box answered, or whose box
    /// was refused. 10 ms to 24 h. Default 10 s.
    pub hello_pause: Duration,
    /// Maximum replies per second to unauthenticated peers: to HELLOs, and to PINGs of unknown
    /// sessions. 1 to 2^20. Default 1000.
    pub answers_per_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            paths: vec![PathConfig::default()],
            port: 4797,
            box_id: 0,
            seed: Seed::default(),
            policy: 0,
            cores: 1,
            send_bytes_max: 256 << 20,
            queue_bytes_max: 1 << 20,
            receive_bytes_max: 320 << 20,
            reorder_frames_max: 1 << 20,
            numbers_max: 1 << 20,
            sessions_max: 8,
            streams_max: 16_384,
            addresses_max: 4096,
            far: Vec::new(),
            asks_others: true,
            without_box: Vec::new(),
            waiting_bytes_max: 0,
            is_sealed: false,
            passthrough_bytes_max: 32 << 20,
            passthrough_delay: CodelConfig::default(),
            ack_every: 32,
            ack_delay_max: Duration::from_ms(1),
            copies_max: 4,
            parity: Parity::default(),
            parity_bytes_max: 64 << 20,
            path_out_after: Duration::from_ms(25),
            keep_alive: Duration::from_ms(100),
            dead_after: Duration::from_ms(2000),
            stream_idle: Duration::from_ms(60_000),
            hello_every: Duration::from_ms(250),
            hello_pause: Duration::from_ms(10_000),
            answers_per_s: 1000,
        }
    }
}

/// Reason to refuse a [`Config`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A field is outside its range.
    #[error("{field} is {value}; it must lie between {min} and {max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Its value (durations in nanoseconds).
        value: u64,
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// `numbers_max` is not a power of two.
    #[error("numbers_max is {value}; it must be a power of two, as 1048576 is")]
    NumbersMax {
        /// The value given.
        value: u32,
    },
    /// Two far boxes claim one address.
    #[error("{one} and {other} overlap: give each address one far box")]
    FarOverlap {
        /// One far box's prefix.
        one: Prefix,
        /// The other's.
        other: Prefix,
    },
    /// An address to ask that is not of the site's address family.
    #[error("{via} is of another family than {prefix}: name an address of the site's own family")]
    FarFamily {
        /// Address to ask.
        via: IpAddr,
        /// The site.
        prefix: Prefix,
    },
    /// An address to ask for one site that lies in another.
    #[error("{via} is to be asked for {prefix} and lies in {other}, whose far box is another")]
    FarVia {
        /// Address to ask.
        via: IpAddr,
        /// The site it stands for.
        prefix: Prefix,
        /// The site it lies in.
        other: Prefix,
    },
    /// `port` is the RoCEv2 port.
    #[error("port is 4791, which is RoCEv2's own: give another that both boxes share, as 4797 is")]
    Port,
}

impl Config {
    /// A transport for paths whose bandwidth-delay products (RTT) add up to `in_flight_bytes`:
    /// twice as much to send from, two and a half times as much for reordering, and numbers for
    /// frames of 256 bytes.
    pub fn for_paths(paths: Vec<PathConfig>, in_flight_bytes: u64) -> Self {
        const BYTES_MIN: u64 = 4 << 20;
        let defaults = Config::default();
        let numbers =
            (in_flight_bytes / 256).next_power_of_two().clamp(defaults.numbers_max.into(), 1 << 24);
        Config {
            paths,
            send_bytes_max: (2 * in_flight_bytes).max(BYTES_MIN),
            receive_bytes_max: (in_flight_bytes / 2 * 5).max(BYTES_MIN),
            numbers_max: numbers as u32,
            ..defaults
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// Returns the first field that is outside its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        const DAY_NS: u64 = 86_400_000_000_000;
        let delay = &self.passthrough_delay;
        let ms = |n: u64| n * 1_000_000;
        let fields = [
            ("paths", self.paths.len() as u64, 1, 15),
            (
                "mtu_max",
                self.paths.iter().map(|path| u64::from(path.mtu_max)).min().unwrap_or(0),
                576,
                9216,
            ),
            (
                "mtu_max",
                self.paths.iter().map(|path| u64::from(path.mtu_max)).max().unwrap_or(0),
                576,
                9216,
            ),
            ("port", u64::from(self.port), 1, 65_535),
            ("cores", u64::from(self.cores), 1, 255),
            ("send_bytes_max", self.send_bytes_max, 64 << 10, u64::MAX >> 8),
            ("queue_bytes_max", self.queue_bytes_max, 64 << 10, u64::MAX >> 8),
            ("receive_bytes_max", self.receive_bytes_max, 64 << 10, u64::MAX >> 8),
            ("reorder_frames_max", u64::from(self.reorder_frames_max), 64, 1 << 24),
            ("numbers_max", u64::from(self.numbers_max), 1 << 10, 1 << 24),
            ("sessions_max", u64::from(self.sessions_max), 1, 256),
            ("streams_max", u64::from(self.streams_max), 1, 1 << 16),
            ("addresses_max", u64::from(self.addresses_max), 1, 1 << 20),
            ("far", self.far.len() as u64, 0, FAR_MAX as u64),
            ("without_box", self.without_box.len() as u64, 0, FAR_MAX as u64),
            ("waiting_bytes_max", self.waiting_bytes_max, 0, 1 << 30),
            ("passthrough_bytes_max", self.passthrough_bytes_max, 64 << 10, u64::MAX >> 8),
            ("passthrough_target_ns", delay.target.as_ns(), 1000, u64::MAX / 4000),
            ("passthrough_interval_ns", delay.interval.as_ns(), 1000, u64::MAX / 4000),
            ("ack_every", u64::from(self.ack_every), 1, 64),
            ("ack_delay_max_ns", self.ack_delay_max.as_ns(), 10_000, ms(100)),
            ("copies_max", u64::from(self.copies_max), 1, 4),
            ("parity_bytes_max", self.parity_bytes_max, 64 << 10, 4 << 30),
            ("path_out_after_ns", self.path_out_after.as_ns(), ms(1), ms(10_000)),
            ("keep_alive_ns", self.keep_alive.as_ns(), ms(1), ms(60_000)),
            ("dead_after_ns", self.dead_after.as_ns(), ms(10), ms(600_000)),
            ("stream_idle_ns", self.stream_idle.as_ns(), ms(1), DAY_NS),
            ("hello_every_ns", self.hello_every.as_ns(), ms(1), ms(60_000)),
            ("hello_pause_ns", self.hello_pause.as_ns(), ms(10), DAY_NS),
            ("answers_per_s", u64::from(self.answers_per_s), 1, 1 << 20),
        ];
        let burst =
            self.paths.iter().map(|path| ("burst_bytes", path.burst_bytes, 1, u64::MAX >> 8));
        for (field, value, min, max) in fields.into_iter().chain(burst) {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { field, value, min, max });
            }
        }
        if !self.numbers_max.is_power_of_two() {
            return Err(ConfigError::NumbersMax { value: self.numbers_max });
        }
        if self.port == longhaul_wire::ROCEV2_PORT {
            return Err(ConfigError::Port);
        }
        self.check_far()
    }

    fn check_far(&self) -> Result<(), ConfigError> {
        for (at, FarBox { prefix, via }) in self.far.iter().enumerate() {
            let before = self.far[..at].iter().map(|far| far.prefix);
            if let Some(one) =
                before.into_iter().find(|one| one.covers(prefix) || prefix.covers(one))
            {
                return Err(ConfigError::FarOverlap { one, other: *prefix });
            }
            let Some(via) = *via else { continue };
            if via.is_ipv4() != prefix.is_ipv4() {
                return Err(ConfigError::FarFamily { via, prefix: *prefix });
            }
            let its_site =
                self.far.iter().find(|far| far.prefix.contains(via) && far.via != Some(via));
            if let Some(FarBox { prefix: other, .. }) = its_site {
                return Err(ConfigError::FarVia { via, prefix: *prefix, other: *other });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_boxes_that_contradict_each_other_are_refused() {
        let check = |far: &[(&str, Option<&str>)]| {
            let far = far.iter().map(|(prefix, via)| FarBox {
                prefix: prefix.parse().unwrap(),
                via: via.map(|via| via.parse().unwrap()),
            });
            let checked = Config { far: far.collect(), ..Config::default() }.check();
            checked.map_err(|why| why.to_string())
        };
        let (one, two) = (("10.2.0.0/16", Some("192.0.2.7")), ("10.3.0.0/16", Some("10.3.0.1")));
        assert_eq!(check(&[one, two, ("fd00::/8", None)]), Ok(()));
        assert_eq!(check(&[one, ("10.4.0.0/16", one.1)]), Ok(()), "one box may have two sites");
        for (far, part) in [
            ([one, ("10.2.3.0/24", None)], "10.2.0.0/16 and 10.2.3.0/24 overlap"),
            ([("10.2.3.0/24", None), one], "10.2.3.0/24 and 10.2.0.0/16 overlap"),
            ([one, ("fd00::/8", one.1)], "192.0.2.7 is of another family than fd00::/8"),
            (
                [two, ("10.5.0.0/16", Some("10.3.0.9"))],
                "10.3.0.9 is to be asked for 10.5.0.0/16 and lies in 10.3.0.0/16",
            ),
        ] {
            let refusal = check(&far).unwrap_err();
            assert!(refusal.contains(part), "{refusal}");
        }
    }

    #[test]
    fn a_field_out_of_range_is_named_with_its_range() {
        assert_eq!(Config::default().check(), Ok(()));
        let config = Config { ack_every: 65, ..Config::default() };
        let error = config.check().unwrap_err();
        assert_eq!(error.to_string(), "ack_every is 65; it must lie between 1 and 64");
        let config = Config { numbers_max: 5000, ..Config::default() };
        assert_eq!(config.check(), Err(ConfigError::NumbersMax { value: 5000 }));
        let config = Config { port: 4791, ..Config::default() };
        assert_eq!(config.check(), Err(ConfigError::Port));
    }
}
