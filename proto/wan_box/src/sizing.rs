//! Sizing of boxes.

use crate::config::Identity;
use longhaul_cc::{CodelConfig, JointRate, Pacing};
use longhaul_units::{BitRate, Duration};
use longhaul_wan::{PathConfig, Rate};
use std::num::NonZeroUsize;

/// Smallest window: covers the time slices of threads that share a processor.
const WINDOW_BYTES_MIN: u64 = 16 << 20;
/// Larger values have the same effect in every part.
const BYTES_MAX: u64 = u64::MAX >> 9;

/// A path to the far site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Capacity in bits per second on the wire, if known.
    pub capacity: Option<BitRate>,
    /// Rate at which a transport sends on it.
    pub rate: Rate,
    /// Longest IP packet of its port in bytes, if limited.
    pub mtu: Option<u32>,
}

impl Path {
    /// A path limited to its capacity, if known.
    pub fn of_capacity(capacity: Option<BitRate>) -> Self {
        Path { capacity, rate: capacity.into(), mtu: None }
    }
}

/// Known properties of the paths, and resources of a box, from which everything else is derived.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizing {
    /// Paths to the far site, 1 to 15; an accelerator alone has one. Rates are totals of all cores.
    pub paths: Vec<Path>,
    /// One-way delay, if known.
    pub delay: Option<Duration>,
    /// Memory for the accelerators' stores of all cores, in bytes. Default 1 GiB.
    pub memory_bytes: u64,
    /// How far requesters may run ahead of responders, in bytes. `None`: twice the bytes in flight
    /// in a round trip, and twice that for short packets, at least 16 MiB; 64 MiB if rate or delay
    /// is unknown.
    pub window_bytes: Option<u64>,
    /// Bytes that one requester may have outstanding beyond the window. Default 192 MiB: perftest's
    /// 128 messages of 1 MiB, with per-packet overhead.
    pub outstanding_bytes: u64,
    /// Flows tracked by all cores together. Default 4096.
    pub flows_max: u32,
    /// Cores that share the paths and the memory, each for its part of the host pairs. Default 1.
    pub cores: NonZeroUsize,
}

impl Default for Sizing {
    fn default() -> Self {
        let defaults = longhaul_accel::Config::default();
        Sizing {
            paths: vec![Path::default()],
            delay: None,
            memory_bytes: defaults.total_bytes_max,
            window_bytes: None,
            outstanding_bytes: defaults.flow_bytes_max - defaults.ack_window_bytes,
            flows_max: defaults.flows_max,
            cores: NonZeroUsize::MIN,
        }
    }
}

impl Sizing {
    /// Total capacity of all paths, if each is known.
    fn capacity(&self) -> Option<BitRate> {
        let sum: Option<u64> =
            self.paths.iter().map(|path| path.capacity.map(|capacity| capacity.as_bps())).sum();
        BitRate::from_bps(sum?)
    }

    /// RTT, zero if unknown.
    pub fn round_trip(&self) -> Duration {
        self.delay.unwrap_or(Duration::ZERO).times(2)
    }

    fn passthrough_delay(&self) -> CodelConfig {
        CodelConfig::for_round_trip(self.round_trip())
    }

    /// Bytes in flight in a round trip over all paths, if known.
    fn in_flight_bytes(&self) -> Option<u64> {
        self.delay?;
        Some(self.capacity()?.bytes_in(self.round_trip()))
    }

    fn window(&self) -> u64 {
        let of_path = |in_flight: u64| in_flight.saturating_mul(4).max(WINDOW_BYTES_MIN);
        let unknown = longhaul_accel::Config::default().ack_window_bytes;
        self.window_bytes.unwrap_or_else(|| self.in_flight_bytes().map_or(unknown, of_path))
    }

    /// Bytes that one flow may store. A window counts up to three quarters of it.
    pub fn flow_bytes(&self) -> u64 {
        let window = self.window();
        window.saturating_add(window / 2).saturating_add(self.outstanding_bytes).min(BYTES_MAX)
    }

    /// A core's share of a total.
    fn part(&self, of_all: u64) -> u64 {
        of_all / self.cores.get() as u64
    }

    /// A core's share of a rate; the shares together never exceed the path's rate.
    pub fn part_of_rate(&self, rate: BitRate) -> Option<BitRate> {
        BitRate::from_bps(self.part(rate.as_bps()).max(1))
    }

    /// The accelerator of each core. Call it once for all cores, because they share one rate.
    pub fn accelerator(&self) -> longhaul_accel::Config {
        let defaults = longhaul_accel::Config::default();
        let total_bytes_max = self.part(self.memory_bytes);
        let wan_pacing = match self.capacity() {
            Some(rate) if self.cores > NonZeroUsize::MIN => Pacing::Shared(JointRate::new(rate)),
            rate => rate.into(),
        };
        let packets = self.in_flight_bytes().unwrap_or(0) / 1024;
        let psns = packets.next_power_of_two().clamp(defaults.flow_psns_max.into(), 1 << 22);
        longhaul_accel::Config {
            flow_bytes_max: self.flow_bytes().min(total_bytes_max),
            ack_window_bytes: self.window(),
            total_bytes_max,
            flow_psns_max: psns as u32,
            flows_max: self.part(self.flows_max.into()) as u32,
            connections_max: self.part(defaults.connections_max.into()) as u32,
            passthrough_bytes_max: self.part(defaults.passthrough_bytes_max),
            passthrough_delay: self.passthrough_delay(),
            wan_pacing,
            ..defaults
        }
    }

