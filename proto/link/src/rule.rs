//! Rules: selections of frames, and the actions on them.
//!
//! A rule is a line of text, [`Rule::from_str`], such as `read-response from a: lose 1%`;
//! docs/emulator.md has the grammar with examples. It selects frames by their properties
//! ([`Selection`]), takes some of those by number or at random, and applies one [`Action`] to them.
//! All rules see a frame in order, and each applies its action; rules behind one that drops the
//! frame do not see it.
//!
//! Frames to which an action does not apply are not selected: a frame that is not RoCEv2 has no
//! ICRC to corrupt, and a sender that does not react to marks gets none.

mod active;
mod text;

pub use active::RuleCounters;
pub(crate) use active::{ActiveRules, Effects};

use crate::config::Bursts;
use longhaul_node::{Frame, Side};
use longhaul_units::{Duration, Psn, Qpn};
use longhaul_wire::{Ecn, Opcode, Packet, Prefix, Syndrome, Transport, Verb};
use std::ops::RangeInclusive;

/// Most rules of one link; each is evaluated for each frame.
pub const RULES_MAX: usize = 64;

/// Kind of a RoCEv2 packet, by its opcode and, for acknowledgements, by their syndrome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PacketKind {
    /// SEND of any transport and position, except datagrams to QP 1.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Compare and swap, fetch and add.
    Atomic,
    /// Positive acknowledgement.
    Ack,
    /// Negative acknowledgement other than RNR.
    Nak,
    /// RNR NAK.
    RnrNak,
    /// Acknowledgement of an atomic, with the original value.
    AtomicAck,
    /// Congestion notification.
    Cnp,
    /// Datagram to QP 1, which carries the connection manager's messages.
    Cm,
    /// Any other opcode, or an acknowledgement with a reserved syndrome.
    Other,
}

impl PacketKind {
    /// All kinds.
    pub const ALL: [PacketKind; 12] = [
        PacketKind::Send,
        PacketKind::Write,
        PacketKind::ReadRequest,
        PacketKind::ReadResponse,
        PacketKind::Atomic,
        PacketKind::Ack,
        PacketKind::Nak,
        PacketKind::RnrNak,
        PacketKind::AtomicAck,
        PacketKind::Cnp,
        PacketKind::Cm,
        PacketKind::Other,
    ];

    /// Name in rules.
    pub const fn name(self) -> &'static str {
        match self {
            PacketKind::Send => "send",
            PacketKind::Write => "write",
            PacketKind::ReadRequest => "read-request",
            PacketKind::ReadResponse => "read-response",
            PacketKind::Atomic => "atomic",
            PacketKind::Ack => "ack",
            PacketKind::Nak => "nak",
            PacketKind::RnrNak => "rnr-nak",
            PacketKind::AtomicAck => "atomic-ack",
            PacketKind::Cnp => "cnp",
            PacketKind::Cm => "cm",
            PacketKind::Other => "other",
        }
    }

    /// The kind of `packet`.
    pub fn of(packet: &Packet<'_>) -> Self {
        let opcode = packet.opcode();
        if opcode == Opcode::CNP {
            return PacketKind::Cnp;
        }
        match opcode.verb() {
            Some(Verb::Send)
                if opcode.transport() == Transport::Ud && packet.dest_qp() == Qpn::GSI =>
            {
                PacketKind::Cm
            }
            Some(Verb::Send) => PacketKind::Send,
            Some(Verb::Write) => PacketKind::Write,
            Some(Verb::ReadRequest) => PacketKind::ReadRequest,
            Some(Verb::ReadResponse) => PacketKind::ReadResponse,
            Some(Verb::CmpSwap | Verb::FetchAdd) => PacketKind::Atomic,
            Some(Verb::AtomicAcknowledge) => PacketKind::AtomicAck,
            Some(Verb::Acknowledge) => match packet.aeth().map(|aeth| aeth.syndrome) {
                Some(Syndrome::Ack { .. }) => PacketKind::Ack,
                Some(Syndrome::RnrNak { .. }) => PacketKind::RnrNak,
                Some(Syndrome::Nak(_)) => PacketKind::Nak,
                Some(Syndrome::Reserved(_)) | None => PacketKind::Other,
            },
            None => PacketKind::Other,
        }
    }
}

/// A set of packet kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketKinds(u16);

impl PacketKinds {
    /// The empty set.
    pub const NONE: PacketKinds = PacketKinds(0);
    /// All kinds.
    pub const ALL: PacketKinds = PacketKinds((1 << PacketKind::ALL.len()) - 1);

    /// Adds `kind` to the set.
    #[must_use]
    pub const fn and(self, kind: PacketKind) -> Self {
        PacketKinds(self.0 | 1 << kind as u8)
    }

