//! Tests of ports whose interface is set down, deleted, renamed or reconfigured.

use longhaul_port::{DropReason, LinkState, Port};

use super::*;
use crate::{PacketConfig, PacketPort, TapConfig, TapPort};

const VETH: &str = "ip link add ea type veth peer name eb; ip link set ea up; ip link set eb up";

fn open(interface: &str) -> PacketPort {
    PacketPort::open(&PacketConfig::new(interface)).unwrap()
}

/// Sends a frame, and checks that it is dropped.
fn is_dropped(port: &mut impl Port) {
    let before = port.counters().tx_drops.get(DropReason::LinkDown);
    for _ in 0..300 {
        send(port, &frame(60, 1));
    }
    assert_eq!(port.counters().tx_drops.get(DropReason::LinkDown), before + 300);
}

fn is_carried(from: &mut impl Port, to: &mut impl Port) {
    send(from, &frame(100, 7));
    assert_eq!(receive_all(to, 1), [frame(100, 7)]);
}

mod a_packet_port_survives {
    use super::*;

    #[test]
    fn its_interface_set_down_and_up() {
        in_namespace(|| {
            sh(VETH);
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            for round in 1..4 {
                sh("ip link set ea down");
                // Before the port notices: dropped by the kernel's error.
                send(&mut a, &frame(60, 1));
                assert!(receive(&mut a).is_empty());
                await_link(&mut a, LinkState::Down);
                assert!(a.last_disconnect().unwrap().contains("ip link set ea up"));
                is_dropped(&mut a);
                await_link(&mut b, LinkState::Down);
                assert!(b.last_disconnect().unwrap().contains("carrier"));
                is_dropped(&mut b);
                sh("ip link set ea up");
                await_link(&mut a, LinkState::Up);
                await_link(&mut b, LinkState::Up);
                is_carried(&mut a, &mut b);
                is_carried(&mut b, &mut a);
                assert_eq!(a.counters().link_ups, 1 + round);
            }
            assert_eq!(a.netdev_counters().detached, 0);
        });
    }

    #[test]
    fn its_interface_set_down_and_up_without_losing_what_comes_after_that() {
        in_namespace(|| {
            sh(VETH);
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            sh("ip link set ea down");
            await_link(&mut a, LinkState::Down);
            sh("ip link set ea up");
            await_link(&mut a, LinkState::Up);
            is_carried(&mut a, &mut b);
            assert_eq!(a.counters().tx_drops.total(), 0);
        });
    }

    #[test]
    fn its_interface_deleted_and_made_anew() {
        in_namespace(|| {
            sh(VETH);
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            for round in 1..4 {
                sh("ip link del ea");
                send(&mut a, &frame(60, 1));
                assert!(receive(&mut a).is_empty());
                await_link(&mut a, LinkState::Down);
                await_link(&mut b, LinkState::Down);
                assert!(a.last_disconnect().unwrap().contains("deleted"));
                is_dropped(&mut a);
                settle(&mut a);
                sh(VETH);
                await_link(&mut a, LinkState::Up);
                await_link(&mut b, LinkState::Up);
                is_carried(&mut a, &mut b);
                is_carried(&mut b, &mut a);
                assert_eq!(a.netdev_counters().reattached, round);
            }
        });
    }

    #[test]
    fn its_interface_replaced_between_two_looks() {
        in_namespace(|| {
            sh(VETH);
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            sh(&format!("ip link del ea; {VETH}"));
            until("the new one", || {
                a.service().unwrap();
                b.service().unwrap();
                a.netdev_counters().reattached + b.netdev_counters().reattached == 2
            });
            await_link(&mut a, LinkState::Up);
            await_link(&mut b, LinkState::Up);
            is_carried(&mut a, &mut b);
        });
    }

