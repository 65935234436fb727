//! What two boxes say to each other on a connection, in packets that no NIC accepts: their
//! transport header version is 1, their opcodes are reserved ones of the reliable connection.
//!
//! They go to the target's QP, so that a transport between the boxes keeps them in the order in
//! which they were sent.

use crate::command::Range;
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_units::{Psn, Qpn, RKey};
use longhaul_wire::{Bth, Ecn, Head, Opcode, Packet, Path, PathTemplate};

/// A command's range is being fetched: 24 bytes of payload.
const ANNOUNCE: Opcode = Opcode(0x1d);
/// Fetched bytes, as many as in a READ response.
const DATA: Opcode = Opcode(0x1e);
/// A fetch has been given up.
const CANCEL: Opcode = Opcode(0x1f);

/// The transport header version of these packets, and of requests on a connection that is read
/// ahead for.
pub(crate) const VERSION: u8 = 1;
/// The reserved bit of a BTH by which the initiator's box shows that it can read ahead. The ICRC
/// leaves it out, NICs ignore it.
const OFFER: (usize, u8) = (4, 0x20);

/// The path MTUs that exist leave the numbers of a 16 MiB range's packets 16 bits.
const INDEX_BITS: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    /// PSN of the command's first packet.
    pub(crate) capsule: Psn,
    pub(crate) command: u32,
    pub(crate) range: Range,
}

/// A packet between boxes. `number` is the fetch's, of the last 256.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Local {
    Announce(Announcement),
    Data { index: u32 },
    Cancel,
}

/// True for what goes between boxes alone.
pub(crate) fn is_local(packet: &Packet<'_>) -> bool {
    matches!(packet.opcode(), ANNOUNCE | DATA | CANCEL) && packet.bth().version == VERSION
}

impl Local {
    /// The number of a fetch, and what is said of it.
    pub(crate) fn read(packet: &Packet<'_>, payload: &Payload<'_>) -> Option<(u8, Local)> {
        let psn = packet.psn().get();
        let number = (psn >> INDEX_BITS) as u8;
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

    /// The packet for `qpn`, with the bytes of a [`Local::Data`].
    pub(crate) fn write(
        &self,
        pool: &mut FramePool,
        path: &Path,
        qpn: Qpn,
        number: u8,
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

/// The path of `packet`, for packets built here: a congestion mark says something of the packet
/// that carried it alone.
pub(crate) fn path_of(packet: &Packet<'_>) -> Path {
    let mut path = packet.path();
    if Ecn::of_traffic_class(path.traffic_class) == Ecn::Congested {
        path.traffic_class = path.traffic_class & !3 | Ecn::ECT_0;
    }
    path
}

/// True when the far box can read ahead.
pub(crate) fn has_offer(packet: &Packet<'_>) -> bool {
    packet.head()[packet.layout().bth + OFFER.0] & OFFER.1 != 0
}

/// The frame with the offer set, or taken away. The ICRC stays right; a UDP checksum, which would
/// not, is left out.
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

/// What changes in a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) psn: Psn,
    pub(crate) msn: Option<longhaul_units::Msn>,
    pub(crate) version: u8,
    /// An ACK is asked for, whether the sender did or not.
    pub(crate) ack_request: bool,
}

/// The frame with `change`; who writes it out computes its ICRC.
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

/// A copy of a packet's headers, to be changed.
struct Patch {
    bytes: [u8; longhaul_wire::HEAD_MAX],
    len: usize,
    bth: usize,
}

impl Patch {
    /// Without a UDP checksum.
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
