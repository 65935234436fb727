//! Congestion: marks lead to notifications, notifications slow the sender down, and the program's
//! limits hold.

use crate::pair::*;
use longhaul_cc::dcqcn::Dcqcn;
use longhaul_cc::wire_bytes;
use longhaul_rnic::*;
use longhaul_units::{BitRate, Duration, Instant, Qpn};
use longhaul_wire::{Opcode, Packet};
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

fn line() -> BitRate {
    BitRate::from_gbps(10).unwrap()
}

fn controlled() -> (Pair, Ends) {
    let mut pair = Pair::with(1, 1 << 20, |c| {
        c.port_rate = Some(line());
        c.dcqcn = Some(Dcqcn::nvidia(line()).unwrap());
    });
    let ends = pair.connect(&Link { mtu: Mtu::B4096, timeout: 14, ..Link::default() });
    (pair, ends)
}

fn limit(pair: &mut Pair, ends: &Ends, n: usize, kbps: u32) {
    let attr = QpAttr { rate_limit: Some(RateLimit::from_verbs(kbps, 0, 0)), ..QpAttr::default() };
    pair.nodes[n].modify_qp(pair.now, ends.qp[n], &attr).unwrap();
}

/// Bytes per second on the wire that node 0 sends during `span`; `marked` decides whether a switch
/// marks its frames.
fn goodput(pair: &mut Pair, ends: &Ends, span: Duration, marked: bool) -> f64 {
    let sent = Rc::new(Cell::new(0u64));
    let count = sent.clone();
    pair.tap().wire.marking = f64::from(u8::from(marked));
    pair.tap().lose = Box::new(move |sender, bytes| {
        count.set(count.get() + if sender == 0 { wire_bytes(bytes.len()) } else { 0 });
        false
    });
    let end = pair.now + span;
    let segments = [sge(ends, 0, 0, 1 << 16)];
    while pair.now < end {
        pair.completions(0, ends.cq[0]);
        let now = pair.now;
        while pair.nodes[0]
            .post_send(now, ends.qp[0], &wr(1, write_to(ends, 1, 0), &segments))
            .is_ok()
        {}
        assert!(pair.step());
    }
    sent.get() as f64 / span.as_secs_f64()
}

mod notification {
    use super::*;

    #[test]
    fn marks_slow_the_sender_and_it_recovers() {
        let (mut pair, ends) = controlled();
        let full = line().as_bps() as f64 / 8.0;
        let before = goodput(&mut pair, &ends, Duration::from_ms(5), false);
        assert!(before > 0.95 * full, "{before}");
        let during = goodput(&mut pair, &ends, Duration::from_ms(5), true);
        assert!(during < 0.3 * full, "{during}");
        goodput(&mut pair, &ends, Duration::from_ms(500), false);
        let after = goodput(&mut pair, &ends, Duration::from_ms(5), false);
        assert!(after > 0.95 * full, "{after}");
        let (sender, receiver) = (pair.nodes[0].counters(), pair.nodes[1].counters());
        assert!(receiver.get(Counter::EcnMarkedPackets) > receiver.get(Counter::CnpSent));
        assert!(receiver.get(Counter::CnpSent) > 0);
        assert_eq!(sender.get(Counter::CnpHandled), receiver.get(Counter::CnpSent));
        assert_eq!(sender.drops(), 0);
    }

    #[test]
    fn a_notification_names_the_senders_qp_and_is_marked_urgent() {
        let (mut pair, ends) = controlled();
        pair.tap().seen = Some(Vec::new());
        pair.tap().wire.marking = 1.0;
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        assert!(pair.settle(Duration::from_ms(100)));
        let seen = pair.tap().seen.take().unwrap();
        let cnps: Vec<_> = seen
            .iter()
            .filter(|(_, bytes)| Packet::parse(bytes).unwrap().unwrap().opcode() == Opcode::CNP)
            .collect();
        // A CNP for the WRITE, and one for the ACK, which was marked too.
        assert_eq!(cnps.iter().filter(|(sender, _)| *sender == 1).count(), 1);
        let packet = Packet::parse(&cnps[0].1).unwrap().unwrap();
        assert_eq!(packet.dest_qp(), ends.qp[usize::from(cnps[0].0 == 1) ^ 1]);
        assert!(packet.bth().becn);
        assert_eq!(packet.traffic_class(), 48 << 2 | 2);
        assert_eq!(cnps[0].1.len(), 14 + 20 + 8 + 12 + 16 + 4);
    }

