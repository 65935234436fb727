//! Enhanced connection establishment (ECE): what two NICs of one vendor agree on while they
//! connect, such as selective repeat.
//!
//! The REQ offers options, and the REP answers with those that both NICs use. They stand in the
//! attribute modifier of the header; the vendor whose options they are stands in bytes of REQ and
//! REP that were reserved. Source: IBTA, volume 1, release 1.4, chapter 12; offsets verified
//! against Linux `ibta_vol1_c12.h`.

use super::{Attribute, BODY, Mad, array, put, put_u24, u24_at};

/// Offset of the options: the attribute modifier of the header.
const OPTIONS: usize = 20;
/// Offset of the vendor in a REQ: 24 bits.
const REQ_VENDOR: usize = 5;
/// Offsets of the vendor's bytes in a REP, the most significant first.
const REP_VENDOR: [usize; 3] = [15, 19, 23];

/// The ECE fields of a REQ or a REP. All zero: the sender does not use ECE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Ece {
    /// PCI vendor of the NIC, 24 bits; 0: none, and the receiver ignores the options.
    pub vendor_id: u32,
    /// Options, whose meaning the vendor defines.
    pub options: u32,
}

impl Ece {
    /// Neither a vendor nor options.
    pub const NONE: Ece = Ece { vendor_id: 0, options: 0 };

    /// The fields of `mad`, whose attribute is `attribute`. `None` if that message has none.
    pub fn read(mad: &Mad, attribute: Attribute) -> Option<Ece> {
        let vendor_id = match attribute {
            Attribute::Req => u24_at(mad, REQ_VENDOR),
            Attribute::Rep => {
                let [high, middle, low] = REP_VENDOR.map(|at| mad[BODY + at]);
                u32::from_be_bytes([0, high, middle, low])
            }
            _ => return None,
        };
        Some(Ece { vendor_id, options: u32::from_be_bytes(array(mad, OPTIONS)) })
    }

    /// Replaces the fields of `mad`, whose attribute is `attribute`, and changes nothing else. Does
    /// nothing if that message has none.
    pub fn write(self, mad: &mut Mad, attribute: Attribute) {
        match attribute {
            Attribute::Req => put_u24(mad, REQ_VENDOR, self.vendor_id),
            Attribute::Rep => {
                let [_, vendor @ ..] = self.vendor_id.to_be_bytes();
                for (at, byte) in REP_VENDOR.into_iter().zip(vendor) {
                    mad[BODY + at] = byte;
                }
            }
            _ => return,
        }
        put(mad, OPTIONS, &self.options.to_be_bytes());
    }
}
