//! The sockets of a packet port.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::class::{Class, PreferredQps};
use crate::config::PacketConfig;
use crate::part::FrameSubset;

/// A packet socket, bound to an interface, non-blocking.
pub(crate) struct PacketSocket {
    socket: OwnedFd,
    /// Protocol that it receives, in network byte order; 0: none.
    protocol: u16,
}

impl PacketSocket {
    /// A socket that receives nothing until it is bound.
    fn new(protocol: c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { socket, protocol: (protocol as u16).to_be() })
    }

    /// Protocol that a socket with this configuration receives.
    pub(crate) fn protocol(config: &PacketConfig) -> c_int {
        if config.part == FrameSubset::Nothing { 0 } else { libc::ETH_P_ALL }
    }

    /// A socket that receives all incoming or all wanted frames, with their descriptions.
    pub(crate) fn receiving(config: &PacketConfig, class: Option<Class>) -> io::Result<Self> {
        let this = Self::new(Self::protocol(config))?;
        this.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        this.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
        if config.stamps {
            this.set::<c_int>(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
        }
        // Kernels before 4.20 lack it; the receiver checks again.
        let _ = this.set::<c_int>(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1);
        this.set_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.receive_buffer_bytes)?;
        let of_class = class.map(|class| class.program(&PreferredQps::default(), config.part));
        let wanted = config.wanted.map(|wanted| wanted.program());
        of_class
            .or(wanted)
            .or_else(|| config.part.program())
            .map_or(Ok(()), |program| this.filter(program))?;
        Ok(this)
    }

    /// A socket that another process made with the same configuration. `None`: it is no packet
    /// socket.
    pub(crate) fn adopt(socket: OwnedFd, protocol: c_int) -> Option<Self> {
        let this = Self { socket, protocol: (protocol as u16).to_be() };
        let of = |option| this.get::<[c_int; 1]>(libc::SOL_SOCKET, option).ok().map(|[it]| it);
        let is_packet_socket = of(libc::SO_DOMAIN) == Some(libc::AF_PACKET)
            && of(libc::SO_TYPE) == Some(libc::SOCK_RAW);
        is_packet_socket.then_some(this)
    }

    /// Index of the interface to which it is bound. `None`: to none that exists.
    pub(crate) fn bound_to(&self) -> io::Result<Option<u32>> {
        // SAFETY: integers, all of which may be zero.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the descriptor is open; address and length are live, and the kernel writes at
        // most the given length.
        let named = unsafe {
            let address = (&raw mut address).cast();
            libc::getsockname(self.socket.as_raw_fd(), address, &raw mut len)
        };
        if named < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(u32::try_from(address.sll_ifindex).ok().filter(|index| *index > 0))
    }

    /// Restricts reception to frames that `program` accepts. Needs no privilege.
    pub(crate) fn filter(&self, mut program: Vec<libc::sock_filter>) -> io::Result<()> {
        let len = program.len() as u16;
        self.set(
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            &libc::sock_fprog { len, filter: program.as_mut_ptr() },
        )
    }

    /// A socket that sends and receives nothing.
    pub(crate) fn sending(config: &PacketConfig) -> io::Result<Self> {
        let this = Self::new(0)?;
        if config.bypass_queue {
            this.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)?;
        }
        this.set_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.send_buffer_bytes)?;
        Ok(this)
    }

    /// Binds to the interface `index`. Needs no privilege.
    pub(crate) fn bind(&self, index: u32) -> io::Result<()> {
        // SAFETY: integers, all of which may be zero.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = self.protocol;
        address.sll_ifindex = index as c_int;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the address is live and of the given length.
        let bound =
            unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the interface `index` promiscuous while both exist. Needs no privilege.
    pub(crate) fn make_promiscuous(&self, index: u32) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: index as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
    }

    /// Frames lost since the last call because the buffer was full.
    pub(crate) fn take_losses(&self) -> u64 {
        // Received frames, then losses.
        self.get::<[u32; 2]>(libc::SOL_PACKET, libc::PACKET_STATISTICS)
            .map_or(0, |[_, lost]| lost.into())
    }

    /// Requests a buffer size, beyond the system's limit if privileged.
    fn set_buffer(&self, force: c_int, option: c_int, bytes: usize) -> io::Result<()> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set(libc::SOL_SOCKET, force, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, option, &bytes))
    }

    fn set<T: Copy>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the descriptor is open, and the value is live and of the given length.
        let result =
            unsafe { libc::setsockopt(self.socket.as_raw_fd(), level, option, value, len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// `T` must be an int or an array of ints, for which all bit patterns are valid.
    fn get<T: Copy + Default>(&self, level: c_int, option: c_int) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the descriptor is open; value and length are live, and the kernel writes at most
        // the given length.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(self.socket.as_raw_fd(), level, option, value, &raw mut len)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
