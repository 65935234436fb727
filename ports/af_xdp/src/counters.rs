//! Counters that other kinds of port do not have.

longhaul_counters::counters! {
    /// Counters of one port since it was opened, over all of its queues, cumulative. The kernel's
    /// counters restart with a recreated interface.
    pub struct XdpCounters {
        /// Frames lost because the receive ring was full: the port was too slow. The kernel's
        /// count.
        rx_ring_full,
        /// Times that a frame found no receive buffer; if the kernel copies, it drops the frame.
        /// The kernel's count.
        rx_no_buffer,
        /// Frames that the kernel dropped although the ring had space: for lack of a buffer, or
        /// because they exceed one and may not span several. The kernel's count.
        rx_dropped,
        /// Frames received in several buffers, and copied into one.
        rx_gathered,
        /// Frames whose checksum a sender on this machine had left open, and the port filled in.
        rx_checksums_filled,
        /// Frames longer than a cable carries, from a sender on this machine, which the port split.
        rx_split,
        /// Frames dropped because they exceed the MTU and cannot be split.
        rx_not_splittable,
        /// System calls that tell the kernel to send.
        tx_calls,
        /// Times that the device accepted no more frames; the frames wait.
        tx_blocked,
        /// Times that the device accepted nothing for half a second although its link was up and
        /// frames waited; the frames are kept.
        tx_stalls,
        /// Frames dropped because a queue of the device was full.
        tx_queue_full,
        /// Frames to send that the kernel refused. The kernel's count.
        tx_refused,
        /// Times the interface was deleted.
        detached,
        /// Times the port reattached.
        reattached,
    }
}
