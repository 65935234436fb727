//! Address prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// An invalid prefix.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("'{text}' is no address prefix: {why}")]
pub struct PrefixError {
    /// The given text.
    pub text: String,
    /// The error.
    pub why: String,
}

/// The addresses that begin with the same bits: `10.0.0.0/8`, `fd00::/8`, or a single address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Creates the prefix of the first `len` bits of `address`: at most 32 or 128, by its family.
    ///
    /// # Errors
    /// [`PrefixError`] if `len` is larger, or if `address` has bits set beyond the prefix.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, PrefixError> {
        let prefix = Prefix { address, len };
        if len > width(address) {
            let why = format!("an address of its family has {} bits", width(address));
            return Err(PrefixError { text: prefix.to_string(), why });
        }
        let network = prefix.network();
        if network != address {
            let why =
                format!("the address has bits beyond the prefix; {network}/{len} may be meant");
            return Err(PrefixError { text: prefix.to_string(), why });
        }
        Ok(prefix)
    }

    /// Returns the prefix of `len` bits that contains `address`; `len` is clamped to the address
    /// length.
    pub fn around(address: IpAddr, len: u8) -> Self {
        let len = len.min(width(address));
        Prefix { address: Prefix { address, len }.network(), len }
    }

    /// Returns whether `address` is in the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        width(address) == width(self.address)
            && Prefix { address, len: self.len }.network() == self.network()
    }

    /// `true` for an IPv4 prefix.
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    fn network(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0);
                IpAddr::V4((a.to_bits() & mask).into())
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.len)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
        }
    }

    /// Returns whether `other` is equal to or within this prefix.
    pub fn covers(&self, other: &Prefix) -> bool {
        self.len <= other.len && self.contains(other.address)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let unreadable = |why: &str| PrefixError { text: text.to_owned(), why: why.to_owned() };
        let (address, len) = text.split_once('/').map_or((text, None), |(a, len)| (a, Some(len)));
        let address: IpAddr = address.parse().map_err(|_| {
            unreadable("write an address, or its first bits as in 10.1.0.0/16 or fd00::/8")
        })?;
        let len = match len {
            None => width(address),
            Some(len) => {
                len.parse().map_err(|_| unreadable("behind the / stands a number of bits"))?
            }
        };
        Prefix::new(address, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_as_people_write_them() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.1.7", "192.168.1.7", "192.168.1.6"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("fd00:1::/32", "fd00:1:2::9", "fd00:2::9"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert!(prefix.contains(inside.parse().unwrap()), "{text}");
            assert!(!prefix.contains(outside.parse().unwrap()), "{text}");
        }
        for (address, len, text) in [
            ("10.1.2.3", 16, "10.1.0.0/16"),
            ("10.1.2.3", 40, "10.1.2.3"),
            ("fd00::7:8", 112, "fd00::7:0/112"),
        ] {
            assert_eq!(Prefix::around(address.parse().unwrap(), len), text.parse().unwrap());
        }
        for (text, part) in [
            ("10.0.0.1/8", "10.0.0.0/8 may be meant"),
            ("10.0.0.0/33", "has 32 bits"),
            ("10.0.0.0/-1", "a number of bits"),
            ("host", "write an address"),
            ("", "write an address"),
        ] {
            let error = text.parse::<Prefix>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
