//! Tests with datagrams that no RoCEv2 stack sends.

use std::net::UdpSocket;

use super::*;
use longhaul_units::{Rng, SplitMix64};

fn stranger_and_port() -> (UdpSocket, IpAddr, UdpPort) {
    let [from, to] = [own_ipv4(), own_ipv4()];
    (UdpSocket::bind((from, 30_000)).unwrap(), to, port(to))
}

#[test]
fn too_short_and_too_long_datagrams_are_counted() {
    let (stranger, to, mut port) = stranger_and_port();
    let frame_bytes_max = port.capabilities().frame_bytes_max;
    let longest = frame_bytes_max - 42;
    for len in [0, 1, 15, 16, longest, longest + 1, 65_507] {
        stranger.send_to(&vec![0xa5; len], (to, 4791)).unwrap();
    }
    let lengths: Vec<_> = take(&mut port, 2, 1).iter().map(Vec::len).collect();
    assert_eq!(lengths, [58, frame_bytes_max]);
    until("the long ones were looked at", || {
        assert_eq!(port.receive(8, &mut |_| panic!("a frame")).unwrap(), 0);
        (port.udp_counters().rx_long == 2).then_some(())
    });
    assert_eq!(port.udp_counters().rx_short, 3);
    assert_eq!(port.counters().rx_frames, 2);
}

#[test]
fn damaged_packets_arrive_damaged() {
    let (stranger, to, mut port) = stranger_and_port();
    let from = stranger.local_addr().unwrap();
    let path = Path { udp_source_port: from.port(), ..path(from.ip(), to) };
    for at in 0..64 {
        let mut sent = frame_on(&path, 1, 40);
        let end = sent.len();
        sent[end - 1 - at % 40] ^= 1 << (at % 8);
        stranger.send_to(&sent[42..], (to, 4791)).unwrap();
        let received = take(&mut port, 1, 1);
        assert_ne!(
            received[0].last_chunk(),
            Some(&expected_icrc(&received[0])),
            "damage in byte {at}"
        );
    }
    assert_eq!(port.udp_counters().rx_unidentified, 64);
}

#[test]
fn the_source_port_that_came_is_shown() {
    let (stranger, to, mut port) = stranger_and_port();
    let path = Path { udp_source_port: 30_000, ..path(stranger.local_addr().unwrap().ip(), to) };
    stranger.send_to(&frame_on(&path, 1, 40)[42..], (to, 4791)).unwrap();
    let received = take(&mut port, 1, 1);
    check_icrc(&received[0]);
    assert_eq!(Packet::parse(&received[0]).unwrap().unwrap().udp_source_port(), 30_000);
}

#[test]
fn random_datagrams_and_runs_are_handed_out_or_counted() {
    let (stranger, to, mut port) = stranger_and_port();
    let mut rng = SplitMix64::new(0x10ad);
    for _ in 0..300 {
        let len = (rng.next_u64() % 3000) as usize;
        let segment = (rng.next_u64() % 1400) as u16 + (len / 60) as u16 + 1;
        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        send_run(&stranger, &bytes, (to, 4791).into(), segment);
        let expected = if len == 0 { 1 } else { len.div_ceil(usize::from(segment)) as u64 };
        let seen = |port: &UdpPort| {
            let udp = port.udp_counters();
            port.counters().rx_frames + udp.rx_short + udp.rx_long
        };
        let before = seen(&port);
        until("the run was looked at", || {
            let _ = port.receive(3, &mut |frame| assert!(frame.len() >= 58)).unwrap();
            (seen(&port) >= before + expected || seen(&port) > before && !port.sends_runs())
                .then_some(())
        });
    }
}

/// A run of datagrams of `segment` bytes each.
fn send_run(socket: &UdpSocket, bytes: &[u8], to: std::net::SocketAddr, segment: u16) {
    let mut batch = crate::batch::SendBatch::new(1);
    let control = batch.push_message(crate::control::SocketAddress::new(to.ip(), to.port(), 0));
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    batch.push_part(bytes);
    // SAFETY: the part outlives the call.
    let sent = unsafe { batch.send(std::os::fd::AsFd::as_fd(socket)) };
    assert_eq!(sent.unwrap(), 1);
}
