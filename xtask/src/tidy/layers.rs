//! Permitted dependencies between crates.

use crate::metadata::{self, Dependency, Package};
use std::collections::BTreeSet;
use std::path::Path;

/// Crates, each with those that it may use.
type Edges = &'static [(&'static str, &'static [&'static str])];

/// The workspace crates that each crate may use. A crate missing here is a fault, and so is an edge
/// that no crate has.
const ALLOWED: Edges = &[
    ("proto/units", &[]),
    ("proto/counters", &[]),
    ("proto/wire", &["proto/units"]),
    ("proto/lease", &[]),
    ("proto/cc", &["proto/units"]),
    ("proto/node", &["proto/units", "proto/lease", "proto/wire", "proto/cc"]),
    ("proto/fec", &["proto/units"]),
    ("proto/work", &["proto/units", "proto/counters", "proto/wire", "proto/node"]),
    ("proto/rc", &["proto/units", "proto/wire", "proto/node", "proto/work"]),
    ("proto/uc", &["proto/units", "proto/wire", "proto/node", "proto/work"]),
    ("proto/ud", &["proto/units", "proto/wire", "proto/node", "proto/work"]),
    ("proto/wire_script", &["proto/units", "proto/wire", "proto/node", "proto/work"]),
    ("proto/cm", &["proto/units", "proto/counters", "proto/wire", "proto/node"]),
    (
        "proto/rnic",
        &[
            "proto/units",
            "proto/wire",
            "proto/node",
            "proto/cc",
            "proto/work",
            "proto/rc",
            "proto/uc",
            "proto/ud",
            "proto/cm",
            "proto/neighbour",
        ],
    ),
    ("proto/link", &["proto/units", "proto/counters", "proto/wire", "proto/node", "proto/cc"]),
    ("proto/accel", &["proto/units", "proto/counters", "proto/wire", "proto/node", "proto/cc"]),
    ("proto/nvme", &["proto/units"]),
    (
        "proto/readahead",
        &["proto/units", "proto/counters", "proto/wire", "proto/node", "proto/nvme"],
    ),
    ("proto/secret", &["proto/units"]),
    (
        "proto/wan",
        &[
            "proto/units",
            "proto/counters",
            "proto/secret",
            "proto/wire",
            "proto/node",
            "proto/cc",
            "proto/fec",
        ],
    ),
    ("proto/seal", &["proto/units", "proto/counters", "proto/secret", "proto/wire", "proto/node"]),
    (
        "proto/wan_box",
        &[
            "proto/units",
            "proto/node",
            "proto/cc",
            "proto/secret",
            "proto/accel",
            "proto/readahead",
            "proto/wan",
            "proto/seal",
        ],
    ),
    ("proto/eswitch", &["proto/units", "proto/wire", "proto/node"]),
    ("proto/neighbour", &["proto/units", "proto/wire", "proto/node"]),
    (
        "proto/switch",
        &["proto/units", "proto/counters", "proto/wire", "proto/node", "proto/cc", "proto/link"],
    ),
    ("ports/port", &["proto/counters", "proto/lease"]),
    ("ports/memif", &["ports/port"]),
    ("ports/udp", &["proto/counters", "ports/port"]),
    ("ports/netdev", &["proto/counters", "ports/port"]),
    ("ports/af_xdp", &["proto/counters", "ports/port", "ports/netdev"]),
    ("ports/dpdk", &["proto/counters", "proto/lease", "ports/port"]),
    ("host", &["proto/units", "proto/wire", "proto/node", "ports/port"]),
    (
        "verbs/rdma",
        &[
            "proto/units",
            "proto/wire",
            "proto/node",
            "proto/cc",
            "proto/cm",
            "proto/eswitch",
            "proto/rnic",
            "host",
            "ports/port",
            "ports/memif",
            "ports/netdev",
            "ports/udp",
        ],
    ),
    ("verbs/abi_defs", &[]),
    (
        "verbs/preload",
        &[
            "verbs/rdma",
            "verbs/abi_defs",
            "proto/units",
            "proto/wire",
            "proto/rnic",
            "proto/ud",
            "proto/cm",
            "ports/port",
        ],
    ),
    ("doctor", &["proto/units", "proto/wire"]),
    ("planner", &[]),
    ("bench", &[]),
    ("datapath", &["proto/units", "proto/wire", "proto/node", "proto/rnic", "host", "ports/port"]),
    (
        "datapath/measure",
        &[
            "datapath",
            "run/boxes",
            "proto/units",
            "proto/node",
            "proto/fec",
            "proto/rnic",
            "proto/accel",
            "proto/link",
            "proto/wan",
            "proto/seal",
            "proto/wan_box",
            "host",
            "ports/port",
            "ports/memif",
            "ports/af_xdp",
        ],
    ),
    (
        "sim",
        &[
            "proto/units",
            "proto/wire",
            "proto/node",
            "proto/cc",
            "proto/work",
            "proto/cm",
            "proto/rnic",
            "proto/nvme",
            "proto/accel",
            "proto/link",
            "proto/switch",
            "proto/readahead",
            "proto/seal",
            "proto/wan",
            "proto/wan_box",
        ],
    ),
    ("run/health", &[]),
    (
        "run/boxes",
        &[
            "run/health",
            "proto/units",
            "proto/counters",
            "proto/node",
            "proto/accel",
            "proto/link",
            "proto/readahead",
            "proto/seal",
            "proto/wan",
            "proto/wan_box",
            "host",
            "ports/port",
            "ports/memif",
            "ports/netdev",
            "ports/af_xdp",
            "ports/dpdk",
        ],
    ),
    (
        "run/lab",
        &[
            "run/boxes",
            "proto/units",
            "proto/wire",
            "proto/node",
            "proto/accel",
            "proto/eswitch",
            "proto/link",
            "proto/readahead",
            "proto/switch",
            "proto/wan_box",
            "host",
            "ports/port",
            "ports/memif",
            "ports/netdev",
            "verbs/rdma",
        ],
    ),
    ("storage", &["proto/units", "proto/nvme", "host", "verbs/rdma"]),
    ("migration", &[]),
    ("campaign", &["bench", "run/lab", "proto/units"]),
    ("ingest", &["verbs/rdma", "verbs/abi_defs"]),
    ("python", &["ingest", "verbs/rdma"]),
    ("xtask", &[]),
];

