//! Parsers of quantities with units: `1.5 km`, `64K`, `250us`.
//!
//! Sizes have binary prefixes, rates decimal ones. A zero length or time needs no unit.

use crate::Duration;
use std::fmt;
use std::str::FromStr;

/// Twice the circumference of the Earth, in kilometres: a longer fibre is a typing error.
const DISTANCE_MAX_KM: f64 = 80_000.0;
/// An hour; clocks reach far beyond it.
const TIME_MAX_PS: f64 = 3.6e15;
/// Upper bound of sizes, in bytes.
const SIZE_MAX: f64 = 1e18;

/// Error for a text that is not the expected quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityError {
    /// Not a distance.
    NoDistance,
    /// A number without a unit of distance.
    DistanceWithoutUnit,
    /// A number with an unknown unit of distance.
    DistanceUnit,
    /// A distance above 80,000 km.
    DistanceTooLong,
    /// Not a size.
    NoSize,
    /// Not a time.
    NoTime,
    /// A time above one hour.
    TimeTooLong,
    /// Not a probability.
    NoProbability,
}

impl QuantityError {
    /// `true` if the text is a valid quantity but too large.
    pub const fn is_too_large(self) -> bool {
        matches!(self, QuantityError::DistanceTooLong | QuantityError::TimeTooLong)
    }
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuantityError::NoDistance => f.write_str(
                "not a distance: write a decimal number with a unit, as in 1000km, 380km or 500m",
            ),
            QuantityError::DistanceWithoutUnit => {
                f.write_str("a distance needs its unit, km or m, as in 1000km or 500m")
            }
            QuantityError::DistanceUnit => {
                f.write_str("the units of a distance are km and m, as in 1000km or 500m")
            }
            QuantityError::DistanceTooLong => {
                write!(f, "longer than {DISTANCE_MAX_KM} km, twice around the Earth")
            }
            QuantityError::NoSize => f.write_str(
                "not a size: write a number above zero with K, M or G, as in 64K, 256M or 2G",
            ),
            QuantityError::NoTime => {
                f.write_str("not a time: write a number with ns, us, ms or s, as in 5ms or 250us")
            }
            QuantityError::TimeTooLong => f.write_str("longer than an hour"),
            QuantityError::NoProbability => {
                f.write_str("not a probability: write a number from 0 to 1, as in 1e-4 or 0.01%")
            }
        }
    }
}

impl std::error::Error for QuantityError {}

/// Splits `1.5 km` into its number, not negative, and its unit.
pub(crate) fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    Some((number.parse().ok()?, unit.trim()))
}

/// `true` if `unit` continues a number, as in `1e9km`.
pub(crate) fn has_exponent(unit: &str) -> bool {
    let power = unit.strip_prefix(['e', 'E']).map(|power| power.trim_start_matches(['+', '-']));
    power.is_some_and(|power| power.starts_with(|c: char| c.is_ascii_digit()))
}

/// Reads a distance, `380km` or `500m`, in metres, up to 80,000 km.
///
/// # Errors
/// [`QuantityError::NoDistance`], [`QuantityError::DistanceWithoutUnit`],
/// [`QuantityError::DistanceUnit`], [`QuantityError::DistanceTooLong`].
pub fn distance_m(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = number_and_unit(text).ok_or(QuantityError::NoDistance)?;
    let km = match unit {
        "km" => number,
        "m" => number / 1e3,
        "" if number == 0.0 => 0.0,
        "" => return Err(QuantityError::DistanceWithoutUnit),
        _ if has_exponent(unit) => return Err(QuantityError::NoDistance),
        _ => return Err(QuantityError::DistanceUnit),
    };
    if km > DISTANCE_MAX_KM {
        return Err(QuantityError::DistanceTooLong);
    }
    Ok((km * 1e3).round() as u64)
}

