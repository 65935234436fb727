//! Packets in flight on a cable, in 64 bytes each.
//!
//! Packets in flight take nearly all of a simulation's memory. Packets of one connection differ
//! only from the BTH on, so a cable stores each distinct prefix once, and a packet holds the
//! prefix's number.

use longhaul_link::corrupt;
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_units::Instant;
use longhaul_wire::{Ecn, HEAD_MAX, Head, Layout};
use std::collections::{HashMap, VecDeque};

/// Maximum bytes from the BTH to the payload: those of an atomic.
const TAIL_MAX: usize = 40;
/// Maximum bytes in front of the BTH: Ethernet, two VLAN tags, IPv6, UDP.
const PREFIX_MAX: usize = 70;
/// Maximum prefixes of a cable. Beyond that, packets are stored whole.
const PREFIXES_MAX: usize = 1 << 20;
/// Offset of the PSN in a BTH.
const BTH_PSN: usize = 9;
/// Prefix number of a frame that is stored whole.
const WHOLE: u32 = u32::MAX;

/// A frame in flight.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    /// Arrival time.
    pub due: Instant,
    prefix: u32,
    /// The payload length, or the number of a frame that is stored whole.
    payload_len: u32,
    tail: [u8; TAIL_MAX],
    tail_len: u8,
    pad_len: u8,
    /// Marked by a queue.
    pub is_marked: bool,
    /// Delayed so that later packets can overtake it.
    pub is_late: bool,
    /// Packets of the train; 1 for a single packet.
    pub count: u16,
}

const _: () = assert!(size_of::<Packet>() == 64);

impl Packet {
    /// A packet without a prefix.
    #[inline]
    fn whole(frame: &Frame<'_>, due: Instant, is_marked: bool) -> Self {
        Packet {
            due,
            prefix: WHOLE,
            payload_len: frame.payload.len() as u32,
            tail: [0; TAIL_MAX],
            tail_len: 0,
            pad_len: 0,
            is_marked,
            is_late: false,
            count: 1,
        }
    }
}

/// The bytes in front of the BTH, with zero lengths and IP checksum.
#[derive(Clone, Copy)]
pub(crate) struct Prefix {
    bytes: [u8; PREFIX_MAX],
    len: u8,
    ip: u8,
    is_ipv6: bool,
    /// Sum of the IPv4 header's 16-bit words.
    ip_sum: u32,
}

impl Prefix {
    fn of(head: &[u8], layout: &Layout) -> Self {
        let mut bytes = [0; PREFIX_MAX];
        bytes[..layout.bth].copy_from_slice(&head[..layout.bth]);
        for at in changing(layout) {
            bytes[at] = 0;
        }
        let ip_sum = if layout.is_ipv6 {
            0
        } else {
            let words = bytes[layout.ip..layout.udp].chunks_exact(2);
            words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum()
        };
        Prefix {
            bytes,
            len: layout.bth as u8,
            ip: layout.ip as u8,
            is_ipv6: layout.is_ipv6,
            ip_sum,
        }
    }

