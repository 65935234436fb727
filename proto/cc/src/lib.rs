//! Sending rates: the cost of a frame on the wire, pacing, and congestion control.
//!
//! A sender that feeds a link paces itself to the link's rate, so that no queue builds on the path:
//! a [`Gate`] admits its frames at its [`Pacing`], either a rate of its own ([`Pacer`]) or one
//! shared with others ([`JointRate`]). A [`RateLimiter`] limits a QP, by its program or, through
//! [`dcqcn`], by its path. [`PathRate`] measures the rate that a long path has room for. [`Codel`]
//! bounds the time that packets wait in a queue. The crate does not parse frames.
#![forbid(unsafe_code)]

mod codel;
pub mod dcqcn;
mod gate;
mod joint;
mod limiter;
mod pacer;
mod path_rate;
mod red;
mod rtt;

pub use codel::{Codel, CodelConfig, Signal};
pub use gate::{Gate, Pacing};
pub use joint::{JointPacer, JointRate};
pub use limiter::{RateLimit, RateLimiter};
pub use pacer::Pacer;
pub use path_rate::{Heard, PathRate, RateLimitedBy};
pub use red::{Red, RedConfig};
pub use rtt::RttEstimate;

/// Minimum Ethernet frame without FCS, in bytes; the sender pads shorter ones.
pub const FRAME_LEN_MIN: usize = 60;

/// Bytes that Ethernet adds to each frame on the wire: preamble and start delimiter 8, FCS 4,
/// inter-packet gap 12.
///
/// Source: IEEE 802.3, clauses 3.2 and 4.4.2.
pub const WIRE_OVERHEAD: usize = 24;

/// Wire time, in bytes, of a frame of `frame_len` bytes (destination MAC to last byte, without
/// FCS): at least [`FRAME_LEN_MIN`], plus [`WIRE_OVERHEAD`]. Every rate counts these bytes.
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
