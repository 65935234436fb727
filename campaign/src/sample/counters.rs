//! Counters of network devices and of energy, before and after a run.

use crate::environment::names;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Instant;

/// Directories of counters: of a verbs device's port, and of a network interface.
const OF_PORT: [&str; 2] = ["counters", "hw_counters"];
const VERBS: &str = "sys/class/infiniband";
const INTERFACES: &str = "sys/class/net";
const POWERCAP: &str = "sys/class/powercap";
/// Settings among the counters.
const SETTINGS: [&str; 1] = ["lifespan"];

/// All counters at one time.
#[derive(Debug)]
pub struct Readings {
    at: Instant,
    counters: BTreeMap<String, u64>,
    /// Energy in µJ by zone, and the value at which it wraps.
    energy: BTreeMap<String, (u64, u64)>,
    /// Counters that cannot be read, and why.
    absent: BTreeMap<String, String>,
}

/// Increase of counters during a run.
#[derive(Debug, Default, PartialEq)]
pub struct Rise {
    /// By device and name.
    pub counters: BTreeMap<String, u64>,
    /// Energy in J by zone.
    pub energy_j: BTreeMap<String, f64>,
    /// Time between the readings in seconds.
    pub seconds: f64,
    /// Counters that could not be read, and why.
    pub absent: BTreeMap<String, String>,
}

impl Readings {
    /// Reads the counters below `root`.
    pub fn now(root: &Path) -> Self {
        let mut readings = Readings {
            at: Instant::now(),
            counters: BTreeMap::new(),
            energy: BTreeMap::new(),
            absent: BTreeMap::new(),
        };
        readings.verbs(root);
        readings.interfaces(root);
        readings.energy(root);
        readings
    }

    fn verbs(&mut self, root: &Path) {
        let devices = names(&root.join(VERBS));
        for device in &devices {
            let ports = root.join(VERBS).join(device).join("ports");
            for port in names(&ports) {
                for directory in OF_PORT {
                    let name = format!("{device}.{port}");
                    self.directory(&name, &ports.join(&port).join(directory), directory);
                }
            }
        }
        if devices.is_empty() {
            self.absent.insert("hw_counters".to_owned(), format!("no device in /{VERBS}"));
        }
    }

    fn interfaces(&mut self, root: &Path) {
        let all = names(&root.join(INTERFACES)).into_iter();
        let has_device = |name: &String| root.join(INTERFACES).join(name).join("device").exists();
        let physical: Vec<String> = all.filter(has_device).collect();
        for interface in &physical {
            let directory = root.join(INTERFACES).join(interface).join("statistics");
            self.directory(interface, &directory, "statistics");
        }
        if physical.is_empty() {
            let why = format!("no interface of a device in /{INTERFACES}");
            self.absent.insert("statistics".to_owned(), why);
        }
    }

    /// Counters in the files of a directory; `what` names them if there are none.
    fn directory(&mut self, device: &str, directory: &Path, what: &str) {
        let before = self.counters.len();
        for name in names(directory) {
            if SETTINGS.contains(&name.as_str()) {
                continue;
            }
            let key = format!("{device}.{name}");
            match number(&directory.join(&name)) {
                Ok(count) => drop(self.counters.insert(key, count)),
                Err(why) => drop(self.absent.insert(key, why)),
            }
        }
        if self.counters.len() == before {
            self.absent.insert(format!("{device}.{what}"), "no counters".to_owned());
        }
    }

    fn energy(&mut self, root: &Path) {
        for zone in names(&root.join(POWERCAP)) {
            let at = root.join(POWERCAP).join(&zone);
            // The control type itself has no energy.
            if !at.join("energy_uj").exists() {
                continue;
            }
            let name = fs::read_to_string(at.join("name")).unwrap_or_default();
            let key =
                format!("{}_{}", zone.replace([':', '-'], "_"), name.trim().replace('-', "_"));
            match number(&at.join("energy_uj")) {
                Ok(energy) => {
                    let wraps = number(&at.join("max_energy_range_uj")).unwrap_or(u64::MAX);
                    self.energy.insert(key, (energy, wraps));
                }
                Err(why) => drop(self.absent.insert(format!("energy_{key}"), why)),
            }
        }
        let names_energy = |key: &String| key.starts_with("energy_");
        if self.energy.is_empty() && !self.absent.keys().any(names_energy) {
            self.absent
                .insert("energy".to_owned(), format!("no zone with energy_uj in /{POWERCAP}"));
        }
    }

