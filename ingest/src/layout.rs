//! Layout of the immediate data, and the shape of the memory that it addresses.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Widths of the fields of the immediate data, most significant first: stream, window, slot.
///
/// The immediate is big-endian on the wire (IBTA 9.4), so the stream is in its first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Bits of the stream, which is the sender's number.
    pub stream_bits: u8,
    /// Bits of the window, which counts modulo 2^`window_bits`.
    pub window_bits: u8,
    /// Bits of the slot, which is the message's index in its stream's part of a window.
    pub slot_bits: u8,
}

/// Decoded immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The sender's number.
    pub stream: u32,
    /// The window, modulo 2^`window_bits`.
    pub window: u32,
    /// Index of the message in its stream's part of the window.
    pub slot: u32,
}

impl Default for Layout {
    /// 256 streams of 4096 slots.
    fn default() -> Self {
        Layout { stream_bits: 8, window_bits: 12, slot_bits: 12 }
    }
}

impl Layout {
    /// The immediate data of a place. Bits that exceed a field's width are lost.
    #[must_use]
    pub fn encode(self, place: Place) -> [u8; 4] {
        let field = |value: u32, bits: u8| u64::from(value) & ((1 << bits) - 1);
        let value = field(place.stream, self.stream_bits) << (self.window_bits + self.slot_bits)
            | field(place.window, self.window_bits) << self.slot_bits
            | field(place.slot, self.slot_bits);
        (value as u32).to_be_bytes()
    }

    /// The place that an immediate names. Every immediate names one; it may exceed the [`Shape`].
    #[must_use]
    pub fn decode(self, immediate: [u8; 4]) -> Place {
        let value = u64::from(u32::from_be_bytes(immediate));
        let field = |shift: u8, bits: u8| ((value >> shift) & ((1 << bits) - 1)) as u32;
        Place {
            stream: field(self.window_bits + self.slot_bits, self.stream_bits),
            window: field(self.slot_bits, self.window_bits),
            slot: field(0, self.slot_bits),
        }
    }

    /// The window on the wire of window `number`.
    #[must_use]
    pub fn wire_window(self, number: u64) -> u32 {
        (number & ((1 << self.window_bits) - 1)) as u32
    }
}

/// Shape of a receiver's memory: rings of regions. A region holds one window of the streams of its
/// ring, stream after stream, slot after slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Layout of the immediate data.
    pub layout: Layout,
    /// Streams in total.
    pub streams: u32,
    /// Streams that share a ring, so that a chunk holds a window of each; divides `streams`.
    pub streams_per_ring: u32,
    /// Messages of a stream per window.
    pub slots: u32,
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Regions of a ring, a power of two from 4. Window w is placed in region w modulo `regions`.
    pub regions: u32,
    /// Windows that may be incomplete behind the newest before the oldest is closed; less than half
    /// of `regions`, so that a chunk's holder has the other half to read it.
    pub lateness: u32,
}

/// Why a [`Shape`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// The widths do not fill the immediate data.
    #[error("the immediate has 32 bits, and stream, window and slot have {0} together")]
    Width(u32),
    /// A field cannot represent all numbers.
    #[error("{count} {what} need more than {bits} bits: widen {what} in the layout")]
    TooNarrow {
        /// The field, in the plural.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// Width of the field.
        bits: u8,
    },
    /// Window numbers repeat while an earlier window of that number may still arrive.
    #[error(
        "{bits} bits number {} windows, and {regions} regions with a lateness of {lateness} need \
         {needed}: widen the window in the layout, or use fewer regions",
        1_u64 << .bits
    )]
    Wrap {
        /// Width of the window.
        bits: u8,
        /// Regions of a ring.
        regions: u32,
        /// Permitted lateness.
        lateness: u32,
        /// Window numbers needed.
        needed: u64,
    },
    /// A number of regions that window numbers do not map to.
    #[error("{0} regions: the number must be a power of two, 4 or more")]
    Regions(u32),
    /// A window would be overwritten before it closes.
    #[error("a lateness of {lateness} needs more than {} regions", 2 * u64::from(*.lateness))]
    Lateness {
        /// Permitted lateness.
        lateness: u32,
    },
    /// Something of which there must be at least one.
    #[error("{0}: at least 1 is needed")]
    None(&'static str),
    /// Streams that fill no ring.
    #[error("{streams} streams cannot be divided into rings of {per_ring}")]
    Rings {
        /// Streams in total.
        streams: u32,
        /// Streams per ring.
        per_ring: u32,
    },
    /// More memory than addresses.
    #[error("a region of {0} bytes is too large: at most 2^40 are possible")]
    TooLarge(u128),
}

