//! Status of paths and sessions.

use crate::FarBox;
use crate::format::Refusal;
use longhaul_units::{BitRate, Duration};

/// Snapshot of one path of a session, as its sender sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStatus {
    /// Whether the path answers.
    pub is_up: bool,
    /// Smoothed RTT, once measured.
    pub rtt: Option<Duration>,
    /// Least RTT measured.
    pub rtt_least: Option<Duration>,
    /// Share of transmissions that the path loses, 0 to 1, before repair: over the last several
    /// thousand transmissions or, with parity, as weighted for the choice of a layout.
    pub loss: f64,
    /// Share that parity does not repair and that is retransmitted, over the last several thousand
    /// transmissions.
    pub residual: f64,
    /// Parity layout: symbols and parities of a group, and the number of interleaved groups, as
    /// "20+2 ×8"; "none" without parity.
    pub parity: String,
    /// PARITY datagrams sent.
    pub parity_sent: u64,
    /// Frames that the far box repaired from parity.
    pub repaired: u64,
    /// How long a number may be overtaken before it is presumed lost.
    pub reordering_window: Duration,
    /// Unresolved transmissions.
    pub in_flight: u64,
    /// Copies of a retransmitted frame.
    pub copies: u8,
    /// Numbered transmissions.
    pub sent: u64,
    /// Transmissions presumed lost.
    pub lost: u64,
    /// Transmissions presumed lost that had arrived.
    pub spurious: u64,
    /// Times that the path was declared down.
    pub outages: u64,
    /// Pacing rate in bits per second on the wire. `None`: the rate at which the port accepts
    /// frames.
    pub rate: Option<BitRate>,
    /// Throughput of the bottleneck for this session as last measured, if the rate adapts and a
    /// measurement exists.
    pub delivered: Option<BitRate>,
    /// Queuing delay at the bottleneck, if the rate adapts.
    pub queue_delay: Option<Duration>,
    /// Path MTU: longest IP packet known to get through, in bytes, as the transport sends it.
    pub mtu: u16,
    /// Whether path MTU discovery has finished.
    pub mtu_is_settled: bool,
    /// Frames, and parts of frames, that were split to fit the path MTU.
    pub split: u64,
    /// MTU black holes detected: long datagrams stopped getting through.
    pub black_holes: u64,
    /// What limits the rate: "port", "rate" (the configured one), or if the rate adapts, the name
    /// of a [`longhaul_cc::RateLimitedBy`].
    pub limited_by: &'static str,
}

/// Bytes around the payload of the longest RoCE packet: IPv6, UDP, transport header, BTH, RETH,
/// immediate, ICRC, and 40 for parity.
const AROUND_PAYLOAD: u16 = 40 + 8 + 24 + 12 + 16 + 4 + 4 + 40;

impl PathStatus {
    /// Greatest RoCE MTU, in bytes of payload, whose packets the path carries unsplit. `None` if it
    /// carries none unsplit.
    pub fn roce_mtu(&self) -> Option<u16> {
        [4096, 2048, 1024, 512, 256]
            .into_iter()
            .find(|payload| payload + AROUND_PAYLOAD <= self.mtu)
    }
}

/// Snapshot of a session with one far box.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionStatus {
    /// Number of the far box.
    pub box_id: u64,
    /// This box's number of the session; it differs after either box restarts.
    pub name: u32,
    /// Whether the far box has opened it.
    pub is_open: bool,
    /// The paths to it, in the order of the configuration.
    pub paths: Vec<PathStatus>,
    /// Streams open to the far box.
    pub streams_out: usize,
    /// Streams open from the far box.
    pub streams_in: usize,
    /// Memory of unacknowledged frames, in bytes.
    pub send_bytes: u64,
    /// Peak of `send_bytes`.
    pub send_bytes_peak: u64,
    /// Memory of received frames that wait for earlier ones or for room inside, in bytes.
    pub receive_bytes: u64,
    /// Peak of `receive_bytes`.
    pub receive_bytes_peak: u64,
    /// Memory of received frames that are kept for repair by parity, in bytes.
    pub parity_bytes: u64,
    /// Received frames that wait for earlier ones.
    pub frames_waiting: u64,
    /// Room for unacknowledged frames that the far box last advertised, in bytes.
    pub far_room_bytes: u64,
    /// Datagrams received more than once, and frames received under several numbers.
    pub duplicates_in: u64,
    /// Datagrams received with a congestion mark.
    pub congested_in: u64,
}

/// Status of a configured far box.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FarStatus {
    /// The far box as configured.
    pub far: FarBox,
    /// Numbers of the boxes that answer for its prefix. More than one is possible if each address
    /// is searched for by itself.
    pub reached: Vec<u64>,
    /// Some of the addresses asked for have no answer; their traffic passes untunnelled.
    pub is_silent: bool,
}

/// A far box with which there is no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Number of the far box.
    pub box_id: u64,
    /// Reason.
    pub reason: Refusal,
    /// Least and greatest version of the format that the far box speaks; this box speaks only
    /// [`crate::VERSION`].
    pub versions: (u8, u8),
    /// Its policy digest.
    pub policy: u64,
    /// Number of its cores.
    pub cores: u8,
}
