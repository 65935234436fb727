//! Counters of one direction of a link, and its drop reasons.

longhaul_counters::counters! {
    /// Activity of one direction of a link since it was created. Every frame that entered or was
    /// duplicated was delivered, was dropped, or is in flight.
    pub struct LinkCounters {
        /// Frames that entered.
        entered_frames,
        /// Bytes that entered, without FCS.
        entered_bytes,
        /// Frames delivered on the other side.
        delivered_frames,
        /// Bytes delivered on the other side.
        delivered_bytes,
        /// Frames delivered that the queue or a rule marked.
        ecn_marked_frames,
        /// Frames that were late, so that others could overtake them.
        late_frames,
        /// Frames that arrive twice: each adds one delivered frame.
        duplicated_frames,
        /// Frames with a flipped bit.
        corrupted_frames,
        ;
        /// Dropped frames.
        drops: Drops,
        /// Frames queued, on the wire, or waiting for room at the far side.
        in_flight_frames: u64,
        /// Longest queue, in bytes on the wire (a frame plus 24 bytes of overhead), including the
        /// rest of the frame being sent.
        queue_bytes_max: u64,
        /// Memory of the frames in flight, in bytes.
        memory_bytes: u64,
        /// Peak memory of the frames in flight, in bytes.
        memory_bytes_max: u64,
    }
}

longhaul_counters::drops! {
    /// Why a link dropped a frame.
    pub enum DropReason {
        /// The queue had no room for it.
        QueueFull = "queue_full",
        /// Random loss, as configured.
        Loss = "loss",
        /// Sent while the fibre was cut.
        Cut = "cut",
        /// Dropped by a rule.
        Rule = "rule",
        /// The memory bound was reached; the configuration of a link with a rate excludes this.
        Memory = "memory",
        /// Longer than any frame that a port delivers (16 KiB of payload).
        TooLong = "too_long",
    }
}
