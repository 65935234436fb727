//! The QEMUs of `longhaul migrate run`, and what they need of this machine.

use super::lab::{DESTINATION, Hosts, SOURCE};
use crate::exec;
use crate::problem::Problem;
use longhaul_boxes::quantity::Size;
use longhaul_boxes::runtime_dir::private_dir;
use longhaul_lab::die_with_parent;
use longhaul_migration::End;
use longhaul_migration::machine::{Accel, Config, Machine};
use longhaul_units::{Rng, SplitMix64};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// A pair of QEMUs that can be started.
pub struct Machines<'a> {
    /// Where they run.
    pub hosts: &'a Hosts,
    /// The program of both.
    pub qemu: &'a OsString,
    /// What executes the guest.
    pub accel: Accel,
    /// Bytes of memory of each.
    pub memory: u64,
    /// Each has a disk.
    pub has_disk: bool,
    /// Images and sockets.
    pub files: Files,
}

impl Machines<'_> {
    /// Starts one of them on its host.
    pub fn start(&self, end: End) -> Result<Machine, Problem> {
        let config = Config {
            accel: self.accel,
            memory: self.memory,
            image: self.files.image(),
            disk: self.has_disk.then(|| self.files.disk(end)),
            socket: self.files.socket(end),
            waits: end == End::Destination,
        };
        let host = match end {
            End::Source => SOURCE,
            End::Destination => DESTINATION,
        };
        let mut words = vec![self.qemu.clone()];
        words.extend(config.arguments());
        let mut command = exec::command(self.hosts.dir(), host, &words)?;
        die_with_parent(&mut command);
        Machine::start(command, config.socket).map_err(|error| Problem::from((end, error)))
    }
}

/// A directory for images and sockets, removed when dropped.
pub struct Files {
    path: PathBuf,
}

impl Files {
    /// Writes the guest's image.
    pub fn new(image: &[u8]) -> Result<Self, Problem> {
        let path = private_dir(&format!("migration-{}", std::process::id()))?;
        let files = Files { path };
        let image_path = files.image();
        fs::write(&image_path, image).map_err(|e| Problem::io("write", &image_path, &e))?;
        Ok(files)
    }

    /// Writes the disks of both ends: the source's with contents that differ everywhere, the
    /// destination's without.
    pub fn write_disks(&self, bytes: u64) -> Result<(), Problem> {
        for end in [End::Source, End::Destination] {
            let path = self.disk(end);
            let written = File::create_new(&path).and_then(|mut file| match end {
                End::Source => fill(&mut file, bytes),
                End::Destination => file.set_len(bytes),
            });
            written.map_err(|e| Problem::io("write", &path, &e))?;
        }
        Ok(())
    }

    /// Bytes of the destination's disk that are not those of the source's; both QEMUs may still
    /// run, and neither writes.
    pub fn compare_disks(&self) -> Result<u64, Problem> {
        let [source, destination] = [End::Source, End::Destination].map(|end| self.disk(end));
        let differ = File::open(&source)
            .and_then(|one| Ok((one, File::open(&destination)?)))
            .and_then(|(mut one, mut other)| differing(&mut one, &mut other));
        differ.map_err(|e| Problem::io("compare", &destination, &e))
    }

    fn disk(&self, end: End) -> PathBuf {
        self.path.join(format!("{end}.img"))
    }

    fn image(&self) -> PathBuf {
        self.path.join("guest.bin")
    }

    fn socket(&self, end: End) -> PathBuf {
        self.path.join(format!("{end}.qmp"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What remains is in the runtime directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}

const PIECE: usize = 1 << 20;

/// Writes `bytes` bytes of which no two sectors are equal.
fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let mut words = SplitMix64::new(bytes);
    let mut left = bytes;
    while left > 0 {
        let count = left.min(PIECE as u64);
        let piece: Vec<u8> =
            (0..count.div_ceil(8)).flat_map(|_| words.next_u64().to_le_bytes()).collect();
        file.write_all(&piece[..count as usize])?;
        left -= count;
    }
    Ok(())
}

/// Number of bytes in which two files differ, the longer one's surplus included.
fn differing(one: &mut File, other: &mut File) -> io::Result<u64> {
    let lengths = [one.metadata()?.len(), other.metadata()?.len()];
    let mut differ = lengths[0].abs_diff(lengths[1]);
    let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
    let mut left = lengths[0].min(lengths[1]);
    while left > 0 {
        let count = left.min(PIECE as u64) as usize;
        one.read_exact(&mut a[..count])?;
        other.read_exact(&mut b[..count])?;
        differ += a[..count].iter().zip(&b[..count]).filter(|(a, b)| a != b).count() as u64;
        left -= count as u64;
    }
    Ok(differ)
}

/// Bytes of memory that programs can have on this machine; `None` where the kernel does not say.
pub fn available_memory() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Fails if `available` bytes are too few for both ends.
pub fn check_memory(of_guest: u64, available: u64) -> Result<(), Problem> {
    if 2 * of_guest <= available {
        return Ok(());
    }
    let cause = format!(
        "source and destination need {} each, and this machine has {:.1} GiB available",
        Size::from_bytes(of_guest),
        available as f64 / f64::from(1 << 30)
    );
    Err(Problem::new(cause, "use a smaller --memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_disk_is_compared_byte_by_byte() {
        let files = Files::new(b"image").unwrap();
        files.write_disks((PIECE + 1000) as u64).unwrap();
        assert!(files.compare_disks().unwrap() > PIECE as u64 / 2, "it is not copied");
        fs::copy(files.disk(End::Source), files.disk(End::Destination)).unwrap();
        assert_eq!(files.compare_disks().unwrap(), 0);
        let mut bytes = fs::read(files.disk(End::Source)).unwrap();
        bytes[PIECE + 7] ^= 1;
        bytes.pop();
        fs::write(files.disk(End::Destination), bytes).unwrap();
        assert_eq!(files.compare_disks().unwrap(), 2);
    }

    #[test]
    fn both_ends_need_memory() {
        assert!(check_memory(2 << 30, 4 << 30).is_ok());
        let error = check_memory(2 << 30, (4 << 30) - 1).unwrap_err().to_string();
        assert!(error.contains("need 2 GiB each") && error.contains("smaller --memory"), "{error}");
    }
}
