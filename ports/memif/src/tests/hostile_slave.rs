//! Tests of a master against slaves that violate the protocol, one rule at a time.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use longhaul_port::{LinkState, Port};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendFlags, send as send_bytes};

use super::raw_peer::*;
use super::*;
use crate::message::Message;
use crate::ring::{Descriptor, FLAG_NEXT};

type Script = Vec<(Message, Option<OwnedFd>)>;

fn master(path: &TestPath) -> MemifPort {
    MemifPort::master(path, 0, config(SIZE_LOG2, 1000)).unwrap()
}

/// Runs a handshake that `change` has made dishonest. Expects a DISCONNECT that contains `reason`,
/// and a port that accepts the next slave.
fn refused(reason: &str, change: impl FnOnce(&RawSlave, &mut Script)) {
    let path = TestPath::new();
    let mut port = master(&path);
    let slave = RawSlave::connect(&path, &mut port);
    let mut script = slave.script();
    change(&slave, &mut script);
    let (answer, _) = slave.say(&mut port, script);
    let Message::Disconnect { reason: told, .. } = answer else {
        panic!("{} instead of a DISCONNECT with {reason:?}", answer.name())
    };
    assert!(told.contains(reason), "{told:?} instead of {reason:?}");
    assert_eq!(port.link_state(), LinkState::Down);
    drop(slave);
    let mut honest = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    bring_up(&mut [&mut port, &mut honest]);
}

fn memory_file(bytes: u64, seals: SealFlags) -> Option<OwnedFd> {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    Some(fd)
}

mod handshake {
    use super::*;

    #[test]
    fn wrong_version() {
        refused("memif version 0x100 instead of 0x200", |_, script| {
            if let Message::Init(init) = &mut script[0].0 {
                init.version = 0x100;
            }
        });
    }

    #[test]
    fn wrong_mode() {
        refused("interface mode 1", |_, script| {
            if let Message::Init(init) = &mut script[0].0 {
                init.mode = 1;
            }
        });
    }

    #[test]
    fn no_init() {
        refused("ADD_REGION where INIT comes first", |_, script| {
            script.remove(0);
        });
    }

    #[test]
    fn init_twice() {
        refused("unexpected INIT", |_, script| script[1].0 = init(0));
    }

    #[test]
    fn region_without_descriptor() {
        refused("ADD_REGION without a descriptor", |_, script| script[1].1 = None);
    }

    #[test]
    fn region_out_of_order() {
        refused("region index 7 where 0 comes next", |_, script| {
            script[1].0 = Message::AddRegion { index: 7, bytes: 4096 };
        });
    }

    #[test]
    fn region_shorter_than_announced() {
        refused("region of 4096 bytes announced as 65536 bytes", |_, script| {
            script[1].1 = memory_file(4096, SealFlags::SHRINK);
        });
    }

    #[test]
    fn region_that_can_shrink() {
        refused("not sealed against shrinking", |_, script| {
            script[1].1 = memory_file(1 << 16, SealFlags::GROW);
        });
    }

    #[test]
    fn region_that_is_no_memory() {
        refused("the region is not a memory file", |_, script| {
            script[1].1 = Some(File::open("/dev/null").unwrap().into());
        });
    }

    #[test]
    fn region_of_no_bytes() {
        refused("announced as 0 bytes", |_, script| {
            script[1].0 = Message::AddRegion { index: 0, bytes: 0 };
        });
    }

    #[test]
    fn region_over_the_limit() {
        refused("exceeds the 1073741824 bytes that are left", |_, script| {
            script[1].0 = Message::AddRegion { index: 0, bytes: u64::MAX };
        });
    }

    #[test]
    fn too_many_regions() {
        refused("region index 16", |slave, script| {
            let connect = script.split_off(2);
            for index in 1..=16 {
                let fd = slave.region.as_fd().try_clone_to_owned().unwrap();
                script.push((Message::AddRegion { index, bytes: 4096 }, Some(fd)));
            }
            script.extend(connect);
        });
    }

    fn change_ring(reason: &str, change: impl FnOnce(&mut crate::message::AddRing)) {
        refused(reason, |_, script| {
            if let Message::AddRing(ring) = &mut script[2].0 {
                change(ring);
            }
        });
    }

    #[test]
    fn ring_too_large() {
        change_ring("ring of 2^15", |ring| ring.ring_size_log2 = 15);
        change_ring("ring of 2^255", |ring| ring.ring_size_log2 = 255);
    }

