//! Programs on an Ethernet segment: through a TAP device, or on an interface of this machine.

use super::Environment;
use super::udp::largest_path_mtu;
use crate::problem::Problem;
use longhaul_boxes::runtime_dir::private_dir;
use longhaul_netdev::{NetdevError, interface};
use longhaul_rdma::attach;
use longhaul_wire::MacAddr;
use nix::ifaddrs::getifaddrs;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use std::net::IpAddr;
use std::str::FromStr;

/// MTU of a TAP device that is created for the program.
const TAP_MTU: u32 = 1500;

/// An address and prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    ip: IpAddr,
    prefix_len: Option<u8>,
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "an address such as 192.168.177.1/24 is needed";
        let (ip, prefix_len) = match text.split_once('/') {
            Some((ip, prefix_len)) => (ip, Some(prefix_len.parse().map_err(|_| EXPECTED)?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| EXPECTED)?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        if ip.is_unspecified() || ip.is_multicast() || prefix_len.is_some_and(|len| len > bits) {
            return Err(EXPECTED);
        }
        Ok(Address { ip, prefix_len })
    }
}

/// A valid interface address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mac(MacAddr);

impl FromStr for Mac {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        attach::parse_mac(text)
            .filter(|mac| mac.0[0] & 1 == 0 && *mac != MacAddr::default())
            .map(Mac)
            .ok_or("a MAC address of one interface, such as 02:00:0a:4d:00:01, is needed")
    }
}

/// A program's attachment to a segment.
#[derive(Clone, Debug)]
pub struct Attachment<'a> {
    pub line: Line<'a>,
    pub address: Option<Address>,
    pub gateway: Option<IpAddr>,
    pub mac: Option<Mac>,
    pub vlan: Option<u16>,
}

/// A TAP device or an interface, by name.
#[derive(Clone, Copy, Debug)]
pub enum Line<'a> {
    Tap(&'a str),
    Interface(&'a str),
}

impl Line<'_> {
    fn name(&self) -> &str {
        match self {
            Line::Tap(name) | Line::Interface(name) => name,
        }
    }
}

/// The environment of a program at `attachment`.
pub fn environment(attachment: &Attachment<'_>) -> Result<Environment, Problem> {
    let name = attachment.line.name();
    let path_mtu = path_mtu(&attachment.line)?;
    let identity = identity(attachment)?;
    if let Line::Interface(name) = attachment.line {
        may_open(name)?;
    }
    let dir = private_dir(&format!("{name}-{}", identity.ip.to_string().replace(':', "_")))?;
    let mut environment = Environment::new(&dir.join("preload.so"))?;
    let variable = match attachment.line {
        Line::Tap(_) => attach::ENV_TAP,
        Line::Interface(_) => attach::ENV_INTERFACE,
    };
    environment
        .set(variable, name)
        .set(attach::ENV_IP, identity.ip)
        .set(attach::ENV_HOST, format!("{} on {name}", identity.ip))
        .set(attach::ENV_COUNTERS, dir.join("counters").display())
        .set_path_mtu(path_mtu);
    let texts = [
        (attach::ENV_MAC, identity.mac.map(|mac| mac.to_string())),
        (attach::ENV_PREFIX_LEN, identity.prefix_len.map(|len| len.to_string())),
        (attach::ENV_GATEWAY, attachment.gateway.map(|gateway| gateway.to_string())),
        (attach::ENV_VLAN, attachment.vlan.map(|vlan| vlan.to_string())),
    ];
    for (variable, text) in texts {
        if let Some(text) = text {
            environment.set(variable, text);
        }
    }
    Ok(environment)
}

/// Refuses an interface on which the caller may not open a packet socket: programs open their port
/// late, and would wait for peers that cannot reach them.
fn may_open(interface: &str) -> Result<(), Problem> {
    match socket(AddressFamily::PACKET, SocketType::RAW, None) {
        Err(Errno::PERM) => Err(Problem::new(
            format!("{interface}: a packet socket needs CAP_NET_RAW"),
            "run this as root, or with that capability: 'sudo setpriv --reuid $USER --init-groups \
             --inh-caps +net_raw --ambient-caps +net_raw longhaul exec …'. A capability on the \
             program's file does not work: the loader then preloads no library",
        )),
        // The device reports any other error when it opens its port.
        _ => Ok(()),
    }
}

/// The program's addresses on its segment. Without a prefix length they are this machine's.
struct Identity {
    ip: IpAddr,
    prefix_len: Option<u8>,
    mac: Option<MacAddr>,
}

