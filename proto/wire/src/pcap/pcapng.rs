//! Reader of pcapng sections and blocks.

use super::{
    BLOCK_BYTES_MAX, CaptureError, INTERFACES_MAX, LinkType, Order, RECORD_BYTES_MAX, Record, Step,
};

/// A section header block's type; the same in both byte orders.
pub(super) const SECTION_HEADER_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Type, length, and the length again at the end.
const BLOCK_FRAME_LEN: usize = 12;

const OPTION_END: u16 = 0;
const OPTION_TSRESOL: u16 = 9;
const OPTION_TSOFFSET: u16 = 14;

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: LinkType,
    snap_len: u32,
    /// Bit 7 clear: 10^-n seconds; set: 2^-n.
    resolution: u8,
    offset_s: i64,
}

impl Interface {
    const UNKNOWN: Interface =
        Interface { link_type: LinkType::ETHERNET, snap_len: 0, resolution: 6, offset_s: 0 };

    /// Nanoseconds since 1970, saturating at 64 bits.
    fn nanoseconds(&self, units: u64) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let units_ns = u128::from(units) * 1_000_000_000;
        let ns = if self.resolution & 0x80 != 0 {
            units_ns >> exponent
        } else {
            10_u128.checked_pow(exponent).map_or(0, |per_second| units_ns / per_second)
        };
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        ns.saturating_add(i128::from(self.offset_s) * 1_000_000_000).clamp(0, i128::from(u64::MAX))
            as u64
    }
}

/// One section of a pcapng file.
#[derive(Clone, Debug)]
pub(super) struct Section {
    order: Order,
    interfaces: [Interface; INTERFACES_MAX],
    interface_count: usize,
}

impl Section {
    /// Initial state, before the section's header.
    pub(super) const NEW: Section = Section {
        order: Order::Little,
        interfaces: [Interface::UNKNOWN; INTERFACES_MAX],
        interface_count: 0,
    };

    pub(super) fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, CaptureError> {
        if input.len() < BLOCK_FRAME_LEN {
            return Ok(Step::NeedMore { bytes: BLOCK_FRAME_LEN });
        }
        let kind = self.order.u32(input, 0);
        if kind == SECTION_HEADER {
            self.order = match (
                u32::from_le_bytes([input[8], input[9], input[10], input[11]]),
                self.order,
            ) {
                (BYTE_ORDER_MAGIC, _) => Order::Little,
                (other, _) if other == BYTE_ORDER_MAGIC.swap_bytes() => Order::Big,
                (other, _) => return Err(CaptureError::ByteOrder(other)),
            };
        }
        let length = self.order.u32(input, 4);
        let block_len = length as usize;
        if !(BLOCK_FRAME_LEN..=BLOCK_BYTES_MAX).contains(&block_len) || !block_len.is_multiple_of(4)
        {
            return Err(CaptureError::BlockLength(length));
        }
        let Some(block) = input.get(..block_len) else {
            return Ok(Step::NeedMore { bytes: block_len });
        };
        let trailer = self.order.u32(block, block_len - 4);
        if trailer != length {
            return Err(CaptureError::BlockTrailer(length, trailer));
        }
        let body = &block[8..block_len - 4];
        let record = match kind {
            SECTION_HEADER => self.begin(body, length).map(|()| None)?,
            INTERFACE_DESCRIPTION => self.describe(body, length).map(|()| None)?,
            ENHANCED_PACKET => Some(self.enhanced(body, length)?),
            SIMPLE_PACKET => Some(self.simple(body, length)?),
            _ => None,
        };
        Ok(match record {
            Some(record) => Step::Packet { consumed: block_len, record },
            None => Step::Skip { consumed: block_len },
        })
    }

    fn begin(&mut self, body: &[u8], length: u32) -> Result<(), CaptureError> {
        if body.len() < 16 {
            return Err(CaptureError::BlockLength(length));
        }
        let version = (self.order.u16(body, 4), self.order.u16(body, 6));
        if version.0 != 1 {
            return Err(CaptureError::Version(version.0, version.1));
        }
        self.interface_count = 0;
        Ok(())
    }

    fn describe(&mut self, body: &[u8], length: u32) -> Result<(), CaptureError> {
        if body.len() < 8 {
            return Err(CaptureError::BlockLength(length));
        }
        let mut interface = Interface {
            link_type: LinkType(self.order.u16(body, 0)),
            snap_len: self.order.u32(body, 4),
            ..Interface::UNKNOWN
        };
        let mut options = &body[8..];
        while options.len() >= 4 {
            let (code, len) = (self.order.u16(options, 0), usize::from(self.order.u16(options, 2)));
            let Some(value) = options.get(4..4 + len) else { break };
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_TSRESOL, &[resolution]) => interface.resolution = resolution,
                (OPTION_TSOFFSET, &[a, b, c, d, e, f, g, h]) => {
                    let bytes = [a, b, c, d, e, f, g, h];
                    interface.offset_s = match self.order {
                        Order::Little => i64::from_le_bytes(bytes),
                        Order::Big => i64::from_be_bytes(bytes),
                    };
                }
                _ => {}
            }
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or(&[]);
        }
        let slot =
            self.interfaces.get_mut(self.interface_count).ok_or(CaptureError::TooManyInterfaces)?;
        *slot = interface;
        self.interface_count += 1;
        Ok(())
    }

    fn interface(&self, number: u32) -> Result<&Interface, CaptureError> {
        let known = &self.interfaces[..self.interface_count];
        known.get(number as usize).ok_or(CaptureError::Interface(number))
    }

    fn enhanced<'a>(&self, body: &'a [u8], length: u32) -> Result<Record<'a>, CaptureError> {
        if body.len() < 20 {
            return Err(CaptureError::BlockLength(length));
        }
        let interface = self.interface(self.order.u32(body, 0))?;
        let units = u64::from(self.order.u32(body, 4)) << 32 | u64::from(self.order.u32(body, 8));
        let captured = self.order.u32(body, 12);
        let data = packet(&body[20..], captured)?;
        Ok(Record {
            timestamp_ns: Some(interface.nanoseconds(units)),
            link_type: interface.link_type,
            original_len: self.order.u32(body, 16) as usize,
            data,
        })
    }

    /// Reads a simple packet block: of interface 0, without a timestamp, truncated to that
    /// interface's snap length.
    fn simple<'a>(&self, body: &'a [u8], length: u32) -> Result<Record<'a>, CaptureError> {
        if body.len() < 4 {
            return Err(CaptureError::BlockLength(length));
        }
        let interface = self.interface(0)?;
        let original = self.order.u32(body, 0);
        let captured =
            if interface.snap_len == 0 { original } else { original.min(interface.snap_len) };
        Ok(Record {
            timestamp_ns: None,
            link_type: interface.link_type,
            original_len: original as usize,
            data: packet(&body[4..], captured)?,
        })
    }
}

fn packet(bytes: &[u8], captured: u32) -> Result<&[u8], CaptureError> {
    if captured as usize > RECORD_BYTES_MAX {
        return Err(CaptureError::RecordLength(captured));
    }
    bytes.get(..captured as usize).ok_or(CaptureError::RecordLength(captured))
}
