//! The wire format, specified in `docs/wan-encryption.md`. No input makes this module panic.

use crate::cipher::Preference;
use longhaul_node::{Frame, FrameBuf, FramePool, Payload, Trailer};
use longhaul_wire::{HEAD_MAX, Path, PathTemplate, Udp};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of the authentication tag in bytes.
pub const TAG_LEN: usize = 16;
/// Bytes by which sealing lengthens a datagram.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// Version of the format.
pub const VERSION: u8 = 1;

/// High half of the first byte. The transport has its version there, and never uses this value.
const MARK: u8 = 0xe;
/// Longest body of any datagram but DATA, in bytes.
pub(crate) const BODY_MAX: usize = Init::LEN;

/// Type of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DatagramKind {
    /// A sealed datagram of the transport.
    Data = 0,
    /// Sealed: a handshake message, or an empty body, which confirms the keys that it is sealed
    /// with.
    Control = 1,
    /// Asks for the box behind an address.
    Ask = 2,
    /// Answers with the box's mark and a cookie.
    Answer = 3,
    /// First message of the handshake.
    Init = 4,
    /// Second message of the handshake.
    Response = 5,
    /// Notifies the sender of a sealed datagram that its keys are unknown.
    Unknown = 6,
}

impl DatagramKind {
    const ALL: [DatagramKind; 7] = [
        DatagramKind::Data,
        DatagramKind::Control,
        DatagramKind::Ask,
        DatagramKind::Answer,
        DatagramKind::Init,
        DatagramKind::Response,
        DatagramKind::Unknown,
    ];
}

/// The 16 bytes behind UDP, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Type of the content.
    pub kind: DatagramKind,
    /// The sender's path, 0 to 15.
    pub path: u8,
    /// UDP checksum of the sealed datagram; 0 in other datagrams.
    pub udp_checksum: u16,
    /// The receiver's index of the keys; 0 if there are none.
    pub index: u32,
    /// In DATA and CONTROL, counts the sender's datagrams under these keys on this path. In a
    /// handshake, its nonce.
    pub number: u64,
}

/// Result of parsing the first bytes behind UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A header.
    Header(Header),
    /// This format, with an unknown version or type.
    Foreign,
    /// Not this format.
    Clear,
}

impl Header {
    /// Serialises the header.
    #[inline]
    pub fn write(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0] = MARK << 4 | VERSION;
        b[1] = (self.kind as u8) << 4 | self.path & 0xf;
        b[2..4].copy_from_slice(&self.udp_checksum.to_be_bytes());
        b[4..8].copy_from_slice(&self.index.to_be_bytes());
        b[8..].copy_from_slice(&self.number.to_be_bytes());
        b
    }

    /// Parses the bytes behind UDP.
    #[inline]
    pub fn read(bytes: &[u8]) -> Found {
        let Some(b) = bytes.first_chunk::<HEADER_LEN>() else { return Found::Clear };
        if b[0] >> 4 != MARK {
            return Found::Clear;
        }
        let kind = DatagramKind::ALL.get(usize::from(b[1] >> 4)).filter(|_| b[0] & 0xf == VERSION);
        let Some(&kind) = kind else { return Found::Foreign };
        Found::Header(Header {
            kind,
            path: b[1] & 0xf,
            udp_checksum: u16::from_be_bytes([b[2], b[3]]),
            index: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            number: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
        })
    }

    /// AEAD nonce, never used twice under one key: each path counts separately, and each direction
    /// has its own key.
    #[inline]
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[3] = self.path;
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        nonce
    }
}

/// Associated data: the header, and the fields of the outer headers that no router changes and the
/// far box restores.
pub(crate) struct Bound {
    bytes: [u8; Self::LEN_MAX],
    len: usize,
}

impl Bound {
    const LEN_MAX: usize = HEADER_LEN + 32 + 4;

