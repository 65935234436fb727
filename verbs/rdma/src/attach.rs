//! The environment variables that assign a port, such as a lab host's, to a process.
//!
//! `longhaul exec` sets these variables and preloads the verbs library; a test that joins two
//! processes back to back sets them itself. The device has no other configuration. A process with
//! none of [`ENV_SOCKET`], [`ENV_UDP_PORT`], [`ENV_TAP`] and [`ENV_INTERFACE`] has no Longhaul
//! device.
//!
//! | variable | meaning | without it |
//! |---|---|---|
//! | [`ENV_SOCKET`] | path of the memif control socket | no port by shared memory |
//! | [`ENV_UDP_PORT`] | UDP port of both ends, 4791 for RoCEv2: the port is a socket of this machine | no port by UDP |
//! | [`ENV_TAP`] | name of a TAP device, whose other end the port is | no port by TAP |
//! | [`ENV_INTERFACE`] | name of an Ethernet interface of this machine, which the port shares | no port there |
//! | [`ENV_PREFIX_LEN`] | how many leading bits the addresses of the segment share: the port has an address of its own there | required by a TAP; on an interface, [`ENV_IP`] is this machine's, and the kernel knows the neighbours |
//! | [`ENV_GATEWAY`] | next hop to everywhere else, where the port has an address of its own | none |
//! | [`ENV_VLAN`] | VLAN, 1 to 4094, where the port has an address of its own | untagged |
//! | [`ENV_ROLE`] | `master` or `slave`: two processes back to back without a lab | slave of a lab |
//! | [`ENV_IP`] | the port's IP address, by UDP any address of this machine; on shared memory one of each scope (IPv4, IPv6, link-local), `10.77.0.1,fd77::1` | required |
//! | [`ENV_MAC`] | the port's MAC address | required by an interface; else 02:00 and the last four bytes of the IP address |
//! | [`ENV_PORT_RATE_BPS`] | rate of the port in bit/s, counted on the wire | unpaced |
//! | [`ENV_PATH_MTU`] | largest path MTU: 256, 512, 1024, 2048 or 4096 bytes | 4096 |
//! | [`ENV_SLOTS`] | directory with a file for each process that can share the port; a process locks one, whose number is its memif interface id and its part of the QPN and communication-id spaces | the port belongs to one process, with interface id 0 |
//! | [`ENV_HOST`] | name of the lab host, for messages | the IP address |
//! | [`ENV_READ_DEPTH`] | outstanding READs per queue pair, 1 to 128 | 16 |
//! | [`ENV_CM_ACK_TIMEOUT`] | ACK timeout exponent that RDMA-CM connections use, 1 to 31 | 17 (0.54 s), as kernels do |
//! | [`ENV_DCQCN`] | `on` or `off`: congestion control | on |
//! | [`ENV_TRACE`] | file to which the preloaded library appends a trace of the program's calls | no trace |
//! | [`ENV_COUNTERS_MS`] | interval at which the device's files follow its counters, 1 to 60,000 ms | 1000 |
//! | [`ENV_COUNTERS`] | directory of the device's files ([`crate::sysfs`]) | none: not in `/sys` |

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use longhaul_rnic::PortAddresses;
use longhaul_units::{BitRate, Duration};
use longhaul_wire::MacAddr;
use longhaul_wire::mad::gid_of_ip;

/// Path of the memif control socket.
pub const ENV_SOCKET: &str = "LONGHAUL_MEMIF_SOCKET";
/// UDP port, for RoCEv2 over a socket of this machine.
pub const ENV_UDP_PORT: &str = "LONGHAUL_UDP_PORT";
/// TAP device.
pub const ENV_TAP: &str = "LONGHAUL_TAP";
/// Ethernet interface.
pub const ENV_INTERFACE: &str = "LONGHAUL_INTERFACE";
/// Prefix length of the port's own address on a segment.
pub const ENV_PREFIX_LEN: &str = "LONGHAUL_PREFIX_LEN";
/// Next hop to addresses outside the segment.
pub const ENV_GATEWAY: &str = "LONGHAUL_GATEWAY";
/// VLAN.
pub const ENV_VLAN: &str = "LONGHAUL_VLAN";
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
/// Directory of the slots, of which each process claims one.
pub const ENV_SLOTS: &str = "LONGHAUL_SLOTS";
/// Name of the lab host.
pub const ENV_HOST: &str = "LONGHAUL_HOST";
/// Outstanding READs per queue pair.
pub const ENV_READ_DEPTH: &str = "LONGHAUL_READ_DEPTH";
/// ACK timeout exponent of RDMA-CM connections.
pub const ENV_CM_ACK_TIMEOUT: &str = "LONGHAUL_CM_ACK_TIMEOUT";
/// Congestion control, on or off.
pub const ENV_DCQCN: &str = "LONGHAUL_DCQCN";
/// Directory for the device's files, counters among them.
pub const ENV_COUNTERS: &str = "LONGHAUL_COUNTERS";
/// Interval at which the device's files follow its counters, in ms.
pub const ENV_COUNTERS_MS: &str = "LONGHAUL_COUNTERS_MS";
/// File with the opening bracket of a trace of verbs calls.
pub const ENV_TRACE: &str = "LONGHAUL_TRACE";

