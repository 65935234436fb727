//! Management datagrams of the connection manager: 256 bytes on QP1, from header to private data.
//!
//! [`Message::read`] gives typed fields that borrow their private data from the MAD;
//! [`Message::write`] lays them out again. No byte sequence makes either panic. `cm` interprets the
//! messages.
//!
//! Source: IBTA, volume 1, section 13.4 (header) and chapter 12 (messages); offsets verified
//! against Linux `ibta_vol1_c12.h` and captures of Linux.

mod connect;
mod ece;
mod reject;
mod rest;
mod service;

pub use connect::{Rep, Req, ReqPath, TransportService};
pub use ece::Ece;
pub use reject::{MessageRejected, Rej, RejectReason};
pub use rest::{Drep, Dreq, Mra, Opaque, Rtu, SidrRep, SidrReq, SidrStatus};
pub use service::{RdmaCmHeader, ServiceId, gid_of_ip, ip_of_gid};

use longhaul_units::Qpn;
use thiserror::Error;

/// A whole management datagram.
pub type Mad = [u8; MAD_LEN];

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;
/// Queue key that every packet to QP1 carries.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// Offset of a message's own fields: the length of the common header.
const BODY: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS_CM: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// Reason why a MAD is not a connection manager message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotCm {
    /// The base version is not 1.
    #[error("MAD base version {0}, not 1")]
    BaseVersion(u8),
    /// The management class is not 7.
    #[error("management class {0:#x}, not communication management")]
    Class(u8),
    /// The class version is not 2.
    #[error("communication management class version {0}, not 2")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("MAD method {0:#x}, not Send")]
    Method(u8),
    /// No message has this attribute.
    #[error("unknown attribute {0:#x}")]
    Attribute(u16),
}

/// Message type of a MAD: the attribute of its header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u16)]
pub enum Attribute {
    /// Connection request.
    Req = 0x10,
    /// Message receipt acknowledgement: "wait longer".
    Mra = 0x11,
    /// Rejection.
    Rej = 0x12,
    /// Connection reply.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Disconnection request.
    Dreq = 0x15,
    /// Disconnection reply.
    Drep = 0x16,
    /// Service id resolution request, for datagrams.
    SidrReq = 0x17,
    /// Service id resolution reply.
    SidrRep = 0x18,
    /// Load alternate path.
    Lap = 0x19,
    /// Alternate path response.
    Apr = 0x1a,
}

impl Attribute {
    /// The message of attribute `raw`.
    pub const fn read(raw: u16) -> Option<Self> {
        Some(match raw {
            0x10 => Attribute::Req,
            0x11 => Attribute::Mra,
            0x12 => Attribute::Rej,
            0x13 => Attribute::Rep,
            0x14 => Attribute::Rtu,
            0x15 => Attribute::Dreq,
            0x16 => Attribute::Drep,
            0x17 => Attribute::SidrReq,
            0x18 => Attribute::SidrRep,
            0x19 => Attribute::Lap,
            0x1a => Attribute::Apr,
            _ => return None,
        })
    }

    /// The name that the standard gives the message.
    pub const fn name(self) -> &'static str {
        match self {
            Attribute::Req => "REQ",
            Attribute::Mra => "MRA",
            Attribute::Rej => "REJ",
            Attribute::Rep => "REP",
            Attribute::Rtu => "RTU",
            Attribute::Dreq => "DREQ",
            Attribute::Drep => "DREP",
            Attribute::SidrReq => "SIDR_REQ",
            Attribute::SidrRep => "SIDR_REP",
            Attribute::Lap => "LAP",
            Attribute::Apr => "APR",
        }
    }
}

/// The variable fields of a connection-manager message's common MAD header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Status; 0 in every message sent.
    pub status: u16,
    /// Class-specific field; 0.
    pub class_specific: u16,
    /// Transaction: a REP, RTU, MRA or REJ repeats that of its REQ, a DREP that of its DREQ.
    pub transaction_id: u64,
    /// Attribute modifier; 0, or the options of [`Ece`].
    pub attribute_modifier: u32,
}

impl Header {
    /// The header of a message in transaction `transaction_id`, everything else zero.
    pub const fn new(transaction_id: u64) -> Self {
        Header { status: 0, class_specific: 0, transaction_id, attribute_modifier: 0 }
    }

