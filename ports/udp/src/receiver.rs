//! Receives datagrams from the kernel, and builds frames of them.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use libc::c_int;
use longhaul_port::{DropReason, PortCounters};

use crate::batch::{HEADROOM, ReceiveBatch};
use crate::config::{ROCEV2_PORT, UdpConfig};
use crate::counters::UdpCounters;
use crate::headers::{HEADERS_MAX, Incoming, PACKET_BYTES_MIN};
use crate::identification::Identification;
use crate::socket::Socket;

const _: () = assert!(HEADERS_MAX <= HEADROOM);

/// Receive path between the kernel and `receive`.
pub(crate) struct Receiver {
    batch: ReceiveBatch,
    /// Number of messages of the last call.
    messages: usize,
    /// Next message to process.
    next: usize,
    current: Option<Run>,
    identification: Identification,
    frame_bytes_max: usize,
    own: IpAddr,
    udp_port: u16,
}

/// A message that is handed out packet by packet.
struct Run {
    message: usize,
    headers: Incoming,
    /// Bytes of all packets.
    bytes: usize,
    /// Bytes of each packet except the last, which may be shorter.
    packet_bytes: usize,
    /// Start of the next packet.
    at: usize,
    /// Probable IPv4 identification of the next packet: the kernel numbers the packets of a run.
    expected: u16,
}

impl Receiver {
    pub(crate) fn new(config: &UdpConfig, socket: &Socket) -> Self {
        Self {
            batch: ReceiveBatch::new(),
            messages: 0,
            next: 0,
            current: None,
            identification: Identification::new(config.frame_bytes_max),
            frame_bytes_max: config.frame_bytes_max,
            own: socket.bind.ip(),
            udp_port: socket.bind.port(),
        }
    }

    /// True if packets that were read from the kernel wait.
    pub(crate) fn holds_packets(&self) -> bool {
        self.current.is_some() || self.next < self.messages
    }

    /// Hands out up to `max` frames.
    ///
    /// # Errors
    /// An error of the kernel other than that no datagram waits.
    pub(crate) fn receive<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        socket: &Socket,
        max: usize,
        each: &mut F,
        ports: &mut PortCounters,
        counters: &mut UdpCounters,
    ) -> io::Result<usize> {
        let mut handed = 0;
        let mut is_drained = false;
        while handed < max {
            if let Some(run) = &mut self.current {
                let buffer = self.batch.buffer(run.message);
                let limits = (&self.identification, self.frame_bytes_max);
                handed += run.hand_out(buffer, max - handed, limits, each, ports, counters);
                if run.at >= run.bytes {
                    self.current = None;
                }
            } else if self.next < self.messages {
                self.open(counters);
            } else if is_drained {
                break;
            } else {
                let wanted = (max - handed).min(ReceiveBatch::MESSAGES);
                (self.messages, self.next) = (0, 0);
                counters.rx_calls += 1;
                match self.batch.receive(socket.socket.as_fd(), wanted) {
                    Ok(messages) => self.messages = messages,
                    Err(error) if is_nothing(&error) => {}
                    Err(error) if handed == 0 => return Err(error),
                    // The next call will return it again.
                    Err(_) => {}
                }
                counters.rx_messages += self.messages as u64;
                is_drained = self.messages < wanted;
            }
        }
        Ok(handed)
    }

    /// Makes the next message the current one.
    fn open(&mut self, counters: &mut UdpCounters) {
        let at = self.next;
        self.next += 1;
        let message = self.batch.message(at);
        if message.is_cut {
            counters.rx_long += 1;
            return;
        }
        let (source, source_port) = message.from.read();
        if message.bytes < PACKET_BYTES_MIN || source.is_ipv4() != self.own.is_ipv4() {
            counters.rx_short += 1;
            return;
        }
        let (mut traffic_class, mut packet_bytes) = (0, message.bytes);
        self.batch.read_control(at, |level, kind, data| match (level, kind) {
            // One byte, unlike the other values, which are ints.
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                traffic_class = data.first().copied().unwrap_or_default()
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => traffic_class = int(data) as u8,
            (libc::SOL_UDP, libc::UDP_GRO) => {
                packet_bytes = usize::try_from(int(data)).unwrap_or(0).clamp(1, message.bytes);
            }
            _ => {}
        });
        // Ports of this kind with another number stand for 4791, which their ICRCs cover.
        let source_port = if source_port == self.udp_port { ROCEV2_PORT } else { source_port };
        self.current = Some(Run {
            message: at,
            headers: Incoming::new(source, source_port, self.own, traffic_class),
            bytes: message.bytes,
            packet_bytes,
            at: 0,
            expected: 0,
        });
    }
}

impl Run {
    /// Hands out up to `max` frames from `buffer`. The headers of each overwrite the end of the
    /// previous packet, which has already been handed out.
    fn hand_out<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        buffer: &mut [u8],
        max: usize,
        (identification, frame_bytes_max): (&Identification, usize),
        each: &mut F,
        ports: &mut PortCounters,
        counters: &mut UdpCounters,
    ) -> usize {
        let mut handed = 0;
        while handed < max && self.at < self.bytes {
            let packet_bytes = self.packet_bytes.min(self.bytes - self.at);
            let packet_at = HEADROOM + self.at;
            self.at += packet_bytes;
            let expected = self.expected;
            self.expected = expected.wrapping_add(1);
            if packet_bytes < PACKET_BYTES_MIN {
                counters.rx_short += 1;
                continue;
            }
            if self.headers.len() + packet_bytes > frame_bytes_max {
                counters.rx_long += 1;
                ports.rx_drops.count(DropReason::FrameTooLong);
                continue;
            }
            let frame = &mut buffer[packet_at - self.headers.len()..packet_at + packet_bytes];
            let identification = if self.headers.is_ipv4() {
                self.identify(frame, packet_bytes, expected, identification, counters)
            } else {
                0
            };
            self.headers.write(frame, identification);
            ports.count_rx(frame.len());
            each(frame);
            handed += 1;
        }
        handed
    }

    /// The IPv4 identification that matches the packet's ICRC; `expected` if none does.
    fn identify(
        &self,
        frame: &mut [u8],
        packet_bytes: usize,
        expected: u16,
        identification: &Identification,
        counters: &mut UdpCounters,
    ) -> u16 {
        let difference = self.headers.icrc_difference(frame, expected);
        if difference == 0 {
            return expected;
        }
        match identification.explain(packet_bytes, difference) {
            Some(found) => {
                counters.rx_identified += 1;
                expected ^ found
            }
            None => {
                counters.rx_unidentified += 1;
                expected
            }
        }
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn int(data: &[u8]) -> c_int {
    data.first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes))
}
