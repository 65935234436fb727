//! How fast to send: what a frame costs on the wire, the pacing of a sender to a rate, and the rate
//! that congestion leaves it.
//!
//! A sender that feeds a link paces itself to the link's rate, so that no queue fills on the path:
//! a [`Gate`] admits its frames at its [`Pacing`], a rate of its own ([`Pacer`]) or one that it
//! shares with others ([`JointRate`]). A QP that its program or its path limits has a
//! [`RateLimiter`]; [`dcqcn`] is how a path limits it. [`PathRate`] finds what a long path has room
//! for. Nothing here looks into a frame.
#![forbid(unsafe_code)]

pub mod dcqcn;
mod gate;
mod joint;
mod limiter;
mod pacer;
mod path_rate;
mod red;
mod rtt;

pub use gate::{Gate, Pacing};
pub use joint::{JointPacer, JointRate};
pub use limiter::{RateLimit, RateLimiter};
pub use pacer::Pacer;
pub use path_rate::{Heard, PathRate, RateLimitedBy};
pub use red::{Red, RedConfig};
pub use rtt::RttEstimate;

/// Shortest Ethernet frame without FCS, in bytes: shorter ones are padded by the sender.
pub const FRAME_LEN_MIN: usize = 60;

/// What Ethernet adds to each frame on the wire, in bytes: preamble and start delimiter 8, FCS 4,
/// inter-packet gap 12.
///
/// Source: IEEE 802.3, clauses 3.2 and 4.4.2.
pub const WIRE_OVERHEAD: usize = 24;

/// Bytes of wire time that a frame of `frame_len` bytes (destination MAC to last byte, without FCS)
/// takes: at least [`FRAME_LEN_MIN`], plus [`WIRE_OVERHEAD`]. Every rate is counted in these bytes.
pub const fn wire_bytes(frame_len: usize) -> u64 {
    let padded = if frame_len < FRAME_LEN_MIN { FRAME_LEN_MIN } else { frame_len };
    padded as u64 + WIRE_OVERHEAD as u64
}

#[cfg(test)]
mod wire_bytes {
    use super::*;

    #[test]
    fn short_frames_are_padded() {
        assert_eq!(wire_bytes(0), 84);
        assert_eq!(wire_bytes(60), 84);
        assert_eq!(wire_bytes(61), 85);
    }

    #[test]
    fn a_full_ethernet_frame_takes_1538_bytes() {
        assert_eq!(wire_bytes(1514), 1538);
    }
}
