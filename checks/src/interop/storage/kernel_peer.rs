//! NVMe-oF between our target or host on this machine and the kernel's in a guest, with nvme-cli.

use super::{CHECKSUMS, LIMIT};
use crate::guest::{Guest, GuestConfig};
use crate::interop::segment::address;
use crate::interop::{End, Family, Port, RxePeer};
use crate::{Finished, Program, longhaul};
use serde_json::Value;
use std::time::Duration;

/// Name of our target's subsystem.
pub const OURS: &str = "nqn.2026-01.longhaul:storage";
/// Name of the subsystem of [`KernelPeer::serve`].
pub const KERNELS: &str = "nqn.2026-01.longhaul:kernel";
/// Keep-alive timeout of the kernel's host in seconds: its default.
pub const KEEP_ALIVE_S: u64 = 5;
/// One that no emulated processor exceeds that waits for a real one.
pub const PATIENT_S: u64 = 240;
/// How our device is on the segment.
const PORT: Port = Port::Tap;
/// Size of each disk of [`KernelPeer::serve`] in MiB.
const DISK_MIB: u32 = 32;
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6a1f3c0e-0001-4a00-8000-000000000001";
const HOST_ID: &str = "6a1f3c0e-0001-4a00-8000-000000000001";
/// Complaints of the kernel that no scenario may cause.
const COMPLAINTS: [&str; 4] = ["BUG:", "WARNING:", "Bogus remote invalidation", "invalid id"];

/// A guest with the kernel's NVMe-oF host and target, on a segment with our device.
pub struct KernelPeer {
    peer: RxePeer,
}

/// fio's words for an access to a disk.
#[derive(Clone, Copy, Debug)]
pub struct Verified {
    /// Bytes of an operation.
    pub bytes: u32,
    /// Operations in flight of a job.
    pub depth: u32,
    /// Jobs, each with its own part of the disk.
    pub jobs: u32,
    /// MiB of a job.
    pub mib: u32,
}

impl KernelPeer {
    /// Boots the guest; `name` as for [`RxePeer::boot`].
    ///
    /// # Errors
    /// As [`RxePeer::boot`].
    ///
    /// # Panics
    /// As [`RxePeer::boot`].
    pub fn boot(name: &str) -> Result<Self, String> {
        let peer = RxePeer::boot_extended(name, None, |config| {
            let mut config: GuestConfig = config
                .modules(&CHECKSUMS)
                .modules(&["nvme_rdma", "nvmet_rdma", "brd", "null_blk"])
                .programs(&[("nvme", "nvme-cli"), ("fio", "fio"), ("blkdiscard", "util-linux")])
                // Busybox's has no oflag=dsync.
                .programs(&[("dd", "coreutils")]);
            for (name, text) in [("hostnqn", HOST), ("hostid", HOST_ID)] {
                config.files.push((format!("/etc/nvme/{name}"), format!("{text}\n").into()));
            }
            config
        })?;
        Ok(KernelPeer { peer })
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        self.peer.guest()
    }

    /// Runs a script in the guest, which must succeed. Returns its standard output.
    ///
    /// # Panics
    /// If it fails or takes long.
    pub fn sh(&self, script: &str) -> String {
        self.guest().succeed(&format!("set -e\n{script}"), LIMIT).stdout
    }

