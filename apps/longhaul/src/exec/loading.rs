//! Programs into which the loader preloads nothing: they see no device.

use rustix::process::geteuid;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Why the loader preloads no library into the executable at `path`; `None` if it does, or if this
/// is not known: a script's interpreter starts programs of any kind.
pub fn obstacle(path: &Path) -> Option<&'static str> {
    // A file that cannot be read is not an error here: it may be executable.
    if is_static(path).unwrap_or(false) {
        return Some("it is linked statically");
    }
    (!geteuid().is_root() && gains_privileges(path))
        .then_some("it runs with another user's privileges (setuid, setgid or file capabilities)")
}

/// True for an ELF executable without an interpreter, which is what loads libraries. Offsets are
/// those of 64-bit ELF: System V ABI, "ELF Header" and "Program Header".
fn is_static(path: &Path) -> io::Result<bool> {
    const IDENTIFICATION: &[u8] = b"\x7fELF\x02\x01";
    const INTERPRETER: u32 = 3;
    let file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    if !header.starts_with(IDENTIFICATION) {
        return Ok(false);
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = u64::from_le_bytes(std::array::from_fn(|at| header[32 + at]));
    let (size, count) = (half(54), half(56));
    for index in 0..u64::from(count) {
        let mut kind = [0; 4];
        let at = index.saturating_mul(size.into()).saturating_add(table);
        file.read_exact_at(&mut kind, at)?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if the executable gives an ordinary user other privileges than their own.
fn gains_privileges(path: &Path) -> bool {
    const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
    let mut value = [0_u8; 64];
    fs::metadata(path).is_ok_and(|file| file.mode() & SET_IDS != 0)
        || rustix::fs::getxattr(path, "security.capability", &mut value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_in_the_files_headers() {
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(Path::new("/nowhere")), None);
        let path = std::env::temp_dir().join(format!("longhaul-elf-{}", std::process::id()));
        let mut elf = fs::read(std::env::current_exe().unwrap()).unwrap();
        // Cut off after the header: the table of program headers is missing.
        fs::write(&path, &elf[..64]).unwrap();
        assert_eq!(obstacle(&path), None);
        // Without program headers.
        elf[56..58].fill(0);
        fs::write(&path, &elf[..64]).unwrap();
        assert_eq!(obstacle(&path), Some("it is linked statically"));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(obstacle(&path), None);
        fs::remove_file(&path).unwrap();
    }
}
