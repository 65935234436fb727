//! Counters and drop reasons, declared once: names for people and programs derive from the same
//! list.

/// Declares a device's counters: first the drop reasons, then other events.
macro_rules! declare {
    (
        drops { $($(#[doc = $ddoc:literal])+ $drop:ident = $dname:literal;)* }
        happenings { $($(#[doc = $cdoc:literal])+ $count:ident = $cname:literal;)* }
    ) => {
        /// Reason to drop a packet. Each reason has a [`Counter`] of the same name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[doc = $ddoc])+ $drop,)* }

        /// A counted event.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Counter { $($(#[doc = $ddoc])+ $drop,)* $($(#[doc = $cdoc])+ $count,)* }

        impl DropReason {
            /// All of them, in the order of declaration.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$drop,)*];

            /// The reason's counter.
            #[inline]
            pub const fn counter(self) -> Counter {
                match self { $(DropReason::$drop => Counter::$drop,)* }
            }
        }

        impl Counter {
            /// All of them, drops first, in the order of declaration.
            pub const ALL: &'static [Counter] = &[$(Counter::$drop,)* $(Counter::$count,)*];

            /// Name in reports: that of the RDMA hardware counter if one exists.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$drop => $dname,)* $(Counter::$count => $cname,)* }
            }

            /// Description, as a sentence.
            pub fn description(self) -> &'static str {
                match self {
                    $(Counter::$drop => concat!($($ddoc),+).trim_ascii(),)*
                    $(Counter::$count => concat!($($cdoc),+).trim_ascii(),)*
                }
            }

            /// `true` if the counter counts dropped packets.
            pub const fn is_drop(self) -> bool {
                (self as usize) < DropReason::ALL.len()
            }
        }
    };
}

declare! {
    drops {
        /// The frame is not RoCEv2.
        NotRoce = "rx_not_roce";
        /// A MAC control frame of another kind than priority-based flow control, or one that the
        /// port does not obey.
        MacControl = "rx_unsupported_op_phy";
        /// Headers and lengths contradict each other.
        Malformed = "rx_malformed";
        /// The ICRC is wrong.
        Icrc = "rx_icrc_encapsulated";
        /// BTH version other than 0.
        Version = "rx_bth_version";
        /// An opcode that this device does not support.
        Opcode = "rx_opcode_unsupported";
        /// The destination IP address is not the port's.
        DestinationIp = "rx_destination_ip";
        /// No QP has the destination QPN.
        NoQp = "rx_no_qp";
        /// The source IP address is not the QP's peer.
        SourceIp = "rx_source_ip";
        /// The partition key does not match.
        PKey = "rx_pkey_mismatch";
        /// The QKey of a datagram is not the QP's.
        QKey = "qkey_viol_cntr";
        /// The QP's state does not receive this kind of packet.
        QpState = "rx_qp_state";
        /// A datagram to QP1 that is not a valid MAD: wrong length, QKey or opcode.
        Mad = "rx_mad_invalid";
        /// A congestion notification while congestion control is disabled.
        Cnp = "rp_cnp_ignored";
        /// A request whose PSN is past the expected one.
        OutOfSequence = "out_of_sequence";
        /// An ACK, NAK or response older than all outstanding packets.
        GhostAck = "rx_ghost_ack";
        /// An ACK, NAK or response for a PSN that was never sent.
        UnsentAck = "rx_unsent_ack";
        /// An AETH with a reserved syndrome.
        Syndrome = "rx_aeth_reserved";
        /// A READ response that arrived after a missing one.
        ResponseGap = "rx_read_response_gap";
        /// A duplicate sequence or RNR NAK while its repair is in progress.
        NakIgnored = "rx_nak_ignored";
        /// A duplicate READ or atomic that contradicts the original, or for which there is no
        /// space.
        DuplicateRead = "rx_duplicate_read_invalid";
        /// A request that arrived while an RNR NAK or a fatal NAK is in effect.
        ResponderHalted = "rx_responder_halted";
        /// No receive request was posted, and the transport cannot report it.
        NoReceive = "out_of_buffer";
        /// A datagram longer than the MTU or the receive request.
        TooLong = "rx_datagram_too_long";
        /// A later packet of an unreliable message whose earlier ones are missing or were refused.
        BrokenMessage = "rx_broken_message";
        /// An unreliable WRITE that the peer may not perform.
        WriteRefused = "rx_write_refused";
    }
    happenings {
        /// Frames received.
        RxFrames = "rx_frames";
        /// Bytes received, Ethernet header to ICRC.
        RxBytes = "rx_bytes";
        /// Frames sent.
        TxFrames = "tx_frames";
        /// Bytes sent, Ethernet header to ICRC.
        TxBytes = "tx_bytes";
        /// Priority-based pause frames received and obeyed, including those that end a pause.
        RxPause = "rx_prio_pause";
        /// Nanoseconds during which a priority was paused, summed over the priorities.
        RxPausedNs = "rx_prio_pause_duration_ns";
        /// Datagrams longer than the MTU, completed without being sent.
        TxTooLong = "tx_datagram_too_long";
        /// Gaps and steps back in the PSNs of unreliable connections.
        SequenceGap = "rx_sequence_gaps";
        /// Unreliable messages aborted before they were complete.
        MessageBrokenOff = "rx_messages_broken_off";
        /// WRITE messages received whole.
        RxWriteRequests = "rx_write_requests";
        /// READ requests received, duplicates excluded.
        RxReadRequests = "rx_read_requests";
        /// Atomics received, duplicates excluded.
        RxAtomicRequests = "rx_atomic_requests";
        /// SEND messages received whole.
        RxSendRequests = "rx_send_requests";
        /// Duplicate requests received.
        DuplicateRequest = "duplicate_request";
        /// ACKs received that acknowledged something.
        RxAcks = "rx_acks";
        /// ACKs sent.
        TxAcks = "tx_acks";
        /// Sequence NAKs sent.
        TxSequenceNak = "tx_psn_seq_nak";
        /// RNR NAKs sent because no receive request was posted.
        TxRnrNak = "tx_rnr_nak";
        /// Sequence NAKs received.
        PacketSeqErr = "packet_seq_err";
        /// RNR NAKs received.
        RxRnrNak = "rx_rnr_nak";
        /// RNR retries exceeded.
        RnrNakRetryErr = "rnr_nak_retry_err";
        /// Responses that overtook an outstanding READ, or a gap inside one.
        ImpliedNakSeqErr = "implied_nak_seq_err";
        /// Expiries of the local ACK timer.
        LocalAckTimeoutErr = "local_ack_timeout_err";
        /// Retries exceeded.
        RetryExceededErr = "req_transport_retries_exceeded";
        /// Request packets retransmitted.
        TxRetransmits = "tx_retransmits";
        /// Requests answered with "invalid request".
        RespInvalidRequest = "resp_remote_invalid_request_errors";
        /// Requests answered with "remote access error".
        RespRemoteAccess = "resp_remote_access_errors";
        /// Requests answered with "remote operational error".
        RespRemoteOperation = "resp_remote_operational_errors";
        /// Local length errors of the responder.
        RespLocalLength = "resp_local_length_error";
        /// "Invalid request" received.
        ReqRemoteInvalidRequest = "req_remote_invalid_request";
        /// "Remote access error" received.
        ReqRemoteAccess = "req_remote_access_errors";
        /// "Remote operational error" received.
        ReqRemoteOperation = "req_remote_operational_errors";
        /// Responses that no conforming responder sends.
        ReqBadResponse = "req_bad_response";
        /// Packets received with a switch's congestion mark.
        EcnMarkedPackets = "np_ecn_marked_roce_packets";
        /// Congestion notifications sent.
        CnpSent = "np_cnp_sent";
        /// Congestion notifications received and obeyed.
        CnpHandled = "rp_cnp_handled";
        /// Completions with an error, flushes included.
        CqeError = "cqe_error";
        /// Completions with a flush error.
        CqeFlushError = "cqe_flush_error";
        /// Completions lost because their CQ was full.
        CqOverrun = "cq_overrun";
    }
}

impl From<DropReason> for Counter {
    fn from(reason: DropReason) -> Counter {
        reason.counter()
    }
}

/// One free-running count per [`Counter`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Counters([0; Counter::ALL.len()])
    }
}

impl Counters {
    /// Adds one to `counter`.
    #[inline]
    pub fn count(&mut self, counter: impl Into<Counter>) {
        self.add(counter.into(), 1);
    }

    /// Adds `n` to `counter`.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Value of `counter`.
    #[inline]
    pub fn get(&self, counter: impl Into<Counter>) -> u64 {
        self.0[counter.into() as usize]
    }

    /// Every counter with its value, drops first.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&c| (c, self.get(c)))
    }

    /// Packets dropped for any reason.
    pub fn drops(&self) -> u64 {
        DropReason::ALL.iter().map(|&r| self.get(r)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_described() {
        let names: HashSet<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().all(|c| c.description().ends_with('.')));
    }

    #[test]
    fn a_drop_reason_counts_under_its_own_name() {
        let mut counters = Counters::default();
        counters.count(DropReason::Icrc);
        assert_eq!(counters.get(Counter::Icrc), 1);
        assert_eq!(counters.drops(), 1);
        assert!(Counter::Icrc.is_drop() && !Counter::RxFrames.is_drop());
    }
}