    /// True if the set contains `kind`.
    pub const fn contains(self, kind: PacketKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

/// Class of frames that a rule matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameMatch {
    /// All frames.
    Any,
    /// Frames that are not well-formed RoCEv2: TCP, ARP, and malformed RoCEv2.
    NotRoce,
    /// RoCEv2 packets of these kinds.
    Roce(PacketKinds),
}

/// The frames that a rule selects. Conditions on packets apply to RoCEv2 only; an absent condition
/// matches all.
#[derive(Clone, PartialEq, Debug)]
pub struct Selection {
    /// Class of the frames.
    pub what: FrameMatch,
    /// The side on which they enter. `None`: either.
    pub from: Option<Side>,
    /// BTH opcodes.
    pub opcodes: Option<RangeInclusive<u8>>,
    /// Destination QPNs, 24 bits.
    pub qpns: Option<RangeInclusive<u32>>,
    /// PSNs, 24 bits. A range whose first is above its last wraps at 0.
    pub psns: Option<RangeInclusive<u32>>,
    /// IP source.
    pub source: Option<Prefix>,
    /// IP destination.
    pub destination: Option<Prefix>,
    /// UDP source ports.
    pub ports: Option<RangeInclusive<u16>>,
    /// DSCPs, 0 to 63.
    pub dscps: Option<RangeInclusive<u8>>,
}

impl Selection {
    /// Selects all frames of a class.
    pub const fn of(what: FrameMatch) -> Self {
        Selection {
            what,
            from: None,
            opcodes: None,
            qpns: None,
            psns: None,
            source: None,
            destination: None,
            ports: None,
            dscps: None,
        }
    }

    fn has_packet_conditions(&self) -> bool {
        self.opcodes.is_some()
            || self.qpns.is_some()
            || self.psns.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || self.ports.is_some()
            || self.dscps.is_some()
    }

    /// True if it selects the frame, which is at `place` in a train.
    fn fits(&self, packet: Option<&Packet<'_>>, place: u32) -> bool {
        match (self.what, packet) {
            (FrameMatch::Any, _) | (FrameMatch::NotRoce, None) => true,
            (FrameMatch::NotRoce, Some(_)) | (FrameMatch::Roce(_), None) => false,
            (FrameMatch::Roce(kinds), Some(packet)) => {
                kinds.contains(PacketKind::of(packet)) && self.fits_packet(packet, place)
            }
        }
    }

    fn fits_packet(&self, packet: &Packet<'_>, place: u32) -> bool {
        fn within<T: PartialOrd>(
            range: &Option<RangeInclusive<T>>,
            value: impl FnOnce() -> T,
        ) -> bool {
            range.as_ref().is_none_or(|range| range.contains(&value()))
        }
        within(&self.opcodes, || packet.opcode().0)
            && within(&self.qpns, || packet.dest_qp().get())
            && within(&self.ports, || packet.udp_source_port())
            && within(&self.dscps, || packet.traffic_class() >> 2)
            && self.psns.as_ref().is_none_or(|psns| {
                let since = |psn: Psn| psn.minus(*psns.start()).get();
                since(packet.psn().plus(place)) <= since(Psn::new(*psns.end()))
            })
            && self.source.is_none_or(|prefix| prefix.contains(packet.source_ip()))
            && self.destination.is_none_or(|prefix| prefix.contains(packet.destination_ip()))
    }

    fn fault(&self) -> Option<&'static str> {
        let above = |range: &Option<RangeInclusive<u32>>, max: u32| {
            range.as_ref().is_some_and(|range| range.start().max(range.end()) > &max)
        };
        let is_wrong_way =
            |range: &Option<RangeInclusive<u32>>| range.as_ref().is_some_and(|r| r.is_empty());
        match self.what {
            FrameMatch::Roce(kinds) if kinds == PacketKinds::NONE => {
                return Some("it is about no kind of packet");
            }
            FrameMatch::Any | FrameMatch::NotRoce if self.has_packet_conditions() => {
                return Some(
                    "its conditions are about RoCEv2 packets alone: say roce, or a kind of packet",
                );
            }
            _ => {}
        }
        if above(&self.qpns, Qpn::MAX) || above(&self.psns, Qpn::MAX) {
            return Some("QPNs and PSNs go up to 0xffffff");
        }
        if self.dscps.as_ref().is_some_and(|range| *range.end() > 63) {
            return Some("a DSCP goes from 0 to 63");
        }
        let is_empty = is_wrong_way(&self.qpns)
            || self.opcodes.as_ref().is_some_and(RangeInclusive::is_empty)
            || self.ports.as_ref().is_some_and(RangeInclusive::is_empty)
            || self.dscps.as_ref().is_some_and(RangeInclusive::is_empty);
        if is_empty {
            return Some("a range goes from the smaller number to the larger one");
        }
        match (self.source, self.destination) {
            (Some(source), Some(destination)) if source.is_ipv4() != destination.is_ipv4() => {
                Some("no packet goes from IPv4 to IPv6")
            }
            _ => None,
        }
    }
}

