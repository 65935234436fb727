//! Receives numbered datagrams and the ones that parity repairs.

use super::Session;
use crate::DropReason;
use crate::arrivals::Arrival;
use crate::format::{
    DatagramKind, Extent, Header, Outer, ParityBody, Prefix, ProtectedHeader, piece_len, take_out,
};
use crate::incoming::{Incoming, Item, Verdict};
use crate::outgoing::cost;
use crate::partial::Piece;
use crate::shared::TransportShared;
use longhaul_fec::Body;
use longhaul_node::{Frame, FrameBuf, FramePool, Side};
use longhaul_units::Instant;
use longhaul_wire::{Ecn, Path, Udp};

/// A datagram repaired by parity.
pub(super) struct Repaired {
    number: u64,
    protected: ProtectedHeader,
    frame: Option<FrameBuf>,
}

impl Session {
    /// Handles a numbered datagram with a valid header. Returns `true` if it begins a stream, so
    /// that its source is known to be behind the far box.
    pub(crate) fn handle_numbered(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        side: Side,
        frame: &Frame<'_>,
        outer: &Outer,
    ) -> bool {
        let header = &outer.header;
        let path = usize::from(header.path);
        let Some(number) = self.admit(shared, side, path, header.number) else { return false };
        let Some(rx_path) = self.rx_paths.get_mut(path) else { return false };
        let is_frame = header.kind == DatagramKind::Data;
        let estimate = if is_frame { FramePool::footprint(frame.payload.len()) as u32 } else { 0 };
        let drops = &mut shared.counters.drops;
        let verdict = self.incoming.look(header.stream, header.sequence, estimate);
        if let Some(reason) = refusal(verdict) {
            drops.count(reason);
            return false;
        }
        let is_duplicate = verdict == Verdict::Duplicate;
        if is_duplicate {
            drops.count(DropReason::Duplicate);
            shared.counters.duplicates += 1;
            rx_path.arrivals.duplicates += 1;
            rx_path.arrivals.note(now, number);
            // Its parity group may lack another datagram.
            if !rx_path.parity.is_on() {
                return false;
            }
        }
        let mut held = None;
        if is_frame {
            match take_out(&mut shared.pool, frame, outer) {
                Ok(taken) => held = Some(taken),
                Err(reason) => {
                    drops.count(reason);
                    return false;
                }
            }
        }
        if !is_duplicate {
            rx_path.arrivals.note(now, number);
        }
        if is_marked_on_path(frame.head, header) {
            rx_path.arrivals.congested += 1;
            shared.counters.congested += 1;
        }
        let is_coded = rx_path.parity.is_on();
        let protected = ProtectedHeader::of(header);
        let kept = if is_coded { held.clone() } else { None };
        let is_begun = !is_duplicate && self.deliver(shared, &protected, held);
        if is_coded {
            self.show(now, shared, path, number, protected, kept);
        }
        is_begun && is_frame
    }

    /// Handles a part of a frame; the piece is held with its headers up to UDP. Returns the address
    /// behind the far box if this begins a stream.
    pub(crate) fn handle_part(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        side: Side,
        outer: &Outer,
        (extent, held): (Extent, FrameBuf),
    ) -> Option<Path> {
        let header = &outer.header;
        let path = usize::from(header.path);
        let number = self.admit(shared, side, path, header.number)?;
        let rx_path = self.rx_paths.get_mut(path)?;
        let protected = ProtectedHeader { extent, ..ProtectedHeader::of(header) };
        let len = piece_len(&held, outer.udp) as u16;
        let at = (header.stream, header.sequence);
        let verdict = self.incoming.look_at_part(at, extent, len, cost(&held));
        if let Some(reason) = refusal(verdict) {
            shared.counters.drops.count(reason);
            return None;
        }
        let is_duplicate = verdict == Verdict::Duplicate;
        if is_duplicate {
            shared.counters.drops.count(DropReason::Duplicate);
            shared.counters.duplicates += 1;
            rx_path.arrivals.duplicates += 1;
        }
        rx_path.arrivals.note(now, number);
        if !is_duplicate && is_marked_on_path(held.head(), header) {
            rx_path.arrivals.congested += 1;
            shared.counters.congested += 1;
        }
        let is_coded = rx_path.parity.is_on();
        let kept = Some(held.clone()).filter(|_| is_coded);
        let route = outer.udp.path(held.head());
        let is_begun = !is_duplicate && self.deliver_part(shared, &protected, held);
        if is_coded {
            self.show(now, shared, path, number, protected, kept);
        }
        is_begun.then_some(route)
    }