/// The variables that identify the device. The user may set the others to change its behaviour.
pub const IDENTITY: [&str; 14] = [
    ENV_SOCKET,
    ENV_UDP_PORT,
    ENV_TAP,
    ENV_INTERFACE,
    ENV_PREFIX_LEN,
    ENV_GATEWAY,
    ENV_VLAN,
    ENV_ROLE,
    ENV_IP,
    ENV_MAC,
    ENV_PORT_RATE_BPS,
    ENV_SLOTS,
    ENV_HOST,
    ENV_COUNTERS,
];

/// Role in setting up the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens on the socket, as a lab does.
    Master,
    /// Connects, and allocates the memory.
    Slave,
}

/// Kind of the device's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Shared memory, with a lab or one other process.
    Memif {
        /// Path of the control socket.
        socket: PathBuf,
        /// This process' role.
        role: Role,
        /// True if the peer is another process and not a lab.
        back_to_back: bool,
    },
    /// A UDP socket of this machine, with any number of peers on others.
    Udp {
        /// UDP port at both ends.
        port: u16,
    },
    /// The user-space end of a TAP device: a neighbour of this machine, with its own address.
    Tap {
        /// Name of the device.
        name: String,
        /// The kernel's segment of the device.
        network: Network,
    },
    /// An Ethernet interface of this machine, which the kernel keeps using.
    Interface {
        /// Name of the interface.
        name: String,
        /// The segment, if the port has its own address there; `None` if it shares this machine's.
        network: Option<Network>,
    },
}

/// An Ethernet segment, as seen by a host with its own address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Leading bits that the addresses of the segment share.
    pub prefix_len: u8,
    /// Next hop to addresses outside the segment.
    pub gateway: Option<IpAddr>,
    /// VLAN, 1 to 4094.
    pub vlan: Option<u16>,
}

impl Network {
    fn read(variables: &Variables<'_>, ip: IpAddr) -> Result<Option<Self>, AttachError> {
        let (bits, expected) = match ip {
            IpAddr::V4(_) => (32, "a number from 0 to 32 is needed"),
            IpAddr::V6(_) => (128, "a number from 0 to 128 is needed"),
        };
        let prefix_len = variables.number(ENV_PREFIX_LEN, expected, |n| n <= bits)?;
        let gateway =
            variables.parsed(ENV_GATEWAY, "an address of the port's family is needed", |text| {
                let gateway = text.parse::<IpAddr>().ok()?.to_canonical();
                (gateway.is_ipv4() == ip.is_ipv4() && gateway != ip).then_some(gateway)
            })?;
        let vlan = variables
            .number(ENV_VLAN, "a number from 1 to 4094 is needed", |n| (1..=4094).contains(&n))?;
        Ok(prefix_len.map(|prefix_len| Network {
            prefix_len: prefix_len as u8,
            gateway,
            vlan: vlan.map(|vlan| vlan as u16),
        }))
    }
}

impl Line {
    fn read(
        variables: &Variables<'_>,
        kind: &'static str,
        ip: IpAddr,
    ) -> Result<Self, AttachError> {
        let missing = |variable| AttachError::Missing { variable };
        let name = variables.text(kind).ok_or(missing(kind))?;
        let network = Network::read(variables, ip)?;
        Ok(match kind {
            ENV_TAP => Line::Tap { name, network: network.ok_or(missing(ENV_PREFIX_LEN))? },
            ENV_INTERFACE => Line::Interface { name, network },
            ENV_UDP_PORT => Line::Udp {
                port: parse(ENV_UDP_PORT, &name, "a port from 1 to 65535 is needed", |text| {
                    text.parse().ok().filter(|port| *port > 0)
                })?,
            },
            _ => {
                let role =
                    variables.parsed(ENV_ROLE, "`master` or `slave` is needed", |t| match t {
                        "master" => Some(Role::Master),
                        "slave" => Some(Role::Slave),
                        _ => None,
                    })?;
                Line::Memif {
                    socket: PathBuf::from(name),
                    role: role.unwrap_or(Role::Slave),
                    back_to_back: role.is_some(),
                }
            }
        })
    }

