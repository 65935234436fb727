//! Counters that other ports do not have.

/// Counters of one port, free-running since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetdevCounters {
    /// System calls that asked for frames.
    pub rx_calls: u64,
    /// System calls that gave frames to the kernel.
    pub tx_calls: u64,
    /// Frames lost because the receive buffer was full. Up to a second late.
    pub rx_buffer_full: u64,
    /// Of these, frames of known flows, where the port serves by class.
    pub rx_buffer_full_preferred: u64,
    /// Frames whose checksum a sender on this host had left open, and which was filled in.
    pub rx_checksums_filled: u64,
    /// Frames longer than a wire carries, made by a sender on this host or merged by the kernel,
    /// that were split.
    pub rx_split: u64,
    /// Frames to be split or completed that could not be, as their headers are not understood; they
    /// were dropped.
    pub rx_not_splittable: u64,
    /// Frames that got a VLAN tag back which the kernel had taken off.
    pub rx_tags_restored: u64,
    /// Calls that found the send buffer full; the frames wait.
    pub tx_blocked: u64,
    /// Frames that a full queue of the device, or what is behind it, did not take; they were
    /// dropped.
    pub tx_queue_full: u64,
    /// Frames that the kernel refused for another reason; they were dropped.
    pub tx_refused: u64,
    /// Times the interface was found deleted.
    pub detached: u64,
    /// Times a new interface of the same name was attached to.
    pub reattached: u64,
}
