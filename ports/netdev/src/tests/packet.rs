//! Tests of packet ports over a veth pair.

use std::time::{Duration, Instant};

use longhaul_port::{DropReason, LinkState, Port, PortError, Received};

use super::*;
use crate::{PacketConfig, PacketPort};

fn open(interface: &str) -> PacketPort {
    PacketPort::open(&PacketConfig::new(interface)).unwrap()
}

/// Both ends of a veth pair `a`, `b`.
fn pair() -> (PacketPort, PacketPort) {
    sh("ip link add ea mtu 9000 type veth peer name eb mtu 9000; ip link set ea up; ip link set \
         eb up");
    let (mut a, mut b) = (open("ea"), open("eb"));
    await_link(&mut a, LinkState::Up);
    await_link(&mut b, LinkState::Up);
    (a, b)
}

mod carries {
    use super::*;

    #[test]
    fn frames_of_every_length_both_ways_once_and_in_order() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let frames: Vec<_> =
                [14, 15, 59, 60, 64, 1514, 1518, 4096, 9014].map(|len| frame(len, 9)).into();
            for frame in &frames {
                send(&mut a, frame);
                send(&mut b, frame);
            }
            assert_eq!(receive_all(&mut a, frames.len()), frames);
            assert_eq!(receive_all(&mut b, frames.len()), frames);
            // A port does not receive its own frames.
            assert_eq!(receive(&mut a).len() + receive(&mut b).len(), 0);
            assert_eq!(a.counters().tx_drops.total() + b.counters().rx_drops.total(), 0);
            let bytes: usize = frames.iter().map(Vec::len).sum();
            assert_eq!((a.counters().tx_frames, a.counters().tx_bytes), (9, bytes as u64));
        });
    }

    /// Ages of `count` frames of experiments; `None` for those without a stamp.
    fn ages(port: &mut PacketPort, count: usize) -> Vec<Option<Duration>> {
        let mut ages = Vec::new();
        until("frames", || {
            port.receive_lent(64, &mut |received| {
                let frame = received.bytes();
                if frame[12..14] != ETHERTYPE && frame[16..18] != ETHERTYPE {
                    return;
                }
                ages.push(match received {
                    Received::Stamped(_, age) => Some(age),
                    Received::Passing(_) => None,
                    Received::Lent(_) => panic!("a packet socket lends nothing"),
                });
            })
            .unwrap();
            ages.len() >= count
        });
        ages
    }

    #[test]
    fn stamped_frames_with_their_age() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let config = PacketConfig { stamps: true, ..PacketConfig::new("eb") };
            let mut stamped = PacketPort::open(&config).unwrap();
            await_link(&mut stamped, LinkState::Up);
            let tagged = tagged(&frame(200, 3), [0x81, 0x00, 0x00, 0x07]);
            for frame in [frame(60, 1), tagged.clone()] {
                let before = Instant::now();
                send(&mut a, &frame);
                // The kernel stamps a frame when it delivers it, which can be long after `send`.
                assert_eq!(ages(&mut b, 1), [None]);
                std::thread::sleep(Duration::from_millis(100));
                let ages = ages(&mut stamped, 1);
                let [Some(age)] = ages[..] else { panic!("{ages:?}") };
                let lifetime = before.elapsed();
                assert!(
                    Duration::from_millis(50) <= age && age <= lifetime,
                    "{age:?} {lifetime:?}"
                );
            }
            send(&mut a, &tagged);
            assert_eq!(
                receive_all(&mut stamped, 1),
                [tagged],
                "the tag is put back beside the stamp"
            );
        });
    }

    #[test]
    fn more_than_fits_the_slots_when_flushed_once() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let mut taken = Vec::new();
            for number in 0..700u16 {
                let mut frame = frame(200, 0);
                frame[14..16].copy_from_slice(&number.to_be_bytes());
                if a.transmit(200, &mut |slot| slot.copy_from_slice(&frame)).unwrap() {
                    taken.push(frame);
                }
            }
            a.flush().unwrap();
            assert!(taken.len() >= 256);
            assert_eq!(receive_all(&mut b, taken.len()), taken);
            assert_eq!(a.counters().tx_full, 700 - taken.len() as u64);
            assert!(a.netdev_counters().tx_calls < 100, "in batches: {:?}", a.netdev_counters());
        });
    }

    #[test]
    fn frames_to_others_and_to_groups() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            // LLDP, which bridges do not forward; broadcast; some station.
            let mut frames = [frame(60, 1), frame(60, 2), frame(60, 3)];
            frames[0][..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
            frames[1][..6].fill(0xff);
            for frame in &frames {
                send(&mut a, frame);
            }
            assert_eq!(receive_all(&mut b, 3), frames);
        });
    }
}

