//! A captured frame as plain values: a RoCEv2 packet with its header fields, or other traffic.

use crate::link::{Carried, ETHERTYPE_IPV4, ETHERTYPE_IPV6, HEAD_LEN, carried};
use longhaul_units::Qpn;
use longhaul_wire::mad::{MAD_LEN, Mad};
use longhaul_wire::pcap::Record;
use longhaul_wire::{Aeth, Bth, Ecn, ICRC_LEN, Layout, Packet, Reth, Split, icrc, split};
use std::net::IpAddr;

/// Kind of a frame.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    Roce(RocePacket<'a>),
    /// Not RoCEv2.
    Other(NonRoceKind),
    /// Malformed packet to UDP port 4791.
    Malformed,
    /// Truncated by the snap length before the end of its BTH, so its kind is unknown.
    Cut,
    /// On an unsupported link type.
    UnknownLink,
}

/// Kind of a frame that is not RoCEv2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum NonRoceKind {
    Ethertype(u16),
    /// The service port: the lower of the two.
    Udp(u16),
    Tcp(u16),
    IpProtocol(u8),
    Fragment,
    Short,
}

/// The headers of a RoCEv2 packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RocePacket<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub udp_source_port: u16,
    pub ecn: Ecn,
    pub bth: Bth,
    pub aeth: Option<Aeth>,
    pub reth: Option<Reth>,
    pub payload_len: u32,
    pub icrc: Icrc,
    /// The management datagram of a packet to QP1, if captured completely.
    pub mad: Option<&'a Mad>,
}

/// Result of the ICRC check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Icrc {
    Right,
    Wrong([u8; ICRC_LEN]),
    /// The packet is truncated.
    NotChecked,
}

impl<'a> Frame<'a> {
    pub fn read(record: &Record<'a>) -> Self {
        let data = record.data;
        let frame_len = record.original_len.max(data.len());
        let (ethertype, at) = match carried(record.link_type, data) {
            Carried::Ethernet if data.len() >= HEAD_LEN || data.len() == frame_len => {
                return read_ethernet(data, data, frame_len, data);
            }
            Carried::Ethernet => {
                // Truncated headers are padded with zeros.
                let mut head = [0; HEAD_LEN];
                head[..data.len()].copy_from_slice(data);
                return read_ethernet(&head, &data[..data.len()], frame_len, data);
            }
            Carried::Network { ethertype, at } => (ethertype, at),
            Carried::Short => return Frame::Other(NonRoceKind::Short),
            Carried::Unknown => return Frame::UnknownLink,
        };
        // Length of the Ethernet header that replaces other link headers, so that all frames have
        // the same form.
        const ETHERNET_LEN: usize = 14;
        let packet = data.get(at..).unwrap_or(&[]);
        let known = packet.len().min(HEAD_LEN - ETHERNET_LEN);
        let mut head = [0; HEAD_LEN];
        head[12..14].copy_from_slice(&ethertype.to_be_bytes());
        head[ETHERNET_LEN..ETHERNET_LEN + known].copy_from_slice(&packet[..known]);
        let whole = packet.len() + at == frame_len;
        let shown = if whole { &head[..ETHERNET_LEN + known] } else { &head[..] };
        let cut = Cut { data: packet, skipped: ETHERNET_LEN };
        read_stack(shown, ETHERNET_LEN + known, frame_len - at + ETHERNET_LEN, cut)
    }
}

/// The captured bytes of a frame whose head may be a copy: `data[0]` corresponds to offset
/// `skipped` of the head.
#[derive(Clone, Copy)]
struct Cut<'a> {
    data: &'a [u8],
    skipped: usize,
}

impl<'a> Cut<'a> {
    /// Returns the bytes at offsets `from..to` of the head, if all were captured.
    fn get(&self, from: usize, to: usize) -> Option<&'a [u8]> {
        self.data.get(from.checked_sub(self.skipped)?..to.checked_sub(self.skipped)?)
    }
}

