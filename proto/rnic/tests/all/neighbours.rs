//! Neighbour resolution on an Ethernet segment: requests, datagrams that wait, and changes of
//! address.

use crate::pair::*;
use longhaul_cm::{ConnectRequest, Event as Cm, ServiceId};
use longhaul_node::{Frame, Node};
use longhaul_rnic::*;
use longhaul_units::{Duration, Psn};
use longhaul_wire::{Head, MacAddr, Packet};
use std::net::IpAddr;

/// Not derived from the IP address.
fn mac(node: usize) -> MacAddr {
    MacAddr([0x0e, 0xaa, 0, 0, 0, 0xf0 - node as u8])
}

fn on_segment(config: &mut Config) {
    let node = usize::from(config.mac.0[5] - 1);
    config.mac = mac(node);
    let ip = config.addresses.first();
    let address = SegmentAddress { ip, prefix_len: if ip.is_ipv4() { 24 } else { 64 } };
    config.segment = Some(Segment::new(config.mac, address));
}

fn pair() -> Pair {
    let pair = Pair::with(5, 1 << 16, on_segment);
    pair.tap().seen = Some(Vec::new());
    pair
}

/// Resolves a peer from node `n` and waits for the result.
fn resolve(pair: &mut Pair, n: usize, peer: IpAddr) -> Resolution {
    let now = pair.now;
    let mut resolution = pair.nodes[n].resolve(now, peer);
    while resolution == Resolution::Asking {
        assert!(pair.step(), "quiet without an answer");
        resolution = pair.nodes[n].resolution(peer);
    }
    resolution
}

fn connect(pair: &mut Pair) -> Ends {
    for n in 0..2 {
        assert_eq!(resolve(pair, n, ip(1 - n)), Resolution::Known(mac(1 - n)));
    }
    pair.connect(&Link::default())
}

fn deliver(pair: &mut Pair, n: usize, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    pair.nodes[n].handle_frame(pair.now, 0, &Frame::received(&head, bytes).unwrap());
}

/// Gratuitous ARP of a host that has taken over an address.
fn gratuitous_arp(of: IpAddr, mac: MacAddr) -> Vec<u8> {
    let IpAddr::V4(of) = of else { panic!("{of}") };
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&mac.0);
    frame.extend_from_slice(&of.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&of.octets());
    frame
}

/// Ethernet destinations of the RoCEv2 packets that a node has sent since the last call.
fn destinations(pair: &mut Pair, n: usize) -> Vec<MacAddr> {
    let seen = pair.tap().seen.replace(Vec::new()).unwrap();
    let sent = seen
        .iter()
        .filter(|(sender, bytes)| *sender == n && matches!(Packet::parse(bytes), Ok(Some(_))));
    let mut found: Vec<MacAddr> =
        sent.map(|(_, bytes)| MacAddr(*bytes.first_chunk().unwrap())).collect();
    found.dedup();
    found
}

fn write(pair: &mut Pair, ends: &Ends, len: usize) {
    let seed = pair.now.as_ps();
    pair.fill(0, 0, len, seed);
    pair.post(0, ends.qp[0], &wr(1, write_to(ends, 1, 100), &[sge(ends, 0, 0, len as u32)]));
    let mut completions = Vec::new();
    while completions.is_empty() {
        assert!(pair.step());
        completions = pair.completions(0, ends.cq[0]);
    }
    assert_eq!(completions[0].status, Status::Success);
    assert!(pair.bytes(0, 0, len) == pair.bytes(1, 100, len));
}

mod resolution {
    use super::*;

    #[test]
    fn devices_find_each_other_and_hold_a_connection_over_a_bad_wire() {
        let mut pair = pair();
        pair.set_wire(Wire { loss: 0.1, duplication: 0.1, ..Wire::default() });
        let ends = connect(&mut pair);
        destinations(&mut pair, 0);
        write(&mut pair, &ends, 20_000);
        assert_eq!(destinations(&mut pair, 0), [mac(1)]);
        assert_eq!(pair.nodes[0].counters().get(DropReason::NotRoce), 0);
    }

