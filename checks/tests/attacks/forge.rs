//! Forged RoCE packets and box datagrams.

use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Psn, Qpn};
use longhaul_wan::format::{DatagramKind, HEADER_LEN, Header};
use longhaul_wire::{
    Aeth, Bth, Head, ICRC_LEN, MacAddr, Opcode, Packet, Path, PathTemplate, Syndrome, Udp, icrc,
};
use std::net::IpAddr;

pub const ROCE_PORT: u16 = 4791;
pub const BOX_PORT: u16 = 4797;
/// Offset of a transport's or seal's header behind untagged IPv4.
pub const AT: usize = 42;

pub fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.write_to(&mut bytes);
    bytes
}

/// A path between two addresses; the Ethernet addresses are those of the fleet's hosts.
pub fn path(source_ip: IpAddr, destination_ip: IpAddr) -> Path {
    let mac = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            MacAddr([2, 0, a, b, c, d])
        }
        IpAddr::V6(_) => MacAddr([2, 0, 0, 0, 0, 9]),
    };
    Path {
        source_mac: mac(source_ip),
        destination_mac: mac(destination_ip),
        vlan: None,
        source_ip,
        destination_ip,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc123,
    }
}

/// A RoCE packet with a valid ICRC.
pub fn packet(path: &Path, bth: &Bth, aeth: Option<Aeth>, payload: &[u8]) -> Vec<u8> {
    let template = PathTemplate::new(path);
    let mut head = Head::begin(&template, bth);
    aeth.iter().for_each(|aeth| head.push_aeth(aeth));
    let pad_len = head.finish(&template, payload.len());
    let (payload, trailer) = (Payload::Bytes(payload), Trailer::Sealed { pad_len });
    bytes_of(&Frame { head: head.bytes(), payload, trailer })
}

/// An ACK up to `psn`, for the QP `to`.
pub fn ack(path: &Path, to: Qpn, psn: Psn) -> Vec<u8> {
    let aeth = Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: longhaul_units::Msn::new(psn.get()) };
    packet(path, &Bth::new(Opcode::RC_ACK, to, psn), Some(aeth), &[])
}

/// A SEND of one packet.
pub fn send(path: &Path, to: Qpn, psn: Psn, payload: &[u8]) -> Vec<u8> {
    let bth = Bth { ack_request: true, ..Bth::new(Opcode::RC_SEND_ONLY, to, psn) };
    packet(path, &bth, None, payload)
}

/// Transport header of an unsealed datagram between boxes.
pub fn header_of(bytes: &[u8]) -> Option<Header> {
    let udp = Udp::find(bytes).filter(|udp| udp.destination_port(bytes) == BOX_PORT)?;
    Header::read(bytes.get(udp.payload()..)?)
}

/// A RoCE packet as its host sent it: from the fibre in cleartext, tunnelled or not.
pub fn opened(bytes: &[u8]) -> Option<Vec<u8>> {
    let udp = Udp::find(bytes)?;
    match udp.destination_port(bytes) {
        ROCE_PORT => Some(bytes.to_vec()),
        BOX_PORT => {
            let header = header_of(bytes).filter(|header| header.kind == DatagramKind::Data)?;
            let mut out = bytes.to_vec();
            udp.lengthen(&mut out, -(HEADER_LEN as i32));
            udp.set_destination_port(&mut out, ROCE_PORT);
            udp.set_checksum(&mut out, header.udp_checksum);
            out.drain(AT..AT + HEADER_LEN);
            Some(out)
        }
        _ => None,
    }
}

/// A RoCE packet in a transport datagram.
pub fn tunnelled(packet: &[u8], header: &Header) -> Vec<u8> {
    let mut out = packet.to_vec();
    let Some(udp) = Udp::find(&out) else { return out };
    udp.lengthen(&mut out, HEADER_LEN as i32);
    udp.set_destination_port(&mut out, BOX_PORT);
    udp.set_checksum(&mut out, 0);
    out.splice(AT..AT, header.write(&[]));
    out
}

/// A transport datagram without a frame.
pub fn control(path: &Path, header: &Header, body: &[u8]) -> Vec<u8> {
    let mut out = PathTemplate::new(path).bytes().to_vec();
    out.truncate(AT);
    out.extend(header.write(body));
    out.extend(body);
    let len = out.len() - AT;
    if let Some(udp) = Udp::find(&out) {
        udp.set_destination_port(&mut out, BOX_PORT);
        udp.finish_lengths(&mut out, len);
    }
    out
}

/// The packet with a changed payload and a valid ICRC.
pub fn with_other_payload(packet: &[u8]) -> Option<Vec<u8>> {
    let parsed = Packet::parse(packet).ok()??;
    let layout = parsed.layout();
    let end = packet.len() - ICRC_LEN;
    let pad = usize::from(parsed.bth().pad);
    let mut out = packet.to_vec();
    out[layout.payload..end - pad].iter_mut().for_each(|byte| *byte ^= 0x5a);
    let sum = icrc::of_frame(&out, &layout, packet.len());
    out[end..].copy_from_slice(&sum);
    (end - pad > layout.payload).then_some(out)
}

/// A PING request, according to docs/spec/wan-transport.md.
pub fn ping(path: &Path, header: &Header, session: u32, nonce: u64) -> Vec<u8> {
    let mut body = [0; 32];
    body[0] = 1;
    body[4..8].copy_from_slice(&session.to_be_bytes());
    body[8..16].copy_from_slice(&nonce.to_be_bytes());
    control(path, header, &body)
}
