//! Tests of ports that move to another process.

use longhaul_port::{Handover, LinkState, Port};

use super::*;
use crate::{NetdevError, PacketConfig, PacketPort, TapConfig, TapPort};

#[test]
fn a_packet_port_continues_with_the_frames_that_wait() {
    in_namespace(|| {
        sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
        let config = PacketConfig { by_class: true, ..PacketConfig::new("eb") };
        let mut a = PacketPort::open(&PacketConfig::new("ea")).unwrap();
        let mut old = PacketPort::open(&config).unwrap();
        await_link(&mut a, LinkState::Up);
        await_link(&mut old, LinkState::Up);
        settle(&mut old);
        let frames: Vec<_> = (0..9).map(|seed| frame(100, seed)).collect();
        frames.iter().for_each(|frame| send(&mut a, frame));
        assert!(old.is_at_rest());
        let handover = old.hand_over().unwrap();
        old.give_away();
        drop(old);
        let mut new = PacketPort::take_over(&config, handover).unwrap();
        assert_eq!(receive_all(&mut new, frames.len()), frames);
        send(&mut new, &frames[0]);
        assert_eq!(receive_all(&mut a, 1), frames[..1]);
    });
}

/// A process that fails to take over changes nothing for the one that continues.
#[test]
fn merging_is_restored_by_the_port_that_is_in_charge() {
    in_namespace(|| {
        sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
        sh("ethtool -K eb gro on");
        let merges = |on: &str| sh(&format!("ethtool -k eb | grep -q 'receive-offload: {on}'"));
        let config = PacketConfig::new("eb");
        let mut old = PacketPort::open(&config).unwrap();
        merges("off");
        drop(PacketPort::take_over(&config, old.hand_over().unwrap()).unwrap());
        merges("off");
        let mut new = PacketPort::take_over(&config, old.hand_over().unwrap()).unwrap();
        old.give_away();
        drop(old);
        merges("off");
        new.take_charge().unwrap();
        drop(new);
        merges("on");
    });
}

#[test]
fn what_is_no_packet_port_is_refused() {
    in_namespace(|| {
        sh("ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up");
        let of = |interface: &str, config: PacketConfig| {
            let mut port =
                PacketPort::open(&PacketConfig { interface: interface.to_owned(), ..config });
            port.as_mut().unwrap().hand_over().unwrap()
        };
        let config = PacketConfig::new("eb");
        let pipe = std::os::unix::net::UnixStream::pair().unwrap().0;
        let by_class = PacketConfig { by_class: true, ..config.clone() };
        for handover in [
            Handover::default(),
            Handover { descriptors: vec![pipe.into()], numbers: vec![7; 9] },
            of("ea", config.clone()),
            of("eb", by_class),
        ] {
            let refusal = PacketPort::take_over(&config, handover).err();
            assert!(matches!(refusal, Some(NetdevError::NotThisPort { .. })), "{refusal:?}");
        }
        let handover = of("eb", config);
        let refusal = TapPort::take_over(&TapConfig::new("eb"), handover).err();
        assert!(matches!(refusal, Some(NetdevError::NotThisPort { .. })), "{refusal:?}");
    });
}
