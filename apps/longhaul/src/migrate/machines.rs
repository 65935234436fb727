//! The QEMUs of `longhaul migrate run`, and what they need of this machine.

use super::lab::{DESTINATION, Hosts, SOURCE};
use crate::exec;
use crate::problem::Problem;
use longhaul_boxes::quantity::Size;
use longhaul_boxes::runtime_dir::private_dir;
use longhaul_lab::die_with_parent;
use longhaul_migration::End;
use longhaul_migration::machine::{Accel, Config, Machine};
use std::ffi::OsString;
use std::fs;
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
    /// Image and sockets.
    pub files: Files,
}

impl Machines<'_> {
    /// Starts one of them on its host.
    pub fn start(&self, end: End) -> Result<Machine, Problem> {
        let config = Config {
            accel: self.accel,
            memory: self.memory,
            image: self.files.image(),
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

/// A directory for the image and the sockets, removed when dropped.
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
    fn both_ends_need_memory() {
        assert!(check_memory(2 << 30, 4 << 30).is_ok());
        let error = check_memory(2 << 30, (4 << 30) - 1).unwrap_err().to_string();
        assert!(error.contains("need 2 GiB each") && error.contains("smaller --memory"), "{error}");
    }
}
