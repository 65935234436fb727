//! Base transport header.

use crate::{Opcode, PKEY_DEFAULT};
use longhaul_units::{Psn, Qpn};

/// Base transport header, 12 bytes. Source: IBTA, volume 1, section 9.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Operation.
    pub opcode: Opcode,
    /// The responder raises a solicited event on completion.
    pub solicited: bool,
    /// Migration request state; ConnectX sends 1, kernel rxe 0.
    pub migreq: bool,
    /// Pad bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Transport header version, 0 to 15; 0 is the only one defined.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification (bit 7 of byte 4).
    pub fecn: bool,
    /// Backward congestion notification (bit 6 of byte 4).
    pub becn: bool,
    /// The six reserved bits of byte 4, as received.
    pub reserved_6: u8,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The requester requests an ACK for this packet.
    pub ack_request: bool,
    /// The seven reserved bits of byte 8, as received.
    pub reserved_7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;

    /// A header with the usual values: default PKey, no pad, no flags.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Bth {
            opcode,
            solicited: false,
            migreq: false,
            pad: 0,
            version: 0,
            pkey: PKEY_DEFAULT,
            fecn: false,
            becn: false,
            reserved_6: 0,
            dest_qp,
            ack_request: false,
            reserved_7: 0,
            psn,
        }
    }

    /// Reads all twelve bytes; every bit pattern is a header.
    #[inline]
    pub fn read(b: &[u8; 12]) -> Self {
        Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            migreq: b[1] & 0x40 != 0,
            pad: (b[1] >> 4) & 3,
            version: b[1] & 0xf,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            reserved_6: b[4] & 0x3f,
            dest_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_request: b[8] & 0x80 != 0,
            reserved_7: b[8] & 0x7f,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// The twelve bytes.
    #[inline]
    pub fn write(&self) -> [u8; 12] {
        let bit = |set: bool, at: u32| u32::from(set) << at;
        // Three words, because the compiler would not merge byte stores.
        let words = [
            u32::from(self.opcode.0) << 24
                | bit(self.solicited, 23)
                | bit(self.migreq, 22)
                | u32::from(self.pad & 3) << 20
                | u32::from(self.version & 0xf) << 16
                | u32::from(self.pkey),
            bit(self.fecn, 31)
                | bit(self.becn, 30)
                | u32::from(self.reserved_6 & 0x3f) << 24
                | self.dest_qp.get(),
            bit(self.ack_request, 31) | u32::from(self.reserved_7 & 0x7f) << 24 | self.psn.get(),
        ];
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&words[0].to_be_bytes());
        b[4..8].copy_from_slice(&words[1].to_be_bytes());
        b[8..].copy_from_slice(&words[2].to_be_bytes());
        b
    }
}
