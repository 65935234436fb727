//! Counters and drop reasons of an accelerator.

longhaul_counters::counters! {
    /// Activity of an accelerator since it was created. Free-running, never reset.
    pub struct Counters {
        /// Frames received from the LAN.
        lan_frames_in,
        /// Bytes received from the LAN, without FCS.
        lan_bytes_in,
        /// Frames received from the WAN.
        wan_frames_in,
        /// Bytes received from the WAN, without FCS.
        wan_bytes_in,
        /// Frames sent to the LAN.
        lan_frames_out,
        /// Frames sent to the WAN.
        wan_frames_out,
        /// Frames passed through.
        passed,
        /// Passed-through frames, not RoCEv2, that were marked (ECN) because frames of their flow
        /// waited too long for room.
        passed_marked,
        /// RoCEv2 frames whose headers contradict their length; passed through.
        malformed,
        /// RoCEv2 packets with a wrong ICRC; passed through, never stored, acknowledged or used as
        /// evidence.
        rx_icrc_encapsulated,
        /// RoCEv2 packets with a right ICRC and a wrong IPv4 or UDP checksum, which their receiver
        /// drops; treated as those with a wrong ICRC.
        rx_checksum_wrong,
        /// Request packets stored.
        stored_packets,
        /// Payload bytes of request packets stored.
        stored_payload_bytes,
        /// Pseudo-ACKs sent to requesters.
        pseudo_acks,
        /// Pseudo-ACKs whose delay was measured, from the first request that wants one to its
        /// transmission.
        ack_delays,
        /// Sum of these delays, in nanoseconds.
        ack_delay_ns,
        /// Sequence NAKs sent to requesters.
        sequence_naks,
        /// RNR NAKs sent to requesters that wait for an acknowledgement while their responder is
        /// not ready or the store is full.
        rnr_naks,
        /// Fatal NAKs sent to requesters because pseudo-ACKed data could not be delivered.
        fatal_naks,
        /// Duplicate request packets, acknowledged again.
        duplicate_request,
        /// Gaps in the requests of requesters.
        out_of_sequence,
        /// ACKs of responders absorbed, because a pseudo-ACK has answered or answers the requester.
        acks_absorbed,
        /// ACKs for packets that this box has not seen, forwarded for the requester to process.
        acks_unseen,
        /// Acknowledge packets with a reserved syndrome, forwarded for the requester to process.
        syndromes_unknown,
        /// Sequence NAKs from responders, answered from the store.
        packet_seq_err,
        /// RNR NAKs from responders, waited out and answered from the store.
        rnr_nak_absorbed,
        /// Congestion notifications that slowed a flow down; they are forwarded too.
        rp_cnp_handled,
        /// Fatal NAKs of responders forwarded, for packets that had not been pseudo-ACKed.
        fatal_naks_passed,
        /// Retransmission timeouts.
        local_ack_timeout_err,
        /// Packets retransmitted after a sequence NAK.
        retransmits_nak,
        /// Packets retransmitted after an RNR NAK.
        retransmits_rnr,
        /// Packets retransmitted after a timeout.
        retransmits_timeout,
        /// READs and atomics retransmitted because their responses had a gap.
        retransmits_read,
        /// Duplicate READs and atomics of requesters forwarded.
        reads_replayed,
        /// Flows learnt from the connection manager.
        flows_from_cm,
        /// Flows whose directions were paired by their traffic.
        flows_from_traffic,
        /// ACKs that fit several candidate flows and paired none.
        pairing_ambiguous,
        /// Questions sent to responders, for requesters that make no progress.
        questions,
        /// Flows failed: pseudo-ACKed data could not be delivered.
        flows_failed,
        /// Flows that pass because no response of their responder reaches the box.
        flows_one_way,
        /// Flows that pass because a request has an opcode, or a version of the BTH, that the box
        /// does not know.
        flows_unknown_opcode,
        /// Packets with a version of the BTH that the box does not know, forwarded.
        versions_unknown,
        /// Connections whose ECE, an offer of vendor features, was cleared in REQ and REP.
        ece_cleared,
        /// Pairs of hosts advised of a wrong setting, once for each kind of advice.
        advice_given,
        /// Connections with an alternate path (APM), whose flows pass.
        alternate_paths,
        /// Flows evicted to make room for others.
        flows_evicted,
        /// Flows returned to learning because their PSNs did not fit.
        flows_reset,
        /// Requests that began another life of a flow's QPs while data of the previous life was
        /// undelivered.
        other_lives,
        /// Requests passed through because their connection found no room in the flow table.
        flow_table_full,
        /// Requests of unknown connections passed through because the accelerator drains.
        passed_draining,
        /// Pseudo-ACKed packets discarded undelivered: flow failed, reset or disconnected.
        stored_lost,
        /// Pseudo-ACKed packets of one-way flows that were retransmitted several times and
        /// released; whether they arrived is unknown.
        stored_unconfirmed,
        /// DREQs held until the store was delivered.
        dreqs_held,
        /// REPs held until the stores of departed flows between the same hosts were delivered.
        reps_held,
        ;
        /// Frames that the accelerator dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Why the accelerator dropped a frame.
    pub enum DropReason {
        /// The store is at its limit; a sequence NAK brings the requester back when there is room.
        StoreFull = "store_full",
        /// A request packet behind a gap; a sequence NAK was sent.
        PsnGap = "psn_gap",
        /// A request packet whose requester must wait because the responder is not ready; answered
        /// by an RNR NAK.
        NotReady = "not_ready",
        /// A request packet already stored or delivered; acknowledged again.
        Duplicate = "duplicate",
        /// A duplicate READ or atomic whose original is in flight.
        ReadInFlight = "read_in_flight",
        /// A request packet of a flow that has failed; answered by a fatal NAK.
        FlowFailed = "flow_failed",
        /// An ACK or NAK of a responder that the accelerator has processed for the requester.
        AckAbsorbed = "ack_absorbed",
        /// An ACK or NAK for a packet that was never sent.
        AckOutside = "ack_outside",
        /// A queue for passed-through frames is full.
        QueueFull = "queue_full",
        /// A passed-through frame, not RoCEv2, because frames of its flow waited too long for room;
        /// its sender slows down, as at any congested link (CoDel).
        QueueDelay = "queue_delay",
        /// A frame longer than 16 KiB, or an empty one.
        Oversized = "oversized",
        /// A MAC control frame, such as a pause: it is valid on one link only, and the accelerator
        /// is an end of that link.
        MacControl = "mac_control",
        /// A repetition of a DREQ that is already held.
        DreqHeld = "dreq_held",
    }
}