/// The workspace crates that tests, benches and examples of a crate may use in addition.
const ALLOWED_IN_TESTS: Edges = &[
    ("proto/rc", &["proto/wire_script"]),
    ("proto/uc", &["proto/wire_script"]),
    ("proto/ud", &["proto/wire_script"]),
    ("proto/rnic", &["proto/link", "sim"]),
    (
        "proto/accel",
        &[
            "proto/cm",
            "proto/link",
            "proto/rnic",
            "proto/wan",
            "proto/seal",
            "proto/wan_box",
            "sim",
        ],
    ),
    ("proto/readahead", &["proto/link", "proto/rnic", "proto/accel", "proto/wan"]),
    ("proto/wan", &["proto/lease", "proto/link"]),
    ("proto/seal", &["proto/link", "proto/wan"]),
    ("ports/udp", &["proto/units", "proto/wire", "checks/namespace"]),
    ("ports/netdev", &["proto/wire", "checks/namespace"]),
    ("ports/af_xdp", &["checks/namespace"]),
    ("ports/dpdk", &["ports/memif", "ports/netdev", "checks/namespace"]),
    ("host", &["proto/link"]),
    ("verbs/rdma", &["checks/namespace"]),
    ("verbs/preload", &["checks/namespace"]),
    ("datapath", &["proto/accel", "proto/link"]),
];

/// Folders whose crates may use any other.
const FREE: &[&str] = &["apps/", "checks"];

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let packages = metadata::packages(root)?;
    let crates: Vec<Crate> = packages.iter().map(|p| Crate::of(root, p)).collect();
    let mut faults = names(&crates);
    faults.extend(edges(&crates, ALLOWED, ALLOWED_IN_TESTS));
    Ok(faults)
}

/// A crate, by its folder, with the folders of the workspace crates that it uses.
struct Crate {
    folder: String,
    name: String,
    /// Also by its build script.
    uses: BTreeSet<String>,
    /// By its tests, benches and examples.
    uses_in_tests: BTreeSet<String>,
}

impl Crate {
    fn of(root: &Path, package: &Package) -> Self {
        let targets = |in_tests: bool| {
            let of_kind = move |d: &&Dependency| (d.kind.as_deref() == Some("dev")) == in_tests;
            let paths = package.dependencies.iter().filter(of_kind).filter_map(|d| d.path.as_ref());
            paths.map(|path| relative(root, path)).collect()
        };
        Crate {
            folder: relative(root, package.manifest_path.trim_end_matches("/Cargo.toml")),
            name: package.name.clone(),
            uses: targets(false),
            uses_in_tests: targets(true),
        }
    }
}

