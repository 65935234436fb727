//! The device's files, in the layout that the kernel gives an rxe device below `/sys`.
//!
//! A directory holds what `/sys` would: `devices/virtual/infiniband/longhaul0`, and
//! `class/infiniband` with a link to it. The device is virtual, as rxe is: it has no `device` link
//! and no vendor's attributes. Only this device is listed, because it is the only one that
//! `ibv_get_device_list` returns to a program that runs on it. Source of names and formats: Linux,
//! `drivers/infiniband/core/sysfs.c` and `Documentation/ABI/stable/sysfs-class-infiniband`.
//!
//! `longhaul exec` creates the files, the device keeps `state`, `phys_state` and the counters
//! current (`counter_files`). Programs find them through the preloaded library, which redirects
//! their file calls, or through [`mount_over`].
//!
//! **GIDs.** The table has an entry for each address of the device. `gid_attrs` names types and
//! interface if an interface of this machine has the first address. Otherwise those files are
//! absent: a program that knows the type searches the interface's routes for the peer, and takes a
//! peer for unreachable that the device reaches by other means.

mod mount;

use crate::attach::{Attach, Line};
use longhaul_port::LinkState;
use longhaul_rnic::{Counter, Counters, PortAddresses};
use longhaul_wire::mad::gid_of_ip;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use mount::{mount_over, mount_privately};

/// Name of the device.
pub const DEVICE: &str = "longhaul0";
/// The directory of the class, below `/sys` and below a tree.
pub const CLASS: &str = "class/infiniband";
/// The directory of the devices, below `/sys` and below a tree.
pub const DEVICES: &str = "devices/virtual/infiniband";
/// Files of each GID table entry: the GID, its type, its interface.
const GID_FILES: [[&str; 3]; PortAddresses::MAX] = [
    ["ports/1/gids/0", "ports/1/gid_attrs/types/0", "ports/1/gid_attrs/ndevs/0"],
    ["ports/1/gids/1", "ports/1/gid_attrs/types/1", "ports/1/gid_attrs/ndevs/1"],
    ["ports/1/gids/2", "ports/1/gid_attrs/types/2", "ports/1/gid_attrs/ndevs/2"],
];
/// The only entry of the PKey table: the default PKey, full membership.
pub const PKEY: u16 = 0xffff;
/// Capabilities of the port: it has a connection manager, and GIDs that are IP addresses. Source:
/// IBTA 14.2.5.6, CapabilityMask bits 16 and 26.
pub const PORT_CAPABILITIES: u32 = 1 << 16 | 1 << 26;
/// Mode of the files that are replaced, not overwritten.
const READ_ONLY: u32 = 0o444;
/// Rate of a port without a configured one, in bit/s.
const RATE_PRESUMED_BPS: u64 = 100_000_000_000;

/// The port's counters below `counters/`, with their sources. The unit of data is 4 bytes. Source:
/// Linux, Documentation/ABI/stable/sysfs-class-infiniband.
const PORT_COUNTERS: [(&str, Counter, u64); 4] = [
    ("port_xmit_data", Counter::TxBytes, 4),
    ("port_rcv_data", Counter::RxBytes, 4),
    ("port_xmit_packets", Counter::TxFrames, 1),
    ("port_rcv_packets", Counter::RxFrames, 1),
];

/// Directory of the port, below a tree.
pub(crate) fn port_dir(root: &Path) -> PathBuf {
    root.join(DEVICES).join(DEVICE).join("ports/1")
}

/// Every counter with its directory below the port's.
pub(crate) fn counters(
    counters: &Counters,
) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
    let hardware = counters.iter().map(|(counter, value)| ("hw_counters", counter.name(), value));
    let port = PORT_COUNTERS
        .iter()
        .map(|(name, counter, unit)| ("counters", *name, counters.get(*counter) / unit));
    hardware.chain(port)
}

/// The files that follow the link.
fn link_state(link: LinkState) -> [(&'static str, &'static str); 2] {
    const STATE: &str = "ports/1/state";
    const PHYSICAL: &str = "ports/1/phys_state";
    match link {
        LinkState::Up => [(STATE, "4: ACTIVE"), (PHYSICAL, "5: LinkUp")],
        LinkState::Down => [(STATE, "1: DOWN"), (PHYSICAL, "3: Disabled")],
    }
}