    /// `head` contains headers up to UDP, whose offset is `udp`.
    #[inline(always)]
    pub(crate) fn new(header: &[u8; HEADER_LEN], head: &[u8], udp: Udp) -> Self {
        let mut bound = Bound { bytes: [0; Self::LEN_MAX], len: 0 };
        bound.push(header);
        if udp.is_ipv6 {
            bound.push::<32>(&fixed(head, udp.ip + 8));
        } else {
            // Identification and flags, which the frame's ICRC covers, then the addresses.
            bound.push::<4>(&fixed(head, udp.ip + 4));
            bound.push::<8>(&fixed(head, udp.ip + 12));
        }
        bound.push::<4>(&fixed(head, udp.udp));
        bound
    }

    #[inline]
    fn push<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(bytes);
        self.len += N;
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes at `at`, which lie within the headers that [`Udp::find`] found.
#[inline]
fn fixed<const N: usize>(head: &[u8], at: usize) -> [u8; N] {
    head[at..].first_chunk().copied().unwrap_or([0; N])
}

/// A cookie, or a box's mark in an answer.
pub(crate) type Token = [u8; 16];

/// An ASK is as long as its answer.
pub(crate) const ASK_BODY: [u8; Answer::LEN] = [0; Answer::LEN];

/// Body of an ANSWER.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// Cookie to present in an INIT.
    pub(crate) cookie: Token,
    /// Mark of the box: a hash of the nonce and its public key, which identifies it to a box that
    /// knows the key.
    pub(crate) who: Token,
}

impl Answer {
    pub(crate) const LEN: usize = 32;

    pub(crate) fn write(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..16].copy_from_slice(&self.cookie);
        b[16..].copy_from_slice(&self.who);
        b
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEN }>().filter(|_| bytes.len() == Self::LEN)?;
        let (mut cookie, mut who) = ([0; 16], [0; 16]);
        cookie.copy_from_slice(&b[..16]);
        who.copy_from_slice(&b[16..]);
        Some(Answer { cookie, who })
    }
}

/// Encrypted terms in either message of the handshake: 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// In an INIT, the ciphers that the sender accepts; in a RESPONSE, the chosen one.
    pub(crate) ciphers: Preference,
}

impl Terms {
    pub(crate) const LEN: usize = 8;

    pub(crate) fn write(&self) -> [u8; Self::LEN] {
        let [first, second] = self.ciphers.0;
        [first, second, 0, 0, 0, 0, 0, 0]
    }

    pub(crate) fn read(bytes: &[u8; Self::LEN]) -> Self {
        Terms { ciphers: Preference([bytes[0], bytes[1]]) }
    }
}

/// Noise IKpsk2, first message: ephemeral key, static key with tag, terms with tag.
pub(crate) const NOISE_INIT_LEN: usize = 32 + 48 + Terms::LEN + 16;
/// Second message: ephemeral key, terms with tag.
pub(crate) const NOISE_RESPONSE_LEN: usize = 32 + Terms::LEN + 16;

/// Body of an INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Init {
    /// The sender's index of the new keys.
    pub(crate) index: u32,
    /// Cookie from the answer; 0 within a session.
    pub(crate) cookie: Token,
    pub(crate) noise: [u8; NOISE_INIT_LEN],
}

impl Init {
    pub(crate) const LEN: usize = 4 + 16 + NOISE_INIT_LEN;

    pub(crate) fn write(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.index.to_be_bytes());
        b[4..20].copy_from_slice(&self.cookie);
        b[20..].copy_from_slice(&self.noise);
        b
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEN }>().filter(|_| bytes.len() == Self::LEN)?;
        let mut init = Init {
            index: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            cookie: [0; 16],
            noise: [0; NOISE_INIT_LEN],
        };
        init.cookie.copy_from_slice(&b[4..20]);
        init.noise.copy_from_slice(&b[20..]);
        (init.index != 0).then_some(init)
    }
}

/// Body of a RESPONSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Response {
    /// The sender's index of the new keys.
    pub(crate) index: u32,
    pub(crate) noise: [u8; NOISE_RESPONSE_LEN],
}

impl Response {
    pub(crate) const LEN: usize = 4 + NOISE_RESPONSE_LEN;

