//! Permitted dependencies between crates.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The workspace crates that each crate may use. A crate missing here is a fault.
const ALLOWED: &[(&str, &[&str])] = &[
    ("proto/units", &[]),
    ("proto/counters", &[]),
    ("proto/wire", &["proto/units"]),
    ("proto/lease", &[]),
    ("proto/node", &["proto/units", "proto/lease", "proto/wire"]),
    ("proto/cc", &["proto/units"]),
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
    ("proto/readahead", &["proto/units", "proto/counters", "proto/wire", "proto/node"]),
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
            "proto/rc",
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
            "proto/rc",
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
            "proto/accel",
            "proto/link",
            "proto/switch",
            "proto/wan",
            "proto/wan_box",
        ],
    ),
    (
        "run/boxes",
        &[
            "proto/units",
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
            "proto/switch",
            "proto/wan",
            "proto/wan_box",
            "host",
            "ports/port",
            "ports/memif",
            "verbs/rdma",
        ],
    ),
    ("xtask", &[]),
];

/// Folders whose crates may use any other.
const FREE: &[&str] = &["apps/", "checks"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    path: Option<String>,
    /// Absent for ordinary dependencies, "dev" or "build" otherwise.
    kind: Option<String>,
}

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let out = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let metadata: Metadata =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let folder = relative(root, package.manifest_path.trim_end_matches("/Cargo.toml"));
        let expected = expected_name(&folder);
        if package.name != expected {
            faults.push(format!("{folder}: its crate is called {}, not {expected}", package.name));
        }
        if FREE.iter().any(|free| folder.starts_with(free)) {
            continue;
        }
        let Some(allowed) = allowed.get(folder.as_str()) else {
            faults
                .push(format!("{folder}: no layer is declared for it in xtask/src/tidy/layers.rs"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev")) {
            let Some(path) = &dependency.path else { continue };
            let target = relative(root, path);
            if !allowed.contains(&target.as_str()) {
                faults.push(format!("{folder} must not use {target} ({})", dependency.name));
            }
        }
    }
    Ok(faults)
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
