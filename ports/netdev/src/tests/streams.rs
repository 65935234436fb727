//! Tests with TCP and UDP between the network stacks of two namespaces, through two ports that a
//! loop joins.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_port::Port;

use super::packet::send_udp_run;
use super::*;
use crate::{PacketConfig, PacketPort, TapConfig, TapPort};

const STREAM_BYTES: usize = 24 << 20;

fn hosts() -> (Host, Host) {
    (Host::new(), Host::new())
}

/// Gives the host 10.9.0.`number` and fd09::`number`.
fn configure(host: &Host, number: u8, device: &str) {
    host.sh(&format!(
        "echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set {device} up
         ip addr add 10.9.0.{number}/24 dev {device}; \
         ip addr add fd09::{number}/64 nodad dev {device}"
    ));
}

/// Moves every frame from one port to the other, sleeps when none waits, and returns the longest
/// length.
fn bridge<A: Port, B: Port>(mut a: A, mut b: B, must_stop: &AtomicBool) -> (usize, A, B) {
    fn forward(from: &mut impl Port, to: &mut impl Port, longest: &mut usize) -> usize {
        let room = to.transmit_room().min(64);
        let moved = from
            .receive(room, &mut |frame| {
                *longest = frame.len().max(*longest);
                assert!(to.transmit(frame.len(), &mut |slot| slot.copy_from_slice(frame)).unwrap());
            })
            .unwrap();
        to.flush().unwrap();
        moved
    }
    let mut longest = 0;
    while !must_stop.load(Ordering::Relaxed) {
        a.service().unwrap();
        b.service().unwrap();
        let moved = forward(&mut a, &mut b, &mut longest) + forward(&mut b, &mut a, &mut longest);
        if moved == 0 {
            if !a.arm().unwrap() && !b.arm().unwrap() {
                sleep_on(&mut [&mut a, &mut b], Duration::from_millis(20));
            }
            a.disarm();
            b.disarm();
        }
    }
    (longest, a, b)
}

fn byte_at(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn write_stream(mut socket: TcpStream) {
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    let bytes: Vec<u8> = (0..STREAM_BYTES).map(byte_at).collect();
    socket.write_all(&bytes).unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
}

fn read_stream(mut socket: TcpStream) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), STREAM_BYTES);
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == byte_at(at)), "damaged");
}

/// Sends a stream in each direction between `a` and `address` in `b`.
fn exchange(a: &Host, b: &Host, address: &'static str) {
    let (ready, is_ready) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            b.run(move || {
                let listener = TcpListener::bind(address).unwrap();
                ready.send(()).unwrap();
                listener.set_nonblocking(true).unwrap();
                let mut socket = None;
                until("connection", || {
                    socket = listener.accept().ok();
                    socket.is_some()
                });
                let (socket, _) = socket.unwrap();
                socket.set_nonblocking(false).unwrap();
                both_ways(socket);
            });
        });
        is_ready.recv().unwrap();
        a.run(move || {
            let address = address.parse().unwrap();
            both_ways(TcpStream::connect_timeout(&address, PATIENCE).unwrap());
        });
    });
}

fn both_ways(socket: TcpStream) {
    let other = socket.try_clone().unwrap();
    let writer = std::thread::spawn(|| write_stream(other));
    read_stream(socket);
    writer.join().unwrap();
}