fn identity(attachment: &Attachment<'_>) -> Result<Identity, Problem> {
    let name = attachment.line.name();
    let own = |address: Address| match address.prefix_len {
        Some(_) => Ok(Identity {
            ip: address.ip,
            prefix_len: address.prefix_len,
            mac: attachment.mac.map(|mac| mac.0),
        }),
        None => Err(Problem::new(
            format!("the prefix length of {} is missing", address.ip),
            format!("use --ip {}/24, or the network's prefix length", address.ip),
        )),
    };
    match (attachment.line, attachment.address) {
        (Line::Tap(_), Some(address)) => own(address),
        (Line::Tap(_), None) => Err(Problem::new(
            "a program on a TAP device needs an address of its own",
            "use --ip ADDRESS/BITS, in the network of the device's other end",
        )),
        (Line::Interface(_), address) => {
            let mac = mac_of(name)?;
            let addresses = addresses_of(name)?;
            if let Some(address) = address
                && !addresses.contains(&address.ip)
            {
                let identity = own(address)?;
                return Ok(Identity { mac: identity.mac.or(Some(mac)), ..identity });
            }
            if attachment.mac.is_some() || attachment.vlan.is_some() || attachment.gateway.is_some()
            {
                return Err(Problem::new(
                    "this machine's own address requires its MAC address, VLANs and routes",
                    "give the program another address with --ip, or omit --mac, --vlan and \
                     --gateway",
                ));
            }
            let ip = address.map(|address| address.ip).or_else(|| addresses.first().copied());
            let ip = ip.ok_or_else(|| {
                Problem::new(
                    format!("{name} has no address"),
                    "give the program one of its own with --ip ADDRESS/BITS",
                )
            })?;
            Ok(Identity { ip, prefix_len: None, mac: Some(mac) })
        }
    }
}

/// The addresses of an interface, the preferred one first: IPv4, then IPv6, link-local ones last.
fn addresses_of(name: &str) -> Result<Vec<IpAddr>, Problem> {
    let all = getifaddrs()
        .map_err(|e| Problem::plain(format!("cannot list this machine's addresses: {e}")))?;
    let mut found: Vec<IpAddr> = all
        .filter(|interface| interface.interface_name == name)
        .filter_map(|interface| {
            let storage = interface.address?;
            let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .collect();
    found.sort_by_key(|ip| match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) => 1 + u8::from(ip.is_unicast_link_local()),
    });
    Ok(found)
}

fn mac_of(name: &str) -> Result<MacAddr, Problem> {
    interface::mac(name).map(MacAddr).map_err(|error| match error {
        NetdevError::NotEthernet { .. } => Problem::new(
            error.to_string(),
            "use --udp, which works on every interface that has an address",
        ),
        error => Problem::plain(error.to_string()),
    })
}

/// The largest path MTU that fits the interface's MTU.
fn path_mtu(line: &Line<'_>) -> Result<u32, Problem> {
    let name = line.name();
    let mtu = match (line, interface::mtu(name)) {
        (_, Ok(mtu)) => mtu,
        (Line::Tap(_), Err(NetdevError::NoSuchInterface { .. })) => TAP_MTU,
        (_, Err(error)) => return Err(Problem::plain(error.to_string())),
    };
    largest_path_mtu(mtu).ok_or_else(|| {
        Problem::new(
            format!("the MTU of {name}, {mtu}, is too small for RoCEv2"),
            format!("raise it: 'ip link set {name} mtu 4200' allows packets of 4096 bytes"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment<'a>(line: Line<'a>, address: Option<&str>) -> Attachment<'a> {
        let address = address.map(|text| text.parse().unwrap());
        Attachment { line, address, gateway: None, mac: None, vlan: None }
    }

    fn refused(attachment: &Attachment<'_>) -> String {
        match identity(attachment) {
            Ok(_) => panic!("accepted"),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn addresses_say_how_large_their_network_is() {
        let address: Address = "192.168.177.1/24".parse().unwrap();
        assert_eq!((address.ip, address.prefix_len), (IpAddr::from([192, 168, 177, 1]), Some(24)));
        assert!("fd00::1/64".parse::<Address>().is_ok() && "10.0.0.1".parse::<Address>().is_ok());
        for wrong in ["10.0.0.1/33", "fd00::1/129", "10.0.0.1/", "0.0.0.0/8", "224.0.0.1/8", "x/24"]
        {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_and_nobody_are_no_mac_addresses() {
        assert!("02:00:0a:4d:00:01".parse::<Mac>().is_ok());
        for wrong in ["01:00:5e:00:00:01", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "02:00", ""] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn on_a_tap_device_a_program_has_an_address_of_its_own() {
        let tap = Line::Tap("longhaul-none0");
        let identity = identity(&attachment(tap, Some("192.168.177.1/24"))).ok().unwrap();
        assert_eq!((identity.prefix_len, identity.mac), (Some(24), None));
        assert!(refused(&attachment(tap, Some("192.168.177.1"))).contains("--ip 192.168.177.1/24"));
        assert!(refused(&attachment(tap, None)).contains("--ip ADDRESS/BITS"));
        assert_eq!(path_mtu(&tap).ok(), Some(1024), "of a device that is yet to be made");
    }

    #[test]
    fn an_interface_must_be_there_and_carry_ethernet() {
        assert!(refused(&attachment(Line::Interface("lo"), None)).contains("--udp"));
        let none = refused(&attachment(Line::Interface("longhaul-none0"), None));
        assert!(none.contains("no interface longhaul-none0"), "{none}");
    }
}
