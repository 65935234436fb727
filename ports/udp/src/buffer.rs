//! The receive buffer that the system grants, and the window that fits it.

use std::io;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::socket::{ask_for_receive_buffer, option};

/// Size of the receive buffer that a port gets if it asks for `bytes`
/// ([`crate::UdpConfig::receive_buffer_bytes`]), in the same unit: all of them with
/// `CAP_NET_ADMIN`, otherwise at most `net.core.rmem_max`.
///
/// # Errors
/// If the system provides no socket to test with.
pub fn obtainable_receive_buffer(bytes: usize) -> io::Result<usize> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .or_else(|_| {
            socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        })?;
    ask_for_receive_buffer(socket.as_fd(), bytes)?;
    let granted = option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
    // The kernel doubles the requested size, for its own overhead.
    Ok(usize::try_from(granted).unwrap_or(0) / 2)
}

/// Number of packets with `path_mtu` bytes of payload that may be in flight to a port with a
/// receive buffer of `receive_buffer_bytes` without loss there; at least 4.
///
/// The kernel counts the memory that a packet occupies, up to twice its length and 1 KiB, against
/// twice the buffer. Half of it is left for other senders.
#[must_use]
pub fn window_packets(receive_buffer_bytes: usize, path_mtu: usize) -> u32 {
    let packets = receive_buffer_bytes / (2 * path_mtu + 1024);
    u32::try_from(packets).unwrap_or(u32::MAX).max(4)
}
