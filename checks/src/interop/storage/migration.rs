//! Live migration by QEMU between two guests: a machine inside one of them, emulated twice over,
//! goes on in the other.

use super::{LIMIT, digest};
use crate::guest::{Guest, GuestConfig};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Where the machine's new place waits for it.
const PORT: u16 = 4455;
const QEMU: &str = "qemu-system-x86_64";
/// Of the emulator's loadable half: found by its place.
const EMULATOR: &str = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so";
const FIRMWARE: [&str; 2] = ["/usr/share/seabios/bios-256k.bin", "/usr/share/qemu/kvmvapic.bin"];
const FLOPPY: &str = "/opt/floppy";
const FLOPPY_BYTES: usize = 1_474_560;
const SECTOR_BYTES: usize = 512;
/// What runs in the machine, at 7C00 in real mode: counts, and writes the count all over the 448
/// KiB from 20000 on.
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
/// Random bytes in the machine's memory, which its program leaves alone; half of what it has.
pub const STILL_MIB: u32 = 32;
const STILL_AT: u32 = 0x0100_0000;
const STILL: &str = "/tmp/still";
const SEEN: &str = "/tmp/seen";
/// For the shell: a command to the machine's monitor, and what the machine has counted to.
const MONITOR: &str = "hmp() { printf '%s\\n' \"$1\" | nc 127.0.0.1 4444 | tr -d '\\r'; }
count() { hmp 'xp /1hx 0x20000' | sed -n 's/^0*20000: //p'; }
";

/// Adds what a guest needs that a machine leaves or comes to.
///
/// # Panics
/// When QEMU is not installed, or not laid out as Debian's is.
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

/// How the machine's memory goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By RDMA WRITE; the new place registers memory as it is asked to, MiB by MiB.
    Rdma,
    /// By RDMA WRITE; the new place registers all memory before.
    RdmaPinned,
    /// Over TCP.
    Tcp,
}

impl Transport {
    /// All.
    pub const ALL: [Transport; 3] = [Transport::Rdma, Transport::RdmaPinned, Transport::Tcp];

    fn scheme(self) -> &'static str {
        if self == Transport::Tcp { "tcp" } else { "rdma" }
    }

    /// For both monitors, before.
    fn capability(self) -> &'static str {
        if self == Transport::RdmaPinned {
            "hmp 'migrate_set_capability rdma-pin-all on'"
        } else {
            ""
        }
    }
}

/// A machine that has moved, as QEMU tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// From the order to the end.
    pub total: Duration,
    /// While the machine stood still.
    pub downtime: Duration,
    /// In KiB.
    pub transferred_kib: u64,
}

/// Starts a machine with 64 MiB, which writes to 448 KiB of them without end, in `source`, and
/// moves it to `target` with this `address`. Then it runs there with the memory that it had.
///
/// # Errors
/// What QEMU says about a migration that has failed or has not ended within `limit`.
///
/// # Panics
/// When the machine does not start, or has moved and does not run, or runs with other bytes in its
/// memory.
pub fn migrate(
    source: &Guest,
    target: &Guest,
    address: Ipv4Addr,
    transport: Transport,
    limit: Duration,
) -> Result<Moved, String> {
    source.succeed(&format!("dd if=/dev/urandom of={STILL} bs=1M count={STILL_MIB}"), LIMIT);
    // Longer than all that is done with it.
    let life = limit + 4 * LIMIT;
    // The new place knows nothing of the bytes that are to come.
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

/// The machine runs in `target`, with the memory that it had in `source`, where it stands still.
fn check(source: &Guest, target: &Guest) {
    // That it counts on shows that it runs.
    let runs = format!(
        "{MONITOR}before=$(count)
        until [ -n \"$before\" ] && [ \"$(count)\" != $before ]; do sleep 0.1; done
        hmp 'info status' | grep 'status: running'"
    );
    target.succeed(&runs, LIMIT);
    // The firmware uses some of these bytes: the old place has what is expected, and not the file.
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

/// A machine, with these further `arguments`.
fn machine(arguments: &str) -> String {
    format!(
        "exec {QEMU} -nodefaults -no-user-config -display none -vga none -machine pc -m 64 -accel \
         tcg -drive file={FLOPPY},format=raw,if=floppy,readonly=on \
         -monitor tcp:127.0.0.1:4444,server=on,wait=off {arguments}"
    )
}

/// What QEMU's "info migrate" says of one that is complete.
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
