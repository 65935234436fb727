//! Counters as files, for tools that read those of a NIC.
//!
//! The given directory gets the layout of `/sys` for a device:
//! `class/infiniband/longhaul0/ports/1/` with `counters/`, `hw_counters/`, `state`, `rate` and so
//! on. The files follow the device about once per second while it changes, and are written once
//! more when the process exits normally. Counters are cumulative: they start at the values in the
//! files, so that those of consecutive programs add up. Only one process at a time writes them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use longhaul_port::LinkState;
use longhaul_rnic::{Counter, Counters};
use longhaul_units::{BitRate, Duration, Instant};

/// Interval at which the files are updated.
const INTERVAL: Duration = Duration::from_ms(1000);

/// Reported rate of a port without a configured one.
const RATE_PRESUMED_GBPS: f64 = 100.0;

/// The port's counters below `counters/`, with their sources. The unit of data is 4 bytes. Source:
/// Linux, Documentation/ABI/stable/sysfs-class-infiniband.
const PORT_COUNTERS: [(&str, Counter, u64); 4] = [
    ("port_xmit_data", Counter::TxBytes, 4),
    ("port_rcv_data", Counter::RxBytes, 4),
    ("port_xmit_packets", Counter::TxFrames, 1),
    ("port_rcv_packets", Counter::RxFrames, 1),
];

/// The files of one device.
pub(crate) struct CounterFiles {
    /// Held while this process writes the files.
    _lock: File,
    port: PathBuf,
    /// Initial contents of the files, in the order of [`files`].
    before: Vec<u64>,
    written: Option<(Counters, LinkState)>,
    due: Instant,
}

/// Every file with its value, relative to the port's directory.
fn files(counters: &Counters) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
    let hardware = counters.iter().map(|(counter, value)| ("hw_counters", counter.name(), value));
    let port = PORT_COUNTERS
        .iter()
        .map(|(name, counter, unit)| ("counters", *name, counters.get(*counter) / unit));
    hardware.chain(port)
}

impl CounterFiles {
    /// Creates the directories below `root`, and reads the existing files.
    ///
    /// # Errors
    /// If `root` is not writable; `WouldBlock` if another process writes the files.
    pub fn open(root: &Path, rate: Option<BitRate>) -> io::Result<Self> {
        let device = root.join("class/infiniband/longhaul0");
        let port = device.join("ports/1");
        fs::create_dir_all(port.join("counters"))?;
        fs::create_dir_all(port.join("hw_counters"))?;
        let lock = File::create(root.join("lock"))?;
        lock.try_lock()?;
        fs::write(device.join("fw_ver"), concat!(env!("CARGO_PKG_VERSION"), "\n"))?;
        fs::write(device.join("hca_type"), "Longhaul\n")?;
        fs::write(device.join("board_id"), "LONGHAUL_SOFTWARE\n")?;
        fs::write(port.join("link_layer"), "Ethernet\n")?;
        let gbps = rate.map_or(RATE_PRESUMED_GBPS, |rate| rate.as_bps() as f64 / 1e9);
        fs::write(port.join("rate"), format!("{gbps} Gb/sec (4X)\n"))?;
        let before = files(&Counters::default())
            .map(|(dir, name, _)| {
                let text = fs::read_to_string(port.join(dir).join(name)).unwrap_or_default();
                text.trim().parse().unwrap_or(0)
            })
            .collect();
        Ok(CounterFiles { _lock: lock, port, before, written: None, due: Instant::ZERO })
    }

    /// True if the files may be outdated.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Updates the files.
    ///
    /// # Errors
    /// If a file cannot be written; others may have been updated.
    pub fn write(&mut self, now: Instant, counters: &Counters, link: LinkState) -> io::Result<()> {
        self.due = now + INTERVAL;
        let (known, known_link) = match &self.written {
            Some((known, link)) => (known.clone(), Some(*link)),
            None => (Counters::default(), None),
        };
        for (((dir, name, value), (.., old)), before) in
            files(counters).zip(files(&known)).zip(&self.before)
        {
            if value != old || known_link.is_none() {
                overwrite(
                    &self.port.join(dir).join(name),
                    &format!("{}\n", before.wrapping_add(value)),
                )?;
            }
        }
        if known_link != Some(link) {
            let (state, physical) = match link {
                LinkState::Up => ("4: ACTIVE\n", "5: LinkUp\n"),
                LinkState::Down => ("1: DOWN\n", "3: Disabled\n"),
            };
            fs::write(self.port.join("state"), state)?;
            fs::write(self.port.join("phys_state"), physical)?;
        }
        self.written = Some((counters.clone(), link));
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
            let mut files = CounterFiles::open(&root, None).unwrap();
            let mut counters = Counters::default();
            counters.add(Counter::TxBytes, 4000);
            counters.count(Counter::CnpSent);
            files.write(Instant::ZERO, &counters, LinkState::Up).unwrap();
            assert_eq!(read(&root, "hw_counters/np_cnp_sent"), format!("{run}\n"));
            assert_eq!(read(&root, "counters/port_xmit_data"), format!("{}\n", run * 1000));
            assert_eq!(read(&root, "hw_counters/out_of_sequence"), "0\n");
        }
        assert_eq!(read(&root, "state"), "4: ACTIVE\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn one_process_at_a_time_keeps_them() {
        let root = root("lock");
        let _first = CounterFiles::open(&root, None).unwrap();
        let second = CounterFiles::open(&root, None).err().unwrap();
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_root_that_is_no_directory_is_an_error() {
        assert!(CounterFiles::open(Path::new("/dev/null"), None).is_err());
    }
}