fn read_ethernet<'a>(head: &[u8], known: &[u8], frame_len: usize, data: &'a [u8]) -> Frame<'a> {
    read_stack(head, known.len(), frame_len, Cut { data, skipped: 0 })
}

/// `head` starts with an Ethernet header; `known` bytes of it were captured, the rest are zeros.
fn read_stack<'a>(head: &[u8], known: usize, frame_len: usize, cut: Cut<'a>) -> Frame<'a> {
    let is_cut = known < frame_len && known < head.len();
    match split(head, frame_len) {
        Ok(Split::Roce { layout, payload_len, pad }) => {
            if known < layout.bth + Bth::LEN {
                return Frame::Cut;
            }
            match roce(head, known, &layout, payload_len, pad, cut) {
                Some(packet) => Frame::Roce(packet),
                None => Frame::Malformed,
            }
        }
        Ok(Split::Other) => Frame::Other(kind(&head[..known.min(head.len())])),
        Err(_)
            if is_cut
                && Layout::find(head).ok().flatten().is_none_or(|l| known < l.bth + Bth::LEN) =>
        {
            Frame::Cut
        }
        Err(_) => Frame::Malformed,
    }
}

fn roce<'a>(
    head: &[u8],
    known: usize,
    layout: &Layout,
    payload_len: usize,
    pad: usize,
    cut: Cut<'a>,
) -> Option<RocePacket<'a>> {
    let packet = Packet::parse(head).ok().flatten()?;
    let all_headers = known >= layout.payload;
    let end = layout.payload + payload_len + pad;
    let body = cut.get(layout.payload, end + ICRC_LEN);
    let icrc = match body.and_then(|b| b.split_last_chunk::<ICRC_LEN>()) {
        Some((payload, received)) if all_headers => {
            let expected = icrc::of(&head[..layout.payload], layout, payload, &[]);
            if *received == expected { Icrc::Right } else { Icrc::Wrong(*received) }
        }
        _ => Icrc::NotChecked,
    };
    let bth = packet.bth();
    let mad = match bth.dest_qp {
        Qpn::GSI => {
            cut.get(layout.payload, layout.payload + MAD_LEN).and_then(|b| b.try_into().ok())
        }
        _ => None,
    };
    Some(RocePacket {
        source: packet.source_ip(),
        destination: packet.destination_ip(),
        udp_source_port: packet.udp_source_port(),
        ecn: Ecn::of_traffic_class(packet.traffic_class()),
        bth,
        aeth: packet.aeth().filter(|_| all_headers),
        reth: packet.reth().filter(|_| all_headers),
        payload_len: payload_len as u32,
        icrc,
        mad,
    })
}

/// Classifies a frame that is not RoCEv2.
fn kind(head: &[u8]) -> NonRoceKind {
    let big = |at: usize| head.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let mut at = 12;
    let Some(mut ethertype) = big(at) else { return NonRoceKind::Short };
    while matches!(ethertype, 0x8100 | 0x88a8) && at < 20 {
        at += 4;
        match big(at) {
            Some(inner) => ethertype = inner,
            None => return NonRoceKind::Short,
        }
    }
    let ip = at + 2;
    let (protocol, transport) = match ethertype {
        ETHERTYPE_IPV4 => match (head.get(ip), head.get(ip + 9), big(ip + 6)) {
            (_, _, Some(fragment)) if fragment & 0x1fff != 0 => return NonRoceKind::Fragment,
            (Some(first), Some(&protocol), _) => (protocol, ip + usize::from(first & 0xf) * 4),
            _ => return NonRoceKind::Short,
        },
        ETHERTYPE_IPV6 => match head.get(ip + 6) {
            Some(&next) => (next, ip + 40),
            None => return NonRoceKind::Short,
        },
        other => return NonRoceKind::Ethertype(other),
    };
    let port =
        big(transport).zip(big(transport + 2)).map(|(source, destination)| source.min(destination));
    match (protocol, port) {
        (6, Some(port)) => NonRoceKind::Tcp(port),
        (17, Some(port)) => NonRoceKind::Udp(port),
        (protocol, _) => NonRoceKind::IpProtocol(protocol),
    }
}
