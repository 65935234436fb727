//! Programs on this machine's own network.

use super::Environment;
use crate::problem::Problem;
use longhaul_boxes::runtime_dir::private_dir;
use longhaul_rdma::attach;
use longhaul_rdma::sysfs::interface_with;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// UDP port of both ends.
const PORT: u16 = longhaul_wire::ROCEV2_PORT;
/// Maximum header bytes of a packet: IPv6 40, UDP 8, BTH 12, RETH 16, immediate data 4, ICRC 4.
const HEADERS_MAX: u32 = 84;
/// Documentation addresses, to find the default route. Source: RFC 5737 and RFC 3849.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The environment of a program with a device at `address`, or at the source address of the default
/// route.
pub fn environment(address: Option<IpAddr>) -> Result<Environment, Problem> {
    let address = match address {
        Some(address) => address,
        None => own_address()?,
    };
    let path_mtu = path_mtu(&interface_of(address)?)?;
    is_free(address)?;
    let dir = private_dir(&format!("udp-{}", address.to_string().replace(':', "_")))?;
    let mut environment = Environment::new(&dir.join("preload.so"))?;
    environment
        .set(attach::ENV_UDP_PORT, PORT)
        .set(attach::ENV_IP, address)
        .set(attach::ENV_HOST, address)
        .set(attach::ENV_COUNTERS, dir.join("counters").display())
        .set_path_mtu(path_mtu);
    Ok(environment)
}

/// Returns the source address of the default route, preferably of IPv4.
fn own_address() -> Result<IpAddr, Problem> {
    let from = |elsewhere: IpAddr| -> io::Result<IpAddr> {
        let any = if elsewhere.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        // Sends nothing, only selects the route.
        socket.connect(SocketAddr::new(elsewhere, PORT))?;
        Ok(socket.local_addr()?.ip())
    };
    ELSEWHERE.into_iter().find_map(|elsewhere| from(elsewhere).ok()).ok_or_else(|| {
        Problem::new(
            "this machine has no default route to select an address",
            "use --udp=ADDRESS with an address of 'ip address'; --udp=127.0.0.1 and \
             --udp=127.0.0.2 are two programs on this machine alone",
        )
    })
}

/// Refuses an address at which another process receives RoCEv2: programs open their port late, and
/// would wait for peers that cannot reach them.
fn is_free(address: IpAddr) -> Result<(), Problem> {
    match UdpSocket::bind(SocketAddr::new(address, PORT)) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(Problem::new(
            format!("another process uses UDP port {PORT} of {address}"),
            "end it ('ss -ulpn' names it), or give each program its own address, as \
             --udp=127.0.0.2; kernel rxe uses the port on all addresses: 'modprobe -r rdma_rxe'",
        )),
        // The device reports any other error when it opens its port.
        _ => Ok(()),
    }
}

/// The interface that has `address`.
fn interface_of(address: IpAddr) -> Result<String, Problem> {
    interface_with(address).ok_or_else(|| {
        Problem::new(
            format!("{address} is not an address of this machine"),
            "'ip address' lists its addresses",
        )
    })
}

/// The largest path MTU that fits the interface's MTU.
fn path_mtu(interface: &str) -> Result<u32, Problem> {
    let mtu =
        longhaul_netdev::interface::mtu(interface).map_err(|e| Problem::plain(e.to_string()))?;
    largest_path_mtu(mtu).ok_or_else(|| {
        Problem::new(
            format!("the MTU of {interface}, {mtu}, is too small for RoCEv2"),
            format!("raise it: 'ip link set {interface} mtu 4200' allows packets of 4096 bytes"),
        )
    })
}

/// Returns the largest path MTU whose packets fit `mtu` bytes with any headers. Kernel rxe reserves
/// 80 bytes, 4 less than the headers of a WRITE with immediate data over IPv6.
pub fn largest_path_mtu(mtu: u32) -> Option<u32> {
    [4096, 2048, 1024, 512, 256].into_iter().find(|path_mtu| path_mtu + HEADERS_MAX <= mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_fit_the_interface() {
        let of = largest_path_mtu;
        assert_eq!(
            [of(65536), of(9000), of(4180), of(4179)],
            [Some(4096), Some(4096), Some(4096), Some(2048)]
        );
        assert_eq!([of(1500), of(576), of(340), of(339)], [Some(1024), Some(256), Some(256), None]);
    }

    #[test]
    fn an_address_that_another_process_has_is_refused_with_what_to_do() {
        let address = IpAddr::from([127, 0, 77, 9]);
        assert!(is_free(address).is_ok());
        let _other = UdpSocket::bind(SocketAddr::new(address, PORT)).unwrap();
        let refusal = is_free(address).unwrap_err().to_string();
        assert!(refusal.contains("another process uses UDP port 4791 of 127.0.77.9"), "{refusal}");
    }

    #[test]
    fn any_loopback_address_is_this_machines() {
        assert!(interface_of(IpAddr::from([127, 0, 0, 9])).is_ok());
        let foreign = interface_of(IpAddr::from([192, 0, 2, 1])).unwrap_err().to_string();
        assert!(foreign.contains("192.0.2.1 is not an address of this machine"), "{foreign}");
    }
}
