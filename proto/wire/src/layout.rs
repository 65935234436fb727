//! Offsets of the headers in a received RoCEv2 frame.

use crate::{Bth, ICRC_LEN, Opcode, ROCEV2_PORT};
use thiserror::Error;

/// Header offsets of a RoCEv2 frame, in bytes from the destination MAC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// IP header.
    pub ip: usize,
    /// True for IPv6.
    pub is_ipv6: bool,
    /// UDP header.
    pub udp: usize,
    /// Base transport header.
    pub bth: usize,
    /// First payload byte: the end of all headers.
    pub payload: usize,
}

/// Reason why a frame to the RoCEv2 port is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// The frame ends inside a header.
    #[error("frame ends inside its headers")]
    Truncated,
    /// IPv4 header length below 20 bytes.
    #[error("IPv4 header length below 20 bytes")]
    IpHeaderLength,
    /// The lengths of IP and UDP disagree with each other or with the frame.
    #[error("IP or UDP length disagrees with the frame")]
    Length,
    /// An IP fragment, which cannot be checked.
    #[error("IP fragment")]
    Fragment,
    /// The pad count exceeds the payload, or the packet length is not a multiple of four.
    #[error("pad count disagrees with the length")]
    Pad,
}

/// Result of [`split`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Not UDP to port 4791: forward without interpretation.
    Other,
    /// RoCEv2.
    Roce {
        /// Header offsets.
        layout: Layout,
        /// Payload length without pad, in bytes.
        payload_len: usize,
        /// Pad bytes, 0 to 3.
        pad: usize,
    },
}

impl Split {
    /// End of the packet (after the ICRC), in bytes from the destination MAC; Ethernet padding
    /// follows it.
    pub fn end(&self) -> Option<usize> {
        match *self {
            Split::Other => None,
            Split::Roce { layout, payload_len, pad } => {
                Some(layout.payload + payload_len + pad + ICRC_LEN)
            }
        }
    }
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;
pub(crate) const PROTOCOL_UDP: u8 = 17;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

/// Offset and family of the IP header behind Ethernet and up to two VLAN tags.
pub(crate) fn find_ip(head: &[u8]) -> Option<(usize, bool)> {
    let mut at = 12;
    for _ in 0..3 {
        match u16_at(head, at)? {
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => at += 4,
            ETHERTYPE_IPV4 => return Some((at + 2, false)),
            ETHERTYPE_IPV6 => return Some((at + 2, true)),
            _ => return None,
        }
    }
    None
}

impl Layout {
    /// Finds the headers in `head`, the leading bytes of a frame. `Ok(None)` when it is not RoCEv2.
    ///
    /// Does not check the lengths in IP and UDP, which [`split`] compares with the frame.
    #[inline]
    pub fn find(head: &[u8]) -> Result<Option<Layout>, Malformed> {
        match Self::find_plain(head) {
            Some(found) => found.map(Some),
            None => Self::find_any(head),
        }
    }

    /// Fast path for nearly every packet: no tag, IPv4 without options and fragments, UDP to port
    /// 4791. `None`: anything else.
    #[inline(always)]
    fn find_plain(head: &[u8]) -> Option<Result<Layout, Malformed>> {
        let h = head.first_chunk::<54>()?;
        let is_plain = [h[12], h[13], h[14], h[23]] == [0x08, 0x00, 0x45, PROTOCOL_UDP]
            && [h[20] & 0x3f, h[21]] == [0, 0]
            && [h[36], h[37]] == ROCEV2_PORT.to_be_bytes();
        if !is_plain {
            return None;
        }
        let payload = 54 + Opcode(h[42]).extended_len();
        if head.len() < payload {
            return Some(Err(Malformed::Truncated));
        }
        Some(Ok(Layout { ip: 14, is_ipv6: false, udp: 34, bth: 42, payload }))
    }

    #[inline(never)]
    fn find_any(head: &[u8]) -> Result<Option<Layout>, Malformed> {
        let Some((ip, is_ipv6)) = find_ip(head) else { return Ok(None) };
        let Some(&version) = head.get(ip) else { return Ok(None) };
        if version >> 4 != if is_ipv6 { 6 } else { 4 } {
            return Ok(None);
        }
        let (protocol_at, ip_len) = if is_ipv6 {
            (ip + 6, 40)
        } else {
            if version & 0xf < 5 {
                return Err(Malformed::IpHeaderLength);
            }
            (ip + 9, usize::from(version & 0xf) * 4)
        };
        if head.get(protocol_at) != Some(&PROTOCOL_UDP) {
            return Ok(None);
        }
        if !is_ipv6 {
            let fragment = u16_at(head, ip + 6).ok_or(Malformed::Truncated)?;
            if fragment & 0x1fff != 0 {
                // Not the first fragment, so there are no ports.
                return Ok(None);
            }
            if fragment & 0x2000 != 0 {
                return match u16_at(head, ip + ip_len + 2) {
                    Some(ROCEV2_PORT) => Err(Malformed::Fragment),
                    _ => Ok(None),
                };
            }
        }
        let udp = ip + ip_len;
        if u16_at(head, udp + 2) != Some(ROCEV2_PORT) {
            return Ok(None);
        }
        let bth = udp + 8;
        let Some(&opcode) = head.get(bth) else { return Err(Malformed::Truncated) };
        let payload = bth + Bth::LEN + Opcode(opcode).extended_len();
        if head.len() < payload {
            return Err(Malformed::Truncated);
        }
        Ok(Some(Layout { ip, is_ipv6, udp, bth, payload }))
    }
}

/// Finds the boundaries of a whole frame, `frame_len` bytes long, whose leading bytes are `head`.
///
/// `head` is the frame itself or a private copy of its first [`crate::HEAD_MAX`] bytes.
#[inline(always)]
pub fn split(head: &[u8], frame_len: usize) -> Result<Split, Malformed> {
    // Inlined for nearly every packet: offsets are then constants, and the result is not copied in
    // pieces of another size than it was stored in, which would stall.
    match Layout::find_plain(head) {
        Some(Ok(layout)) => bounds(head, layout, frame_len),
        Some(Err(malformed)) => Err(malformed),
        None => split_any(head, frame_len),
    }
}

#[inline(never)]
fn split_any(head: &[u8], frame_len: usize) -> Result<Split, Malformed> {
    match Layout::find_any(head)? {
        Some(layout) => bounds(head, layout, frame_len),
        None => Ok(Split::Other),
    }
}

#[inline(always)]
fn bounds(head: &[u8], layout: Layout, frame_len: usize) -> Result<Split, Malformed> {
    let ip_length_at = if layout.is_ipv6 { layout.ip + 4 } else { layout.ip + 2 };
    let ip_length = usize::from(u16_at(head, ip_length_at).ok_or(Malformed::Truncated)?);
    let end = layout.ip + ip_length + if layout.is_ipv6 { 40 } else { 0 };
    let udp_length = usize::from(u16_at(head, layout.udp + 4).ok_or(Malformed::Truncated)?);
    if end > frame_len || layout.udp + udp_length != end {
        return Err(Malformed::Length);
    }
    let pad = usize::from((head[layout.bth + 1] >> 4) & 3);
    let Some(payload_len) = end.checked_sub(layout.payload + pad + ICRC_LEN) else {
        return Err(Malformed::Truncated);
    };
    if (payload_len + pad) % 4 != 0 {
        return Err(Malformed::Pad);
    }
    Ok(Split::Roce { layout, payload_len, pad })
}
