//! Sends frames that the caller has built.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use libc::c_int;
use longhaul_port::{DropReason, PortCounters, PortError};

use crate::batch::SendBatch;
use crate::config::UdpConfig;
use crate::control::{Control, SocketAddress};
use crate::counters::UdpCounters;
use crate::headers::{Outgoing, Refusal};
use crate::identification::Identification;
use crate::socket::Socket;

/// Maximum packets per run: the limit of all kernels that support runs.
const SEGMENTS_MAX: usize = 64;
/// Maximum bytes per run, with space for IPv4 and UDP headers.
const RUN_BYTES_MAX: usize = 65507;
/// Number of frames that are passed to the kernel without waiting for a flush, while their bytes
/// are cached.
const PUBLISH_AT: usize = 64;
/// Time before a retry after the kernel had no memory.
pub(crate) const BACK_OFF: Duration = Duration::from_millis(1);

/// Kinds of reported errors. Each is reported once in a port's life; counters count all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    OverMtu,
    Unreachable,
    Refused,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Failure::OverMtu,
            Some(
                libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENETDOWN
                | libc::EHOSTDOWN
                | libc::EACCES
                | libc::EPERM
                | libc::EADDRNOTAVAIL
                | libc::ECONNREFUSED,
            ) => Failure::Unreachable,
            _ => Failure::Refused,
        }
    }

    const fn operation(self) -> &'static str {
        match self {
            Failure::OverMtu => {
                "sending a packet longer than the interface's MTU (set LONGHAUL_PATH_MTU lower: \
                 1024 for a network MTU of 1500; a path MTU of 4096 needs a network MTU of 4192)"
            }
            Failure::Unreachable => "sending to an address that this machine has no way to",
            Failure::Refused => "sending a packet",
        }
    }
}

/// Send path between `transmit` and the kernel.
pub(crate) struct Sender {
    /// Memory of the frames, `stride` bytes per frame.
    arena: Box<[u8]>,
    stride: usize,
    slots: usize,
    /// One per built frame, with the identification that its ICRC covers.
    built: Vec<Outgoing>,
    /// Number of `built` frames that the kernel has accepted.
    sent: usize,
    /// Frames before this index are sent singly, since a run with them was refused.
    single_until: usize,
    batch: SendBatch,
    identification: Identification,
    can_segment: bool,
    own: IpAddr,
    udp_port: u16,
    scope_id: u32,
    hop_limit: u8,
    is_blocked: bool,
    backs_off_until: Option<Instant>,
    reported: [bool; 3],
    /// An error that has not been reported yet.
    failure: Option<PortError>,
}

impl Sender {
    pub(crate) fn new(config: &UdpConfig, socket: &Socket) -> Self {
        let stride = config.frame_bytes_max.next_multiple_of(64);
        let slots = config.transmit_slots;
        let scope_id = match socket.bind {
            std::net::SocketAddr::V6(bind) => bind.scope_id(),
            std::net::SocketAddr::V4(_) => 0,
        };
        Self {
            arena: vec![0; stride * slots].into_boxed_slice(),
            stride,
            slots,
            built: Vec::with_capacity(slots),
            sent: 0,
            single_until: 0,
            batch: SendBatch::new(slots),
            identification: Identification::new(config.frame_bytes_max),
            can_segment: socket.can_segment,
            own: socket.bind.ip(),
            udp_port: socket.bind.port(),
            scope_id,
            hop_limit: socket.hop_limit,
            is_blocked: false,
            backs_off_until: None,
            reported: [false; 3],
            failure: None,
        }
    }

    pub(crate) fn room(&self) -> usize {
        self.slots - self.built.len()
    }

    /// True if runs of packets are passed to the kernel as one.
    pub(crate) fn sends_runs(&self) -> bool {
        self.can_segment
    }

    /// Number of frames that the kernel has not accepted yet.
    pub(crate) fn waiting(&self) -> usize {
        self.built.len() - self.sent
    }

    /// At the last call, the send buffer was full or the kernel had no memory.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Suspends sending for a while: the kernel has no memory, and does not report when it has.
    pub(crate) fn back_off(&mut self) {
        self.is_blocked = true;
        self.backs_off_until = Some(Instant::now() + BACK_OFF);
    }

    /// True while sending is suspended.
    pub(crate) fn is_backing_off(&mut self) -> bool {
        self.backs_off_until = self.backs_off_until.filter(|until| Instant::now() < *until);
        self.backs_off_until.is_some()
    }

    /// True if enough frames wait for an efficient system call.
    pub(crate) fn is_worth_sending(&self) -> bool {
        !self.is_blocked && self.waiting() >= PUBLISH_AT
    }

    /// Reports the first error of its kind; a counter counts the others.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn report(&mut self) -> Result<(), PortError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Builds a frame in a free slot, which must exist, and keeps it if it can be sent.
    pub(crate) fn build(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        ports: &mut PortCounters,
        counters: &mut UdpCounters,
    ) {
        let at = self.built.len() * self.stride;
        let frame = &mut self.arena[at..at + len];
        fill(frame);
        match Outgoing::parse(frame, self.own) {
            Ok(outgoing) => {
                self.built.push(outgoing);
                ports.count_tx(len);
            }
            Err(Refusal::NotRocev2) => counters.tx_not_rocev2 += 1,
            Err(Refusal::ForeignSource) => counters.tx_foreign_source += 1,
            Err(Refusal::SourcePort) => counters.tx_source_port += 1,
        }
    }

