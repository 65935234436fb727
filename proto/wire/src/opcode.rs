//! BTH opcodes and their meaning.

use std::fmt;

/// The BTH opcode: transport in the upper three bits, operation in the lower five.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// Transport service that an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, opcode 0x81.
    Cnp,
    /// Anything else: RD, XRC, vendor opcodes.
    Other,
}

/// Operation of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// SEND in all its positions and variants.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge: ACK, RNR NAK or NAK by its syndrome.
    Acknowledge,
    /// Acknowledge of an atomic, with the original value.
    AtomicAcknowledge,
    /// Compare and swap.
    CmpSwap,
    /// Fetch and add.
    FetchAdd,
}

/// Position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Opcode = Opcode($value);)*
            /// The standard's name in common notation; `None` for unknown opcodes.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some($text),)* _ => None }
            }
        }
    };
}

opcodes! {
    /// RC SEND first.
    RC_SEND_FIRST = 0x00, "RC SEND First";
    /// RC SEND middle.
    RC_SEND_MIDDLE = 0x01, "RC SEND Middle";
    /// RC SEND last.
    RC_SEND_LAST = 0x02, "RC SEND Last";
    /// RC SEND last with immediate.
    RC_SEND_LAST_IMM = 0x03, "RC SEND Last with Immediate";
    /// RC SEND only.
    RC_SEND_ONLY = 0x04, "RC SEND Only";
    /// RC SEND only with immediate.
    RC_SEND_ONLY_IMM = 0x05, "RC SEND Only with Immediate";
    /// RC WRITE first.
    RC_WRITE_FIRST = 0x06, "RC WRITE First";
    /// RC WRITE middle.
    RC_WRITE_MIDDLE = 0x07, "RC WRITE Middle";
    /// RC WRITE last.
    RC_WRITE_LAST = 0x08, "RC WRITE Last";
    /// RC WRITE last with immediate.
    RC_WRITE_LAST_IMM = 0x09, "RC WRITE Last with Immediate";
    /// RC WRITE only.
    RC_WRITE_ONLY = 0x0a, "RC WRITE Only";
    /// RC WRITE only with immediate.
    RC_WRITE_ONLY_IMM = 0x0b, "RC WRITE Only with Immediate";
    /// RC READ request.
    RC_READ_REQUEST = 0x0c, "RC READ Request";
    /// RC READ response first.
    RC_READ_RESPONSE_FIRST = 0x0d, "RC READ Response First";
    /// RC READ response middle.
    RC_READ_RESPONSE_MIDDLE = 0x0e, "RC READ Response Middle";
    /// RC READ response last.
    RC_READ_RESPONSE_LAST = 0x0f, "RC READ Response Last";
    /// RC READ response only.
    RC_READ_RESPONSE_ONLY = 0x10, "RC READ Response Only";
    /// RC acknowledge.
    RC_ACK = 0x11, "RC ACK";
    /// RC atomic acknowledge.
    RC_ATOMIC_ACK = 0x12, "RC ATOMIC ACK";
    /// RC compare and swap.
    RC_CMP_SWAP = 0x13, "RC CMP_SWAP";
    /// RC fetch and add.
    RC_FETCH_ADD = 0x14, "RC FETCH_ADD";
    /// RC SEND last with invalidate.
    RC_SEND_LAST_INV = 0x16, "RC SEND Last with Invalidate";
    /// RC SEND only with invalidate.
    RC_SEND_ONLY_INV = 0x17, "RC SEND Only with Invalidate";
    /// UC SEND first.
    UC_SEND_FIRST = 0x20, "UC SEND First";
    /// UC SEND middle.
    UC_SEND_MIDDLE = 0x21, "UC SEND Middle";
    /// UC SEND last.
    UC_SEND_LAST = 0x22, "UC SEND Last";
    /// UC SEND last with immediate.
    UC_SEND_LAST_IMM = 0x23, "UC SEND Last with Immediate";
    /// UC SEND only.
    UC_SEND_ONLY = 0x24, "UC SEND Only";
    /// UC SEND only with immediate.
    UC_SEND_ONLY_IMM = 0x25, "UC SEND Only with Immediate";
    /// UC WRITE first.
    UC_WRITE_FIRST = 0x26, "UC WRITE First";
    /// UC WRITE middle.
    UC_WRITE_MIDDLE = 0x27, "UC WRITE Middle";
    /// UC WRITE last.
    UC_WRITE_LAST = 0x28, "UC WRITE Last";
    /// UC WRITE last with immediate.
    UC_WRITE_LAST_IMM = 0x29, "UC WRITE Last with Immediate";
    /// UC WRITE only.
    UC_WRITE_ONLY = 0x2a, "UC WRITE Only";
    /// UC WRITE only with immediate.
    UC_WRITE_ONLY_IMM = 0x2b, "UC WRITE Only with Immediate";
    /// UD SEND only.
    UD_SEND_ONLY = 0x64, "UD SEND Only";
    /// UD SEND only with immediate.
    UD_SEND_ONLY_IMM = 0x65, "UD SEND Only with Immediate";
    /// Congestion notification packet.
    CNP = 0x81, "CNP";
}