    #[test]
    fn only_datagrams_to_one_receiver_are_answered() {
        for (to_group, answers) in [(false, 1), (true, 0)] {
            let mut pair =
                Pair::with(1, 1 << 16, |c| c.dcqcn = Some(Dcqcn::nvidia(line()).unwrap()));
            let ends = pair.connect_as(QpKind::Ud, &Link::default());
            let group = IpAddr::from([239, 1, 2, 3]);
            let (ip, qpn) = if to_group { (group, Qpn::MULTICAST) } else { (ip(1), ends.qp[1]) };
            let ah = pair.ah(0, &ends, ip);
            pair.nodes[1].attach_multicast(ends.qp[1], group).unwrap();
            pair.recv(1, &ends, 5, 0, 500);
            pair.tap().wire.marking = 1.0;
            let destination = Destination { ah, qpn, qkey: QKEY };
            let op = SendOp::Datagram { destination, immediate: None };
            pair.post(0, ends.qp[0], &wr(1, op, &[sge(&ends, 0, 0, 100)]));
            assert!(pair.settle(Duration::from_ms(100)));
            assert_eq!(pair.completions(1, ends.cq[1]).len(), 1);
            let counters = [pair.nodes[0].counters(), pair.nodes[1].counters()];
            assert_eq!(
                counters.map(|c| c.get(Counter::CnpSent)),
                [0, answers],
                "to a group: {to_group}"
            );
            assert_eq!(counters[0].get(Counter::RxFrames), answers);
        }
    }

    #[test]
    fn without_control_marks_are_counted_and_packets_are_not_capable() {
        let mut pair = Pair::new(1, 1 << 16);
        let ends = pair.connect(&Link::default());
        pair.tap().wire.marking = 1.0;
        pair.tap().seen = Some(Vec::new());
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        assert!(pair.settle(Duration::from_ms(100)));
        assert_eq!(pair.tap().seen.take().unwrap()[0].1[15] & 3, 0);
        assert_eq!(pair.nodes[1].counters().get(Counter::CnpSent), 0);
    }
}

mod limits {
    use super::*;

    #[test]
    fn a_programs_limit_is_kept_to_a_hundredth() {
        for kbps in [100_000, 1_000_000, 4_000_000] {
            let mut pair = Pair::new(1, 1 << 20);
            let ends = pair.connect(&Link { mtu: Mtu::B4096, timeout: 14, ..Link::default() });
            limit(&mut pair, &ends, 0, kbps);
            goodput(&mut pair, &ends, Duration::from_ms(20), false);
            let rate = 8.0 * goodput(&mut pair, &ends, Duration::from_ms(200), false);
            let set = f64::from(kbps) * 1e3;
            assert!((rate / set - 1.0).abs() < 0.01, "{rate} instead of {set}");
        }
    }

    #[test]
    fn read_responses_are_held_to_it_and_it_never_spins() {
        let mut pair = Pair::new(1, 1 << 20);
        let ends = pair.connect(&Link { timeout: 18, ..Link::default() });
        limit(&mut pair, &ends, 1, 100_000);
        let len = 500_000;
        pair.fill(1, 0, len, 3);
        pair.post(0, ends.qp[0], &wr(1, read_from(&ends, 1, 0), &[sge(&ends, 0, 0, len as u32)]));
        let mut steps = 0;
        while pair.completions(0, ends.cq[0]).is_empty() {
            assert!(pair.step());
            steps += 1;
            assert!(steps < 5000, "a step for each packet, and few besides");
        }
        // The first 64 KiB are sent at once.
        let took = pair.now.since(Instant::ZERO).as_secs_f64();
        let ideal = (len as f64 * 1.08 - 65_536.0) * 8.0 / 100e6;
        assert!((took / ideal - 1.0).abs() < 0.05, "{took} instead of {ideal}");
        assert_eq!(pair.bytes(0, 0, len), pair.bytes(1, 0, len));
    }

