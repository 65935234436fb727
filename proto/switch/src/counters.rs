//! Counters of a switch's ports, and drop reasons.

use crate::pfc::PauseCounters;
use longhaul_link::LinkCounters;

longhaul_counters::counters! {
    /// What one port of a switch did since it was made. Every frame received was dropped for a
    /// reason, was a pause frame that was obeyed, entered one output, or was flooded and entered
    /// every output but one.
    pub struct PortCounters {
        /// Frames that came in by this port.
        received_frames,
        /// Bytes that came in by this port: frame bytes, without FCS.
        received_bytes,
        /// Of the frames received, those that went to every other port.
        flooded_frames,
        /// Of the frames received, those whose source could not be learnt because the table was
        /// full.
        unlearnt_frames,
        ;
        /// Frames received that came to no output.
        drops: Drops,
        /// What the port's output did: its queue, its marks and its drops. Pause frames are not
        /// among its frames.
        output: LinkCounters,
        /// What flow control did.
        pause: PauseCounters,
    }
}

longhaul_counters::drops! {
    /// Why a switch dropped a frame before it came to any output. What outputs drop is counted
    /// there.
    pub enum DropReason {
        /// Ends inside its Ethernet header.
        Runt = "runt",
        /// Longer than any frame that a port delivers (16 KiB of payload).
        TooLong = "too_long",
        /// Sent by a group address, which no station has.
        GroupSource = "group_source",
        /// Its destination lives behind the port that it came by.
        SamePort = "same_port",
        /// To an address that no bridge forwards, such as MAC control (01-80-C2-00-00-00 to -0F;
        /// IEEE 802.1Q, table 8-1).
        LinkLocal = "link_local",
        /// Of the lossless priority, and headroom was not enough for its port: counted once for
        /// each output that it was for.
        HeadroomFull = "headroom_full",
    }
}