    /// Writes the prefix into `head`, with the lengths and checksum for a frame of `frame_len`
    /// bytes.
    #[inline]
    fn write(&self, head: &mut [u8; HEAD_MAX], frame_len: usize) {
        head[..PREFIX_MAX].copy_from_slice(&self.bytes);
        let (ip, udp) = (usize::from(self.ip), usize::from(self.len) - 8);
        let mut put = |at: usize, value: usize| {
            head[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        put(udp + 4, frame_len - udp);
        if self.is_ipv6 {
            put(ip + 4, frame_len - ip - 40);
        } else {
            let len = frame_len - ip;
            let sum = self.ip_sum + len as u32;
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            put(ip + 2, len);
            put(ip + 10, usize::from(!(sum as u16)));
        }
    }

    #[inline]
    fn is_of(&self, head: &[u8], layout: &Layout) -> bool {
        let own = &self.bytes[..usize::from(self.len)];
        let same = |from: usize, to: usize| own[from..to] == head[from..to];
        let (ip, udp) = (layout.ip, layout.udp);
        if own.len() != layout.bth {
            return false;
        }
        let by_ip = if layout.is_ipv6 {
            same(0, ip + 4) && same(ip + 6, udp + 4)
        } else {
            same(0, ip + 2) && same(ip + 4, ip + 10) && same(ip + 12, udp + 4)
        };
        by_ip && same(udp + 6, udp + 8)
    }
}

/// Offsets of bytes that are derived from the rest of the frame.
fn changing(layout: &Layout) -> impl Iterator<Item = usize> {
    let (ip, udp) = (layout.ip, layout.udp);
    let of_ip: &[usize] = if layout.is_ipv6 { &[4, 5] } else { &[2, 3, 10, 11] };
    of_ip.iter().map(move |at| ip + at).chain([udp + 4, udp + 5])
}

/// Packs frames at the sending end of a cable.
#[derive(Default)]
pub(crate) struct Packer {
    prefixes: Vec<Prefix>,
    /// Open addressing by hash: a prefix's number plus 1, or 0.
    places: Vec<u32>,
    /// Frames stored whole so far.
    wholes: u32,
    /// Store every frame whole, including bytes in registered memory.
    pub keeps_bytes: bool,
}

/// Additional data for the receiving end.
pub(crate) enum News {
    Nothing,
    /// A new prefix.
    Prefix(Box<Prefix>),
    /// The frame itself, by its number.
    Whole(u32, Box<Whole>),
}

/// A frame that fits no prefix.
pub(crate) enum Whole {
    /// All of it.
    Bytes(Box<[u8]>),
    /// Headers of any kind, with a payload that is only a length.
    Head { head: Head, payload_len: usize, trailer: Trailer },
}

impl Packer {
    /// Packs `frame`. A payload without bytes, or in registered memory, whose bytes are never read,
    /// becomes a length; bytes are stored.
    #[inline]
    pub fn pack(&mut self, frame: &Frame<'_>, due: Instant, is_marked: bool) -> (Packet, News) {
        let carries_bytes = self.keeps_bytes
            || matches!(frame.payload, Payload::Bytes(bytes) if !bytes.is_empty())
            || matches!(frame.payload, Payload::Shared(_) | Payload::Lent { .. });
        let mut packet = Packet::whole(frame, due, is_marked);
        if let (Ok(Some(layout)), Trailer::Sealed { pad_len }) =
            (Layout::find(frame.head), frame.trailer)
            && !carries_bytes
            && layout.payload - layout.bth <= TAIL_MAX
            && self.prefixes.len() < PREFIXES_MAX
        {
            let tail = &frame.head[layout.bth..layout.payload];
            packet.tail[..tail.len()].copy_from_slice(tail);
            packet.tail_len = tail.len() as u8;
            packet.pad_len = pad_len;
            let (prefix, news) = self.number(frame.head, &layout);
            packet.prefix = prefix;
            return (packet, news);
        }
        self.keep_whole(packet, frame, None)
    }

    /// Packs `frame` with one bit flipped.
    pub fn pack_corrupted(&mut self, frame: &Frame<'_>, due: Instant, bit: u32) -> (Packet, News) {
        self.keep_whole(Packet::whole(frame, due, false), frame, Some(bit))
    }

    #[inline(never)]
    fn keep_whole(
        &mut self,
        mut packet: Packet,
        frame: &Frame<'_>,
        wrong_bit: Option<u32>,
    ) -> (Packet, News) {
        let kept = if self.keeps_bytes { *frame } else { without_memory(frame) };
        let whole = match (kept.payload, wrong_bit) {
            (Payload::Synthetic { len }, None) if !self.keeps_bytes => Whole::Head {
                head: Head::copy_of(kept.head),
                payload_len: len,
                trailer: kept.trailer,
            },
            _ => {
                let mut bytes = vec![0; frame.len()].into_boxed_slice();
                kept.write_to(&mut bytes);
                if let Some(bit) = wrong_bit {
                    corrupt(&mut bytes, bit);
                }
                Whole::Bytes(bytes)
            }
        };
        self.wholes = self.wholes.wrapping_add(1);
        packet.payload_len = self.wholes;
        (packet, News::Whole(self.wholes, Box::new(whole)))
    }

    /// Packs `count` packets of a train from `place` on.
    #[inline]
    pub fn pack_part(
        &mut self,
        frame: &Frame<'_>,
        due: Instant,
        place: u32,
        count: u16,
    ) -> (Packet, News) {
        let (mut packet, news) = self.pack(frame, due, false);
        packet.count = count;
        if let Some(psn) = packet.tail[BTH_PSN..].first_chunk_mut::<3>() {
            let [high, middle, low] = *psn;
            let first = u32::from_be_bytes([0, high, middle, low]);
            let [_, high, middle, low] = first.wrapping_add(place).to_be_bytes();
            *psn = [high, middle, low];
        }
        (packet, news)
    }

    #[inline]
    fn number(&mut self, head: &[u8], layout: &Layout) -> (u32, News) {
        if self.places.len() < 2 * (self.prefixes.len() + 1) {
            self.spread();
        }
        let mask = self.places.len() - 1;
        let mut at = hash(head, layout) as usize & mask;
        loop {
            match self.places[at] {
                0 => break,
                found if self.prefixes[found as usize - 1].is_of(head, layout) => {
                    return (found - 1, News::Nothing);
                }
                _ => at = (at + 1) & mask,
            }
        }
        let prefix = Prefix::of(head, layout);
        self.prefixes.push(prefix);
        self.places[at] = self.prefixes.len() as u32;
        (self.prefixes.len() as u32 - 1, News::Prefix(Box::new(prefix)))
    }

    #[cold]
    fn spread(&mut self) {
        let size = (4 * self.prefixes.len()).next_power_of_two().max(16);
        self.places = vec![0; size];
        for (number, prefix) in self.prefixes.iter().enumerate() {
            let head = &prefix.bytes[..usize::from(prefix.len)];
            let (ip, udp) = (usize::from(prefix.ip), head.len() - 8);
            let layout =
                Layout { ip, is_ipv6: prefix.is_ipv6, udp, bth: head.len(), payload: head.len() };
            let mut at = hash(head, &layout) as usize & (size - 1);
            while self.places[at] != 0 {
                at = (at + 1) & (size - 1);
            }
            self.places[at] = number as u32 + 1;
        }
    }
}

/// Hashes addresses, source port and traffic class, which are never hostile here.
#[inline]
fn hash(head: &[u8], layout: &Layout) -> u64 {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    // IPv4: both addresses; IPv6: the last half of the destination.
    let addresses = word(layout.udp - 8);
    // Source and destination port; the fields that depend on the length are excluded.
    let ports = word(layout.udp) as u32;
    let mixed = (addresses ^ (u64::from(ports) << 32) ^ u64::from(head[layout.ip + 1]))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> 29
}

/// Packets per allocation of a ring.
const CHUNK: usize = 512;

/// A queue of packets in chunks, which needs little spare memory: a ring that doubles uses three
/// times as much while it grows.
#[derive(Default)]
struct Chunks {
    /// Packets are taken from the first and added to the last.
    chunks: VecDeque<Vec<Packet>>,
    /// Packets already taken from the first.
    taken: usize,
    /// An empty chunk for reuse.
    spare: Option<Vec<Packet>>,
    len: usize,
}

impl Chunks {
    #[inline]
    fn push(&mut self, packet: Packet) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK => last.push(packet),
            _ => {
                let mut chunk = self.spare.take().unwrap_or_else(|| Vec::with_capacity(CHUNK));
                chunk.push(packet);
                self.chunks.push_back(chunk);
            }
        }
    }

