//! Counters of a transport, and its drop reasons.

longhaul_counters::counters! {
    /// What a transport has done since it was made. Free-running, never reset.
    pub struct Counters {
        /// Frames that came in from inside.
        inner_frames_in,
        /// Frames sent inside.
        inner_frames_out,
        /// Frames that came in from the WAN, on any path.
        wan_frames_in,
        /// Frames sent to the WAN, on any path, control datagrams included.
        wan_frames_out,
        /// Frames passed on untunnelled.
        passed,
        /// Frames taken into a stream.
        tunnelled,
        /// Of those, UC and UD, whose senders nothing holds back.
        unpaced,
        /// Frames handed inside in the order of their stream.
        delivered,
        /// Transmissions of frames and stream records, the first ones included.
        sent,
        /// Transmissions that repeat one taken for lost.
        repeated,
        /// PARITY datagrams sent.
        parity_sent,
        /// PARITY datagrams received whose check was right.
        parity_received,
        /// PARITY datagrams that could not be used: too late, of a group that makes no sense, or
        /// contradicting it.
        parity_unused,
        /// Frames and stream records that parity brought.
        repaired,
        /// Frames and parts of frames that were split because they are too long for a path.
        split,
        /// Transmissions of parts of frames.
        parts_sent,
        /// Frames that came in parts and were put together.
        assembled,
        /// PINGs that ask for the length that a path takes.
        mtu_probes,
        /// Times that long datagrams were found not to get through any more.
        mtu_black_holes,
        /// PARITY datagrams left out because they are too long for the path.
        parity_too_long,
        /// Transmissions that ask the far box for an answer after a silence.
        tail_probes,
        /// Transmissions taken for lost that had arrived.
        spurious,
        /// Frames that came again under another number.
        duplicates,
        /// Datagrams that came again under the same number.
        replayed,
        /// Datagrams with a congestion mark.
        congested,
        /// Frames that could not be delivered because their ICRC was wrong from the start.
        void,
        /// Acknowledgements sent.
        acks_sent,
        /// Acknowledgements received.
        acks_received,
        /// Acknowledgements that name what was never sent; nothing of them was believed.
        ack_outside,
        /// HELLOs sent in search of a far box.
        hellos_sent,
        /// Replies to unauthenticated peers.
        answers_sent,
        /// Sessions opened.
        sessions_opened,
        /// Sessions closed, by the far box, because it restarted or after its silence.
        sessions_closed,
        /// Sessions that had carried nothing and were displaced by another: of the same name, or
        /// for want of room.
        sessions_displaced,
        /// Frames that were lost with a session.
        lost_with_session,
        /// Times that a path was taken for out.
        path_outages,
        /// Far boxes refused, or refused by, because no version is common.
        refused_version,
        /// Far boxes refused, or refused by, because the policies differ.
        refused_policy,
        /// Far boxes refused, or refused by, because they have another number of cores.
        refused_cores,
        /// Streams that found no room in the table: their frames pass untunnelled.
        stream_table_full,
        /// Streams of which nothing arrives although the paths work, as where another box gets
        /// them: their frames pass untunnelled.
        streams_astray,
        /// Addresses that found no room in the table: frames to them pass untunnelled.
        address_table_full,
        /// RoCEv2 frames that do not fit a tunnel; passed on untunnelled.
        untunnelable,
        /// Frames that waited while a far box was looked for.
        waited,
        ;
        /// Frames that the transport dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Why the transport did not pass a frame on.
    pub enum DropReason {
        /// The store for a far box is full: whoever sends does not wait for room.
        StoreFull = "store_full",
        /// A UC or UD frame beyond its source's share of the queue and the store: nothing holds its
        /// sender back.
        ShareFull = "share_full",
        /// A frame of a stream of which nothing arrives at the far box.
        Astray = "astray",
        /// A queue for passed-through frames is full.
        QueueFull = "queue_full",
        /// A frame longer than 16 KiB, or one without any bytes.
        Oversized = "oversized",
        /// A datagram with a wrong check, or a tunnelled frame with a wrong ICRC: damaged in
        /// transit.
        Corrupted = "corrupted",
        /// A datagram of this format that makes no sense.
        Malformed = "malformed",
        /// A datagram of a session that there is not.
        UnknownSession = "unknown_session",
        /// A number that was there before.
        Replayed = "replayed",
        /// A number too old or too far ahead to be one of the session.
        NumberOutside = "number_outside",
        /// A stream beyond those that a session may have, or a place too far ahead in one.
        StreamOutside = "stream_outside",
        /// A frame that is held or delivered already.
        Duplicate = "duplicate",
        /// A frame for which there is no memory: the far box sent more than it was told to.
        NoRoom = "no_room",
        /// A HELLO or PING of an unauthenticated peer, beyond the rate that is answered.
        TooManyQuestions = "too_many_questions",
        /// An answer to what was not asked, or with a wrong cookie.
        Unasked = "unasked",
        /// A HELLO in the name of a box whose session stands: that is asked first whether it is
        /// still there.
        SessionStands = "session_stands",
        /// A datagram of another version.
        Version = "version",
    }
}
