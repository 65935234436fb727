//! MADs that set up a connection: REQ and REP.

use super::{
    BODY, Mad, array, field, put_body, put_field, put_u24, qpn_at, u16_at, u24_at, u32_at, u64_at,
};
use longhaul_units::{Psn, Qpn};

/// Transport that a REQ requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// See the extended transport field: XRC is 1.
    Extended(u8),
}

impl TransportService {
    const fn read(service: u8, extended: u8) -> Self {
        match service & 3 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            _ => TransportService::Extended(extended & 7),
        }
    }

    const fn write(self) -> (u8, u8) {
        match self {
            TransportService::Rc => (0, 0),
            TransportService::Uc => (1, 0),
            TransportService::Rd => (2, 0),
            TransportService::Extended(extended) => (3, extended & 7),
        }
    }
}

/// Connection request. Source: IBTA, volume 1, table 106.
///
/// Fields of fewer than eight bits keep their low bits when written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Req<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// The requested service, see [`super::ServiceId`].
    pub service_id: u64,
    /// Sender's adapter.
    pub ca_guid: u64,
    /// Sender's queue key; 0 for connections.
    pub qkey: u32,
    /// Sender's QP.
    pub qpn: Qpn,
    /// READs and atomics that the sender can serve concurrently.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// Response time that the sender expects of the receiver: 4.096 µs times 2^code, 5 bits.
    pub remote_response_timeout: u8,
    /// Transport.
    pub transport: TransportService,
    /// The sender observes end-to-end credits.
    pub flow_control: bool,
    /// First PSN that the receiver of the REQ must send, and its sender expects. Source: IBTA,
    /// volume 1, section 12.7.11, and what Linux does.
    pub starting_psn: Psn,
    /// The sender's response time: 4.096 µs times 2^code, 5 bits.
    pub local_response_timeout: u8,
    /// Retries on timeouts and sequence errors, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU: 1 for 256 bytes to 5 for 4096, 4 bits.
    pub path_mtu: u8,
    /// A reliable-datagram channel exists.
    pub rdc_exists: bool,
    /// Retries on RNR NAKs, 3 bits; 7: unlimited.
    pub rnr_retry_count: u8,
    /// Retransmissions of a connection manager's message by the sender, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// The path.
    pub primary: ReqPath,
    /// An alternate path; zero if there is none.
    pub alternate: ReqPath,
    /// The sender knows the alternate path's subnet administrator (bit 2 of the last path byte).
    pub sap_supported: bool,
    /// 92 bytes when read.
    pub private_data: &'a [u8],
}

/// Path description of a REQ: 44 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReqPath {
    /// Sender's LID; 0xffff on RoCE.
    pub local_lid: u16,
    /// Receiver's LID; 0xffff on RoCE.
    pub remote_lid: u16,
    /// Sender's GID: its IP address on RoCE, see [`super::ip_of_gid`].
    pub local_gid: [u8; 16],
    /// Receiver's GID.
    pub remote_gid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// Packet rate code, 6 bits; 0 where unknown.
    pub packet_rate: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Both ends are in one subnet.
    pub subnet_local: bool,
    /// Local ACK timeout for the receiver to use: 4.096 µs times 2^code, 5 bits.
    pub ack_timeout: u8,
}

impl ReqPath {
    fn read(mad: &Mad, at: usize) -> Self {
        let label = u32_at(mad, at + 36);
        let flags = mad[BODY + at + 42];
        ReqPath {
            local_lid: u16_at(mad, at),
            remote_lid: u16_at(mad, at + 2),
            local_gid: array(mad, BODY + at + 4),
            remote_gid: array(mad, BODY + at + 20),
            flow_label: label >> 12,
            packet_rate: (label & 0x3f) as u8,
            traffic_class: mad[BODY + at + 40],
            hop_limit: mad[BODY + at + 41],
            service_level: flags >> 4,
            subnet_local: flags & 8 != 0,
            ack_timeout: mad[BODY + at + 43] >> 3,
        }
    }

    fn write(&self, mad: &mut Mad, at: usize) {
        put_body(mad, at, &self.local_lid.to_be_bytes());
        put_body(mad, at + 2, &self.remote_lid.to_be_bytes());
        put_body(mad, at + 4, &self.local_gid);
        put_body(mad, at + 20, &self.remote_gid);
        let label = self.flow_label << 12 | u32::from(self.packet_rate & 0x3f);
        put_body(mad, at + 36, &label.to_be_bytes());
        let flags = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        put_body(mad, at + 40, &[self.traffic_class, self.hop_limit, flags, self.ack_timeout << 3]);
    }
}

