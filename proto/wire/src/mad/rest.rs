//! The other MADs of the connection manager.

use super::reject::MessageRejected;
use super::{BODY, Mad, field, put_body, put_field, put_u24, qpn_at, u16_at, u32_at, u64_at};
use longhaul_units::Qpn;

/// Message receipt acknowledgement: the sender needs more time. Source: IBTA, volume 1, table 107.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mra<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id.
    pub remote_comm_id: u32,
    /// The received message: a REQ, a REP, or (as [`MessageRejected::Other`]) a LAP.
    pub received: MessageRejected,
    /// Time until the reply, from the MRA on: 4.096 µs times 2^code, 5 bits.
    pub service_timeout: u8,
    /// 222 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> Mra<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 222;

    pub(super) fn read(mad: &'a Mad) -> Self {
        Mra {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            received: MessageRejected::read(mad[BODY + 8] >> 6),
            service_timeout: mad[BODY + 9] >> 3,
            private_data: field(mad, 10, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        mad[BODY + 8] = self.received.write() << 6;
        mad[BODY + 9] = self.service_timeout << 3;
        put_field(mad, 10, Self::PRIVATE_LEN, self.private_data);
    }
}

/// Ready to use. Source: IBTA, volume 1, table 111.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtu<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id.
    pub remote_comm_id: u32,
    /// 224 bytes when read.
    pub private_data: &'a [u8],
}

/// Disconnection reply. Source: IBTA, volume 1, table 113.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drep<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id.
    pub remote_comm_id: u32,
    /// 224 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> Rtu<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 224;

    pub(super) fn read(mad: &'a Mad) -> Self {
        Rtu {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            private_data: field(mad, 8, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        put_field(mad, 8, Self::PRIVATE_LEN, self.private_data);
    }
}

impl<'a> Drep<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 224;

    pub(super) fn read(mad: &'a Mad) -> Self {
        let Rtu { local_comm_id, remote_comm_id, private_data } = Rtu::read(mad);
        Drep { local_comm_id, remote_comm_id, private_data }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        let Drep { local_comm_id, remote_comm_id, private_data } = *self;
        Rtu { local_comm_id, remote_comm_id, private_data }.write(mad);
    }
}

/// Disconnection request. Source: IBTA, volume 1, table 112.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dreq<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id.
    pub remote_comm_id: u32,
    /// Receiver's QP.
    pub remote_qpn: Qpn,
    /// 220 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> Dreq<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 220;

    pub(super) fn read(mad: &'a Mad) -> Self {
        Dreq {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            remote_qpn: qpn_at(mad, 8),
            private_data: field(mad, 12, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        put_u24(mad, 8, self.remote_qpn.get());
        put_field(mad, 12, Self::PRIVATE_LEN, self.private_data);
    }
}

/// Service id resolution request. Source: IBTA, volume 1, table 119.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrReq<'a> {
    /// Sender's id of the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// The requested service.
    pub service_id: u64,
    /// 216 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> SidrReq<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 216;

    pub(super) fn read(mad: &'a Mad) -> Self {
        SidrReq {
            request_id: u32_at(mad, 0),
            pkey: u16_at(mad, 4),
            service_id: u64_at(mad, 8),
            private_data: field(mad, 16, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.request_id.to_be_bytes());
        put_body(mad, 4, &self.pkey.to_be_bytes());
        put_body(mad, 8, &self.service_id.to_be_bytes());
        put_field(mad, 16, Self::PRIVATE_LEN, self.private_data);
    }
}

/// Outcome of a service id resolution. Source: IBTA, volume 1, section 12.11.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidrStatus {
    /// Code 0: the QPN is valid.
    Valid,
    /// Code 1: service id not supported.
    Unsupported,
    /// Code 2: rejected by the service's provider.
    Rejected,
    /// Code 3: no QP available.
    NoQp,
    /// Code 4: redirected.
    Redirect,
    /// Code 5: version not supported.
    UnsupportedVersion,
    /// A code that the standard does not define.
    Reserved(u8),
}

impl SidrStatus {
    const fn read(code: u8) -> Self {
        match code {
            0 => SidrStatus::Valid,
            1 => SidrStatus::Unsupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQp,
            4 => SidrStatus::Redirect,
            5 => SidrStatus::UnsupportedVersion,
            code => SidrStatus::Reserved(code),
        }
    }

    const fn write(self) -> u8 {
        match self {
            SidrStatus::Valid => 0,
            SidrStatus::Unsupported => 1,
            SidrStatus::Rejected => 2,
            SidrStatus::NoQp => 3,
            SidrStatus::Redirect => 4,
            SidrStatus::UnsupportedVersion => 5,
            SidrStatus::Reserved(code) => code,
        }
    }
}

/// Service id resolution reply. Source: IBTA, volume 1, table 120.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SidrRep<'a> {
    /// Receiver's id: that of its request.
    pub request_id: u32,
    /// Outcome.
    pub status: SidrStatus,
    /// Valid bytes of `info`.
    pub info_len: u8,
    /// QP of the service, valid with [`SidrStatus::Valid`].
    pub qpn: Qpn,
    /// The service.
    pub service_id: u64,
    /// Queue key of the QP.
    pub qkey: u32,
    /// Additional information, 72 bytes when read.
    pub info: &'a [u8],
    /// 136 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> SidrRep<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 136;
    /// Additional information in bytes.
    pub const INFO_LEN: usize = 72;

    pub(super) fn read(mad: &'a Mad) -> Self {
        SidrRep {
            request_id: u32_at(mad, 0),
            status: SidrStatus::read(mad[BODY + 4]),
            info_len: mad[BODY + 5],
            qpn: qpn_at(mad, 8),
            service_id: u64_at(mad, 12),
            qkey: u32_at(mad, 20),
            info: field(mad, 24, Self::INFO_LEN),
            private_data: field(mad, 96, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.request_id.to_be_bytes());
        mad[BODY + 4] = self.status.write();
        mad[BODY + 5] = self.info_len;
        put_u24(mad, 8, self.qpn.get());
        put_body(mad, 12, &self.service_id.to_be_bytes());
        put_body(mad, 20, &self.qkey.to_be_bytes());
        put_field(mad, 24, Self::INFO_LEN, self.info);
        put_field(mad, 96, Self::PRIVATE_LEN, self.private_data);
    }
}

/// A message of which only the ids are parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opaque<'a> {
    /// Sender's id of the connection.
    pub local_comm_id: u32,
    /// Receiver's id.
    pub remote_comm_id: u32,
    /// The other 224 bytes when read.
    pub rest: &'a [u8],
}

impl<'a> Opaque<'a> {
    const REST_LEN: usize = 224;

    pub(super) fn read(mad: &'a Mad) -> Self {
        Opaque {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            rest: field(mad, 8, Self::REST_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        put_field(mad, 8, Self::REST_LEN, self.rest);
    }
}