    #[test]
    fn an_address_that_is_not_resolved_is_refused_and_changes_nothing() {
        let mut pair = pair();
        pair.tap().lose = Box::new(|_, _| true);
        let node = &mut pair.nodes[0];
        let pd = node.alloc_pd().unwrap();
        let cq = node.create_cq(8).unwrap();
        let qp = node.create_qp(&qp_init(QpKind::Rc, pd, cq, 8)).unwrap();
        let [init, receive, _] = transitions(ip(1), qp, 0, 0, &Link::default());
        node.modify_qp(pair.now, qp, &init).unwrap();
        let refused = node.modify_qp(pair.now, qp, &receive).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::TimedOut, "{refused}");
        assert_eq!(node.query_qp(qp).unwrap().state, QpState::Init);
        let refused = node.create_ah(pair.now, pd, &receive.address.unwrap()).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::TimedOut, "{refused}");
        node.dealloc_pd(pd).unwrap_err();
        node.destroy_qp(qp).unwrap();
        node.dealloc_pd(pd).unwrap();
        let begun = pair.now;
        assert_eq!(resolve(&mut pair, 0, ip(1)), Resolution::Failed(Failure::NoAnswer));
        assert_eq!(pair.now.since(begun), Duration::from_ms(3_000));
    }

    #[test]
    fn a_device_that_was_idle_for_long_asks_as_often_as_any() {
        let mut pair = pair();
        pair.tap().lose = Box::new(|_, _| true);
        pair.now += Duration::from_ms(60_000);
        let begun = pair.now;
        let pd = pair.nodes[0].alloc_pd().unwrap();
        let address =
            AddressVector { destination_ip: ip(1), hop_limit: 64, traffic_class: 0, flow_label: 0 };
        pair.nodes[0].create_ah(begun, pd, &address).unwrap_err();
        while pair.nodes[0].resolution(ip(1)) == Resolution::Asking {
            assert!(pair.step(), "quiet without an answer");
        }
        assert_eq!(pair.now.since(begun), Duration::from_ms(3_000));
    }

    #[test]
    fn a_wrong_call_is_refused_before_anybody_is_asked() {
        let mut pair = pair();
        let node = &mut pair.nodes[0];
        let pd = node.alloc_pd().unwrap();
        let cq = node.create_cq(8).unwrap();
        let qp = node.create_qp(&qp_init(QpKind::Rc, pd, cq, 8)).unwrap();
        let [_, receive, _] = transitions(ip(1), qp, 0, 0, &Link::default());
        let refused = node.modify_qp(pair.now, qp, &receive).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::BadState, "{refused}");
        assert!(node.neighbours().unwrap().is_empty());
    }

    #[test]
    fn by_ipv6_it_is_neighbour_discovery() {
        let v6 = |n: usize| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n as u16 + 1]);
        let mut pair = Pair::with(5, 64, |config| {
            config.addresses = v6(usize::from(config.mac.0[5] - 1)).into();
            on_segment(config);
        });
        assert_eq!(resolve(&mut pair, 0, v6(1)), Resolution::Known(mac(1)));
        let pd = pair.nodes[0].alloc_pd().unwrap();
        let address =
            AddressVector { destination_ip: v6(1), hop_limit: 64, traffic_class: 0, flow_label: 0 };
        pair.nodes[0].create_ah(pair.now, pd, &address).unwrap();
    }

    #[test]
    fn in_a_vlan_every_frame_has_its_tag() {
        let mut pair = Pair::with(5, 1 << 16, |config| {
            on_segment(config);
            config.segment.as_mut().unwrap().vlan = Some(7);
        });
        pair.tap().seen = Some(Vec::new());
        let ends = connect(&mut pair);
        write(&mut pair, &ends, 5000);
        let seen = pair.tap().seen.take().unwrap();
        assert!(seen.len() > 8 && seen.iter().all(|(_, bytes)| bytes[12..16] == [0x81, 0, 0, 7]));
        let (_, mut packet) = seen.into_iter().rfind(|(sender, _)| *sender == 0).unwrap();
        let foreign = |pair: &Pair| pair.nodes[1].counters().get(DropReason::NotRoce);
        packet[14] = 0xe0;
        deliver(&mut pair, 1, &packet);
        assert_eq!(foreign(&pair), 0, "a priority is no other VLAN");
        packet[15] = 8;
        deliver(&mut pair, 1, &packet);
        assert_eq!(foreign(&pair), 1);
    }

    #[test]
    fn without_a_segment_nobody_asks_or_answers() {
        let mut pair = Pair::new(1, 64);
        assert_eq!(resolve(&mut pair, 0, ip(1)), Resolution::Known(MacAddr([2, 0, 10, 77, 0, 2])));
        deliver(&mut pair, 0, &gratuitous_arp(ip(1), mac(1)));
        assert_eq!(pair.nodes[0].counters().get(DropReason::NotRoce), 1);
        assert!(!pair.step(), "nothing to say");
    }
}

mod changes {
    use super::*;

    const NEW: MacAddr = MacAddr([0x0e, 0xbb, 0, 0, 0, 1]);

    #[test]
    fn queue_pairs_and_handles_follow_a_peer_that_moves() {
        let mut pair = pair();
        let ends = connect(&mut pair);
        let datagrams = pair.another(0, &ends, QpKind::Ud, None);
        pair.bring_up(0, datagrams, 1, ends.qp[1], &Link::default());
        let ah = pair.ah(0, &ends, ip(1));
        pair.settle(Duration::from_ms(2_000));
        destinations(&mut pair, 0);
        deliver(&mut pair, 0, &gratuitous_arp(ip(1), NEW));
        write(&mut pair, &ends, 3000);
        assert_eq!(destinations(&mut pair, 0), [NEW]);
        let destination = Destination { ah, qpn: ends.qp[1], qkey: QKEY };
        let op = SendOp::Datagram { destination, immediate: None };
        pair.post(0, datagrams, &wr(2, op, &[sge(&ends, 0, 0, 10)]));
        pair.step();
        assert_eq!(destinations(&mut pair, 0), [NEW]);
    }

