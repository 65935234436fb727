//! `longhaul key`: the keys with which boxes authenticate each other.

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::settings::{read_key, seed};
use longhaul_seal::{PresharedKey, PrivateKey};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
        Command::Show { file } => read_key(file)?,
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

/// Writes the text of a key to a new private file; `cure` is the remedy if the file exists.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;
    use longhaul_boxes::settings::{KeyFileError, Psk};
    use longhaul_seal::KeyError;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::str::FromStr;

    fn read<K: FromStr<Err = KeyError>>(file: &Path) -> Result<K, Problem> {
        read_key(file).map_err(|e: KeyFileError| e.into())
    }

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
}