/// Sets the link's state in the files below `root`.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn set_link(root: &Path, link: LinkState) -> io::Result<()> {
    let device = root.join(DEVICES).join(DEVICE);
    link_state(link)
        .into_iter()
        .try_for_each(|(name, contents)| replace(root, &device.join(name), contents, READ_ONLY))
}

/// Codes of a rate in bit/s: width 1 (1x), 2 (4x), 4 (8x) and speed 1 (2.5), 4 (10), 32 (25), 64
/// (50), 128 (100 Gbit/s), rounded up. 100 Gbit/s for an unpaced port. Source: IBTA 14.2.5.6.
#[must_use]
pub fn width_and_speed(rate_bps: Option<u64>) -> (u8, u8) {
    match rate_bps.unwrap_or(RATE_PRESUMED_BPS).div_ceil(1_000_000_000) {
        0..=2 => (1, 1),
        3..=10 => (1, 4),
        11..=25 => (1, 32),
        26..=40 => (2, 4),
        41..=50 => (1, 64),
        51..=100 => (2, 32),
        101..=200 => (2, 64),
        201..=400 => (2, 128),
        _ => (4, 128),
    }
}

/// LID of a port: the last 16 bits of its first address. RoCE has no LIDs, but programs written for
/// InfiniBand (qperf's UC and UD tests) exchange nothing else.
#[must_use]
pub fn lid_of(attach: &Attach) -> u16 {
    let [.., high, low] = gid_of_ip(attach.ip_addr());
    u16::from_be_bytes([high, low])
}

/// The configured rate exactly, with the width and speed that `ibv_query_port` reports.
fn rate_text(rate_bps: Option<u64>) -> String {
    let gbps = rate_bps.unwrap_or(RATE_PRESUMED_BPS) as f64 / 1e9;
    let (width, speed) = width_and_speed(rate_bps);
    let lanes = match width {
        1 => 1,
        2 => 4,
        _ => 8,
    };
    let generation = match speed {
        1 => "",
        4 => " QDR",
        32 => " EDR",
        64 => " HDR",
        _ => " NDR",
    };
    format!("{gbps} Gb/sec ({lanes}X{generation})")
}

/// Returns every file of the device, relative to its directory, except the counters: contents
/// without the final newline. Values are those of `ibv_query_device` and `ibv_query_port`.
#[must_use]
pub fn files(attach: &Attach, link: LinkState) -> Vec<(&'static str, String)> {
    let guid = attach.guid();
    let guid = [48, 32, 16, 0].map(|shift| format!("{:04x}", (guid >> shift) & 0xffff)).join(":");
    let mut files = vec![
        ("node_type", "1: CA".to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", format!("longhaul {}", attach.host)),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
        ("hw_rev", "1".to_owned()),
        ("hca_type", "Longhaul".to_owned()),
        ("board_id", "LONGHAUL_SOFTWARE".to_owned()),
        ("uevent", format!("NAME={DEVICE}")),
        ("ports/1/lid", format!("{:#x}", lid_of(attach))),
        ("ports/1/lid_mask_count", "0".to_owned()),
        ("ports/1/sm_lid", "0x0".to_owned()),
        ("ports/1/sm_sl", "0".to_owned()),
        ("ports/1/cap_mask", format!("{PORT_CAPABILITIES:#010x}")),
        ("ports/1/rate", rate_text(attach.rate.map(|rate| rate.as_bps()))),
        ("ports/1/link_layer", "Ethernet".to_owned()),
        ("ports/1/pkeys/0", format!("{PKEY:#06x}")),
    ];
    files.extend(link_state(link).map(|(name, contents)| (name, contents.to_owned())));
    let interface = interface_of(attach);
    for (gid, [name, kind, device]) in attach.gids().zip(GID_FILES) {
        let text = Ipv6Addr::from(gid).segments().map(|part| format!("{part:04x}")).join(":");
        files.push((name, text));
        if let Some(interface) = &interface {
            files.push((kind, "RoCE v2".to_owned()));
            files.push((device, interface.clone()));
        }
    }
    files.extend(interface.map(|interface| ("parent", interface)));
    files
}

/// The interface of this machine (of the calling thread's network namespace) that has the device's
/// address, or on which the device is another host of the segment.
#[must_use]
pub fn interface_of(attach: &Attach) -> Option<String> {
    interface_with(attach.ip_addr()).or_else(|| match &attach.line {
        Line::Interface { name, .. } => Some(name.clone()),
        Line::Memif { .. } | Line::Udp { .. } | Line::Tap { .. } => None,
    })
}

/// Index of the interface of [`interface_of`].
#[must_use]
pub fn interface_index(attach: &Attach) -> Option<u32> {
    if_nametoindex(interface_of(attach)?.as_str()).ok()
}

/// The interface of this machine that has `address`.
#[must_use]
pub fn interface_with(address: IpAddr) -> Option<String> {
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let Some(storage) = &interface.address else { return false };
        match address {
            IpAddr::V4(ip) => storage.as_sockaddr_in().is_some_and(|found| {
                // All of 127.0.0.0/8 belongs to the loopback interface.
                found.ip() == ip || (ip.is_loopback() && found.ip().is_loopback())
            }),
            IpAddr::V6(ip) => storage.as_sockaddr_in6().is_some_and(|found| found.ip() == ip),
        }
    };
    getifaddrs().ok()?.find(has).map(|interface| interface.interface_name)
}

