//! Counters of a seal, and its drop reasons.

longhaul_counters::counters! {
    /// What a seal has done since it was made. Free-running, never reset.
    pub struct Counters {
        /// Frames that came in from inside, on any path.
        inner_frames_in,
        /// Frames sent inside, on any path.
        inner_frames_out,
        /// Frames that came in from the WAN, on any path.
        wan_frames_in,
        /// Frames sent to the WAN, on any path.
        wan_frames_out,
        /// Frames that are not for the port, passed on as they are.
        passed,
        /// Datagrams that waited for keys, or for an answer of who is behind their address.
        waited,
        /// Datagrams sealed.
        sealed,
        /// Datagrams opened: authentic, whole and not there before.
        opened,
        /// Handshakes begun.
        handshakes_begun,
        /// Handshakes that came to keys, whichever end began.
        handshakes_done,
        /// Of these, those that replaced keys in use.
        rekeys,
        /// Questions for a far box sent.
        asks_sent,
        /// Answers to strangers.
        answers_sent,
        /// Notices of unknown keys sent.
        unknown_sent,
        /// Notices of unknown keys believed enough to ask again.
        unknown_received,
        /// Addresses that found no room in the table: nothing is sealed for them.
        address_table_full,
        ;
        /// Frames that the seal dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Why the seal did not pass a frame on.
    pub enum DropReason {
        /// A datagram to the port that is not sealed.
        ClearRefused = "clear_refused",
        /// RDMA in the clear from the WAN: an attacker's, or of a far box or host that has no keys.
        ClearRdmaIn = "clear_rdma_in",
        /// RDMA from inside that no stream to a far box carries and that may not leave in the
        /// clear.
        ClearRdmaOut = "clear_rdma_out",
        /// A datagram of this format that makes no sense.
        Malformed = "malformed",
        /// A datagram of another version of this format.
        Version = "version",
        /// Sealed with keys that there are not.
        UnknownKeys = "unknown_keys",
        /// Not what was sealed with these keys: forged or damaged.
        Unauthenticated = "unauthenticated",
        /// A number that was there before, or so old that nobody knows.
        Replayed = "replayed",
        /// A datagram of the transport that waited for keys in vain; its sender retransmits it.
        NoKeys = "no_keys",
        /// A frame longer than 16 KiB, or a train.
        Oversized = "oversized",
        /// A queue is full.
        QueueFull = "queue_full",
        /// A stranger's question beyond those that are answered.
        TooManyQuestions = "too_many_questions",
        /// A handshake's message beyond those that are calculated with.
        TooManyHandshakes = "too_many_handshakes",
        /// A handshake begun without a cookie of ours.
        HandshakeCookie = "handshake_cookie",
        /// A handshake's message that does not prove its sender, or not for these addresses.
        HandshakeForged = "handshake_forged",
        /// A handshake with a public key that is none of our peers'.
        HandshakeStranger = "handshake_stranger",
        /// A handshake's message that was there before.
        HandshakeReplayed = "handshake_replayed",
        /// A handshake in which no cipher is common.
        HandshakeCipher = "handshake_cipher",
        /// A handshake begun by both at once: the other one goes on.
        HandshakeCrossed = "handshake_crossed",
        /// An answer, a response or a notice that nobody asked for.
        Unasked = "unasked",
        /// An answer of a box that is none of our peers.
        NoPeer = "no_peer",
    }
}
