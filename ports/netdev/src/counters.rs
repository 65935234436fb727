//! Counters that other kinds of port do not have.

/// Counters of one port since it was opened, cumulative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetdevCounters {
    /// System calls to receive frames.
    pub rx_calls: u64,
    /// System calls to send frames.
    pub tx_calls: u64,
    /// Frames lost because the receive buffer was full. Updated at least once per second.
    pub rx_buffer_full: u64,
    /// Those of known flows among them, if the port serves by class.
    pub rx_buffer_full_preferred: u64,
    /// Frames whose checksum a sender on this host had left open, and the port filled in.
    pub rx_checksums_filled: u64,
    /// Frames longer than a cable carries, from a sender on this host or merged by the kernel,
    /// which the port split.
    pub rx_split: u64,
    /// Frames dropped because the port does not understand the headers that it should split or
    /// complete.
    pub rx_not_splittable: u64,
    /// Frames whose VLAN tag the kernel had stripped and the port restored.
    pub rx_tags_restored: u64,
    /// Calls that found the send buffer full; the frames wait.
    pub tx_blocked: u64,
    /// Frames dropped because a queue of the device, or behind it, was full.
    pub tx_queue_full: u64,
    /// Frames dropped because the kernel refused them for another reason.
    pub tx_refused: u64,
    /// Times the interface was deleted.
    pub detached: u64,
    /// Times the port attached to a new interface of the same name.
    pub reattached: u64,
}