/// Creates the files of the device of `attach` below `root`, and replaces those whose contents
/// differ. The counters and the link's state stay, if they exist. Concurrent readers see the old
/// contents or the new.
///
/// # Errors
/// If `root` cannot be created or written.
pub fn create(root: &Path, attach: &Attach) -> io::Result<()> {
    let device = root.join(DEVICES).join(DEVICE);
    fs::create_dir_all(root.join(CLASS))?;
    for dir in ["gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs", "counters", "hw_counters"] {
        fs::create_dir_all(device.join("ports/1").join(dir))?;
    }
    link(&root.join(CLASS).join(DEVICE), &format!("../../{DEVICES}/{DEVICE}"))?;
    link(&device.join("subsystem"), &format!("../../../../{CLASS}"))?;
    let files = files(attach, LinkState::Up);
    let follows_link = |name| link_state(LinkState::Up).iter().any(|(file, _)| *file == name);
    for (name, contents) in &files {
        let path = device.join(name);
        if !(follows_link(*name) && path.exists()) {
            replace(root, &path, contents, READ_ONLY)?;
        }
    }
    // Of an earlier device with more addresses, or whose address an interface had.
    for name in GID_FILES.into_iter().flatten().chain(["parent"]) {
        if !files.iter().any(|(file, _)| *file == name) {
            match fs::remove_file(device.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    for (dir, name, value) in counters(&Counters::default()) {
        let path = device.join("ports/1").join(dir).join(name);
        if !path.exists() {
            replace(root, &path, &value.to_string(), 0o644)?;
        }
    }
    Ok(())
}

/// [`create`] for a device that no process uses yet: the link's state is that of an earlier one.
///
/// # Errors
/// As [`create`].
pub fn renew(root: &Path, attach: &Attach) -> io::Result<()> {
    create(root, attach)?;
    set_link(root, LinkState::Up)
}

/// Makes `path` a link to `target`, unless it is one.
fn link(path: &Path, target: &str) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == Path::new(target)) {
        return Ok(());
    }
    match symlink(target, path) {
        // Another process of this device may have created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match fs::read_link(path).is_ok_and(|found| found == Path::new(target)) {
                true => Ok(()),
                false => Err(error),
            }
        }
        result => result,
    }
}

