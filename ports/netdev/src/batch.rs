//! Many frames in one system call, in memory that was laid out once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libc::c_int;

use crate::segment::{OFFLOAD_BYTES, Offload};

const TAG_BYTES: usize = 4;
/// In front of each frame, so that a VLAN tag fits in and IP headers are aligned.
const HEADROOM: usize = 18;
/// Longest frame that the kernel makes with the usual limits: an IP packet, an Ethernet header, two
/// tags.
const FRAME_BYTES: usize = 65535 + 14 + 2 * TAG_BYTES;
const STRIDE: usize = (HEADROOM + FRAME_BYTES).next_multiple_of(64);
/// Longer no frame waits for a port that is served.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Length of a `cmsghdr`: length, level, type.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Ancillary data: a time stamp and a `tpacket_auxdata`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 96;
const _: () = assert!(
    2 * CONTROL_HEADER + size_of::<libc::timespec>() + size_of::<libc::tpacket_auxdata>()
        <= CONTROL_BYTES
);

/// Frames from the kernel.
pub(crate) struct ReceiveBatch {
    /// Takes frames to other hosts too.
    takes_all: bool,
    headers: Box<[libc::mmsghdr]>,
    /// Two for each frame: the offload, and the frame.
    parts: Box<[libc::iovec]>,
    addresses: Box<[libc::sockaddr_ll]>,
    controls: Box<[Control]>,
    offloads: Box<[[u8; OFFLOAD_BYTES]]>,
    buffers: Box<[u8]>,
    /// When the last call came back, by the clock of the day, in nanoseconds; only where frames are
    /// stamped.
    received_at: Option<u128>,
    stamps: bool,
}

// SAFETY: the pointers in `headers` and `parts` are written and used in `receive` alone, which a
// thread reaches only with exclusive access.
unsafe impl Send for ReceiveBatch {}

/// A frame as the kernel gave it.
pub(crate) struct Received<'a> {
    pub(crate) frame: &'a mut [u8],
    pub(crate) offload: Offload,
    /// It got its VLAN tag back.
    pub(crate) is_tagged: bool,
    /// How long before the call that took it from the kernel it arrived.
    pub(crate) age: Option<Duration>,
}

/// Why there is no frame in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoFrame {
    /// Longer than the buffer.
    TooLong,
    TooShort,
    /// Sent by this host, or to another one and not asked for.
    NotForUs,
}

impl ReceiveBatch {
    /// Frames in one call at most.
    pub(crate) const FRAMES: usize = 64;