mod serves_by_class {
    use super::*;
    use crate::PreferredQps;
    use std::ops::Range;

    const KNOWN: u8 = 7;
    const UNKNOWN: u8 = 9;

    /// A RoCEv2 frame with a number.
    fn roce(qpn: u8, number: u16) -> Vec<u8> {
        let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let ip = [0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let udp = [0xc0, 0, 0x12, 0xb7, 0, 28, 0, 0];
        let bth = [10, 0x40, 0xff, 0xff, 0, 0, 0, qpn, 0, 0];
        [&ethernet[..], &ip, &udp, &bth, &number.to_be_bytes(), &[0; 8]].concat()
    }

    /// QP and number of the next frames, until there are `count`.
    fn take(port: &mut PacketPort, count: usize) -> Vec<(u8, u16)> {
        let mut taken = Vec::new();
        until("frames", || {
            let mut note = |frame: &[u8]| {
                if frame[12..14] == [8, 0] {
                    taken.push((frame[49], u16::from_be_bytes([frame[52], frame[53]])));
                }
            };
            port.receive(64, &mut note).unwrap();
            taken.len() >= count
        });
        taken
    }

    /// A port that serves by class, and one that all frames reach too, in front of it.
    fn open_both() -> (PacketPort, PacketPort, PacketPort) {
        let (a, all) = pair();
        let config = PacketConfig { by_class: true, ..PacketConfig::new("eb") };
        let mut by_class = PacketPort::open(&config).unwrap();
        await_link(&mut by_class, LinkState::Up);
        (a, all, by_class)
    }

    /// Sends these frames, and waits until the kernel has put them into the sockets.
    fn send_all(a: &mut PacketPort, all: &mut PacketPort, qpn: u8, numbers: Range<u16>) {
        for from in numbers.clone().step_by(250) {
            let some = from..numbers.end.min(from + 250);
            some.clone().for_each(|number| send(a, &roce(qpn, number)));
            take(all, some.len());
        }
    }

    fn known() -> PreferredQps {
        let mut qps = PreferredQps::default();
        qps.insert(KNOWN.into());
        assert!(!qps.contains(UNKNOWN.into()));
        qps
    }

    #[test]
    fn and_keeps_the_order_of_a_qp_that_becomes_preferred() {
        in_namespace(|| {
            let (mut a, mut all, mut port) = open_both();
            send_all(&mut a, &mut all, KNOWN, 0..300);
            port.prefer(&known()).unwrap();
            send_all(&mut a, &mut all, KNOWN, 300..600);
            let mut numbers: Vec<_> = take(&mut port, 600).into_iter().map(|of| of.1).collect();
            // The last one before the change may arrive twice.
            numbers.dedup();
            assert!(numbers.is_sorted() && numbers.len() == 600, "{numbers:?}");
        });
    }

    #[test]
    fn and_serves_known_flows_first_whatever_waits() {
        in_namespace(|| {
            let (mut a, mut all, mut port) = open_both();
            send_all(&mut a, &mut all, UNKNOWN, 0..12_000);
            port.prefer(&known()).unwrap();
            send_all(&mut a, &mut all, KNOWN, 0..1);
            let taken = take(&mut port, 12_001);
            let at = taken.iter().position(|(qpn, _)| *qpn == KNOWN).unwrap();
            assert!((8192..8192 + 64).contains(&at), "{at}");
        });
    }

    /// A process that fails to take over changes nothing for the one that continues.
    #[test]
    fn and_forgets_known_flows_once_another_process_is_in_charge() {
        in_namespace(|| {
            let (mut a, mut all, mut old) = open_both();
            let config = PacketConfig { by_class: true, ..PacketConfig::new("eb") };
            let mut place_of_known = |port: &mut PacketPort| {
                // None of them is from before the last change.
                port.receive(64, &mut |_| ()).unwrap();
                send_all(&mut a, &mut all, UNKNOWN, 0..8);
                send_all(&mut a, &mut all, KNOWN, 0..1);
                take(port, 9).iter().position(|(qpn, _)| *qpn == KNOWN)
            };
            old.prefer(&known()).unwrap();
            drop(PacketPort::take_over(&config, old.hand_over().unwrap()).unwrap());
            assert_eq!(place_of_known(&mut old), Some(0));
            let mut new = PacketPort::take_over(&config, old.hand_over().unwrap()).unwrap();
            old.give_away();
            drop(old);
            new.take_charge().unwrap();
            assert_eq!(place_of_known(&mut new), Some(8));
        });
    }
}

mod shared_by_cores {
    use super::*;
    use crate::FrameSubset;
    use std::num::NonZeroUsize;