    /// The variable that requests a port. Only one of them may be set.
    fn asked_for(variables: &Variables<'_>) -> Result<&'static str, AttachError> {
        let given = [ENV_SOCKET, ENV_UDP_PORT, ENV_TAP, ENV_INTERFACE]
            .map(|name| (name, variables.text(name)));
        let mut given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        match (given.next(), given.next()) {
            (None, _) => Err(AttachError::NoDevice),
            (Some((name, _)), None) => Ok(name),
            (Some(_), Some((variable, value))) => Err(AttachError::Invalid {
                variable,
                value,
                expected: "another port is asked for as well; only one can be had",
            }),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Memif { socket, .. } => write!(f, "{}", socket.display()),
            Line::Udp { port } => write!(f, "UDP port {port}"),
            Line::Tap { name, .. } | Line::Interface { name, .. } => f.write_str(name),
        }
    }
}

/// A parsed environment: the complete description of a process' device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Kind of the port.
    pub line: Line,
    /// Addresses of the port; several only on shared memory.
    pub addresses: PortAddresses,
    /// MAC address of the port.
    pub mac: MacAddr,
    /// Rate of the port; `None`: as fast as the peer receives.
    pub rate: Option<BitRate>,
    /// Largest path MTU in bytes: a power of two, 256 to 4096.
    pub path_mtu: u16,
    /// Directory of the slots; `None` if the port belongs to one process.
    pub slots: Option<PathBuf>,
    /// Name of the host, for messages.
    pub host: String,
    /// Outstanding READs per queue pair, 1 to 128.
    pub read_depth: u8,
    /// ACK timeout exponent of RDMA-CM connections, 1 to 31.
    pub cm_ack_timeout: u8,
    /// Congestion control.
    pub dcqcn: bool,
    /// Directory of the device's files.
    pub counters: Option<PathBuf>,
    /// Interval at which these files follow the counters.
    pub counters_interval: Duration,
}

/// Why an environment is not an [`Attach`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// No variable requests a port, so this process has no device.
    #[error(
        "none of {ENV_SOCKET}, {ENV_UDP_PORT}, {ENV_TAP} and {ENV_INTERFACE} is set; start the \
         program with `longhaul exec`"
    )]
    NoDevice,
    /// A required variable is missing.
    #[error("{variable} is not set; start the program with `longhaul exec`")]
    Missing {
        /// Its name.
        variable: &'static str,
    },
    /// A variable has an invalid value.
    #[error("{variable}={value}: {expected}")]
    Invalid {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
}

impl Attach {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// [`AttachError::NoDevice`] if no variable requests a port; other errors name the variable to
    /// correct.
    pub fn from_env() -> Result<Self, AttachError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads an environment through `lookup`.
    ///
    /// # Errors
    /// As [`Attach::from_env`].
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, AttachError> {
        let variables = Variables(&lookup);
        let kind = Line::asked_for(&variables)?;
        let ip_text = variables.text(ENV_IP).ok_or(AttachError::Missing { variable: ENV_IP })?;
        let addresses = parse(ENV_IP, &ip_text, ADDRESSES_EXPECTED, parse_addresses)?;
        let line = Line::read(&variables, kind, addresses.first())?;
        if addresses.iter().len() > 1 && !matches!(line, Line::Memif { .. }) {
            let expected = "this kind of port has one address";
            return Err(AttachError::Invalid { variable: ENV_IP, value: ip_text, expected });
        }
        let mac_like = "a MAC address such as 02:00:0a:4d:00:01 is needed";
        let mac = variables.parsed(ENV_MAC, mac_like, parse_mac)?;
        if mac.is_none() && matches!(line, Line::Interface { .. }) {
            return Err(AttachError::Missing { variable: ENV_MAC });
        }
        let rate =
            variables
                .number(ENV_PORT_RATE_BPS, "a number of bit/s above zero is needed", |n| n > 0)?;
        let path_mtu =
            variables.number(ENV_PATH_MTU, "256, 512, 1024, 2048 or 4096 is needed", |n| {
                n.is_power_of_two() && (256..=4096).contains(&n)
            })?;
        let read_depth =
            variables.number(ENV_READ_DEPTH, "a number from 1 to 128 is needed", |n| {
                (1..=128).contains(&n)
            })?;
        let timeout =
            variables.number(ENV_CM_ACK_TIMEOUT, "a number from 1 to 31 is needed", |n| {
                (1..=31).contains(&n)
            })?;
        let dcqcn = variables.parsed(ENV_DCQCN, "`on` or `off` is needed", |t| match t {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        })?;
        let interval_ms =
            variables.number(ENV_COUNTERS_MS, "a number from 1 to 60000 is needed", |n| {
                (1..=60_000).contains(&n)
            })?;
        Ok(Attach {
            line,
            addresses,
            mac: mac.unwrap_or_else(|| mac_of(addresses.first())),
            rate: rate.and_then(BitRate::from_bps),
            path_mtu: path_mtu.unwrap_or(4096) as u16,
            slots: variables.text(ENV_SLOTS).map(PathBuf::from),
            host: variables.text(ENV_HOST).unwrap_or_else(|| addresses.first().to_string()),
            read_depth: read_depth.unwrap_or(16) as u8,
            cm_ack_timeout: timeout.unwrap_or(17) as u8,
            dcqcn: dcqcn.unwrap_or(true),
            counters: variables.text(ENV_COUNTERS).map(PathBuf::from),
            counters_interval: Duration::from_ms(interval_ms.unwrap_or(1000)),
        })
    }

