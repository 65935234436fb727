//! The kernel's rxe and our device in one guest: the same programs, one after the other.
//!
//! rxe is measured in two ways: over two devices on a veth pair, where frames take the kernel's network stack as they
//! do between machines, and one device that talks to itself, where they do not. Ours is two processes and two devices
//! over shared memory. All compute the ICRC.

use super::{Guest, GuestConfig};
use crate::longhaul;
use crate::perftest::{BANDWIDTH, TYPICAL, figures};
use longhaul_rdma::attach;
use std::time::Duration;

/// For one run of a program beyond the seconds that it counts; a second or two are usual.
const LIMIT: Duration = Duration::from_secs(60);
/// ACK timeout exponent, 1 s: an emulated processor may have to wait long for a real one.
const ACK_TIMEOUT: u8 = 18;
/// Messages of a latency test for each second that it may take.
const LATENCY_MESSAGES: u32 = 1000;
const PORT: u16 = 18515;
const PRELOADED: &str = "/opt/longhaul/liblonghaul_preload.so";

/// QEMU's processor model for the comparison. Emulated carry-less multiplication is slower than a CRC by tables,
/// which is what rxe uses here; without it, so does our device.
pub const CPU: &str = "max,-pclmulqdq";

/// Both ends of a measurement and what carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Kernel rxe, two devices joined by a veth pair.
    RxeVeth,
    /// Kernel rxe, one device that talks to itself.
    RxeLooped,
    /// Our device in two processes, back to back over memif.
    Longhaul,
}

impl Stack {
    /// All, in the order of a table.
    pub const ALL: [Stack; 3] = [Stack::RxeVeth, Stack::RxeLooped, Stack::Longhaul];

    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Stack::RxeVeth => "rxe, veth pair",
            Stack::RxeLooped => "rxe, looped",
            Stack::Longhaul => "longhaul, memif",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Goodput of WRITEs of this many bytes, in Gbit/s.
    Write(u32),
    /// Half a round trip of a 2-byte SEND, median, in µs.
    SendLatency,
}

impl Figure {
    /// Those of the comparison.
    pub const ALL: [Figure; 3] = [Figure::Write(4096), Figure::Write(65536), Figure::SendLatency];

    /// For a table.
    pub fn name(self) -> String {
        match self {
            Figure::Write(bytes) => format!("WRITE {} KiB", bytes / 1024),
            Figure::SendLatency => "SEND 2 B, half a round trip".to_owned(),
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Write(_) => "Gbit/s",
            Figure::SendLatency => "µs",
        }
    }

    /// How many times as good as `theirs` `ours` is.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Figure::Write(_) => ours / theirs,
            Figure::SendLatency => theirs / ours,
        }
    }

    /// The program, which counts for about `seconds`.
    fn command(self, seconds: u32) -> String {
        match self {
            // The first and last second do not count.
            Figure::Write(bytes) => {
                format!("ib_write_bw -F --report_gbits -m 4096 -s {bytes} -D {} -f 1", seconds + 2)
            }
            Figure::SendLatency => format!("ib_send_lat -F -m 4096 -s 2 -n {}", LATENCY_MESSAGES * seconds),
        }
    }
}

/// A guest with both.
///
/// # Panics
/// When a program is missing, with its package's name.
pub fn config() -> GuestConfig {
    let mut config = GuestConfig::new("against rxe").rxe().modules(&["dummy", "veth"]).programs(&[
        ("ib_write_bw", "perftest"),
        ("ib_send_lat", "perftest"),
        ("rping", "rdmacm-utils"),
    ]);
    CPU.clone_into(&mut config.cpu);
    let built = longhaul();
    config.moved.push((PRELOADED.to_owned(), built.with_file_name("liblonghaul_preload.so")));
    config.moved.push(("/opt/longhaul/longhaul".to_owned(), built));
    config
}

/// Makes the rxe devices: once for each guest.
///
/// # Panics
/// When one cannot be made.
pub fn prepare(guest: &Guest) {
    guest.succeed(include_str!("against_rxe.sh"), LIMIT);
}

/// Measures one figure, in its unit.
///
/// # Panics
/// When a program fails, with the kernel's messages.
pub fn measure(guest: &Guest, stack: Stack, figure: Figure, seconds: u32) -> f64 {
    let command = format!("{} -u {ACK_TIMEOUT} -p {PORT}", figure.command(seconds));
    // The IPv4 address of an rxe device is its GID 1.
    let (server, client) = match stack {
        Stack::RxeVeth => (format!("{command} -d rxe2 -x 1"), format!("{command} -d rxe1 -x 1")),
        Stack::RxeLooped => (format!("{command} -d rxe0 -x 1"), format!("{command} -d rxe0 -x 1")),
        Stack::Longhaul => {
            (attached(&command, "master", "10.77.0.2"), attached(&command, "slave", "10.77.0.1"))
        }
    };
    let limit = LIMIT + Duration::from_secs(seconds.into());
    let (_, client) = guest.pair(&server, &format!("{client} 127.0.0.1"), PORT, limit);
    let column = if figure == Figure::SendLatency { TYPICAL } else { BANDWIDTH };
    figures(&client.stdout)[column]
}

/// `command` on our device.
fn attached(command: &str, role: &str, ip: &str) -> String {
    let (socket, roles, address) = (attach::ENV_SOCKET, attach::ENV_ROLE, attach::ENV_IP);
    // Not exported: the shell itself is to run without.
    format!("{socket}=/tmp/memif {roles}={role} {address}={ip} LD_PRELOAD={PRELOADED} {command} -d longhaul0")
}