/// Replaces the contents of `path`, in one step, by a line; nothing if they are the same.
fn replace(root: &Path, path: &Path, contents: &str, mode: u32) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let line = format!("{contents}\n");
    if fs::read(path).is_ok_and(|found| found == line.as_bytes()) {
        return Ok(());
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = root.join(format!(".new-{}-{count}", std::process::id()));
    fs::write(&new, line)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{ENV_INTERFACE, ENV_IP, ENV_MAC, ENV_PORT_RATE_BPS, ENV_SOCKET};

    fn attach(pairs: &[(&'static str, &str)]) -> Attach {
        Attach::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    fn in_lab(ip: &str) -> Attach {
        attach(&[(ENV_SOCKET, "s"), (ENV_IP, ip), (ENV_PORT_RATE_BPS, "10000000000")])
    }

    fn root(name: &str) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("longhaul-sysfs-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    fn read(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join(CLASS).join(DEVICE).join(file)).unwrap()
    }

    #[test]
    fn the_class_has_one_entry_which_leads_to_the_virtual_device() {
        let root = root("layout");
        create(&root, &in_lab("10.77.0.2")).unwrap();
        let names: Vec<_> =
            fs::read_dir(root.join(CLASS)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [DEVICE]);
        let device = fs::canonicalize(root.join(CLASS).join(DEVICE)).unwrap();
        assert_eq!(device, fs::canonicalize(&root).unwrap().join(DEVICES).join(DEVICE));
        assert!(!device.join("device").exists(), "no bus");
        assert!(device.join("subsystem").join(DEVICE).join("node_type").exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn values_are_those_of_the_device() {
        let root = root("values");
        create(&root, &in_lab("10.77.0.2")).unwrap();
        for (file, value) in [
            ("node_guid", "0000:0aff:fe4d:0002\n"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a4d:0002\n"),
            ("ports/1/rate", "10 Gb/sec (1X QDR)\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/lid", "0x2\n"),
            ("ports/1/cap_mask", "0x04010000\n"),
            ("ports/1/hw_counters/np_cnp_sent", "0\n"),
        ] {
            assert_eq!(read(&root, file), value, "{file}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn every_address_has_a_gid_until_the_device_is_created_without_it() {
        let root = root("gids");
        create(&root, &in_lab("10.77.0.2,fd77::a4d:2,fe80::a4d:2")).unwrap();
        assert_eq!(read(&root, "ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
        assert_eq!(read(&root, "ports/1/gids/1"), "fd77:0000:0000:0000:0000:0000:0a4d:0002\n");
        assert_eq!(read(&root, "ports/1/gids/2"), "fe80:0000:0000:0000:0000:0000:0a4d:0002\n");
        create(&root, &in_lab("10.77.0.2")).unwrap();
        assert!(!root.join(CLASS).join(DEVICE).join("ports/1/gids/1").exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn an_address_that_no_interface_has_leaves_the_gid_without_type_and_interface() {
        let root = root("ndevs");
        let loopback = attach(&[(ENV_SOCKET, "s"), (ENV_IP, "127.0.0.5")]);
        create(&root, &loopback).unwrap();
        assert_eq!(read(&root, "ports/1/gid_attrs/ndevs/0"), "lo\n");
        assert_eq!(read(&root, "ports/1/gid_attrs/types/0"), "RoCE v2\n");
        create(&root, &in_lab("192.0.2.200")).unwrap();
        let attributes = root.join(CLASS).join(DEVICE).join("ports/1/gid_attrs");
        assert!(!attributes.join("ndevs/0").exists() && !attributes.join("types/0").exists());
        let own = attach(&[
            (ENV_INTERFACE, "eth7"),
            (ENV_IP, "192.0.2.201"),
            (ENV_MAC, "02:00:00:00:00:01"),
        ]);
        assert_eq!(interface_of(&own).as_deref(), Some("eth7"));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_second_creation_keeps_the_counters_and_the_links_state() {
        let root = root("twice");
        create(&root, &in_lab("10.77.0.2")).unwrap();
        let counter = root.join(CLASS).join(DEVICE).join("ports/1/hw_counters/np_cnp_sent");
        fs::write(&counter, "7\n").unwrap();
        set_link(&root, LinkState::Down).unwrap();
        create(&root, &in_lab("10.77.0.3")).unwrap();
        assert_eq!(fs::read_to_string(&counter).unwrap(), "7\n");
        assert_eq!(read(&root, "ports/1/phys_state"), "3: Disabled\n");
        assert_eq!(read(&root, "ports/1/lid"), "0x3\n");
        let left = fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with(".new")));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_root_that_is_no_directory_is_an_error() {
        assert!(create(Path::new("/dev/null"), &in_lab("10.77.0.2")).is_err());
    }
}
