//! Traffic of verbs devices and the fill of their send queues, at regular intervals.

use crate::environment::names;
use std::fs;
use std::path::{Path, PathBuf};

const VERBS: &str = "/sys/class/infiniband";
/// Counters of what a port sent and received, in words of four bytes.
const COUNTERS: [(&str, &str); 2] = [("port_xmit_data", "sent"), ("port_rcv_data", "received")];
const WORD_BITS: f64 = 32.0;

/// A port of a verbs device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name in results.
    pub name: String,
    /// Directory of its counters.
    pub counters: PathBuf,
    /// File with the fill of its send queues; NICs have none.
    pub fill: Option<PathBuf>,
}

/// The ports of this machine's verbs devices.
pub fn of_machine() -> Vec<Device> {
    let mut devices = Vec::new();
    for device in names(Path::new(VERBS)) {
        let ports = Path::new(VERBS).join(&device).join("ports");
        let all = names(&ports);
        for port in &all {
            let name = if all.len() == 1 { device.clone() } else { format!("{device}-{port}") };
            let counters = ports.join(port).join("counters");
            devices.push(Device { name, counters, fill: None });
        }
    }
    devices
}

/// The traffic of a device over the intervals of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    device: Device,
    directions: [Words; COUNTERS.len()],
    fill: Fill,
}

/// Send requests that are posted and not completed, at the ends of intervals.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fill {
    /// What killed programs left in the file before the run.
    left: u64,
    ends: Vec<u64>,
    is_known: bool,
}

/// A counter by interval.
#[derive(Clone, Debug, Default, PartialEq)]
struct Words {
    last: Option<u64>,
    moved: Vec<u64>,
}

impl Traffic {
    /// Nothing yet.
    pub fn new(device: Device) -> Self {
        Traffic { device, directions: Default::default(), fill: Fill::default() }
    }

    /// Reads the counters at the end of interval number `past`, or before the first one.
    pub fn take(&mut self, past: usize) {
        self.take_fill(past);
        for ((counter, _), words) in COUNTERS.iter().zip(&mut self.directions) {
            // A device that is not attached yet has no files.
            let text = fs::read_to_string(self.device.counters.join(counter)).ok();
            let now = text.and_then(|text| text.trim().parse::<u64>().ok());
            words.moved.resize(past.saturating_sub(1), 0);
            if past > 0 {
                let moved = now.zip(words.last).map(|(now, last)| now.saturating_sub(last));
                words.moved.push(moved.unwrap_or(0));
            }
            words.last = now.or(words.last);
        }
    }

    /// Reads the fill, as [`Traffic::take`] does the counters.
    fn take_fill(&mut self, past: usize) {
        let Some(file) = &self.device.fill else { return };
        let text = fs::read_to_string(file).ok();
        let now = text.and_then(|text| text.trim().parse::<u64>().ok());
        self.fill.is_known |= now.is_some();
        let last = self.fill.ends.last().copied().unwrap_or(0);
        match past {
            0 => self.fill.left = now.unwrap_or(0),
            _ => {
                self.fill.ends.resize(past - 1, last);
                let fill = now.map_or(last, |now| now.saturating_sub(self.fill.left));
                self.fill.ends.push(fill);
            }
        }
    }

    /// The fill at the end of each interval, with its name; `None` of a device that has none.
    pub fn fill(&self) -> Option<(String, Vec<f64>)> {
        let ends = self.fill.ends.iter().map(|requests| *requests as f64).collect();
        self.fill.is_known.then(|| (format!("{}.send_queue_fill", self.device.name), ends))
    }

    /// Bits per second by interval, with their names; nothing of a device without counters.
    pub fn rates(&self, lengths_s: &[f64]) -> Vec<(String, Vec<f64>)> {
        let all = COUNTERS.iter().zip(&self.directions);
        let counted = all.filter(|(_, words)| words.last.is_some());
        let rates = |words: &Words| {
            let moved = words.moved.iter().copied().chain(std::iter::repeat(0));
            let rate = |(length, words): (&f64, u64)| words as f64 * WORD_BITS / length.max(1e-9);
            lengths_s.iter().zip(moved).map(rate).collect()
        };
        counted
            .map(|((_, what), words)| (format!("{}.{what}_bps", self.device.name), rates(words)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_the_counters_and_a_device_without_any_has_none() {
        let root = std::env::temp_dir().join(format!("longhaul-devices-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        let device = Device { name: "a".to_owned(), counters: root.clone(), fill: None };
        let mut traffic = Traffic::new(device);
        traffic.take(0);
        assert_eq!(traffic.rates(&[]), []);
        for (past, words) in [(1, "1000"), (2, "3500"), (3, "3500")] {
            fs::write(root.join("port_xmit_data"), words).unwrap();
            traffic.take(past);
        }
        let rates = traffic.rates(&[0.01, 0.01, 0.02]);
        assert_eq!(rates, [("a.sent_bps".to_owned(), vec![0.0, 2500.0 * 32.0 / 0.01, 0.0])]);
        assert_eq!(traffic.fill(), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_fill_is_that_of_the_run() {
        let file = std::env::temp_dir().join(format!("longhaul-fill-{}", std::process::id()));
        let device =
            Device { name: "a".to_owned(), counters: PathBuf::new(), fill: Some(file.clone()) };
        let mut traffic = Traffic::new(device);
        // A program that was killed left 5.
        for (past, fill) in [(0, "   5\n"), (1, " 133\n"), (2, "  21\n"), (3, "   4\n")] {
            fs::write(&file, fill).unwrap();
            traffic.take(past);
        }
        let expected = vec![128.0, 16.0, 0.0];
        assert_eq!(traffic.fill(), Some(("a.send_queue_fill".to_owned(), expected)));
        fs::remove_file(&file).unwrap();
    }
}
