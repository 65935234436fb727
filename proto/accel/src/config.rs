//! The configuration of an accelerator, and its limits.

use crate::policy::{Policy, Role};
use longhaul_cc::{CodelConfig, Pacing};
use longhaul_units::Duration;
use std::str::FromStr;
use thiserror::Error;

/// Limits, rates and times of an accelerator.
///
/// Memory is bounded by `total_bytes_max` (stored requests of all flows), plus four times
/// `passthrough_bytes_max`, plus about 1 KiB per flow of `flows_max`, plus 16 MiB for the entry
/// buffers of empty stores. Buffers are pooled, and the pool grows with the frames held at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Bytes of memory that one flow's store may use, buffers and bookkeeping included. At least 64
    /// KiB. A full store drops packets unacknowledged, and their requester retransmits them: set it
    /// to the bytes that a requester may have outstanding (perftest with 1 MiB messages: 128 MiB)
    /// plus `ack_window_bytes`. Default 256 MiB.
    pub flow_bytes_max: u64,
    /// Bytes of memory in one flow's store above which pseudo-ACKs wait for the responder: how far
    /// the requester may run ahead. Set it to twice the path's bandwidth times RTT (25 MB for 10
    /// Gbit/s over 1000 km), and to four times for messages below 1 KiB. It is an upper bound: the
    /// measured pace further limits the requester to the bytes that the responder takes in about 32
    /// ms or two round trips, so that a READ behind them is answered before its requester gives up.
    /// Values above three quarters of `flow_bytes_max` count as three quarters. At least 4 KiB.
    /// Default 64 MiB.
    pub ack_window_bytes: u64,
    /// Bytes of memory in a flow's store up to which pseudo-ACKs are sent before the responder's
    /// pace was measured. Set it to `ack_window_bytes` if a transport behind the box repairs
    /// losses, because the rate of that path is known. At least 64 KiB. Default 6 MiB, which a
    /// lossy path delivers while a READ waits.
    pub ack_first_bytes: u64,
    /// Bytes of memory that the stores of all flows may use together. Flows that store nothing may
    /// use 64 KiB beyond it for their first packets. At least `flow_bytes_max`. Default 1 GiB.
    pub total_bytes_max: u64,
    /// Prefix length that defines a tenant among IPv4 addresses. Tenants share `total_bytes_max`: a
    /// tenant that needs more than an equal share gets the memory that the others leave. At most
    /// 32, the default: each address is a tenant.
    pub tenant_prefix_ipv4: u8,
    /// Same as `tenant_prefix_ipv4`, for IPv6 addresses. At most 128, the default.
    pub tenant_prefix_ipv6: u8,
    /// PSNs that one flow may have outstanding, READ ranges included. 1 to 2^22, well under half of
    /// the 24-bit space so that a wrap is safe. Default 2^21.
    pub flow_psns_max: u32,
    /// Flows in the table, about 1 KiB each. When it is full, the least recently used flow that
    /// stores nothing is evicted; if there is none, the traffic passes through. 1 to 2^20. Default
    /// 4096.
    pub flows_max: u32,
    /// Connections in set-up or teardown to track, about 200 B each. 1 to 2^20. Default 4096.
    pub connections_max: u32,
    /// Bytes of passed-through RoCEv2 frames that may wait for transmission on one side, and as
    /// many of other frames. Frames beyond it are dropped ([`crate::DropReason::QueueFull`]). At
    /// least 64 KiB. Default 32 MiB.
    pub passthrough_bytes_max: u64,
    /// Bound of the time for which the frames of a flow that is not RoCEv2 wait for transmission.
    /// Beyond it they are marked, or dropped if their sender does not react to marks
    /// ([`crate::DropReason::QueueDelay`]). RoCEv2 frames are neither. Target and interval at least
    /// 1 µs. Default 5 ms and 100 ms.
    pub passthrough_delay: CodelConfig,
    /// Rate limit towards the WAN, in bits per second on the wire. Set it to the link's rate, so
    /// that neither a requester's burst nor a retransmission overruns the link's queue, and share
    /// it with the other accelerators that feed the link. Default unlimited.
    pub wan_pacing: Pacing,
    /// Rate limit towards the LAN. Default unlimited, which suits a LAN at least as fast as the
    /// WAN.
    pub lan_pacing: Pacing,
    /// Whether a flow whose responder sends congestion notifications (CNPs) slows down by DCQCN,
    /// starting at the rate of `wan_pacing` or at 100 Gbit/s. The requester receives the CNPs in
    /// any case. Default true.
    pub heed_cnps: bool,
    /// Bytes that may leave back to back after a pause, on a side with a rate limit. At least 1.
    /// Default 64 KiB.
    pub burst_bytes: u64,
    /// Retransmission timeout before an RTT was measured. Default 250 ms. A timeout retransmits one
    /// packet as a probe, so that a premature timeout costs little.
    pub rto_initial: Duration,
    /// Shortest retransmission timeout; must exceed the scheduling noise of responder and ports.
    /// Default 10 ms.
    pub rto_min: Duration,
    /// Longest retransmission timeout, back-off included. At least `rto_min`. Default 2 s.
    pub rto_max: Duration,
    /// Silence of the responder after which a flow with stored data passes
    /// ([`crate::PassReason::OneWay`]) and its store is released. An RNR NAK ends the silence.
    /// Default 20 s.
    pub give_up_after: Duration,
    /// Longest time for which pseudo-ACKs are withheld while the requester may run no further ahead
    /// and nothing is released. The box then acknowledges 64 KiB, so that the requester's timer and
    /// retry counter restart. Keep it well below the requester's local ACK timeout (perftest: 67
    /// ms). Default 10 ms.
    pub ack_hold_max: Duration,
    /// Longest time that a DREQ from the LAN waits without any delivery from the store; each
    /// delivery restarts it. Default 3 s, below the 4.3 s after which Linux resends a DREQ.
    pub dreq_hold_max: Duration,
    /// Packets stored since the last pseudo-ACK after which the box sends one unsolicited. 1 to 128
    /// (kernel rxe stalls if 129 packets pass without progress). Default 64.
    pub ack_every: u32,
    /// The mode of each flow, which defines its completions. Default: early for all.
    pub policy: Policy,
    /// What becomes of the vendor features that NICs offer each other by enhanced connection
    /// establishment. Default: cleared.
    pub ece: EceMode,
    /// Which box of a pair this one is for the requesters on its LAN side. Default: near, which
    /// also suits a box without a peer.
    pub role: Role,
    /// Seed of the hash tables: a peer cannot force collisions, and a run can be replayed.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            flow_bytes_max: 256 << 20,
            ack_window_bytes: 64 << 20,
            ack_first_bytes: 6 << 20,
            total_bytes_max: 1 << 30,
            tenant_prefix_ipv4: 32,
            tenant_prefix_ipv6: 128,
            flow_psns_max: 1 << 21,
            flows_max: 4096,
            connections_max: 4096,
            passthrough_bytes_max: 32 << 20,
            passthrough_delay: CodelConfig::default(),
            wan_pacing: Pacing::Unlimited,
            lan_pacing: Pacing::Unlimited,
            heed_cnps: true,
            burst_bytes: 64 << 10,
            rto_initial: Duration::from_ms(250),
            rto_min: Duration::from_ms(10),
            rto_max: Duration::from_ms(2000),
            give_up_after: Duration::from_ms(20_000),
            ack_hold_max: Duration::from_ms(10),
            dreq_hold_max: Duration::from_ms(3000),
            ack_every: 64,
            policy: Policy::default(),
            ece: EceMode::default(),
            role: Role::Near,
            seed: 0,
        }
    }
}

