//! Status of paths and sessions.

use crate::FarBox;
use crate::format::Refusal;
use longhaul_units::{BitRate, Duration};

/// Snapshot of one path of a session, as its sender sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStatus {
    /// It answers.
    pub is_up: bool,
    /// Smoothed round trip, once measured.
    pub rtt: Option<Duration>,
    /// Least round trip measured.
    pub rtt_least: Option<Duration>,
    /// Part of what is sent that the path loses, 0 to 1, over the last several thousand
    /// transmissions or, with parity, as weighed for its choice; before repair.
    pub loss: f64,
    /// The part that stays lost after repair and waits for its repetition, over the last several
    /// thousand transmissions.
    pub residual: f64,
    /// The layout of parity: symbols and parities of a group, and how many groups side by side, as
    /// "20+2 ×8"; "none".
    pub parity: String,
    /// PARITY datagrams sent.
    pub parity_sent: u64,
    /// Those that parity brought at the far box.
    pub repaired: u64,
    /// How long a number may be overtaken before it is taken for lost.
    pub reordering_window: Duration,
    /// Transmissions of which nothing has been heard.
    pub in_flight: u64,
    /// Copies that a repeated frame goes out in.
    pub copies: u8,
    /// Numbered transmissions.
    pub sent: u64,
    /// Those taken for lost.
    pub lost: u64,
    /// Those taken for lost that had arrived.
    pub spurious: u64,
    /// Times that it was taken for out.
    pub outages: u64,
    /// What it is paced to, in bits on the wire per second. `None`: as fast as the port takes
    /// frames.
    pub rate: Option<BitRate>,
    /// What the bottleneck was last measured to let through of it, where the rate adapts and
    /// anything was measured.
    pub delivered: Option<BitRate>,
    /// How long frames wait in the bottleneck's queue, where the rate adapts.
    pub queue_delay: Option<Duration>,
    /// Length of the longest IP packet that is known to get through, in bytes, as the transport
    /// sends it.
    pub mtu: u16,
    /// Nothing longer is likely to get through; until then it is looked for.
    pub mtu_is_settled: bool,
    /// Frames, and parts of frames, that were split because this path does not take them.
    pub split: u64,
    /// Times that long datagrams were found not to get through any more.
    pub black_holes: u64,
    /// What holds it back: "port", "rate" (that of the configuration), or where it adapts, a
    /// [`longhaul_cc::RateLimitedBy`]'s name.
    pub limited_by: &'static str,
}

/// Bytes around the payload of the longest RoCE packet: IPv6, UDP, the transport's header, BTH,
/// RETH, immediate, ICRC, and what parity needs.
const AROUND_PAYLOAD: u16 = 40 + 8 + 24 + 12 + 16 + 4 + 4 + 40;

impl PathStatus {
    /// The greatest MTU of RoCE, in bytes of payload, whose packets the path takes whole. `None`:
    /// it takes none whole.
    pub fn roce_mtu(&self) -> Option<u16> {
        [4096, 2048, 1024, 512, 256]
            .into_iter()
            .find(|payload| payload + AROUND_PAYLOAD <= self.mtu)
    }
}

/// Snapshot of a session with one far box.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionStatus {
    /// The far box.
    pub box_id: u64,
    /// It has answered.
    pub is_open: bool,
    /// The paths to it, in the order of the configuration.
    pub paths: Vec<PathStatus>,
    /// Streams open to it.
    pub streams_out: usize,
    /// Streams open from it.
    pub streams_in: usize,
    /// Memory of frames that it has not acknowledged, in bytes.
    pub send_bytes: u64,
    /// The most that was, in bytes.
    pub send_bytes_peak: u64,
    /// Memory of frames from it that wait for others or for room inside, in bytes.
    pub receive_bytes: u64,
    /// The most that was, in bytes.
    pub receive_bytes_peak: u64,
    /// Memory of frames from it that are kept for what parity may bring, in bytes.
    pub parity_bytes: u64,
    /// Frames from it that wait for those before them.
    pub frames_waiting: u64,
    /// Room that it has for what it has not acknowledged, in bytes, as it last said.
    pub far_room_bytes: u64,
    /// Datagrams from it that came more than once, and frames that came under several numbers.
    pub duplicates_in: u64,
    /// Datagrams from it with a congestion mark.
    pub congested_in: u64,
}

/// What is known of a far box of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FarStatus {
    /// As it is configured.
    pub far: FarBox,
    /// Boxes that answer for its prefix: one, or where each address is asked for by itself, perhaps
    /// several.
    pub reached: Vec<u64>,
    /// Of what was asked for, some has no answer: that traffic passes as it is.
    pub is_silent: bool,
}

/// A far box with which there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The far box.
    pub box_id: u64,
    /// Why.
    pub reason: Refusal,
    /// Versions of the format that it speaks, least and greatest; this box speaks
    /// [`crate::VERSION`] alone.
    pub versions: (u8, u8),
    /// Its policy digest.
    pub policy: u64,
    /// Cores that it has.
    pub cores: u8,
}
