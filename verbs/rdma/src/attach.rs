//! The environment contract: how a process learns which port of which lab host is its own.
//!
//! `longhaul exec` sets these variables and preloads the verbs library; a test that joins two processes
//! back to back sets them itself. Nothing else configures the device. A process whose environment has neither
//! [`ENV_SOCKET`] nor [`ENV_UDP_PORT`] has no Longhaul device.
//!
//! | variable | meaning | without it |
//! |---|---|---|
//! | [`ENV_SOCKET`] | path of the memif control socket | no port by shared memory |
//! | [`ENV_UDP_PORT`] | UDP port of both ends, 4791 for RoCEv2: the port is a socket of this machine | no port by UDP |
//! | [`ENV_ID`] | memif interface id, 0 to 2^32 - 1 | 0 |
//! | [`ENV_ROLE`] | `master` or `slave`: two processes back to back without a lab | slave of a lab |
//! | [`ENV_IP`] | the port's IP address: IPv4 in a lab; by UDP any address of this machine | required |
//! | [`ENV_MAC`] | the port's MAC address | 02:00 and the last four bytes of the IP address |
//! | [`ENV_PORT_RATE_BPS`] | rate of the port in bit/s, counted on the wire | unpaced |
//! | [`ENV_PATH_MTU`] | largest path MTU: 256, 512, 1024, 2048 or 4096 bytes | 4096 |
//! | [`ENV_SLOT`] | 0 to [`SLOT_MAX`]: which part of the QPN and communication-id space is this process's | 0 |
//! | [`ENV_HOST`] | name of the lab host, for messages | the IP address |
//! | [`ENV_READ_DEPTH`] | outstanding READs per queue pair, 1 to 128 | 16 |
//! | [`ENV_CM_ACK_TIMEOUT`] | ACK timeout exponent that RDMA-CM connections use, 1 to 31 | 17 (0.54 s), as kernels do |
//! | [`ENV_DCQCN`] | `on` or `off`: congestion control | on |
//! | [`ENV_COUNTERS`] | directory for counter files | none |

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use longhaul_eswitch::{FUNCTIONS_MAX, QPN_SLOT_SHIFT};
use longhaul_units::BitRate;
use longhaul_wire::MacAddr;
use longhaul_wire::mad::gid_of_ip;

/// Path of the memif control socket.
pub const ENV_SOCKET: &str = "LONGHAUL_MEMIF_SOCKET";
/// UDP port, for RoCEv2 over a socket of this machine.
pub const ENV_UDP_PORT: &str = "LONGHAUL_UDP_PORT";
/// Memif interface id.
pub const ENV_ID: &str = "LONGHAUL_MEMIF_ID";
/// `master` or `slave`, for two processes without a lab.
pub const ENV_ROLE: &str = "LONGHAUL_MEMIF_ROLE";
/// IP address of the port.
pub const ENV_IP: &str = "LONGHAUL_IP";
/// MAC address of the port.
pub const ENV_MAC: &str = "LONGHAUL_MAC";
/// Rate of the port in bit/s.
pub const ENV_PORT_RATE_BPS: &str = "LONGHAUL_PORT_RATE_BPS";
/// Largest path MTU in bytes.
pub const ENV_PATH_MTU: &str = "LONGHAUL_PATH_MTU";
/// Which part of the number spaces belongs to this process.
pub const ENV_SLOT: &str = "LONGHAUL_SLOT";
/// Name of the lab host.
pub const ENV_HOST: &str = "LONGHAUL_HOST";
/// Outstanding READs per queue pair.
pub const ENV_READ_DEPTH: &str = "LONGHAUL_READ_DEPTH";
/// ACK timeout exponent of RDMA-CM connections.
pub const ENV_CM_ACK_TIMEOUT: &str = "LONGHAUL_CM_ACK_TIMEOUT";
/// Congestion control, on or off.
pub const ENV_DCQCN: &str = "LONGHAUL_DCQCN";
/// Directory for counter files.
pub const ENV_COUNTERS: &str = "LONGHAUL_COUNTERS";