    /// Passes the built frames to the kernel, as far as the send buffer accepts them. A refused
    /// frame is dropped and counted, and later ones are still sent.
    pub(crate) fn send(
        &mut self,
        socket: &Socket,
        ports: &mut PortCounters,
        counters: &mut UdpCounters,
    ) {
        if self.is_backing_off() {
            return;
        }
        self.is_blocked = false;
        while self.waiting() > 0 {
            self.gather();
            counters.tx_calls += 1;
            // SAFETY: the parts are in the arena, which lives as long as `self` and is not written
            // before the call returns.
            match unsafe { self.batch.send(socket.socket.as_fd()) } {
                Ok(messages) => {
                    counters.tx_messages += messages as u64;
                    self.sent += self.batch.parts_in(messages);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => {
                        counters.tx_blocked += 1;
                        self.is_blocked = true;
                        return;
                    }
                    Some(libc::ENOBUFS | libc::ENOMEM) => {
                        counters.tx_no_memory += 1;
                        self.back_off();
                        return;
                    }
                    _ => self.overcome(error, ports, counters),
                },
            }
        }
        self.built.clear();
        self.sent = 0;
        self.single_until = 0;
    }

    /// Handles the error for the first message that was passed to the kernel.
    fn overcome(&mut self, error: io::Error, ports: &mut PortCounters, counters: &mut UdpCounters) {
        let frames = self.batch.parts_in(1);
        if frames > 1 {
            // A run is refused if one of its packets would be, or if the interface cannot compute
            // checksums (EIO), which is permanent.
            self.single_until = self.sent + frames;
            if matches!(error.raw_os_error(), Some(libc::EIO | libc::EOPNOTSUPP)) {
                self.can_segment = false;
            }
            return;
        }
        self.sent += 1;
        let failure = Failure::of(&error);
        match failure {
            Failure::OverMtu => {
                counters.tx_over_mtu += 1;
                ports.tx_drops.count(DropReason::FrameTooLong);
            }
            Failure::Unreachable => {
                counters.tx_unreachable += 1;
                ports.tx_drops.count(DropReason::LinkDown);
            }
            Failure::Refused => counters.tx_refused += 1,
        }
        if !std::mem::replace(&mut self.reported[failure as usize], true) {
            self.failure.get_or_insert_with(|| PortError::io(failure.operation(), error));
        }
    }

    /// Builds messages of the waiting frames.
    fn gather(&mut self) {
        self.batch.clear();
        let mut at = self.sent;
        while at < self.built.len() && self.batch.len() < SendBatch::MESSAGES {
            let run = self.run_at(at);
            let first = self.built[at];
            let to = SocketAddress::new(first.destination, self.udp_port, self.scope_id);
            let control = self.batch.push_message(to);
            describe(control, &first, self.hop_limit);
            if run > 1 {
                let bytes = (first.packet_bytes as u16).to_ne_bytes();
                self.batch.control().push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes);
            }
            for number in 0..run {
                self.push_packet(at + number, number as u16);
            }
            at += run;
        }
    }

    /// Number of frames from `at` on that can form one run: same destination and length, except
    /// that the last may be shorter.
    fn run_at(&self, at: usize) -> usize {
        if !self.can_segment || at < self.single_until {
            return 1;
        }
        let first = &self.built[at];
        let fitting = (RUN_BYTES_MAX / first.packet_bytes).min(SEGMENTS_MAX);
        let mut run = 1;
        for next in self.built[at + 1..].iter().take(fitting.saturating_sub(1)) {
            let goes_along = next.destination == first.destination
                && next.traffic_class == first.traffic_class
                && next.hop_limit == first.hop_limit;
            if !goes_along || next.packet_bytes > first.packet_bytes {
                break;
            }
            run += 1;
            if next.packet_bytes < first.packet_bytes {
                break;
            }
        }
        run
    }

    /// Appends the packet of frame `at`, to which the kernel will give this IPv4 identification, to
    /// the last message.
    fn push_packet(&mut self, at: usize, identification: u16) {
        let outgoing = &mut self.built[at];
        let packet_at = at * self.stride + outgoing.packet_at;
        let packet = &mut self.arena[packet_at..packet_at + outgoing.packet_bytes];
        let difference = outgoing.identification ^ identification;
        if difference != 0 && self.own.is_ipv4() {
            let change = self.identification.contribution(packet.len(), difference);
            let icrc = packet.last_chunk_mut::<4>().expect("a packet has an ICRC");
            *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
            outgoing.identification = identification;
        }
        self.batch.push_part(packet);
    }
}

/// Passes traffic class and hop limit to the kernel if they differ from its defaults.
fn describe(control: &mut Control, outgoing: &Outgoing, hop_limit: u8) {
    let (level, class, hops) = match outgoing.destination {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    if outgoing.traffic_class != 0 {
        control.push(level, class, &c_int::from(outgoing.traffic_class).to_ne_bytes());
    }
    if outgoing.hop_limit != hop_limit {
        control.push(level, hops, &c_int::from(outgoing.hop_limit).to_ne_bytes());
    }
}
