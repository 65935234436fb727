//! Configuration of a device.

use crate::PortAddresses;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_neighbour::Config as Segment;
use longhaul_units::{BitRate, Duration, Qpn};
use longhaul_wire::MacAddr;
use longhaul_work::Mtu;
use std::net::IpAddr;

/// Parameters of a device. They bound all queues, together with the sizes at creation.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's Ethernet address.
    pub mac: MacAddr,
    /// The port's IP addresses. With a [`Config::segment`] only the first is used.
    pub addresses: PortAddresses,
    /// Largest path MTU that a QP may be given.
    pub path_mtu_max: Mtu,
    /// Rate of transmission, counted by [`longhaul_cc::wire_bytes`]; `None`: as fast as there is
    /// room.
    pub port_rate: Option<BitRate>,
    /// Bytes that may be sent back to back ahead of the rate.
    pub port_burst_bytes: u64,
    /// Rate of the link, by which pause frames measure time. If set, priority-based pause frames
    /// are obeyed, for ports without a MAC that does so; `None` drops them.
    pub link_rate: Option<BitRate>,
    /// First QPN to allocate, at least 2.
    pub qpn_first: u32,
    /// Number of QPNs, which bounds the number of QPs. Numbers are reused as late as possible.
    pub qpn_count: u32,
    /// Configured MAC addresses of peers, which need no resolution.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// The Ethernet segment of the port. `None`: nothing is resolved, and peers missing from
    /// `neighbours` have the MAC address 02:00 followed by the last four bytes of the IP address.
    /// The segment's address and MAC are the port's.
    pub segment: Option<Segment>,
    /// Seed of the device's random numbers: those of the connection manager, unless its own
    /// configuration has a seed.
    pub seed: u64,
    /// MRs that can exist at once, at most 2^23.
    pub mr_count_max: u32,
    /// CQs that can exist at once.
    pub cq_count_max: u32,
    /// SRQs that can exist at once.
    pub srq_count_max: u32,
    /// Address handles that can exist at once.
    pub ah_count_max: u32,
    /// Multicast groups that QPs can be attached to at once.
    pub multicast_group_max: u32,
    /// QPs that can be attached to one multicast group.
    pub multicast_qp_max: u32,
    /// PDs that can exist at once.
    pub pd_count_max: u32,
    /// Maximum entries of a CQ.
    pub cq_depth_max: u32,
    /// Maximum entries of a send, receive or shared receive queue.
    pub wq_depth_max: u32,
    /// Largest inline size in bytes.
    pub inline_max: u32,
    /// Mimics a ConnectX with adaptive retransmission: the local ACK timer begins at this and
    /// doubles with each retry, up to the timeout of the QP, which fails after all its retries'
    /// timeouts together.
    pub adaptive_timeout: Option<Duration>,
    /// Maximum READs and atomics that a QP serves concurrently as responder.
    pub rd_atomic_max: u8,
    /// Maximum READs and atomics that a QP may have outstanding as requester; programs set it to
    /// their peer's limit.
    pub rd_atomic_initiated_max: u8,
    /// Maximum outstanding PSNs of a requester; the protocol allows 2^23.
    pub window_packets: u32,
    /// Maximum outstanding work requests of a requester, to mimic a ConnectX's
    /// `LOG_MAX_OUTSTANDING_WQE`.
    pub window_messages: u32,
    /// Maximum packets between a requester's AckReqs, in addition to one at each message's end.
    pub ack_request_every: u32,
    /// Whether the packet that fills the window also has an AckReq; kernel rxe sends none.
    pub ack_request_at_window_end: bool,
    /// With more packets than this outstanding, a requester's local ACK timeout retransmits only
    /// the first and the last packet; `u32::MAX` always retransmits everything, as NICs do.
    pub probe_above: u32,
    /// Whether requesters send their first AckReq with different packets, so that answers do not
    /// all arrive at once; otherwise with packet `ack_request_every`.
    pub ack_request_spread: bool,
    /// While answers to any of the device's QPs take longer than a local ACK timeout, that timeout
    /// is extended up to this many times; 1 never extends it. The standard allows 4.
    pub timeout_stretch_max: u32,
    /// Maximum packets between a responder's ACKs, requested or not.
    pub ack_every: u32,
    /// Reports the receive queue's depth as end-to-end credits; otherwise "no limit" (code 31), as
    /// kernel rxe does.
    pub report_credits: bool,
    /// Obeys the peer's end-to-end credits.
    pub obey_credits: bool,
    /// Congestion control. If set, packets are sent as ECN-capable, packets marked by a switch are
    /// answered with CNPs, and CNPs slow down their QP; otherwise both are only counted.
    pub dcqcn: Option<Dcqcn>,
    /// UDP source port of all packets, for ports that cannot choose it per packet; `None` spreads
    /// flows over ports as NICs do.
    pub udp_source_port: Option<u16>,
    /// MigReq bit of sent packets; ConnectX sends 1, kernel rxe 0.
    pub migreq: bool,
    /// The connection manager's parameters.
    pub cm: longhaul_cm::Config,
}

impl Config {
    /// Default parameters of a host with these addresses.
    pub fn new(mac: MacAddr, addresses: impl Into<PortAddresses>) -> Self {
        Config {
            mac,
            addresses: addresses.into(),
            path_mtu_max: Mtu::B4096,
            port_rate: None,
            port_burst_bytes: 32 * 1024,
            link_rate: None,
            qpn_first: 0x11,
            qpn_count: 65_536,
            neighbours: Vec::new(),
            segment: None,
            seed: 0,
            mr_count_max: 1 << 20,
            cq_count_max: 65_536,
            srq_count_max: 32_768,
            ah_count_max: 1 << 20,
            multicast_group_max: 8192,
            multicast_qp_max: 240,
            pd_count_max: 32_768,
            cq_depth_max: 1 << 22,
            wq_depth_max: 1 << 17,
            inline_max: 1024,
            adaptive_timeout: None,
            rd_atomic_max: 128,
            rd_atomic_initiated_max: 128,
            window_packets: 1 << 23,
            window_messages: u32::MAX,
            ack_request_every: 64,
            ack_request_at_window_end: true,
            probe_above: longhaul_rc::PROBE_ABOVE,
            ack_request_spread: true,
            timeout_stretch_max: 4,
            ack_every: 64,
            report_credits: false,
            obey_credits: true,
            dcqcn: None,
            udp_source_port: None,
            migreq: true,
            cm: longhaul_cm::Config::default(),
        }
    }
}

impl Config {
    /// Lowers limits beyond the protocol's to those.
    pub(crate) fn clamped(mut self) -> Self {
        self.qpn_first = self.qpn_first.clamp(2, Qpn::MAX);
        // The last number means multicast.
        self.qpn_count = self.qpn_count.clamp(1, (Qpn::MAX - self.qpn_first).max(1));
        if let Some(segment) = &mut self.segment {
            segment.mac = self.mac;
        }
        if self.cm.seed == 0 {
            self.cm.seed = self.seed;
        }
        self
    }
}
