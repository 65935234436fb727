//! Free-running counters of a port, and drop reasons.

longhaul_counters::counters! {
    /// Counters of one port since its creation, cumulative.
    pub struct PortCounters {
        /// Frames received: handed to the reader.
        rx_frames,
        /// Bytes received, without FCS.
        rx_bytes,
        /// Frames sent: built for the peer.
        tx_frames,
        /// Bytes sent, without FCS.
        tx_bytes,
        /// Calls of `transmit` refused because no slot was free.
        tx_full,
        /// Times the link came up.
        link_ups,
        /// Times a peer violated the protocol and was disconnected.
        peer_violations,
        ;
        /// Frames that arrived but were not handed to the reader.
        rx_drops: Drops,
        /// Frames that were accepted from the caller but did not reach the peer.
        tx_drops: Drops,
    }
}

longhaul_counters::drops! {
    /// Why a port dropped a frame.
    pub enum DropReason {
        /// There was no peer.
        LinkDown = "link_down",
        /// The frame was longer than `frame_bytes_max`.
        FrameTooLong = "frame_too_long",
        /// The frame was shorter than an Ethernet header.
        FrameTooShort = "frame_too_short",
    }
}

impl PortCounters {
    /// Counts one received frame of `len` bytes.
    #[inline]
    pub fn count_rx(&mut self, len: usize) {
        self.rx_frames = self.rx_frames.wrapping_add(1);
        self.rx_bytes = self.rx_bytes.wrapping_add(len as u64);
    }

    /// Counts one transmitted frame of `len` bytes.
    #[inline]
    pub fn count_tx(&mut self, len: usize) {
        self.tx_frames = self.tx_frames.wrapping_add(1);
        self.tx_bytes = self.tx_bytes.wrapping_add(len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_counted_by_reason() {
        let mut drops = Drops::default();
        drops.count(DropReason::LinkDown);
        drops.count(DropReason::LinkDown);
        drops.count(DropReason::FrameTooShort);
        assert_eq!(drops.get(DropReason::LinkDown), 2);
        assert_eq!(drops.get(DropReason::FrameTooLong), 0);
        assert_eq!(drops.total(), 3);
        assert_eq!(drops.iter().map(|(_, count)| count).sum::<u64>(), 3);
    }
}
