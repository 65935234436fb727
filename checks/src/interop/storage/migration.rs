//! Live migration by QEMU between two guests: a machine emulated inside one of them continues in
//! the other.

use super::{LIMIT, digest};
use crate::guest::{Guest, GuestConfig};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Port on which the destination waits.
const PORT: u16 = 4455;
const QEMU: &str = "qemu-system-x86_64";
/// Loadable half of the emulator, which QEMU finds by its path.
const EMULATOR: &str = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so";
const FIRMWARE: [&str; 2] = ["/usr/share/seabios/bios-256k.bin", "/usr/share/qemu/kvmvapic.bin"];
const FLOPPY: &str = "/opt/floppy";
const FLOPPY_BYTES: usize = 1_474_560;
const SECTOR_BYTES: usize = 512;
/// Program of the machine, at 7C00 in real mode: counts, and fills the 448 KiB from 20000 on with
/// the count.
const PROGRAM: [u8; 28] = [
    0xfa, // cli
    0x31, 0xdb, // xor bx, bx
    0xba, 0x00, 0x20, // 7C03: mov dx, 2000
    0x8e, 0xc2, // 7C06: mov es, dx
    0x31, 0xff, // xor di, di
    0xb9, 0x00, 0x80, // mov cx, 8000
    0x89, 0xd8, // mov ax, bx
    0xf3, 0xab, // rep stosw
    0x80, 0xc6, 0x10, // add dh, 10
    0x80, 0xfe, 0x90, // cmp dh, 90
    0x75, 0xed, // jne 7C06
    0x43, // inc bx
    0xeb, 0xe7, // jmp 7C03
];
/// Random bytes in the machine's memory, which its program does not change; half of the memory.
pub const STILL_MIB: u32 = 32;
const STILL_AT: u32 = 0x0100_0000;
const STILL: &str = "/tmp/still";
const SEEN: &str = "/tmp/seen";
/// Shell functions: a command to the machine's monitor, and the machine's current count.
const MONITOR: &str = "hmp() { printf '%s\\n' \"$1\" | nc 127.0.0.1 4444 | tr -d '\\r'; }
count() { hmp 'xp /1hx 0x20000' | sed -n 's/^0*20000: //p'; }
";

/// Adds the programs and modules of a migration's source or destination.
///
/// # Panics
/// If QEMU is not installed, or its files are not where Debian installs them.
#[must_use]
pub fn hypervisor(mut config: GuestConfig) -> GuestConfig {
    config = config.programs(&[(QEMU, "qemu-system-x86")]);
    config.programs.push(EMULATOR.into());
    for path in FIRMWARE {
        config
            .files
            .push((path.to_owned(), std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"))));
    }
    let mut floppy = PROGRAM.to_vec();
    floppy.resize(SECTOR_BYTES - 2, 0);
    floppy.extend([0x55, 0xaa]);
    floppy.resize(FLOPPY_BYTES, 0);
    config.files.push((FLOPPY.to_owned(), floppy));
    config
}

/// Transport of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RDMA WRITE; the destination registers memory on demand, MiB by MiB.
    Rdma,
    /// RDMA WRITE; the destination registers all memory in advance.
    RdmaPinned,
    /// Over TCP.
    Tcp,
}

impl Transport {
    /// All transports.
    pub const ALL: [Transport; 3] = [Transport::Rdma, Transport::RdmaPinned, Transport::Tcp];

    fn scheme(self) -> &'static str {
        if self == Transport::Tcp { "tcp" } else { "rdma" }
    }

    /// Command for both monitors before the migration.
    fn capability(self) -> &'static str {
        if self == Transport::RdmaPinned {
            "hmp 'migrate_set_capability rdma-pin-all on'"
        } else {
            ""
        }
    }
}

/// QEMU's figures of a completed migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Total time.
    pub total: Duration,
    /// Time during which the machine was stopped.
    pub downtime: Duration,
    /// Bytes transferred, in KiB.
    pub transferred_kib: u64,
}

