//! The machine on which results are made: what makes two runs of a campaign differ.

use crate::process::{Ended, Group, Interruption, LOOK_AGAIN, Process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Files below `/` with one fact each, and the names of the facts.
const FACTS: [(&str, &str); 12] = [
    ("kernel", "proc/sys/kernel/osrelease"),
    ("isolated_cpus", "sys/devices/system/cpu/isolated"),
    ("smt", "sys/devices/system/cpu/smt/active"),
    ("governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("sysctl.net.core.default_qdisc", "proc/sys/net/core/default_qdisc"),
    ("sysctl.net.core.rmem_max", "proc/sys/net/core/rmem_max"),
    ("sysctl.net.core.wmem_max", "proc/sys/net/core/wmem_max"),
    ("sysctl.net.ipv4.tcp_congestion_control", "proc/sys/net/ipv4/tcp_congestion_control"),
    ("sysctl.net.ipv4.tcp_rmem", "proc/sys/net/ipv4/tcp_rmem"),
    ("sysctl.net.ipv4.tcp_wmem", "proc/sys/net/ipv4/tcp_wmem"),
    ("sysctl.vm.nr_hugepages", "proc/sys/vm/nr_hugepages"),
    ("transparent_hugepages", "sys/kernel/mm/transparent_hugepage/enabled"),
];
/// Files of a verbs device.
const OF_DEVICE: [&str; 5] =
    ["fw_ver", "hca_type", "board_id", "ports/1/rate", "ports/1/link_layer"];
/// Files of a network interface of a device.
const OF_INTERFACE: [&str; 4] = ["mtu", "speed", "duplex", "tx_queue_len"];
/// Time for a program to print its version.
const LIMIT: Duration = Duration::from_secs(5);

/// Facts about this machine by name, and versions of `programs`. What the machine does not tell is
/// absent.
pub fn environment(programs: &[&str]) -> BTreeMap<String, String> {
    let mut facts = of_files(Path::new("/"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    facts.insert("cores".to_owned(), cores.to_string());
    facts.extend(configurations(Path::new("/")));
    for program in programs {
        if let Some(version) = version(program) {
            facts.insert(format!("version.{program}"), version);
        }
    }
    facts
}

/// Facts that files below `root` have.
fn of_files(root: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut add = |name: String, path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // What drivers write if they do not know.
        if !["", "-1", "unknown"].contains(&text.as_str()) {
            facts.insert(name, text);
        }
    };
    for (name, path) in FACTS {
        add(name.to_owned(), &root.join(path));
    }
    for device in names(&root.join("sys/class/infiniband")) {
        let at = root.join("sys/class/infiniband").join(&device);
        for file in OF_DEVICE {
            add(format!("{device}.{}", file.rsplit('/').next().unwrap_or(file)), &at.join(file));
        }
        add(format!("{device}.driver_version"), &at.join("device/driver/module/version"));
    }
    for interface in names(&root.join("sys/class/net")) {
        let at = root.join("sys/class/net").join(&interface);
        // Virtual interfaces come and go with labs and containers.
        if at.join("device").exists() {
            for file in OF_INTERFACE {
                add(format!("{interface}.{file}"), &at.join(file));
            }
            add(format!("{interface}.driver_version"), &at.join("device/driver/module/version"));
        }
    }
    let model = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    facts.extend(model.map(|(_, model)| ("cpu".to_owned(), model.trim().to_owned())));
    facts
}

/// Settings of NICs that only `mlxconfig` reads, or why they are absent.
fn configurations(root: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    for device in names(&root.join("sys/class/infiniband")) {
        let mut command = Command::new("mlxconfig");
        command.args(["-d", &device, "query"]);
        match printed("mlxconfig", command) {
            Some(text) => {
                for (name, value) in settings(&text) {
                    facts.insert(format!("{device}.mlxconfig.{name}"), value);
                }
            }
            None => {
                let why = "absent: no mlxconfig is installed".to_owned();
                facts.insert(format!("{device}.mlxconfig"), why);
            }
        }
    }
    if facts.is_empty() {
        facts.insert("mlxconfig".to_owned(), "absent: no verbs device".to_owned());
    }
    facts
}

/// Lines `NAME VALUE` of mlxconfig, whose names have capital letters.
fn settings(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "_[].".contains(c);
        let is_name = name.len() > 3 && name.chars().all(is_part);
        (is_name && !value.trim().is_empty()).then(|| (name.to_owned(), value.trim().to_owned()))
    })
}

/// Names in a directory, in order.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The first line that `program` prints for `--version`; `None` if there is no such program.
fn version(program: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version");
    let text = printed(program, command)?;
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty())?;
    Some(line.trim_start_matches("Version:").trim().to_owned())
}

/// What a program prints within a time; `None` if it does not start.
fn printed(program: &str, command: Command) -> Option<String> {
    let mut process =
        Process::start(program.to_owned(), command, Interruption::Signal, Group::Own).ok()?;
    let deadline = Instant::now() + LIMIT;
    while process.status().is_none() && Instant::now() < deadline {
        sleep(LOOK_AGAIN);
    }
    let Ended { stdout, stderr, .. } = process.end();
    Some(stdout + "\n" + &stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlxconfigs_settings_are_those_with_capital_letters() {
        let text = "Device #1:\n Configurations: Next Boot\n LOG_MAX_OUTSTANDING_WQE  7\n \
                    ATS_ENABLED  False(0)\n";
        let found: Vec<_> = settings(text).collect();
        let expected = [("LOG_MAX_OUTSTANDING_WQE", "7"), ("ATS_ENABLED", "False(0)")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn facts_are_those_of_the_files_that_there_are() {
        let root = std::env::temp_dir().join(format!("longhaul-facts-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/osrelease", "6.1.0-1\n");
        write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        write("proc/cpuinfo", "processor : 0\nmodel name\t: A CPU\nmodel name\t: A CPU\n");
        write("sys/class/infiniband/mlx5_0/fw_ver", "28.36.1010\n");
        write("sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
        write("sys/class/net/eth0/mtu", "9000\n");
        write("sys/class/net/eth0/speed", "-1\n");
        write("sys/class/net/eth0/device/driver/module/version", "5.8\n");
        write("sys/class/net/veth0/mtu", "1500\n");
        let facts = of_files(&root);
        fs::remove_dir_all(&root).unwrap();
        let expected = [
            ("cpu", "A CPU"),
            ("eth0.driver_version", "5.8"),
            ("eth0.mtu", "9000"),
            ("kernel", "6.1.0-1"),
            ("mlx5_0.fw_ver", "28.36.1010"),
            ("mlx5_0.rate", "200 Gb/sec (4X HDR)"),
            ("sysctl.net.ipv4.tcp_rmem", "4096 131072 6291456"),
        ];
        let facts: Vec<(&str, &str)> =
            facts.iter().map(|(name, fact)| (name.as_str(), fact.as_str())).collect();
        assert_eq!(facts, expected);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_missing_program_no_version() {
        let facts = environment(&["sh-that-is-missing", "cargo"]);
        assert!(facts["cores"].parse::<usize>().unwrap() > 0);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(facts["kernel"], kernel.trim());
        assert!(facts["version.cargo"].starts_with("cargo "), "{facts:?}");
        assert!(!facts.contains_key("version.sh-that-is-missing"));
    }
}