    /// The transport of each core; the parts behind it add `around` bytes to its datagrams.
    pub fn transport(&self, identity: Identity, around: usize) -> longhaul_wan::Config {
        let defaults = longhaul_wan::Config::default();
        let paths: Vec<_> = self.paths.iter().map(|path| self.path(path, around)).collect();
        let most: Option<u64> = self
            .paths
            .iter()
            .map(|path| path.capacity.or(path.rate.most()).map(|rate| rate.as_bps()))
            .sum();
        let sized = match (most.and_then(BitRate::from_bps), self.delay) {
            (Some(rate), Some(_)) => {
                longhaul_wan::Config::for_paths(paths, self.part(rate.bytes_in(self.round_trip())))
            }
            _ => longhaul_wan::Config {
                paths,
                send_bytes_max: self.part(defaults.send_bytes_max),
                receive_bytes_max: self.part(defaults.receive_bytes_max),
                ..defaults
            },
        };
        longhaul_wan::Config {
            box_id: identity.box_id,
            seed: identity.seed,
            cores: u8::try_from(self.cores.get()).unwrap_or(u8::MAX),
            passthrough_bytes_max: self.part(sized.passthrough_bytes_max),
            passthrough_delay: self.passthrough_delay(),
            ..sized
        }
    }

    /// A core's share of a path.
    fn path(&self, path: &Path, around: usize) -> PathConfig {
        let defaults = PathConfig::default();
        let part = |rate: BitRate| self.part_of_rate(rate);
        let rate = match path.rate {
            Rate::Port => Rate::Port,
            Rate::Fixed(rate) => part(rate).map_or(Rate::Port, Rate::Fixed),
            Rate::Adaptive { most } => Rate::Adaptive { most: most.and_then(part) },
        };
        // The port itself refuses longer packets.
        let mtu_max = path.mtu.map_or(defaults.mtu_max, |mtu| {
            mtu.saturating_sub(around as u32).clamp(576, defaults.mtu_max.into()) as u16
        });
        PathConfig { rate, mtu_max, ..defaults }
    }

    /// The read-ahead of each core.
    pub fn read_ahead(&self, of_all: longhaul_readahead::Config) -> longhaul_readahead::Config {
        let held_bytes_max = self.part(of_all.held_bytes_max).max(of_all.range_bytes_max.into());
        longhaul_readahead::Config { held_bytes_max, ..of_all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizing(gbps: u64, ms: u64, paths: usize) -> Sizing {
        let path = Path::of_capacity(BitRate::from_gbps(gbps));
        Sizing { paths: vec![path; paths], delay: Some(Duration::from_ms(ms)), ..Sizing::default() }
    }

    #[test]
    fn a_window_counts_in_full_and_is_that_of_all_paths() {
        for (gbps, ms, paths) in [(1, 0, 1), (10, 5, 1), (10, 5, 2), (100, 5, 1)] {
            let memory_bytes = 64 << 30;
            let made = Sizing { memory_bytes, ..sizing(gbps, ms, paths) }.accelerator();
            let in_flight = gbps * 125_000 * 2 * ms * paths as u64;
            assert_eq!(made.ack_window_bytes, (4 * in_flight).max(WINDOW_BYTES_MIN));
            assert!(
                made.ack_window_bytes <= made.flow_bytes_max / 4 * 3,
                "{gbps} Gbit/s over {ms} ms"
            );
        }
        let unknown = Sizing { delay: None, ..sizing(100, 5, 1) }.accelerator();
        let defaults = longhaul_accel::Config::default();
        assert_eq!(
            (unknown.ack_window_bytes, unknown.flow_psns_max),
            (64 << 20, defaults.flow_psns_max)
        );
    }

    #[test]
    fn a_long_fast_path_has_the_psns_that_it_needs() {
        let of = |gbps, ms| sizing(gbps, ms, 1).accelerator().flow_psns_max;
        assert_eq!(of(10, 5), longhaul_accel::Config::default().flow_psns_max);
        // 5 GB of 1 KiB packets exceed the limit of a flow.
        assert_eq!(of(400, 50), 1 << 22);
    }

    #[test]
    fn whatever_is_planned_is_within_its_ranges() {
        for (gbps, ms) in [(1, 0), (1, 1), (100, 5), (800, 500)] {
            for cores in [1, 7, 64] {
                let cores = NonZeroUsize::new(cores).unwrap();
                for paths in [1, 15] {
                    let sizing = Sizing { cores, ..sizing(gbps, ms, paths) };
                    assert_eq!(sizing.accelerator().check(), Ok(()));
                    assert_eq!(sizing.transport(Identity::of_scenario(1), 32).check(), Ok(()));
                }
            }
        }
    }
}