    /// The port's first address.
    #[must_use]
    pub fn ip_addr(&self) -> IpAddr {
        self.addresses.first()
    }

    /// True if the peer is a lab, which may end.
    #[must_use]
    pub fn is_in_lab(&self) -> bool {
        matches!(self.line, Line::Memif { back_to_back: false, .. })
    }

    /// True if the peer is another process, which may start later.
    #[must_use]
    pub fn is_back_to_back(&self) -> bool {
        matches!(self.line, Line::Memif { back_to_back: true, .. })
    }

    /// True on an Ethernet segment, where peers' MAC addresses must be resolved.
    #[must_use]
    pub fn is_on_segment(&self) -> bool {
        matches!(self.line, Line::Tap { .. } | Line::Interface { .. })
    }

    /// The port's address for packets to `peer`; the first one if none reaches it.
    #[must_use]
    pub fn source_for(&self, peer: IpAddr) -> IpAddr {
        self.addresses.towards(peer.to_canonical()).unwrap_or(self.addresses.first())
    }

    /// The GIDs of the port, by index: its addresses, IPv4 ones as `::ffff:a.b.c.d`.
    pub fn gids(&self) -> impl ExactSizeIterator<Item = [u8; 16]> + use<> {
        self.addresses.iter().map(gid_of_ip)
    }

