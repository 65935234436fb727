//! Queries and settings of interfaces.

use std::ffi::CStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const NAME_BYTES: usize = libc::IFNAMSIZ;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    maxima: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

const ETHTOOL_GET_CHANNELS: u32 = 0x3c;

/// A socket for requests only, in the network namespace of the calling thread.
pub(crate) fn carrier() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// A request that names `interface`; all other fields are zero.
///
/// The name must have been checked to be shorter than [`NAME_BYTES`]; the kernel refuses a
/// truncated one.
pub(crate) fn named(interface: &str) -> libc::ifreq {
    // SAFETY: integers and a null pointer, all of which may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..NAME_BYTES - 1].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn perform(fd: impl AsFd, code: u32, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed. Every code used in this file
    // takes an `ifreq`, which is live and exclusive; where it has a pointer, the caller in this
    // file keeps its target alive.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), code as _, request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn ask(fd: impl AsFd, code: u32, interface: &str) -> io::Result<libc::ifreq> {
    let mut request = named(interface);
    perform(fd, code, &mut request)?;
    Ok(request)
}

pub(crate) fn index(fd: impl AsFd, interface: &str) -> io::Result<u32> {
    let answer = ask(fd, libc::SIOCGIFINDEX as u32, interface)?;
    // SAFETY: the kernel filled in this member.
    Ok(unsafe { answer.ifr_ifru.ifru_ifindex } as u32)
}

/// Name of the interface with this index.
pub(crate) fn name(fd: impl AsFd, index: u32) -> io::Result<String> {
    let mut request = named("");
    request.ifr_ifru.ifru_ifindex = index as libc::c_int;
    perform(fd, libc::SIOCGIFNAME as u32, &mut request)?;
    let name = request.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(name.to_string_lossy().into_owned())
}

pub(crate) fn mtu(fd: impl AsFd, interface: &str) -> io::Result<u32> {
    let answer = ask(fd, libc::SIOCGIFMTU as u32, interface)?;
    // SAFETY: the kernel filled in this member.
    Ok(unsafe { answer.ifr_ifru.ifru_mtu } as u32)
}

pub(crate) fn set_mtu(fd: impl AsFd, interface: &str, mtu: u32) -> io::Result<()> {
    let mut request = named(interface);
    request.ifr_ifru.ifru_mtu =
        i32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    perform(fd, libc::SIOCSIFMTU as u32, &mut request)
}

/// The `IFF_` flags that fit 16 bits.
pub(crate) fn flags(fd: impl AsFd, interface: &str) -> io::Result<u16> {
    let answer = ask(fd, libc::SIOCGIFFLAGS as u32, interface)?;
    // SAFETY: the kernel filled in this member.
    Ok(unsafe { answer.ifr_ifru.ifru_flags } as u16)
}

/// Sets the MAC address.
pub(crate) fn set_hardware(fd: impl AsFd, interface: &str, address: [u8; 6]) -> io::Result<()> {
    let mut request = named(interface);
    let mut hardware = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
    for (to, from) in hardware.sa_data.iter_mut().zip(address) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_hwaddr = hardware;
    perform(fd, libc::SIOCSIFHWADDR as u32, &mut request)
}

/// Sets the IPv4 address and the prefix length, which also adds the route to the prefix if the
/// interface is up. `fd` is a socket of that family.
pub(crate) fn set_ipv4(
    fd: impl AsFd,
    interface: &str,
    address: Ipv4Addr,
    prefix_len: u8,
) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
    for (code, address) in
        [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from_bits(mask))]
    {
        let mut request = named(interface);
        let mut socket_address =
            libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: [0; 14] };
        // `sockaddr_in`: the port, and the address in network byte order.
        for (to, from) in socket_address.sa_data[2..6].iter_mut().zip(address.octets()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_addr = socket_address;
        perform(&fd, code as u32, &mut request)?;
    }
    Ok(())
}

