//! Counters that other ports do not have.

/// Counters of one port, free-running since it was opened, over all of its queues. Those of the
/// kernel begin again with an interface that was made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters {
    /// Frames lost because the port did not take them fast enough: the receive ring was full. The
    /// kernel's count.
    pub rx_ring_full: u64,
    /// Times that a frame found no buffer to be received in. Where the kernel copies it is lost,
    /// and counted in `rx_dropped` too. The kernel's count.
    pub rx_no_buffer: u64,
    /// Frames that the kernel dropped although the ring had room: for want of a buffer, or as
    /// longer than one where they cannot lie in several. The kernel's count.
    pub rx_dropped: u64,
    /// Frames received in several buffers, and copied into one piece.
    pub rx_gathered: u64,
    /// Frames whose checksum a sender on this machine had left open, and which was filled in.
    pub rx_checksums_filled: u64,
    /// Frames longer than a wire carries, made by a sender on this machine, that were split.
    pub rx_split: u64,
    /// Frames that are longer than the MTU and could not be split; they were dropped.
    pub rx_not_splittable: u64,
    /// System calls that told the kernel of frames to send.
    pub tx_calls: u64,
    /// Times that the device took no more frames for the moment; they wait.
    pub tx_blocked: u64,
    /// Times that the device took nothing for half a second although its link was up and frames
    /// waited; they are kept.
    pub tx_stalls: u64,
    /// Frames that a full queue of the device did not take; they were dropped.
    pub tx_queue_full: u64,
    /// Frames to send that the kernel refused. Its count.
    pub tx_refused: u64,
    /// Times the interface was found deleted.
    pub detached: u64,
    /// Times that the port attached again.
    pub reattached: u64,
}
