//! Counters of an accelerator, and its drop reasons.

longhaul_counters::counters! {
    /// What an accelerator has done since it was made. Free-running, never reset.
    pub struct Counters {
        /// Frames that came in from the LAN.
        lan_frames_in,
        /// Bytes that came in from the LAN, without FCS.
        lan_bytes_in,
        /// Frames that came in from the WAN.
        wan_frames_in,
        /// Bytes that came in from the WAN, without FCS.
        wan_bytes_in,
        /// Frames sent to the LAN.
        lan_frames_out,
        /// Frames sent to the WAN.
        wan_frames_out,
        /// Frames passed on without being understood or needed.
        passed,
        /// RoCEv2 frames whose headers contradict their length; passed on untouched.
        malformed,
        /// RoCEv2 packets with a wrong ICRC; passed on untouched, never stored, acknowledged or
        /// believed.
        rx_icrc_encapsulated,
        /// Request packets stored.
        stored_packets,
        /// Payload bytes of request packets stored.
        stored_payload_bytes,
        /// Pseudo-ACKs sent to requesters.
        pseudo_acks,
        /// Pseudo-ACKs whose delay was measured: from the request that first wanted one to its
        /// leaving.
        ack_delays,
        /// The sum of these delays, in nanoseconds.
        ack_delay_ns,
        /// Sequence NAKs sent to requesters.
        sequence_naks,
        /// RNR NAKs sent to requesters that wait for an acknowledgement while their responder is
        /// not ready, or there is no room.
        rnr_naks,
        /// Fatal NAKs sent to requesters: the accelerator could not keep what it had promised.
        fatal_naks,
        /// Duplicate request packets that were acknowledged again.
        duplicate_request,
        /// Gaps in what came from requesters.
        out_of_sequence,
        /// Real ACKs absorbed: the requester had been answered, or is answered by a pseudo-ACK.
        acks_absorbed,
        /// ACKs for packets that this box has not seen, forwarded for the requester to judge.
        acks_unseen,
        /// Sequence NAKs from responders, answered from the store.
        packet_seq_err,
        /// RNR NAKs from responders, waited out and answered from the store.
        rnr_nak_absorbed,
        /// Congestion notifications that slowed down a flow; they are passed on too.
        rp_cnp_handled,
        /// Fatal NAKs from responders that were passed on, for packets that had not been
        /// pseudo-ACKed.
        fatal_naks_passed,
        /// Retransmission timeouts.
        local_ack_timeout_err,
        /// Packets sent again because the responder asked for them by a sequence NAK.
        retransmits_nak,
        /// Packets sent again after an RNR NAK.
        retransmits_rnr,
        /// Packets sent again after a timeout.
        retransmits_timeout,
        /// READs and atomics sent again because their responses had a gap.
        retransmits_read,
        /// Duplicate READs and atomics of requesters passed on.
        reads_replayed,
        /// Flows learnt from the connection manager.
        flows_from_cm,
        /// Flows whose directions were paired by their traffic.
        flows_from_traffic,
        /// ACKs that fitted several candidate flows and paired none.
        pairing_ambiguous,
        /// Responders asked how far they are, for requesters whose packets lead nowhere.
        questions,
        /// Flows given up: pseudo-ACKed data could not be delivered.
        flows_failed,
        /// Flows that pass because no answer of their responder comes by.
        flows_one_way,
        /// Connections with an alternate path (APM), whose flows pass.
        alternate_paths,
        /// Flows removed to make room for others.
        flows_evicted,
        /// Flows sent back to learning: their PSNs no longer fitted.
        flows_reset,
        /// Requests that began another life of a flow's QPs while data of the one before was still
        /// to be delivered.
        other_lives,
        /// Requests of connections that found no room in the flow table and pass untouched.
        flow_table_full,
        /// Requests of unknown connections that pass untouched because the accelerator drains.
        passed_draining,
        /// Pseudo-ACKed packets that were discarded undelivered: flow failed, reset or
        /// disconnected.
        stored_lost,
        /// Pseudo-ACKed packets of one-way flows that were sent several times and let go: nobody
        /// here can tell whether they arrived.
        stored_unconfirmed,
        /// DREQs held until the store was delivered.
        dreqs_held,
        ;
        /// Frames that the accelerator dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Why the accelerator did not pass a frame on.
    pub enum DropReason {
        /// The store is at its limit; the requester is brought back by a sequence NAK when there is
        /// room.
        StoreFull = "store_full",
        /// A request packet behind a gap; a sequence NAK was sent.
        PsnGap = "psn_gap",
        /// A request packet that came while its requester is to wait: the responder is not ready.
        /// Answered by an RNR NAK.
        NotReady = "not_ready",
        /// A request packet that is stored or delivered already; acknowledged again.
        Duplicate = "duplicate",
        /// A duplicate READ or atomic whose original is in flight.
        ReadInFlight = "read_in_flight",
        /// A request packet of a flow that has failed; answered by a fatal NAK.
        FlowFailed = "flow_failed",
        /// A real ACK or NAK that the accelerator has taken over from the requester.
        AckAbsorbed = "ack_absorbed",
        /// An ACK or NAK for a packet that was never sent.
        AckOutside = "ack_outside",
        /// A queue for passed-through frames is full.
        QueueFull = "queue_full",
        /// A frame longer than 16 KiB, or one without any bytes.
        Oversized = "oversized",
        /// A MAC control frame, such as a pause: it concerns the two ends of one link alone, and
        /// the accelerator is one of them.
        MacControl = "mac_control",
        /// A DREQ that repeats one already held.
        DreqHeld = "dreq_held",
    }
}