    /// A frame between two hosts, with or without a tag, with a number.
    fn between(from: u8, to: u8, is_tagged: bool, number: u8) -> Vec<u8> {
        let tag: &[u8] = if is_tagged { &[0x81, 0x00, 0, 5] } else { &[] };
        let start = [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from], tag, &[0x08, 0x00, 0x45]].concat();
        [&start[..], &[0; 11], &[10, 0, 0, from, 10, 0, 0, to], &[number; 40]].concat()
    }

    /// Frames of the hosts, until there are `count`, including any that arrive with the last.
    fn of_hosts(queue: &mut PacketPort, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        until("frames", || {
            queue.service().unwrap();
            let mut keep = |frame: &[u8]| {
                if frame[..5] == [2, 0, 0, 0, 0] {
                    frames.push(frame.to_vec());
                }
            };
            queue.receive(256, &mut keep).unwrap();
            frames.len() >= count
        });
        frames
    }

    #[test]
    fn each_pair_of_hosts_comes_by_one_queue_and_all_send() {
        in_namespace(|| {
            let (mut a, b) = pair();
            drop(b);
            let mut queues =
                PacketPort::open_queues(&PacketConfig::new("eb"), NonZeroUsize::new(3).unwrap())
                    .unwrap();
            queues.iter_mut().for_each(|queue| await_link(queue, LinkState::Up));
            await_link(&mut a, LinkState::Up);
            let mut expected = vec![Vec::new(); 3];
            for host in 1..40 {
                for frame in
                    [between(host, 200, false, 1), between(200, host, true, 2), frame(60, host)]
                {
                    expected[longhaul_wire::pair_hash(&frame) as usize % 3].push(frame.clone());
                    send(&mut a, &frame);
                }
            }
            for (queue, expected) in queues.iter_mut().zip(&expected) {
                assert!(expected.len() > 3);
                assert_eq!(of_hosts(queue, expected.len()), *expected);
            }
            for (number, queue) in (0..).zip(&mut queues) {
                send(queue, &frame(100, number));
                assert_eq!(receive_all(&mut a, 1), [frame(100, number)]);
            }
        });
    }

    #[test]
    fn nothing_comes_by_a_port_that_only_sends() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let config = PacketConfig { part: FrameSubset::Nothing, ..PacketConfig::new("eb") };
            let mut sends = PacketPort::open(&config).unwrap();
            await_link(&mut sends, LinkState::Up);
            send(&mut a, &frame(60, 1));
            assert_eq!(receive_all(&mut b, 1), [frame(60, 1)]);
            assert!(!sends.arm().unwrap() && receive(&mut sends).is_empty());
            send(&mut sends, &frame(60, 2));
            assert_eq!(receive_all(&mut a, 1), [frame(60, 2)]);
        });
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        for part in
            [FrameSubset::OfPairs { index: 2, of: 2 }, FrameSubset::OfPairs { index: 0, of: 0 }]
        {
            let refusal =
                PacketPort::open(&PacketConfig { part, ..PacketConfig::new("lo") }).err().unwrap();
            assert!(refusal.to_string().contains("is not among"), "{refusal}");
        }
    }
}

mod splits {
    use super::*;
    use crate::interface;
    use crate::segment::tests::Header::*;
    use crate::segment::tests::{Header, build, check};

