//! Control datagrams: acknowledgements, PINGs, HELLOs, CLOSE.

use super::{HEADER_LEN, Header};
use longhaul_node::{Frame, Payload, Trailer};
use longhaul_wire::{HEAD_MAX, Path, PathTemplate, Udp};
use std::fmt;

/// Longest body of a control datagram, in bytes.
pub(crate) const BODY_MAX: usize = 768;
pub(crate) const HELLO_LEN: usize = 64;
/// Length of a PING without padding.
pub(crate) const PING_LEN: usize = 32;
pub(crate) const CLOSE_LEN: usize = 16;
const ACK_FIXED: usize = 32;
const ENTRY_LEN: usize = 12;

/// Writes consecutive big-endian fields.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Self {
        self.out[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
        self
    }
}

/// Reads consecutive big-endian fields.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*first)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Arrivals among 64 consecutive numbers of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AckEntry {
    /// Low half of the first number divided by 64.
    pub word: u32,
    /// Bit n is set if the nth of them has arrived.
    pub mask: u64,
}

/// Acknowledgement of arrivals on one path. It reports, in words of 64, the numbers not yet
/// reported often enough.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ack {
    /// Low half of the largest number that has arrived.
    pub largest: u32,
    /// Nanoseconds since that arrival; saturates.
    pub delay_ns: u32,
    /// Bytes of memory that the receiver has for unacknowledged frames.
    pub room_bytes: u64,
    /// Datagrams that arrived with a congestion mark; low half of the count.
    pub congested: u32,
    /// Numbers that arrived more than once, and frames that arrived under several numbers; low
    /// half.
    pub duplicates: u32,
    /// Frames repaired by parity that never arrived; low half.
    pub repaired: u32,
    /// Runs of numbers that did not arrive themselves; low quarter.
    pub bursts: u16,
    /// Number of valid `entries`.
    pub count: u8,
    /// Words with arrivals.
    pub entries: [AckEntry; Ack::ENTRIES_MAX],
}

impl Ack {
    /// Maximum number of entries.
    pub const ENTRIES_MAX: usize = 32;

    /// Writes the body and returns its length.
    pub(crate) fn write(&self, out: &mut [u8; BODY_MAX]) -> usize {
        let mut writer = Writer { out, at: 0 };
        writer.put(self.largest.to_be_bytes()).put(self.delay_ns.to_be_bytes());
        writer.put(self.room_bytes.to_be_bytes()).put(self.congested.to_be_bytes());
        writer.put(self.duplicates.to_be_bytes()).put(self.repaired.to_be_bytes());
        writer.put(u16::from(self.count).to_be_bytes()).put(self.bursts.to_be_bytes());
        for entry in self.entries() {
            writer.put(entry.word.to_be_bytes()).put(entry.mask.to_be_bytes());
        }
        writer.at
    }

    /// The valid entries.
    pub fn entries(&self) -> &[AckEntry] {
        &self.entries[..usize::from(self.count).min(Self::ENTRIES_MAX)]
    }

    /// Parses a body. `None` if it is invalid.
    pub fn read(bytes: &[u8]) -> Option<Ack> {
        let mut reader = Reader { bytes };
        let mut ack = Ack {
            largest: reader.u32()?,
            delay_ns: reader.u32()?,
            room_bytes: reader.u64()?,
            congested: reader.u32()?,
            duplicates: reader.u32()?,
            repaired: reader.u32()?,
            ..Ack::default()
        };
        let count = usize::from(reader.u16()?);
        ack.bursts = reader.u16()?;
        if count > Self::ENTRIES_MAX || bytes.len() != ACK_FIXED + count * ENTRY_LEN {
            return None;
        }
        ack.count = count as u8;
        for entry in &mut ack.entries[..count] {
            *entry = AckEntry { word: reader.u32()?, mask: reader.u64()? };
        }
        Some(ack)
    }
}

/// Step of a [`Ping`] exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PingStep {
    /// Requests an answer.
    Ask,
    /// Answers.
    Answer,
    /// Answers that the session is unknown: the box has restarted.
    Unknown,
}

/// Tests a path; the answer echoes the request except for `step` and `session`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ping {
    /// Step of the exchange.
    pub step: PingStep,
    /// The sender's number of the session, so that a box that does not know the session can answer.
    pub session: u32,
    /// Nonce drawn by the asking box.
    pub nonce: u64,
    /// Next number that the asking box will use on this path.
    pub next_number: u64,
}

impl Ping {
    pub(crate) fn write(&self, out: &mut [u8; BODY_MAX]) -> usize {
        let step = match self.step {
            PingStep::Ask => 1,
            PingStep::Answer => 2,
            PingStep::Unknown => 3,
        };
        let mut writer = Writer { out, at: 0 };
        writer.put([step, 0, 0, 0]).put(self.session.to_be_bytes());
        writer.put(self.nonce.to_be_bytes()).put(self.next_number.to_be_bytes()).put([0; 8]);
        writer.at
    }

