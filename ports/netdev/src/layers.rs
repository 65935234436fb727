//! Header offsets of a frame that is to be split.

use crate::segment::NotUnderstood;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_BRIDGED: u16 = 0x6558;
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const ETHERNET_BYTES: usize = 14;
const PROTOCOL_IPV4: u8 = 4;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_GRE: u8 = 47;
pub(crate) const PROTOCOL_SCTP: u8 = 132;
const GENEVE_PORT: u16 = 6081;
/// Maximum number of nested IP headers: the kernel itself nests two.
const IPS_MAX: usize = 4;
/// Maximum number of consecutive VLAN tags, or of IPv6 extension headers.
const CHAIN_MAX: usize = 8;

/// Offsets of the headers that change when a frame is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layers {
    ips: [usize; IPS_MAX],
    ip_count: usize,
    /// UDP header of a tunnel, and its IP header.
    pub(crate) tunnel: Option<(usize, usize)>,
    /// The innermost TCP or UDP header.
    pub(crate) transport: usize,
    /// Start of the payload.
    pub(crate) payload: usize,
}

/// Refuses to read beyond the frame.
fn byte(frame: &[u8], at: usize) -> Result<u8, NotUnderstood> {
    frame.get(at).copied().ok_or(NotUnderstood)
}

fn word(frame: &[u8], at: usize) -> Result<u16, NotUnderstood> {
    Ok(u16::from_be_bytes([byte(frame, at)?, byte(frame, at + 1)?]))
}

/// EtherType and offset of the header behind the Ethernet header at `at`.
pub(crate) fn behind_ethernet(frame: &[u8], at: usize) -> Result<(u16, usize), NotUnderstood> {
    let mut next = at + ETHERNET_BYTES;
    for _ in 0..CHAIN_MAX {
        let ethertype = word(frame, next - 2)?;
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            return Ok((ethertype, next));
        }
        next += 4;
    }
    Err(NotUnderstood)
}

/// Protocol and offset of the header behind the IP header at `at`.
pub(crate) fn behind_ip(
    frame: &[u8],
    ethertype: u16,
    at: usize,
) -> Result<(u8, usize), NotUnderstood> {
    let first = byte(frame, at)?;
    match (ethertype, first >> 4) {
        (ETHERTYPE_IPV4, 4) if first & 0xf >= 5 => {
            // A fragment: `MF`, or an offset.
            if word(frame, at + 6)? & 0x3fff != 0 {
                return Err(NotUnderstood);
            }
            Ok((byte(frame, at + 9)?, at + usize::from(first & 0xf) * 4))
        }
        (ETHERTYPE_IPV6, 6) => {
            let (mut protocol, mut next) = (byte(frame, at + 6)?, at + 40);
            for _ in 0..CHAIN_MAX {
                // Hop-by-hop options, routing, destination options.
                if !matches!(protocol, 0 | 43 | 60) {
                    return Ok((protocol, next));
                }
                protocol = byte(frame, next)?;
                next += (usize::from(byte(frame, next + 1)?) + 1) * 8;
            }
            Err(NotUnderstood)
        }
        _ => Err(NotUnderstood),
    }
}

impl Layers {
    pub(crate) const NONE: Layers =
        Layers { ips: [0; IPS_MAX], ip_count: 0, tunnel: None, transport: 0, payload: 0 };

    /// Finds the headers of a frame whose innermost protocol is `protocol`, TCP or UDP. `transport`
    /// is the claimed offset of its header, which must be right.
    pub(crate) fn find(
        frame: &[u8],
        protocol: u8,
        transport: Option<usize>,
    ) -> Result<Self, NotUnderstood> {
        let mut layers = Layers::NONE;
        let (mut ethertype, mut at) = behind_ethernet(frame, 0)?;
        while layers.ip_count < IPS_MAX {
            layers.ips[layers.ip_count] = at;
            layers.ip_count += 1;
            let (carried, next) = behind_ip(frame, ethertype, at)?;
            if carried == protocol && transport.is_none_or(|transport| transport == next) {
                return layers.ending(frame, protocol, next);
            }
            (ethertype, at) = match carried {
                PROTOCOL_IPV4 => (ETHERTYPE_IPV4, next),
                PROTOCOL_IPV6 => (ETHERTYPE_IPV6, next),
                PROTOCOL_GRE => behind_gre(frame, next)?,
                PROTOCOL_UDP if layers.tunnel.is_none() && transport.is_some() => {
                    layers.tunnel = Some((next, at));
                    behind_udp_tunnel(frame, next)?
                }
                _ => return Err(NotUnderstood),
            };
        }
        Err(NotUnderstood)
    }

    fn ending(
        mut self,
        frame: &[u8],
        protocol: u8,
        transport: usize,
    ) -> Result<Self, NotUnderstood> {
        self.transport = transport;
        self.payload = match protocol {
            PROTOCOL_TCP => match usize::from(byte(frame, transport + 12)? >> 4) * 4 {
                bytes @ 20.. => transport + bytes,
                _ => return Err(NotUnderstood),
            },
            _ => transport + 8,
        };
        if self.payload < frame.len() { Ok(self) } else { Err(NotUnderstood) }
    }

    /// Offsets of the IP headers, outermost first.
    pub(crate) fn ips(&self) -> &[usize] {
        &self.ips[..self.ip_count]
    }

    /// Offset of the IP header before the transport header.
    pub(crate) fn innermost_ip(&self) -> usize {
        self.ips[self.ip_count - 1]
    }
}

/// GRE without checksum and sequence number, so that no field depends on the length.
fn behind_gre(frame: &[u8], at: usize) -> Result<(u16, usize), NotUnderstood> {
    let flags = word(frame, at)?;
    // Only a key is allowed.
    if flags & !0x2000 != 0 {
        return Err(NotUnderstood);
    }
    let next = at + if flags == 0 { 4 } else { 8 };
    match word(frame, at + 2)? {
        ETHERTYPE_BRIDGED => behind_ethernet(frame, next),
        ethertype => Ok((ethertype, next)),
    }
}

/// VXLAN or Geneve. The guess is confirmed if the transport header turns out to be at its claimed
/// offset.
fn behind_udp_tunnel(frame: &[u8], at: usize) -> Result<(u16, usize), NotUnderstood> {
    let tunnel = at + 8;
    let mut next = tunnel + 8;
    if word(frame, at + 2)? == GENEVE_PORT {
        next += usize::from(byte(frame, tunnel)? & 0x3f) * 4;
        let ethertype = word(frame, tunnel + 2)?;
        if ethertype != ETHERTYPE_BRIDGED {
            return Ok((ethertype, next));
        }
    }
    behind_ethernet(frame, next)
}

/// Protocol field of the frame's outermost IP header.
pub(crate) fn protocol(frame: &[u8]) -> Result<u8, NotUnderstood> {
    let (ethertype, at) = behind_ethernet(frame, 0)?;
    Ok(behind_ip(frame, ethertype, at)?.0)
}
