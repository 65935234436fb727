//! Tests of the exchange of frames between two ports, with and without GSO and GRO.

use super::*;

/// Sends frames of these payload lengths, and checks that they arrive in order, complete and with
/// right ICRCs.
fn exchange(
    from: &mut UdpPort,
    to: &mut UdpPort,
    path: &Path,
    lengths: &[usize],
    at_a_time: usize,
) {
    let sent: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(number, &len)| frame_on(path, number as u32, len))
        .collect();
    for frame in &sent {
        give(from, frame);
    }
    from.flush().unwrap();
    for (sent, received) in sent.iter().zip(take(to, sent.len(), at_a_time)) {
        check_icrc(&received);
        assert_eq!(body(sent), body(&received));
        let packet = Packet::parse(&received).unwrap().unwrap();
        assert_eq!(packet.source_ip(), path.source_ip);
        assert_eq!(packet.destination_ip(), path.destination_ip);
        assert_eq!(packet.udp_source_port(), 4791);
        assert_eq!(packet.traffic_class(), path.traffic_class);
    }
}

const MIXED: [usize; 24] = [
    0, 0, 0, 1, 5, 64, 4096, 4096, 4096, 4000, 4096, 4096, 1, 2, 3, 4, 256, 256, 256, 255, 0, 4096,
    4096, 0,
];

#[test]
fn ipv4_frames_arrive_as_sent() {
    let (addresses, mut a, mut b) = pair();
    exchange(&mut a, &mut b, &path(addresses[0], addresses[1]), &MIXED, 64);
    exchange(&mut b, &mut a, &path(addresses[1], addresses[0]), &MIXED, 64);
}

#[test]
fn long_runs_arrive_as_sent() {
    let (addresses, mut a, mut b) = pair();
    let path = path(addresses[0], addresses[1]);
    exchange(&mut a, &mut b, &path, &[4096; 100], 64);
    exchange(&mut a, &mut b, &path, &[0; 200], 64);
    let messages = a.udp_counters().tx_messages;
    // A run holds 15 packets of 4112 bytes, or 64 short ones.
    assert!(messages < 20 || !a.sends_runs(), "{messages} messages");
}

#[test]
fn a_run_may_be_taken_in_pieces() {
    let (addresses, mut a, mut b) = pair();
    let path = path(addresses[0], addresses[1]);
    for at_a_time in [1, 2, 7] {
        exchange(&mut a, &mut b, &path, &MIXED, at_a_time);
    }
    assert!(!b.receiver.holds_packets());
}

#[test]
fn with_and_without_runs_ports_understand_each_other() {
    let [a, b] = [own_ipv4(), own_ipv4()];
    let (mut with, mut without) = (port(a), port_without_offload(b));
    exchange(&mut with, &mut without, &path(a, b), &MIXED, 64);
    exchange(&mut without, &mut with, &path(b, a), &MIXED, 64);
    let counters = without.udp_counters();
    assert_eq!(counters.tx_messages, MIXED.len() as u64);
    assert_eq!(counters.rx_unidentified + with.udp_counters().rx_unidentified, 0);
}

