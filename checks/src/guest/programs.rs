//! Programs of this machine, with their dependencies, for a guest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of programs for administrators, which are not on every user's path.
const ADMINISTRATION: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The path of `program`.
///
/// # Panics
/// If it is not installed, with the name of Debian's package.
pub fn find(program: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(ADMINISTRATION.iter().map(PathBuf::from));
    let found = places.find_map(|dir| Some(dir.join(program)).filter(|path| path.is_file()));
    found.unwrap_or_else(|| panic!("{program} is not installed: apt-get install {package}"))
}

/// All shared libraries that `object` needs, including the loader, by the paths that the loader
/// uses.
///
/// # Panics
/// If one is missing, or ldd itself.
pub fn libraries(object: &Path) -> BTreeSet<PathBuf> {
    let done = Command::new("ldd").arg(object).env("LC_ALL", "C").env_remove("LD_PRELOAD").output();
    let done = done.unwrap_or_else(|e| panic!("ldd (package libc-bin): {e}"));
    // It fails for a program that needs none.
    libraries_in(&String::from_utf8_lossy(&done.stdout))
        .unwrap_or_else(|line| panic!("{}: {line}", object.display()))
}

/// Parses the paths in ldd's output; a library that was not found is an error.
fn libraries_in(listing: &str) -> Result<BTreeSet<PathBuf>, String> {
    let mut found = BTreeSet::new();
    for line in listing.lines().map(str::trim) {
        if line.ends_with("not found") {
            return Err(line.to_owned());
        }
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        // The vDSO has a name and no path.
        if let Some((path, _)) = target.split_once(" (0x")
            && path.starts_with('/')
        {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_taken_and_the_vdso_is_not() {
        let listing = "\tlinux-vdso.so.1 (0x00007fad51cc1000)\n\
                       \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007fad51b96000)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007fad51cc3000)\n";
        let found = libraries_in(listing).unwrap();
        let expected = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(found, expected.iter().map(PathBuf::from).collect());
    }

    #[test]
    fn a_program_without_libraries_has_none_and_a_missing_one_is_named() {
        assert_eq!(libraries_in("\tstatically linked\n"), Ok(BTreeSet::new()));
        assert_eq!(
            libraries_in("\tlibx.so.1 => not found\n"),
            Err("libx.so.1 => not found".to_owned())
        );
    }
}
