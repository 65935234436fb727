//! `longhaul key`: the keys with which boxes authenticate each other.

use crate::output;
use crate::problem::Problem;
use longhaul_boxes::settings::{read_key, seed};
use longhaul_seal::{PresharedKey, PrivateKey};
use std::fs::{self, OpenOptions};
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
      an additional secret, for --psk at both sites: copy it over a secure channel
  longhaul accelerate --lan eth1 --wan eth2 --transport --key /etc/longhaul/west.key \\
      --peer east=PUBLIC_KEY";

#[derive(clap::Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum Command {
    /// Create a private key, and print its public key
    New {
        /// File to create; only its owner may read it
        file: PathBuf,
    },
    /// Print the public key of a private key
    Show {
        /// File of the private key
        file: PathBuf,
    },
    /// Create a pre-shared key for two boxes
    Psk {
        /// File to create; only its owner may read it
        file: PathBuf,
    },
}

pub fn run(command: &Command) -> Result<ExitCode, Problem> {
    match command {
        Command::New { file } => {
            let key = PrivateKey::generate(&seed()?);
            let cure = format!(
                "'longhaul key show {}' prints its public key; remove it first to replace it",
                file.display()
            );
            make(file, &key.to_text(), &cure, &format!("{}\n", key.public()))?;
        }
        Command::Show { file } => {
            let key: PrivateKey = read_key(file)?;
            output::print(&format!("{}\n", key.public()))?;
        }
        Command::Psk { file } => {
            let key = PresharedKey::generate(&seed()?);
            let cure = "remove it first to replace it, unless a box uses it";
            let next = format!(
                "{}: copy this file to the other box over a secure channel, and name it in --psk \
                 at both\n",
                file.display()
            );
            make(file, &key.to_text(), cure, &next)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the text of a key to a new private file and prints `told`, or leaves no file; `cure` is
/// the remedy if the file exists.
fn make(file: &Path, text: &str, cure: &str, told: &str) -> Result<(), Problem> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let failed = |e: io::Error| Problem::io("write", file, &e);
    let mut opened = opened.map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists if file.is_dir() => Problem::new(
            format!("{} is a directory", file.display()),
            "name the file to create in it",
        ),
        io::ErrorKind::AlreadyExists => {
            Problem::new(format!("{} already exists", file.display()), cure)
        }
        io::ErrorKind::NotFound => {
            let directory = file.parent().unwrap_or(file).display();
            Problem::new(
                format!("there is no directory {directory}"),
                format!("create it with 'mkdir -p {directory}'"),
            )
        }
        _ => failed(e),
    })?;
    let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
    written.map_err(failed).and_then(|()| output::print(told)).inspect_err(|_| {
        // The error is reported; a file that stays causes one at the next attempt.
        let _ = fs::remove_file(file);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;
    use longhaul_boxes::settings::{KeyFileError, Psk};
    use longhaul_seal::KeyError;
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
        let new = || run(&Command::New { file: file.clone() });
        new().unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let made = read::<PrivateKey>(&file).unwrap().public();
        assert!(new().unwrap_err().to_string().contains("already exists"));
        assert_eq!(read::<PrivateKey>(&file).unwrap().public(), made);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(read::<PrivateKey>(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_key_needs_a_directory_and_a_name_in_it() {
        let refused = |file| run(&Command::New { file }).unwrap_err().to_string();
        let directory = refused(std::env::temp_dir());
        assert!(directory.contains("is a directory; name the file"), "{directory}");
        let missing = place("missing");
        let told = refused(missing.join("x.key"));
        let missing = missing.display();
        let expected =
            format!("there is no directory {missing}; create it with 'mkdir -p {missing}'");
        assert_eq!(told, expected);
    }

    #[test]
    fn a_file_that_holds_no_key_is_told_without_advice_or_its_text() {
        let file = place("bad");
        let not_a_key = format!("{}: not a key file", file.display());
        for bytes in [&b"secret\n"[..], b"secret \xff", &[b'x'; 5000]] {
            fs::write(&file, bytes).unwrap();
            for mode in [0o600, 0o644] {
                fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
                let told = read::<PrivateKey>(&file).unwrap_err().to_string();
                assert!(told.starts_with(&not_a_key), "{told}");
                assert!(!told.contains("secret") && !told.contains("chmod"), "{told}");
            }
        }
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
            fs::read_to_string(&file).unwrap()
        );
        let shown = run(&Command::Show { file: file.clone() }).unwrap_err().to_string();
        assert!(shown.contains("a pre-shared key, not a private key; name it in --psk"), "{shown}");
        assert!(
            run(&Command::Psk { file: file.clone() })
                .unwrap_err()
                .to_string()
                .contains("already exists")
        );
        fs::remove_file(&file).unwrap();
        assert!("east".parse::<Psk>().is_err() && "=x".parse::<Psk>().is_err());
    }
}