/// What a box does with the enhanced connection establishment (ECE) of connections that it
/// accelerates: the fields of REQ and REP by which NICs of one vendor agree on features of theirs,
/// such as selective repeat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EceMode {
    /// Clears them in both messages, so that both NICs use the plain transport, which boxes expect.
    #[default]
    Clear,
    /// Leaves them.
    Pass,
}

impl EceMode {
    /// All of them.
    pub const ALL: [EceMode; 2] = [EceMode::Clear, EceMode::Pass];

    /// Lower-case name used in files, options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            EceMode::Clear => "clear",
            EceMode::Pass => "pass",
        }
    }
}

impl FromStr for EceMode {
    type Err = UnknownEceMode;

    fn from_str(text: &str) -> Result<Self, UnknownEceMode> {
        let known = EceMode::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| UnknownEceMode(text.to_owned()))
    }
}

/// A text that names no [`EceMode`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{0}' is nothing to do with ECE: say clear or pass")]
pub struct UnknownEceMode(pub String);

/// Why a [`Config`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A field lies outside its range.
    #[error("{field} is {value}; it must lie between {min} and {max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// The value set (durations in nanoseconds).
        value: u64,
        /// Smallest valid value.
        min: u64,
        /// Greatest valid value.
        max: u64,
    },
    /// A field that cannot change while the accelerator runs.
    #[error("{field} cannot change while it runs")]
    Fixed {
        /// Name of the field.
        field: &'static str,
    },
}