/// What says which device a process has. The other variables are the user's, to change how it behaves.
pub const IDENTITY: [&str; 10] = [
    ENV_SOCKET,
    ENV_UDP_PORT,
    ENV_ID,
    ENV_ROLE,
    ENV_IP,
    ENV_MAC,
    ENV_PORT_RATE_BPS,
    ENV_SLOT,
    ENV_HOST,
    ENV_COUNTERS,
];

/// Largest slot that a host's embedded switch knows.
pub const SLOT_MAX: u32 = FUNCTIONS_MAX as u32 - 1;
/// The first QPN of slot 0 that a program may get: 0 and 1 are management QPs, and a few more stay free.
const QPN_FIRST: u32 = 0x11;

/// Who makes the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens on the socket, as a lab does.
    Master,
    /// Connects and brings the memory.
    Slave,
}

/// What the device's port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Shared memory, with a lab or one other process.
    Memif {
        /// Path of the control socket.
        socket: PathBuf,
        /// Interface id.
        id: u32,
        /// Who makes the shared memory.
        role: Role,
        /// True when no lab stands between this process and its peer.
        back_to_back: bool,
    },
    /// A UDP socket of this machine, with any number of peers on others.
    Udp {
        /// Port of both ends.
        port: u16,
    },
}

impl Line {
    fn read(variables: &Variables<'_>) -> Result<Self, AttachError> {
        let id = variables.number(ENV_ID, "a number below 2^32 is needed", |n| u32::try_from(n).is_ok())?;
        let port = variables.number(ENV_UDP_PORT, "a port from 1 to 65535 is needed", |n| {
            (1..=u64::from(u16::MAX)).contains(&n)
        })?;
        let role = variables.parsed(ENV_ROLE, "`master` or `slave` is needed", |t| match t {
            "master" => Some(Role::Master),
            "slave" => Some(Role::Slave),
            _ => None,
        })?;
        match (variables.text(ENV_SOCKET), port) {
            (None, None) => Err(AttachError::NoDevice),
            (Some(_), Some(port)) => Err(AttachError::Invalid {
                variable: ENV_UDP_PORT,
                value: port.to_string(),
                expected: "a port by shared memory is asked for as well; only one can be had",
            }),
            (Some(socket), None) => Ok(Line::Memif {
                socket: PathBuf::from(socket),
                id: id.unwrap_or(0) as u32,
                role: role.unwrap_or(Role::Slave),
                back_to_back: role.is_some(),
            }),
            (None, Some(port)) => Ok(Line::Udp { port: port as u16 }),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Memif { socket, .. } => write!(f, "{}", socket.display()),
            Line::Udp { port } => write!(f, "UDP port {port}"),
        }
    }
}

/// A parsed environment: everything a process needs to attach its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// What the port is.
    pub line: Line,
    /// Address of the port.
    pub ip: IpAddr,
    /// MAC address of the port.
    pub mac: MacAddr,
    /// Rate of the port; `None`: as fast as the peer takes it.
    pub rate: Option<BitRate>,
    /// Largest path MTU in bytes: a power of two, 256 to 4096.
    pub path_mtu: u16,
    /// 0 to [`SLOT_MAX`].
    pub slot: u32,
    /// Name of the host, for messages.
    pub host: String,
    /// Outstanding READs per queue pair, 1 to 128.
    pub read_depth: u8,
    /// ACK timeout exponent of RDMA-CM connections, 1 to 31.
    pub cm_ack_timeout: u8,
    /// Congestion control.
    pub dcqcn: bool,
    /// Where counters are kept as files.
    pub counters: Option<PathBuf>,
}

