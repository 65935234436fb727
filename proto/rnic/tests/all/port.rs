//! The port: drop reasons, turns, pacing, and the connection manager behind QP1.

use crate::pair::*;
use longhaul_node::{Frame, Node, Side, Transmit};
use longhaul_rnic::*;
use longhaul_units::{BitRate, Duration, Instant, Qpn, Rng, SplitMix64};
use longhaul_wire::{Head, Packet};

struct Keep(Vec<Vec<u8>>);

impl Transmit for Keep {
    fn room(&mut self, _side: Side) -> usize {
        1000
    }
    fn transmit(&mut self, _side: Side, frame: &Frame<'_>) {
        let mut bytes = vec![0; frame.len()];
        frame.write_to(&mut bytes);
        self.0.push(bytes);
    }
}

fn deliver(node: &mut Rnic<VecMemory>, now: Instant, bytes: &[u8]) {
    let head = Head::copy_of(bytes);
    if let Ok(frame) = Frame::received(&head, bytes) {
        node.handle_frame(now, 0, &frame);
    }
}

/// A frame with a WRITE from node 0 to node 1 of a connected pair.
fn write_frame() -> (Pair, Ends, Vec<u8>) {
    let mut pair = Pair::new(1, 1 << 16);
    let ends = pair.connect(&Link::default());
    pair.fill(0, 0, 100, 1);
    pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
    let mut keep = Keep(Vec::new());
    pair.nodes[0].poll_transmit(pair.now, &mut keep);
    let frame = keep.0.remove(0);
    (pair, ends, frame)
}

mod validation {
    use super::*;

    const IP: usize = 14;
    const BTH: usize = 42;

    fn dropped(reason: DropReason, change: impl FnOnce(&mut Vec<u8>)) {
        let (mut pair, _, mut bytes) = write_frame();
        change(&mut bytes);
        let now = pair.now;
        let before = pair.bytes(1, 0, 100).to_vec();
        deliver(&mut pair.nodes[1], now, &bytes);
        let counters = pair.nodes[1].counters();
        assert_eq!(counters.get(reason), 1, "{reason:?}");
        assert_eq!(counters.drops(), 1, "{reason:?}");
        assert_eq!(counters.get(Counter::RxFrames), 1);
        assert_eq!(pair.bytes(1, 0, 100), before);
        let mut keep = Keep(Vec::new());
        pair.nodes[1].poll_transmit(now, &mut keep);
        assert!(keep.0.is_empty(), "a dropped packet is not answered");
    }

    #[test]
    fn each_fault_is_dropped_under_its_name() {
        dropped(DropReason::Icrc, |b| b[BTH + 30] ^= 1);
        dropped(DropReason::Icrc, |b| *b.last_mut().unwrap() ^= 1);
        // The ICRC leaves these out: traffic class, TTL, UDP checksum.
        dropped(DropReason::Checksum, |b| b[IP + 1] ^= 0x80);
        dropped(DropReason::Checksum, |b| b[IP + 8] ^= 1);
        dropped(DropReason::Checksum, |b| b[IP + 27] = 1);
        dropped(DropReason::Version, |b| b[BTH + 1] |= 1);
        dropped(DropReason::DestinationIp, |b| b[IP + 19] = 9);
        dropped(DropReason::SourceIp, |b| b[IP + 15] = 9);
        dropped(DropReason::NoQp, |b| b[BTH + 7] = 0x77);
        dropped(DropReason::NoQp, |b| b[BTH + 5] = 0xff);
        dropped(DropReason::PKey, |b| b[BTH + 3] ^= 1);
        dropped(DropReason::NotRoce, |b| b[12] = 0x86);
        // Not RC: UC, unknown RC, CNP.
        dropped(DropReason::Opcode, |b| b[BTH] = 0x2a);
        dropped(DropReason::Opcode, |b| b[BTH] = 0x1f);
        dropped(DropReason::Icrc, |b| b[BTH] = 0x81);
        // Congestion control is disabled.
        dropped(DropReason::Cnp, |b| {
            b[BTH] = 0x81;
            seal(b);
        });
    }

