//! Keys by which boxes authenticate each other: their files, and peers by name.

use longhaul_seal::{KeyError, PublicKey, Seed};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

/// Maximum size of a key file, which holds two lines at most.
pub const FILE_BYTES_MAX: u64 = 4096;

/// The variable in which the service manager names the directory of a service's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a key is unavailable.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// Other users can read the file.
    #[error("{}: others may read this key (mode {mode:o})", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permissions of the file.
        mode: u32,
    },
    /// The file does not hold a key.
    #[error("{}: not a key file, which has a line of 44 characters", .0.display())]
    Unrelated(PathBuf),
    /// The file holds text of a key's length that is not a valid key.
    #[error("{}: {error}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: KeyError,
    },
    /// The system provides no random bytes.
    #[error("/dev/urandom: {0}")]
    Random(io::Error),
}

/// Reads the private or pre-shared key in a file that only its owner may read; of the service
/// manager's credentials, also its group.
///
/// # Errors
/// If the file holds no key, or others may read it.
pub fn read_key<K: FromStr<Err = KeyError>>(file: &Path) -> Result<K, KeyFileError> {
    let failed = |error| KeyFileError::File { path: file.to_owned(), error };
    let opened = File::open(file).map_err(failed)?;
    let metadata = opened.metadata().map_err(failed)?;
    let mode = metadata.permissions().mode();
    // One byte above the maximum, so that a longer file is refused and not read in part.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    let text = str::from_utf8(&bytes).ok().filter(|_| bytes.len() as u64 <= FILE_BYTES_MAX);
    let text = text.ok_or_else(|| KeyFileError::Unrelated(file.to_owned()))?;
    let key = text.parse().map_err(|error| match error {
        KeyError::Length { .. } => KeyFileError::Unrelated(file.to_owned()),
        error => KeyFileError::NoKey { path: file.to_owned(), error },
    })?;
    // Only a key has to be secret; the permissions of other files do not matter.
    let credentials = std::env::var_os(CREDENTIALS);
    let allowed = permitted(file, metadata.uid(), credentials.as_deref().map(Path::new));
    if mode & 0o077 & !allowed != 0 {
        return Err(KeyFileError::Exposed { path: file.to_owned(), mode: mode & 0o777 });
    }
    Ok(key)
}

/// Permissions of others than its owner that a key file may have. Systemd gives credentials, in a
/// directory that only the service's user may enter, to root, mode 0440, and to that user by an
/// access-control list, whose mask the mode of the group shows.
fn permitted(file: &Path, owner: u32, credentials: Option<&Path>) -> u32 {
    let is_within = |directory: &Path| {
        let resolved = file.canonicalize().ok().zip(directory.canonicalize().ok());
        resolved.is_some_and(|(file, directory)| file.parent() == Some(&directory))
    };
    if owner == 0 && credentials.is_some_and(is_within) { 0o040 } else { 0 }
}

/// Reads 32 random bytes from the operating system.
///
/// # Errors
/// If it provides none.
pub fn seed() -> Result<Seed, KeyFileError> {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(KeyFileError::Random)?;
    Ok(Seed::new(bytes))
}

/// A far box: its local name and its public key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Peer {
    /// Local name.
    pub name: String,
    /// Public key.
    pub key: PublicKey,
}

/// Why a text is not a peer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The name is missing.
    #[error(
        "write a name and the far box's public key, as in east=KEY; 'longhaul key show' prints it \
         there"
    )]
    NoName,
    /// The text behind the name is not a public key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, key) = parts.ok_or(PeerError::NoName)?;
        // Base64 may end in `=`, so a key without a name also contains one.
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

/// The file with a peer's pre-shared key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Psk {
    /// Local name of the peer.
    pub peer: String,
    /// The key's file.
    pub file: PathBuf,
}

/// The text is not a peer's name and a file.
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
    fn a_credential_of_root_may_be_read_by_its_group_and_no_other_file_may() {
        let name =
            format!("longhaul-credentials-{}-{:x}", std::process::id(), crate::random_seed());
        let directory = std::env::temp_dir().join(name);
        let (inner, outside) = (directory.join("inner"), directory.join("outside.key"));
        let (credential, nested) = (directory.join("west.key"), inner.join("west.key"));
        std::fs::create_dir_all(&inner).unwrap();
        for file in [&credential, &nested] {
            std::fs::write(file, "x").unwrap();
        }
        std::os::unix::fs::symlink(&nested, &outside).unwrap();
        assert_eq!(permitted(&credential, 0, Some(&directory)), 0o040);
        assert_eq!(permitted(&inner.join("../west.key"), 0, Some(&directory)), 0o040);
        assert_eq!(permitted(&credential, 1000, Some(&directory)), 0, "of another user");
        assert_eq!(permitted(&credential, 0, None), 0, "no service");
        assert_eq!(permitted(&nested, 0, Some(&directory)), 0, "below it");
        assert_eq!(permitted(&outside, 0, Some(&directory)), 0, "a link to elsewhere");
        std::fs::remove_dir_all(&directory).unwrap();
    }

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