/// Why an environment is no [`Attach`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Neither [`ENV_SOCKET`] nor [`ENV_UDP_PORT`] is set: this process has no device.
    #[error("neither {ENV_SOCKET} nor {ENV_UDP_PORT} is set; start the program with `longhaul exec`")]
    NoDevice,
    /// A required variable is missing.
    #[error("{variable} is not set; start the program with `longhaul exec`")]
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// A variable has a value that makes no sense.
    #[error("{variable}={value}: {expected}")]
    Invalid {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl Attach {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`AttachError::NoDevice`] without [`ENV_SOCKET`] and [`ENV_UDP_PORT`]; the others name the variable to mend.
    pub fn from_env() -> Result<Self, AttachError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads an environment through `lookup`.
    ///
    /// # Errors
    /// As [`Attach::from_env`].
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self, AttachError> {
        let variables = Variables(&lookup);
        let line = Line::read(&variables)?;
        let ip_text = variables.text(ENV_IP).ok_or(AttachError::Missing { variable: ENV_IP })?;
        let ip = parse(ENV_IP, &ip_text, "an IP address is needed", |t| t.parse::<IpAddr>().ok())?;
        let mac_like = "a MAC address such as 02:00:0a:4d:00:01 is needed";
        let mac = variables.parsed(ENV_MAC, mac_like, parse_mac)?;
        let rate =
            variables.number(ENV_PORT_RATE_BPS, "a number of bit/s above zero is needed", |n| n > 0)?;
        let path_mtu = variables.number(ENV_PATH_MTU, "256, 512, 1024, 2048 or 4096 is needed", |n| {
            n.is_power_of_two() && (256..=4096).contains(&n)
        })?;
        let slot =
            variables.number(ENV_SLOT, "a number from 0 to 62 is needed", |n| n <= u64::from(SLOT_MAX))?;
        let read_depth = variables
            .number(ENV_READ_DEPTH, "a number from 1 to 128 is needed", |n| (1..=128).contains(&n))?;
        let timeout = variables
            .number(ENV_CM_ACK_TIMEOUT, "a number from 1 to 31 is needed", |n| (1..=31).contains(&n))?;
        let dcqcn = variables.parsed(ENV_DCQCN, "`on` or `off` is needed", |t| match t {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        })?;
        Ok(Attach {
            line,
            ip: ip.to_canonical(),
            mac: mac.unwrap_or_else(|| mac_of(ip)),
            rate: rate.and_then(BitRate::from_bps),
            path_mtu: path_mtu.unwrap_or(4096) as u16,
            slot: slot.unwrap_or(0) as u32,
            host: variables.text(ENV_HOST).unwrap_or(ip_text),
            read_depth: read_depth.unwrap_or(16) as u8,
            cm_ack_timeout: timeout.unwrap_or(17) as u8,
            dcqcn: dcqcn.unwrap_or(true),
            counters: variables.text(ENV_COUNTERS).map(PathBuf::from),
        })
    }

    /// The first QPN that this process hands out.
    #[must_use]
    pub fn qpn_first(&self) -> u32 {
        (self.slot << QPN_SLOT_SHIFT).max(QPN_FIRST)
    }

    /// How many QPNs belong to this process.
    #[must_use]
    pub fn qpn_count(&self) -> u32 {
        ((self.slot + 1) << QPN_SLOT_SHIFT) - self.qpn_first()
    }

    /// The port's address as the device crates want it.
    #[must_use]
    pub fn ip_addr(&self) -> IpAddr {
        self.ip
    }

    /// True when a lab is to be at the other end, which may go away.
    #[must_use]
    pub fn is_in_lab(&self) -> bool {
        matches!(self.line, Line::Memif { back_to_back: false, .. })
    }

    /// True when the other end is one process that may come later.
    #[must_use]
    pub fn is_back_to_back(&self) -> bool {
        matches!(self.line, Line::Memif { back_to_back: true, .. })
    }

    /// The GID of the port: the IPv6 address, or `::ffff:a.b.c.d`.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        gid_of_ip(self.ip)
    }

    /// The node GUID: the MAC address as a modified EUI-64, as RNICs do.
    #[must_use]
    pub fn guid(&self) -> u64 {
        let m = self.mac.0;
        u64::from_be_bytes([m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

/// The MAC address that a host with this IP address has: 02:00 and the last four bytes.
#[must_use]
pub fn mac_of(ip: IpAddr) -> MacAddr {
    let [.., a, b, c, d] = gid_of_ip(ip);
    MacAddr([2, 0, a, b, c, d])
}

fn parse_mac(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddr(bytes))
}

/// An environment; empty variables count as missing.
struct Variables<'a>(&'a dyn Fn(&'static str) -> Option<String>);

impl Variables<'_> {
    fn text(&self, name: &'static str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn parsed<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, AttachError> {
        self.text(name).map(|text| parse(name, &text, expected, read)).transpose()
    }

    fn number(
        &self,
        name: &'static str,
        expected: &'static str,
        accept: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, AttachError> {
        self.parsed(name, expected, |t| t.parse().ok().filter(|n| accept(*n)))
    }
}

fn parse<T>(
    variable: &'static str,
    text: &str,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, AttachError> {
    read(text).ok_or_else(|| AttachError::Invalid { variable, value: text.to_owned(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&'static str, &str)]) -> Result<Attach, AttachError> {
        Attach::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_process_outside_longhaul_has_no_device() {
        assert_eq!(env(&[(ENV_IP, "10.77.0.1")]), Err(AttachError::NoDevice));
        assert_eq!(env(&[(ENV_SOCKET, ""), (ENV_IP, "10.77.0.1")]), Err(AttachError::NoDevice));
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let attach = env(&[(ENV_SOCKET, "/tmp/s"), (ENV_IP, "10.77.0.1")]).unwrap();
        assert_eq!(attach.mac, MacAddr([2, 0, 10, 77, 0, 1]));
        assert_eq!((attach.path_mtu, attach.slot, attach.read_depth), (4096, 0, 16));
        assert!(matches!(attach.line, Line::Memif { role: Role::Slave, back_to_back: false, .. }));
        assert!(attach.dcqcn && attach.is_in_lab());
        assert_eq!(attach.host, "10.77.0.1");
        assert_eq!(attach.gid()[10..], [0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(attach.guid(), 0x0000_0aff_fe4d_0001);
    }

    #[test]
    fn a_port_by_udp_has_any_address() {
        let attach = env(&[(ENV_UDP_PORT, "4791"), (ENV_IP, "fd00::12:3456")]).unwrap();
        assert_eq!(attach.line, Line::Udp { port: 4791 });
        assert_eq!(attach.mac, MacAddr([2, 0, 0, 0x12, 0x34, 0x56]));
        assert_eq!(attach.gid()[..2], [0xfd, 0]);
        let both = env(&[(ENV_UDP_PORT, "4791"), (ENV_SOCKET, "s"), (ENV_IP, "10.0.0.1")]).unwrap_err();
        assert!(both.to_string().starts_with("LONGHAUL_UDP_PORT=4791: "), "{both}");
    }

    #[test]
    fn slots_share_the_qpn_space_without_overlap() {
        let mut next = 0;
        for slot in 0..=SLOT_MAX {
            let text = slot.to_string();
            let attach = env(&[(ENV_SOCKET, "s"), (ENV_IP, "10.0.0.1"), (ENV_SLOT, &text)]).unwrap();
            assert!(attach.qpn_first() >= next, "slot {slot}");
            next = attach.qpn_first() + attach.qpn_count();
        }
        assert!(next <= 0x00ff_ffff);
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        let base = [(ENV_SOCKET, "s"), (ENV_IP, "10.0.0.1")];
        for (variable, value) in [
            (ENV_IP, "banana"),
            (ENV_ID, "-1"),
            (ENV_MAC, "02:00:0a:4d:00"),
            (ENV_PORT_RATE_BPS, "0"),
            (ENV_PATH_MTU, "1500"),
            (ENV_SLOT, "63"),
            (ENV_ROLE, "servant"),
            (ENV_READ_DEPTH, "0"),
            (ENV_CM_ACK_TIMEOUT, "32"),
            (ENV_DCQCN, "maybe"),
            (ENV_UDP_PORT, "0"),
        ] {
            let mut pairs: Vec<(&'static str, &str)> =
                base.iter().copied().filter(|(key, _)| *key != variable).collect();
            pairs.push((variable, value));
            let message = env(&pairs).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{variable}={value}: ")), "{message}");
        }
    }
}
