//! Counters of a read-ahead.

longhaul_counters::counters! {
    /// What a read-ahead has done since it was made. Free-running, never reset.
    pub struct Counters {
        /// Ranges that commands of this site's initiators announced, and that could be fetched.
        announced,
        /// Announced ranges that were left to the reader: too long, too many, or the far box not
        /// ready.
        left,
        /// Ranges fetched from this site's initiators.
        fetched,
        /// Payload bytes fetched.
        fetched_bytes,
        /// Fetches sent again: they or their answers were lost on the LAN.
        fetches_repeated,
        /// Fetches that the initiator's NIC refused for good; its connection ends.
        fetches_refused,
        /// Fetches given up, or ended because their command was.
        fetches_cancelled,
        /// READs of this site's targets that were answered from what had been fetched.
        answered,
        /// Payload bytes of these answers, repetitions included.
        answered_bytes,
        /// READs answered again.
        answered_again,
        /// READs of this site's targets, on connections that are read ahead for, that were not held
        /// and passed.
        reads_passed,
        /// Fetched ranges that no READ asked for.
        discarded,
        /// READs that had begun to be answered and could not be: their connection ended.
        answers_failed,
        /// Connections that are, or were, read ahead for.
        connections,
        /// Connections of these protocols for which there was no room.
        connections_refused,
        /// Requests and responses whose numbers were changed.
        renumbered,
        /// Packets with a wrong ICRC on connections that are read ahead for; dropped.
        rx_icrc_encapsulated,
        /// Requests without the far box's mark, although it had set it: it has lost its memory.
        /// Dropped, so that the connection ends.
        unmarked,
        /// Packets with numbers from before all that is remembered; dropped.
        too_old,
        /// Packets between the boxes that fitted nothing here, or nothing any more: data of a
        /// command that is over; dropped.
        stray,
        /// Frames dropped because a queue was full, or a frame too long.
        queue_full,
    }
}