/// Reads a size, `4096`, `64K`, `64KiB` or `1.5M`, in bytes, below 10^18. It must be a whole number
/// of bytes.
///
/// # Errors
/// [`QuantityError::NoSize`].
pub fn size_bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, unit) = number_and_unit(text).ok_or(QuantityError::NoSize)?;
    let shift = match unit.trim_end_matches(['B', 'b']).trim_end_matches('i') {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(QuantityError::NoSize),
    };
    let bytes = number * (1_u64 << shift) as f64;
    if bytes.fract() != 0.0 || bytes >= SIZE_MAX {
        return Err(QuantityError::NoSize);
    }
    Ok(bytes as u64)
}

/// Reads a probability, `1e-3` or `0.1%`.
///
/// # Errors
/// [`QuantityError::NoProbability`].
pub fn probability(text: &str) -> Result<f64, QuantityError> {
    let text = text.trim();
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    number.ok().filter(|number| (0.0..=1.0).contains(number)).ok_or(QuantityError::NoProbability)
}

impl FromStr for Duration {
    type Err = QuantityError;

    /// Reads `5ms` or `250us`, up to an hour.
    ///
    /// # Errors
    /// [`QuantityError::NoTime`], [`QuantityError::TimeTooLong`].
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = number_and_unit(text).ok_or(QuantityError::NoTime)?;
        let ps = match unit {
            "ps" => number,
            "ns" => number * 1e3,
            "us" | "µs" => number * 1e6,
            "ms" => number * 1e9,
            "s" => number * 1e12,
            "" if number == 0.0 => 0.0,
            _ => return Err(QuantityError::NoTime),
        };
        if ps > TIME_MAX_PS {
            return Err(QuantityError::TimeTooLong);
        }
        Ok(Duration::from_ps(ps.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_read_with_their_unit() {
        for (text, metres) in [("1000km", 1_000_000), ("1.5 km", 1500), ("500m", 500), ("0", 0)] {
            assert_eq!(distance_m(text), Ok(metres), "{text}");
        }
        for text in ["banana", "", "-5km", "NaNkm", "1e99km", "1E+3 km"] {
            assert_eq!(distance_m(text), Err(QuantityError::NoDistance), "{text}");
        }
        assert_eq!(distance_m("1000"), Err(QuantityError::DistanceWithoutUnit));
        for text in ["5 miles", "10Km", "1ekm"] {
            assert_eq!(distance_m(text), Err(QuantityError::DistanceUnit), "{text}");
        }
        assert_eq!(distance_m("90000km"), Err(QuantityError::DistanceTooLong));
    }

    #[test]
    fn sizes_have_binary_prefixes_and_whole_bytes() {
        for (text, bytes) in
            [("64K", 65_536), ("2GiB", 2 << 30), ("512", 512), ("1.5kB", 1536), ("0", 0)]
        {
            assert_eq!(size_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "1X", "-1", "1e30", "0.3K", "1000000T"] {
            assert_eq!(size_bytes(text), Err(QuantityError::NoSize), "{text}");
        }
    }

    #[test]
    fn probabilities_are_numbers_or_percent() {
        for (text, number) in
            [("1e-2", 0.01), ("1%", 0.01), ("0.1 %", 1e-3), ("0", 0.0), ("100%", 1.0)]
        {
            assert_eq!(probability(text), Ok(number), "{text}");
        }
        for text in ["", "%", "-0.1", "1.1", "101%", "1%%", "NaN", "x"] {
            assert_eq!(probability(text), Err(QuantityError::NoProbability), "{text}");
        }
    }

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ps) in
            [("5ms", 5_000_000_000), ("0.25 us", 250_000), ("1.5ns", 1500), ("7ps", 7), ("0", 0)]
        {
            assert_eq!(text.parse(), Ok(Duration::from_ps(ps)), "{text}");
        }
        for text in ["", "5", "5 min", "-1ms", "ms", "NaNs"] {
            assert_eq!(text.parse::<Duration>(), Err(QuantityError::NoTime), "{text}");
        }
        assert_eq!("3601s".parse::<Duration>(), Err(QuantityError::TimeTooLong));
    }
}