/// Action on a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Drops it; it still uses the wire.
    Lose,
    /// Sets its congestion mark (ECN), if its sender reacts to that.
    Mark,
    /// Flips a bit of its ICRC.
    CorruptIcrc,
    /// Flips a bit of its payload, without changing the ICRC.
    CorruptPayload,
    /// Delivers it twice.
    Duplicate,
    /// Delays it, by a time uniformly distributed in this range; later frames wait for it.
    Delay(RangeInclusive<Duration>),
    /// Delays it likewise, but later frames overtake it, except those that are delayed so too.
    Reorder(RangeInclusive<Duration>),
}

/// Which of the selected frames a rule acts on. Each direction counts separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Occurrence {
    /// All of them.
    #[default]
    Each,
    /// The first frames, this many.
    First(u64),
    /// The last of every so many frames.
    Every(u64),
    /// The frame with this number only, counted from 1.
    Number(u64),
}

impl Occurrence {
    /// True if it includes the frame with this number, counted from 1.
    fn takes(self, number: u64) -> bool {
        match self {
            Occurrence::Each => true,
            Occurrence::First(count) => number <= count,
            Occurrence::Every(count) => number.is_multiple_of(count),
            Occurrence::Number(one) => number == one,
        }
    }
}

/// A rule: selection, occurrence, probability and action.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The frames that it applies to.
    pub selection: Selection,
    /// The action on them.
    pub action: Action,
    /// Which of the selected frames.
    pub occurrence: Occurrence,
    /// Probability of the action, 0 to 1.
    pub probability: f64,
    /// Mean length of bursts, in selected frames, 1 to 10^9; a burst affects all selected frames.
    /// `None`: each is drawn independently.
    pub burst_frames: Option<f64>,
    /// Most actions in each direction. `None`: unlimited.
    pub at_most: Option<u64>,
}

impl Rule {
    /// Applies the action to all selected frames.
    pub const fn new(selection: Selection, action: Action) -> Self {
        Rule {
            selection,
            action,
            occurrence: Occurrence::Each,
            probability: 1.0,
            burst_frames: None,
            at_most: None,
        }
    }

    /// Why it is invalid, if it is.
    pub fn fault(&self) -> Option<&'static str> {
        let is_no_probability = !(0.0..=1.0).contains(&self.probability);
        let is_never = matches!(
            self.occurrence,
            Occurrence::Every(0) | Occurrence::Number(0) | Occurrence::First(0)
        );
        match &self.action {
            Action::Delay(times) | Action::Reorder(times) if times.is_empty() => {
                return Some("a range goes from the shorter time to the longer one");
            }
            _ if is_no_probability => return Some("its probability is no number from 0 to 1"),
            _ if is_never || self.at_most == Some(0) => return Some("it would never do anything"),
            _ => {}
        }
        match self.bursts() {
            Some(bursts) if !(1.0..=1e9).contains(&bursts.frames) => {
                Some("bursts have a mean length from 1 to 1000000000 frames")
            }
            Some(bursts) if self.probability > bursts.mean_max() => Some(
                "bursts as short cannot be as frequent: give a lower probability, or longer ones",
            ),
            _ => self.selection.fault(),
        }
    }

    fn bursts(&self) -> Option<Bursts> {
        self.burst_frames.map(|frames| Bursts { frames, loss: 1.0 })
    }

    /// True if frames that enter on this side can be selected.
    pub fn is_for(&self, entry: Side) -> bool {
        self.selection.from.is_none_or(|from| from == entry)
    }

    /// Most delay that it adds to a frame.
    pub(crate) fn delay_max(&self) -> Duration {
        match &self.action {
            Action::Delay(times) | Action::Reorder(times) => *times.end(),
            _ => Duration::ZERO,
        }
    }

    /// True if it selects the frame, which is `packet` if it is RoCEv2.
    fn selects(&self, frame: &Frame<'_>, packet: Option<&Packet<'_>>, place: u32) -> bool {
        self.selection.fits(packet, place)
            && match self.action {
                Action::Mark => Ecn::of(frame.head) == Some(Ecn::Capable),
                Action::CorruptIcrc => packet.is_some(),
                Action::CorruptPayload => !frame.payload.is_empty(),
                _ => true,
            }
    }
}