    /// Reads the 24 bytes.
    pub fn read(mad: &Mad) -> Result<(Header, Attribute), NotCm> {
        if mad[0] != BASE_VERSION {
            return Err(NotCm::BaseVersion(mad[0]));
        }
        if mad[1] != CLASS_CM {
            return Err(NotCm::Class(mad[1]));
        }
        if mad[2] != CLASS_VERSION {
            return Err(NotCm::ClassVersion(mad[2]));
        }
        if mad[3] != METHOD_SEND {
            return Err(NotCm::Method(mad[3]));
        }
        let raw = u16::from_be_bytes(array(mad, 16));
        let attribute = Attribute::read(raw).ok_or(NotCm::Attribute(raw))?;
        let header = Header {
            status: u16::from_be_bytes(array(mad, 4)),
            class_specific: u16::from_be_bytes(array(mad, 6)),
            transaction_id: u64::from_be_bytes(array(mad, 8)),
            attribute_modifier: u32::from_be_bytes(array(mad, 20)),
        };
        Ok((header, attribute))
    }

    fn write(&self, attribute: Attribute, mad: &mut Mad) {
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
        put(mad, 4, &self.status.to_be_bytes());
        put(mad, 6, &self.class_specific.to_be_bytes());
        put(mad, 8, &self.transaction_id.to_be_bytes());
        put(mad, 16, &(attribute as u16).to_be_bytes());
        put(mad, 20, &self.attribute_modifier.to_be_bytes());
    }
}

