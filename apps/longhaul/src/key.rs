//! `longhaul key`: the keys by which boxes know each other.

use crate::output;
use crate::problem::Problem;
use longhaul_seal::{KeyError, PresharedKey, PrivateKey, PublicKey, Seed};
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A key file is a line.
const FILE_BYTES_MAX: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  longhaul key new /etc/longhaul/west.key
      prints the public key, for the other site's --peer
  longhaul key show /etc/longhaul/west.key
  longhaul key psk /etc/longhaul/west-east.psk
      a further secret, for --psk at both sites: copy it there by a safe way
  longhaul accelerate --lan eth1 --wan eth2 --transport --key /etc/longhaul/west.key \\
      --peer east=PUBLIC_KEY";

#[derive(clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Command {
    /// Make a private key, and print its public key
    New {
        /// Where to write it; nobody else may read it
        file: PathBuf,
    },
    /// Print the public key of a private one
    Show {
        /// The private key
        file: PathBuf,
    },
    /// Make a pre-shared key for two boxes
    Psk {
        /// Where to write it; nobody else may read it
        file: PathBuf,
    },
}

pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    let key = match command {
        Command::New { file } => make(file)?,
        Command::Show { file } => read(file)?,
        Command::Psk { file } => {
            let key = PresharedKey::generate(&seed()?);
            write(file, &key.to_text(), "it may be in use already; remove it first to replace it")?;
            let text = format!(
                "{}: copy this file to the other box by a way that nobody reads, and name it in \
                 --psk at both\n",
                file.display()
            );
            output::print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    output::print(&format!("{}\n", key.public()))?;
    Ok(ExitCode::SUCCESS)
}

fn make(file: &Path) -> Result<PrivateKey, Problem> {
    let key = PrivateKey::generate(&seed()?);
    let cure = format!(
        "'longhaul key show {}' prints its public key; remove it first to replace it",
        file.display()
    );
    write(file, &key.to_text(), &cure)?;
    Ok(key)
}

/// Writes the text of a key to a new file that nobody else may read; `cure` is for a file that is
/// there already.
fn write(file: &Path, text: &str, cure: &str) -> Result<(), Problem> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| {
        opened.write_all(text.as_bytes())?;
        opened.write_all(b"\n")?;
        opened.sync_all()
    });
    written.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => {
            Problem::new(format!("{} is there already", file.display()), cure)
        }
        _ => Problem::plain(format!("{}: {e}", file.display())),
    })
}

/// The private or pre-shared key in a file that nobody else may read.
pub fn read<K: FromStr<Err = KeyError>>(file: &Path) -> Result<K, Problem> {
    let failed = |e: io::Error| Problem::plain(format!("{}: {e}", file.display()));
    let opened = File::open(file).map_err(failed)?;
    let mode = opened.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Problem::new(
            format!("{}: others may read this key (mode {:o})", file.display(), mode & 0o777),
            format!("'chmod 600 {}', or make another if somebody may have read it", file.display()),
        ));
    }
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    text.parse().map_err(|e| Problem::plain(format!("{}: {e}", file.display())))
}

/// 32 bytes from the operating system.
pub fn seed() -> Result<Seed, Problem> {
    let mut bytes = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|e| Problem::plain(format!("/dev/urandom: {e}")))?;
    Ok(Seed::new(bytes))
}

/// A far box: what it is called here, and its public key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Peer {
    pub name: String,
    pub key: PublicKey,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, key) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or(
            "write a name and the far box's public key, as in east=KEY; 'longhaul key show' prints \
             it there",
        )?;
        // Base64 ends in = itself: a key alone is no name with a key.
        let key = key.parse::<PublicKey>().map_err(|e| e.to_string())?;
        Ok(Peer { name: name.to_string(), key })
    }
}

impl TryFrom<String> for Peer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A file with the pre-shared key of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Psk {
    /// The name that the peer is called by here.
    pub peer: String,
    pub file: PathBuf,
}

impl FromStr for Psk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('=').filter(|(peer, file)| !peer.is_empty() && !file.is_empty());
        let (peer, file) = parts.ok_or(
            "write a peer's name and a file, as in east=/etc/longhaul/west-east.psk; 'longhaul key \
             psk' makes one",
        )?;
        Ok(Psk { peer: peer.to_string(), file: file.into() })
    }
}

impl TryFrom<String> for Psk {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("longhaul-key-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let file = place("new");
        let made = make(&file).unwrap().public();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read::<PrivateKey>(&file).unwrap().public(), made);
        assert!(make(&file).unwrap_err().to_string().contains("is there already"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read::<PrivateKey>(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_is_no_key_is_told() {
        let file = place("bad");
        let mut opened =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap();
        opened.write_all(b"secret\n").unwrap();
        let told = read::<PrivateKey>(&file).unwrap_err().to_string();
        assert!(told.contains("44 characters") && !told.contains("secret"), "{told}");
        fs::remove_file(&file).unwrap();
        assert!(read::<PrivateKey>(&file).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn a_preshared_key_is_made_for_its_owner_alone_and_shown_to_nobody() {
        let file = place("psk");
        run(&Command::Psk { file: file.clone() }).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            *read::<PresharedKey>(&file).unwrap().to_text(),
            fs::read_to_string(&file).unwrap().trim()
        );
        assert!(
            run(&Command::Psk { file: file.clone() })
                .unwrap_err()
                .to_string()
                .contains("is there already")
        );
        fs::remove_file(&file).unwrap();
        assert!("east".parse::<Psk>().is_err() && "=x".parse::<Psk>().is_err());
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
