//! The keys by which boxes know each other: where they are, and who has them.

use longhaul_seal::{KeyError, PublicKey, Seed};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

/// A key file is a line.
pub const FILE_BYTES_MAX: u64 = 4096;

/// Why there is no key.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// Its file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system answers.
        error: io::Error,
    },
    /// Its file can be read by others.
    #[error("{}: others may read this key (mode {mode:o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What the file holds is no key.
    #[error("{}: {error}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: KeyError,
    },
    /// The system gives no randomness.
    #[error("/dev/urandom: {0}")]
    Random(io::Error),
}

/// The private or pre-shared key in a file that nobody else may read.
///
/// # Errors
/// When others may read it, or there is no key in it.
pub fn read_key<K: FromStr<Err = KeyError>>(file: &Path) -> Result<K, KeyFileError> {
    let failed = |error| KeyFileError::File { path: file.to_owned(), error };
    let opened = File::open(file).map_err(failed)?;
    let mode = opened.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Exposed { path: file.to_owned(), mode: mode & 0o777 });
    }
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    text.parse().map_err(|error| KeyFileError::NoKey { path: file.to_owned(), error })
}

/// 32 bytes from the operating system.
///
/// # Errors
/// When it gives none.
pub fn seed() -> Result<Seed, KeyFileError> {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(KeyFileError::Random)?;
    Ok(Seed::new(bytes))
}

/// A far box: what it is called here, and its public key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Peer {
    /// What it is called here.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
}

/// Why a text names no peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// It has no name.
    #[error(
        "write a name and the far box's public key, as in east=KEY; 'longhaul key show' prints it \
         there"
    )]
    NoName,
    /// What follows the name is no public key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, key) = parts.ok_or(PeerError::NoName)?;
        // Base64 ends in = itself: a key alone is no name with a key.
        let key = key.parse::<PublicKey>()?;
        Ok(Peer { name: name.to_string(), key })
    }
}

impl TryFrom<String> for Peer {
    type Error = PeerError;

    fn try_from(text: String) -> Result<Self, PeerError> {
        text.parse()
    }
}

/// A file with the pre-shared key of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Psk {
    /// The name that the peer is called by here.
    pub peer: String,
    /// Where the key is.
    pub file: PathBuf,
}

/// The text does not name a peer and a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "write a peer's name and a file, as in east=/etc/longhaul/west-east.psk; 'longhaul key psk' \
     makes one"
)]
pub struct PskError;

impl FromStr for Psk {
    type Err = PskError;

    fn from_str(text: &str) -> Result<Self, PskError> {
        let parts =
            text.split_once('=').filter(|(peer, file)| !peer.is_empty() && !file.is_empty());
        let (peer, file) = parts.ok_or(PskError)?;
        Ok(Psk { peer: peer.to_string(), file: file.into() })
    }
}

impl TryFrom<String> for Psk {
    type Error = PskError;

    fn try_from(text: String) -> Result<Self, PskError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_seal::PrivateKey;

    #[test]
    fn peers_have_a_name_and_a_key() {
        let key = PrivateKey::generate(&Seed::new([7; 32])).public();
        let peer: Peer = format!("east={key}").parse().unwrap();
        assert_eq!((&*peer.name, peer.key), ("east", key));
        for text in
            [format!("{key}"), format!("={key}"), "east".to_string(), "east=short".to_string()]
        {
            assert!(text.parse::<Peer>().is_err(), "{text}");
        }
    }
}