    /// Adds a part with the verdict [`Verdict::Take`] to its frame, and delivers the frame once
    /// complete. Returns `true` if this begins the stream.
    fn deliver_part(
        &mut self,
        shared: &mut TransportShared,
        protected: &ProtectedHeader,
        held: FrameBuf,
    ) -> bool {
        let Some(udp) = Udp::find(held.head()) else { return false };
        let is_wanted = self.rx_paths.iter().any(|rx_path| rx_path.parity.is_on())
            || self.incoming.prefix(protected.stream).is_none();
        let prefix = if is_wanted { Prefix::of(held.head()) } else { None };
        let Extent { offset, total } = protected.extent;
        let (len, cost) = (piece_len(&held, udp) as u16, cost(&held));
        let piece = Piece { offset, len, held };
        let at = (protected.stream, protected.sequence);
        let pool = &mut shared.pool;
        let (is_begun, frame) =
            self.incoming.take_part(pool, at, protected.udp_checksum, total, piece, cost);
        if let Some(prefix) = prefix {
            self.incoming.note_prefix(protected.stream, prefix);
        }
        if let Some(frame) = frame {
            // The check of each part was valid, so the frame was already damaged at the near box.
            let frame = frame.filter(|frame| frame.as_frame().icrc_is_right());
            let is_right = frame.is_some();
            shared.counters.assembled += u64::from(is_right);
            shared.counters.void += u64::from(!is_right);
            let kind = if is_right { DatagramKind::Data } else { DatagramKind::Void };
            self.deliver(shared, &ProtectedHeader { kind, ..*protected }, frame);
        }
        is_begun
    }

    /// Number whose low half is `low`, if it may arrive on `path` and has not.
    fn admit(
        &mut self,
        shared: &mut TransportShared,
        side: Side,
        path: usize,
        low: u32,
    ) -> Option<u64> {
        let drops = &mut shared.counters.drops;
        let Some(rx_path) = self.rx_paths.get_mut(path) else {
            drops.count(DropReason::Malformed);
            return None;
        };
        rx_path.side = side;
        let number = rx_path.arrivals.unwrap(low);
        match number.map_or(Arrival::Outside, |number| rx_path.arrivals.look(number)) {
            Arrival::First => number,
            Arrival::Outside => {
                drops.count(DropReason::NumberOutside);
                None
            }
            Arrival::Replayed => {
                drops.count(DropReason::Replayed);
                shared.counters.replayed += 1;
                number.into_iter().for_each(|number| rx_path.arrivals.note_replayed(number));
                None
            }
        }
    }

    /// Delivers an item with the verdict [`Verdict::Take`] to its stream. Returns `true` if this
    /// begins the stream.
    fn deliver(
        &mut self,
        shared: &mut TransportShared,
        protected: &ProtectedHeader,
        held: Option<FrameBuf>,
    ) -> bool {
        let cost = held.as_ref().map_or(0, cost);
        // Routers and hosts may change: if parity arrives, frames are reconstructed with the latest
        // headers.
        let is_wanted = self.rx_paths.iter().any(|rx_path| rx_path.parity.is_on())
            || self.incoming.prefix(protected.stream).is_none();
        let prefix = held.as_ref().filter(|_| is_wanted).and_then(|held| Prefix::of(held.head()));
        let item = held.map_or_else(|| Incoming::item(protected.kind), Item::Frame);
        let (to_inner, local) = (&mut shared.to_inner, self.local);
        let deliver = |frame, cost| to_inner.deliver(frame, local, cost);
        let is_begun =
            self.incoming.take(protected.stream, protected.sequence, item, cost, deliver);
        if let Some(prefix) = prefix {
            self.incoming.note_prefix(protected.stream, prefix);
        }
        is_begun
    }