    pub(crate) fn new(takes_all: bool, stamps: bool) -> Self {
        // SAFETY: integers and null pointers, all of which may be zero.
        let (header, address): (libc::mmsghdr, libc::sockaddr_ll) = unsafe { std::mem::zeroed() };
        let part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            takes_all,
            headers: vec![header; Self::FRAMES].into(),
            parts: vec![part; 2 * Self::FRAMES].into(),
            addresses: vec![address; Self::FRAMES].into(),
            controls: vec![Control([0; CONTROL_BYTES]); Self::FRAMES].into(),
            offloads: vec![[0; OFFLOAD_BYTES]; Self::FRAMES].into(),
            // Memory that is taken when frames as long come.
            buffers: vec![0; STRIDE * Self::FRAMES].into(),
            received_at: None,
            stamps,
        }
    }

    /// Takes up to `max` frames from the kernel, [`Self::FRAMES`] at most, and returns how many
    /// there were.
    ///
    /// # Errors
    /// What the kernel answered, when there is no frame.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, max: usize) -> io::Result<usize> {
        let wanted = max.min(Self::FRAMES);
        let buffers = self.buffers.as_mut_ptr();
        for at in 0..wanted {
            let buffer = buffers.wrapping_add(at * STRIDE + HEADROOM);
            self.parts[2 * at] = libc::iovec {
                iov_base: (&raw mut self.offloads[at]).cast(),
                iov_len: OFFLOAD_BYTES,
            };
            self.parts[2 * at + 1] = libc::iovec { iov_base: buffer.cast(), iov_len: FRAME_BYTES };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut self.addresses[at]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            header.msg_iov = &raw mut self.parts[2 * at];
            header.msg_iovlen = 2;
            header.msg_control = (&raw mut self.controls[at]).cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
        }
        // SAFETY: the first `wanted` headers point to an address, ancillary data and parts of the
        // lengths they name, and these to memory of theirs; all are in boxes of `self`, which is
        // borrowed exclusively.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error());
        self.received_at = self.stamps.then(clock_of_the_day);
        received
    }

    /// The frame in message `at`, with the VLAN tag that the kernel took off.
    ///
    /// To be called once for each: it works on the buffer.
    pub(crate) fn open(&mut self, at: usize) -> Result<Received<'_>, NoFrame> {
        let header = &self.headers[at];
        let kind = self.addresses[at].sll_pkttype;
        let is_outgoing = matches!(kind, libc::PACKET_OUTGOING | libc::PACKET_LOOPBACK);
        if is_outgoing || (kind == libc::PACKET_OTHERHOST && !self.takes_all) {
            return Err(NoFrame::NotForUs);
        }
        let bytes = (header.msg_len as usize).saturating_sub(OFFLOAD_BYTES);
        if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || bytes > FRAME_BYTES {
            return Err(NoFrame::TooLong);
        }
        if bytes < longhaul_port::FRAME_BYTES_MIN {
            return Err(NoFrame::TooShort);
        }
        let offload = Offload::parse(&self.offloads[at]);
        let (control, len) = (&self.controls[at], header.msg_hdr.msg_controllen);
        let tag = control.tag(len);
        let age = self.received_at.and_then(|now| age(now, control.arrival(len)?));
        let buffer = &mut self.buffers[at * STRIDE..(at + 1) * STRIDE];
        let Some(tag) = tag else {
            return Ok(Received {
                frame: &mut buffer[HEADROOM..HEADROOM + bytes],
                offload,
                is_tagged: false,
                age,
            });
        };
        let start = HEADROOM - TAG_BYTES;
        // Behind both addresses.
        buffer.copy_within(HEADROOM..HEADROOM + 12, start);
        buffer[start + 12..start + 12 + TAG_BYTES].copy_from_slice(&tag);
        let frame = &mut buffer[start..HEADROOM + bytes];
        Ok(Received { frame, offload: offload.shifted(TAG_BYTES), is_tagged: true, age })
    }

    /// The frame in message `at` again, after [`Self::open`] gave one.
    pub(crate) fn frame(&mut self, at: usize, is_tagged: bool) -> &mut [u8] {
        let bytes =
            (self.headers[at].msg_len as usize).saturating_sub(OFFLOAD_BYTES).min(FRAME_BYTES);
        let start = HEADROOM - if is_tagged { TAG_BYTES } else { 0 };
        &mut self.buffers[at * STRIDE..][start..HEADROOM + bytes]
    }
}

/// In nanoseconds since 1970: the clock of the kernel's stamps.
fn clock_of_the_day() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// The age of a frame, unless that clock was set in between: a stamp may lie in the future then, or
/// long ago.
fn age(now: u128, arrival: u128) -> Option<Duration> {
    let age = now
        .checked_sub(arrival)
        .and_then(|age| u64::try_from(age).ok())
        .map(Duration::from_nanos)?;
    (age < AGE_MAX).then_some(age)
}