    /// Sends a frame that is to be split through the device `ea`, and checks the frames that arrive
    /// at `eb`.
    fn what_comes_in(headers: &'static [Header], segment_bytes: usize, count: usize) {
        in_namespace(move || {
            let (_a, mut b) = pair();
            let (mut frame, offload) = build(headers, &[7; 20_000], segment_bytes, true);
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            let socket =
                crate::socket::PacketSocket::receiving(&PacketConfig::new("ea"), None).unwrap();
            socket.bind(interface::index("ea").unwrap()).unwrap();
            let frame = [&offload.bytes()[..], &frame].concat();
            assert_eq!(rustix::io::write(&socket, &frame).unwrap(), frame.len());
            let mut number = 0;
            until("parts", || {
                b.receive(64, &mut |part| {
                    check(part, headers, number);
                    number += 1;
                })
                .unwrap();
                number == count
            });
            let counters = b.netdev_counters();
            assert_eq!((counters.rx_split, counters.rx_not_splittable), (1, 0));
            assert_eq!(counters.rx_tags_restored > 0, headers[0] != Ethernet { tags: 0 });
        });
    }

    #[test]
    fn tagged_tcp_over_ipv4() {
        what_comes_in(&[Ethernet { tags: 1 }, Ipv4 { options: 0 }, Tcp { options: 3 }], 1448, 14);
    }

    #[test]
    fn twice_tagged_tcp_over_ipv6() {
        what_comes_in(&[Ethernet { tags: 2 }, Ipv6 { extensions: 0 }, Tcp { options: 3 }], 8900, 3);
    }

    #[test]
    fn tagged_udp_over_ipv6() {
        what_comes_in(&[Ethernet { tags: 1 }, Ipv6 { extensions: 0 }, Udp], 1000, 20);
    }
}

mod brings_only_what_is_wanted {
    use super::*;
    use crate::Wanted;
    use std::net::IpAddr;