    /// Parses a body. `None` if it is invalid.
    pub fn read(bytes: &[u8]) -> Option<Ping> {
        if bytes.len() < PING_LEN {
            return None;
        }
        let mut reader = Reader { bytes };
        let step = match reader.u8()? {
            1 => PingStep::Ask,
            2 => PingStep::Answer,
            3 => PingStep::Unknown,
            _ => return None,
        };
        reader.take::<3>()?;
        Some(Ping {
            step,
            session: reader.u32()?,
            nonce: reader.u64()?,
            next_number: reader.u64()?,
        })
    }
}

/// Reason to refuse a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No common version.
    Version,
    /// The policies differ.
    Policy,
    /// The box has the maximum number of sessions.
    Full,
    /// The boxes share their work among different numbers of cores.
    Cores,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version => "no version of the transport in common",
            Refusal::Policy => "another policy",
            Refusal::Full => "as many sessions as it may have",
            Refusal::Cores => "another number of cores",
        })
    }
}

/// Step of a [`Hello`] exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelloStep {
    /// Asks for a box on the path to this address.
    Ask,
    /// Answers that there is one. The sender keeps no state; the cookie returns it.
    Answer,
    /// Opens a session with the cookie of the answer.
    Open,
    /// Confirms that the session is open.
    Accept,
    /// Refuses the session.
    Refuse(Refusal),
}

/// Message by which two boxes find each other. All steps have the same length, so no reply exceeds
/// its request. The layout is the same in every version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Step of the exchange.
    pub step: HelloStep,
    /// Least version that the sender speaks.
    pub version_min: u8,
    /// Greatest version that the sender speaks.
    pub version_max: u8,
    /// The sender's number of the session; 0 before it has one.
    pub session: u32,
    /// Number of the sender's box.
    pub box_id: u64,
    /// Instance of the sender's box, different after each start.
    pub instance: u64,
    /// Digest of the policies that both boxes must share.
    pub policy: u64,
    /// Nonce of the asking box, echoed by the answering box.
    pub nonce: u64,
    /// Cookie of the answering box, echoed by the opening box.
    pub cookie: u64,
    /// Bytes of memory that the sender has for received frames.
    pub room_bytes: u64,
    /// Number of the sender's paths, 1 to 15.
    pub paths: u8,
    /// Number of transports among which the sender's box shares its work, by address pair; 0 means
    /// 1, as sent by boxes that predate the field.
    pub cores: u8,
}

impl Hello {
    pub(crate) fn write(&self, out: &mut [u8; BODY_MAX]) -> usize {
        let (step, reason) = match self.step {
            HelloStep::Ask => (1, 0),
            HelloStep::Answer => (2, 0),
            HelloStep::Open => (3, 0),
            HelloStep::Accept => (4, 0),
            HelloStep::Refuse(Refusal::Version) => (5, 1),
            HelloStep::Refuse(Refusal::Policy) => (5, 2),
            HelloStep::Refuse(Refusal::Full) => (5, 3),
            HelloStep::Refuse(Refusal::Cores) => (5, 4),
        };
        let mut writer = Writer { out, at: 0 };
        writer
            .put([step, reason, self.version_min, self.version_max])
            .put(self.session.to_be_bytes());
        for word in
            [self.box_id, self.instance, self.policy, self.nonce, self.cookie, self.room_bytes]
        {
            writer.put(word.to_be_bytes());
        }
        writer.put([self.paths, self.cores]).put([0; 6]);
        writer.at
    }

    /// Parses a body, which may be followed by more bytes. `None` if it is invalid.
    pub fn read(bytes: &[u8]) -> Option<Hello> {
        if bytes.len() < HELLO_LEN {
            return None;
        }
        let mut reader = Reader { bytes };
        let step = match (reader.u8()?, reader.u8()?) {
            (1, _) => HelloStep::Ask,
            (2, _) => HelloStep::Answer,
            (3, _) => HelloStep::Open,
            (4, _) => HelloStep::Accept,
            (5, 1) => HelloStep::Refuse(Refusal::Version),
            (5, 2) => HelloStep::Refuse(Refusal::Policy),
            (5, 3) => HelloStep::Refuse(Refusal::Full),
            (5, 4) => HelloStep::Refuse(Refusal::Cores),
            _ => return None,
        };
        Some(Hello {
            step,
            version_min: reader.u8()?,
            version_max: reader.u8()?,
            session: reader.u32()?,
            box_id: reader.u64()?,
            instance: reader.u64()?,
            policy: reader.u64()?,
            nonce: reader.u64()?,
            cookie: reader.u64()?,
            room_bytes: reader.u64()?,
            paths: reader.u8()?,
            cores: reader.u8()?,
        })
    }
}

