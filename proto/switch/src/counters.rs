//! Counters of a switch's ports, and drop reasons.

use crate::pfc::PauseCounters;
use longhaul_link::LinkCounters;

longhaul_counters::counters! {
    /// Activity of one port of a switch since it was created. Every frame received was dropped for
    /// a reason, was a pause frame that was obeyed, entered one output, or was flooded and entered
    /// every output but one.
    pub struct PortCounters {
        /// Frames received on this port.
        received_frames,
        /// Bytes received on this port, without FCS.
        received_bytes,
        /// Frames received that were flooded to every other port.
        flooded_frames,
        /// Frames received whose source could not be learnt because the table was full.
        unlearnt_frames,
        ;
        /// Frames received that were dropped before any output.
        drops: Drops,
        /// Activity of the port's output: its queue, marks and drops. Excludes pause frames.
        output: LinkCounters,
        /// Activity of flow control.
        pause: PauseCounters,
    }
}

longhaul_counters::drops! {
    /// Why a switch dropped a frame before any output. Outputs count their own drops.
    pub enum DropReason {
        /// Ends inside its Ethernet header.
        Runt = "runt",
        /// Longer than any frame that a port delivers (16 KiB of payload).
        TooLong = "too_long",
        /// Sent from a group address, which no station has.
        GroupSource = "group_source",
        /// Its destination is behind the port on which it arrived.
        SamePort = "same_port",
        /// To an address that no bridge forwards, such as MAC control (01-80-C2-00-00-00 to -0F;
        /// IEEE 802.1Q, table 8-1).
        LinkLocal = "link_local",
        /// A frame of the lossless priority that exceeded its port's headroom; counted once per
        /// intended output.
        HeadroomFull = "headroom_full",
    }
}