impl Config {
    /// Configurations of the two halves of a box whose transport repairs losses and knows its rate:
    /// the near half, and the far half with its LAN side to the WAN. `round_trip` is the path's
    /// RTT, zero if unknown.
    ///
    /// The near half has no rate limit, because the transport exerts back-pressure. Its
    /// retransmission timeout leaves time for the transport's repairs: ten round trips, at least
    /// 250 ms. Its requesters may run ahead at once. Only the far half, which sends to the
    /// responder, obeys CNPs.
    pub fn halves(self, round_trip: Duration) -> [Config; 2] {
        let rto_min = round_trip.times(10).max(Duration::from_ms(250)).max(self.rto_min);
        let near = Config {
            role: Role::Near,
            wan_pacing: Pacing::Unlimited,
            heed_cnps: false,
            ack_first_bytes: self.ack_window_bytes,
            rto_min,
            rto_initial: rto_min.max(self.rto_initial),
            rto_max: self.rto_max.max(rto_min),
            ..self.clone()
        };
        let far = Config {
            role: Role::Far,
            wan_pacing: self.lan_pacing,
            lan_pacing: Pacing::Unlimited,
            ..self
        };
        [near, far]
    }

    /// Checks every field against its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let delay = &self.passthrough_delay;
        let fields = [
            ("flow_bytes_max", self.flow_bytes_max, 64 << 10, u64::MAX >> 8),
            ("ack_window_bytes", self.ack_window_bytes, 4 << 10, u64::MAX >> 8),
            ("ack_first_bytes", self.ack_first_bytes, 64 << 10, u64::MAX >> 8),
            ("total_bytes_max", self.total_bytes_max, self.flow_bytes_max, u64::MAX >> 8),
            ("tenant_prefix_ipv4", self.tenant_prefix_ipv4.into(), 0, 32),
            ("tenant_prefix_ipv6", self.tenant_prefix_ipv6.into(), 0, 128),
            ("flow_psns_max", u64::from(self.flow_psns_max), 1, 1 << 22),
            ("flows_max", u64::from(self.flows_max), 1, 1 << 20),
            ("connections_max", u64::from(self.connections_max), 1, 1 << 20),
            ("passthrough_bytes_max", self.passthrough_bytes_max, 64 << 10, u64::MAX >> 8),
            ("passthrough_target_ns", delay.target.as_ns(), 1000, u64::MAX / 4000),
            ("passthrough_interval_ns", delay.interval.as_ns(), 1000, u64::MAX / 4000),
            ("burst_bytes", self.burst_bytes, 1, u64::MAX >> 8),
            ("rto_initial_ns", self.rto_initial.as_ns(), 1000, u64::MAX / 4000),
            ("rto_min_ns", self.rto_min.as_ns(), 1000, u64::MAX / 4000),
            ("rto_max_ns", self.rto_max.as_ns(), self.rto_min.as_ns(), u64::MAX / 4000),
            ("ack_every", u64::from(self.ack_every), 1, 128),
        ];
        for (field, value, min, max) in fields {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Range { field, value, min, max });
            }
        }
        Ok(())
    }

    /// Checks `to` as a new configuration of an accelerator that runs with these values. Sizes of
    /// tables and queues, the role and the seed cannot change.
    ///
    /// # Errors
    /// [`ConfigError::Range`], or [`ConfigError::Fixed`].
    pub fn check_change(&self, to: &Config) -> Result<(), ConfigError> {
        to.check()?;
        let fixed = [
            ("flows_max", self.flows_max == to.flows_max),
            ("tenant_prefix_ipv4", self.tenant_prefix_ipv4 == to.tenant_prefix_ipv4),
            ("tenant_prefix_ipv6", self.tenant_prefix_ipv6 == to.tenant_prefix_ipv6),
            ("connections_max", self.connections_max == to.connections_max),
            ("passthrough_bytes_max", self.passthrough_bytes_max == to.passthrough_bytes_max),
            ("role", self.role == to.role),
            ("seed", self.seed == to.seed),
        ];
        match fixed.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(ConfigError::Fixed { field }),
            None => Ok(()),
        }
    }

    /// True if responders answer this box themselves. The near half of a whole box is answered by
    /// the far half, and is the one that heeds no CNPs.
    pub(crate) fn is_before_responder(&self) -> bool {
        self.role == Role::Far || self.heed_cnps
    }

    /// Stored bytes of one flow above which pseudo-ACKs wait for the responder.
    pub(crate) fn flow_high(&self) -> u64 {
        self.ack_window_bytes.min(self.flow_bytes_max / 4 * 3)
    }

    /// Stored bytes of a lone tenant above which pseudo-ACKs wait for the responder.
    pub(crate) fn total_high(&self) -> u64 {
        self.total_bytes_max / 4 * 3
    }
}
