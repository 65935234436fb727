//! Counters and link state in the device's files (`sysfs`), for tools that read those of a NIC.
//!
//! The files follow the device, about once per second unless [`Attach`] has another interval, and
//! are written once more when the process exits normally. Each process of a device adds its counts
//! to those in the files, under a lock, so that the files hold the sums over all processes, as a
//! NIC's do.
//!
//! Beside them, [`FILL`] has the send requests of all processes that are posted and not completed.
//! It lies outside of the port's directories, because no NIC has it, and tools take every file
//! there for one of a NIC's.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use longhaul_port::LinkState;
use longhaul_rnic::Counters;
use longhaul_units::{Duration, Instant};

use crate::attach::Attach;
use crate::sysfs::{self, counters as files};

/// The file with the fill of the send queues, below the device's root.
const FILL: &str = "send_queue_fill";
/// Digits of the fill, so that a smaller number is not shorter.
const DIGITS: usize = 20;

/// The files of one device.
pub(crate) struct CounterFiles {
    /// Locked while this process writes the files.
    lock: File,
    root: PathBuf,
    port: PathBuf,
    /// The counts that the files include.
    written: Counters,
    /// The fill that the file includes.
    fill: u64,
    link: Option<LinkState>,
    due: Instant,
    interval: Duration,
}

impl CounterFiles {
    /// Creates the device's files below `root`; existing counters stay.
    ///
    /// # Errors
    /// If `root` is not writable.
    pub fn open(root: &Path, attach: &Attach) -> io::Result<Self> {
        sysfs::create(root, attach)?;
        let port = sysfs::port_dir(root);
        let lock = File::create(root.join("lock"))?;
        let (root, written) = (root.to_owned(), Counters::default());
        let (due, interval) = (Instant::ZERO, attach.counters_interval);
        Ok(CounterFiles { lock, root, port, written, fill: 0, link: None, due, interval })
    }

    /// True if the files may be outdated.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Adds the counts since the last call to the files, replaces this process's share of the fill
    /// by `fill`, and sets the state of the link, if the process has one.
    ///
    /// # Errors
    /// `WouldBlock` while another process writes them: nothing is lost. If a file cannot be
    /// written; others may have been updated.
    pub fn write(
        &mut self,
        now: Instant,
        counters: &Counters,
        fill: u64,
        link: Option<LinkState>,
    ) -> io::Result<()> {
        self.due = now + self.interval;
        self.lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        let result = self.set_fill(fill).and_then(|()| self.add(counters, link));
        // Explicitly, because a child forked in between shares the open file.
        self.lock.unlock()?;
        result
    }

    fn set_fill(&mut self, fill: u64) -> io::Result<()> {
        let before = std::mem::replace(&mut self.fill, fill);
        let path = self.root.join(FILL);
        if fill == before && path.exists() {
            return Ok(());
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let others = text.trim().parse().unwrap_or(0_u64).wrapping_sub(before);
        overwrite(&path, &format!("{:>DIGITS$}\n", others.wrapping_add(fill)))
    }

    fn add(&mut self, counters: &Counters, link: Option<LinkState>) -> io::Result<()> {
        let written = std::mem::replace(&mut self.written, counters.clone());
        for ((dir, name, value), (.., old)) in files(counters).zip(files(&written)) {
            if value != old {
                let path = self.port.join(dir).join(name);
                let text = fs::read_to_string(&path).unwrap_or_default();
                let sum = text.trim().parse().unwrap_or(0_u64).wrapping_add(value - old);
                overwrite(&path, &format!("{sum}\n"))?;
            }
        }
        if let Some(link) = link
            && self.link != Some(link)
        {
            sysfs::set_link(&self.root, link)?;
            self.link = Some(link);
        }
        Ok(())
    }
}

/// Overwrites the contents, never with shorter ones: a concurrent reader sees an old number or the
/// new one, and no empty file.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?
        .write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{ENV_IP, ENV_SOCKET};
    use longhaul_rnic::Counter;

    fn attach() -> Attach {
        Attach::from_lookup(|name| match name {
            ENV_SOCKET => Some("s".to_owned()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            _ => None,
        })
        .unwrap()
    }

    fn root(name: &str) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("longhaul-counters-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    fn read(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join("class/infiniband/longhaul0/ports/1").join(file)).unwrap()
    }

    #[test]
    fn programs_that_follow_each_other_add_up() {
        let root = root("sum");
        for run in 1..=3_u64 {
            let mut files = CounterFiles::open(&root, &attach()).unwrap();
            let mut counters = Counters::default();
            counters.add(Counter::TxBytes, 4000);
            counters.count(Counter::CnpSent);
            files.write(Instant::ZERO, &counters, 0, Some(LinkState::Up)).unwrap();
            assert_eq!(read(&root, "hw_counters/np_cnp_sent"), format!("{run}\n"));
            assert_eq!(read(&root, "counters/port_xmit_data"), format!("{}\n", run * 1000));
            assert_eq!(read(&root, "hw_counters/out_of_sequence"), "0\n");
        }
        assert_eq!(read(&root, "state"), "4: ACTIVE\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn concurrent_processes_add_up_one_at_a_time() {
        let root = root("lock");
        let mut all = [(); 2].map(|()| CounterFiles::open(&root, &attach()).unwrap());
        let mut counters = Counters::default();
        for round in 1..=3_u64 {
            counters.count(Counter::CnpSent);
            for files in &mut all {
                files.write(Instant::ZERO, &counters, 0, None).unwrap();
            }
            assert_eq!(read(&root, "hw_counters/np_cnp_sent"), format!("{}\n", 2 * round));
        }
        let [one, other] = &mut all;
        one.lock.lock().unwrap();
        counters.count(Counter::CnpSent);
        let refused = other.write(Instant::ZERO, &counters, 0, None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        one.lock.unlock().unwrap();
        other.write(Instant::ZERO, &counters, 0, None).unwrap();
        assert_eq!(read(&root, "hw_counters/np_cnp_sent"), "7\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_fill_is_that_of_all_processes_and_ends_with_each() {
        let root = root("fill");
        let fill = || fs::read_to_string(root.join(FILL)).unwrap().trim().to_owned();
        let [mut one, mut other] = [(); 2].map(|()| CounterFiles::open(&root, &attach()).unwrap());
        let counters = Counters::default();
        one.write(Instant::ZERO, &counters, 120, None).unwrap();
        other.write(Instant::ZERO, &counters, 3, None).unwrap();
        assert_eq!(fill(), "123");
        one.write(Instant::ZERO, &counters, 7, None).unwrap();
        assert_eq!(fill(), "10", "nothing remains of a longer number");
        other.write(Instant::ZERO, &counters, 0, None).unwrap();
        one.write(Instant::ZERO, &counters, 0, None).unwrap();
        assert_eq!(fill(), "0");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_process_without_a_link_leaves_its_state() {
        let root = root("link");
        let mut attached = CounterFiles::open(&root, &attach()).unwrap();
        attached.write(Instant::ZERO, &Counters::default(), 0, Some(LinkState::Down)).unwrap();
        let mut other = CounterFiles::open(&root, &attach()).unwrap();
        other.write(Instant::ZERO, &Counters::default(), 0, None).unwrap();
        assert_eq!(read(&root, "state"), "1: DOWN\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_root_that_is_no_directory_is_an_error() {
        assert!(CounterFiles::open(Path::new("/dev/null"), &attach()).is_err());
    }
}
