//! Batches of frames per system call, in preallocated memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libc::c_int;

use crate::segment::{OFFLOAD_BYTES, Offload};

const TAG_BYTES: usize = 4;
/// Bytes before each frame: space for a VLAN tag, and alignment of IP headers.
const HEADROOM: usize = 18;
/// Longest frame that the kernel builds with its usual limits: an IP packet, an Ethernet header,
/// two tags.
const FRAME_BYTES: usize = 65535 + 14 + 2 * TAG_BYTES;
const STRIDE: usize = (HEADROOM + FRAME_BYTES).next_multiple_of(64);
/// Upper bound of a frame's age; a serviced port reads frames sooner.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Length of a `cmsghdr`: length, level, type.
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

/// Ancillary data: a timestamp and a `tpacket_auxdata`.
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
    /// Accepts frames to other hosts.
    takes_all: bool,
    headers: Box<[libc::mmsghdr]>,
    /// Two per frame: the offload description, and the frame.
    parts: Box<[libc::iovec]>,
    addresses: Box<[libc::sockaddr_ll]>,
    controls: Box<[Control]>,
    offloads: Box<[[u8; OFFLOAD_BYTES]]>,
    buffers: Box<[u8]>,
    /// Wall-clock time of the last call's return, in nanoseconds; only if frames are stamped.
    received_at: Option<u128>,
    stamps: bool,
}

// SAFETY: the pointers in `headers` and `parts` are written and used in `receive` alone, which a
// thread reaches only with exclusive access.
unsafe impl Send for ReceiveBatch {}

/// A frame from the kernel.
pub(crate) struct Received<'a> {
    pub(crate) frame: &'a mut [u8],
    pub(crate) offload: Offload,
    /// Its VLAN tag was restored.
    pub(crate) is_tagged: bool,
    /// Time from its arrival to the system call that read it.
    pub(crate) age: Option<Duration>,
}

/// Why a message holds no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoFrame {
    /// Longer than the buffer.
    TooLong,
    TooShort,
    /// Sent by this host, or to another host while not promiscuous.
    NotForUs,
}

impl ReceiveBatch {
    /// Maximum frames per call.
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
            // The system commits these pages when long frames arrive.
            buffers: vec![0; STRIDE * Self::FRAMES].into(),
            received_at: None,
            stamps,
        }
    }

    /// Reads up to `max` frames, at most [`Self::FRAMES`], and returns their number.
    ///
    /// # Errors
    /// The kernel's error, if no frame was read.
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

    /// The frame in message `at`, with the VLAN tag that the kernel had stripped.
    ///
    /// Call once per message: it modifies the buffer.
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
        // The tag follows both addresses.
        buffer.copy_within(HEADROOM..HEADROOM + 12, start);
        buffer[start + 12..start + 12 + TAG_BYTES].copy_from_slice(&tag);
        let frame = &mut buffer[start..HEADROOM + bytes];
        Ok(Received { frame, offload: offload.shifted(TAG_BYTES), is_tagged: true, age })
    }

    /// The frame in message `at`, after [`Self::open`] has returned it.
    pub(crate) fn frame(&mut self, at: usize, is_tagged: bool) -> &mut [u8] {
        let bytes =
            (self.headers[at].msg_len as usize).saturating_sub(OFFLOAD_BYTES).min(FRAME_BYTES);
        let start = HEADROOM - if is_tagged { TAG_BYTES } else { 0 };
        &mut self.buffers[at * STRIDE..][start..HEADROOM + bytes]
    }
}

/// Wall-clock time in nanoseconds since 1970, which the kernel's stamps use.
fn clock_of_the_day() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// Age of a frame. `None` if the wall clock was set meanwhile, which puts the stamp into the future
/// or far into the past.
fn age(now: u128, arrival: u128) -> Option<Duration> {
    let age = now
        .checked_sub(arrival)
        .and_then(|age| u64::try_from(age).ok())
        .map(Duration::from_nanos)?;
    (age < AGE_MAX).then_some(age)
}

impl Control {
    /// The data of the wanted kind in the first `len` bytes.
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

    /// Wall-clock time of the frame's arrival, in nanoseconds.
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

/// A ring of slots for frames to the kernel.
pub(crate) struct SendRing {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    arena: Box<[u8]>,
    stride: usize,
    /// Slot of the first waiting frame.
    first: usize,
    /// Number of waiting frames.
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

    /// Builds a frame of `len` bytes in a free slot, which must exist.
    pub(crate) fn build(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let mut slot = self.first + self.waiting;
        if slot >= self.slots() {
            slot -= self.slots();
        }
        fill(&mut self.arena[slot * self.stride..][..len]);
        self.parts[slot].iov_len = len;
        self.waiting += 1;
    }

    /// Passes frames to the kernel, as many as are contiguous in the ring, and returns how many it
    /// accepted. They stay in the ring.
    ///
    /// # Errors
    /// The error for the first frame.
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

    /// Removes the first waiting frame, and returns its length.
    pub(crate) fn pop(&mut self) -> usize {
        let len = self.parts[self.first].iov_len;
        self.first = if self.first + 1 == self.slots() { 0 } else { self.first + 1 };
        self.waiting -= 1;
        len
    }
}
