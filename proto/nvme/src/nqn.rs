//! NVMe qualified names.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Well-known name of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Longest name in bytes.
const LEN_MAX: usize = 223;

/// A valid NVMe qualified name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// Why a text is no name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NqnError {
    /// Another beginning.
    #[error("'{0}' does not begin with 'nqn.', as in nqn.2026-01.org.example:disk1")]
    Prefix(String),
    /// Too long.
    #[error("a name has at most {LEN_MAX} bytes, and this one has {0}")]
    TooLong(usize),
    /// Blanks or control characters.
    #[error("a name consists of printable ASCII characters without blanks")]
    Character,
}

impl Nqn {
    /// Length of the field on the wire.
    pub const FIELD: usize = 256;

    /// The discovery subsystem's.
    #[must_use]
    pub fn discovery() -> Self {
        Nqn(DISCOVERY_NQN.to_owned())
    }

    /// The name in a field of 256 bytes that a NUL terminates.
    ///
    /// # Errors
    /// As [`Nqn::from_str`].
    pub fn read(field: &[u8; Self::FIELD]) -> Result<Self, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        str::from_utf8(&field[..end]).map_err(|_| NqnError::Character)?.parse()
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the discovery subsystem.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY_NQN
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NqnError::Character);
        }
        if text.len() > LEN_MAX {
            return Err(NqnError::TooLong(text.len()));
        }
        if !text.starts_with("nqn.") {
            return Err(NqnError::Prefix(text.to_owned()));
        }
        Ok(Nqn(text.to_owned()))
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
