//! Messages of the control channel: 128 bytes each, in native byte order.
//!
//! Source of the layouts: memif protocol version 2.0 as published with VPP and DPDK (`memif.h`).
//! All fields are packed after a 16-bit type. Unused bytes are zero when sent and ignored when
//! received.

use crate::violation::{Violation, violation};

/// Size of every message, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 128;
/// Size of a name field, in bytes, with its terminating zero.
pub(crate) const NAME_BYTES: usize = 32;
/// Size of the secret field, in bytes.
pub(crate) const SECRET_BYTES: usize = 24;
/// Size of the text of a DISCONNECT, in bytes, with its terminating zero.
const REASON_BYTES: usize = 96;
/// Protocol version 2.0.
pub(crate) const VERSION: u16 = 2 << 8;
/// The ring of an ADD_RING leads from slave to master.
const RING_FLAG_S2M: u16 = 1;
/// Interface mode: Ethernet frames.
pub(crate) const MODE_ETHERNET: u8 = 0;

/// The master's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) name: String,
    pub(crate) version_min: u16,
    pub(crate) version_max: u16,
    /// Highest region index.
    pub(crate) region_max: u16,
    /// Highest ring index from master to slave.
    pub(crate) m2s_ring_max: u16,
    /// Highest ring index from slave to master.
    pub(crate) s2m_ring_max: u16,
    pub(crate) ring_size_log2_max: u8,
}

/// The interface that a slave asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Init {
    pub(crate) version: u16,
    pub(crate) id: u32,
    pub(crate) mode: u8,
    pub(crate) secret: [u8; SECRET_BYTES],
    pub(crate) name: String,
}

/// Location of a ring in the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddRing {
    pub(crate) slave_to_master: bool,
    pub(crate) index: u16,
    pub(crate) region: u16,
    pub(crate) offset: u32,
    pub(crate) ring_size_log2: u8,
    pub(crate) private_header_bytes: u16,
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Ack,
    Hello(Hello),
    Init(Init),
    AddRegion { index: u16, bytes: u64 },
    AddRing(AddRing),
    Connect { name: String },
    Connected { name: String },
    Disconnect { code: u32, reason: String },
}

impl Message {
    /// The message's name in the protocol.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Message::Ack => "ACK",
            Message::Hello(_) => "HELLO",
            Message::Init(_) => "INIT",
            Message::AddRegion { .. } => "ADD_REGION",
            Message::AddRing(_) => "ADD_RING",
            Message::Connect { .. } => "CONNECT",
            Message::Connected { .. } => "CONNECTED",
            Message::Disconnect { .. } => "DISCONNECT",
        }
    }

    pub(crate) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer { bytes: [0; MESSAGE_BYTES], at: 0 };
        match self {
            Message::Ack => out.u16(1),
            Message::Hello(hello) => {
                out.u16(2);
                out.text(&hello.name, NAME_BYTES);
                out.u16(hello.version_min);
                out.u16(hello.version_max);
                out.u16(hello.region_max);
                out.u16(hello.m2s_ring_max);
                out.u16(hello.s2m_ring_max);
                out.put(&[hello.ring_size_log2_max]);
            }
            Message::Init(init) => {
                out.u16(3);
                out.u16(init.version);
                out.u32(init.id);
                out.put(&[init.mode]);
                out.put(&init.secret);
                out.text(&init.name, NAME_BYTES);
            }
            Message::AddRegion { index, bytes } => {
                out.u16(4);
                out.u16(*index);
                out.put(&bytes.to_ne_bytes());
            }
            Message::AddRing(ring) => {
                out.u16(5);
                out.u16(if ring.slave_to_master { RING_FLAG_S2M } else { 0 });
                out.u16(ring.index);
                out.u16(ring.region);
                out.u32(ring.offset);
                out.put(&[ring.ring_size_log2]);
                out.u16(ring.private_header_bytes);
            }
            Message::Connect { name } => {
                out.u16(6);
                out.text(name, NAME_BYTES);
            }
            Message::Connected { name } => {
                out.u16(7);
                out.text(name, NAME_BYTES);
            }
            Message::Disconnect { code, reason } => {
                out.u16(8);
                out.u32(*code);
                out.text(reason, REASON_BYTES);
            }
        }
        out.bytes
    }

    pub(crate) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Message, Violation> {
        let mut input = Reader { bytes, at: 0 };
        Ok(match input.u16() {
            1 => Message::Ack,
            2 => Message::Hello(Hello {
                name: input.text(NAME_BYTES),
                version_min: input.u16(),
                version_max: input.u16(),
                region_max: input.u16(),
                m2s_ring_max: input.u16(),
                s2m_ring_max: input.u16(),
                ring_size_log2_max: input.u8(),
            }),
            3 => Message::Init(Init {
                version: input.u16(),
                id: input.u32(),
                mode: input.u8(),
                secret: input.take(),
                name: input.text(NAME_BYTES),
            }),
            4 => Message::AddRegion { index: input.u16(), bytes: u64::from_ne_bytes(input.take()) },
            5 => Message::AddRing(AddRing {
                slave_to_master: input.u16() & RING_FLAG_S2M != 0,
                index: input.u16(),
                region: input.u16(),
                offset: input.u32(),
                ring_size_log2: input.u8(),
                private_header_bytes: input.u16(),
            }),
            6 => Message::Connect { name: input.text(NAME_BYTES) },
            7 => Message::Connected { name: input.text(NAME_BYTES) },
            8 => Message::Disconnect { code: input.u32(), reason: input.text(REASON_BYTES) },
            other => return Err(violation!("unknown message type {other}")),
        })
    }
}

