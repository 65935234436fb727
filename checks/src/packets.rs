//! A packet as plain fields: parsed from any frame, or made up, and built by the product's own
//! builders.

use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::pcap::{LinkType, RecordHeader};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CNP_PAYLOAD, Deth, Head, Ipv4Fragmentation, MacAddr,
    Malformed, Opcode, Packet, Path, PathTemplate, Reth, Split, Syndrome, Verb, icrc, pcap, split,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All fields of a RoCEv2 frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fields {
    /// Ethernet to UDP.
    pub path: Path,
    /// IPv4 identification and DF; `None` for IPv6.
    pub fragmentation: Option<Ipv4Fragmentation>,
    /// Base transport header; its pad count is derived from the payload.
    pub bth: Bth,
    /// RETH, if the opcode has one.
    pub reth: Option<Reth>,
    /// AETH, if the opcode has one.
    pub aeth: Option<Aeth>,
    /// DETH, if the opcode has one.
    pub deth: Option<Deth>,
    /// AtomicETH, if the opcode has one.
    pub atomic: Option<AtomicEth>,
    /// AtomicAckETH, if the opcode has one.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data, if the opcode has it.
    pub immediate: Option<[u8; 4]>,
    /// IETH, if the opcode has it.
    pub invalidate: Option<RKey>,
    /// Payload without pad.
    pub payload: Vec<u8>,
}

impl Fields {
    /// Parses a frame. `Ok(None)`: not RoCEv2. The second value says whether the ICRC is valid.
    pub fn read(frame: &[u8]) -> Result<Option<(Fields, bool)>, Malformed> {
        let found = split(frame, frame.len())?;
        let (Split::Roce { layout, payload_len, .. }, Some(end)) = (found, found.end()) else {
            return Ok(None);
        };
        let Some(packet) = Packet::parse(&frame[..layout.payload])? else { return Ok(None) };
        let fields = Fields {
            path: packet.path(),
            fragmentation: packet.ipv4_fragmentation(),
            bth: packet.bth(),
            reth: packet.reth(),
            aeth: packet.aeth(),
            deth: packet.deth(),
            atomic: packet.atomic_eth(),
            atomic_ack: packet.atomic_ack_eth(),
            immediate: packet.immediate(),
            invalidate: packet.invalidate(),
            payload: frame[layout.payload..layout.payload + payload_len].to_vec(),
        };
        let icrc_is_right = icrc::of_frame(frame, &layout, end) == frame[end - 4..end];
        Ok(Some((fields, icrc_is_right)))
    }