    #[test]
    fn ring_outside_its_region() {
        change_ring("leaves its region of 65536 bytes", |ring| ring.offset = (1 << 16) - 16);
        change_ring("leaves its region of 65536 bytes", |ring| ring.offset = u32::MAX - 15);
        change_ring("leaves its region of 65536 bytes", |ring| ring.ring_size_log2 = 14);
    }

    #[test]
    fn ring_at_an_odd_offset() {
        change_ring("not a multiple of 16", |ring| ring.offset = 3);
    }

    #[test]
    fn ring_in_an_unknown_region() {
        change_ring("a ring lies in region 7 of 1", |ring| ring.region = 7);
    }

    #[test]
    fn ring_of_a_second_queue() {
        change_ring("ring index 1", |ring| ring.index = 1);
    }

    #[test]
    fn ring_with_private_headers() {
        change_ring("private headers", |ring| ring.private_header_bytes = 8);
    }

    #[test]
    fn ring_twice() {
        change_ring("announced twice", |ring| ring.slave_to_master = false);
    }

    #[test]
    fn ring_without_interrupt() {
        refused("without an interrupt descriptor", |_, script| script[2].1 = None);
    }

    #[test]
    fn ring_with_a_false_interrupt() {
        refused("instead of an eventfd", |_, script| {
            script[2].1 = Some(File::open("/dev/null").unwrap().into());
        });
    }

    #[test]
    fn connect_too_early() {
        refused("CONNECT before both rings", |_, script| {
            script.remove(3);
        });
    }

    #[test]
    fn wrong_cookie() {
        refused("ring cookie is 0x12345678", |slave, _| {
            slave.poke(M2S_RING, &0x1234_5678u32.to_ne_bytes());
        });
    }

    #[test]
    fn junk_on_the_control_channel() {
        for (bytes, reason) in [
            ([0xff; 128].as_slice(), "unknown message type 65535"),
            (&[0; 128], "unknown message type 0"),
            (&[1; 17], "not 128 bytes long"),
            (&[1; 129], "not 128 bytes long"),
        ] {
            for after_init in [false, true] {
                let path = TestPath::new();
                let mut port = master(&path);
                let slave = RawSlave::connect(&path, &mut port);
                if after_init {
                    slave.say(&mut port, vec![(init(0), None)]);
                }
                send_bytes(&slave.control, bytes, SendFlags::empty()).unwrap();
                let (answer, ..) = next_message(&mut port, &slave.control);
                let Message::Disconnect { reason: told, .. } = answer else {
                    panic!("{} instead of a DISCONNECT", answer.name())
                };
                assert!(told.contains(reason), "{told:?} instead of {reason:?}");
            }
        }
    }

    #[test]
    fn descriptors_that_nobody_asked_for_are_closed() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connect(&path, &mut port);
        let (read_end, write_end) = std::io::pipe().unwrap();
        let fd = write_end.as_fd().try_clone_to_owned().unwrap();
        let (answer, _) = slave.say(&mut port, vec![(init(0), Some(fd))]);
        assert_eq!(answer, Message::Ack);
        assert!(is_open(&read_end));
        drop(write_end);
        let end_of_file = std::io::Read::read(&mut &read_end, &mut [0u8; 1]).unwrap();
        assert_eq!(end_of_file, 0, "the port kept the other end open");
    }
}

/// A connected slave runs `break_rule`; then `port_call` must end the connection for `reason`.
fn caught(
    reason: &str,
    break_rule: impl FnOnce(&RawSlave),
    port_call: impl FnOnce(&mut MemifPort) -> Result<(), longhaul_port::PortError>,
) {
    let path = TestPath::new();
    let mut port = master(&path);
    let slave = RawSlave::connected(&path, &mut port);
    break_rule(&slave);
    let told = detail(port_call(&mut port).unwrap_err());
    assert!(told.contains(reason), "{told:?} instead of {reason:?}");
    assert_eq!(port.link_state(), LinkState::Down);
    assert_eq!(port.counters().peer_violations, 1);
    let (answer, ..) = next_message(&mut port, &slave.control);
    let Message::Disconnect { reason: sent, .. } = answer else {
        panic!("{} instead of a DISCONNECT", answer.name())
    };
    assert!(told.starts_with(&sent), "{sent:?} instead of {told:?}");
    drop(slave);
    let mut honest = MemifPort::slave(&path, 0, config(3, 300)).unwrap();
    bring_up(&mut [&mut port, &mut honest]);
    send(&mut honest, 60, 1);
    assert_eq!(port.receive(8, &mut |frame| check_pattern(frame, 1)).unwrap(), 1);
}