#[test]
fn ipv6_frames_arrive_as_sent() {
    // ::1 is the only IPv6 loopback address: the port is its own peer.
    let own = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
    let bind = std::net::SocketAddr::new(own, 24_791);
    let mut port = match UdpPort::bind(&UdpConfig { bind, ..UdpConfig::new("test", own) }) {
        Ok(port) => port,
        Err(crate::UdpError::AddressNotHere { .. }) => {
            longhaul_namespace::skip("this machine has no IPv6");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let path = Path { traffic_class: 0x69, ..path(own, own) };
    let sent: Vec<_> = MIXED
        .iter()
        .enumerate()
        .map(|(number, &len)| frame_on(&path, number as u32, len))
        .collect();
    for frame in &sent {
        give(&mut port, frame);
    }
    port.flush().unwrap();
    for (sent, received) in sent.iter().zip(take(&mut port, sent.len(), 64)) {
        check_icrc(&received);
        assert_eq!(body(sent), body(&received));
        assert_eq!(Packet::parse(&received).unwrap().unwrap().traffic_class(), 0x69);
    }
}

#[test]
fn traffic_class_and_congestion_marks_are_carried() {
    let (addresses, mut a, mut b) = pair();
    let classes = [0_u8, 0x02, 0x03, 0x68, 0x6a, 0x6a, 0x6b, 0];
    for (number, &traffic_class) in classes.iter().enumerate() {
        let path = Path { traffic_class, hop_limit: 17, ..path(addresses[0], addresses[1]) };
        give(&mut a, &frame_on(&path, number as u32, 64));
    }
    a.flush().unwrap();
    let received: Vec<_> = take(&mut b, classes.len(), 64)
        .iter()
        .map(|frame| Packet::parse(frame).unwrap().unwrap().traffic_class())
        .collect();
    assert_eq!(received, classes);
}

#[test]
fn another_udp_port_stands_for_the_usual_one() {
    let [a, b] = [own_ipv4(), own_ipv4()];
    let [mut from, mut to] = [a, b].map(|ip| {
        let bind = std::net::SocketAddr::new(ip, 14_791);
        UdpPort::bind(&UdpConfig { bind, ..UdpConfig::new("test", ip) }).unwrap()
    });
    exchange(&mut from, &mut to, &path(a, b), &MIXED, 64);
}

#[test]
fn one_port_reaches_many_peers() {
    let from = own_ipv4();
    let mut sender = port(from);
    let addresses = [own_ipv4(), own_ipv4(), own_ipv4()];
    let mut peers = addresses.map(port);
    for number in 0..30 {
        let to = addresses[number as usize / 2 % 3];
        give(&mut sender, &frame_on(&path(from, to), number, 100));
    }
    sender.flush().unwrap();
    for (at, peer) in peers.iter_mut().enumerate() {
        let numbers: Vec<_> = take(peer, 10, 64).iter().map(|frame| psn(frame)).collect();
        let expected: Vec<_> = (0..30).filter(|number| *number as usize / 2 % 3 == at).collect();
        assert_eq!(numbers, expected);
    }
}

#[test]
fn a_tagged_frame_loses_its_tag() {
    let (addresses, mut a, mut b) = pair();
    let path = Path { vlan: Some(7), ..path(addresses[0], addresses[1]) };
    let sent = frame_on(&path, 1, 64);
    give(&mut a, &sent);
    a.flush().unwrap();
    let received = take(&mut b, 1, 64);
    check_icrc(&received[0]);
    assert_eq!(received[0].len(), sent.len() - 4);
}

#[test]
fn rebuilt_headers_have_a_right_checksum() {
    let (addresses, mut a, mut b) = pair();
    give(&mut a, &frame_on(&path(addresses[0], addresses[1]), 1, 64));
    a.flush().unwrap();
    let received = take(&mut b, 1, 64);
    let sum: u32 = received[0][14..34]
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn an_armed_port_wakes_for_a_datagram() {
    let (addresses, mut a, mut b) = pair();
    assert!(!b.arm().unwrap());
    let fds = b.descriptors();
    let polled = |wait_ms| {
        let mut polled: Vec<_> =
            fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: a live slice of the given length.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, wait_ms) }
    };
    assert_eq!(polled(0), 0);
    let path = path(addresses[0], addresses[1]);
    give(&mut a, &frame_on(&path, 1, 64));
    give(&mut a, &frame_on(&path, 2, 64));
    a.flush().unwrap();
    assert_eq!(polled(60_000), 1);
    b.disarm();
    // One of two frames was received: the other may be in the port or in the socket, and either
    // keeps it awake.
    assert_eq!(take(&mut b, 1, 1).len(), 1);
    assert!(b.arm().unwrap() || polled(0) == 1);
    b.disarm();
    take(&mut b, 1, 1);
    assert!(!b.arm().unwrap());
    assert_eq!(polled(0), 0);
}