    const OURS_V4: [u8; 4] = [10, 9, 0, 1];
    const OURS_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn ethernet(ethertype: u16) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &ethertype.to_be_bytes()].concat()
    }

    /// `options` is in multiples of four bytes.
    fn ipv4(to: [u8; 4], protocol: u8, fragment: u16, options: usize, port: u16) -> Vec<u8> {
        let mut frame = ethernet(0x0800);
        frame.extend([0x45 + (options / 4) as u8, 0, 0, 48, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 9, 0, 2]);
        frame.extend(to);
        frame.extend(vec![1; options]);
        frame.extend([0x12, 0x34]);
        frame.extend(port.to_be_bytes());
        frame.resize(80, 7);
        frame
    }

    fn ipv6(to: [u8; 16], next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(0x86dd);
        frame.extend([0x60, 0, 0, 0, 0, 40, next_header, 64]);
        frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend(to);
        frame.extend(payload);
        frame.resize(100, 7);
        frame
    }

    fn udp_v6(to: [u8; 16], port: u16) -> Vec<u8> {
        ipv6(to, 17, &[&[0x12, 0x34][..], &port.to_be_bytes()].concat())
    }

    /// Checks that only the wanted frames among `sent` arrive, with and without a VLAN tag.
    fn brings(
        ip: impl Into<IpAddr>,
        neighbours: bool,
        wanted: Vec<Vec<u8>>,
        unwanted: Vec<Vec<u8>>,
    ) {
        let wanted_of_port = Wanted { ip: ip.into(), udp_port: 4791, neighbours };
        in_namespace(move || {
            let (mut a, everything) = pair();
            let config = PacketConfig { wanted: Some(wanted_of_port), ..PacketConfig::new("eb") };
            let mut b = PacketPort::open(&config).unwrap();
            await_link(&mut b, LinkState::Up);
            let mut sent = 0;
            let mut expected = Vec::new();
            for tag in [None, Some([0x81, 0, 0, 7])] {
                let frame = |frame: &Vec<u8>| tag.map_or(frame.clone(), |tag| tagged(frame, tag));
                for unwanted in &unwanted {
                    send(&mut a, &frame(unwanted));
                }
                for wanted in &wanted {
                    send(&mut a, &frame(wanted));
                    expected.push(frame(wanted));
                }
                sent += wanted.len() + unwanted.len();
            }
            let received = |port: &mut PacketPort| {
                let mut frames = Vec::new();
                port.receive(64, &mut |frame| frames.push(frame.to_vec())).unwrap();
                frames
            };
            assert_eq!(received(&mut b), expected);
            drop(b);
            let mut everything = everything;
            let all = received(&mut everything);
            assert!(
                all.len() >= sent,
                "a port that wants everything has it beside: {} of {sent}",
                all.len()
            );
        });
    }

    fn others(them_v4: [u8; 4]) -> Vec<Vec<u8>> {
        vec![
            ipv4(OURS_V4, 17, 0, 0, 4790),
            ipv4(OURS_V4, 6, 0, 0, 4791),
            ipv4(OURS_V4, 17, 0, 8, 53),
            ipv4(them_v4, 17, 0, 0, 4791),
            // The first fragment, one in the middle, the last one.
            ipv4(OURS_V4, 17, 0x2000, 0, 4791),
            ipv4(OURS_V4, 17, 0x2010, 0, 4791),
            ipv4(OURS_V4, 17, 0x0010, 0, 4791),
            // Truncated.
            [ethernet(0x0800), vec![0x45; 10]].concat(),
            frame(60, 1),
            ipv6(OURS_V6, 6, &[]),
        ]
    }

    fn datagrams_v4() -> Vec<Vec<u8>> {
        vec![
            ipv4(OURS_V4, 17, 0, 0, 4791),
            ipv4(OURS_V4, 17, 0x4000, 40, 4791),
            ipv4([239, 1, 2, 3], 17, 0, 0, 4791),
            ipv4([255; 4], 17, 0, 0, 4791),
        ]
    }

    #[test]
    fn by_ipv4() {
        let arp = [ethernet(0x0806), vec![0; 46]].concat();
        let unwanted = || [others([10, 9, 0, 3]), vec![udp_v6(OURS_V6, 4791)]].concat();
        brings(OURS_V4, false, datagrams_v4(), [unwanted(), vec![arp.clone()]].concat());
        brings(OURS_V4, true, [datagrams_v4(), vec![arp]].concat(), unwanted());
    }

    #[test]
    fn by_ipv6() {
        let mut group = OURS_V6;
        group[0] = 0xff;
        let mut them = OURS_V6;
        them[15] = 2;
        let datagrams = || vec![udp_v6(OURS_V6, 4791), udp_v6(group, 4791)];
        let about_neighbours = || vec![ipv6(group, 58, &[135]), ipv6(OURS_V6, 58, &[136])];
        let unwanted = || {
            let ipv6_alone = vec![
                udp_v6(OURS_V6, 4790),
                udp_v6(them, 4791),
                // A router's advertisement, a fragment, hop-by-hop options.
                ipv6(group, 58, &[134]),
                ipv6(OURS_V6, 44, &[17, 0, 0x12, 0xb7]),
                ipv6(OURS_V6, 0, &[17, 0, 0x12, 0xb7]),
                [ethernet(0x0806), vec![0; 46]].concat(),
            ];
            [ipv6_alone, datagrams_v4(), others(OURS_V4)].concat()
        };
        brings(OURS_V6, false, datagrams(), [unwanted(), about_neighbours()].concat());
        brings(OURS_V6, true, [datagrams(), about_neighbours()].concat(), unwanted());
    }
}

mod waits_for_the_device {
    use super::*;
    use std::time::Duration;

    /// A device that is much slower than the sender, with a queue of this many bytes.
    fn slow_pair(bytes: &str) -> Option<(PacketPort, PacketPort)> {
        let ports = pair();
        let shape =
            format!("tc qdisc replace dev ea root tbf rate 200mbit burst 20kb limit {bytes}");
        if may_sh(&shape) {
            return Some(ports);
        }
        longhaul_namespace::skip("this kernel has no tbf");
        None
    }

    /// Without the frames that the kernel sends on an interface that comes up.
    fn ours(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let ethertype = frame(4000, 0)[12..14].to_vec();
        frames.retain(|frame| frame[12..14] == ethertype);
        frames
    }