fn names(crates: &[Crate]) -> Vec<String> {
    let wrong = crates.iter().filter(|one| one.name != expected_name(&one.folder));
    wrong
        .map(|Crate { folder, name, .. }| {
            format!("{folder}: its crate is called {name}, not {}", expected_name(folder))
        })
        .collect()
}

/// Edges that are not allowed, and allowed edges that no crate has.
fn edges(crates: &[Crate], allowed: Edges, in_tests: Edges) -> Vec<String> {
    const DECLARED: &str = "declared in xtask/src/tidy/layers.rs";
    let targets = |edges: Edges, folder: &str| -> Option<BTreeSet<String>> {
        let (_, targets) = edges.iter().find(|(of, _)| *of == folder)?;
        Some(targets.iter().map(|target| (*target).to_owned()).collect())
    };
    let mut faults = Vec::new();
    for Crate { folder, uses, uses_in_tests, .. } in crates {
        if FREE.iter().any(|free| folder.starts_with(free)) {
            continue;
        }
        let Some(may) = targets(allowed, folder) else {
            faults.push(format!("{folder}: no layer is {DECLARED} for it"));
            continue;
        };
        let may_in_tests = targets(in_tests, folder).unwrap_or_default();
        let extra: BTreeSet<String> = uses_in_tests.difference(&may).cloned().collect();
        for (uses, may, who) in [(uses, &may, ""), (&extra, &may_in_tests, "tests of ")] {
            for target in uses.difference(may) {
                faults.push(format!("{who}{folder} must not use {target}: that is not {DECLARED}"));
            }
            for target in may.difference(uses) {
                faults.push(format!("{who}{folder}: {target} is {DECLARED}, and not used"));
            }
        }
    }
    let declared = allowed.iter().chain(in_tests).map(|(folder, _)| *folder);
    let gone = declared.filter(|folder| crates.iter().all(|one| one.folder != *folder));
    faults.extend(gone.map(|folder| format!("{folder}: {DECLARED}, and there is no such crate")));
    faults
}

fn relative(root: &Path, path: &str) -> String {
    Path::new(path)
        .strip_prefix(root)
        .map_or_else(|_| path.to_string(), |p| p.display().to_string())
}

/// Crate `longhaul-NAME` is in folder NAME; the program and the task runner have their own names.
fn expected_name(folder: &str) -> String {
    match folder {
        "apps/longhaul" => "longhaul".to_string(),
        "xtask" => "xtask".to_string(),
        _ => format!("longhaul-{}", folder.rsplit('/').next().unwrap_or(folder).replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_with(folder: &str, uses: &[&str], uses_in_tests: &[&str]) -> Crate {
        let folders = |all: &[&str]| all.iter().map(|folder| (*folder).to_owned()).collect();
        Crate {
            folder: folder.to_owned(),
            name: expected_name(folder),
            uses: folders(uses),
            uses_in_tests: folders(uses_in_tests),
        }
    }

    #[test]
    fn edges_are_those_that_are_declared() {
        const ALLOWED: Edges = &[("a", &[]), ("b", &["a"]), ("c", &["a"])];
        const IN_TESTS: Edges = &[("c", &["b"])];
        let check =
            |b: Crate, c: Crate| edges(&[crate_with("a", &[], &[]), b, c], ALLOWED, IN_TESTS).len();
        let (b, c) = (|| crate_with("b", &["a"], &[]), || crate_with("c", &["a"], &["b"]));
        assert_eq!(check(b(), c()), 0);
        assert_eq!(check(crate_with("b", &["a"], &["a"]), c()), 0, "tests may use it too");
        assert_eq!(check(crate_with("b", &["a", "c"], &[]), c()), 1, "not allowed");
        assert_eq!(check(crate_with("b", &["a"], &["c"]), c()), 1, "not allowed in tests");
        assert_eq!(check(crate_with("b", &[], &["a"]), c()), 1, "only tests use it");
        assert_eq!(check(b(), crate_with("c", &["a", "b"], &[])), 2, "allowed in tests only");
        assert_eq!(check(b(), crate_with("c", &["a"], &[])), 1, "allowed in tests and unused");
        assert_eq!(check(b(), crate_with("d", &[], &[])), 3, "undeclared; c is gone, twice");
    }
}
