//! Priority-based flow control frames, by which one end of a link pauses priorities of the other.
//!
//! Sources: IEEE 802.1Qbb (IEEE 802.1Q, clause 36), IEEE 802.3, clause 31 (MAC control) and annex
//! 31D (the frame).

use crate::MacAddr;
use crate::layout::find_ip;
use longhaul_units::{BitRate, Duration};

/// Bits whose time on a link is one quantum.
const QUANTUM_BITS: u64 = 512;
const ETHERTYPE: usize = 12;
const OPCODE: usize = 14;
const ENABLE: usize = 16;
const TIMES: usize = 18;

/// Priorities of a link.
pub const PRIORITIES: usize = 8;

/// A priority-based pause frame: the pause of each enabled priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pause {
    /// By priority: quanta of 512 bit times of the link, 0 to resume. `None`: not enabled.
    pub quanta: [Option<u16>; PRIORITIES],
}

impl Pause {
    /// Length of a frame without FCS: Ethernet's minimum.
    pub const LEN: usize = 60;
    /// Destination of MAC control frames, which are never forwarded beyond the link.
    pub const DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x01]);
    /// EtherType of MAC control.
    pub const ETHERTYPE: u16 = 0x8808;
    /// MAC control opcode of priority-based flow control.
    pub const OPCODE: u16 = 0x0101;
    /// Maximum pause.
    pub const QUANTA_MAX: u16 = u16::MAX;

    /// Pauses one priority.
    pub fn of(priority: u8, quanta: u16) -> Pause {
        let mut pause = Pause::default();
        if let Some(of) = pause.quanta.get_mut(usize::from(priority)) {
            *of = Some(quanta);
        }
        pause
    }

    /// Parses a frame from its leading bytes. `None`: another kind of frame, another opcode or
    /// destination, or a truncated frame. The reserved bits of the enable vector's first byte are
    /// ignored.
    pub fn parse(frame: &[u8]) -> Option<Pause> {
        let head = frame.first_chunk::<{ TIMES + 2 * PRIORITIES }>()?;
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if !Pause::is_mac_control(frame)
            || head[..6] != Pause::DESTINATION.0
            || word(OPCODE) != Pause::OPCODE
        {
            return None;
        }
        let mut pause = Pause::default();
        for (priority, quanta) in pause.quanta.iter_mut().enumerate() {
            *quanta = (head[ENABLE + 1] >> priority & 1 != 0).then(|| word(TIMES + 2 * priority));
        }
        Some(pause)
    }

    /// The frame, from `source`.
    pub fn write(&self, source: MacAddr) -> [u8; Self::LEN] {
        let mut frame = [0; Self::LEN];
        frame[..6].copy_from_slice(&Pause::DESTINATION.0);
        frame[6..12].copy_from_slice(&source.0);
        frame[ETHERTYPE..OPCODE].copy_from_slice(&Pause::ETHERTYPE.to_be_bytes());
        frame[OPCODE..ENABLE].copy_from_slice(&Pause::OPCODE.to_be_bytes());
        for (priority, quanta) in self.quanta.iter().enumerate() {
            if let Some(quanta) = quanta {
                frame[ENABLE + 1] |= 1 << priority;
                frame[TIMES + 2 * priority..][..2].copy_from_slice(&quanta.to_be_bytes());
            }
        }
        frame
    }

    /// `true` for a MAC control frame of any opcode, by the leading bytes of an untagged frame:
    /// only the two ends of a link process it.
    #[inline]
    pub fn is_mac_control(frame: &[u8]) -> bool {
        frame.get(ETHERTYPE..OPCODE) == Some(&Pause::ETHERTYPE.to_be_bytes())
    }

    /// Duration of `quanta` on a link of this rate.
    pub fn time(quanta: u16, rate: BitRate) -> Duration {
        rate.time_for_bytes(u64::from(quanta) * QUANTUM_BITS / 8)
    }
}

