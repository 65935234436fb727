//! An initramfs: a cpio archive in the "newc" format (Linux,
//! Documentation/driver-api/early-userspace/buffer-format).

use super::programs;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;
const SYMLINK: u32 = 0o120_777;
/// Alignment of entries and their contents, in bytes.
const ALIGNMENT: usize = 4;

/// Contents by path, without the leading slash.
#[derive(Default)]
pub struct Archive {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Archive {
    /// Adds or replaces a file, readable and executable for everybody.
    pub fn file(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.add(path, PROGRAM, content.into());
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, SYMLINK, target.as_bytes().to_vec());
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, path: &str) {
        self.add(path, DIRECTORY, Vec::new());
    }

    /// Adds a program or shared library of this machine, with the shared libraries that it loads at
    /// their paths.
    ///
    /// # Panics
    /// If it cannot be read or lacks a library.
    pub fn object(&mut self, path: &str, from: &Path) {
        self.file(path, read(from));
        for library in programs::libraries(from) {
            let name = library.to_string_lossy().into_owned();
            if !self.entries.contains_key(name.trim_start_matches('/')) {
                self.file(&name, read(&library));
            }
        }
    }

    /// Adds a file, directory or symbolic link of this machine at its own path; of a program or
    /// library, also the shared libraries that it loads.
    ///
    /// # Panics
    /// If it cannot be read or lacks a library.
    pub fn installed(&mut self, path: &Path) {
        let name = path.to_string_lossy();
        if path.is_dir() {
            return self.directory(&name);
        }
        if let Ok(target) = fs::read_link(path) {
            return self.link(&name, &target.to_string_lossy());
        }
        let content = read(path);
        if content.starts_with(b"\x7fELF") {
            return self.object(&name, path);
        }
        let metadata = fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let is_program = metadata.permissions().mode() & 0o100 != 0;
        self.add(&name, if is_program { PROGRAM } else { DATA }, content);
    }

    fn add(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        let path = path.trim_start_matches('/');
        for (slash, _) in path.match_indices('/') {
            self.entries.entry(path[..slash].to_owned()).or_insert((DIRECTORY, Vec::new()));
        }
        self.entries.insert(path.to_owned(), (mode, content));
    }

    /// The archive's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A directory precedes its contents: its path is a prefix.
        for (number, (path, (mode, content))) in self.entries.iter().enumerate() {
            append(&mut bytes, number as u32 + 1, path, *mode, content);
        }
        append(&mut bytes, 0, "TRAILER!!!", 0, &[]);
        bytes
    }
}

fn append(bytes: &mut Vec<u8>, inode: u32, path: &str, mode: u32, content: &[u8]) {
    let size = u32::try_from(content.len()).expect("files of an initramfs are below 4 GiB");
    let name_size = path.len() as u32 + 1;
    // inode, mode, uid, gid, links, mtime, size, device (major, minor), of what device, length of
    // the name, sum
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    bytes.extend_from_slice(b"070701");
    for field in fields {
        bytes.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    bytes.extend_from_slice(path.as_bytes());
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_parents_come_first() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", *b"12345");
        let bytes = archive.to_bytes();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<usize> =
            ["a\0", "a/b\0", "a/b/c\0", "TRAILER!!!\0"].map(|n| text.find(n).unwrap()).into();
        assert!(names.is_sorted(), "{names:?}");
        let headers: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(headers.len(), 4);
        assert!(headers.iter().all(|at| at % ALIGNMENT == 0), "{headers:?}");
        assert_eq!(text.find("12345").unwrap() % ALIGNMENT, 0);
    }
}