/// Starts a machine with 64 MiB, which writes to 448 KiB of them continuously, in `source`, and
/// migrates it to `target` at `address`. Checks that it runs there with the same memory.
///
/// # Errors
/// QEMU's report of a migration that failed or did not end within `limit`.
///
/// # Panics
/// If the machine does not start, or does not run after its migration, or its memory differs.
pub fn migrate(
    source: &Guest,
    target: &Guest,
    address: Ipv4Addr,
    transport: Transport,
    limit: Duration,
) -> Result<Moved, String> {
    source.succeed(&format!("dd if=/dev/urandom of={STILL} bs=1M count={STILL_MIB}"), LIMIT);
    // Longer than all operations on it.
    let life = limit + 4 * LIMIT;
    // The destination does not have the bytes before the migration.
    let still = format!("-device loader,file={STILL},addr={STILL_AT},force-raw=on");
    let old = source.spawn(&machine(&still), life);
    let new = target.spawn(&machine("-incoming defer"), life);
    let (scheme, capability) = (transport.scheme(), transport.capability());
    let counts =
        format!("{MONITOR}until [ -n \"$(count)\" ] && [ $(count) != 0x0000 ]; do sleep 0.1; done");
    source.succeed(&counts, LIMIT);
    let waits = format!(
        "{MONITOR}until hmp 'info status' | grep inmigrate; do sleep 0.1; done
        {capability}
        hmp 'migrate_incoming {scheme}:{address}:{PORT}'"
    );
    target.succeed(&waits, LIMIT);
    let seconds = limit.as_secs();
    let goes = format!(
        "{MONITOR}{capability} >/dev/null
        end=$(($(cut -d. -f1 /proc/uptime) + {seconds}))
        hmp 'migrate -d {scheme}:{address}:{PORT}' >/dev/null
        until hmp 'info migrate' | grep -qE '^Migration status: (completed|failed)' ||
            [ $(cut -d. -f1 /proc/uptime) -ge $end ]; do sleep 0.2; done
        hmp 'info migrate'"
    );
    let report = source.run(&goes, limit + LIMIT).stdout;
    let outcome = moved(&report);
    if outcome.is_some() {
        check(source, target);
    }
    let [old, new] = [old, new].map(crate::guest::Job::finish_now);
    outcome.ok_or_else(|| format!("{report}=== where it was\n{old}\n=== where it was to go\n{new}"))
}

/// Checks that the machine runs in `target`, with the memory that it had in `source`, where it is
/// stopped.
fn check(source: &Guest, target: &Guest) {
    // A count that increases shows that it runs.
    let runs = format!(
        "{MONITOR}before=$(count)
        until [ -n \"$before\" ] && [ \"$(count)\" != $before ]; do sleep 0.1; done
        hmp 'info status' | grep 'status: running'"
    );
    target.succeed(&runs, LIMIT);
    // The firmware uses some of these bytes, so the reference is the source's memory, not the file.
    let [expected, arrived] = [source, target].map(|guest| {
        let save = format!(
            "{MONITOR}rm -f {SEEN}; hmp 'pmemsave {STILL_AT} {} \"{SEEN}\"'",
            STILL_MIB << 20
        );
        guest.succeed(&save, LIMIT);
        digest(guest, SEEN, STILL_MIB)
    });
    assert_eq!(arrived, expected, "the machine's memory has changed");
}

/// Starts a machine with these further `arguments`.
fn machine(arguments: &str) -> String {
    format!(
        "exec {QEMU} -nodefaults -no-user-config -display none -vga none -machine pc -m 64 -accel \
         tcg -drive file={FLOPPY},format=raw,if=floppy,readonly=on \
         -monitor tcp:127.0.0.1:4444,server=on,wait=off {arguments}"
    )
}

/// Parses QEMU's "info migrate" of a completed migration.
fn moved(report: &str) -> Option<Moved> {
    let value =
        |name: &str| report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let number = |name: &str| value(name)?.split(' ').next()?.parse::<u64>().ok();
    (value("Migration status")? == "completed").then_some(())?;
    Some(Moved {
        total: Duration::from_millis(number("total time")?),
        downtime: Duration::from_millis(number("downtime")?),
        transferred_kib: number("transferred ram")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_migration_has_moved_the_machine() {
        let report = "(qemu) info migrate\nMigration status: completed\ntotal time: 1659 ms\n\
                      downtime: 111 ms\nsetup: 60 ms\ntransferred ram: 35672 kbytes\n";
        let [total, downtime] = [1659, 111].map(Duration::from_millis);
        assert_eq!(moved(report), Some(Moved { total, downtime, transferred_kib: 35672 }));
        assert_eq!(moved(&report.replace("completed", "active")), None);
        assert_eq!(moved(""), None);
    }
}
