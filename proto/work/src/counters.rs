//! Counters and drop reasons of a device.

longhaul_counters::events! {
    /// Reason to drop a packet. Each reason has a [`Counter`] of the same name.
    pub enum DropReason {
        /// The frame is not RoCEv2.
        NotRoce = "rx_not_roce",
        /// A MAC control frame of another kind than priority-based flow control, or one that the
        /// port does not obey.
        MacControl = "rx_unsupported_op_phy",
        /// Headers and lengths contradict each other.
        Malformed = "rx_malformed",
        /// The ICRC is wrong.
        Icrc = "rx_icrc_encapsulated",
        /// The ICRC is right, and the IPv4 checksum, or the UDP checksum if there is one, is wrong.
        Checksum = "rx_checksum_wrong",
        /// BTH version other than 0.
        Version = "rx_bth_version",
        /// An opcode that this device does not support.
        Opcode = "rx_opcode_unsupported",
        /// The destination IP address is not the port's.
        DestinationIp = "rx_destination_ip",
        /// No QP has the destination QPN.
        NoQp = "rx_no_qp",
        /// The source IP address is not the QP's peer.
        SourceIp = "rx_source_ip",
        /// The partition key does not match.
        PKey = "rx_pkey_mismatch",
        /// The QKey of a datagram is not the QP's.
        QKey = "qkey_viol_cntr",
        /// The QP's state does not receive this kind of packet.
        QpState = "rx_qp_state",
        /// A datagram to QP1 that is not a valid MAD: wrong length, QKey or opcode.
        Mad = "rx_mad_invalid",
        /// A congestion notification while congestion control is disabled.
        Cnp = "rp_cnp_ignored",
        /// A request whose PSN is past the expected one.
        OutOfSequence = "out_of_sequence",
        /// An ACK, NAK or response older than all outstanding packets.
        GhostAck = "rx_ghost_ack",
        /// An ACK, NAK or response for a PSN that was never sent.
        UnsentAck = "rx_unsent_ack",
        /// An AETH with a reserved syndrome.
        Syndrome = "rx_aeth_reserved",
        /// A READ response that arrived after a missing one.
        ResponseGap = "rx_read_response_gap",
        /// A duplicate sequence or RNR NAK while its repair is in progress.
        NakIgnored = "rx_nak_ignored",
        /// A duplicate READ or atomic that contradicts the original, or for which there is no
        /// space.
        DuplicateRead = "rx_duplicate_read_invalid",
        /// A request that arrived while an RNR NAK or a fatal NAK is in effect.
        ResponderHalted = "rx_responder_halted",
        /// No receive request was posted, and the transport cannot report it.
        NoReceive = "out_of_buffer",
        /// A datagram longer than the MTU or the receive request.
        TooLong = "rx_datagram_too_long",
        /// A later packet of an unreliable message whose earlier ones are missing or were refused.
        BrokenMessage = "rx_broken_message",
        /// An unreliable WRITE that the peer may not perform.
        WriteRefused = "rx_write_refused",
    }
    /// A counted event. The name is that of the RDMA hardware counter if one exists.
    pub enum Counter {
        /// Frames received.
        RxFrames = "rx_frames",
        /// Bytes received, Ethernet header to ICRC.
        RxBytes = "rx_bytes",
        /// Frames sent.
        TxFrames = "tx_frames",
        /// Bytes sent, Ethernet header to ICRC.
        TxBytes = "tx_bytes",
        /// Priority-based pause frames received and obeyed, including those that end a pause.
        RxPause = "rx_prio_pause",
        /// Nanoseconds during which a priority was paused, summed over the priorities.
        RxPausedNs = "rx_prio_pause_duration_ns",
        /// Datagrams longer than the MTU, completed without being sent.
        TxTooLong = "tx_datagram_too_long",
        /// Gaps and steps back in the PSNs of unreliable connections.
        SequenceGap = "rx_sequence_gaps",
        /// Unreliable messages aborted before they were complete.
        MessageBrokenOff = "rx_messages_broken_off",
        /// WRITE messages received whole.
        RxWriteRequests = "rx_write_requests",
        /// READ requests received, duplicates excluded.
        RxReadRequests = "rx_read_requests",
        /// Atomics received, duplicates excluded.
        RxAtomicRequests = "rx_atomic_requests",
        /// SEND messages received whole.
        RxSendRequests = "rx_send_requests",
        /// Duplicate requests received.
        DuplicateRequest = "duplicate_request",
        /// ACKs received that acknowledged something.
        RxAcks = "rx_acks",
        /// ACKs sent.
        TxAcks = "tx_acks",
        /// Sequence NAKs sent.
        TxSequenceNak = "tx_psn_seq_nak",
        /// RNR NAKs sent because no receive request was posted.
        TxRnrNak = "tx_rnr_nak",
        /// Sequence NAKs received.
        PacketSeqErr = "packet_seq_err",
        /// RNR NAKs received.
        RxRnrNak = "rx_rnr_nak",
        /// RNR retries exceeded.
        RnrNakRetryErr = "rnr_nak_retry_err",
        /// Responses that overtook an outstanding READ, or a gap inside one.
        ImpliedNakSeqErr = "implied_nak_seq_err",
        /// Expiries of the local ACK timer.
        LocalAckTimeoutErr = "local_ack_timeout_err",
        /// Retries exceeded.
        RetryExceededErr = "req_transport_retries_exceeded",
        /// Request packets retransmitted.
        TxRetransmits = "tx_retransmits",
        /// Requests answered with "invalid request".
        RespInvalidRequest = "resp_remote_invalid_request_errors",
        /// Requests answered with "remote access error".
        RespRemoteAccess = "resp_remote_access_errors",
        /// Requests answered with "remote operational error".
        RespRemoteOperation = "resp_remote_operational_errors",
        /// Local length errors of the responder.
        RespLocalLength = "resp_local_length_error",
        /// "Invalid request" received.
        ReqRemoteInvalidRequest = "req_remote_invalid_request",
        /// "Remote access error" received.
        ReqRemoteAccess = "req_remote_access_errors",
        /// "Remote operational error" received.
        ReqRemoteOperation = "req_remote_operational_errors",
        /// Responses that no conforming responder sends.
        ReqBadResponse = "req_bad_response",
        /// Packets received with a switch's congestion mark.
        EcnMarkedPackets = "np_ecn_marked_roce_packets",
        /// Congestion notifications sent.
        CnpSent = "np_cnp_sent",
        /// Congestion notifications received and obeyed.
        CnpHandled = "rp_cnp_handled",
        /// Completions with an error, flushes included.
        CqeError = "cqe_error",
        /// Completions with a flush error.
        CqeFlushError = "cqe_flush_error",
        /// Completions lost because their CQ was full.
        CqOverrun = "cq_overrun",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users read these names in counter files, status, JSON and metrics: they do not change.
    #[rustfmt::skip]
    const NAMES: [&str; 66] = [
        "rx_not_roce", "rx_unsupported_op_phy", "rx_malformed", "rx_icrc_encapsulated",
        "rx_checksum_wrong",
        "rx_bth_version", "rx_opcode_unsupported", "rx_destination_ip", "rx_no_qp", "rx_source_ip",
        "rx_pkey_mismatch", "qkey_viol_cntr", "rx_qp_state", "rx_mad_invalid", "rp_cnp_ignored",
        "out_of_sequence", "rx_ghost_ack", "rx_unsent_ack", "rx_aeth_reserved",
        "rx_read_response_gap", "rx_nak_ignored", "rx_duplicate_read_invalid",
        "rx_responder_halted", "out_of_buffer", "rx_datagram_too_long", "rx_broken_message",
        "rx_write_refused",
        "rx_frames", "rx_bytes", "tx_frames", "tx_bytes", "rx_prio_pause",
        "rx_prio_pause_duration_ns", "tx_datagram_too_long", "rx_sequence_gaps",
        "rx_messages_broken_off", "rx_write_requests", "rx_read_requests", "rx_atomic_requests",
        "rx_send_requests", "duplicate_request", "rx_acks", "tx_acks", "tx_psn_seq_nak",
        "tx_rnr_nak", "packet_seq_err", "rx_rnr_nak", "rnr_nak_retry_err", "implied_nak_seq_err",
        "local_ack_timeout_err", "req_transport_retries_exceeded", "tx_retransmits",
        "resp_remote_invalid_request_errors", "resp_remote_access_errors",
        "resp_remote_operational_errors", "resp_local_length_error", "req_remote_invalid_request",
        "req_remote_access_errors", "req_remote_operational_errors", "req_bad_response",
        "np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "cqe_error",
        "cqe_flush_error", "cq_overrun",
    ];

    #[test]
    fn names_that_users_know_stay() {
        assert_eq!(Counter::ALL.iter().map(|c| c.name()).collect::<Vec<_>>(), NAMES);
        assert_eq!(DropReason::ALL.iter().map(|r| r.name()).collect::<Vec<_>>(), NAMES[..27]);
        assert!(Counter::ALL.iter().all(|c| c.meaning().ends_with('.')));
    }

    #[test]
    fn a_drop_reason_counts_under_its_own_name() {
        for reason in DropReason::ALL {
            let mut counters = Counters::default();
            counters.count(*reason);
            let counted: Vec<_> = counters.iter().filter(|(_, count)| *count > 0).collect();
            assert_eq!(counted, [(Counter::from(*reason), 1)]);
            assert_eq!((counted[0].0.name(), counters.drops()), (reason.name(), 1));
        }
    }

    #[test]
    fn an_event_is_no_drop() {
        let mut counters = Counters::default();
        counters.add(Counter::RxFrames, 3);
        assert_eq!((counters.get(Counter::RxFrames), counters.drops()), (3, 0));
    }
}
