//! Tests of several ports that share the queues of an interface.

use std::num::NonZeroUsize;

use super::*;
use crate::XdpError;

fn config(interface: &str, mode: Mode) -> XdpConfig {
    XdpConfig { mode, receive_frames: Some(256), transmit_frames: 256, ..XdpConfig::new(interface) }
}

fn open_queues(config: &XdpConfig, ports: usize) -> Result<Vec<XdpPort>, XdpError> {
    let mut ports = XdpPort::open_queues(config, NonZeroUsize::new(ports).unwrap())?;
    for port in &mut ports {
        await_link(port, LinkState::Up);
    }
    Ok(ports)
}

/// Programs at `interface`: their numbers, as `ip` shows them.
fn programs(interface: &str) -> Vec<String> {
    let shown = Command::new("ip").args(["-o", "-d", "link", "show", interface]).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let after = text.split("prog/xdp id ").skip(1);
    after.filter_map(|rest| rest.split(' ').next().map(str::to_owned)).collect()
}

/// Frames sent by a queue of one veth end arrive by the same queue of the other, and so at the port
/// that owns it.
#[test]
fn each_gets_what_comes_by_its_queues_and_sends_by_the_first_of_them() {
    in_namespace(|| {
        veth(1500, 3);
        let mut here = open_queues(&config("ea", Mode::Native), 2).unwrap();
        let mut there = open_queues(&config("eb", Mode::Native), 3).unwrap();
        assert_eq!(programs("ea").len(), 1);
        assert_eq!(here[1].manner().queues, 3);
        for (by, to) in [(0, 0), (1, 1), (2, 0)] {
            let sent = frame(100 + by, by as u8);
            send(&mut there[by], &sent);
            assert_eq!(receive_all(&mut here[to], 1), [sent], "queue {by}");
            assert_eq!(receive(&mut here[1 - to]).len(), 0);
        }
        for by in 0..2 {
            let sent = frame(200, by as u8);
            send(&mut here[by], &sent);
            assert_eq!(receive_all(&mut there[by], 1), [sent], "queue {by}");
        }
        assert_eq!(there.iter_mut().map(|port| receive(port).len()).sum::<usize>(), 0);
    });
}

/// In generic mode the kernel chooses the queue of a veth's frame.
#[test]
fn in_generic_mode_nothing_is_lost_or_comes_twice() {
    in_namespace(|| {
        veth(1500, 2);
        let mut here = open_queues(&config("ea", Mode::Generic), 2).unwrap();
        let mut there = open_queues(&config("eb", Mode::Generic), 2).unwrap();
        let sent: Vec<Vec<u8>> = (0..20).map(|number| frame(100, number)).collect();
        for _ in 0..2 {
            let (senders, takers) = (&mut here, &mut there);
            for (at, one) in sent.iter().enumerate() {
                send(&mut senders[at % 2], one);
            }
            let mut came = Vec::new();
            until("frames", || {
                came.extend(takers.iter_mut().flat_map(receive));
                came.len() >= sent.len()
            });
            came.sort();
            let mut wanted = sent.clone();
            wanted.sort();
            assert_eq!(came, wanted);
            std::mem::swap(&mut here, &mut there);
        }
    });
}

#[test]
fn the_program_goes_with_the_last_of_them() {
    in_namespace(|| {
        veth(1500, 2);
        let mut here = open_queues(&config("ea", Mode::Native), 2).unwrap();
        let mut there = open_queues(&config("eb", Mode::Native), 2).unwrap();
        let program = programs("ea");
        drop(here.remove(0));
        assert_eq!(programs("ea"), program);
        // The kernel receives all frames of the queue that no port owns.
        let mut kernel = open_packet("ea");
        for (by, port) in there.iter_mut().enumerate() {
            send(port, &frame(100, by as u8));
        }
        assert_eq!(receive_all(&mut here[0], 1), [frame(100, 1)]);
        assert_eq!(receive_all(&mut kernel, 1), [frame(100, 0)]);
        drop(here);
        // A program that another test is about to start may hold its descriptor briefly.
        until("end of the program", || programs("ea").is_empty());
        // No state is left behind.
        open_queues(&config("ea", Mode::Native), 2).unwrap();
    });
}

#[test]
fn an_interface_with_fewer_queues_is_refused_with_the_cure() {
    in_namespace(|| {
        // Two receive queues, and one transmit queue; the other end alike, or veth would refuse the
        // program.
        let end = |name, receive, send| format!("{name} numrxqueues {receive} numtxqueues {send}");
        sh(&format!("ip link add {} type veth peer name {}", end("ea", 2, 1), end("eb", 2, 2)));
        sh("ip link set ea up; ip link set eb up");
        for (config, ports, there) in [
            (config("ea", Mode::Auto), 2, 1),
            (config("eb", Mode::Auto), 3, 2),
            (XdpConfig { queues: Some(1), ..config("eb", Mode::Auto) }, 2, 1),
        ] {
            let refusal = open_queues(&config, ports).err().unwrap();
            let text = refusal.to_string();
            assert!(
                matches!(
                    refusal,
                    XdpError::QueuesForCores { queues, cores, .. }
                        if (queues, cores) == (there, ports as u16)
                ),
                "{text}"
            );
            assert!(
                text.contains(&format!("ethtool -L {} combined {ports}", config.interface)),
                "{text}"
            );
            assert!(!text.contains('\n') && programs(&config.interface).is_empty(), "{text}");
        }
        // A single port sends by the first queue and receives by all.
        assert_eq!(open("ea", Mode::Auto).manner().queues, 2);
    });
}

#[test]
fn an_interface_that_is_made_anew_gets_one_program_for_all_of_them() {
    in_namespace(|| {
        veth(1500, 2);
        let mut here = open_queues(&config("ea", Mode::Native), 2).unwrap();
        sh("ip link del ea");
        for port in &mut here {
            await_link(port, LinkState::Down);
        }
        veth(1500, 2);
        for port in &mut here {
            await_link(port, LinkState::Up);
            assert_eq!(port.xdp_counters().reattached, 1);
        }
        assert_eq!(programs("ea").len(), 1);
        let mut there = open_queues(&config("eb", Mode::Native), 2).unwrap();
        for (by, (here, there)) in here.iter_mut().zip(&mut there).enumerate() {
            send(there, &frame(100, by as u8));
            assert_eq!(receive_all(here, 1), [frame(100, by as u8)]);
        }
    });
}

#[test]
fn those_that_take_turns_as_the_interface_comes_and_goes_never_share_one_that_is_gone() {
    in_namespace(|| {
        veth(1500, 2);
        let mut here = open_queues(&config("ea", Mode::Native), 2).unwrap();
        sh("ip link del ea");
        veth(1500, 2);
        // The second port still has the interface whose deletion the first one notices.
        for port in &mut here {
            until("a port that attached again", || {
                port.service().unwrap();
                port.xdp_counters().reattached == 1
            });
        }
        assert_eq!(programs("ea").len(), 1);
    });
}
