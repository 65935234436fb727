//! Snapshots of flows, and their names in reports.

use crate::{Drops, FlowKey, Mode, Role};
use longhaul_units::{Duration, Msn, Psn, Qpn};

/// State of a flow in the accelerator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowState {
    /// Everything passes through while PSN, MSN and the requester's QPN are being learnt.
    Learning,
    /// Requests are stored and pseudo-ACKed; the accelerator delivers them.
    Terminated,
    /// Everything passes; [`PassReason`] says why. Nothing is stored or owed, except, in
    /// [`PassReason::OneWay`], packets acknowledged before.
    Passing,
    /// Pseudo-ACKed data could not be delivered: every further request is answered by a fatal NAK.
    Failed,
}

impl FlowState {
    /// All states.
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

/// Why a flow passes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassReason {
    /// The flow's mode requires it.
    Mode,
    /// The accelerator drains.
    Draining,
    /// The traffic did not identify the requester within 10 s and 1000 requests: no ACK passed, or
    /// each fitted another flow too.
    NotLearnt,
    /// No response passes this box: responses take another path, or there are none.
    OneWay,
    /// The connection has an alternate path (APM), or was asked to take one: requests may move to a
    /// path that this box does not see, and back.
    AlternatePath,
    /// A request had an opcode that the box does not know, such as FLUSH or ATOMIC WRITE, or
    /// another version of the BTH: how it is answered, and what must not overtake it, is not known.
    UnknownOpcode,
}

impl PassReason {
    /// All reasons.
    pub const ALL: [PassReason; 6] = [
        PassReason::Mode,
        PassReason::Draining,
        PassReason::NotLearnt,
        PassReason::OneWay,
        PassReason::AlternatePath,
        PassReason::UnknownOpcode,
    ];

    /// Lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            PassReason::Mode => "mode",
            PassReason::Draining => "draining",
            PassReason::NotLearnt => "not-learnt",
            PassReason::OneWay => "one-way",
            PassReason::AlternatePath => "alternate-path",
            PassReason::UnknownOpcode => "unknown-opcode",
        }
    }
}

/// Source of a flow's PSNs and QPNs.
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
    /// The flow's state.
    pub state: FlowState,
    /// Why it passes, if it does.
    pub pass_reason: Option<PassReason>,
    /// The meaning of its completions, by the policy in force when it was learnt.
    pub mode: Mode,
    /// Position of this box in the pair.
    pub role: Role,
    /// Source of its PSNs and QPNs.
    pub learnt: Learnt,
    /// Path MTU in bytes, once known.
    pub path_mtu: Option<u32>,
    /// Smoothed RTT to the responder, once measured.
    pub rtt: Option<Duration>,
    /// Shortest RTT measured.
    pub rtt_min: Option<Duration>,
    /// Smoothed delay of pseudo-ACKs, once measured: from the first request that wants one to its
    /// transmission. One request at a time is measured. If only the responder can answer, as in
    /// mode tail, the delay includes the round trip.
    pub ack_delay: Option<Duration>,
    /// Retransmission timeout in force.
    pub rto: Duration,
    /// Bytes of memory that the store uses.
    pub stored_bytes: u64,
    /// Frames stored: not known to be delivered.
    pub stored_frames: usize,
    /// Stored frames that are to be sent for the first time or retransmitted.
    pub unsent_frames: usize,
    /// READs and atomics without their last response.
    pub outstanding_reads: usize,
    /// The next PSN expected from the requester.
    pub expected_psn: Psn,
    /// The first PSN not acknowledged to the requester.
    pub unacknowledged_psn: Psn,
    /// The first PSN that the responder has not acknowledged.
    pub undelivered_psn: Psn,
    /// MSN of the last pseudo-ACK.
    pub msn: Msn,
    /// MSN of the last real ACK.
    pub responder_msn: Msn,
    /// Messages that the responder's credits still allow; `None`: unlimited.
    pub credits: Option<u32>,
    /// True while pseudo-ACKs are withheld because too much is acknowledged and undelivered.
    pub back_pressure: bool,
    /// Activity of this flow.
    pub counters: FlowCounters,
    /// Frames of this flow that were dropped, by reason.
    pub drops: Drops,
}

longhaul_counters::counters! {
    /// Activity of one flow since it was learnt; names as in [`crate::Counters`].
    pub struct FlowCounters {
        /// Request packets stored.
        stored_packets,
        /// Payload bytes of request packets stored.
        stored_payload_bytes,
        /// Request packets passed through unacknowledged.
        passed_packets,
        /// Request packets known to be delivered.
        delivered_packets,
        /// Pseudo-ACKs sent.
        pseudo_acks,
        /// Pseudo-ACKs whose delay was measured.
        ack_delays,
        /// Sum of these delays, in nanoseconds.
        ack_delay_ns,
        /// Gaps in the requests.
        out_of_sequence,
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
        /// Congestion notifications that slowed the flow down.
        rp_cnp_handled,
        /// Retransmission timeouts.
        timeouts,
        /// Packets retransmitted after a sequence NAK.
        retransmits_nak,
        /// Packets retransmitted after an RNR NAK.
        retransmits_rnr,
        /// Packets retransmitted after a timeout.
        retransmits_timeout,
        /// READs and atomics retransmitted because their responses had a gap.
        retransmits_read,
    }
}
