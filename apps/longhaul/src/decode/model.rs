//! A frame as plain values: the JSON object, and the source of the text line.

use super::cm::Cm;
use longhaul_units::Duration;
use longhaul_wire::pcap::{LinkType, Record};
use longhaul_wire::{
    Aeth, ICRC_LEN, Malformed, NakCode, Packet, Split, Syndrome, Verb, credits, icrc, rnr_timer,
    split,
};
use serde::{Serialize, Serializer};
use std::fmt::Display;
use std::net::IpAddr;

/// One frame of the capture.
#[derive(Debug, Serialize)]
pub struct Line {
    /// Its number, from 1.
    pub frame: u64,
    /// Nanoseconds since 1970, if the capture has timestamps.
    pub time_unix_ns: Option<u64>,
    /// Length on the wire in bytes, without FCS.
    pub length: usize,
    /// Captured bytes.
    pub captured: usize,
    #[serde(flatten)]
    pub content: Content,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Content {
    /// A RoCEv2 packet.
    Roce(Box<RocePacket>),
    /// Anything else, with a short description.
    Other { what: String },
    /// Malformed packet to port 4791.
    Malformed { error: String },
    /// Packet to port 4791 whose headers are truncated.
    Cut { error: &'static str },
}

#[derive(Debug, Serialize)]
pub struct RocePacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub udp_source_port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    pub traffic_class: u8,
    pub opcode: u8,
    pub name: String,
    pub destination_qp: u32,
    pub psn: u32,
    pub ack_request: bool,
    pub solicited: bool,
    pub migreq: bool,
    pub fecn: bool,
    pub becn: bool,
    pub pkey: u16,
    pub version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reth: Option<Reth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aeth: Option<Acknowledge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deth: Option<Deth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub atomic: Option<Atomic>,
    /// Original value of an atomic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub atomic_original: Option<Hex64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immediate: Option<Hex32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidate_rkey: Option<Hex32>,
    pub payload_bytes: usize,
    pub pad: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cm: Option<Cm>,
    pub icrc: Icrc,
}

/// A number in the form `"0x…"` in JSON: 64-bit ones would lose digits in most readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex32(pub u32);

/// As [`Hex32`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex64(pub u64);

impl Display for Hex32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl Display for Hex64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl Serialize for Hex32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Hex64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Debug, Serialize)]
pub struct Reth {
    pub virtual_address: Hex64,
    pub rkey: Hex32,
    pub dma_bytes: u32,
}

#[derive(Debug, Serialize)]
pub struct Deth {
    pub qkey: Hex32,
    pub source_qp: u32,
}

#[derive(Debug, Serialize)]
pub struct Atomic {
    pub virtual_address: Hex64,
    pub rkey: Hex32,
    /// Swap value of CMP_SWAP, addend of FETCH_ADD.
    pub swap_or_add: Hex64,
    /// CMP_SWAP only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compare: Option<Hex64>,
}

#[derive(Debug, Serialize)]
pub struct Acknowledge {
    pub syndrome: u8,
    pub msn: u32,
    #[serde(flatten)]
    pub meaning: Meaning,
}

/// Meaning of a syndrome.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// Messages allowed beyond the MSN; `None`: no limit.
    Credits(Option<u32>),
    /// Requested wait in ns.
    RnrWaitNs(u64),
    /// NAK, with the reason.
    Nak(&'static str),
    /// A syndrome that the standard reserves.
    Reserved(u8),
}

#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Icrc {
    Ok,
    Wrong {
        received: Hex32,
        expected: Hex32,
    },
    /// The packet is truncated.
    Cut,
}

impl Line {
    pub fn read(frame: u64, record: &Record<'_>) -> Line {
        Line {
            frame,
            time_unix_ns: record.timestamp_ns,
            length: record.original_len,
            captured: record.data.len(),
            content: Content::read(record),
        }
    }
}

