//! Distances and sizes in a user's notation.

pub use longhaul_units::probability;
use longhaul_units::{QuantityError, distance_m, size_bytes};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Maximum size in bytes, above the memory of any host.
const BYTES_MAX: u64 = 1_000_000_000_000_000;

/// Length of a fibre in metres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distance {
    metres: u64,
}

impl Distance {
    /// A distance of `km` kilometres.
    pub const fn from_km(km: u64) -> Self {
        Distance { metres: km * 1000 }
    }

    /// Metres.
    pub const fn metres(self) -> u64 {
        self.metres
    }

    /// Kilometres.
    pub fn km(self) -> f64 {
        self.metres as f64 / 1e3
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.metres != 0 && self.metres < 1000 {
            write!(f, "{} m", self.metres)
        } else {
            write!(f, "{} km", self.km())
        }
    }
}

impl FromStr for Distance {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Ok(Distance { metres: distance_m(text)? })
    }
}

/// An amount of memory in bytes, with binary prefixes: 4K is 4096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size {
    bytes: u64,
}

impl Size {
    /// `bytes` bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Size { bytes }
    }

    /// Bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, name) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.bytes >> shift > 0 && self.bytes.is_multiple_of(1 << shift) {
                return write!(f, "{} {name}", self.bytes >> shift);
            }
        }
        write!(f, "{} B", self.bytes)
    }
}

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match size_bytes(text)? {
            bytes @ 1..=BYTES_MAX => Ok(Size { bytes }),
            _ => Err(QuantityError::NoSize),
        }
    }
}

/// Why a text is not an amount of memory for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// It is not a size.
    #[error(transparent)]
    Size(#[from] QuantityError),
    /// It is too small for a frame, or larger than any host's memory.
    #[error("memory goes from {MEMORY_LEAST} to {MEMORY_MOST}")]
    OutOfBounds,
}

const MEMORY_LEAST: Size = Size::from_bytes(64 << 10);
const MEMORY_MOST: Size = Size::from_bytes(1 << 40);

/// Parses an amount of memory for frames.
pub fn memory(text: &str) -> Result<Size, MemoryError> {
    let size: Size = text.parse()?;
    if (MEMORY_LEAST..=MEMORY_MOST).contains(&size) {
        Ok(size)
    } else {
        Err(MemoryError::OutOfBounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_read_with_their_unit() {
        assert_eq!("1000km".parse(), Ok(Distance::from_km(1000)));
        assert_eq!("1.5 km".parse::<Distance>().unwrap().metres(), 1500);
        assert_eq!("500m".parse::<Distance>().unwrap().metres(), 500);
        assert_eq!("0".parse::<Distance>().unwrap().metres(), 0);
        for text in ["banana", "", "-5km", "1000", "1e99km", "90000km", "5 miles", "NaNkm"] {
            assert!(text.parse::<Distance>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_prefixes() {
        assert_eq!("64K".parse::<Size>().unwrap().bytes(), 65_536);
        assert_eq!("2GiB".parse::<Size>().unwrap().to_string(), "2 GiB");
        assert_eq!("512".parse::<Size>().unwrap().bytes(), 512);
        for text in ["", "0", "K", "1X", "-1", "1e30"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn memory_stays_within_bounds() {
        assert_eq!(memory("64K").unwrap().to_string(), "64 KiB");
        for text in ["63K", "1025G", "100T", "x"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