    /// Runs nvme-cli in the guest, which must succeed, and parses its JSON.
    ///
    /// # Panics
    /// If it fails, or prints something else.
    pub fn nvme(&self, line: &str) -> Value {
        let done = self.guest().succeed(&format!("nvme {line} -o json"), LIMIT);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// Runs nvme-cli in the guest, which must fail with `status` in its message.
    ///
    /// # Panics
    /// If it does not.
    pub fn nvme_fails(&self, line: &str, status: &str) {
        let done = self.guest().run(&format!("nvme {line}"), LIMIT);
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(!done.status.success() && said.contains(status), "{status}: {done}");
    }

    /// Starts our target with `options`.
    pub fn target(&self, options: &str) -> Program {
        self.ours(&format!("target --json {options}"))
    }

    /// Starts our host, which connects to the kernel's target, with `options`.
    pub fn host(&self, options: &str) -> Program {
        let to = address(End::Rxe, PORT, Family::V4);
        let name =
            if options.contains("--nqn") { String::new() } else { format!("--nqn {KERNELS}") };
        self.ours(&format!("host {to} --json {name} {options}"))
    }

    /// Runs our discovery of the kernel's target.
    ///
    /// # Panics
    /// If it fails.
    pub fn discovered(&self) -> Value {
        let to = address(End::Rxe, PORT, Family::V4);
        json(&self.ours(&format!("discover {to} --json")).succeed(LIMIT))
    }

    fn ours(&self, line: &str) -> Program {
        let program = longhaul();
        let line = format!("{} storage {line}", program.display());
        self.peer.start(&line, PORT, Family::V4)
    }

    /// Options of nvme-cli that name our target.
    pub fn ours_at(&self) -> String {
        format!("-t rdma -s 4420 -a {}", address(End::Ours, PORT, Family::V4))
    }

    /// Connects the kernel to our target with `options` and a keep-alive timeout, and waits for
    /// `disks` disks, which are /dev/nvme0n1 and so on. It reconnects every second for ten minutes.
    ///
    /// # Panics
    /// If they do not come.
    pub fn connect(&self, options: &str, keep_alive_s: u64, disks: u32) {
        let to = self.ours_at();
        self.sh(&format!(
            "nvme connect {to} -n {OURS} -k {keep_alive_s} -c 1 -l 600 {options}
            for disk in $(seq {disks}); do
                until [ -b /dev/nvme0n$disk ]; do sleep 0.05; done
            done"
        ));
    }

    /// Disconnects the kernel from our target; its disks then disappear.
    ///
    /// # Panics
    /// If they do not.
    pub fn disconnect(&self) {
        self.sh(&format!(
            "nvme disconnect -n {OURS}
            while ls /sys/class/nvme | grep -q . || [ -e /dev/nvme0n1 ]; do sleep 0.05; done"
        ));
    }

    /// Waits until the kernel's host is in `state`: live, or connecting.
    ///
    /// # Panics
    /// If it is not for long.
    pub fn wait_for_state(&self, state: &str) {
        self.sh(&format!(
            "until grep -qx {state} /sys/class/nvme/nvme0/state; do sleep 0.05; done"
        ));
    }

    /// Cuts the cable between the guest and the segment, or joins it.
    pub fn plug(&self, is_in: bool) {
        self.peer.cable().plug(is_in);
    }

    /// Serves, by the kernel's target, a disk with blocks of 512 bytes and one with blocks of 4096,
    /// /dev/ram0 and /dev/nullb0. Once per guest.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn serve(&self) {
        let at = address(End::Rxe, PORT, Family::V4);
        self.sh(&format!(
            "rmmod brd
            modprobe brd rd_nr=1 rd_size=$(({DISK_MIB} * 1024))
            rmmod null_blk
            modprobe null_blk nr_devices=0
            cd /sys/kernel/config/nullb
            mkdir nullb0
            echo 1 >nullb0/memory_backed
            echo 4096 >nullb0/blocksize
            echo {DISK_MIB} >nullb0/size
            echo 1 >nullb0/power
            cd /sys/kernel/config/nvmet
            mkdir subsystems/{KERNELS} ports/1
            echo 1 >subsystems/{KERNELS}/attr_allow_any_host
            for disk in 1:/dev/ram0 2:/dev/nullb0; do
                namespace=subsystems/{KERNELS}/namespaces/${{disk%%:*}}
                mkdir $namespace
                echo ${{disk#*:}} >$namespace/device_path
                echo 1 >$namespace/enable
            done
            echo rdma >ports/1/addr_trtype
            echo ipv4 >ports/1/addr_adrfam
            echo {at} >ports/1/addr_traddr
            echo 4420 >ports/1/addr_trsvcid"
        ));
        self.open_port(true);
    }

    /// Adds the subsystem to the kernel's port, or removes it, which ends its connections.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn open_port(&self, is_open: bool) {
        self.sh(&match is_open {
            true => format!(
                "cd /sys/kernel/config/nvmet
                ln -s \"$PWD/subsystems/{KERNELS}\" ports/1/subsystems/"
            ),
            false => format!("rm /sys/kernel/config/nvmet/ports/1/subsystems/{KERNELS}"),
        });
    }

    /// Writes a disk once with fio, in random order, each block with its checksum and position, and
    /// reads and compares everything.
    ///
    /// # Panics
    /// If fio fails or finds a difference.
    pub fn verify(&self, disk: &str, how: Verified) {
        self.sh(&fio(disk, how));
    }

    /// Checks that the kernel has not complained.
    ///
    /// # Panics
    /// If it has.
    pub fn expect_no_complaints(&self) {
        let messages = self.guest().dmesg();
        // An emulated processor that waits for a real one seems locked up.
        let is_complaint = |line: &&str| {
            COMPLAINTS.iter().any(|one| line.contains(one)) && !line.contains("lockup")
        };
        let complaint = messages.lines().find(is_complaint);
        assert_eq!(complaint, None, "{messages}");
    }
}

/// The command of [`KernelPeer::verify`].
#[must_use]
pub fn fio(disk: &str, how: Verified) -> String {
    let Verified { bytes, depth, jobs, mib } = how;
    format!(
        "cd /tmp; fio --name=verified --filename={disk} --direct=1 --rw=randwrite \
         --verify=crc32c --verify_fatal=1 --bs={bytes} --iodepth={depth} --ioengine=libaio \
         --thread --numjobs={jobs} --size={mib}m --offset_increment={mib}m --group_reporting"
    )
}

/// The JSON that one of our programs printed.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"))
}

/// Ends our target as an operator does. Returns its totals.
///
/// # Panics
/// If it does not end.
#[must_use]
pub fn totals(target: Program) -> Value {
    target.signal(libc::SIGINT);
    json(&target.succeed(Duration::from_secs(60)))
}