    #[inline]
    fn front(&self) -> Option<&Packet> {
        self.chunks.front().and_then(|chunk| chunk.get(self.taken))
    }

    #[inline]
    fn pop(&mut self) -> Option<Packet> {
        let packet = *self.front()?;
        self.taken += 1;
        self.len -= 1;
        if self.taken == CHUNK {
            self.taken = 0;
            if let Some(mut chunk) = self.chunks.pop_front() {
                chunk.clear();
                self.spare = Some(chunk);
            }
        }
        Some(packet)
    }
}

/// Returns the frame with a payload that can be serialised: registered memory has no bytes here.
pub(crate) fn without_memory<'a>(frame: &Frame<'a>) -> Frame<'a> {
    match frame.payload {
        Payload::Memory(..) => {
            Frame { payload: Payload::Synthetic { len: frame.payload.len() }, ..*frame }
        }
        _ => *frame,
    }
}

/// The receiving end of a cable: packets in flight.
#[derive(Default)]
pub(crate) struct Ring {
    packets: Chunks,
    /// Delayed packets. Both queues are in order.
    late: Chunks,
    prefixes: Vec<Prefix>,
    /// Packets stored whole, by number; a duplicate has its own number.
    wholes: HashMap<u32, Box<Whole>>,
}

impl Ring {
    /// Adds the last packed frame.
    #[inline]
    pub fn push(&mut self, packet: Packet, news: News) {
        self.add(packet);
        self.learn(news);
    }

