//! Tests of the embedded switch: routing by QPN, MAD and address.

use super::*;
use longhaul_node::{Payload, Trailer};
use longhaul_units::Psn;
use longhaul_wire::{Bth, Deth, Head, MacAddr, Opcode, Path, PathTemplate};

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
const EARLY: Route = Route::Drop(DropReason::RefusedByOthersYet);
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));

fn head(source: IpAddr, destination: IpAddr, opcode: Opcode, qpn: u32, payload_len: usize) -> Head {
    head_to_mac(MacAddr([2, 0, 0, 0, 0, 2]), source, destination, opcode, qpn, payload_len)
}

fn head_to_mac(
    destination_mac: MacAddr,
    source: IpAddr,
    destination: IpAddr,
    opcode: Opcode,
    qpn: u32,
    payload_len: usize,
) -> Head {
    let template = PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac,
        vlan: None,
        source_ip: source,
        destination_ip: destination,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: 0xc000,
    });
    let mut head = Head::begin(&template, &Bth::new(opcode, Qpn::new(qpn), Psn::new(0)));
    if opcode.has_deth() {
        head.push_deth(&Deth { qkey: 0x8001_0000, reserved_8: 0, source_qp: Qpn::GSI });
    }
    head.finish(&template, payload_len);
    head
}

fn mad(attribute: u16, local_id: u32, remote_id: u32, reason: u16) -> [u8; 256] {
    let mut mad = [0; 256];
    // Base version, class, class version, method Send.
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[24..28].copy_from_slice(&local_id.to_be_bytes());
    mad[28..32].copy_from_slice(&remote_id.to_be_bytes());
    mad[34..36].copy_from_slice(&reason.to_be_bytes());
    mad
}

fn switch_with(slots: &[usize]) -> EmbeddedSwitch {
    let mut switch = EmbeddedSwitch::new(&[HOST], 1);
    for &slot in slots {
        switch.set_attached(slot, true);
    }
    switch
}

fn frame<'a>(head: &'a Head, payload: &'a [u8]) -> Frame<'a> {
    Frame {
        head: head.bytes(),
        payload: Payload::Bytes(payload),
        trailer: Trailer::Sealed { pad_len: 0 },
    }
}

mod data {
    use super::*;

    #[test]
    fn follows_the_slot_in_the_qpn() {
        let mut switch = switch_with(&[0, 3]);
        for (qpn, route) in [
            (17, Route::Function(0)),
            (3 << 18 | 17, Route::Function(3)),
            (4 << 18 | 17, Route::Drop(DropReason::NoFunction)),
            (63 << 18, Route::Drop(DropReason::NoFunction)),
        ] {
            let head = head(PEER, HOST, Opcode::RC_SEND_ONLY, qpn, 0);
            assert_eq!(switch.from_wire(&frame(&head, &[])), route, "QPN {qpn:#x}");
        }
    }

    #[test]
    fn to_the_own_address_stays_inside() {
        let mut switch = switch_with(&[0, 1]);
        let inside = head(HOST, HOST, Opcode::RC_SEND_ONLY, 1 << 18 | 5, 8);
        let outside = head(HOST, PEER, Opcode::RC_SEND_ONLY, 1 << 18 | 5, 8);
        assert_eq!(switch.from_function(0, &frame(&inside, &[0; 8])), Route::Function(1));
        assert_eq!(switch.from_function(0, &frame(&outside, &[0; 8])), Route::Wire);
    }

    #[test]
    fn to_either_own_address_stays_inside() {
        let own = std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0xa4d, 2).into();
        let mut switch = EmbeddedSwitch::new(&[HOST, own], 1);
        switch.set_attached(1, true);
        let inside = head(own, own, Opcode::RC_SEND_ONLY, 1 << 18 | 5, 8);
        assert_eq!(switch.from_function(1, &frame(&inside, &[0; 8])), Route::Function(1));
        assert_eq!(switch.from_kernel(&frame(&inside, &[0; 8])), Route::Function(1));
    }

    #[test]
    fn other_frames_leave_and_do_not_enter() {
        let mut switch = switch_with(&[0]);
        let arp = [0xff; 60];
        assert_eq!(switch.from_function(0, &Frame::opaque(&arp)), Route::Wire);
        assert_eq!(switch.from_wire(&Frame::opaque(&arp)), Route::Drop(DropReason::NotRoce));
    }
}