/// Ends a session: frames in flight are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// The sender's number of the session: a second number that a forger must know.
    pub session: u32,
}

impl Close {
    pub(crate) fn write(&self, out: &mut [u8; BODY_MAX]) -> usize {
        let mut writer = Writer { out, at: 0 };
        writer.put(self.session.to_be_bytes()).put([0; 12]);
        writer.at
    }

    /// Parses a body. `None` if it is invalid.
    pub fn read(bytes: &[u8]) -> Option<Close> {
        if bytes.len() < CLOSE_LEN {
            return None;
        }
        Some(Close { session: Reader { bytes }.u32()? })
    }
}

/// A control datagram, ready to send.
pub(crate) struct Datagram {
    head: [u8; HEAD_MAX],
    head_len: usize,
    body: [u8; BODY_MAX],
    body_len: usize,
}

impl Datagram {
    /// Builds `header` along `path` to `port`, with the body that `fill` writes and whose length it
    /// returns.
    pub(crate) fn new(
        path: &Path,
        port: u16,
        header: &Header,
        fill: impl FnOnce(&mut [u8; BODY_MAX]) -> usize,
    ) -> Self {
        let mut datagram =
            Datagram { head: [0; HEAD_MAX], head_len: 0, body: [0; BODY_MAX], body_len: 0 };
        datagram.body_len = fill(&mut datagram.body);
        let body = &datagram.body[..datagram.body_len];
        let template = PathTemplate::new(path);
        let below = template.bytes();
        let head = &mut datagram.head;
        head[..below.len()].copy_from_slice(below);
        head[below.len()..below.len() + HEADER_LEN].copy_from_slice(&header.write(body));
        datagram.head_len = below.len() + HEADER_LEN;
        if let Some(udp) = Udp::find(head) {
            udp.set_destination_port(head, port);
            udp.finish_lengths(head, HEADER_LEN + datagram.body_len);
        }
        datagram
    }

    /// The frame to send.
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame {
            head: &self.head[..self.head_len],
            payload: Payload::Bytes(&self.body[..self.body_len]),
            trailer: Trailer::None,
        }
    }
}

/// Padding of PINGs that probe a length.
static PADDING: [u8; PROBE_MAX] = [0; PROBE_MAX];
/// Maximum length of a probe's IP packet, in bytes.
pub(crate) const PROBE_MAX: usize = 9216;

/// A PING padded to a length, ready to send.
pub(crate) struct ProbeDatagram {
    head: [u8; HEAD_MAX],
    head_len: usize,
    padding: usize,
}

impl ProbeDatagram {
    /// Builds `ping` along `path` to `port`, as an IP packet of `len` bytes, or of its minimum
    /// length if that is more.
    pub(crate) fn new(path: &Path, port: u16, header: &Header, ping: &Ping, len: u16) -> Self {
        let datagram = Datagram::new(path, port, header, |body| ping.write(body));
        let (mut head, at) = (datagram.head, datagram.head_len);
        let head_len = at + datagram.body_len;
        head[at..head_len].copy_from_slice(&datagram.body[..datagram.body_len]);
        let mut padding = 0;
        if let Some(udp) = Udp::find(&head) {
            padding = (usize::from(len) + udp.ip).saturating_sub(head_len).min(PROBE_MAX);
            udp.lengthen(&mut head, padding as i32);
        }
        ProbeDatagram { head, head_len, padding }
    }

    /// The frame to send.
    pub(crate) fn frame(&self) -> Frame<'_> {
        let padding = Payload::Bytes(&PADDING[..self.padding]);
        Frame { head: &self.head[..self.head_len], payload: padding, trailer: Trailer::None }
    }
}

/// Like [`body_of`], for the body of a PING without its padding. `None` if it is truncated.
pub(crate) fn ping_body_of<'a>(
    frame: &Frame<'_>,
    udp: Udp,
    out: &'a mut [u8; BODY_MAX],
) -> Option<&'a [u8]> {
    let len = udp.payload_len(frame.head)?.checked_sub(HEADER_LEN)?;
    let is_whole = udp.payload() + HEADER_LEN + len <= frame.len();
    copy_body(frame, udp, len.min(PING_LEN), out).filter(|_| is_whole)
}

/// Body of the control datagram in `frame`, copied because its pieces may not be contiguous.
pub(crate) fn body_of<'a>(
    frame: &Frame<'_>,
    udp: Udp,
    out: &'a mut [u8; BODY_MAX],
) -> Option<&'a [u8]> {
    let len = udp.payload_len(frame.head)?.checked_sub(HEADER_LEN)?;
    copy_body(frame, udp, len, out)
}

