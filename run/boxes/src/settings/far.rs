//! Far boxes in a user's notation.

use super::SettingsError;
use crate::plan::parsed;
use longhaul_accel::Prefix;
use longhaul_wan::FarBox;
use nix::ifaddrs::getifaddrs;
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;
use thiserror::Error;

/// A site's prefix, and optionally one address behind its box that is asked for instead of each:
/// `10.2.0.0/16=10.2.0.1` or `10.2.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Far(pub FarBox);

/// Why a text is not a far box.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FarError {
    /// The site's addresses are not a prefix.
    #[error(transparent)]
    Prefix(<Prefix as FromStr>::Err),
    /// The part behind the `=` is not an address.
    #[error("'{via}' is not an address: name one behind the far box, as in {prefix}=ADDRESS")]
    Via {
        /// The site's prefix.
        prefix: Prefix,
        /// The text behind the `=`.
        via: String,
    },
}

impl FromStr for Far {
    type Err = FarError;

    fn from_str(text: &str) -> Result<Self, FarError> {
        let (prefix, via) =
            text.split_once('=').map_or((text, None), |(prefix, via)| (prefix, Some(via)));
        let prefix = prefix.parse::<Prefix>().map_err(FarError::Prefix)?;
        let address = |via: &str| {
            via.parse::<IpAddr>().map_err(|_| FarError::Via { prefix, via: via.to_string() })
        };
        Ok(Far(FarBox { prefix, via: via.map(address).transpose()? }))
    }
}

impl TryFrom<String> for Far {
    type Error = FarError;

    fn try_from(text: String) -> Result<Self, FarError> {
        text.parse()
    }
}

/// One `[[far]]` table of a file.
#[derive(Deserialize)]
pub struct Written {
    #[serde(deserialize_with = "parsed")]
    prefix: Prefix,
    r#box: Option<IpAddr>,
}

impl From<Written> for Far {
    fn from(written: Written) -> Self {
        Far(FarBox { prefix: written.prefix, via: written.r#box })
    }
}

/// Refuses far boxes with an address of this machine.
///
/// # Errors
/// If a far box has one, or this machine's addresses cannot be listed.
pub fn check_not_own(far: &[Far]) -> Result<(), SettingsError> {
    if far.iter().all(|far| far.0.via.is_none()) {
        return Ok(());
    }
    let all = getifaddrs().map_err(|e| SettingsError::OwnAddresses(e.into()))?;
    let own: Vec<IpAddr> = all
        .filter_map(|one| {
            let address = one.address?;
            let of_v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            of_v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect();
    not_among(far, &own)
}

fn not_among(far: &[Far], own: &[IpAddr]) -> Result<(), SettingsError> {
    let is_own = |far: &&Far| far.0.via.is_some_and(|via| own.contains(&via));
    match far.iter().find(is_own) {
        Some(Far(FarBox { prefix, via: Some(via) })) => {
            Err(SettingsError::FarIsHere { prefix: *prefix, via: *via })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_box_is_a_prefix_and_perhaps_an_address() {
        let far = |text: &str| text.parse::<Far>();
        let Far(one) = far("10.2.0.0/16=192.0.2.7").unwrap();
        assert_eq!(
            (one.prefix.to_string(), one.via),
            ("10.2.0.0/16".into(), Some(IpAddr::from([192, 0, 2, 7])))
        );
        assert_eq!(far("fd00::/8").unwrap().0.via, None);
        assert!(
            far("10.2.0.0/16=east").unwrap_err().to_string().contains("'east' is not an address")
        );
        assert!(far("10.2.0.1/16").unwrap_err().to_string().contains("10.2.0.0/16 may be meant"));
        assert!(far("").is_err() && far("=10.2.0.1").is_err());
    }

    #[test]
    fn this_machine_is_no_far_box() {
        let far = ["10.2.0.0/16=192.0.2.7".parse::<Far>().unwrap()];
        assert!(not_among(&far, &[IpAddr::from([10, 0, 0, 1])]).is_ok());
        let refusal = not_among(&far, &[IpAddr::from([192, 0, 2, 7])]).unwrap_err().to_string();
        assert!(
            refusal.starts_with(
                "the far box for 10.2.0.0/16 has this machine's own address 192.0.2.7"
            ),
            "{refusal}"
        );
        assert!(check_not_own(&["127.0.0.0/8=127.0.0.1".parse().unwrap()]).is_err());
    }
}
