//! Counters that other kinds of port do not have.

longhaul_counters::counters! {
    /// Counters of one port since it was opened, cumulative.
    pub struct NetdevCounters {
        /// System calls to receive frames.
        rx_calls,
        /// System calls to send frames.
        tx_calls,
        /// Frames lost because the receive buffer was full. Updated at least once per second.
        rx_buffer_full,
        /// Those of known flows among them, if the port serves by class.
        rx_buffer_full_preferred,
        /// Frames whose checksum a sender on this host had left open, and the port filled in.
        rx_checksums_filled,
        /// Frames longer than a cable carries, from a sender on this host or merged by the kernel,
        /// which the port split.
        rx_split,
        /// Frames dropped because the port does not understand the headers that it should split or
        /// complete.
        rx_not_splittable,
        /// Frames whose VLAN tag the kernel had stripped and the port restored.
        rx_tags_restored,
        /// Calls that found the send buffer full; the frames wait.
        tx_blocked,
        /// Frames dropped because a queue of the device, or behind it, was full.
        tx_queue_full,
        /// Frames dropped because the kernel refused them for another reason.
        tx_refused,
        /// Times the interface was deleted.
        detached,
        /// Times the port attached to a new interface of the same name.
        reattached,
    }
}
