//! Tests of which frames the program redirects to the port.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::program::{PASS, REDIRECT, program};
use crate::{Wanted, bpf};

/// True for RoCEv2 and boxes' datagrams, as [`Wanted::Roce`] defines them.
fn is_wanted(frame: &[u8]) -> bool {
    let word = |at: usize| frame.get(at..at + 2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let mut at = 12;
    for _ in 0..2 {
        if matches!(word(at), Some(0x8100 | 0x88a8)) {
            at += 4;
        }
    }
    let ip = at + 2;
    let udp = match word(at) {
        Some(0x0800) if frame.len() >= ip + 20 => {
            let header = usize::from(frame[ip] & 0xf) * 4;
            let is_whole = word(ip + 6).is_some_and(|word| word & 0x3fff == 0);
            (frame[ip + 9] == 17 && is_whole && header >= 20).then_some(ip + header)
        }
        Some(0x86dd) if frame.len() >= ip + 40 => (frame[ip + 6] == 17).then_some(ip + 40),
        _ => None,
    };
    udp.is_some_and(|udp| frame.len() >= udp + 8 && matches!(word(udp + 2), Some(4791 | 4797)))
}

/// A UDP datagram to `port`: over IPv4 or IPv6, with VLAN tags, and with words of IPv4 options.
fn datagram(port: u16, is_ipv6: bool, tags: usize, options: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        frame.extend(if tag + 1 < tags { [0x88, 0xa8, 0, 5] } else { [0x81, 0, 0, 5] });
    }
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 17, 64]);
        frame.extend([0xfd; 32]);
    } else {
        frame.extend([0x08, 0x00, 0x45 + options as u8, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(vec![1; options * 4]);
    }
    frame.extend([0xc0, 0x00]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 40, 0, 0]);
    frame.extend([7; 32]);
    frame
}

/// The loaded program, with a socket in its map.
struct Loaded {
    program: OwnedFd,
    _map: OwnedFd,
    _port: XdpPort,
}

impl Loaded {
    /// In the namespace of the calling thread, which contains `ea`.
    fn new(wanted: Wanted) -> Self {
        veth(1500, 1);
        let port = open("ea", Mode::Native);
        let map = bpf::map_of_sockets(1).unwrap();
        bpf::put_socket(map.as_fd(), 0, port.socket()).unwrap();
        let program = bpf::load(&program(wanted, map.as_raw_fd()), false).unwrap();
        Self { program, _map: map, _port: port }
    }

    fn takes(&self, frame: &[u8]) -> bool {
        match bpf::tests::run(self.program.as_fd(), frame).unwrap() as i32 {
            REDIRECT => true,
            PASS => false,
            verdict => panic!("verdict {verdict} on {frame:x?}"),
        }
    }
}

#[test]
fn a_wire_takes_everything() {
    in_namespace(|| {
        let loaded = Loaded::new(Wanted::Everything);
        for frame in
            [frame(14, 1), frame(60, 2), datagram(4791, false, 0, 0), datagram(53, true, 1, 0)]
        {
            assert!(loaded.takes(&frame), "{} bytes", frame.len());
        }
    });
}

#[test]
fn of_roce_and_boxes_nothing_is_missed_and_nothing_else_taken() {
    in_namespace(|| {
        let loaded = Loaded::new(Wanted::Roce);
        for is_ipv6 in [false, true] {
            for tags in 0..4 {
                for (port, is_ours) in [(4791, true), (4797, true), (4790, false), (53, false)] {
                    let frame = datagram(port, is_ipv6, tags, 0);
                    assert_eq!(
                        loaded.takes(&frame),
                        is_ours && tags <= 2,
                        "{port} {is_ipv6} {tags}"
                    );
                }
            }
        }
        assert!(loaded.takes(&datagram(4791, false, 1, 10)));
        let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6], &[0; 46]].concat();
        assert!(!loaded.takes(&arp));
        let mut fragment = datagram(4791, false, 0, 0);
        fragment[20] = 0x20;
        assert!(!loaded.takes(&fragment));
    });
}

#[test]
fn any_frame_is_judged_as_the_words_say() {
    in_namespace(|| {
        let loaded = Loaded::new(Wanted::Roce);
        let frames = (
            prop_oneof![Just(4791_u16), Just(4797), any::<u16>()],
            any::<bool>(),
            0..3_usize,
            0..11_usize,
            proptest::collection::vec((any::<Index>(), any::<u8>()), 0..3),
            any::<Index>(),
        );
        let mut config = ProptestConfig::with_cases(4000);
        config.failure_persistence = None;
        proptest::test_runner::TestRunner::new(config)
            .run(&frames, |(port, is_ipv6, tags, options, changes, cut)| {
                let mut frame = datagram(port, is_ipv6, tags, options);
                for (at, byte) in changes {
                    let at = at.index(frame.len());
                    frame[at] = byte;
                }
                // The kernel runs a program on no frame shorter than an Ethernet header.
                frame.truncate(14 + cut.index(frame.len() - 13));
                prop_assert_eq!(loaded.takes(&frame), is_wanted(&frame), "{:x?}", frame);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn what_is_not_wanted_goes_the_kernels_way() {
    for mode in [Mode::Native, Mode::Generic] {
        in_namespace(move || {
            veth(1500, 1);
            let config = XdpConfig { mode, wanted: Wanted::Roce, ..XdpConfig::new("ea") };
            let mut port = XdpPort::open(&config).unwrap();
            await_link(&mut port, LinkState::Up);
            let (mut kernel, mut peer) = (open_packet("ea"), open_packet("eb"));
            let (ours, other) = (datagram(4791, false, 0, 0), frame(100, 1));
            for _ in 0..10 {
                send(&mut peer, &ours);
                send(&mut peer, &other);
            }
            assert_eq!(receive_all(&mut port, 10), vec![ours; 10]);
            assert_eq!(receive_all(&mut kernel, 10), vec![other; 10]);
            assert_eq!(receive(&mut port).len() + receive(&mut kernel).len(), 0);
        });
    }
}
