//! Sets interfaces up and down, and the carrier of devices that let software decide it.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::error::NetdevError;
use crate::interface;

/// Bytes of `nlmsghdr`, of `ifinfomsg` and of an attribute of one byte, padded.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 8;
/// `IFLA_CARRIER`.
const CARRIER: u16 = 33;

/// A setting of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Administratively up.
    Up,
    /// Administratively down: a device with a cable drops its carrier.
    Down,
    /// With or without a carrier. Only devices without a cable of their own allow it, as TAP
    /// devices do; their addresses and routes stay.
    Carrier(bool),
}

/// Applies a setting to an interface in the network namespace of the calling thread.
///
/// # Errors
/// [`NetdevError`]; needs CAP_NET_ADMIN.
pub fn set(interface: &str, setting: Setting) -> Result<(), NetdevError> {
    let operation = match setting {
        Setting::Up => "setting it up",
        Setting::Down => "setting it down",
        Setting::Carrier(_) => "setting its carrier",
    };
    let index = interface::index(interface)?;
    request(&message(index, setting))
        .map_err(|source| NetdevError::of(interface, operation, "CAP_NET_ADMIN", source))
}

/// An RTM_NEWLINK that asks for an acknowledgement.
fn message(index: u32, setting: Setting) -> Vec<u8> {
    let up = libc::IFF_UP as u32;
    let (flags, change, carrier) = match setting {
        Setting::Up => (up, up, None),
        Setting::Down => (0, up, None),
        Setting::Carrier(has) => (0, 0, Some(has)),
    };
    let len = HEADER_BYTES + LINK_BYTES + carrier.map_or(0, |_| ATTRIBUTE_BYTES);
    let mut message = Vec::with_capacity(len);
    message.extend((len as u32).to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    // Sequence number and port: one request per socket needs neither.
    message.extend([0; 8]);
    // Family and type.
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(change.to_ne_bytes());
    if let Some(has) = carrier {
        message.extend(5_u16.to_ne_bytes());
        message.extend(CARRIER.to_ne_bytes());
        message.extend([u8::from(has), 0, 0, 0]);
    }
    message
}

fn request(message: &[u8]) -> io::Result<()> {
    // The protocol without a number is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, message, SendFlags::empty())?;
    answer(&socket)
}

/// The kernel's acknowledgement, which it gives before `send` returns: `nlmsghdr`, and an error
/// number that is 0 on success.
fn answer(socket: impl AsFd) -> io::Result<()> {
    let mut bytes = [0; 256];
    let (len, _) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
    let number = bytes[..len].get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|n| n.try_into().ok());
    match number.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Closes all descriptors from 3 on, except on the standard streams: those that a process inherited
/// from one that opened them without `FD_CLOEXEC`.
pub fn close_inherited() {
    // SAFETY: takes numbers only. A caller that has opened nothing yet owns none of them.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_namespace::{in_namespace, sh, veth};

    #[test]
    fn an_interface_that_is_set_down_takes_the_carrier_of_its_peer() {
        in_namespace(|| {
            veth(1500, 1);
            sh("ip link show ea | grep -q LOWER_UP");
            set("ea", Setting::Down).unwrap();
            sh("ip link show eb | grep -q NO-CARRIER");
            set("ea", Setting::Up).unwrap();
            sh("ip link show eb | grep -q LOWER_UP");
        });
    }

    #[test]
    fn what_has_a_cable_keeps_its_carrier_and_what_is_not_there_is_named() {
        in_namespace(|| {
            veth(1500, 1);
            assert!(set("ea", Setting::Carrier(false)).is_err());
            assert!(matches!(
                set("nothere0", Setting::Up),
                Err(NetdevError::NoSuchInterface { .. })
            ));
        });
    }
}
