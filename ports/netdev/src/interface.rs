//! Properties of interfaces in the network namespace of the calling thread.

use std::ffi::CStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::config::check_interface;
use crate::error::NetdevError;
use crate::request;

/// Names of all interfaces.
///
/// # Errors
/// If the system cannot list them.
pub fn list() -> io::Result<Vec<String>> {
    // SAFETY: takes no arguments; the result is freed below, once.
    let all = unsafe { libc::if_nameindex() };
    if all.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    let mut at = all;
    // SAFETY: the array goes on until an entry without a name; `at` does not get past that one.
    while let Some(name) = unsafe { at.as_ref() }.filter(|entry| !entry.if_name.is_null()) {
        // SAFETY: the name is a string that ends in zero and lives until the array is freed.
        names.push(unsafe { CStr::from_ptr(name.if_name) }.to_string_lossy().into_owned());
        // SAFETY: there was a name here, so that there is an entry behind it.
        at = unsafe { at.add(1) };
    }
    // SAFETY: the array came from `if_nameindex`, and nothing points into it any more.
    unsafe { libc::if_freenameindex(all) };
    Ok(names)
}

/// Index of the interface, from 1. A recreated interface gets another index.
///
/// # Errors
/// [`NetdevError::NoSuchInterface`], [`NetdevError::BadName`].
pub fn index(interface: &str) -> Result<u32, NetdevError> {
    ask(interface, "reading its index", |fd| request::index(fd, interface))
}

/// MTU of the interface in bytes, without Ethernet header.
///
/// # Errors
/// [`NetdevError::NoSuchInterface`], [`NetdevError::BadName`].
pub fn mtu(interface: &str) -> Result<u32, NetdevError> {
    ask(interface, "reading its MTU", |fd| request::mtu(fd, interface))
}

/// Queues of an interface that are in use, at least one of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Receive queues.
    pub receive: u32,
    /// Transmit queues.
    pub send: u32,
}

/// Queues of the interface; one of each kind if the driver does not report them.
///
/// # Errors
/// [`NetdevError::NoSuchInterface`], [`NetdevError::BadName`].
pub fn queues(interface: &str) -> Result<Queues, NetdevError> {
    let told = ask(interface, "reading its queues", |fd| match request::queues(fd, interface) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok([1, 1]),
        told => told,
    });
    told.map(|[receive, send]| Queues { receive: receive.max(1), send: send.max(1) })
}

/// MAC address of the interface.
///
/// # Errors
/// [`NetdevError::NoSuchInterface`], [`NetdevError::BadName`], [`NetdevError::NotEthernet`].
pub fn mac(interface: &str) -> Result<[u8; 6], NetdevError> {
    match ask(interface, "reading its MAC address", |fd| request::hardware(fd, interface))? {
        (libc::ARPHRD_ETHER, address) => Ok(address),
        (hardware_type, _) => {
            Err(NetdevError::NotEthernet { interface: interface.to_owned(), hardware_type })
        }
    }
}

/// Sets an interface up, with the MAC address and the IPv4 address and prefix length if given:
/// what a host does with an interface of its own.
///
/// # Errors
/// [`NetdevError`]; needs CAP_NET_ADMIN.
pub fn bring_up(
    interface: &str,
    mac: Option<[u8; 6]>,
    address: Option<(Ipv4Addr, u8)>,
) -> Result<(), NetdevError> {
    ask(interface, "configuring it", |_| {
        let fd = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if let Some(mac) = mac {
            request::set_hardware(&fd, interface, mac)?;
        }
        if let Some((address, prefix_len)) = address {
            request::set_ipv4(&fd, interface, address, prefix_len)?;
        }
        request::set_up(&fd, interface)
    })
}

/// Adds an IPv6 address, with its prefix length, to an interface.
///
/// # Errors
/// [`NetdevError`]; needs CAP_NET_ADMIN, and a kernel with IPv6.
pub fn add_ipv6(interface: &str, address: Ipv6Addr, prefix_len: u8) -> Result<(), NetdevError> {
    ask(interface, "adding an IPv6 address", |fd| {
        let index = request::index(fd, interface)?;
        let fd = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        request::add_ipv6(&fd, index, address, prefix_len)
    })
}

fn ask<T>(
    interface: &str,
    operation: &'static str,
    question: impl FnOnce(&OwnedFd) -> io::Result<T>,
) -> Result<T, NetdevError> {
    check_interface(interface)?;
    request::carrier()
        .and_then(|fd| question(&fd))
        .map_err(|source| NetdevError::of(interface, operation, "CAP_NET_ADMIN", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_loopback_interface() {
        assert!(list().unwrap().contains(&"lo".to_owned()));
        assert_eq!(index("lo").unwrap(), 1);
        assert!(mtu("lo").unwrap() >= 1280);
        assert!(matches!(mac("lo"), Err(NetdevError::NotEthernet { hardware_type: 772, .. })));
    }

    #[test]
    fn says_which_interfaces_there_are() {
        let error = mtu("nothere0").unwrap_err();
        assert!(matches!(
            &error,
            NetdevError::NoSuchInterface { existing, .. } if existing.contains(&"lo".into())
        ));
        assert!(error.to_string().contains("lo"), "{error}");
    }

    #[test]
    fn refuses_what_cannot_be_a_name() {
        for name in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a b", "tap%d", "a:b", "a\0b"] {
            assert!(matches!(mtu(name), Err(NetdevError::BadName { .. })), "{name:?}");
        }
        assert!(matches!(mtu("fifteen-bytes-x"), Err(NetdevError::NoSuchInterface { .. })));
    }
}
