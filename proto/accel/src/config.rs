//! The configuration of an accelerator, and its limits.

use crate::policy::{Policy, Role};
use longhaul_cc::Pacing;
use longhaul_units::Duration;
use thiserror::Error;

/// What an accelerator is given: limits, rates and times.
///
/// Memory is bounded by `total_bytes_max` (stored requests of all flows) plus twice
/// `passthrough_bytes_max` plus about 1 KiB per flow of `flows_max` and 16 MiB for the bookkeeping
/// of stores that are empty. Buffers are pooled and grow with what is held at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Bytes of memory that one flow's store may take, with buffers and bookkeeping. At least 64
    /// KiB. Beyond it packets are dropped unacknowledged, and their requester retransmits them:
    /// give it what a requester may have outstanding (perftest with 1 MiB messages: 128 MiB) on top
    /// of `ack_window_bytes`. Default 256 MiB.
    pub flow_bytes_max: u64,
    /// Bytes of memory in one flow's store above which pseudo-ACKs wait for the responder: the
    /// requester may run this far ahead of it. Give it twice the path's bandwidth times RTT (25 MB
    /// for 10 Gbit/s over 1000 km), and twice that again for messages below 1 KiB. It is an upper
    /// bound: the requester never gets further ahead than the responder takes in about 32 ms or two
    /// round trips, as measured, so that a READ behind that is answered before its requester gives
    /// up. Values above three quarters of `flow_bytes_max` count as three quarters. At least 4 KiB.
    /// Default 64 MiB.
    pub ack_window_bytes: u64,
    /// Bytes of memory in a flow's store up to which pseudo-ACKs leave before the responder's pace
    /// was measured. Give it `ack_window_bytes` where a transport behind the box repairs losses:
    /// the rate of that path is known. At least 64 KiB. Default 6 MiB, which a lossy path delivers
    /// while a READ waits.
    pub ack_first_bytes: u64,
    /// Bytes of memory that the stores of all flows may take together; flows that store nothing may
    /// take 64 KiB beyond it for their first packets. At least `flow_bytes_max`. Default 1 GiB.
    pub total_bytes_max: u64,
    /// Prefix length of the IPv4 addresses of a tenant. Tenants share `total_bytes_max`: a tenant
    /// that needs more than an equal share has what the others leave. At most 32, the default: each
    /// address is a tenant.
    pub tenant_prefix_ipv4: u8,
    /// As `tenant_prefix_ipv4`, of IPv6 addresses. At most 128, the default.
    pub tenant_prefix_ipv6: u8,
    /// PSNs that one flow may have outstanding, READ ranges included. 1 to 2^22, well under half of
    /// the 24-bit space so that a wrap is safe. Default 2^21.
    pub flow_psns_max: u32,
    /// Flows in the table, about 1 KiB each. When it is full, the least recently used flow that
    /// stores nothing is evicted; if there is none, the traffic passes through. 1 to 2^20. Default
    /// 4096.
    pub flows_max: u32,
    /// Connections in set-up or teardown known at once, about 200 B each. 1 to 2^20. Default 4096.
    pub connections_max: u32,
    /// Bytes of passed-through frames that may wait for room on one side. Beyond it frames are
    /// dropped ([`crate::DropReason::QueueFull`]). At least 64 KiB. Default 32 MiB.
    pub passthrough_bytes_max: u64,
    /// Rate limit towards the WAN, in bits per second on the wire. Give it the link's rate, so that
    /// neither a requester's burst nor a retransmission overruns the link's queue, and share it
    /// with the other accelerators that feed the link. Default unlimited.
    pub wan_pacing: Pacing,
    /// Rate limit towards the LAN. Default unlimited, which suits a LAN that is not slower than the
    /// WAN.
    pub lan_pacing: Pacing,
    /// Whether a flow whose responder sends congestion notifications (CNPs) slows down by DCQCN,
    /// from the rate of `wan_pacing` or 100 Gbit/s on. The requester receives them too. Default
    /// true.
    pub heed_cnps: bool,
    /// Bytes that may leave back to back after a pause, for a side with a rate of its own. At least
    /// 1. Default 64 KiB.
    pub burst_bytes: u64,
    /// Retransmission timeout before an RTT was measured. Default 250 ms. A timeout retransmits one
    /// packet to ask how far the responder is, so that a premature timeout costs little.
    pub rto_initial: Duration,
    /// Shortest retransmission timeout, above the scheduling noise of responder and ports. Default
    /// 10 ms.
    pub rto_min: Duration,
    /// Longest retransmission timeout, back-off included. At least `rto_min`. Default 2 s.
    pub rto_max: Duration,
    /// Silence of the responder after which a flow with stored data passes
    /// ([`crate::PassReason::OneWay`]) and its store is released. An RNR NAK counts as a sign of
    /// life. Default 20 s.
    pub give_up_after: Duration,
    /// How long pseudo-ACKs may be withheld while the requester is as far ahead as it may be and
    /// nothing is released; then 64 KiB are acknowledged nevertheless, so that the requester's
    /// timer and retry counter start afresh. Keep it well below the requester's local ACK timeout
    /// (perftest: 67 ms). Default 10 ms.
    pub ack_hold_max: Duration,
    /// How long a DREQ from the LAN waits while nothing of the store is delivered; while deliveries
    /// go on it waits for the last of them. Default 3 s, below the 4.3 s after which Linux resends
    /// it.
    pub dreq_hold_max: Duration,
    /// Packets stored since the last pseudo-ACK after which the box sends one that no requester
    /// asked for. 1 to 128 (kernel rxe stalls without progress within 129). Default 64.
    pub ack_every: u32,
    /// Which mode each flow has: what its completions say. Default: early for all.
    pub policy: Policy,
    /// Which of the two boxes of a pair this one is for the requesters on its LAN side. Default:
    /// near, which suits a box without a peer too.
    pub role: Role,
    /// Seed of the hash tables, so that a peer cannot aim at collisions and a run can be replayed.
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
            role: Role::Near,
            seed: 0,
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
    /// A field of a running accelerator that stays as it was made.
    #[error("{field} cannot change while it runs")]
    Fixed {
        /// Name of the field.
        field: &'static str,
    },
}

impl Config {
    /// Both halves of a box with a transport behind them that repairs what the path loses and knows
    /// its rate: near, and far with its LAN side to the WAN. `round_trip` is the path's, zero if
    /// unknown.
    ///
    /// The near half has no rate towards the transport, which makes it wait. It gives the transport
    /// time for its repairs before it sends anything again: ten round trips, 250 ms at least. And
    /// its requesters may run ahead at once. CNPs are for the far half, which sends to the
    /// responder.
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

    /// Holds every field against its range.
    pub fn check(&self) -> Result<(), ConfigError> {
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

    /// Holds `to`, for an accelerator that runs with these values, against its ranges and against
    /// what cannot change: sizes of tables and queues, the role and the seed.
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

    /// Stored bytes of one flow above which pseudo-ACKs wait for the responder.
    pub(crate) fn flow_high(&self) -> u64 {
        self.ack_window_bytes.min(self.flow_bytes_max / 4 * 3)
    }

    /// Stored bytes of a lone tenant above which pseudo-ACKs wait for the responder.
    pub(crate) fn total_high(&self) -> u64 {
        self.total_bytes_max / 4 * 3
    }
}