fn receive(port: &mut MemifPort) -> Result<(), longhaul_port::PortError> {
    port.receive(8, &mut |_| panic!("a frame came of it")).map(|_| ())
}

fn transmit(port: &mut MemifPort) -> Result<(), longhaul_port::PortError> {
    port.transmit(60, &mut |_| panic!("a frame came of it")).map(|_| ())
}

mod shared_memory {
    use super::*;

    #[test]
    fn a_frame_that_was_handed_out_changes_no_more() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.fill(0, 0, 60, 1);
        slave.fill(1, FLAG_NEXT, 60, 1);
        slave.fill(2, 0, 60, 1);
        slave.s2m.publish_head(3);
        let handed = port.receive(8, &mut |frame| {
            let before = frame.to_vec();
            slave.poke(S2M_BUFFERS, &[2; 3 * BUFFER_BYTES as usize]);
            assert!(frame == before, "the peer wrote into a frame under the reader's hands");
            for index in 0..3 {
                slave.fill(index, if index == 1 { FLAG_NEXT } else { 0 }, 60, 1);
            }
        });
        assert_eq!(handed.unwrap(), 2);
    }

    #[test]
    fn head_beyond_the_ring() {
        caught("receive ring head 9 is impossible", |slave| slave.s2m.publish_head(9), receive);
        caught("head 65535 is impossible", |slave| slave.s2m.publish_head(u16::MAX), receive);
        caught(
            "head 9 is impossible",
            |slave| slave.s2m.publish_head(9),
            |port| port.arm().map(|_| ()),
        );
    }

    #[test]
    fn head_that_goes_back() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        for index in 0..3 {
            slave.fill(index, 0, 60, 1);
        }
        slave.s2m.publish_head(3);
        assert_eq!(port.receive(2, &mut |_| ()).unwrap(), 2);
        slave.s2m.publish_head(1);
        assert_eq!(port.receive(2, &mut |_| ()).unwrap(), 1, "the third had been seen");
        let told = detail(port.receive(2, &mut |_| ()).unwrap_err());
        assert!(told.contains("head 1 is impossible: ring of 8, read up to 3"), "{told}");
    }

    fn descriptor_caught(reason: &str, region: u16, offset: u32, length: u32) {
        let descriptor = Descriptor { flags: 0, region, length, offset };
        let publish = |slave: &RawSlave| {
            slave.s2m.write(0, descriptor);
            slave.s2m.publish_head(1);
        };
        caught(reason, publish, receive);
        let chained = |slave: &RawSlave| {
            slave.fill(0, FLAG_NEXT, 60, 1);
            slave.s2m.write(1, descriptor);
            slave.s2m.publish_head(2);
        };
        caught(reason, chained, receive);
        let post = |slave: &RawSlave| {
            slave.m2s.write(0, descriptor);
            slave.m2s.publish_head(8);
        };
        caught(reason, post, transmit);
    }

    #[test]
    fn descriptor_in_an_unknown_region() {
        descriptor_caught("descriptor names region 7 of 1", 7, S2M_BUFFERS, 60);
        descriptor_caught("descriptor names region 65535 of 1", u16::MAX, 0, 60);
    }

    #[test]
    fn descriptor_outside_its_region() {
        descriptor_caught("leaves its region", 0, REGION_BYTES, 60);
        descriptor_caught("leaves its region", 0, REGION_BYTES - 59, 60);
        descriptor_caught("leaves its region", 0, u32::MAX, 60);
        descriptor_caught("leaves its region", 0, S2M_BUFFERS, u32::MAX);
        descriptor_caught("leaves its region", 0, u32::MAX, u32::MAX);
    }

    #[test]
    fn chain_without_end() {
        caught(
            "a chain fills the ring of 8",
            |slave| {
                for index in 0..8 {
                    slave.fill(index, FLAG_NEXT, 60, 1);
                }
                slave.s2m.publish_head(8);
            },
            receive,
        );
    }

    #[test]
    fn posted_head_beyond_the_ring() {
        caught("transmit ring head 9", |slave| slave.m2s.publish_head(9), transmit);
        caught("head 40000", |slave| slave.m2s.publish_head(40_000), transmit);
    }

    #[test]
    fn posted_head_that_goes_back() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.m2s.publish_head(3);
        for number in 0..3 {
            send(&mut port, 60, number);
        }
        slave.m2s.publish_head(2);
        let told = detail(transmit(&mut port).unwrap_err());
        assert!(told.contains("transmit ring head 2 is impossible"), "{told}");
    }

    #[test]
    fn posted_buffer_of_no_bytes() {
        let post = |slave: &RawSlave| {
            slave.m2s.write_length(0, 0, 0, 0);
            slave.m2s.publish_head(8);
        };
        caught("empty buffer", post, transmit);
    }

    #[test]
    fn the_room_of_a_broken_ring_leads_to_the_error() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.m2s.publish_head(9);
        assert_eq!(port.transmit_room(), 1);
        detail(transmit(&mut port).unwrap_err());
    }

    #[test]
    fn undefined_flags_do_no_harm() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.poke(4, &[0xfe, 0xff]);
        slave.poke(M2S_RING + 4, &[0xfe, 0xff]);
        slave.fill(0, 0xfffe, 60, 5);
        slave.s2m.publish_head(1);
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [5; 60])).unwrap(), 1);
        slave.m2s.publish_head(8);
        send(&mut port, 60, 1);
        assert!(slave.bell.clear().unwrap(), "interrupts were not masked");
    }

    #[test]
    fn good_frames_before_a_bad_descriptor_are_handed_on() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.fill(0, 0, 60, 5);
        slave.s2m.write(1, Descriptor { flags: 0, region: 9, length: 60, offset: 0 });
        slave.s2m.publish_head(2);
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [5; 60])).unwrap(), 1);
        assert!(detail(port.receive(8, &mut |_| ()).unwrap_err()).contains("region 9"));
    }

    #[test]
    fn runts_are_dropped() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        for (index, length) in [0, 13, 14].into_iter().enumerate() {
            slave.fill(index as u16, 0, length, 5);
        }
        slave.s2m.publish_head(3);
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [5; 14])).unwrap(), 1);
        let drops = port.counters().rx_drops;
        assert_eq!(drops.get(longhaul_port::DropReason::FrameTooShort), 2);
    }
}