// Extended headers, one bit each.
const RETH: u8 = 1;
const AETH: u8 = 2;
const DETH: u8 = 4;
const ATOMIC: u8 = 8;
const ATOMIC_ACK: u8 = 16;
const IMMEDIATE: u8 = 32;
const INVALIDATE: u8 = 64;

/// Source: IBTA, volume 1, table 38.
const fn headers_of(opcode: u8) -> u8 {
    match opcode {
        0x03 | 0x05 | 0x09 | 0x23 | 0x25 | 0x29 => IMMEDIATE,
        0x06 | 0x0a | 0x0c | 0x26 | 0x2a => RETH,
        0x0b | 0x2b => RETH | IMMEDIATE,
        0x0d | 0x0f | 0x10 | 0x11 => AETH,
        0x12 => AETH | ATOMIC_ACK,
        0x13 | 0x14 => ATOMIC,
        0x16 | 0x17 => INVALIDATE,
        0x64 => DETH,
        0x65 => DETH | IMMEDIATE,
        _ => 0,
    }
}

impl Opcode {
    /// The transport service.
    pub const fn transport(self) -> Transport {
        match self.0 {
            0x00..=0x1f => Transport::Rc,
            0x20..=0x3f => Transport::Uc,
            0x60..=0x7f => Transport::Ud,
            0x81 => Transport::Cnp,
            _ => Transport::Other,
        }
    }

    const fn is_known_rc_uc_ud(self) -> bool {
        matches!(self.0, 0x00..=0x14 | 0x16 | 0x17 | 0x20..=0x2b | 0x64 | 0x65)
    }

    /// The operation; `None` for CNP and unknown opcodes.
    pub const fn verb(self) -> Option<Verb> {
        if !self.is_known_rc_uc_ud() {
            return None;
        }
        Some(match self.0 & 0x1f {
            0x00..=0x05 | 0x16 | 0x17 => Verb::Send,
            0x06..=0x0b => Verb::Write,
            0x0c => Verb::ReadRequest,
            0x0d..=0x10 => Verb::ReadResponse,
            0x11 => Verb::Acknowledge,
            0x12 => Verb::AtomicAcknowledge,
            0x13 => Verb::CmpSwap,
            _ => Verb::FetchAdd,
        })
    }

    /// First, middle, last or only; single-packet requests and responses, CNP and unknown opcodes
    /// are `Only`.
    pub const fn position(self) -> Position {
        if !self.is_known_rc_uc_ud() {
            return Position::Only;
        }
        match self.0 & 0x1f {
            0x00 | 0x06 | 0x0d => Position::First,
            0x01 | 0x07 | 0x0e => Position::Middle,
            0x02 | 0x03 | 0x08 | 0x09 | 0x0f | 0x16 => Position::Last,
            _ => Position::Only,
        }
    }

