//! Counters that other kinds of port do not have.

/// Counters of one port since it was opened, over all of its queues, cumulative. The kernel's
/// counters restart with a recreated interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    /// Frames lost because the receive ring was full: the port was too slow. The kernel's count.
    pub rx_ring_full: u64,
    /// Times that a frame found no receive buffer. If the kernel copies, the frame is lost, and is
    /// counted in `rx_dropped` too. The kernel's count.
    pub rx_no_buffer: u64,
    /// Frames that the kernel dropped although the ring had space: for lack of a buffer, or because
    /// they exceed one and may not span several. The kernel's count.
    pub rx_dropped: u64,
    /// Frames received in several buffers, and copied into one.
    pub rx_gathered: u64,
    /// Frames whose checksum a sender on this machine had left open, and the port filled in.
    pub rx_checksums_filled: u64,
    /// Frames longer than a cable carries, from a sender on this machine, which the port split.
    pub rx_split: u64,
    /// Frames dropped because they exceed the MTU and cannot be split.
    pub rx_not_splittable: u64,
    /// System calls that tell the kernel to send.
    pub tx_calls: u64,
    /// Times that the device accepted no more frames; the frames wait.
    pub tx_blocked: u64,
    /// Times that the device accepted nothing for half a second although its link was up and frames
    /// waited; the frames are kept.
    pub tx_stalls: u64,
    /// Frames dropped because a queue of the device was full.
    pub tx_queue_full: u64,
    /// Frames to send that the kernel refused. The kernel's count.
    pub tx_refused: u64,
    /// Times the interface was deleted.
    pub detached: u64,
    /// Times the port reattached.
    pub reattached: u64,
}
