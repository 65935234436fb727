//! Counters of a seal, and its drop reasons.

longhaul_counters::counters! {
    /// Counters of a seal. Free-running, never reset.
    pub struct Counters {
        /// Frames received from inside, on any path.
        inner_frames_in,
        /// Frames sent inside, on any path.
        inner_frames_out,
        /// Frames received from the WAN, on any path.
        wan_frames_in,
        /// Frames sent to the WAN, on any path.
        wan_frames_out,
        /// Frames not for the seal's port, passed through.
        passed,
        /// Datagrams that waited for keys, or for the answer that identifies the peer.
        waited,
        /// Datagrams sealed.
        sealed,
        /// Datagrams opened: authentic, intact and not replayed.
        opened,
        /// Handshakes started by this box.
        handshakes_begun,
        /// Handshakes completed, by either end.
        handshakes_done,
        /// Handshakes that replaced keys in use.
        rekeys,
        /// Questions for a far box sent.
        asks_sent,
        /// Answers to unauthenticated boxes.
        answers_sent,
        /// Notices of unknown keys sent.
        unknown_sent,
        /// Notices of unknown keys that led to a question.
        unknown_received,
        /// Addresses for which the table had no room: nothing is sealed for them.
        address_table_full,
        ;
        /// Frames that the seal dropped, by reason.
        drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Reason to drop a frame.
    pub enum DropReason {
        /// An unsealed datagram to the port.
        ClearRefused = "clear_refused",
        /// Cleartext RDMA from the WAN: from an attacker, or from a far box or host without keys.
        ClearRdmaIn = "clear_rdma_in",
        /// RDMA from inside that no stream carries and that may not leave in cleartext.
        ClearRdmaOut = "clear_rdma_out",
        /// A malformed datagram.
        Malformed = "malformed",
        /// A datagram of another version of this format.
        Version = "version",
        /// A datagram sealed with unknown keys.
        UnknownKeys = "unknown_keys",
        /// A datagram that fails authentication: forged or damaged.
        Unauthenticated = "unauthenticated",
        /// A number received before, or older than the replay window.
        Replayed = "replayed",
        /// A transport datagram for which no keys arrived in time; its sender retransmits it.
        NoKeys = "no_keys",
        /// A frame longer than 16 KiB, or a train.
        Oversized = "oversized",
        /// A queue is full.
        QueueFull = "queue_full",
        /// An unauthenticated question beyond the reply rate.
        TooManyQuestions = "too_many_questions",
        /// A handshake message beyond the rate for cryptographic operations.
        TooManyHandshakes = "too_many_handshakes",
        /// A handshake message without a valid cookie.
        HandshakeCookie = "handshake_cookie",
        /// A handshake message that does not authenticate its sender, or not for these addresses.
        HandshakeForged = "handshake_forged",
        /// A handshake with a public key of no configured peer.
        HandshakeStranger = "handshake_stranger",
        /// A replayed handshake message.
        HandshakeReplayed = "handshake_replayed",
        /// A handshake without a common cipher.
        HandshakeCipher = "handshake_cipher",
        /// A handshake that both ends started at once: the other one continues.
        HandshakeCrossed = "handshake_crossed",
        /// An unsolicited answer, response or notice.
        Unasked = "unasked",
        /// An answer of a box that is no configured peer.
        NoPeer = "no_peer",
    }
}