impl Content {
    fn read(record: &Record<'_>) -> Content {
        let LinkType::ETHERNET = record.link_type else {
            return Content::Other { what: format!("link type {}", record.link_type.0) };
        };
        let data = record.data;
        let wire_len = record.original_len.max(data.len());
        let is_cut = data.len() < wire_len;
        match split(data, wire_len) {
            Ok(Split::Other) => Content::Other { what: super::text::other_frame(data) },
            Ok(Split::Roce { layout, payload_len, pad }) => {
                match Packet::parse(&data[..layout.payload]) {
                    Ok(Some(packet)) => {
                        Content::Roce(Box::new(RocePacket::read(&packet, data, payload_len, pad)))
                    }
                    Ok(None) | Err(_) => {
                        Content::Malformed { error: Malformed::Truncated.to_string() }
                    }
                }
            }
            Err(Malformed::Truncated) if is_cut => {
                Content::Cut { error: "cut inside its headers by the snap length" }
            }
            Err(error) => Content::Malformed { error: error.to_string() },
        }
    }
}

impl RocePacket {
    fn read(packet: &Packet<'_>, data: &[u8], payload_len: usize, pad: usize) -> RocePacket {
        let layout = packet.layout();
        let path = packet.path();
        let bth = packet.bth();
        let opcode = bth.opcode;
        let payload_end = layout.payload + payload_len;
        RocePacket {
            source: path.source_ip,
            destination: path.destination_ip,
            udp_source_port: path.udp_source_port,
            vlan: path.vlan.map(|tci| tci & 0x0fff),
            traffic_class: path.traffic_class,
            opcode: opcode.0,
            name: opcode.to_string(),
            destination_qp: bth.dest_qp.get(),
            psn: bth.psn.get(),
            ack_request: bth.ack_request,
            solicited: bth.solicited,
            migreq: bth.migreq,
            fecn: bth.fecn,
            becn: bth.becn,
            pkey: bth.pkey,
            version: bth.version,
            reth: packet.reth().map(|r| Reth {
                virtual_address: Hex64(r.virtual_address),
                rkey: Hex32(r.rkey.0),
                dma_bytes: r.len,
            }),
            aeth: packet.aeth().map(Acknowledge::read),
            deth: packet.deth().map(|d| Deth { qkey: Hex32(d.qkey), source_qp: d.source_qp.get() }),
            atomic: packet.atomic_eth().map(|a| Atomic {
                virtual_address: Hex64(a.virtual_address),
                rkey: Hex32(a.rkey.0),
                swap_or_add: Hex64(a.swap_or_add),
                compare: (opcode.verb() == Some(Verb::CmpSwap)).then_some(Hex64(a.compare)),
            }),
            atomic_original: packet.atomic_ack_eth().map(|a| Hex64(a.original)),
            immediate: packet.immediate().map(|b| Hex32(u32::from_be_bytes(b))),
            invalidate_rkey: packet.invalidate().map(|k| Hex32(k.0)),
            payload_bytes: payload_len,
            pad,
            cm: data.get(layout.payload..payload_end).and_then(|payload| Cm::read(packet, payload)),
            icrc: Icrc::check(packet, data, payload_end + pad + ICRC_LEN),
        }
    }
}

impl Acknowledge {
    fn read(aeth: Aeth) -> Acknowledge {
        let meaning = match aeth.syndrome {
            Syndrome::Ack { credit_code } => Meaning::Credits(credits(credit_code)),
            Syndrome::RnrNak { timer_code } => {
                Meaning::RnrWaitNs(Duration::as_ns(rnr_timer(timer_code)))
            }
            Syndrome::Nak(code) => Meaning::Nak(match code {
                NakCode::PsnSequence => "PSN sequence error",
                NakCode::InvalidRequest => "invalid request",
                NakCode::RemoteAccess => "remote access error",
                NakCode::RemoteOperational => "remote operational error",
                NakCode::InvalidRd => "invalid RD request",
            }),
            Syndrome::Reserved(byte) => Meaning::Reserved(byte),
        };
        Acknowledge { syndrome: aeth.syndrome.write(), msn: aeth.msn.get(), meaning }
    }
}

impl Icrc {
    fn check(packet: &Packet<'_>, data: &[u8], end: usize) -> Icrc {
        let Some(whole) = data.get(..end) else { return Icrc::Cut };
        let Some(&received) = whole.last_chunk::<ICRC_LEN>() else { return Icrc::Cut };
        let expected = icrc::of_frame(whole, &packet.layout(), end);
        if received == expected {
            return Icrc::Ok;
        }
        Icrc::Wrong {
            received: Hex32(u32::from_be_bytes(received)),
            expected: Hex32(u32::from_be_bytes(expected)),
        }
    }
}
