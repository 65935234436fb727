//! Counters of one direction of a link, and its drop reasons.

longhaul_counters::counters! {
    /// What one direction of a link did since it was made. Every frame that entered, and every one
    /// that was duplicated, was delivered, was dropped, or is in flight.
    pub struct LinkCounters {
        /// Frames that entered.
        entered_frames,
        /// Bytes that entered: frame bytes, without FCS.
        entered_bytes,
        /// Frames that left at the other side.
        delivered_frames,
        /// Bytes that left at the other side.
        delivered_bytes,
        /// Of the frames delivered, those that the queue or a rule marked.
        ecn_marked_frames,
        /// Frames that were late, so that others could overtake them.
        late_frames,
        /// Frames that arrive twice: as many more are delivered than entered.
        duplicated_frames,
        /// Frames of which a bit was turned over.
        corrupted_frames,
        ;
        /// Frames that did not get through.
        drops: Drops,
        /// Frames queued, on the wire or waiting for room at the far side at this moment.
        in_flight_frames: u64,
        /// The longest the queue was, in bytes on the wire (a frame and 24 bytes of overhead), the
        /// rest of the frame being sent included.
        queue_bytes_max: u64,
        /// Memory that frames in flight hold at this moment, in bytes.
        memory_bytes: u64,
        /// The most memory that frames in flight held, in bytes.
        memory_bytes_max: u64,
    }
}

longhaul_counters::drops! {
    /// Why a link dropped a frame.
    pub enum DropReason {
        /// The queue in front of the wire had no room for it.
        QueueFull = "queue_full",
        /// Lost at random on the way, as configured.
        Loss = "loss",
        /// It came while the fibre was cut.
        Cut = "cut",
        /// Lost by a rule.
        Rule = "rule",
        /// The memory bound was reached, which a link with a rate is refused for when it is made.
        Memory = "memory",
        /// Longer than any frame that a port delivers (16 KiB of payload).
        TooLong = "too_long",
    }
}
