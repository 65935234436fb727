//! Sends numbered datagrams, split to fit their path, with the parity that protects them, and path
//! MTU probes.

use super::Session;
use super::transmit::Sending;
use crate::Parity;
use crate::format::{
    Datagram, DatagramKind, Extent, HEADER_LEN, Header, ParityDatagram, Piece, Ping, PingStep,
    ProbeDatagram, ProtectedHeader, encapsulate, symbol_body,
};
use crate::outgoing::{Next, Record};
use crate::path::TxPath;
use crate::shared::TransportShared;
use longhaul_fec::{Body, HEAD_MAX as SYMBOL_HEAD_MAX};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::{Duration, Instant, Rng};
use longhaul_wire::{Ecn, HEAD_MAX, Path, Udp};
use std::net::IpAddr;

/// Maximum bytes by which a PARITY exceeds the longest frame that it protects, and the longest
/// part.
const PARITY_OVER_FRAME: usize = 40;
const PARITY_OVER_PART: usize = 24;
/// Bytes by which IPv6's header exceeds IPv4's.
const IPV6_MORE: usize = 20;

impl Session {
    /// Sends the next record on `path`, or splits it. Returns `false` if there is none.
    pub(super) fn send_next(&mut self, to: &mut Sending<'_>, path: usize) -> bool {
        let Some(next) = self.out.next(to.now) else { return false };
        let tx_path = &mut self.tx_paths[path];
        if next.is_repeat
            && let Some(record) = self.out.record(next.record)
            && record.part.is_none()
            && record.frame.as_ref().is_some_and(|frame| !frame.as_frame().icrc_is_right())
        {
            // It arrived here damaged, and the far box dropped it.
            to.shared.counters.void += 1;
            self.out.void(next.record);
        }
        let Some(record) = self.out.record(next.record) else { return true };
        let (mtu, reserve) = (usize::from(tx_path.mtu.get()), Reserve::of(to.shared, &self.route));
        if !fits_whole(record, mtu, reserve)
            && let Some(parts) = parts_needed(record, mtu, reserve)
        {
            tx_path.split += 1;
            to.shared.counters.split += 1;
            self.out.split(next, parts);
            return true;
        }
        let header = Header {
            path: path as u8,
            number: tx_path.flight.next_number() as u32,
            stream: record.stream,
            sequence: record.sequence as u32,
            ..Header::new(record.kind, to.remote)
        };
        let sent = match (&record.frame, record.kind, record.part) {
            (Some(held), DatagramKind::Data, None) => {
                send_whole(to, tx_path, record.udp, &header, &held.as_frame())
            }
            (Some(held), DatagramKind::Data, Some(_)) => {
                let inner = held.as_frame();
                let piece = Piece::of(inner, record.udp, record.range(), held.payload());
                let udp_checksum = record.udp.checksum(inner.head);
                let flags = flags(inner.head, record.udp);
                let header = Header { kind: DatagramKind::Part, udp_checksum, flags, ..header };
                to.shared.counters.parts_sent += 1;
                send_piece(to, tx_path, &header, &piece)
            }
            _ => Some(send_record(to, tx_path, &self.route, &header)),
        };
        match sent {
            Some(bytes) => self.note_sent(to, path, next, bytes),
            // Unreachable: the transport opens no stream for such frames.
            None => self.out.release(next.record),
        }
        true
    }

    /// Notes that `next` was sent, with `bytes` bytes on the wire.
    fn note_sent(&mut self, to: &mut Sending<'_>, path: usize, next: Next, bytes: u64) {
        let (now, tx_path) = (to.now, &mut self.tx_paths[path]);
        tx_path.parity.note_data(now, bytes);
        tx_path.take(now, bytes);
        tx_path.note_sent(now, next.record, bytes);
        to.shared.counters.sent += 1;
        to.shared.counters.repeated += u64::from(next.is_repeat);
        let spacing = tx_path.flight.rtt.smoothed().divided_by(64).min(Duration::from_ms(1));
        self.out.sent(now, next, spacing);
    }

