//! Configuration of the WAN transport: paths, rates, parity, bounds on memory.

use crate::FarBox;
use crate::far::FAR_MAX;
use longhaul_secret::Seed;
use longhaul_units::{BitRate, Duration};
use longhaul_wire::Prefix;
use std::net::IpAddr;
use thiserror::Error;

/// How fast a path is sent on; repetitions, parity and what boxes say to each other count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the port takes frames: for a port that is the bottleneck, and says so.
    #[default]
    Port,
    /// This rate, in bits per second on the wire: for a path whose rate is known and not shared.
    Fixed(BitRate),
    /// What the bottleneck has room for, as measured by [`longhaul_cc::PathRate`]: for a path that
    /// is shared, or of which the rate is not known or changes.
    Adaptive {
        /// The most, in bits per second on the wire.
        most: Option<BitRate>,
    },
}

impl Rate {
    /// What is never exceeded, if there is such a rate.
    pub fn most(self) -> Option<BitRate> {
        match self {
            Rate::Port => None,
            Rate::Fixed(rate) => Some(rate),
            Rate::Adaptive { most } => most,
        }
    }
}

/// A rate that is known is kept to; otherwise the port's.
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
    /// Bytes that may leave back to back after a pause, for a path with a rate. At least 1. Default
    /// 64 KiB.
    pub burst_bytes: u64,
    /// Longest IP packet that the path is asked for, in bytes: what gets through is found by PINGs
    /// of up to that length, and frames that are longer go in parts. What stands between the
    /// transport and the path adds its own, a seal 32. 576 to 9216. Default 4352, more than 4 KiB
    /// of RoCE and what may be around it.
    pub mtu_max: u16,
}

impl Default for PathConfig {
    fn default() -> Self {
        PathConfig { rate: Rate::Port, burst_bytes: 64 << 10, mtu_max: 4352 }
    }
}

/// When parity is sent, so that the far box can compute what a path lost instead of waiting for its
/// repetition.
///
/// How much is chosen by what the path loses: none up to 1e-5, at most 5 % of the bytes of DATA
/// below 1e-3, 8.5 % at 1e-2, 18 % at 5e-2, 40 % at 0.2. What a far box sends is used in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parity {
    /// Never: what is lost waits for its repetition.
    Off,
    /// When frames leave the path room, and when it costs less than the repetitions that it saves:
    /// goodput is that of [`Parity::Off`] or more, and streams wait less where the path is not
    /// full.
    #[default]
    Adaptive,
    /// As much as keeps streams from waiting, whether the path is full or not: for who wants frames
    /// early rather than many.
    Always,
}

