//! The slots of a port that several processes share, such as a lab host's.
//!
//! A slot is a file in a directory of the lab: `0`, `1` and so on. A process claims the first
//! unlocked one when it creates its device, and locks it. The kernel releases the lock at the end
//! of the process, however it ends. A child that was forked from it and executes no other program
//! keeps the slot, as it keeps the port's connection; its own device claims another one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use longhaul_eswitch::{FUNCTIONS_MAX, QPN_SLOT_SHIFT};
use thiserror::Error;

/// First QPN that a process in slot 0 may get: 0 and 1 are management QPs, and a few more stay
/// free.
const QPN_FIRST: u32 = 0x11;

/// Why a process gets no slot.
#[derive(Debug, Error)]
pub enum SlotError {
    /// Processes hold all of them.
    #[error(
        "host {host} already has {slots} of at most {slots} processes on its device; wait for one \
         to end, or use another host or a second lab"
    )]
    Full {
        /// Name of the host.
        host: String,
        /// Number of slots.
        slots: usize,
    },
    /// The lab has removed its directory.
    #[error(
        "host {host}: the lab has ended ({} is missing); 'longhaul lab up' starts it",
        dir.display()
    )]
    NoLab {
        /// Name of the host.
        host: String,
        /// The directory.
        dir: PathBuf,
    },
    /// A file cannot be opened or locked.
    #[error("cannot claim {}: {source}; run the program as the user of the lab", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl SlotError {
    pub(crate) fn errno(&self) -> i32 {
        match self {
            SlotError::Full { .. } => libc::EBUSY,
            SlotError::NoLab { .. } => libc::ENETDOWN,
            SlotError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// This process's part of the port and of its number spaces.
#[derive(Debug)]
pub(crate) struct Slot {
    number: u32,
    /// `None`: the port belongs to one process.
    _lock: Option<File>,
}

impl Slot {
    /// The only slot of a port that belongs to one process.
    pub(crate) const ONLY: Slot = Slot { number: 0, _lock: None };

    /// Claims the first free slot of `host`, whose files are in `dir`.
    ///
    /// # Errors
    /// [`SlotError`].
    pub(crate) fn claim(dir: &Path, host: &str) -> Result<Self, SlotError> {
        let host = || host.to_owned();
        for number in 0..FUNCTIONS_MAX {
            let path = dir.join(number.to_string());
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(SlotError::Io { path, source });
                }
                Err(_) if number == 0 => {
                    return Err(SlotError::NoLab { host: host(), dir: dir.to_owned() });
                }
                Err(_) => return Err(SlotError::Full { host: host(), slots: number }),
            };
            match file.try_lock() {
                Ok(()) => return Ok(Slot { number: number as u32, _lock: Some(file) }),
                Err(std::fs::TryLockError::WouldBlock) => {}
                Err(std::fs::TryLockError::Error(source)) => {
                    return Err(SlotError::Io { path, source });
                }
            }
        }
        Err(SlotError::Full { host: host(), slots: FUNCTIONS_MAX })
    }

    /// Its number, which is also the id of the memif interface.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// QPNs of a process in this slot.
    pub(crate) fn qpns(&self) -> Range<u32> {
        (self.number << QPN_SLOT_SHIFT).max(QPN_FIRST)..(self.number + 1) << QPN_SLOT_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn slots(name: &str, count: usize) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("longhaul-slots-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        for number in 0..count {
            File::create(dir.join(number.to_string())).unwrap();
        }
        dir
    }

    #[test]
    fn are_claimed_once_each_and_given_back() {
        let dir = slots("once", 3);
        let mut held: Vec<Slot> = (0..3).map(|_| Slot::claim(&dir, "a").unwrap()).collect();
        assert_eq!(held.iter().map(Slot::number).collect::<Vec<_>>(), [0, 1, 2]);
        let full = Slot::claim(&dir, "a").unwrap_err();
        assert_eq!(full.errno(), libc::EBUSY);
        let told = full.to_string();
        assert!(told.starts_with("host a already has 3 of at most 3 processes"), "{told}");
        held.remove(1);
        assert_eq!(Slot::claim(&dir, "a").unwrap().number(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn of_concurrent_claims_no_two_get_the_same() {
        let dir = slots("race", 16);
        for _ in 0..50 {
            let barrier = std::sync::Barrier::new(16);
            let held: Vec<Slot> = std::thread::scope(|scope| {
                let claims: Vec<_> = (0..16)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            Slot::claim(&dir, "a").unwrap()
                        })
                    })
                    .collect();
                claims.into_iter().map(|claim| claim.join().unwrap()).collect()
            });
            assert_eq!(held.iter().map(Slot::number).collect::<BTreeSet<_>>().len(), 16);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn of_a_lab_that_has_ended_are_missing() {
        let error = Slot::claim(Path::new("/nowhere"), "a").unwrap_err();
        assert!(matches!(error, SlotError::NoLab { .. }), "{error}");
        let error = Slot::claim(Path::new("/dev/null"), "a").unwrap_err();
        assert!(matches!(error, SlotError::Io { .. }), "{error}");
    }

    #[test]
    fn share_the_qpn_space_without_overlap() {
        let mut next = 0;
        for number in 0..FUNCTIONS_MAX as u32 {
            let qpns = Slot { number, _lock: None }.qpns();
            assert!(qpns.start >= next && qpns.end > qpns.start, "slot {number}");
            next = qpns.end;
        }
        assert!(next <= 0x00ff_ffff);
    }
}