    pub(crate) fn write(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.index.to_be_bytes());
        b[4..].copy_from_slice(&self.noise);
        b
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEN }>().filter(|_| bytes.len() == Self::LEN)?;
        let mut response = Response {
            index: u32::from_be_bytes([b[0], b[1], b[2], b[3]]),
            noise: [0; NOISE_RESPONSE_LEN],
        };
        response.noise.copy_from_slice(&b[4..]);
        (response.index != 0).then_some(response)
    }
}

/// Builds a datagram of the seal's own along `way` to `port`: `header`, then `body`.
pub(crate) fn datagram(
    pool: &mut FramePool,
    way: &Path,
    port: u16,
    header: &Header,
    body: &[u8],
) -> FrameBuf {
    let (head, len) = headers(way, port, HEADER_LEN + body.len());
    let mut out = [0; HEAD_MAX];
    out[..len].copy_from_slice(&head[..len]);
    out[len..len + HEADER_LEN].copy_from_slice(&header.write());
    let head = &out[..len + HEADER_LEN];
    pool.hold(&Frame { head, payload: Payload::Bytes(body), trailer: Trailer::None })
}

/// Headers of a datagram along `way` with `len` bytes behind UDP, and their length.
pub(crate) fn headers(way: &Path, port: u16, len: usize) -> ([u8; HEAD_MAX], usize) {
    let template = PathTemplate::new(way);
    let below = template.bytes();
    let mut head = [0; HEAD_MAX];
    head[..below.len()].copy_from_slice(below);
    if let Some(udp) = Udp::find(&head[..below.len()]) {
        udp.set_destination_port(&mut head, port);
        udp.finish_lengths(&mut head, len);
    }
    (head, below.len())
}

/// Copies bytes from offset `at` out of a frame whose pieces may not be contiguous. `None` if the
/// frame is too short, or has no bytes there.
#[inline]
pub(crate) fn copy_out(frame: &Frame<'_>, at: usize, out: &mut [u8]) -> Option<()> {
    let in_head = frame.head.get(at..).unwrap_or_default();
    let in_head = &in_head[..in_head.len().min(out.len())];
    let (first, second) = out.split_at_mut(in_head.len());
    first.copy_from_slice(in_head);
    let skipped = at.saturating_sub(frame.head.len());
    second.copy_from_slice(frame.payload.as_bytes()?.get(skipped..)?.get(..second.len())?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_answer_is_longer_than_its_question() {
        const {
            assert!(Answer::LEN <= ASK_BODY.len());
            assert!(Response::LEN <= Init::LEN);
            assert!(HEADER_LEN <= OVERHEAD, "UNKNOWN answers a sealed datagram");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_written_is_read(
            kind in 0..7_usize,
            path in 0..16_u8,
            udp_checksum in any::<u16>(),
            index in 1..u32::MAX,
            number in any::<u64>(),
            fill in any::<u8>(),
        ) {
            let kind = DatagramKind::ALL[kind];
            let header = Header { kind, path, udp_checksum, index, number };
            prop_assert_eq!(Header::read(&header.write()), Found::Header(header));
            let init = Init { index, cookie: [fill; 16], noise: [fill ^ 1; NOISE_INIT_LEN] };
            prop_assert_eq!(Init::read(&init.write()), Some(init));
            let response = Response { index, noise: [fill; NOISE_RESPONSE_LEN] };
            prop_assert_eq!(Response::read(&response.write()), Some(response));
            let answer = Answer { cookie: [fill; 16], who: [fill ^ 1; 16] };
            prop_assert_eq!(Answer::read(&answer.write()), Some(answer));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Found::Header(header) = Header::read(&bytes) {
                prop_assert_eq!(&header.write()[..], &bytes[..HEADER_LEN]);
            }
            prop_assert!(Init::read(&bytes).is_none_or(|_| bytes.len() == Init::LEN));
            prop_assert!(Response::read(&bytes).is_none_or(|_| bytes.len() == Response::LEN));
            prop_assert!(Answer::read(&bytes).is_none_or(|_| bytes.len() == Answer::LEN));
        }
    }
}