    /// Builds the frame, ICRC included.
    pub fn build(&self) -> Vec<u8> {
        let mut template = PathTemplate::new(&self.path);
        if let Some(fragmentation) = self.fragmentation {
            template = template.with_ipv4_fragmentation(fragmentation);
        }
        let mut head = Head::begin(&template, &self.bth);
        if let Some(reth) = &self.reth {
            head.push_reth(reth);
        }
        if let Some(aeth) = &self.aeth {
            head.push_aeth(aeth);
        }
        if let Some(deth) = &self.deth {
            head.push_deth(deth);
        }
        if let Some(atomic) = &self.atomic {
            head.push_atomic(atomic);
        }
        if let Some(ack) = &self.atomic_ack {
            head.push_atomic_ack(ack);
        }
        if let Some(immediate) = self.immediate {
            head.push_immediate(immediate);
        }
        if let Some(rkey) = self.invalidate {
            head.push_invalidate(rkey);
        }
        let pad_len = head.finish(&template, self.payload.len());
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::Bytes(&self.payload),
            trailer: Trailer::Sealed { pad_len },
        };
        let mut out = vec![0; frame.len()];
        frame.write_to(&mut out);
        out
    }

    /// A packet of `opcode` with a distinctive value in every field that it has. `salt` varies all
    /// values.
    pub fn made_up(opcode: Opcode, path: Path, payload_len: usize, salt: u32) -> Fields {
        let is_cnp = opcode == Opcode::CNP;
        let bth = Bth {
            solicited: salt & 1 != 0 && opcode.ends_message() && !is_cnp,
            migreq: salt & 2 != 0,
            ack_request: salt & 4 != 0 && opcode.is_request(),
            becn: is_cnp,
            pad: (payload_len.wrapping_neg() & 3) as u8,
            ..Bth::new(
                opcode,
                Qpn::new(0x00ab_c100 + salt),
                Psn::new(if is_cnp { 0 } else { 0x00ff_fff0 + salt }),
            )
        };
        let rkey = RKey(0x1234_0000 | salt);
        let virtual_address = 0x7fff_0123_4567_0000 + u64::from(salt) * 8;
        let syndrome = match salt % 4 {
            0 => Syndrome::ACK_UNLIMITED,
            1 => Syndrome::Ack { credit_code: (salt % 31) as u8 },
            2 => Syndrome::RnrNak { timer_code: (salt % 32) as u8 },
            _ => Syndrome::read(0x60 + (salt % 5) as u8),
        };
        Fields {
            path,
            fragmentation: path.destination_ip.is_ipv4().then_some(Ipv4Fragmentation {
                identification: (salt * 257) as u16,
                dont_fragment: salt & 8 == 0,
            }),
            bth,
            reth: opcode.has_reth().then_some(Reth {
                virtual_address,
                rkey,
                len: payload_len as u32,
            }),
            aeth: opcode.has_aeth().then_some(Aeth { syndrome, msn: Msn::new(0x00fe_dc00 + salt) }),
            deth: opcode.has_deth().then_some(Deth {
                qkey: 0x1111_1111 + salt,
                reserved_8: 0,
                source_qp: Qpn::new(0x0002_0000 + salt),
            }),
            atomic: opcode.has_atomic().then_some(AtomicEth {
                virtual_address,
                rkey,
                swap_or_add: 0x0102_0304_0506_0708 + u64::from(salt),
                compare: 0xf1f2_f3f4_f5f6_f7f8,
            }),
            atomic_ack: (opcode.verb() == Some(Verb::AtomicAcknowledge))
                .then_some(AtomicAckEth { original: 0xa1a2_a3a4_a5a6_a7a8 }),
            immediate: opcode.has_immediate().then_some((0xdead_0000 | salt).to_be_bytes()),
            invalidate: opcode.has_invalidate().then_some(RKey(0x7777_0000 | salt)),
            payload: if is_cnp {
                CNP_PAYLOAD.to_vec()
            } else {
                (0..payload_len).map(|i| (i as u32 * 31 + salt) as u8).collect()
            },
        }
    }
}

/// All named opcodes.
pub fn opcodes() -> impl Iterator<Item = Opcode> {
    (0..=255).map(Opcode).filter(|opcode| opcode.name().is_some())
}

/// `true` for opcodes whose packets carry payload.
pub fn carries_payload(opcode: Opcode) -> bool {
    matches!(opcode.verb(), Some(Verb::Send | Verb::Write | Verb::ReadResponse))
}

/// IPv4, IPv4 with a VLAN tag, IPv6, IPv6 with a VLAN tag.
pub fn paths() -> [Path; 4] {
    let v4 = Path {
        source_mac: MacAddr([2, 0, 10, 77, 0, 1]),
        destination_mac: MacAddr([2, 0, 10, 77, 0, 2]),
        vlan: None,
        source_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
        destination_ip: IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
        traffic_class: 0x6a,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    };
    let v6 = Path {
        source_ip: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
        destination_ip: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
        flow_label: 0x000a_bcde,
        ..v4
    };
    [v4, Path { vlan: Some(0x6064), ..v4 }, v6, Path { vlan: Some(0x0fff), ..v6 }]
}

/// Every opcode on every path, with every pad count if it carries payload.
pub fn every_kind() -> Vec<Fields> {
    let mut all = Vec::new();
    for path in paths() {
        for opcode in opcodes() {
            let lengths: &[usize] =
                if carries_payload(opcode) { &[64, 61, 66, 1023] } else { &[0] };
            for &len in lengths {
                let salt = all.len() as u32 % 251;
                all.push(Fields::made_up(opcode, path, len, salt));
            }
        }
    }
    all
}

/// A capture file of `frames`, one per microsecond.
pub fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = pcap::file_header(LinkType::ETHERNET, 65_535).to_vec();
    for (number, frame) in frames.iter().enumerate() {
        let header = RecordHeader {
            timestamp_ns: 1_700_000_000_000_000_000 + number as u64 * 1000,
            captured_len: frame.len() as u32,
            original_len: frame.len() as u32,
        };
        file.extend(header.write());
        file.extend(frame);
    }
    file
}
