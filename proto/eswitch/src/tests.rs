use super::*;
use longhaul_node::{Payload, Trailer};
use longhaul_units::Psn;
use longhaul_wire::{Bth, Deth, Head, MacAddr, Opcode, Path, PathTemplate};

const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));

fn head(source: IpAddr, destination: IpAddr, opcode: Opcode, qpn: u32, payload_len: usize) -> Head {
    let template = PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
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
    let mut switch = EmbeddedSwitch::new(HOST);
    for &slot in slots {
        switch.set_attached(slot, true);
    }
    switch
}

fn frame<'a>(head: &'a Head, payload: &'a [u8]) -> Frame<'a> {
    Frame { head: head.bytes(), payload: Payload::Bytes(payload), trailer: Trailer::Sealed { pad_len: 0 } }
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
        assert_eq!(switch.from_function(&frame(&inside, &[0; 8])), Route::Function(1));
        assert_eq!(switch.from_function(&frame(&outside, &[0; 8])), Route::Wire);
    }

    #[test]
    fn other_frames_leave_and_do_not_enter() {
        let mut switch = switch_with(&[0]);
        let arp = [0xff; 60];
        assert_eq!(switch.from_function(&Frame::opaque(&arp)), Route::Wire);
        assert_eq!(switch.from_wire(&Frame::opaque(&arp)), Route::Drop(DropReason::NotRoce));
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
            assert_eq!(switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0))), Route::AllFunctions);
            let refusal = mad(0x12, 0, 500, 8);
            for _ in 0..2 {
                let route = switch.from_function(&frame(&outward, &refusal));
                assert_eq!(route, Route::Drop(DropReason::RefusedByOthersYet));
            }
            assert_eq!(switch.from_function(&frame(&outward, &refusal)), Route::Wire);
        }
    }

    #[test]
    fn a_program_that_says_no_is_heard_at_once() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        let outward = head(HOST, PEER, Opcode::UD_SEND_ONLY, 1, 256);
        switch.from_wire(&frame(&inward, &mad(0x10, 500, 0, 0)));
        assert_eq!(switch.from_function(&frame(&outward, &mad(0x12, 1, 500, 28))), Route::Wire);
    }

    #[test]
    fn floods_of_requests_cost_bounded_memory() {
        let mut switch = switch_with(&[0, 1]);
        let inward = head(PEER, HOST, Opcode::UD_SEND_ONLY, 1, 256);
        for id in 0..5000 {
            switch.from_wire(&frame(&inward, &mad(0x10, id, 0, 0)));
        }
        assert_eq!(switch.requests.len(), REQUESTS_MAX);
    }
}