impl<'a> Req<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 92;

    pub(super) fn read(mad: &'a Mad) -> Self {
        let timeouts = mad[BODY + 43];
        let retries = mad[BODY + 47];
        let mtu = mad[BODY + 50];
        let cm = mad[BODY + 51];
        Req {
            local_comm_id: u32_at(mad, 0),
            service_id: u64_at(mad, 8),
            ca_guid: u64_at(mad, 16),
            qkey: u32_at(mad, 28),
            qpn: qpn_at(mad, 32),
            responder_resources: mad[BODY + 35],
            initiator_depth: mad[BODY + 39],
            remote_response_timeout: timeouts >> 3,
            transport: TransportService::read(timeouts >> 1, cm),
            flow_control: timeouts & 1 != 0,
            starting_psn: Psn::new(u24_at(mad, 44)),
            local_response_timeout: retries >> 3,
            retry_count: retries & 7,
            pkey: u16_at(mad, 48),
            path_mtu: mtu >> 4,
            rdc_exists: mtu & 8 != 0,
            rnr_retry_count: mtu & 7,
            max_cm_retries: cm >> 4,
            srq: cm & 8 != 0,
            primary: ReqPath::read(mad, 52),
            alternate: ReqPath::read(mad, 96),
            sap_supported: mad[BODY + 139] & 4 != 0,
            private_data: field(mad, 140, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        let (service, extended) = self.transport.write();
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 8, &self.service_id.to_be_bytes());
        put_body(mad, 16, &self.ca_guid.to_be_bytes());
        put_body(mad, 28, &self.qkey.to_be_bytes());
        put_u24(mad, 32, self.qpn.get());
        mad[BODY + 35] = self.responder_resources;
        mad[BODY + 39] = self.initiator_depth;
        mad[BODY + 43] =
            self.remote_response_timeout << 3 | service << 1 | u8::from(self.flow_control);
        put_u24(mad, 44, self.starting_psn.get());
        mad[BODY + 47] = self.local_response_timeout << 3 | self.retry_count & 7;
        put_body(mad, 48, &self.pkey.to_be_bytes());
        mad[BODY + 50] =
            self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        mad[BODY + 51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        self.primary.write(mad, 52);
        self.alternate.write(mad, 96);
        mad[BODY + 139] |= u8::from(self.sap_supported) << 2;
        put_field(mad, 140, Self::PRIVATE_LEN, self.private_data);
    }
}

/// Connection reply. Source: IBTA, volume 1, table 110.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rep<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id: that of its REQ.
    pub remote_comm_id: u32,
    /// Queue key; 0 for connections.
    pub qkey: u32,
    /// Sender's QP.
    pub qpn: Qpn,
    /// End-to-end context of reliable datagrams; 0.
    pub ee_context: u32,
    /// First PSN that the receiver of the REP must send; see [`Req::starting_psn`].
    pub starting_psn: Psn,
    /// READs and atomics that the sender can serve concurrently.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The sender's delay before an ACK: 4.096 µs times 2^code, 5 bits.
    pub target_ack_delay: u8,
    /// 2 bits: whether the alternate path was accepted.
    pub failover_accepted: u8,
    /// The sender observes end-to-end credits.
    pub flow_control: bool,
    /// RNR retries for the receiver to use, 3 bits.
    pub rnr_retry_count: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// Sender's adapter.
    pub ca_guid: u64,
    /// 196 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> Rep<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 196;

    pub(super) fn read(mad: &'a Mad) -> Self {
        let delay = mad[BODY + 26];
        let rnr = mad[BODY + 27];
        Rep {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            qkey: u32_at(mad, 8),
            qpn: qpn_at(mad, 12),
            ee_context: u24_at(mad, 16),
            starting_psn: Psn::new(u24_at(mad, 20)),
            responder_resources: mad[BODY + 24],
            initiator_depth: mad[BODY + 25],
            target_ack_delay: delay >> 3,
            failover_accepted: delay >> 1 & 3,
            flow_control: delay & 1 != 0,
            rnr_retry_count: rnr >> 5,
            srq: rnr & 0x10 != 0,
            ca_guid: u64_at(mad, 28),
            private_data: field(mad, 36, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        put_body(mad, 8, &self.qkey.to_be_bytes());
        put_u24(mad, 12, self.qpn.get());
        put_u24(mad, 16, self.ee_context);
        put_u24(mad, 20, self.starting_psn.get());
        mad[BODY + 24] = self.responder_resources;
        mad[BODY + 25] = self.initiator_depth;
        mad[BODY + 26] = self.target_ack_delay << 3
            | (self.failover_accepted & 3) << 1
            | u8::from(self.flow_control);
        mad[BODY + 27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put_body(mad, 28, &self.ca_guid.to_be_bytes());
        put_field(mad, 36, Self::PRIVATE_LEN, self.private_data);
    }
}
