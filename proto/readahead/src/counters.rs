//! Counters of a read-ahead.

longhaul_counters::counters! {
    /// Activity of a read-ahead since it was created. Free-running, never reset.
    pub struct Counters {
        /// Fetchable ranges that commands of this site's initiators announced.
        announced,
        /// Announced ranges not fetched: too long, too many, or the far box was not ready.
        left,
        /// Ranges fetched from this site's initiators.
        fetched,
        /// Payload bytes fetched.
        fetched_bytes,
        /// Fetches repeated, because they or their responses were lost on the LAN.
        fetches_repeated,
        /// Fetches that the initiator's NIC refused with a fatal NAK; the connection ends.
        fetches_refused,
        /// Fetches cancelled: retries exhausted, refused, or their command ended.
        fetches_cancelled,
        /// READs of this site's targets answered from fetched data.
        answered,
        /// Payload bytes of these answers, repetitions included.
        answered_bytes,
        /// READs answered again, after a repetition.
        answered_again,
        /// READs of this site's targets, on connections that are read ahead for, that were
        /// forwarded because their data was not fetched.
        reads_passed,
        /// Fetched ranges that no READ requested.
        discarded,
        /// READs whose answer was begun and could not be completed; the connection ended.
        answers_failed,
        /// Connections that are or were read ahead for.
        connections,
        /// Connections of these protocols without room in the table.
        connections_refused,
        /// Requests and responses whose PSN or MSN was translated.
        renumbered,
        /// Packets with a wrong ICRC or checksum on connections that are read ahead for; dropped.
        rx_icrc_encapsulated,
        /// Requests without the far box's mark although it had set it before: the far box has lost
        /// its memory. Dropped, so that the connection ends.
        unmarked,
        /// Packets with numbers from before all remembered ranges; dropped.
        too_old,
        /// Packets between the boxes that match no fetch, such as data of an ended command;
        /// dropped.
        stray,
        /// Frames dropped because a queue was full or the frame was too long.
        queue_full,
    }
}
