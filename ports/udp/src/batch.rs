//! Batches of datagrams per system call, without allocation.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::control::{Control, SocketAddress};

/// Messages for one `sendmmsg`. A message is a list of parts, slices of memory that the caller
/// owns.
pub(crate) struct SendBatch {
    headers: Box<[libc::mmsghdr]>,
    addresses: Box<[SocketAddress]>,
    controls: Box<[Control]>,
    /// For each message, the index after its last part.
    ends: Box<[usize]>,
    parts: Vec<libc::iovec>,
    len: usize,
}

// SAFETY: the pointers in `headers` and `parts` are written by `send` and `push_part` and read by
// the system call in `send` alone, which a thread reaches only with exclusive access.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Maximum messages per call.
    pub(crate) const MESSAGES: usize = 64;

    /// `parts_max`: parts of all messages together.
    pub(crate) fn new(parts_max: usize) -> Self {
        Self {
            headers: vec![empty_header(); Self::MESSAGES].into_boxed_slice(),
            addresses: vec![SocketAddress::EMPTY; Self::MESSAGES].into_boxed_slice(),
            controls: vec![Control::EMPTY; Self::MESSAGES].into_boxed_slice(),
            ends: vec![0; Self::MESSAGES].into_boxed_slice(),
            parts: Vec::with_capacity(parts_max),
            len: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.len = 0;
    }

    /// Number of messages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Parts in the first `messages` messages.
    pub(crate) fn parts_in(&self, messages: usize) -> usize {
        messages.checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// Starts a message, and returns its ancillary data to be filled in.
    pub(crate) fn push_message(&mut self, to: SocketAddress) -> &mut Control {
        let at = self.len;
        self.len += 1;
        self.addresses[at] = to;
        self.ends[at] = self.parts.len();
        let control = &mut self.controls[at];
        control.clear();
        control
    }

    /// Ancillary data of the last message.
    pub(crate) fn control(&mut self) -> &mut Control {
        &mut self.controls[self.len - 1]
    }

    /// Appends a part to the last message.
    pub(crate) fn push_part(&mut self, part: &[u8]) {
        self.parts
            .push(libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        self.ends[self.len - 1] = self.parts.len();
    }

    /// Sends messages, and returns how many were sent, at least one. There must be at least one.
    ///
    /// # Errors
    /// The error for the first message.
    ///
    /// # Safety
    /// Every part pushed since `clear` must still be alive.
    pub(crate) unsafe fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut first_part = 0;
        for at in 0..self.len {
            let control = &mut self.controls[at];
            let address = &mut self.addresses[at];
            let parts = &mut self.parts[first_part..self.ends[at]];
            first_part = self.ends[at];
            let header = &mut self.headers[at].msg_hdr;
            header.msg_namelen = address.len() as libc::socklen_t;
            header.msg_name = address.as_mut_ptr().cast();
            header.msg_iov = parts.as_mut_ptr();
            header.msg_iovlen = parts.len() as _;
            header.msg_controllen = control.len() as _;
            header.msg_control =
                if control.len() == 0 { ptr::null_mut() } else { control.as_mut_ptr().cast() };
        }
        // SAFETY: each of the first `len` headers points to an address, ancillary data and parts of
        // the lengths it names, in boxes and a vector that do not move; the caller guarantees the
        // parts, which the kernel only reads.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.len as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Metadata of a datagram, or of a run of datagrams.
pub(crate) struct Received {
    pub(crate) bytes: usize,
    /// The datagram was longer than the buffer.
    pub(crate) is_cut: bool,
    pub(crate) from: SocketAddress,
}

/// Buffers of the messages of one `recvmmsg`.
pub(crate) struct ReceiveBatch {
    headers: Box<[libc::mmsghdr]>,
    addresses: Box<[SocketAddress]>,
    controls: Box<[Control]>,
    parts: Box<[libc::iovec]>,
    buffers: Box<[u8]>,
}

// SAFETY: the pointers in `headers` and `parts` are written and used in `receive` alone, which a
// thread reaches only with exclusive access.
unsafe impl Send for ReceiveBatch {}

/// Bytes before each datagram, for headers.
pub(crate) const HEADROOM: usize = 64;
/// Maximum length of a datagram, or of a run of datagrams.
const DATAGRAM_BYTES_MAX: usize = 65536;
const STRIDE: usize = HEADROOM + DATAGRAM_BYTES_MAX;

impl ReceiveBatch {
    /// Maximum messages per call. The system commits the pages of their buffers on first use.
    pub(crate) const MESSAGES: usize = 32;

    pub(crate) fn new() -> Self {
        let part = libc::iovec { iov_base: ptr::null_mut(), iov_len: DATAGRAM_BYTES_MAX };
        Self {
            headers: vec![empty_header(); Self::MESSAGES].into_boxed_slice(),
            addresses: vec![SocketAddress::EMPTY; Self::MESSAGES].into_boxed_slice(),
            controls: vec![Control::EMPTY; Self::MESSAGES].into_boxed_slice(),
            parts: vec![part; Self::MESSAGES].into_boxed_slice(),
            buffers: vec![0; Self::MESSAGES * STRIDE].into_boxed_slice(),
        }
    }

    /// Receives up to `max` messages without blocking. They replace those of the last call.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let max = max.min(Self::MESSAGES);
        let buffers = self.buffers.as_mut_ptr();
        for at in 0..max {
            self.parts[at].iov_base = buffers.wrapping_add(at * STRIDE + HEADROOM).cast();
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = self.addresses[at].as_mut_ptr().cast();
            header.msg_namelen = SocketAddress::CAPACITY as libc::socklen_t;
            header.msg_iov = &raw mut self.parts[at];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[at].as_mut_ptr().cast();
            header.msg_controllen = Control::CAPACITY as _;
            header.msg_flags = 0;
        }
        // SAFETY: each of the first `max` headers points to an address, ancillary data, a part and
        // through it a buffer of the lengths it names, all in boxes that nothing moves; the buffers
        // are `STRIDE` apart and do not overlap. A null time limit is allowed.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                max as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Metadata of message `at` of the last call.
    pub(crate) fn message(&self, at: usize) -> Received {
        let header = &self.headers[at];
        Received {
            bytes: (header.msg_len as usize).min(DATAGRAM_BYTES_MAX),
            is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            from: self.addresses[at],
        }
    }

    /// Calls `each` with level, type and data of each item of ancillary data of message `at`.
    pub(crate) fn read_control(
        &self,
        at: usize,
        each: impl FnMut(libc::c_int, libc::c_int, &[u8]),
    ) {
        self.controls[at].read(self.headers[at].msg_hdr.msg_controllen, each);
    }

    /// The buffer of message `at`. The message starts at [`HEADROOM`].
    pub(crate) fn buffer(&mut self, at: usize) -> &mut [u8] {
        &mut self.buffers[at * STRIDE..(at + 1) * STRIDE]
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: a structure of integers and pointers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}