    #[test]
    fn and_is_woken_when_it_has_room() {
        in_namespace(|| {
            let Some((mut a, mut b)) = slow_pair("50mb") else { return };
            let frames: Vec<_> = (0..800).map(|number| frame(4000, number as u8)).collect();
            let (mut sent, mut slept, mut received) = (0, 0, Vec::new());
            while sent < frames.len() {
                let frame = &frames[sent];
                if a.transmit(4000, &mut |slot| slot.copy_from_slice(frame)).unwrap() {
                    sent += 1;
                    continue;
                }
                a.flush().unwrap();
                received.append(&mut ours(receive(&mut b)));
                a.service().unwrap();
                if a.transmit_room() == 0 && !a.arm().unwrap() {
                    slept += 1;
                    assert!(sleep_on(&mut [&mut a], PATIENCE));
                    a.disarm();
                }
            }
            assert!(slept > 0, "{:?}", a.netdev_counters());
            until("frames", || {
                a.flush().unwrap();
                received.append(&mut ours(receive(&mut b)));
                received.len() >= frames.len()
            });
            assert!(received == frames, "{} frames that differ", received.len());
            assert!(a.netdev_counters().tx_blocked > 0);
            // With nothing more to send, the port requests no wake-up.
            settle(&mut a);
            assert!(!sleep_on(&mut [&mut a], Duration::from_millis(20)));
        });
    }

    #[test]
    fn but_not_for_its_queue_which_loses_frames() {
        in_namespace(|| {
            let Some((mut a, mut b)) = slow_pair("40kb") else { return };
            for number in 0..100 {
                send(&mut a, &frame(4000, number));
            }
            let lost = a.netdev_counters().tx_queue_full;
            assert!(lost > 0);
            assert_eq!(receive_all(&mut b, 100 - lost as usize).len(), 100 - lost as usize);
            assert_eq!(a.counters().tx_frames, 100 - lost);
        });
    }
}

mod refuses_and_drops {
    use super::*;

    #[test]
    fn frames_to_others_unless_asked_for() {
        in_namespace(|| {
            let (mut a, _) = pair();
            let config = PacketConfig { promiscuous: false, ..PacketConfig::new("eb") };
            let mut b = PacketPort::open(&config).unwrap();
            let mut frames = [frame(60, 1), frame(60, 2), frame(60, 3)];
            frames[1][..6].fill(0xff);
            frames[2][..6].copy_from_slice(&crate::interface::mac("eb").unwrap());
            frames.iter().for_each(|frame| send(&mut a, frame));
            assert_eq!(receive_all(&mut b, 2), frames[1..]);
        });
    }

    #[test]
    fn lengths_out_of_range() {
        in_namespace(|| {
            let (mut a, _b) = pair();
            let too_long = a.transmit(9019, &mut |_| unreachable!());
            assert!(matches!(too_long, Err(PortError::FrameTooLong { len: 9019, max: 9018 })));
            let too_short = a.transmit(13, &mut |_| unreachable!());
            assert!(matches!(too_short, Err(PortError::FrameTooShort { .. })));
        });
    }

    #[test]
    fn frames_over_the_mtu_and_sends_those_behind_them() {
        in_namespace(|| {
            sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            let frames = [frame(1514, 1), frame(1515, 2), frame(60, 3)];
            for frame in &frames {
                assert!(a.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
            }
            a.flush().unwrap();
            assert_eq!(receive_all(&mut b, 2), [frames[0].clone(), frames[2].clone()]);
            assert_eq!(a.counters().tx_drops.get(DropReason::FrameTooLong), 1);
        });
    }

    #[test]
    fn received_frames_that_are_longer_than_asked_for() {
        in_namespace(|| {
            let (mut a, _) = pair();
            let config = PacketConfig { frame_bytes_max: 1000, ..PacketConfig::new("eb") };
            let mut b = PacketPort::open(&config).unwrap();
            let frames = [frame(1001, 1), frame(1000, 2)];
            frames.iter().for_each(|frame| send(&mut a, frame));
            assert_eq!(receive_all(&mut b, 1), [frames[1].clone()]);
            assert_eq!(b.counters().rx_drops.get(DropReason::FrameTooLong), 1);
        });
    }
}

mod vlan_tags {
    use super::*;

