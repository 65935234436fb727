//! The views read back what the builders write.

use longhaul_units::{Msn, Psn, Qpn, RKey};
use longhaul_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CNP_PAYLOAD, Deth, Head, Ipv4Fragmentation, MacAddr,
    Opcode, Packet, Path, PathTemplate, Reth, Split, Syndrome, split,
};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

prop_compose! {
    fn any_path()(
        macs: [[u8; 6]; 2],
        vlan in proptest::option::of(any::<u16>()),
        v6: Option<[[u8; 16]; 2]>,
        v4: [[u8; 4]; 2],
        traffic_class: u8,
        hop_limit: u8,
        flow_label in 0..1_u32 << 20,
        udp_source_port: u16,
    ) -> Path {
        let [source_ip, destination_ip] = match v6 {
            Some(ips) => ips.map(|b| IpAddr::V6(Ipv6Addr::from(b))),
            None => v4.map(|b| IpAddr::V4(Ipv4Addr::from(b))),
        };
        Path {
            source_mac: MacAddr(macs[0]),
            destination_mac: MacAddr(macs[1]),
            vlan,
            source_ip,
            destination_ip,
            traffic_class,
            hop_limit,
            flow_label: if v6.is_some() { flow_label } else { 0 },
            udp_source_port,
        }
    }
}

prop_compose! {
    fn any_bth()(bytes: [u8; 12]) -> Bth {
        Bth::read(&bytes)
    }
}

/// One's-complement sum of a header with its checksum in place: 0xffff when it is right.
fn checksum(header: &[u8]) -> u32 {
    let mut sum = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

proptest! {
    #[test]
    fn every_header_comes_back(
        path in any_path(),
        bth in any_bth(),
        wide: [u64; 3],
        narrow: [u32; 3],
        syndrome: u8,
        payload_len in 0..4100_usize,
        identification: u16,
        dont_fragment: bool,
    ) {
        let opcode = bth.opcode;
        let reth = Reth { virtual_address: wide[0], rkey: RKey(narrow[0]), len: narrow[1] };
        let aeth = Aeth { syndrome: Syndrome::read(syndrome), msn: Msn::new(narrow[2]) };
        let deth = Deth { qkey: narrow[0], reserved_8: syndrome, source_qp: Qpn::new(narrow[1]) };
        let atomic = AtomicEth {
            virtual_address: wide[0],
            rkey: RKey(narrow[0]),
            swap_or_add: wide[1],
            compare: wide[2],
        };
        let original = AtomicAckEth { original: wide[1] };
        let immediate = narrow[2].to_be_bytes();
        let fragmentation = Ipv4Fragmentation { identification, dont_fragment };
        let template = PathTemplate::new(&path).with_ipv4_fragmentation(fragmentation);
        let mut head = Head::begin(&template, &bth);
        if opcode.has_reth() {
            head.push_reth(&reth)
        }
        if opcode.has_aeth() {
            head.push_aeth(&aeth)
        }
        if opcode.has_deth() {
            head.push_deth(&deth)
        }
        if opcode.has_atomic() {
            head.push_atomic(&atomic)
        }
        if opcode == Opcode::RC_ATOMIC_ACK {
            head.push_atomic_ack(&original)
        }
        if opcode.has_immediate() {
            head.push_immediate(immediate)
        }
        if opcode.has_invalidate() {
            head.push_invalidate(RKey(narrow[2]))
        }
        let pad = head.finish(&template, payload_len);

        let frame_len = head.bytes().len() + payload_len + usize::from(pad) + 4;
        let found = split(head.bytes(), frame_len);
        let packet = Packet::parse(head.bytes()).unwrap().unwrap();
        let layout = packet.layout();
        prop_assert_eq!(found, Ok(Split::Roce { layout, payload_len, pad: pad.into() }));
        prop_assert_eq!(packet.head(), head.bytes());
        prop_assert_eq!(packet.path(), path);
        prop_assert_eq!(packet.bth(), Bth { pad, ..bth });
        prop_assert_eq!(packet.reth(), opcode.has_reth().then_some(reth));
        prop_assert_eq!(packet.aeth(), opcode.has_aeth().then_some(aeth));
        prop_assert_eq!(packet.deth(), opcode.has_deth().then_some(deth));
        prop_assert_eq!(packet.atomic_eth(), opcode.has_atomic().then_some(atomic));
        prop_assert_eq!(
            packet.atomic_ack_eth(),
            (opcode == Opcode::RC_ATOMIC_ACK).then_some(original)
        );
        prop_assert_eq!(packet.immediate(), opcode.has_immediate().then_some(immediate));
        prop_assert_eq!(packet.invalidate(), opcode.has_invalidate().then_some(RKey(narrow[2])));
        if layout.is_ipv6 {
            prop_assert_eq!(packet.ipv4_fragmentation(), None);
        } else {
            prop_assert_eq!(packet.ipv4_fragmentation(), Some(fragmentation));
            prop_assert_eq!(checksum(&head.bytes()[layout.ip..layout.udp]), 0xffff);
        }
    }

    #[test]
    fn a_path_reversed_twice_is_itself(path in any_path()) {
        prop_assert_eq!(path.reversed().reversed(), path);
        prop_assert_eq!(path.reversed().source_ip, path.destination_ip);
    }
}

#[test]
fn a_cnp_is_the_one_that_a_connectx_sends() {
    let captured =
        "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000011800000000";
    let path = Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: IpAddr::V4(Ipv4Addr::new(10, 0, 17, 1)),
        destination_ip: IpAddr::V4(Ipv4Addr::new(10, 0, 18, 1)),
        traffic_class: 0xc2,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0,
    };
    let fragmentation = Ipv4Fragmentation { identification: 0x718c, dont_fragment: true };
    let template = PathTemplate::new(&path).with_ipv4_fragmentation(fragmentation);
    let head = Head::cnp(&template, Qpn::new(0x118));
    let built: String = head.bytes()[14..].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(built, captured);
    let packet = Packet::parse(head.bytes()).unwrap().unwrap();
    let bth = Bth { becn: true, ..Bth::new(Opcode::CNP, Qpn::new(0x118), Psn::new(0)) };
    assert_eq!((packet.bth(), CNP_PAYLOAD.len()), (bth, 16));
}