mod chains {
    use super::*;

    #[test]
    fn a_chained_frame_arrives_in_one_piece() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        let mut index = 0u16;
        for _ in 0..20 {
            for (flags, length, byte) in [(FLAG_NEXT, 200, 1), (FLAG_NEXT, 0, 9), (0, 50, 2)] {
                slave.fill(index, flags, length, byte);
                index += 1;
            }
            slave.s2m.publish_head(index);
            let mut expected = vec![1; 200];
            expected.extend([2; 50]);
            assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, expected)).unwrap(), 1);
            assert_eq!(slave.s2m.tail(), index);
        }
    }

    /// DPDK's net_memif only writes lengths where it once wrote a chain.
    #[test]
    fn a_chain_leaves_no_flags_behind_for_the_frames_that_come_after_it() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        for (index, flags) in [(0, 0), (1, FLAG_NEXT), (2, FLAG_NEXT), (3, 0)] {
            slave.fill(index, flags, 100, 1);
        }
        slave.s2m.publish_head(4);
        assert_eq!(port.receive(8, &mut |_| {}).unwrap(), 2);
        for index in 0..4 {
            let descriptor = slave.s2m.descriptor(index);
            assert_eq!((descriptor.flags, descriptor.length), (0, 100), "descriptor {index}");
        }
    }

    #[test]
    fn a_chain_published_in_pieces_waits_for_its_end() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.fill(0, FLAG_NEXT, 100, 1);
        slave.s2m.publish_head(1);
        assert_eq!(port.receive(8, &mut |_| panic!("not complete")).unwrap(), 0);
        slave.fill(1, 0, 100, 1);
        slave.s2m.publish_head(2);
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [1; 200])).unwrap(), 1);
    }

    #[test]
    fn a_chain_over_the_maximum_is_dropped_whole() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        for index in 0..5 {
            slave.fill(index, if index < 4 { FLAG_NEXT } else { 0 }, 201, 1);
        }
        slave.fill(5, 0, 60, 7);
        slave.s2m.publish_head(6);
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [7; 60])).unwrap(), 1);
        let drops = port.counters().rx_drops;
        assert_eq!(drops.get(longhaul_port::DropReason::FrameTooLong), 1);
    }

    #[test]
    fn an_unfinished_chain_of_a_departed_peer_is_forgotten() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.fill(0, FLAG_NEXT, 100, 1);
        slave.s2m.publish_head(1);
        drop(slave);
        until("the port is down", || (port.service().unwrap() == LinkState::Down).then_some(()));
        assert_eq!(port.receive(8, &mut |_| panic!("not complete")).unwrap(), 0);
        assert!(!port.arm().unwrap());
    }

    #[test]
    fn a_long_frame_fills_several_posted_buffers() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.m2s.publish_head(8);
        assert_eq!(port.transmit_room(), 2);
        send(&mut port, 600, 3);
        assert_eq!(slave.m2s.tail(), 3);
        let mut frame = Vec::new();
        for (index, (flags, length)) in
            [(FLAG_NEXT, 256), (FLAG_NEXT, 256), (0, 88)].into_iter().enumerate()
        {
            let offset = M2S_BUFFERS + index as u32 * BUFFER_BYTES;
            let expected = Descriptor { flags, region: 0, length, offset };
            assert_eq!(slave.m2s.descriptor(index as u16), expected);
            frame.extend(slave.peek(offset, length as usize));
        }
        check_pattern(&frame, 3);
    }
}

