//! Packets between two boxes on a connection, which no NIC accepts: their transport header version
//! is 1, and their opcodes are reserved ones of the reliable connection.
//!
//! They carry the target's QPN, so that a transport between the boxes keeps their order.

use crate::command::Range;
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_units::{Psn, Qpn, RKey};
use longhaul_wire::{Bth, Ecn, Head, Opcode, Packet, Path, PathTemplate};

/// A range of a command is being fetched: 24 bytes of payload.
const ANNOUNCE: Opcode = Opcode(0x1d);
/// Fetched bytes, as many as in a READ response.
const DATA: Opcode = Opcode(0x1e);
/// A fetch was cancelled.
const CANCEL: Opcode = Opcode(0x1f);

/// Transport header version of these packets, and of requests on a connection that is read ahead
/// for.
pub(crate) const VERSION: u8 = 1;
/// Reserved bit of the BTH by which the initiator's box offers to read ahead: byte and mask. The
/// ICRC excludes it, and NICs ignore it.
const OFFER: (usize, u8) = (4, 0x10);

/// Bits of a packet's index: enough for a range of 1 MiB at every path MTU.
const INDEX_BITS: u32 = 12;
/// Packets of the longest range.
pub(crate) const PACKETS_MAX: u64 = 1 << INDEX_BITS;
/// Fetches that can be told apart.
pub(crate) const NUMBERS: u16 = 1 << (24 - INDEX_BITS);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    /// PSN of the command's first packet.
    pub(crate) capsule: Psn,
    pub(crate) command: u32,
    pub(crate) range: Range,
}

/// A packet between boxes. `number` is the fetch's, modulo [`NUMBERS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    Announce(Announcement),
    Data { index: u32 },
    Cancel,
}

/// True for a packet between boxes.
pub(crate) fn is_local(packet: &Packet<'_>) -> bool {
    matches!(packet.opcode(), ANNOUNCE | DATA | CANCEL) && packet.bth().version == VERSION
}

impl Local {
    /// The number of a fetch, and the message about it.
    pub(crate) fn read(packet: &Packet<'_>, payload: &Payload<'_>) -> Option<(u16, Local)> {
        let psn = packet.psn().get();
        let number = (psn >> INDEX_BITS) as u16;
        let local = match packet.opcode() {
            ANNOUNCE => {
                let bytes: &[u8; 24] = payload.as_bytes()?.try_into().ok()?;
                let word = |at: usize| Some(u32::from_be_bytes(bytes[at..at + 4].try_into().ok()?));
                Local::Announce(Announcement {
                    capsule: Psn::new(word(0)?),
                    command: word(4)?,
                    range: Range {
                        address: u64::from(word(8)?) << 32 | u64::from(word(12)?),
                        rkey: RKey(word(16)?),
                        len: word(20)?,
                    },
                })
            }
            DATA => Local::Data { index: psn & ((1 << INDEX_BITS) - 1) },
            CANCEL => Local::Cancel,
            _ => return None,
        };
        Some((number, local))
    }

    fn opcode(&self) -> Opcode {
        match self {
            Local::Announce(_) => ANNOUNCE,
            Local::Data { .. } => DATA,
            Local::Cancel => CANCEL,
        }
    }

    /// Builds the packet for `qpn`, with the bytes of a [`Local::Data`].
    pub(crate) fn write(
        &self,
        pool: &mut FramePool,
        path: &Path,
        qpn: Qpn,
        number: u16,
        data: Payload<'_>,
    ) -> FrameBuf {
        let index = if let Local::Data { index } = self { *index } else { 0 };
        let psn = Psn::new(u32::from(number) << INDEX_BITS | index);
        let bth = Bth { version: VERSION, ..Bth::new(self.opcode(), qpn, psn) };
        let mut bytes = [0; 24];
        let payload = match self {
            Local::Announce(Announcement { capsule, command, range }) => {
                bytes[..4].copy_from_slice(&capsule.get().to_be_bytes());
                bytes[4..8].copy_from_slice(&command.to_be_bytes());
                bytes[8..16].copy_from_slice(&range.address.to_be_bytes());
                bytes[16..20].copy_from_slice(&range.rkey.0.to_be_bytes());
                bytes[20..].copy_from_slice(&range.len.to_be_bytes());
                Payload::Bytes(&bytes)
            }
            Local::Data { .. } => data,
            Local::Cancel => Payload::EMPTY,
        };
        let template = PathTemplate::new(path);
        let mut head = Head::begin(&template, &bth);
        let pad_len = head.finish(&template, payload.len());
        pool.hold(&Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len } })
    }
}