    /// The kernel strips the tag of every incoming frame into metadata.
    #[test]
    fn pass_whatever_is_in_them() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let tags = [
                [0x81, 0, 0, 5],
                [0x81, 0, 0xb0, 5],
                [0x81, 0, 0, 0],
                [0x81, 0, 0xff, 0xff],
                [0x88, 0xa8, 0, 7],
            ];
            for (number, tag) in tags.into_iter().enumerate() {
                // The kernel reserves space beyond the MTU only for 802.1Q tags.
                let longest = if tag[0] == 0x81 { 9014 } else { 9010 };
                for len in [16, 60, 1514, longest] {
                    let frame = tagged(&frame(len, number as u8), tag);
                    send(&mut a, &frame);
                    assert_eq!(receive_all(&mut b, 1), [frame]);
                }
            }
            assert_eq!(b.netdev_counters().rx_tags_restored, 20);
        });
    }

    #[test]
    fn pass_in_twos() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            let mut inner = frame(60, 1);
            inner[12..18].copy_from_slice(&[0x81, 0, 0, 6, ETHERTYPE[0], ETHERTYPE[1]]);
            let frame = tagged(&inner, [0x88, 0xa8, 0, 5]);
            send(&mut a, &frame);
            let mut frames = Vec::new();
            until("a frame", || {
                b.receive(1, &mut |frame| frames.push(frame.to_vec())).unwrap() == 1
            });
            assert_eq!(frames, [frame]);
        });
    }

    #[test]
    fn of_vlan_devices_are_there_and_back() {
        in_namespace(|| {
            let (mut a, _b) = pair();
            if !may_sh("ip link add link eb name ev type vlan id 5 && ip link set ev up") {
                return longhaul_namespace::skip("this kernel has no VLAN devices");
            }
            let mut v = open("ev");
            await_link(&mut v, LinkState::Up);
            let (frame, tag) = (frame(9014, 4), [0x81, 0, 0, 5]);
            send(&mut v, &frame);
            assert_eq!(receive_all(&mut a, 1), [tagged(&frame, tag)]);
            send(&mut a, &tagged(&frame, tag));
            assert_eq!(receive_all(&mut v, 1), [frame]);
        });
    }
}

mod sleeping {
    use super::*;

    #[test]
    fn ends_with_a_frame_and_not_without() {
        in_namespace(|| {
            let (mut a, mut b) = pair();
            settle(&mut b);
            assert!(!b.arm().unwrap());
            send(&mut a, &frame(60, 1));
            assert!(sleep_on(&mut [&mut b], PATIENCE));
            b.disarm();
            assert_eq!(receive_all(&mut b, 1).len(), 1);
            settle(&mut b);
        });
    }

    #[test]
    fn ends_when_the_interface_goes_down_and_not_again_after_that() {
        in_namespace(|| {
            let (mut a, _b) = pair();
            settle(&mut a);
            assert!(!a.arm().unwrap());
            sh("ip link set ea down");
            assert!(sleep_on(&mut [&mut a], PATIENCE));
            a.disarm();
            await_link(&mut a, LinkState::Down);
            settle(&mut a);
        });
    }

    #[test]
    fn ends_when_the_carrier_goes_and_when_it_comes() {
        in_namespace(|| {
            let (_a, mut b) = pair();
            for (lines, state) in
                [("ip link set ea down", LinkState::Down), ("ip link set ea up", LinkState::Up)]
            {
                settle(&mut b);
                assert!(!b.arm().unwrap());
                sh(lines);
                assert!(sleep_on(&mut [&mut b], PATIENCE));
                b.disarm();
                await_link(&mut b, state);
            }
        });
    }

    #[test]
    fn is_refused_while_frames_that_were_taken_wait() {
        in_namespace(|| {
            // Only splitting leaves a trace.
            sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
            sh("ip addr add 10.1.1.1/24 dev ea; ip neigh add 10.1.1.2 lladdr 02:00:00:00:00:02 \
                 dev ea");
            let mut b = open("eb");
            send_udp_run("10.1.1.2:4791", 1000, 5);
            let mut lengths = Vec::new();
            until("a frame", || {
                b.receive(1, &mut |frame| lengths.push(frame.len())).unwrap() == 1
                    && lengths.contains(&1042)
            });
            assert!(b.arm().unwrap());
            b.disarm();
            b.receive(64, &mut |frame| lengths.push(frame.len())).unwrap();
            assert!(!b.arm().unwrap());
            assert_eq!(lengths.iter().filter(|len| **len == 1042).count(), 5);
        });
    }
}

