//! Disks, files and live migration over RDMA between two guests unaware of Longhaul, over rxe0 on
//! eth0: NVMe-oF and NFS with the kernel's implementations at both ends, and QEMU. The caller
//! provides the path between the guests.
//!
//! NVMe-oF and NFS need no Debian tools: they are configured through /sys, /proc and /dev.

pub mod kernel_peer;
pub mod migration;
pub mod nfs;
pub mod nvme;
pub mod over_distance;

use crate::guest::{Guest, GuestConfig};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// Time limit of quick operations.
const LIMIT: Duration = Duration::from_secs(240);
/// The kernel requests checksums by name and does not load their modules.
const CHECKSUMS: [&str; 4] =
    ["crc32c_generic", "crct10dif_generic", "crc64_rocksoft_generic", "t10_pi"];
/// MiB of a file or disk that fio reads and writes, from the beginning.
const FIO_MIB: u32 = 16;
/// Typical block of databases and file systems, in KiB.
pub const BLOCK_KIB: u32 = 4;

/// Adds the programs and modules of a guest that uses another's disks and files.
///
/// # Panics
/// If fio is not installed.
#[must_use]
pub fn client(config: GuestConfig) -> GuestConfig {
    config
        .modules(&CHECKSUMS)
        .modules(&["nvme_rdma", "rpcrdma", "nfsv4"])
        .programs(&[("fio", "fio")])
}

/// Adds the modules of a guest that serves disks and files.
#[must_use]
pub fn server(config: GuestConfig) -> GuestConfig {
    config.modules(&CHECKSUMS).modules(&["nvmet_rdma", "brd", "nfsd", "rpcrdma"])
}

/// Bytes written to a disk or file and read back unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct Copied {
    /// Size.
    pub mib: u32,
    /// Their SHA-256, in hexadecimal digits.
    pub digest: String,
    /// Time until the other side had them on stable storage.
    pub written_in: Duration,
    /// Time until they were read back.
    pub read_in: Duration,
}

/// Writes random bytes to the beginning of `path` in `guest`, reads them back bypassing all caches,
/// and compares them.
///
/// # Panics
/// If anything fails or differs, or it takes longer than `limit`.
pub fn write_and_compare(guest: &Guest, path: &str, mib: u32, limit: Duration) -> Copied {
    let script = format!(
        "set -e
        now() {{ cut -d' ' -f1 /proc/uptime; }}
        dd if=/dev/urandom of=/tmp/pattern bs=1M count={mib}
        now
        dd if=/tmp/pattern of={path} bs=1M conv=fsync,notrunc
        now
        echo 3 >/proc/sys/vm/drop_caches
        dd if={path} of=/tmp/back bs=1M count={mib} iflag=direct
        now
        cmp /tmp/pattern /tmp/back
        sha256sum </tmp/pattern
        rm /tmp/pattern /tmp/back"
    );
    let done = guest.succeed(&script, limit);
    let lines: Vec<&str> = done.stdout.lines().collect();
    let &[began, written, read, digest] = &lines[..] else { panic!("{done}") };
    let seconds =
        |text: &str| text.parse::<f64>().unwrap_or_else(|e| panic!("{text}: {e}\n{done}"));
    let between = |from, to| Duration::from_secs_f64((seconds(to) - seconds(from)).max(0.0));
    let (written_in, read_in) = (between(began, written), between(written, read));
    Copied { mib, digest: first_word(digest), written_in, read_in }
}

/// SHA-256 of the first `mib` MiB of `path` in `guest`, in the form of [`Copied::digest`], to check
/// a server's copy.
///
/// # Panics
/// If there are fewer, or they cannot be read.
pub fn digest(guest: &Guest, path: &str, mib: u32) -> String {
    // The cached pages of a disk may differ from what the server's kernel wrote, bypassing the
    // cache.
    let script = format!(
        "set -e
        echo 3 >/proc/sys/vm/drop_caches
        dd if={path} of=/tmp/kept bs=1M count={mib}
        [ $(wc -c </tmp/kept) -eq $(({mib} * 1048576)) ]
        sha256sum </tmp/kept
        rm /tmp/kept"
    );
    first_word(&guest.succeed(&script, LIMIT).stdout)
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// fio's random accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Access {
    /// Both.
    pub const BOTH: [Access; 2] = [Access::Read, Access::Write];

    /// fio's name for it; the names in its results are suffixes of this.
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
        }
    }
}

