//! Sends and receives whole frames on an interface.

use super::{LIMIT, Namespace};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

/// An AF_PACKET socket that receives all frames of an interface.
pub struct Raw {
    socket: OwnedFd,
}

impl Raw {
    /// Opens `interface` of `namespace`.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn open(namespace: &Namespace, interface: &str) -> Self {
        namespace.inside(|| Self::here(interface))
    }

    /// Opens `interface` of this thread's namespace.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn here(interface: &str) -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: socket has no preconditions.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all)) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor was just created and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = std::ffi::CString::new(interface).expect("a name");
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        // SAFETY: the name is a C string that lives through the call.
        address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the address is only read during the call.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        for (level, option, value) in [
            (libc::SOL_PACKET, libc::PACKET_AUXDATA, 1_i32),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, 8 << 20),
        ] {
            let len = size_of_val(&value) as libc::socklen_t;
            // SAFETY: the descriptor is open, and the value is only read during the call.
            unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), len) };
        }
        Raw { socket }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the descriptor is open, and pointer and length are those of the buffer.
        let sent =
            unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next incoming frame that `is_wanted`, with the VLAN tag restored that the kernel
    /// removes.
    ///
    /// # Panics
    /// If none arrives.
    pub fn receive(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let deadline = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < deadline, "the frame does not come");
            if let Some(frame) = self.try_receive()
                && is_wanted(&frame)
            {
                return frame;
            }
        }
    }

    /// The next incoming frame. `None`: nothing arrived for a moment, or an outgoing frame was
    /// seen.
    pub fn try_receive(&self) -> Option<Vec<u8>> {
        self.try_receive_stamped().map(|(frame, _)| frame)
    }

    /// Like [`Raw::try_receive`], with the time of the kernel's reception in nanoseconds since
    /// 1970.
    pub fn try_receive_stamped(&self) -> Option<(Vec<u8>, u64)> {
        let mut ready =
            libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one live pollfd.
        if unsafe { libc::poll(&raw mut ready, 1, 100) } != 1 {
            return None;
        }
        let (mut frame, mut control) = (vec![0_u8; 70_000], [0_u64; 16]);
        // SAFETY: all-zero is a valid sockaddr_ll.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut piece = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of_val(&from) as libc::socklen_t;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: every pointer in the message is to a live buffer of the given length.
        let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
        if len < 0 || from.sll_pkttype == libc::PACKET_OUTGOING {
            return None;
        }
        frame.truncate(len as usize);
        let mut came_at = 0;
        // SAFETY: the message was filled in by recvmsg.
        let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !header.is_null() {
            // SAFETY: the header is the kernel's and lies in the control buffer.
            let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
            // SAFETY: as above; the data is only read according to its type.
            let data = unsafe { libc::CMSG_DATA(header) };
            match (level, kind) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    // SAFETY: data of this type is a timespec.
                    let at = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                    came_at = at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64;
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    // SAFETY: data of this type is a tpacket_auxdata.
                    let aux = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                    put_tag_back(&mut frame, &aux);
                }
                _ => {}
            }
            // SAFETY: the header belongs to this message.
            header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
        }
        Some((frame, came_at))
    }
}

/// Restores the VLAN tag that the kernel has removed.
fn put_tag_back(frame: &mut Vec<u8>, aux: &libc::tpacket_auxdata) {
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
        let kind = if aux.tp_vlan_tpid == 0 { 0x8100 } else { aux.tp_vlan_tpid };
        let tag = [kind.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes()].concat();
        frame.splice(12..12, tag);
    }
}
