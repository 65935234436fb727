//! Configuration of a device.

use longhaul_cc::dcqcn::Dcqcn;
use longhaul_neighbour::Config as Segment;
use longhaul_units::{BitRate, Duration, Qpn};
use longhaul_wire::MacAddr;
use longhaul_work::Mtu;
use std::net::IpAddr;

/// A device's parameters. All queues are bounded by what is given here or at creation.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's Ethernet address.
    pub mac: MacAddr,
    /// The port's IP address; GID 0 and 1 derive from it.
    pub ip: IpAddr,
    /// Largest path MTU that a QP may be given.
    pub path_mtu_max: Mtu,
    /// Rate that frames leave at, counted with [`longhaul_cc::wire_bytes`]; `None` sends as fast as
    /// there is room.
    pub port_rate: Option<BitRate>,
    /// Bytes that may leave back to back ahead of the rate.
    pub port_burst_bytes: u64,
    /// Rate of the link, which pause frames measure time by. With it, priority-based pause frames
    /// are obeyed, for ports without a MAC that does so; `None` drops them.
    pub link_rate: Option<BitRate>,
    /// First QPN to hand out, at least 2.
    pub qpn_first: u32,
    /// How many QPNs there are, which bounds the number of QPs. Numbers are reused as late as
    /// possible.
    pub qpn_count: u32,
    /// MAC addresses of peers that nobody is asked for.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
    /// The Ethernet segment that the port is on. `None`: there is nobody to ask, and who is not in
    /// `neighbours` has 02:00 followed by the last four bytes of the IP address. Its address and
    /// MAC are the port's.
    pub segment: Option<Segment>,
    /// Seed of what the device draws: the connection manager's numbers, unless its own
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
    /// Entries of the largest CQ.
    pub cq_depth_max: u32,
    /// Entries of the largest send, receive or shared receive queue.
    pub wq_depth_max: u32,
    /// Largest inline size in bytes.
    pub inline_max: u32,
    /// To mimic a ConnectX with adaptive retransmission: the local ACK timer begins at this and
    /// doubles with each retry, whatever timeout a QP was given.
    pub adaptive_timeout: Option<Duration>,
    /// READs and atomics that a QP serves at a time as responder, at most.
    pub rd_atomic_max: u8,
    /// READs and atomics that a QP may have outstanding as requester, at most; programs set it to
    /// what their peer serves.
    pub rd_atomic_initiated_max: u8,
    /// PSNs that a requester keeps outstanding at most; 2^23 is what the protocol allows.
    pub window_packets: u32,
    /// Work requests that a requester keeps outstanding at most, to mimic a ConnectX's
    /// `LOG_MAX_OUTSTANDING_WQE`.
    pub window_messages: u32,
    /// A requester asks for an ACK at least this often, in packets, besides each message's end.
    pub ack_request_every: u32,
    /// It asks with the packet that fills its window as well; kernel rxe does not.
    pub ack_request_at_window_end: bool,
    /// Packets outstanding beyond which a requester's local ACK timeout retransmits the first and
    /// the last packet alone; `u32::MAX` always retransmits everything, as NICs do.
    pub probe_above: u32,
    /// Requesters begin to ask at different packets, so that answers do not all come at once;
    /// otherwise all do so with packet `ack_request_every`.
    pub ack_request_spread: bool,
    /// While answers to any of its QPs take longer than a local ACK timeout, that waits for up to
    /// this many times its length; 1 never waits longer. The standard allows 4.
    pub timeout_stretch_max: u32,
    /// A responder acknowledges at least this often, in packets, whether asked or not.
    pub ack_every: u32,
    /// Report the receive queue's depth as end-to-end credits; otherwise "no limit" (code 31), as
    /// kernel rxe does.
    pub report_credits: bool,
    /// Obey the peer's end-to-end credits.
    pub obey_credits: bool,
    /// Congestion control. With it, packets are sent as ECN-capable, CNPs answer those that a
    /// switch has marked, and CNPs slow the QP that they name; without it, both are only counted.
    pub dcqcn: Option<Dcqcn>,
    /// UDP source port of everything sent, for ports that cannot choose it per packet; `None`
    /// spreads flows over ports as NICs do.
    pub udp_source_port: Option<u16>,
    /// MigReq bit of what is sent; ConnectX sends 1, kernel rxe 0.
    pub migreq: bool,
    /// The connection manager's parameters.
    pub cm: longhaul_cm::Config,
}

impl Config {
    /// The values for a host `ip` behind `mac`, with everything else at its usual value.
    pub fn new(mac: MacAddr, ip: IpAddr) -> Self {
        Config {
            mac,
            ip,
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
    /// The same with limits beyond what the protocol allows lowered to it.
    pub(crate) fn clamped(mut self) -> Self {
        self.qpn_first = self.qpn_first.clamp(2, Qpn::MAX);
        // The last number means multicast.
        self.qpn_count = self.qpn_count.clamp(1, (Qpn::MAX - self.qpn_first).max(1));
        self.ip = self.ip.to_canonical();
        if let Some(segment) = &mut self.segment {
            segment.mac = self.mac;
        }
        if self.cm.seed == 0 {
            self.cm.seed = self.seed;
        }
        self
    }
}