/// A message of the connection manager; private data is borrowed from the MAD, or from the caller.
///
/// Private data has no length on the wire: reading returns the whole field; writing pads with zeros
/// and truncates to the message's `PRIVATE_LEN`. [`Ece`] stands beside the messages: writing one
/// leaves its vendor 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// Connection request.
    Req(Req<'a>),
    /// Message receipt acknowledgement.
    Mra(Mra<'a>),
    /// Rejection.
    Rej(Rej<'a>),
    /// Connection reply.
    Rep(Rep<'a>),
    /// Ready to use.
    Rtu(Rtu<'a>),
    /// Disconnection request.
    Dreq(Dreq<'a>),
    /// Disconnection reply.
    Drep(Drep<'a>),
    /// Service id resolution request.
    SidrReq(SidrReq<'a>),
    /// Service id resolution reply.
    SidrRep(SidrRep<'a>),
    /// Load alternate path, not parsed: RoCE has no alternate paths.
    Lap(Opaque<'a>),
    /// Alternate path response, not parsed.
    Apr(Opaque<'a>),
}

impl<'a> Message<'a> {
    /// Parses a MAD.
    pub fn read(mad: &'a Mad) -> Result<(Header, Message<'a>), NotCm> {
        let (header, attribute) = Header::read(mad)?;
        let message = match attribute {
            Attribute::Req => Message::Req(Req::read(mad)),
            Attribute::Mra => Message::Mra(Mra::read(mad)),
            Attribute::Rej => Message::Rej(Rej::read(mad)),
            Attribute::Rep => Message::Rep(Rep::read(mad)),
            Attribute::Rtu => Message::Rtu(Rtu::read(mad)),
            Attribute::Dreq => Message::Dreq(Dreq::read(mad)),
            Attribute::Drep => Message::Drep(Drep::read(mad)),
            Attribute::SidrReq => Message::SidrReq(SidrReq::read(mad)),
            Attribute::SidrRep => Message::SidrRep(SidrRep::read(mad)),
            Attribute::Lap => Message::Lap(Opaque::read(mad)),
            Attribute::Apr => Message::Apr(Opaque::read(mad)),
        };
        Ok((header, message))
    }

    /// The message type.
    pub const fn attribute(&self) -> Attribute {
        match self {
            Message::Req(_) => Attribute::Req,
            Message::Mra(_) => Attribute::Mra,
            Message::Rej(_) => Attribute::Rej,
            Message::Rep(_) => Attribute::Rep,
            Message::Rtu(_) => Attribute::Rtu,
            Message::Dreq(_) => Attribute::Dreq,
            Message::Drep(_) => Attribute::Drep,
            Message::SidrReq(_) => Attribute::SidrReq,
            Message::SidrRep(_) => Attribute::SidrRep,
            Message::Lap(_) => Attribute::Lap,
            Message::Apr(_) => Attribute::Apr,
        }
    }

    /// The receiver's own communication id; `None` if the message has none.
    ///
    /// It distinguishes several receivers behind one address. A REQ and a SIDR_REQ have none (they
    /// name a service); 0 in a rejection means that the sender did not know it.
    pub const fn remote_comm_id(&self) -> Option<u32> {
        match self {
            Message::Req(_) | Message::SidrReq(_) => None,
            Message::Mra(m) => Some(m.remote_comm_id),
            Message::Rej(m) => Some(m.remote_comm_id),
            Message::Rep(m) => Some(m.remote_comm_id),
            Message::Rtu(m) => Some(m.remote_comm_id),
            Message::Dreq(m) => Some(m.remote_comm_id),
            Message::Drep(m) => Some(m.remote_comm_id),
            Message::SidrRep(m) => Some(m.request_id),
            Message::Lap(m) | Message::Apr(m) => Some(m.remote_comm_id),
        }
    }

    /// The sender's communication id; 0 in a rejection by a sender without one.
    pub const fn local_comm_id(&self) -> u32 {
        match self {
            Message::Req(m) => m.local_comm_id,
            Message::Mra(m) => m.local_comm_id,
            Message::Rej(m) => m.local_comm_id,
            Message::Rep(m) => m.local_comm_id,
            Message::Rtu(m) => m.local_comm_id,
            Message::Dreq(m) => m.local_comm_id,
            Message::Drep(m) => m.local_comm_id,
            Message::SidrReq(m) => m.request_id,
            Message::SidrRep(_) => 0,
            Message::Lap(m) | Message::Apr(m) => m.local_comm_id,
        }
    }

    /// Writes the message into `mad`, all of whose bytes are overwritten.
    pub fn write(&self, header: &Header, mad: &mut Mad) {
        mad.fill(0);
        header.write(self.attribute(), mad);
        match self {
            Message::Req(m) => m.write(mad),
            Message::Mra(m) => m.write(mad),
            Message::Rej(m) => m.write(mad),
            Message::Rep(m) => m.write(mad),
            Message::Rtu(m) => m.write(mad),
            Message::Dreq(m) => m.write(mad),
            Message::Drep(m) => m.write(mad),
            Message::SidrReq(m) => m.write(mad),
            Message::SidrRep(m) => m.write(mad),
            Message::Lap(m) | Message::Apr(m) => m.write(mad),
        }
    }
}

/// Returns `N` bytes at `at`. Callers' offsets are constants within the MAD.
fn array<const N: usize>(mad: &Mad, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&mad[at..at + N]);
    bytes
}

fn put(mad: &mut Mad, at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u16_at(mad: &Mad, body: usize) -> u16 {
    u16::from_be_bytes(array(mad, BODY + body))
}

fn u32_at(mad: &Mad, body: usize) -> u32 {
    u32::from_be_bytes(array(mad, BODY + body))
}

fn u64_at(mad: &Mad, body: usize) -> u64 {
    u64::from_be_bytes(array(mad, BODY + body))
}

fn u24_at(mad: &Mad, body: usize) -> u32 {
    let [a, b, c] = array(mad, BODY + body);
    u32::from_be_bytes([0, a, b, c])
}

fn qpn_at(mad: &Mad, body: usize) -> Qpn {
    Qpn::new(u24_at(mad, body))
}

fn put_body(mad: &mut Mad, body: usize, bytes: &[u8]) {
    put(mad, BODY + body, bytes);
}

fn put_u24(mad: &mut Mad, body: usize, value: u32) {
    put_body(mad, body, &value.to_be_bytes()[1..]);
}

/// Copies variable data into a field of `len` bytes, truncating it.
fn put_field(mad: &mut Mad, body: usize, len: usize, data: &[u8]) {
    let fits = data.len().min(len);
    put_body(mad, body, &data[..fits]);
}

fn field(mad: &Mad, body: usize, len: usize) -> &[u8] {
    &mad[BODY + body..BODY + body + len]
}

#[cfg(test)]
mod tests;