/// Joins two ports while `traffic` runs; returns the longest frame and the ports.
fn joined<A: Port + 'static, B: Port + 'static>(
    (a, b): (A, B),
    traffic: impl FnOnce(),
) -> (usize, A, B) {
    struct Stop(Arc<AtomicBool>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let must_stop = Arc::new(AtomicBool::new(false));
    let stop = Stop(Arc::clone(&must_stop));
    let bridge = std::thread::spawn(move || bridge(a, b, &must_stop));
    traffic();
    drop(stop);
    bridge.join().unwrap()
}

/// A box between two hosts, each with one end of a veth pair.
fn veth_box(a: &Host, b: &Host) -> (PacketPort, PacketPort) {
    for (host, port) in [(a, "wa"), (b, "wb")] {
        sh(&format!(
            "ip link add {port} type veth peer name eh netns {}; ip link set {port} up",
            host.thread
        ));
    }
    let config = PacketConfig::new;
    (PacketPort::open(&config("wa")).unwrap(), PacketPort::open(&config("wb")).unwrap())
}

mod through_packet_ports {
    use super::*;

    fn arrive_whole(address: &'static str, has_vlan: bool) {
        in_namespace(move || {
            let (a, b) = hosts();
            let (left, right) = veth_box(&a, &b);
            let mut device = "eh";
            if has_vlan {
                device = "ev";
                let make = "ip link set eh up; ip link add link eh name ev type vlan id 5";
                if ![&a, &b].iter().all(|host| host.run(move || may_sh(make))) {
                    return longhaul_namespace::skip("this kernel has no VLAN devices");
                }
            }
            configure(&a, 1, device);
            configure(&b, 2, device);
            let (longest, left, _) = joined((left, right), || exchange(&a, &b, address));
            let counters = left.netdev_counters();
            // The senders did leave offloads open.
            assert!(counters.rx_split > 100 && counters.rx_checksums_filled > 0, "{counters:?}");
            assert_eq!(counters.rx_not_splittable, 0);
            assert_eq!(longest, if has_vlan { 1518 } else { 1514 });
            assert_eq!(counters.rx_tags_restored > 0, has_vlan);
        });
    }

    #[test]
    fn tcp_over_ipv4_arrives_whole() {
        arrive_whole("10.9.0.2:5000", false);
    }

    #[test]
    fn tcp_over_ipv6_arrives_whole() {
        arrive_whole("[fd09::2]:5000", false);
    }

    #[test]
    fn tcp_in_a_vlan_arrives_whole() {
        arrive_whole("10.9.0.2:5000", true);
    }

    fn arrive_whole_in_a_tunnel(tunnel: &'static str) {
        in_namespace(move || {
            let (a, b) = hosts();
            let (left, right) = veth_box(&a, &b);
            for (host, me, peer) in [(&a, "1", "2"), (&b, "2", "1")] {
                configure(host, me.parse().unwrap(), "eh");
                let make = tunnel.replace("ME", me).replace("PEER", peer);
                if !host.run(move || may_sh(&format!("ip link add ex type {make}"))) {
                    let why = format!("this kernel has no devices of type {tunnel}");
                    return longhaul_namespace::skip(why);
                }
                host.sh(&format!("ip link set ex up; ip addr add 10.8.0.{me}/24 dev ex"));
            }
            let (longest, left, _) = joined((left, right), || exchange(&a, &b, "10.8.0.2:5000"));
            let counters = left.netdev_counters();
            assert!(counters.rx_split > 100, "{counters:?}");
            assert_eq!(counters.rx_not_splittable, 0);
            assert!(longest <= 1514, "{longest}");
        });
    }

    #[test]
    fn tcp_in_vxlan_arrives_whole() {
        arrive_whole_in_a_tunnel(
            "vxlan id 7 dstport 4789 local 10.9.0.ME remote 10.9.0.PEER noudpcsum",
        );
    }

    #[test]
    fn tcp_in_vxlan_with_checksums_arrives_whole() {
        arrive_whole_in_a_tunnel(
            "vxlan id 7 dstport 4789 local 10.9.0.ME remote 10.9.0.PEER udpcsum",
        );
    }

    #[test]
    fn tcp_in_gre_arrives_whole() {
        arrive_whole_in_a_tunnel("gretap local 10.9.0.ME remote 10.9.0.PEER");
    }

    #[test]
    fn tcp_in_ip_arrives_whole() {
        arrive_whole_in_a_tunnel("ipip local 10.9.0.ME remote 10.9.0.PEER");
    }

    #[test]
    fn runs_of_udp_arrive_one_by_one() {
        in_namespace(|| {
            let (a, b) = hosts();
            let (left, right) = veth_box(&a, &b);
            configure(&a, 1, "eh");
            configure(&b, 2, "eh");
            runs_arrive(&a, &b, (left, right));
        });
    }
}

fn runs_arrive<P: Port + 'static>(a: &Host, b: &Host, ports: (P, P)) {
    let (longest, ..) = joined(ports, || {
        let socket = b.run(|| UdpSocket::bind("10.9.0.2:4791").unwrap());
        a.run(|| send_udp_run("10.9.0.2:4791", 1000, 40));
        b.run(move || {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = [0; 2000];
            for number in 0..40 {
                assert_eq!(socket.recv(&mut bytes).unwrap(), 1000);
                assert_eq!(bytes[..1000], [number; 1000]);
            }
        });
    });
    assert_eq!(longest, 1042);
}

mod through_tap_ports {
    use super::*;

    fn open(a: &Host, b: &Host) -> (TapPort, TapPort) {
        let [left, right] =
            [a, b].map(|host| host.run(|| TapPort::open(&TapConfig::new("eh")).unwrap()));
        configure(a, 1, "eh");
        configure(b, 2, "eh");
        (left, right)
    }

    fn arrive_whole(address: &'static str) {
        in_namespace(move || {
            let (a, b) = hosts();
            let ports = open(&a, &b);
            let (longest, ..) = joined(ports, || exchange(&a, &b, address));
            assert_eq!(longest, 1514);
        });
    }

    #[test]
    fn tcp_over_ipv4_arrives_whole() {
        arrive_whole("10.9.0.2:5000");
    }

    #[test]
    fn tcp_over_ipv6_arrives_whole() {
        arrive_whole("[fd09::2]:5000");
    }

    #[test]
    fn runs_of_udp_arrive_one_by_one() {
        in_namespace(|| {
            let (a, b) = hosts();
            let ports = open(&a, &b);
            runs_arrive(&a, &b, ports);
        });
    }
}