/// What a transport is given: limits, rates and times.
///
/// Memory for each of `sessions_max`: `send_bytes_max` and `receive_bytes_max`; for each path
/// `numbers_max` · 3 / 8 bytes, 24 bytes for each frame in flight, and where it loses,
/// `parity_bytes_max` with 8 MiB for what comes in and up to 1024 payloads (4 MiB of 4 KiB) for
/// what goes out; 4 bytes for each of `reorder_frames_max`. Besides, twice `passthrough_bytes_max`,
/// and about 300 bytes for each stream and address. All but the bitmap of numbers grows with use.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The paths to the far box, one for each side from 1 on; 1 to 15. Frames leave by another side
    /// unchanged, so that the routers behind them must answer to the same Ethernet addresses.
    pub paths: Vec<PathConfig>,
    /// UDP destination port of tunnelled frames and control datagrams; not 4791. Both boxes must
    /// have the same. Default 4797.
    pub port: u16,
    /// Names this box; two boxes that meet must differ. It is sent to whoever asks, and must not
    /// follow from `seed`.
    pub box_id: u64,
    /// Where the instance, session numbers, cookies and nonces come from. It must be another at
    /// each start of a box: a far box tells by what follows from it that this one has restarted.
    pub seed: Seed,
    /// Digest of what both boxes must agree on; a far box with another is refused. Default 0.
    pub policy: u64,
    /// Transports that this box shares its work among, this one included: all that two addresses
    /// send each other is of one, by a rule that both boxes have ([`longhaul_wire::pair_hash`]), so
    /// that each meets one at the far box. That must have as many, or it is refused. 1 to 255.
    /// Default 1.
    pub cores: u8,
    /// Bytes of memory for frames that a far box has not acknowledged, for each session. Twice the
    /// bandwidth times RTT of all paths keeps them full under any loss (250 MB at 100 Gbit/s and 10
    /// ms). At least 64 KiB. Default 256 MiB.
    pub send_bytes_max: u64,
    /// Bytes of memory of frames that were never sent above which the neighbour on side 0 is asked
    /// to wait ([`longhaul_node::Node::intake`]): what waits here delays what comes later, and
    /// another stream cannot overtake it. At least 64 KiB. Default 1 MiB.
    pub queue_bytes_max: u64,
    /// Bytes of memory for frames that wait for those before them, or for room on side 0, for each
    /// session. The far box is told, and sends no more. Two and a half times the bandwidth times
    /// RTT. At least 64 KiB. Default 320 MiB.
    pub receive_bytes_max: u64,
    /// Places in the order of all streams of a session together that may be waited for at once: a
    /// frame further ahead is dropped. 64 to 2^24. Default 2^20.
    pub reorder_frames_max: u32,
    /// Numbers of one path that may lie between the oldest of which something can be heard and the
    /// newest, a power of two; half as many frames can be in flight on a path. 2^10 to 2^24.
    /// Default 2^20: 524,288 frames, 100 Gbit/s of 4 KiB over 170 ms.
    pub numbers_max: u32,
    /// Far boxes at once. 1 to 256. Default 8.
    pub sessions_max: u32,
    /// Streams that one session may have open in one direction: pairs of addresses and destination
    /// QPs. Traffic of more passes untunnelled. 1 to 65,536. Default 16,384.
    pub streams_max: u32,
    /// Addresses of which is known whether a far box serves them. 1 to 2^20. Default 4096.
    pub addresses_max: u32,
    /// Far boxes that are known: whom to ask for the addresses of a site. At most 256, with no
    /// address in two of them. Default none.
    pub far: Vec<FarBox>,
    /// Whether addresses of none of these are asked for too. Default true.
    pub asks_others: bool,
    /// Addresses that no far box serves: none is asked for, and frames to them pass. At most 256
    /// prefixes. Default none.
    pub without_box: Vec<Prefix>,
    /// Bytes of memory for frames that wait while a far box is looked for, instead of passing: for
    /// a path on which they would be dropped in the clear. A frame waits as long as an address is
    /// asked for. At most 1 GiB. Default 0: frames pass.
    pub waiting_bytes_max: u64,
    /// Whether all that comes by the paths is of a far box that has proved its key, as behind a
    /// seal. Then the first frame of a stream says that its source is behind that box; otherwise
    /// that is asked for. Default false.
    pub is_sealed: bool,
    /// Bytes that wait for room on a side without being tunnelled. At least 64 KiB. Default 32 MiB.
    pub passthrough_bytes_max: u64,
    /// Numbered datagrams after which an acknowledgement is sent at once. 1 to 64. Default 32.
    pub ack_every: u32,
    /// Longest wait before an acknowledgement; a sixteenth of the RTT when that is less. 10 µs to
    /// 100 ms. Default 1 ms.
    pub ack_delay_max: Duration,
    /// Copies of a repeated frame at most, chosen by loss and frames in flight. 1 to 4. Default 4.
    pub copies_max: u8,
    /// When parity is sent. Default [`Parity::Adaptive`].
    pub parity: Parity,
    /// Bytes of frames that are kept for each path by which the far box sends parity, until nothing
    /// of their group can be missing; the oldest go first. Four blocks of parity suit every path: 2
    /// RTTs' worth, 134 MB at most with 4 KiB. 64 KiB to 4 GiB. Default 64 MiB.
    pub parity_bytes_max: u64,
    /// Silence of a path, beyond its RTT, after which it is out and what it carried is repeated
    /// elsewhere, if another path shows that the far box runs; ten times as long if none does. 1 ms
    /// to 10 s. Default 25 ms.
    pub path_out_after: Duration,
    /// Time after which an idle path is asked whether it works. 1 ms to 60 s. Default 100 ms.
    pub keep_alive: Duration,
    /// Time without any path after which a session is over and traffic passes as it is. 10 ms to
    /// 600 s. Default 2 s.
    pub dead_after: Duration,
    /// Time without a frame after which a stream is closed. 1 ms to 24 h. Default 60 s.
    pub stream_idle: Duration,
    /// Time between two HELLOs in search of a far box, of which five are sent. 1 ms to 60 s.
    /// Default 250 ms.
    pub hello_every: Duration,
    /// Time after which an address that no far box answered for, or whose box was refused, is asked
    /// for again. 10 ms to 24 h. Default 10 s.
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

/// Why a [`Config`] is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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
    /// Not a power of two.
    #[error("numbers_max is {value}; it must be a power of two, as 1048576 is")]
    NumbersMax {
        /// The value given.
        value: u32,
    },
    /// Two far boxes for one address.
    #[error("{one} and {other} overlap: give each address one far box")]
    FarOverlap {
        /// A prefix.
        one: Prefix,
        /// The other one.
        other: Prefix,
    },
    /// An address that none of a site's traffic can be sent to.
    #[error("{via} is of another family than {prefix}: name an address of the site's own family")]
    FarFamily {
        /// Whom to ask.
        via: IpAddr,
        /// The site.
        prefix: Prefix,
    },
    /// An address that stands for two sites.
    #[error("{via} is to be asked for {prefix} and lies in {other}, whose far box is another")]
    FarVia {
        /// Whom to ask.
        via: IpAddr,
        /// For which site.
        prefix: Prefix,
        /// The one that it lies in.
        other: Prefix,
    },
    /// The port of RoCEv2.
    #[error("port is 4791, which is RoCEv2's own: give another that both boxes share, as 4797 is")]
    Port,
}

impl Config {
    /// A transport of this size for paths that together hold `in_flight_bytes` in a round trip:
    /// twice as much to send from, two and a half times as much to put in order, and numbers for
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

    /// Holds every field against its range.
    ///
    /// # Errors
    /// The first field that does not fit, with its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        const DAY_NS: u64 = 86_400_000_000_000;
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