    /// A port that cannot parse a frame delivers it as opaque.
    #[test]
    fn a_packet_whose_lengths_lie_is_dropped_as_an_opaque_frame_too() {
        let (mut pair, _, mut bytes) = write_frame();
        bytes[IP + 25] ^= 0x40;
        assert!(Frame::received(&Head::copy_of(&bytes), &bytes).is_err());
        let now = pair.now;
        pair.nodes[1].handle_frame(now, 0, &Frame::opaque(&bytes));
        assert_eq!(pair.nodes[1].counters().drops(), 1);
        assert_eq!(pair.nodes[1].counters().get(Counter::RxWriteRequests), 0);
    }

    #[test]
    fn a_limited_member_of_the_partition_is_welcome() {
        let (mut pair, _, mut bytes) = write_frame();
        bytes[BTH + 2] = 0x7f;
        seal(&mut bytes);
        let now = pair.now;
        deliver(&mut pair.nodes[1], now, &bytes);
        assert_eq!(pair.nodes[1].counters().drops(), 0);
        assert_eq!(pair.bytes(1, 0, 100), pair.bytes(0, 0, 100));
    }

    #[test]
    fn what_routers_may_change_does_not_matter() {
        let (mut pair, _, mut bytes) = write_frame();
        bytes[IP + 1] = 0x03;
        bytes[IP + 8] = 7;
        bytes[BTH + 4] = 0x80;
        sum(&mut bytes);
        let now = pair.now;
        deliver(&mut pair.nodes[1], now, &bytes);
        assert_eq!(pair.nodes[1].counters().drops(), 0);
    }

    #[test]
    fn a_qp_in_error_is_silent() {
        let (mut pair, ends, bytes) = write_frame();
        let error = QpAttr::to(QpState::Error);
        pair.nodes[1].modify_qp(pair.now, ends.qp[1], &error).unwrap();
        let now = pair.now;
        deliver(&mut pair.nodes[1], now, &bytes);
        assert_eq!(pair.nodes[1].counters().get(DropReason::QpState), 1);
    }

    #[test]
    fn random_and_damaged_frames_do_no_harm() {
        let (mut pair, ends, frame) = write_frame();
        let mut rng = SplitMix64::new(42);
        let now = pair.now;
        for _ in 0..200_000 {
            let mut bytes = frame.clone();
            for _ in 0..rng.below(4) {
                let at = if rng.chance(0.6) {
                    BTH as u64 + rng.below(28)
                } else {
                    rng.below(bytes.len() as u64)
                };
                bytes[at as usize] = rng.next_u64() as u8;
            }
            if rng.chance(0.7) {
                let expected = pair.nodes[1].qp_snapshots().next().unwrap().expected_psn;
                bytes[BTH + 9..BTH + 12].copy_from_slice(&expected.get().to_be_bytes()[1..]);
            }
            if rng.chance(0.2) {
                bytes.truncate(rng.below(bytes.len() as u64) as usize);
            } else if rng.chance(0.9)
                && matches!(Packet::parse(&bytes), Ok(Some(_)))
                && bytes.len() > 60
            {
                // Hostile rather than damaged: the ICRC is valid.
                seal(&mut bytes);
            }
            deliver(&mut pair.nodes[1], now, &bytes);
            let mut keep = Keep(Vec::new());
            pair.nodes[1].poll_transmit(now, &mut keep);
            if pair.nodes[1].query_qp(ends.qp[1]).unwrap().state == QpState::Error {
                let reset = QpAttr::to(QpState::Reset);
                pair.nodes[1].modify_qp(now, ends.qp[1], &reset).unwrap();
                pair.bring_up(1, ends.qp[1], 0, ends.qp[0], &Link::default());
                while pair.nodes[1].poll_event().is_some() {}
                pair.completions(1, ends.cq[1]);
            }
        }
        let counters = pair.nodes[1].counters();
        for reason in
            [DropReason::Icrc, DropReason::Opcode, DropReason::NoQp, DropReason::OutOfSequence]
        {
            assert!(counters.get(reason) > 0, "{reason:?} was never met");
        }
        assert!(counters.get(Counter::RespInvalidRequest) > 0);
        assert!(counters.get(Counter::RespRemoteAccess) > 0);
    }

