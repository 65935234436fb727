//! Counters of a transport, and its drop reasons.

longhaul_counters::counters! {
    /// Counters of a transport. Free-running, never reset.
    pub struct Counters {
        /// Frames received from inside.
        inner_frames_in,
        /// Frames sent inside.
        inner_frames_out,
        /// Frames received from the WAN, on any path.
        wan_frames_in,
        /// Frames sent to the WAN, on any path, control datagrams included.
        wan_frames_out,
        /// Frames forwarded untunnelled.
        passed,
        /// Frames forwarded untunnelled, not RoCEv2, that were marked (ECN) because frames of their
        /// flow waited too long for room.
        passed_marked,
        /// Frames put into a stream.
        tunnelled,
        /// Tunnelled UC and UD frames, whose senders nothing paces.
        unpaced,
        /// Frames delivered inside, in the order of their stream.
        delivered,
        /// Transmissions of frames and stream records, retransmissions included.
        sent,
        /// Retransmissions of frames and stream records presumed lost.
        repeated,
        /// PARITY datagrams sent.
        parity_sent,
        /// PARITY datagrams received with a valid check.
        parity_received,
        /// PARITY datagrams that could not be used: too late, of an invalid group, or contradicting
        /// it.
        parity_unused,
        /// Frames and stream records repaired by parity.
        repaired,
        /// Frames and parts of frames that were split because they are too long for a path.
        split,
        /// Transmissions of parts of frames.
        parts_sent,
        /// Frames that arrived in parts and were reassembled.
        assembled,
        /// PINGs that probe the path MTU.
        mtu_probes,
        /// MTU black holes detected: long datagrams stopped getting through.
        mtu_black_holes,
        /// PARITY datagrams not sent because they exceed the path MTU.
        parity_too_long,
        /// Tail probes: transmissions that solicit an acknowledgement after a silence.
        tail_probes,
        /// Transmissions presumed lost that had arrived.
        spurious,
        /// Frames received again under another number.
        duplicates,
        /// Datagrams received again under the same number.
        replayed,
        /// Datagrams with a congestion mark.
        congested,
        /// Frames whose ICRC was wrong before they entered the tunnel; their place stays empty.
        void,
        /// Acknowledgements sent.
        acks_sent,
        /// Acknowledgements received.
        acks_received,
        /// Acknowledgements of numbers that were never sent; ignored.
        ack_outside,
        /// HELLOs sent in search of a far box.
        hellos_sent,
        /// Replies to unauthenticated peers.
        answers_sent,
        /// Sessions opened.
        sessions_opened,
        /// Sessions ended by the far box, by its restart or by its silence.
        sessions_closed,
        /// Sessions without traffic that were displaced by a box of the same number, or for lack of
        /// room.
        sessions_displaced,
        /// Frames that were lost with a session.
        lost_with_session,
        /// Times that a path was declared down.
        path_outages,
        /// Refusals, by either box, because no version is common.
        refused_version,
        /// Refusals, by either box, because the policies differ.
        refused_policy,
        /// Refusals, by either box, because the numbers of cores differ.
        refused_cores,
        /// Streams for which the table had no room; their frames pass untunnelled.
        stream_table_full,
        /// Streams that were given up because none of their frames arrives although the paths work,
        /// as when another box receives them; their frames pass untunnelled.
        streams_astray,
        /// Addresses for which the table had no room; frames to them pass untunnelled.
        address_table_full,
        /// RoCEv2 frames that cannot be tunnelled; forwarded untunnelled.
        untunnelable,
        /// Frames that waited during the search for a far box.
        waited,
        ;
        /// Frames that the transport dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Reason to drop a frame.
    pub enum DropReason {
        /// The store for a far box is full, and the sender did not respect back-pressure.
        StoreFull = "store_full",
        /// A UC or UD frame beyond its source's share of queue and store; nothing paces its sender.
        ShareFull = "share_full",
        /// A frame of a stream that never reaches the far box.
        Astray = "astray",
        /// A queue for passed-through frames is full.
        QueueFull = "queue_full",
        /// A passed-through frame, not RoCEv2, because frames of its flow waited too long for room;
        /// its sender slows down, as at any congested link (CoDel).
        QueueDelay = "queue_delay",
        /// A frame longer than 16 KiB, or an empty one.
        Oversized = "oversized",
        /// A datagram with an invalid check or IPv4 header checksum, or a tunnelled frame with a
        /// wrong ICRC: damaged in transit.
        Corrupted = "corrupted",
        /// A malformed datagram.
        Malformed = "malformed",
        /// A datagram of an unknown session.
        UnknownSession = "unknown_session",
        /// A number received before.
        Replayed = "replayed",
        /// A number outside the window of its path.
        NumberOutside = "number_outside",
        /// A stream beyond the session's maximum, or a position too far ahead.
        StreamOutside = "stream_outside",
        /// A frame that is held or was delivered.
        Duplicate = "duplicate",
        /// A frame for which there is no memory: the far box exceeded the advertised room.
        NoRoom = "no_room",
        /// A HELLO or PING of an unauthenticated peer, beyond the reply rate.
        TooManyQuestions = "too_many_questions",
        /// An unsolicited answer, or one with a wrong cookie.
        Unasked = "unasked",
        /// A HELLO that claims the box number of an existing session; that session is challenged
        /// first.
        SessionStands = "session_stands",
        /// A datagram of another version.
        Version = "version",
    }
}
