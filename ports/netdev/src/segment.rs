//! Software offloads: completes frames whose checksum a device was to fill in, and splits frames of
//! up to 64 KiB that it was to split.
//!
//! The kernel describes such frames by a `virtio_net_hdr`. A virtual machine may have forged it and
//! every byte of the frame, so neither is trusted.

use crate::checksum;
use crate::layers::{Layers, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP, protocol};

/// Length of the description that the kernel puts before each frame.
pub(crate) const OFFLOAD_BYTES: usize = 10;
/// Maximum length of headers: Ethernet, tags, a tunnel, IP and TCP with all options.
const HEADERS_MAX: usize = 384;
/// Minimum segment size: no TCP agrees on fewer bytes, and smaller ones would make tens of
/// thousands of segments of one frame.
pub(crate) const SEGMENT_BYTES_MIN: usize = 8;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCP_IPV4: u8 = 1;
const GSO_TCP_IPV6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
pub(crate) const TCP_CHECKSUM: usize = 16;
const UDP_LENGTH: usize = 4;
pub(crate) const UDP_CHECKSUM: usize = 6;
const SCTP_CHECKSUM: usize = 8;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The headers do not allow splitting or completing the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotUnderstood;

/// The offloads that are left to do on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offload {
    needs_checksum: bool,
    kind: u8,
    segment_bytes: usize,
    /// The checksum covers the bytes from here on.
    checksum_start: usize,
    /// Offset of the checksum from `checksum_start`.
    checksum_offset: usize,
}

impl Offload {
    /// A TCP frame that is to be split into segments with this payload; ignores the checksum
    /// field's contents.
    pub(crate) fn tcp(is_ipv6: bool, segment_bytes: usize) -> Self {
        let kind = if is_ipv6 { GSO_TCP_IPV6 } else { GSO_TCP_IPV4 };
        Offload { kind, segment_bytes, ..Offload::default() }
    }

    /// Description of a merged TCP frame over IPv4 for the kernel: its segments' payload, the
    /// length of its headers, and its open checksum.
    pub(crate) fn open_tcp(
        segment_bytes: usize,
        headers: usize,
        checksum_start: usize,
        checksum_offset: usize,
    ) -> [u8; OFFLOAD_BYTES] {
        let mut bytes = [0; OFFLOAD_BYTES];
        (bytes[0], bytes[1]) = (NEEDS_CHECKSUM, GSO_TCP_IPV4);
        let words = [headers, segment_bytes, checksum_start, checksum_offset];
        for (at, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&(word as u16).to_ne_bytes());
        }
        bytes
    }

    /// Parses a `virtio_net_hdr`, which is in native byte order.
    pub(crate) fn parse(bytes: &[u8; OFFLOAD_BYTES]) -> Self {
        let word = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        Offload {
            needs_checksum: bytes[0] & NEEDS_CHECKSUM != 0,
            kind: bytes[1] & !GSO_ECN,
            segment_bytes: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> [u8; OFFLOAD_BYTES] {
        let mut bytes = [0; OFFLOAD_BYTES];
        bytes[0] = u8::from(self.needs_checksum);
        bytes[1] = self.kind;
        let words = [self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 + 2 * at..6 + 2 * at].copy_from_slice(&(word as u16).to_ne_bytes());
        }
        bytes
    }

    /// True if nothing is left to do.
    pub(crate) fn is_nothing(&self) -> bool {
        !self.needs_checksum && self.kind == 0
    }

    /// True if the frame has to be split.
    pub(crate) fn is_split(&self) -> bool {
        self.kind != 0
    }

    /// Offset of the transport header, as the sender claims.
    pub(crate) fn transport(&self) -> Option<usize> {
        self.needs_checksum.then_some(self.checksum_start)
    }

    /// Transport protocol of the parts.
    pub(crate) fn protocol(&self) -> Result<u8, NotUnderstood> {
        match self.kind {
            GSO_TCP_IPV4 | GSO_TCP_IPV6 => Ok(PROTOCOL_TCP),
            GSO_UDP => Ok(PROTOCOL_UDP),
            _ => Err(NotUnderstood),
        }
    }

    /// The same offload after `bytes` have been inserted into the Ethernet header.
    pub(crate) fn shifted(self, bytes: usize) -> Self {
        Offload { checksum_start: self.checksum_start + bytes, ..self }
    }
}