fn copy_body<'a>(
    frame: &Frame<'_>,
    udp: Udp,
    len: usize,
    out: &'a mut [u8; BODY_MAX],
) -> Option<&'a [u8]> {
    let out = out.get_mut(..len)?;
    let in_head = frame.head.get(udp.payload() + HEADER_LEN..)?;
    let in_head = &in_head[..in_head.len().min(len)];
    let (first, second) = out.split_at_mut(in_head.len());
    first.copy_from_slice(in_head);
    second.copy_from_slice(frame.payload.as_bytes()?.get(..second.len())?);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DatagramKind, Outer};
    use crate::samples;
    use longhaul_wire::Head;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn bodies_come_back(
            words in any::<[u64; 8]>(),
            count in 0..=Ack::ENTRIES_MAX,
            step in 1..=8_u8,
        ) {
            let mut out = [0; BODY_MAX];
            let mut ack = Ack {
                largest: words[0] as u32,
                delay_ns: words[1] as u32,
                room_bytes: words[2],
                congested: words[3] as u32,
                duplicates: words[4] as u32,
                repaired: words[5] as u32,
                bursts: words[6] as u16,
                count: count as u8,
                ..Ack::default()
            };
            for (place, entry) in ack.entries[..count].iter_mut().enumerate() {
                *entry = AckEntry { word: place as u32, mask: words[6] ^ place as u64 };
            }
            let len = ack.write(&mut out);
            prop_assert_eq!(Ack::read(&out[..len]), Some(ack));
            for step in [PingStep::Ask, PingStep::Answer, PingStep::Unknown] {
                let ping =
                    Ping { step, session: words[0] as u32, nonce: words[1], next_number: words[2] };
                let len = ping.write(&mut out);
                prop_assert_eq!(len, PING_LEN);
                prop_assert_eq!(Ping::read(&out[..len]), Some(ping));
            }
            let step = match step {
                1 => HelloStep::Ask,
                2 => HelloStep::Answer,
                3 => HelloStep::Open,
                4 => HelloStep::Accept,
                5 => HelloStep::Refuse(Refusal::Version),
                6 => HelloStep::Refuse(Refusal::Policy),
                7 => HelloStep::Refuse(Refusal::Full),
                _ => HelloStep::Refuse(Refusal::Cores),
            };
            let hello = Hello {
                step,
                version_min: 1,
                version_max: 3,
                session: words[0] as u32,
                box_id: words[1],
                instance: words[2],
                policy: words[3],
                nonce: words[4],
                cookie: words[5],
                room_bytes: words[6],
                paths: 2,
                cores: 3,
            };
            let len = hello.write(&mut out);
            prop_assert_eq!(len, HELLO_LEN);
            prop_assert_eq!(Hello::read(&out[..len]), Some(hello));
            let close = Close { session: words[0] as u32 };
            let len = close.write(&mut out);
            prop_assert_eq!((len, Close::read(&out[..len])), (CLOSE_LEN, Some(close)));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            if let Some(ack) = Ack::read(&bytes) {
                prop_assert!(ack.entries().len() <= Ack::ENTRIES_MAX);
            }
            let _ = (Ping::read(&bytes), Hello::read(&bytes), Close::read(&bytes));
        }

        /// A datagram is parsed again after it crosses a port as bytes, split at any offset or not
        /// at all.
        #[test]
        fn datagrams_cross_a_port(
            is_ipv6: bool,
            vlan in prop::option::of(1..4095_u16),
            body_len in 0..BODY_MAX,
            cut in 0..900_usize,
        ) {
            let ips = if is_ipv6 { ["fd00::1", "fd00::2"] } else { ["10.1.2.3", "10.9.8.7"] };
            let header = Header { number: 9, ..Header::new(DatagramKind::Ack, 5) };
            let datagram = Datagram::new(&samples::route(ips, vlan), 4797, &header, |out| {
                out[..body_len].fill(0x5a);
                body_len
            });
            let mut wire = vec![0; datagram.frame().len()];
            datagram.frame().write_to(&mut wire);
            wire.resize(wire.len().max(60), 0);
            let head = Head::copy_of(&wire);
            let frame = Frame::received(&head, &wire).unwrap();
            let outer = Outer::find(frame.head, 4797).unwrap();
            prop_assert_eq!(outer.header, header);
            let mut out = [0; BODY_MAX];
            let body = body_of(&frame, outer.udp, &mut out).unwrap();
            prop_assert_eq!(body, &vec![0x5a; body_len][..]);
            prop_assert!(Header::is_sound(outer.header_bytes(frame.head), body));
            wire.truncate(cut);
            let head = Head::copy_of(&wire);
            let frame = Frame::received(&head, &wire).unwrap_or_else(|_| Frame::opaque(&wire));
            if let Some(outer) = Outer::find(frame.head, 4797) {
                let _ = body_of(&frame, outer.udp, &mut out);
            }
        }
    }
}