    #[test]
    fn random_answers_do_no_harm_to_a_requester() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let mut rng = SplitMix64::new(43);
        let now = pair.now;
        // Frames of all kinds that node 1 would send, captured from an exchange.
        pair.tap().seen = Some(Vec::new());
        pair.post(0, ends.qp[0], &wr(1, read_from(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
        pair.settle(Duration::from_ms(10));
        let answers: Vec<_> = pair
            .tap()
            .seen
            .take()
            .unwrap()
            .into_iter()
            .filter(|(n, _)| *n == 1)
            .map(|(_, b)| b)
            .collect();
        assert!(answers.len() > 5);
        for round in 0..20_000 {
            if round % 4 == 0 {
                let reset = QpAttr::to(QpState::Reset);
                pair.nodes[0].modify_qp(now, ends.qp[0], &reset).unwrap();
                pair.bring_up(0, ends.qp[0], 1, ends.qp[1], &Link::default());
                pair.post(0, ends.qp[0], &wr(1, read_from(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
                pair.post(0, ends.qp[0], &wr(2, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 5000)]));
                pair.nodes[0].poll_transmit(now, &mut Keep(Vec::new()));
            }
            let mut bytes = answers[rng.below(answers.len() as u64) as usize].clone();
            let at = BTH + rng.below(16) as usize;
            bytes[at] = rng.next_u64() as u8;
            if matches!(Packet::parse(&bytes), Ok(Some(_))) {
                seal(&mut bytes);
            }
            deliver(&mut pair.nodes[0], now, &bytes);
            pair.nodes[0].poll_transmit(now, &mut Keep(Vec::new()));
            pair.completions(0, ends.cq[0]);
            while pair.nodes[0].poll_event().is_some() {}
        }
        let counters = pair.nodes[0].counters();
        assert!(counters.get(Counter::ReqBadResponse) > 0);
        assert!(counters.get(DropReason::UnsentAck) > 0);
        assert!(counters.get(DropReason::Syndrome) > 0);
    }
}

mod turns {
    use super::*;

    /// Creates `count` connected QPs on both nodes and returns those of node 0.
    fn many(pair: &mut Pair, ends: &Ends, count: usize) -> Vec<Qpn> {
        let mut made = Vec::new();
        for _ in 0..count {
            let qps: Vec<_> = (0..2)
                .map(|n| {
                    let init = QpInit {
                        rq_depth: 0,
                        ..QpInit::new(QpKind::Rc, ends.pd[n], ends.cq[n], 2)
                    };
                    pair.nodes[n].create_qp(&init).unwrap()
                })
                .collect();
            for n in 0..2 {
                pair.bring_up(n, qps[n], 1 - n, qps[1 - n], &Link::default());
            }
            made.push(qps[0]);
        }
        made
    }

    #[test]
    fn qps_take_turns_packet_by_packet() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let qps = many(&mut pair, &ends, 3);
        for &qp in &qps {
            pair.post(0, qp, &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 4096)]));
        }
        let mut keep = Keep(Vec::new());
        pair.nodes[0].poll_transmit(pair.now, &mut keep);
        let order: Vec<_> =
            keep.0.iter().map(|b| Packet::parse(b).unwrap().unwrap().dest_qp().get()).collect();
        assert_eq!(order.len(), 12);
        for turn in order.chunks(3) {
            assert_eq!(turn, &order[..3]);
        }
    }

    #[test]
    fn ten_thousand_qps_all_get_through() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let qps = many(&mut pair, &ends, 10_000);
        for &qp in &qps {
            pair.post(
                0,
                qp,
                &wr(u64::from(qp.get()), write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 10)]),
            );
        }
        assert!(pair.settle(Duration::from_ms(1000)));
        let done = pair.completions(0, ends.cq[0]);
        assert_eq!(done.len(), 10_000);
        assert!(done.iter().all(|c| c.status == Status::Success));
        assert_eq!(pair.nodes[0].counters().get(Counter::TxRetransmits), 0);
    }

    #[test]
    fn answers_and_requests_of_one_qp_alternate() {
        let mut pair = Pair::new(1, 1 << 17);
        let ends = pair.connect(&Link::default());
        pair.post(0, ends.qp[0], &wr(1, read_from(&ends, 1, 0), &[sge(&ends, 0, 0, 20_000)]));
        let mut keep = Keep(Vec::new());
        pair.nodes[0].poll_transmit(pair.now, &mut keep);
        let now = pair.now;
        deliver(&mut pair.nodes[1], now, &keep.0[0]);
        pair.post(1, ends.qp[1], &wr(2, write_to(&ends, 0, 50_000), &[sge(&ends, 1, 0, 20_000)]));
        let mut keep = Keep(Vec::new());
        pair.nodes[1].poll_transmit(now, &mut keep);
        let kinds: Vec<_> = keep
            .0
            .iter()
            .map(|b| Packet::parse(b).unwrap().unwrap().opcode().is_request())
            .collect();
        assert_eq!(kinds.len(), 40);
        assert!(kinds.windows(2).all(|w| w[0] != w[1]), "{kinds:?}");
    }

    #[test]
    fn without_room_nothing_happens() {
        struct Full;
        impl Transmit for Full {
            fn room(&mut self, _side: Side) -> usize {
                0
            }
            fn transmit(&mut self, _side: Side, _frame: &Frame<'_>) {
                panic!("no room was granted");
            }
        }
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 10)]));
        pair.nodes[0].poll_transmit(pair.now, &mut Full);
        assert!(pair.settle(Duration::from_ms(10)));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 1);
    }
}

