//! Snapshots of flows, and the names that reports use.

use crate::{Drops, FlowKey, Mode, Role};
use longhaul_units::{Duration, Msn, Psn, Qpn};

/// What the accelerator does with a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowState {
    /// Everything passes untouched while PSN, MSN and the requester's QPN are being learnt.
    Learning,
    /// Requests are stored and pseudo-ACKed; delivery is the accelerator's duty.
    Terminated,
    /// Everything passes; [`PassReason`] says why. Nothing is stored or owed but what was
    /// acknowledged before, in [`PassReason::OneWay`].
    Passing,
    /// Pseudo-ACKed data could not be delivered: every further request is answered by a fatal NAK.
    Failed,
}

impl FlowState {
    /// All of them.
    pub const ALL: [FlowState; 4] =
        [FlowState::Learning, FlowState::Terminated, FlowState::Passing, FlowState::Failed];

    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            FlowState::Learning => "learning",
            FlowState::Terminated => "terminated",
            FlowState::Passing => "passing",
            FlowState::Failed => "failed",
        }
    }
}

/// Why a flow passes untouched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassReason {
    /// The flow's mode says so.
    Mode,
    /// The accelerator drains.
    Draining,
    /// Its traffic named no requester within 10 s and 1000 requests: no ACK came by, or each could
    /// be another flow's.
    NotLearnt,
    /// No answer of the responder comes by this box: answers take another way, or there are none.
    OneWay,
    /// Its connection has an alternate path (APM), or was asked to take one: requests may move to a
    /// way that this box does not see, and back.
    AlternatePath,
}

impl PassReason {
    /// All of them.
    pub const ALL: [PassReason; 5] = [
        PassReason::Mode,
        PassReason::Draining,
        PassReason::NotLearnt,
        PassReason::OneWay,
        PassReason::AlternatePath,
    ];

    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            PassReason::Mode => "mode",
            PassReason::Draining => "draining",
            PassReason::NotLearnt => "not-learnt",
            PassReason::OneWay => "one-way",
            PassReason::AlternatePath => "alternate-path",
        }
    }
}

/// Where a flow's numbers come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learnt {
    /// The connection manager's REQ and REP.
    ConnectionManager,
    /// Requests and ACKs that passed.
    Traffic,
}

impl Learnt {
    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Learnt::ConnectionManager => "cm",
            Learnt::Traffic => "traffic",
        }
    }
}

/// Snapshot of one flow: the requests of one connection from the LAN to a responder beyond the WAN.
#[derive(Clone, Debug)]
pub struct FlowStatus {
    /// Requester's and responder's address, responder's QPN.
    pub key: FlowKey,
    /// The requester's QPN, once known.
    pub requester_qpn: Option<Qpn>,
    /// What is done with it.
    pub state: FlowState,
    /// Why it passes, if it does.
    pub pass_reason: Option<PassReason>,
    /// What its completions say, by the policy in force when it was learnt.
    pub mode: Mode,
    /// Which of two boxes this one is for it.
    pub role: Role,
    /// Where its numbers come from.
    pub learnt: Learnt,
    /// Path MTU in bytes, once known.
    pub path_mtu: Option<u32>,
    /// Smoothed round trip to the responder and back, once measured.
    pub rtt: Option<Duration>,
    /// Shortest round trip measured.
    pub rtt_min: Option<Duration>,
    /// How long requests wait for their pseudo-ACK, smoothed, once measured: from the first request
    /// that wants one to the ACK's leaving. One at a time is measured. What the responder must
    /// answer itself, in mode tail say, counts in full.
    pub ack_delay: Option<Duration>,
    /// Retransmission timeout in force.
    pub rto: Duration,
    /// Memory that the store takes, in bytes.
    pub stored_bytes: u64,
    /// Frames stored: not known to have reached the responder.
    pub stored_frames: usize,
    /// Frames stored of which none was sent yet, or which are to be sent again.
    pub unsent_frames: usize,
    /// READs and atomics without their last response.
    pub outstanding_reads: usize,
    /// The next PSN expected from the requester.
    pub expected_psn: Psn,
    /// The first PSN that was not acknowledged to the requester.
    pub unacknowledged_psn: Psn,
    /// The first PSN that the responder has not acknowledged.
    pub undelivered_psn: Psn,
    /// MSN of the last pseudo-ACK.
    pub msn: Msn,
    /// MSN of the last real ACK.
    pub responder_msn: Msn,
    /// Messages that finite credits of the responder still allow, `None` when it set no limit.
    pub credits: Option<u32>,
    /// True while pseudo-ACKs are withheld because the store is above its high watermark.
    pub back_pressure: bool,
    /// Activity of this flow.
    pub counters: FlowCounters,
    /// Frames of this flow taken off the wire, by reason.
    pub drops: Drops,
}

longhaul_counters::counters! {
    /// What was done for one flow since it was learnt; names as in [`crate::Counters`].
    pub struct FlowCounters {
        /// Request packets stored.
        stored_packets,
        /// Payload bytes of request packets stored.
        stored_payload_bytes,
        /// Request packets passed untouched because the flow's mode says so.
        passed_packets,
        /// Request packets known to have reached the responder.
        delivered_packets,
        /// Pseudo-ACKs sent.
        pseudo_acks,
        /// Pseudo-ACKs whose delay was measured.
        ack_delays,
        /// The sum of these delays, in nanoseconds.
        ack_delay_ns,
        /// Sequence NAKs sent.
        sequence_naks,
        /// Fatal NAKs sent.
        fatal_naks,
        /// Real ACKs absorbed.
        acks_absorbed,
        /// Sequence NAKs absorbed.
        packet_seq_err,
        /// RNR NAKs absorbed.
        rnr_nak_absorbed,
        /// Retransmission timeouts.
        timeouts,
        /// Packets sent again after a sequence NAK.
        retransmits_nak,
        /// Packets sent again after an RNR NAK.
        retransmits_rnr,
        /// Packets sent again after a timeout.
        retransmits_timeout,
        /// READs and atomics sent again because their responses had a gap.
        retransmits_read,
    }
}
