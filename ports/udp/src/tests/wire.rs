//! Tests of the packets on the wire, through a TAP device in a network namespace of the test.
//! Without root the tests say so and pass.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::*;

/// The machine's address in the namespace, and one that the test plays.
const OWN: [u8; 4] = [10, 77, 0, 1];
const PEER: [u8; 4] = [10, 77, 0, 2];

/// The far end of the only cable in the namespace.
struct Wire(File);

/// Runs `test` on a thread in a new network namespace, if permitted.
fn in_namespace(test: impl FnOnce(Wire) + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(longhaul_namespace::test_name());
        let wired = thread.spawn_scoped(scope, || {
            // SAFETY: no memory is involved; only this thread changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = io::Error::last_os_error();
                return longhaul_namespace::skip(format!("no network namespace: {error}"));
            }
            match Wire::new() {
                Ok(wire) => test(wire),
                Err(error) => longhaul_namespace::skip(format!("no TAP device: {error}")),
            }
        });
        wired.expect("a thread");
    });
}

fn configure(
    fd: &impl AsRawFd,
    request: libc::c_ulong,
    change: impl Fn(&mut libc::ifreq),
) -> io::Result<()> {
    // SAFETY: integers, addresses and bytes, for which zeros are valid.
    let mut interface: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in interface.ifr_name.iter_mut().zip(b"wire0") {
        *to = *from as libc::c_char;
    }
    change(&mut interface);
    // SAFETY: every request made here reads an `ifreq`, which is live.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw mut interface) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn address(octets: [u8; 4]) -> libc::sockaddr {
    // SAFETY: integers and bytes, for which zeros are valid.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = libc::AF_INET as _;
    for (to, from) in address.sa_data[2..6].iter_mut().zip(octets) {
        *to = from as libc::c_char;
    }
    address
}

impl Wire {
    fn new() -> io::Result<Self> {
        const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
        // SAFETY: a path that ends in NUL.
        let fd = unsafe { libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else uses it.
        let tap = unsafe { OwnedFd::from_raw_fd(fd) };
        configure(&tap, TUNSETIFF, |interface| {
            interface.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as _;
        })?;
        let any = std::net::UdpSocket::bind("0.0.0.0:0")?;
        configure(&any, libc::SIOCSIFADDR as _, |interface| {
            interface.ifr_ifru.ifru_addr = address(OWN)
        })?;
        configure(&any, libc::SIOCSIFNETMASK as _, |interface| {
            interface.ifr_ifru.ifru_addr = address([255, 255, 255, 0]);
        })?;
        configure(&any, libc::SIOCSIFMTU as _, |interface| interface.ifr_ifru.ifru_mtu = 4500)?;
        configure(&any, libc::SIOCSIFFLAGS as _, |interface| {
            interface.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        })?;
        Ok(Self(tap.into()))
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 65_536];
        let len = self.0.read(&mut frame).ok()?;
        frame.truncate(len);
        Some(frame)
    }

    /// Answers a request for the peer's MAC address.
    fn answer(&mut self, request: &[u8]) {
        let mut reply = request.to_vec();
        let mac = [2, 0, 10, 77, 0, 2];
        reply[..6].copy_from_slice(&request[6..12]);
        reply[6..12].copy_from_slice(&mac);
        reply[21] = 2;
        reply[22..28].copy_from_slice(&mac);
        reply[28..32].copy_from_slice(&PEER);
        reply[32..38].copy_from_slice(&request[22..28]);
        reply[38..42].copy_from_slice(&OWN);
        self.0.write_all(&reply).unwrap();
    }

    /// The next RoCE frame for the peer; answers requests for its MAC address.
    #[track_caller]
    fn next_roce(&mut self) -> Vec<u8> {
        until("a RoCEv2 frame is on the wire", || {
            let frame = self.read()?;
            if frame[12..14] == [0x08, 0x06] && frame[38..42] == PEER {
                self.answer(&frame);
            }
            matches!(split(&frame, frame.len()), Ok(Split::Roce { .. })).then_some(frame)
        })
    }
}

/// The kernel splits runs for a device that cannot, and numbers the packets; each still has a right
/// ICRC.
#[test]
fn every_packet_has_a_right_icrc_and_df() {
    in_namespace(|mut wire| {
        for offload in [true, false] {
            let own = IpAddr::from(OWN);
            let mut port =
                UdpPort::bind(&UdpConfig { offload, ..UdpConfig::new("test", own) }).unwrap();
            let path = Path { traffic_class: 0x6a, hop_limit: 9, ..path(own, IpAddr::from(PEER)) };
            give(&mut port, &frame_on(&path, 1000, 0));
            port.flush().unwrap();
            wire.next_roce();
            let lengths = [4096, 4096, 4096, 17, 0, 0, 0, 0, 1024, 1024, 1000, 4096];
            for (number, len) in lengths.into_iter().enumerate() {
                give(&mut port, &frame_on(&path, number as u32, len));
            }
            port.flush().unwrap();
            let mut numbered = 0;
            for (number, len) in lengths.into_iter().enumerate() {
                let frame = wire.next_roce();
                check_icrc(&frame);
                assert_eq!(body(&frame), body(&frame_on(&path, number as u32, len)));
                assert_eq!((frame[15], frame[22]), (0x6a, 9), "traffic class and TTL");
                assert_eq!(frame[20..22], [0x40, 0], "DF");
                numbered += u32::from(frame[18..20] != [0, 0]);
            }
            assert_eq!(numbered > 0, port.sends_runs(), "runs were split");
        }
    });
}

