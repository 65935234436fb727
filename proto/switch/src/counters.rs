//! Counters of a switch's ports.

use crate::pfc::PauseCounters;
use longhaul_link::LinkCounters;

/// Why a switch dropped a frame before it came to any output. What outputs drop is counted there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum DropReason {
    /// Ends inside its Ethernet header.
    Runt,
    /// Longer than any frame that a port delivers (16 KiB of payload).
    TooLong,
    /// Sent by a group address, which no station has.
    GroupSource,
    /// Its destination lives behind the port that it came by.
    SamePort,
    /// To an address that no bridge forwards, such as MAC control (01-80-C2-00-00-00 to -0F; IEEE
    /// 802.1Q, table 8-1).
    LinkLocal,
    /// Of the lossless priority, and headroom was not enough for its port: counted once for each
    /// output that it was for.
    HeadroomFull,
}

impl DropReason {
    /// Every reason, in counter order.
    pub const ALL: [DropReason; 6] = [
        DropReason::Runt,
        DropReason::TooLong,
        DropReason::GroupSource,
        DropReason::SamePort,
        DropReason::LinkLocal,
        DropReason::HeadroomFull,
    ];

    /// The name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Runt => "runt",
            DropReason::TooLong => "too_long",
            DropReason::GroupSource => "group_source",
            DropReason::SamePort => "same_port",
            DropReason::LinkLocal => "link_local",
            DropReason::HeadroomFull => "headroom_full",
        }
    }
}

/// Dropped frames, counted by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl DropCounters {
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Frames dropped for `reason`.
    pub const fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

/// What one port of a switch did since it was made. Every frame received was dropped for a reason,
/// was a pause frame that was obeyed, entered one output, or was flooded and entered every output
/// but one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Frames that came in by this port.
    pub received_frames: u64,
    /// Bytes that came in by this port: frame bytes, without FCS.
    pub received_bytes: u64,
    /// Of the frames received, those that went to every other port.
    pub flooded_frames: u64,
    /// Of the frames received, those whose source could not be learnt because the table was full.
    pub unlearnt_frames: u64,
    /// Frames received that came to no output.
    pub drops: DropCounters,
    /// What the port's output did: its queue, its marks and its drops. Pause frames are not among
    /// its frames.
    pub output: LinkCounters,
    /// What flow control did.
    pub pause: PauseCounters,
}
