//! Merges consecutive TCP segments on their way to the kernel, as a receiving device does (LRO).
//!
//! Only whole segments of one stream that a device would have split from one: IPv4 without options
//! and fragments, the same headers except for lengths, identification, sequence number and
//! checksums, all full except for the last, and with valid checksums, because the kernel trusts
//! those of a merged frame.

use crate::checksum;
use crate::layers::PROTOCOL_TCP;
use crate::segment::{OFFLOAD_BYTES, Offload, TCP_CHECKSUM, get, pseudo_sum, put};

const IP: usize = 14;
const TCP: usize = IP + 20;
const SEQUENCE: usize = TCP + 4;
const FLAGS: usize = TCP + 13;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Longest merged frame: the length field of IPv4, and the Ethernet header.
pub(crate) const MERGED_BYTES_MAX: usize = 65535 + IP;

/// The frame that is being merged, at the start of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Merged {
    /// Length so far.
    pub(crate) bytes: usize,
    headers: usize,
    /// Payload of every segment but the last.
    segment_bytes: usize,
    segments: usize,
    next_sequence: u32,
    /// The last segment was short, or asked to be delivered.
    is_closed: bool,
}

/// Headers of a segment that may be merged, payload, and sequence number.
struct Segment {
    headers: usize,
    payload: usize,
    sequence: u32,
    pushes: bool,
}

impl Segment {
    /// Parses the headers alone.
    fn find(frame: &[u8]) -> Option<Self> {
        let fixed = frame.get(..TCP + 20)?;
        // IPv4, version and header length; TCP; no fragment, whatever the DF bit.
        let is_tcp = get(fixed, 12) == 0x0800
            && fixed[IP] == 0x45
            && fixed[IP + 9] == PROTOCOL_TCP
            && get(fixed, IP + 6) & 0xbfff == 0;
        let headers = TCP + usize::from(fixed[TCP + 12] >> 4) * 4;
        let is_whole = usize::from(get(fixed, IP + 2)) + IP == frame.len();
        let flags = fixed[FLAGS];
        let payload = frame.len().checked_sub(headers)?;
        if !is_tcp || !is_whole || headers < TCP + 20 || payload == 0 || flags & !PSH != ACK {
            return None;
        }
        let sequence = u32::from_be_bytes(*fixed[SEQUENCE..].first_chunk()?);
        Some(Segment { headers, payload, sequence, pushes: flags & PSH != 0 })
    }
}

/// The checksums of the headers and of the segment are right.
fn is_intact(frame: &[u8]) -> bool {
    let length = (frame.len() - TCP) as u16;
    let pseudo = checksum::add(pseudo_sum(frame, IP, PROTOCOL_TCP), length);
    checksum::sum(&frame[IP..TCP]) == u16::MAX
        && checksum::add(checksum::sum(&frame[TCP..]), pseudo) == u16::MAX
}

/// Headers that differ only where those of consecutive segments do.
fn is_same_stream(one: &[u8], other: &[u8], headers: usize) -> bool {
    let same = |from: usize, to: usize| one[from..to] == other[from..to];
    // Up to the length; fragment field to protocol; addresses and ports; acknowledgement and data
    // offset; window; urgent pointer and options.
    same(0, IP + 2)
        && same(IP + 6, IP + 10)
        && same(IP + 12, SEQUENCE)
        && same(TCP + 8, FLAGS)
        && same(FLAGS + 1, TCP + TCP_CHECKSUM)
        && same(TCP + TCP_CHECKSUM + 2, headers)
}

impl Merged {
    /// Begins with `frame`, if others can follow it.
    pub(crate) fn begin(frame: &[u8]) -> Option<Self> {
        let segment = Segment::find(frame)?;
        if segment.pushes || !is_intact(frame) {
            return None;
        }
        Some(Merged {
            bytes: frame.len(),
            headers: segment.headers,
            segment_bytes: segment.payload,
            segments: 1,
            next_sequence: segment.sequence.wrapping_add(segment.payload as u32),
            is_closed: false,
        })
    }

    /// Appends the frame of `len` bytes behind it in `buffer`, if it follows.
    pub(crate) fn append(&mut self, buffer: &mut [u8], len: usize) -> bool {
        let (merged, frame) = buffer[..self.bytes + len].split_at_mut(self.bytes);
        let Some(segment) = Segment::find(frame) else { return false };
        let follows = !self.is_closed
            && segment.headers == self.headers
            && segment.sequence == self.next_sequence
            && segment.payload <= self.segment_bytes
            && self.bytes + segment.payload <= MERGED_BYTES_MAX
            && is_same_stream(merged, frame, self.headers)
            && is_intact(frame);
        if !follows {
            return false;
        }
        merged[FLAGS] |= frame[FLAGS];
        let payload = self.bytes + segment.headers..self.bytes + len;
        buffer.copy_within(payload, self.bytes);
        self.bytes += segment.payload;
        self.segments += 1;
        self.next_sequence = self.next_sequence.wrapping_add(segment.payload as u32);
        self.is_closed = segment.pushes || segment.payload < self.segment_bytes;
        true
    }

