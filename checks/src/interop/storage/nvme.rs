//! NVMe-oF over RDMA: a disk in the memory of one guest, used by the other.

use super::LIMIT;
use crate::guest::Guest;
use std::net::Ipv4Addr;
use std::time::Duration;

/// IANA port of NVMe over RDMA.
pub const PORT: u16 = 4420;
/// Device that stores the target's blocks.
pub const BACKING: &str = "/dev/ram0";
const SUBSYSTEM: &str = "nqn.2026-01.longhaul:checks";
/// Size of the disk; its memory is allocated as blocks are written.
const DISK_KIB: u32 = 64 * 1024;

/// Serves a disk of 64 MiB to everybody at `address`, one of `guest`'s own. Once per guest.
///
/// # Panics
/// If the kernel refuses, with its messages.
pub fn serve(guest: &Guest, address: Ipv4Addr) {
    let script = format!(
        "set -e
        rmmod brd
        modprobe brd rd_nr=1 rd_size={DISK_KIB}
        cd /sys/kernel/config/nvmet
        mkdir subsystems/{SUBSYSTEM} subsystems/{SUBSYSTEM}/namespaces/1 ports/1
        echo 1 >subsystems/{SUBSYSTEM}/attr_allow_any_host
        echo {BACKING} >subsystems/{SUBSYSTEM}/namespaces/1/device_path
        echo 1 >subsystems/{SUBSYSTEM}/namespaces/1/enable
        echo rdma >ports/1/addr_trtype
        echo ipv4 >ports/1/addr_adrfam
        echo {address} >ports/1/addr_traddr
        echo {PORT} >ports/1/addr_trsvcid
        ln -s \"$PWD/subsystems/{SUBSYSTEM}\" ports/1/subsystems/"
    );
    guest.succeed(&script, LIMIT);
}

/// A disk of the other guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its block device.
    pub path: String,
    controller: String,
}

/// Connects to the disk at `target`, with an I/O queue per processor. One at a time per guest.
///
/// # Panics
/// If it does not come up, with the kernel's messages.
pub fn connect(guest: &Guest, target: Ipv4Addr) -> Disk {
    // The device that was opened for the connection returns its result. The disk appears later.
    let script = format!(
        "set -e
        exec 3<>/dev/nvme-fabrics
        echo transport=rdma,traddr={target},trsvcid={PORT},nqn={SUBSYSTEM} >&3
        instance=$(sed 's/instance=\\([0-9]*\\),.*/\\1/' <&3)
        grep -q rdma /sys/class/nvme/nvme$instance/transport
        echo nvme$instance
        until ls /sys/block | grep '^nvme[0-9]*n1$'; do sleep 0.05; done"
    );
    let done = guest.succeed(&script, LIMIT);
    let lines: Vec<&str> = done.stdout.lines().collect();
    let &[controller, disk] = &lines[..] else { panic!("not one disk: {done}") };
    Disk { path: format!("/dev/{disk}"), controller: controller.to_owned() }
}

/// Disconnects; the disk then disappears.
///
/// # Panics
/// If it does not end within `limit`: without an answer the kernel may wait long.
pub fn disconnect(guest: &Guest, disk: Disk, limit: Duration) {
    let Disk { path, controller } = disk;
    let script = format!(
        "echo 1 >/sys/class/nvme/{controller}/delete_controller
        while [ -e {path} ]; do sleep 0.05; done"
    );
    guest.succeed(&script, limit);
}
