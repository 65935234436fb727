//! Advice about settings of hosts and their LANs, by what flows reveal.

use crate::flow::Repetitions;
use crate::shared::AccelShared;
use crate::{Config, FlowCounters, FlowKey, Role};
use longhaul_units::{Duration, Instant};
use std::net::IpAddr;

/// Most entries of one accelerator; later ones are neither kept nor counted.
const GIVEN_MAX: usize = 256;

/// A setting that works against the box, or against distance. docs/nics.md names the settings of
/// each NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Advice {
    /// A REQ offered vendor features by ECE, which the box has cleared.
    EceCleared,
    /// The requester repeats packets sooner than their answer can come.
    EarlyRetries,
    /// The requester repeats packets that the box has acknowledged.
    AcksMissed,
    /// Requests reach the box with gaps.
    LanGaps,
    /// The responder reports gaps to the box near its requester.
    PathGaps,
    /// The responder reports gaps to the box beside it.
    ResponderGaps,
    /// The responder's RNR timer is long.
    LongRnrTimer,
    /// The responder sends congestion notifications.
    Congestion,
    /// The path MTU of the connection is shorter than any Ethernet requires.
    ShortMtu,
}

impl Advice {
    /// All kinds.
    pub const ALL: [Advice; 9] = [
        Advice::EceCleared,
        Advice::EarlyRetries,
        Advice::AcksMissed,
        Advice::LanGaps,
        Advice::PathGaps,
        Advice::ResponderGaps,
        Advice::LongRnrTimer,
        Advice::Congestion,
        Advice::ShortMtu,
    ];

    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Advice::EceCleared => "ece-cleared",
            Advice::EarlyRetries => "early-retries",
            Advice::AcksMissed => "acks-missed",
            Advice::LanGaps => "lan-gaps",
            Advice::PathGaps => "path-gaps",
            Advice::ResponderGaps => "responder-gaps",
            Advice::LongRnrTimer => "long-rnr-timer",
            Advice::Congestion => "congestion",
            Advice::ShortMtu => "short-mtu",
        }
    }

    /// One sentence: what was seen, and what to set.
    pub const fn text(self) -> &'static str {
        match self {
            Advice::EceCleared => {
                "their NICs offer each other vendor features by ECE, such as selective repeat, and \
                 the box cleared the offer, because it expects PSNs in order: turn the features \
                 off, or leave the offer with --ece pass"
            }
            Advice::EarlyRetries => {
                "the requester retries before an answer can come: turn its adaptive retransmission \
                 off, or set its ACK timeout above twice the round trip, and 14 at least"
            }
            Advice::AcksMissed => {
                "the requester repeats packets that the box has acknowledged: the LAN between them \
                 loses ACKs, or its ACK timeout is below what the LAN needs: give RDMA a lossless \
                 priority there, and set the timeout to 14 at least"
            }
            Advice::LanGaps => {
                "the LAN between the requester and the box loses or reorders packets: give RDMA a \
                 lossless priority there, and keep each QP on one path"
            }
            Advice::PathGaps => {
                "the path to the responder loses or reorders packets: run a whole box at each site \
                 (--transport), which repairs that on the path"
            }
            Advice::ResponderGaps => {
                "the LAN between the box and the responder loses or reorders packets: give RDMA a \
                 lossless priority there, and keep each QP on one path"
            }
            Advice::LongRnrTimer => {
                "the responder's RNR timer is so long that each receive posted late costs at least \
                 100 ms: set min_rnr_timer to 12 (0.64 ms); 0, the default of many programs, means \
                 655 ms"
            }
            Advice::Congestion => {
                "the responder's network marks packets and its NIC sends CNPs, which slow the flow \
                 down: send no faster than that network takes (--rate), or raise its marking \
                 threshold"
            }
            Advice::ShortMtu => {
                "the connection has a path MTU below 1024 bytes, which every Ethernet carries: set \
                 the MTU of the hosts' interfaces to 4200 or 9000, and that of the program to match"
            }
        }
    }
}