    #[test]
    fn acknowledgements_are_not_held_back() {
        let mut pair = Pair::new(1, 1 << 20);
        let ends = pair.connect(&Link { mtu: Mtu::B4096, timeout: 14, ..Link::default() });
        limit(&mut pair, &ends, 1, 1000);
        // The limited QP has data of its own to send, at 1 Mbit/s.
        pair.post(1, ends.qp[1], &wr(9, write_to(&ends, 0, 0), &[sge(&ends, 1, 0, 500_000)]));
        pair.post(
            0,
            ends.qp[0],
            &wr(1, write_to(&ends, 1, 600_000), &[sge(&ends, 0, 600_000, 100_000)]),
        );
        while pair.completions(0, ends.cq[0]).is_empty() {
            assert!(pair.step());
        }
        assert!(pair.now < Instant::ZERO + Duration::from_ms(1), "{:?}", pair.now);
    }

    #[test]
    fn lifting_a_limit_frees_what_waits() {
        let mut pair = Pair::new(1, 1 << 20);
        let ends = pair.connect(&Link { mtu: Mtu::B4096, timeout: 14, ..Link::default() });
        limit(&mut pair, &ends, 0, 1);
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 200_000)]));
        (0..20).for_each(|_| assert!(pair.step()));
        assert!(pair.completions(0, ends.cq[0]).is_empty());
        let at = pair.now;
        limit(&mut pair, &ends, 0, 0);
        while pair.completions(0, ends.cq[0]).is_empty() {
            assert!(pair.step());
        }
        assert!(pair.now.since(at) < Duration::from_ms(1));
    }
}

mod strangers {
    use super::*;
    use longhaul_node::{Frame, Node};
    use longhaul_wire::Head;

    /// A CNP from node 1, and node 0's reaction to modified ones.
    #[test]
    fn a_notification_counts_only_from_the_peer_and_while_connected() {
        let (mut pair, ends) = controlled();
        pair.tap().seen = Some(Vec::new());
        pair.tap().wire.marking = 1.0;
        pair.post(0, ends.qp[0], &wr(1, write_to(&ends, 1, 0), &[sge(&ends, 0, 0, 100)]));
        assert!(pair.settle(Duration::from_ms(100)));
        let seen = pair.tap().seen.take().unwrap();
        let is_cnp = |bytes: &[u8]| Packet::parse(bytes).unwrap().unwrap().opcode() == Opcode::CNP;
        let cnp =
            seen.iter().find(|(sender, bytes)| *sender == 1 && is_cnp(bytes)).unwrap().1.clone();
        let now = pair.now;
        let counts = |pair: &mut Pair, bytes: &[u8], reason: DropReason| {
            let before = pair.nodes[0].counters().clone();
            let head = Head::copy_of(bytes);
            pair.nodes[0].handle_frame(now, 0, &Frame::received(&head, bytes).unwrap());
            let after = pair.nodes[0].counters();
            assert_eq!(after.get(reason), before.get(reason) + 1, "{reason:?}");
            assert_eq!(after.get(Counter::CnpHandled), before.get(Counter::CnpHandled));
        };
        counts(&mut pair, &changed(&cnp, 29, 9), DropReason::SourceIp);
        counts(&mut pair, &changed(&cnp, 44, 1), DropReason::PKey);
        counts(&mut pair, &changed(&cnp, 49, 99), DropReason::NoQp);
        pair.set_state(0, ends.qp[0], QpState::Error);
        counts(&mut pair, &cnp, DropReason::QpState);
    }

    /// A copy with one byte changed, and a valid ICRC and checksum.
    fn changed(bytes: &[u8], at: usize, to: u8) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        bytes[at] = to;
        sum(&mut bytes);
        seal(&mut bytes);
        bytes
    }
}
