//! `longhaul key`: the keys by which boxes know each other.

use crate::output;
use crate::problem::Problem;
use longhaul_seal::{PrivateKey, PublicKey, Seed};
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

/// A key file is a line.
const FILE_BYTES_MAX: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  longhaul key new /etc/longhaul/west.key          prints the public key, for the other site's --peer
  longhaul key show /etc/longhaul/west.key
  longhaul accelerate --lan eth1 --wan eth2 --transport --key /etc/longhaul/west.key --peer east=PUBLIC_KEY";

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
}

pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    let key = match command {
        Command::New { file } => make(file)?,
        Command::Show { file } => read(file)?,
    };
    output::print(&format!("{}\n", key.public()))?;
    Ok(ExitCode::SUCCESS)
}

fn make(file: &Path) -> Result<PrivateKey, Problem> {
    let key = PrivateKey::generate(&seed()?);
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut opened| {
        opened.write_all(key.to_text().as_bytes())?;
        opened.write_all(b"\n")?;
        opened.sync_all()
    });
    match written {
        Ok(()) => Ok(key),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Problem::new(
            format!("{} is there already", file.display()),
            format!(
                "'longhaul key show {0}' prints its public key; remove the file first to replace it",
                file.display()
            ),
        )),
        Err(e) => Err(Problem::plain(format!("{}: {e}", file.display()))),
    }
}

/// The private key in a file that nobody else may read.
pub fn read(file: &Path) -> Result<PrivateKey, Problem> {
    let failed = |e: io::Error| Problem::plain(format!("{}: {e}", file.display()));
    let opened = File::open(file).map_err(failed)?;
    let mode = opened.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Problem::new(
            format!("{}: others may use this private key (mode {:o})", file.display(), mode & 0o777),
            format!("'chmod 600 {}', or make another if somebody may have read it", file.display()),
        ));
    }
    let mut text = String::new();
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
            "write a name and the far box's public key, as in east=KEY; 'longhaul key show' prints it there",
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
        assert_eq!(read(&file).unwrap().public(), made);
        assert!(make(&file).unwrap_err().to_string().contains("is there already"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_is_no_key_is_told() {
        let file = place("bad");
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file).unwrap();
        opened.write_all(b"secret\n").unwrap();
        let told = read(&file).unwrap_err().to_string();
        assert!(told.contains("44 characters") && !told.contains("secret"), "{told}");
        fs::remove_file(&file).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("No such file"));
    }

    #[test]
    fn peers_have_a_name_and_a_key() {
        let key = PrivateKey::generate(&Seed::new([7; 32])).public();
        let peer: Peer = format!("east={key}").parse().unwrap();
        assert_eq!((&*peer.name, peer.key), ("east", key));
        for text in [format!("{key}"), format!("={key}"), "east".to_string(), "east=short".to_string()] {
            assert!(text.parse::<Peer>().is_err(), "{text}");
        }
    }
}
