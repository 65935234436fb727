//! REJ, and its reasons.

use super::{BODY, Mad, field, put_body, put_field, u16_at, u32_at};
use std::fmt;

/// Message that a REJ rejects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageRejected {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Neither: the rejection is unsolicited.
    Other,
    /// Value 3, which the standard reserves.
    Reserved,
}

impl MessageRejected {
    pub(super) const fn read(bits: u8) -> Self {
        match bits & 3 {
            0 => MessageRejected::Req,
            1 => MessageRejected::Rep,
            2 => MessageRejected::Other,
            _ => MessageRejected::Reserved,
        }
    }

    pub(super) const fn write(self) -> u8 {
        match self {
            MessageRejected::Req => 0,
            MessageRejected::Rep => 1,
            MessageRejected::Other => 2,
            MessageRejected::Reserved => 3,
        }
    }
}

/// Rejection. Source: IBTA, volume 1, table 108.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rej<'a> {
    /// Sender's id of the connection; 0 if it has none.
    pub local_comm_id: u32,
    /// Receiver's id; 0 if the sender does not know it.
    pub remote_comm_id: u32,
    /// The rejected message.
    pub rejected: MessageRejected,
    /// The reason.
    pub reason: RejectReason,
    /// Valid bytes of `info`, 7 bits.
    pub info_len: u8,
    /// Additional rejection information, 72 bytes when read; with reason [`RejectReason::TIMEOUT`]
    /// the sender's CA GUID.
    pub info: &'a [u8],
    /// 148 bytes when read.
    pub private_data: &'a [u8],
}

impl<'a> Rej<'a> {
    /// Private data in bytes.
    pub const PRIVATE_LEN: usize = 148;
    /// Additional rejection information in bytes.
    pub const INFO_LEN: usize = 72;

    pub(super) fn read(mad: &'a Mad) -> Self {
        Rej {
            local_comm_id: u32_at(mad, 0),
            remote_comm_id: u32_at(mad, 4),
            rejected: MessageRejected::read(mad[BODY + 8] >> 6),
            reason: RejectReason(u16_at(mad, 10)),
            info_len: mad[BODY + 9] >> 1,
            info: field(mad, 12, Self::INFO_LEN),
            private_data: field(mad, 84, Self::PRIVATE_LEN),
        }
    }

    pub(super) fn write(&self, mad: &mut Mad) {
        put_body(mad, 0, &self.local_comm_id.to_be_bytes());
        put_body(mad, 4, &self.remote_comm_id.to_be_bytes());
        mad[BODY + 8] = self.rejected.write() << 6;
        mad[BODY + 9] = self.info_len << 1;
        put_body(mad, 10, &self.reason.0.to_be_bytes());
        put_field(mad, 12, Self::INFO_LEN, self.info);
        put_field(mad, 84, Self::PRIVATE_LEN, self.private_data);
    }
}

/// Rejection reason: the code of a REJ, known or not.
///
/// `rdma_cm` reports the same number to the program as the status of `RDMA_CM_EVENT_REJECTED`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

macro_rules! reasons {
    ($($code:literal $name:ident $text:literal;)*) => {
        impl RejectReason {
            $(
                #[doc = concat!("Code ", $code, ": ", $text, ".")]
                pub const $name: RejectReason = RejectReason($code);
            )*

            /// Every code that the standard defines, ascending.
            pub const ALL: &'static [RejectReason] = &[$(RejectReason::$name,)*];

            /// Meaning of the code; "reserved reason" if the standard does not define it.
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "reserved reason",
                }
            }
        }
    };
}

// IBTA, volume 1, table 109.
reasons! {
    1 NO_QP "no QP available";
    2 NO_EEC "no end-to-end context available";
    3 NO_RESOURCES "no resources available";
    4 TIMEOUT "timeout";
    5 UNSUPPORTED_REQUEST "unsupported request";
    6 INVALID_COMM_ID "invalid communication id";
    7 INVALID_COMM_INSTANCE "invalid communication instance";
    8 INVALID_SERVICE_ID "invalid service id: nobody listens";
    9 INVALID_TRANSPORT "invalid transport service type";
    10 STALE_CONNECTION "stale connection";
    11 RDC_DOES_NOT_EXIST "reliable-datagram channel does not exist";
    12 INVALID_GID "primary remote port GID rejected";
    13 INVALID_LID "primary remote port LID rejected";
    14 INVALID_SERVICE_LEVEL "invalid primary service level";
    15 INVALID_TRAFFIC_CLASS "invalid primary traffic class";
    16 INVALID_HOP_LIMIT "invalid primary hop limit";
    17 INVALID_PACKET_RATE "invalid primary packet rate";
    18 INVALID_ALTERNATE_GID "alternate remote port GID rejected";
    19 INVALID_ALTERNATE_LID "alternate remote port LID rejected";
    20 INVALID_ALTERNATE_SERVICE_LEVEL "invalid alternate service level";
    21 INVALID_ALTERNATE_TRAFFIC_CLASS "invalid alternate traffic class";
    22 INVALID_ALTERNATE_HOP_LIMIT "invalid alternate hop limit";
    23 INVALID_ALTERNATE_PACKET_RATE "invalid alternate packet rate";
    24 PORT_AND_CM_REDIRECTION "port and connection manager redirection";
    25 PORT_REDIRECTION "port redirection";
    26 INVALID_PATH_MTU "invalid path MTU";
    27 INSUFFICIENT_RESPONDER_RESOURCES "insufficient responder resources";
    28 CONSUMER "rejected by the program";
    29 INVALID_RNR_RETRY_COUNT "RNR retry count rejected";
    30 DUPLICATE_COMM_ID "duplicate local communication id";
    31 INVALID_CLASS_VERSION "unsupported class version";
    32 INVALID_FLOW_LABEL "invalid primary flow label";
    33 INVALID_ALTERNATE_FLOW_LABEL "invalid alternate flow label";
    35 VENDOR_OPTION_NOT_SUPPORTED "vendor option not supported";
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.0)
    }
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