/// The path of `packet`, for packets built here, without the congestion mark, which concerns that
/// packet only.
pub(crate) fn path_of(packet: &Packet<'_>) -> Path {
    let mut path = packet.path();
    if Ecn::of_traffic_class(path.traffic_class) == Ecn::Congested {
        path.traffic_class = path.traffic_class & !3 | Ecn::ECT_0;
    }
    path
}

/// True if the far box offers to read ahead.
pub(crate) fn has_offer(packet: &Packet<'_>) -> bool {
    packet.head()[packet.layout().bth + OFFER.0] & OFFER.1 != 0
}

/// The frame with the offer set or cleared. The ICRC stays valid; a UDP checksum would not, and is
/// cleared.
pub(crate) fn with_offer(
    pool: &mut FramePool,
    frame: &Frame<'_>,
    packet: &Packet<'_>,
    offer: bool,
) -> FrameBuf {
    let mut head = Patch::of(packet);
    let at = head.bth + OFFER.0;
    head.bytes[at] = head.bytes[at] & !OFFER.1 | if offer { OFFER.1 } else { 0 };
    pool.hold(&Frame { head: head.bytes(), payload: frame.payload, trailer: frame.trailer })
}

/// Fields to change in a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) psn: Psn,
    pub(crate) msn: Option<longhaul_units::Msn>,
    pub(crate) version: u8,
    /// AckReq is set, even if the sender did not set it.
    pub(crate) ack_request: bool,
}

/// The frame with `change`; its ICRC is computed when it is serialised.
pub(crate) fn changed(
    pool: &mut FramePool,
    frame: &Frame<'_>,
    packet: &Packet<'_>,
    change: &Change,
) -> FrameBuf {
    let mut head = Patch::of(packet);
    let bth = head.bth;
    head.bytes[bth + 1] = head.bytes[bth + 1] & 0xf0 | change.version;
    if change.ack_request {
        head.bytes[bth + 8] |= 0x80;
    }
    head.bytes[bth + 9..bth + 12].copy_from_slice(&change.psn.get().to_be_bytes()[1..]);
    if let Some(msn) = change.msn.filter(|_| packet.opcode().has_aeth()) {
        let at = bth + Bth::LEN + 1;
        head.bytes[at..at + 3].copy_from_slice(&msn.get().to_be_bytes()[1..]);
    }
    let pad_len = match frame.trailer {
        Trailer::Received { pad_len, .. }
        | Trailer::Checked { pad_len, .. }
        | Trailer::Sealed { pad_len } => pad_len,
        Trailer::None => 0,
    };
    pool.hold(&Frame {
        head: head.bytes(),
        payload: frame.payload,
        trailer: Trailer::Sealed { pad_len },
    })
}

/// A copy of a packet's headers for modification.
struct Patch {
    bytes: [u8; longhaul_wire::HEAD_MAX],
    len: usize,
    bth: usize,
}

impl Patch {
    /// Copies the headers, with the UDP checksum cleared.
    fn of(packet: &Packet<'_>) -> Self {
        let (head, bth) = (packet.head(), packet.layout().bth);
        let mut bytes = [0; longhaul_wire::HEAD_MAX];
        let len = head.len().min(bytes.len());
        bytes[..len].copy_from_slice(&head[..len]);
        bytes[bth - 2..bth].fill(0);
        Patch { bytes, len, bth }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