impl Control {
    /// The data of that kind in the first `len` bytes.
    fn find(&self, len: usize, wanted: (c_int, c_int)) -> Option<&[u8]> {
        let mut rest = self.0.get(..len)?;
        loop {
            let (header, behind) = rest.split_at_checked(CONTROL_HEADER)?;
            let (length, kind) = header.split_first_chunk()?;
            let length = usize::from_ne_bytes(*length);
            let data = behind.get(..length.checked_sub(CONTROL_HEADER)?)?;
            let (level, kind) = kind.split_first_chunk()?;
            let found = (c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind.first_chunk()?));
            if found == wanted {
                return Some(data);
            }
            rest = rest.get(length.next_multiple_of(size_of::<usize>())..)?;
        }
    }

    /// When the frame arrived, by the clock of the day, in nanoseconds.
    fn arrival(&self, len: usize) -> Option<u128> {
        let data = self.find(len, (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS))?;
        let (seconds, nanoseconds) = data.split_first_chunk()?;
        let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
        let nanoseconds = u64::try_from(i64::from_ne_bytes(*nanoseconds.first_chunk()?)).ok()?;
        Some(u128::from(seconds) * 1_000_000_000 + u128::from(nanoseconds))
    }

    /// The VLAN tag in the first `len` bytes.
    fn tag(&self, len: usize) -> Option<[u8; TAG_BYTES]> {
        let data = self.find(len, (libc::SOL_PACKET, libc::PACKET_AUXDATA))?;
        let word = |at: usize| Some(u16::from_ne_bytes(*data.get(at..)?.first_chunk()?));
        let status = u32::from_ne_bytes(*data.first_chunk()?);
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let control = word(std::mem::offset_of!(libc::tpacket_auxdata, tp_vlan_tci))?;
        let has_kind = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let kind = if has_kind {
            word(std::mem::offset_of!(libc::tpacket_auxdata, tp_vlan_tpid))?
        } else {
            libc::ETH_P_8021Q as u16
        };
        let ([a, b], [c, d]) = (kind.to_be_bytes(), control.to_be_bytes());
        Some([a, b, c, d])
    }
}

/// Frames to the kernel: a ring of slots.
pub(crate) struct SendRing {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    arena: Box<[u8]>,
    stride: usize,
    /// The slot of the first frame that waits.
    first: usize,
    /// Frames that wait.
    waiting: usize,
}

// SAFETY: the pointers in `headers` and `parts` are written and used in `send` alone, which a
// thread reaches only with exclusive access.
unsafe impl Send for SendRing {}

impl SendRing {
    pub(crate) fn new(slots: usize, frame_bytes_max: usize) -> Self {
        // SAFETY: integers and null pointers, all of which may be zero.
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let stride = frame_bytes_max.next_multiple_of(64);
        let part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            headers: vec![header; slots].into(),
            parts: vec![part; slots].into(),
            arena: vec![0; stride * slots].into(),
            stride,
            first: 0,
            waiting: 0,
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.headers.len()
    }

    pub(crate) fn room(&self) -> usize {
        self.slots() - self.waiting
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Has a frame of `len` bytes built in a free slot, of which there is one.
    pub(crate) fn build(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let mut slot = self.first + self.waiting;
        if slot >= self.slots() {
            slot -= self.slots();
        }
        fill(&mut self.arena[slot * self.stride..][..len]);
        self.parts[slot].iov_len = len;
        self.waiting += 1;
    }

    /// Hands frames to the kernel, as many as lie behind each other, and returns how many it took.
    /// They still wait.
    ///
    /// # Errors
    /// What the first frame met.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let run = self.waiting.min(self.slots() - self.first);
        let arena = self.arena.as_mut_ptr();
        for slot in self.first..self.first + run {
            self.parts[slot].iov_base = arena.wrapping_add(slot * self.stride).cast();
            let header = &mut self.headers[slot].msg_hdr;
            header.msg_iov = &raw mut self.parts[slot];
            header.msg_iovlen = 1;
        }
        // SAFETY: each header points to one part, and that to as many bytes of its slot of the
        // arena as were built; all are in boxes of `self`, which is borrowed exclusively.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers[self.first..].as_mut_ptr(),
                run as libc::c_uint,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Forgets the first frame that waits, and returns its length.
    pub(crate) fn pop(&mut self) -> usize {
        let len = self.parts[self.first].iov_len;
        self.first = if self.first + 1 == self.slots() { 0 } else { self.first + 1 };
        self.waiting -= 1;
        len
    }
}