mod kernel {
    use super::*;

    /// Broadcast with an ethertype of ARP.
    fn arp() -> [u8; 60] {
        let mut frame = [0xff; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x06]);
        frame
    }

    #[test]
    fn gets_what_is_not_roce_and_only_while_it_is_there() {
        let mut switch = switch_with(&[0]);
        switch.set_kernel(true);
        let roce = head(PEER, HOST, Opcode::RC_SEND_ONLY, 5, 0);
        assert_eq!(switch.from_wire(&Frame::opaque(&arp())), Route::Kernel);
        assert_eq!(switch.from_wire(&frame(&roce, &[])), Route::Function(0));
        let nobody = head(PEER, HOST, Opcode::RC_SEND_ONLY, 4 << 18 | 17, 0);
        let route = switch.from_wire(&frame(&nobody, &[]));
        assert_eq!(route, Route::Drop(DropReason::NoFunction), "RoCE is the device's");
        switch.set_kernel(false);
        assert_eq!(switch.from_wire(&Frame::opaque(&arp())), Route::Drop(DropReason::NotRoce));
    }

    #[test]
    fn malformed_roce_is_nobodys() {
        let mut switch = switch_with(&[0]);
        switch.set_kernel(true);
        let roce = head(PEER, HOST, Opcode::RC_SEND_ONLY, 5, 0);
        // The BTH is cut off, behind the headers of Ethernet, IPv4 and UDP.
        let cut = &roce.bytes()[..14 + 20 + 8 + 4];
        assert_eq!(switch.from_wire(&Frame::opaque(cut)), Route::Drop(DropReason::NotRoce));
    }

    #[test]
    fn sends_to_the_wire_and_roce_to_the_own_address_inside() {
        let mut switch = switch_with(&[0, 1]);
        switch.set_kernel(true);
        assert_eq!(switch.from_kernel(&Frame::opaque(&arp())), Route::Wire);
        let inside = head(HOST, HOST, Opcode::RC_SEND_ONLY, 1 << 18 | 5, 8);
        let outside = head(HOST, PEER, Opcode::RC_SEND_ONLY, 1 << 18 | 5, 8);
        let group = head(HOST, "224.1.2.3".parse().unwrap(), Opcode::UD_SEND_ONLY, 0xff_ffff, 4);
        assert_eq!(switch.from_kernel(&frame(&inside, &[0; 8])), Route::Function(1));
        assert_eq!(switch.from_kernel(&frame(&outside, &[0; 8])), Route::Wire);
        assert_eq!(switch.from_kernel(&frame(&group, &[0; 4])), Route::WireAndAllFunctions);
    }
}

mod datagrams {
    use super::*;

    const GROUP_MAC: MacAddr = MacAddr([0x01, 0, 0x5e, 1, 2, 3]);

    fn group() -> IpAddr {
        "224.1.2.3".parse().unwrap()
    }

    #[test]
    fn follow_the_slot_in_the_qpn() {
        let mut switch = switch_with(&[0, 3]);
        let head = head(PEER, HOST, Opcode::UD_SEND_ONLY, 3 << 18 | 17, 4);
        assert_eq!(switch.from_wire(&frame(&head, &[0; 4])), Route::Function(3));
    }