#[test]
fn a_packet_over_the_mtu_is_told_once_and_counted() {
    in_namespace(|mut wire| {
        let own = IpAddr::from(OWN);
        let mut port =
            UdpPort::bind(&UdpConfig { frame_bytes_max: 9000, ..UdpConfig::new("test", own) })
                .unwrap();
        let path = path(own, IpAddr::from(PEER));
        for number in 0..3 {
            give(&mut port, &frame_on(&path, number, 4600));
        }
        give(&mut port, &frame_on(&path, 3, 4096));
        let message = port.flush().unwrap_err().to_string();
        assert!(message.contains("LONGHAUL_PATH_MTU"), "{message}");
        assert_eq!(psn(&wire.next_roce()), 3);
        give(&mut port, &frame_on(&path, 4, 4600));
        give(&mut port, &frame_on(&path, 5, 4096));
        port.flush().unwrap();
        assert_eq!(psn(&wire.next_roce()), 5);
        assert_eq!(port.udp_counters().tx_over_mtu, 4);
        assert_eq!(port.counters().tx_drops.total(), 4);
    });
}

/// Anybody can report that a packet was too long for a network on the path.
#[test]
fn a_report_of_a_smaller_mtu_elsewhere_stops_nothing() {
    in_namespace(|mut wire| {
        let own = IpAddr::from(OWN);
        let mut port = port(own);
        let path = path(own, IpAddr::from(PEER));
        give(&mut port, &frame_on(&path, 0, 4096));
        port.flush().unwrap();
        let sent = wire.next_roce();
        // Type 3, code 4: fragmentation needed; next-hop MTU 576; then the IP and UDP headers that
        // it refers to.
        let mut icmp = vec![3, 4, 0, 0, 0, 0, 576_u16.to_be_bytes()[0], 576_u16.to_be_bytes()[1]];
        icmp.extend(&sent[14..14 + 28]);
        let sum = checksum(&icmp);
        icmp[2..4].copy_from_slice(&sum);
        let mut ip = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
        ip.extend(PEER.iter().chain(&OWN));
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum);
        let report = [&sent[6..12], &sent[..6], &[0x08, 0], &ip, &icmp].concat();
        wire.0.write_all(&report).unwrap();
        let known = std::net::UdpSocket::bind((own, 0)).unwrap();
        until("the kernel has heard of it", || {
            give(&mut port, &frame_on(&path, 1, 4096));
            port.flush().unwrap();
            assert_eq!(psn(&wire.next_roce()), 1);
            (path_mtu_of(&known) == 576).then_some(())
        });
        for number in 2..5 {
            give(&mut port, &frame_on(&path, number, 4096));
            port.flush().unwrap();
            let frame = wire.next_roce();
            assert_eq!(
                (psn(&frame), &frame[18..22]),
                (number, &[0, 0, 0x40, 0][..]),
                "whole, with DF"
            );
            check_icrc(&frame);
        }
        assert_eq!(port.udp_counters().tx_over_mtu, 0);
    });
}

/// The Internet checksum.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// MTU of the path to the peer, as the kernel assumes it.
fn path_mtu_of(socket: &std::net::UdpSocket) -> libc::c_int {
    socket.connect((IpAddr::from(PEER), 4791)).unwrap();
    let mut mtu: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and length are live, and the kernel writes at most the given length.
    unsafe {
        let value = (&raw mut mtu).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU, value, &raw mut len);
    }
    mtu
}

/// Until the peer's MAC address is known, the kernel queues packets and the send buffer stays full.
#[test]
fn a_full_send_buffer_keeps_frames_until_there_is_room() {
    in_namespace(|mut wire| {
        let own = IpAddr::from(OWN);
        let config = UdpConfig {
            send_buffer_bytes: 1,
            transmit_slots: 40,
            offload: false,
            ..UdpConfig::new("test", own)
        };
        let mut port = UdpPort::bind(&config).unwrap();
        let path = path(own, IpAddr::from(PEER));
        for number in 0..40 {
            give(&mut port, &frame_on(&path, number, 1000));
        }
        port.flush().unwrap();
        assert_eq!(port.transmit_room(), 0);
        assert!(port.udp_counters().tx_blocked > 0);
        let full = port.transmit(100, &mut |_| panic!("there is no slot")).unwrap();
        assert!(!full);
        assert_eq!(port.counters().tx_full, 1);
        let mut seen = 0;
        until("all frames are on the wire", || {
            assert!(!port.arm().unwrap());
            if port.sender.waiting() > 0 && seen > 0 {
                let fds = port.descriptors();
                let mut polled: Vec<_> = fds
                    .iter()
                    .map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                    .collect();
                // SAFETY: a live slice of the given length.
                let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, 10_000) };
                assert_eq!(ready, 1, "woken because there is room again");
            }
            port.disarm();
            port.service().unwrap();
            while let Some(frame) = wire.read() {
                if frame[12..14] == [0x08, 0x06] && frame[38..42] == PEER {
                    wire.answer(&frame);
                } else if matches!(split(&frame, frame.len()), Ok(Split::Roce { .. })) {
                    check_icrc(&frame);
                    assert_eq!(psn(&frame), seen);
                    seen += 1;
                }
            }
            (seen == 40).then_some(())
        });
        assert_eq!(port.transmit_room(), 40);
    });
}