    #[inline]
    fn add(&mut self, packet: Packet) {
        let way = if packet.is_late { &mut self.late } else { &mut self.packets };
        way.push(packet);
    }

    /// Moves packed frames into the ring, in order.
    pub fn append(&mut self, packets: &mut Vec<Packet>, news: &mut Vec<News>) {
        packets.drain(..).for_each(|packet| self.add(packet));
        news.drain(..).for_each(|news| self.learn(news));
    }

    #[inline]
    fn learn(&mut self, news: News) {
        match news {
            News::Nothing => {}
            News::Prefix(prefix) => self.prefixes.push(*prefix),
            News::Whole(number, whole) => {
                self.wholes.insert(number, whole);
            }
        }
    }

    /// Arrival time of the next packet.
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        let due = |way: &Chunks| way.front().map(|packet| packet.due);
        match (due(&self.packets), due(&self.late)) {
            (Some(packet), Some(late)) => Some(packet.min(late)),
            (packet, late) => packet.or(late),
        }
    }

    /// Number of packets in flight.
    pub fn len(&self) -> usize {
        self.packets.len + self.late.len
    }

    /// Passes the front packet to `take`.
    #[inline]
    pub fn pop(&mut self, take: impl FnOnce(&Frame<'_>)) {
        let is_late = match (self.packets.front(), self.late.front()) {
            (Some(packet), Some(late)) => late.due < packet.due,
            (packet, _) => packet.is_none(),
        };
        let Some(packet) = (if is_late { self.late.pop() } else { self.packets.pop() }) else {
            return;
        };
        if packet.prefix == WHOLE {
            if let Some(whole) = self.wholes.remove(&packet.payload_len) {
                hand_over_whole(*whole, packet.is_marked, take);
            }
            return;
        }
        let prefix = &self.prefixes[packet.prefix as usize];
        let mut head = [0; HEAD_MAX];
        let bth = usize::from(prefix.len);
        let head_len = bth + usize::from(packet.tail_len);
        let len = packet.payload_len as usize;
        let payload = match packet.count {
            1 => Payload::Synthetic { len },
            count => Payload::Train { len, count: count.into() },
        };
        let trailer = Trailer::Sealed { pad_len: packet.pad_len };
        prefix.write(&mut head, head_len + packet.payload_len as usize + trailer.len());
        head[bth..bth + TAIL_MAX].copy_from_slice(&packet.tail);
        if packet.is_marked {
            Ecn::mark(&mut head[..head_len]);
        }
        take(&Frame { head: &head[..head_len], payload, trailer });
    }
}

