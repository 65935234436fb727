//! Priority classes of received frames, for a port that cannot keep up with all of them.
//!
//! A port with classes has a socket with its own receive buffer for each. A classic BPF program at
//! each socket makes the kernel sort frames into them, so a flood of one class fills only that
//! class' buffer. The program recognises preferred QPs by a Bloom filter with one hash, which
//! bounds its length; frames of a false positive are served like preferred ones.

use crate::bpf::{self, ETHERTYPE, Program, Target};
use crate::part::FrameSubset;
use libc::sock_filter;

/// A class of frames, in order of priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// RoCEv2 packets to preferred QPs, and frames that boxes tunnel.
    Preferred,
    /// Other RoCEv2 packets.
    Roce,
    /// Everything else.
    Rest,
}

impl Class {
    pub(crate) const ALL: [Class; 3] = [Class::Preferred, Class::Roce, Class::Rest];
}

/// Destination QPs whose RoCEv2 packets a port serves before all other frames.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PreferredQps([u32; WORDS]);

const WORDS: usize = 1 << (HASH_BITS - 5);
const HASH_BITS: u32 = 9;
const FACTOR: u32 = 0x9e37_79b1;

fn hash(qpn: u32) -> u32 {
    qpn.wrapping_mul(FACTOR) >> (32 - HASH_BITS)
}

impl PreferredQps {
    /// Adds `qpn`, of 24 bits.
    pub fn insert(&mut self, qpn: u32) {
        let hash = hash(qpn & QPN_MASK);
        self.0[(hash >> 5) as usize] |= 1 << (hash & 31);
    }

    /// True if packets to `qpn` are preferred.
    #[must_use]
    pub fn contains(&self, qpn: u32) -> bool {
        let hash = hash(qpn & QPN_MASK);
        self.0[(hash >> 5) as usize] & 1 << (hash & 31) != 0
    }
}

const QPN_MASK: u32 = 0xff_ffff;
const ROCE_PORT: u32 = 4791;
/// Usual UDP port of tunnelled frames.
const TUNNEL_PORT: u32 = 4797;
const CELL: u32 = 1;

/// Offsets of UDP's destination port, and of the word with the destination QP.
#[derive(Clone, Copy)]
struct Offsets {
    port: u32,
    qp: u32,
}

/// IPv4 without options, and IPv6 without extension headers.
const IPV4: Offsets = Offsets { port: 36, qp: 46 };
const IPV6: Offsets = Offsets { port: 56, qp: 66 };

const OVER_IPV6: Target = Target::At("IPv6");
const QP: Target = Target::At("QP");
const OTHER_WORD: Target = Target::At("other word");
const TEST: Target = Target::At("test");
const PREFERRED: Target = Target::At("preferred");
const ROCE: Target = Target::At("RoCE");
const REST: Target = Target::At("rest");
const MINE: Target = Target::At("mine");

impl Class {
    /// The program of the socket for this class and `part`.
    pub(crate) fn program(self, preferred: &PreferredQps, part: FrameSubset) -> Vec<sock_filter> {
        let mut program = Program::default();
        program.add(bpf::LOAD_LENGTH, 0);
        program.jump(bpf::IF_AT_LEAST, IPV4.qp + 4, Target::Next, REST);
        program.add(bpf::LOAD_2, ETHERTYPE);
        program.jump(bpf::IF_EQUAL, libc::ETH_P_IP as u32, Target::Next, OVER_IPV6);
        program.add(bpf::LOAD_1, 14);
        program.jump(bpf::IF_EQUAL, 0x45, Target::Next, REST);
        program.add(bpf::LOAD_1, 23);
        program.jump(bpf::IF_EQUAL, libc::IPPROTO_UDP as u32, Target::Next, REST);
        program.add(bpf::LOAD_2, 20);
        program.jump(bpf::IF_ANY, 0x3fff, REST, Target::Next);
        program.by_port(IPV4);
        program.place(OVER_IPV6);
        program.jump(bpf::IF_EQUAL, libc::ETH_P_IPV6 as u32, Target::Next, REST);
        program.add(bpf::LOAD_LENGTH, 0);
        program.jump(bpf::IF_AT_LEAST, IPV6.qp + 4, Target::Next, REST);
        program.add(bpf::LOAD_1, 20);
        program.jump(bpf::IF_EQUAL, libc::IPPROTO_UDP as u32, Target::Next, REST);
        program.by_port(IPV6);
        program.place(QP);
        program.look_up(preferred);
        for (class, place) in Class::ALL.into_iter().zip([PREFERRED, ROCE, REST]) {
            program.place(place);
            let end = if class == self { MINE } else { Target::Drop };
            program.jump(bpf::ALWAYS, 0, end, Target::Next);
        }
        program.place(MINE);
        part.append_to(&mut program);
        program.assembled()
    }
}

impl Program {
    /// Jumps to the class of a UDP datagram, by its port or its destination QP.
    fn by_port(&mut self, at: Offsets) {
        self.add(bpf::LOAD_2, at.port);
        self.jump(bpf::IF_EQUAL, TUNNEL_PORT, PREFERRED, Target::Next);
        self.jump(bpf::IF_EQUAL, ROCE_PORT, Target::Next, REST);
        self.add(bpf::LOAD_4, at.qp);
        self.jump(bpf::ALWAYS, 0, QP, Target::Next);
    }