    #[test]
    fn a_queue_pair_that_is_gone_holds_nobody() {
        let mut pair = Pair::with(5, 64, |config| {
            on_segment(config);
            config.segment.as_mut().unwrap().entries_max = 1;
        });
        let ends = connect(&mut pair);
        let ah = pair.ah(0, &ends, ip(1));
        let stranger = IpAddr::from([10, 77, 0, 99]);
        let full = Resolution::Failed(Failure::TableFull);
        assert_eq!(resolve(&mut pair, 0, stranger), full);
        pair.set_state(0, ends.qp[0], QpState::Error);
        assert_eq!(resolve(&mut pair, 0, stranger), full, "it may be asked where it was");
        pair.set_state(0, ends.qp[0], QpState::Reset);
        assert_eq!(resolve(&mut pair, 0, stranger), full, "the handle still holds");
        pair.nodes[0].destroy_ah(ah).unwrap();
        assert_eq!(resolve(&mut pair, 0, stranger), Resolution::Failed(Failure::NoAnswer));
        // Once more, released by destroying the QP.
        assert_eq!(resolve(&mut pair, 0, ip(1)), Resolution::Known(mac(1)));
        pair.bring_up(0, ends.qp[0], 1, ends.qp[1], &Link::default());
        assert_eq!(resolve(&mut pair, 0, stranger), full);
        pair.nodes[0].destroy_qp(ends.qp[0]).unwrap();
        assert_eq!(resolve(&mut pair, 0, stranger), Resolution::Failed(Failure::NoAnswer));
    }
}

mod connection_manager {
    use super::*;

    fn request(pair: &mut Pair, ends: &Ends) {
        let now = pair.now;
        let request = ConnectRequest {
            destination_ip: ip(1),
            source_ip: ip(0),
            service_id: ServiceId::tcp(18515),
            transport: longhaul_cm::Transport::Rc,
            local_qpn: ends.qp[0],
            starting_psn: Psn::new(100),
            responder_resources: 4,
            initiator_depth: 4,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu_code: Mtu::B1024.code(),
            local_ack_timeout: 14,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &[],
        };
        pair.nodes[0].cm().connect(now, &request).unwrap();
    }

    fn event(pair: &mut Pair, n: usize) -> Cm {
        loop {
            if let Some(Event::Cm(event)) = pair.nodes[n].poll_event() {
                return event;
            }
            assert!(pair.step(), "quiet without an event of the connection manager");
        }
    }

    /// Two devices that have never communicated, with a QP each.
    fn strangers() -> (Pair, Ends) {
        let mut pair = pair();
        let ends = connect(&mut pair);
        let fresh = Pair::with(5, 64, on_segment).nodes.into_nodes();
        for (node, fresh) in pair.nodes.iter_mut().zip(fresh) {
            **node = fresh.into_rnic();
        }
        pair.tap().seen = Some(Vec::new());
        (pair, ends)
    }

    #[test]
    fn a_request_waits_for_the_answer_and_its_own_answer_for_nobody() {
        let (mut pair, ends) = strangers();
        let begun = pair.now;
        pair.nodes[1].cm().listen(ServiceId::tcp(18515), 0).unwrap();
        request(&mut pair, &ends);
        let Cm::ConnectRequest { connection, .. } = event(&mut pair, 1) else {
            panic!("a request")
        };
        assert!(pair.now.since(begun) < Duration::from_ms(1), "no repetition was needed");
        let now = pair.now;
        assert_eq!(
            pair.nodes[1].resolution(ip(0)),
            Resolution::Known(mac(0)),
            "the way that the request came"
        );
        pair.nodes[1]
            .cm()
            .reject(now, connection, longhaul_cm::RejectReason::CONSUMER, &[])
            .unwrap();
        assert!(matches!(event(&mut pair, 0), Cm::Rejected { .. }));
        assert_eq!(destinations(&mut pair, 1), [mac(0)]);
    }

    #[test]
    fn its_datagrams_have_the_bits_of_everything_else() {
        for migreq in [true, false] {
            let mut pair = Pair::with(5, 1 << 16, |config| {
                on_segment(config);
                config.migreq = migreq;
            });
            pair.tap().seen = Some(Vec::new());
            let ends = connect(&mut pair);
            write(&mut pair, &ends, 100);
            request(&mut pair, &ends);
            assert!(matches!(event(&mut pair, 0), Cm::Rejected { .. }));
            let seen = pair.tap().seen.take().unwrap();
            let packets: Vec<_> =
                seen.iter().filter_map(|(_, bytes)| Packet::parse(bytes).ok()?).collect();
            assert!(packets.iter().any(|packet| packet.dest_qp() == longhaul_units::Qpn::GSI));
            assert!(packets.iter().all(|packet| packet.bth().migreq == migreq));
        }
    }

    #[test]
    fn requests_to_nobody_end_as_unreachable() {
        let (mut pair, ends) = strangers();
        pair.tap().lose = Box::new(|_, _| true);
        request(&mut pair, &ends);
        assert!(matches!(event(&mut pair, 0), Cm::Unreachable { .. }));
        assert_eq!(destinations(&mut pair, 0), [], "nothing but questions was sent");
    }
}
