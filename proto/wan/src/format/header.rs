//! The transport header, which every datagram of the transport carries.

use crc32fast::Hasher;

/// Version of the format that this crate speaks.
pub const VERSION: u8 = 2;
/// Length of the transport header in bytes.
pub const HEADER_LEN: usize = 24;

/// Bytes covered by the header's own check.
const CHECKED_LEN: usize = 20;

/// Type of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DatagramKind {
    /// A tunnelled frame.
    Data = 0,
    /// Parity over tunnelled frames.
    Parity = 1,
    /// Ends a stream; it takes a sequence number of the stream as a frame does.
    End = 2,
    /// Replaces a frame that cannot be delivered; it takes the frame's sequence number.
    Void = 3,
    /// Acknowledges numbers.
    Ack = 4,
    /// Tests a path, or answers.
    Ping = 5,
    /// Step of the handshake between two boxes.
    Hello = 6,
    /// Ends a session.
    Close = 7,
    /// A part of a tunnelled frame that is too long for the path. It takes a number; all parts of a
    /// frame share one position in the stream.
    Part = 8,
}

impl DatagramKind {
    const ALL: [DatagramKind; 9] = [
        DatagramKind::Data,
        DatagramKind::Parity,
        DatagramKind::End,
        DatagramKind::Void,
        DatagramKind::Ack,
        DatagramKind::Ping,
        DatagramKind::Hello,
        DatagramKind::Close,
        DatagramKind::Part,
    ];

    /// `true` for types that take a number of their path and are acknowledged by it.
    pub const fn is_numbered(self) -> bool {
        matches!(
            self,
            DatagramKind::Data | DatagramKind::Part | DatagramKind::End | DatagramKind::Void
        )
    }
}

/// The transport header: 24 bytes behind UDP, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version, 0 to 15.
    pub version: u8,
    /// Type of the content.
    pub kind: DatagramKind,
    /// Path that the number belongs to, 0 to 15; in a [`DatagramKind::Ack`], the path that it
    /// acknowledges.
    pub path: u8,
    /// 4 bits: [`Header::MARKED_BEFORE`]. The others are sent as 0 and ignored.
    pub flags: u8,
    /// UDP checksum of the tunnelled frame; 0 in other datagrams.
    pub udp_checksum: u16,
    /// The receiver's number of the session.
    pub session: u32,
    /// Low half of the number. Numbers are consecutive, one for each transmission on a path.
    /// Control datagrams have numbers of their own; a [`DatagramKind::Parity`] has the number of
    /// its group's first datagram.
    pub number: u32,
    /// Stream of a numbered datagram, or shape of a [`DatagramKind::Parity`]'s group; otherwise 0.
    pub stream: u32,
    /// Low half of the position in the stream.
    pub sequence: u32,
}

impl Header {
    /// Flag of a frame that had a congestion mark before it was tunnelled: its mark says nothing
    /// about the path.
    pub const MARKED_BEFORE: u8 = 1;

    /// A header with only its type and session set.
    pub const fn new(kind: DatagramKind, session: u32) -> Self {
        Header {
            version: VERSION,
            kind,
            path: 0,
            flags: 0,
            udp_checksum: 0,
            session,
            number: 0,
            stream: 0,
            sequence: 0,
        }
    }

    /// Serialises the header. In a datagram without a frame, and in a part, the check covers `body`
    /// too; a whole frame is covered by its ICRC.
    #[inline]
    pub fn write(&self, body: &[u8]) -> [u8; HEADER_LEN] {
        self.write_over([body])
    }

    /// Like [`Header::write`], with a body in consecutive pieces.
    #[inline]
    pub(crate) fn write_over<const N: usize>(&self, body: [&[u8]; N]) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0] = self.version << 4 | self.kind as u8;
        b[1] = self.flags << 4 | self.path & 0xf;
        b[2..4].copy_from_slice(&self.udp_checksum.to_be_bytes());
        b[4..8].copy_from_slice(&self.session.to_be_bytes());
        b[8..12].copy_from_slice(&self.number.to_be_bytes());
        b[12..16].copy_from_slice(&self.stream.to_be_bytes());
        b[16..20].copy_from_slice(&self.sequence.to_be_bytes());
        let check = check(&b, body);
        b[20..].copy_from_slice(&check.to_be_bytes());
        b
    }

    /// Parses a header of any version. `None` if it is too short, or its type is unknown.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let b = bytes.first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Some(Header {
            version: b[0] >> 4,
            kind: *DatagramKind::ALL.get(usize::from(b[0] & 0xf))?,
            path: b[1] & 0xf,
            flags: b[1] >> 4,
            udp_checksum: u16::from_be_bytes([b[2], b[3]]),
            session: word(4),
            number: word(8),
            stream: word(12),
            sequence: word(16),
        })
    }

    /// `true` if the check of the header in `bytes` is valid, with `body` as in [`Header::write`].
    #[inline]
    pub fn is_sound(bytes: &[u8], body: &[u8]) -> bool {
        Header::is_sound_over(bytes, [body])
    }

    /// Like [`Header::is_sound`], with a body in consecutive pieces.
    #[inline]
    pub(crate) fn is_sound_over<const N: usize>(bytes: &[u8], body: [&[u8]; N]) -> bool {
        bytes
            .first_chunk::<HEADER_LEN>()
            .is_some_and(|b| b[CHECKED_LEN..] == check(b, body).to_be_bytes())
    }
}

#[inline]
fn check<const N: usize>(header: &[u8; HEADER_LEN], body: [&[u8]; N]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&header[..CHECKED_LEN]);
    body.iter().for_each(|piece| hasher.update(piece));
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_header() -> impl Strategy<Value = Header> {
        let words = any::<[u32; 4]>();
        (0..16_u8, 0..DatagramKind::ALL.len(), 0..16_u8, 0..16_u8, any::<u16>(), words).prop_map(
            |(version, kind, path, flags, udp_checksum, [session, number, stream, sequence])| {
                Header {
                    version,
                    kind: DatagramKind::ALL[kind],
                    path,
                    flags,
                    udp_checksum,
                    session,
                    number,
                    stream,
                    sequence,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_written_is_read(
            header in any_header(),
            body in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let bytes = header.write(&body);
            prop_assert_eq!(Header::read(&bytes), Some(header));
            prop_assert!(Header::is_sound(&bytes, &body));
        }

        #[test]
        fn one_wrong_bit_is_seen(
            header in any_header(),
            body in prop::collection::vec(any::<u8>(), 0..80),
            bit in any::<prop::sample::Index>(),
        ) {
            let mut bytes = [header.write(&body).to_vec(), body].concat();
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (head, body) = bytes.split_at(HEADER_LEN);
            prop_assert!(!Header::is_sound(head, body));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let read = Header::read(&bytes);
            prop_assert!(bytes.len() >= HEADER_LEN || read.is_none());
            let _ = Header::is_sound(&bytes, &bytes);
        }
    }
}