pub(crate) fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(crate) fn get(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Fills in an open checksum. The field holds the sum of the covered bytes outside the frame.
pub(crate) fn complete(frame: &mut [u8], offload: &Offload) -> Result<(), NotUnderstood> {
    let Offload { checksum_start: start, checksum_offset: offset, .. } = *offload;
    if offset == SCTP_CHECKSUM {
        return complete_sctp(frame, start);
    }
    if start + offset + 2 > frame.len() {
        return Err(NotUnderstood);
    }
    let checksum = checksum::of(checksum::sum(&frame[start..]));
    put(frame, start + offset, checksum);
    Ok(())
}

/// SCTP's checksum is a CRC, and its field is unused until then.
fn complete_sctp(frame: &mut [u8], start: usize) -> Result<(), NotUnderstood> {
    let place = start + SCTP_CHECKSUM;
    if place + 4 > frame.len() || protocol(frame)? != PROTOCOL_SCTP {
        return Err(NotUnderstood);
    }
    frame[place..place + 4].fill(0);
    let crc = checksum::crc32c(frame[start..].iter().copied());
    frame[place..place + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Splits a frame like a device: repeats its headers, with lengths, IPv4 identifications, sequence
/// numbers, flags and checksums as if each part had been sent alone.
pub(crate) struct Splitter {
    headers: [u8; HEADERS_MAX],
    layers: Layers,
    is_tcp: bool,
    /// Payload bytes of each part but the last.
    segment_bytes: usize,
    /// Start of the next part's payload.
    at: usize,
    /// End of the whole frame.
    end: usize,
    /// Number of parts built.
    made: usize,
    /// Sum of the pseudo header without the length. `None`: the sender wants no checksum.
    pseudo_sum: Option<u16>,
}

impl Splitter {
    /// No frame.
    pub(crate) const IDLE: Splitter = Splitter {
        headers: [0; HEADERS_MAX],
        layers: Layers::NONE,
        is_tcp: false,
        segment_bytes: 0,
        at: 0,
        end: 0,
        made: 0,
        pseudo_sum: None,
    };

    /// Starts with another frame.
    pub(crate) fn begin(&mut self, frame: &[u8], offload: &Offload) -> Result<(), NotUnderstood> {
        self.at = self.end;
        let protocol = offload.protocol()?;
        let is_tcp = protocol == PROTOCOL_TCP;
        let layers = Layers::find(frame, protocol, offload.transport())?;
        let segment_bytes = offload.segment_bytes;
        // The largest length field must hold the rest of the longest part.
        let fits = layers.payload + segment_bytes.min(frame.len()) <= usize::from(u16::MAX);
        if layers.payload > HEADERS_MAX || segment_bytes < SEGMENT_BYTES_MIN || !fits {
            return Err(NotUnderstood);
        }
        let place = layers.transport + if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        self.pseudo_sum = if offload.needs_checksum {
            // The field holds the sum for the whole frame, including its length.
            let length = frame.len() - layers.transport;
            let length = u16::try_from(length).map_err(|_| NotUnderstood)?;
            Some(checksum::add(get(frame, place), !length))
        } else if is_tcp || get(frame, place) != 0 {
            Some(pseudo_sum(frame, layers.innermost_ip(), protocol))
        } else {
            None
        };
        self.headers[..layers.payload].copy_from_slice(&frame[..layers.payload]);
        (self.at, self.end, self.made) = (layers.payload, frame.len(), 0);
        (self.layers, self.is_tcp, self.segment_bytes) = (layers, is_tcp, segment_bytes);
        Ok(())
    }

    /// True if there are no more parts.
    pub(crate) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Builds the next part, which must exist, in `frame`, which must be the frame that was begun:
    /// the part's headers overwrite the end of the previous part.
    pub(crate) fn next<'a>(&mut self, frame: &'a mut [u8]) -> &'a mut [u8] {
        let end = (self.at + self.segment_bytes).min(self.end);
        let headers = self.layers.payload;
        let part = &mut frame[self.at - headers..end];
        part[..headers].copy_from_slice(&self.headers[..headers]);
        for ip in self.layers.ips() {
            lengthen_ip(&mut part[*ip..], self.made as u16);
        }
        if self.is_tcp {
            self.write_tcp(&mut part[self.layers.transport..], end == self.end);
        } else {
            self.write_udp(&mut part[self.layers.transport..]);
        }
        if let Some((udp, ip)) = self.layers.tunnel {
            write_tunnel(part, udp, ip);
        }
        self.at = end;
        self.made += 1;
        part
    }

    fn write_tcp(&self, segment: &mut [u8], is_last: bool) {
        let (sequence, _) =
            segment[TCP_SEQUENCE..].split_first_chunk_mut::<4>().expect("a TCP header");
        let sent = (self.made * self.segment_bytes) as u32;
        *sequence = u32::from_be_bytes(*sequence).wrapping_add(sent).to_be_bytes();
        if !is_last {
            segment[TCP_FLAGS] &= !(FIN | PSH);
        }
        if self.made > 0 {
            segment[TCP_FLAGS] &= !CWR;
        }
        self.write_checksum(segment, TCP_CHECKSUM);
    }

    fn write_udp(&self, datagram: &mut [u8]) {
        put(datagram, UDP_LENGTH, datagram.len() as u16);
        self.write_checksum(datagram, UDP_CHECKSUM);
    }

    fn write_checksum(&self, segment: &mut [u8], place: usize) {
        put(segment, place, 0);
        if let Some(pseudo_sum) = self.pseudo_sum {
            let beyond = checksum::add(pseudo_sum, segment.len() as u16);
            let checksum = checksum::of(checksum::add(beyond, checksum::sum(segment)));
            put(segment, place, checksum);
        }
    }
}

/// Writes the length-dependent fields of the IP header at the start of `packet`, and its
/// identification.
fn lengthen_ip(packet: &mut [u8], number: u16) {
    let bytes = packet.len();
    if packet[0] >> 4 == 6 {
        return put(packet, 4, (bytes - 40) as u16);
    }
    let header = usize::from(packet[0] & 0xf) * 4;
    put(packet, 2, bytes as u16);
    put(packet, 4, get(packet, 4).wrapping_add(number));
    put(packet, 10, 0);
    let checksum = !checksum::sum(&packet[..header]);
    put(packet, 10, checksum);
}

/// Writes length and checksum of the tunnel's UDP header, once its contents are complete.
fn write_tunnel(part: &mut [u8], udp: usize, ip: usize) {
    let wants_checksum = get(part, udp + UDP_CHECKSUM) != 0;
    let length = (part.len() - udp) as u16;
    put(part, udp + UDP_LENGTH, length);
    put(part, udp + UDP_CHECKSUM, 0);
    if wants_checksum {
        let beyond = checksum::add(pseudo_sum(part, ip, PROTOCOL_UDP), length);
        let checksum = checksum::of(checksum::add(beyond, checksum::sum(&part[udp..])));
        put(part, udp + UDP_CHECKSUM, checksum);
    }
}

/// Sum of addresses and protocol of the IP header at `ip`.
pub(crate) fn pseudo_sum(frame: &[u8], ip: usize, protocol: u8) -> u16 {
    let addresses = if frame[ip] >> 4 == 6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
    checksum::add(checksum::sum(&frame[addresses]), u16::from(protocol))
}

#[cfg(test)]
pub(crate) mod tests;