    #[test]
    fn to_a_group_reach_every_function_and_leave_the_host() {
        let mut switch = switch_with(&[0, 3]);
        let v6 = head(
            "fe80::1".parse().unwrap(),
            "ff0e::7".parse().unwrap(),
            Opcode::UD_SEND_ONLY,
            0xff_ffff,
            4,
        );
        let v4 = head(PEER, group(), Opcode::UD_SEND_ONLY, 0xff_ffff, 4);
        let by_mac = head_to_mac(GROUP_MAC, PEER, HOST, Opcode::UD_SEND_ONLY, 0xff_ffff, 4);
        for head in [v4, v6, by_mac] {
            assert_eq!(switch.from_wire(&frame(&head, &[0; 4])), Route::AllFunctions);
            assert_eq!(switch.from_function(0, &frame(&head, &[0; 4])), Route::WireAndAllFunctions);
        }
    }

    #[test]
    fn to_the_group_number_at_a_single_address_are_for_nobody() {
        let mut switch = switch_with(&[0, 3]);
        let head = head(PEER, HOST, Opcode::UD_SEND_ONLY, 0xff_ffff, 4);
        assert_eq!(switch.from_wire(&frame(&head, &[0; 4])), Route::Drop(DropReason::NoFunction));
    }

    #[test]
    fn to_a_group_address_with_a_number_of_one_function_are_for_that_one() {
        let mut switch = switch_with(&[0, 3]);
        let head = head(PEER, group(), Opcode::UD_SEND_ONLY, 3 << 18 | 17, 4);
        assert_eq!(switch.from_wire(&frame(&head, &[0; 4])), Route::Function(3));
    }
}

mod datagram_services {
    use super::*;

    const SIDR_REQ: u16 = 0x17;
    const SIDR_REP: u16 = 0x18;

    /// SIDR messages have their request id in place of the local communication id, followed by the
    /// reply's status.
    fn sidr(attribute: u16, request_id: u32, status: u8) -> [u8; 256] {
        mad(attribute, request_id, u32::from(status) << 24, 0)
    }

    fn inward() -> Head {
        head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256)
    }

    fn outward() -> Head {
        head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256)
    }

    #[test]
    fn a_request_goes_to_all_functions_and_a_reply_to_the_one_that_asked() {
        let mut switch = switch_with(&[0, 2]);
        let request = sidr(SIDR_REQ, 500, 0);
        assert_eq!(switch.from_wire(&frame(&inward(), &request)), Route::AllFunctions);
        let reply = sidr(SIDR_REP, 2 << 26 | 9, 0);
        assert_eq!(switch.from_wire(&frame(&inward(), &reply)), Route::Function(2));
    }

    #[test]
    fn a_refusal_leaves_when_every_function_has_refused() {
        let mut switch = switch_with(&[0, 1, 2]);
        switch.from_wire(&frame(&inward(), &sidr(SIDR_REQ, 500, 0)));
        let refusal = sidr(SIDR_REP, 500, 1);
        for slot in [0, 2] {
            let route = switch.from_function(slot, &frame(&outward(), &refusal));
            assert_eq!(route, EARLY);
        }
        assert_eq!(switch.from_function(1, &frame(&outward(), &refusal)), Route::Wire);
    }

    #[test]
    fn an_answer_by_a_listener_leaves_at_once() {
        for status in [0, 2, 3] {
            let mut switch = switch_with(&[0, 1, 2]);
            switch.from_wire(&frame(&inward(), &sidr(SIDR_REQ, 500, 0)));
            let answer = sidr(SIDR_REP, 500, status);
            assert_eq!(
                switch.from_function(0, &frame(&outward(), &answer)),
                Route::Wire,
                "status {status}"
            );
        }
    }

    #[test]
    fn ids_of_datagram_services_and_of_connections_are_not_mixed_up() {
        let mut switch = switch_with(&[0, 1]);
        switch.from_wire(&frame(&inward(), &sidr(SIDR_REQ, 500, 0)));
        switch.from_wire(&frame(&inward(), &mad(0x10, 500, 0, 0)));
        for refusal in [sidr(SIDR_REP, 500, 1), mad(0x12, 0, 500, 8)] {
            assert_eq!(switch.from_function(0, &frame(&outward(), &refusal)), EARLY);
        }
        for refusal in [sidr(SIDR_REP, 500, 1), mad(0x12, 0, 500, 8)] {
            assert_eq!(switch.from_function(1, &frame(&outward(), &refusal)), Route::Wire);
        }
    }
}

