//! Free-running counters of a port.

/// Why a port dropped a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// There was no peer to give the frame to.
    LinkDown,
    /// The frame was longer than `frame_bytes_max`.
    FrameTooLong,
    /// The frame was shorter than an Ethernet header.
    FrameTooShort,
}

impl DropReason {
    /// Every reason, in counter order.
    pub const ALL: [DropReason; 3] =
        [DropReason::LinkDown, DropReason::FrameTooLong, DropReason::FrameTooShort];

    /// The name used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::LinkDown => "link_down",
            DropReason::FrameTooLong => "frame_too_long",
            DropReason::FrameTooShort => "frame_too_short",
        }
    }
}

/// Dropped frames, counted by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl DropCounters {
    /// Counts one dropped frame.
    pub fn count(&mut self, reason: DropReason) {
        let counter = &mut self.0[reason as usize];
        *counter = counter.wrapping_add(1);
    }

    /// Frames dropped for `reason`.
    #[must_use]
    pub const fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

/// Counters of one port, free-running since it was made. Bytes are frame bytes, without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames handed to the reader.
    pub rx_frames: u64,
    /// Bytes handed to the reader.
    pub rx_bytes: u64,
    /// Frames built for the peer.
    pub tx_frames: u64,
    /// Bytes built for the peer.
    pub tx_bytes: u64,
    /// Frames that arrived and were not handed to the reader.
    pub rx_drops: DropCounters,
    /// Frames that were taken from the caller and did not go to the peer.
    pub tx_drops: DropCounters,
    /// Calls of `transmit` refused because no slot was free.
    pub tx_full: u64,
    /// Times the link came up.
    pub link_ups: u64,
    /// Times a peer broke the rules and was disconnected for it.
    pub peer_violations: u64,
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
        let mut drops = DropCounters::default();
        drops.count(DropReason::LinkDown);
        drops.count(DropReason::LinkDown);
        drops.count(DropReason::FrameTooShort);
        assert_eq!(drops.get(DropReason::LinkDown), 2);
        assert_eq!(drops.get(DropReason::FrameTooLong), 0);
        assert_eq!(drops.total(), 3);
        assert_eq!(drops.iter().map(|(_, count)| count).sum::<u64>(), 3);
    }
}