#[inline(never)]
fn hand_over_whole(whole: Whole, is_marked: bool, take: impl FnOnce(&Frame<'_>)) {
    match whole {
        Whole::Bytes(mut bytes) => {
            if is_marked {
                let head_len = bytes.len().min(HEAD_MAX);
                Ecn::mark(&mut bytes[..head_len]);
            }
            let head = Head::copy_of(&bytes);
            let frame = Frame::received(&head, &bytes).unwrap_or_else(|_| Frame::opaque(&bytes));
            take(&frame);
        }
        Whole::Head { head, payload_len, trailer } => {
            let (mut bytes, len) = ([0; HEAD_MAX], head.bytes().len());
            bytes[..len].copy_from_slice(head.bytes());
            if is_marked {
                Ecn::mark(&mut bytes[..len]);
            }
            take(&Frame {
                head: &bytes[..len],
                payload: Payload::Synthetic { len: payload_len },
                trailer,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_units::{Psn, Qpn, RKey};
    use longhaul_wire::{Bth, MacAddr, Opcode, Path, PathTemplate, Reth};
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn path(source_port: u16, is_ipv6: bool, vlan: Option<u16>, traffic_class: u8) -> Path {
        let ip = |last: u8| -> IpAddr {
            if is_ipv6 {
                [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into()
            } else {
                [10, 0, 0, last].into()
            }
        };
        Path {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan,
            source_ip: ip(1),
            destination_ip: ip(2),
            traffic_class,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: source_port,
        }
    }

    /// Returns the bytes of a frame after packing and unpacking by a new cable or the given one.
    fn through(
        packer: &mut Packer,
        ring: &mut Ring,
        frame: &Frame<'_>,
        is_marked: bool,
    ) -> Vec<u8> {
        let (packet, news) = packer.pack(frame, Instant::ZERO, is_marked);
        ring.push(packet, news);
        let mut bytes = Vec::new();
        ring.pop(|frame| {
            bytes = vec![0; frame.len()];
            frame.write_to(&mut bytes);
        });
        bytes
    }

    fn written(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn packets_of_any_path_come_out_as_they_went_in(
            frames in prop::collection::vec(
                (
                    0_u16..40,
                    any::<bool>(),
                    prop::option::of(1_u16..100),
                    0_u8..3,
                    0_usize..4097,
                    0_u32..1 << 24,
                ),
                1..80,
            ),
        ) {
            let (mut packer, mut ring) = (Packer::default(), Ring::default());
            for (port, is_ipv6, vlan, traffic_class, len, psn) in frames {
                let template = PathTemplate::new(&path(port, is_ipv6, vlan, traffic_class));
                let opcode =
                    if len % 2 == 0 { Opcode::RC_WRITE_FIRST } else { Opcode::RC_WRITE_MIDDLE };
                let mut head =
                    Head::begin(&template, &Bth::new(opcode, Qpn::new(7), Psn::new(psn)));
                if len % 2 == 0 {
                    head.push_reth(&Reth { virtual_address: psn.into(), rkey: RKey(3), len: 9 });
                }
                let pad_len = head.finish(&template, len);
                let frame = Frame {
                    head: head.bytes(),
                    payload: Payload::Synthetic { len },
                    trailer: Trailer::Sealed { pad_len },
                };
                prop_assert_eq!(through(&mut packer, &mut ring, &frame, false), written(&frame));
            }
        }

        #[test]
        fn other_frames_are_kept_byte_for_byte(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let (mut packer, mut ring) = (Packer::default(), Ring::default());
            prop_assert_eq!(through(&mut packer, &mut ring, &Frame::opaque(&bytes), false), bytes);
        }
    }

    #[test]
    fn payload_with_bytes_keeps_them() {
        let template = PathTemplate::new(&path(1, false, None, 0));
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(1)));
        let pad_len = head.finish(&template, 5);
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::Bytes(b"bytes"),
            trailer: Trailer::Sealed { pad_len },
        };
        let (mut packer, mut ring) = (Packer::default(), Ring::default());
        assert_eq!(through(&mut packer, &mut ring, &frame, false), written(&frame));
    }

    #[test]
    fn a_mark_is_put_on_at_the_far_end() {
        let (mut packer, mut ring) = (Packer::default(), Ring::default());
        let template = PathTemplate::new(&path(1, false, None, 2));
        let mut head =
            Head::begin(&template, &Bth::new(Opcode::RC_WRITE_MIDDLE, Qpn::new(7), Psn::new(1)));
        let pad_len = head.finish(&template, 4096);
        let frame = Frame {
            head: head.bytes(),
            payload: Payload::Synthetic { len: 4096 },
            trailer: Trailer::Sealed { pad_len },
        };
        let marked = through(&mut packer, &mut ring, &frame, true);
        let mut expected = written(&frame);
        assert!(Ecn::mark(&mut expected[..54]));
        assert_eq!(marked, expected);
    }
}
