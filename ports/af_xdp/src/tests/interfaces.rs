//! Tests of interfaces that a port refuses, or that change under it.

use longhaul_netdev::NetdevError;
use longhaul_port::DropReason;

use super::*;
use crate::{Copying, XdpError};

fn refusal(config: &XdpConfig) -> XdpError {
    match XdpPort::open(config) {
        Ok(_) => panic!("{config:?} is opened"),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() > 20, "{text}");
            error
        }
    }
}

#[test]
fn what_makes_it_impossible_is_said_with_its_cure() {
    in_namespace(|| {
        let error = refusal(&XdpConfig::new("nothere0"));
        assert!(
            matches!(error, XdpError::Interface(NetdevError::NoSuchInterface { .. })),
            "{error}"
        );
        let error = refusal(&XdpConfig::new("lo"));
        assert!(matches!(error, XdpError::Interface(NetdevError::NotEthernet { .. })), "{error}");
        veth(1500, 2);
        let three = XdpConfig { queues: Some(3), ..XdpConfig::new("ea") };
        let error = refusal(&three);
        assert!(matches!(error, XdpError::Queues { most: 2, wanted: 3, .. }), "{error}");
        let shared =
            XdpConfig { copying: Copying::ZeroCopy, mode: Mode::Native, ..XdpConfig::new("ea") };
        let error = refusal(&shared);
        assert!(matches!(error, XdpError::NoZeroCopy { .. }), "{error}");
        let first = open("ea", Mode::Auto);
        assert!(first.manner().is_native, "{}", first.manner());
        assert!(matches!(refusal(&XdpConfig::new("ea")), XdpError::ProgramThere { .. }));
        drop(first);
        // Neither a refused nor a dropped port leaves state behind.
        open("ea", Mode::Generic);
        open("ea", Mode::Native);
    });
}

#[test]
fn a_driver_without_xdp_is_served_in_generic_mode_and_that_is_said() {
    in_namespace(|| {
        sh("ip link add lhbr0 type bridge; ip link set lhbr0 up");
        let native = XdpConfig { mode: Mode::Native, ..XdpConfig::new("lhbr0") };
        assert!(matches!(refusal(&native), XdpError::NoNative { .. }));
        let port = XdpPort::open(&XdpConfig::new("lhbr0")).unwrap();
        assert!(!port.manner().is_native);
        assert!(port.manner().to_string().contains("(native: "), "{}", port.manner());
    });
}

#[test]
fn the_program_goes_with_the_port() {
    in_namespace(|| {
        veth(1500, 1);
        let has_program = || {
            let shown = Command::new("ip").args(["link", "show", "ea"]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("xdp")
        };
        let port = open("ea", Mode::Native);
        assert!(has_program());
        drop(port);
        // Its descriptors may live on in a child that another test has forked.
        until("removal of the program", || !has_program());
    });
}

#[test]
fn a_link_that_flaps_is_survived_and_counted() {
    in_namespace(|| {
        veth(1500, 1);
        let (mut a, mut b) = (open("ea", Mode::Native), open("eb", Mode::Native));
        for round in 0..5 {
            sh("ip link set eb down");
            await_link(&mut a, LinkState::Down);
            assert!(a.last_disconnect().unwrap().contains("carrier"), "{:?}", a.last_disconnect());
            send(&mut a, &frame(100, 1));
            assert_eq!(a.counters().tx_drops.get(DropReason::LinkDown), round + 1);
            sh("ip link set eb up");
            await_link(&mut a, LinkState::Up);
            await_link(&mut b, LinkState::Up);
            send(&mut a, &frame(100, round as u8));
            assert_eq!(receive_all(&mut b, 1), [frame(100, round as u8)]);
        }
        assert_eq!(a.counters().link_ups, 6);
        assert_eq!((a.xdp_counters().detached, a.xdp_counters().reattached), (0, 0));
    });
}

#[test]
fn an_interface_that_is_down_is_waited_for() {
    in_namespace(|| {
        sh("ip link add ea type veth peer name eb");
        let mut port = XdpPort::open(&XdpConfig::new("ea")).unwrap();
        assert_eq!(port.service().unwrap(), LinkState::Down);
        assert!(port.last_disconnect().unwrap().contains("ip link set ea up"));
        sh("ip link set ea up; ip link set eb up");
        await_link(&mut port, LinkState::Up);
        let mut b = open_packet("eb");
        send(&mut b, &frame(100, 1));
        assert_eq!(receive_all(&mut port, 1), [frame(100, 1)]);
    });
}

#[test]
fn an_interface_that_is_made_anew_is_attached_to() {
    in_namespace(|| {
        veth(1500, 1);
        let mut a = open("ea", Mode::Auto);
        sh("ip link del ea");
        await_link(&mut a, LinkState::Down);
        assert!(a.last_disconnect().unwrap().contains("deleted"), "{:?}", a.last_disconnect());
        send(&mut a, &frame(100, 1));
        assert_eq!(receive(&mut a).len(), 0);
        veth(9000, 1);
        await_link(&mut a, LinkState::Up);
        assert_eq!((a.xdp_counters().detached, a.xdp_counters().reattached), (1, 1));
        let mut b = open("eb", Mode::Auto);
        send(&mut b, &frame(200, 2));
        assert_eq!(receive_all(&mut a, 1), [frame(200, 2)]);
        send(&mut a, &frame(200, 3));
        assert_eq!(receive_all(&mut b, 1), [frame(200, 3)]);
    });
}

#[test]
fn merging_and_the_taking_off_of_tags_are_off_as_long_as_it_is_there() {
    in_namespace(|| {
        veth(1500, 1);
        let features = || {
            let shown = Command::new("ethtool").args(["-k", "ea"]).output();
            let text = String::from_utf8_lossy(&shown.expect("ethtool").stdout).into_owned();
            ["generic-receive-offload", "rx-vlan-offload"]
                .map(|name| text.contains(&format!("{name}: on")))
        };
        sh("ethtool -K ea gro on rxvlan on");
        let port = open("ea", Mode::Generic);
        assert_eq!(features(), [false, false]);
        drop(port);
        assert_eq!(features(), [true, true]);
        // In native mode, merging happens behind the program.
        let port = open("ea", Mode::Native);
        assert_eq!(features(), [true, false]);
        drop(port);
    });
}
