//! System calls on the sockets of a port.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::memory::{Buffers, Layout};

fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T: Copy>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the descriptor is open, and the value is live and of the given length.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket that makes the interface `index` promiscuous while it is open, and receives nothing.
pub(crate) fn promiscuous(index: u32) -> io::Result<OwnedFd> {
    let socket = socket(libc::AF_PACKET, libc::SOCK_RAW)?;
    let request = libc::packet_mreq {
        mr_ifindex: index as c_int,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)?;
    Ok(socket)
}

/// The rings of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ring {
    Receive,
    Transmit,
    Fill,
    Completion,
}

impl Ring {
    /// Offset of its mapping.
    pub(crate) fn offset(self) -> u64 {
        match self {
            Ring::Receive => libc::XDP_PGOFF_RX_RING as u64,
            Ring::Transmit => libc::XDP_PGOFF_TX_RING as u64,
            Ring::Fill => libc::XDP_UMEM_PGOFF_FILL_RING,
            Ring::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING,
        }
    }
}

/// The kernel's counters of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) rx_dropped: u64,
    pub(crate) tx_invalid: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) rx_no_buffer: u64,
}

impl Statistics {
    /// Sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            rx_dropped: self.rx_dropped + other.rx_dropped,
            tx_invalid: self.tx_invalid + other.tx_invalid,
            rx_ring_full: self.rx_ring_full + other.rx_ring_full,
            rx_no_buffer: self.rx_no_buffer + other.rx_no_buffer,
        }
    }
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(crate) struct XdpSocket(OwnedFd);

impl XdpSocket {
    pub(crate) fn new() -> io::Result<Self> {
        socket(libc::AF_XDP, libc::SOCK_RAW).map(Self)
    }

    /// A socket that another process made. `None`: it is none of AF_XDP.
    pub(crate) fn adopt(socket: OwnedFd) -> Option<Self> {
        let domain = rustix::net::sockopt::socket_domain(&socket).ok()?;
        (i32::from(domain.as_raw()) == libc::AF_XDP).then_some(Self(socket))
    }

    /// Registers these buffers with the socket.
    pub(crate) fn register(&self, buffers: &Buffers) -> io::Result<()> {
        // The first version of the layout, which every kernel accepts.
        let request = libc::xdp_umem_reg_v1 {
            addr: buffers.address(),
            len: buffers.bytes() as u64,
            chunk_size: Buffers::EACH as u32,
            headroom: 0,
        };
        set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
    }

    /// Creates a ring with this number of entries.
    pub(crate) fn make_ring(&self, ring: Ring, entries: u32) -> io::Result<()> {
        let option = match ring {
            Ring::Receive => libc::XDP_RX_RING,
            Ring::Transmit => libc::XDP_TX_RING,
            Ring::Fill => libc::XDP_UMEM_FILL_RING,
            Ring::Completion => libc::XDP_UMEM_COMPLETION_RING,
        };
        set(&self.0, libc::SOL_XDP, option, &entries)
    }

    /// Offsets of a ring's parts in its mapping.
    pub(crate) fn layout(&self, ring: Ring) -> io::Result<Layout> {
        // Producer, consumer, entries, flags; for receive, transmit, fill and completion.
        let offsets: [u64; 16] = self.get(libc::XDP_MMAP_OFFSETS)?;
        let first = match ring {
            Ring::Receive => 0,
            Ring::Transmit => 4,
            Ring::Fill => 8,
            Ring::Completion => 12,
        };
        let [producer, consumer, entries, flags] = std::array::from_fn(|at| offsets[first + at]);
        Ok(Layout { producer, consumer, flags, entries })
    }

    /// Binds the socket to a queue of the interface `index`, with `XDP_` `flags`; `shared` is the
    /// socket whose buffers it shares.
    pub(crate) fn bind(
        &self,
        index: u32,
        queue: u32,
        flags: u16,
        shared: Option<&XdpSocket>,
    ) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: if shared.is_some() { libc::XDP_SHARED_UMEM } else { flags },
            sxdp_ifindex: index,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.map_or(0, |shared| shared.0.as_raw_fd() as u32),
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the address is live and of the given length.
        let bound = unsafe { libc::bind(self.0.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Requests space for `bytes` bytes of frames that the kernel has copied but not sent; up to
    /// the system's limit if unprivileged.
    pub(crate) fn set_send_buffer(&self, bytes: usize) {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let _ = set(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| set(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes));
    }

    /// True if buffers are shared with the device.
    pub(crate) fn has_zero_copy(&self) -> bool {
        self.get::<u32>(libc::XDP_OPTIONS)
            .is_ok_and(|flags| flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        // Early kernels only fill in the first three.
        let [rx_dropped, _, tx_invalid, rx_ring_full, rx_no_buffer, _] =
            self.get::<[u64; 6]>(libc::XDP_STATISTICS).unwrap_or_default();
        Statistics { rx_dropped, tx_invalid, rx_ring_full, rx_no_buffer }
    }

    /// Makes the kernel read the transmit ring, and send.
    #[inline]
    pub(crate) fn call_to_send(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open; no bytes and no address are passed.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the driver read the fill ring.
    #[inline]
    pub(crate) fn call_to_fill(&self) {
        // What fails is the interface, of which others tell.
        // SAFETY: the descriptor is open; no bytes and no address are passed.
        let _ = unsafe {
            let (none, no_address) = (std::ptr::null_mut(), std::ptr::null_mut());
            libc::recvfrom(
                self.0.as_raw_fd(),
                none,
                0,
                libc::MSG_DONTWAIT,
                no_address,
                std::ptr::null_mut(),
            )
        };
    }

    /// `T` must be an integer or an array of integers, for which all bit patterns are valid.
    fn get<T: Copy + Default>(&self, option: c_int) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the descriptor is open; value and length are live, and the kernel writes at most
        // the given length.
        let result = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(self.0.as_raw_fd(), libc::SOL_XDP, option, value, &raw mut len)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