/// Adds an IPv6 address and the route to its prefix to the interface with this index. `fd` is a
/// socket of that family.
pub(crate) fn add_ipv6(
    fd: impl AsFd,
    index: u32,
    address: Ipv6Addr,
    prefix_len: u8,
) -> io::Result<()> {
    let request = libc::in6_ifreq {
        ifr6_addr: libc::in6_addr { s6_addr: address.octets() },
        ifr6_prefixlen: prefix_len.into(),
        ifr6_ifindex: index as libc::c_int,
    };
    // SAFETY: the descriptor is open for as long as it is borrowed. On a socket of IPv6 this code
    // takes an `in6_ifreq`, which the kernel only reads.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::SIOCSIFADDR as _, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub(crate) fn set_up(fd: impl AsFd, interface: &str) -> io::Result<()> {
    let before = flags(&fd, interface)?;
    if before & libc::IFF_UP as u16 != 0 {
        return Ok(());
    }
    let mut request = named(interface);
    request.ifr_ifru.ifru_flags = (before | libc::IFF_UP as u16) as libc::c_short;
    perform(fd, libc::SIOCSIFFLAGS as u32, &mut request)
}

/// Hardware type (`ARPHRD_`) and the first six bytes of the address.
pub(crate) fn hardware(fd: impl AsFd, interface: &str) -> io::Result<(u16, [u8; 6])> {
    let answer = ask(fd, libc::SIOCGIFHWADDR as u32, interface)?;
    // SAFETY: the kernel filled in this member.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    Ok((address.sa_family, std::array::from_fn(|at| address.sa_data[at] as u8)))
}

fn ethtool(fd: impl AsFd, interface: &str, value: &mut EthtoolValue) -> io::Result<()> {
    let mut request = named(interface);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    perform(fd, libc::SIOCETHTOOL as u32, &mut request)
}

/// Receive and transmit queues in use, as the driver reports them.
pub(crate) fn queues(fd: impl AsFd, interface: &str) -> io::Result<[u32; 2]> {
    let mut channels =
        EthtoolChannels { command: ETHTOOL_GET_CHANNELS, ..EthtoolChannels::default() };
    let mut request = named(interface);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    perform(fd, libc::SIOCETHTOOL as u32, &mut request)?;
    Ok([channels.rx, channels.tx].map(|alone| alone.saturating_add(channels.combined)))
}

/// Reads one value from the driver.
pub(crate) fn ethtool_get(fd: impl AsFd, interface: &str, command: u32) -> io::Result<u32> {
    let mut value = EthtoolValue { command, data: 0 };
    ethtool(fd, interface, &mut value)?;
    Ok(value.data)
}

/// Sets one value of the driver.
pub(crate) fn ethtool_set(
    fd: impl AsFd,
    interface: &str,
    command: u32,
    data: u32,
) -> io::Result<()> {
    ethtool(fd, interface, &mut EthtoolValue { command, data })
}

/// Attaches `tun`, an open `/dev/net/tun`, to a new or existing device, with these `IFF_` flags.
pub(crate) fn attach_tap(tun: impl AsFd, interface: &str, flags: u16) -> io::Result<()> {
    let mut request = named(interface);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    perform(tun, libc::TUNSETIFF as u32, &mut request)
}

/// Name of the TAP device to which `tun` is attached.
pub(crate) fn tap_name(tun: impl AsFd) -> io::Result<String> {
    let mut request = named("");
    perform(tun, libc::TUNGETIFF as u32, &mut request)?;
    let name = request.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(name.to_string_lossy().into_owned())
}

/// Sets the length of the description (`virtio_net_hdr`) before each frame, in bytes.
pub(crate) fn set_description_bytes(tun: impl AsFd, bytes: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed; this code reads one `int`,
    // which lives until the call returns.
    let result = unsafe {
        libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const bytes)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Accepts frames with these offloads (`TUN_F_`) from the kernel, and no others.
pub(crate) fn set_offloads(tun: impl AsFd, kinds: libc::c_uint) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as it is borrowed; this code takes a number.
    let result = unsafe {
        libc::ioctl(tun.as_fd().as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(kinds))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