/// One piece of advice, for the flows between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advised {
    /// What was seen.
    pub advice: Advice,
    /// The host whose requests the box serves.
    pub requester: IpAddr,
    /// The host that they are for.
    pub responder: IpAddr,
}

/// What was given so far, in order.
#[derive(Debug, Default)]
pub(crate) struct Advices(Vec<Advised>);

impl Advices {
    pub(crate) fn all(&self) -> &[Advised] {
        &self.0
    }

    /// Returns `false` if it was given before, or if there is no room.
    fn add(&mut self, new: Advised) -> bool {
        let is_new = self.0.len() < GIVEN_MAX && !self.0.contains(&new);
        if is_new {
            self.0.push(new);
        }
        is_new
    }
}

/// Gaps of one flow that are worth advice; fewer come from restarts of hosts and boxes.
const GAPS_MANY: u64 = 8;
/// Congestion notifications of one flow that are worth advice.
const CNPS_MANY: u64 = 16;
/// Retries of one kind, of one flow, that are worth advice.
const RETRIES_MANY: u32 = 3;
/// RNR timer that is worth advice.
const RNR_TIMER_LONG: Duration = Duration::from_ms(100);
/// Shortest path MTU, in bytes, of hosts whose interfaces have Ethernet's MTU of 1500.
const MTU_LEAST: u32 = 1024;

/// Retries of a requester that the box has not asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retries {
    early: Repetitions,
    acknowledged: Repetitions,
    /// The box has sent a NAK, which the next retry follows.
    is_asked_for: bool,
}

impl Retries {
    /// Notes that a NAK was sent.
    pub(crate) fn note_nak(&mut self) {
        self.is_asked_for = true;
    }

    /// Counts a retry of packets that the box has acknowledged, or of others. Returns advice if
    /// there were many.
    pub(crate) fn count(&mut self, now: Instant, is_acknowledged: bool) -> Option<Advice> {
        if std::mem::take(&mut self.is_asked_for) {
            return None;
        }
        let (of_kind, advice) = match is_acknowledged {
            true => (&mut self.acknowledged, Advice::AcksMissed),
            false => (&mut self.early, Advice::EarlyRetries),
        };
        (of_kind.count(now) && of_kind.times() == RETRIES_MANY).then_some(advice)
    }
}

impl FlowCounters {
    /// Advice after another gap in the requests.
    pub(crate) fn advice_on_gap(&self) -> Option<Advice> {
        (self.out_of_sequence == GAPS_MANY).then_some(Advice::LanGaps)
    }

    /// Advice after another sequence NAK of the responder.
    pub(crate) fn advice_on_nak(&self, config: &Config) -> Option<Advice> {
        let advice = match config.role {
            Role::Near => Advice::PathGaps,
            Role::Far => Advice::ResponderGaps,
        };
        (self.packet_seq_err == GAPS_MANY && config.is_before_responder()).then_some(advice)
    }

    /// Advice after another congestion notification.
    pub(crate) fn advice_on_cnp(&self) -> Option<Advice> {
        (self.rp_cnp_handled == CNPS_MANY).then_some(Advice::Congestion)
    }
}

/// Advice on an RNR timer of the responder.
pub(crate) fn on_rnr_timer(timer: Duration, config: &Config) -> Option<Advice> {
    (timer >= RNR_TIMER_LONG && config.is_before_responder()).then_some(Advice::LongRnrTimer)
}

/// Advice on the path MTU, in bytes, of a new connection.
pub(crate) fn on_path_mtu(path_mtu: Option<u32>) -> Option<Advice> {
    path_mtu.is_some_and(|mtu| mtu < MTU_LEAST).then_some(Advice::ShortMtu)
}

impl AccelShared {
    /// Gives advice about the hosts of the flow with `key`, once.
    #[cold]
    pub(crate) fn give(&mut self, advice: impl Into<Option<Advice>>, key: &FlowKey) {
        let Some(advice) = advice.into() else { return };
        let FlowKey { requester, responder, .. } = *key;
        self.counters.advice_given +=
            u64::from(self.advices.add(Advised { advice, requester, responder }));
    }
}