mod pace {
    use super::*;

    #[test]
    fn the_port_rate_is_kept_and_reached() {
        let rate = BitRate::from_gbps(10).unwrap();
        let mut pair = Pair::with(1, 1 << 20, |c| c.port_rate = Some(rate));
        let ends = pair.connect(&Link { mtu: Mtu::B4096, timeout: 14, ..Link::default() });
        pair.tap().seen = Some(Vec::new());
        for id in 0..40 {
            pair.post(0, ends.qp[0], &wr(id, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 1 << 18)]));
        }
        assert!(pair.settle(Duration::from_ms(1000)));
        assert_eq!(pair.completions(0, ends.cq[0]).len(), 40);
        let wire: u64 = pair
            .tap()
            .seen
            .take()
            .unwrap()
            .iter()
            .filter(|(n, _)| *n == 0)
            .map(|(_, b)| longhaul_cc::wire_bytes(b.len()))
            .sum();
        let ideal = rate.time_for_bytes(wire).as_secs_f64();
        let took = pair.now.as_ps() as f64 * 1e-12;
        // The burst allowance, the last timer's empty expiry, and two delays of 10 µs.
        let last_timer = Duration::of_ack_timeout(14).unwrap().as_secs_f64();
        assert!(took > ideal - 30e-6, "{took} against {ideal}");
        assert!(took < ideal + last_timer + 40e-6, "{took} against {ideal}");
        assert_eq!(pair.nodes[0].counters().get(Counter::LocalAckTimeoutErr), 0);
    }
}

mod distance {
    use super::*;

    /// Keeps `depth` WRITEs of 4 KiB outstanding over 1000 km at 10 Gbit/s. Returns the messages
    /// completed per round trip.
    fn messages_per_rtt(depth: u32) -> f64 {
        let rate = BitRate::from_gbps(10).unwrap();
        let mut pair = Pair::with(1, 1 << 16, |c| c.port_rate = Some(rate));
        let link = Link { mtu: Mtu::B4096, timeout: 14, depth, ..Link::default() };
        let ends = pair.connect(&link);
        pair.set_wire(Wire { delay: Duration::of_fibre_m(1_000_000), ..Wire::default() });
        let segments = [sge(&ends, 0, 0, 4096)];
        let write = wr(1, write_to(&ends, 1, 0), &segments);
        (0..depth).for_each(|_| pair.post(0, ends.qp[0], &write));
        let (warm, end) = (Duration::from_ms(20), Duration::from_ms(60));
        let mut counted = 0;
        while pair.now < Instant::ZERO + end {
            pair.step();
            let done = pair.completions(0, ends.cq[0]).len();
            (0..done).for_each(|_| pair.post(0, ends.qp[0], &write));
            if pair.now >= Instant::ZERO + warm {
                counted += done;
            }
        }
        assert_eq!(pair.nodes[0].counters().get(Counter::TxRetransmits), 0);
        counted as f64 / 4.0
    }

    #[test]
    fn the_queue_depth_is_what_moves_per_round_trip() {
        let messages = messages_per_rtt(128);
        assert!((120.0..=132.0).contains(&messages), "{messages}");
    }

    #[test]
    fn a_deep_queue_fills_the_line() {
        // 10 Gbit/s for 10 ms is 2980 WRITEs of 4 KiB, 4194 bytes of wire each.
        let messages = messages_per_rtt(4096);
        assert!((2950.0..=2981.0).contains(&messages), "{messages}");
    }
}

mod loopback {
    use super::*;

