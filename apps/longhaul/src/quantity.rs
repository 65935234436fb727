//! Distances and sizes as people write them.

use longhaul_units::Duration as Span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Length of a fibre in metres.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distance {
    metres: u64,
}

impl Distance {
    /// Twice the circumference of the Earth: a longer fibre is a slip of the keyboard.
    const MAX_KM: f64 = 80_000.0;

    /// `km` thousand metres.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = number_and_unit(text).ok_or_else(|| {
            "not a distance: write a number with a unit, as in 1000km, 380km or 500m".to_string()
        })?;
        let km = match unit {
            "km" => number,
            "m" => number / 1e3,
            "" if number == 0.0 => 0.0,
            _ => return Err("a distance needs its unit, km or m, as in 1000km or 500m".to_string()),
        };
        if km > Self::MAX_KM {
            return Err(format!("longer than {} km, twice around the Earth", Self::MAX_KM));
        }
        Ok(Distance { metres: (km * 1e3).round() as u64 })
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "not a size: write a number above zero with K, M or G, as in 64K, 256M or 2G".to_string();
        let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
        let shift = match unit.trim_end_matches(['B', 'b']).trim_end_matches('i') {
            "" => 0,
            "k" | "K" => 10,
            "m" | "M" => 20,
            "g" | "G" => 30,
            "t" | "T" => 40,
            _ => return Err(wrong()),
        };
        let bytes = number * (1_u64 << shift) as f64;
        if !(1.0..=1e15).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Size { bytes: bytes as u64 })
    }
}

/// Reads an amount of memory for frames: enough for one, and no slip of the keyboard.
pub fn memory(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let (least, most) = (Size::from_bytes(64 << 10), Size::from_bytes(1 << 40));
    if (least..=most).contains(&size) { Ok(size) } else { Err(format!("memory goes from {least} to {most}")) }
}

/// Reads a length of time.
pub fn time(text: &str) -> Result<Span, String> {
    let wrong = || "not a time: write a number with ns, us, ms or s, as in 5ms or 250us".to_string();
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let ns = match unit {
        "ns" => number,
        "us" | "µs" => number * 1e3,
        "ms" => number * 1e6,
        "s" => number * 1e9,
        "" if number == 0.0 => 0.0,
        _ => return Err(wrong()),
    };
    // An hour; the clock's own range is far beyond it.
    if ns <= 3.6e12 { Ok(Span::from_ns(ns.round() as u64)) } else { Err("longer than an hour".to_string()) }
}

/// Splits `1000 km` into its number, finite and not negative, and its unit.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    Some((number.parse().ok()?, unit.trim()))
}

/// Reads a probability.
pub fn probability(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("not a probability: write a number from 0 to 1, as in 1e-4".to_string()),
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
    fn times_are_read_with_their_unit() {
        assert_eq!(time("5ms"), Ok(Span::from_ms(5)));
        assert_eq!(
            [time("0.25 us"), time("250ns"), time("0")],
            [250, 250, 0].map(|ns| Ok(Span::from_ns(ns)))
        );
        assert_eq!(time("1.5s"), Ok(Span::from_ms(1500)));
        for text in ["", "5", "5 min", "-1ms", "ms", "3601s", "NaNs"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_stays_within_bounds() {
        assert_eq!(memory("64K").unwrap().to_string(), "64 KiB");
        for text in ["63K", "1025G", "100T", "x"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn probabilities_stay_within_bounds() {
        assert_eq!(probability("1e-4"), Ok(1e-4));
        for text in ["-0.1", "1.1", "NaN", "x"] {
            assert!(probability(text).is_err(), "{text}");
        }
    }
}
