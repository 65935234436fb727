//! Compares the kernel's rxe with our device in one guest: the same programs, one after the other.
//!
//! Equal media are compared. Over a veth pair frames pass the kernel between two interfaces, as
//! between machines: rxe on its ends, our device through packet sockets, and our device through UDP
//! sockets, whose runs of packets the kernel forwards unsegmented (GSO), unlike rxe's. Without an
//! interface, rxe talks to itself, and our device is two processes over shared memory. All compute
//! the ICRC.

use super::{Guest, GuestConfig};
use crate::longhaul;
use crate::perftest::{BANDWIDTH, TYPICAL, figures};
use longhaul_rdma::attach;
use std::time::Duration;

/// Time limit of a program's run, beyond its measured seconds; a second or two are usual.
const LIMIT: Duration = Duration::from_secs(240);
/// ACK timeout exponent, 1 s: an emulated processor may have to wait long for a real one.
const ACK_TIMEOUT: u8 = 18;
/// Messages of a latency test for each second that it may take.
const LATENCY_MESSAGES: u32 = 1000;
const PORT: u16 = 18515;
const PRELOADED: &str = "/opt/longhaul/liblonghaul_preload.so";

/// QEMU's processor model for the comparison. Emulated carry-less multiplication is slower than a
/// table-driven CRC, which rxe uses here; without it our device uses one too.
pub const CPU: &str = "max,-pclmulqdq";

/// Both ends of a measurement and their medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// Kernel rxe, two devices connected by a veth pair.
    RxeVeth,
    /// Our device in two processes, through packet sockets on the ends of a veth pair.
    LonghaulVeth,
    /// Our device in two processes, through UDP sockets in network namespaces connected by a veth
    /// pair.
    LonghaulUdp,
    /// Kernel rxe, one device that talks to itself.
    RxeLooped,
    /// Our device in two processes, back to back over memif.
    LonghaulMemif,
}

impl Stack {
    /// All, in table order.
    pub const ALL: [Stack; 5] = [
        Stack::RxeVeth,
        Stack::LonghaulVeth,
        Stack::LonghaulUdp,
        Stack::RxeLooped,
        Stack::LonghaulMemif,
    ];

    /// Name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Stack::RxeVeth => "rxe, veth pair",
            Stack::LonghaulVeth => "longhaul, veth pair",
            Stack::LonghaulUdp => "longhaul, UDP over a veth pair",
            Stack::RxeLooped => "rxe, looped",
            Stack::LonghaulMemif => "longhaul, memif",
        }
    }

    /// The stack to compare with: rxe over the same kind of medium. `None` for rxe.
    pub fn peer(self) -> Option<Stack> {
        match self {
            Stack::LonghaulVeth | Stack::LonghaulUdp => Some(Stack::RxeVeth),
            Stack::LonghaulMemif => Some(Stack::RxeLooped),
            Stack::RxeVeth | Stack::RxeLooped => None,
        }
    }
}

/// The measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Goodput of WRITEs of this many bytes, in Gbit/s.
    Write(u32),
    /// Half a round trip of a 2-byte SEND, median, in µs.
    SendLatency,
}

impl Figure {
    /// Figures of the comparison.
    pub const ALL: [Figure; 3] = [Figure::Write(4096), Figure::Write(65536), Figure::SendLatency];

    /// Name in a table.
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