    /// Sends the parity due on `path`.
    pub(super) fn send_parity(&mut self, to: &mut Sending<'_>, path: usize) {
        let tx_path = &mut self.tx_paths[path];
        let mtu = usize::from(tx_path.mtu.get());
        let Some(parity) = tx_path.parity.next() else { return };
        let header = Header { path: path as u8, ..Header::new(DatagramKind::Parity, to.remote) };
        let datagram = ParityDatagram::new(&self.route, to.shared.config.port, &header, &parity);
        let Some(datagram) = datagram else { return };
        let frame = datagram.frame();
        if Udp::find(frame.head).is_none_or(|udp| frame.len() - udp.ip > mtu) {
            // The path MTU has shrunk since the group began, or its headers differ much.
            to.shared.counters.parity_too_long += 1;
            return;
        }
        to.shared.counters.parity_sent += 1;
        let bytes = to.transmit(path, &frame);
        tx_path.take(to.now, bytes);
        tx_path.note_parity_sent(to.now);
    }

    /// Probes the MTU of `path` if a probe is due.
    pub(super) fn send_probes(&mut self, to: &mut Sending<'_>, path: usize) {
        let (now, tx_path) = (to.now, &mut self.tx_paths[path]);
        // A silent far box answers no probe.
        let is_silent = !tx_path.is_up || tx_path.is_overdue(now, &to.shared.config);
        if is_silent || tx_path.mtu.next_at() > now || !to.has_room(path) {
            return;
        }
        let timeout = tx_path.flight.rtt.response_timeout() + to.shared.config.path_out_after;
        let rng = &mut to.shared.rng;
        let probes = tx_path.mtu.probe(now, timeout, || rng.next_u64() << 4 | path as u64);
        let next_number = tx_path.flight.next_number();
        for probe in probes.into_iter().flatten() {
            let control = self.control(DatagramKind::Ping, to.remote);
            let header = Header { path: path as u8, ..control };
            let ping =
                Ping { step: PingStep::Ask, session: self.local, nonce: probe.nonce, next_number };
            let port = to.shared.config.port;
            let datagram = ProbeDatagram::new(&self.route, port, &header, &ping, probe.len);
            let bytes = to.transmit(path, &datagram.frame());
            self.tx_paths[path].take(now, bytes);
            to.shared.counters.mtu_probes += 1;
        }
    }
}

/// Room that a frame, or a part, must leave of the path MTU so that its parity fits too.
#[derive(Clone, Copy)]
struct Reserve {
    has_parity: bool,
    /// PARITY is sent over IPv6.
    is_ipv6: bool,
}

impl Reserve {
    fn of(shared: &TransportShared, route: &Path) -> Self {
        let is_ipv6 = matches!(route.destination_ip, IpAddr::V6(_));
        Reserve { has_parity: shared.config.parity != Parity::Off, is_ipv6 }
    }

    fn bytes(self, udp: Udp, over: usize) -> usize {
        let of_ip = if self.is_ipv6 && !udp.is_ipv6 { IPV6_MORE } else { 0 };
        if self.has_parity { over + of_ip } else { 0 }
    }
}

/// `true` for a frame that fits `mtu` unsplit.
#[inline]
fn fits_whole(record: &Record, mtu: usize, reserve: Reserve) -> bool {
    let Some(frame) = record.frame.as_ref().filter(|_| record.part.is_none()) else { return false };
    frame.len() - record.udp.ip + HEADER_LEN + reserve.bytes(record.udp, PARITY_OVER_FRAME) <= mtu
}

/// Number of parts into which to split a record to fit `mtu`, the length of an IP packet. `None` if
/// it fits unsplit or cannot be split.
fn parts_needed(record: &Record, mtu: usize, reserve: Reserve) -> Option<usize> {
    let inner = record.frame.as_ref().filter(|_| record.kind == DatagramKind::Data)?.as_frame();
    let udp = record.udp;
    let range = record.range();
    let headers = inner.head.len() - udp.payload();
    let outer = udp.payload() - udp.ip + HEADER_LEN;
    let len = match record.part {
        None => inner.len() - udp.ip + HEADER_LEN + reserve.bytes(udp, PARITY_OVER_FRAME),
        Some(_) => {
            let near = if range.start == 0 { headers } else { 0 };
            let end = if range.end == inner.payload.len() { inner.trailer.len() } else { 0 };
            outer + Extent::LEN + near + range.len() + end + reserve.bytes(udp, PARITY_OVER_PART)
        }
    };
    let has_options = !udp.is_ipv6 && inner.head[udp.ip] != 0x45;
    let is_longest = inner.len() - udp.payload() > longhaul_node::PAYLOAD_MAX;
    if len <= mtu || range.len() <= 1 || has_options || is_longest {
        return None;
    }
    let around = outer
        + Extent::LEN
        + headers.max(inner.trailer.len())
        + reserve.bytes(udp, PARITY_OVER_PART);
    Some(range.len().div_ceil(mtu.saturating_sub(around).max(64)).max(2))
}