    /// Completes the headers of the frame, and returns its description.
    pub(crate) fn finish(&self, frame: &mut [u8]) -> [u8; OFFLOAD_BYTES] {
        if self.segments == 1 {
            return [0; OFFLOAD_BYTES];
        }
        put(frame, IP + 2, (self.bytes - IP) as u16);
        put(frame, IP + 10, 0);
        let checksum = !checksum::sum(&frame[IP..TCP]);
        put(frame, IP + 10, checksum);
        let length = (self.bytes - TCP) as u16;
        // Open, with the sum of the pseudo header in its place.
        let open = checksum::add(pseudo_sum(frame, IP, PROTOCOL_TCP), length);
        put(frame, TCP + TCP_CHECKSUM, open);
        Offload::open_tcp(self.segment_bytes, self.headers, TCP, TCP_CHECKSUM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Splitter;
    use proptest::prelude::*;

    /// A segment with timestamps, whose checksums are left to be filled in.
    fn segment(payload: &[u8], flags: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        frame.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 9, 0x80, flags]);
        frame.extend([1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
        frame.extend(payload);
        frame
    }

    /// What a device makes of one unsplit segment.
    fn split(payload: &[u8], flags: u8, segment_bytes: usize) -> Vec<Vec<u8>> {
        let mut whole = segment(payload, flags);
        let mut splitter = Splitter::IDLE;
        splitter.begin(&whole, &Offload::tcp(false, segment_bytes)).unwrap();
        let mut parts = Vec::new();
        while !splitter.is_done() {
            parts.push(splitter.next(&mut whole).to_vec());
        }
        parts
    }

    /// Merges as long as parts follow; returns the frame and the number of parts in it.
    fn merge(parts: &[Vec<u8>]) -> (Vec<u8>, [u8; OFFLOAD_BYTES], usize) {
        let mut buffer = vec![0; 2 * MERGED_BYTES_MAX];
        buffer[..parts[0].len()].copy_from_slice(&parts[0]);
        let mut merged = Merged::begin(&parts[0]).unwrap();
        let mut count = 1;
        for part in &parts[1..] {
            buffer[merged.bytes..][..part.len()].copy_from_slice(part);
            if !merged.append(&mut buffer, part.len()) {
                break;
            }
            count += 1;
        }
        buffer.truncate(merged.bytes);
        let description = merged.finish(&mut buffer);
        (buffer, description, count)
    }

    proptest! {
        #[test]
        fn a_merged_frame_splits_into_its_segments(
            payload in proptest::collection::vec(any::<u8>(), 1001..60_000),
            segment_bytes in 500..1000_usize,
            flags in prop_oneof![Just(ACK), Just(ACK | PSH)],
        ) {
            let parts = split(&payload, flags, segment_bytes);
            let (mut whole, description, count) = merge(&parts);
            prop_assert_eq!(count, parts.len());
            let mut splitter = Splitter::IDLE;
            splitter.begin(&whole, &Offload::parse(&description)).unwrap();
            for part in &parts {
                prop_assert!(!splitter.is_done());
                prop_assert!(splitter.next(&mut whole) == &part[..]);
            }
            prop_assert!(splitter.is_done());
        }

        #[test]
        fn a_segment_with_any_bit_wrong_is_not_appended(
            at in any::<proptest::sample::Index>(), bit in 0..8_u8,
        ) {
            let mut parts = split(&[7; 3000], ACK, 1000);
            let place = at.index(parts[1].len());
            parts[1][place] ^= 1 << bit;
            let (_, description, count) = merge(&parts);
            // The identification is free, but its change breaks the checksum.
            prop_assert_eq!((count, description), (1, [0; OFFLOAD_BYTES]));
        }

        #[test]
        fn any_bytes_are_looked_at(
            one in proptest::collection::vec(any::<u8>(), 0..200),
            other in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(Merged::begin(&one).is_none());
            let mut parts = split(&[7; 3000], ACK, 1000);
            parts[1] = other;
            prop_assert_eq!(merge(&parts).2, 1);
        }
    }

    #[test]
    fn a_gap_or_a_repetition_ends_a_frame() {
        let parts = split(&[7; 4000], ACK, 1000);
        assert_eq!(merge(&[parts[0].clone(), parts[2].clone()]).2, 1);
        assert_eq!(merge(&[parts[0].clone(), parts[1].clone(), parts[1].clone()]).2, 2);
    }
}