struct Writer {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u16(&mut self, value: u16) {
        self.put(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_ne_bytes());
    }

    /// Writes a zero-terminated text into a field of `field_bytes`, truncated at a character
    /// boundary.
    fn text(&mut self, text: &str, field_bytes: usize) {
        let mut kept = text.len().min(field_bytes - 1);
        while !text.is_char_boundary(kept) {
            kept -= 1;
        }
        self.bytes[self.at..self.at + kept].copy_from_slice(&text.as_bytes()[..kept]);
        self.at += field_bytes;
    }
}

struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        taken.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// Reads a text up to its first zero, sanitised for logs.
    fn text(&mut self, field_bytes: usize) -> String {
        let field = &self.bytes[self.at..self.at + field_bytes];
        self.at += field_bytes;
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field_bytes);
        String::from_utf8_lossy(&field[..end])
            .chars()
            .map(|letter| if letter.is_control() { '\u{fffd}' } else { letter })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_the_wire() {
        let name = || "far".to_owned();
        let messages = [
            Message::Ack,
            Message::Hello(Hello {
                name: name(),
                version_min: VERSION,
                version_max: VERSION,
                region_max: 15,
                m2s_ring_max: 1,
                s2m_ring_max: 2,
                ring_size_log2_max: 14,
            }),
            Message::Init(Init {
                version: VERSION,
                id: 0xdead_beef,
                mode: MODE_ETHERNET,
                secret: *b"abcdefghijklmnopqrstuvwx",
                name: name(),
            }),
            Message::AddRegion { index: 3, bytes: 0x1_0000_0001 },
            Message::AddRing(AddRing {
                slave_to_master: true,
                index: 1,
                region: 2,
                offset: 0x8000_0010,
                ring_size_log2: 11,
                private_header_bytes: 9,
            }),
            Message::Connect { name: name() },
            Message::Connected { name: name() },
            Message::Disconnect { code: 7, reason: "done".to_owned() },
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn fields_lie_where_the_published_layout_has_them() {
        let init = Message::Init(Init {
            version: VERSION,
            id: 0x0403_0201,
            mode: 5,
            secret: [0x55; SECRET_BYTES],
            name: "n".to_owned(),
        })
        .encode();
        assert_eq!(init[..9], [3, 0, 0, 2, 1, 2, 3, 4, 5]);
        assert_eq!(init[9..33], [0x55; 24]);
        assert_eq!(init[33..35], [b'n', 0]);
        let ring = Message::AddRing(AddRing {
            slave_to_master: true,
            index: 0x0201,
            region: 0x0403,
            offset: 0x0807_0605,
            ring_size_log2: 9,
            private_header_bytes: 0x0b0a,
        })
        .encode();
        assert_eq!(ring[..15], [5, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let region = Message::AddRegion { index: 1, bytes: 2 }.encode();
        assert_eq!(region[..12], [4, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let hello = Message::Hello(Hello {
            name: "h".to_owned(),
            version_min: 1,
            version_max: 2,
            region_max: 3,
            m2s_ring_max: 4,
            s2m_ring_max: 5,
            ring_size_log2_max: 6,
        })
        .encode();
        assert_eq!(hello[34..45], [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6]);
    }

    #[test]
    fn long_texts_are_cut_and_foreign_ones_cleaned() {
        let long = Message::Disconnect { code: 0, reason: "é".repeat(80) };
        let Ok(Message::Disconnect { reason, .. }) = Message::decode(&long.encode()) else {
            panic!("not a DISCONNECT");
        };
        assert_eq!(reason, "é".repeat(47));
        let mut bytes = Message::Connect { name: String::new() }.encode();
        bytes[2..34].copy_from_slice(&[0x1b; 32]);
        let Ok(Message::Connect { name }) = Message::decode(&bytes) else {
            panic!("not a CONNECT")
        };
        assert!(name.chars().all(|letter| letter == '\u{fffd}'));
    }

    #[test]
    fn no_bytes_make_decoding_panic() {
        for kind in 0..=u16::MAX {
            let mut bytes = [0xff; MESSAGE_BYTES];
            bytes[..2].copy_from_slice(&kind.to_ne_bytes());
            assert_eq!(Message::decode(&bytes).is_ok(), (1..=8).contains(&kind));
        }
    }
}
