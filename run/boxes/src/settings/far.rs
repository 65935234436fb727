//! Far boxes as a user names them.

use super::SettingsError;
use longhaul_accel::Prefix;
use longhaul_wan::FarBox;
use nix::ifaddrs::getifaddrs;
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;
use thiserror::Error;

/// A site's addresses, and one behind its box that is asked for in place of them:
/// `10.2.0.0/16=10.2.0.1`, or the addresses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Far(pub FarBox);

/// Why a text names no far box.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FarError {
    /// Its site's addresses are no prefix.
    #[error(transparent)]
    Prefix(<Prefix as FromStr>::Err),
    /// What stands for the box is no address.
    #[error("'{via}' is no address: name one behind the far box, as in {prefix}=ADDRESS")]
    Via {
        /// The site's addresses.
        prefix: Prefix,
        /// What stands for the box.
        via: String,
    },
}

impl FromStr for Far {
    type Err = FarError;

    fn from_str(text: &str) -> Result<Self, FarError> {
        let (prefix, via) =
            text.split_once('=').map_or((text, None), |(prefix, via)| (prefix, Some(via)));
        Far::new(prefix, via)
    }
}

impl TryFrom<String> for Far {
    type Error = FarError;

    fn try_from(text: String) -> Result<Self, FarError> {
        text.parse()
    }
}

/// A `[[far]]` of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    prefix: String,
    r#box: Option<String>,
}

impl Far {
    fn new(prefix: &str, via: Option<&str>) -> Result<Self, FarError> {
        let prefix = prefix.parse::<Prefix>().map_err(FarError::Prefix)?;
        let address = |via: &str| {
            via.parse::<IpAddr>().map_err(|_| FarError::Via { prefix, via: via.to_string() })
        };
        Ok(Far(FarBox { prefix, via: via.map(address).transpose()? }))
    }

    /// The `[[far]]` tables of a file.
    ///
    /// # Errors
    /// What is wrong with which of them.
    pub fn read_all(tables: Vec<toml::Table>) -> Result<Vec<Far>, String> {
        let read = |(number, table): (usize, toml::Table)| {
            let written = table.try_into::<Written>().map_err(|e| e.message().to_string());
            let far = written.and_then(|written| {
                Far::new(&written.prefix, written.r#box.as_deref()).map_err(|e| e.to_string())
            });
            far.map_err(|why| format!("far box {number}: {why}"))
        };
        (1..).zip(tables).map(read).collect()
    }
}

/// Refuses far boxes at this machine's own addresses.
///
/// # Errors
/// One is, or this machine's addresses cannot be told.
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
        assert!(far("10.2.0.0/16=east").unwrap_err().to_string().contains("'east' is no address"));
        assert!(far("10.2.0.1/16").unwrap_err().to_string().contains("10.2.0.0/16 may be meant"));
        assert!(far("").is_err() && far("=10.2.0.1").is_err());
    }

    #[test]
    fn tables_of_a_file_are_refused_by_number() {
        let read = |text: &str| {
            let mut file: toml::Table = toml::from_str(text).unwrap();
            let tables = file.remove("far").unwrap().try_into::<Vec<toml::Table>>().unwrap();
            Far::read_all(tables)
        };
        let one = "[[far]]\nprefix = '10.2.0.0/16'\nbox = '192.0.2.7'\n";
        assert_eq!(read(one).unwrap(), ["10.2.0.0/16=192.0.2.7".parse().unwrap()]);
        for (text, part) in [
            ("[[far]]\nprefix = 'here'", "far box 2: 'here' is no address prefix"),
            ("[[far]]\nbox = '192.0.2.7'", "far box 2: missing field `prefix`"),
            ("[[far]]\nprefix = '::/0'\nvia = '::1'", "far box 2: unknown field `via`"),
        ] {
            let refusal = read(&format!("{one}{text}")).unwrap_err();
            assert!(refusal.starts_with(part), "{refusal}");
        }
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
