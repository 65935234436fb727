//! Other traffic in a capture, which explains a capture without RoCEv2.

use crate::frame::NonRoceKind;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum distinct kinds.
const KINDS_MAX: usize = 512;

/// Frames of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OtherTraffic {
    /// Description: "ARP", "TCP port 22".
    pub what: String,
    /// Number of frames.
    pub frames: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Others {
    kinds: BTreeMap<NonRoceKind, u64>,
    /// Frames of kinds beyond the bound.
    rest: u64,
    pub frames: u64,
}

impl Others {
    pub fn add(&mut self, kind: NonRoceKind) {
        self.frames += 1;
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count += 1;
        } else if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(kind, 1);
        } else {
            self.rest += 1;
        }
    }

    pub fn has(&self, kind: NonRoceKind) -> bool {
        self.kinds.contains_key(&kind)
    }

    /// Returns the most frequent kinds, at most `most`, and a line for all others.
    pub fn listed(&self, most: usize) -> Vec<OtherTraffic> {
        let mut kinds: Vec<_> = self.kinds.iter().map(|(&kind, &frames)| (frames, kind)).collect();
        kinds.sort_by_key(|&(frames, kind)| (std::cmp::Reverse(frames), kind));
        let beyond: u64 = kinds.iter().skip(most).map(|k| k.0).sum::<u64>() + self.rest;
        let listed = kinds
            .iter()
            .take(most)
            .map(|&(frames, kind)| OtherTraffic { what: name(kind), frames });
        let beyond =
            (beyond > 0).then(|| OtherTraffic { what: "other kinds".to_owned(), frames: beyond });
        listed.chain(beyond).collect()
    }
}

fn name(kind: NonRoceKind) -> String {
    match kind {
        NonRoceKind::Ethertype(0x0806) => "ARP".to_owned(),
        NonRoceKind::Ethertype(0x8915) => {
            "RoCEv1 (EtherType 0x8915), which no router forwards".to_owned()
        }
        NonRoceKind::Ethertype(0x8808) => "Ethernet flow control (pause)".to_owned(),
        NonRoceKind::Ethertype(0x88cc) => "LLDP".to_owned(),
        NonRoceKind::Ethertype(0x8809) => "LACP".to_owned(),
        NonRoceKind::Ethertype(0x8847) => "MPLS".to_owned(),
        NonRoceKind::Ethertype(length) if length < 0x600 => {
            "802.3 frames (spanning tree and the like)".to_owned()
        }
        NonRoceKind::Ethertype(other) => format!("EtherType {other:#06x}"),
        NonRoceKind::Udp(4789) => "VXLAN (UDP port 4789)".to_owned(),
        NonRoceKind::Udp(port) => format!("UDP port {port}"),
        NonRoceKind::Tcp(port) => format!("TCP port {port}"),
        NonRoceKind::IpProtocol(1) => "ICMP".to_owned(),
        NonRoceKind::IpProtocol(2) => "IGMP".to_owned(),
        NonRoceKind::IpProtocol(6) => "TCP, cut before its ports".to_owned(),
        NonRoceKind::IpProtocol(17) => "UDP, cut before its ports".to_owned(),
        NonRoceKind::IpProtocol(47) => "GRE".to_owned(),
        NonRoceKind::IpProtocol(58) => "ICMPv6".to_owned(),
        NonRoceKind::IpProtocol(other) => format!("IP protocol {other}"),
        NonRoceKind::Fragment => "IP fragments".to_owned(),
        NonRoceKind::Short => "frames shorter than their headers".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_come_first_and_the_rest_is_summed() {
        let mut others = Others::default();
        (0..5).for_each(|_| others.add(NonRoceKind::Tcp(22)));
        (0..3).for_each(|_| others.add(NonRoceKind::Ethertype(0x0806)));
        (0..2000).for_each(|port| others.add(NonRoceKind::Udp(port)));
        let listed = others.listed(2);
        assert_eq!((listed[0].what.as_str(), listed[0].frames), ("TCP port 22", 5));
        assert_eq!((listed[1].what.as_str(), listed[1].frames), ("ARP", 3));
        assert_eq!(listed[2].frames, 2000);
        assert_eq!(others.kinds.len(), KINDS_MAX);
    }
}