    /// `true` for request packets of a requester, which have their own PSNs.
    pub const fn is_request(self) -> bool {
        matches!(
            self.verb(),
            Some(Verb::Send | Verb::Write | Verb::ReadRequest | Verb::CmpSwap | Verb::FetchAdd)
        )
    }

    /// `true` for a responder's packets: ACK, atomic ACK, READ response.
    pub const fn is_response(self) -> bool {
        matches!(
            self.verb(),
            Some(Verb::Acknowledge | Verb::AtomicAcknowledge | Verb::ReadResponse)
        )
    }

    /// True when a message ends with this packet.
    pub const fn ends_message(self) -> bool {
        matches!(self.position(), Position::Last | Position::Only)
    }

    /// True when a RETH follows the BTH.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.headers() & RETH != 0
    }

    /// True when an AETH follows the BTH.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.headers() & AETH != 0
    }

    /// True when a DETH follows the BTH.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.headers() & DETH != 0
    }

    /// True when immediate data ends the headers.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.headers() & IMMEDIATE != 0
    }

    /// True when an IETH (rkey to invalidate) ends the headers.
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.headers() & INVALIDATE != 0
    }

    /// True when an AtomicETH follows the BTH.
    #[inline]
    pub const fn has_atomic(self) -> bool {
        self.headers() & ATOMIC != 0
    }

    #[inline]
    const fn headers(self) -> u8 {
        const HEADERS: [u8; 256] = {
            let mut headers = [0; 256];
            let mut opcode = 0;
            while opcode < 256 {
                headers[opcode] = headers_of(opcode as u8);
                opcode += 1;
            }
            headers
        };
        HEADERS[self.0 as usize]
    }

    /// Length of the extended headers between BTH and payload, in bytes; 0 for unknown opcodes.
    #[inline]
    pub const fn extended_len(self) -> usize {
        const LENGTHS: [u8; 256] = {
            let mut lengths = [0; 256];
            let mut opcode = 0;
            while opcode < 256 {
                lengths[opcode] = Opcode(opcode as u8).sum_of_extended() as u8;
                opcode += 1;
            }
            lengths
        };
        LENGTHS[self.0 as usize] as usize
    }

    const fn sum_of_extended(self) -> usize {
        let mut len = 0;
        if self.has_reth() {
            len += 16;
        }
        if self.has_aeth() {
            len += 4;
        }
        if self.has_deth() {
            len += 8;
        }
        if self.has_atomic() {
            len += 28;
        }
        if self.headers() & ATOMIC_ACK != 0 {
            len += 8;
        }
        if self.has_immediate() || self.has_invalidate() {
            len += 4;
        }
        len
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_standards_tables() {
        for (opcodes, len) in [
            (
                &[0x00, 0x01, 0x02, 0x04, 0x07, 0x08, 0x0e, 0x20, 0x24, 0x27, 0x81, 0x15, 0xa0][..],
                0,
            ),
            (&[0x03, 0x05, 0x09, 0x0d, 0x0f, 0x10, 0x11, 0x16, 0x17, 0x23, 0x25, 0x29], 4),
            (&[0x64], 8),
            (&[0x12, 0x65], 12),
            (&[0x06, 0x0a, 0x0c, 0x26, 0x2a], 16),
            (&[0x0b, 0x2b], 20),
            (&[0x13, 0x14], 28),
        ] {
            for &opcode in opcodes {
                assert_eq!(Opcode(opcode).extended_len(), len, "{opcode:#x}");
            }
        }
    }

    #[test]
    fn every_named_opcode_but_cnp_has_a_verb() {
        for opcode in (0..=255).map(Opcode) {
            assert_eq!(
                opcode.name().is_some() && opcode != Opcode::CNP,
                opcode.verb().is_some(),
                "{opcode}"
            );
        }
    }

    #[test]
    fn what_is_no_message_part_stands_alone() {
        assert_eq!(Opcode::CNP.position(), Position::Only);
        assert_eq!(Opcode(0xa1).position(), Position::Only);
        assert_eq!(Opcode::UC_SEND_MIDDLE.position(), Position::Middle);
        assert!(Opcode::RC_SEND_LAST_INV.ends_message());
    }
}