    /// Increase since `before`. A counter that only one of both has is absent.
    pub fn since(&self, before: &Readings) -> Rise {
        let mut rise = Rise {
            seconds: (self.at - before.at).as_secs_f64(),
            absent: self.absent.clone(),
            ..Rise::default()
        };
        for (key, count) in &self.counters {
            match before.counters.get(key) {
                // Counters wrap, or are reset with their device.
                Some(earlier) if earlier <= count => {
                    rise.counters.insert(key.clone(), count - earlier);
                }
                Some(_) => drop(rise.absent.insert(key.clone(), "it was reset".to_owned())),
                None => drop(rise.absent.insert(key.clone(), "absent before the run".to_owned())),
            }
        }
        for key in before.counters.keys().filter(|key| !self.counters.contains_key(*key)) {
            rise.absent.entry(key.clone()).or_insert_with(|| "absent after the run".to_owned());
        }
        for (zone, (energy, wraps)) in &self.energy {
            let Some((earlier, _)) = before.energy.get(zone) else { continue };
            let uj = match energy.checked_sub(*earlier) {
                Some(uj) => uj,
                None => (wraps - earlier.min(wraps)).saturating_add(*energy),
            };
            rise.energy_j.insert(zone.clone(), uj as f64 / 1e6);
        }
        rise
    }
}

/// The number in a file, or why there is none.
fn number(path: &Path) -> Result<u64, String> {
    match fs::read_to_string(path) {
        Ok(text) => text.trim().parse().map_err(|_| "not a whole number".to_owned()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err("only root may read it".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Files below a directory that is removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let name = format!("longhaul-counters-{name}-{}", std::process::id());
            Root(std::env::temp_dir().join(name))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn counters_rise_and_absent_ones_are_named() {
        let root = Root::new("rise");
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        root.write(&format!("{port}/hw_counters/out_of_sequence"), "5\n");
        root.write(&format!("{port}/hw_counters/lifespan"), "10\n");
        root.write(&format!("{port}/hw_counters/rnr_nak_retry_err"), "N/A\n");
        root.write("sys/class/net/eth0/device/vendor", "x");
        root.write("sys/class/net/eth0/statistics/rx_bytes", "1000\n");
        root.write("sys/class/net/veth0/statistics/rx_bytes", "1\n");
        let zone = "sys/class/powercap/intel-rapl:0";
        root.write(&format!("{zone}/name"), "package-0\n");
        root.write(&format!("{zone}/energy_uj"), "9000000\n");
        root.write(&format!("{zone}/max_energy_range_uj"), "10000000\n");
        let before = Readings::now(&root.0);
        root.write(&format!("{port}/hw_counters/out_of_sequence"), "5\n");
        root.write("sys/class/net/eth0/statistics/rx_bytes", "1500\n");
        root.write("sys/class/net/eth0/statistics/rx_new", "1500\n");
        root.write(&format!("{zone}/energy_uj"), "500000\n");
        let rise = Readings::now(&root.0).since(&before);
        let counters: Vec<_> = rise.counters.iter().map(|(key, n)| (key.as_str(), *n)).collect();
        assert_eq!(counters, [("eth0.rx_bytes", 500), ("mlx5_0.1.out_of_sequence", 0)]);
        // The counter has wrapped.
        assert_eq!(rise.energy_j["intel_rapl_0_package_0"], 1.5);
        let absent: Vec<_> =
            rise.absent.iter().map(|(key, why)| (key.as_str(), why.as_str())).collect();
        assert_eq!(
            absent,
            [
                ("eth0.rx_new", "absent before the run"),
                ("mlx5_0.1.counters", "no counters"),
                ("mlx5_0.1.rnr_nak_retry_err", "not a whole number"),
            ]
        );
    }

    #[test]
    fn a_machine_without_any_names_all_three() {
        let root = Root::new("none");
        let rise = Readings::now(&root.0).since(&Readings::now(&root.0));
        assert_eq!((rise.counters.len(), rise.energy_j.len()), (0, 0));
        let absent: Vec<&String> = rise.absent.keys().collect();
        assert_eq!(absent, ["energy", "hw_counters", "statistics"]);
    }
}