mod privileges {
    use super::*;

    /// Drops all capabilities of the calling thread.
    fn drop_all() {
        // Version 3, this thread; two times effective, permitted, inheritable.
        let (header, data) = ([0x2008_0522u32, 0], [0u32; 6]);
        // SAFETY: both are live and as long as this version has them.
        let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
        assert_eq!(result, 0);
    }

    #[test]
    fn are_not_needed_after_opening() {
        in_namespace(|| {
            let host = Host::new();
            let thread = host.thread;
            host.sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
            std::thread::scope(|scope| {
                let (next, step) = channel();
                let namespace =
                    format!("nsenter --net=/proc/{}/task/{thread}/ns/net", std::process::id());
                let helper = scope.spawn(move || {
                    for lines in step {
                        sh(&format!("{namespace} sh -e -c '{lines}'"));
                    }
                });
                host.run(move || {
                    let (mut a, mut b) = (open("ea"), open("eb"));
                    await_link(&mut a, LinkState::Up);
                    drop_all();
                    assert!(PacketPort::open(&PacketConfig::new("ea")).is_err());
                    next.send("ip link set ea down").unwrap();
                    await_link(&mut a, LinkState::Down);
                    next.send("ip link set ea up").unwrap();
                    await_link(&mut a, LinkState::Up);
                    next.send("ip link del ea").unwrap();
                    await_link(&mut a, LinkState::Down);
                    let make = "ip link add ea type veth peer name eb; ip link set ea up; ip link \
                                set eb up";
                    next.send(make).unwrap();
                    await_link(&mut a, LinkState::Up);
                    await_link(&mut b, LinkState::Up);
                    send(&mut a, &frame(60, 1));
                    assert_eq!(receive_all(&mut b, 1), [frame(60, 1)]);
                });
                helper.join().unwrap();
            });
        });
    }
}

mod opening {
    use super::*;
    use crate::NetdevError;

    #[test]
    fn says_what_is_wrong() {
        in_namespace(|| {
            let open =
                |interface: &str| PacketPort::open(&PacketConfig::new(interface)).err().unwrap();
            assert!(matches!(open("nothere"), NetdevError::NoSuchInterface { .. }));
            assert!(open("nothere").to_string().contains("lo"));
            assert!(matches!(open("lo"), NetdevError::NotEthernet { hardware_type: 772, .. }));
            let config = PacketConfig { frame_bytes_max: 63, ..PacketConfig::new("lo") };
            assert!(matches!(PacketPort::open(&config).err(), Some(NetdevError::Config { .. })));
        });
    }

    #[test]
    fn turns_merging_off_and_dropping_puts_it_back() {
        in_namespace(|| {
            sh("ip link add ea type veth peer name eb; ethtool -K ea gro on");
            let merges = |state: &str| {
                sh(&format!("ethtool -k ea | grep -q 'generic-receive-offload: {state}'"))
            };
            let port = open("ea");
            merges("off");
            drop(port);
            merges("on");
            let port =
                PacketPort::open(&PacketConfig { keep_merging: true, ..PacketConfig::new("ea") })
                    .unwrap();
            merges("on");
            drop(port);
        });
    }
}

/// Sends `count` datagrams of `len` bytes in one call, for a device to split.
pub(super) fn send_udp_run(to: &str, len: u16, count: usize) {
    use std::os::fd::AsRawFd;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let len_option = libc::c_int::from(len);
    // SAFETY: the descriptor is open; the value is a live int.
    let result = unsafe {
        let value = (&raw const len_option).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, 4)
    };
    assert_eq!(result, 0);
    let bytes: Vec<u8> = (0..count).flat_map(|number| vec![number as u8; len.into()]).collect();
    assert_eq!(socket.send_to(&bytes, to).unwrap(), bytes.len());
}
