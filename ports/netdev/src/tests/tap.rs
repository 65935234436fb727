//! Tests of TAP ports against the kernel's side of the device.

use longhaul_port::{DropReason, LinkState, Port};

use super::*;
use crate::{NetdevError, PacketConfig, PacketPort, TapConfig, TapPort, interface};

/// A TAP device, and the host's side of it.
fn pair() -> (TapPort, PacketPort) {
    let config = TapConfig { mtu: Some(9000), ..TapConfig::new("tap9") };
    let mut tap = TapPort::open(&config).unwrap();
    let mut host = PacketPort::open(&PacketConfig::new("tap9")).unwrap();
    await_link(&mut tap, LinkState::Up);
    await_link(&mut host, LinkState::Up);
    (tap, host)
}

mod adopted {
    use super::*;
    use crate::tests::Host;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    const STREAM_BYTES: usize = 8 << 20;

    fn config() -> TapConfig {
        TapConfig { mtu: Some(9000), offloads: true, up: false, ..TapConfig::new("lh0") }
    }

    /// A host with an interface that leads to a port.
    fn host(number: u8) -> (Host, TapPort) {
        let host = Host::new();
        let device: OwnedFd = host.run(move || {
            let device = TapPort::create(&config()).unwrap();
            let address = Ipv4Addr::new(10, 77, 0, number);
            interface::bring_up("lh0", Some([2, 0, 0, 0, 0, number]), Some((address, 24))).unwrap();
            device
        });
        (host, TapPort::adopt(&config(), device).unwrap())
    }

    /// Carries frames between two ports until `done`; returns the longest one.
    fn carry(a: &mut TapPort, b: &mut TapPort, done: &AtomicBool) -> usize {
        let mut longest = 0;
        while !done.load(Ordering::Acquire) {
            for _ in 0..2 {
                a.receive(7, &mut |frame| {
                    longest = longest.max(frame.len());
                    b.transmit(frame.len(), &mut |to| to.copy_from_slice(frame)).unwrap();
                })
                .unwrap();
                std::mem::swap(a, b);
            }
        }
        longest
    }

    /// Bytes that no shift by a segment leaves the same.
    fn stream() -> Vec<u8> {
        (0..STREAM_BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    #[test]
    fn a_stream_of_unsplit_segments_arrives_whole_in_frames_of_the_mtu() {
        in_namespace(|| {
            let ((a, mut port_a), (b, mut port_b)) = (host(1), host(2));
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let carrier = scope.spawn(|| carry(&mut port_a, &mut port_b, &done));
                let listener = b.run(|| TcpListener::bind("10.77.0.2:5001").unwrap());
                let server = scope.spawn(move || {
                    let mut bytes = Vec::new();
                    listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
                    bytes
                });
                a.run(|| {
                    let mut socket = TcpStream::connect("10.77.0.2:5001").unwrap();
                    socket.write_all(&stream()).unwrap();
                });
                assert!(server.join().unwrap() == stream(), "damaged");
                done.store(true, Ordering::Release);
                assert_eq!(carrier.join().unwrap(), 9014);
            });
            let split = port_a.netdev_counters().rx_split + port_b.netdev_counters().rx_split;
            assert!(split > 0, "the kernel left no segmentation to the port");
        });
    }

    #[test]
    fn stays_down_once_the_device_is_deleted() {
        in_namespace(|| {
            let (host, mut port) = host(1);
            assert_eq!(port.service().unwrap(), LinkState::Up);
            host.sh("ip link del lh0");
            receive(&mut port);
            send(&mut port, &frame(60, 1));
            assert_eq!(port.service().unwrap(), LinkState::Down);
            assert!(port.last_disconnect().unwrap().contains("was deleted"));
            assert!(port.descriptors().iter().next().is_none(), "a loop would not sleep");
        });
    }
}

mod carries {
    use super::*;

    #[test]
    fn frames_of_every_length_both_ways_once_and_in_order() {
        in_namespace(|| {
            let (mut tap, mut host) = pair();
            let frames: Vec<_> = [14, 60, 64, 1514, 9014].map(|len| frame(len, 9)).into();
            for frame in &frames {
                send(&mut tap, frame);
                send(&mut host, frame);
            }
            assert_eq!(receive_all(&mut tap, frames.len()), frames);
            assert_eq!(receive_all(&mut host, frames.len()), frames);
            assert_eq!(receive(&mut tap).len() + receive(&mut host).len(), 0);
        });
    }

    /// A bridge receives tagged frames from a veth device, with the tag in metadata, and forwards
    /// them to the TAP device.
    #[test]
    fn vlan_tags() {
        in_namespace(|| {
            let (mut tap, _host) = pair();
            sh("ip link add ea mtu 9000 type veth peer name eb mtu 9000; ip link add br0 type bridge
                ip link set ea master br0; ip link set tap9 master br0
                ip link set ea up; ip link set eb up; ip link set br0 up");
            let mut far = PacketPort::open(&PacketConfig::new("eb")).unwrap();
            await_link(&mut far, LinkState::Up);
            for tag in [[0x81, 0, 0, 5], [0x81, 0, 0xb0, 5], [0x88, 0xa8, 0, 7]] {
                let frame = tagged(&frame(9010, 1), tag);
                send(&mut far, &frame);
                assert_eq!(receive_all(&mut tap, 1), std::slice::from_ref(&frame));
                send(&mut tap, &frame);
                assert_eq!(receive_all(&mut far, 1), [frame]);
            }
        });
    }

    #[test]
    fn nothing_that_is_longer_than_asked_for() {
        in_namespace(|| {
            let config = TapConfig { frame_bytes_max: 1000, ..TapConfig::new("tap9") };
            let mut tap = TapPort::open(&config).unwrap();
            let mut host = PacketPort::open(&PacketConfig::new("tap9")).unwrap();
            await_link(&mut host, LinkState::Up);
            let frames = [frame(1001, 1), frame(1000, 2), frame(1514, 3)];
            frames.iter().for_each(|frame| send(&mut host, frame));
            assert_eq!(receive_all(&mut tap, 1), [frames[1].clone()]);
            until("drops", || {
                receive(&mut tap);
                tap.counters().rx_drops.get(DropReason::FrameTooLong) == 2
            });
        });
    }
}

mod sleeping {
    use super::*;

