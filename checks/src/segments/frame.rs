//! Parts of a frame that the rules examine.

use longhaul_units::{Psn, Qpn};
use longhaul_wire::{
    Aeth, Ecn, ICRC_LEN, Layout, Opcode, Packet, Split, Verb, flow_hash, icrc, mad, split,
};
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;

/// Path and destination of a RoCEv2 packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Way {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// VLAN of the outermost tag, 0 without one.
    pub(super) vlan: u16,
    pub(super) qpn: Qpn,
}

/// A RoCEv2 packet of a capture.
pub(super) struct Seen<'a> {
    pub(super) way: Way,
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) migreq: bool,
    pub(super) aeth: Option<Aeth>,
    /// DMA length of the RETH, if there is one.
    pub(super) dma_len: Option<u32>,
    pub(super) payload: &'a [u8],
    pub(super) icrc_is_right: bool,
    /// 0 (none) or valid; otherwise a host that checks it drops the packet.
    pub(super) udp_checksum_is_right: bool,
    /// Hash of everything from the BTH to the pad that no retransmission changes: without AckReq,
    /// FECN, BECN and their reserved neighbours.
    pub(super) content: u64,
    /// Hash of Ethernet, IP and UDP headers without fields that differ between packets or may
    /// change on the path: lengths, IPv4 identification, ECN, checksums.
    pub(super) path: u64,
    /// Hash of the whole packet.
    pub(super) whole: u64,
}

/// Kind of a frame.
pub(super) enum FrameKind<'a> {
    Roce(Seen<'a>),
    /// Not RoCEv2, or malformed.
    Other(Other),
}

/// Hashes of a frame that is not RoCEv2.
#[derive(Clone, Copy)]
pub(super) struct Other {
    /// Of hosts and ports, in either direction.
    pub(super) flow: u32,
    /// Of all its bytes.
    pub(super) whole: u64,
    /// Of all its bytes once a congested node has marked it. Equals `whole` if its sender does not
    /// react to marks, or if it is marked.
    pub(super) marked: u64,
}

impl Other {
    fn of(frame: &[u8]) -> Self {
        let whole = hash(&[frame]);
        let mut marked = frame.to_vec();
        let marked = if Ecn::mark(&mut marked) { hash(&[&marked]) } else { whole };
        Other { flow: flow_hash(frame), whole, marked }
    }
}

pub(super) fn hash(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

impl<'a> FrameKind<'a> {
    pub(super) fn of(frame: &'a [u8]) -> Self {
        let found = split(frame, frame.len());
        let (Ok(found @ Split::Roce { layout, payload_len, .. }), Ok(Some(packet))) =
            (found, Packet::parse(frame))
        else {
            return FrameKind::Other(Other::of(frame));
        };
        let Some(end) = found.end() else { return FrameKind::Other(Other::of(frame)) };
        let bth = packet.bth();
        FrameKind::Roce(Seen {
            way: Way {
                source: packet.source_ip(),
                destination: packet.destination_ip(),
                vlan: packet.path().vlan.map_or(0, |tag| tag & 0xfff),
                qpn: bth.dest_qp,
            },
            opcode: bth.opcode,
            psn: bth.psn,
            migreq: bth.migreq,
            aeth: packet.aeth(),
            dma_len: packet.reth().map(|reth| reth.len),
            payload: &frame[layout.payload..layout.payload + payload_len],
            icrc_is_right: icrc::of_frame(frame, &layout, end) == frame[end - ICRC_LEN..end],
            udp_checksum_is_right: udp_checksum_is_right(&frame[..end], &layout),
            content: content(frame, &layout, end),
            path: path(frame, &layout),
            whole: hash(&[&frame[..end]]),
        })
    }
}

fn udp_checksum_is_right(packet: &[u8], layout: &Layout) -> bool {
    const PROTOCOL_UDP: u64 = 17;
    let udp = &packet[layout.udp..];
    let addresses =
        if layout.is_ipv6 { layout.ip + 8..layout.ip + 40 } else { layout.ip + 12..layout.ip + 20 };
    let words = |bytes: &[u8]| -> u64 {
        bytes
            .chunks(2)
            .map(|b| u64::from(b[0]) << 8 | u64::from(b.get(1).copied().unwrap_or(0)))
            .sum()
    };
    let mut sum = words(&packet[addresses]) + PROTOCOL_UDP + udp.len() as u64 + words(udp);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    udp[6..8] == [0, 0] || sum == 0xffff
}

fn content(frame: &[u8], layout: &Layout, end: usize) -> u64 {
    let mut bth = [0; 12];
    bth.copy_from_slice(&frame[layout.bth..layout.bth + 12]);
    bth[4] = 0;
    bth[8] &= 0x7f;
    hash(&[&bth, &frame[layout.bth + 12..end - ICRC_LEN]])
}

fn path(frame: &[u8], layout: &Layout) -> u64 {
    let mut head = [0; 128];
    let len = layout.bth.min(head.len());
    head[..len].copy_from_slice(&frame[..len]);
    let ip = layout.ip;
    if layout.is_ipv6 {
        head[ip + 1] &= 0xcf;
        head[ip + 4..ip + 6].fill(0);
    } else {
        head[ip + 1] &= 0xfc;
        head[ip + 2..ip + 6].fill(0);
        head[ip + 10..ip + 12].fill(0);
    }
    head[layout.udp + 4..layout.udp + 8].fill(0);
    hash(&[&head[..len]])
}

impl Seen<'_> {
    /// The MAD of a packet to the general services interface.
    pub(super) fn mad(&self) -> Option<&mad::Mad> {
        let is_gsi = self.opcode == Opcode::UD_SEND_ONLY && self.way.qpn == Qpn::GSI;
        is_gsi.then_some(self.payload)?.try_into().ok()
    }

    /// `true` for READ requests and atomics, which are answered with data.
    pub(super) fn wants_data(&self) -> bool {
        matches!(self.opcode.verb(), Some(Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd))
    }
}