    /// Node GUID: the MAC address as a modified EUI-64, as in RNICs.
    #[must_use]
    pub fn guid(&self) -> u64 {
        let m = self.mac.0;
        u64::from_be_bytes([m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

/// MAC address of a host with this IP address: 02:00 and the last four bytes.
#[must_use]
pub fn mac_of(ip: IpAddr) -> MacAddr {
    let [.., a, b, c, d] = gid_of_ip(ip);
    MacAddr([2, 0, a, b, c, d])
}

/// The value of [`ENV_IP`].
const ADDRESSES_EXPECTED: &str = "an IP address is needed, or one of each scope with commas";

/// Parses an IP address, or one of each scope separated by commas.
fn parse_addresses(text: &str) -> Option<PortAddresses> {
    let mut each = text.split(',').map(|address| address.parse::<IpAddr>().ok());
    let first = PortAddresses::from(each.next()??);
    each.try_fold(first, |addresses, address| addresses.and(address?))
}

/// Parses six pairs of hexadecimal digits, separated by colons.
#[must_use]
pub fn parse_mac(text: &str) -> Option<MacAddr> {
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
        assert_eq!((attach.path_mtu, &attach.slots, attach.read_depth), (4096, &None, 16));
        assert!(matches!(attach.line, Line::Memif { role: Role::Slave, back_to_back: false, .. }));
        assert!(attach.dcqcn && attach.is_in_lab());
        assert_eq!(attach.host, "10.77.0.1");
        assert_eq!(attach.gids().next().unwrap()[10..], [0xff, 0xff, 10, 77, 0, 1]);
        assert_eq!(attach.guid(), 0x0000_0aff_fe4d_0001);
    }

    #[test]
    fn a_port_on_shared_memory_has_an_address_of_each_family() {
        let attach = env(&[(ENV_SOCKET, "s"), (ENV_IP, "fd77::a4d:1,10.77.0.1")]).unwrap();
        let [v6, v4] = ["fd77::a4d:1", "10.77.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(attach.gids().collect::<Vec<_>>(), [gid_of_ip(v6), gid_of_ip(v4)]);
        assert_eq!(attach.source_for(IpAddr::from([10, 77, 0, 2])), v4);
        assert_eq!((attach.ip_addr(), attach.host.as_str()), (v6, "fd77::a4d:1"));
        for (kind, value) in [
            (ENV_SOCKET, "10.77.0.1,10.77.0.2"),
            (ENV_SOCKET, "10.77.0.1,"),
            (ENV_TAP, "::1,1.2.3.4"),
        ] {
            let port = [(kind, "x"), (ENV_IP, value), (ENV_PREFIX_LEN, "24")];
            let refused = env(&port).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{ENV_IP}={value}: ")), "{refused}");
        }
    }

    #[test]
    fn a_port_by_udp_has_any_address() {
        let attach = env(&[(ENV_UDP_PORT, "4791"), (ENV_IP, "fd00::12:3456")]).unwrap();
        assert_eq!(attach.line, Line::Udp { port: 4791 });
        assert_eq!(attach.mac, MacAddr([2, 0, 0, 0x12, 0x34, 0x56]));
        assert_eq!(attach.gids().next().unwrap()[..2], [0xfd, 0]);
        let both =
            env(&[(ENV_UDP_PORT, "4791"), (ENV_SOCKET, "s"), (ENV_IP, "10.0.0.1")]).unwrap_err();
        assert!(both.to_string().starts_with("LONGHAUL_UDP_PORT=4791: "), "{both}");
    }

    #[test]
    fn a_port_on_a_segment_knows_its_network() {
        let tap = [(ENV_TAP, "tap0"), (ENV_IP, "192.168.177.1"), (ENV_PREFIX_LEN, "24")];
        let network = Network { prefix_len: 24, gateway: None, vlan: None };
        let attach = env(&tap).unwrap();
        assert_eq!(attach.line, Line::Tap { name: "tap0".to_owned(), network });
        assert_eq!(attach.mac, MacAddr([2, 0, 192, 168, 177, 1]), "not that of the kernel's end");
        let with = |name, value| env(&[tap[0], tap[1], tap[2], (name, value)]);
        let routed = with(ENV_GATEWAY, "192.168.177.254").unwrap();
        let gateway = Some(IpAddr::from([192, 168, 177, 254]));
        assert_eq!(
            routed.line,
            Line::Tap { name: "tap0".to_owned(), network: Network { gateway, ..network } }
        );
        for (name, value) in
            [(ENV_GATEWAY, "fd00::1"), (ENV_GATEWAY, "192.168.177.1"), (ENV_VLAN, "4095")]
        {
            let refused = with(name, value).unwrap_err().to_string();
            assert!(refused.starts_with(&format!("{name}={value}: ")), "{refused}");
        }
        assert_eq!(env(&tap[..2]), Err(AttachError::Missing { variable: ENV_PREFIX_LEN }));
        assert!(with(ENV_INTERFACE, "eth0").unwrap_err().to_string().contains("only one"));
    }

    #[test]
    fn a_port_on_an_interface_has_an_address_of_its_own_or_this_machines() {
        let base = [(ENV_INTERFACE, "eth0"), (ENV_IP, "fd00::5"), (ENV_MAC, "02:00:00:00:00:05")];
        let shared = env(&base).unwrap();
        assert_eq!(shared.line, Line::Interface { name: "eth0".to_owned(), network: None });
        assert!(shared.is_on_segment());
        let own =
            env(&[base[0], base[1], base[2], (ENV_PREFIX_LEN, "64"), (ENV_VLAN, "7")]).unwrap();
        let network = Some(Network { prefix_len: 64, gateway: None, vlan: Some(7) });
        assert_eq!(own.line, Line::Interface { name: "eth0".to_owned(), network });
        assert_eq!(env(&base[..2]), Err(AttachError::Missing { variable: ENV_MAC }));
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        let base = [(ENV_SOCKET, "s"), (ENV_IP, "10.0.0.1")];
        for (variable, value) in [
            (ENV_IP, "banana"),
            (ENV_MAC, "02:00:0a:4d:00"),
            (ENV_PORT_RATE_BPS, "0"),
            (ENV_PATH_MTU, "1500"),
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