    /// How many times better `ours` is than `theirs`.
    pub fn ratio(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Figure::Write(_) => ours / theirs,
            Figure::SendLatency => theirs / ours,
        }
    }

    /// The program, which measures `extent`.
    fn command(self, extent: Extent) -> String {
        let program = match self {
            Figure::Write(bytes) => format!("ib_write_bw -F --report_gbits -m 4096 -s {bytes}"),
            Figure::SendLatency => "ib_send_lat -F -m 4096 -s 2".to_owned(),
        };
        match (self, extent) {
            // The first and last second do not count.
            (Figure::Write(_), Extent::Seconds(seconds)) => {
                format!("{program} -D {} -f 1", seconds + 2)
            }
            (Figure::SendLatency, Extent::Seconds(seconds)) => {
                format!("{program} -n {}", LATENCY_MESSAGES * seconds)
            }
            (_, Extent::Messages(messages)) => format!("{program} -n {messages}"),
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// About this long. A guest whose emulated processor is kept waiting may complete nothing
    /// meanwhile.
    Seconds(u32),
    /// This many messages, however long they take.
    Messages(u32),
}

impl Extent {
    fn seconds(self) -> u32 {
        match self {
            Extent::Seconds(seconds) => seconds,
            Extent::Messages(_) => 0,
        }
    }
}

/// Configuration of a guest with both.
///
/// # Panics
/// If a program is missing, with its package's name.
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

/// Creates the rxe devices, once per guest.
///
/// # Panics
/// If one cannot be created.
pub fn prepare(guest: &Guest) {
    guest.succeed(include_str!("against_rxe.sh"), LIMIT);
}

/// Measures one figure, in its unit.
///
/// # Panics
/// If a program fails, with the kernel's messages.
pub fn measure(guest: &Guest, stack: Stack, figure: Figure, extent: Extent) -> f64 {
    let command = format!("{} -u {ACK_TIMEOUT} -p {PORT}", figure.command(extent));
    // The IPv4 address of an rxe device is its GID 1.
    let rxe = |device: u8| format!("{command} -d rxe{device} -x 1");
    let limit = LIMIT + Duration::from_secs(extent.seconds().into());
    let local = |server: &str, client: &str| {
        guest.pair(server, &format!("{client} 127.0.0.1"), PORT, limit).1
    };
    let client = match stack {
        Stack::RxeVeth => local(&rxe(2), &rxe(1)),
        Stack::RxeLooped => local(&rxe(0), &rxe(0)),
        Stack::LonghaulMemif => {
            let end = |role, ip| {
                ours(
                    &command,
                    &[
                        (attach::ENV_SOCKET, "/tmp/memif"),
                        (attach::ENV_ROLE, role),
                        (attach::ENV_IP, ip),
                    ],
                )
            };
            local(&end("master", "10.77.0.2"), &end("slave", "10.77.0.1"))
        }
        Stack::LonghaulVeth => {
            let end = |interface, ip, mac| {
                let place = [
                    (attach::ENV_INTERFACE, interface),
                    (attach::ENV_IP, ip),
                    (attach::ENV_MAC, mac),
                ];
                ours(&command, &[&place[..], &[(attach::ENV_PREFIX_LEN, "24")]].concat())
            };
            local(
                &end("veth4", "10.9.2.2", "02:00:0a:09:02:02"),
                &end("veth3", "10.9.2.1", "02:00:0a:09:02:01"),
            )
        }
        Stack::LonghaulUdp => {
            let end = |namespace: &str, ip| {
                let place = [(attach::ENV_UDP_PORT, "4791"), (attach::ENV_IP, ip)];
                format!("ip netns exec {namespace} env {}", ours(&command, &place))
            };
            let server = guest.spawn(&end("far", "10.9.3.2"), limit);
            // State 0A: listening.
            let listens = format!(
                "ip netns exec far grep -qh ':{PORT:04X} [0-9A-F:]* 0A' /proc/net/tcp \
                 /proc/net/tcp6"
            );
            let client = format!(
                "until {listens}; do sleep 0.05; done; {} 10.9.3.2",
                end("near", "10.9.3.1")
            );
            let client = guest.succeed(&client, limit);
            server.succeed();
            client
        }
    };
    let column = if figure == Figure::SendLatency { TYPICAL } else { BANDWIDTH };
    figures(&client.stdout)[column]
}

/// `command` on our device at `place`. The variables are not exported: the shell itself must not
/// use the device.
fn ours(command: &str, place: &[(&str, &str)]) -> String {
    let place: Vec<String> = place.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{} LD_PRELOAD={PRELOADED} {command} -d longhaul0", place.join(" "))
}