    #[test]
    fn two_qps_of_one_device_talk_when_the_wire_loops() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        let node = &mut pair.nodes[0];
        let init = QpInit::new(QpKind::Rc, ends.pd[0], ends.cq[0], 4);
        let (a, b) = (node.create_qp(&init).unwrap(), node.create_qp(&init).unwrap());
        for (own, other) in [(a, b), (b, a)] {
            let to = Link::default().bring_up(ip(0), other, 5, 5);
            node.bring_up_qp(Instant::ZERO, own, &to).unwrap();
        }
        pair.fill(0, 0, 5000, 9);
        let op = write_to(&ends, 0, 10_000);
        pair.post(0, a, &wr(1, op, &[sge(&ends, 0, 0, 5000)]));
        for _ in 0..4 {
            let mut keep = Keep(Vec::new());
            pair.nodes[0].poll_transmit(pair.now, &mut keep);
            for bytes in keep.0 {
                deliver(&mut pair.nodes[0], Instant::ZERO, &bytes);
            }
        }
        assert_eq!(pair.completions(0, ends.cq[0])[0].status, Status::Success);
        assert_eq!(pair.bytes(0, 10_000, 5000), pair.bytes(0, 0, 5000));
    }
}

mod connection_manager {
    use super::*;
    use longhaul_cm::{Accept, ConnectRequest, Event as Cm, ServiceId};
    use longhaul_units::Psn;

    fn cm_event(pair: &mut Pair, n: usize) -> Cm {
        for _ in 0..10_000 {
            while let Some(event) = pair.nodes[n].poll_event() {
                if let Event::Cm(event) = event {
                    return event;
                }
            }
            assert!(pair.step(), "quiet without an event of the connection manager");
        }
        panic!("no event of the connection manager");
    }

    fn request(ends: &Ends, pair: &mut Pair) -> longhaul_cm::ConnectionId {
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
            private_data: &[1, 2, 3],
        };
        pair.nodes[0].cm().connect(now, &request).unwrap()
    }

    #[test]
    fn two_devices_connect_and_part() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].cm().listen(ServiceId::tcp(18515), 0).unwrap();
        let active = request(&ends, &mut pair);
        let Cm::ConnectRequest { connection: passive, info, .. } = cm_event(&mut pair, 1) else {
            panic!("a connection request")
        };
        assert_eq!((info.peer_qpn, info.peer_ip), (ends.qp[0], ip(0)));
        let accept = Accept {
            local_qpn: ends.qp[1],
            starting_psn: Psn::new(200),
            responder_resources: 4,
            initiator_depth: 4,
            flow_control: true,
            rnr_retry_count: 7,
            srq: false,
            private_data: &[],
        };
        let now = pair.now;
        pair.nodes[1].cm().accept(now, passive, &accept).unwrap();
        let Cm::ConnectResponse { info, .. } = cm_event(&mut pair, 0) else { panic!("a response") };
        assert_eq!(info.peer_qpn, ends.qp[1]);
        let now = pair.now;
        pair.nodes[0].cm().ready_to_use(now, active).unwrap();
        assert!(matches!(cm_event(&mut pair, 1), Cm::Established { .. }));
        let now = pair.now;
        pair.nodes[0].cm().disconnect(now, active).unwrap();
        assert!(matches!(cm_event(&mut pair, 1), Cm::Disconnected { .. }));
        assert!(matches!(cm_event(&mut pair, 0), Cm::Disconnected { .. }));
    }

    #[test]
    fn a_lost_request_is_repeated() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.nodes[1].cm().listen(ServiceId::tcp(18515), 0).unwrap();
        let mut first = true;
        pair.tap().lose = Box::new(move |_, _| std::mem::take(&mut first));
        request(&ends, &mut pair);
        assert!(matches!(cm_event(&mut pair, 1), Cm::ConnectRequest { .. }));
        assert!(pair.now > Instant::ZERO + Duration::from_ms(1000));
    }

    #[test]
    fn a_mad_with_a_wrong_qkey_or_length_is_dropped() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        request(&ends, &mut pair);
        let mut keep = Keep(Vec::new());
        pair.nodes[0].poll_transmit(pair.now, &mut keep);
        let mut bytes = keep.0.remove(0);
        bytes[42 + 12] ^= 1;
        seal(&mut bytes);
        let now = pair.now;
        deliver(&mut pair.nodes[1], now, &bytes);
        assert_eq!(pair.nodes[1].counters().get(DropReason::Mad), 1);
    }
}