mod connections {
    use super::*;

    #[test]
    fn a_reply_follows_the_slot_in_the_comm_id() {
        let mut switch = switch_with(&[0, 2]);
        let head = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let reply = mad(0x13, 77, 2 << 26 | 9, 0);
        assert_eq!(switch.from_wire(&frame(&head, &reply)), Route::Function(2));
    }

    #[test]
    fn a_refusal_leaves_when_every_function_has_refused() {
        let mut switch = switch_with(&[0, 1, 2]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        for _ in 0..2 {
            assert_eq!(
                switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0))),
                Route::AllFunctions
            );
            let refusal = mad(0x12, 0, 500, 8);
            for slot in [2, 0] {
                assert_eq!(switch.from_function(slot, &frame(&outward, &refusal)), EARLY);
            }
            assert_eq!(switch.from_function(1, &frame(&outward, &refusal)), Route::Wire);
        }
    }

    #[test]
    fn a_program_that_says_no_is_heard_at_once() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        assert_eq!(switch.from_function(0, &frame(&outward, &mad(0x12, 1, 500, 28))), Route::Wire);
    }

    #[test]
    fn a_function_that_refuses_two_copies_of_a_request_does_not_speak_for_another() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        for _ in 0..2 {
            switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        }
        let refusal = mad(0x12, 0, 500, 8);
        assert_eq!(
            [0; 2].map(|slot| switch.from_function(slot, &frame(&outward, &refusal))),
            [EARLY; 2]
        );
        // One answer to both copies.
        let routes = [1; 2].map(|slot| switch.from_function(slot, &frame(&outward, &refusal)));
        assert_eq!(routes, [Route::Wire, EARLY]);
    }

    #[test]
    fn a_function_that_listens_when_the_request_is_repeated_is_waited_for() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        let refusal = mad(0x12, 0, 500, 8);
        switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        assert_eq!(switch.from_function(0, &frame(&outward, &refusal)), EARLY);
        switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        assert_eq!(
            switch.from_function(1, &frame(&outward, &refusal)),
            EARLY,
            "0 may take this one"
        );
    }

    #[test]
    fn a_function_that_has_gone_is_not_waited_for() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        switch.set_attached(1, false);
        assert_eq!(switch.from_function(0, &frame(&outward, &mad(0x12, 0, 500, 8))), Route::Wire);
    }

    #[test]
    fn a_burst_of_ten_thousand_requests_is_refused_by_all_functions_or_not_at_all() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        for id in 1..=10_000 {
            switch.from_wire(&frame(&inward, &mad(0x10, id, 0, 0)));
        }
        for id in 1..=10_000 {
            assert_eq!(
                switch.from_function(0, &frame(&outward, &mad(0x12, 0, id, 8))),
                EARLY,
                "{id}"
            );
        }
        for id in 1..=10_000 {
            assert_eq!(
                switch.from_function(1, &frame(&outward, &mad(0x12, 0, id, 8))),
                Route::Wire,
                "{id}"
            );
        }
    }

    #[test]
    fn a_refusal_of_a_forgotten_request_does_not_leave() {
        let mut switch = switch_with(&[0, 1]);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        assert_eq!(switch.from_function(0, &frame(&outward, &mad(0x12, 0, 500, 8))), EARLY);
    }

    #[test]
    fn floods_of_requests_cost_bounded_memory() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        for round in 0..2 {
            for id in 0..70_000 {
                switch.from_wire(&frame(&inward, &mad(0x10, id << round, 0, 0)));
            }
            assert_eq!((switch.requests.len(), switch.ages.len()), (REQUESTS_MAX, REQUESTS_MAX));
            assert!(switch.ages.iter().all(|key| switch.requests.contains_key(key)));
        }
    }
}