    /// Passes an arrival to the decoder of its path, and handles the datagrams that this repairs.
    fn show(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        path: usize,
        number: u64,
        protected: ProtectedHeader,
        held: Option<FrameBuf>,
    ) {
        let Session { rx_paths, incoming, repaired, .. } = self;
        let pool = &mut shared.pool;
        let back = |number, head: &[u8], body: &Body<'_>| {
            repaired.extend(rebuild(pool, incoming, number, head, body));
        };
        rx_paths[path].parity.on_data(number, protected, held.as_ref(), back);
        self.take_repaired(now, shared, path);
    }

    /// Handles a PARITY datagram with a valid check.
    pub(crate) fn handle_parity(
        &mut self,
        now: Instant,
        shared: &mut TransportShared,
        side: Side,
        outer: &Outer,
        body: &ParityBody<'_>,
    ) {
        let header = &outer.header;
        let path = usize::from(header.path);
        let Session { rx_paths, incoming, repaired, .. } = self;
        let Some(rx_path) = rx_paths.get_mut(path) else {
            return shared.counters.drops.count(DropReason::Malformed);
        };
        rx_path.side = side;
        shared.counters.parity_received += 1;
        let base = rx_path.arrivals.unwrap(header.number);
        let (pool, bytes_max) = (&mut shared.pool, shared.config.parity_bytes_max);
        let back = |number, head: &[u8], body: &Body<'_>| {
            repaired.extend(rebuild(pool, incoming, number, head, body));
        };
        let is_used = base.is_some_and(|base| {
            rx_path.parity.on_parity(&body.parity(base, header), bytes_max, back).is_ok()
        });
        shared.counters.parity_unused += u64::from(!is_used);
        self.take_repaired(now, shared, path);
    }

    /// Handles the datagrams repaired on `path` as if they had arrived.
    fn take_repaired(&mut self, now: Instant, shared: &mut TransportShared, path: usize) {
        while let Some(Repaired { number, protected, frame }) = self.repaired.pop() {
            let rx_path = &mut self.rx_paths[path];
            if rx_path.arrivals.look(number) != Arrival::First {
                continue;
            }
            let is_part = protected.kind == DatagramKind::Part;
            if !is_part && !frame.as_ref().is_none_or(|frame| frame.as_frame().icrc_is_right()) {
                shared.counters.drops.count(DropReason::Corrupted);
                continue;
            }
            let estimate = frame.as_ref().map_or(0, cost);
            let verdict = match frame.as_ref().filter(|_| is_part) {
                Some(held) => {
                    let len = Udp::find(held.head()).map_or(0, |udp| piece_len(held, udp)) as u16;
                    self.incoming.look_at_part(
                        (protected.stream, protected.sequence),
                        protected.extent,
                        len,
                        estimate,
                    )
                }
                None => self.incoming.look(protected.stream, protected.sequence, estimate),
            };
            if let Some(reason) = refusal(verdict) {
                shared.counters.drops.count(reason);
                continue;
            }
            shared.counters.repaired += 1;
            rx_path.arrivals.note_repaired(now, number);
            match frame {
                _ if verdict != Verdict::Take => {}
                Some(held) if is_part => {
                    self.deliver_part(shared, &protected, held);
                }
                frame => {
                    self.deliver(shared, &protected, frame);
                }
            }
        }
    }
}

/// `true` for a datagram whose congestion mark was set on the path.
#[inline]
fn is_marked_on_path(head: &[u8], header: &Header) -> bool {
    header.flags & Header::MARKED_BEFORE == 0 && Ecn::of(head) == Some(Ecn::Congested)
}

/// Reason not to acknowledge an item at all.
fn refusal(verdict: Verdict) -> Option<DropReason> {
    match verdict {
        Verdict::Take | Verdict::Duplicate => None,
        Verdict::Outside => Some(DropReason::StreamOutside),
        Verdict::NoRoom => Some(DropReason::NoRoom),
    }
}

/// Reconstructs a repaired datagram. `None` if it is invalid, or no headers of its stream are
/// known.
fn rebuild(
    pool: &mut FramePool,
    incoming: &Incoming,
    number: u64,
    head: &[u8],
    body: &Body<'_>,
) -> Option<Repaired> {
    let (protected, rest) = ProtectedHeader::read_head(head)
        .filter(|(protected, _)| protected.number == number as u32)?;
    let frame = match protected.kind {
        DatagramKind::Data => {
            Some(incoming.prefix(protected.stream)?.rebuild(pool, &protected, rest, body)?)
        }
        DatagramKind::Part => {
            Some(incoming.prefix(protected.stream)?.rebuild_piece(pool, &protected, rest, body)?)
        }
        _ => None,
    };
    Some(Repaired { number, protected, frame })
}