/// Returns the priority of a frame from its leading bytes: for an IP packet DSCP / 8, the default
/// of switches and NICs that trust DSCP (26 is priority 3, 48 is 6); for other frames the priority
/// of their VLAN tag, or 0.
#[inline]
pub fn priority_of(head: &[u8]) -> u8 {
    if let Some((ip, is_ipv6)) = find_ip(head)
        && let Some(two) = head.get(ip..ip + 2)
    {
        return if is_ipv6 { two[0] << 4 >> 5 } else { two[1] >> 5 };
    }
    match head.get(ETHERTYPE..OPCODE + 1) {
        Some([0x81, 0x00, tag] | [0x88, 0xa8, tag]) => tag >> 5,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bth, Head, Opcode, Path, PathTemplate};
    use longhaul_units::{Psn, Qpn};
    use proptest::prelude::*;
    use std::net::IpAddr;

    const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    #[test]
    fn a_frame_is_what_the_standard_says() {
        let mut pause = Pause::of(3, 0xffff);
        pause.quanta[6] = Some(0);
        let frame = pause.write(SOURCE);
        let mut expected =
            vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0x08, 0x01, 0x01];
        expected.extend([0, 0b0100_1000, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        expected.resize(60, 0);
        assert_eq!(frame.to_vec(), expected);
    }

    #[test]
    fn a_quantum_is_512_bit_times() {
        let rate = BitRate::from_gbps(100).unwrap();
        assert_eq!(Pause::time(1, rate), Duration::from_ps(5120));
        assert_eq!(Pause::time(u16::MAX, rate).as_ns(), 335_539);
        assert_eq!(Pause::time(0, rate), Duration::ZERO);
    }

    #[test]
    fn other_mac_control_frames_are_no_pfc() {
        let mut link_pause = Pause::of(0, 7).write(SOURCE);
        link_pause[OPCODE + 1] = 0x01;
        link_pause[OPCODE] = 0x00;
        assert!(Pause::is_mac_control(&link_pause));
        assert_eq!(Pause::parse(&link_pause), None);
        let mut elsewhere = Pause::of(0, 7).write(SOURCE);
        elsewhere[5] = 2;
        assert_eq!(Pause::parse(&elsewhere), None);
    }

    #[test]
    fn a_priority_that_there_is_not_names_none() {
        assert_eq!(Pause::of(8, 5), Pause::default());
    }

    proptest! {
        #[test]
        fn any_pause_comes_out_as_it_went_in(
            quanta in prop::array::uniform8(prop::option::of(any::<u16>())),
        ) {
            let pause = Pause { quanta };
            prop_assert_eq!(Pause::parse(&pause.write(SOURCE)), Some(pause));
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80),
            is_alike in any::<bool>(),
        ) {
            if is_alike {
                let begin = Pause::of(1, 1).write(SOURCE);
                let len = bytes.len().min(ENABLE);
                bytes[..len].copy_from_slice(&begin[..len]);
            }
            let found = Pause::parse(&bytes);
            prop_assert_eq!(found.is_some(), is_alike && bytes.len() >= 34);
            prop_assert!(priority_of(&bytes) < 8);
        }

        #[test]
        fn the_priority_of_an_ip_packet_is_its_dscp_by_8(
            class in any::<u8>(),
            is_ipv6 in any::<bool>(),
            vlan in prop::option::of(any::<u16>()),
        ) {
            let ip: IpAddr = if is_ipv6 { [0xfd; 16].into() } else { [10, 0, 0, 1].into() };
            let template = PathTemplate::new(&Path {
                source_mac: SOURCE,
                destination_mac: SOURCE,
                vlan,
                source_ip: ip,
                destination_ip: ip,
                traffic_class: class,
                hop_limit: 64,
                flow_label: 0,
                udp_source_port: 0xc123,
            });
            let head =
                Head::begin(&template, &Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(5), Psn::new(9)));
            prop_assert_eq!(priority_of(head.bytes()), (class >> 2) / 8);
        }
    }

    #[test]
    fn a_tagged_frame_without_ip_has_its_tags_priority() {
        let mut arp = [0; 60];
        arp[12..18].copy_from_slice(&[0x81, 0x00, 0x60, 0x05, 0x08, 0x06]);
        assert_eq!(priority_of(&arp), 3);
        assert_eq!(priority_of(&arp[..14]), 0);
    }
}