/// Results of fio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Operations per second.
    pub iops: f64,
    /// Mean latency from an operation's submission to its completion.
    pub mean: Duration,
    /// Median latency.
    pub median: Duration,
    /// 99th percentile of the latency.
    pub p99: Duration,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { iops, mean, median, p99 } = self;
        write!(f, "{iops:.0} IOPS, latency {mean:.1?} mean, {median:.1?} median, {p99:.1?} p99")
    }
}

/// Reads or writes random blocks of `kib` KiB in the first 16 MiB of `path`, which must exist,
/// bypassing the page cache, with `depth` operations in flight, for `seconds`.
///
/// # Panics
/// If fio fails, or takes half a minute longer.
pub fn fio(
    guest: &Guest,
    path: &str,
    (access, kib): (Access, u32),
    depth: u32,
    seconds: u32,
) -> Figures {
    let how = access.name();
    let line = fio_line(path, &format!("rand{how}"), (depth, kib), FIO_MIB);
    let line = format!("{line} --time_based --runtime={seconds} --output-format=json");
    let done = guest.succeed(&line, LIMIT + Duration::from_secs(seconds.into()));
    figures(&done.stdout, how).unwrap_or_else(|| panic!("not fio's figures: {done}"))
}

/// Writes each of the first `mib` MiB of `path` once, in random order with 64 operations in flight,
/// each block with its checksum and position; reads them back and compares.
///
/// # Panics
/// If fio fails or finds a difference, or it takes longer than `limit`.
pub fn verify(guest: &Guest, path: &str, mib: u32, limit: Duration) {
    guest.succeed(
        &format!("{} --verify=crc32c", fio_line(path, "randwrite", (64, BLOCK_KIB), mib)),
        limit,
    );
}

fn fio_line(path: &str, how: &str, (depth, kib): (u32, u32), mib: u32) -> String {
    format!(
        "cd /tmp; fio --name=storage --filename={path} --size={mib}m --direct=1 --rw={how} \
         --bs={kib}k --iodepth={depth} --ioengine=libaio --thread"
    )
}

fn figures(printed: &str, how: &str) -> Option<Figures> {
    // Notes may precede it.
    let json: Value = serde_json::from_str(printed.get(printed.find('{')?..)?).ok()?;
    let part = json.pointer("/jobs/0")?.get(how)?;
    let times = part.get("clat_ns")?;
    let nanoseconds = |value: Option<&Value>| Some(Duration::from_nanos(value?.as_f64()? as u64));
    let percentile = |which| nanoseconds(times.get("percentile")?.get(which));
    Some(Figures {
        iops: part.get("iops")?.as_f64()?,
        mean: nanoseconds(times.get("mean"))?,
        median: percentile("50.000000")?,
        p99: percentile("99.000000")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_operation_asked_for() {
        let printed = r#"fio: a note
            {"jobs": [{"read": {"iops": 0.0, "clat_ns": {"mean": 0.0}},
              "write": {"iops": 388.9, "clat_ns": {"mean": 2500.7,
                "percentile": {"50.000000": 2000, "99.000000": 9000}}}}]}"#;
        let expected = Figures {
            iops: 388.9,
            mean: Duration::from_nanos(2500),
            median: Duration::from_nanos(2000),
            p99: Duration::from_nanos(9000),
        };
        assert_eq!(figures(printed, "write"), Some(expected));
        // Without operations there are no percentiles.
        assert_eq!(figures(printed, "read"), None);
        assert_eq!(figures("fio: no such file", "read"), None);
    }
}
