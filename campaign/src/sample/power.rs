//! Power of GPUs, power supplies and sensors while programs run: means of readings.

use crate::environment::names;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

const HWMON: &str = "/sys/class/hwmon";
/// Time between two readings.
const EVERY: Duration = Duration::from_millis(500);
/// Time between two looks for the end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Watts by source, or the reason why a kind of source has none.
type Readings = Result<Vec<(String, f64)>, String>;

/// A kind of source, and what reads it.
type Kind = (&'static str, fn() -> Readings);
const SOURCES: [Kind; 3] = [("gpu", of_gpus), ("psu", of_supply), ("hwmon", of_sensors)];

/// A thread that reads power.
pub struct PowerMeter {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Power>,
}

/// Power during a run.
#[derive(Debug, Default, PartialEq)]
pub struct Power {
    /// Mean in watts by source.
    pub watts: BTreeMap<String, f64>,
    /// Kinds of sources without readings, and why.
    pub absent: BTreeMap<String, String>,
}

impl PowerMeter {
    /// Begins to read.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || read_until(&told));
        PowerMeter { stop, thread }
    }

    /// Ends, and returns the means.
    pub fn end(self) -> Power {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn read_until(stop: &AtomicBool) -> Power {
    let mut sums: BTreeMap<String, (f64, u32)> = BTreeMap::new();
    let mut absent = BTreeMap::new();
    loop {
        let began = Instant::now();
        for (kind, read) in SOURCES {
            let name = format!("power_{kind}");
            // What is absent once is not asked again: programs take time.
            if absent.contains_key(&name) {
                continue;
            }
            match read() {
                Ok(readings) => {
                    for (source, watts) in readings {
                        let sum = sums.entry(source).or_default();
                        *sum = (sum.0 + watts, sum.1 + 1);
                    }
                }
                Err(why) => drop(absent.insert(name, why)),
            }
        }
        while began.elapsed() < EVERY && !stop.load(Ordering::Relaxed) {
            sleep(LOOK_EVERY);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let watts = sums.into_iter().map(|(source, (sum, count))| (source, sum / f64::from(count)));
    Power { watts: watts.collect(), absent }
}

/// Standard output of a program that succeeds.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let done = command.output().map_err(|error| format!("{program}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{program}: {}", done.status));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn of_gpus() -> Readings {
    let query = ["--query-gpu=index,power.draw", "--format=csv,noheader,nounits"];
    gpus(&output("nvidia-smi", &query)?)
}

/// Lines `INDEX, WATTS`; a GPU without a meter has no number.
fn gpus(text: &str) -> Readings {
    let lines = text.lines().filter_map(|line| {
        let (index, watts) = line.split_once(',')?;
        Some((format!("gpu{}", index.trim()), watts.trim().parse().ok()?))
    });
    let found: Vec<_> = lines.collect();
    if found.is_empty() { Err("nvidia-smi: no GPU has a meter".to_owned()) } else { Ok(found) }
}

fn of_supply() -> Readings {
    supply(&output("ipmitool", &["dcmi", "power", "reading"])?)
}

/// The line `Instantaneous power reading: N Watts`.
fn supply(text: &str) -> Readings {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut readings = lines.filter(|(name, _)| name.trim() == "Instantaneous power reading");
    let watts =
        readings.next().and_then(|(_, value)| value.split_whitespace().next()?.parse().ok());
    match watts {
        Some(watts) => Ok(vec![("psu".to_owned(), watts)]),
        None => Err("ipmitool: no power reading".to_owned()),
    }
}

fn of_sensors() -> Readings {
    sensors(Path::new(HWMON))
}

/// Files `powerN_input` or `powerN_average`, in microwatts.
fn sensors(root: &Path) -> Readings {
    let mut found = Vec::new();
    for device in names(root) {
        let at = root.join(&device);
        let name = fs::read_to_string(at.join("name")).unwrap_or_default();
        for file in names(&at) {
            let Some((number, _)) =
                file.strip_prefix("power").and_then(|rest| rest.split_once("_"))
            else {
                continue;
            };
            let is_reading = file.ends_with("_input") || file.ends_with("_average");
            let reading = fs::read_to_string(at.join(&file)).ok();
            let microwatts = reading.and_then(|text| text.trim().parse::<f64>().ok());
            if let (true, Some(microwatts)) = (is_reading, microwatts) {
                let name = name.trim().replace(['-', '.', ' '], "_");
                found.push((format!("{device}_{name}_{number}"), microwatts / 1e6));
            }
        }
    }
    found.dedup_by(|a, b| a.0 == b.0);
    if found.is_empty() { Err(format!("no power sensor in {}", root.display())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_supplies_are_read_and_those_without_a_meter_are_named() {
        let expected = vec![("gpu0".to_owned(), 38.5), ("gpu2".to_owned(), 240.0)];
        assert_eq!(gpus("0, 38.50\n1, [N/A]\n2, 240.00\n"), Ok(expected));
        assert!(gpus("0, [N/A]\n").unwrap_err().contains("meter"));
        let text =
            "\n    Instantaneous power reading:                   212 Watts\n    Minimum: 1\n";
        assert_eq!(supply(text), Ok(vec![("psu".to_owned(), 212.0)]));
        assert!(supply("DCMI request failed").unwrap_err().contains("no power reading"));
    }

    #[test]
    fn sensors_are_files_in_microwatts() {
        let root = std::env::temp_dir().join(format!("longhaul-hwmon-{}", std::process::id()));
        let device = root.join("hwmon3");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("name"), "acpi-power\n").unwrap();
        fs::write(device.join("power1_average"), "93500000\n").unwrap();
        fs::write(device.join("power1_cap"), "1\n").unwrap();
        assert_eq!(sensors(&root), Ok(vec![("hwmon3_acpi_power_1".to_owned(), 93.5)]));
        fs::remove_dir_all(&root).unwrap();
        assert!(sensors(&root).unwrap_err().contains("no power sensor"));
    }

    #[test]
    fn every_kind_of_source_has_a_reading_or_a_reason() {
        let power = PowerMeter::start().end();
        let has_kind = |kind: &str| power.watts.keys().any(|source| source.contains(kind));
        for (kind, _) in SOURCES {
            let is_named = power.absent.contains_key(&format!("power_{kind}"));
            assert!(is_named != has_kind(kind), "{kind}: {power:?}");
        }
    }
}
