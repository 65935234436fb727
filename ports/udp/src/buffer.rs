//! What the system grants for receiving, and what fits into it.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::socket::{ask_for_receive_buffer, option};

/// The receive buffer that a port would get which asks for `bytes`
/// ([`crate::UdpConfig::receive_buffer_bytes`]), in the same bytes: all of it with `CAP_NET_ADMIN`,
/// else up to `net.core.rmem_max`.
///
/// # Errors
/// When the system gives no socket to try it on.
pub fn obtainable_receive_buffer(bytes: usize) -> io::Result<usize> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .or_else(|_| {
            socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        })?;
    ask_for_receive_buffer(socket.as_fd(), bytes)?;
    let granted = option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    // The kernel doubles what it is asked for, to have room for its own.
    Ok(usize::try_from(granted).unwrap_or(0) / 2)
}

/// How many packets with `path_mtu` bytes of payload may be under way to a port with a receive
/// buffer of `receive_buffer_bytes` without being lost there; at least 4.
///
/// The kernel counts the memory that a packet lies in, up to twice its length and 1 KiB, against
/// twice the buffer. Half of that is left to other senders.
#[must_use]
pub fn window_packets(receive_buffer_bytes: usize, path_mtu: usize) -> u32 {
    let packets = receive_buffer_bytes / (2 * path_mtu + 1024);
    u32::try_from(packets).unwrap_or(u32::MAX).max(4)
}
