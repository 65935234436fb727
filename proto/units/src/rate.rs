//! Data rates.

use crate::Duration;
use crate::written::{has_exponent, number_and_unit};
use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A data rate in bits per second, never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(NonZeroU64);

impl BitRate {
    /// `None` when `bps` is zero.
    pub const fn from_bps(bps: u64) -> Option<Self> {
        match NonZeroU64::new(bps) {
            Some(bps) => Some(BitRate(bps)),
            None => None,
        }
    }

    /// `gbps` times 10^9 bits per second; `None` when zero.
    pub const fn from_gbps(gbps: u64) -> Option<Self> {
        Self::from_bps(gbps.saturating_mul(1_000_000_000))
    }

    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0.get()
    }

    /// Gigabits (10^9) per second.
    pub fn as_gbps(self) -> f64 {
        self.0.get() as f64 / 1e9
    }

    /// Transmission time of `bytes` at this rate, rounded up to a picosecond.
    pub fn time_for_bytes(self, bytes: u64) -> Duration {
        let ps = (u128::from(bytes) * 8_000_000_000_000).div_ceil(u128::from(self.0.get()));
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// Whole bytes transmitted in `d`.
    pub fn bytes_in(self, d: Duration) -> u64 {
        let bytes = u128::from(d.as_ps()) * u128::from(self.0.get()) / 8_000_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bps = self.0.get() as f64;
        match bps {
            b if b >= 1e9 => write!(f, "{} Gbit/s", b / 1e9),
            b if b >= 1e6 => write!(f, "{} Mbit/s", b / 1e6),
            b if b >= 1e3 => write!(f, "{} kbit/s", b / 1e3),
            b => write!(f, "{b} bit/s"),
        }
    }
}

/// Error for a text that is not a [`BitRate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseBitRateError {
    /// Not a rate, or out of range.
    NoRate,
    /// A number without a unit.
    WithoutUnit,
    /// A number with an unknown unit.
    Unit,
    /// More than 10^15 bit/s.
    TooHigh,
}

impl fmt::Display for ParseBitRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseBitRateError::NoRate => {
                "not a data rate: write a decimal number above zero with a unit, as in 10G, \
                 100Gbit, 2.5G or 400M"
            }
            ParseBitRateError::Unit => {
                "the units of a data rate are k, M, G and T, alone or before bit, bit/s or bps, as \
                 in 10G, 10Gbit/s or 400Mbps"
            }
            ParseBitRateError::TooHigh => "above 1000 Tbit/s",
            ParseBitRateError::WithoutUnit => {
                "a data rate needs its unit, k, M, G or bit/s, as in 10G or 400M"
            }
        })
    }
}

impl std::error::Error for ParseBitRateError {}

impl FromStr for BitRate {
    type Err = ParseBitRateError;

    /// Reads `10G`, `2.5Gbit`, `100Gbit/s`, `400M`, `9600bit/s`; decimal prefixes, bits per second.
    ///
    /// # Errors
    /// [`ParseBitRateError`].
    fn from_str(text: &str) -> Result<Self, ParseBitRateError> {
        let (number, unit) = number_and_unit(text).ok_or(ParseBitRateError::NoRate)?;
        if unit.is_empty() {
            return Err(ParseBitRateError::WithoutUnit);
        }
        let scale =
            match unit.trim_end_matches("/s").trim_end_matches("bps").trim_end_matches("bit") {
                "" => 1.0,
                "k" | "K" => 1e3,
                "m" | "M" => 1e6,
                "g" | "G" => 1e9,
                "t" | "T" => 1e12,
                _ if has_exponent(unit) => return Err(ParseBitRateError::NoRate),
                _ => return Err(ParseBitRateError::Unit),
            };
        let bps = number * scale;
        if bps < 1.0 {
            return Err(ParseBitRateError::NoRate);
        }
        if bps > 1e15 {
            return Err(ParseBitRateError::TooHigh);
        }
        Self::from_bps(bps as u64).ok_or(ParseBitRateError::NoRate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_usual_spellings() {
        for (text, bps) in [
            ("10G", 10_000_000_000),
            ("2.5Gbit/s", 2_500_000_000),
            ("400M", 400_000_000),
            ("1Tbps", 1_000_000_000_000),
            ("9600bit/s", 9600),
        ] {
            assert_eq!(text.parse::<BitRate>().unwrap().as_bps(), bps, "{text}");
        }
        for text in ["", "0G", "banana", "-1G", "1e99G", "inf"] {
            assert_eq!(text.parse::<BitRate>(), Err(ParseBitRateError::NoRate), "{text}");
        }
        for text in ["10X", "10Gb", "10GBit/s", "10 Gibit"] {
            assert_eq!(text.parse::<BitRate>(), Err(ParseBitRateError::Unit), "{text}");
        }
        assert_eq!("1001T".parse::<BitRate>(), Err(ParseBitRateError::TooHigh));
    }

    #[test]
    fn a_number_alone_is_no_rate() {
        for text in ["10", "100000000000", " 2.5 "] {
            assert_eq!(text.parse::<BitRate>(), Err(ParseBitRateError::WithoutUnit), "{text}");
        }
    }

    #[test]
    fn a_byte_at_800_gbps_takes_ten_picoseconds() {
        let rate = BitRate::from_gbps(800).unwrap();
        assert_eq!(rate.time_for_bytes(1), Duration::from_ps(10));
        assert_eq!(rate.bytes_in(Duration::from_ps(1005)), 100);
    }
}