mod control_channel {
    use super::*;

    #[test]
    fn a_handshake_message_after_the_handshake() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        slave.control.send(&init(0), None).unwrap();
        let (answer, _, error) = next_message(&mut port, &slave.control);
        assert_eq!(answer.name(), "DISCONNECT");
        assert_eq!(detail(error.unwrap()), "unexpected INIT while connected");
        assert_eq!(port.link_state(), LinkState::Down);
    }

    #[test]
    fn a_mapping_lives_as_long_as_its_queues() {
        let path = TestPath::new();
        let mut port = master(&path);
        let slave = RawSlave::connected(&path, &mut port);
        let region = Arc::downgrade(&slave.region);
        slave.fill(0, 0, 60, 8);
        slave.s2m.publish_head(1);
        drop(slave);
        assert!(region.upgrade().is_none());
        assert_eq!(port.receive(8, &mut |frame| assert_eq!(frame, [8; 60])).unwrap(), 1);
    }
}

mod scribbling {
    use super::*;

    struct Xorshift(u64);

    impl Xorshift {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    /// One random change of the shared memory, mostly of critical fields.
    fn scribble(slave: &RawSlave, random: &mut Xorshift) {
        let ring = if random.next().is_multiple_of(2) { 0 } else { M2S_RING };
        let value = random.next();
        match random.next() % 8 {
            0..3 => {
                let (ring, index) = if ring == 0 {
                    (&slave.s2m, slave.s2m.tail())
                } else {
                    (&slave.m2s, slave.m2s.tail())
                };
                ring.publish_head(index.wrapping_add((value % 10) as u16));
            }
            3 => slave.poke(ring + 4, &value.to_ne_bytes()[..4]),
            4 => slave.poke(ring + 64, &value.to_ne_bytes()[..2]),
            5 => slave.poke(ring + 128 + (value % 128) as u32, &random.next().to_ne_bytes()[..1]),
            _ => {
                let descriptor = Descriptor {
                    flags: (value & 1) as u16,
                    region: u16::from(value.is_multiple_of(31)),
                    length: (value >> 8) as u32 % 400,
                    offset: (value >> 32) as u32 % (REGION_BYTES + 500),
                };
                let ring = if ring == 0 { &slave.s2m } else { &slave.m2s };
                ring.write((value >> 3) as u16, descriptor);
            }
        }
    }

    #[test]
    fn random_shared_memory_leads_to_frames_or_violations_only() {
        let path = TestPath::new();
        let mut port = master(&path);
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for _ in 0..200 {
            let slave = RawSlave::connected(&path, &mut port);
            for _ in 0..500 {
                scribble(&slave, &mut random);
                let received =
                    port.receive(8, &mut |frame| assert!((14..=1000).contains(&frame.len())));
                port.transmit_room();
                let len = 14 + random.next() as usize % 987;
                let sent = port.transmit(len, &mut |frame| {
                    assert_eq!(frame.len(), len);
                    frame.fill(0xaa);
                });
                port.flush().unwrap();
                let armed = port.arm();
                port.disarm();
                if received.is_err() || sent.is_err() || armed.is_err() {
                    break;
                }
            }
            drop(slave);
            until("the port is down", || {
                (port.service().unwrap() == LinkState::Down).then_some(())
            });
        }
        let counters = port.counters();
        assert!(counters.peer_violations > 100, "{counters:?}");
        assert!(counters.rx_frames > 100 && counters.tx_frames > 100, "{counters:?}");
    }
}