impl Shape {
    /// Checks the shape.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), ShapeError> {
        let Layout { stream_bits, window_bits, slot_bits } = self.layout;
        let width = [stream_bits, window_bits, slot_bits].into_iter().map(u32::from).sum();
        if width != 32 {
            return Err(ShapeError::Width(width));
        }
        for (what, count) in [
            ("streams", self.streams),
            ("streams_per_ring", self.streams_per_ring),
            ("slots", self.slots),
            ("message_bytes", self.message_bytes),
        ] {
            if count == 0 {
                return Err(ShapeError::None(what));
            }
        }
        for (what, count, bits) in
            [("streams", self.streams, stream_bits), ("slots", self.slots, slot_bits)]
        {
            if u64::from(count) > 1 << bits {
                return Err(ShapeError::TooNarrow { what, count: count.into(), bits });
            }
        }
        if !self.streams.is_multiple_of(self.streams_per_ring) {
            let (streams, per_ring) = (self.streams, self.streams_per_ring);
            return Err(ShapeError::Rings { streams, per_ring });
        }
        let (regions, lateness) = (self.regions, self.lateness);
        if !regions.is_power_of_two() || regions < 4 {
            return Err(ShapeError::Regions(regions));
        }
        if lateness >= regions / 2 {
            return Err(ShapeError::Lateness { lateness });
        }
        // Windows up to `regions + lateness` back are recognised, and as many ahead.
        let needed = 2 * (u64::from(regions) + u64::from(lateness));
        if needed > 1 << window_bits {
            return Err(ShapeError::Wrap { bits: window_bits, regions, lateness, needed });
        }
        let bytes = u128::from(self.messages()) * u128::from(self.message_bytes);
        if bytes > 1 << 40 || self.messages() > u64::from(u32::MAX) {
            return Err(ShapeError::TooLarge(bytes));
        }
        Ok(())
    }

    /// Rings in total.
    #[must_use]
    pub fn rings(&self) -> u32 {
        self.streams / self.streams_per_ring
    }

    /// Ring of a stream, and the stream's index in it.
    #[must_use]
    pub fn ring_of(&self, stream: u32) -> (u32, u32) {
        (stream / self.streams_per_ring, stream % self.streams_per_ring)
    }

    /// Messages in a region.
    #[must_use]
    pub fn messages(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.streams_per_ring)
    }

    /// Bytes that a stream has in a region.
    #[must_use]
    pub fn stream_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.message_bytes)
    }

    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.stream_bytes() * u64::from(self.streams_per_ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape() -> Shape {
        Shape {
            layout: Layout::default(),
            streams: 4,
            streams_per_ring: 2,
            slots: 100,
            message_bytes: 8192,
            regions: 16,
            lateness: 2,
        }
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(shape().check(), Ok(()));
        let with = |change: fn(&mut Shape)| {
            let mut shape = shape();
            change(&mut shape);
            shape.check().expect_err("invalid").to_string()
        };
        for (change, text) in [
            ((|s| s.layout.slot_bits = 13) as fn(&mut Shape), "33 together"),
            (|s| s.streams = 258, "258 streams need more than 8 bits"),
            (|s| s.slots = 4097, "4097 slots need more than 12 bits"),
            (|s| s.slots = 0, "slots: at least 1"),
            (|s| s.streams_per_ring = 3, "rings of 3"),
            (|s| s.regions = 12, "power of two"),
            (|s| s.lateness = 8, "more than 16 regions"),
            (|s| s.regions = 2048, "12 bits number 4096 windows, and 2048 regions"),
            (|s| (s.slots, s.message_bytes) = (4096, u32::MAX), "too large"),
        ] {
            let said = with(change);
            assert!(said.contains(text), "{said}");
        }
    }

    proptest! {
        #[test]
        fn a_place_survives_the_immediate(stream_bits in 0_u8..=32, cut in 0_u8..=32,
                                          immediate: [u8; 4]) {
            let window_bits = cut.min(32 - stream_bits);
            let slot_bits = 32 - stream_bits - window_bits;
            let layout = Layout { stream_bits, window_bits, slot_bits };
            prop_assert_eq!(layout.encode(layout.decode(immediate)), immediate);
        }
    }
}
