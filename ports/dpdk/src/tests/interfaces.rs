//! Tests of drivers for interfaces of the host, in network namespaces that vanish with the threads
//! that created them.

use super::*;
use longhaul_namespace::{in_namespace, sh, veth};
use longhaul_netdev::{PacketConfig, PacketPort};

/// An EtherType for experiments, to which no kernel responds.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

fn host_port(interface: &str) -> PacketPort {
    let mut port = PacketPort::open(&PacketConfig::new(interface)).unwrap();
    up(&mut port);
    port
}

/// A frame for experiments, between one of 16 pairs of stations.
fn frame(number: usize) -> Vec<u8> {
    let len = 60 + number * 37 % 1454;
    let mut frame: Vec<u8> = (0..len).map(|at| byte(number, at)).collect();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, number as u8 % 16]);
    frame[12..14].copy_from_slice(&ETHERTYPE);
    frame
}

/// Sends `count` frames from one port, and checks that each arrives once at one of the others.
fn exchange<'a>(
    from: &mut dyn Port,
    to: impl IntoIterator<Item = &'a mut DpdkPort>,
    count: usize,
) -> Vec<usize> {
    let mut to: Vec<&mut dyn Port> = to.into_iter().map(|port| port as &mut dyn Port).collect();
    exchange_with(from, &mut to, count)
}

fn exchange_with(from: &mut dyn Port, to: &mut [&mut dyn Port], count: usize) -> Vec<usize> {
    let (mut sent, mut came, mut missing) = (0, vec![0; to.len()], count);
    let mut has_come = vec![false; count];
    until("all frames came", || {
        from.service().expect("a port");
        while sent < count && sent + missing < count + 32 && from.transmit_room() > 0 {
            let frame = frame(sent);
            assert!(from.transmit(frame.len(), &mut |out| out.copy_from_slice(&frame)).unwrap());
            sent += 1;
        }
        from.flush().expect("a port");
        for (port, came) in to.iter_mut().zip(&mut came) {
            port.service().expect("a port");
            port.receive(64, &mut |bytes| {
                let number =
                    (0..count).find(|number| !has_come[*number] && frame(*number) == bytes);
                let number = number.unwrap_or_else(|| panic!("a strange frame: {bytes:?}"));
                has_come[number] = true;
                *came += 1;
                missing -= 1;
            })
            .expect("a port");
        }
        missing == 0
    });
    came
}

/// Exchanges frames between a device and the host's end, in both directions.
fn both_ways(device: &mut DpdkPort, host: &mut PacketPort) {
    up(device);
    exchange(host, [&mut *device], 300);
    exchange_with(device, &mut [host], 300);
    assert_eq!(device.counters().rx_drops.total(), 0);
}

#[test]
fn that_the_kernel_keeps_are_reached_by_packet_sockets() {
    in_namespace(|| {
        veth(1500, 1);
        let mut port = opened("net_af_packet_veth0,iface=ea");
        both_ways(&mut port, &mut host_port("eb"));
        assert_eq!((port.driver(), port.mtu()), ("net_af_packet", 1500));
    });
}

#[test]
fn several_packet_sockets_share_what_comes() {
    in_namespace(|| {
        veth(1500, 1);
        let config = DpdkConfig {
            spread: Spread::ByDevice,
            ..DpdkConfig::new("net_af_packet_two0,iface=ea")
        };
        let refused = open_ports(&config, 2).map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("'qpairs=N'"), "{refused}");
        let config =
            DpdkConfig { devargs: "net_af_packet_two0,iface=ea,qpairs=2".into(), ..config };
        let mut ports = open_ports(&config, 2).unwrap();
        ports.iter_mut().for_each(up);
        exchange(&mut host_port("eb"), &mut ports, 300);
        for port in &mut ports {
            exchange_with(port, &mut [&mut host_port("eb")], 40);
        }
    });
}

#[test]
fn that_the_driver_makes_lead_to_the_kernel() {
    in_namespace(|| {
        let mut port = opened("net_tap_host0,iface=lhdpdk0");
        sh("ip link set lhdpdk0 up");
        both_ways(&mut port, &mut host_port("lhdpdk0"));
        assert_eq!(port.driver(), "net_tap");
    });
}

#[test]
fn that_flap_are_counted_and_go_on() {
    in_namespace(|| {
        let mut port = opened("net_tap_flap0,iface=lhdpdk1");
        for flap in 0..3 {
            sh("ip link set lhdpdk1 up");
            both_ways(&mut port, &mut host_port("lhdpdk1"));
            assert_eq!(
                (port.counters().link_ups, port.counters().tx_drops.total()),
                (flap + 1, flap)
            );
            sh("ip link set lhdpdk1 down");
            until("it is noticed", || port.service().unwrap() == LinkState::Down);
            assert!(send(&mut port, 0, 60), "taken and dropped");
        }
    });
}

#[test]
fn that_the_kernel_keeps_are_reached_by_af_xdp() {
    in_namespace(|| {
        veth(1500, 1);
        let mut port = match open(&DpdkConfig::new("net_af_xdp_veth0,iface=ea")) {
            Ok(port) => port,
            Err(error) => return longhaul_namespace::skip(error),
        };
        both_ways(&mut port, &mut host_port("eb"));
        assert_eq!(port.driver(), "net_af_xdp");
    });
}