    #[test]
    fn ends_with_a_frame_and_not_without() {
        in_namespace(|| {
            let (mut tap, mut host) = pair();
            settle(&mut tap);
            assert!(!tap.arm().unwrap());
            send(&mut host, &frame(60, 1));
            assert!(sleep_on(&mut [&mut tap], PATIENCE));
            tap.disarm();
            assert_eq!(receive_all(&mut tap, 1).len(), 1);
        });
    }
}

mod sleeping_ends {
    use super::*;

    #[test]
    fn when_the_device_is_set_down_deleted_and_made_anew() {
        in_namespace(|| {
            let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            await_link(&mut tap, LinkState::Up);
            for (lines, state) in [
                ("ip link set tap9 down", LinkState::Down),
                ("ip link set tap9 up", LinkState::Up),
                ("ip link del tap9", LinkState::Down),
                ("ip tuntap add dev tap9 mode tap", LinkState::Up),
            ] {
                settle(&mut tap);
                assert!(!tap.arm().unwrap());
                sh(lines);
                assert!(sleep_on(&mut [&mut tap], PATIENCE), "{lines}");
                tap.disarm();
                await_link(&mut tap, state);
            }
        });
    }
}

mod opening {
    use super::*;

    #[test]
    fn makes_the_device_with_its_mtu_and_dropping_takes_it_away() {
        in_namespace(|| {
            let (tap, _host) = pair();
            assert_eq!(interface::mtu("tap9").unwrap(), 9000);
            assert_ne!(interface::mac("tap9").unwrap(), [0; 6]);
            drop(tap);
            assert!(interface::index("tap9").is_err());
        });
    }

    #[test]
    fn attaches_to_what_exists_and_leaves_it() {
        in_namespace(|| {
            for kind in ["", "multi_queue", "vnet_hdr"] {
                sh(&format!("ip tuntap add dev tap9 mode tap {kind}"));
                let index = interface::index("tap9").unwrap();
                let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
                let mut host = PacketPort::open(&PacketConfig::new("tap9")).unwrap();
                await_link(&mut host, LinkState::Up);
                send(&mut host, &frame(60, 1));
                assert_eq!(receive_all(&mut tap, 1), [frame(60, 1)]);
                drop(tap);
                assert_eq!(interface::index("tap9").unwrap(), index);
                await_link(&mut host, LinkState::Down);
                sh(&format!("ip tuntap del dev tap9 mode tap {kind}"));
            }
        });
    }

    /// Offloads that a virtual machine enables outlast it on a persistent device.
    #[test]
    fn takes_back_what_another_program_offered() {
        in_namespace(|| {
            sh("ip tuntap add dev tap9 mode tap vnet_hdr");
            let splits = |state: &str| {
                sh(&format!("ethtool -k tap9 | grep -q 'tcp-segmentation-offload: {state}'"));
            };
            let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
            let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
            crate::request::attach_tap(&tun, "tap9", flags as u16).unwrap();
            crate::request::set_offloads(
                &tun,
                libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6,
            )
            .unwrap();
            splits("on");
            drop(tun);
            let _tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            splits("off");
        });
    }

    #[test]
    fn says_what_is_wrong() {
        in_namespace(|| {
            let open = |config: &TapConfig| TapPort::open(config).err().unwrap();
            let _first = TapPort::open(&TapConfig::new("tap9")).unwrap();
            assert!(matches!(open(&TapConfig::new("tap9")), NetdevError::TapBusy { .. }));
            sh("ip link add ea type veth peer name eb; ip tuntap add dev tun9 mode tun");
            assert!(matches!(open(&TapConfig::new("ea")), NetdevError::NotATap { .. }));
            assert!(matches!(open(&TapConfig::new("tun9")), NetdevError::NotATap { .. }));
            assert!(matches!(
                open(&TapConfig::new("sixteen-bytes-xx")),
                NetdevError::BadName { .. }
            ));
            for mtu in [67, 65522, u32::MAX] {
                let config = TapConfig { mtu: Some(mtu), ..TapConfig::new("tap8") };
                let error = open(&config);
                assert!(matches!(error, NetdevError::MtuOutOfRange { .. }), "{mtu}: {error}");
            }
            assert!(interface::index("tap8").is_err(), "left behind");
        });
    }

    #[test]
    fn leaves_it_down_when_asked_to() {
        in_namespace(|| {
            let mut tap =
                TapPort::open(&TapConfig { up: false, ..TapConfig::new("tap9") }).unwrap();
            assert_eq!(tap.service().unwrap(), LinkState::Down);
            assert!(tap.last_disconnect().unwrap().contains("ip link set tap9 up"));
            sh("ip link set tap9 up");
            await_link(&mut tap, LinkState::Up);
        });
    }
}