    #[test]
    fn its_interface_renamed() {
        in_namespace(|| {
            sh(VETH);
            let (mut a, mut b) = (open("ea"), open("eb"));
            await_link(&mut a, LinkState::Up);
            sh("ip link set ea down; ip link set ea name other0; ip link add ea type bridge; ip \
                 link set ea up");
            await_link(&mut a, LinkState::Down);
            until("the new name", || {
                a.service().unwrap();
                a.interface() == "other0"
            });
            assert!(a.last_disconnect().unwrap().contains("'ip link set other0 up'"));
            sh("ip link set other0 up");
            await_link(&mut a, LinkState::Up);
            is_carried(&mut a, &mut b);
            is_carried(&mut b, &mut a);
            assert_eq!(a.netdev_counters().detached, 0);
            sh("ip link set ea down; ip link del other0");
            until("the other one of its name", || {
                a.service().unwrap();
                a.netdev_counters().reattached == 1
            });
            assert_eq!(a.interface(), "ea");
        });
    }

    #[test]
    fn its_interface_moved_away() {
        in_namespace(|| {
            sh(VETH);
            let mut a = open("ea");
            let elsewhere = Host::new();
            sh(&format!("ip link set ea netns {}", elsewhere.thread));
            await_link(&mut a, LinkState::Down);
            drop(elsewhere);
        });
    }

    #[test]
    fn frames_waiting_when_it_goes_down() {
        in_namespace(|| {
            sh(VETH);
            let mut a = open("ea");
            await_link(&mut a, LinkState::Up);
            for _ in 0..10 {
                a.transmit(60, &mut |slot| slot.copy_from_slice(&frame(60, 1))).unwrap();
            }
            sh("ip link set ea down");
            await_link(&mut a, LinkState::Down);
            assert_eq!(a.counters().tx_drops.get(DropReason::LinkDown), 10);
            assert_eq!(a.transmit_room(), 256);
        });
    }
}

mod a_tap_port_survives {
    use super::*;

    #[test]
    fn its_device_set_down_and_up() {
        in_namespace(|| {
            let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            let mut host = open("tap9");
            await_link(&mut tap, LinkState::Up);
            for _ in 0..3 {
                sh("ip link set tap9 down");
                send(&mut tap, &frame(60, 1));
                assert!(receive(&mut tap).is_empty());
                await_link(&mut tap, LinkState::Down);
                is_dropped(&mut tap);
                sh("ip link set tap9 up");
                await_link(&mut tap, LinkState::Up);
                await_link(&mut host, LinkState::Up);
                is_carried(&mut tap, &mut host);
                is_carried(&mut host, &mut tap);
            }
        });
    }

    #[test]
    fn its_device_deleted_and_made_anew() {
        in_namespace(|| {
            let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            await_link(&mut tap, LinkState::Up);
            for round in 1..4 {
                sh("ip link del tap9");
                send(&mut tap, &frame(60, 1));
                assert!(receive(&mut tap).is_empty());
                await_link(&mut tap, LinkState::Down);
                assert!(tap.last_disconnect().unwrap().contains("deleted"));
                is_dropped(&mut tap);
                settle(&mut tap);
                sh("ip tuntap add dev tap9 mode tap");
                await_link(&mut tap, LinkState::Up);
                let mut host = open("tap9");
                await_link(&mut host, LinkState::Up);
                is_carried(&mut tap, &mut host);
                is_carried(&mut host, &mut tap);
                assert_eq!(tap.netdev_counters().reattached, round);
            }
        });
    }

    #[test]
    fn its_device_renamed() {
        in_namespace(|| {
            let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            await_link(&mut tap, LinkState::Up);
            sh("ip link set tap9 down; ip link set tap9 name other0; ip link set other0 up");
            await_link(&mut tap, LinkState::Up);
            let mut host = open("other0");
            await_link(&mut host, LinkState::Up);
            is_carried(&mut host, &mut tap);
            is_carried(&mut tap, &mut host);
            assert_eq!((tap.netdev_counters().detached, tap.interface()), (0, "other0"));
        });
    }

    #[test]
    fn its_name_taken_by_something_else() {
        in_namespace(|| {
            let mut tap = TapPort::open(&TapConfig::new("tap9")).unwrap();
            await_link(&mut tap, LinkState::Up);
            sh("ip link del tap9; ip link add tap9 type veth peer name eb");
            until("an explanation", || {
                tap.service().unwrap();
                tap.last_disconnect().is_some_and(|cause| cause.contains("not a TAP device"))
            });
            sh("ip link del tap9; ip tuntap add dev tap9 mode tap");
            await_link(&mut tap, LinkState::Up);
        });
    }
}
