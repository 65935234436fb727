//! The rate of a transport, in a user's notation.

use longhaul_units::{BitRate, ParseBitRateError};
use longhaul_wan::Rate;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// `adaptive`, `port`, or a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum WanRate {
    /// Follows the free capacity of the path.
    Adaptive,
    /// As fast as the port takes frames.
    Port,
    /// A fixed rate.
    Fixed(BitRate),
}

/// The text is neither a keyword nor a rate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}; or write adaptive or port")]
pub struct WanRateError(#[from] ParseBitRateError);

impl FromStr for WanRate {
    type Err = WanRateError;

    fn from_str(text: &str) -> Result<Self, WanRateError> {
        match text {
            "adaptive" => Ok(WanRate::Adaptive),
            "port" => Ok(WanRate::Port),
            rate => Ok(WanRate::Fixed(rate.parse()?)),
        }
    }
}

impl TryFrom<String> for WanRate {
    type Error = WanRateError;

    fn try_from(text: String) -> Result<Self, WanRateError> {
        text.parse()
    }
}

impl fmt::Display for WanRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WanRate::Adaptive => f.write_str("adaptive"),
            WanRate::Port => f.write_str("port"),
            WanRate::Fixed(rate) => rate.fmt(f),
        }
    }
}

impl From<WanRate> for String {
    fn from(rate: WanRate) -> String {
        rate.to_string()
    }
}

impl WanRate {
    /// The rate of a path with known capacity `known`: without a setting, that capacity.
    pub fn or_known(of: Option<Self>, known: Option<BitRate>) -> Rate {
        match of {
            None => known.into(),
            Some(WanRate::Adaptive) => Rate::Adaptive { most: known },
            Some(WanRate::Port) => Rate::Port,
            Some(WanRate::Fixed(rate)) => Rate::Fixed(rate),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_word_or_a_number() {
        let most = BitRate::from_gbps(10);
        let rate = |text: &str| text.parse().map(|of| WanRate::or_known(Some(of), most));
        assert_eq!(rate("adaptive"), Ok(Rate::Adaptive { most }));
        assert_eq!(rate("port"), Ok(Rate::Port));
        assert_eq!(rate("25G"), Ok(Rate::Fixed(BitRate::from_gbps(25).unwrap())));
        for text in ["adaptive", "port", "25G"] {
            assert_eq!(
                text.parse::<WanRate>().unwrap().to_string().parse(),
                text.parse::<WanRate>()
            );
        }
        assert!(rate("fast").unwrap_err().to_string().ends_with("or write adaptive or port"));
        assert_eq!(WanRate::or_known(None, most), Rate::Fixed(most.unwrap()));
        assert_eq!(WanRate::or_known(None, None), Rate::Port);
    }
}