/// Header flags of a frame with these headers.
#[inline]
fn flags(head: &[u8], udp: Udp) -> u8 {
    let (at, shift) = if udp.is_ipv6 { (udp.ip + 1, 4) } else { (udp.ip + 1, 0) };
    let is_marked = Ecn::of_traffic_class(head[at] >> shift) == Ecn::Congested;
    if is_marked { Header::MARKED_BEFORE } else { 0 }
}

/// Sends a frame unsplit. Returns its bytes on the wire; `None` if it cannot be tunnelled.
#[inline]
fn send_whole(
    to: &mut Sending<'_>,
    tx_path: &mut TxPath,
    udp: Udp,
    header: &Header,
    inner: &Frame<'_>,
) -> Option<u64> {
    let header =
        Header { udp_checksum: udp.checksum(inner.head), flags: flags(inner.head, udp), ..*header };
    let mut head = [0; HEAD_MAX];
    let head_len = encapsulate(inner.head, udp, to.shared.config.port, &header, &mut head)?;
    let bytes = to.transmit(header.path.into(), &Frame { head: &head[..head_len], ..*inner });
    if tx_path.parity.is_on() {
        let protected = ProtectedHeader::of(&header);
        protect(to.now, tx_path, &protected, Some(inner), &symbol_body(inner), bytes);
    }
    Some(bytes)
}

/// Sends a part of a frame. Returns its bytes on the wire; `None` if it cannot be tunnelled.
fn send_piece(
    to: &mut Sending<'_>,
    tx_path: &mut TxPath,
    header: &Header,
    piece: &Piece<'_>,
) -> Option<u64> {
    let mut head = [0; HEAD_MAX];
    let head_len = piece.write_head(to.shared.config.port, header, &mut head)?;
    let trailer = piece.trailer();
    let frame = Frame { head: &head[..head_len], payload: piece.payload(), trailer };
    let bytes = to.transmit(header.path.into(), &frame);
    if tx_path.parity.is_on() {
        let protected = ProtectedHeader { extent: piece.extent, ..ProtectedHeader::of(header) };
        let of_head =
            Frame { head: piece.symbol_head(), payload: Payload::EMPTY, trailer: Trailer::None };
        protect(to.now, tx_path, &protected, Some(&of_head), &piece.symbol_body(), bytes);
    }
    Some(bytes)
}

/// Sends a record without a frame. Returns its bytes on the wire.
fn send_record(
    to: &mut Sending<'_>,
    tx_path: &mut TxPath,
    control_route: &Path,
    header: &Header,
) -> u64 {
    let datagram = Datagram::new(control_route, to.shared.config.port, header, |_| 0);
    let bytes = to.transmit(header.path.into(), &datagram.frame());
    if tx_path.parity.is_on() {
        protect(to.now, tx_path, &ProtectedHeader::of(header), None, &Body::EMPTY, 0);
    }
    bytes
}

/// Protects the datagram sent under the next number, of `bytes` bytes on the wire.
#[inline]
fn protect(
    now: Instant,
    tx_path: &mut TxPath,
    protected: &ProtectedHeader,
    frame: Option<&Frame<'_>>,
    body: &Body<'_>,
    wire_bytes: u64,
) {
    let mut symbol = [0; SYMBOL_HEAD_MAX];
    let len = protected.write_head(frame, &mut symbol);
    let number = tx_path.flight.next_number();
    tx_path.protect(now, number, &symbol[..len], body, wire_bytes);
}
