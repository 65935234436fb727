//! The socket of a port, with its options.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::c_int;

use crate::config::{UdpConfig, UdpError};

/// An unconnected socket, non-blocking, that sends DF.
pub(crate) struct Socket {
    pub(crate) socket: UdpSocket,
    pub(crate) bind: SocketAddr,
    /// The kernel splits runs of packets.
    pub(crate) can_segment: bool,
    /// Hop limit that the kernel uses by default.
    pub(crate) hop_limit: u8,
}

impl Socket {
    pub(crate) fn bind(config: &UdpConfig) -> Result<Self, UdpError> {
        let mut bind = config.bind;
        bind.set_ip(bind.ip().to_canonical());
        let socket = UdpSocket::bind(bind).map_err(|source| UdpError::binding(bind, source))?;
        let refused = |operation| move |source| UdpError::Io { bind, operation, source };
        socket.set_nonblocking(true).map_err(refused("making the socket non-blocking"))?;
        let this = Self { socket, bind, can_segment: false, hop_limit: 0 };
        this.prepare_headers().map_err(refused("asking for DF and the traffic class"))?;
        ask_for_send_buffer(this.socket.as_fd(), config.send_buffer_bytes)
            .map_err(refused("setting the send buffer"))?;
        ask_for_receive_buffer(this.socket.as_fd(), config.receive_buffer_bytes)
            .map_err(refused("setting the receive buffer"))?;
        let (level, option) = if bind.is_ipv4() {
            (libc::IPPROTO_IP, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS)
        };
        let hop_limit = this.option(level, option).map_err(refused("reading the hop limit"))?;
        let can_segment = config.offload && this.offload();
        Ok(Self { hop_limit: hop_limit as u8, can_segment, ..this })
    }

    /// Sends DF, and receives the traffic class. Only the interface's MTU counts: the socket does
    /// not accept reports of a smaller path MTU, since anybody can forge them.
    fn prepare_headers(&self) -> io::Result<()> {
        if self.bind.is_ipv4() {
            self.set_option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            self.set_option(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
        } else {
            self.set_option(
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            )?;
            self.set_option(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1)?;
            self.set_option(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            // RNICs and kernel rxe send no UDP checksum; the ICRC replaces it.
            self.set_option(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
        }
    }

    /// Enables joining of received runs. Returns whether the kernel can split sent ones.
    fn offload(&self) -> bool {
        let _ = self.set_option(libc::SOL_UDP, libc::UDP_GRO, 1);
        self.set_option(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
    }

    /// Sizes of the send and the receive buffer, in the kernel's bytes: about twice the payload.
    pub(crate) fn buffers(&self) -> io::Result<(usize, usize)> {
        let bytes =
            |option| self.option(libc::SOL_SOCKET, option).map(|bytes| bytes.max(0) as usize);
        Ok((bytes(libc::SO_SNDBUF)?, bytes(libc::SO_RCVBUF)?))
    }

    fn set_option(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        set_option(self.socket.as_fd(), level, option, value)
    }

    fn option(&self, level: c_int, name: c_int) -> io::Result<c_int> {
        option(self.socket.as_fd(), level, name)
    }
}

/// Asks for a send buffer of `bytes`; see [`ask_for_buffer`].
fn ask_for_send_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    ask_for_buffer(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, bytes)
}

/// Asks for a receive buffer of `bytes`; see [`ask_for_buffer`].
pub(crate) fn ask_for_receive_buffer(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    ask_for_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
}

/// Exceeds the system's limit if privileged.
fn ask_for_buffer(
    socket: BorrowedFd<'_>,
    force: c_int,
    option: c_int,
    bytes: usize,
) -> io::Result<()> {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, option, bytes))
}

fn set_option(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as it is borrowed, and the value is a live int of
    // the given length.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a numeric option of a socket.
pub(crate) fn option(socket: BorrowedFd<'_>, level: c_int, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as it is borrowed; value and length are live, and
    // the kernel writes at most the given length.
    let result = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