    /// Tests whether the loaded QPN is preferred.
    fn look_up(&mut self, preferred: &PreferredQps) {
        self.add(bpf::AND, QPN_MASK);
        self.add(bpf::MULTIPLY, FACTOR);
        self.add(bpf::SHIFT_RIGHT, 32 - HASH_BITS);
        self.add(bpf::KEEP, CELL);
        self.add(bpf::SHIFT_RIGHT, 5);
        for (word, bits) in (0..).zip(preferred.0).filter(|(_, bits)| *bits != 0) {
            self.jump(bpf::IF_EQUAL, word, Target::Next, OTHER_WORD);
            self.add(bpf::LOAD_CONSTANT, bits);
            self.jump(bpf::ALWAYS, 0, TEST, Target::Next);
            self.place(OTHER_WORD);
        }
        self.jump(bpf::ALWAYS, 0, ROCE, Target::Next);
        self.place(TEST);
        self.add(bpf::KEEP, CELL + 1);
        self.add(bpf::FETCH, CELL);
        self.add(bpf::AND, 31);
        self.add(bpf::TO_INDEX, 0);
        self.add(bpf::FETCH, CELL + 1);
        self.add(bpf::SHIFT_RIGHT_BY_INDEX, 0);
        self.jump(bpf::IF_ANY, 1, PREFERRED, ROCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::tests::Filtered;

    const PREFERRED_QP: u32 = 0x12345;

    /// A RoCEv2 frame to a QP, over IPv4 or IPv6.
    fn roce(is_ipv6: bool, port: u32, qpn: u32) -> Vec<u8> {
        let (at, ethertype) = if is_ipv6 { (IPV6, [0x86, 0xdd]) } else { (IPV4, [0x08, 0x00]) };
        let mut frame = vec![0; at.qp as usize + 16];
        frame[12..14].copy_from_slice(&ethertype);
        frame[14] = if is_ipv6 { 0x60 } else { 0x45 };
        frame[if is_ipv6 { 20 } else { 23 }] = 17;
        frame[at.port as usize..][..2].copy_from_slice(&(port as u16).to_be_bytes());
        // The word's first byte is not part of the QPN.
        frame[at.qp as usize..][..4].copy_from_slice(&(0xff << 24 | qpn).to_be_bytes());
        frame
    }

    #[test]
    fn each_frame_is_of_one_class() {
        let mut qps = PreferredQps::default();
        (0..40).for_each(|at| qps.insert(PREFERRED_QP + at * 0x1111));
        let other = (1..1000).find(|qpn| !qps.contains(*qpn)).unwrap();
        for (of, index) in [(1, 0), (2, 0), (2, 1)] {
            let part = if of == 1 { FrameSubset::All } else { FrameSubset::OfPairs { index, of } };
            let classes = Class::ALL.map(|class| Filtered::new(class.program(&qps, part)));
            let rest = Filtered::of(part);
            let expect = |frame: &[u8], class: Class| {
                let takers = Class::ALL.map(|class| classes[class as usize].takes(frame));
                let is_mine = rest.as_ref().is_none_or(|rest| rest.takes(frame));
                let expected = Class::ALL.map(|one| one == class && is_mine);
                assert_eq!(takers, expected, "{frame:02x?} of {part:?}");
            };
            for is_ipv6 in [false, true] {
                expect(&roce(is_ipv6, ROCE_PORT, PREFERRED_QP), Class::Preferred);
                expect(&roce(is_ipv6, ROCE_PORT, PREFERRED_QP + 39 * 0x1111), Class::Preferred);
                expect(&roce(is_ipv6, ROCE_PORT, other), Class::Roce);
                expect(&roce(is_ipv6, TUNNEL_PORT, other), Class::Preferred);
                expect(&roce(is_ipv6, 53, PREFERRED_QP), Class::Rest);
                let whole = roce(is_ipv6, ROCE_PORT, PREFERRED_QP);
                for len in 14..whole.len() - 16 {
                    expect(&whole[..len], Class::Rest);
                }
                let mut other_protocol = whole.clone();
                other_protocol[if is_ipv6 { 20 } else { 23 }] = 6;
                expect(&other_protocol, Class::Rest);
            }
            let mut fragment = roce(false, ROCE_PORT, PREFERRED_QP);
            fragment[20] = 0x20;
            expect(&fragment, Class::Rest);
        }
    }

    #[test]
    fn jumps_reach_with_every_qp_preferred() {
        let mut qps = PreferredQps::default();
        (0..5000).for_each(|qpn| qps.insert(qpn));
        let parts = [0, 1].map(|index| FrameSubset::OfPairs { index, of: 2 });
        let sockets =
            parts.map(|part| Class::ALL.map(|class| Filtered::new(class.program(&qps, part))));
        for (frame, class) in [
            (roce(false, ROCE_PORT, PREFERRED_QP), Class::Preferred),
            (roce(true, ROCE_PORT, 7), Class::Preferred),
            (roce(true, 53, 7), Class::Rest),
            (vec![0; 60], Class::Rest),
        ] {
            let takers =
                sockets.each_ref().map(|of| of.each_ref().map(|socket| socket.takes(&frame)));
            let of_class = Class::ALL.map(|one| one == class);
            assert!(
                takers == [of_class, [false; 3]] || takers == [[false; 3], of_class],
                "{takers:?}"
            );
        }
    }
}
